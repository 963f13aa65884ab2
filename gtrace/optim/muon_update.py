"""Muon: momentum with orthogonalized matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

from gtrace.extend import ArgumentError, Array, ShapeError, message, ops, over_count, tree, unshortened
from gtrace.optim.base import (
    GradientTransformation,
    Params,
    State,
    Updates,
    cast_all,
    first_count,
    moment,
    squared,
    without_bias,
    zeros_of,
)
from gtrace.optim.combining import chain
from gtrace.optim.masking import masked
from gtrace.optim.moments import ahead
from gtrace.optim.optimizers import adamw
from gtrace.optim.replayed import transformation
from gtrace.optim.scaling import add_decayed_weights, scale_by_learning_rate

__all__ = ["MuonDimensionNumbers", "MuonState", "muon", "scale_by_muon"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class MuonDimensionNumbers(NamedTuple):
    """The axis of a matrix over which its use sums, and the axis of its results.

    Weights of ``x @ w`` are (0, 1), the default and optax's. Weights of `gt.nn.Linear`, ``x @ w.T``, are (1, 0).
    """

    reduction_axis: int = 0
    output_axis: int = 1


class MuonState(NamedTuple):
    """State of `scale_by_muon`.

    Attributes:
        count: int32, the number of updates so far.
        mu: the momentum, a pytree like the parameters.
    """

    count: Array  # type: ignore[assignment] # optax's name, also of a tuple's method
    mu: Any


def _orthogonal(x: Array, coefficients: tuple[float, float, float], steps: int, eps: float) -> Array:
    """Return an approximation of the nearest orthogonal matrix, by a quintic Newton-Schulz iteration."""
    if x.ndim != 2:
        fix = "Use gt.optim.muon, which leaves other arrays to adamw, or gt.optim.masked."
        raise ShapeError(message("optim.scale_by_muon", "matrices", repr(x.aval), fix))
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = ops.matrix_transpose(x) if tall else x
    x = over_count(x, ops.sqrt(ops.sum(squared(unshortened(x)))) + eps)
    for _ in range(steps):
        product = x @ ops.matrix_transpose(x)
        x = a * x + (b * product + c * (product @ product)) @ x
    return ops.matrix_transpose(x) if tall else x


@transformation
def scale_by_muon(
    ns_coeffs: tuple[float, float, float] = COEFFICIENTS,
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
) -> GradientTransformation:
    """Return a transformation that replaces matrices by orthogonalized momentum (Jordan, 2024).

    Args:
        ns_coeffs: the coefficients of the iteration's polynomial.
        ns_steps: the number of iterations.
        beta: the decay of the momentum.
        eps: added to the norm.
        mu_dtype: the dtype of the momentum; None: that of the parameters.
        nesterov: look one step ahead.

    Raises (update):
        ShapeError: an update is not a matrix.

    >>> grads = gt.array([[3.0, 0.0], [0.0, 0.1]])
    >>> opt = gt.optim.scale_by_muon()
    >>> gt.round(opt.update(grads, opt.init(grads))[0])
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        mu, count = moment(updates, state.mu, beta, 1), state.count + 1
        mean = ahead(updates, mu, beta, count) if nesterov else without_bias(mu, beta, count)
        out = tree.map(lambda m: _orthogonal(m, ns_coeffs, ns_steps, eps), mean)
        return out, MuonState(count, cast_all(mu, mu_dtype))

    return GradientTransformation(lambda params: MuonState(first_count(params), zeros_of(params, mu_dtype)), update)


@transformation
def muon(
    learning_rate: Any,
    ns_coeffs: tuple[float, float, float] = COEFFICIENTS,
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    weight_decay: Any = 0.0,
    weight_decay_mask: Any = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_eps_root: float = 0.0,
    adam_weight_decay: Any = 0.0,
    adam_learning_rate: Any = None,
    muon_weight_dimension_numbers: MuonDimensionNumbers | None = None,
    consistent_rms: float | None = None,
) -> GradientTransformation:
    """Return Muon (Jordan, 2024) for matrices, and AdamW for all other parameters.

    Args:
        learning_rate: a number or a schedule.
        ns_coeffs, ns_steps, beta, eps, mu_dtype, nesterov: see `scale_by_muon`.
        weight_decay, weight_decay_mask: for matrices; see `add_decayed_weights`.
        adam_b1, adam_b2, adam_eps_root, adam_weight_decay: arguments of `adamw`.
        adam_learning_rate: None: that of matrices.
        muon_weight_dimension_numbers: for all matrices; None: ``x @ w``.
        consistent_rms: scale matrices by this number times sqrt(max(inputs, outputs)) (Liu et al., 2025); 0.2 fits
            learning rates of AdamW. None: scale by sqrt(max(1, outputs / inputs)).

    Raises:
        ArgumentError: axes are not those of a matrix.

    >>> opt = gt.optim.muon(0.1)
    >>> params = {"w": gt.eye(2), "b": gt.zeros(2)}
    >>> updates, state = opt.update(params, opt.init(params), params)
    >>> float(abs(updates["w"]).max()) < 0.12
    True
    """
    numbers = MuonDimensionNumbers() if muon_weight_dimension_numbers is None else muon_weight_dimension_numbers
    if {numbers.reduction_axis % 2, numbers.output_axis % 2} != {0, 1}:
        fix = "Such as MuonDimensionNumbers(1, 0)."
        raise ArgumentError(message("optim.muon", "the two axes of a matrix", repr(numbers), fix))

    def widened(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        def by_shape(x: Array) -> Array:
            inputs, outputs = x.shape[numbers.reduction_axis], x.shape[numbers.output_axis]
            if consistent_rms is None:
                return x * float(max(1.0, outputs / inputs)) ** 0.5
            return x * (float(max(inputs, outputs)) ** 0.5 * consistent_rms)

        return tree.map(by_shape, updates), state

    matrices = chain(
        scale_by_muon(ns_coeffs, ns_steps, beta, eps, mu_dtype, nesterov=nesterov),
        GradientTransformation(lambda params: (), widened),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    others = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate, adam_b1, adam_b2, eps, adam_eps_root,
        mu_dtype, adam_weight_decay, nesterov=nesterov,
    )  # fmt: skip
    return chain(
        masked(matrices, lambda params: tree.map(lambda x: x.ndim == 2, params)),
        masked(others, lambda params: tree.map(lambda x: x.ndim != 2, params)),
    )
