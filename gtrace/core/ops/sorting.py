"""Sorting, and searching in sorted arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.batching import shifted, unchanged
from gtrace.core.ops.checks import as_flag, no_booleans, same_kind
from gtrace.core.ops.declare import ORDER, Array, Aval, BadSample, Sample, aval, bind, define, lift
from gtrace.core.ops.elementwise import minimum, subtract
from gtrace.core.ops.index import take_along_axis
from gtrace.core.ops.logic import not_equal, where
from gtrace.core.ops.operands import cast, counting, promote_arrays
from gtrace.core.ops.reduce import bad_axis, count_nonzero
from gtrace.core.ops.samples import rng, uniform
from gtrace.core.ops.shape import ravel, reshape, with_axis
from gtrace.core.ops.sharding_rules import along, searched

__all__ = ["sort", "argsort", "searchsorted"]

_PLACE = "the result is an index"


def _sorted(x: torch.Tensor, axis: int, descending: bool) -> Any:
    return torch.sort(x, dim=axis, descending=descending, stable=True)


def _indices(a: Aval) -> Aval:
    """Return the aval of one index per element."""
    return aval(a.shape, torch.int64, a.device)


def _sort_vjp(ct: Array, needed: Any, x: Array, out: Array, axis: int, descending: bool) -> tuple[Array]:
    order = bind(argsort_op, (x,), (axis, descending))
    places = bind(argsort_op, (order,), (axis, False))  # the inverse permutation: where each element went
    return (take_along_axis(ct, places, axis),)


def _samples() -> list[Sample]:
    x = uniform(-2, 2, 3, 5)
    return [Sample((x,)), Sample((x,), {"axis": 0}), Sample((x,), {"axis": None}), Sample((uniform(-2, 2, 0, 3),)),
            Sample((rng(1).integers(0, 3, (2, 6)),))]  # fmt: skip


_ORDERED: dict[str, Any] = {
    "params": ("axis", "descending"), "unsigned": ORDER, "factors": along("axis"), "batch": shifted("axis"),
    "errors": bad_axis,
}  # fmt: skip
_sort = define(
    "sort", lambda x, **params: _sorted(x, **params).values, shape=same_kind, vjp=_sort_vjp, keeps=slice(None),
    jvp=lambda ts, x, out, axis, descending: take_along_axis(
        ts[0], bind(argsort_op, (x,), (axis, descending)), axis
    ),
    samples=lambda: [*_samples(), Sample((uniform(-2, 2, 3, 5),), {"descending": True})],
    reference=lambda x, axis=-1, descending=False: (
        numpy.flip(numpy.sort(x, axis), axis) if descending else numpy.sort(x, axis)
    ),
    user=lambda x, **kw: sort(x, **kw), **_ORDERED,
)  # fmt: skip
argsort_op = define(
    "argsort", lambda x, **params: _sorted(x, **params).indices, shape=lambda avals, **_: _indices(avals[0]),
    nondiff=_PLACE, samples=_samples, span=lambda avals, spans, axis, **_: (0, avals[0].shape[axis] - 1),
    reference=lambda x, axis=-1: numpy.argsort(x, axis=axis, kind="stable"), user=lambda x, **kw: argsort(x, **kw),
    **_ORDERED,
)  # fmt: skip


def _check_kind(name: str, kind: str | None) -> None:
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise ArgumentError(message(name, "a kind of NumPy's", repr(kind), 'Such as "stable".'))


def sort(
    x: Any, axis: int | None = -1, descending: bool = False, stable: bool | None = True, *, kind: str | None = None
) -> Array:
    """Return x sorted along `axis` (None: flattened); NaN counts as the largest.

    Args:
        stable, kind: accepted as in NumPy; equal elements always keep their order.

    >>> gt.sort(gt.array([3., 1., 2.]))
    Array([1., 2., 3.], dtype=float32)
    """
    _check_kind("sort", kind)
    x, place = with_axis("sort", x, axis)
    return bind(_sort, (x,), (place, as_flag("sort", "descending", descending)))


@counting
def argsort(
    x: Any, axis: int | None = -1, descending: bool = False, stable: bool | None = True, *, kind: str | None = None
) -> Array:
    """Return the int64 indices that sort x along `axis` (None: flattened); NaN counts as the largest.

    Args:
        stable, kind: accepted as in NumPy; equal elements always keep their order.

    >>> gt.argsort(gt.array([3., 1., 2.]))
    Array([1, 2, 0], dtype=int64)
    """
    _check_kind("argsort", kind)
    x, place = with_axis("argsort", x, axis)
    return bind(argsort_op, (x,), (place, as_flag("argsort", "descending", descending)))


# -- searching


_searchsorted = define(
    "searchsorted", lambda a, v, side: torch.searchsorted(a.contiguous(), v.contiguous(), side=side), params=("side",),
    unsigned=ORDER, arity=2, nondiff=_PLACE, factors=searched, batch=unchanged,
    check=no_booleans, shape=lambda avals, side: _indices(avals[1]),
    samples=lambda: [Sample((numpy.sort(uniform(-2, 2, 6)), uniform(-3, 3, 2, 4, seed=1)), {"side": side})
                     for side in ("left", "right")]
    + [Sample((numpy.array([1, 2, 2, 3]), numpy.array([2, 0, 9]))), Sample((numpy.array([1, 2, 2, 3]), 2))],
    errors=lambda: [BadSample((numpy.ones((2, 3)), numpy.ones(2)), {}, ShapeError, r"one dimension"),
                    BadSample((numpy.ones(3), numpy.ones(2)), {"side": "middle"}, ArgumentError, r"left or right")],
    reference=numpy.searchsorted, user=lambda a, v, **kw: searchsorted(a, v, **kw),
)  # fmt: skip


@counting
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Array:
    """Return the int64 index in sorted a before which each element of v belongs.

    Args:
        a: one-dimensional and ascending; NaN counts as the largest, as in NumPy.
        v: values of any shape.
        side: ``"left"``: before equal elements; ``"right"``: after them.
        sorter: indices that sort a, as from ``gt.argsort``, if a is not sorted.

    Raises:
        ShapeError: a is not one-dimensional.
        ArgumentError: `side` is unknown.

    >>> gt.searchsorted(gt.array([1, 2, 2, 3]), gt.array([2, 9]), side="right")
    Array([3, 4], dtype=int64)
    """
    if side not in ("left", "right"):
        raise ArgumentError(message("searchsorted", "left or right as side", repr(side), "Pass one of them."))
    a = lift("searchsorted", a)
    if a.ndim != 1:
        raise ShapeError(message("searchsorted", "one dimension to search in", repr(a.aval), "Use gt.vmap for more."))
    if sorter is not None:
        a = take_along_axis(a, sorter, 0)
    sequence, values = promote_arrays("searchsorted", a, v)
    if sequence.aval.dtype is torch.bool:
        sequence, values = cast(sequence, torch.int8), cast(values, torch.int8)
    if sequence.aval.floating:
        return _search_with_nan(sequence, values, side)
    return _search(sequence, values, side)


def _search_with_nan(sequence: Array, values: Array, side: str) -> Array:
    """Search floating numbers; torch would treat NaN as small."""
    unknown = not_equal(sequence, sequence)
    found = _search(where(unknown, math.inf, sequence), values, side)
    known = subtract(sequence.shape[0], count_nonzero(unknown))
    beyond = known if side == "left" else sequence.shape[0]
    return where(not_equal(values, values), beyond, minimum(found, known))


def _search(sequence: Array, values: Array, side: str) -> Array:
    # flatten the values: torch requires their leading axes, to which a batch adds, to equal those of a
    return reshape(bind(_searchsorted, (sequence, ravel(values)), (side,)), values.shape)
