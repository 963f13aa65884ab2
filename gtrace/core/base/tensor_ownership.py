"""Tests whether a tensor and its memory have only one owner, so that it may be overwritten."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import UnsupportedTorchError
from gtrace.core.base.free_threading import FREE_THREADED
from gtrace.core.base.torch_modes import without_modes


def is_alone(tensors: Sequence[torch.Tensor], k: int) -> bool:
    """Whether only this list refers to tensor `k`, and nothing else shares its memory.

    It is not alone if an Array or a recording refers to it. Nor is it if a NumPy array or a tensor shares its memory or
    made it. If torch does not say who shares memory, the answer is no.
    """
    count = _counter()
    tensor = tensors[k]
    storage = tensor.untyped_storage()
    if count is None or storage.nbytes() != tensor.nbytes or (tensor.is_cpu and storage.is_shared()):
        return False  # a view, or memory shared with other processes
    if tensor.requires_grad or tensor.is_inference():
        return False  # torch forbids writing to it here
    if not (storage.resizable() or getattr(tensor, "made_by_torch", False)):
        return False
    del tensor, storage
    references, of_tensor, of_storage = count(tensors, k)
    least = _least()
    return references <= least[0] and (of_tensor, of_storage) == least[1:]


Counter = Callable[[Sequence[torch.Tensor], int], tuple[int, int, int]]


@functools.cache
def _counter() -> Counter | None:
    """Return a function that counts the references to a tensor, from Python and C++, and to its memory.

    None if torch has no such counts, or Python only estimates them.
    """
    if FREE_THREADED:
        return None
    try:
        of_tensor, of_storage = internals.TENSOR_USERS.get(), internals.STORAGE_USERS.get()
    except UnsupportedTorchError:
        return None

    def count(tensors: Sequence[torch.Tensor], k: int) -> tuple[int, int, int]:
        return sys.getrefcount(tensors[k]), of_tensor(tensors[k]), of_storage(tensors[k].untyped_storage()._cdata)

    return count


@functools.cache
@without_modes
def _least() -> tuple[int, int, int]:
    """Return the reference counts of a tensor that one list alone holds."""
    count = _counter()
    assert count is not None
    return count([torch.empty(1)], 0)
