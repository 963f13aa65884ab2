"""Arrays over several processes as files: each process writes its own parts to its own safetensors file.

The array's sharding, which is in the manifest, determines the file of each part. So a reader with any sharding opens
just the files that it needs, and processes send nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.sharding import NamedSharding
from gtrace.core.partitioner import processes
from gtrace.saving.agreement import together
from gtrace.saving.arrays import read_tensor, write_tensors

Index = tuple[slice, ...]
"""A part of an array: its start and end along each axis."""


@attrs.frozen(eq=False)
class Piece:
    """Data of a file, and their index in the part to fill."""

    source: torch.Tensor
    place: Index


def _path(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.safetensors"


def write_shards(folder: Path, parts: Mapping[str, torch.Tensor], group: Any) -> None:
    """Write the parts of this process. All processes call it, and all return when all have written.

    Args:
        parts: the parts that this process writes; others may hold the same ones.
        group: a process group of all of them, which is otherwise idle; None: there are no others.

    Raises:
        CheckpointError: another process failed.
        The exception of this process, if its writing failed.
    """

    def write() -> None:
        if parts:
            write_tensors("save_checkpoint", _path(folder, processes.rank()), parts, {})

    together("save_checkpoint", write, group)


def check_parts(folder: Path, name: str, saved: Aval, open_file: Callable[[Path], Any]) -> None:
    """Raise unless the files of an array's parts are there, with the right shapes and dtypes.

    Raises:
        CheckpointError: one is not.
    """
    assert saved.sharding is not None
    for held, rank in _writers(saved.sharding, saved.shape):
        _read(folder, name, saved, held, rank, open_file)


def pieces(folder: Path, name: str, saved: Aval, index: Index, open_file: Callable[[Path], Any]) -> list[Piece]:
    """Return the data of a part of an array, which any number of processes may have saved.

    Args:
        index: the part.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    assert saved.sharding is not None
    found = []
    for held, rank in _writers(saved.sharding, saved.shape):
        bounds = [_overlap(a, b) for a, b in zip(held, index, strict=True)]
        if any(start >= stop for start, stop in bounds):
            continue
        source = _read(folder, name, saved, held, rank, open_file)[_within(bounds, held)]
        found.append(Piece(source, _within(bounds, index)))
    return found


def _read(
    folder: Path, name: str, saved: Aval, held: Index, rank: int, open_file: Callable[[Path], Any]
) -> torch.Tensor:
    path = _path(folder, rank)
    size = tuple(axis.stop - axis.start for axis in held)
    return read_tensor("load_checkpoint", path, open_file(path), name, size, saved.dtype)


def _writers(sharding: NamedSharding, shape: tuple[int, ...]) -> list[tuple[Index, int]]:
    """Return the distinct parts of an array, each with its writer, the first process that holds it."""
    writers: dict[Any, tuple[Index, int]] = {}
    for rank in sharding.mesh.ranks:
        index = sharding.index(shape, rank)
        writers.setdefault(tuple((axis.start, axis.stop) for axis in index), (index, rank))
    return list(writers.values())


def _overlap(a: slice, b: slice) -> tuple[int, int]:
    return max(a.start, b.start), min(a.stop, b.stop)


def _within(bounds: list[tuple[int, int]], part: Index) -> Index:
    """Return bounds in an array as an index of a part of it."""
    return tuple(slice(start - axis.start, stop - axis.start) for (start, stop), axis in zip(bounds, part, strict=True))
