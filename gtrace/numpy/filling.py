"""Values that go into an array, in its dtype."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.ops.operands import beside, cast
from gtrace.core.trace.array import Array


def like(given: Any, x: Array) -> Array:
    """Return a number, a list or an array in the dtype of `x`, on its device.

    Raises:
        RangeError: numbers or host data that the dtype cannot hold.
    """
    if isinstance(given, (Array, torch.Tensor)):
        return cast(beside(x.aval.device, given, ops.array(given)), x.aval.dtype)
    return beside(x.aval.device, given, ops.array(given, x.aval.dtype))
