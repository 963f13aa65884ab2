"""Arrays that are given away to a call, which may write its results over their memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gtrace.core.backends.interpreter.interpreter import Owned
from gtrace.core.base.tensor_ownership import is_alone
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.trace.array import Array
from gtrace.core.trace.record import Donation


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
        if not is_alone(tensors, k):
            tensors[k] = _cloned(tensors[k])
    return tensors


@without_modes
def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()
