"""Reductions and sorting with NumPy's order of arguments by position.

In ``gt`` they have torch's: ``gt.mean(x, axis, keepdims)``, ``gt.sort(x, axis, descending)``. What NumPy has after its
`out`, which immutable arrays lack, is given by name.
"""

from __future__ import annotations

from typing import Any

from gtrace.core import ops
from gtrace.core.trace.array import Array

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "argsort", "count_nonzero", "logsumexp", "max", "mean",
    "min", "prod", "searchsorted", "sort", "std", "sum", "var",
]  # fmt: skip

count_nonzero, logsumexp = ops.count_nonzero, ops.logsumexp
prod, sum = ops.prod, ops.sum  # noqa: A001 - the standard's names
searchsorted = ops.searchsorted


def all(x: Any, axis: Any = None, *, keepdims: bool = False, where: Any = None) -> Array:  # noqa: A001
    """Return whether all elements over `axis` are nonzero; see `gt.all`.

    >>> gnp.all(gnp.asarray([[True, False], [True, True]]), 1)
    Array([False,  True], dtype=bool)
    """
    return ops.all(x, axis, keepdims, where=where)


def any(x: Any, axis: Any = None, *, keepdims: bool = False, where: Any = None) -> Array:  # noqa: A001
    """Return whether any element over `axis` is nonzero; see `gt.any`.

    >>> gnp.any(gnp.asarray([[True, False], [False, False]]), 1)
    Array([ True, False], dtype=bool)
    """
    return ops.any(x, axis, keepdims, where=where)


def max(  # noqa: A001
    x: Any, axis: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """Return the largest element over `axis`; see `gt.max`.

    >>> gnp.max(gnp.asarray([[1., 5.], [3., 2.]]), 0)
    Array([3., 5.], dtype=float32)
    """
    return ops.max(x, axis, keepdims, initial=initial, where=where)


def min(  # noqa: A001
    x: Any, axis: Any = None, *, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Array:
    """Return the smallest element over `axis`; see `gt.min`.

    >>> gnp.min(gnp.asarray([[1., 5.], [3., 2.]]), 0)
    Array([1., 2.], dtype=float32)
    """
    return ops.min(x, axis, keepdims, initial=initial, where=where)


amax, amin = max, min


def mean(x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False, where: Any = None) -> Array:
    """Return the mean over `axis`; see `gt.mean`.

    >>> gnp.mean(gnp.asarray([[1., 3.], [5., 7.]]), 0, gnp.float64)
    Array([3., 5.], dtype=float64)
    """
    return ops.mean(x, axis, keepdims, dtype=dtype, where=where)


def var(
    x: Any, axis: Any = None, dtype: Any = None, *, ddof: float | None = None, correction: float = 0.0,
    keepdims: bool = False, where: Any = None, mean: Any = None,
) -> Array:  # fmt: skip
    """Return the variance over `axis`; see `gt.var`.

    >>> gnp.var(gnp.asarray([1., 2., 3.]), 0, gnp.float64, ddof=1)
    Array(1., dtype=float64)
    """
    return ops.var(x, axis, correction, keepdims, dtype=dtype, ddof=ddof, where=where, mean=mean)


def std(
    x: Any, axis: Any = None, dtype: Any = None, *, ddof: float | None = None, correction: float = 0.0,
    keepdims: bool = False, where: Any = None, mean: Any = None,
) -> Array:  # fmt: skip
    """Return the standard deviation over `axis`; see `gt.std`.

    >>> gnp.std(gnp.asarray([1., 3.]), 0, gnp.float64)
    Array(1., dtype=float64)
    """
    return ops.std(x, axis, correction, keepdims, dtype=dtype, ddof=ddof, where=where, mean=mean)


def argmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the place of the largest element along `axis`; see `gt.argmax`.

    >>> gnp.argmax(gnp.asarray([1., 3., 2.]))
    Array(1, dtype=int64)
    """
    return ops.argmax(x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the place of the smallest element along `axis`; see `gt.argmin`.

    >>> gnp.argmin(gnp.asarray([2., 1., 3.]))
    Array(1, dtype=int64)
    """
    return ops.argmin(x, axis, keepdims)


def sort(
    x: Any, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = True, descending: bool = False
) -> Array:
    """Return x with the elements along `axis` in order; see `gt.sort`.

    >>> gnp.sort(gnp.asarray([3., 1., 2.]), -1, "stable")
    Array([1., 2., 3.], dtype=float32)
    """
    return ops.sort(x, axis, descending, stable, kind=kind)


def argsort(
    x: Any, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = True, descending: bool = False
) -> Array:
    """Return the indices that sort x along `axis`; see `gt.argsort`.

    >>> gnp.argsort(gnp.asarray([3., 1., 2.]), -1, "stable")
    Array([1, 2, 0], dtype=int64)
    """
    return ops.argsort(x, axis, descending, stable, kind=kind)
