"""Functional updates: ``x.at[index].set(values)`` and similar methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.base.config import config
from gtrace.core.base.dtypes import LONG
from gtrace.core.base.errors import DtypeError, ShapeError, message, user_location, warn_at
from gtrace.core.ops.batching import places
from gtrace.core.ops.complex_parts import real
from gtrace.core.ops.declare import Array, aval, bind
from gtrace.core.ops.elementwise import add, divide, maximum, minimum, multiply, neg, power, subtract
from gtrace.core.ops.gather import index_op, index_put_op, indexed_shape
from gtrace.core.ops.index import read
from gtrace.core.ops.index_bounds import mode_name
from gtrace.core.ops.index_split import Split, negatives_outside, of_sequence, split_index
from gtrace.core.ops.join_split import concat, slice_bounds, stack
from gtrace.core.ops.logic import where
from gtrace.core.ops.operands import beside, cast
from gtrace.core.ops.reduce import max as amax
from gtrace.core.ops.scatter_reduce import scatter_op
from gtrace.core.ops.shape import broadcast_to, constant, full_like_scalar, ravel, reshape
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.force import unfollowed_value
from gtrace.core.trace.promotion import float_of, result_dtype
from gtrace.core.trace.record import thread
from gtrace.core.trace.replayable import replayable_with_places


class At:
    """``x.at[index]``: functional updates, which return new Arrays.

    >>> gt.zeros(3).at[1].set(5.0)
    Array([0., 5., 0.], dtype=float32)
    """

    __slots__ = ("_x",)

    def __init__(self, x: Array) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self._x, index)


def _kept_promise(mode: Any, wraps: bool) -> str | None:
    """Return the name of a mode of updates. Where negative indices do not count from the end, they break a promise."""
    known = mode_name("at", mode)
    return "drop" if known == "promise_in_bounds" and not wraps else known


def _updating(name: str, doc: str) -> Callable[..., Array]:
    """Return an update as a method of `AtIndex`."""

    def update(
        self: AtIndex, values: Any, *, indices_are_sorted: bool = False, unique_indices: bool = False,
        mode: Any = None, wrap_negative_indices: bool = True,
    ) -> Array:  # fmt: skip
        mode = _kept_promise(mode, wrap_negative_indices)
        if isinstance(values, (list, tuple)):
            values = _listed(values)
        return self._counting(wrap_negative_indices, mode == "clip")._update(values, name, mode)

    update.__name__, update.__qualname__, update.__doc__ = name, f"AtIndex.{name}", doc
    return update


class AtIndex:
    """Reading and updating at one index.

    For a repeated index, `set` uses any one value, which alone has a derivative. `apply` applies its function that
    often. The other updates combine all values.

    Values are an array or a number, or a list or tuple of them. Every update has these keywords:

    - `mode`: the treatment of out-of-range indices in index arrays. None, ``"drop"`` or ``"fill"``: those updates are
      dropped; ``"clip"``: the nearest element is updated; ``"promise_in_bounds"``: unspecified, and not checked.
    - `wrap_negative_indices`: negative indices count from the end. Otherwise they are out of range, before the first.
    - `indices_are_sorted`, `unique_indices`: accepted as in JAX. Only `apply` uses `unique_indices`.
    """

    __slots__ = ("_x", "_index")

    def __init__(self, x: Array, index: Any) -> None:
        self._x = x
        self._index = index

    def _counting(self, wraps: bool, nearest: bool) -> AtIndex:
        """Return this without negative indices if they do not count from the end; see `negatives_outside`."""
        return self if wraps else AtIndex(self._x, negatives_outside(self._index, nearest))

    def get(
        self, *, indices_are_sorted: bool = False, unique_indices: bool = False, mode: Any = None,
        fill_value: Any = None, wrap_negative_indices: bool = True,
    ) -> Array:  # fmt: skip
        """Return x[index].

        Args:
            indices_are_sorted, unique_indices: ignored.
            mode: the result for an out-of-range index. None or ``"clip"``: the nearest element; ``"fill"`` or
                ``"drop"``: `fill_value`; ``"promise_in_bounds"``: unspecified.
            fill_value: None: NaN for floats, the least signed or the greatest unsigned integer, or True.
            wrap_negative_indices: negative indices count from the end. Otherwise they are out of range.

        Raises:
            ArgumentError: the mode is unknown.

        >>> gt.array([1., 2.]).at[gt.array([1, 5])].get(mode="fill")
        Array([ 2., nan], dtype=float32)
        """
        mode = mode_name("at", mode)
        if mode == "promise_in_bounds" and config.current.jax_results:
            mode = "clip"  # XLA moves all indices inside
        filled = mode in ("fill", "drop")
        return read(self._x, self._counting(wrap_negative_indices, not filled)._index, mode, fill_value)

    set = _updating("set", "Return x with x[index] replaced by `values`.")
    add = _updating("add", "Return x with `values` added to x[index].")
    subtract = _updating("subtract", "Return x with `values` subtracted from x[index].")
    multiply = mul = _updating("multiply", "Return x with x[index] multiplied by `values`.")
    divide = _updating("divide", "Return x with x[index] divided by `values`; a DtypeError if x is not floating.")
    power = _updating("power", "Return x with x[index] to the power of `values`; if repeated, of their product.")
    min = _updating("min", "Return x with x[index] replaced by `values` where these are smaller.")
    max = _updating("max", "Return x with x[index] replaced by `values` where these are larger.")

    def apply(
        self, func: Callable[[Array], Any], *, indices_are_sorted: bool = False, unique_indices: bool = False,
        mode: Any = None, wrap_negative_indices: bool = True,
    ) -> Array:  # fmt: skip
        """Return x with x[index] replaced by func(x[index]).

        As in JAX, `func` is applied once for each repetition of an index. If the index arrays have no value, as inside
        `jit`, this takes a `while_loop`, and reverse mode raises. With ``unique_indices=True`` there is no loop.

        Args:
            func: an elementwise function, which is called with the array x[index].
            indices_are_sorted: ignored.
            unique_indices: apply `func` once, even to repeated indices.

        Raises:
            ShapeError: `func` returns another shape.

        >>> gt.array([1., 4., 9.]).at[1:].apply(gt.sqrt)
        Array([1., 2., 3.], dtype=float32)
        >>> gt.array([1., 2.]).at[[0, 0]].apply(lambda x: x * 10)
        Array([100.,   2.], dtype=float32)
        """
        mode = _kept_promise(mode, wrap_negative_indices)
        if not wrap_negative_indices:
            return self._counting(False, mode == "clip").apply(func, unique_indices=unique_indices, mode=mode)
        inside = "promise_in_bounds" if mode == "promise_in_bounds" else None

        def once(old: Array) -> Array:
            new = lift("at", func(old))
            if new.shape != old.shape:
                got = f"{new.aval!r} for {old.aval!r}"
                raise ShapeError(message("at", "an elementwise function", got, "Use x.at[index].set."))
            return new

        old = read(self._x, self._index, inside, None)
        new = once(old)
        updated = self.set(new, mode=mode)
        most = None if unique_indices else _most_occurrences(self._x, self._index)
        if unique_indices or most == 1:
            return updated

        def again(k: Any, new: Array) -> Array:
            found = once(new)
            return where(occurrences > k, cast(found if new.aval.complex else real(found), new.aval.dtype), new)

        none = full_like_scalar(0, torch.int64, self._x.shape, self._x.aval.device)
        occurrences = read(none.at[self._index].add(1, mode=mode), self._index, inside, None)
        first = cast(new if old.aval.complex else real(new), old.aval.dtype)
        last = loop(1, amax(occurrences) if most is None else most, again, first)
        return self.set(last, mode=mode)

    def _update(self, values: Any, name: str, mode: str | None) -> Array:
        x = self._x
        if name == "divide" and not x.aval.floating:
            if not config.current.jax_results:
                fix = "Use x.astype(gt.float32).at."
                raise DtypeError(message("at", "a floating array to divide", repr(x.aval), fix))
            return AtIndex(cast(x, float_of(x.aval.dtype)), self._index)._update(values, name, mode)
        met = _meeting(x, values)
        if met is x.aval.dtype:
            return _updated(x, self._index, values, name, mode)
        found = cast(x, met).at[self._index]._update(values, name, mode)
        return cast(found if x.aval.complex else real(found), x.aval.dtype)


loop: Any = None
"""`gtrace.fori_loop`, set by a room above this one."""


_COMBINED: dict[str, tuple[Callable[[Array, Array], Array], str]] = {
    "set": (lambda old, new: new, "set"),
    "add": (add, "add"),
    "subtract": (subtract, "sub"),
    "multiply": (multiply, "prod"),
    "divide": (divide, "factors"),
    "power": (power, "factors"),
    "min": (minimum, "amin"),
    "max": (maximum, "amax"),
}
"""By update: the function of element and value, and the reduction of several values for one element."""


@replayable_with_places
def _updated(x: Array, index: Any, values: Any, name: str, mode: str | None) -> Array:
    """Return x with x[index] updated by `values`, which have the dtype of x."""
    combine, kind = _COMBINED[name]
    mask = _whole_mask(x, index)
    u = _update_operand(x, values)
    if mask is not None and len(u.shape) == 0:
        return where(mask, combine(x, u), x)
    split = split_index(x, index, checked=mode != "promise_in_bounds")
    y = split.view(x)
    if not split.arrays:
        target = y.shape
        return split.restore(x, combine(y, _fit(u, target)))
    if kind == "sub":
        u, kind = neg(u), "add"
    drop = mode != "clip"
    if kind == "factors":
        # the product of the values at each index, and 1 elsewhere
        ones = full_like_scalar(1, y.aval.dtype, y.shape, y.aval.device)
        return split.restore(x, combine(y, _scattered(split, ones, u, "prod", drop)))
    return split.restore(x, _scattered(split, y, u, kind, drop))


def _scattered(split: Split, y: Array, u: Array, kind: str, drop: bool) -> Array:
    """Return y, the view of an index with arrays, updated by u.

    Args:
        kind: "set", "add", or the reduction of `scatter_op`.
        drop: drop updates that are out of range; otherwise they go to the nearest element.
    """
    dims, drops = split.dims, drop and any(split.loose)
    if kind in ("set", "add"):
        indices = split.indices(clamp=not drops)
        u = _fit(u, indexed_shape(y.shape, dims, indices[0].shape))
        loose = split.loose if drops else (False,) * len(dims)
        return bind(index_put_op, (y, u, *indices), (dims, loose, kind == "add"))
    numbers = reshape(places(y.size, y.aval.device), y.shape)
    chosen = bind(index_op, (numbers, *split.indices()), (dims,))
    inside = split.inside(chosen.ndim) if drops else None
    flat, values = ravel(y), ravel(_fit(u, chosen.shape))
    if inside is not None:
        # an extra element takes dropped updates
        flat = concat([flat, constant(1, aval((1,), y.aval.dtype, y.aval.device))])
        chosen = where(inside, chosen, y.size)
    out = bind(scatter_op, (flat, ravel(chosen), values), (kind,))
    return reshape(out if inside is None else slice_bounds(out, ((0, y.size, 1),)), y.shape)


def _most_occurrences(x: Array, index: Any) -> int | None:
    """Return an upper bound of how often an index repeats an element; None if its arrays have no values yet.

    Out-of-range indices count for the nearest element, so the number may be too large.
    """
    split = split_index(x, index)
    if not split.arrays or split.indices(clamp=False)[0].size <= 1:
        return 1
    found: list[numpy.ndarray] = []
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, (int, numpy.integer)):
            found.append(numpy.zeros((), numpy.int64))
        elif item is not None and item is not Ellipsis and not isinstance(item, slice):
            host = _host_value(item)
            if host is None:
                return None
            found.extend(numpy.atleast_1d(host).nonzero() if host.dtype == numpy.bool_ else [host.astype(numpy.int64)])
    if len(found) != len(split.arrays):
        return None
    sizes = [split.shape[axis] for axis in split.dims]
    near = [numpy.where(p < 0, p + n, p).clip(0, n - 1) for p, n in zip(found, sizes, strict=True)]
    flat = numpy.ravel_multi_index(numpy.broadcast_arrays(*near), sizes)
    return int(numpy.unique(flat, return_counts=True)[1].max())


def _host_value(item: Any) -> numpy.ndarray | None:
    """Return the values of an index array if they are on the host."""
    if isinstance(item, (list, tuple)):
        item = of_sequence(item)
    if isinstance(item, numpy.ndarray):
        return item
    value = unfollowed_value(item) if isinstance(item, Array) else None
    return value.numpy() if value is not None and value.device.type == "cpu" else None


def _listed(values: list[Any] | tuple[Any, ...]) -> Array:
    """Return a list or tuple of numbers, arrays and such sequences as an Array."""
    if any(isinstance(x, (list, tuple, Array)) for x in values):
        return stack([_listed(x) if isinstance(x, (list, tuple)) else lift("at", x) for x in values])
    return lift("at", numpy.asarray(values))


def _whole_mask(x: Array, index: Any) -> Array | None:
    if isinstance(index, (Array, numpy.ndarray, torch.Tensor)):
        mask = lift("at", index)
        if mask.aval.dtype is torch.bool and mask.aval.shape == x.aval.shape:
            return mask
    return None


def _meeting(x: Array, values: Any) -> torch.dtype:
    """Return the dtype of an update: that of x; with the setting `jax_results`, the wider of the two."""
    if not config.current.jax_results or thread.in_rule:
        return x.aval.dtype
    if type(values) is Array and values.aval.dtype is x.aval.dtype:
        return x.aval.dtype
    value = None if type(values) is Array else python_scalar(values)
    met = result_dtype([x.aval, lift("at", values).aval]) if value is None else result_dtype([x.aval], [value])
    if met is not x.aval.dtype:
        text = (
            f"[at] expected an update for {x.aval!r}, got one that is computed in {LONG[met]}: the result is cast to"
            f" {LONG[x.aval.dtype]}. JAX will refuse this. Convert the array or the update with astype(...)."
        )
        warn_at(text, user_location(), FutureWarning)
    return met


def _update_operand(x: Array, values: Any) -> Array:
    """Return the update in the dtype of x; raise if its kind is wider, because that would lose values."""
    value, fix = python_scalar(values), "Convert x with x.astype(...) first."
    if value is None or type(values) is Array:
        u = beside(x.aval.device, values, lift("at", values))
        if u.aval.floating > x.aval.floating or u.aval.complex > x.aval.complex:
            raise DtypeError(message("at", f"an update for {x.aval!r}", repr(u.aval), fix))
        return cast(u, x.aval.dtype)
    if (isinstance(value, float) and not x.aval.floating) or (isinstance(value, complex) and not x.aval.complex):
        raise DtypeError(message("at", f"an update for {x.aval!r}", repr(value), fix))
    return full_like_scalar(value, x.aval.dtype, (), x.aval.device)


def _narrow(u: Array, ndim: int) -> Array:
    # as in NumPy, an update may have extra leading axes of size 1
    while u.ndim > ndim and u.shape[0] == 1:
        u = reshape(u, u.shape[1:])
    return u


def _fit(u: Array, shape: tuple[int, ...]) -> Array:
    return broadcast_to(_narrow(u, len(shape)), shape)
