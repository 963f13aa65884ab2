"""Functions of scalars as functions of arrays, with the methods of NumPy's: `reduce`, `accumulate`, `at` and others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy

from gtrace import eval_shape, lax
from gtrace import numpy as ours
from gtrace.extend import (
    ArgumentError,
    Array,
    ShapeDtypeStruct,
    ShapeError,
    as_dtype,
    cast,
    lift,
    message,
    normalize_axes,
    normalize_axis,
    ops,
)
from gtrace.jax import complex_order
from gtrace.jax.numpy import _reductions
from gtrace.jax.operand_checks import check_mask
from gtrace.jax.weakness import with_weakness
from gtrace.numpy.functional import vectorize

__all__ = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "frompyfunc", "logaddexp", "logaddexp2", "logical_and",
    "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative", "subtract", "ufunc",
]  # fmt: skip


@attrs.frozen(slots=False, repr=False)
class ufunc:  # noqa: N801 - JAX's name
    """A function of scalars as one of arrays.

    Args:
        func: it takes `nin` scalars and returns `nout` of them.
        name: by default that of `func`.
        nargs: by default `nin`.
        identity: what changes nothing as an operand, which `reduce` returns of no elements; None: nothing does.
        call: the function of arrays.
        reduce, accumulate, at: what computes the methods in place of loops over the elements. They get the
            arguments of the methods, those after the arrays by name.

    Raises:
        ArgumentError: a method of a function that does not take two scalars and return one.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.add.reduce(jnp.arange(4))
    Array(6, dtype=int64)
    >>> jnp.ufunc(lambda x, y: x - y, 2, 1).accumulate(jnp.array([4, 2, 1]))
    Array([4, 2, 1], dtype=int64)
    """

    _func: Callable[..., Any]
    nin: int
    nout: int
    _name: str | None = attrs.field(default=None, kw_only=True)
    nargs: int = attrs.field(default=attrs.Factory(lambda self: self.nin, takes_self=True), kw_only=True)
    identity: Any = attrs.field(default=None, kw_only=True)
    _call: Callable[..., Any] | None = attrs.field(default=None, eq=False, kw_only=True)
    _reduce: Callable[..., Array] | None = attrs.field(default=None, eq=False, kw_only=True)
    _accumulate: Callable[..., Array] | None = attrs.field(default=None, eq=False, kw_only=True)
    _at: Callable[..., Array] | None = attrs.field(default=None, eq=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        vars(self)["__doc__"] = self._func.__doc__

    @property
    def __name__(self) -> str:
        return self._name or str(getattr(self._func, "__name__", "ufunc"))

    def __repr__(self) -> str:
        return f"<jnp.ufunc {self.__name__!r}>"

    def __call__(self, *args: Any, out: None = None, where: None = None) -> Any:
        """Return the function of arrays that broadcast."""
        if out is not None or where is not None or len(args) != self.nin:
            what = f"{self.nin} arrays, without out and where"
            got = f"{len(args)} arrays, out={out!r} and where={where!r}"
            raise ArgumentError(message(self.__name__, what, got, "Use jnp.where with the result."))
        return (self._call or vectorize(self._func))(*args)

    def _of_two(self, method: str, out: Any = None) -> None:
        if (self.nin, self.nout) != (2, 1):
            got = f"{self!r} of {self.nin} and {self.nout}"
            raise ArgumentError(message(method, "a function of two arrays to one", got, "Use another function."))
        check_mask(method, None, out)

    def _in_dtype(self, method: str, a: Any, dtype: Any) -> Array:
        """Return an array in a dtype; None: in that of the results."""
        x = lift(method, a)
        if dtype is not None:
            return cast(x, as_dtype(dtype))
        scalar = ShapeDtypeStruct((), x.dtype)
        return cast(x, as_dtype(eval_shape(self, *[scalar] * self.nin).dtype))

    def reduce(
        self, a: Any, axis: Any = 0, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
        where: Any = None,
    ) -> Array:  # fmt: skip
        """Return the elements over `axis` (None: all) combined, from the first to the last.

        Args:
            initial: what the first is combined with.
            where: a mask; elements where it does not hold are left out. It needs `initial` or an identity.

        >>> import gtrace.jax.numpy as jnp
        >>> jnp.subtract.reduce(jnp.array([[9, 8], [1, 2]]))
        Array([8, 6], dtype=int64)
        """
        self._of_two("reduce", out)
        check_mask("reduce", where)
        if where is not None and initial is None and self.identity is None:
            raise ArgumentError(message("reduce", "`initial` beside a mask", "none", "Pass initial=."))
        if self._reduce is not None:
            return self._reduce(a, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        x = self._in_dtype("reduce", a, dtype)
        rows = _rows_of("reduce", x, axis)
        if initial is None and (where is not None or not len(rows)):
            initial = self.identity
        if initial is not None:
            start = ops.broadcast_to(cast(lift("reduce", initial), x.aval.dtype), rows.shape[1:])
        elif len(rows):
            start, rows = rows[0], rows[1:]
        else:
            raise ShapeError(message("reduce", "at least one element, or `initial`", repr(x.aval), "Pass initial=."))
        kept = None
        if where is not None:
            kept = _rows_of("reduce", ops.broadcast_to(lift("reduce", where), x.shape), axis)

        def step(so_far: Array, row: Any) -> tuple[Array, None]:
            value, holds = row
            new = cast(self(so_far, value), x.aval.dtype)
            return (new if holds is None else ops.where(holds, new, so_far)), None

        found = lax.scan(step, start, (rows, kept))[0]
        return ops.expand_dims(found, normalize_axes("reduce", axis, x.ndim)) if keepdims else found

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        """Return what `reduce` returns of the elements along `axis` up to each of them.

        >>> import gtrace.jax.numpy as jnp
        >>> jnp.maximum.accumulate(jnp.array([1, 3, 2]))
        Array([1, 3, 3], dtype=int64)
        """
        self._of_two("accumulate", out)
        if self._accumulate is not None:
            return self._accumulate(a, axis=axis, dtype=dtype)
        x = self._in_dtype("accumulate", a, dtype)
        place = normalize_axis("accumulate", axis, x.ndim)
        if not x.shape[place]:
            return x
        rows = ops.moveaxis(x, place, 0)

        def step(so_far: Array, row: Array) -> tuple[Array, Array]:
            new = cast(self(so_far, row), x.aval.dtype)
            return new, new

        rest = lax.scan(step, rows[0], rows[1:])[1]
        return ops.moveaxis(ops.concat([rows[:1], rest], 0), 0, place)

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = True) -> Array:
        """Return `a` with its elements at places combined with `b`, one after the other where places are the same.

        Args:
            inplace: has to be False.

        >>> import gtrace.jax.numpy as jnp
        >>> jnp.add.at(jnp.zeros(3), jnp.array([0, 2, 2]), 1.0, inplace=False)
        Array([1., 0., 2.], dtype=float32)
        """
        if inplace:
            fix = "Pass inplace=False, and use the result."
            raise ArgumentError(message("at", "inplace=False", "True: Arrays never change", fix))
        if self.nout != 1 or (self.nin, b is None) not in ((1, True), (2, False)):
            got = f"{self!r} of {self.nin} arrays to {self.nout}, {'without' if b is None else 'with'} values"
            raise ArgumentError(message("at", "values for a function of two arrays to one", got, "Match them."))
        x = lift("at", a)
        if self._at is not None:
            return self._at(x, indices, b)
        x = self._in_dtype("at", x, None)
        numbers = ops.reshape(ops.arange(x.size), x.shape)
        places = numbers.at[indices].get(mode="fill", fill_value=x.size)
        values = None if b is None else ops.broadcast_to(lift("at", b), places.shape)

        def step(flat: Array, row: Any) -> tuple[Array, None]:
            place, value = row
            found = flat.at[place].get(mode="clip")
            new = self(found) if value is None else self(found, value)
            return flat.at[place].set(cast(new, x.aval.dtype), mode="drop"), None

        rows = ops.reshape(places, (-1,)), None if values is None else ops.reshape(values, (-1,))
        return ops.reshape(lax.scan(step, ops.reshape(x, (-1,)), rows)[0], x.shape)

    def outer(self, A: Any, B: Any, /) -> Array:  # noqa: N803 - JAX's names
        """Return the function of each element of `A` with each of `B`.

        >>> import gtrace.jax.numpy as jnp
        >>> jnp.multiply.outer(jnp.arange(2), jnp.arange(3))
        Array([[0, 0, 0],
               [0, 1, 2]], dtype=int64)
        """
        self._of_two("outer")
        x, y = lift("outer", A), lift("outer", B)
        found: Array = self(ops.reshape(x, (*x.shape, *(1,) * y.ndim)), ops.reshape(y, (*(1,) * x.ndim, *y.shape)))
        return found

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        """Return what `reduce` returns of the elements from each place in `indices` to the next one.

        After the last place they are all others. Where the next place is not greater, it is one element.

        >>> import gtrace.jax.numpy as jnp
        >>> jnp.add.reduceat(jnp.arange(6), jnp.array([0, 4, 1]))
        Array([ 6,  4, 15], dtype=int64)
        """
        self._of_two("reduceat", out)
        x = self._in_dtype("reduceat", a, dtype)
        place = normalize_axis("reduceat", axis, x.ndim)
        rows, starts = ops.moveaxis(x, place, 0), lift("reduceat", indices)
        if starts.ndim != 1:
            raise ShapeError(message("reduceat", "indices of one dimension", repr(starts.aval), "Use jnp.ravel."))
        after = ops.concat([starts[1:], ops.full(starts[:1].shape, len(rows), starts.dtype)], 0)
        ends = ops.where(after > starts, after, starts + 1)

        def step(so_far: Array, row: Any) -> tuple[Array, None]:
            k, value = row
            inside = ops.reshape((k > starts) & (k < ends), (-1, *(1,) * value.ndim))
            new = self(so_far, ops.broadcast_to(value, so_far.shape))
            return ops.where(inside, cast(new, x.aval.dtype), so_far), None

        numbers = ops.arange(len(rows), dtype=starts.dtype)
        found = lax.scan(step, ops.take(rows, starts, 0), (numbers, rows))[0]
        return ops.moveaxis(found, 0, place)


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """Return a function of scalars as one of arrays, with the methods of `ufunc`.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.frompyfunc(lambda x, y: x + y, 2, 1, identity=0).reduce(jnp.arange(4))
    Array(6, dtype=int64)
    """
    return ufunc(func, nin, nout, identity=identity)


# -- those of JAX

_REDUCE: dict[str, Callable[..., Array]] = {
    "add": _reductions.sum, "multiply": _reductions.prod, "maximum": _reductions.max, "minimum": _reductions.min,
}  # fmt: skip
"""Reductions that are functions of their own. They take `initial` and `where`."""

_ACCUMULATE = {"add": _reductions.cumsum, "multiply": _reductions.cumprod}

_AT = {"add": "add", "multiply": "multiply", "subtract": "subtract", "maximum": "max", "minimum": "min"}
"""Methods of ``x.at[...]``."""

_IN_ORDER = frozenset(["subtract"])
"""Functions whose results depend on the order in which elements are combined."""


def _rows_of(name: str, x: Array, axis: Any) -> Array:
    """Return x with the elements over `axis` along the first axis, and the others behind."""
    axes = normalize_axes(name, axis, x.ndim)
    kept = [k for k in range(x.ndim) if k not in axes]
    size = math.prod(x.shape[k] for k in axes)
    return ops.reshape(ops.permute_dims(x, (*axes, *kept)), (size, *[x.shape[k] for k in kept]))


def _fold(combine: Callable[[Any, Any], Any], rows: Array) -> Array:
    """Return all rows combined, by halves: an associative function is called a logarithmic number of times."""
    while len(rows) > 1:
        even = len(rows) - len(rows) % 2
        joined = combine(rows[0:even:2], rows[1:even:2])
        rows = joined if even == len(rows) else ops.concat([joined, rows[even:]], 0)
    return rows[0]


def _of_numpy(name: str) -> ufunc:
    """Return a function of JAX's that NumPy has under this name."""
    known = getattr(numpy, name)
    call = with_weakness(f"jax.numpy.{name}", getattr(complex_order, name, None) or getattr(ours, name))
    if known.nin != 2:
        return ufunc(call, known.nin, known.nout, name=name, identity=known.identity, call=call)
    reduced = _REDUCE.get(name)

    def reduce(x: Any, axis: Any, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Array:
        if reduced is not None:
            x = lift(name, x) if dtype is None else cast(lift(name, x), as_dtype(dtype))
            found = reduced(x, axis, keepdims=keepdims, initial=initial, where=where)
            return found if dtype is None else cast(found, as_dtype(dtype))
        x = made._in_dtype(name, x, dtype)
        none = cast(lift(name, known.identity), x.aval.dtype)  # -1, all bits, wraps around
        rows = _rows_of(name, x if where is None else ops.where(where, x, none), axis)
        found = _fold(call, rows) if len(rows) else ops.broadcast_to(none, rows.shape[1:])
        if initial is not None:
            found = call(cast(lift(name, initial), x.aval.dtype), found)
        return ops.expand_dims(found, normalize_axes(name, axis, x.ndim)) if keepdims else found

    def accumulate(x: Any, axis: int, dtype: Any) -> Array:
        if name in _ACCUMULATE:
            return _ACCUMULATE[name](x, axis, dtype)
        found: Array = lax.associative_scan(call, made._in_dtype(name, x, dtype), axis=axis)
        return found

    def at(x: Array, indices: Any, b: Any) -> Array:
        if x.aval.complex and known.identity is None and name not in _IN_ORDER:  # an extreme
            return attrs.evolve(made, at=None).at(x, indices, b, inplace=False)
        updated: Array = getattr(x.at[indices], _AT[name])(b)
        return updated

    made = ufunc(
        call, known.nin, known.nout, name=name, identity=known.identity, call=call,
        reduce=None if name in _IN_ORDER else reduce, accumulate=None if name in _IN_ORDER else accumulate,
        at=at if name in _AT else None,
    )  # fmt: skip
    return made


add, subtract, multiply, negative = map(_of_numpy, ("add", "subtract", "multiply", "negative"))
bitwise_and, bitwise_or, bitwise_xor = map(_of_numpy, ("bitwise_and", "bitwise_or", "bitwise_xor"))
logical_and, logical_or, logical_xor = map(_of_numpy, ("logical_and", "logical_or", "logical_xor"))
logaddexp, logaddexp2 = map(_of_numpy, ("logaddexp", "logaddexp2"))
maximum, minimum = map(_of_numpy, ("maximum", "minimum"))
