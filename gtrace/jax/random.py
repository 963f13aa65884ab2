"""The names of ``jax.random``: those of ``gtrace.random``, with JAX's parameters."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace import config, random
from gtrace.extend import (
    KINDS,
    LONG,
    ArgumentError,
    Array,
    DtypeError,
    KeyType,
    PRNGKeyArray,
    as_dtype,
    cast,
    default_dtype,
    keys_of,
    lift,
    message,
    ops,
    packed_seed,
    replayable,
)
from gtrace.jax import settings
from gtrace.jax.adapt import namespace
from gtrace.random.keys import MASK, key_words, made_key, merged_halves, pack, seeded, unpack

_TAGS = {"threefry": "threefry2x32", "fry": "threefry2x32", "urbg": "unsafe_rbg"}


@replayable
def bits(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Array:
    """``gt.random.bits`` as unsigned integers of a dtype, by default uint32, or uint64 with `x64`.

    Raises:
        DtypeError: another dtype.

    >>> import gtrace.jax as jax
    >>> jax.random.bits(jax.random.key(0), (2,)).dtype
    gtrace.uint32
    """
    default = torch.uint64 if default_dtype(float) is torch.float64 else torch.uint32
    kind = default if dtype is None else as_dtype(dtype)
    if kind not in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        raise DtypeError(message("bits", "an unsigned integer dtype", LONG[kind], "Use view for others."))
    return cast(random.bits(key, shape, 8 * kind.itemsize), kind)


def _kind(name: str, impl: Any, dtype: Any = None) -> KeyType:
    """Return the dtype of keys that the arguments `impl` and `dtype` of a function name.

    Raises:
        ArgumentError: both are given, or there is no such cipher.
    """
    if impl is not None and dtype is not None:
        raise ArgumentError(message(name, "impl or dtype", "both", "Leave one out."))
    spec = dtype if impl is None else impl
    spec = settings.config.jax_default_prng_impl if spec is None else spec
    if isinstance(spec, KeyType):
        return spec
    found = KINDS.get(_TAGS.get(spec, spec)) if isinstance(spec, str) else None
    if found is None:
        raise ArgumentError(message(name, f"a cipher among {', '.join(KINDS)}", repr(spec), "Name one, or none."))
    return found


def _words(keys: Array, count: int) -> Array:
    """Return words of keys as JAX stores them: the two of each key, for `count` 4 twice."""
    return cast(keys if count == 2 else ops.concat([keys, keys], -1), torch.uint32)


def _like(key: Any, made: Any) -> Any:
    """Return keys that were made of a key as typed keys, or as words, as the key is."""
    return made if type(made) is PRNGKeyArray else _words(made, numpy.shape(key)[-1])


def _seeded(name: str, seed: Any) -> Array:
    """Return the words of a seed.

    Raises:
        ArgumentError: the seed is a key.
    """
    if type(seed) is PRNGKeyArray:
        raise ArgumentError(message(name, "an integer as seed", "a key", "Use the key itself, or split it."))
    return seeded(_shortened(seed), _wide(seed))


def _wide(seed: Any) -> bool:
    """Return whether JAX reads a seed as 64 bits."""
    return bool(config.current.x64) and getattr(getattr(seed, "dtype", None), "itemsize", 8) == 8


def _shortened(seed: Any) -> Any:
    """Return an integer seed as JAX reads it, which drops the upper 32 bits without `x64`."""
    if type(seed) is not int and not isinstance(seed, numpy.integer):
        return seed
    seed = int(seed)
    return seed if config.current.x64 or -(1 << 31) <= seed < 1 << 32 else seed & MASK


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> PRNGKeyArray:
    """Return a typed key: an array of keys of shape (), whose dtype is ``key<fry>`` for the cipher threefry2x32.

    Args:
        impl: the cipher; None: that of the setting ``jax_default_prng_impl``. Keys of "rbg" and "unsafe_rbg" have four
            words and split as in JAX, the former into JAX's keys. All keys draw with threefry2x32.
        dtype: the same, as the dtype of other keys.

    Raises:
        ArgumentError: another cipher, or no integer.

    >>> import gtrace.jax as jax
    >>> key = jax.random.key(7)
    >>> key.shape, key.dtype, jax.random.key_data(key).tolist()
    ((), key<fry>, [0, 7])
    """
    kind = _kind("key", impl, dtype)
    if type(seed) is int and -(1 << 63) <= seed < 1 << 63:
        return keys_of(made_key(packed_seed(key_words(_shortened(seed), _wide(seed)))), kind)
    return keys_of(pack(_seeded("key", seed)), kind)


def PRNGKey(seed: Any, *, impl: Any = None) -> Array:  # noqa: N802 - JAX's name
    """Return a key as its words: uint32 of shape (2,), or (4,) for "rbg" and "unsafe_rbg".

    With the setting `jax_enable_custom_prng` it is a typed key.

    Raises:
        ArgumentError: another cipher, or no integer.
    """
    if settings.config.jax_enable_custom_prng:
        return key(seed, impl=impl)
    return _words(_seeded("PRNGKey", seed), _kind("PRNGKey", impl).words)


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> PRNGKeyArray:
    """Return typed keys made of their words.

    Args:
        key_bits_array: uint32 of shape (..., 2), or (..., 4) for "rbg" and "unsafe_rbg". There the last two words
            repeat the first, as in all keys that come from seeds; other words are mixed into such ones.

    Raises:
        ArgumentError: another cipher.
        DtypeError, ShapeError: these are no words of keys.

    >>> import gtrace.jax as jax
    >>> jax.random.wrap_key_data(jax.random.PRNGKey(0)) == jax.random.key(0)
    Array(True, dtype=bool)
    """
    kind = _kind("wrap_key_data", impl, dtype)
    if kind.words == 4 and numpy.shape(key_bits_array)[-1:] == (4,):
        key_bits_array = merged_halves(cast(lift("wrap_key_data", key_bits_array), torch.int64))
    return keys_of(pack(ops.bitwise_and(random.wrap_key_data(key_bits_array), MASK)), kind)


def key_data(keys: Any) -> Array:
    """Return the words of keys, uint32 of shape (..., 2) or (..., 4): of typed keys, or of keys that are their words.

    >>> import gtrace.jax as jax
    >>> jax.random.key_data(jax.random.split(jax.random.key(0), 3)).shape
    (3, 2)
    """
    if type(keys) is PRNGKeyArray:
        return _words(unpack(keys._data), keys.dtype.words)
    return cast(lift("key_data", keys) if numpy.shape(keys)[-1:] == (4,) else random.key_data(keys), torch.uint32)


def key_impl(keys: Any) -> str:
    """Return the name of the cipher of keys; for words, that of the setting ``jax_default_prng_impl``."""
    return str((keys.dtype if type(keys) is PRNGKeyArray else _kind("key_impl", None)).impl)


def key_dtype(impl: Any = None) -> Any:
    """Return the dtype of typed keys.

    >>> key_dtype()
    key<fry>
    """
    return _kind("key_dtype", impl)


@replayable
def split(key: Any, num: Any = 2) -> Array:
    """``gt.random.split``: typed keys of shape (num,) from a typed one, else words, uint32 of shape (num, 2).

    >>> import gtrace.jax as jax
    >>> jax.random.split(jax.random.key(0)).shape, jax.random.split(jax.random.PRNGKey(0)).shape
    ((2,), (2, 2))
    """
    return _like(key, random.split(key, num))


@replayable
def fold_in(key: Any, data: Any) -> Array:
    """``gt.random.fold_in``: a typed key from a typed one, else words, uint32 of shape (2,)."""
    return _like(key, random.fold_in(key, data))


def clone(key: Any) -> Array:
    """Return a copy of a key, which may be used again though the key was.

    >>> import gtrace.jax as jax
    >>> jax.random.clone(jax.random.PRNGKey(1)).tolist()
    [0, 1]
    """
    if type(key) is PRNGKeyArray:
        return keys_of(ops.bitwise_and(key._data, -1), key.dtype)
    return ops.bitwise_and(key_data(key), MASK)


@replayable
def uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, *, out_sharding: Any = None
) -> Array:
    """``gt.random.uniform``. For the shape (), bounds of one element may have axes, and the result has them too.

    >>> import gtrace.jax as jax
    >>> jax.random.uniform(jax.random.key(0), (), minval=jax.numpy.zeros((1,)))
    Array([0.947667], dtype=float32)
    """
    shapes = [numpy.shape(x) for x in (minval, maxval)]
    around = max(shapes, key=len)
    if not around or tuple(numpy.atleast_1d(shape)) or any(set(sizes) - {1} for sizes in shapes):
        return random.uniform(key, shape, dtype, minval, maxval)
    low, high = (ops.reshape(lift("uniform", x), ()) for x in (minval, maxval))
    return ops.reshape(random.uniform(key, shape, dtype, low, high), around)


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
