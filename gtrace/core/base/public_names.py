"""Where people find a class or function: its ``__module__`` is the public module, whichever file defines it.

Tracebacks and pickles name that module, so files may move without breaking either.
"""

from __future__ import annotations

import types
from typing import Any

_defined: dict[Any, str] = {}
"""The modules that define what was published."""

_publishers: dict[str, str] = {}
"""The public module of each of these modules."""


def publish(namespace: dict[str, Any], *sources: str) -> None:
    """Give the classes and functions that a public module publishes its name. What has a public name keeps that.

    Args:
        namespace: the globals of the module, when it is complete.
        sources: the modules and packages that define what is its own; without any, those within it.
    """
    name = namespace["__name__"]
    own = tuple(f"{source}." for source in sources or (name,))
    for key, value in namespace.items():
        if isinstance(value, type | types.FunctionType) and key == value.__name__ and value not in _defined:
            if f"{value.__module__}.".startswith(own):
                _defined[value] = value.__module__
                _publishers.setdefault(value.__module__, name)
                value.__module__ = name


def defined_in(value: Any) -> str | None:
    """Return the module that defines a class or function; None: it does not say."""
    found: str | None = _defined.get(value) if isinstance(value, type | types.FunctionType) else None
    return found or getattr(value, "__module__", None)


def publisher(module: str) -> str:
    """Return the public module that publishes what another module defines; that module itself, if none does."""
    return _publishers.get(module, module)
