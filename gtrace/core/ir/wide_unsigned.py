"""Operations on uint16, uint32 and uint64 that lack torch kernels: they are computed in int64.

int64 can represent uint16 and uint32. A uint64 becomes the int64 with the same bits. Sums, products and moves of
elements are then the same, modulo 2 ** 64. Operations that depend on order flip the highest bit, which preserves the
order. The others have their own function (`Declaration.unsigned`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.base.bounded_tables import remembered
from gtrace.core.base.dtypes import WIDE_UNSIGNED
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.declaration import Declaration

ORDER = "order"
"""The `Declaration.unsigned` of an operation that compares numbers."""

_HIGHEST = -(2**63)


def is_wide(a: Any) -> bool:
    """Whether a type is an array of wide unsigned integers."""
    return a.__class__ is Aval and a.dtype in WIDE_UNSIGNED


def kernel(op: Declaration, params: tuple[Any, ...], avals: Sequence[Any], result: Any) -> Callable[..., Any]:
    """Return an operation's torch function: `Declaration.impl`, or its substitute for wide unsigned operands.

    Args:
        params, avals: the attributes, and the types of the operands.
        result: the result type.
    """
    if not any(map(is_wide, avals)) or has_kernel(op, params, avals):
        return op.impl
    return functools.partial(_in_int64, op, result.dtype)


@remembered(4096, key=exact_key)
def has_kernel(op: Declaration, params: tuple[Any, ...], avals: Sequence[Any]) -> bool:
    """Whether torch accepts these wide unsigned operands, tested on zeros, because meta tensors do not show it."""
    shapes = [(1,) * len(a.shape) if op.elementwise else a.shape for a in avals]
    zeros = [torch.zeros(s, dtype=a.dtype, device=a.device) for s, a in zip(shapes, avals, strict=True)]
    try:
        op.impl(*zeros, **dict(zip(op.params, params, strict=True)))
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    return True


def _in_int64(op: Declaration, dtype: torch.dtype, *operands: torch.Tensor, **attributes: Any) -> torch.Tensor:
    long = any(t.dtype is torch.uint64 for t in operands)
    ordered = long and op.unsigned == ORDER
    signed = [t.to(torch.int64) if t.dtype in WIDE_UNSIGNED else t for t in operands]
    if ordered:
        signed = [flipped(x) if t.dtype is torch.uint64 else x for x, t in zip(signed, operands, strict=True)]
    function = op.unsigned if long and callable(op.unsigned) else op.impl
    out: torch.Tensor = function(*signed, **attributes)
    if dtype not in WIDE_UNSIGNED:
        return out
    return (flipped(out) if ordered else out).to(dtype)


# -- functions of the bits of uint64, as int64


def flipped(x: torch.Tensor) -> torch.Tensor:
    """Return int64 numbers in the order of the unsigned numbers with these bits. It is its own inverse."""
    return x ^ _HIGHEST


def _at_least(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return flipped(x) >= flipped(y)


def quotient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x // y. Source: Warren, Hacker's Delight, section 9-3."""
    large = y < 0  # 2 ** 63 and more: the quotient is 0 or 1
    divisor = torch.where(large, 1, y)
    found = ((x >> 1 & ~_HIGHEST) // divisor) << 1
    found = found + _at_least(x - found * divisor, divisor)
    return torch.where(large, _at_least(x, y).to(torch.int64), found)


def remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x % y."""
    return x - quotient(x, y) * y


def shifted_right(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x >> y, filled with zeros."""
    found = torch.where(y == 0, x, (x >> 1 & ~_HIGHEST) >> (y - 1).clamp(min=0))
    return torch.where(flipped(y) > flipped(torch.full_like(y, 63)), 0, found)


def greatest_divisor(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the greatest common divisor. After two Euclidean steps, the numbers are below 2 ** 63."""
    for _ in range(2):
        x, y = torch.where(_at_least(x, y), x, y), torch.where(_at_least(x, y), y, x)
        x, y = torch.where(y == 0, x, y), torch.where(y == 0, 0, remainder(x, torch.where(y == 0, 1, y)))
    return torch.where(y == 0, x, torch.gcd(x, y))


def raised(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x ** y. An exponent of 2 ** 63 or more is halved."""
    half = torch.pow(x, y >> 1 & ~_HIGHEST)
    return torch.where(y < 0, half * half * torch.where((y & 1) == 1, x, 1), torch.pow(x, y.clamp(min=0)))


def itself(x: torch.Tensor) -> torch.Tensor:
    """Return x, the absolute value of an unsigned number."""
    return x


def positive(x: torch.Tensor) -> torch.Tensor:
    """Return 1 where x is not 0: the sign of an unsigned number."""
    return (x != 0).to(torch.int64)
