"""Discrete Fourier transforms, as in ``numpy.fft``. The functions are torch's, and so are their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.docstrings import with_example
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.operands import cast, promote_arrays
from gtrace.core.ops.shape import as_int
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import as_dtype, default_dtype
from gtrace.interop.aten import fourier
from gtrace.interop.torch_functions import call_torch

__all__ = [
    "fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "rfft", "irfft", "rfft2", "irfft2", "rfftn", "irfftn", "hfft",
    "ihfft", "fftfreq", "rfftfreq", "fftshift", "ifftshift",
]  # fmt: skip

_EXAMPLES = """
>>> gt.fft.fft(gt.array([1., 2., 3., 4.])).real
Array([10., -2., -2., -2.], dtype=float32)
>>> gt.fft.ifft(gt.array([10., -2. + 2j, -2., -2. - 2j])).real
Array([1., 2., 3., 4.], dtype=float32)
>>> gt.fft.rfft(gt.array([1., 2., 3., 4.])).real
Array([10., -2., -2.], dtype=float32)
>>> gt.fft.irfft(gt.array([10., -2. + 2j, -2.]))
Array([1., 2., 3., 4.], dtype=float32)
>>> gt.fft.hfft(gt.array([1., 2., 4.]))
Array([ 9., -3.,  1., -3.], dtype=float32)
>>> gt.fft.ihfft(gt.array([9., -3., 1., -3.])).real
Array([1., 2., 4.], dtype=float32)
>>> gt.fft.fft2(gt.array([[1., 2.], [3., 5.]])).real
Array([[11., -3.],
       [-5.,  1.]], dtype=float32)
>>> gt.fft.ifft2(gt.array([[11., -3.], [-5., 1.]])).real
Array([[1., 2.],
       [3., 5.]], dtype=float32)
>>> gt.fft.rfft2(gt.array([[1., 2.], [3., 5.]])).real
Array([[11., -3.],
       [-5.,  1.]], dtype=float32)
>>> gt.fft.irfft2(gt.array([[11., -3.], [-5., 1.]]))
Array([[1., 2.],
       [3., 5.]], dtype=float32)
>>> gt.fft.fftn(gt.array([[1., 2.], [3., 5.]]), axes=(0,)).real
Array([[ 4.,  7.],
       [-2., -3.]], dtype=float32)
>>> gt.fft.ifftn(gt.array([[4., 7.], [-2., -3.]]), axes=(0,)).real
Array([[1., 2.],
       [3., 5.]], dtype=float32)
>>> gt.fft.rfftn(gt.array([[1., 2.], [3., 5.]])).real
Array([[11., -3.],
       [-5.,  1.]], dtype=float32)
>>> gt.fft.irfftn(gt.array([[11., -3.], [-5., 1.]]))
Array([[1., 2.],
       [3., 5.]], dtype=float32)
"""

_NORMS = ("backward", "ortho", "forward")


def _one(name: str, function: Any, doc: str) -> Any:
    def transform(x: Any, /, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
        x = _operand(name, x)
        return _computed(name, function, x, [axis], n, axis, _norm(name, norm))

    return _named(transform, name, f"{doc}, of `n` elements along `axis`")


def _several(name: str, function: Any, doc: str, last_two: bool) -> Any:
    def transform(
        x: Any, /, s: Any = None, axes: Any = (-2, -1) if last_two else None, norm: str | None = None
    ) -> Array:
        sizes = None if s is None else tuple(s)
        places = None if axes is None else tuple(axes)
        x = _operand(name, x)
        used = range(-len(sizes), 0) if places is None and sizes is not None else places
        return _computed(name, function, x, range(x.ndim) if used is None else used, sizes, places, _norm(name, norm))

    where = "the last two axes" if last_two else "`axes` (None: all)"
    return _named(transform, name, f"{doc}, over {where}, of sizes `s`")


def _computed(name: str, function: Any, x: Array, axes: Sequence[int], *args: Any) -> Array:
    """Record a transform over `axes`; torch computes none of no arrays."""
    batch = [k for k, n in enumerate(x.shape) if n == 0 and k not in axes and k - x.ndim not in axes]
    if not batch:
        found: Array | None = fourier.transform(name, x, *args)
        return call_torch(name, function, x, *args) if found is None else found
    one = ops.zeros([1 if k in batch else n for k, n in enumerate(x.shape)], x.dtype, device=x.aval.device)
    out: Array = call_torch(name, function, one, *args)
    return out[tuple(slice(0, 0) if k in batch else slice(None) for k in range(x.ndim))]


def _named(function: Any, name: str, doc: str) -> Any:
    function.__name__ = function.__qualname__ = name
    doc = (
        f"Return the {doc}.\n\n    The axes are cut or padded with zeros to the sizes. `norm` says which direction is"
        ' divided by the number\n    of elements: "backward" (the default), "forward", or both by its root, "ortho".'
        "\n\n    Raises:\n        ArgumentError: sizes, axes or a norm that do not fit.\n    "
    )  # fmt: skip
    function.__doc__ = with_example(doc, name, _EXAMPLES)
    return function


def _operand(name: str, x: Any) -> Array:
    (x,) = promote_arrays(name, x, floating=True)
    return cast(x, torch.float32) if x.aval.dtype in (torch.float16, torch.bfloat16) else x  # torch has none of 16 bits


def _norm(name: str, norm: str | None) -> str:
    if norm not in (None, *_NORMS):
        raise ArgumentError(message(name, f"one of {', '.join(_NORMS)} as norm", repr(norm), "Pass one of them."))
    return norm or "backward"


fft = _one("fft", torch.fft.fft, "Fourier transform")
ifft = _one("ifft", torch.fft.ifft, "inverse Fourier transform")
rfft = _one("rfft", torch.fft.rfft, "Fourier transform of real x without its redundant half")
irfft = _one("irfft", torch.fft.irfft, "inverse of `rfft`, real")
hfft = _one("hfft", torch.fft.hfft, "Fourier transform, real, of a half that a conjugate symmetric other half follows")
ihfft = _one("ihfft", torch.fft.ihfft, "inverse of `hfft`")
fft2 = _several("fft2", torch.fft.fft2, "Fourier transform", True)
ifft2 = _several("ifft2", torch.fft.ifft2, "inverse Fourier transform", True)
rfft2 = _several("rfft2", torch.fft.rfft2, "Fourier transform of real x without its redundant half", True)
irfft2 = _several("irfft2", torch.fft.irfft2, "inverse of `rfft2`, real", True)
fftn = _several("fftn", torch.fft.fftn, "Fourier transform", False)
ifftn = _several("ifftn", torch.fft.ifftn, "inverse Fourier transform", False)
rfftn = _several("rfftn", torch.fft.rfftn, "Fourier transform of real x without its redundant half", False)
irfftn = _several("irfftn", torch.fft.irfftn, "inverse of `rfftn`, real", False)


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of the elements of ``fft`` for samples at distance `d`: 0, 1, ..., -1, over n * d.

    >>> gt.fft.fftfreq(4)
    Array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    n = as_int("fftfreq", "n", n)
    half = (n + 1) // 2
    counts = ops.concat([ops.arange(0, half, device=device), ops.arange(-(n // 2), 0, device=device)])
    return _frequencies(counts, n * d, dtype)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of the elements of ``rfft`` for samples at distance `d`.

    >>> gt.fft.rfftfreq(4)
    Array([0.  , 0.25, 0.5 ], dtype=float32)
    """
    n = as_int("rfftfreq", "n", n)
    return _frequencies(ops.arange(0, n // 2 + 1, device=device), n * d, dtype)


def _frequencies(counts: Array, total: Any, dtype: Any) -> Array:
    """Return counts / total, rounded once: the dtype of the result may be unable to hold either."""
    kind = default_dtype(float) if dtype is None else as_dtype(dtype)
    return cast(ops.divide(cast(counts, torch.float64), total), kind)


def _shifted(name: str, x: Any, axes: int | Sequence[int] | None, back: bool) -> Array:
    x = lift(name, x)
    places = range(x.ndim) if axes is None else axes if isinstance(axes, (tuple, list)) else [axes]
    return ops.roll(x, [-(x.shape[k] // 2) if back else x.shape[k] // 2 for k in places], list(places))


def fftshift(x: Any, /, axes: int | Sequence[int] | None = None) -> Array:
    """Return x with the zero frequency moved to the middle of `axes` (None: all).

    >>> gt.fft.fftshift(gt.fft.fftfreq(4))
    Array([-0.5 , -0.25,  0.  ,  0.25], dtype=float32)
    """
    return _shifted("fftshift", x, axes, back=False)


def ifftshift(x: Any, /, axes: int | Sequence[int] | None = None) -> Array:
    """Return x with the middle of `axes` moved to the front: the inverse of `fftshift`.

    >>> gt.fft.ifftshift(gt.array([3., 1., 2.]))
    Array([1., 2., 3.], dtype=float32)
    """
    return _shifted("ifftshift", x, axes, back=True)
