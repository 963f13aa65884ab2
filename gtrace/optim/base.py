"""The contract of optimizers, which is optax's: two functions, and the trees that they take."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

import torch

from gtrace.extend import (
    ArgumentError,
    Array,
    as_device,
    as_dtype,
    cast,
    is_short,
    lift,
    message,
    missing_attribute,
    ops,
    result_dtype,
    thread,
    tree,
    unshortened,
    value_of,
    without_modes,
    wrap,
)

__all__ = [
    "EmptyState", "GradientTransformation", "apply_updates", "global_norm",
]  # fmt: skip

_TORCH_METHODS = {
    "Use updates, state = optimizer.update(grads, state, params), and gt.optim.apply_updates(params, updates).": "step",
    "Gradients are what gt.grad returns: there is nothing to reset.": "zero_grad",
    "The state is what optimizer.init(params) returns.": "state_dict load_state_dict state param_groups",
}
"""Replacements for methods of torch's optimizers."""

Params = Any
Updates = Any
State = Any
Schedule = Callable[[Any], Any]
"""A function from the number of updates so far to a number."""


class Update(Protocol):
    """``update(updates, state, params=None) -> (updates, state)``."""

    def __call__(self, updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]: ...


class GradientTransformation(NamedTuple):
    """An optimizer, or a part of one: a pair of pure functions.

    Attributes:
        init: makes the first state, given the parameters.
        update: maps (gradients, state, parameters) to (updates, new state); `apply_updates` adds updates.
    """

    init: Callable[[Params], State]
    update: Update

    def __getattr__(self, name: str) -> NoReturn:
        raise missing_attribute(self, name, _TORCH_METHODS)


class EmptyState(NamedTuple):
    """The state of a transformation without a state."""


def empty_state(params: Params) -> EmptyState:
    """Return the state of a transformation without a state."""
    return EmptyState()


def stateless(function: Callable[[Updates, Params], Updates]) -> GradientTransformation:
    """Return the transformation that applies a function of updates and parameters."""
    return GradientTransformation(empty_state, lambda updates, state, params=None: (function(updates, params), state))


def need_params(name: str, params: Params) -> Params:
    """Return the parameters.

    Raises:
        ArgumentError: they are missing.
    """
    if params is None:
        fix = "Call update(grads, state, params)."
        raise ArgumentError(message(f"optim.{name}", "the parameters", "None", fix))
    return params


def apply_updates(params: Params, updates: Updates) -> Params:
    """Return parameters plus updates, each in the dtype of the parameter. An update of None leaves its parameter.

    Raises:
        StructureError: the pytrees have different structures.

    >>> gt.optim.apply_updates({"w": gt.array(1.0), "n": 3}, {"w": gt.array(-0.25), "n": None})
    {'w': Array(0.75, dtype=float32), 'n': 3}
    """

    def added(update: Any, param: Any) -> Any:
        if update is None:
            return param
        p = lift("optim.apply_updates", param)
        return cast(p + update, p.aval.dtype)

    return tree.map(added, updates, params, is_leaf=lambda x: x is None)


def global_norm(updates: Updates) -> Array:
    """Return the square root of the sum of squares of all numbers in a pytree.

    >>> gt.optim.global_norm({"a": gt.array([3.0]), "b": gt.array(4.0)})
    Array(5., dtype=float32)
    """
    leaves = [lift("optim.global_norm", x) for x in tree.leaves(updates)]
    kind = result_dtype([x.aval for x in leaves]) if leaves else None
    norm = unshortened_norm(leaves)
    return cast(norm, kind) if kind is not None and is_short(kind) else norm


def unshortened_norm(updates: Updates) -> Array:
    """Return `global_norm`; of 16-bit numbers in float32, because their sums of squares overflow."""
    sums = [ops.sum(squared(unshortened(lift("optim.global_norm", x)))) for x in tree.leaves(updates)]
    return ops.sqrt(functools.reduce(ops.add, sums) if sums else lift("optim.global_norm", 0.0))


def root_mean_square(x: Array) -> Array:
    """Return the root of the mean of |x| ** 2; of 16-bit numbers in float32, because their squares overflow."""
    return ops.sqrt(ops.mean(squared(unshortened(x))))


# -- trees


def squared(x: Array) -> Array:
    """Return |x| ** 2."""
    return ops.square(ops.absolute(x)) if x.aval.complex else ops.square(x)


def zeros_of(params: Params, dtype: Any = None) -> Any:
    """Return zeros like the parameters, in another dtype if given.

    If a parameter has a value, its zeros have one too, with the same strides. As constants, they would make the first
    step another program than the second.
    """
    kind = None if dtype is None else as_dtype(dtype)

    def zero(x: Any) -> Array:
        x = lift("optim", x)
        a = x.aval
        value = value_of(x)
        if value is None or a.weak or a.sharding is not None or thread.trace.capture is not None:
            return ops.zeros_like(x, kind)
        return wrap(_zeros_like(value, dtype=kind))

    return tree.map(zero, params)


def cast_all(values: Any, dtype: Any) -> Any:
    """Return a pytree cast to a dtype; None: unchanged."""
    return values if dtype is None else tree.map(lambda x: cast(x, as_dtype(dtype)), values)


def moment(updates: Updates, moments: Any, decay: float, order: int) -> Any:
    """Return the exponential moving average of updates (order 1) or of their squares (order 2)."""
    return tree.map(lambda g, m: (1 - decay) * (g if order == 1 else squared(g)) + decay * m, updates, moments)


def without_bias(moments: Any, decay: float, count: Any) -> Any:
    """Return moving averages that began with 0, divided by the sum of their weights after `count` steps."""
    weights: dict[torch.dtype, Array] = {}

    def corrected(m: Array) -> Array:
        dtype = m.aval.dtype
        if dtype not in weights:
            wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
            # 1 - decay ** count, without the rounding of a decay near 1
            total = -ops.expm1(cast(count, wide) * math.log(decay)) if decay else lift("optim", 1.0)
            weights[dtype] = total if m.aval.complex else cast(total, dtype)
        return m / weights[dtype]

    return tree.map(corrected, moments)


def first_count(params: Params) -> Array:
    """Return the initial number of updates: int32 as in optax, on the device of the first parameter."""
    devices = [x.aval.device for x in tree.leaves(params) if type(x) is Array]
    place = devices[0] if devices else as_device(None)
    if thread.trace.capture is not None:
        return ops.zeros((), torch.int32, device=place)
    return wrap(_zeros((), dtype=torch.int32, device=place))


_zeros, _zeros_like = without_modes(torch.zeros), without_modes(torch.zeros_like)
