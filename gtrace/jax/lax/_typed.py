"""Functions of ``jax.lax`` that take, keep or return other dtypes than gtrace's: integers and complex numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from gtrace import lax as ours
from gtrace import special
from gtrace.extend import (
    INEXACT,
    INTEGERS,
    ArgumentError,
    Array,
    DtypeError,
    as_dtype,
    as_int,
    as_shape,
    cast,
    lift,
    message,
    ops,
    promote_dtypes,
)
from gtrace.jax import complex_order
from gtrace.jax.adapt import JAX_NAMES, adapted, documented
from gtrace.lax.windows import stand_in

__all__ = [
    "argmax", "argmin", "axis_index", "batch_matmul", "conv", "conv_general_dilated", "conv_general_dilated_patches",
    "conv_transpose", "conv_with_general_padding", "dot", "dot_general", "max", "min", "mul", "polygamma",
    "pow", "reduce_max", "reduce_min", "sort", "sort_key_val",
]  # fmt: skip

max, min = complex_order.maximum, complex_order.minimum  # noqa: A001 - JAX's names
sort = complex_order.sort_arrays


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> Any:
    """Return the sorted keys along an axis, and the values in the order of their keys."""
    return sort((keys, values), dimension, is_stable)


def axis_index(axis_name: Any) -> Array:
    """``gt.lax.axis_index``, as int32."""
    return cast(ours.axis_index(axis_name), torch.int32)


def mul(x: Any, y: Any, *, out_dtype: Any = None) -> Array:
    """``gt.multiply``, with the dtype in which to compute, and that of the result.

    >>> import gtrace.jax as jax, gtrace.jax.numpy as jnp
    >>> jax.lax.mul(jnp.int8(100), jnp.int8(100), out_dtype=jnp.int32)
    Array(10000, dtype=int32)
    """
    if out_dtype is None:
        return ops.multiply(x, y)
    kind = as_dtype(out_dtype)
    wide = [cast(a, promote_dtypes(a.aval.dtype, kind)) for a in (lift("mul", x), lift("mul", y))]
    return cast(ops.multiply(*wide), kind)


def pow(x: Any, y: Any) -> Array:  # noqa: A001 - JAX's name
    """``gt.lax.pow`` of floats or complex numbers; the exponent may also be an integer.

    Raises:
        DtypeError: other dtypes.
    """
    a, b = lift("pow", x).aval, lift("pow", y).aval
    if a.dtype not in INEXACT or (b.dtype is not a.dtype and b.dtype not in INTEGERS):
        fix = "Convert them, or use jax.numpy."
        raise DtypeError(
            message("pow", "floats, and an exponent of their dtype or an integer", f"{a!r} and {b!r}", fix)
        )
    out = ours.pow(x, y)
    return out if b.weak else cast(out, out.aval.dtype)


def polygamma(m: Any, x: Any) -> Array:
    """``gt.special.polygamma`` of orders that are floats, whose values have to be known.

    An order that is no whole number, or negative, gives NaN.

    >>> import gtrace.jax as jax
    >>> round(float(jax.lax.polygamma(1.0, 1.0)), 4)
    1.6449
    """
    x, orders = lift("polygamma", x), numpy.asarray(m)
    out = ops.full(ops.broadcast_shapes(orders.shape, x.shape), numpy.nan, x.aval.dtype, device=x.aval.device)
    for order in numpy.unique(orders).tolist():
        if order >= 0 and float(order).is_integer():
            out = ops.where(orders == order, special.polygamma(int(order), x), out)
    return out


stand_in(mul, ops.multiply)  # reductions by it are products


def _of_any(name: str, count: int = 2) -> Callable[..., Array]:
    """Return a product or convolution that computes integers as such, and of booleans whether any product is true.

    Args:
        count: the number of operands.
    """
    function = adapted(f"jax.lax.{name}", getattr(ours, name), JAX_NAMES["jax.lax"][name])

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        operands = [*args[:count], *(kwargs.pop(key) for key in ("lhs", "rhs")[len(args) : count] if key in kwargs)]
        arrays = [lift(name, x) for x in operands]
        kinds = {x.aval.dtype for x in arrays}
        if kwargs.get("preferred_element_type") is not None or not kinds <= {*INTEGERS, torch.bool}:
            return function(*operands, *args[count:], **kwargs)
        if kinds == {torch.bool}:
            arrays = [cast(x, torch.int32) for x in arrays]
        if name.startswith("conv"):  # those of gtrace compute integers as floats
            kwargs["preferred_element_type"] = functools.reduce(promote_dtypes, [x.aval.dtype for x in arrays])
        out = function(*arrays, *args[count:], **kwargs)
        return cast(out, torch.bool) if kinds == {torch.bool} else out

    return call


batch_matmul, dot, dot_general = _of_any("batch_matmul"), _of_any("dot"), _of_any("dot_general")
conv, conv_general_dilated = _of_any("conv"), _of_any("conv_general_dilated")
conv_with_general_padding, conv_transpose = _of_any("conv_with_general_padding"), _of_any("conv_transpose")
conv_general_dilated_patches = _of_any("conv_general_dilated_patches", 1)


def _place(name: str) -> Callable[..., Array]:
    def call(operand: Any, axis: int, index_dtype: Any) -> Array:
        x, place, kind = lift(name, operand), as_int(name, "axis", axis), as_dtype(index_dtype)
        if kind not in INTEGERS:
            raise DtypeError(message(name, "an integer dtype as index_dtype", str(index_dtype), "Use jnp.int32."))
        if not 0 <= place < x.ndim:
            raise ArgumentError(message(name, f"an axis from 0 to {x.ndim - 1}", str(place), "Count from the start."))
        return cast(complex_order.place_of(name, x, place), kind)

    return documented(call, name, f"``gt.{name}`` in `index_dtype`; complex numbers are ordered as in NumPy.")


argmax, argmin = _place("argmax"), _place("argmin")


def _extreme(name: str, of_complex: Callable[..., Array], far: float) -> Callable[..., Array]:
    function = getattr(ours, name)

    def call(operand: Any, axes: Sequence[int], *, out_sharding: Any = None) -> Array:
        x = lift(name, operand)
        if not x.aval.complex:
            real: Array = function(x, axes)
            return real
        return of_complex(x, as_shape(name, axes), initial=None if x.size else far)

    return documented(call, name, f"``gt.lax.{name}``; complex numbers are ordered as in NumPy.")


reduce_max = _extreme("reduce_max", complex_order.max, -numpy.inf)
reduce_min = _extreme("reduce_min", complex_order.min, numpy.inf)
