"""Records calls of ``torch.autograd.Function`` with derivatives by their own backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.trace.array import Array
from gtrace.core.transform.custom import custom_vjp
from gtrace.interop.aten.custom_functions import CUSTOM, CustomCall
from gtrace.interop.aten.translate import RECORDED
from gtrace.interop.calls import TorchCall
from gtrace.interop.torch_functions import CallTable

Arrays = Sequence[Array]


def record_custom(call: CustomCall, outputs: Arrays, inputs: Arrays, kept: Arrays) -> list[Array]:
    """Record the results of a call; see `CUSTOM`. Its backward pass is traced at its first derivative."""
    if call.refusal is not None:
        return _without_derivative(call.name, *call.refusal)(outputs, inputs)
    table = CallTable()

    def forward(outputs: Arrays, inputs: Arrays, kept: Arrays) -> Any:
        results = custom(outputs, inputs, kept)  # second derivatives follow results that the backward pass uses
        return results, {"inputs": inputs, "outputs": results, "kept": kept}

    def backward(residuals: dict[str, Arrays], cts: Arrays) -> Any:
        used = [residuals[what][k] for what, k in call.places]
        traced = TorchCall.of(f"{call.name}.backward", (used, list(map(_conjugate, cts))))
        recorded = table.find((), traced, lambda how: how(call.backward))
        grads = recorded(traced.arrays)
        if call.once:
            refusal = "one gradient of a function that is once_differentiable", "another derivative", _FIX
            followed = [x for x in traced.arrays if x.aval.floating or x.aval.complex]
            grads = _without_derivative(call.name, *refusal)(grads, followed)
        return None, list(map(_conjugate, grads)), None

    custom: Any = custom_vjp(lambda outputs, inputs, kept: outputs)
    custom.defvjp(forward, backward)
    found: list[Array] = custom(list(outputs), list(inputs), list(kept))
    return found


_FIX = "Write it with gt.custom_vjp, or pass what gt.stop_gradient returns."


def _conjugate(x: Array) -> Array:
    # torch's cotangents of complex values are the conjugates of gtrace's, which follow JAX
    return ops.conj(x) if x.aval.complex else x


def _without_derivative(name: str, expected: str, got: str, fix: str) -> Any:
    """Return a function of (results, inputs) that returns the results. Its derivative raises."""

    def refuse(*_: Any) -> NoReturn:
        raise ArgumentError(message(name, expected, got, fix))

    function = custom_vjp(lambda outputs, inputs: list(outputs))
    function.defvjp(lambda outputs, inputs: (outputs, None), refuse)
    return lambda outputs, inputs: function(list(outputs), list(inputs))


RECORDED[CUSTOM] = record_custom
