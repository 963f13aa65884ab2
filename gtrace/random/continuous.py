"""Samples of continuous distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import COMPLEX, FLOATS, LONG
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ops.draw_functions import erfinv, fma, nextafter
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_sizes, full_like_scalar
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.key_uses import consume
from gtrace.core.trace.promotion import as_dtype, default_dtype
from gtrace.core.trace.replayable import replayable
from gtrace.random.keys import as_key, draw_bits, fill, fresh_key, two_keys

__all__ = ["uniform", "normal", "truncated_normal", "gumbel"]

_MANTISSA = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
_WIDTH = {torch.float16: 16, torch.bfloat16: 8, torch.float32: 32, torch.float64: 64}


def float_dtype(name: str, dtype: Any) -> torch.dtype:
    """Return a dtype argument; None is float32.

    Raises:
        DtypeError: it is not floating.
    """
    kind = default_dtype(float) if dtype is None else as_dtype(dtype)
    if kind not in FLOATS:
        raise DtypeError(message(name, "a floating dtype", LONG[kind], "Use gt.float32, or gt.random.randint."))
    return kind


def draw_unit(key: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """Return numbers in [0, 1): multiples of the spacing of floats in [1, 2)."""
    mantissa, width = _MANTISSA[dtype], _WIDTH[dtype]
    number = ops.bitwise_right_shift(draw_bits(key, shape, width), width - mantissa)
    if width == 64:
        number = ops.bitwise_and(number, (1 << mantissa) - 1)  # drop the copies of the sign bit
    return ops.multiply(cast(number, dtype), 2.0**-mantissa)


@without_modes
def _range(low: float, high: float, dtype: torch.dtype) -> tuple[float, Any]:
    """Return the lower bound and the width of an interval, rounded to `dtype`."""
    bounds = torch.tensor([low, high], dtype=dtype)
    return bounds[0].item(), (bounds[1] - bounds[0]).item()


def draw_uniform(key: Array, shape: tuple[int, ...], dtype: torch.dtype, low: Any, high: Any) -> Array:
    """Return `uniform` without checking the arguments: `low` and `high` are floats, or Arrays of `dtype`."""
    unit = draw_unit(key, shape, dtype)
    exact = False
    if type(low) is not Array and type(high) is not Array:
        start, span = _range(low, high, dtype)
        if start == 0 and span == 1:
            return unit
        exact = math.frexp(span)[0] == 0.5  # a power of two
    else:
        span = ops.subtract(high, low)
    # XLA uses a fused multiply-add, except in bfloat16
    scaled = ops.add(ops.multiply(unit, span), low) if exact or dtype is torch.bfloat16 else fma(unit, span, low)
    return ops.maximum(low, scaled)


def bound(name: str, x: Any, dtype: torch.dtype, shape: tuple[int, ...] | None) -> Any:
    """Return a parameter as a float or an Array of `dtype`.

    Raises:
        ShapeError: it does not broadcast to `shape`.
    """
    value = None if type(x) is Array else python_scalar(x)
    if isinstance(value, complex):
        raise DtypeError(message(name, "a real number", str(value), "Pass real parameters."))
    if value is not None:
        return float(value)
    out = cast(lift(name, x), dtype)
    return out if shape is None else fill(name, out, shape)


@replayable
def uniform(key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> Array:
    """Return numbers uniformly distributed over [minval, maxval).

    Args:
        dtype: floating; float32 by default.
        minval: number, or array that broadcasts to `shape`; the result is differentiable in it.
        maxval: likewise.

    Raises:
        ArgumentError: minval and maxval are numbers and the range is empty or not finite.
        DtypeError, ShapeError: wrong arguments.

    >>> gt.random.uniform(gt.random.key(0), (2,))
    Array([0.947667 , 0.9785799], dtype=float32)
    """
    sizes, kind = as_sizes("uniform", shape), float_dtype("uniform", dtype)
    low, high = bound("uniform", minval, kind, sizes), bound("uniform", maxval, kind, sizes)
    if type(low) is float and type(high) is float and not -math.inf < low < high < math.inf:
        raise ArgumentError(message("uniform", "minval < maxval, both finite", f"{low} and {high}", "Fix the range."))
    found = fresh_key("uniform", key)
    if type(low) is Array and type(high) is not Array:
        high = full_like_scalar(high, kind, (), found.aval.device)
    return draw_uniform(found, sizes, kind, low, high)


def draw_normal(key: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """Return `normal` without checking the arguments."""
    lowest = -1.0 + torch.finfo(dtype).eps / 2  # the first float above -1
    return ops.multiply(erfinv(draw_uniform(key, shape, dtype, lowest, 1.0)), math.sqrt(2.0))


@replayable
def normal(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Return samples of the standard normal distribution.

    Args:
        dtype: floating or complex; float32 by default. The two parts of a complex number are independent, each of
            variance 1/2.

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> gt.round(gt.random.normal(gt.random.key(0), (2,)), 4)
    Array([1.6226, 2.0253], dtype=float32)
    """
    sizes = as_sizes("normal", shape)
    if dtype is not None and as_dtype(dtype) in COMPLEX:
        kind = as_dtype(dtype).to_real()
        real_key, imag_key = two_keys(fresh_key("normal", key))
        both = ops.complex(draw_normal(real_key, sizes, kind), draw_normal(imag_key, sizes, kind))
        return both / math.sqrt(2.0)
    return draw_normal(fresh_key("normal", key), sizes, float_dtype("normal", dtype))


@replayable
def truncated_normal(key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Return samples of the standard normal distribution, restricted to the open interval (lower, upper).

    Args:
        lower: number (may be infinite) or array; the result is differentiable in it.
        upper: likewise.
        shape: the shape of the result; None: that of lower and upper, broadcast.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: lower and upper are numbers, and lower is not below upper.
        DtypeError, ShapeError: wrong arguments.

    >>> bool((gt.random.truncated_normal(gt.random.key(0), -0.5, 0.5, (100,)) < 0.5).all())
    True
    """
    kind = float_dtype("truncated_normal", dtype)
    low, high = (bound("truncated_normal", x, kind, None) for x in (lower, upper))
    if type(low) is float and type(high) is float and not low < high:
        raise ArgumentError(message("truncated_normal", "lower < upper", f"{low} and {high}", "Fix the interval."))
    found = as_key("truncated_normal", key)
    low, high = (x if type(x) is Array else full_like_scalar(x, kind, (), found.aval.device) for x in (low, high))
    sizes = common_shape("truncated_normal", shape, low, high)
    consume("truncated_normal", found)
    root = math.sqrt(2.0)
    u = draw_uniform(found, sizes, kind, ops.erf(ops.divide(low, root)), ops.erf(ops.divide(high, root)))
    out = ops.multiply(erfinv(u), root)
    # neither rounding nor a sample at the bound may leave the open interval
    least, most = nextafter(ops.stop_gradient(low), math.inf), nextafter(ops.stop_gradient(high), -math.inf)
    return ops.minimum(ops.maximum(out, least), most)


def common_shape(name: str, shape: Any, *parameters: Array) -> tuple[int, ...]:
    """Return the shape of a sample: the argument or, if it is None, the broadcast shape of the parameters.

    Raises:
        ShapeError: the parameters do not broadcast to it, or to each other.
    """
    if shape is None:
        try:
            return numpy.broadcast_shapes(*[x.shape for x in parameters])
        except ValueError:
            got = " and ".join(repr(x.aval) for x in parameters)
            raise ShapeError(message(name, "parameters that broadcast", got, "Sizes must be equal or 1.")) from None
    sizes = as_sizes(name, shape)
    for x in parameters:
        fill(name, x, sizes)
    return sizes


def parameters(
    name: str, key: Any, shape: Any, dtype: Any, *, positive: dict[str, Any] | None = None, **others: Any
) -> tuple[Array, list[Array], tuple[int, ...]]:
    """Return the key, which is then used up, the parameters as Arrays, and the shape of a sample.

    Args:
        positive: parameters that must be positive, by name; values of arrays are not checked.
        others: further parameters, which follow the positive ones.

    Raises:
        ArgumentError: a number that must be positive is not.
        DtypeError, ShapeError: wrong arguments.
    """
    kind = float_dtype(name, dtype)
    limited = positive or {}
    found = as_key(name, key)
    arrays = []
    for what, x in (*limited.items(), *others.items()):
        value = bound(name, x, kind, None)
        if type(value) is float:
            if what in limited and not value > 0:
                raise ArgumentError(message(name, f"{what} > 0", repr(x), "Pass a positive number."))
            value = full_like_scalar(value, kind, (), found.aval.device)
        arrays.append(value)
    sizes = common_shape(name, shape, *arrays)
    consume(name, found)
    return found, arrays, sizes


def draw_exponential(key: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """Return samples of the exponential distribution with rate 1, for a key that is not checked."""
    return neg(ops.log1p(neg(draw_unit(key, shape, dtype))))


def check_mode(name: str, mode: Any) -> None:
    """Raise for a mode other than "low" and "high".

    Raises:
        ArgumentError: it is another mode.
    """
    if mode not in ("low", "high"):
        raise ArgumentError(message(name, '"low" or "high" as mode', repr(mode), "Pass one of them."))


def draw_gumbel(key: Array, shape: tuple[int, ...], dtype: torch.dtype, mode: str) -> Array:
    """Return `gumbel` without checking the arguments."""
    tiny = torch.finfo(dtype).tiny
    if mode == "low":
        return neg(ops.log(neg(ops.log(draw_uniform(key, shape, dtype, tiny, 1.0)))))
    high, low = ops.unstack(draw_unit(key, (2, *shape), dtype))
    fine = high + ops.multiply(low, 2.0 ** -_MANTISSA[dtype]) + tiny
    return neg(ops.log(neg(ops.log1p(neg(ops.where(ops.greater_equal(high, 0.5), high, fine))))))


@replayable
def gumbel(key: Any, shape: Any = (), dtype: Any = None, mode: str = "low") -> Array:
    """Return samples of the standard Gumbel distribution.

    Args:
        dtype: floating; float32 by default.
        mode: ``"high"`` draws twice the bits: the largest float32 number is then about 32 instead of 16.

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> gt.round(gt.random.gumbel(gt.random.key(0), (2,)), 4)
    Array([2.9234, 3.8326], dtype=float32)
    """
    sizes, kind = as_sizes("gumbel", shape), float_dtype("gumbel", dtype)
    check_mode("gumbel", mode)
    return draw_gumbel(fresh_key("gumbel", key), sizes, kind, mode)
