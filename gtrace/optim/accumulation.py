"""Gradient accumulation: one update for several batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gtrace.extend import Array, as_dtype, cast, lift, ops, tree
from gtrace.optim.base import GradientTransformation, Params, Updates, first_count, zeros_of

__all__ = ["MultiSteps", "MultiStepsState"]


class MultiStepsState(NamedTuple):
    """State of `MultiSteps`.

    Attributes:
        mini_step: int32, batches since the last update.
        gradient_step: int32, updates so far.
        inner_opt_state: the state of the optimizer.
        acc_grads: the mean or sum of gradients since the last update.
    """

    mini_step: Array
    gradient_step: Array
    inner_opt_state: Any
    acc_grads: Any


class MultiSteps:
    """An optimizer that updates once for several batches, with the mean or sum of their gradients.

    Updates are zeros in between. All steps are the same program, which computes the optimizer's update each time.

    >>> opt = gt.optim.MultiSteps(gt.optim.sgd(1.0), 2)
    >>> state = opt.init(gt.array(0.0))
    >>> for g in (1.0, 3.0):
    ...     updates, state = opt.update(gt.array(g), state)
    >>> updates, opt.has_updated(state)
    (Array(-2., dtype=float32), Array(True, dtype=bool))
    """

    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: Any,
        use_grad_mean: bool = True,
        *,
        accumulator_dtype: Any = torch.float32,
    ) -> None:
        """Wrap an optimizer.

        Args:
            every_k_schedule: batches per update: an int, or a function of the number of updates so far.
            use_grad_mean: use the mean of gradients instead of their sum.
            accumulator_dtype: the dtype of the mean or sum.
        """
        self._opt, self._mean, self._dtype = opt, use_grad_mean, as_dtype(accumulator_dtype)
        self._every = every_k_schedule if callable(every_k_schedule) else lambda step: every_k_schedule

    def init(self, params: Params) -> MultiStepsState:
        """Return the first state."""
        steps, updates = first_count(params), first_count(params)
        return MultiStepsState(steps, updates, self._opt.init(params), zeros_of(params, self._dtype))

    def update(
        self, updates: Updates, state: MultiStepsState, params: Params = None, /
    ) -> tuple[Updates, MultiStepsState]:
        """Return the new state, and the optimizer's updates; they are zeros except after the last batch."""
        every = self._every(state.gradient_step)

        def added(g: Array, total: Array) -> Array:
            return total + ((g - total) / cast(state.mini_step + 1, self._dtype) if self._mean else g)

        totals = tree.map(added, updates, state.acc_grads)
        grads = tree.map(lambda total, g: cast(total, lift("optim.MultiSteps", g).aval.dtype), totals, updates)
        out, inner = self._opt.update(grads, state.inner_opt_state, params)
        last = state.mini_step == every - 1
        return tree.map(lambda u: ops.where(last, u, 0), out), MultiStepsState(
            ops.where(last, 0, state.mini_step + 1),
            state.gradient_step + cast(last, torch.int32),
            tree.map(lambda new, old: ops.where(last, new, old), inner, state.inner_opt_state),
            tree.map(lambda total: cast(ops.where(last, 0, total), self._dtype), totals),
        )

    def has_updated(self, state: MultiStepsState) -> Array:
        """Return whether the last step changed the parameters."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> GradientTransformation:
        """Return the pair of functions for `chain`."""
        return GradientTransformation(self.init, self.update)
