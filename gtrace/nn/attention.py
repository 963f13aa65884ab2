"""Dot-product attention in the layouts of JAX and torch, composed of matmuls and a softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.extend import (
    FLOATS,
    Array,
    Aval,
    DtypeError,
    NamedFunction,
    ShapeError,
    as_int,
    aval,
    cast,
    lift,
    message,
    ops,
    promote_arrays,
    replayable,
)
from gtrace.nn.common import check_number, floating, widened
from gtrace.nn.regularization import dropout

__all__ = ["dot_product_attention", "rotary_embedding", "scaled_dot_product_attention"]


def as_mask(name: str, mask: Any) -> Array:
    """Return a mask: boolean, or floating, which is added to scores.

    Raises:
        DtypeError: the mask has integers, whose 0 would mask nothing.
    """
    x = lift(name, mask)
    if not (x.aval.floating or x.aval.dtype is torch.bool):
        fix = "Pass mask != 0, true for the keys that take part."
        raise DtypeError(message(name, "a boolean or a floating mask", repr(x.aval), fix))
    return x


def _all(batched: tuple[bool, ...], settings: Any) -> bool:
    return all(batched)


def _results(avals: Sequence[Aval], settings: Any) -> tuple[Aval, ...] | None:
    q, _, v = avals
    if any(a.weak or a.dtype is not q.dtype or a.dtype not in FLOATS for a in avals):
        return None
    return (aval((*q.shape[:-1], v.shape[-1]), q.dtype, q.device),)


def _kernel(avals: Sequence[Aval], settings: Any) -> Callable[..., Any] | None:
    causal, scale, *wanted = settings
    q, k, v = avals[:3]
    same = q.shape[:-2] == k.shape[:-2] and q.shape[-1] == v.shape[-1] and (not causal or q.shape[-2] == k.shape[-2])
    if len(q.shape) != 4 or not same or 0 in (*q.shape, *k.shape) or q.device.type != "cpu":
        return None
    if q.dtype not in (torch.float32, torch.float64):
        return None
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *ct: torch.Tensor) -> list[torch.Tensor]:
        out, sums = forward(q, k, v, 0.0, causal, scale=scale)
        if not ct:
            return [out]
        grads = backward(ct[0], q, k, v, out, sums, 0.0, causal, scale=scale)
        return [g for g, flag in zip(grads, wanted[0], strict=True) if flag]

    return run


_ATTENTION = NamedFunction("attention", _all, _all, _results, _kernel, _kernel)


def _both(a: Array | None, b: Array) -> Array:
    return b if a is None else ops.logical_and(a, b)


def _fit(name: str, what: str, x: Array, shape: tuple[int, ...]) -> Array:
    """Return x after checking that it broadcasts to the scores.

    Raises:
        ShapeError: it does not.
    """
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    if len(padded) != len(shape) or any(n not in (1, m) for n, m in zip(padded, shape, strict=True)):
        fix = "The scores are (batch, heads, queries, keys)."
        raise ShapeError(message(name, f"a {what} that broadcasts to {shape}", repr(x.aval), fix))
    return x


def _attend(
    name: str,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    causal: bool,
    scale: Any,
    rate: float = 0.0,
    draws: Any = None,
) -> Array:
    """Return attention with heads before positions: (..., heads, queries, depth); keys may have fewer heads.

    `bias` and `mask` broadcast to the scores, (..., heads, queries, keys). If a mask hides every key of a query, or
    all its scores are minus infinity, its result is 0. Weights are dropped at `rate`, by the key `draws`.
    """
    if bias is None and mask is None and not rate:
        factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else 1.0
        rows = query if scale is None else query * scale  # a number that changes stays outside

        def attend(operands: Sequence[Array]) -> list[Array]:
            q, k, v = operands
            return [_weighted(_scores(name, q if scale is not None else q * factor, k, None, None, causal), v)]

        return _ATTENTION(attend, [rows, key, value], causal, factor)[0]
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return _weighted(_scores(name, query * factor, key, bias, mask, causal), value, rate, draws)


def _scores(name: str, query: Array, key: Array, bias: Array | None, mask: Array | None, causal: bool) -> Array:
    """Return the scores of queries that the scale has multiplied, minus infinity where hidden; see `_attend`."""
    earlier = _causal(query.shape[-2], key.shape[-2], query.aval.device) if causal else None
    *batch, heads, queries, depth = query.shape
    groups, keys = key.shape[-3:-1]
    # the queries of a group of heads, one after the other, share keys and values, so nothing is repeated
    rows = ops.reshape(query, (*batch, groups, heads // max(groups, 1) * queries, depth))
    scores = ops.reshape(widened(rows @ ops.matrix_transpose(key)), (*batch, heads, queries, keys))
    if bias is not None:
        scores = scores + _fit(name, "bias", bias, scores.shape)
    for visible in (None if mask is None else _fit(name, "mask", mask, scores.shape), earlier):
        if visible is not None:
            scores = ops.where(visible, scores, -math.inf)
    return scores


def _weighted(scores: Array, value: Array, rate: float = 0.0, draws: Any = None) -> Array:
    """Return the means of values, weighted by the softmax of scores; see `_attend`."""
    *batch, heads, queries, keys = scores.shape
    groups = value.shape[-3]
    # a row of minus infinity alone has no weights, as in torch's kernels
    seen = ops.any(scores != -math.inf, -1, keepdims=True)
    weights = ops.where(seen, ops.softmax(ops.where(seen, scores, 0.0)), 0.0)
    weights = dropout(cast(weights, value.aval.dtype), rate, draws, training=rate > 0)
    out = ops.reshape(weights, (*batch, groups, heads // max(groups, 1) * queries, keys)) @ value
    return ops.reshape(out, (*batch, heads, queries, value.shape[-1]))


def _check(name: str, query: Array, key: Array, value: Array, heads: int, length: int, grouped: bool) -> None:
    """Raise for operands that do not fit; `heads` and `length` are the axes of heads and positions.

    Raises:
        ShapeError: names the operands.
    """
    got = f"{query.aval!r}, {key.aval!r} and {value.aval!r}"
    if not query.ndim == key.ndim == value.ndim or query.ndim < 3:
        raise ShapeError(message(name, "query, key and value of as many axes, at least 3", got, "Add axes of size 1."))
    if query.shape[-1] != key.shape[-1] or not query.shape[-1]:
        raise ShapeError(message(name, "query and key of one depth", got, "It is the last axis."))
    if key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(message(name, "key and value that agree in all but the depth", got, "Check the sizes."))
    places = {heads % query.ndim, length % query.ndim, query.ndim - 1}
    if any(query.shape[k] != key.shape[k] for k in range(query.ndim) if k not in places):
        raise ShapeError(message(name, "query and key of one batch", got, "Broadcast them first."))
    fits = query.shape[heads] % max(key.shape[heads], 1) == 0 if grouped else query.shape[heads] == key.shape[heads]
    if not fits:
        expected = "key heads that divide the query heads" if grouped else "as many query heads as key heads"
        raise ShapeError(message(name, expected, got, "" if grouped else "Or pass enable_gqa=True."))


def _causal(queries: int, keys: int, device: torch.device) -> Array:
    return ops.expand_dims(ops.arange(queries, device=device), 1) >= ops.arange(keys, device=device)


@replayable
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: Any = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: Any = None,
    return_residual: bool = False,
) -> Any:
    """Return softmax(query @ key * scale + bias) @ value by head (Vaswani et al., 2017), as jax.nn.

    If a mask hides every key of a query, its result is 0, as in torch. JAX without a kernel returns the mean of all
    values. Scores of 16-bit floats are computed in float32.

    Args:
        query: floating, (batch, queries, heads, depth); all operands may lack the batch.
        key: (batch, keys, key heads, depth). Key heads divide the heads; consecutive heads share one.
        value: (batch, keys, key heads, value depth).
        bias: added to the scores; broadcasts to (batch, heads, queries, keys).
        mask: boolean, true for visible keys; broadcasts likewise.
        scale: a factor of the scores; None: 1 / sqrt(depth).
        is_causal: a query at position i sees the keys at positions up to i.
        query_seq_lengths, key_value_seq_lengths: integers, (batch,). Later keys are hidden, and later results are 0.
        local_window_size: how far visible keys may be before and after a query: an int, or a pair.
        return_residual: return the result with the logarithm of the sum of the exponentials of a query's scores,
            (batch, queries, heads). It is minus infinity for a query that sees no key.

    Raises:
        ShapeError: shapes do not fit.

    >>> q, k = gt.zeros((1, 2, 4, 8)), gt.zeros((1, 2, 2, 8))
    >>> v = gt.broadcast_to(gt.array([[[[1.]], [[3.]]]]), (1, 2, 2, 8))
    >>> gt.nn.dot_product_attention(q, k, v, is_causal=True)[0, :, 0, 0]
    Array([1., 2.], dtype=float32)
    """
    name = "dot_product_attention"
    query, key, value = promote_arrays(name, query, key, value, floating=True)
    _check(name, query, key, value, heads=-2, length=-3, grouped=True)
    if query.ndim > 4:
        raise ShapeError(message(name, "at most 4 axes", repr(query.aval), "Use gt.vmap for more."))
    batch = query.shape[0] if query.ndim == 4 else 1
    device, queries, keys = query.device, query.shape[-3], key.shape[-3]
    keep = None if mask is None else lift(name, mask)
    if keep is not None and keep.aval.dtype is not torch.bool:
        fix = "Pass mask != 0, true for the keys that take part; numbers that are added to scores are the bias."
        raise DtypeError(message(name, "a boolean mask", repr(keep.aval), fix))
    if local_window_size is not None:
        pair = local_window_size if isinstance(local_window_size, (tuple, list)) else (local_window_size,) * 2
        before, after = (as_int(name, "local_window_size", n) for n in pair)
        distance = ops.arange(keys, device=device) - ops.expand_dims(ops.arange(queries, device=device), 1)
        keep = _both(keep, ops.logical_and(distance >= -before, distance <= after))
    for lengths, places in (
        (query_seq_lengths, ops.expand_dims(ops.arange(queries, device=device), 1)),
        (key_value_seq_lengths, ops.arange(keys, device=device)),
    ):
        if lengths is not None:
            counts = lift(name, lengths)
            if counts.shape != (batch,):
                raise ShapeError(message(name, f"lengths of shape {(batch,)}", repr(counts.aval), "One an example."))
            counts = ops.reshape(counts, (batch, 1, 1, 1) if query.ndim == 4 else (1, 1, 1))
            keep = _both(keep, places < counts)
    q, k, v = (ops.swapaxes(x, -2, -3) for x in (query, key, value))
    added = None if bias is None else lift(name, bias)
    if not return_residual:
        return ops.swapaxes(_attend(name, q, k, v, added, keep, is_causal, scale), -2, -3)
    scores = _scores(name, q * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale), k, added, keep, is_causal)
    residual = cast(ops.logsumexp(scores, -1), key.aval.dtype)
    return ops.swapaxes(_weighted(scores, v), -2, -3), ops.swapaxes(residual, -1, -2)


@replayable
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    *,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    dropout_key: Any = None,
) -> Array:
    """Return softmax(query @ key.mT * scale + attn_mask) @ value, as torch.nn.functional.

    If a mask hides every key of a query, or all its scores are minus infinity, its result is 0. Scores of 16-bit
    floats are computed in float32.

    Args:
        query: floating, (..., heads, queries, depth).
        key: (..., heads, keys, depth).
        value: (..., heads, keys, value depth).
        attn_mask: boolean, true for visible keys; or floating, added to the scores. It broadcasts to
            (..., heads, queries, keys).
        is_causal: a query at position i sees the keys at positions up to i.
        scale: a factor of the scores; None: 1 / sqrt(depth).
        enable_gqa: key and value may have fewer heads, whose number divides that of the query.
        dropout_p: the probability that a weight of the softmax is dropped, in [0, 1].
        dropout_key: a key for dropout, used up.

    Raises:
        ShapeError: shapes do not fit.
        ArgumentError: `dropout_p` is outside [0, 1], or above 0 without a key.

    >>> x = gt.zeros((1, 2, 3, 4))
    >>> gt.nn.scaled_dot_product_attention(x, x, x + 1.0).shape
    (1, 2, 3, 4)
    """
    name = "scaled_dot_product_attention"
    query, key, value = promote_arrays(name, query, key, value, floating=True)
    if query.ndim == key.ndim == value.ndim == 2:  # one head
        q, k, v = (ops.expand_dims(x, 0) for x in (query, key, value))
        out = scaled_dot_product_attention(
            q, k, v, attn_mask, is_causal=is_causal, scale=scale, dropout_p=dropout_p, dropout_key=dropout_key
        )
        return ops.reshape(out, out.shape[1:])
    _check(name, query, key, value, heads=-3, length=-2, grouped=enable_gqa)
    bias = keep = None
    if attn_mask is not None:
        given = as_mask(name, attn_mask)
        bias, keep = (None, given) if given.aval.dtype is torch.bool else (given, None)
    rate = check_number(name, "dropout_p", dropout_p, 0.0, 1.0)
    return _attend(name, query, key, value, bias, keep, is_causal, scale, rate, dropout_key)


@replayable
def rotary_embedding(x: Any, positions: Any = None, *, base: float = 10000.0, interleaved: bool = False) -> Array:
    """Return x with pairs of its numbers rotated by angles that grow with the position (Su et al., 2021).

    Pair i of an array of depth d, at position p, is rotated by p / base ** (2 i / d). So the product of a query and a
    key depends on the distance of their positions. Angles are computed in float32, or in float64 for such x.

    Args:
        x: floating, (..., length, depth), with even depth.
        positions: integers, (length,), or broadcasting to (..., length); None: 0, 1, 2, ...
        base: the base of the angles.
        interleaved: pairs are neighbours, as in the paper. Otherwise they are numbers i and i + depth / 2, as in most
            published weights.

    Raises:
        ShapeError: there are fewer than two axes, or the depth is odd.

    >>> gt.round(gt.nn.rotary_embedding(gt.array([[1., 0.], [1., 0.]])), 4)
    Array([[1.    , 0.    ],
           [0.5403, 0.8415]], dtype=float32)
    """
    x = floating("rotary_embedding", x)
    if x.ndim < 2 or x.shape[-1] % 2:
        fix = "The axes are (..., length, depth)."
        raise ShapeError(message("rotary_embedding", "an even depth on the last of two axes", repr(x.aval), fix))
    length, half = x.shape[-2], x.shape[-1] // 2
    wide = widened(x)
    kind = wide.aval.dtype
    steps = ops.arange(half, dtype=kind, device=x.aval.device) * (-math.log(base) / max(half, 1))
    places = ops.arange(length, device=x.aval.device) if positions is None else lift("rotary_embedding", positions)
    angles = ops.expand_dims(cast(places, kind), -1) * ops.exp(steps)
    turned_cos, turned_sin = ops.cos(angles), ops.sin(angles)
    if interleaved:
        pairs = ops.reshape(wide, (*x.shape[:-1], half, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        out = ops.reshape(ops.stack((a * turned_cos - b * turned_sin, a * turned_sin + b * turned_cos), -1), x.shape)
    else:
        a, b = wide[..., :half], wide[..., half:]
        out = ops.concat((a * turned_cos - b * turned_sin, a * turned_sin + b * turned_cos), -1)
    return cast(out, x.aval.dtype)
