"""The state of an Array, in its own class, so that modules below `Array` can use it."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.op import Leaf


class ArrayBase:
    """The slots of every Array: its type, and its value or the trace that computes it.

    `gtrace.core.trace.array.Array` is the only subclass. Its operators and methods are added once the operations exist
    (`gtrace.core.ops.methods`, `gtrace.interop.tensor_methods`). Type checkers read them in `array_base.pyi`, which
    ``python tests/test_array_stub.py`` writes.

    Attributes:
        aval: shape, dtype and device.
        _trace: the pending `gtrace.core.trace.record.Trace` that will compute it; `SETTLED` once it has a value.
        _number: its number in that trace; inputs of a running gradient have negative numbers.
        _buf: the value; None if it is pending or a placeholder.
        _leaf: its record as a trace input; None until it is made.
    """

    __slots__ = ("aval", "_trace", "_number", "_buf", "_leaf", "__weakref__")

    aval: Aval
    _trace: Any
    _number: int
    _buf: torch.Tensor | None
    _leaf: Leaf | None
