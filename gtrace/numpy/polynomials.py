"""Polynomials as arrays of coefficients, the highest power first, under NumPy's names."""

from __future__ import annotations

from typing import Any

from gtrace.errors import ArgumentError, ShapeError, message
from gtrace.numpy.sequences import convolve
from gtrace.ops.create import arange, asarray, ones, zeros
from gtrace.ops.elementwise import add, divide, multiply, neg, subtract
from gtrace.ops.parts import concat, stack
from gtrace.ops.promote import cast, promote, promote_arrays
from gtrace.ops.shape import as_int, broadcast_to, reshape
from gtrace.trace.array import Array

__all__ = ["poly", "polyadd", "polyder", "polydiv", "polyint", "polymul", "polysub", "polyval"]


def _coefficients(op: str, p: Any) -> Array:
    p = asarray(p)
    if p.ndim > 1:
        raise ShapeError(message(op, "coefficients of one dimension", repr(p.aval), "Use gt.ravel."))
    return p if p.ndim else reshape(p, (1,))


def polyval(p: Any, x: Any) -> Array:
    """Return the values at x of the polynomial with coefficients p, by Horner's rule.

    >>> import gtrace.numpy as gnp
    >>> gnp.polyval([1., 0., -1.], gnp.array([2., 3.]))
    Array([3., 8.], dtype=float32)
    """
    p, x = promote_arrays("polyval", _coefficients("polyval", p), asarray(x))
    out: Array = zeros(x.shape, x.dtype, x.device)
    for k in range(p.size):
        out = add(multiply(out, x), p[k]) if k else broadcast_to(p[k], x.shape)
    return out


def _aligned(op: str, a: Any, b: Any) -> tuple[Array, Array]:
    a, b = promote_arrays(op, _coefficients(op, a), _coefficients(op, b))
    size = max(a.size, b.size)
    first, second = (concat([zeros(size - z.size, z.dtype, z.device), z]) if z.size < size else z for z in (a, b))
    return first, second


def polyadd(a: Any, b: Any) -> Array:
    """Return the coefficients of the sum of two polynomials.

    >>> import gtrace.numpy as gnp
    >>> gnp.polyadd([1, 2], [3])
    Array([1, 5], dtype=int64)
    """
    return add(*_aligned("polyadd", a, b))


def polysub(a: Any, b: Any) -> Array:
    """Return the coefficients of the difference of two polynomials.

    >>> import gtrace.numpy as gnp
    >>> gnp.polysub([1, 2], [3])
    Array([ 1, -1], dtype=int64)
    """
    return subtract(*_aligned("polysub", a, b))


def polymul(a: Any, b: Any) -> Array:
    """Return the coefficients of the product of two polynomials; zeros in front are kept.

    >>> import gtrace.numpy as gnp
    >>> gnp.polymul([1, 1], [1, -1])
    Array([ 1,  0, -1], dtype=int64)
    """
    return convolve(_coefficients("polymul", a), _coefficients("polymul", b))


def polydiv(u: Any, v: Any) -> tuple[Array, Array]:
    """Return the coefficients of the quotient and of the remainder of two polynomials; zeros in front are kept.

    Args:
        v: its first coefficient is not 0.

    >>> import gtrace.numpy as gnp
    >>> gnp.polydiv([1., 0., -1.], [1., 1.])[0]
    Array([ 1., -1.], dtype=float32)
    """
    a, b = promote_arrays("polydiv", _coefficients("polydiv", u), _coefficients("polydiv", v), floating=True)
    steps = a.size - b.size + 1
    if steps <= 0:
        return zeros(1, a.dtype, a.device), a
    quotient = []
    for k in range(steps):
        factor = divide(a[k], b[0])
        quotient.append(factor)
        a = a.at[k : k + b.size].add(neg(multiply(b, factor)))
    return stack(quotient), a[steps:] if b.size > 1 else zeros(1, a.dtype, a.device)


def polyder(p: Any, m: int = 1) -> Array:
    """Return the coefficients of the m-th derivative of a polynomial.

    >>> import gtrace.numpy as gnp
    >>> gnp.polyder([1, 2, 3])
    Array([2, 2], dtype=int64)
    """
    p, order = _coefficients("polyder", p), as_int("polyder", "m", m)
    if order < 0:
        raise ArgumentError(message("polyder", "m >= 0", str(order), "Use polyint."))
    for _ in range(order):
        powers = cast(arange(p.size - 1, 0, -1, device=p.device), p.dtype) if p.size > 1 else p[:0]
        p = multiply(p[:-1], powers)
    return p


def polyint(p: Any, m: int = 1, k: Any = None) -> Array:
    """Return the coefficients of the m-th integral of a polynomial.

    Args:
        k: the constants of the m integrations, the first one first; None: zeros.

    >>> import gtrace.numpy as gnp
    >>> gnp.polyint([2, 2])
    Array([1., 2., 0.], dtype=float32)
    """
    p, order = _coefficients("polyint", p), as_int("polyint", "m", m)
    (p,) = promote("polyint", p, floating=True)
    constants = zeros(max(order, 0), p.dtype, p.device) if k is None else cast(_coefficients("polyint", k), p.dtype)
    constants = broadcast_to(constants, (order,)) if constants.size == 1 and order > 0 else constants
    if order < 0 or constants.size != order:
        got = f"m={order} and {constants.size} constants"
        raise ArgumentError(message("polyint", "m >= 0, and m constants", got, "Match them."))
    for step in range(order):
        powers = cast(arange(p.size, 0, -1, device=p.device), p.dtype)
        p = concat([divide(p, powers), constants[step : step + 1]])
    return p


def poly(roots: Any) -> Array:
    """Return the coefficients of the polynomial with the given roots and first coefficient 1.

    >>> import gtrace.numpy as gnp
    >>> gnp.poly([1., -1.])
    Array([ 1.,  0., -1.], dtype=float32)
    """
    (roots,) = promote("poly", _coefficients("poly", roots), floating=True)
    out: Array = ones(1, roots.dtype, roots.device)
    for k in range(roots.size):
        out = convolve(out, stack([ones((), roots.dtype, roots.device), neg(roots[k])]))
    return out
