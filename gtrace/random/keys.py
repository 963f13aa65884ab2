"""Keys, and their random bits, on which all samples are built.

A key is an int64 Array of shape (2,) that holds two unsigned 32-bit words. A sample numbers the elements of its shape
and encrypts each number with the key. So an element depends only on the key and its position.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ops.create import to_device
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.key_arrays import MASK, PRNGKeyArray
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_int, as_sizes
from gtrace.core.ops.threefry import PAIR, XOR, threefry2x32
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.convert import lift, new_tensor, python_scalar
from gtrace.core.trace.key_uses import consume
from gtrace.core.trace.promotion import wide
from gtrace.core.trace.record import thread
from gtrace.core.trace.replayable import replayable

__all__ = ["key", "PRNGKey", "key_data", "wrap_key_data", "key_impl", "split", "fold_in", "bits"]

IMPL = "threefry2x32"
"""The name of the cipher in jax."""

_ONE = "Pass one key: index the batch, or map over it with gt.vmap."


def as_key(name: str, key: Any) -> Array:
    """Return a key argument as an int64 Array of shape (2,); for a typed key, its packed data of shape ().

    Raises:
        ArgumentError: it is a number, or not an array.
        DtypeError, ShapeError: it is not a single key.
    """
    if type(key) is PRNGKeyArray:
        if key.shape != ():
            raise ShapeError(message(name, "a single key", f"keys of shape {key.shape}", _ONE))
        return lift(name, key._data)
    if type(key) is not Array:
        if python_scalar(key) is not None:
            raise ArgumentError(message(name, "a key", repr(key), f"Make one with gt.random.key({key!r})."))
        key = lift(name, key)
    if key.aval.dtype is torch.uint32:  # words as JAX stores them
        key = cast(key, torch.int64)
        if key.aval.shape == (4,):  # for its "rbg"
            key = merged_halves(key)
    elif key.aval.dtype is torch.int32:
        key = ops.bitwise_and(cast(key, torch.int64), MASK)
    a = key.aval
    if a.dtype is not torch.int64:
        raise DtypeError(message(name, "a key, int64 of shape (2,)", repr(a), "Make one with gt.random.key(seed)."))
    if a.shape != (2,):
        fix = _ONE if a.shape[-1:] == (2,) else "Make one with gt.random.key(seed)."
        raise ShapeError(message(name, "a key, int64 of shape (2,)", repr(a), fix))
    return key


def merged_halves(words: Array) -> Array:
    """Return four words of keys, along the last axis, as two: the first two, if the other two repeat them."""
    first, second = (slice_axis(words, words.ndim - 1, k, k + 2) for k in (0, 2))
    difference = ops.bitwise_xor(first, second) * 0x9E3779B1  # odd, so that no difference gets lost
    return ops.bitwise_xor(first, ops.bitwise_and(difference, MASK))


def key_beside(name: str, key: Any, x: Array) -> Any:
    """Return a key on the device of an array; if it must be copied there, `name` uses it up."""
    found = as_key(name, key)
    if found.aval.device == x.aval.device:
        return key
    moved = to_device(fresh_key(name, key), x.aval.device)
    return key._like(moved) if type(key) is PRNGKeyArray else moved


def fresh_key(name: str, key: Any) -> Array:
    """Return a key argument as an Array, and note that `name` uses it up.

    Raises:
        KeyReuseError: it was used before, and the setting debug_key_reuse is on.
        ArgumentError, DtypeError, ShapeError: it is not a key.
    """
    found = as_key(name, key)
    consume(name, key if isinstance(key, Array) else found)
    return found


def cipher(key: Array, shape: tuple[int, ...], word: int) -> Array:
    """Encrypt the numbers 0, 1, 2, ... in an array of `shape` with the key; for `word` see `threefry2x32`."""
    n = math.prod(shape)
    count = ops.arange(n, dtype=torch.int64, device=key.aval.device)
    upper: Any = 0 if n <= 1 << 32 else ops.bitwise_right_shift(count, 32)
    return ops.reshape(threefry2x32(*_two_words(key), upper, count, word), shape)


def _two_words(key: Array) -> tuple[Array, Array]:
    """Return the words of a key from `as_key`, each of shape (1,)."""
    if key.aval.shape:
        return slice_axis(key, 0, 0, 1), slice_axis(key, 0, 1, 2)
    packed = ops.reshape(key, (1,))
    return ops.bitwise_and(ops.bitwise_right_shift(packed, 32), MASK), ops.bitwise_and(packed, MASK)


def pack(words: Array) -> Array:
    """Return words, int64 of shape (..., 2), as packed keys of shape (...)."""
    halves = [ops.reshape(slice_axis(words, words.ndim - 1, k, k + 1), words.shape[:-1]) for k in (0, 1)]
    return _joined(*halves)


def halved(key: Array, count: int) -> Array:
    """Return `count` words in the form that JAX had before 0.5: its setting ``jax_threefry_partitionable`` is False.

    The counters 0, 1, 2, ..., with a 0 after an odd number, are cut in two halves. A counter of the first half and its
    partner in the second are encrypted together. The first words of the results come first, then the second words.

    Raises:
        ArgumentError: too many words.
    """
    if count > MASK:
        fix = "Set threefry_partitionable."
        raise ArgumentError(message("random", "fewer than 2**32 words without threefry_partitionable", str(count), fix))
    half = (count + 1) // 2
    first = ops.arange(half, dtype=torch.int64, device=key.aval.device)
    second = ops.where(first + half < count, first + half, 0)
    pairs = threefry2x32(*_two_words(key), first, second, PAIR)
    words = ops.concat([ops.bitwise_and(ops.bitwise_right_shift(pairs, 32), MASK), ops.bitwise_and(pairs, MASK)])
    return slice_axis(words, 0, 0, count)


def _halved_bits(key: Array, shape: tuple[int, ...], width: int) -> Array:
    """Return `draw_bits` in that form."""
    n = math.prod(shape)
    if width == 64:
        words = ops.reshape(halved(key, 2 * n), (2, n))
        return ops.reshape(_joined(words[0], words[1]), shape)
    parts = 32 // width
    words = halved(key, -(-n // parts))
    if parts > 1:
        spread = ops.bitwise_right_shift(ops.expand_dims(words, 1), ops.arange(parts, device=key.aval.device) * width)
        words = slice_axis(ops.reshape(ops.bitwise_and(spread, (1 << width) - 1), (-1,)), 0, 0, n)
    return ops.reshape(words, shape)


def _joined(upper: Array, lower: Array) -> Array:
    """Return pairs of words as 64-bit patterns."""
    return ops.bitwise_or(ops.bitwise_left_shift(upper, 32), lower)


def packed_subkeys(key: Array, shape: tuple[int, ...]) -> Array:
    """Return new keys, each packed into one element."""
    if config.current.threefry_partitionable:
        return cipher(key, shape, PAIR)
    words = ops.reshape(halved(key, 2 * math.prod(shape)), (*shape, 2))
    return pack(words)


def draw_bits(key: Array, shape: tuple[int, ...], width: int) -> Array:
    """Return `bits` without checking the arguments."""
    if not config.current.threefry_partitionable:
        return _halved_bits(key, shape, width)
    if width == 64:
        return cipher(key, shape, PAIR)
    out = cipher(key, shape, XOR)
    return out if width == 32 else ops.bitwise_and(out, (1 << width) - 1)


def unpack(pair: Array) -> Array:
    """Return 64-bit patterns as keys, along a new last axis."""
    spread = ops.expand_dims(pair, pair.ndim)
    return ops.concat([ops.bitwise_and(ops.bitwise_right_shift(spread, 32), MASK), ops.bitwise_and(spread, MASK)], -1)


def subkeys(key: Array, shape: tuple[int, ...]) -> Array:
    """Return `split` without checking the arguments."""
    return unpack(packed_subkeys(key, shape))


def single_keys(key: Array, count: int) -> list[Array]:
    """Return new keys, packed if the key is."""
    keys = subkeys(key, (count,)) if key.aval.shape else packed_subkeys(key, (count,))
    return [ops.reshape(slice_axis(keys, 0, k, k + 1), keys.aval.shape[1:]) for k in range(count)]


def two_keys(key: Array) -> tuple[Array, Array]:
    """Return two new keys, packed if the key is."""
    first, second = single_keys(key, 2)
    return first, second


def key_words(seed: int, wide: bool = False) -> tuple[int, int]:
    """Return the two words of the key for a 64-bit seed.

    The first word of a negative seed that fits 32 bits is 0, unless the seed is `wide`. So it is in jax, which reads
    such a seed as 32 bits without ``jax_enable_x64``.
    """
    return 0 if -(1 << 31) <= seed < 0 and not wide else seed >> 32 & MASK, seed & MASK


# -- user functions


def key(seed: Any) -> Array:
    """Return a new key for an integer.

    Args:
        seed: a Python integer of at most 64 bits, or an integer array of shape ().

    Returns:
        int64 of shape (2,): the two 32-bit words of the seed.

    Raises:
        ArgumentError: the seed is not an integer, or is too large.
        ShapeError: the seed is an array with dimensions.

    >>> gt.random.key(7)
    Array([0, 7], dtype=int64)
    """
    return seeded(seed)


def seeded(seed: Any, wide: bool = False) -> Array:
    """Return the key for a seed, of which `key_words` says what `wide` means."""
    if type(seed) is not Array and python_scalar(seed) is not None:
        number = as_int("key", "seed", seed)
        if not -(1 << 63) <= number < 1 << 63:
            raise ArgumentError(message("key", "a seed of at most 64 bits", str(number), "Use a smaller one."))
        return made_key(key_words(number, wide))
    value = _integer("key", "seed", seed)
    upper = ops.bitwise_and(ops.bitwise_right_shift(value, 32), MASK)
    if not wide:
        small = ops.logical_and(ops.less(value, 0), ops.greater_equal(value, -(1 << 31)))
        upper = ops.where(small, 0, upper)
    return ops.concat([ops.reshape(upper, (1,)), ops.reshape(ops.bitwise_and(value, MASK), (1,))])


PRNGKey = key


def made_key(words: Any) -> Array:
    """Return words as an array; in a captured function, on the device of its arguments."""
    made = wrap(new_tensor(words, torch.int64))
    return made if thread.trace.place is None else to_device(made, thread.trace.place)


def _as_keys(name: str, keys: Any) -> Array:
    """Return an array of keys.

    Raises:
        DtypeError, ShapeError: they are not keys.
    """
    found = lift(name, keys)
    if found.aval.floating or found.aval.dtype is torch.bool:
        raise DtypeError(
            message(name, "keys, int64 of shape (..., 2)", repr(found.aval), "Make them with gt.random.key.")
        )
    if found.shape[-1:] != (2,):
        fix = "The last axis holds the two words of a key."
        raise ShapeError(message(name, "keys, int64 of shape (..., 2)", repr(found.aval), fix))
    return found


def key_data(keys: Any) -> Array:
    """Return the words of keys. Keys are arrays of words, so they are returned unchanged.

    If the setting `x64` is off, the words are uint32, as in JAX.

    Args:
        keys: int64 of shape (..., 2).

    Raises:
        DtypeError, ShapeError: they are not keys.

    >>> gt.random.key_data(gt.random.key(7))
    Array([0, 7], dtype=int64)
    """
    data = _as_keys("key_data", keys)
    return data if wide() else cast(data, torch.uint32)


def wrap_key_data(key_bits_array: Any, *, impl: Any = None) -> Array:
    """Return keys with the given words.

    Args:
        key_bits_array: integers of shape (..., 2); only their low 32 bits count.
        impl: the cipher, "threefry2x32" or None.

    Returns:
        int64 of the same shape.

    Raises:
        ArgumentError: `impl` is another cipher.
        DtypeError, ShapeError: they are not words of keys.

    >>> gt.random.wrap_key_data(gt.array([0, 7], dtype=gt.int32))
    Array([0, 7], dtype=int64)
    """
    if impl not in (None, IMPL):
        raise ArgumentError(message("wrap_key_data", repr(IMPL), repr(impl), "It is the only cipher."))
    return ops.bitwise_and(cast(_as_keys("wrap_key_data", key_bits_array), torch.int64), MASK)


def key_impl(keys: Any) -> str:
    """Return the name of the cipher of keys, which is always "threefry2x32".

    Raises:
        DtypeError, ShapeError: they are not keys.

    >>> gt.random.key_impl(gt.random.key(0))
    'threefry2x32'
    """
    _as_keys("key_impl", keys)
    return IMPL


def _integer(name: str, what: str, value: Any) -> Array:
    x = lift(name, value)
    if x.aval.floating or x.aval.dtype is torch.bool:
        raise DtypeError(message(name, f"an integer as {what}", repr(x.aval), "Use x.astype(gt.int64)."))
    if x.ndim:
        raise ShapeError(message(name, f"one integer as {what}", repr(x.aval), "Use gt.vmap for several."))
    return cast(x, torch.int64)


@replayable
def split(key: Any, num: Any = 2) -> Array:
    """Return new keys derived from a key, which must not be used again.

    Args:
        key: a key.
        num: the number of keys, or a shape.

    Returns:
        int64 of shape (num, 2), or ``(*num, 2)``.

    Raises:
        KeyReuseError: the key was used before, and the setting debug_key_reuse is on.
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> gt.random.split(gt.random.key(0), 3).shape
    (3, 2)
    """
    found, shape = fresh_key("split", key), as_sizes("split", num)
    return key._like(packed_subkeys(found, shape)) if type(key) is PRNGKeyArray else subkeys(found, shape)


@replayable
def fold_in(key: Any, data: Any) -> Array:
    """Return a new key derived from a key and a number, such as that of a step. The key may be used again.

    Args:
        key: a key.
        data: an integer in [0, 2**32), or an integer array of shape (); only its low 32 bits count.

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> gt.random.fold_in(gt.random.key(0), 1)
    Array([ 928981903, 3453687069], dtype=int64)
    """
    if type(key) is PRNGKeyArray:
        return key._like(ops.reshape(_folded(key, data), ()))
    return ops.reshape(unpack(_folded(key, data)), (2,))


def _folded(key: Any, data: Any) -> Array:
    """Return `fold_in` as one packed key, of shape (1,)."""
    first, second = _two_words(as_key("fold_in", key))
    if type(data) is not Array and python_scalar(data) is not None:
        number: Any = as_int("fold_in", "data", data)
        if not 0 <= number <= MASK:
            raise ArgumentError(message("fold_in", "data in [0, 2**32)", str(number), "Fold in a smaller number."))
    else:
        number = ops.reshape(ops.bitwise_and(_integer("fold_in", "data", data), MASK), (1,))
    return threefry2x32(first, second, 0, number, PAIR)


@replayable
def bits(key: Any, shape: Any = (), width: int = 32) -> Array:
    """Return random bits as integers.

    Args:
        width: 8, 16, 32 or 64.

    Returns:
        int64 of `shape`: values in [0, 2**width). Of width 64 these are all int64 values, in two's complement.

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> gt.random.bits(gt.random.key(0), (2,))
    Array([4070199207, 4202968722], dtype=int64)
    """
    sizes = as_sizes("bits", shape)
    if width not in (8, 16, 32, 64):
        raise ArgumentError(message("bits", "8, 16, 32 or 64 as width", repr(width), "Pass one of them."))
    return draw_bits(fresh_key("bits", key), sizes, width)


def fill(name: str, x: Array, shape: tuple[int, ...]) -> Array:
    """Return a parameter broadcast to the shape of the sample.

    Raises:
        ShapeError: it does not broadcast.
    """
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    if len(padded) != len(shape) or any(n not in (1, m) for n, m in zip(padded, shape, strict=True)):
        fix = "The shape must cover that of the parameters."
        raise ShapeError(message(name, f"a parameter that broadcasts to {shape}", repr(x.aval), fix))
    return ops.broadcast_to(x, shape)
