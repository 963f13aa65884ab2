"""Functions of ``jax.numpy`` and ``jax.lax`` that take arrays of typed keys: those that move or compare elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gtrace import full
from gtrace.errors import ConcretizationError
from gtrace.extend import (
    ArgumentError,
    DtypeError,
    ImmutableAttributeError,
    KeyType,
    PRNGKeyArray,
    compared,
    data_of,
    keys_of,
    message,
    packed_seed,
)
from gtrace.random.keys import MASK

_FIRST = """
    array array_split asarray atleast_1d atleast_2d atleast_3d broadcast_to copy delete diagonal dsplit expand_dims flip
    fliplr flipud hsplit moveaxis permute_dims ravel repeat reshape resize roll rollaxis rot90 split squeeze swapaxes
    take take_along_axis tile transpose unstack vsplit zeros_like empty_like matrix_transpose trim_zeros compress
"""
_LISTS = "array asarray broadcast_arrays concat concatenate stack vstack hstack dstack column_stack"

TAKEN: dict[str, tuple[int, ...]] = {
    **{f"jax.numpy.{name}": (0,) for name in (_FIRST + _LISTS).split()},
    "jax.numpy.append": (0, 1),
    "jax.numpy.full": (1,),
    "jax.numpy.full_like": (0, 1),
    "jax.numpy.select": (1, 2),
    "jax.numpy.where": (1, 2),
    "jax.numpy.insert": (0, 2),
    **{
        f"jax.lax.{name}": (0,)
        for name in """
        all_gather all_to_all broadcast broadcast_in_dim collapse concatenate dynamic_index_in_dim dynamic_slice
        dynamic_slice_in_dim expand_dims gather index_in_dim optimization_barrier pcast ppermute pshuffle pvary reshape
        rev slice slice_in_dim split squeeze stop_gradient transpose with_sharding_constraint
        """.split()
    },
    **{f"jax.lax.dynamic_update_{name}": (0, 1) for name in ("index_in_dim", "slice", "slice_in_dim")},
    "jax.lax.select": (1, 2),
}
"""Functions that move elements, with the places of the arguments that are keys if one of them is."""

FILLING = frozenset(["gather", "take", "take_along_axis"])
"""Those that fill in keys for places out of range."""

COMPARING = {
    "jax.numpy.equal": "equal", "jax.numpy.not_equal": "not_equal", "jax.lax.eq": "equal", "jax.lax.ne": "not_equal",
    "jax.numpy.isclose": "equal",
}  # fmt: skip


FILLED: dict[str, int | None] = {"full": None, "zeros": 0, "ones": 1, "empty": 0}
"""Functions that fill an array: with keys, or with a number as each word of a key. So do those with ``_like``."""


def taking_keys(name: str, function: Any) -> Any:
    """Return a function that also takes arrays of keys, or their dtype, where JAX's of this name does.

    Calls without keys are those of the function: keys are looked for when it has refused its arguments.
    """
    if name in COMPARING:
        taken: Callable[..., Any] = functools.partial(compared, COMPARING[name])
    elif name == "jax.numpy.array_equal":
        taken = _array_equal
    elif name == "jax.numpy.allclose":
        taken = _all_equal
    elif name == "jax.numpy.astype":
        taken = _as_keys
    elif name == "jax.numpy.result_type":
        taken = _type_of_keys
    elif name == "jax.lax.select_n":
        taken = functools.partial(_selected, function)
    elif name.startswith("jax.numpy.") and name.rpartition(".")[2].removesuffix("_like") in FILLED:
        taken = functools.partial(_filled, name, function)
    elif name in TAKEN:
        taken = functools.partial(_moved, name, function)
    else:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ArgumentError, ConcretizationError, DtypeError, ImmutableAttributeError):
            if not _hold_keys((args, kwargs)):
                raise
        return taken(*args, **kwargs)

    return call


def _hold_keys(x: Any) -> bool:
    kind = type(x)
    if kind is tuple or kind is list:
        return any(map(_hold_keys, x))
    return any(map(_hold_keys, x.values())) if kind is dict else kind is PRNGKeyArray or kind is KeyType


def _kind(name: str, *values: Any) -> KeyType:
    """Return the dtype of all keys among values and in lists of values.

    Raises:
        DtypeError: they differ, or there are none.
    """
    kinds: set[KeyType] = set()
    for x in values:
        if type(x) in (list, tuple):
            kinds.add(_kind(name, *x))
        elif type(x) is PRNGKeyArray:
            kinds.add(x.dtype)
    if len(kinds) != 1:
        got = " and ".join(map(str, kinds)) or "none"
        raise DtypeError(message(name, "keys of one dtype", got, "Make keys of one cipher."))
    return kinds.pop()


def _data(name: str, x: Any) -> Any:
    """Return the data of keys, and of lists of keys.

    Raises:
        DtypeError: something is neither.
    """
    return type(x)([_data(name, y) for y in x]) if type(x) in (list, tuple) else data_of(name, x)


def _keys(name: str, x: Any, kind: KeyType) -> Any:
    """Return the results of a function of data as keys.

    Raises:
        DtypeError: another dtype was asked for.
    """
    if isinstance(x, (list, tuple)):
        return type(x)([_keys(name, y, kind) for y in x])
    if x.aval.dtype is not torch.int64:
        raise DtypeError(message(name, f"no dtype but {kind} for keys", f"{x.dtype}", PRNGKeyArray.instead))
    return keys_of(x, kind)


def _moved(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    short = name.rpartition(".")[2]
    places = range(len(args)) if short.startswith(("atleast", "broadcast_arrays")) else TAKEN[name]
    if isinstance(kwargs.get("dtype"), KeyType):
        kwargs = {key: value for key, value in kwargs.items() if key != "dtype"}
    if not any(k in places for k in range(len(args))):
        raise ArgumentError(message(short, "keys by position", "keys by name", "Leave the name out."))
    if short in FILLING and kwargs.get("fill_value") is None:
        kwargs = {**kwargs, "fill_value": -1}  # all bits
    given = [_data(short, x) if k in places else x for k, x in enumerate(args)]
    kind = _kind(short, *[x for k, x in enumerate(args) if k in places])
    return _keys(short, function(*given, **kwargs), kind)


def _filled(name: str, function: Callable[..., Any], like: Any, *args: Any, **kwargs: Any) -> Any:
    short = name.rpartition(".")[2]
    value, rest = FILLED[short.removesuffix("_like")], args
    if value is None:
        value, rest = (args[0], args[1:]) if args else (kwargs["fill_value"], ())
    kind = kwargs.get("dtype", rest[0] if rest else None)
    kind, shape = (like.dtype if kind is None else kind, like.shape) if short.endswith("_like") else (kind, like)
    if isinstance(value, PRNGKeyArray) or not isinstance(kind, KeyType):
        return _moved(name, function, like, *args, **kwargs)
    word = int(value) & MASK
    return keys_of(full(shape, packed_seed((word, word)), torch.int64), kind)


def _selected(function: Callable[..., Any], which: Any, *cases: Any) -> Any:
    return keys_of(function(which, *[data_of("select_n", x) for x in cases]), _kind("select_n", *cases))


def _array_equal(a: Any, b: Any, equal_nan: bool = False) -> Any:
    return a.shape == b.shape and compared("equal", a, b).all()


def _all_equal(a: Any, b: Any) -> Any:
    return compared("equal", a, b).all()


def _as_keys(x: Any, dtype: Any, **options: Any) -> Any:
    data = data_of("astype", x)
    if dtype != x.dtype:
        raise DtypeError(message("astype", f"no dtype but {x.dtype} for keys", str(dtype), PRNGKeyArray.instead))
    return keys_of(data, x.dtype)


def _type_of_keys(*arrays: Any) -> Any:
    for x in arrays:
        data_of("result_type", x)
    return _kind("result_type", *arrays)
