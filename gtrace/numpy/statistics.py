"""Averages, covariances and correlations."""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ops.counts import is_short, unshortened
from gtrace.core.ops.ndarray_methods import diagonal
from gtrace.core.ops.operands import beside, cast, promote, promote_arrays
from gtrace.core.ops.shape import normalize_axes, normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.replayable import replayable

__all__ = ["average", "corrcoef", "cov"]


@replayable
def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """Return the mean over `axis`, weighted.

    Args:
        weights: with the shape of x, or of the axes named, in their order.
        returned: return (the averages, the sums of the weights).

    Raises:
        ShapeError: weights of another shape.

    >>> gnp.average(gnp.array([1., 3.]), weights=gnp.array([3., 1.]))
    Array(1.5, dtype=float32)
    """
    x = ops.array(x)
    if weights is None:
        out = ops.mean(x, axis, keepdims)
        count = math.prod(x.shape[k] for k in normalize_axes("average", axis, x.ndim))
        return (out, ops.broadcast_to(ops.array(float(count), dtype=out.aval.dtype), out.shape)) if returned else out
    x = ops.array(x)
    w = beside(x.aval.device, weights, ops.array(weights))
    x, w = promote_arrays("average", x, w, floating=True)
    if w.shape != x.shape:
        given = range(x.ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
        axes = [normalize_axis("average", k, x.ndim) for k in given]
        if w.shape != tuple(x.shape[k] for k in axes):
            got = f"{w.aval!r} for {x.aval!r}"
            raise ShapeError(message("average", "weights with the shape of the array or the axes", got, "Check it."))
        w = _on_axes(w, axes, x.ndim)
    dtype, x, w = x.aval.dtype, unshortened(x), unshortened(w)
    total = ops.sum(ops.broadcast_to(w, x.shape), axis, None, keepdims=keepdims)
    out = cast(ops.sum(ops.multiply(x, w), axis, None, keepdims=keepdims) / total, dtype)
    return (out, cast(total, dtype)) if returned else out


def _on_axes(w: Array, axes: list[int], ndim: int) -> Array:
    """Return w with its axes in ascending order of `axes`, which they are to be, and size 1 elsewhere."""
    order = sorted(range(len(axes)), key=axes.__getitem__)
    w = w.transpose(order)
    sizes = iter(w.shape)
    return ops.reshape(w, tuple(next(sizes) if k in axes else 1 for k in range(ndim)))


@replayable
def cov(
    x: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: float | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Array:
    """Return the matrix of covariances of variables.

    Args:
        x: one row for each variable and one column for each observation, or one variable.
        y: more variables.
        rowvar: False: one column for each variable.
        bias: divide by the number of observations n, not n - 1.
        ddof: divide by n - ddof instead.
        fweights: how often each observation counts, integers.
        aweights: the importance of each observation.

    Raises:
        ShapeError: more than two dimensions, or weights of another shape.

    >>> gnp.cov(gnp.array([[0., 2.], [2., 0.]]))
    Array([[ 2., -2.],
           [-2.,  2.]], dtype=float32)
    """
    rows = [_rows(z, rowvar) for z in ((x,) if y is None else (x, y))]
    variables = ops.concat(promote_arrays("cov", *rows, floating=True)) if len(rows) > 1 else rows[0]
    if aweights is not None:
        variables, aweights = promote_arrays("cov", variables, aweights)
    if fweights is not None:
        fweights = cast(lift("cov", fweights), variables.aval.dtype)
    if is_short(variables.aval.dtype):  # its sums overflow, and so do counts
        out = cov(cast(variables, torch.float32), None, True, bias, ddof, fweights, aweights)
        return cast(out, variables.aval.dtype)
    freedom = (0 if bias else 1) if ddof is None else ddof
    count = variables.shape[1]
    weights: Array | None = None
    for given in (fweights, aweights):
        if given is not None:
            w = lift("cov", given)
            if w.shape != (count,):
                raise ShapeError(message("cov", f"{count} weights", repr(w.aval), "Pass one for each observation."))
            weights = w if weights is None else weights * w
    if weights is None:
        centered = variables - ops.mean(variables, 1, True)
        product = centered @ ops.conj(ops.matrix_transpose(centered))
        return _squeezed(product / max(float(count - freedom), 0.0))
    total = ops.sum(weights)
    centered = variables - ops.sum(ops.multiply(variables, weights), 1, None, keepdims=True) / total
    scale: Any = total - float(freedom)
    if aweights is not None:
        scale = total - ops.sum(weights * lift("cov", aweights)) * freedom / total
    product = centered * weights @ ops.conj(ops.matrix_transpose(centered))
    return _squeezed(product / scale)


def _rows(x: Any, rowvar: bool) -> Array:
    (x,) = promote("cov", ops.array(x), floating=True)
    if x.ndim > 2:
        raise ShapeError(message("cov", "at most two dimensions", repr(x.aval), "Use gt.reshape."))
    if x.ndim < 2:
        return ops.reshape(x, (1, x.size))
    return x if rowvar else ops.matrix_transpose(x)


def _squeezed(x: Array) -> Array:
    return ops.reshape(x, ()) if x.shape == (1, 1) else x


@replayable
def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Array:
    """Return the matrix of correlation coefficients of variables; the arguments are those of `cov`.

    >>> gnp.corrcoef(gnp.array([[0., 2.], [2., 0.]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    c = cov(x, y, rowvar)
    if not c.ndim:
        return ops.divide(c, c)
    deviations = ops.sqrt(ops.real(diagonal(c)))
    out = c / ops.expand_dims(deviations, 1) / deviations
    if not out.aval.complex:
        return ops.clip(out, -1.0, 1.0)
    return ops.complex(ops.clip(ops.real(out), -1.0, 1.0), ops.clip(ops.imag(out), -1.0, 1.0))
