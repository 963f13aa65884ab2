"""Where people find a class: its ``__module__`` is the public module, whichever file defines it.

Tracebacks and pickles name that module, so files may move without breaking either.
"""

from __future__ import annotations

from typing import Any

_defined: dict[type, str] = {}
"""The modules that define published classes."""


def publish(namespace: dict[str, Any], *sources: str) -> None:
    """Give the classes that a public module publishes its name. A class that has a public module keeps it.

    Args:
        namespace: the globals of the module, when it is complete.
        sources: the modules and packages that define the module's own classes; without any, those within it.
    """
    name = namespace["__name__"]
    own = tuple(f"{source}." for source in sources or (name,))
    for key, value in namespace.items():
        if isinstance(value, type) and key == value.__name__ and value not in _defined:
            if f"{value.__module__}.".startswith(own):
                _defined[value] = value.__module__
                value.__module__ = name


def defined_in(value: Any) -> str | None:
    """Return the module that defines a class or function; None: it does not say."""
    found = _defined.get(value) if isinstance(value, type) else None
    return found or getattr(value, "__module__", None)
