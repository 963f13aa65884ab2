"""Public modules of classes: the ``__module__`` of a published class is its public module.

Tracebacks and pickles name that module, so files may move without breaking them.
"""

from __future__ import annotations

from typing import Any

_defined: dict[type, str] = {}
"""The modules that define published classes."""


def publish(namespace: dict[str, Any], *sources: str) -> None:
    """Set the module of the classes that a public module publishes. A class that has a public module keeps it.

    Args:
        namespace: the complete globals of the module.
        sources: modules and packages that define the module's own classes; by default those inside it.
    """
    name = namespace["__name__"]
    own = tuple(f"{source}." for source in sources or (name,))
    for key, value in namespace.items():
        if isinstance(value, type) and key == value.__name__ and value not in _defined:
            if f"{value.__module__}.".startswith(own):
                _defined[value] = value.__module__
                value.__module__ = name


def defined_in(value: Any) -> str | None:
    """Return the module that defines a class or function; None if it does not say."""
    found = _defined.get(value) if isinstance(value, type) else None
    return found or getattr(value, "__module__", None)
