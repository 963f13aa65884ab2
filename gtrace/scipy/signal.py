"""Convolutions and correlations of any number of dimensions, under SciPy's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gtrace.extend import ArgumentError, Array, ShapeError, message, normalize_axes, ops, promote_arrays
from gtrace.nn.convolution import conv
from gtrace.numpy import fft

__all__ = ["convolve", "convolve2d", "correlate", "correlate2d", "fftconvolve"]

MODES = ("full", "same", "valid")


def _operands(name: str, in1: Any, in2: Any, mode: str, axes: Sequence[int] | None = None) -> tuple[Array, Array]:
    """Return the operands, the larger one along `axes` (None: all) first, if the mode is "valid"."""
    x, y = promote_arrays(name, in1, in2, floating=True)
    if mode not in MODES:
        raise ArgumentError(message(name, "full, same or valid as mode", repr(mode), "Pass one of them."))
    if x.ndim != y.ndim or not x.ndim:
        raise ShapeError(message(name, "arrays of equally many axes", f"{x.aval!r} and {y.aval!r}", "Reshape one."))
    sizes = [(x.shape[k], y.shape[k]) for k in (range(x.ndim) if axes is None else axes)]
    if mode == "valid" and any(a < b for a, b in sizes):
        if any(a > b for a, b in sizes):
            got = f"{x.aval!r} and {y.aval!r}"
            raise ShapeError(message(name, "one array at least as large along each axis", got, "Use another mode."))
        x, y = y, x
    return x, y


def _cut(full: Array, x: Array, y: Array, mode: str, axes: Sequence[int]) -> Array:
    """Return the part of a full convolution along `axes` that a mode asks for."""
    if mode == "full":
        return full
    places = [slice(None)] * x.ndim
    for k in axes:
        n, m = x.shape[k], y.shape[k]
        places[k] = slice((m - 1) // 2, (m - 1) // 2 + n) if mode == "same" else slice(m - 1, n)
    return full[tuple(places)]


def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Array:
    """Return the convolution of two arrays of one to three dimensions.

    Args:
        mode: "full": wherever they overlap; "same": as many places as `in1` has, in the middle; "valid": where one
            lies within the other.
        method: "fft": by Fourier transforms; else directly.

    Raises:
        ShapeError: arrays of different numbers of axes, or more than three.
        ArgumentError: another mode.

    >>> from gtrace.scipy.signal import convolve
    >>> convolve(gt.ones((2, 2)), gt.ones((1, 2)))
    Array([[1., 2., 1.],
           [1., 2., 1.]], dtype=float32)
    """
    if method == "fft":
        return fftconvolve(in1, in2, mode)
    x, y = _operands("convolve", in1, in2, mode)
    if x.ndim > 3:
        raise ShapeError(message("convolve", "at most three axes", repr(x.aval), 'Pass method="fft".'))
    kernel = ops.flip(y)
    padding = tuple(n - 1 for n in y.shape)
    out = conv(ops.reshape(x, (1, 1, *x.shape)), ops.reshape(kernel, (1, 1, *y.shape)), padding=padding)
    return _cut(ops.reshape(out, out.shape[2:]), x, y, mode, range(x.ndim))


def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Array:
    """Return the cross-correlation of two arrays: the convolution with `in2` reversed, and conjugated; see `convolve`.

    >>> from gtrace.scipy.signal import correlate
    >>> correlate(gt.array([1., 2., 3.]), gt.array([0., 1.]), mode="valid")
    Array([2., 3.], dtype=float32)
    """
    x, y = promote_arrays("correlate", in1, in2, floating=True)
    return convolve(x, ops.flip(ops.conj(y) if y.aval.complex else y), mode, method)


def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> Array:
    """Return the convolution of two arrays, computed by Fourier transforms; see `convolve`.

    Args:
        axes: those to convolve along, an int or several; None: all. Others broadcast.

    >>> from gtrace.scipy.signal import fftconvolve
    >>> gt.round(fftconvolve(gt.array([1., 2.]), gt.array([1., 1.])), 3)
    Array([1., 3., 2.], dtype=float32)
    """
    (like,) = promote_arrays("fftconvolve", in1)
    places = normalize_axes("fftconvolve", axes, like.ndim)
    x, y = _operands("fftconvolve", in1, in2, mode, places)
    sizes = tuple(x.shape[k] + y.shape[k] - 1 for k in places)
    if x.aval.complex:
        full = fft.ifftn(ops.multiply(fft.fftn(x, sizes, places), fft.fftn(y, sizes, places)), sizes, places)
    else:
        full = ops.real(
            fft.irfftn(ops.multiply(fft.rfftn(x, sizes, places), fft.rfftn(y, sizes, places)), sizes, places)
        )
    return _cut(full, x, y, mode, places)


def _flat(name: str, in1: Any, in2: Any, boundary: str, fillvalue: float) -> tuple[Array, Array]:
    if boundary != "fill" or fillvalue != 0:
        got = f"{boundary!r} and {fillvalue!r}"
        raise ArgumentError(message(name, "zeros around the image", got, "Pad it with gt.pad first."))
    x, y = promote_arrays(name, in1, in2)
    if x.ndim != 2 or y.ndim != 2:
        raise ShapeError(message(name, "matrices", f"{x.aval!r} and {y.aval!r}", "Use convolve."))
    return x, y


def convolve2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0) -> Array:
    """Return `convolve` of matrices, with zeros around them."""
    _flat("convolve2d", in1, in2, boundary, fillvalue)
    return convolve(in1, in2, mode)


def correlate2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0) -> Array:
    """Return `correlate` of matrices, with zeros around them.

    As in SciPy, "same" takes the later one of two places in the middle, and "valid" conjugates the smaller matrix.

    >>> from gtrace.scipy.signal import correlate2d
    >>> correlate2d(gt.array([[1., 2., 3.]]), gt.array([[1., 10.]]), mode="same")
    Array([[21., 32.,  3.]], dtype=float32)
    """
    x, y = _flat("correlate2d", in1, in2, boundary, fillvalue)
    if mode == "same":
        return ops.flip(convolve(ops.flip(x), ops.conj(y), mode))
    if mode == "valid" and x.shape != y.shape and all(a <= b for a, b in zip(x.shape, y.shape, strict=True)):
        return ops.flip(correlate(y, x, mode))
    return correlate(x, y, mode)
