"""Tensors of which only so many bytes stay in memory; the others lie in a file until they are used."""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections import OrderedDict

import attrs
import torch

from gtrace.core.base.allocator import return_freed_memory
from gtrace.core.base.devices import CPU

SMALL_TENSOR = 1 << 16
"""Bytes of a tensor that always stays in memory, at most."""

RETURNED = 0.5
"""Freed memory goes back to the system each time that so much of the limit was freed."""


@attrs.frozen
class _Like:
    """What a tensor in the file is."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _File:
    """A file without a name, which is gone when nobody refers to it. After a fork nobody writes to it any more."""

    def __init__(self) -> None:
        self.number, name = tempfile.mkstemp(prefix="gtrace-")
        os.unlink(name)
        weakref.finalize(self, os.close, self.number)
        self.forks = _forks
        self._end = 0
        self._free: dict[int, list[int]] = {}  # places that are free again, by size

    def place(self, count: int) -> int:
        """Return a place for so many bytes."""
        places = self._free.get(count)
        if places:
            return places.pop()
        self._end += count
        return self._end - count

    def free(self, at: int, count: int) -> None:
        """Let a place be used again, unless a forked process may still read it."""
        if self.forks == _forks:
            self._free.setdefault(count, []).append(at)

    def write(self, data: memoryview, at: int) -> None:
        """Write bytes to a place."""
        while len(data):
            count = os.pwrite(self.number, data, at)
            data, at = data[count:], at + count

    def read(self, data: memoryview, at: int) -> None:
        """Read the bytes of a place."""
        while len(data):
            count = os.preadv(self.number, [data], at)
            if not count:
                raise OSError("[comparison] expected a temporary file as it was written, got a shorter one.")
            data, at = data[count:], at + count


_forks = 0
"""How often this process and its parents were forked."""


def _forking() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(before=_forking)


class Kept:
    """A tensor of a `Spill`."""

    __slots__ = ("_at", "_bytes", "_file", "_like", "_spill", "_tensor")

    def __init__(self, spill: Spill, tensor: torch.Tensor) -> None:
        self._spill, self._bytes = spill, tensor.nbytes
        self._tensor: torch.Tensor | None = tensor
        self._like: _Like | None = None
        self._file: _File | None = None
        self._at = 0  # its place there

    def get(self) -> torch.Tensor:
        """Return the tensor, which stays in memory for as long as the caller has it."""
        found = self._tensor
        return self._spill.read(self) if found is None else found


class Spill:
    """Tensors, of which those that were kept or read last stay in memory.

    Args:
        limit: bytes that stay there.
        returns: whether freed memory goes back to the system, so that the process is no larger for it.

    >>> spill = Spill(limit=1 << 20)
    >>> kept = [spill.keep(torch.full((1 << 17,), float(k))) for k in range(4)]
    >>> spill.held <= 1 << 20, [float(x.get()[0]) for x in kept]
    (True, [0.0, 1.0, 2.0, 3.0])
    """

    def __init__(self, limit: float, returns: bool = False) -> None:
        self.limit = limit
        self.held = 0
        self._returns = returns and limit < math.inf
        self._inside: OrderedDict[Kept, None] = OrderedDict()
        self._file: _File | None = None
        self._freed = 0.0

    def keep(self, tensor: torch.Tensor) -> Kept:
        """Keep a tensor; nobody may write over it from now on."""
        made = Kept(self, tensor)
        if made._bytes > SMALL_TENSOR and self.limit < math.inf and tensor.layout is torch.strided:
            self._enter(made)
        return made

    def drop(self, kept: Kept) -> None:
        """Forget a tensor."""
        if kept in self._inside:
            del self._inside[kept]
            self.held -= kept._bytes
            self._count_freed(kept._bytes)
        kept._tensor = kept._like = None
        if kept._file is not None:
            kept._file.free(kept._at, kept._bytes)
        kept._file = None

    def read(self, kept: Kept) -> torch.Tensor:
        """Return a tensor that lies in the file."""
        like = kept._like
        assert like is not None and kept._file is not None
        made = torch.empty(kept._bytes, dtype=torch.uint8)
        kept._file.read(memoryview(made.numpy().data), kept._at)
        found = made.view(like.dtype).to(like.device).as_strided(like.shape, like.strides)
        kept._tensor = found
        self._enter(kept)
        return found

    def _enter(self, kept: Kept) -> None:
        self._inside[kept] = None
        self.held += kept._bytes
        while self.held > self.limit and len(self._inside) > 1:
            oldest = next(iter(self._inside))
            del self._inside[oldest]
            self.held -= oldest._bytes
            self._write(oldest)
            self._count_freed(oldest._bytes)

    def _write(self, kept: Kept) -> None:
        x = kept._tensor
        assert x is not None
        if kept._file is None:
            x = x.resolve_conj().resolve_neg()
            if torch.empty_like(x, device="meta").stride() != x.stride():  # there are gaps, or places in common
                x = x.contiguous()
            kept._like = _Like(x.shape, x.stride(), x.dtype, x.device)
            flat = x.as_strided((x.numel(),), (1,)).to(CPU)
            if self._file is None or self._file.forks != _forks:
                self._file = _File()
            file = self._file
            kept._file, kept._at = file, file.place(kept._bytes)
            file.write(memoryview(flat.view(torch.uint8).numpy().data), kept._at)
        kept._tensor = None

    def _count_freed(self, count: int) -> None:
        self._freed += count
        if self._returns and self._file is not None and self._freed > RETURNED * self.limit:
            self._freed = 0.0
            return_freed_memory()

    def close(self) -> None:
        """Forget all tensors, and the file."""
        self._inside.clear()
        self.held = 0
        spilled, self._file = self._file is not None, None
        if self._returns and spilled:  # otherwise it took no more than what the C library may keep
            return_freed_memory()
