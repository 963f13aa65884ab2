"""Normalization layers; the statistics of batch normalization are a separate state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gtrace.extend import ArgumentError, Array, message, ops
from gtrace.nn import normalization as functions
from gtrace.nn.layers.base import Module, field

__all__ = ["BatchNorm", "BatchNormState", "GroupNorm", "LayerNorm", "RMSNorm"]


def _shape(sizes: int | Sequence[int]) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(sizes)


class LayerNorm(Module):
    """`gt.nn.layer_norm` with weights, as torch.nn.LayerNorm.

    Attributes:
        weight, bias: of shape `normalized_shape`, or None.

    >>> gt.round(gt.nn.LayerNorm(2)(gt.array([[1., 3.], [5., 9.]])), 4)
    Array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """

    weight: Array | None
    bias: Array | None
    normalized_shape: tuple[int, ...] = field(static=True)
    eps: float = field(static=True)

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, *, dtype: Any = None,
    ) -> None:  # fmt: skip
        """Make the weight 1 and the bias 0; neither without `elementwise_affine`."""
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.weight = ops.ones(self.normalized_shape, dtype) if elementwise_affine else None
        self.bias = ops.zeros(self.normalized_shape, dtype) if elementwise_affine and bias else None

    def __call__(self, x: Any) -> Array:
        """Return x of shape (..., *normalized_shape), normalized."""
        return functions.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """`gt.nn.rms_norm` with a weight, as torch.nn.RMSNorm.

    Attributes:
        weight: of shape `normalized_shape`, or None.

    >>> gt.round(gt.nn.RMSNorm(2)(gt.array([3., 4.])), 4)
    Array([0.8485, 1.1314], dtype=float32)
    """

    weight: Array | None
    normalized_shape: tuple[int, ...] = field(static=True)
    eps: float | None = field(static=True)

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True, *,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        """Make the weight 1; none without `elementwise_affine`."""
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.weight = ops.ones(self.normalized_shape, dtype) if elementwise_affine else None

    def __call__(self, x: Any) -> Array:
        """Return x of shape (..., *normalized_shape), normalized."""
        return functions.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Module):
    """`gt.nn.group_norm` with weights, as torch.nn.GroupNorm.

    Attributes:
        weight, bias: (num_channels,), or None.

    >>> gt.round(gt.nn.GroupNorm(2, 4)(gt.array([[1., 3., 5., 9.]])), 4)
    Array([[-1.,  1., -1.,  1.]], dtype=float32)
    """

    weight: Array | None
    bias: Array | None
    num_groups: int = field(static=True)
    eps: float = field(static=True)

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, dtype: Any = None
    ) -> None:
        """Make the weight 1 and the bias 0; neither without `affine`.

        Raises:
            ArgumentError: the groups do not divide the channels.
        """
        if num_groups < 1 or num_channels % num_groups:
            got, fix = f"{num_groups} of {num_channels}", "The first argument is the number of groups."
            raise ArgumentError(message("nn.GroupNorm", "a number of groups that divides the channels", got, fix))
        self.num_groups, self.eps = num_groups, eps
        self.weight = ops.ones((num_channels,), dtype) if affine else None
        self.bias = ops.zeros((num_channels,), dtype) if affine else None

    def __call__(self, x: Any) -> Array:
        """Return x (batch, channels, ...), normalized."""
        return functions.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class BatchNormState(Module):
    """The running statistics of a `BatchNorm`. They are not parameters, so not part of the module.

    Attributes:
        running_mean, running_var: (num_features,).
    """

    running_mean: Array
    running_var: Array


class BatchNorm(Module):
    """Batch normalization with explicit state, as torch.nn.BatchNorm1d, 2d and 3d.

    Attributes:
        weight, bias: (num_features,), or None.

    >>> norm = gt.nn.BatchNorm(1)
    >>> out, state = norm(gt.array([[1.], [3.]]), norm.initial_state(), training=True)
    >>> state.running_mean, state.running_var
    (Array([0.2], dtype=float32), Array([1.1], dtype=float32))
    """

    weight: Array | None
    bias: Array | None
    num_features: int = field(static=True)
    eps: float = field(static=True)
    momentum: float = field(static=True)

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, *, dtype: Any = None
    ) -> None:
        """Make the weight 1 and the bias 0; neither without `affine`."""
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = ops.ones((num_features,), dtype) if affine else None
        self.bias = ops.zeros((num_features,), dtype) if affine else None

    def initial_state(self) -> BatchNormState:
        """Return the statistics before any batch: mean 0 and variance 1."""
        dtype = None if self.weight is None else self.weight.aval.dtype
        return BatchNormState(ops.zeros((self.num_features,), dtype), ops.ones((self.num_features,), dtype))

    def __call__(self, x: Any, state: BatchNormState, *, training: bool = False) -> tuple[Array, BatchNormState]:
        """Return x (batch, channels, ...) normalized, and the new statistics.

        Args:
            training: normalize by the statistics of the batch, and add them to the running ones with share `momentum`.
                Otherwise normalize by the running ones, which stay.
        """
        mean, var = state.running_mean, state.running_var
        if not training:
            return functions.batch_norm(x, mean, var, self.weight, self.bias, self.eps), state
        out, mean, var = functions.batch_norm_train(x, mean, var, self.weight, self.bias, self.momentum, self.eps)
        return out, BatchNormState(mean, var)
