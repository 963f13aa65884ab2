"""``torch.autograd.Function``: its values are traced, but derivatives raise, because it has its own backward pass.

torch runs its forward pass without gradients, which would give a derivative of zero. So the result is marked with the
arguments, and a derivative through the mark raises.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy
import torch

from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ir.cases import Sample
from gtrace.core.ir.op import Op, define
from gtrace.core.ops.batching import spread
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind
from gtrace.core.trace.convert import lift

_library = torch.library.Library("gtrace", "FRAGMENT")
_library.define("custom_function(Tensor x, Tensor[] inputs, str function) -> Tensor")
_library.impl("custom_function", lambda x, inputs, function: x.clone(), "CompositeExplicitAutograd")

MARK = "gtrace.custom_function.default"
"""The operator that marks the result of a custom function, between torch's tracer and the recording."""


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Mark the results of custom functions that this thread calls. One thread at a time may be in this context."""
    original = vars(torch.autograd.Function)["apply"]
    owner = threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        out = original.__get__(None, cls)(*args, **kwargs)
        if threading.get_ident() != owner or not torch.is_grad_enabled():
            return out
        inputs = [x for x in tree.leaves((args, kwargs)) if _differentiable(x)]
        mark = torch.ops.gtrace.custom_function.default
        return tree.map(lambda x: mark(x, inputs, cls.__name__) if _differentiable(x) else x, out)

    setattr(torch.autograd.Function, "apply", classmethod(apply))  # noqa: B010 - a class method in the place of one
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", original)  # noqa: B010


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _refuse(function: str) -> NoReturn:
    fix = "Write it with gt.custom_vjp, or pass what gt.stop_gradient returns."
    raise ArgumentError(message(function, "no derivative of a torch.autograd.Function", "one", fix))


def _vjp(ct: Any, needed: Sequence[bool], *rest: Any, function: str) -> NoReturn:
    _refuse(function)


def _jvp(tangents: Any, *rest: Any, function: str) -> NoReturn:
    _refuse(function)


def _batch(op: Any, size: int, batched: Sequence[bool], operands: Sequence[Any], function: str) -> Array:
    x, *inputs = operands
    return bind(custom_function_op, (x if batched[0] else spread(x, size), *inputs), (function,))


custom_function_op: Op = define(
    "custom_function", lambda x, *inputs, function: x, params=("function",), arity=None, identity=True,
    result=lambda avals, function: avals[0], vjp=_vjp, jvp=_jvp, batch=_batch,
    samples=lambda: [Sample((numpy.arange(3), numpy.arange(2)))], reference=lambda x, other: x,
    user=lambda x, other: bind(custom_function_op, (lift("mark", x), lift("mark", other)), ("F",)),
)  # fmt: skip


def record_mark(x: Array, inputs: Sequence[Array], function: str) -> Array:
    """Record the marked result of a custom function called `function`."""
    return bind(custom_function_op, (x, *inputs), (function,))
