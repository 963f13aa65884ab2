"""Errors for names that a namespace does not have, with the nearest one that it has."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from typing import Any

_ELSEWHERE = {
    "Variable": "Arrays never change: pass and return them",
    "no_grad": "gradients are computed only where gt.grad asks for them",
    "tensor": "use gt.array",
    "Tensor": "the class is gt.Array; make one with gt.array",
    "tree_util": "use gt.tree, or gtrace.jax for JAX's names",
}
"""Names of JAX's and torch's that people try, and what to use."""


def suggesting(module: str) -> Callable[[str], Any]:
    """Return ``__getattr__`` of a namespace: the error for a name that is missing says what is near."""

    def missing(name: str) -> Any:
        text = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("_"):
            known = [key for key in vars(sys.modules[module]) if not key.startswith("_")]
            near = difflib.get_close_matches(name, known, n=1)
            if name in _ELSEWHERE:
                text += f": {_ELSEWHERE[name]}"
            elif near:
                text += f". Did you mean {near[0]!r}?"
            elif module == "gtrace":
                text += ". gtrace.numpy has NumPy's names, gtrace.lax those of jax.lax, and gtrace.jax all of JAX's"
        raise AttributeError(text, name=name)

    return missing
