"""Functions of ``jax.numpy`` whose parameters mean something else in gtrace, or that gtrace has no use for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy

from gtrace.errors import ArgumentError, message
from gtrace.numpy.functional import vectorize
from gtrace.ops import create, logic
from gtrace.ops.shape import reshape
from gtrace.ops.unique import nonzero
from gtrace.trace.array import Array


def array(
    object: Any,  # noqa: A002 - JAX's name
    dtype: Any = None,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Array:
    """``gt.array`` with NumPy's `ndmin`: the least number of dimensions, completed in front.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.array([1., 2.], ndmin=2).shape
    (1, 2)
    """
    out = create.array(object, dtype, device) if copy else create.asarray(object, dtype, device=device)
    return out if out.ndim >= ndmin else reshape(out, (*(1,) * (ndmin - out.ndim), *out.shape))


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, device: Any = None,
    out_sharding: Any = None,
) -> Array:  # fmt: skip
    """``gt.asarray``, which copies what may be written to later, as JAX's does."""
    return (
        create.asarray(a, dtype, device=device)
        if copy is False or isinstance(a, Array)
        else create.array(a, dtype, device)
    )


def where(condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """``gt.where``, or, with a condition alone, the places where it holds: one array an axis."""
    if x is not None and y is not None:
        return logic.where(condition, x, y)
    if x is not None or y is not None:
        raise ArgumentError(message("where", "both x and y, or neither", "one of them", "Pass both."))
    return nonzero(condition, size=size, fill_value=0 if fill_value is None else fill_value)


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> Callable[..., Any]:
    """Return a function of scalars as one of arrays; see ``gtrace.numpy.vectorize``."""
    return vectorize(func)


def iterable(y: Any) -> bool:
    """Return whether something can be iterated over."""
    return bool(numpy.iterable(y))


def printoptions(**options: Any) -> AbstractContextManager[Any]:
    """NumPy's options of printing, which Arrays print with, for a block."""
    return numpy.printoptions(**options) if options else contextlib.nullcontext()


def set_printoptions(**options: Any) -> None:
    """Set NumPy's options of printing, which Arrays print with."""
    numpy.set_printoptions(**options)
