"""``jax.experimental.checkify``: checks of values in functions that are traced, as results or as errors.

`check` notes a condition, and a function under `checkify` returns what was noted beside its result. Checks of all
divisions, indices and NaN are added to the recorded function.
"""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable
from typing import Any

import attrs
import numpy
import torch

import gtrace as gt
from gtrace.errors import CheckError
from gtrace.extend import (
    ArgumentError,
    Array,
    ShapeError,
    call_for_effect,
    capture_like,
    is_array,
    lift,
    message,
    note_effect,
    note_token,
    register,
    thread,
    tree,
    without_empty,
)
from gtrace.jax.automatic_checks import Checker, StatedCheck, first_failed

JaxRuntimeError = CheckError


class ErrorCategory(enum.Enum):
    """The kinds of checks: those of `check`, and three that JAX adds by itself."""

    USER = "user"
    NAN = "nan"
    INDEX = "index"
    DIV = "div"


user_checks = frozenset({ErrorCategory.USER})
nan_checks = frozenset({ErrorCategory.NAN})
index_checks = frozenset({ErrorCategory.INDEX})
div_checks = frozenset({ErrorCategory.DIV})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks


@attrs.frozen(repr=False, eq=False)
class Error:
    """The results of a call's checks: a pytree whose arrays tell for each check whether it failed.

    Attributes:
        failed: booleans; with axes in front, for each example of a batch.
        values: the values for the texts.
        texts: to format, with where the values go: their places and names.
    """

    failed: tuple[Any, ...] = ()
    values: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = ()
    texts: tuple[str, ...] = ()

    def get(self) -> str | None:
        """Return the texts of the checks that failed, or None.

        Of one example it is that of the first one.
        """
        found = []
        for failed, (args, named), text in zip(self.failed, self.values, self.texts, strict=True):
            where = numpy.asarray(failed)
            for place in zip(*numpy.nonzero(where), strict=True) if where.ndim else [()] * bool(where):
                picked = tree.map(lambda x, k=place: _example(x, k), (args, named))
                said = text.format(*picked[0], **picked[1])
                if not place:
                    return said
                found.append(f"at mapped index {', '.join(map(str, place))}: {said}")
        return "\n".join(found) or None

    def throw(self) -> None:
        """Raise what `get` returns, if anything.

        Raises:
            CheckError: a check failed.
        """
        text = self.get()
        if text is not None:
            raise JaxRuntimeError(text)

    def __repr__(self) -> str:
        return f"Error({self.get()})"


def _example(x: Any, place: tuple[Any, ...]) -> Any:
    """Return a value of a text for one example of a batch: an Array, also of what a callback got as NumPy's."""
    if not isinstance(x, (Array, numpy.ndarray, numpy.generic)) or (isinstance(x, Array) and not place):
        return x
    value = numpy.asarray(x)[place]
    return gt.asarray(value, torch.int64 if value.dtype == numpy.int64 else None)  # those of keys keep 64 bits


gt.tree.register_pytree_node(
    Error, lambda e: ((e.failed, e.values), e.texts), lambda texts, kept: Error(kept[0], kept[1], texts)
)


class _Checks(threading.local):
    """The functions under `checkify` that a thread is in: where each traces, and what it has found."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, list[tuple[Any, Any, str]]]] = []


_checks = _Checks()


def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Check that a boolean is true: in the error of the function under `checkify`, or by raising where there is none.

    A traced function that is not under `checkify` raises when it runs.

    Args:
        msg: the text of the error, with the fields of ``str.format`` for `fmt_args` and `fmt_kwargs`.
        debug: leave it out where nothing is under `checkify`.

    Raises:
        CheckError: it is false, outside of `checkify`.
        ShapeError: it is no scalar.

    >>> import gtrace.jax as jax
    >>> from gtrace.jax.experimental import checkify
    >>> def f(x):
    ...     checkify.check(x > 0, "{} is not positive", x)
    ...     return x
    >>> err, out = jax.jit(checkify.checkify(f))(-1.0)
    >>> err.get()
    '-1.0 is not positive (`check` failed)'
    """
    other = [x for x in tree.leaves((fmt_args, fmt_kwargs)) if not is_array(x)]
    if other:
        got = type(other[0]).__name__
        raise ArgumentError(message("check", "arrays and numbers for the text", got, "Write it into the text."))
    msg += " (`check` failed)"
    failed = gt.logical_not(lift("check", pred))
    if failed.ndim:
        raise ShapeError(message("check", "a scalar", repr(failed.aval), "Use jnp.all or jnp.any."))
    if not _checks.open:
        if debug:
            return
        if thread.trace.capture is None:
            Error((failed,), ((fmt_args, fmt_kwargs),), (msg,)).throw()
        else:
            _state(failed, (fmt_args, fmt_kwargs), msg)
        return
    where, found = _checks.open[-1]
    if thread.trace is where:
        found.append((failed, (fmt_args, fmt_kwargs), msg))
        return
    if where.capture is not None:
        _state(failed, (fmt_args, fmt_kwargs), msg)
        return

    def note(failed: Any, args: Any, named: Any) -> None:
        # the program runs while the function is under checkify, which computes its results before it ends
        if _checks.open:
            _checks.open[-1][1].append((failed, (args, named), msg))

    call_for_effect("check", note, (failed, fmt_args, fmt_kwargs), {}, ordered=True, key=("check", msg))


def _state(failed: Array, values: Any, text: str) -> None:
    """Record a check as an operation of the traced function."""
    leaves, structure = tree.flatten((failed, values))
    note_effect(register("check", StatedCheck(structure, text)), [lift("check", x) for x in leaves], True)


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """`check`, which is left out where nothing is under `checkify`."""
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


def checkify(f: Callable[..., Any], errors: frozenset[ErrorCategory] = user_checks) -> Callable[..., tuple[Error, Any]]:
    """Return a function for the error of the checks in `f`, and its result.

    Args:
        errors: which checks count: those of `check`, and with `nan_checks`, `div_checks` and `index_checks` those of
            all operations. For these the function is traced, so it cannot read values.

    >>> import gtrace.jax as jax
    >>> from gtrace.jax.experimental import checkify
    >>> err, _ = checkify.checkify(lambda x, i: x[i], errors=checkify.index_checks)(jax.numpy.ones(3), 5)
    >>> err.get().split(" (at ")[0]
    'out-of-bounds indexing for array of shape (3,): index 5 is out of bounds for axis 0 with size 3.'
    """
    automatic = frozenset([kind.value for kind in automatic_checks if kind in errors])

    def checked(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        found: list[tuple[Any, Any, str]] = []
        noted: list[tuple[Any, Any, str]] = []
        _checks.open.append((thread.trace, noted))
        try:
            if automatic or thread.trace.capture is not None:
                out = _recorded(f, automatic, noted, found, args, kwargs)
            else:
                out = f(*args, **kwargs)
            if thread.trace.capture is None:
                gt.eval([x for x in tree.leaves(out) if isinstance(x, Array)])
        finally:
            _checks.open.pop()
        found = [*(noted if ErrorCategory.USER in errors else ()), *found]
        if not found:
            return Error(), out
        failed, values, texts = zip(*found, strict=True)
        return Error(failed, values, texts), out

    return checked


def _recorded(
    f: Callable[..., Any], kinds: frozenset[str], noted: list[Any], found: list[Any], args: Any, kwargs: Any
) -> Any:
    """Return the result of a function, as it is recorded.

    The checks that it states itself are added to `noted`, those of operations and of functions within it to `found`.
    """
    texts: list[str] = []

    def traced(*args: Any, **kwargs: Any) -> Any:
        own: list[tuple[Any, Any, str]] = []
        _checks.open.append((thread.trace, own))
        try:
            out = f(*args, **kwargs)
        finally:
            _checks.open.pop()
        texts[:] = [text for _, _, text in own]
        return out, [pair[:2] for pair in own]

    if not kinds:  # Python numbers stay what they are
        inner: Callable[..., Any] = functools.partial(traced, *args, **kwargs)
        args, kwargs = (), {}
    else:
        inner = traced
    captured = capture_like("checkify", inner, args, kwargs, "if any")
    leaves = [lift("checkify", x) for x in without_empty(*tree.flatten((args, kwargs)))[0]]
    checker = Checker(kinds)
    outputs = checker.run(captured.graph, [*leaves, *captured.constants])
    if captured.token:  # its effects are those of the function around
        note_token(*outputs)
        outputs = []
    out, own = captured.result.unflatten(outputs)
    noted += [(failed, values, text) for (failed, values), text in zip(own, texts, strict=True)]
    found += checker.found
    return out


def check_error(error: Error) -> None:
    """Check an error of `checkify`: raise it where it has a value, else hand it to the next `checkify` outside.

    Raises:
        CheckError: a check failed, outside of `checkify`.
    """
    if not _checks.open:
        error.throw()
        return
    where, found = _checks.open[-1]
    if thread.trace is not where:
        fix = "Return the error, and check it outside."
        got = f"one in {thread.trace.capture} within it"
        raise ArgumentError(message("check_error", "an error of the function under checkify", got, fix))
    for failed, values, text in zip(error.failed, error.values, error.texts, strict=True):
        for _ in range(failed.ndim):  # the first example that failed
            at = first_failed(failed)
            failed, values = failed[at], tree.map(lambda x, k=at: x[k] if isinstance(x, Array) else x, values)
        found.append((failed, values, text))


__all__ = [
    "Error", "ErrorCategory", "JaxRuntimeError", "all_checks", "automatic_checks", "check", "check_error", "checkify",
    "debug_check", "div_checks", "float_checks", "index_checks", "nan_checks", "user_checks",
]  # fmt: skip
