"""``jax.example_libraries.stax``: a layer is a pair of functions, of `gtrace.nn` and `gtrace.lax` here.

``init_fun(key, input_shape)`` returns the shape of the output and the parameters, and ``apply_fun(params, inputs,
rng=key)`` the output. Only layers that draw numbers need `rng`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gtrace.jax.lax as lax
import gtrace.jax.numpy as jnp
from gtrace.jax import nn, random
from gtrace.jax.nn import initializers

elu, gelu, leaky_relu, log_softmax, relu = nn.elu, nn.gelu, nn.leaky_relu, nn.log_softmax, nn.relu
selu, sigmoid, softmax, softplus, standardize = nn.selu, nn.sigmoid, nn.softmax, nn.softplus, nn.standardize
glorot_normal, normal = initializers.glorot_normal, initializers.normal
ones, zeros = initializers.ones, initializers.zeros
logsoftmax, randn, glorot = log_softmax, normal, glorot_normal

_GLOROT, _SMALL, _TINY = glorot_normal(), normal(), normal(1e-6)

Layer = tuple[Callable[..., Any], Callable[..., Any]]


def _without_parameters(shape: Callable[[Any], Any], apply_fun: Callable[..., Any]) -> Layer:
    """Return a layer from the shape of its output by that of its input, and a function of its inputs."""
    return lambda rng, input_shape: (shape(input_shape), ()), lambda params, inputs, **kwargs: apply_fun(inputs)


def _same(shape: Any) -> Any:
    return shape


def Dense(  # noqa: N802 - JAX's names, here and below
    out_dim: int,
    W_init: Any = _GLOROT,  # noqa: N803
    b_init: Any = _SMALL,
) -> Layer:
    """Return a layer that multiplies by a matrix, and adds a vector.

    >>> import gtrace.jax as jax
    >>> init_fun, apply_fun = Dense(2)
    >>> shape, params = init_fun(jax.random.PRNGKey(0), (-1, 3))
    >>> shape, apply_fun(params, jax.numpy.ones((4, 3))).shape
    ((-1, 2), (4, 2))
    """

    def init_fun(rng: Any, input_shape: Any) -> Any:
        w_key, b_key = random.split(rng)
        return (*input_shape[:-1], out_dim), (W_init(w_key, (input_shape[-1], out_dim)), b_init(b_key, (out_dim,)))

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        weights, bias = params
        return jnp.dot(inputs, weights) + bias

    return init_fun, apply_fun


def _convolution(
    dimension_numbers: Any, out_chan: int, filter_shape: Sequence[int], strides: Sequence[int] | None, padding: Any,
    W_init: Any, b_init: Any, shape_of: Callable[..., Any], convolve: Callable[..., Any],  # noqa: N803
) -> Layer:  # fmt: skip
    """Return a layer of a convolution, a function of jax.lax, with the one for the shape of its result."""
    steps = strides or (1,) * len(filter_shape)
    inputs_spec, weights_spec, out_spec = dimension_numbers
    draw = W_init or glorot_normal(weights_spec.index("I"), weights_spec.index("O"))

    def init_fun(rng: Any, input_shape: Any) -> Any:
        sizes = iter(filter_shape)
        channels = {"O": out_chan, "I": input_shape[inputs_spec.index("C")]}
        kernel = tuple(channels[axis] if axis in channels else next(sizes) for axis in weights_spec)
        bias = tuple(out_chan if axis == "C" else 1 for axis in out_spec)
        w_key, b_key = random.split(rng)
        shape = shape_of(input_shape, kernel, steps, padding, dimension_numbers)
        return shape, (draw(w_key, kernel), b_init(b_key, bias))

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        weights, bias = params
        return convolve(inputs, weights, steps, padding, dimension_numbers=dimension_numbers) + bias

    return init_fun, apply_fun


def GeneralConv(  # noqa: N802
    dimension_numbers: Any, out_chan: int, filter_shape: Sequence[int], strides: Sequence[int] | None = None,
    padding: Any = "VALID", W_init: Any = None, b_init: Any = _TINY,  # noqa: N803
) -> Layer:  # fmt: skip
    """Return a layer of a convolution, whose axes `dimension_numbers` names: ``("NHWC", "HWIO", "NHWC")``."""
    return _convolution(
        dimension_numbers, out_chan, filter_shape, strides, padding, W_init, b_init,
        lax.conv_general_shape_tuple, lax.conv_general_dilated,
    )  # fmt: skip


def GeneralConvTranspose(  # noqa: N802
    dimension_numbers: Any, out_chan: int, filter_shape: Sequence[int], strides: Sequence[int] | None = None,
    padding: Any = "VALID", W_init: Any = None, b_init: Any = _TINY,  # noqa: N803
) -> Layer:  # fmt: skip
    """Return a layer of a transposed convolution, as `GeneralConv`."""
    return _convolution(
        dimension_numbers, out_chan, filter_shape, strides, padding, W_init, b_init,
        lax.conv_transpose_shape_tuple, lax.conv_transpose,
    )  # fmt: skip


Conv = functools.partial(GeneralConv, ("NHWC", "HWIO", "NHWC"))
Conv1DTranspose = functools.partial(GeneralConvTranspose, ("NHC", "HIO", "NHC"))
ConvTranspose = functools.partial(GeneralConvTranspose, ("NHWC", "HWIO", "NHWC"))


def BatchNorm(  # noqa: N802
    axis: Any = (0, 1, 2), epsilon: float = 1e-5, center: bool = True, scale: bool = True, beta_init: Any = zeros,
    gamma_init: Any = ones,
) -> Layer:  # fmt: skip
    """Return a layer that normalizes over axes, by the moments of the batch that it is given."""
    over = (axis,) if isinstance(axis, int) else tuple(axis)

    def init_fun(rng: Any, input_shape: Any) -> Any:
        shape = tuple(size for k, size in enumerate(input_shape) if k not in over)
        beta_key, gamma_key = random.split(rng)
        return input_shape, (
            beta_init(beta_key, shape) if center else (),
            gamma_init(gamma_key, shape) if scale else (),
        )

    def apply_fun(params: Any, x: Any, **kwargs: Any) -> Any:
        beta, gamma = (
            jnp.expand_dims(p, over) if used else None for p, used in zip(params, (center, scale), strict=True)
        )
        z = standardize(x, over, epsilon=epsilon)
        z = z if gamma is None else gamma * z
        return z if beta is None else z + beta

    return init_fun, apply_fun


def elementwise(fun: Callable[..., Any], **fun_kwargs: Any) -> Layer:
    """Return a layer that applies a function to its inputs."""
    return _without_parameters(_same, lambda inputs: fun(inputs, **fun_kwargs))


Tanh, Relu, Exp = elementwise(jnp.tanh), elementwise(relu), elementwise(jnp.exp)
LogSoftmax, Softmax = elementwise(log_softmax, axis=-1), elementwise(softmax, axis=-1)
Softplus, Sigmoid, Elu = elementwise(softplus), elementwise(sigmoid), elementwise(elu)
LeakyRelu, Selu, Gelu = elementwise(leaky_relu), elementwise(selu), elementwise(gelu)


def _pooling(reduce: Any, start: float, mean: bool = False) -> Callable[..., Layer]:
    def pool(window_shape: Sequence[int], strides: Any = None, padding: Any = "VALID", spec: Any = None) -> Layer:
        """Return a layer that reduces windows; `spec` names the axes, by default N, the windows' and C."""
        axes = spec or "N" + "_" * len(window_shape) + "C"

        def full(sizes: Sequence[int]) -> tuple[int, ...]:
            given = iter(sizes)
            return tuple(1 if axis in "NC" else next(given) for axis in axes)

        window, steps = full(window_shape), full(strides or (1,) * len(window_shape))

        def shape(input_shape: Any) -> Any:
            pads = lax.padtype_to_pads(input_shape, window, steps, padding)
            plain = (1,) * len(window)
            return lax.reduce_window_shape_tuple(input_shape, window, steps, pads, plain, plain)

        def apply_fun(inputs: Any) -> Any:
            out = lax.reduce_window(inputs, start, reduce, window, steps, padding)
            if not mean:
                return out
            counted = tuple(1 if axis in "NC" else size for axis, size in zip(axes, inputs.shape, strict=True))
            return out / lax.reduce_window(jnp.ones(counted, inputs.dtype), start, reduce, window, steps, padding)

        return _without_parameters(shape, apply_fun)

    return pool


MaxPool, SumPool, AvgPool = _pooling(lax.max, -jnp.inf), _pooling(lax.add, 0.0), _pooling(lax.add, 0.0, mean=True)

Flatten = _without_parameters(
    lambda shape: (shape[0], math.prod(shape[1:])), lambda x: jnp.reshape(x, (x.shape[0], -1))
)
Identity = _without_parameters(_same, _same)


def FanOut(num: int) -> Layer:  # noqa: N802
    """Return a layer that gives its inputs `num` times, in a list, to the layers of `parallel`."""
    return _without_parameters(lambda shape: [shape] * num, lambda inputs: [inputs] * num)


FanInSum = _without_parameters(lambda shapes: shapes[0], sum)


def FanInConcat(axis: int = -1) -> Layer:  # noqa: N802
    """Return a layer that concatenates a list of inputs."""

    def shape(shapes: Any) -> Any:
        place = axis % len(shapes[0])
        return (*shapes[0][:place], sum(s[place] for s in shapes), *shapes[0][place + 1 :])

    return _without_parameters(shape, lambda inputs: jnp.concatenate(inputs, axis))


def Dropout(rate: float, mode: str = "train") -> Layer:  # noqa: N802
    """Return a layer that keeps elements with the probability `rate` where `mode` is ``"train"``.

    Raises:
        ValueError: when applied, without `rng`.
    """

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        rng = kwargs.get("rng")
        if rng is None:
            raise ValueError(
                "Dropout layer requires apply_fun to be called with a PRNG key argument. That is, instead of"
                " `apply_fun(params, inputs)`, call it like `apply_fun(params, inputs, rng=key)`."
            )
        if mode != "train":
            return inputs
        return jnp.where(random.bernoulli(rng, rate, inputs.shape), inputs / rate, 0)

    return lambda rng, input_shape: (input_shape, ()), apply_fun


def serial(*layers: Layer) -> Layer:
    """Return one layer after the other as a layer, whose parameters are a list."""

    def init_fun(rng: Any, input_shape: Any) -> Any:
        params = []
        for init, _ in layers:
            rng, key = random.split(rng)
            input_shape, found = init(key, input_shape)
            params.append(found)
        return input_shape, params

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        for (_, apply), own, key in zip(layers, params, _keys(kwargs.pop("rng", None), len(layers)), strict=True):
            inputs = apply(own, inputs, rng=key, **kwargs)
        return inputs

    return init_fun, apply_fun


def parallel(*layers: Layer) -> Layer:
    """Return layers as one, from a list of inputs to a list of outputs."""

    def init_fun(rng: Any, input_shape: Any) -> Any:
        keys = random.split(rng, len(layers))
        found = [init(key, shape) for (init, _), key, shape in zip(layers, keys, input_shape, strict=True)]
        return [shape for shape, _ in found], tuple(params for _, params in found)

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        keys = _keys(kwargs.pop("rng", None), len(layers))
        return [
            apply(own, x, rng=key, **kwargs)
            for (_, apply), own, x, key in zip(layers, params, inputs, keys, strict=True)
        ]

    return init_fun, apply_fun


def _keys(rng: Any, count: int) -> Any:
    return (None,) * count if rng is None else random.split(rng, count)


def shape_dependent(make_layer: Callable[[Any], Layer]) -> Layer:
    """Return a layer that `make_layer` makes from the shape of the inputs."""
    return (
        lambda rng, input_shape: make_layer(input_shape)[0](rng, input_shape),
        lambda params, inputs, **kwargs: make_layer(inputs.shape)[1](params, inputs, **kwargs),
    )
