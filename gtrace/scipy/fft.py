"""Cosine transforms under SciPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from gtrace.extend import ArgumentError, Array, message, normalize_axes, normalize_axis, ops, promote_arrays, slice_axis

__all__ = ["dct", "dctn", "idct", "idctn"]


def _matrix(n: int, norm: str | None, inverse: bool) -> numpy.ndarray[Any, Any]:
    """Return the matrix of the transform of type 2, or of its inverse, of n elements."""
    rows, columns = numpy.ogrid[:n, :n]
    whole = 2.0 * numpy.cos(math.pi * rows * (2 * columns + 1) / (2 * n))
    scale = numpy.full((n, 1), math.sqrt(1 / (2 * n)))
    scale[0] = math.sqrt(1 / (4 * n))
    orthonormal = whole * scale
    if norm == "ortho":
        return orthonormal.T if inverse else orthonormal
    return (orthonormal / scale).T * scale.T**2 if inverse else whole


def _along(name: str, x: Any, kind: int, n: int | None, axis: int, norm: str | None, inverse: bool) -> Array:
    if kind != 2 or norm not in (None, "backward", "ortho"):
        got = f"type {kind} and norm {norm!r}"
        raise ArgumentError(message(name, "type 2, and None, backward or ortho as norm", got, "Pass those."))
    (x,) = promote_arrays(name, x, floating=True)
    place = normalize_axis(name, axis, x.ndim)
    if n is not None and n > x.shape[place]:
        more = (*x.shape[:place], n - x.shape[place], *x.shape[place + 1 :])
        x = ops.concat([x, ops.zeros(more, x.aval.dtype)], place)
    elif n is not None:
        x = slice_axis(x, place, 0, n)
    weights = ops.array(_matrix(x.shape[place], None if norm == "backward" else norm, inverse), x.aval.dtype)
    out = (weights @ ops.expand_dims(ops.moveaxis(x, place, -1), -1))[..., 0]
    return ops.moveaxis(out, -1, place)


def dct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:  # noqa: A002
    """Return the cosine transform of type 2 along an axis, as a product with its matrix.

    Args:
        n: the number of elements taken; zeros are added where there are fewer.
        norm: None, or "ortho" for an orthonormal transform.

    >>> from gtrace.scipy.fft import dct
    >>> dct(gt.array([1., 2.]))
    Array([ 6.       , -1.4142135], dtype=float32)
    """
    return _along("dct", x, type, n, axis, norm, False)


def idct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:  # noqa: A002
    """Return the inverse of `dct`.

    >>> from gtrace.scipy.fft import dct, idct
    >>> gt.round(idct(dct(gt.array([1., 2.]))), 4)
    Array([1., 2.], dtype=float32)
    """
    return _along("idct", x, type, n, axis, norm, True)


def _all_axes(
    name: str, one: Callable[..., Array], x: Any, kind: int, s: Sequence[int] | None, axes: Any, norm: str | None
) -> Array:
    out = ops.array(x)
    if axes is None:
        axes = tuple(range(out.ndim)) if s is None else tuple(range(out.ndim - len(s), out.ndim))
    places = normalize_axes(name, axes, out.ndim)
    for k, place in enumerate(places):
        out = one(out, kind, None if s is None else s[k], place, norm)
    return out


def dctn(
    x: Any,
    type: int = 2,  # noqa: A002 - SciPy's name
    s: Sequence[int] | None = None,
    axes: Any = None,
    norm: str | None = None,
) -> Array:
    """Return the cosine transform over several axes, by default all.

    >>> from gtrace.scipy.fft import dctn
    >>> dctn(gt.ones((2, 2)))[0, 0].item()
    16.0
    """
    return _all_axes("dctn", dct, x, type, s, axes, norm)


def idctn(
    x: Any,
    type: int = 2,  # noqa: A002 - SciPy's name
    s: Sequence[int] | None = None,
    axes: Any = None,
    norm: str | None = None,
) -> Array:
    """Return the inverse of `dctn`.

    >>> from gtrace.scipy.fft import dctn, idctn
    >>> gt.round(idctn(dctn(gt.ones((2, 2)))), 4)[0, 0].item()
    1.0
    """
    return _all_axes("idctn", idct, x, type, s, axes, norm)
