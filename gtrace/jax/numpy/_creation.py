"""Functions of ``jax.numpy`` that make arrays of other things: of numbers, lists, NumPy's arrays and files."""

from __future__ import annotations

import array as buffers
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy

from gtrace import numpy as ours
from gtrace.extend import FLOAT0, Array, DType, ops, weakened
from gtrace.jax.keys import taking_keys
from gtrace.jax.numpy._dtypes import result_type
from gtrace.jax.scalars import PYTHON, WEAK

__all__ = [
    "arange", "array", "asarray", "astype", "frombuffer", "fromfile", "fromiter", "fromstring", "full", "load",
    "zeros",
]  # fmt: skip

_DEEPEST = 64
"""Levels of nested lists, at most: the dimensions that NumPy and torch allow."""


def _plain(x: Any, depth: int = 0) -> Any:
    """Return what an object, or those in lists, stands for: by ``__jax_array__``, or as a buffer or masked array."""
    kind = type(x)
    if kind is Array or kind in PYTHON:
        return x
    if kind in (list, tuple) and depth < _DEEPEST:
        return x if PYTHON.issuperset(map(type, x)) else kind([_plain(y, depth + 1) for y in x])
    if hasattr(kind, "__jax_array__"):
        return x.__jax_array__()
    masked = isinstance(x, numpy.ndarray) and kind is not numpy.ndarray
    return numpy.asarray(x) if masked or isinstance(x, (bytearray, memoryview, buffers.array)) else x


def _find_dtypes(x: Any, found: dict[Any, Any]) -> bool:
    """Add what decides about the dtype of nested lists to `found`; return whether that is all that they hold."""
    kinds = set(map(type, x))
    if kinds <= PYTHON:
        found.update(zip(kinds, kinds, strict=True))
        return True
    for y in x:
        if type(y) in (list, tuple):
            if not _find_dtypes(y, found):
                return False
        elif isinstance(y, (Array, numpy.ndarray, numpy.generic)):
            found[(y.aval.dtype, y.aval.weak) if isinstance(y, Array) else y.dtype] = y
        elif type(y) in PYTHON:
            found[type(y)] = type(y)
        else:
            return False  # `ops.array` says what it takes
    return True


def _dtype_in(given: Any, dtype: Any) -> Any:
    """Return the dtype for nested lists in which arrays or NumPy's numbers decide: that of Python numbers gives way."""
    if dtype is not None or type(given) not in (list, tuple):
        return dtype
    found: dict[Any, Any] = {}
    return result_type(*found.values()) if _find_dtypes(given, found) and not found.keys() <= PYTHON else None


@functools.partial(taking_keys, "jax.numpy.array")
def array(
    object: Any,  # noqa: A002 - JAX's name
    dtype: Any = None,
    *args: Any,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    device: Any = None,
    out_sharding: Any = None,
) -> Array:
    """``gt.array`` with NumPy's `ndmin`: the least number of dimensions, completed in front.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.array([1., 2.], ndmin=2).shape
    (1, 2)
    """
    if args:
        return _by_position(object, dtype, args, device)
    given = _plain(object)
    dtype = _dtype_in(given, dtype)
    out = ops.array(given, dtype, device) if copy else ops.asarray(given, dtype, device=device)
    return out if out.ndim >= ndmin else ops.reshape(out, (*(1,) * (ndmin - out.ndim), *out.shape))


def _by_position(x: Any, dtype: Any, given: tuple[Any, ...], device: Any) -> Array:
    """Return an array of which `copy`, `order` and `ndmin` are given by position, which JAX deprecates."""
    names = ("copy", "order", "ndmin")
    if len(given) > len(names):
        raise TypeError(f"array() takes at most 5 arguments by position, got {2 + len(given)}")
    warnings.warn("[array] expected copy, order and ndmin by name, got them by position", DeprecationWarning, 4)
    options = dict(zip(names, given, strict=False))
    return array(x, dtype, device=device, **options)


@functools.partial(taking_keys, "jax.numpy.full")
def full(
    shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Array:  # fmt: skip
    """``gt.full``; of a Python number, without a dtype, the array is weak, as in JAX.

    >>> import gtrace.jax.numpy as jnp
    >>> (jnp.ones(2, "bfloat16") * jnp.full(2, 0.5)).dtype == "bfloat16"
    True
    """
    out = ops.full(shape, fill_value, dtype, device=device)
    return weakened(out, out.aval.dtype) if dtype is None and type(fill_value) in WEAK else out


@functools.partial(taking_keys, "jax.numpy.asarray")
def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, device: Any = None,
    out_sharding: Any = None,
) -> Array:  # fmt: skip
    """``gt.asarray``, which copies what may be written to later, as JAX's does."""
    a = _plain(a)
    dtype = _dtype_in(a, dtype)
    return (
        ops.asarray(a, dtype, device=device) if copy is False or isinstance(a, Array) else ops.array(a, dtype, device)
    )


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Array:
    """``gt.arange``, in the dtype in which its arguments meet.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.arange(jnp.int8(3))
    Array([0, 1, 2], dtype=int8)
    """
    given = [x for x in (start, stop, step) if x is not None]
    if dtype is None and not all(type(x) in WEAK for x in given):
        dtype = ours.result_type(*given)
    start, stop, step = [x.item() if isinstance(x, numpy.ndarray) and not x.ndim else x for x in (start, stop, step)]
    step = 1 if step is None else step
    if dtype is not None and DType(dtype).kind == "c":
        return ops.arange(start, stop, step, float, device).astype(dtype)
    return ops.arange(start, stop, step, dtype, device)


@functools.partial(taking_keys, "jax.numpy.astype")
def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Array:
    """``gt.astype``, for an array of keys, too."""
    return ops.astype(x, dtype, device=device)


def _from_numpy(name: str) -> Callable[..., Array]:
    function = getattr(numpy, name)

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Array:
        return ops.array(function(*args, **kwargs))

    made.__doc__ = f"Return what ``numpy.{name}`` returns, as an Array."
    return made


frombuffer, fromfile, fromiter, fromstring = map(_from_numpy, ("frombuffer", "fromfile", "fromiter", "fromstring"))


def load(file: Any, *args: Any, **options: Any) -> Any:
    """Return what ``numpy.load`` returns, an array of numbers as an Array. NumPy saves bfloat16 as two bytes."""
    found = numpy.load(file, *args, **options)
    if isinstance(found, numpy.ndarray) and found.dtype == "V2":
        return ops.array(found.view(numpy.uint16)).view("bfloat16")
    return ops.array(found) if isinstance(found, numpy.ndarray) and found.dtype != object else found


@functools.partial(taking_keys, "jax.numpy.zeros")
def zeros(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """``gt.zeros``; of the dtype ``float0``, that of tangents of integers, an array of NumPy's, without values.

    >>> import gtrace.jax as jax
    >>> jax.numpy.zeros(2, jax.float0).shape, jax.numpy.zeros(2)
    ((2,), Array([0., 0.], dtype=float32))
    """
    if isinstance(dtype, numpy.dtype) and dtype == FLOAT0:
        return numpy.zeros(shape, FLOAT0)
    return ops.zeros(shape, dtype, device=device)
