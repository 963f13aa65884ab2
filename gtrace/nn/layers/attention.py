"""Multi-head attention with grouped queries, rotary positions and a cache of keys and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gtrace.extend import ArgumentError, Array, ShapeError, cast, message, ops, slice_axis
from gtrace.nn.attention import as_mask, rotary_embedding, scaled_dot_product_attention
from gtrace.nn.common import floating
from gtrace.nn.layers.base import Module, check_key, default_dtype, field
from gtrace.nn.layers.linear import Linear, linear
from gtrace.random.continuous import uniform
from gtrace.random.keys import split

__all__ = ["KeyValueCache", "MultiHeadAttention"]


class KeyValueCache(Module):
    """The keys and values of earlier positions, in arrays of fixed size, so that every step is the same program.

    Attributes:
        keys, values: (..., kv_heads, capacity, depth).
        length: int64, the number of filled positions.
    """

    keys: Array
    values: Array
    length: Array

    def positions(self, count: int) -> Array:
        """Return the positions of the next `count` tokens. A position beyond the capacity raises at the run."""
        return ops.take(
            ops.arange(self.keys.shape[-2], device=self.keys.aval.device), self.length + ops.arange(count), mode="raise"
        )

    def extended(self, keys: Array, values: Array, positions: Array) -> KeyValueCache:
        """Return the cache with additional keys and values (..., kv_heads, n, depth) at positions (n,)."""
        places = (..., positions, slice(None))
        return KeyValueCache(
            self.keys.at[places].set(cast(keys, self.keys.aval.dtype)),
            self.values.at[places].set(cast(values, self.values.aval.dtype)),
            self.length + keys.shape[-2],
        )


class MultiHeadAttention(Module):
    """Attention by several heads (Vaswani et al., 2017), with the parameters of torch.nn.MultiheadAttention.

    If there are fewer heads of keys and values than of queries, heads share them (Ainslie et al., 2023). The
    projections of queries, keys and values are one array, so self-attention projects with one matmul.

    Attributes:
        in_proj_weight: ((num_heads + 2 * num_kv_heads) * depth, embed_dim), with rows of queries, keys and values in
            this order.
        in_proj_bias: one number per row, or None.
        out_proj: the `Linear` map of the result.

    >>> attention = gt.nn.MultiHeadAttention(8, 2, causal=True, rotary_base=10000.0, key=gt.random.key(0))
    >>> x = gt.random.normal(gt.random.key(1), (1, 3, 8))
    >>> whole = attention(x)
    >>> cache = attention.initial_cache(1, 16)
    >>> first, cache = attention(x[:, :2], cache=cache)
    >>> last, cache = attention(x[:, 2:], cache=cache)
    >>> gt.numpy.allclose(gt.concat((first, last), axis=1), whole, atol=1e-6)
    Array(True, dtype=bool)
    """

    in_proj_weight: Array
    in_proj_bias: Array | None
    out_proj: Linear
    num_heads: int = field(static=True)
    num_kv_heads: int = field(static=True)
    causal: bool = field(static=True)
    rotary_base: float | None = field(static=True)
    rotary_interleaved: bool = field(static=True)
    dropout: float = field(static=True)

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, *,
        num_kv_heads: int | None = None, causal: bool = False, rotary_base: float | None = None,
        rotary_interleaved: bool = False, dtype: Any = None, key: Any = None,
    ) -> None:  # fmt: skip
        """Sample the weights uniformly, as Glorot and Bengio (2010); biases are 0.

        Args:
            embed_dim: the width of x and of the result; a multiple of `num_heads`.
            dropout: the probability that a weight of the softmax is dropped, if the call has a key.
            num_kv_heads: heads of keys and values, a divisor of `num_heads`; None: `num_heads`.
            causal: a position sees only positions up to it.
            rotary_base: rotate queries and keys by `gt.nn.rotary_embedding` with this base, such as 10000.0.
            rotary_interleaved: the option `interleaved` of `gt.nn.rotary_embedding`.

        Raises:
            ArgumentError: there is no key, or numbers of heads do not divide.
        """
        name = "nn.MultiHeadAttention"
        groups = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or embed_dim % num_heads or groups < 1 or num_heads % groups:
            expected = "num_heads that divide embed_dim, and num_kv_heads that divide num_heads"
            got = f"{embed_dim=}, {num_heads=}, num_kv_heads={groups}"
            raise ArgumentError(message(name, expected, got, "Change one of them."))
        depth = embed_dim // num_heads
        rows = (num_heads + 2 * groups) * depth
        one, other = split(check_key("MultiHeadAttention", key))
        bound = math.sqrt(6.0 / (rows + embed_dim))
        kind = default_dtype(dtype)
        self.in_proj_weight = uniform(one, (rows, embed_dim), kind, -bound, bound)
        self.in_proj_bias = ops.zeros((rows,), kind) if bias else None
        out = Linear(embed_dim, embed_dim, bias, dtype=dtype, key=other)
        self.out_proj = out.replace(bias=ops.zeros((embed_dim,), kind)) if bias else out
        self.num_heads, self.num_kv_heads, self.causal, self.dropout = num_heads, groups, causal, dropout
        self.rotary_base, self.rotary_interleaved = rotary_base, rotary_interleaved

    def initial_cache(self, batch: int | Sequence[int], capacity: int, *, dtype: Any = None) -> KeyValueCache:
        """Return an empty cache for `capacity` positions of an x with these leading axes."""
        axes = (batch,) if isinstance(batch, int) else tuple(batch)
        depth = self.in_proj_weight.shape[1] // self.num_heads
        shape = (*axes, self.num_kv_heads, capacity, depth)
        kind = self.in_proj_weight.aval.dtype if dtype is None else dtype
        return KeyValueCache(ops.zeros(shape, kind), ops.zeros(shape, kind), ops.zeros((), "int64"))

    def __call__(
        self, query: Any, keys: Any = None, values: Any = None, *, mask: Any = None, cache: KeyValueCache | None = None,
        key: Any = None,
    ) -> Any:  # fmt: skip
        """Return (..., queries, embed_dim); with a cache, that and the new cache.

        Args:
            query: (..., queries, embed_dim).
            keys: (..., keys, embed_dim); None: `query`.
            values: likewise; None: `keys`.
            mask: boolean, true for visible keys, the opposite of masks of torch's module; or floating, added to the
                scores. It broadcasts to (..., heads, queries, keys); with a cache, to its capacity.
            cache: the cache of earlier positions; queries and keys are the next positions.
            key: for dropout.

        Raises:
            ShapeError: shapes do not fit.
            ExecutionError: (at the run) the cache is full.
        """
        if cache is not None and keys is not None:
            fix = "Pass keys without a cache: they are projected anew."
            raise ArgumentError(message("nn.MultiHeadAttention", "a cache with self-attention only", "keys", fix))
        q, k, v = self._projected(query, keys, values)
        positions = None if cache is None else cache.positions(q.shape[-2])
        if self.rotary_base is not None:
            base, interleaved = self.rotary_base, self.rotary_interleaved
            q, k = (rotary_embedding(x, positions, base=base, interleaved=interleaved) for x in (q, k))
        causal = self.causal
        if cache is not None and positions is not None:
            cache = cache.extended(k, v, positions)
            k, v = cache.keys, cache.values
            places = ops.arange(k.shape[-2], device=k.aval.device)
            visible = places <= ops.expand_dims(positions, 1) if causal else places < cache.length
            mask, causal = visible if mask is None else _visible(mask, visible), False
        rate = 0.0 if key is None else self.dropout
        heads = scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, enable_gqa=True, dropout_p=rate, dropout_key=key
        )
        merged = ops.swapaxes(heads, -2, -3)
        out = self.out_proj(ops.reshape(merged, (*merged.shape[:-2], self.in_proj_weight.shape[1])))
        return out if cache is None else (out, cache)

    def _projected(self, query: Any, keys: Any, values: Any) -> list[Array]:
        """Return queries, keys and values, projected: (..., heads, length, depth)."""
        name = "nn.MultiHeadAttention"
        width = self.in_proj_weight.shape[1]
        given = [floating(name, x) for x in (query, keys, values) if x is not None]
        for x in given:
            if x.ndim < 2 or x.shape[-1] != width:
                fix = "The axes are (..., length, embed_dim)."
                raise ShapeError(message(name, f"embed_dim {width} on the last of two axes", repr(x.aval), fix))
        depth = width // self.num_heads
        counts = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        ends = [sum(counts[: k + 1]) * depth for k in range(3)]
        parts = list(zip([0, *ends], ends, strict=False))
        if len(given) == 1:
            whole = linear(given[0], self.in_proj_weight, self.in_proj_bias)
            rows = [slice_axis(whole, whole.ndim - 1, *part) for part in parts]
        else:
            operands = given if len(given) == 3 else [*given, given[1]]
            rows = [
                linear(
                    x,
                    slice_axis(self.in_proj_weight, 0, *part),
                    None if self.in_proj_bias is None else slice_axis(self.in_proj_bias, 0, *part),
                )
                for x, part in zip(operands, parts, strict=True)
            ]
        return [
            ops.swapaxes(ops.reshape(x, (*x.shape[:-1], count, depth)), -2, -3)
            for x, count in zip(rows, counts, strict=True)
        ]


def _visible(mask: Any, visible: Array) -> Array:
    """Return a mask, boolean or added to scores, that also hides keys that are not visible."""
    given = as_mask("nn.MultiHeadAttention", mask)
    return ops.logical_and(given, visible) if given.aval.dtype is torch.bool else ops.where(visible, given, -math.inf)
