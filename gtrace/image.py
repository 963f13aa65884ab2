"""Images of other sizes: resampling with a separable kernel, as in ``jax.image``."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from gtrace.extend import (
    ArgumentError,
    Array,
    ShapeError,
    as_arrays,
    as_shape,
    cast,
    lift,
    message,
    normalize_axis,
    ops,
)

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]

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
        alias = {
            **dict.fromkeys(["bilinear", "trilinear", "triangle"], "linear"),
            **dict.fromkeys(["bicubic", "tricubic"], "cubic"),
            **dict.fromkeys(["cubic-pytorch", "bicubic-pytorch"], "cubic_pytorch"),
        }
        try:
            return cls(alias.get(name, name))
        except ValueError:
            known = ", ".join(method.value for method in cls)
            raise ArgumentError(message("resize", f"a method among {known}", repr(name), "Name one.")) from None


def _triangle(x: Array) -> Array:
    return ops.maximum(1 - ops.absolute(x), 0)


def _cubic(a: float) -> Callable[[Array], Array]:
    """The kernel of Keys (1981) with parameter `a`."""

    def kernel(x: Array) -> Array:
        x = ops.absolute(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return ops.where(x >= 2, 0.0, ops.where(x >= 1, far, near))

    return kernel


def _lanczos(radius: float) -> Callable[[Array], Array]:
    def kernel(x: Array) -> Array:
        safe = ops.where(ops.absolute(x) > 1e-3, x, 1.0)
        value = radius * ops.sin(PI * safe) * ops.sin(PI * safe / radius) / (PI * PI * safe * safe)
        return ops.where(ops.absolute(x) > radius, 0.0, ops.where(ops.absolute(x) > 1e-3, value, 1.0))

    return kernel


_KERNELS: dict[ResizeMethod, Callable[[Array], Array]] = {
    ResizeMethod.LINEAR: _triangle,
    ResizeMethod.LANCZOS3: _lanczos(3.0),
    ResizeMethod.LANCZOS5: _lanczos(5.0),
    ResizeMethod.CUBIC: _cubic(-0.5),
    ResizeMethod.CUBIC_PYTORCH: _cubic(-0.75),
}


def _weights(
    before: int, after: int, ratio: Any, offset: Any, method: ResizeMethod, antialias: bool, like: Array
) -> Array:
    """Return the matrix from the elements of an axis to those of the resized axis; its columns sum to 1.

    Args:
        ratio: elements of the axis for one of the resized axis.
        offset: where the resized axis begins, in elements of the axis.
    """
    if method is ResizeMethod.CUBIC_PYTORCH and antialias:
        method = ResizeMethod.CUBIC
    kernel = _KERNELS[method]
    # repetitions of the first and of the last element
    beyond = 2 if method is ResizeMethod.CUBIC_PYTORCH and before else 0
    kind = ops.real(like).aval.dtype
    width: Any = (ops.maximum(ratio, 1.0) if isinstance(ratio, Array) else max(ratio, 1.0)) if antialias else 1.0
    centers = (cast(ops.arange(after, device=like.aval.device), kind) + 0.5) * ratio + (offset - 0.5)
    places = cast(ops.arange(-beyond, before + beyond, device=like.aval.device), kind)
    weights = kernel((ops.expand_dims(centers, 0) - ops.expand_dims(places, 1)) / width)
    total = ops.sum(weights, 0, keepdims=True)
    weights = ops.where(ops.absolute(total) > 1000 * 1.2e-7, weights / ops.where(total != 0, total, 1.0), 0.0)
    if beyond:
        ends = ops.clip(ops.arange(-beyond, before + beyond, device=like.aval.device), 0, before - 1)
        weights = ops.zeros((before, after), kind, device=like.aval.device).at[ends].add(weights)
    inside = ops.logical_and(centers >= -0.5, centers <= before - 0.5)
    return ops.where(ops.expand_dims(inside, 0), weights, 0.0)


def resize(
    image: Any, shape: Sequence[int], method: str | ResizeMethod, antialias: bool = True, precision: Any = None
) -> Array:
    """Return an image of another size; every axis is resized separately. One without elements becomes one of zeros.

    Args:
        image: of any number of axes, batch and channels among them.
        shape: of the result; axes whose size stays are left as they are.
        method: "nearest", "linear" (also "bilinear"), "cubic" (also "bicubic"), "lanczos3", "lanczos5",
            "cubic_pytorch" (also "bicubic-pytorch"), or a `ResizeMethod`. The last is torch's: "cubic" where
            `antialias` is set, else another kernel, for which the elements at the edges are repeated.
        antialias: widen the kernel where an axis gets shorter.
        precision: ignored; products are computed in the dtype of the image.

    Raises:
        ShapeError: another number of axes.
        ArgumentError: an unknown method.

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
    if chosen is not ResizeMethod.NEAREST:
        (x,) = as_arrays("resize", x)
    if 0 in (*x.shape, *sizes):
        return ops.zeros(sizes, x.aval.dtype, device=x.aval.device)
    for k in axes:
        if chosen is ResizeMethod.NEAREST:
            x = _nearest(x, sizes[k], k)
            continue
        weights = _weights(x.shape[k], sizes[k], x.shape[k] / sizes[k], 0.0, chosen, bool(antialias), x)
        x = ops.moveaxis(ops.tensordot(x, weights, ((k,), (0,))), -1, k)
    return x


def _nearest(x: Array, size: int, axis: int) -> Array:
    """Return an array whose axis has another size. Each element is the one nearest to its middle."""
    before = x.shape[axis]
    if size % before == 0:
        return ops.repeat(x, size // before, axis)
    if before % size == 0:
        step = before // size
        return x[(*[slice(None)] * axis, slice(step // 2, None, step))]
    half = (cast(ops.arange(size, device=x.aval.device), ops.arange(1.0).aval.dtype) + 0.5) * (before / size)
    return ops.take(x, cast(ops.minimum(ops.floor(half), before - 1), ops.arange(1).aval.dtype), axis)


def scale_and_translate(
    image: Any, shape: Sequence[int], spatial_dims: Sequence[int], scale: Any, translation: Any,
    method: str | ResizeMethod, antialias: bool = True, precision: Any = None,
) -> Array:  # fmt: skip
    """Return an image that is scaled and then moved along some axes; scales and moves may be traced.

    The element at x of the image is at ``x * scale + translation`` of the result. Elements have size 1, and the first
    begins at 0. Elements from outside the image are zeros.

    Args:
        image: of any number of axes.
        shape: of the result; axes that are not in `spatial_dims` keep their size.
        spatial_dims: the axes.
        scale, translation: vectors with an element for each of these axes.
        method: a kernel of `resize`, but not "nearest".
        antialias: widen the kernel where an axis is scaled down.
        precision: ignored.

    Raises:
        ShapeError: another number of axes, scales or moves.
        ArgumentError: an unknown method, or "nearest".

    >>> gt.image.scale_and_translate(gt.array([1., 2., 3.]), (3,), (0,), gt.array([1.]), gt.array([1.]), "linear")
    Array([0., 1., 2.], dtype=float32)
    """
    name = "scale_and_translate"
    sizes, dims = as_shape(name, shape), as_shape(name, spatial_dims)
    (x,) = as_arrays(name, image)
    scales, moves = lift(name, scale), lift(name, translation)
    if len(sizes) != x.ndim or not scales.shape == moves.shape == (len(dims),):
        got = f"{sizes}, {scales.aval!r} and {moves.aval!r} for {x.aval!r} along {dims}"
        raise ShapeError(message(name, "a size for each axis, and a scale and a move for each of dims", got, "Check."))
    chosen = method if isinstance(method, ResizeMethod) else ResizeMethod.from_string(method)
    if chosen is ResizeMethod.NEAREST:
        raise ArgumentError(message(name, "a kernel", "nearest", "Use linear, or resize."))
    scales, moves = (cast(given, ops.real(x).aval.dtype) for given in (scales, moves))
    for place, k in enumerate(dims):
        axis = normalize_axis(name, k, x.ndim)
        ratio = 1.0 / scales[place]
        weights = _weights(x.shape[axis], sizes[axis], ratio, -moves[place] * ratio, chosen, bool(antialias), x)
        x = ops.moveaxis(ops.tensordot(x, weights, ((axis,), (0,))), -1, axis)
    return x
