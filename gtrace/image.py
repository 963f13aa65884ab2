"""Images of other sizes: resampling with a separable kernel, as in ``jax.image``."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from gtrace.errors import ArgumentError, ShapeError, message
from gtrace.ops.create import arange
from gtrace.ops.elementwise import absolute, floor, maximum, minimum, sin
from gtrace.ops.index import take
from gtrace.ops.linalg import tensordot
from gtrace.ops.logic import logical_and, where
from gtrace.ops.promote import as_arrays, cast
from gtrace.ops.reduce import sum as sum_over
from gtrace.ops.shape import as_shape, expand_dims, moveaxis
from gtrace.trace.array import Array
from gtrace.trace.convert import lift

__all__ = ["ResizeMethod", "resize"]

PI = 3.141592653589793


class ResizeMethod(enum.Enum):
    """The kernels of `resize`."""

    NEAREST = "nearest"
    LINEAR = "linear"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    CUBIC = "cubic"
    CUBIC_PYTORCH = "cubic_pytorch"

    @classmethod
    def from_string(cls, name: str) -> ResizeMethod:
        """Return the method that a name stands for.

        Raises:
            ArgumentError: none.
        """
        alias = {"bilinear": "linear", "trilinear": "linear", "triangle": "linear", "bicubic": "cubic"}
        try:
            return cls(alias.get(name, name))
        except ValueError:
            known = ", ".join(method.value for method in cls)
            raise ArgumentError(message("resize", f"a method among {known}", repr(name), "Name one.")) from None


def _triangle(x: Array) -> Array:
    return maximum(1 - absolute(x), 0)


def _cubic(a: float) -> Callable[[Array], Array]:
    """The kernel of Keys (1981) with parameter `a`."""

    def kernel(x: Array) -> Array:
        x = absolute(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return where(x >= 2, 0.0, where(x >= 1, far, near))

    return kernel


def _lanczos(radius: float) -> Callable[[Array], Array]:
    def kernel(x: Array) -> Array:
        safe = where(absolute(x) > 1e-3, x, 1.0)
        value = radius * sin(PI * safe) * sin(PI * safe / radius) / (PI * PI * safe * safe)
        return where(absolute(x) > radius, 0.0, where(absolute(x) > 1e-3, value, 1.0))

    return kernel


_KERNELS: dict[ResizeMethod, Callable[[Array], Array]] = {
    ResizeMethod.LINEAR: _triangle,
    ResizeMethod.LANCZOS3: _lanczos(3.0),
    ResizeMethod.LANCZOS5: _lanczos(5.0),
    ResizeMethod.CUBIC: _cubic(-0.5),
    ResizeMethod.CUBIC_PYTORCH: _cubic(-0.75),
}


def _weights(before: int, after: int, kernel: Callable[[Array], Array], antialias: bool, like: Array) -> Array:
    """Return the matrix from the elements of an axis to those of the resized axis; its columns sum to 1."""
    ratio = before / after
    width = max(ratio, 1.0) if antialias else 1.0
    centers = (cast(arange(after, device=like.device), like.aval.dtype) + 0.5) * ratio - 0.5
    places = cast(arange(before, device=like.device), like.aval.dtype)
    weights = kernel((expand_dims(centers, 0) - expand_dims(places, 1)) / width)
    total = sum_over(weights, 0, keepdims=True)
    weights = where(absolute(total) > 1000 * 1.2e-7, weights / where(total != 0, total, 1.0), 0.0)
    inside = logical_and(centers >= -0.5, centers <= before - 0.5)
    return where(expand_dims(inside, 0), weights, 0.0)


def resize(
    image: Any, shape: Sequence[int], method: str | ResizeMethod, antialias: bool = True, precision: Any = None
) -> Array:
    """Return an image of another size; every axis is resized separately.

    Args:
        image: of any number of axes, batch and channels among them.
        shape: of the result; axes whose size stays are left as they are.
        method: "nearest", "linear" (also "bilinear"), "cubic" (also "bicubic"), "lanczos3", "lanczos5",
            "cubic_pytorch", or a `ResizeMethod`.
        antialias: widen the kernel where an axis gets shorter.
        precision: ignored; products are computed in the dtype of the image.

    Raises:
        ShapeError: another number of axes.
        ArgumentError: an unknown method.

    >>> import gtrace as gt
    >>> gt.image.resize(gt.array([0., 2.]), (4,), "linear")
    Array([0. , 0.5, 1.5, 2. ], dtype=float32)
    """
    sizes = as_shape("resize", shape)
    x = lift("resize", image)
    if len(sizes) != x.ndim:
        got = f"{sizes} for {x.aval!r}"
        raise ShapeError(message("resize", "a size for each axis", got, "Give the axes that stay, too."))
    chosen = method if isinstance(method, ResizeMethod) else ResizeMethod.from_string(method)
    axes = [k for k, (a, b) in enumerate(zip(x.shape, sizes, strict=True)) if a != b]
    if chosen is ResizeMethod.NEAREST:
        for k in axes:
            half = (cast(arange(sizes[k], device=x.device), arange(1.0).aval.dtype) + 0.5) * (x.shape[k] / sizes[k])
            x = take(x, cast(minimum(floor(half), x.shape[k] - 1), arange(1).aval.dtype), k)
        return x
    (x,) = as_arrays("resize", x)
    for k in axes:
        weights = _weights(x.shape[k], sizes[k], _KERNELS[chosen], bool(antialias), x)
        x = moveaxis(tensordot(x, weights, ((k,), (0,))), -1, k)
    return x
