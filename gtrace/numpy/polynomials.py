"""Polynomials as arrays of coefficients, the highest power first, under NumPy's names."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import beside, cast, promote, promote_arrays
from gtrace.core.ops.shape import as_int
from gtrace.core.trace.array import Array
from gtrace.core.trace.force import whole
from gtrace.numpy.grids import vander
from gtrace.numpy.linalg.decompositions import eigvals
from gtrace.numpy.linalg.solving import inv, lstsq
from gtrace.numpy.sequences import convolve
from gtrace.numpy.shapes import trim_zeros

__all__ = ["poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "polyval", "roots"]


def _coefficients(op: str, p: Any) -> Array:
    p = ops.array(p)
    if p.ndim > 1:
        raise ShapeError(message(op, "coefficients of one dimension", repr(p.aval), "Use gt.ravel."))
    return p if p.ndim else ops.reshape(p, (1,))


def polyval(p: Any, x: Any) -> Array:
    """Return the values at x of the polynomial with coefficients p, by Horner's rule.

    Further axes of p are those of polynomials whose values are computed beside each other; they broadcast with x.

    >>> gnp.polyval([1., 0., -1.], gnp.array([2., 3.]))
    Array([3., 8.], dtype=float32)
    """
    x, given = ops.array(x), p
    p = beside(x.aval.device, given, ops.array(p) if getattr(p, "ndim", 1) > 1 else _coefficients("polyval", p))
    p, x = promote_arrays("polyval", p, x)
    shape = ops.broadcast_shapes(p.shape[1:], x.shape)
    out: Array = ops.zeros(shape, x.aval.dtype, device=x.aval.device)
    for k in range(p.shape[0]):
        out = ops.add(ops.multiply(out, x), p[k]) if k else ops.broadcast_to(p[k], shape)
    return out


def _aligned(op: str, a: Any, b: Any) -> tuple[Array, Array]:
    a, b = promote_arrays(op, _coefficients(op, a), _coefficients(op, b))
    size = max(a.size, b.size)
    first, second = (
        ops.concat([ops.zeros(size - z.size, z.aval.dtype, device=z.aval.device), z]) if z.size < size else z
        for z in (a, b)
    )
    return first, second


def polyadd(a: Any, b: Any) -> Array:
    """Return the coefficients of the sum of two polynomials.

    >>> gnp.polyadd([1, 2], [3])
    Array([1, 5], dtype=int64)
    """
    return ops.add(*_aligned("polyadd", a, b))


def polysub(a: Any, b: Any) -> Array:
    """Return the coefficients of the difference of two polynomials.

    >>> gnp.polysub([1, 2], [3])
    Array([ 1, -1], dtype=int64)
    """
    return ops.subtract(*_aligned("polysub", a, b))


def polymul(a: Any, b: Any, *, trim_leading_zeros: bool = False) -> Array:
    """Return the coefficients of the product of two polynomials; zeros in front are kept.

    Args:
        trim_leading_zeros: leave out the zeros in front of both. It looks at the values.

    >>> gnp.polymul([1, 1], [1, -1])
    Array([ 1,  0, -1], dtype=int64)
    """
    first, second = _coefficients("polymul", a), _coefficients("polymul", b)
    if trim_leading_zeros:
        first, second = (ops.concat([trim_zeros(x[:-1], "f"), x[-1:]]) for x in (first, second))
    return convolve(first, second)


def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """Return the coefficients of the quotient and of the remainder of two polynomials; zeros in front are kept.

    Args:
        v: its first coefficient is not 0.
        trim_leading_zeros: leave out the zeros in front of the remainder. It looks at the values.

    >>> gnp.polydiv([1., 0., -1.], [1., 1.])[0]
    Array([ 1., -1.], dtype=float32)
    """
    a, b = promote_arrays("polydiv", _coefficients("polydiv", u), _coefficients("polydiv", v), floating=True)
    steps = a.size - b.size + 1
    if steps <= 0:
        return ops.zeros(1, a.aval.dtype, device=a.aval.device), a
    quotient = []
    for k in range(steps):
        factor = ops.divide(a[k], b[0])
        quotient.append(factor)
        a = a.at[k : k + b.size].add(neg(b * factor))
    rest = a[steps:] if b.size > 1 else ops.zeros(1, a.aval.dtype, device=a.aval.device)
    return ops.stack(quotient), trim_zeros(rest, "f") if trim_leading_zeros else rest


def polyfit(
    x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None, cov: bool | str = False
) -> Any:
    """Return the coefficients of the polynomial of degree `deg` with the least sum of squares of w * (y - p(x)).

    Args:
        x: (m,).
        y: (m,), or (m, k) for k polynomials.
        rcond: singular values up to this times the largest count as zero; by default the machine epsilon times m.
        full: return (coefficients, residuals, rank, singular values, rcond), as NumPy; the residuals always have the
            shape (1,) or (k,).
        w: a weight for each point, (m,).
        cov: return (coefficients, their covariance); "unscaled": for weights that are inverse deviations.

    Raises:
        ShapeError: shapes that do not fit, or too few points for a covariance.
        ArgumentError: the degree is no integer >= 0.

    >>> gnp.round(gnp.polyfit(gnp.array([0., 1., 2.]), gnp.array([1., 3., 7.]), 2), 3)
    Array([1., 1., 1.], dtype=float32)
    """
    degree = as_int("polyfit", "deg", deg)
    if degree < 0:
        raise ArgumentError(message("polyfit", "deg >= 0", str(degree), "Pass the degree of the polynomial."))
    given = [x, y] if w is None else [x, y, w]
    x, y, *weights = promote_arrays("polyfit", *map(ops.asarray, given), floating=True)
    if x.ndim != 1 or not x.size or y.ndim not in (1, 2) or any(z.shape[0] != x.size for z in (y, *weights)):
        got = " and ".join(repr(z.aval) for z in (x, y, *weights))
        raise ShapeError(
            message("polyfit", "points (m,), values (m,) or (m, k), weights (m,)", got, "Check the shapes.")
        )
    if weights and weights[0].ndim != 1:
        raise ShapeError(message("polyfit", "weights (m,)", repr(weights[0].aval), "Use gt.vmap."))
    powers, right = vander(x, degree + 1), y
    if weights:
        powers = powers * ops.expand_dims(weights[0], 1)
        right = ops.multiply(right, weights[0] if y.ndim == 1 else ops.expand_dims(weights[0], 1))
    scale = ops.sqrt(ops.sum(ops.square(powers), 0))
    bound = torch.finfo(x.aval.dtype).eps * x.size if rcond is None else rcond
    solution, residuals, rank, singular = lstsq(powers / scale, right, bound)
    found = ops.divide(solution, scale if y.ndim == 1 else ops.expand_dims(scale, 1))
    if full:
        return found, residuals, rank, singular, bound
    if not cov:
        return found
    matrix = inv(ops.matrix_transpose(powers / scale) @ (powers / scale)) / ops.outer(scale, scale)
    if cov != "unscaled":
        spare = x.size - degree - 1
        if spare < 1:
            fix = 'Use cov="unscaled", or fewer coefficients.'
            raise ShapeError(message("polyfit", f"more than {degree + 1} points", str(x.size), fix))
        factor = ops.divide(residuals, float(spare))
    else:
        factor = ops.ones((), x.aval.dtype, device=x.aval.device)
    return found, (matrix if y.ndim == 1 else ops.expand_dims(matrix, -1)) * factor


def polyder(p: Any, m: int = 1) -> Array:
    """Return the coefficients of the m-th derivative of a polynomial.

    >>> gnp.polyder([1, 2, 3])
    Array([2, 2], dtype=int64)
    """
    p, order = _coefficients("polyder", p), as_int("polyder", "m", m)
    if order < 0:
        raise ArgumentError(message("polyder", "m >= 0", str(order), "Use polyint."))
    for _ in range(order):
        powers = cast(ops.arange(p.size - 1, 0, -1, device=p.aval.device), p.aval.dtype) if p.size > 1 else p[:0]
        p = ops.multiply(p[:-1], powers)
    return p


def polyint(p: Any, m: int = 1, k: Any = None) -> Array:
    """Return the coefficients of the m-th integral of a polynomial.

    Args:
        k: the constants of the m integrations, the first one first; None: zeros.

    >>> gnp.polyint([2, 2])
    Array([1., 2., 0.], dtype=float32)
    """
    p, order = _coefficients("polyint", p), as_int("polyint", "m", m)
    (p,) = promote("polyint", p, floating=True)
    constants = (
        ops.zeros(max(order, 0), p.aval.dtype, device=p.aval.device)
        if k is None
        else cast(_coefficients("polyint", k), p.aval.dtype)
    )
    constants = ops.broadcast_to(constants, (order,)) if constants.size == 1 and order >= 0 else constants
    if order < 0 or constants.size != order:
        got = f"m={order} and {constants.size} constants"
        raise ArgumentError(message("polyint", "m >= 0, and m constants", got, "Match them."))
    for step in range(order):
        powers = cast(ops.arange(p.size, 0, -1, device=p.aval.device), p.aval.dtype)
        p = ops.concat([ops.divide(p, powers), constants[step : step + 1]])
    return p


def poly(roots: Any) -> Array:
    """Return the coefficients of the polynomial with the given roots, or eigenvalues, and first coefficient 1.

    Args:
        roots: of one dimension; or a square matrix. The polynomial of a real matrix is real.

    >>> gnp.poly([1., -1.])
    Array([ 1.,  0., -1.], dtype=float32)
    """
    roots = ops.array(roots)
    if roots.ndim == 2 and roots.shape[0] == roots.shape[1] > 0:
        out = poly(eigvals(roots))
        return out if roots.aval.complex else ops.real(out)
    (roots,) = promote("poly", _coefficients("poly", roots), floating=True)
    out = ops.ones(1, roots.aval.dtype, device=roots.aval.device)
    for k in range(roots.size):
        below = roots[k] * out  # the first coefficient stays 1, beside NaN too
        out = ops.concat([out[:1], out[1:] - below[:-1], neg(below[-1:])])
    return out


def roots(p: Any, *, strip_zeros: bool = True) -> Array:
    """Return the roots of a polynomial, complex: the eigenvalues of its companion matrix.

    Args:
        p: coefficients, the highest power first.
        strip_zeros: leave out leading zeros, which needs their values; without, the first coefficient must not be 0.

    >>> sorted(gnp.roots([1., -3., 2.]).real.tolist())
    [1.0, 2.0]
    """
    (p,) = promote("roots", _coefficients("roots", p), floating=True)
    kind = torch.promote_types(p.aval.dtype, torch.complex64)
    ends = 0
    if strip_zeros:
        found = whole(p, "roots").cpu().numpy().nonzero()[0]
        if not len(found):
            return ops.zeros((0,), kind, device=p.aval.device)
        ends = p.size - 1 - int(found[-1])
        p = p[int(found[0]) : p.size - ends]
    size = p.size - 1
    if size < 1:
        return ops.zeros((ends,), kind, device=p.aval.device)
    first = ops.divide(neg(p[1:]), p[0])
    companion = ops.concat(
        [ops.expand_dims(first, 0), ops.eye(size, dtype=p.aval.dtype, device=p.aval.device)[: size - 1]]
    )
    found_roots = eigvals(companion)
    return (
        ops.concat([found_roots, ops.zeros((ends,), found_roots.aval.dtype, device=p.aval.device)])
        if ends
        else found_roots
    )
