"""The names of ``jax.stages``: a jitted function as it is traced, lowered and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gtrace.core.transform.jit_stages import Compiled, Lowered, Traced

CompilerOptions = Mapping[str, Any]
"""Options of the compiler, which are ignored."""

__all__ = ["Compiled", "CompilerOptions", "Lowered", "Traced"]
