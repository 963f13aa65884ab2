"""Initial values of parameters: functions ``init(key, shape, dtype)``, as in jax.nn.initializers.

`zeros` and `ones` are such functions; the others return one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.extend import (
    COMPLEX,
    ArgumentError,
    Array,
    DtypeError,
    ShapeError,
    as_dtype,
    as_sizes,
    cast,
    constructor,
    default_dtype,
    lift,
    message,
    normalize_axis,
    ops,
    python_scalar,
)
from gtrace.nn.common import check_number
from gtrace.random import continuous as draws
from gtrace.random.keys import fresh_key, two_keys
from gtrace.random.matrices import orthogonal as draw_orthogonal

__all__ = [
    "constant", "delta_orthogonal", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "kaiming_normal",
    "kaiming_uniform", "lecun_normal", "lecun_uniform", "normal", "ones", "orthogonal", "truncated_normal", "uniform",
    "variance_scaling", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip

Initializer = Callable[..., Array]
"""(key, shape, dtype=None) -> Array. The default dtype is the initializer's, or float32."""


def _with_default(dtype: Any, init: Callable[[Any, Any, Any], Array]) -> Initializer:
    """Return a function of (key, shape, dtype) as an initializer with a default dtype."""
    own = dtype
    return lambda key, shape, dtype=None: init(key, shape, own if dtype is None else dtype)


def _times(draw: Array, factor: Any) -> Array:
    """Return a draw times a factor, which may be an array of another dtype.

    Raises:
        DtypeError: a complex factor of real numbers.
    """
    known = lift("initializer", factor).aval
    if known.complex and not draw.aval.complex:
        raise DtypeError(message("initializer", "a real factor of real numbers", repr(factor), "Pass a complex dtype."))
    return draw * (factor if python_scalar(factor) is not None else cast(ops.array(factor), draw.aval.dtype))


def zeros(key: Any, shape: Any, dtype: Any = None) -> Array:
    """Return zeros; the key is unused.

    >>> gt.nn.initializers.zeros(gt.random.key(0), (2,))
    Array([0., 0.], dtype=float32)
    """
    return ops.full(shape, 0, default_dtype(float) if dtype is None else dtype)


def ones(key: Any, shape: Any, dtype: Any = None) -> Array:
    """Return ones; the key is unused.

    >>> gt.nn.initializers.ones(gt.random.key(0), (2,))
    Array([1., 1.], dtype=float32)
    """
    return ops.full(shape, 1, default_dtype(float) if dtype is None else dtype)


@constructor
def constant(value: Any, dtype: Any = None) -> Initializer:
    """Return an initializer that fills an array with a number, or an array that broadcasts.

    >>> gt.nn.initializers.constant(2.0)(gt.random.key(0), (2,))
    Array([2., 2.], dtype=float32)
    """
    return _with_default(
        dtype, lambda _, shape, kind: ops.full(shape, value, default_dtype(float) if kind is None else kind)
    )


@constructor
def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Return an initializer that samples uniformly from [0, scale).

    >>> gt.nn.initializers.uniform(1.0)(gt.random.key(0), (2,))
    Array([0.947667 , 0.9785799], dtype=float32)
    """
    return _with_default(dtype, lambda key, shape, kind: _times(draws.uniform(key, shape, kind), scale))


@constructor
def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Return an initializer that samples from the normal distribution with mean 0.

    >>> gt.round(gt.nn.initializers.normal(1.0)(gt.random.key(0), (2,)), 4)
    Array([1.6226, 2.0253], dtype=float32)
    """
    return _with_default(dtype, lambda key, shape, kind: _times(draws.normal(key, shape, kind), stddev))


@constructor
def truncated_normal(stddev: Any = 1e-2, dtype: Any = None, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """Return an initializer that samples standard normal numbers inside (lower, upper), times stddev.

    >>> bool((abs(gt.nn.initializers.truncated_normal(1.0)(gt.random.key(0), (50,))) < 2.0).all())
    True
    """
    return _with_default(
        dtype, lambda key, shape, kind: _times(draws.truncated_normal(key, lower, upper, shape, kind), stddev)
    )


_MODES = ("fan_in", "fan_out", "fan_avg", "fan_geo_avg")
_DISTRIBUTIONS = ("truncated_normal", "normal", "uniform")
_TRUNCATED_STDDEV = 0.87962566103423978  # of a standard normal number inside (-2, 2)
_TRUNCATED_COMPLEX_STDDEV = 0.95311164380491208  # of a complex one of variance 1, of an absolute value below 2


@constructor
def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: int | Sequence[int] = -2,
    out_axis: int | Sequence[int] = -1,
    batch_axis: int | Sequence[int] = (),
    dtype: Any = None,
) -> Initializer:
    """Return an initializer with mean 0 and variance scale / n.

    n is the number of inputs of a unit (`mode` "fan_in"), of outputs ("fan_out"), their mean ("fan_avg") or the root of
    their product ("fan_geo_avg"). Other axes are the receptive field, which multiplies both numbers. Complex numbers
    are drawn from a disk: uniformly, or from a normal distribution that is truncated at an absolute value of 2.

    Args:
        scale: at least 0.
        mode: "fan_in", "fan_out", "fan_avg" or "fan_geo_avg".
        distribution: "truncated_normal", "normal" or "uniform".
        in_axis, out_axis, batch_axis: an axis of the weights, or several.
        dtype: the initializer's default, floating or complex.

    Raises:
        ArgumentError: the mode or distribution is unknown, or the scale is negative.
        ShapeError: (when called) the shape lacks the axes.

    >>> init = gt.nn.initializers.variance_scaling(2.0, "fan_in", "normal")
    >>> round(float(init(gt.random.key(0), (200, 100)).std()), 2)
    0.1
    """
    factor = check_number("variance_scaling", "scale", scale, 0.0)
    for what, value, known in (("mode", mode, _MODES), ("distribution", distribution, _DISTRIBUTIONS)):
        if value not in known:
            expected = f"a {what} among {', '.join(known)}"
            raise ArgumentError(message("variance_scaling", expected, repr(value), "Use one of them."))

    def init(key: Any, shape: Any, dtype: Any) -> Array:
        sizes = as_sizes("variance_scaling", shape)
        inputs, outputs = _fans(sizes, in_axis, out_axis, batch_axis)
        averages = {"fan_avg": (inputs + outputs) / 2, "fan_geo_avg": math.sqrt(inputs * outputs)}
        count = {"fan_in": inputs, "fan_out": outputs, **averages}[mode]
        stddev = math.sqrt(factor / count) if count else 0.0
        is_complex = dtype is not None and as_dtype(dtype) in COMPLEX
        if distribution == "normal":
            return draws.normal(key, sizes, dtype) * stddev
        if distribution == "uniform":
            if is_complex:
                return _in_disk(key, sizes, as_dtype(dtype), lambda u: ops.sqrt(2.0 * u)) * stddev
            return draws.uniform(key, sizes, dtype, -1.0, 1.0) * (math.sqrt(3.0) * stddev)
        if is_complex:
            inside = -math.expm1(-4.0)  # the probability of an absolute value below 2
            drawn = _in_disk(key, sizes, as_dtype(dtype), lambda u: ops.sqrt(-ops.log1p(-inside * u)))
            return drawn * (stddev / _TRUNCATED_COMPLEX_STDDEV)
        return draws.truncated_normal(key, -2.0, 2.0, sizes, dtype) * (stddev / _TRUNCATED_STDDEV)

    return _with_default(dtype, init)


def _in_disk(key: Any, shape: tuple[int, ...], dtype: torch.dtype, radius: Callable[[Array], Array]) -> Array:
    """Return complex numbers whose absolute values are a function of uniform numbers, at uniform angles."""
    first, second = two_keys(fresh_key("variance_scaling", key))
    of_radius, of_angle = (draws.draw_unit(k, shape, dtype.to_real()) for k in (first, second))
    size, angle = radius(of_radius), 2 * math.pi * of_angle
    return ops.complex(size * ops.cos(angle), size * ops.sin(angle))


def _fans(shape: tuple[int, ...], in_axis: Any, out_axis: Any, batch_axis: Any) -> tuple[float, float]:
    """Return the numbers of inputs and outputs of a unit with weights of this shape."""
    if len(shape) < 2 and in_axis == -2:
        fix = "Name the axes, as in in_axis=[], or use initializers.normal or zeros."
        raise ShapeError(message("variance_scaling", "a shape of at least two axes", str(shape), fix))

    def product(axis: Any) -> int:
        axes = axis if isinstance(axis, (tuple, list)) else (axis,)
        return math.prod(shape[normalize_axis("variance_scaling", a, len(shape))] for a in axes)

    inputs, outputs, batch = product(in_axis), product(out_axis), product(batch_axis)
    if not math.prod(shape):
        return 0.0, 0.0
    field = math.prod(shape) / (inputs * outputs * batch)
    return inputs * field, outputs * field


def _named(name: str, scale: float, mode: str, distribution: str, source: str) -> Callable[..., Initializer]:
    """Return `variance_scaling` of some arguments as a function of this name."""

    def make(in_axis: Any = -2, out_axis: Any = -1, batch_axis: Any = (), dtype: Any = None) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""Return a `variance_scaling` of {scale:g}, "{mode}", "{distribution}" ({source}).

    >>> gt.nn.initializers.{name}()(gt.random.key(0), (3, 2)).shape
    (3, 2)
    """
    return constructor(make)


_GLOROT, _LECUN, _HE = "Glorot and Bengio, 2010", "LeCun et al., 1998", "He et al., 2015"

glorot_uniform = xavier_uniform = _named("glorot_uniform", 1.0, "fan_avg", "uniform", _GLOROT)
glorot_normal = xavier_normal = _named("glorot_normal", 1.0, "fan_avg", "truncated_normal", _GLOROT)
lecun_uniform = _named("lecun_uniform", 1.0, "fan_in", "uniform", _LECUN)
lecun_normal = _named("lecun_normal", 1.0, "fan_in", "truncated_normal", _LECUN)
he_uniform = kaiming_uniform = _named("he_uniform", 2.0, "fan_in", "uniform", _HE)
he_normal = kaiming_normal = _named("he_normal", 2.0, "fan_in", "truncated_normal", _HE)


@constructor
def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """Return an initializer that samples orthogonal matrices, times scale (Saxe et al., 2014).

    Args:
        column_axis: the axis of the columns; all other axes together are the rows. The fewer of the two are
            orthonormal.

    Raises (when called):
        ShapeError: the shape has fewer than two axes.

    >>> w = gt.nn.initializers.orthogonal(2.0)(gt.random.key(0), (3, 2))
    >>> gt.round(abs(w.T @ w), 4)
    Array([[4., 0.],
           [0., 4.]], dtype=float32)
    """

    def init(key: Any, shape: Any, dtype: Any) -> Array:
        sizes = as_sizes("orthogonal", shape)
        if len(sizes) < 2:
            raise ShapeError(
                message("orthogonal", "a shape of at least two axes", str(sizes), "Use initializers.normal.")
            )
        axis = normalize_axis("orthogonal", column_axis, len(sizes))
        others = sizes[:axis] + sizes[axis + 1 :]
        matrix = draw_orthogonal(key, math.prod(others), (), dtype, sizes[axis])
        return _times(ops.moveaxis(ops.reshape(matrix, (*others, sizes[axis])), -1, axis), scale)

    return _with_default(dtype, init)


@constructor
def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """Return an initializer of norm-preserving convolutions, (*window, in, out) (Xiao et al., 2018).

    The weights are zeros, except for an `orthogonal` matrix in the middle of the window.

    Raises (when called):
        ShapeError: the window does not have one to three axes, or there are fewer outputs than inputs.

    >>> w = gt.nn.initializers.delta_orthogonal()(gt.random.key(0), (3, 2, 4))
    >>> gt.round(abs(w[1] @ w[1].T), 4)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    inner = orthogonal(scale, column_axis, dtype)

    def init(key: Any, shape: Any, dtype: Any = None) -> Array:
        sizes = as_sizes("delta_orthogonal", shape)
        if not 3 <= len(sizes) <= 5 or sizes[-1] < sizes[-2]:
            expected = "a shape (*window, in, out) with one to three axes of a window, and in <= out"
            raise ShapeError(message("delta_orthogonal", expected, str(sizes), "Use initializers.orthogonal."))
        matrix = inner(key, sizes[-2:], dtype)
        middle = tuple((n - 1) // 2 for n in sizes[:-2])
        return ops.zeros(sizes, dtype=matrix.aval.dtype, device=matrix.aval.device).at[middle].set(matrix)

    return init
