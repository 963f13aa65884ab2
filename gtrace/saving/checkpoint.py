"""``save_checkpoint`` and ``load_checkpoint``: the exact state of a training run.

A checkpoint is a folder. ``checkpoint.json`` describes every leaf, ``arrays.safetensors`` has the arrays that every
process holds whole, and ``parts/`` has parts of the others. The folder is written under another name, and renamed when
everything is on disk. So a folder with the name of a step is complete. Reading it runs no code from it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import attrs
import torch

from gtrace.core.base.errors import ArgumentError, CheckpointError, ShardingError, message
from gtrace.core.base.threads import start_thread
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.base.whole_files import write_text
from gtrace.core.ir.aval import Aval, aval, contiguous_strides, layout
from gtrace.core.ops.shape import as_int
from gtrace.core.partitioner import processes
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import evaluate, materialize
from gtrace.core.transform.arguments import is_array
from gtrace.saving import checkpoint_folders as folders
from gtrace.saving.agreement import agree, together, types
from gtrace.saving.arrays import PathLike, open_file, read_tensor, write_tensors
from gtrace.saving.checkpoint_folders import ARRAYS, MANIFEST, PARTS
from gtrace.saving.checkpoint_manifest import PLAIN, Leaves, SavedArray, SavedValue, parse_manifest, print_manifest
from gtrace.saving.files import alone_in
from gtrace.saving.names import check_names, check_type, check_written, expected_type, named_leaves
from gtrace.saving.shards import Index, Piece, check_parts, pieces, write_shards

__all__ = ["latest_step", "load_checkpoint", "save_checkpoint"]


@attrs.frozen(eq=False)
class _Snapshot:
    """The data to write. Arrays never change, so references to their tensors suffice.

    Attributes:
        whole: the arrays that this process holds whole.
        parts: its parts of the others, without those that another process writes.
        divided: whether there are others.
        leaves: the manifest's entry of each leaf.
    """

    step: int
    whole: dict[str, torch.Tensor]
    parts: dict[str, torch.Tensor]
    divided: bool
    leaves: Leaves

    @classmethod
    def of(cls, arrays: Mapping[str, Array], values: Leaves, step: int) -> _Snapshot:
        """Compute the pending leaves of a pytree, and take a snapshot.

        Raises:
            DtypeError: an array is complex128.
        """
        whole: dict[str, torch.Tensor] = {}
        parts: dict[str, torch.Tensor] = {}
        divided = False
        leaves: Leaves = dict(values)
        evaluate(list(arrays.values()), "save_checkpoint")
        for name, x in arrays.items():
            tensor = materialize(x, "save_checkpoint")
            shape, strides = tuple(tensor.shape), tensor.stride()
            kept = strides != contiguous_strides(shape) and layout(shape, strides) is not None
            # the strides of a part differ from those of the array
            leaves[name] = SavedArray(x.aval, strides if kept and shape == x.shape else None)
            _check_present("save_checkpoint", x.aval)
            if x.aval.sharding is None:
                whole[name] = tensor
                continue
            divided = True
            (shard,) = x.addressable_shards
            if shard.replica_id == 0:
                parts[name] = tensor
        return cls(step, whole, parts, divided, leaves)


def _by_kind(folder: PathLike, tree: Any) -> tuple[dict[str, Array], Leaves]:
    """Return the arrays of a pytree, and its other leaves, by their names.

    Raises:
        ArgumentError: a leaf is neither an array nor a Python number or text, or it could not be read again.
    """
    arrays: dict[str, Array] = {}
    values: Leaves = {}
    named, _ = named_leaves("save_checkpoint", tree)
    for name, leaf in named.items():
        if leaf.__class__ in PLAIN:
            _check_readable(name, leaf)
            values[name] = SavedValue(leaf)
        elif is_array(leaf):
            arrays[name] = lift("save_checkpoint", leaf)
        else:
            got = f"{type(leaf).__name__} at {name!r}"
            fix = "Keep it outside the tree, or make it a static field of its class."
            raise ArgumentError(message("save_checkpoint", "arrays, numbers and text", got, fix))
    check_written("save_checkpoint", folder, named)
    return arrays, values


def _check_readable(name: str, value: bool | int | float | str) -> None:
    try:
        str(value)
    except ValueError as error:  # Python reads no integer of thousands of digits
        fix = "Save it as a text, such as hex(number)."
        raise ArgumentError(message("save_checkpoint", "numbers that can be read", f"{name!r}: {error}", fix)) from None


class _Saving(Future[Path]):
    """A checkpoint being written, which knows whether its outcome was read.

    A forked process has no thread that writes it, so there it is refused, unless it was written before.
    """

    asked = False
    ended = False

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()

    def _check_process(self) -> None:
        if not self.ended and os.getpid() != self._process:
            fix = "Wait for the save before the fork, or ask in the process that saves."
            raise CheckpointError(message("save_checkpoint", "the process that saves", "a fork of it", fix))

    def result(self, timeout: float | None = None) -> Path:
        self._check_process()
        try:
            return super().result(timeout)
        finally:
            self.asked = self.asked or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_process()
        try:
            return super().exception(timeout)
        finally:
            self.asked = self.asked or self.done()


class _ExitCode:
    """Ends the process with code 1 when Python removes its last module.

    Functions of `atexit` cannot change the code. By this time all of them have run, and output is flushed.
    """

    def __del__(self, end: Callable[[int], Any] = os._exit) -> None:
        end(1)


class _Saver:
    """The checkpoints being written, one after the other."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin anew, as in a forked process: what its parent writes is the parent's."""
        self._running: _Saving | None = None
        self._failed: list[tuple[str, _Saving]] = []
        self._turn = threading.RLock()
        """Held by who writes: a thread of its own, so that a signal's handler may save while another save waits."""

    def wait(self) -> None:
        """Wait for the checkpoint that is written beside the program.

        Raises:
            The exception that stopped the writing.
        """
        running = self._running
        if running is not None:
            try:
                with contextlib.suppress(CancelledError):
                    running.result()
            finally:
                if self._running is running and running.done():
                    self._running = None

    def start(self, what: str, write: Callable[[], Path], beside: bool) -> _Saving:
        """Write in a thread that the end of the program waits for; in this one if there is none, or after the end.

        Args:
            beside: the program goes on. The next call waits for it, and the end of the program reports a failure.
        """
        future = _Saving()
        late = not threading.main_thread().is_alive()  # functions of `atexit` run
        beside = beside and not late
        if beside:
            self._running = future

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                with self._turn:
                    path = write()
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                if beside:
                    self._failed.append((what, future))
                future.set_exception(error)
            else:
                future.set_result(path)
            future.ended = True

        try:
            if late or start_thread(run, "gtrace-checkpoint", daemon=False) is None:
                run()
        except BaseException:  # Ctrl-C while it starts: one that has not begun writes nothing
            future.cancel()
            raise
        if not beside:
            future.result()
        return future

    def report(self) -> None:
        """Report failed saves that nobody has read, and end the program with code 1."""
        lost = [(what, future.exception()) for what, future in self._failed if not future.asked]
        for what, error in lost:
            if sys.stderr is not None:
                print(f"gtrace: {what} was not saved: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if lost:
            vars(sys)["_gtrace_exit_code"] = _ExitCode()  # this module is removed last


_saver = _Saver()
atexit.register(_saver.report)
if hasattr(os, "register_at_fork"):  # some systems lack it
    os.register_at_fork(after_in_child=_saver.begin)


def save_checkpoint(folder: PathLike, tree: Any, *, step: int, keep: int | None = 3, wait: bool = True) -> Future[Path]:
    """Save a pytree as the checkpoint of a step.

    A process that is killed meanwhile leaves earlier checkpoints unchanged. What is written is read back before any of
    them is removed. All processes must call it, with trees of the same names and types. Each writes its parts of
    sharded arrays, and the first one writes the others. They need a common file system.

    Args:
        folder: the folder of the run; the checkpoint is a folder inside it.
        tree: arrays, random keys, Python numbers and text. `load_checkpoint` returns exactly these.
        step: at least 0. A checkpoint of the same step is replaced.
        keep: how many of the newest checkpoints are kept; None: all. Other folders and files stay.
        wait: False: compute pending values, then write while the program goes on. The next call waits for this one, and
            so does the end of the program.

    Returns:
        A future: ``.result()`` waits, and returns the path of the checkpoint.

    Raises:
        ArgumentError: a leaf has another type, two leaves have one name, one is named ``__metadata__``, a name or the
            path is not UTF-8, or `step` or `keep` is invalid.
        DtypeError: an array is complex128.
        OSError: writing failed, or other content was read back. With ``wait=False`` the future raises it, and so does
            the next call. If nobody reads it, the program prints it at its end, and exits with code 1.
        CheckpointError: another process failed or has another tree, a process of another run writes to the folder, or
            the step's folder is not a checkpoint.
        DistributedError: another process does not save within ``GT_COLLECTIVE_TIMEOUT``.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = gt.save_checkpoint(folder, {"w": gt.ones(2), "rate": 0.1}, step=100)
    >>> gt.load_checkpoint(folder)
    ({'rate': 0.1, 'w': Array([1., 1.], dtype=float32)}, 100)
    """
    number = as_int("save_checkpoint", "step", step)
    if number < 0 or (keep is not None and keep < 1):
        got = f"step={step!r}, keep={keep!r}"
        raise ArgumentError(message("save_checkpoint", "step >= 0 and keep >= 1", got, "keep=None keeps all."))
    _saver.wait()
    several = processes.count() > 1
    group = processes.group_for_saving() if several else None
    # if the leaves of one process are invalid, the others must not wait for it while they compute values
    arrays, values = together("save_checkpoint", lambda: _by_kind(folder, tree), group)
    plain = {name: type(leaf.value).__name__ for name, leaf in values.items() if isinstance(leaf, SavedValue)}
    # before values are computed: for other trees, processes would send other tensors
    agree("save_checkpoint", types(arrays, shardings=False) | plain, group)
    snapshot = together("save_checkpoint", lambda: _Snapshot.of(arrays, values, number), group)
    agree("save_checkpoint", {**types(arrays), "the step": str(number)}, group)
    root = Path(folder)
    aside = folders.aside(root, number)

    def write() -> Path:
        with contextlib.ExitStack() as alone:

            def begin() -> None:
                alone.enter_context(alone_in(root))  # the first process holds it for all of them
                folders.begin(root, number, snapshot.divided)
                alone.callback(folders.discard, root, number)  # nothing is left of a finished one

            if not several:
                begin()
            else:
                processes.from_first(begin, group)
            if snapshot.divided:
                write_shards(aside / PARTS, snapshot.parts, group)
            if not several:
                return _finish(root, snapshot, keep)
            return processes.from_first(lambda: _finish(root, snapshot, keep), group)

    return _saver.start(f"the checkpoint of step {number} in {os.fspath(folder)}", write, beside=not wait)


def _finish(root: Path, snapshot: _Snapshot, keep: int | None) -> Path:
    """Write the rest of a checkpoint, read it back, and rename it.

    Raises:
        OSError: it cannot be written, or has other content.
        CheckpointError: the parts of another process are missing.
    """
    aside = folders.aside(root, snapshot.step)
    write_tensors("save_checkpoint", aside / ARRAYS, snapshot.whole, {})
    text = print_manifest(snapshot.step, snapshot.leaves)
    write_text(aside / MANIFEST, text)
    if folders.read_manifest(aside) != text.encode() or parse_manifest(text).keys() != snapshot.leaves.keys():
        path = aside / MANIFEST
        raise OSError(
            message("save_checkpoint", "to read back what was written", f"other content in {path}", "Check the disk.")
        )
    files = _Files()
    for name, leaf in snapshot.leaves.items():
        if isinstance(leaf, SavedArray) and leaf.aval.sharding is not None:
            check_parts(aside / PARTS, name, leaf.aval, files)
    return folders.finish(root, snapshot.step, keep)


def latest_step(folder: PathLike) -> int | None:
    """Return the step of the newest checkpoint in a folder; None if there is none.

    >>> import tempfile
    >>> latest_step(tempfile.mkdtemp()) is None
    True
    """
    _saver.wait()
    return max(folders.checkpoints(Path(folder)), default=None)


def load_checkpoint(folder: PathLike, like: Any = None, *, step: int | None = None) -> tuple[Any, int]:
    """Return the exact tree that `save_checkpoint` saved, and its step.

    Args:
        like: a pytree of arrays, `ShapeDtypeStruct` and Python values: the structure of the result, and the device and
            sharding of each array. The processes need not be those that saved it.
        step: None: the newest.

    Returns:
        The tree and the step. Without `like`, the tree is a dict by name, of arrays that each process holds whole.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
        StructureError, ShapeError, DtypeError: its leaves differ from those of `like`.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> state = {"w": gt.ones(2), "key": gt.random.key(0)}
    >>> if gt.latest_step(folder) is not None:
    ...     state, first = gt.load_checkpoint(folder, like=state)
    """
    _saver.wait()
    found = folders.checkpoints(Path(folder))
    number = max(found, default=None) if step is None else step
    if number is None or number not in found:
        got = f"steps {sorted(found)}" if found else "none"
        what = f"a checkpoint{'' if step is None else f' of step {step}'} in {os.fspath(folder)}"
        raise CheckpointError(message("load_checkpoint", what, got, "See gt.latest_step."))
    path = found[number]
    leaves = _manifest(path)
    if like is None:
        wanted: Mapping[str, Any] = dict.fromkeys(sorted(leaves))
        structure = None
    else:
        wanted, structure = named_leaves("load_checkpoint", like)
        check_names("load_checkpoint", wanted, leaves)
    files, data = _Files(), list[Piece]()
    out: dict[str, Any] = {}
    for name, leaf in wanted.items():
        entry = leaves[name]
        if isinstance(entry, SavedValue):
            out[name] = entry.value
            continue
        saved = entry.aval
        expected = aval(saved.shape, saved.dtype, weak=saved.weak)
        if like is not None:
            expected = expected_type("load_checkpoint", name, leaf)
            check_type("load_checkpoint", name, expected, saved)
        _check_present("load_checkpoint", expected)
        index = _index(expected)
        if saved.sharding is None:
            source = read_tensor("load_checkpoint", path / ARRAYS, files(path / ARRAYS), name, saved.shape, saved.dtype)
            data = [Piece(source[index], tuple(slice(None) for _ in index))]
        else:
            data = pieces(path / PARTS, name, saved, index, files)
        out[name] = _filled(expected, saved.weak, index, entry.strides, data)
    return (out if structure is None else structure.unflatten(out.values())), number


def _manifest(path: Path) -> Leaves:
    try:
        return parse_manifest(folders.read_manifest(path))
    except (OSError, ValueError) as error:
        fix = "Load an earlier step, or one that this version of gtrace saved."
        raise CheckpointError(message("load_checkpoint", "a checkpoint", f"{path / MANIFEST}: {error}", fix)) from error


class _Files:
    """Open files of a checkpoint, by path."""

    def __init__(self) -> None:
        self._open: dict[Path, Any] = {}

    def __call__(self, path: Path) -> Any:
        if path not in self._open:
            try:
                self._open[path] = open_file("load_checkpoint", path)
            except FileNotFoundError as error:
                fix = "The checkpoint is damaged: load an earlier step."
                raise CheckpointError(message("load_checkpoint", str(path), "no such file", fix)) from error
        return self._open[path]


def _check_present(op: str, a: Aval) -> None:
    """Raise for an array of which some processes hold no part.

    Raises:
        ShardingError: it is such an array.
    """
    if a.sharding is not None and a.sharding.mesh.size < processes.count():
        got = f"{a!r} over {a.sharding.mesh.size} of {processes.count()} processes"
        fix = "Lay it out over a mesh of all of them, with gt.device_put(x, sharding)."
        raise ShardingError(message(op, "arrays over all processes", got, fix))


def _index(a: Aval) -> Index:
    """Return the part of an array that this process holds."""
    if a.sharding is None:
        return tuple(slice(0, n) for n in a.shape)
    return a.sharding.index(a.shape, processes.rank())


@without_modes
def _filled(a: Aval, weak: bool, index: Index, strides: tuple[int, ...] | None, found: list[Piece]) -> Array:
    """Return an array whose part `index` this process holds, filled from pieces."""
    size = tuple(axis.stop - axis.start for axis in index)
    order = strides if strides is not None and size == a.shape else contiguous_strides(size)
    tensor = torch.empty_strided(size, order, dtype=a.dtype, device=a.device)
    for piece in found:
        tensor[piece.place].copy_(piece.source)
    return wrap_as(tensor, a if a.sharding is not None else aval(a.shape, a.dtype, a.device, weak))
