"""Test cases of an operation for the tests over the whole registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen
class Sample:
    """One example call for the registry tests: NumPy arrays or Python scalars, and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class BadSample:
    """A call that must raise `error` with `match` (a regular expression) in its message."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    error: type[Exception]
    match: str


@attrs.frozen(eq=False, kw_only=True)
class Cases:
    """The test data of an operation.

    Attributes:
        samples, errors: functions that return valid and invalid calls, so that the import builds nothing.
        user: the user-facing function that `samples` call with positional arrays and keyword arguments.
        reference: the expected result of `user`, computed without torch: by NumPy, SciPy or the definition. It takes
            the same arguments as NumPy arrays.
        elsewhere: for an operation without samples: what it is tested against, and where.
    """

    samples: Callable[[], list[Sample]] | None = None
    errors: Callable[[], list[BadSample]] | None = None
    user: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None
    elsewhere: str | None = None
