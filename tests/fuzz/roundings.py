"""Roundings by chance, which show how far torch's own roundings may be off.

One run of a program may be lucky: of equal elements the sum over their number may be the element to the last bit, and a
difference of the two is then 0. Where each result is rounded up or down by chance (Parker, Monte Carlo arithmetic,
1997), the difference is as large as the roundings in between make it. Exact results stay, and equal elements stay
equal, so that constant rows keep a variance of 0, and what a program does with those is compared. Quotients do not
stay: x / 7 may be computed as x * (1 / 7).
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

_QUOTIENTS = (torch.ops.aten.div.Tensor, torch.ops.aten.div.Scalar)


class ByChance(TorchDispatchMode):
    """Rounds each float32 that torch computes up or down, unless it is exact.

    Args:
        seed: of the roundings; 0: torch's own roundings stay.

    Attributes:
        decided: the booleans that were computed, in order.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed) if seed else None
        self.decided: list[torch.Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        leaves, structure = tree_flatten(found)
        self.decided += [x for x in leaves if isinstance(x, torch.Tensor) and x.dtype is torch.bool]
        moves = any(a.alias_info is not None for a in function._schema.arguments)  # a view, or a write
        if self._random is None or moves or not any(map(_is_single, leaves)):
            return found
        exact = tree_leaves(function(*tree_map(_wide, args), **tree_map(_wide, kwargs)))
        chance, every = self._random.getrandbits(30), function in _QUOTIENTS
        return tree_unflatten([_rounded(x, y, chance, every) for x, y in zip(leaves, exact, strict=True)], structure)


def _rounded(x: Any, exact: Any, chance: int, every: bool) -> Any:
    """Round a result up or down, by bits of its elements; exact ones too, if `every` is set."""
    if not _is_single(x):
        return x
    bits = (x.contiguous().view(torch.int32) + chance) * 0x2C1B3C6D  # which wraps
    up = torch.where(exact == x, (bits >> 23) & 1 == 1, exact > x)
    other = torch.nextafter(x, torch.where(up, math.inf, -math.inf).to(x.dtype))
    moved = ((bits >> 17) & 1 == 1) & ((exact != x) | every) & exact.isfinite() & x.isfinite() & (x != 0)
    return torch.where(moved, other, x)


def _is_single(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype is torch.float32


def _wide(x: Any) -> Any:
    if _is_single(x):
        return x.double()
    return torch.float64 if x is torch.float32 else x
