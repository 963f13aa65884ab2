"""Activation functions, and the error function, which gelu uses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.backends.interpreter.tuned import LEAST_SLOPE
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ir.cpp import Cpp, of_floats
from gtrace.core.ops.checks import no_booleans
from gtrace.core.ops.declare import Array, Aval, Op, Params, Sample, bind, define
from gtrace.core.ops.elementwise import add, clip, exp, multiply, neg, power, square, subtract
from gtrace.core.ops.operands import promote_arrays, unary
from gtrace.core.ops.samples import scipy_special, uniform
from gtrace.core.ops.trigonometry import tanh
from gtrace.core.passes.channels_last import are_images, in_layout_of
from gtrace.core.trace.fast import bind_met

__all__ = ["erf", "gelu", "relu", "sigmoid", "silu", "softplus"]

sigmoid = unary(
    "sigmoid", torch.sigmoid, "Return 1 / (1 + exp(-x)).", "round(float(gt.sigmoid(0.5)), 4) => 0.6225", fresh=True,
    partials=(lambda x, out: multiply(out, subtract(1.0, out)),), reference=lambda x: 1 / (1 + numpy.exp(-x)),
    cpp=Cpp("sigmoid<{T}>({0})", "f", 14), jax="logistic", aten="sigmoid",
)  # fmt: skip
erf = unary(
    "erf", torch.erf, "Return the error function, 2 / sqrt(pi) times the integral of exp(-t ** 2) to x.",
    "round(float(gt.erf(0.5)), 4) => 0.5205",
    partials=(lambda x, out: multiply(exp(neg(square(x))), 2.0 / math.sqrt(math.pi)),),
    reference=numpy.vectorize(math.erf, otypes=[float]), cpp=of_floats("erf"), jax="erf", aten="erf",
)  # fmt: skip


def _relu_slope(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    # 0 also if g is infinite or x is NaN, where torch's derivative of relu returns g
    return torch.where(x > 0, g, 0)


relu = unary(
    "relu", torch.relu, "Return max(x, 0); the derivative at 0 is 0.",
    "gt.relu(gt.array([-1., 2.])) => Array([0., 2.], dtype=float32)", floating=False, check=no_booleans,
    vjp=lambda ct, needed, x, out: (bind(_relu_grad, (ct, x)),), jvp=lambda ts, x, out: bind(_relu_grad, (ts[0], x)),
    reference=lambda x: numpy.maximum(x, 0), cpp=Cpp("relu<{T}>({0})", "if"), aten="relu",
)  # fmt: skip
_relu_grad = define(
    "relu_grad", _relu_slope, arity=2, elementwise=True, fresh=True,
    direct=lambda avals: (lambda g, x: _relu_slope(in_layout_of(g, x), x)) if are_images(avals) else None,
    vjp=lambda ct, needed, g, x, out: (bind(_relu_grad, (ct, x)) if needed[0] else None, None), linear=(0,),
    samples=lambda: [Sample((uniform(-2, 2, 3, 4, seed=1), uniform(-2, 2, 3, 4)))],
    reference=lambda g, x: numpy.where(x > 0, g, 0),
    user=lambda g, x: bind(_relu_grad, promote_arrays("relu", g, x, floating=True)),
    cpp=Cpp("({1} > 0 ? {0} : {T}(0))", "f"),
)  # fmt: skip
silu = unary(
    "silu", torch.nn.functional.silu, "Return x * sigmoid(x) (Elfwing et al., 2017).",
    "round(float(gt.silu(0.5)), 4) => 0.3112", partials=(lambda x, out: _silu_partial(x),),
    reference=lambda x: x / (1 + numpy.exp(-x)), cpp=Cpp("silu<{T}>({0})", "f", 14),
)  # fmt: skip


def _silu_partial(x: Array) -> Array:
    x = clip(x, -1e3, 1e3)  # the slope is constant beyond, and infinity times zero is NaN
    s = sigmoid(x)
    return multiply(s, add(multiply(x, subtract(1.0, s)), 1.0))


softplus = unary(
    "softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x)), "Return log(1 + exp(x)), without overflow.",
    "round(float(gt.softplus(0.5)), 4) => 0.9741", partials=(lambda x, out: sigmoid(x),),
    reference=lambda x: numpy.logaddexp(x, 0), cpp=Cpp("logaddexp<{T}>({0}, {T}(0))", "f", 20),
)  # fmt: skip


_FLAT = 40.0
"""Beyond it, the slope of gelu is 0 or 1 in every dtype. There the formulas would multiply zero by infinity."""


def _variant(approximate: bool) -> str:
    """Return torch's name of a variant of gelu."""
    return "tanh" if approximate else "none"


def _gelu_grad(g: torch.Tensor, x: torch.Tensor, approximate: bool) -> torch.Tensor:
    if g.shape != x.shape:  # torch's kernel requires equal shapes
        g, x = (t.contiguous() for t in torch.broadcast_tensors(g, x))
    return torch.ops.aten.gelu_backward(g, _clamped(x), approximate=_variant(approximate))


def _gelu_grad_direct(avals: tuple[Aval, ...], approximate: bool) -> Callable[..., torch.Tensor] | None:
    if avals[0].shape != avals[1].shape:
        return None
    kernel = functools.partial(torch.ops.aten.gelu_backward, approximate=_variant(approximate))
    limited = _limited if avals[1].device.type == "cpu" and avals[1].size >= LEAST_SLOPE else _clamped
    if are_images(avals):
        return lambda g, x: kernel(in_layout_of(g, x), limited(x))
    return lambda g, x: kernel(g, limited(x))


def _clamped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-_FLAT, _FLAT)


def _limited(x: torch.Tensor) -> torch.Tensor:
    """Clamp a large array only if it exceeds the limits, which is rare: reading it costs less than a copy."""
    least, most = torch.aminmax(x)
    return x if -_FLAT <= least.item() and most.item() <= _FLAT else _clamped(x)


def _gelu_slope(x: Array, approximate: bool) -> Array:
    x = clip(x, -_FLAT, _FLAT)
    if not approximate:
        density = multiply(exp(multiply(square(x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
        return add(multiply(add(erf(multiply(x, math.sqrt(0.5))), 1.0), 0.5), multiply(x, density))
    t, inner = _gelu_tanh(x)
    slope = multiply(multiply(multiply(x, subtract(1.0, square(t))), inner), 0.5)
    return add(multiply(add(t, 1.0), 0.5), slope)


def _gelu_curvature(x: Array, approximate: bool) -> Array:
    x = clip(x, -_FLAT, _FLAT)
    if not approximate:
        density = multiply(exp(multiply(square(x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
        return multiply(density, subtract(2.0, square(x)))
    t, inner = _gelu_tanh(x)
    bend = multiply(square(x), 3 * 0.044715 * math.sqrt(2.0 / math.pi))
    rest = subtract(add(inner, bend), multiply(multiply(x, t), square(inner)))
    return multiply(subtract(1.0, square(t)), rest)


def _gelu_tanh(x: Array) -> tuple[Array, Array]:
    """Return the tanh in the approximation of gelu, and the derivative of its argument."""
    c = math.sqrt(2.0 / math.pi)
    t = tanh(multiply(add(x, multiply(power(x, 3), 0.044715)), c))
    return t, multiply(add(multiply(square(x), 3 * 0.044715), 1.0), c)


def _gelu_reference(x: numpy.ndarray, approximate: bool) -> numpy.ndarray:
    if not approximate:
        return x * scipy_special("ndtr")(x)
    return x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _gelu_grad_reference(g: numpy.ndarray, x: numpy.ndarray, approximate: bool) -> numpy.ndarray:
    # the derivative of an analytic function by a step in the imaginary direction, which avoids cancellation
    return g * _gelu_reference(x + 1e-30j, approximate).imag * 1e30


def _gelu_samples() -> list[Sample]:
    return [Sample((uniform(-2, 2, 3, 4),), {"approximate": flag}) for flag in (True, False)]


_gelu_grad_op = define(
    "gelu_grad", _gelu_grad, direct=_gelu_grad_direct, params=("approximate",), arity=2, elementwise=True,
    fresh=True,
    partials=(
        lambda g, x, out, approximate: _gelu_slope(x, approximate),
        lambda g, x, out, approximate: multiply(g, _gelu_curvature(x, approximate)),
    ),
    samples=lambda: [Sample((uniform(-2, 2, 3, 4, seed=1), *s.args), s.kwargs) for s in _gelu_samples()],
    reference=_gelu_grad_reference,
    user=lambda g, x, approximate: bind(_gelu_grad_op, promote_arrays("gelu", g, x, floating=True), (approximate,)),
    cpp=Cpp(lambda approximate: f"{{0}} * {'gelu_tanh_slope' if approximate else 'gelu_slope'}<{{T}}>({{1}})", "f", 24),
)  # fmt: skip
_gelu_op = define(
    "gelu", lambda x, approximate: torch.nn.functional.gelu(x, approximate=_variant(approximate)),
    params=("approximate",), elementwise=True,
    vjp=lambda ct, needed, x, out, approximate: (bind(_gelu_grad_op, (ct, x), (approximate,)),),
    jvp=lambda ts, x, out, approximate: bind(_gelu_grad_op, (ts[0], x), (approximate,)),
    samples=_gelu_samples, reference=_gelu_reference, user=lambda x, **kwargs: gelu(x, **kwargs),
    cpp=Cpp(lambda approximate: "gelu_tanh<{T}>({0})" if approximate else "gelu<{T}>({0})", "f", 16),
)  # fmt: skip


def gelu(x: Any, approximate: bool = True) -> Array:
    """Return the Gaussian error linear unit (Hendrycks and Gimpel, 2016), x times the normal CDF of x.

    With `approximate` (the default, as in JAX), the paper's formula with tanh gives the CDF. torch names the two
    variants ``"tanh"`` and ``"none"``, and defaults to the latter.

    Raises:
        ArgumentError: `approximate` is a string.

    >>> gt.gelu(gt.array([0., 1.]), approximate=False)
    Array([0.       , 0.8413447], dtype=float32)
    """
    return bind_met(_gelu_op, x, (approximate,), _resolve_gelu)


def _resolve_gelu(op: Op, x: Any, approximate: bool) -> tuple[Array, Params]:
    if isinstance(approximate, str):  # torch's "none" would count as true
        fix = "torch's 'none' is False, 'tanh' is True."
        raise ArgumentError(message("gelu", "True or False as approximate", repr(approximate), fix))
    return promote_arrays("gelu", x, floating=True)[0], (bool(approximate),)
