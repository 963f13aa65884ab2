"""The processes that run one program: who they are, their groups, and what they send one another.

Everything goes through ``torch.distributed``: gloo for tensors on the CPU, NCCL for those on GPUs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime
import functools
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

import attrs
import torch
from torch import distributed

from gtrace.core.base.config import config
from gtrace.core.base.dtypes import WIDE_UNSIGNED
from gtrace.core.base.errors import DistributedError, GtraceError, ShardingError, message
from gtrace.core.base.events import Communicated, bus
from gtrace.core.ir.sharding import Axes, Mesh
from gtrace.core.partitioner.ends import Notes

T = TypeVar("T")


def launched() -> bool:
    """Whether this process is one of several that run the program, as torchrun's environment says."""
    if _pretended.counts:
        return _pretended.counts[-1] > 1
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size() > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


class _Pretended(threading.local):
    """Of the blocks of `pretend` that a thread is in, how many processes there seem to be."""

    def __init__(self) -> None:
        self.counts: list[int] = []


_pretended = _Pretended()


@contextlib.contextmanager
def pretend(processes: int) -> Iterator[None]:
    """Be the first of so many processes, of which there are no others: for plans. Nothing is sent."""
    _pretended.counts.append(processes)
    try:
        yield
    finally:
        _pretended.counts.pop()


def start() -> tuple[int, int]:
    """Join the other processes, the first time; returns this one's rank and how many there are."""
    return (0, _pretended.counts[-1]) if _pretended.counts else _join()


@attrs.frozen(eq=False)
class _Joined:
    """How this process was connected to the others.

    Attributes:
        pid: its id; forks inherit what they must not use.
        store: torch's; None if the program has connected the processes itself.
        notes: what the processes leave in the store.
    """

    pid: int
    store: distributed.Store | None = None
    notes: Notes | None = None


_joined: _Joined | None = None


@functools.cache
def _join() -> tuple[int, int]:
    global _joined
    if not launched():
        return 0, 1
    if distributed.is_initialized():
        _joined = _Joined(os.getpid())
    else:
        seconds = _limit()
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        try:
            store, own, size = next(distributed.rendezvous("env://", timeout=seconds))
            store.set_timeout(seconds)
            distributed.init_process_group(backend, store=store, rank=own, world_size=size, timeout=seconds)
        except (RuntimeError, ValueError) as error:
            got = f"an error: {_reason(error)}"
            fix = "Start it with gtrace run --workers N, or with torchrun."
            raise DistributedError(message("workers", "the other processes to answer", got, fix)) from error
        _joined = _Joined(os.getpid(), store, Notes.of(store, own, size))
    os.register_at_fork(after_in_child=_keep)
    return distributed.get_rank(), distributed.get_world_size()


def _limit() -> datetime.timedelta:
    return datetime.timedelta(seconds=config.current.collective_timeout)


_groups: list[Any] = []
"""Groups of torch's that were made of some processes, or for a use of their own."""


def _keep() -> None:
    """In a fork, never delete groups: deleting one waits for its threads, which the fork has not."""
    if _joined is not None and distributed.is_initialized():
        for one in (distributed.group.WORLD, _joined.store, *_groups):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _leave() -> None:
    if _joined is None or _joined.notes is None or _joined.pid != os.getpid() or not distributed.is_initialized():
        return
    failed = _joined.notes.end()
    for known in (_mesh_group, group_for_saving):
        known.cache_clear()
    _groups.clear()
    distributed.destroy_process_group()  # now those that wait notice
    if failed and rank() == 0:
        _joined.notes.wait_for_readers()  # the store may end with this process


atexit.register(_leave)  # now, so that it runs after functions of the user's, which may save


def rank() -> int:
    """Return the rank of this process; 0 if there are no others."""
    return start()[0]


def count() -> int:
    """Return how many processes run the program."""
    return start()[1]


def check_mesh(mesh: Mesh) -> None:
    """Refuse a mesh of processes that do not run."""
    running = count()
    needed = 1 + max(mesh.ranks)
    if needed > running:
        got = f"{mesh!r} and {running} process{'es' * (running > 1)}"
        fix = f"Start {needed} with gtrace run --workers {needed}, or give a size of -1 to gt.sharding.make_mesh."
        raise ShardingError(message("mesh", "a mesh of processes that run", got, fix))


def _reason(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


_PURPOSES = {
    "mesh_group": "a mesh", "compare": "a program", "exchange": "a comparison", "group_for_saving": "a save",
    "barrier": "a save", "broadcast": "a save",
}  # fmt: skip
"""What the functions are for that are not called as what they do."""


def _guarded(function: Callable[..., T]) -> Callable[..., T]:
    """Turn what torch raises for a broken connection or a timeout into an error that says so. A call is an event."""
    name = function.__name__.strip("_")
    purpose = _PURPOSES.get(name, name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        start = perf_counter()
        if _joined is not None and _joined.pid != os.getpid():
            fix = "Call it in the process that was launched, or start others by spawn."
            raise DistributedError(message("workers", f"a process of the mesh in {purpose}", "a fork of one", fix))
        try:
            result = function(*args, **kwargs)
            if Communicated in bus.wanted:
                nbytes = sum(x.nbytes for x in args if isinstance(x, torch.Tensor))
                bus.emit(Communicated(name, nbytes, perf_counter() - start))
            return result
        except (RuntimeError, ValueError) as error:  # ValueError: the groups are gone at the end of the program
            if isinstance(error, GtraceError):
                raise
            if _joined is None or _joined.notes is None:
                reason = f"an error: {_reason(error)}"
            else:
                reason = _joined.notes.missing(purpose, perf_counter() - start, _limit().seconds)
            fix = "All must do the same in the same order, within GT_COLLECTIVE_TIMEOUT seconds of one another."
            expected = f"all workers to take part in {purpose}"
            raise DistributedError(message("workers", expected, f"at rank {rank()}: {reason}", fix)) from error

    return call


@attrs.frozen(eq=False)
class Group:
    """Processes that differ in their places along some axes of a mesh.

    Attributes:
        handle: torch's process group; None: the others are pretended.
        order: the place in `handle` of each process, in the order of the parts they hold.
        size: how many they are.
    """

    handle: Any
    order: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.order)

    @property
    def straight(self) -> bool:
        """Whether torch has them in the order of their parts."""
        return self.order == tuple(range(len(self.order)))


def group(mesh: Mesh, axes: Axes) -> Group:
    """Return this process's group along `axes`. All processes ask for the same groups in the same order."""
    return Group(None, tuple(range(mesh.parts(axes)))) if _pretended.counts else _mesh_group(mesh, axes)


@functools.cache
@_guarded
def _mesh_group(mesh: Mesh, axes: Axes) -> Group:
    check_mesh(mesh)
    groups = mesh.groups(axes)
    own = next(ranks for ranks in groups if rank() in ranks)
    order = tuple(sorted(own).index(one) for one in own)
    if len(own) == count():
        return Group(distributed.group.WORLD, order)
    if mesh.size < count():
        # the others do not know of it
        handle = distributed.new_group(sorted(own), use_local_synchronization=True)
    else:
        handle, _ = distributed.new_subgroups_by_enumeration([sorted(ranks) for ranks in groups])
    _groups.append(handle)
    return Group(handle, order)


def part(mesh: Mesh, axes: Axes) -> int:
    """Return which of the parts over `axes` this process holds."""
    return mesh.part(axes, mesh.coordinates(rank()))


def _named(name: str, earlier: str) -> Callable[..., Any]:
    """Return a function of torch.distributed, which earlier versions have by another name."""
    found: Callable[..., Any] = getattr(distributed, name, None) or getattr(distributed, earlier)
    return found


@_guarded
def all_reduce(x: torch.Tensor, among: Group, kind: str) -> torch.Tensor:
    """Return the sum, or the greatest or least, of the tensors of a group, element by element.

    A NaN in any of them is in the result.
    """
    if kind != "sum":
        every = _gathered(x.unsqueeze(0), among)
        return every.amax(0) if kind == "max" else every.amin(0)
    if x.is_complex():
        return torch.view_as_complex(all_reduce(torch.view_as_real(x), among, kind))
    if config.current.deterministic:
        return _added(list(_gathered(x.unsqueeze(0), among)))
    narrow = x.dtype in WIDE_UNSIGNED or x.dtype is torch.int16
    out = x.to(torch.int64) if narrow else x.clone(memory_format=torch.contiguous_format)
    if among.handle is not None:
        distributed.all_reduce(out, group=among.handle)
    return out.to(x.dtype) if narrow else out


def _added(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the tensors of a group, added one after the other in the order of the parts."""
    first, *others = parts
    out = first.clone(memory_format=torch.contiguous_format)
    for part in others:
        out += part
    return out


def _gathered(x: torch.Tensor, among: Group) -> torch.Tensor:
    """Return the tensors of a group, which have equal shapes, joined along axis 0 in the order of the parts."""
    if x.is_complex():
        return torch.view_as_complex(_gathered(torch.view_as_real(x), among))
    if x.dtype is torch.bool or x.dtype in WIDE_UNSIGNED or x.dtype is torch.int16:
        # bytes are bytes
        own = x.contiguous().unsqueeze(-1).view(torch.uint8)
        return _gathered(own, among).view(x.dtype).squeeze(-1)
    if among.handle is None:
        return x.repeat(among.size, *[1] * (x.ndim - 1))
    out = x.new_empty((among.size * x.shape[0], *x.shape[1:]))
    _named("all_gather_single", "all_gather_into_tensor")(out, x.contiguous(), group=among.handle)
    if among.straight:
        return out
    parts = out.reshape(among.size, *x.shape)
    return torch.cat([parts[k] for k in among.order])


@_guarded
def all_gather(x: torch.Tensor, among: Group, dim: int, size: int) -> torch.Tensor:
    """Return the tensors of a group joined along `dim`, which then has `size` elements.

    The tensors are the parts of such a dimension: the last ones may be shorter.
    """
    step = -(-size // among.size)
    own = x.movedim(dim, 0)
    if own.shape[0] < step:
        own = torch.cat([own, own.new_zeros((step - own.shape[0], *own.shape[1:]))])
    return _gathered(own, among)[:size].movedim(0, dim).contiguous()


def _chunks(x: torch.Tensor, among: Group) -> torch.Tensor:
    """Return x, with an axis 0 of equal parts, in the order in which torch has the group."""
    if among.straight:
        return x.contiguous()
    parts = x.reshape(among.size, -1, *x.shape[1:])
    places = [among.order.index(k) for k in range(among.size)]
    return torch.cat([parts[k] for k in places])


@_guarded
def reduce_scatter(x: torch.Tensor, among: Group, dim: int) -> torch.Tensor:
    """Return this process's part, along `dim`, of the sum of the tensors of a group."""
    own = _chunks(x.movedim(dim, 0), among)
    if config.current.deterministic:
        return _added(_exchanged(own, among)).movedim(0, dim).contiguous()
    out = own.new_empty((own.shape[0] // among.size, *own.shape[1:]))
    if among.handle is None:
        return out.copy_(own[: out.shape[0]]).movedim(0, dim)
    _named("reduce_scatter_single", "reduce_scatter_tensor")(out, own, group=among.handle)
    return out.movedim(0, dim).contiguous()


@_guarded
def all_to_all(x: torch.Tensor, among: Group, split: int, concat: int) -> torch.Tensor:
    """Return a tensor that was split along `concat` split along `split` instead."""
    parts = _exchanged(_chunks(x.movedim(split, 0), among), among)
    return torch.cat([part.movedim(0, split) for part in parts], dim=concat)


def _exchanged(own: torch.Tensor, among: Group) -> list[torch.Tensor]:
    """Return this process's part of the tensor of each process of a group, in the order of the parts.

    Args:
        own: equal parts along axis 0, in the order in which torch has the group.
    """
    out = own if among.handle is None else torch.empty_like(own)
    if among.handle is not None:
        distributed.all_to_all_single(out, own, group=among.handle)
    parts = out.reshape(among.size, own.shape[0] // among.size, *own.shape[1:])
    return [parts[k] for k in among.order]


@_guarded
def send(x: torch.Tensor, pairs: Iterable[tuple[int, int]], shape: tuple[int, ...]) -> torch.Tensor:
    """Send tensors between processes, one pair after the other; returns what this process receives.

    Args:
        pairs: (sender, receiver), by rank; a process may send to itself.
        shape: of what this process receives; of an absent array if it receives nothing.
    """
    out = x.new_zeros(shape)
    for sender, receiver in () if _pretended.counts else pairs:
        if sender == receiver == rank():
            out = x.clone()
        elif sender == rank() and x.numel():
            # bytes are bytes
            distributed.send(x.contiguous().reshape(-1).view(torch.uint8), receiver)
        elif receiver == rank() and out.numel():
            received = out.reshape(-1).view(torch.uint8)
            distributed.recv(received, sender)
            out = received.view(x.dtype).reshape(shape)
    return out


@_guarded
def exchange(value: Any, handle: Any = None) -> list[Any]:
    """Return the values that all processes of a group pass, by rank. They are pickled.

    Args:
        handle: the group; None: the program's own.
    """
    everyone: list[Any] = [None] * count()
    distributed.all_gather_object(everyone, value, group=handle)
    return everyone


@_guarded
def compare(number: int) -> bool:
    """Return whether all processes pass the same integer of at most 62 bits."""
    if _pretended.counts:
        return True
    everyone = torch.empty(count(), dtype=torch.int64)
    _named("all_gather_single", "all_gather_into_tensor")(everyone, torch.tensor([number]))
    return bool((everyone == number).all())


@functools.cache
@_guarded
def group_for_saving() -> Any:
    """Return a group of all processes for what is sent while the program runs on. All ask for it at the same place.

    In the program's own group it could take the place of what the program sends.
    """
    start()
    handle = distributed.new_group(backend="gloo", timeout=_limit())
    _groups.append(handle)
    return handle


@_guarded
def barrier(handle: Any) -> None:
    """Wait for all processes of a group."""
    distributed.barrier(group=handle)


def in_all(function: Callable[[], T], handle: Any) -> tuple[T, str]:
    """Return what `function` returns here, once it has ended in all processes of a group, and which others failed.

    Returns:
        The result; and in words the first other process where it raised, empty if there is none.

    Raises:
        Whatever it raises here, after the others have heard of it.
    """
    found: Any = None
    own: Exception | None = None
    try:
        found = function()
    except Exception as error:  # noqa: BLE001 - the others have to hear of it, whatever it is
        own = error
    said = exchange(None if own is None else f"{type(own).__name__}: {own}", handle)
    if own is not None:
        raise own
    return found, next((f"process {k}: {text}" for k, text in enumerate(said) if text is not None), "")


def from_first(function: Callable[[], T], handle: Any) -> T:
    """Return what `function` returns in the first process, in all processes of a group.

    Raises:
        Whatever it raises there, in all of them.
    """
    sent: list[Any] = [None, None]
    if rank() == 0:
        try:
            sent[0] = function()
        except Exception as error:  # noqa: BLE001 - the others have to hear of it, whatever it is
            sent[1] = _sendable(error)
    _broadcast(sent, handle)
    if sent[1] is not None:
        raise sent[1]
    found: T = sent[0]
    return found


def _sendable(error: Exception) -> Exception:
    """Return an error, or its text where other processes could not read it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - its class decides what pickling it raises
        return DistributedError(f"{type(error).__name__}: {error}")
    return error


@_guarded
def _broadcast(values: list[Any], handle: Any) -> None:
    distributed.broadcast_object_list(values, src=0, group=handle)
