"""Whether anybody else has a tensor, or its memory: what nobody else has may be written over."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import UnsupportedTorchError
from gtrace.core.base.free_threading import FREE_THREADED
from gtrace.core.base.torch_modes import without_modes


def is_alone(tensors: Sequence[torch.Tensor], k: int, lists: int = 1) -> bool:
    """Whether nobody else has tensor `k` of a list, or memory of it, and it has no memory of others.

    It is not alone if an Array or a recording refers to it, or if a NumPy array or a tensor shares its memory or made
    it. Where torch does not say who shares memory, it never is.

    Args:
        lists: how many lists may have it, this one included.
    """
    count = _counter()
    tensor = tensors[k]
    storage = tensor.untyped_storage()
    if count is None or storage.nbytes() != tensor.nbytes or (tensor.is_cpu and storage.is_shared()):
        return False  # a view, or memory that other processes have
    if tensor.requires_grad or tensor.is_inference():
        return False  # torch lets nobody write to it here
    if not (storage.resizable() or getattr(tensor, "made_by_torch", False)):
        return False
    del tensor, storage
    references, of_tensor, of_storage = count(tensors, k)
    least = _least()
    return references < least[0] + lists and (of_tensor, of_storage) == least[1:]


Counter = Callable[[Sequence[torch.Tensor], int], tuple[int, int, int]]


@functools.cache
def _counter() -> Counter | None:
    """Return what counts the references to a tensor, from Python and C++, and to its memory.

    None: torch cannot, or Python only estimates them.
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
    """Return the references to a tensor that only one list has."""
    count = _counter()
    assert count is not None
    return count([torch.empty(1)], 0)
