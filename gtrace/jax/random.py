"""The names of ``jax.random``: those of ``gtrace.random``, with JAX's parameters."""

from __future__ import annotations

from typing import Any

import torch

from gtrace import random
from gtrace.errors import ArgumentError, message
from gtrace.jax.adapt import namespace
from gtrace.ops.promote import cast
from gtrace.trace.array import Array
from gtrace.trace.promotion import as_dtype, default_dtype


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
    if impl not in (None, "threefry2x32", "threefry", random.key_impl(random.key(0))):
        raise ArgumentError(message(name, "threefry2x32 or None as impl", repr(impl), "There is one cipher."))


def _words(keys: Array) -> Array:
    """Return keys as JAX stores them, as uint32."""
    return cast(keys, torch.uint32)


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Array:
    """``gt.random.key``, as uint32 like `PRNGKey`; the cipher is threefry2x32.

    Raises:
        ArgumentError: another cipher.
    """
    _checked("key", impl)
    return _words(random.key(seed))


def PRNGKey(seed: Any, *, impl: Any = None) -> Array:  # noqa: N802 - JAX's name
    """``gt.random.PRNGKey``, as `key`."""
    _checked("PRNGKey", impl)
    return _words(random.PRNGKey(seed))


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Array:
    """``gt.random.wrap_key_data``, as `key`."""
    _checked("wrap_key_data", impl)
    return _words(random.wrap_key_data(key_bits_array))


def key_data(keys: Any) -> Array:
    """Return the words of keys: the keys themselves, as uint32."""
    return _words(random.key_data(keys))


def split(key: Any, num: Any = 2) -> Array:
    """``gt.random.split``, as uint32.

    >>> import gtrace.jax as jax
    >>> jax.random.split(jax.random.key(0)).dtype == "uint32"
    True
    """
    return _words(random.split(key, num))


def fold_in(key: Any, data: Any) -> Array:
    """``gt.random.fold_in``, as uint32."""
    return _words(random.fold_in(key, data))


def clone(key: Any) -> Array:
    """Return a copy of a key, which may be used again though the key was.

    >>> import gtrace.jax as jax
    >>> jax.random.clone(jax.random.key(1)).tolist()
    [0, 1]
    """
    return _words(random.wrap_key_data(random.key_data(key)))


__getattr__, __dir__ = namespace("jax.random", random)
