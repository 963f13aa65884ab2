"""Arrays that are given away to a call, which may write its results over their memory."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Collection, Sequence
from typing import Any

import torch

from gtrace import torch_internals as internals
from gtrace.ambient import without_modes
from gtrace.errors import UnsupportedTorchError
from gtrace.interp.interpreter import Owned
from gtrace.trace.array import Array
from gtrace.trace.record import Donation


def give_away(arrays: Sequence[Array], places: Collection[int], written: Collection[int], call: str) -> Owned:
    """Return the tensors of arrays, some of which are given away: their Arrays cannot be used any more.

    This happens before anything is written. So whoever uses such an Array later, also after a call that was
    interrupted or failed, gets an error, and never half of a result.

    Args:
        places: of the arrays that are given away.
        written: the places of tensors that may be written over. Those whose memory somebody else has are copied.
        call: what errors call the call.
    """
    tensors = Owned([x._buf for x in arrays])  # type: ignore[misc]  # they have values
    donation = Donation(call)
    for k in places:
        x = arrays[k]
        x._trace = donation
        x._leaf = None
        x._buf = None
    for k in written:
        if not _alone(tensors, k):
            tensors[k] = _cloned(tensors[k])
    return tensors


def _alone(tensors: list[torch.Tensor], k: int) -> bool:
    """Whether nobody else has tensor `k` of the list, or memory of it, and it has no memory of others.

    It is not alone if an Array or a recording refers to it, or if a NumPy array or a tensor shares its memory or made
    it. Where torch does not say who shares memory, it never is.
    """
    tensor = tensors[k]
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes or (storage.device.type == "cpu" and storage.is_shared()):
        return False  # a view, or memory that other processes have
    if not (storage.resizable() or getattr(tensor, "made_by_torch", False)):
        return False
    del tensor, storage
    with contextlib.suppress(UnsupportedTorchError):
        return _holders(tensors, k) == _least_holders()
    return False


def _holders(tensors: list[torch.Tensor], k: int) -> tuple[int, int, int]:
    """Return how many references there are to a tensor, from Python and from C++, and to its memory."""
    of_tensor, of_storage = _users()
    return sys.getrefcount(tensors[k]), of_tensor(tensors[k]), of_storage(tensors[k].untyped_storage()._cdata)


@functools.cache
def _users() -> tuple[Any, Any]:
    return internals.TENSOR_USERS.get(), internals.STORAGE_USERS.get()


@functools.cache
@without_modes
def _least_holders() -> tuple[int, int, int]:
    """Return `_holders` of a tensor that only a list has."""
    return _holders([torch.empty(1)], 0)


@without_modes
def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()
