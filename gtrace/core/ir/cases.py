"""The test cases of an operation, which the tests over the whole registry run."""

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
    """What an operation is tested with.

    Attributes:
        samples, errors: valid and invalid calls, as functions so that nothing is built at import.
        user: the user-facing function that `samples` call (positional arrays, keyword arguments).
        reference: what `user` must return, computed without torch: a function of the same arguments as NumPy arrays,
            from NumPy, from SciPy or by definition.
        elsewhere: of an operation without samples: what it is tested against instead, and where.
    """

    samples: Callable[[], list[Sample]] | None = None
    errors: Callable[[], list[BadSample]] | None = None
    user: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None
    elsewhere: str | None = None
