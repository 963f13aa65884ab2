"""Transformer blocks: encoder and decoder layers with normalization before or after, and stacks of them."""

from __future__ import annotations

from typing import Any, ClassVar

from gtrace.extend import ArgumentError, message, ops
from gtrace.nn.layers.attention import KeyValueCache, MultiHeadAttention
from gtrace.nn.layers.base import Module, check_function, check_key, field
from gtrace.nn.layers.linear import Linear
from gtrace.nn.layers.normalization import LayerNorm
from gtrace.nn.regularization import dropout
from gtrace.random.keys import split

__all__ = ["TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer"]

_OPTIONS = """
        Args:
            d_model: the width of x.
            nhead: heads of attention, which divide it.
            dim_feedforward: the width between the two linear maps.
            dropout: the probability that an element is dropped, where the call has a key.
            activation: between the linear maps.
            norm_first: normalize before attention and linear maps, not after them.
            options: `num_kv_heads`, `causal`, `rotary_base` and `rotary_interleaved` of the self-attention: see
                `MultiHeadAttention`.

        Raises:
            ArgumentError: no key, or heads that do not divide.
        """


class _Layer(Module):
    """The common base of encoder and decoder layers."""

    self_attn: MultiHeadAttention
    linear1: Linear
    linear2: Linear
    norm1: LayerNorm
    norm2: LayerNorm
    activation: Any = field(static=True)
    norm_first: bool = field(static=True)
    dropout: float = field(static=True)

    def _make(
        self, d_model: int, nhead: int, dim_feedforward: int, rate: float, activation: Any, layer_norm_eps: float,
        norm_first: bool, bias: bool, dtype: Any, keys: Any, options: dict[str, Any],
    ) -> None:  # fmt: skip
        self.self_attn = MultiHeadAttention(d_model, nhead, rate, bias, dtype=dtype, key=keys[0], **options)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype, key=keys[1])
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype, key=keys[2])
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.activation = check_function(type(self).__name__, "activation", activation)
        self.norm_first, self.dropout = norm_first, rate

    def _drop(self, x: Any, key: Any) -> Any:
        return dropout(x, self.dropout, key, training=key is not None)

    def _add(self, x: Any, norm: LayerNorm, change: Any) -> Any:
        """Return x + change(x), normalized before the change or after the sum."""
        return x + change(norm(x)) if self.norm_first else norm(x + change(x))

    def _attend(self, x: Any, mask: Any, cache: KeyValueCache | None, keys: Any) -> tuple[Any, KeyValueCache | None]:
        """Return x plus its self-attention, and the cache with the keys and values of x; None without a cache."""
        new = None

        def attention(y: Any) -> Any:
            nonlocal new
            out = self.self_attn(y, mask=mask, cache=cache, key=keys[0])
            out, new = out if cache is not None else (out, None)
            return self._drop(out, keys[1])

        return self._add(x, self.norm1, attention), new

    def _feed_forward(self, x: Any, keys: Any) -> Any:
        hidden = self._drop(self.activation(self.linear1(x)), keys[0])
        return self._drop(self.linear2(hidden), keys[1])


class TransformerEncoderLayer(_Layer):
    """Self-attention and two linear maps, each with a residual sum, as torch.nn.TransformerEncoderLayer (batch first).

    With ``causal=True`` and ``norm_first=True`` it is a language model's block.

    >>> layer = gt.nn.TransformerEncoderLayer(16, 4, 32, causal=True, key=gt.random.key(0))
    >>> layer(gt.ones((2, 5, 16))).shape
    (2, 5, 16)
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Any = ops.relu,
        layer_norm_eps: float = 1e-5, norm_first: bool = False, bias: bool = True, *, dtype: Any = None,
        key: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        keys = split(check_key("TransformerEncoderLayer", key), 3)
        self._make(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias, dtype, keys, options
        )

    __init__.__doc__ = f"Make the layer.\n{_OPTIONS}"

    def __call__(self, x: Any, *, mask: Any = None, cache: KeyValueCache | None = None, key: Any = None) -> Any:
        """Return x (..., length, d_model) transformed; with a cache, that and the new cache.

        Args:
            mask, cache: see `MultiHeadAttention`.
            key: for dropout.
        """
        keys = [None] * 4 if key is None else split(key, 4)
        x, new = self._attend(x, mask, cache, keys)
        x = self._add(x, self.norm2, lambda y: self._feed_forward(y, keys[2:]))
        return x if cache is None else (x, new)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory, and two linear maps, as torch.nn.TransformerDecoderLayer (batch first).

    >>> layer = gt.nn.TransformerDecoderLayer(16, 4, 32, key=gt.random.key(0))
    >>> layer(gt.ones((2, 5, 16)), gt.ones((2, 7, 16))).shape
    (2, 5, 16)
    """

    multihead_attn: MultiHeadAttention
    norm3: LayerNorm

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Any = ops.relu,
        layer_norm_eps: float = 1e-5, norm_first: bool = False, bias: bool = True, *, causal: bool = True,
        dtype: Any = None, key: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        keys = split(check_key("TransformerDecoderLayer", key), 4)
        options["causal"] = causal
        self._make(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias, dtype, keys, options
        )
        self.multihead_attn = MultiHeadAttention(d_model, nhead, dropout, bias, dtype=dtype, key=keys[3])
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)

    __init__.__doc__ = f"Make the layer; its self-attention is causal unless ``causal=False``.\n{_OPTIONS}"

    def __call__(
        self, x: Any, memory: Any, *, mask: Any = None, memory_mask: Any = None, cache: KeyValueCache | None = None,
        key: Any = None,
    ) -> Any:  # fmt: skip
        """Return x (..., length, d_model) transformed; with a cache, that and the new cache.

        Args:
            memory: (..., memory length, d_model), such as an encoder's result.
            mask, cache: for the self-attention; see `MultiHeadAttention`.
            memory_mask: for the attention to the memory.
            key: for dropout.
        """
        keys = [None] * 6 if key is None else split(key, 6)

        def attend_to_memory(y: Any) -> Any:
            return self._drop(self.multihead_attn(y, memory, mask=memory_mask, key=keys[2]), keys[3])

        x, new = self._attend(x, mask, cache, keys)
        x = self._add(x, self.norm2, attend_to_memory)
        x = self._add(x, self.norm3, lambda y: self._feed_forward(y, keys[4:]))
        return x if cache is None else (x, new)


class _Stack(Module):
    """A stack of equal layers, with a final normalization.

    Attributes:
        layers: from first to last.
        norm: a `LayerNorm`, or None.
    """

    layer: ClassVar[type[Any]]
    layers: tuple[Any, ...]
    norm: LayerNorm | None

    def __init__(
        self, num_layers: int, d_model: int, nhead: int, dim_feedforward: int = 2048, *, norm: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        """Make `num_layers` layers with these options, and a `norm` after the last.

        Raises:
            ArgumentError: no key, or heads that do not divide.
        """
        args = d_model, nhead, dim_feedforward
        keys = split(check_key(type(self).__name__, options.pop("key", None)), num_layers)
        self.layers = tuple(self.layer(*args, key=keys[k], **options) for k in range(num_layers))
        eps = self.layers[0].norm1.eps if self.layers else 1e-5
        self.norm = LayerNorm(d_model, eps, dtype=options.get("dtype")) if norm else None

    def initial_cache(self, batch: Any, capacity: int, *, dtype: Any = None) -> tuple[KeyValueCache, ...]:
        """Return an empty cache for each layer's self-attention; see `MultiHeadAttention`."""
        return tuple(layer.self_attn.initial_cache(batch, capacity, dtype=dtype) for layer in self.layers)

    def _run(self, x: Any, args: tuple[Any, ...], cache: Any, key: Any, options: dict[str, Any]) -> Any:
        count = len(self.layers)
        if cache is not None and len(cache) != count:
            got = f"{len(cache)} of them"
            fix = "Make them by initial_cache."
            raise ArgumentError(message(f"nn.{type(self).__name__}", f"a cache for each of {count} layers", got, fix))
        keys = [None] * count if key is None else split(key, count)
        caches = []
        for k, layer in enumerate(self.layers):
            x = layer(x, *args, cache=None if cache is None else cache[k], key=keys[k], **options)
            if cache is not None:
                x, extended = x
                caches.append(extended)
        x = x if self.norm is None else self.norm(x)
        return x if cache is None else (x, tuple(caches))


class TransformerEncoder(_Stack, init=False):
    """Encoder layers one after the other, as torch.nn.TransformerEncoder; with ``causal=True`` a language model's.

    >>> model = gt.nn.TransformerEncoder(2, 16, 4, 32, causal=True, norm_first=True, norm=True, key=gt.random.key(0))
    >>> out, cache = model(gt.ones((2, 5, 16)), cache=model.initial_cache(2, 8))
    >>> out.shape, len(cache)
    ((2, 5, 16), 2)
    """

    layer = TransformerEncoderLayer

    def __call__(self, x: Any, *, mask: Any = None, cache: Any = None, key: Any = None) -> Any:
        """Return x (..., length, d_model) transformed; with a cache, that and the new cache.

        Args:
            mask: for all layers; see `MultiHeadAttention`.
            cache: from `initial_cache`, or from the call before.
            key: for dropout.
        """
        return self._run(x, (), cache, key, {"mask": mask})


class TransformerDecoder(_Stack, init=False):
    """Decoder layers one after the other, as torch.nn.TransformerDecoder.

    >>> model = gt.nn.TransformerDecoder(2, 16, 4, 32, key=gt.random.key(0))
    >>> model(gt.ones((2, 5, 16)), gt.ones((2, 7, 16))).shape
    (2, 5, 16)
    """

    layer = TransformerDecoderLayer

    def __call__(
        self, x: Any, memory: Any, *, mask: Any = None, memory_mask: Any = None, cache: Any = None, key: Any = None
    ) -> Any:
        """Return x (..., length, d_model) transformed; with a cache, that and the new cache.

        Args:
            memory: (..., memory length, d_model).
            mask, cache: for the self-attention of all layers.
            memory_mask: for the attention to the memory.
            key: for dropout.
        """
        return self._run(x, (memory,), cache, key, {"mask": mask, "memory_mask": memory_mask})
