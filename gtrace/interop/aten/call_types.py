"""The types of the calls that programs make most, with the strides that torch's CPU kernels give their results.

torch has them for its device ``meta``, mostly in Python modules that import much else: the first call takes most of a
second. Where no rule plainly applies, torch has to say; if that is a function in Python, the call is tried on zeros.
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
"""By overload, or by operator for all of its overloads: what returns the results of a call on ``meta``."""


def call_type(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the results of a call as tensors on ``meta``, given such tensors; None where torch has to say."""
    name = str(function).removeprefix("aten.")
    rule = WRITTEN.get(name) or WRITTEN.get(name.partition(".")[0])
    if rule is not None:
        return rule(*args, **kwargs)
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
    """Return the results of a call on ``meta``, given tensors there, by a rule or as torch has them.

    Args:
        device: the type of that which the call is for.

    Raises:
        NotImplementedError: torch does not have them there.
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
        with contextlib.suppress(RuntimeError, TypeError, ValueError, IndexError):  # of zeros; torch says it on meta
            return tried(function, args, kwargs)
    return function(*args, **kwargs)
