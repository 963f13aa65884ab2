"""What came of a test: the row that is written for it, and the kind of a failure."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

KINDS = {
    "a": "other numbers, shapes or structures, without an error",
    "b": "a name, parameter or option is missing",
    "c": "raises where JAX works",
    "d": "accepts what JAX refuses, or warns of",
    "e": "another dtype, or weak in place of strong",
    "f": "crashes, or takes longer than a minute",
    "t": "raises as JAX does, in other words; other printed text",
}
_ABSENT = re.compile(
    r"gtrace has no|is not part of gtrace|has no attribute|cannot import name|No module named"
    r"|unexpected keyword argument|positional arguments? but|left to its default"
)


def kind_of(error: BaseException, functions: list[str]) -> str:
    """Return the kind of a failure, one of `KINDS`.

    Args:
        error: what the test raised.
        functions: the names of the functions on the way to where it was raised.
    """
    text = str(error)
    if not isinstance(error, AssertionError):
        return "b" if _ABSENT.search(text) else "c"
    if {"assertDtypesMatch", "_assert_dtypes_match"} & {*functions}:
        return "e"
    if "not raised" in text or "not triggered" in text or "Expected warning not found" in text:
        return "d"
    if '" does not match "' in text or "assertMultiLineEqual" in functions:
        return "t"
    return "a"


def row(identity: str, seconds: float, errors: list[BaseException], skipped: list[str]) -> dict[str, Any]:
    """Return the row of a test that has run."""
    made: dict[str, Any] = {"test": identity, "seconds": round(seconds, 3)}
    if skipped:
        return made | {"outcome": "skipped", "why": skipped[0][:200]}
    if not errors:
        return made | {"outcome": "passed"}
    error = errors[0]
    frames = traceback.extract_tb(error.__traceback__)
    slow = type(error).__name__ == "TooLong"
    return made | {
        "outcome": "failed", "kind": "f" if slow else kind_of(error, [f.name for f in frames]),
        "error": type(error).__name__, "text": str(error)[:1500],
        "places": [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-8:]],
    }  # fmt: skip


def plain(identity: str) -> str:
    """Return a test's name without the arguments of its case, which may have addresses."""
    return identity.partition(" ")[0]
