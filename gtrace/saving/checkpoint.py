"""``save_checkpoint`` and ``load_checkpoint``: the state of a training run, to go on from exactly there.

A checkpoint is a folder: ``checkpoint.json``, which describes every leaf, ``arrays.safetensors`` with the arrays that
each process has, and ``parts/`` with those that processes hold parts of. It is written under another name, and renamed
when everything is on the disk. So a folder with the name of a step is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import attrs
import torch

from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, CheckpointError, ShardingError, message
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import Aval, aval, contiguous_strides, parse_aval
from gtrace.core.ops.shape import as_int
from gtrace.core.partitioner import processes
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import evaluate, materialize, value_of
from gtrace.core.transform.arguments import is_array
from gtrace.saving.arrays import PathLike, load_arrays, write_tensors
from gtrace.saving.files import sync
from gtrace.saving.names import check_names, check_type, expected_type, named_leaves
from gtrace.saving.shards import SavedShard, prepare, read_shards, write_shards

__all__ = ["latest_step", "load_checkpoint", "save_checkpoint"]

FORMAT = 1
ARRAYS, PARTS, MANIFEST = "arrays.safetensors", "parts", "checkpoint.json"

_PLAIN = (bool, int, float, str)
"""Python values that are kept as they are."""

_NAME = re.compile(r"(?:step_(\d+)|\.step_(\d+)\.replaced)")
"""Complete checkpoints. One that was being replaced by another of the same step counts if that never came to be."""


@attrs.frozen(eq=False)
class _Snapshot:
    """What is written: Arrays never change, so references to their tensors are enough.

    Attributes:
        whole: the arrays that this process has.
        parts: its parts of the others.
        leaves: the manifest's entry of each leaf.
    """

    step: int
    whole: dict[str, torch.Tensor]
    parts: dict[str, SavedShard]
    leaves: dict[str, dict[str, Any]]

    @classmethod
    def of(cls, tree: Any, step: int) -> _Snapshot:
        """Compute what is pending in a pytree, and take it.

        Raises:
            ArgumentError: a leaf is neither an array nor a Python number or text.
        """
        whole: dict[str, torch.Tensor] = {}
        parts: dict[str, SavedShard] = {}
        leaves: dict[str, dict[str, Any]] = {}
        named, _ = named_leaves("save_checkpoint", tree)
        arrays = {}
        for name, leaf in named.items():
            if leaf.__class__ in _PLAIN:
                leaves[name] = {"value": leaf}
            elif is_array(leaf):
                arrays[name] = lift("save_checkpoint", leaf)
            else:
                got = f"{type(leaf).__name__} at {name!r}"
                fix = "Keep it outside the tree, or make it a static field of its class."
                raise ArgumentError(message("save_checkpoint", "arrays, numbers and text", got, fix))
        evaluate(list(arrays.values()), "save_checkpoint")
        for name, x in arrays.items():
            tensor = materialize(x, "save_checkpoint")
            entry: dict[str, Any] = {"type": repr(x.aval)}
            leaves[name] = entry
            if tensor.stride() != contiguous_strides(tuple(tensor.shape)) and _is_dense(tensor):
                entry["strides"] = list(tensor.stride())
            _check_present("save_checkpoint", x.aval)
            if x.aval.sharding is None:
                whole[name] = tensor
                continue
            (shard,) = x.addressable_shards
            offsets = tuple(piece.start for piece in shard.index)
            parts[name] = SavedShard(tensor, offsets, x.shape, written=shard.replica_id == 0)
        return cls(step, whole, parts, leaves)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory, in whatever order of the axes."""
    n = 1
    for step, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if step != n:
            return False
        n *= size
    return True


class _Saver:
    """The checkpoint that is being written; there is at most one."""

    def __init__(self) -> None:
        self._running: Future[Path] | None = None

    def wait(self) -> None:
        """Wait for the checkpoint that is being written.

        Raises:
            Whatever kept it from being written.
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def start(self, write: Callable[[], Path]) -> Future[Path]:
        """Write in a thread, which the end of the program waits for."""
        self._running = future = Future[Path]()

        def run() -> None:
            try:
                future.set_result(write())
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                future.set_exception(error)

        threading.Thread(target=run, name="gtrace-checkpoint").start()
        return future


_saver = _Saver()


def save_checkpoint(folder: PathLike, tree: Any, *, step: int, keep: int | None = 3, wait: bool = True) -> Future[Path]:
    """Save a pytree as the checkpoint of a step.

    A process that is killed meanwhile leaves the earlier checkpoints as they were. On several processes all call it;
    each writes its parts of arrays with a sharding, and the first one writes the others. They need one file system.

    Args:
        folder: of the run; the checkpoint is a folder in it.
        tree: arrays, random keys, Python numbers and text. `load_checkpoint` returns exactly these.
        step: at least 0. A checkpoint of the same step is replaced.
        keep: how many are kept, the newest; None: all.
        wait: False: write while the program goes on. Pending values are computed first. The next call waits for this
            one, and so does the end of the program.

    Returns:
        A future: ``.result()`` waits, and is the path of the checkpoint.

    Raises:
        ArgumentError: a leaf of another type, two leaves of one name, or a wrong `step` or `keep`.
        DtypeError: a complex128 array.
        OSError: it cannot be written; with ``wait=False`` the future raises it, and the next call.

    >>> import gtrace as gt, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = gt.save_checkpoint(folder, {"w": gt.ones(2), "rate": 0.1}, step=100)
    >>> gt.load_checkpoint(folder)
    ({'rate': 0.1, 'w': Array([1., 1.], dtype=float32)}, 100)
    """
    number = as_int("save_checkpoint", "step", step)
    if number < 0 or (keep is not None and keep < 1):
        got = f"step={step!r}, keep={keep!r}"
        raise ArgumentError(message("save_checkpoint", "step >= 0 and keep >= 1", got, "keep=None keeps all."))
    snapshot = _Snapshot.of(tree, number)
    _saver.wait()
    root = Path(folder)
    aside = root / f".step_{number:09d}.writing"
    several = processes.count() > 1
    group = processes.group_for_saving() if several else None
    if processes.rank() == 0:
        _clear(root)
        aside.mkdir(parents=True)
    if snapshot.parts:
        prepare()
    if several:
        processes.barrier(group)

    def write() -> Path:
        if snapshot.parts:
            write_shards(aside / PARTS, snapshot.parts, group)
        if not several:
            return _finish(root, aside, snapshot, keep)
        return processes.from_first(lambda: _finish(root, aside, snapshot, keep), group)

    future = _saver.start(write)
    if wait:
        _saver.wait()
    return future


def _finish(root: Path, aside: Path, snapshot: _Snapshot, keep: int | None) -> Path:
    """Write the rest of a checkpoint, and let it take its name."""
    write_tensors(aside / ARRAYS, snapshot.whole, {})
    manifest = {"format": FORMAT, "step": snapshot.step, "leaves": snapshot.leaves}
    (aside / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    for path in (aside / MANIFEST, aside):
        sync(path)
    final = root / f"step_{snapshot.step:09d}"
    replaced = root / f".{final.name}.replaced"
    if final.exists():
        os.replace(final, replaced)
    os.replace(aside, final)
    sync(root)
    shutil.rmtree(replaced, ignore_errors=True)
    steps = _checkpoints(root)
    for old in sorted(steps)[:-keep] if keep else ():
        doomed = root / f".{steps[old].name.strip('.')}.removed"
        os.replace(steps[old], doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    return final


def _clear(root: Path) -> None:
    """Remove what a killed process has left."""
    for path in root.glob(".step_*"):
        replaced = path.suffix == ".replaced" and (root / path.stem.strip(".")).exists()
        if replaced or path.suffix in (".writing", ".removed"):
            shutil.rmtree(path, ignore_errors=True)


def _checkpoints(root: Path) -> dict[int, Path]:
    """Return the complete checkpoints by step."""
    found: dict[int, Path] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(root.iterdir(), reverse=True):  # those of another name come last
            match = _NAME.fullmatch(path.name)
            if match is not None:
                found.setdefault(int(match[1] or match[2]), path)
    return found


def latest_step(folder: PathLike) -> int | None:
    """Return the step of the newest checkpoint in a folder; None if there is none.

    >>> import tempfile
    >>> latest_step(tempfile.mkdtemp()) is None
    True
    """
    _saver.wait()
    return max(_checkpoints(Path(folder)), default=None)


def load_checkpoint(folder: PathLike, like: Any = None, *, step: int | None = None) -> tuple[Any, int]:
    """Return what `save_checkpoint` saved, to the bit, and its step.

    Args:
        like: a pytree of arrays, `ShapeDtypeStruct` and Python values: the structure of the result, and the device and
            sharding of each array. Other processes, or another number of them, may have saved it.
        step: None: the newest.

    Returns:
        The tree and the step. Without `like` the tree is a dict by name, of arrays that each process has.

    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged.
        StructureError, ShapeError, DtypeError: it has other leaves than `like`.

    >>> import gtrace as gt, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> state = {"w": gt.ones(2), "key": gt.random.key(0)}
    >>> if gt.latest_step(folder) is not None:
    ...     state, first = gt.load_checkpoint(folder, like=state)
    """
    _saver.wait()
    found = _checkpoints(Path(folder))
    number = max(found, default=None) if step is None else step
    if number is None or number not in found:
        got = f"steps {sorted(found)}" if found else "none"
        what = f"a checkpoint{'' if step is None else f' of step {step}'} in {os.fspath(folder)}"
        raise CheckpointError(message("load_checkpoint", what, got, "See gt.latest_step."))
    path = found[number]
    leaves = _manifest(path)["leaves"]
    if like is None:
        wanted: Mapping[str, Any] = dict.fromkeys(sorted(leaves))
        structure = None
    else:
        wanted, structure = named_leaves("load_checkpoint", like)
        check_names("load_checkpoint", wanted, leaves)
    out: dict[str, Any] = {}
    parts: dict[str, SavedShard] = {}
    with config(x64=True):
        arrays = load_arrays(path / ARRAYS)
    for name, leaf in wanted.items():
        entry = leaves[name]
        if "value" in entry:
            out[name] = entry["value"]
            continue
        saved = parse_aval(entry["type"])
        expected = aval(saved.shape, saved.dtype, weak=saved.weak)
        if like is not None:
            expected = expected_type("load_checkpoint", name, leaf)
            check_type("load_checkpoint", name, expected, saved)
        out[name], part = _empty(expected, saved.weak, entry.get("strides"))
        if saved.sharding is None:
            _copy(part, value_of(arrays[name]))
        else:
            parts[name] = part
    if parts:
        read_shards(path / PARTS, parts)
    return (out if structure is None else structure.unflatten(out.values())), number


def _manifest(path: Path) -> Any:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "Load an earlier step, or one that this version of gtrace saved."
        raise CheckpointError(message("load_checkpoint", "a checkpoint", f"{path}: {error}", fix)) from error
    return manifest


def _check_present(op: str, a: Aval) -> None:
    """Refuse an array over some of the processes, of which others have no part.

    Raises:
        ShardingError: the array is one.
    """
    if a.sharding is not None and a.sharding.mesh.size < processes.count():
        got = f"{a!r} over {a.sharding.mesh.size} of {processes.count()} processes"
        fix = "Lay it out over a mesh of all of them, with gt.device_put(x, sharding)."
        raise ShardingError(message(op, "arrays over all processes", got, fix))


@without_modes
def _empty(a: Aval, weak: bool, strides: list[int] | None) -> tuple[Array, SavedShard]:
    """Return an array to be filled, and the part of it that this process holds."""
    index = tuple(slice(0, n) for n in a.shape)
    _check_present("load_checkpoint", a)
    if a.sharding is not None:
        index = a.sharding.index(a.shape, processes.rank())
    size = tuple(piece.stop - piece.start for piece in index)
    order = tuple(strides) if strides is not None and size == a.shape else contiguous_strides(size)
    tensor = torch.empty_strided(size, order, dtype=a.dtype, device=a.device)
    kind = a if a.sharding is not None else aval(a.shape, a.dtype, a.device, weak)
    return wrap_as(tensor, kind), SavedShard(tensor, tuple(piece.start for piece in index), a.shape)


@without_modes
def _copy(part: SavedShard, source: torch.Tensor | None) -> None:
    assert source is not None
    index = tuple(slice(k, k + n) for k, n in zip(part.offsets, part.tensor.shape, strict=True))
    part.tensor.copy_(source[index])
