"""Arrays of typed keys, as ``jax.random.key`` makes them. Each element is a whole key, so shapes count keys.

The underlying data are packed: an int64 Array of the same shape, whose elements hold the two words of a key. So shapes,
axes and indices work as for any Array, in every operation and transform. Transforms flatten an array of keys into its
data, like any pytree, so they never see it.

Keys of JAX's "rbg" and "unsafe_rbg" have four words, of which the last two repeat the first.
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
    """The dtype of keys.

    Attributes:
        impl: JAX's name of the cipher.
        name: the dtype's.
        words: how many a key has.

    >>> from gtrace.core.ops.key_arrays import KEY
    >>> KEY, KEY.name, KEY.itemsize
    (key<fry>, 'key<fry>', 8)
    """

    __slots__ = ("impl", "name", "words")

    type = prng_key
    kind = "V"

    def __init__(self, impl: str, tag: str, words: int) -> None:
        self.impl, self.name, self.words = impl, f"key<{tag}>", words

    @property
    def itemsize(self) -> int:
        """The bytes of a key."""
        return 4 * self.words

    def __eq__(self, other: object) -> bool:
        name = other.name if isinstance(other, KeyType) else other
        return isinstance(name, str) and name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return key_type, (self.impl,)


KEY = KeyType("threefry2x32", "fry", 2)
"""The dtype of keys, unless another cipher is named."""

KINDS = {kind.impl: kind for kind in (KEY, KeyType("rbg", "rbg", 4), KeyType("unsafe_rbg", "urbg", 4))}
"""The dtypes of keys, by the names of their ciphers."""


def key_type(impl: str) -> KeyType:
    """Return the dtype of keys of a cipher."""
    return KINDS[impl]


_LIKE_DATA = frozenset(
    """
    shape ndim size device devices sharding is_ready delete is_deleted committed is_fully_addressable
    is_fully_replicated platform unsafe_buffer_pointer copy_to_host_async _buf _trace _number
    """.split()
)
"""Attributes that come from the data."""

_MOVING = frozenset("reshape ravel flatten squeeze transpose swapaxes repeat take to_device addressable_data".split())
"""Methods of Arrays that move elements; here they return keys."""

_MOVED = frozenset({"T", "mT"})
"""Attributes of Arrays that have the same elements at other indices."""


@whole_class
class PRNGKeyArray(Array, of_keys=True):
    """An array of keys, of a dtype of `KINDS`. Its elements can be moved, compared and passed to `gt.random`.

    >>> import gtrace.jax as jax
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> keys.shape, keys[1].shape, keys.dtype
    ((3,), (), key<fry>)
    """

    __slots__ = ("_data", "_kind")

    _data: Any  # an int64 Array, or its replacement inside transforms
    _kind: KeyType

    instead = "Keys are moved, compared and drawn from: use jax.random.key_data(key) for the integers they consist of."

    def __getattribute__(self, name: str) -> Any:
        if name[:2] == "__" or name in _OWN:
            return object.__getattribute__(self, name)
        data = object.__getattribute__(self, "_data")
        if name in _LIKE_DATA:
            return getattr(data, name)
        if name in _MOVED:
            return self._like(getattr(data, name))
        if name in _MOVING:
            method = getattr(data, name)
            return lambda *args, **kwargs: self._like(method(*args, **kwargs))
        raise ImmutableAttributeError(f"[{name}] expected numbers, got keys. {self.instead} (at {user_location()})")

    def _like(self, data: Any) -> PRNGKeyArray:
        """Return other packed keys as an array of keys of this dtype."""
        return keys_of(data, self._kind)

    @property
    def dtype(self) -> Any:
        """That of the cipher."""
        return self._kind

    @property
    def itemsize(self) -> int:
        """The bytes of a key."""
        return self._kind.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all keys."""
        return int(self._data.size) * self._kind.itemsize

    def on_device_size_in_bytes(self) -> int:
        """Return the bytes of all keys."""
        return self.nbytes

    @property
    def at(self) -> KeysAt:
        """``keys.at[index]``, which has `get` and `set`."""
        return KeysAt(self)

    def copy(self) -> PRNGKeyArray:
        """Return another array of the same keys, which stays usable if this one is donated."""
        return self._like(self._data.copy())

    def __copy__(self) -> PRNGKeyArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> PRNGKeyArray:
        return self.copy()

    def block_until_ready(self) -> PRNGKeyArray:
        """Compute the keys now; return self."""
        self._data.block_until_ready()
        return self

    def __getitem__(self, index: Any) -> PRNGKeyArray:
        return self._like(self._data[index])

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Any:
        return map(self._like, self._data)

    def __eq__(self, other: Any) -> Any:
        if type(self._data) is not Array:  # a description, without values
            return type(other) is PRNGKeyArray and self._kind == other._kind and self._data == other._data
        return compared("equal", self, other)

    def __ne__(self, other: Any) -> Any:
        return not self == other if type(self._data) is not Array else compared("not_equal", self, other)

    __hash__ = None

    def __reduce__(self) -> Any:
        return keys_of, (self._data, self._kind)

    def __repr__(self) -> str:
        data = self._data
        if type(data) is not Array:
            struct = f"ShapeDtypeStruct(shape={data.shape}, dtype={self._kind})"
            return struct if hasattr(data, "shape") else f"Keys({data!r})"
        if is_placeholder(data):
            return f"Traced({self._kind}{list(data.shape)})"
        words = numpy.tile(words_of(data.numpy()), self._kind.words // 2)
        return f"Array({data.shape}, dtype={self._kind}) overlaying:\n{words}"

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

    __slots__ = ("_index", "_keys")

    def __init__(self, keys: PRNGKeyArray, index: Any = None) -> None:
        self._keys, self._index = keys, index

    def __getitem__(self, index: Any) -> KeysAt:
        return KeysAt(self._keys, index)

    def get(self, **options: Any) -> PRNGKeyArray:
        """Return the keys at the index; the options are those of Arrays. All bits of a filling key are ones."""
        if options.get("mode") == "fill":
            options = {"fill_value": -1, **options}
        return self._keys._like(self._keys._data.at[self._index].get(**options))

    def set(self, values: Any, **options: Any) -> PRNGKeyArray:
        """Return all keys, with those at the index replaced by the keys `values`."""
        data, kind = data_of("at.set", values), self._keys._kind
        if values._kind != kind:
            raise DtypeError(message("at.set", f"keys of dtype {kind}", f"{values._kind}", "Make keys of one cipher."))
        return self._keys._like(self._keys._data.at[self._index].set(data, **options))

    def __getattr__(self, name: str) -> NoReturn:
        raise ImmutableAttributeError(f"[at.{name}] expected numbers, got keys. {PRNGKeyArray.instead}")


def keys_of(data: Any, kind: KeyType = KEY) -> PRNGKeyArray:
    """Return packed keys, an int64 Array, as an array of keys."""
    out = object.__new__(PRNGKeyArray)
    out._data, out._kind = data, kind
    return out


def data_of(name: str, keys: Any) -> Array:
    """Return the data of an array of keys: an int64 Array of the same shape."""
    if type(keys) is not PRNGKeyArray:
        fix = "Make keys with jax.random.key, or from words with jax.random.wrap_key_data."
        raise DtypeError(message(name, f"an array of keys, {KEY}", repr(keys), fix))
    return keys._data


def compared(name: str, a: Any, b: Any) -> Array:
    """Compare the keys of `a` and `b`: whether they are equal or, for `name` "not_equal", different."""
    first, second = data_of(name, a), data_of(name, b)
    if a._kind != b._kind:
        raise DtypeError(message(name, "keys of one dtype", f"{a._kind} and {b._kind}", "Make keys of one cipher."))
    return (equal if name == "equal" else not_equal)(first, second)


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


def _one_leaf(keys: PRNGKeyArray) -> tuple[list[tuple[Any, Any]], KeyType]:
    return [(GetAttrKey("packed_keys"), keys._data)], keys._kind


def _of_leaf(kind: KeyType, children: Sequence[Any]) -> Any:
    """Return keys; a tangent of keys, which has no values, as it is."""
    (leaf,) = children
    changeless = leaf.__class__ is not Array and getattr(leaf, "dtype", None) == FLOAT0
    return leaf if changeless else keys_of(leaf, kind)


register_pytree_with_keys(PRNGKeyArray, _one_leaf, _of_leaf)
HOLDERS[PRNGKeyArray] = PRNGKeyArray._like
