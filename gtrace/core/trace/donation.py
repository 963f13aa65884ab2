"""Arrays that are donated to a call, which may overwrite their memory with its results."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gtrace.core.backends.interpreter.interpreter import Owned
from gtrace.core.base.tensor_ownership import is_alone
from gtrace.core.trace.array import Array, clone
from gtrace.core.trace.force import materialize
from gtrace.core.trace.record import Donation


def give_away(arrays: Sequence[Array], places: Collection[int], written: Collection[int], call: str) -> Owned:
    """Return the tensors of arrays, some of which are donated. The Arrays of donated ones become unusable.

    They become unusable before the call writes. A later use of such an Array raises, even after an interrupted or
    failed call. It never sees a partial result.

    Args:
        places: indices of the donated arrays.
        written: indices of tensors that may be overwritten. Tensors whose memory is shared are copied.
        call: the name of the call in errors.

    Raises:
        DonatedError: another thread has given one of them away meanwhile.
    """
    tensors = Owned([_value(x) for x in arrays])
    donation = Donation(call)
    for k in places:
        x = arrays[k]
        x._trace = donation
        x._leaf = None
        x._buf = None
    for k in written:
        if not is_alone(tensors, k):
            tensors[k] = clone(tensors[k])
    return tensors


def _value(x: Array) -> torch.Tensor:
    tensor = x._buf
    return materialize(x, "donate") if tensor is None else tensor
