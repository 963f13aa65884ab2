"""The state of an Array, in a class of its own, so that modules below `Array` can name what they hold."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.op import Leaf


class ArrayBase:
    """What every Array holds: its type, and its value or where the value comes from.

    `gtrace.core.trace.array.Array` is the one subclass. Its operators and methods are added when the operations exist
    (`gtrace.core.ops.methods`, `gtrace.interop.tensor_methods`). Type checkers read them in `array_base.pyi`, which
    ``python tests/test_array_stub.py`` writes.

    Attributes:
        aval: shape, dtype and device.
        _trace: the pending trace that will compute it, a `gtrace.core.trace.record.Trace`; None once there is a value.
        _number: its number there; the inputs of a running gradient have negative ones.
        _buf: the value; None: it is pending, or this is a placeholder.
        _leaf: its record as an input of a trace; None: not made yet.
    """

    __slots__ = ("aval", "_trace", "_number", "_buf", "_leaf", "__weakref__")

    aval: Aval
    _trace: Any
    _number: int
    _buf: torch.Tensor | None
    _leaf: Leaf | None
