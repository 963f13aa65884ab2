"""The setting ``jax_legacy_prng_key``: functions of ``jax.random`` warn of keys that are words, or refuse them."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

from gtrace.extend import ArgumentError, message
from gtrace.jax.adapt import JAX_NAMES

MODES = ("allow", "warn", "error")
"""The values of the setting."""

_plain: dict[str, Callable[..., Any]] = {}
"""The functions of ``jax.random`` that a check stands before, by name."""


def follow(mode: str) -> None:
    """Put the check that the setting asks for in place, or take it away."""
    if mode not in MODES:
        expected = f"jax_legacy_prng_key among {', '.join(MODES)}"
        raise ArgumentError(message("jax.config", expected, repr(mode), "Pass one of them."))
    place: Any = sys.modules["gtrace.jax.random"]
    for name, function in _plain.items():
        setattr(place, name, function)
    _plain.clear()
    if mode != MODES[0]:
        for name in [name for name, text in JAX_NAMES["jax.random"].items() if text and text.split(" ")[0] == "key"]:
            _plain[name] = function = getattr(place, name)
            setattr(place, name, _checking(name, function, mode))


def _checking(name: str, function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        key = args[0] if args else kwargs.get("key")
        if str(getattr(key, "dtype", None)) == "uint32":
            text = message(name, "a typed key", "words, uint32", "Use jax.random.key or jax.random.wrap_key_data.")
            if mode == "error":
                raise ArgumentError(text)
            warnings.warn(text, UserWarning, 2)
        return function(*args, **kwargs)

    return call
