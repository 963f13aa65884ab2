"""Result types by trial: calls on zeros. torch's functions for ``meta`` are mostly in Python, and importing them takes
a second.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import optree
import torch

from gtrace.core.base import torch_internals as internals

Tensor = torch.Tensor

MOST_TRIED = 1 << 20
"""The maximal number of operand elements for a trial on the CPU, which takes milliseconds."""

_COMPOSITES = "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"
_REFUSED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}


@functools.cache
def composed(function: Any) -> bool:
    """Whether an operator calls others on ``meta``, whose functions may be in Python."""
    name, has_kernel = function.name(), internals.HAS_KERNEL.get()
    return not has_kernel(name, "Meta") and any(has_kernel(name, key) for key in _COMPOSITES)


def is_tried(function: Any, elements: int) -> bool:
    """Whether a call on the CPU gives its types sooner than torch's Python functions for ``meta``.

    Users' operators may have effects, and are never tried.

    Args:
        elements: the number of elements of all operands.
    """
    if function.namespace != "aten" or not (internals.has_python_meta(function) or composed(function)):
        return False
    schema = function._schema
    aliases = schema.is_mutable or any(one.alias_info is not None for one in schema.returns)
    return elements <= MOST_TRIED and not aliases and _REFUSED.isdisjoint(function.tags)


def tried(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the results of a call on zeros, as tensors on ``meta``."""

    def zeros(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        if not isinstance(x, Tensor):
            return x
        places = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
        return torch.zeros(places, dtype=x.dtype, device="cpu").as_strided(x.shape, x.stride())

    def on_meta(x: Any) -> Any:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x

    with torch.no_grad():
        given, named = optree.tree_map(zeros, (list(args), kwargs), none_is_leaf=True)  # type: ignore[arg-type]
        found = function(*given, **named)
    return optree.tree_map(on_meta, found, none_is_leaf=True)
