"""Of ``jax.lax``, records of how to compute, functions that JAX needs for its own compiler, and what these are here."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

import gtrace as gt
from gtrace import lax as ours
from gtrace.extend import Array, lift
from gtrace.jax.extend.core import primitives
from gtrace.special.gamma_functions import log_sample_slope


def with_primitives(find: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that knows JAX's operations by name, too, which libraries have tables by."""

    def get(name: str) -> Any:
        return getattr(primitives, name) if name.endswith("_p") else find(name)

    return get


ConvGeneralDilatedDimensionNumbers = Any
"""The type of dimension numbers, for annotations."""


@attrs.frozen
class DotAlgorithm:
    """How a product is to be computed. Products are computed in the dtype of the operands whatever it says."""

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


@attrs.frozen
class Tolerance:
    """How exact an elementwise function has to be; all are as exact as torch's."""

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0


@attrs.frozen
class RaggedDotDimensionNumbers:
    """Which axes of the operands of a product of groups are which."""

    dot_dimension_numbers: Any
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]


class RandomAlgorithm(enum.IntEnum):
    """The ciphers of XLA's generator; keys are by threefry whatever it says."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


def create_token() -> Array:
    """Return a token, an empty array: programs keep the order of their effects without tokens."""
    return gt.zeros(0, "uint8")


def after_all(*operands: Any) -> Array:
    """Return a token that stands for several."""
    return create_token()


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """Return the function; compilers that know the name have an implementation of their own, and this one has not.

    >>> composite(lambda x: x + 1, "my.increment")(1)
    2
    """
    return decomposition


def dce_sink(val: Any, *, prevent_mlir_dce: bool = False) -> None:
    """Do nothing, because unused values are not computed."""


def pcast(x: Any, axis_name: Any = None, *, to: Any = None) -> Any:
    """Return the value: arrays do not say along which axes they vary."""
    return x


def igamma_grad_a(a: Any, x: Any) -> Array:
    """Return the derivative of ``igamma(a, x)`` by a.

    >>> import gtrace.jax as jax
    >>> round(float(igamma_grad_a(2.0, 1.0)), 4)
    -0.2762
    """
    first, second = gt.numpy.broadcast_arrays(lift("igamma_grad_a", a), lift("igamma_grad_a", x))
    slope: Array = gt.jvp(lambda z: ours.igamma(z, second), (first,), (gt.ones_like(first),))[1]
    return slope


def random_gamma_grad(a: Any, x: Any, *, dtype: Any = None) -> Array:
    """Return the derivative by a of a sample x of the gamma distribution.

    >>> import gtrace.jax as jax
    >>> round(float(random_gamma_grad(2.0, 1.0)), 4)
    0.7508
    """
    first, second = gt.numpy.broadcast_arrays(lift("random_gamma_grad", a), lift("random_gamma_grad", x))
    return second * log_sample_slope(first, gt.log(second), second)


def shape_as_value(shape: Sequence[int]) -> Array:
    """Return a shape as an array of int32.

    >>> import gtrace.jax as jax
    >>> shape_as_value((2, 3)).tolist()
    [2, 3]
    """
    return gt.array(list(shape), torch.int32)


def conv_general_dilated_local(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: Any, filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None, rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None,
    precision: Any = None,
) -> Array:  # fmt: skip
    """Return a convolution whose weights differ from place to place.

    Args:
        lhs: the images, batch and channels first.
        rhs: of shape (channels of the result, channels times the window, *places).

    >>> import gtrace.jax.numpy as jnp
    >>> conv_general_dilated_local(jnp.ones((1, 1, 3)), jnp.arange(2.).reshape(1, 1, 2), (2,), "VALID", (1,)).tolist()
    [[[0.0, 1.0]]]
    """
    numbers = ours.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    patches = ours.conv_general_dilated_patches(
        lhs, filter_shape, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers
    )
    given = gt.permute_dims(patches, numbers.out_spec)
    weights = gt.permute_dims(lift("conv_general_dilated_local", rhs), numbers.rhs_spec)
    out = gt.einsum("nk...,ok...->no...", given, weights)
    back = [numbers.out_spec.index(k) for k in range(len(numbers.out_spec))]
    return gt.permute_dims(out, back)
