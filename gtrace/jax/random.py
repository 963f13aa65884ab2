"""The names of ``jax.random``: those of ``gtrace.random``, with JAX's parameters."""

from __future__ import annotations

from typing import Any

import torch

from gtrace import random
from gtrace.core import ops
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.key_arrays import KEY, PRNGKeyArray, keys_of, packed_seed
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.core.trace.promotion import as_dtype, default_dtype
from gtrace.core.trace.replayable import replayable
from gtrace.jax.adapt import namespace
from gtrace.random.keys import MASK, key_words, made_key, pack, unpack


@replayable
def bits(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """``gt.random.bits`` as unsigned integers of a dtype, by default uint32, or uint64 with `x64`.

    >>> import gtrace.jax as jax
    >>> jax.random.bits(jax.random.key(0), (2,)).dtype
    gtrace.uint32
    """
    default = torch.uint64 if default_dtype(float) is torch.float64 else torch.uint32
    kind = default if dtype is None else as_dtype(dtype)
    return cast(random.bits(key, shape, 8 * kind.itemsize), kind)


def _checked(name: str, impl: Any) -> None:
    if impl not in (None, "threefry2x32", "threefry", "fry", KEY):
        raise ArgumentError(message(name, "threefry2x32 or None as impl", repr(impl), "There is one cipher."))


def _as_uint32(keys: Array) -> Array:
    """Return words of keys as JAX stores them."""
    return cast(keys, torch.uint32)


def _seeded(name: str, seed: Any) -> Array:
    """Return the words of a seed.

    Raises:
        ArgumentError: the seed is a key.
    """
    if type(seed) is PRNGKeyArray:
        raise ArgumentError(message(name, "an integer as seed", "a key", "Use the key itself, or split it."))
    return random.key(_shortened(seed) if type(seed) is int else seed)


def _shortened(seed: int) -> int:
    """Return a seed as JAX reads it, which drops the upper 32 bits without `x64`."""
    return seed if config.current.x64 or -(1 << 31) <= seed < 1 << 32 else seed & MASK


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> PRNGKeyArray:
    """Return a typed key: an array of keys of shape (), whose dtype is ``key<fry>``. The cipher is threefry2x32.

    Raises:
        ArgumentError: another cipher, or no integer.

    >>> import gtrace.jax as jax
    >>> key = jax.random.key(7)
    >>> key.shape, key.dtype, jax.random.key_data(key).tolist()
    ((), key<fry>, [0, 7])
    """
    _checked("key", impl)
    if type(seed) is int and -(1 << 63) <= seed < 1 << 63:
        return keys_of(made_key(packed_seed(key_words(_shortened(seed)))))
    return keys_of(pack(_seeded("key", seed)))


def PRNGKey(seed: Any, *, impl: Any = None) -> Array:  # noqa: N802 - JAX's name
    """Return a key as its words: uint32 of shape (2,); the cipher is threefry2x32.

    Raises:
        ArgumentError: another cipher, or no integer.
    """
    _checked("PRNGKey", impl)
    return _as_uint32(_seeded("PRNGKey", seed))


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> PRNGKeyArray:
    """Return typed keys made of their words.

    Args:
        key_bits_array: uint32 of shape (..., 2).

    Raises:
        ArgumentError: another cipher.
        DtypeError, ShapeError: these are no words of keys.

    >>> import gtrace.jax as jax
    >>> jax.random.wrap_key_data(jax.random.PRNGKey(0)) == jax.random.key(0)
    Array(True, dtype=bool)
    """
    _checked("wrap_key_data", impl)
    return keys_of(pack(ops.bitwise_and(random.wrap_key_data(key_bits_array), MASK)))


def key_data(keys: Any) -> Array:
    """Return the words of keys, uint32 of shape (..., 2): of typed keys, or of keys that are their words.

    >>> import gtrace.jax as jax
    >>> jax.random.key_data(jax.random.split(jax.random.key(0), 3)).shape
    (3, 2)
    """
    return _as_uint32(unpack(keys._data) if type(keys) is PRNGKeyArray else random.key_data(keys))


def key_impl(keys: Any) -> str:
    """Return the name of the cipher of keys, which is always "threefry2x32"."""
    return "threefry2x32" if type(keys) is PRNGKeyArray else random.key_impl(keys)


def key_dtype(impl: Any = None) -> Any:
    """Return the dtype of typed keys.

    >>> key_dtype()
    key<fry>
    """
    _checked("key_dtype", impl)
    return KEY


@replayable
def split(key: Any, num: Any = 2) -> Array:
    """``gt.random.split``: typed keys of shape (num,) from a typed one, else words, uint32 of shape (num, 2).

    >>> import gtrace.jax as jax
    >>> jax.random.split(jax.random.key(0)).shape, jax.random.split(jax.random.PRNGKey(0)).shape
    ((2,), (2, 2))
    """
    made = random.split(key, num)
    return made if type(made) is PRNGKeyArray else _as_uint32(made)


@replayable
def fold_in(key: Any, data: Any) -> Array:
    """``gt.random.fold_in``: a typed key from a typed one, else words, uint32 of shape (2,)."""
    made = random.fold_in(key, data)
    return made if type(made) is PRNGKeyArray else _as_uint32(made)


def clone(key: Any) -> Array:
    """Return a copy of a key, which may be used again though the key was.

    >>> import gtrace.jax as jax
    >>> jax.random.clone(jax.random.PRNGKey(1)).tolist()
    [0, 1]
    """
    if type(key) is PRNGKeyArray:
        return keys_of(ops.bitwise_and(key._data, -1))
    return _as_uint32(random.wrap_key_data(random.key_data(key)))


@replayable
def choice(
    key: Any, a: Any, shape: Any = (), replace: bool = True, p: Any = None, axis: int = 0, mode: str | None = None, *,
    out_sharding: Any = None,
) -> Array:  # fmt: skip
    """``gt.random.choice``; `a` may be an array of keys."""
    if type(a) is PRNGKeyArray:
        places = random.choice(key, a.shape[axis], shape, replace, p, mode=mode or "low")
        return a[(slice(None),) * (axis % a.ndim) + (places,)]
    return random.choice(key, a, shape, replace, p, axis, mode or "low")


__getattr__, __dir__ = namespace("jax.random", random)
