"""Result types of frequent calls, with the strides of torch's CPU kernels.

torch computes types on its device ``meta``, mostly by Python modules whose imports take most of a second. If no rule
clearly applies, torch computes the type. If torch would need Python for that, the call runs on zeros instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import optree
import torch

from gtrace.core.ir.aval import Bundle, aval
from gtrace.interop.aten import elementwise_types, layer_types
from gtrace.interop.aten.elementwise_types import Rule, Tensor, new
from gtrace.interop.aten.overloads import NOT_ON_META, template
from gtrace.interop.aten.rule_tables import TYPES
from gtrace.interop.aten.types_by_trial import is_tried, tried

WRITTEN: dict[str, Rule] = {**elementwise_types.RULES, **layer_types.RULES}
"""By overload, or by operator for all its overloads: a function that returns the results on ``meta``."""


def type_by_rule(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the results of a call for tensors on ``meta``, whose sizes may be open; None if no rule applies."""
    name = str(function).removeprefix("aten.")
    rule = WRITTEN.get(name) or WRITTEN.get(name.partition(".")[0])
    return None if rule is None else rule(*args, **kwargs)


def call_type(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the results of a call for tensors on ``meta``, by a rule; None if no rule applies."""
    name = str(function).removeprefix("aten.")
    if name in WRITTEN or name.partition(".")[0] in WRITTEN:
        return type_by_rule(function, args, kwargs)
    written = TYPES.get(str(function))
    if written is None:
        return None
    operands, constants = template(function, args, kwargs, lambda x: isinstance(x, Tensor))
    if not all(x.is_contiguous() for x in operands):
        return None
    found = written([aval(tuple(x.shape), x.dtype, x.device) for x in operands], constants)
    if isinstance(found, Bundle):
        results = iter([new(a.shape, a.dtype) for a in found.avals])
        wanted = args[-1] if "backward" in name and isinstance(args[-1], (list, tuple)) else [True] * len(found.avals)
        return tuple([next(results) if want else None for want in wanted])
    return None if found is None else new(found.shape, found.dtype)


def results_on_meta(function: Any, args: Sequence[Any], kwargs: dict[str, Any], device: str = "cpu") -> Any:
    """Return the results of a call for tensors on ``meta``, by a rule or by torch.

    Args:
        device: the type of the device on which the call will run.

    Raises:
        NotImplementedError: torch has no such function on ``meta``.
    """
    if any(a.name == "device" for a in function._schema.arguments):
        kwargs = {**kwargs, "device": torch.device("meta")}
    found = call_type(function, args, kwargs)
    if found is not None:
        return found
    if str(function) in NOT_ON_META:
        raise NotImplementedError(f"{function} on meta")
    leaves: list[Any] = optree.tree_leaves((list(args), kwargs))  # type: ignore[arg-type]
    elements = sum(x.numel() for x in leaves if isinstance(x, Tensor))
    if device == "cpu" and is_tried(function, elements):
        with contextlib.suppress(RuntimeError, TypeError, ValueError, IndexError):  # zeros are invalid operands
            return tried(function, args, kwargs)
    return function(*args, **kwargs)
