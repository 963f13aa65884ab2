"""Transformations that use moving averages of gradients and their squares."""

from __future__ import annotations

from typing import Any, NamedTuple

from gtrace.extend import Array, ops, tree
from gtrace.optim.base import (
    GradientTransformation,
    Params,
    State,
    Updates,
    cast_all,
    first_count,
    moment,
    without_bias,
    zeros_of,
)
from gtrace.optim.replayed import transformation

__all__ = [
    "EmaState", "ScaleByAdamState", "ScaleByLionState", "ScaleByRStdDevState", "ScaleByRmsState", "TraceState", "ema",
    "scale_by_adam", "scale_by_lion", "scale_by_rms", "scale_by_stddev", "trace",
]  # fmt: skip


class TraceState(NamedTuple):
    """State of `trace`.

    Attributes:
        trace: a pytree like the parameters.
    """

    trace: Any


@transformation
def trace(decay: float, nesterov: bool = False, accumulator_dtype: Any = None) -> GradientTransformation:
    """Return momentum: a running sum of updates that is multiplied by `decay` at each step.

    Args:
        nesterov: look one step ahead (Nesterov, 1983).
        accumulator_dtype: the dtype of the sum; None: that of the parameters.

    >>> opt = gt.optim.trace(0.5)
    >>> state = opt.init(gt.array(0.0))
    >>> for _ in range(3):
    ...     updates, state = opt.update(gt.array(1.0), state)
    >>> updates
    Array(1.75, dtype=float32)
    """

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        total = tree.map(lambda g, t: g + decay * t, updates, state.trace)
        out = tree.map(lambda g, t: g + decay * t, updates, total) if nesterov else total
        return out, TraceState(cast_all(total, accumulator_dtype))

    return GradientTransformation(lambda params: TraceState(zeros_of(params, accumulator_dtype)), update)


class EmaState(NamedTuple):
    """State of `ema`.

    Attributes:
        count: int32, the number of updates so far.
        ema: a pytree like the parameters.
    """

    count: Array  # type: ignore[assignment] # optax's name, also of a tuple's method
    ema: Any


@transformation
def ema(decay: float, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformation:
    """Return the exponential moving average of updates.

    Args:
        debias: divide by the sum of the weights.
        accumulator_dtype: the dtype of the average; None: that of the parameters.

    >>> opt = gt.optim.ema(0.75)
    >>> state = opt.init(gt.array(0.0))
    >>> for grad in (1.0, 8.0):
    ...     updates, state = opt.update(gt.array(grad), state)
    >>> gt.round(updates, 4)
    Array(5., dtype=float32)
    """

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        mean = moment(updates, state.ema, decay, 1)
        count = state.count + 1
        out = without_bias(mean, decay, count) if debias else mean
        return out, EmaState(count, cast_all(mean, accumulator_dtype))

    def init(params: Params) -> State:
        return EmaState(first_count(params), zeros_of(params, accumulator_dtype))

    return GradientTransformation(init, update)


class ScaleByAdamState(NamedTuple):
    """State of `scale_by_adam`.

    Attributes:
        count: int32, the number of updates so far.
        mu, nu: moving averages of gradients and of their squares, pytrees like the parameters.
    """

    count: Array  # type: ignore[assignment] # optax's name, also of a tuple's method
    mu: Any
    nu: Any


@transformation
def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Return the scaling of Adam (Kingma and Ba, 2014): mean / (sqrt(mean square + eps_root) + eps).

    Args:
        b1, b2: decays of the averages of gradients and of their squares.
        eps, eps_root: added outside and inside the root.
        mu_dtype: the dtype of the average of gradients; None: that of the parameters.
        nesterov: look one step ahead (Dozat, 2016).

    >>> opt = gt.optim.scale_by_adam()
    >>> gt.round(opt.update(gt.array([3.0, -0.01]), opt.init(gt.zeros(2)))[0], 4)
    Array([ 1., -1.], dtype=float32)
    """

    def init(params: Params) -> State:
        return ScaleByAdamState(first_count(params), zeros_of(params, mu_dtype), zeros_of(params))

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        mu, nu = moment(updates, state.mu, b1, 1), moment(updates, state.nu, b2, 2)
        count = state.count + 1
        mean = ahead(updates, mu, b1, count) if nesterov else without_bias(mu, b1, count)
        squares = without_bias(nu, b2, count)
        out = tree.map(lambda m, v: m / (ops.sqrt(v + eps_root if eps_root else v) + eps), mean, squares)
        return out, ScaleByAdamState(count, cast_all(mu, mu_dtype), nu)

    return GradientTransformation(init, update)


def ahead(updates: Updates, mu: Any, decay: float, count: Any) -> Any:
    """Return the mean after a further step with the same updates."""
    return tree.map(
        lambda m, g: decay * m + (1 - decay) * g,
        without_bias(mu, decay, count + 1),
        without_bias(updates, decay, count),
    )


class ScaleByLionState(NamedTuple):
    """State of `scale_by_lion`.

    Attributes:
        count: int32, the number of updates so far.
        mu: a pytree like the parameters.
    """

    count: Array  # type: ignore[assignment] # optax's name, also of a tuple's method
    mu: Any


@transformation
def scale_by_lion(b1: float = 0.9, b2: float = 0.99, mu_dtype: Any = None) -> GradientTransformation:
    """Return the scaling of Lion (Chen et al., 2023): the sign of a mean of gradient and momentum.

    Args:
        b1: the share of the momentum in the mean.
        b2: the decay of the momentum.
        mu_dtype: the dtype of the momentum; None: that of the parameters.

    >>> opt = gt.optim.scale_by_lion()
    >>> opt.update(gt.array([3.0, -0.01]), opt.init(gt.zeros(2)))[0]
    Array([ 1., -1.], dtype=float32)
    """

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        out = tree.map(lambda g, m: ops.sign((1 - b1) * g + b1 * m), updates, state.mu)
        mu = cast_all(moment(updates, state.mu, b2, 1), mu_dtype)
        return out, ScaleByLionState(state.count + 1, mu)

    def init(params: Params) -> State:
        return ScaleByLionState(first_count(params), zeros_of(params, mu_dtype))

    return GradientTransformation(init, update)


class ScaleByRmsState(NamedTuple):
    """State of `scale_by_rms`.

    Attributes:
        count: int32, the number of updates so far.
        nu: the moving average of squares, a pytree like the parameters.
    """

    count: Array  # type: ignore[assignment] # optax's name, also of a tuple's method
    nu: Any


def _by_root(g: Any, square: Any, eps: float, eps_in_sqrt: bool) -> Any:
    return g * ops.rsqrt(square + eps) if eps_in_sqrt else g / (ops.sqrt(square) + eps)


@transformation
def scale_by_rms(
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Return the scaling of RMSProp (Tieleman and Hinton, 2012), by the root of a moving average of squares.

    Args:
        initial_scale: the initial average.
        eps_in_sqrt: add `eps` inside the root; torch adds it outside.
        bias_correction: divide the average by the sum of its weights.

    >>> opt = gt.optim.scale_by_rms(decay=0.75)
    >>> gt.round(opt.update(gt.array([3.0, -0.5]), opt.init(gt.zeros(2)))[0], 4)
    Array([ 2., -2.], dtype=float32)
    """

    def init(params: Params) -> State:
        return ScaleByRmsState(first_count(params), tree.map(lambda p: ops.full_like(p, initial_scale), params))

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        nu, count = moment(updates, state.nu, decay, 2), state.count + 1
        squares = without_bias(nu, decay, count) if bias_correction else nu
        return tree.map(lambda g, n: _by_root(g, n, eps, eps_in_sqrt), updates, squares), ScaleByRmsState(count, nu)

    return GradientTransformation(init, update)


class ScaleByRStdDevState(NamedTuple):
    """State of `scale_by_stddev`.

    Attributes:
        count: int32, the number of updates so far.
        mu, nu: moving averages of gradients and of their squares, pytrees like the parameters.
    """

    count: Array  # type: ignore[assignment] # optax's name, also of a tuple's method
    mu: Any
    nu: Any


@transformation
def scale_by_stddev(
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Return the scaling of centered RMSProp (Graves, 2013), by a moving standard deviation. See `scale_by_rms`.

    >>> opt = gt.optim.scale_by_stddev(decay=0.5)
    >>> gt.round(opt.update(gt.array([3.0, -0.5]), opt.init(gt.zeros(2)))[0], 4)
    Array([ 2., -2.], dtype=float32)
    """

    def init(params: Params) -> State:
        nu = tree.map(lambda p: ops.full_like(p, initial_scale), params)
        return ScaleByRStdDevState(first_count(params), zeros_of(params), nu)

    def update(updates: Updates, state: State, params: Params = None, /) -> tuple[Updates, State]:
        mu, nu = moment(updates, state.mu, decay, 1), moment(updates, state.nu, decay, 2)
        count = state.count + 1
        means, squares = (without_bias(x, decay, count) for x in (mu, nu)) if bias_correction else (mu, nu)
        # rounding can make a variance negative
        variances = tree.map(lambda m, n: ops.maximum(n - m * m, 0), means, squares)
        out = tree.map(lambda g, variance: _by_root(g, variance, eps, eps_in_sqrt), updates, variances)
        return out, ScaleByRStdDevState(count, mu, nu)

    return GradientTransformation(init, update)
