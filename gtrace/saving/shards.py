"""Arrays over several processes as files: each process writes its own parts, into a safetensors file of its own.

Which part is in which file follows from the array's sharding, which the manifest states. So a reader opens the files
that it needs, whatever its own sharding is, and nothing has to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import torch

from gtrace.core.base.errors import CheckpointError, message
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.sharding import NamedSharding
from gtrace.core.partitioner import processes
from gtrace.saving.arrays import read_tensor, write_tensors

T = TypeVar("T")

Index = tuple[slice, ...]
"""A part of an array: where it begins and ends along each axis."""


@attrs.frozen(eq=False)
class Piece:
    """Data of a file, and its place in the part of an array that is to be filled."""

    source: torch.Tensor
    place: Index


def _path(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.safetensors"


def write_shards(folder: Path, parts: Mapping[str, torch.Tensor], group: Any) -> None:
    """Write the parts of this process. All processes call it, and all return when all have written.

    Args:
        parts: those that this process writes; others may hold the same ones.
        group: a process group of all of them, in which nothing else is sent meanwhile; None: there are no others.

    Raises:
        CheckpointError: another process could not write.
        Whatever kept this one from writing.
    """

    def write() -> None:
        if parts:
            write_tensors("save_checkpoint", _path(folder, processes.rank()), parts, {})

    together(write, group)


def together(function: Callable[[], T], group: Any) -> T:
    """Return what a function returns, if it returns in all processes of a group.

    Args:
        group: see `write_shards`.

    Raises:
        CheckpointError: it raised in another process.
        Whatever it raises in this one.
    """
    if group is None:
        return function()
    found, failed = processes.in_all(function, group)
    if failed:
        raise CheckpointError(message("save_checkpoint", "success in all processes", failed, "See that process."))
    return found


def pieces(folder: Path, name: str, saved: Aval, index: Index, open_file: Callable[[Path], Any]) -> list[Piece]:
    """Return the data of a part of an array, from however many processes saved it.

    Args:
        index: the part that is wanted.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    assert saved.sharding is not None
    found = []
    for held, rank in _writers(saved.sharding, saved.shape):
        bounds = [_overlap(a, b) for a, b in zip(held, index, strict=True)]
        if any(start >= stop for start, stop in bounds):
            continue
        path = _path(folder, rank)
        size = tuple(axis.stop - axis.start for axis in held)
        tensor = read_tensor("load_checkpoint", path, open_file(path), name, size, saved.dtype)
        source = tensor[_within(bounds, held)]
        found.append(Piece(source, _within(bounds, index)))
    return found


def _writers(sharding: NamedSharding, shape: tuple[int, ...]) -> list[tuple[Index, int]]:
    """Return the different parts of an array, each with the process that writes it: the first one that holds it."""
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
