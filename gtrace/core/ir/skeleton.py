"""Separates integers from structure: attributes and avals without their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gtrace.core.base.dtypes import SHORT
from gtrace.core.ir.aval import Aval, Bundle

OPEN = "_"
"""The placeholder for a size."""


def mask(params: Any, sizes: list[int]) -> Any:
    """Return attributes with each integer replaced by `OPEN`; append the integers to `sizes` in order.

    A sub-graph is replaced by its skeleton.

    >>> found = []
    >>> mask(((8, 3), 0, True, "mean"), found), found
    ((('_', '_'), '_', True, 'mean'), [8, 3, 0])
    """
    if params.__class__ is int:
        sizes.append(params)
        return OPEN
    if params.__class__ is tuple:
        return tuple([mask(value, sizes) for value in params])
    if hasattr(params, "skeleton"):
        found, own = params.skeleton
        sizes += own
        return found
    return params


def fill(masked: Any, sizes: Iterator[Any]) -> Any:
    """Return attributes with each placeholder replaced by the next of `sizes`. It inverts `mask`.

    >>> fill((("_", "_"), "_", True), iter([8, 3, 0]))
    ((8, 3), 0, True)
    """
    if masked == OPEN:
        return next(sizes)
    if masked.__class__ is tuple:
        return tuple([fill(value, sizes) for value in masked])
    return masked


def kind(a: Aval | Bundle) -> str:
    """Return the text of a type without its sizes.

    >>> import torch
    >>> from gtrace.core.ir.aval import aval
    >>> kind(aval((2, 3), torch.float32)), kind(aval((), torch.float32, weak=True))
    ('f32[2d]', 'f32[0d]~')
    """
    if isinstance(a, Bundle):
        return f"({', '.join(map(kind, a.avals))})"
    place = "" if a.device.type == "cpu" else f"@{a.device}"
    return f"{SHORT[a.dtype]}[{len(a.shape)}d]{place}{'~' if a.weak else ''}"
