"""The order of complex numbers: by their real, then their imaginary parts, as in NumPy. In gtrace they have none."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from gtrace import config
from gtrace import lax as our_lax
from gtrace import numpy as ours
from gtrace.extend import ArgumentError, Array, deferring, lift, message, normalize_axis, ops, promote_arrays, thread
from gtrace.jax.adapt import JAX_NAMES, adapted, documented
from gtrace.jax.operand_checks import check_mask
from gtrace.lax.windows import stand_in

_DOC = "``gt.numpy.{}``; complex numbers are ordered by their real, then their imaginary parts, as in NumPy."


def is_complex(*operands: Any) -> bool:
    """Return whether one of the operands is complex."""
    return any(x.aval.complex if x.__class__ is Array else ops.iscomplexobj(x) for x in operands)


def _documented(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    return documented(call, name, _DOC.format(name))


def _compared(name: str, wins: Callable[[Any, Any], Array]) -> Callable[[Any, Any], Array]:
    """Return a comparison by the real parts, and of equal ones by the imaginary parts."""
    function = getattr(ops, name)

    def call(x: Any, y: Any, /) -> Array:
        if not is_complex(x, y):
            out: Array = function(x, y)
            return out
        a, b = promote_arrays(name, x, y)
        first = ops.equal(ops.real(a), ops.real(b))
        return ops.where(first, function(ops.imag(a), ops.imag(b)), wins(ops.real(a), ops.real(b)))

    return _documented(call, name)


less, less_equal = _compared("less", ops.less), _compared("less_equal", ops.less)
greater, greater_equal = _compared("greater", ops.greater), _compared("greater_equal", ops.greater)


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of Array that takes complex numbers with the setting `jax_results`."""
    plain = getattr(Array, name)

    @functools.wraps(plain)
    def call(self: Array, *args: Any, **options: Any) -> Any:
        takes = self.aval.complex and config.current.jax_results and not thread.in_rule
        return (function if takes else plain)(self, *args, **options)

    return call


def _chosen(name: str, wins: Callable[[Any, Any], Array], skips: bool) -> Callable[[Any, Any], Array]:
    """Return the function of two numbers that returns the one that wins; NaN wins always, or never if it `skips`."""
    function = getattr(ours, name)

    def call(x: Any, y: Any, /) -> Array:
        if not is_complex(x, y):
            out: Array = function(x, y)
            return out
        a, b = promote_arrays(name, x, y)
        return ops.where(ops.logical_or(wins(a, b), ops.isnan(b if skips else a)), a, b)

    return stand_in(_documented(functools.wraps(function)(call), name), function)


maximum, minimum = _chosen("maximum", greater, False), _chosen("minimum", less, False)
fmax, fmin = _chosen("fmax", greater_equal, True), _chosen("fmin", less_equal, True)


def _reduced(name: str, far: float, plain: Callable[..., Array] | None = None) -> Callable[..., Array]:
    """Return the greatest or the least element along axes.

    Args:
        far: what never wins.
        plain: the reduction in which NaN wins; None: it is this one.
    """
    function = getattr(ours, name)

    def call(
        a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Array:  # fmt: skip
        check_mask(name, where, out)
        x = lift(name, a)
        if not x.aval.complex:
            real: Array = function(x, axis, keepdims=keepdims, initial=initial, where=where)
            return real
        if where is not None and initial is None:
            fix = "Pass initial=, which the result is at least or at most."
            raise ArgumentError(message(name, "`initial` beside a mask", "none", fix))
        never, start = complex(far, far), {} if initial is None else {"initial": far}
        if plain is not None:
            bad = ops.isnan(x)
            found = plain(ops.where(bad, never, x), axis, None, keepdims, initial, where)
            return found if initial is not None else ops.where(ops.all(bad, axis, keepdims), math.nan, found)
        x = x if where is None else ops.where(where, x, never)
        best = function(ops.real(x), axis, keepdims=True, **start)
        other = function(ops.where(ops.equal(ops.real(x), best), ops.imag(x), far), axis, keepdims=True, **start)
        found = ops.complex(best, ops.where(ops.isnan(best), best, other))
        found = found if keepdims else ours.squeeze(found, axis)
        return found if initial is None else (maximum if far < 0 else minimum)(found, initial)

    return documented(call, name, f"``gt.numpy.{name}``, of complex numbers too. `where` has to be of booleans.")


max, min = _reduced("max", -math.inf), _reduced("min", math.inf)  # noqa: A001 - NumPy's names
nanmax, nanmin = _reduced("nanmax", -math.inf, max), _reduced("nanmin", math.inf, min)


def _ordered(name: str, given: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function along an axis, with what it does to complex numbers."""
    function = adapted(f"jax.numpy.{name}", getattr(ours, name), JAX_NAMES["jax.numpy"][name])

    def call(a: Any, axis: int | None = -1, **options: Any) -> Array:
        x = lift(name, a)
        if not x.aval.complex:
            real: Array = function(x, axis, **options)
            return real
        x, axis = (ops.reshape(x, (-1,)), 0) if axis is None else (x, normalize_axis(name, axis, x.ndim))
        return given(x, axis, options.get("descending", False))

    return _documented(call, name)


sort = _ordered("sort", lambda x, axis, descending: ops.take_along_axis(x, order_of(x, axis, descending), axis))
argsort = _ordered("argsort", lambda x, axis, descending: order_of(x, axis, descending))


def _placed(name: str) -> Callable[..., Array]:
    def call(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
        check_mask(name, None, out)
        x = lift(name, a)
        found = place_of(name, ops.reshape(x, (-1,)) if axis is None else x, 0 if axis is None else axis)
        return ops.expand_dims(found, tuple(range(x.ndim)) if axis is None else axis) if keepdims else found

    return _documented(call, name)


argmax, argmin = _placed("argmax"), _placed("argmin")

METHODS = {
    f"__{name}__": _method(f"__{name}__", deferring(function))
    for name, function in (("lt", less), ("le", less_equal), ("gt", greater), ("ge", greater_equal))
}
METHODS |= {
    function.__name__: _method(function.__name__, function) for function in (max, min, sort, argsort, argmax, argmin)
}
"""The methods of Arrays that compare."""


def _lexsort(keys: Any, axis: int = -1) -> Array:
    arrays = [ops.array(key) for key in keys]
    parts = [part for x in arrays for part in ([ops.imag(x), ops.real(x)] if x.aval.complex else [x])]
    return ours.lexsort(parts, axis)


lexsort = _documented(adapted("jax.numpy.lexsort", _lexsort, JAX_NAMES["jax.numpy"]["lexsort"]), "lexsort")


def order_of(x: Array, axis: int, descending: bool = False) -> Array:
    """Return the indices that sort an array along an axis; equal elements keep their order, and NaN is last."""
    if not x.aval.complex:
        return ops.argsort(x, axis, descending=descending)
    first = ops.argsort(ops.imag(x), axis, descending=descending)
    second = ops.argsort(ops.take_along_axis(ops.real(x), first, axis), axis, descending=descending)
    return ops.take_along_axis(first, second, axis)


def place_of(name: str, x: Array, axis: int) -> Array:
    """Return the place of the first greatest (``argmax``) or least element along an axis; of NaN if there is one."""
    function = getattr(ops, name)
    if not x.aval.complex:
        out: Array = function(x, axis)
        return out
    real = ops.where(ops.isnan(x), math.nan, ops.real(x))
    best = getattr(ops, "max" if name == "argmax" else "min")(real, axis, keepdims=True)
    first = ops.logical_or(ops.equal(real, best), ops.isnan(real))
    far = -math.inf if name == "argmax" else math.inf
    found: Array = function(ops.where(first, ops.where(ops.isnan(real), 0, ops.imag(x)), far), axis)
    return found


def sort_arrays(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """``gt.lax.sort``; complex numbers are ordered by their real, then their imaginary parts."""
    arrays = [lift("sort", x) for x in operand] if isinstance(operand, (tuple, list)) else [lift("sort", operand)]
    keys = [part for x in arrays[:num_keys] for part in ([ops.real(x), ops.imag(x)] if x.aval.complex else [x])]
    if len(keys) == len(arrays[:num_keys]):
        return our_lax.sort(operand, dimension, is_stable, num_keys)
    found = our_lax.sort((*keys, *arrays), dimension, is_stable, len(keys))[len(keys) :]
    return found if isinstance(operand, (tuple, list)) else found[0]
