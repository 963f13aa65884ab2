"""Optimizers: chains of transformations with optax's names, arguments and defaults."""

from __future__ import annotations

from typing import Any

from gtrace.optim.base import GradientTransformation
from gtrace.optim.clipping import clip_by_block_rms
from gtrace.optim.combining import chain, identity
from gtrace.optim.factorized import scale_by_factored_rms
from gtrace.optim.moments import ema, scale_by_adam, scale_by_lion, scale_by_rms, scale_by_stddev, trace
from gtrace.optim.replayed import transformation
from gtrace.optim.scaling import add_decayed_weights, scale, scale_by_learning_rate, scale_by_param_block_rms

__all__ = ["adafactor", "adam", "adamw", "lion", "rmsprop", "sgd"]


@transformation
def sgd(
    learning_rate: Any, momentum: float | None = None, nesterov: bool = False, accumulator_dtype: Any = None
) -> GradientTransformation:
    """Return gradient descent; with momentum, unless that is None.

    Args:
        learning_rate: a number or a schedule.
        momentum, nesterov, accumulator_dtype: see `trace`.

    >>> opt = gt.optim.sgd(0.1, momentum=0.9)
    >>> params = gt.array(1.0)
    >>> state = opt.init(params)
    >>> for _ in range(100):
    ...     updates, state = opt.update(gt.grad(lambda p: p**2)(params), state)
    ...     params = gt.optim.apply_updates(params, updates)
    >>> abs(float(params)) < 0.02
    True
    """
    first = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(first, scale_by_learning_rate(learning_rate))


@transformation
def adam(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Return Adam (Kingma and Ba, 2014); see `scale_by_adam`.

    >>> opt = gt.optim.adam(0.1)
    >>> updates, state = opt.update(gt.array([3.0, -0.01]), opt.init(gt.zeros(2)))
    >>> gt.round(updates, 4)
    Array([-0.1,  0.1], dtype=float32)
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov), scale_by_learning_rate(learning_rate)
    )


@transformation
def adamw(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: Any = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Return Adam with decoupled weight decay (Loshchilov and Hutter, 2017).

    Args:
        b1, b2, eps, eps_root, mu_dtype, nesterov: see `scale_by_adam`.
        weight_decay, mask: see `add_decayed_weights`. The decay is multiplied by the learning rate. torch's is 1e-2.

    >>> params = gt.array([1.0, -1.0])
    >>> opt = gt.optim.adamw(0.1, weight_decay=0.5)
    >>> gt.round(opt.update(gt.array([3.0, 3.0]), opt.init(params), params)[0], 4)
    Array([-0.15, -0.05], dtype=float32)
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


@transformation
def lion(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: Any = None,
    weight_decay: Any = 1e-3,
    mask: Any = None,
) -> GradientTransformation:
    """Return Lion (Chen et al., 2023); see `scale_by_lion` and `add_decayed_weights`.

    >>> params = gt.array([1.0, -1.0])
    >>> opt = gt.optim.lion(0.1, weight_decay=0.5)
    >>> gt.round(opt.update(gt.array([3.0, -0.1]), opt.init(params), params)[0], 4)
    Array([-0.15,  0.15], dtype=float32)
    """
    return chain(
        scale_by_lion(b1, b2, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


@transformation
def rmsprop(
    learning_rate: Any,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Return RMSProp (Tieleman and Hinton, 2012).

    Args:
        decay, eps, initial_scale, eps_in_sqrt, bias_correction: see `scale_by_rms`.
        centered: divide by the standard deviation; see `scale_by_stddev`.
        momentum, nesterov: for the updates; see `trace`.

    >>> opt = gt.optim.rmsprop(0.1, decay=0.75)
    >>> gt.round(opt.update(gt.array([3.0, -0.5]), opt.init(gt.zeros(2)))[0], 4)
    Array([-0.2,  0.2], dtype=float32)
    """
    scaling = scale_by_stddev if centered else scale_by_rms
    return chain(
        scaling(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
        identity() if momentum is None else trace(momentum, nesterov),
    )


@transformation
def adafactor(
    learning_rate: Any = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: float = 0.8,
    decay_offset: int = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: float | None = 1.0,
    momentum: float | None = None,
    dtype_momentum: Any = "float32",
    weight_decay_rate: Any = None,
    eps: float = 1e-30,
    factored: bool = True,
    weight_decay_mask: Any = None,
) -> GradientTransformation:
    """Return Adafactor (Shazeer and Stern, 2018).

    Args:
        learning_rate: a number, a schedule, or None for 1.
        min_dim_size_to_factor, decay_rate, decay_offset, eps, factored: see `scale_by_factored_rms`.
        multiply_by_parameter_scale: see `scale_by_param_block_rms`.
        clipping_threshold: see `clip_by_block_rms`; None: no limit.
        momentum, dtype_momentum: for the updates; see `ema`.
        weight_decay_rate, weight_decay_mask: see `add_decayed_weights`. The learning rate does not scale the decay.

    >>> params = gt.array([3.0, 4.0])
    >>> opt = gt.optim.adafactor(0.1)
    >>> gt.round(opt.update(gt.array([0.5, -2.0]), opt.init(params), params)[0], 4)
    Array([-0.3536,  0.3536], dtype=float32)
    """
    parts = [scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)]
    if clipping_threshold is not None:
        parts.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        parts.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        parts.append(scale_by_param_block_rms())
    if momentum is not None:
        parts.append(ema(momentum, debias=False, accumulator_dtype=dtype_momentum))
    if weight_decay_rate is not None:
        parts.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*parts, scale(-1))
