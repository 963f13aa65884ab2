"""Functions applied along axes and over broadcast arrays."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.key_arrays import PRNGKeyArray
from gtrace.core.ops.shape import normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.transform.arguments import named
from gtrace.core.transform.vmap import vmap

__all__ = ["apply_along_axis", "apply_over_axes", "vectorize"]

_TERM = r"\((?:\w+(?:,\w+)*)?\)"
_SIGNATURE = re.compile(rf"{_TERM}(?:,{_TERM})*->{_TERM}(?:,{_TERM})*")


_Terms = list[tuple[str, ...]]


def core_names(signature: str) -> tuple[_Terms, _Terms]:
    """Return the names of the core dimensions of each argument, and of each result."""
    text = signature.replace(" ", "")
    if not _SIGNATURE.fullmatch(text):
        raise ArgumentError(message("vectorize", 'a signature such as "(n),(n)->()"', repr(signature), "Check it."))

    def terms(side: str) -> _Terms:
        return [tuple(term.split(",")) if term else () for term in re.findall(r"\(([^)]*)\)", side)]

    before, _, after = text.partition("->")
    return terms(before), terms(after)


def vectorize(
    pyfunc: Callable[..., Any] | None = None,
    *,
    excluded: Collection[int | str] = (),
    signature: str | None = None,
) -> Callable[..., Any]:
    """Return a function that broadcasts its array arguments and maps `pyfunc` over their axes with `vmap`.

    Args:
        pyfunc: a function of Arrays; None: return a decorator. Arguments that are None are passed on.
        excluded: positions and names of arguments that are passed on as they are; keyword arguments always are.
        signature: the dimensions that pyfunc itself takes and returns, as in ``"(m,n),(n)->(m)"``; None: it takes
            numbers.

    Raises:
        ArgumentError: a malformed signature, another number of arguments or of results.
        ShapeError: dimensions of one name that differ, axes that do not broadcast, or results of other dimensions.

    >>> gnp.vectorize(lambda x, y: x @ y, signature="(n),(n)->()")(gnp.ones((2, 3)), gnp.arange(3.))
    Array([3., 3.], dtype=float32)
    """
    if not all(isinstance(k, str) or (isinstance(k, (int, numpy.integer)) and k >= 0) for k in excluded):
        got = repr(excluded)
        raise ArgumentError(message("vectorize", "positions from 0 and names as `excluded`", got, "Count from 0."))
    if pyfunc is None:
        return functools.partial(vectorize, excluded=excluded, signature=signature)
    terms = None if signature is None else core_names(signature)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = [k for k in range(len(args)) if k not in excluded]
        mapped = [k for k in given if args[k] is not None]
        if terms is not None and (len(given) != len(terms[0]) or mapped != given):
            got = f"{len(mapped)} for {signature!r}"
            raise ArgumentError(message("vectorize", f"{len(terms[0])} arrays", got, "Match them, or use excluded."))
        keys = {k for k in mapped if type(args[k]) is PRNGKeyArray}
        arrays = [args[k]._data if k in keys else ops.array(args[k]) for k in mapped]
        names = [()] * len(arrays) if terms is None else terms[0]
        sizes: dict[str, int] = {}
        loops = [_outer_shape(x, core, sizes) for x, core in zip(arrays, names, strict=True)]
        try:
            loop = numpy.broadcast_shapes(*loops)
        except ValueError:
            got = " and ".join(map(str, loops))
            raise ShapeError(message("vectorize", "axes that broadcast", got, "Sizes must be equal or 1.")) from None

        def of_arrays(*values: Array) -> Any:
            full = list(args)
            for k, value in zip(mapped, values, strict=True):
                full[k] = args[k]._like(value) if k in keys else value
            out = pyfunc(*full, **kwargs)
            if terms is not None:
                _check_results(out, terms[1], dict(sizes))
            return out

        if not loop:
            return of_arrays(*arrays)
        size, rows, axes = math.prod(loop), [], []
        for x, outer in zip(arrays, loops, strict=True):
            core = x.shape[len(outer) :]
            rows.append(ops.reshape(ops.broadcast_to(x, (*loop, *core)), (size, *core)) if outer else x)
            axes.append(0 if outer else None)
        out = vmap(of_arrays, in_axes=tuple(axes))(*rows)
        return tree.map(lambda y: ops.reshape(y, (*loop, *y.shape[1:])), out)

    return named(wrapped, pyfunc)


def _outer_shape(x: Array, core: tuple[str, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    """Return the shape in front of the core dimensions, whose sizes are noted, and must agree with those noted."""
    start = x.ndim - len(core)
    if start < 0:
        raise ShapeError(message("vectorize", f"at least {len(core)} dimensions", repr(x.aval), "Use expand_dims."))
    for name, n in zip(core, x.shape[start:], strict=True):
        wanted = int(name) if name.isdigit() else sizes.setdefault(name, n)
        if wanted != n:
            got = f"{wanted} and {n} for {name!r}"
            raise ShapeError(message("vectorize", "one size for each dimension's name", got, "Check the shapes."))
    return x.shape[:start]


def _check_results(out: Any, terms: _Terms, sizes: dict[str, int]) -> None:
    """Raise if results do not have the dimensions of a signature."""
    results = [out] if len(terms) == 1 else out
    if not isinstance(results, (tuple, list)) or len(results) != len(terms):
        got = f"{len(out)}" if isinstance(out, (tuple, list)) else "one"
        raise ArgumentError(message("vectorize", f"{len(terms)} results, in a tuple", got, "Match the signature."))
    for y, core in zip(results, terms, strict=True):
        x = y._data if type(y) is PRNGKeyArray else ops.array(y)
        if _outer_shape(x, core, sizes):
            fix = "Match the signature."
            raise ShapeError(message("vectorize", f"a result of {len(core)} dimensions", repr(x.aval), fix))


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Array:
    """Return `func1d` of each row of elements along `axis`, with its result's axes in place of that axis.

    Args:
        func1d: a function of an Array of one dimension, mapped with `vmap`.
        args, kwargs: passed on to it.

    >>> gnp.apply_along_axis(lambda row: row - row[0], 1, gnp.array([[1, 2], [5, 7]]))
    Array([[0, 1],
           [0, 2]], dtype=int64)
    """
    x = ops.array(arr)
    place = normalize_axis("apply_along_axis", axis, x.ndim)
    moved = ops.moveaxis(x, place, -1)
    outer = moved.shape[:-1]
    if not outer:
        return ops.array(func1d(x, *args, **kwargs))
    rows = ops.reshape(moved, (math.prod(outer), moved.shape[-1]))
    out = vmap(lambda row: ops.array(func1d(row, *args, **kwargs)))(rows)
    inner = out.shape[1:]
    out = ops.reshape(out, (*outer, *inner))
    return ops.moveaxis(out, tuple(range(len(outer), out.ndim)), tuple(range(place, place + len(inner))))


def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Any) -> Array:
    """Return func(x, axis) applied for one axis after the other; an axis that it removes is put back with size 1.

    >>> gnp.apply_over_axes(gnp.sum, gnp.ones((2, 3)), (0, 1))
    Array([[6.]], dtype=float32)
    """
    x = ops.array(a)
    ndim = x.ndim
    for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
        place = normalize_axis("apply_over_axes", axis, ndim)
        x = ops.array(func(x, place))
        if x.ndim == ndim - 1:
            x = ops.expand_dims(x, place)
        if x.ndim != ndim:
            got = repr(x.aval)
            raise ShapeError(message("apply_over_axes", f"{ndim} or {ndim - 1} dimensions", got, "Reduce one axis."))
    return x
