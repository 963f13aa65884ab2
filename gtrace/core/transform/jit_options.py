"""Interprets the options of `jit`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.base.exact_keys import exact_key


def key_of_static(static: Sequence[tuple[int | str, Any]]) -> Hashable:
    """Return the key of static arguments; raise an ArgumentError for an unhashable one."""
    key = []
    for where, value in static:
        own = exact_key(value)
        try:
            hash(own)
        except TypeError:
            got = f"{type(value).__name__} for {where!r}"
            fix = "Make it a tuple, or dynamic."
            raise ArgumentError(message("jit", "hashable static arguments", got, fix)) from None
        key.append((where, own))
    return tuple(key)


def wait_seconds(wait: object) -> float:
    """Return the seconds that the option `wait` of `jit` means; raise an ArgumentError for anything else."""
    if isinstance(wait, bool):
        return math.inf if wait else 0.0
    if isinstance(wait, (int, float)) and wait >= 0:
        return float(wait)
    raise ArgumentError(message("jit", "seconds, True or False as wait", repr(wait), "Pass wait=2.5, for example."))


def both_ways(
    f: Callable[..., Any], option: str, numbers: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Complete positions by names or names by positions, if the function's signature allows it and not both are given.

    Raise an ArgumentError for positions and names that it lacks; `option` is "static" or "donate".
    """
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return numbers, names
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    flexible = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for k in numbers:
        if not flexible and not -len(positional) <= k < len(positional):
            raise ArgumentError(message("jit", f"{option}_argnums below {len(positional)}", str(k), "Count from 0."))
    for name in names:
        if not keywords and name not in [p.name for p in parameters]:
            raise ArgumentError(message("jit", f"{option}_argnames among {positional}", repr(name), "Check the name."))
    if numbers and names:
        return numbers, names
    all_numbers = {*numbers, *(positional.index(name) for name in names if name in positional)}
    all_names = {*names, *(positional[k] for k in numbers if -len(positional) <= k < len(positional))}
    return tuple(sorted(all_numbers)), tuple(sorted(all_names))
