"""Mixed precision: dtypes of parameters, computation and results, and the scaling of a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from gtrace.extend import Array, as_dtype, cast, lift, named, ops, tree
from gtrace.nn.layers.base import Module, field
from gtrace.nn.layers.filters import is_inexact_array
from gtrace.nn.layers.normalization import BatchNormState

__all__ = ["DynamicLossScale", "Policy", "all_finite", "select_tree"]


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Return a pytree with its real floating arrays in a dtype; other leaves are unchanged.

    Running statistics are also unchanged: they are sums over many steps, whose terms would vanish in 16 bits.
    """

    def one(x: Any) -> Any:
        if isinstance(x, BatchNormState) or not is_inexact_array(x):
            return x
        x = lift("nn.Policy", x)
        return x if x.aval.complex else cast(x, dtype)

    return tree.map(one, values, is_leaf=lambda x: isinstance(x, BatchNormState))


@attrs.frozen
class Policy:
    """Dtypes of parameters, of computations with them, and of results.

    Parameters, gradients and the state of an optimizer stay in float32, so that small updates are not lost. A wrapped
    function computes in 16 bits, except for normalizations, softmax, reductions and losses. These compute in float32,
    whatever they are given (docs/nn.md has the table).

    Attributes:
        compute_dtype: usually bfloat16 or float16; float16 needs a `DynamicLossScale`.
        param_dtype: the dtype of parameters.
        output_dtype: the dtype of results.

    >>> policy = gt.nn.Policy(gt.bfloat16)
    >>> model = gt.nn.Linear(2, 2, key=gt.random.key(0))
    >>> policy(model)(gt.ones(2)).dtype
    gtrace.float32
    >>> gt.grad(lambda m: policy(m)(gt.ones(2)).sum())(model)
    Linear(weight=float32[2,2], bias=float32[2])
    """

    compute_dtype: torch.dtype = attrs.field(converter=as_dtype)
    param_dtype: torch.dtype = attrs.field(converter=as_dtype, default=torch.float32)
    output_dtype: torch.dtype = attrs.field(converter=as_dtype, default=torch.float32)

    def cast_to_param(self, values: Any) -> Any:
        """Return a pytree with its floating arrays in the dtype of parameters; other leaves are unchanged."""
        return _cast(values, self.param_dtype)

    def cast_to_compute(self, values: Any) -> Any:
        """Return a pytree with its floating arrays in the dtype of computation."""
        return _cast(values, self.compute_dtype)

    def cast_to_output(self, values: Any) -> Any:
        """Return a pytree with its floating arrays in the dtype of results."""
        return _cast(values, self.output_dtype)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function or a module that computes by this policy; usable as a decorator.

        Floating arrays in arguments are cast, and so are the parameters of modules. Arrays that a function closes over
        are not cast, nor are the running statistics of a `BatchNorm`.
        """

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            inner = self.cast_to_compute(function) if isinstance(function, Module) else function
            args, kwargs = self.cast_to_compute((args, kwargs))
            return self.cast_to_output(inner(*args, **kwargs))

        return named(wrapped, function)


def all_finite(values: Any) -> Array:
    """Return whether all numbers in a pytree are finite.

    >>> gt.nn.all_finite({"a": gt.ones(2), "b": gt.array(float("inf"))})
    Array(False, dtype=bool)
    """
    out: Any = lift("nn.all_finite", True)
    for x in tree.leaves(values):
        if is_inexact_array(x):
            out = ops.logical_and(out, ops.all(ops.isfinite(x)))
    return out


def select_tree(condition: Any, yes: Any, no: Any) -> Any:
    """Return one of two pytrees with the same structure, selected by a 0-d boolean array.

    >>> gt.nn.select_tree(gt.array(True), {"a": gt.array(1.0)}, {"a": gt.array(2.0)})
    {'a': Array(1., dtype=float32)}
    """
    return tree.map(lambda a, b: ops.where(condition, a, b), yes, no)


class DynamicLossScale(Module):
    """A factor of the loss that keeps float16 gradients in range (Micikevicius et al., 2017).

    It is halved if a gradient is not finite, and doubled after `period` steps with finite gradients.

    Attributes:
        factor: float32, the scale.
        good_steps: int32, steps with finite gradients since it changed.
        period: the number of steps after which the scale grows.
        growth: the factor by which the scale grows or shrinks.
        least: the smallest scale.

    >>> scale = gt.nn.DynamicLossScale(gt.array(1024.0), period=1)
    >>> grads = gt.grad(lambda x: scale.scale(x * 3.0))(1.0)
    >>> scale.unscale(grads), scale.adjust(gt.nn.all_finite(grads)).factor
    (Array(3., dtype=float32), Array(2048., dtype=float32))
    """

    factor: Array
    good_steps: Array
    period: int = field(static=True)
    growth: float = field(static=True)
    least: float = field(static=True)

    def __init__(self, factor: Any = 2.0**15, *, period: int = 2000, growth: float = 2.0, least: float = 1.0) -> None:
        self.factor = cast(lift("nn.DynamicLossScale", factor), torch.float32)
        self.good_steps = ops.full((), 0, torch.int32)
        self.period, self.growth, self.least = period, growth, least

    def scale(self, loss: Any) -> Any:
        """Return a loss, or a pytree of arrays, times the scale."""
        return tree.map(lambda x: x * cast(self.factor, lift("nn.DynamicLossScale", x).aval.dtype), loss)

    def unscale(self, grads: Any) -> Any:
        """Return gradients divided by the scale."""
        return tree.map(lambda g: g * cast(1.0 / self.factor, lift("nn.DynamicLossScale", g).aval.dtype), grads)

    def adjust(self, finite: Any) -> DynamicLossScale:
        """Return the scale for the next step, given whether all gradients of this step were finite."""
        grown = self.good_steps >= self.period - 1
        larger = ops.where(ops.isfinite(self.factor * self.growth), self.factor * self.growth, self.factor)
        return self.replace(
            factor=ops.where(
                finite, ops.where(grown, larger, self.factor), ops.maximum(self.factor / self.growth, self.least)
            ),
            good_steps=cast(ops.where(ops.logical_and(finite, ~grown), self.good_steps + 1, 0), torch.int32),
        )
