"""Dtypes of values and results: the meaning of 64 bits, of names, and promotion."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from gtrace.core.base.config import config
from gtrace.core.base.dtypes import COMPLEX, FLOAT8, FLOATS, INEXACT, LONG, UNSIGNED, WIDE_UNSIGNED, DType
from gtrace.core.base.errors import DtypeError, PromotionWarning, message, user_location, warn_at
from gtrace.core.ir.aval import Aval
from gtrace.core.trace.record import thread, thread_has

_DOUBLE: dict[type, torch.dtype] = {float: torch.float64, complex: torch.complex128}
_DEFAULT = {bool: torch.bool, int: torch.int64, float: torch.float32, complex: torch.complex64}

NARROW = {
    torch.int64: torch.int32, torch.uint64: torch.uint32, torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}  # fmt: skip
"""Replacements of the 64-bit dtypes while the setting `x64` is off."""


def wide() -> bool:
    """Whether 64-bit dtypes are in use: with the setting `x64`, and always in rules of operations."""
    return thread.in_rule or config.current.x64


def narrowed(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for values from outside and results of counting, by the setting `x64`."""
    return dtype if wide() else NARROW.get(dtype, dtype)


def default_dtype(kind: type) -> torch.dtype:
    """Return the dtype of an array made from Python scalars of a kind.

    Floats are float32, whatever `x64` is. With `jax_results` they follow it, as in JAX.
    """
    if kind in _DOUBLE and not thread.in_rule and config.current.jax_results and config.current.x64:
        return _DOUBLE[kind]
    return narrowed(_DEFAULT[kind])


def float_of(dtype: torch.dtype) -> torch.dtype:
    """Return the floating dtype in which functions compute integers or booleans: float32.

    With `jax_results` and `x64` it is float64 for 64-bit integers, as in JAX.
    """
    return default_dtype(float) if dtype.itemsize == 8 else torch.float32


def rule() -> contextlib.AbstractContextManager[None]:
    """Run a rule of an operation with int64 integers, so that its recording does not depend on settings."""
    return thread_has(in_rule=True)


def of_user(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a user's function that a rule calls; inside it, the settings apply again."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with thread_has(in_rule=False, linear=False, deferred=None):
            return function(*args, **kwargs)

    return call


def as_dtype(dtype: Any) -> torch.dtype:
    """Return the torch dtype for a dtype of gtrace, torch or NumPy, a Python type, or a name.

    If the setting `x64` is off, 64-bit names mean 32 bits; only torch's own dtypes keep their width.

    Raises:
        DtypeError: there is no such dtype, or gtrace does not support it.

    >>> as_dtype("float32"), as_dtype(int), as_dtype(numpy.float64)
    (torch.float32, torch.int64, torch.float64)
    """
    found = default_dtype(dtype) if dtype is float or dtype is complex else DType(dtype).torch
    return found if isinstance(dtype, torch.dtype) else narrowed(found)


class _Mixing:
    """Warns once per process when a NumPy float64 array turns a float32 program into float64."""

    def __init__(self) -> None:
        self._first: str | None = None
        self._warned = False

    def note(self) -> None:
        """Note the line at which NumPy first brought a float64 array that nobody asked for."""
        if self._first is None:
            self._first = user_location()

    def check(self, avals: Sequence[Aval]) -> None:
        """Warn if float32 arrays meet float64 arrays, and NumPy may have brought one of the latter."""
        if self._first is None or self._warned:
            return
        if {torch.float32, torch.float64} <= {a.dtype for a in avals if not a.weak}:
            self._warned = True
            text = (
                "[promotion] expected arrays of one float dtype, got float32 and float64: the result is float64, and"
                f" slower. NumPy's float64 came in at {self._first}. Convert it there with .astype(numpy.float32), or"
                " use gt.config.update(x64=False). This warning is given once."
            )
            warn_at(text, user_location(), PromotionWarning)


mixing = _Mixing()


def _rank(dtype: torch.dtype) -> int:
    return 2 if dtype in FLOATS or dtype in FLOAT8 else 3 if dtype in COMPLEX else 0 if dtype is torch.bool else 1


_RANKS = (bool, int, float, complex)
_SCALAR_RANK = {bool: 0, int: 1, float: 2, complex: 3}


def promote_dtypes(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """Return the promoted dtype of two arrays. It follows torch.promote_types, and adds the wide unsigned dtypes.

    If the setting `x64` is off, or with `jax_results`, wide unsigned dtypes promote as in JAX.

    Raises:
        DtypeError: uint64 meets a signed integer dtype, or float8 another dtype. With `jax_results`, float8 beside
            integers and booleans is float8.
    """
    if a is not b and (a in FLOAT8 or b in FLOAT8):
        if (a not in INEXACT or b not in INEXACT) and config.current.jax_results and not thread.in_rule:
            return a if a in FLOAT8 else b
        got, fix = f"{LONG[a]} and {LONG[b]}", "float8 is for storage: convert first, with x.astype(gt.float32)."
        raise DtypeError(message("promotion", "dtypes to compute with", got, fix))
    if a is b or (a not in WIDE_UNSIGNED and b not in WIDE_UNSIGNED):
        return torch.promote_types(a, b)
    large, other = (a, b) if a in WIDE_UNSIGNED and (b not in WIDE_UNSIGNED or a.itemsize > b.itemsize) else (b, a)
    if other in INEXACT:
        return other
    if other is torch.bool or other in UNSIGNED:
        return large
    if large is not torch.uint64:  # the next signed dtype that represents both
        signed = max(other, torch.int32 if large is torch.uint16 else torch.int64, key=lambda dtype: dtype.itemsize)
        return signed if wide() else narrowed(signed)
    if not wide() or (config.current.jax_results and not thread.in_rule):
        return narrowed(as_dtype(numpy.promote_types(LONG[a], LONG[b])))
    got = f"{LONG[a]} and {LONG[b]}"
    raise DtypeError(message("promotion", "dtypes with a common one", got, "Convert one with x.astype(...)."))


def result_dtype(avals: Sequence[Aval], scalars: Sequence[bool | int | float | complex] = ()) -> torch.dtype:
    """Return the promoted dtype of operands with these avals and of Python scalars.

    Strong operands promote by torch.promote_types, whatever their shapes. Weak operands are Python scalars and values
    computed from them alone. They count only by kind: bool < integer < float < complex. A weak kind above the strong
    dtype's gives its default: int64, float32 or complex64. With float64, a complex kind gives complex128.
    """
    return meeting(avals, scalars)[0]


def meeting(avals: Sequence[Aval], scalars: Sequence[bool | int | float | complex] = ()) -> tuple[torch.dtype, bool]:
    """Return the `result_dtype` of operands, and whether the result is weak.

    It is weak if all operands are. With the setting `jax_results` it is also weak if a weak kind decided over integers
    or booleans, or if integers without a common dtype meet in floats, as in JAX's lattice.
    """
    strong = [a.dtype for a in avals if not a.weak]
    weak = max([_rank(a.dtype) for a in avals if a.weak] + [_SCALAR_RANK[type(s)] for s in scalars], default=0)
    if not strong:
        dtypes = [a.dtype for a in avals]
        best = functools.reduce(promote_dtypes, dtypes) if dtypes else default_dtype(_RANKS[weak])
    else:
        best = functools.reduce(promote_dtypes, strong)
    if _rank(best) >= weak:
        return best, not strong or (_rank(best) == 2 and all(_rank(dtype) < 2 for dtype in strong))
    if weak == 3 and best in FLOATS and (strong or best is torch.float64):
        return torch.complex128 if best is torch.float64 else torch.complex64, not strong
    stays = not thread.in_rule and config.current.jax_results and _rank(best) < 2
    return default_dtype(_RANKS[weak]), not strong or stays
