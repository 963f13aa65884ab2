"""Convolutions and their transposes, over one, two or three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from gtrace.extend import ArgumentError, Array, message
from gtrace.nn import convolution as functions
from gtrace.nn.layers.base import Module, check_key, field, within
from gtrace.random.keys import split

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

Sizes = int | Sequence[int]


def _each(value: Any, axes: int) -> Any:
    """Return a size for each axis; "same" and "valid" are unchanged."""
    return value if isinstance(value, str) else (value,) * axes if isinstance(value, int) else tuple(value)


def _check_groups(name: str, in_channels: int, out_channels: int, groups: int) -> None:
    """Raise if the groups do not divide the channels of x and of the result."""
    if groups < 1 or in_channels % groups or out_channels % groups:
        got = f"groups={groups} for {in_channels} and {out_channels}"
        fix = "Take a number that divides both in_channels and out_channels."
        raise ArgumentError(message(name, "groups that divide the channels", got, fix))


class _Convolution(Module):
    """The common base of convolutions.

    Attributes:
        weight: (out_channels, in_channels // groups, *window); for transposes (in_channels, out_channels // groups,
            *window).
        bias: (out_channels,), or None.
    """

    axes: ClassVar[int] = 0
    weight: Array
    bias: Array | None
    stride: tuple[int, ...] = field(static=True)
    padding: Any = field(static=True)
    dilation: tuple[int, ...] = field(static=True)
    groups: int = field(static=True)

    def _settle(
        self, shape: tuple[int, int], features: int, kernel_size: Sizes, stride: Sizes, padding: Any, dilation: Sizes,
        groups: int, bias: bool, dtype: Any, key: Any,
    ) -> None:  # fmt: skip
        window = _each(kernel_size, self.axes)
        fan_in = shape[1] * math.prod(window)
        one, other = split(check_key(type(self).__name__, key))
        self.weight = within(one, (*shape, *window), fan_in, dtype)
        self.bias = within(other, (features,), fan_in, dtype) if bias else None
        self.stride, self.dilation = _each(stride, self.axes), _each(dilation, self.axes)
        self.padding, self.groups = _each(padding, self.axes), groups


class _Conv(_Convolution):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = True, *, dtype: Any = None, key: Any = None,
    ) -> None:  # fmt: skip
        """Sample weight and bias uniformly from [-b, b], b = 1 / sqrt(number of inputs of a result).

        Raises:
            ArgumentError: the key is missing, or the groups do not divide the channels.
        """
        _check_groups(type(self).__name__, in_channels, out_channels, groups)
        shape = out_channels, in_channels // groups
        self._settle(shape, out_channels, kernel_size, stride, padding, dilation, groups, bias, dtype, key)

    def __call__(self, x: Any) -> Array:
        """Return (batch, out_channels, *spatial) for x (batch, in_channels, *spatial); the batch is optional."""
        convolve = getattr(functions, f"conv{self.axes}d")
        out: Array = convolve(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return out


class Conv1d(_Conv, init=False):
    """`gt.nn.conv1d` with weights, as torch.nn.Conv1d.

    >>> gt.nn.Conv1d(3, 8, 3, padding="same", key=gt.random.key(0))(gt.ones((2, 3, 10))).shape
    (2, 8, 10)
    """

    axes = 1


class Conv2d(_Conv, init=False):
    """`gt.nn.conv2d` with weights, as torch.nn.Conv2d.

    >>> gt.nn.Conv2d(3, 8, 3, stride=2, key=gt.random.key(0))(gt.ones((2, 3, 9, 9))).shape
    (2, 8, 4, 4)
    """

    axes = 2


class Conv3d(_Conv, init=False):
    """`gt.nn.conv3d` with weights, as torch.nn.Conv3d.

    >>> gt.nn.Conv3d(3, 8, 3, padding=1, key=gt.random.key(0))(gt.ones((2, 3, 4, 4, 4))).shape
    (2, 8, 4, 4, 4)
    """

    axes = 3


class _ConvTranspose(_Convolution):
    output_padding: tuple[int, ...] = field(static=True)

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1, *, dtype: Any = None,
        key: Any = None,
    ) -> None:  # fmt: skip
        """Sample weight and bias uniformly, as torch does.

        Raises:
            ArgumentError: the key is missing, the groups do not divide the channels, or output_padding is not below the
                stride or the dilation.
        """
        _check_groups(type(self).__name__, in_channels, out_channels, groups)
        shape = in_channels, out_channels // groups
        self._settle(shape, out_channels, kernel_size, stride, padding, dilation, groups, bias, dtype, key)
        self.output_padding = _each(output_padding, self.axes)
        if any(
            not 0 <= extra < max(steps)
            for extra, *steps in zip(self.output_padding, self.stride, self.dilation, strict=True)
        ):
            got = f"output_padding={output_padding}, stride={stride}, dilation={dilation}"
            fix = "It chooses among the sizes that the stride makes possible; pad the result for more."
            raise ArgumentError(
                message(type(self).__name__, "an output_padding below the stride or the dilation", got, fix)
            )

    def __call__(self, x: Any) -> Array:
        """Return (batch, out_channels, *spatial) for x (batch, in_channels, *spatial); the batch is optional."""
        convolve = getattr(functions, f"conv_transpose{self.axes}d")
        out: Array = convolve(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )
        return out


class ConvTranspose1d(_ConvTranspose, init=False):
    """`gt.nn.conv_transpose1d` with weights, as torch.nn.ConvTranspose1d.

    >>> gt.nn.ConvTranspose1d(3, 8, 2, stride=2, key=gt.random.key(0))(gt.ones((2, 3, 4))).shape
    (2, 8, 8)
    """

    axes = 1


class ConvTranspose2d(_ConvTranspose, init=False):
    """`gt.nn.conv_transpose2d` with weights, as torch.nn.ConvTranspose2d.

    >>> gt.nn.ConvTranspose2d(3, 8, 2, stride=2, key=gt.random.key(0))(gt.ones((2, 3, 4, 4))).shape
    (2, 8, 8, 8)
    """

    axes = 2


class ConvTranspose3d(_ConvTranspose, init=False):
    """`gt.nn.conv_transpose3d` with weights, as torch.nn.ConvTranspose3d.

    >>> gt.nn.ConvTranspose3d(3, 8, 2, stride=2, key=gt.random.key(0))(gt.ones((2, 3, 4, 4, 4))).shape
    (2, 8, 8, 8, 8)
    """

    axes = 3
