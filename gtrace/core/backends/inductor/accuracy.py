"""Decompositions of functions that Inductor's vector code for CPUs computes badly.

Its own lowerings of these functions lose digits near zero, fail at infinities or take long. The decompositions use
functions that it computes well, and agree with torch. They apply to floating-point tensors on a CPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.short_sums import INDEX_PUT, SUMS, rounded_once, short_dtype
from gtrace.core.base.mechanisms import ACCURATE_FUNCTIONS


def decompositions(own: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return Inductor's decompositions, overridden by ours."""
    if not ACCURATE_FUNCTIONS.on:
        return dict(own)
    table = {**own, **{op: _on_cpu(function, own.get(op)) for op, function in _ACCURATE.items()}}
    table |= {op: _added_in_single_precision(op, own.get(op)) for op in map(_overload, SUMS | {INDEX_PUT})}
    for op in (torch.ops.aten.div.Tensor_mode, torch.ops.aten.div.Scalar_mode):
        table[op] = _with_mode(own.get(op))
    for op in _VARIANCES:
        table[op] = _in_double_precision(op, own.get(op))
    table[torch.ops.aten.addr.default] = _outer_product
    table[torch.ops.aten.linalg_cross.default] = _cross(own.get(torch.ops.aten.linalg_cross.default))
    return {**table, torch.ops.aten.pow.Scalar: _power_of_number(own.get(torch.ops.aten.pow.Scalar))}


def _on_cpu(function: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def decomposition(*args: Any, **kwargs: Any) -> Any:
        given = [x for x in args if isinstance(x, torch.Tensor)]
        if not kwargs and all(x.device.type == "cpu" and x.is_floating_point() for x in given):
            # an operator for tensors is called with numbers too
            return function(*[_as_tensor(x, given[0]) for x in args])
        return otherwise(*args, **kwargs) if otherwise is not None else NotImplemented

    return decomposition


def _as_tensor(x: Any, beside: torch.Tensor) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=beside.dtype, device=beside.device)


def _expm1(x: torch.Tensor) -> torch.Tensor:
    # Inductor: exp(x) - 1, which cancels for small x (pytorch/pytorch#189803)
    return torch.tanh(x * 0.5) * (torch.exp(x) + 1)


def _atanh(x: torch.Tensor) -> torch.Tensor:
    # Inductor: a logarithm, whose argument rounds to 1 for small x (pytorch/pytorch#198183)
    return (torch.log1p(x) - torch.log1p(-x)) * 0.5


def _sinh(x: torch.Tensor) -> torch.Tensor:
    # Sleef: exp of the whole argument, which overflows before sinh does (pytorch/pytorch#183763)
    size = torch.abs(x)
    less = torch.expm1(size)
    half = torch.exp(size * 0.5)
    far = half * 0.5 * half - 0.5 / half / half
    return torch.copysign(torch.where(size < 1, (less + less / (less + 1)) * 0.5, far), x)


def _cosh(x: torch.Tensor) -> torch.Tensor:
    # as for sinh
    half = torch.exp(torch.abs(x) * 0.5)
    return half * 0.5 * half + 0.5 / half / half


def _acosh(x: torch.Tensor) -> torch.Tensor:
    # Inductor: squares x, which overflows for large x. There the result is log(2 x) to the last digit
    near = torch.log1p((x - 1) + torch.sqrt(x - 1) * torch.sqrt(x + 1))
    return torch.where(x > 2.0**28, torch.log(x) + math.log(2.0), near)


def _erf(x: torch.Tensor) -> Any:
    # Inductor: a polynomial in float32 with an absolute error of 1e-7, which is large beside small results
    # (pytorch/pytorch#198183)
    if x.dtype is torch.float64:
        return NotImplemented
    size = torch.abs(x)
    tail = 1 - torch.exp(-_polynomial(_LOG_ERFC, torch.clamp(size, max=4.0)))  # 1 from there on
    return torch.copysign(torch.where(size < 0.95, size + size * _polynomial(_ERF, x * x), tail), x)


def _tanh(x: torch.Tensor) -> Any:
    # Inductor: a function of Sleef that takes twice as long
    if x.dtype is not torch.float32:
        return NotImplemented
    size, square = torch.abs(x), x * x
    tail = 1 - 2 / (torch.exp(size + size) + 1)
    near = size + size * (square * _polynomial(_TANH, square))
    return torch.copysign(torch.where(size < 0.65, near, tail), x)


def _polynomial(coefficients: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    """Return a polynomial, whose coefficients begin with the constant."""
    out = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        out = out * x + c
    return out


# Minimax fits, by Lawson's reweighted least squares at 400 Chebyshev nodes. In float32 the functions above are within 2
# units in the last place (tests/test_accuracy.py).
_ERF = (0.12837915, -0.37612462, 0.112814665, -0.026753334, 0.004973117, -0.00058867736)
"""erf(x) / x - 1, as a polynomial in x * x up to 0.95 squared."""

_LOG_ERFC = (
    -0.00018344415,
    1.1295568,
    0.63326263,
    0.10837248,
    -0.025178967,
    0.004193611,
    -0.00043910637,
    2.1496113e-05,
)
"""-log(erfc(x)) from 0.95 to 4."""

_TANH = (-0.33333266, 0.13330929, -0.053694826, 0.020488145, -0.0055330545)
"""(tanh(x) / x - 1) / (x * x), as a polynomial in x * x up to 0.65 squared."""


def _remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Inductor: x - floor(x / y) * y, which is NaN where y is infinite
    rest = torch.fmod(x, y)
    return torch.where(_of_other_sign(rest, y), rest + y, rest)


def _of_other_sign(rest: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # not as the difference of two signs: Inductor cannot compare booleans that it knows
    return torch.where(y < 0, rest > 0, rest < 0)


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Inductor: floor(x / y), which is 0 where y is infinite and the signs differ, and wrong where x / y rounds up to
    # an integer. This is how torch does it (c10::div_floor_floating).
    ratio = x / y
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where(_of_other_sign(rest, y), quotient - 1, quotient)
    floor = torch.floor(quotient)
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    floor = torch.where(quotient == 0, torch.copysign(torch.zeros_like(floor), ratio), floor)
    # where the quotient overflows, the vector code's fmod is NaN
    return torch.where((y == 0) | (torch.isinf(ratio) & ~torch.isinf(x)), ratio, floor)


def _with_mode(otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def divide(x: torch.Tensor, y: Any, *, rounding_mode: str | None = None) -> Any:
        if rounding_mode == "floor" and torch.result_type(x, y).is_floating_point and x.device.type == "cpu":
            return torch.floor_divide(x, y)
        return otherwise(x, y, rounding_mode=rounding_mode) if otherwise is not None else NotImplemented

    return divide


def _power_of_number(otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def power(x: Any, y: torch.Tensor) -> Any:
        dtype = torch.result_type(x, y)
        if not dtype.is_floating_point and not dtype.is_complex:
            # Inductor's C++ hands torch the number as a float, and the result is float32
            return torch.pow(torch.full((), x, dtype=dtype, device=y.device), y.to(dtype))
        return otherwise(x, y) if otherwise is not None else NotImplemented

    return power


def _outer_product(x: torch.Tensor, u: torch.Tensor, v: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    # torch's kernel rounds numbers, and each product of 16 bits; Inductor multiplies by alpha last
    dtype = torch.promote_types(x.dtype, torch.promote_types(u.dtype, v.dtype))
    product = u.to(dtype)[:, None] * torch.full((), alpha, dtype=dtype, device=x.device) * v.to(dtype)
    return product if beta == 0 else x.to(dtype) * torch.full((), beta, dtype=dtype, device=x.device) + product


def _cross(otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def cross(x: torch.Tensor, y: torch.Tensor, *, dim: int = -1) -> Any:
        if x.device.type == "cpu" and x.dtype in (torch.float16, torch.bfloat16) and x.dtype is y.dtype:
            # torch's kernel rounds each product of 16 bits; its decomposition does not
            x, y = torch.broadcast_tensors(x, y)
            return x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)
        return otherwise(x, y, dim=dim) if otherwise is not None else NotImplemented

    return cross


def _overload(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), torch.ops)


def _added_in_single_precision(op: Any, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a decomposition of an operator that adds values at places: Inductor rounds 16 bits after each addition."""
    once = rounded_once(op)

    def added(*args: Any, **kwargs: Any) -> Any:
        if short_dtype(args, kwargs) is not None and (op is not _INDEX_PUT or (*args, *kwargs.values())[3:] == (True,)):
            return once(*args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(*args, **kwargs)

    return added


_INDEX_PUT = _overload(INDEX_PUT)


def _in_double_precision(op: Any, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a decomposition of a variance that computes with float64, as torch does on a CPU.

    Inductor adds squares of float32: they overflow, vanish, or lose all digits beside a large mean
    (pytorch/pytorch#197089).
    """

    def variance(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        if x.numel() == 0 and op is torch.ops.aten.var_mean.correction:
            # Inductor: a mean of 0 where torch has NaN
            return torch.var(x, dim, correction=correction, keepdim=keepdim), torch.mean(x, dim, keepdim=keepdim)
        if x.device.type != "cpu" or x.dtype is torch.float64:
            return NotImplemented if otherwise is None else otherwise(x, dim, correction=correction, keepdim=keepdim)
        # in two passes: Inductor's one pass has no code for 16-bit floats beside float64
        wide = x.to(torch.float64)
        axes = range(x.ndim) if not dim else [dim] if isinstance(dim, int) else dim
        mean = torch.mean(wide, dim, keepdim=True)
        count = math.prod(x.shape[axis] for axis in axes)
        divisor = torch.sym_max(count - (1 if correction is None else correction), 0)
        found = torch.sum(torch.square(wide - mean), dim, keepdim=keepdim) / divisor
        if op in (torch.ops.aten.std.correction, torch.ops.aten.std_mean.correction):
            found = torch.sqrt(found)
        if op in (torch.ops.aten.var.correction, torch.ops.aten.std.correction):
            return found.to(x.dtype)
        return found.to(x.dtype), (mean if keepdim else torch.mean(wide, dim)).to(x.dtype)

    return variance


_VARIANCES = (
    torch.ops.aten.var.correction,
    torch.ops.aten.std.correction,
    torch.ops.aten.var_mean.correction,
    torch.ops.aten.std_mean.correction,
)

_ACCURATE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.expm1.default: _expm1,
    torch.ops.aten.atanh.default: _atanh,
    torch.ops.aten.acosh.default: _acosh,
    torch.ops.aten.sinh.default: _sinh,
    torch.ops.aten.cosh.default: _cosh,
    torch.ops.aten.erf.default: _erf,
    torch.ops.aten.tanh.default: _tanh,
    torch.ops.aten.remainder.Tensor: _remainder,
    torch.ops.aten.remainder.Scalar: _remainder,
    torch.ops.aten.floor_divide.default: _floor_divide,
    torch.ops.aten.floor_divide.Scalar: _floor_divide,
}
