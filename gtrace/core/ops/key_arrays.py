"""Arrays of typed keys, as ``jax.random.key`` makes them. Each element is a whole key, so shapes count keys.

The underlying data are packed: an int64 Array of the same shape, whose elements hold the two words of a key. So shapes,
axes and indices work as for any Array, in every operation and transform. Transforms flatten an array of keys into its
data, like any pytree, so they never see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy

from gtrace.core.base.dtypes import FLOAT0
from gtrace.core.base.errors import DtypeError, ImmutableAttributeError, message, user_location
from gtrace.core.base.tree import GetAttrKey, register_pytree_with_keys
from gtrace.core.base.tree.treedef import whole_class
from gtrace.core.ops.logic import equal, not_equal
from gtrace.core.ops.threefry import MASK
from gtrace.core.trace.array import Array
from gtrace.core.trace.force import is_placeholder
from gtrace.core.trace.replayable import HOLDERS


class extended(numpy.generic):  # noqa: N801 - JAX's name
    """The class of dtypes that NumPy lacks: those of keys."""


class prng_key(extended):  # noqa: N801 - JAX's name
    """The class of key dtypes, as in ``jnp.issubdtype(x.dtype, jax.dtypes.prng_key)``."""


class KeyType:
    """The dtype of keys. The only one is for the cipher threefry2x32.

    >>> KEY, KEY.name, KEY.itemsize
    (key<fry>, 'key<fry>', 8)
    """

    __slots__ = ()

    name = "key<fry>"
    itemsize = 8
    type = prng_key
    kind = "V"

    def __eq__(self, other: object) -> bool:
        return other.__class__ is KeyType or (isinstance(other, str) and other == self.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return "KEY"


KEY = KeyType()
"""The dtype of keys."""

_LIKE_DATA = frozenset(
    """
    shape ndim size nbytes itemsize device devices sharding is_ready is_deleted committed is_fully_addressable
    is_fully_replicated platform on_device_size_in_bytes copy_to_host_async _buf _trace _number
    """.split()
)
"""Attributes that come from the data."""

_MOVING = frozenset("reshape ravel flatten squeeze transpose swapaxes repeat take to_device".split())
"""Methods of Arrays that move elements; here they return keys."""

_MOVED = frozenset({"T", "mT"})
"""Attributes of Arrays that have the same elements at other indices."""


@whole_class
class PRNGKeyArray(Array, of_keys=True):
    """An array of keys: an Array with the dtype `KEY`, whose elements can be moved, compared and passed to `gt.random`.

    >>> import gtrace.jax as jax
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> keys.shape, keys[1].shape, keys.dtype
    ((3,), (), key<fry>)
    """

    __slots__ = ("_data",)

    _data: Any  # an int64 Array, or its replacement inside transforms

    instead = "Keys are moved, compared and drawn from: use jax.random.key_data(key) for the integers they consist of."

    def __getattribute__(self, name: str) -> Any:
        if name[:2] == "__" or name in _OWN:
            return object.__getattribute__(self, name)
        data = object.__getattribute__(self, "_data")
        if name in _LIKE_DATA:
            return getattr(data, name)
        if name in _MOVED:
            return keys_of(getattr(data, name))
        if name in _MOVING:
            method = getattr(data, name)
            return lambda *args, **kwargs: keys_of(method(*args, **kwargs))
        raise ImmutableAttributeError(f"[{name}] expected numbers, got keys. {self.instead} (at {user_location()})")

    @property
    def dtype(self) -> Any:
        """`KEY`."""
        return KEY

    @property
    def at(self) -> KeysAt:
        """``keys.at[index]``, which has `get` and `set`."""
        return KeysAt(self._data)

    def copy(self) -> PRNGKeyArray:
        """Return another array of the same keys, which stays usable if this one is donated."""
        return keys_of(self._data.copy())

    def __copy__(self) -> PRNGKeyArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> PRNGKeyArray:
        return self.copy()

    def block_until_ready(self) -> PRNGKeyArray:
        """Compute the keys now; return self."""
        self._data.block_until_ready()
        return self

    def __getitem__(self, index: Any) -> PRNGKeyArray:
        return keys_of(self._data[index])

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Any:
        return map(keys_of, self._data)

    def __eq__(self, other: Any) -> Any:
        return compared("equal", self, other)

    def __ne__(self, other: Any) -> Any:
        return compared("not_equal", self, other)

    __hash__ = None

    def __reduce__(self) -> Any:
        return keys_of, (self._data,)

    def __repr__(self) -> str:
        data = self._data
        if type(data) is not Array:
            return f"ShapeDtypeStruct(shape={data.shape}, dtype={KEY})" if hasattr(data, "shape") else f"Keys({data!r})"
        if is_placeholder(data):
            return f"Traced({KEY}{list(data.shape)})"
        return f"Array({data.shape}, dtype={KEY}) overlaying:\n{words_of(data.numpy())}"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def _refusing(name: str) -> Any:
    def refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise DtypeError(message(name.strip("_"), "numbers", "keys", PRNGKeyArray.instead))

    return refuse


for _name in """
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__
    __rmod__ __pow__ __rpow__ __matmul__ __rmatmul__ __neg__ __abs__ __lt__ __le__ __gt__ __ge__ __and__ __rand__
    __or__ __ror__ __xor__ __rxor__ __lshift__ __rlshift__ __rshift__ __rrshift__ __invert__ __pos__ __divmod__
    __round__ __bool__ __int__ __float__ __complex__ __index__ __array__ __dlpack__ __dlpack_device__
    """.split():
    setattr(PRNGKeyArray, _name, _refusing(_name))

_OWN = frozenset([name for name in vars(PRNGKeyArray) if not name.startswith("__")])


class KeysAt:
    """``keys.at[index]``: reading and replacing keys.

    >>> import gtrace.jax as jax
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> (keys.at[0].set(keys[1]) == keys[1]).tolist()
    [True, True, False]
    """

    __slots__ = ("_data", "_index")

    def __init__(self, data: Array, index: Any = None) -> None:
        self._data, self._index = data, index

    def __getitem__(self, index: Any) -> KeysAt:
        return KeysAt(self._data, index)

    def get(self, **options: Any) -> PRNGKeyArray:
        """Return the keys at the index; the options are those of Arrays. All bits of a filling key are ones."""
        if options.get("mode") == "fill":
            options = {"fill_value": -1, **options}
        return keys_of(self._data.at[self._index].get(**options))

    def set(self, values: Any, **options: Any) -> PRNGKeyArray:
        """Return all keys, with those at the index replaced by the keys `values`."""
        return keys_of(self._data.at[self._index].set(data_of("at.set", values), **options))

    def __getattr__(self, name: str) -> NoReturn:
        raise ImmutableAttributeError(f"[at.{name}] expected numbers, got keys. {PRNGKeyArray.instead}")


def keys_of(data: Any) -> PRNGKeyArray:
    """Return packed keys, an int64 Array, as an array of keys."""
    out = object.__new__(PRNGKeyArray)
    out._data = data
    return out


def data_of(name: str, keys: Any) -> Array:
    """Return the data of an array of keys: an int64 Array of the same shape."""
    if type(keys) is not PRNGKeyArray:
        fix = "Make keys with jax.random.key, or from words with jax.random.wrap_key_data."
        raise DtypeError(message(name, f"an array of keys, {KEY}", repr(keys), fix))
    return keys._data


def compared(name: str, a: Any, b: Any) -> Array:
    """Compare the keys of `a` and `b`: whether they are equal or, for `name` "not_equal", different."""
    return (equal if name == "equal" else not_equal)(data_of(name, a), data_of(name, b))


def words_of(packed: numpy.ndarray) -> numpy.ndarray:
    """Return the words of packed keys, uint32 of shape (..., 2).

    >>> words_of(numpy.array(1 << 32 | 7))
    array([1, 7], dtype=uint32)
    """
    return numpy.stack([packed >> 32 & MASK, packed & MASK], -1).astype(numpy.uint32)


def packed_seed(words: tuple[int, int]) -> int:
    """Return two words as one signed integer of 64 bits.

    >>> packed_seed((0, 7)), packed_seed((MASK, MASK))
    (7, -1)
    """
    pair = words[0] << 32 | words[1]
    return pair - (1 << 64) if pair >= 1 << 63 else pair


def _one_leaf(keys: PRNGKeyArray) -> tuple[list[tuple[Any, Any]], None]:
    return [(GetAttrKey("packed_keys"), keys._data)], None


def _of_leaf(_: Any, children: Sequence[Any]) -> Any:
    """Return keys; a tangent of keys, which has no values, as it is."""
    (leaf,) = children
    return leaf if leaf.__class__ is numpy.ndarray and leaf.dtype == FLOAT0 else keys_of(leaf)


register_pytree_with_keys(PRNGKeyArray, _one_leaf, _of_leaf)
HOLDERS[PRNGKeyArray] = keys_of
