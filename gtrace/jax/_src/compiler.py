"""``jax._src.compiler``, which chex imports and whose functions its ``restrict_backends`` replaces: there are none."""

from __future__ import annotations

from typing import Any

from gtrace.extend import ArgumentError, message


def __getattr__(name: str) -> Any:
    if not name.startswith("backend_compile"):
        raise AttributeError(f"module 'jax._src.compiler' has no attribute {name!r}")
    # no AttributeError: chex asks with hasattr, and would go on without restricting anything
    fix = "JAX's compiler is not part of gtrace; arrays stay on the device that they are on."
    raise ArgumentError(message("jax._src.compiler", "no use of it", name, fix))
