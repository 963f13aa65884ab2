"""How far two results of one computation may lie apart, when each was rounded on the way.

The bound is that of Higham, Accuracy and Stability of Numerical Algorithms (2nd edition, SIAM 2002):
the unit roundoff in section 2.1, underflow in (2.8), and the constant gamma of many roundings in Lemma 3.1.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether numbers of the dtype are rounded: floating and complex ones."""
    return dtype.is_floating_point or dtype.is_complex


def rounding_bound(dtype: torch.dtype, steps: int, scale: Any) -> Any:
    """Return how far two results may differ if each was computed with `steps` roundings.

    One result is off by at most ``gamma * scale + steps * tiny``, where ``gamma = steps * u / (1 - steps * u)``.
    Here ``u = eps / 2`` is the unit roundoff, and `tiny` the smallest normal number, below which numbers may become
    zero. Two results differ by at most twice that. Where ``steps * u`` is 1 or more, nothing is known: infinity.

    Args:
        dtype: of the results; exact unless it is floating.
        scale: the largest magnitude that was rounded, or an array of them.

    >>> rounding_bound(torch.float32, 100, 1.0) < 1.2e-5
    True
    >>> rounding_bound(torch.int32, 100, 1.0)
    0.0
    """
    if not is_inexact(dtype):
        return 0.0 * scale
    info = torch.finfo(dtype)
    product = steps * info.eps / 2
    gamma = product / (1 - product) if product < 1 else math.inf
    return 2 * (gamma * scale + steps * info.smallest_normal)


@attrs.frozen
class Difference:
    """Where two tensors of one shape differ.

    Attributes:
        count: how many elements differ.
        size: how many there are.
        place: of the worst element; infinite numbers and NaN at other places count as the worst.
        actual, expected: its values.
        off: how far it is off.
        bound: how far it may be off.
        scale: the scale there.
    """

    count: int
    size: int
    place: tuple[int, ...]
    actual: complex
    expected: complex
    off: float
    bound: float
    scale: float


def difference(
    actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, steps: int, scale: torch.Tensor | None = None
) -> Difference | None:
    """Return where two tensors of one shape differ by more than `rounding_bound`; None if they agree.

    NaN agrees with NaN, and an infinite number with the same one. The parts of complex numbers are compared each.

    Args:
        dtype: whose rounding counts.
        scale: the largest magnitude that was rounded, broadcast against the tensors; None: the largest in `expected`.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000001]), torch.float32, 1) is None
    True
    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), torch.float32, 100).place
    (1,)
    """
    if not actual.numel():
        return None
    if not is_inexact(dtype):
        wrong = _unequal(actual, expected)
        off = wrong.double()
        sizes = bounds = torch.zeros_like(off)
    else:
        x, y = _parts(actual), _parts(expected)
        finite = x.isfinite() & y.isfinite()
        if scale is None:
            magnitudes = expected.to(torch.complex128 if expected.is_complex() else torch.float64).abs()
            scale = magnitudes.nan_to_num(0.0, 0.0, 0.0).amax()
        sizes = scale.abs().to(x.device, torch.float64).broadcast_to(actual.shape)
        bounds = rounding_bound(dtype, steps, sizes)
        same = (x == y) | (x.isnan() & y.isnan())
        parts_off = torch.where(same, 0.0, torch.where(finite, (x - y).abs(), math.inf))
        wrong = ~(same | finite & (parts_off <= bounds[..., None])).all(-1)
        off = parts_off.amax(-1)
    count = int(wrong.sum())
    if not count:
        return None
    excess = torch.where(wrong, off / bounds.clamp(min=torch.finfo(torch.float64).tiny), -1.0)
    worst = int(excess.argmax())
    place = tuple(int(k) for k in torch.unravel_index(torch.tensor(worst), actual.shape))
    return Difference(
        count, actual.numel(), place, actual[place].item(), expected[place].item(),
        float(off[place]), float(bounds[place]), float(sizes[place]),
    )  # fmt: skip


def _unequal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return where integers differ; of two dtypes they are compared as Python's, since some have no common one."""
    if x.dtype is y.dtype:
        return x != y
    return torch.tensor([a != b for a, b in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)]).view(x.shape)


def _parts(x: torch.Tensor) -> torch.Tensor:
    """Return the numbers in float64, with an axis more: the real part, or both parts."""
    if x.is_complex():
        return torch.view_as_real(x.to(torch.complex128).resolve_conj())
    return x.double()[..., None]
