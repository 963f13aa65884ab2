"""Errors for missing names of a namespace or object: they suggest the nearest name or a replacement."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from typing import Any

_NO_TAPE = "gradients are computed only where gt.grad asks for them"

_ELSEWHERE = {
    "Variable": "Arrays never change: pass and return them",
    "no_grad": _NO_TAPE,
    "enable_grad": _NO_TAPE,
    "set_grad_enabled": _NO_TAPE,
    "autograd": "use gt.grad, gt.value_and_grad or gt.vjp",
    "tensor": "use gt.array",
    "Tensor": "the class is gt.Array; make one with gt.array",
    "manual_seed": "use gt.seed, or keys of gt.random",
    "cat": "use gt.concat",
    "save": "use gt.save_arrays or gt.save_checkpoint",
    "device": "write its name, as in gt.zeros(3, device='cpu')",
    "cuda": "write its name, as in gt.zeros(3, device='cuda') or x.to('cuda')",
    "tree_util": "use gt.tree, or gtrace.jax for JAX's names",
    "functional": "its functions are in gt.nn itself",
    "Parameter": "a field of a gt.nn.Module is a parameter: declare it as weight: gt.Array",
    "ModuleList": "a field of a gt.nn.Module may be a list, a tuple or a dict of modules",
    "ModuleDict": "a field of a gt.nn.Module may be a list, a tuple or a dict of modules",
    "Flatten": "gt.nn.Sequential takes functions as layers, such as lambda x: x.reshape(len(x), -1)",
    "BCELoss": "use gt.nn.binary_cross_entropy",
    "BCEWithLogitsLoss": "use gt.nn.binary_cross_entropy_with_logits",
    "Optimizer": "an optimizer is a gt.optim.GradientTransformation",
    "lr_scheduler": "pass a schedule, such as gt.optim.cosine_decay_schedule, as the learning rate",
}
"""Names of JAX and torch that people try, with replacements."""


def missing_attribute(obj: Any, name: str, advice: dict[str, str]) -> AttributeError:
    """Return the error for a missing attribute of an object; `advice` says what to do instead of which names.

    >>> str(missing_attribute(3, "step", {"Use add.": "step walk"}))
    "'int' object has no attribute 'step'. Use add."
    """
    text = f"{type(obj).__name__!r} object has no attribute {name!r}"
    fix = "".join(f". {instead}" for instead, names in advice.items() if name in names.split())
    return AttributeError(text + fix, name=name, obj=obj)


def _folded(name: str) -> str:
    """Return a name for comparison: torch has a class CrossEntropyLoss and a function cross_entropy."""
    return name.lower().replace("_", "").removesuffix("loss")


def suggesting(module: str) -> Callable[[str], Any]:
    """Return a namespace's ``__getattr__``, which raises an error that suggests names similar to the missing one."""

    def missing(name: str) -> Any:
        text = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("_"):
            known = [key for key in vars(sys.modules[module]) if not key.startswith("_")]
            same = [key for key in known if _folded(key) == _folded(name)]
            near = same or difflib.get_close_matches(name, known, n=1)
            if name in _ELSEWHERE:
                text += f": {_ELSEWHERE[name]}"
            elif near:
                text += f". Did you mean {near[0]!r}?"
            elif module == "gtrace":
                text += ". gtrace.numpy has NumPy's names, gtrace.lax those of jax.lax, and gtrace.jax all of JAX's"
        raise AttributeError(text, name=name)

    return missing
