"""Bounds for the distance between two rounded results of one computation.

The source is Higham, Accuracy and Stability of Numerical Algorithms (2nd edition, SIAM 2002):
the unit roundoff in section 2.1, underflow in (2.8), and the constant gamma of many roundings in Lemma 3.1.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether numbers of the dtype are rounded: floating or complex."""
    return dtype.is_floating_point or dtype.is_complex


def rounded(value: float, dtype: torch.dtype) -> float:
    """Return a number rounded to a floating dtype, half to even. No tensor is made: a tracer would see it.

    >>> rounded(0.1, torch.float32), rounded(0.1, torch.float64), rounded(1e5, torch.float16)
    (0.10000000149011612, 0.1, inf)
    """
    if dtype is torch.float64 or not math.isfinite(value) or not value:
        return value
    info = torch.finfo(dtype)
    exponent = max(math.frexp(value)[1], math.frexp(info.smallest_normal)[1])
    unit = math.ldexp(info.eps / 2, exponent)
    found = round(value / unit) * unit
    return found if abs(found) <= info.max else math.copysign(math.inf, value)


def rounding_bound(dtype: torch.dtype, steps: int, scale: Any) -> Any:
    """Return the largest distance between two results that were each computed with `steps` roundings.

    One result is off by at most ``gamma * scale + steps * tiny``, where ``gamma = steps * u / (1 - steps * u)``.
    Here ``u = eps / 2`` is the unit roundoff, and `tiny` the smallest normal number; smaller numbers may become zero.
    Two results differ by at most twice that. If ``steps * u`` is 1 or more, the bound is infinite.

    Args:
        dtype: the dtype of the results; exact unless it is floating.
        scale: the largest magnitude that was rounded, or an array of magnitudes.

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
    """The difference of two tensors of one shape.

    Attributes:
        count: how many elements differ.
        size: the number of elements.
        place: the index of the worst element. Infinities and NaN in one tensor alone are the worst.
        actual, expected: its values.
        off: its error.
        bound: the bound of its error.
        scale: the scale at its index.
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
    """Return the difference of two tensors of one shape if it exceeds `rounding_bound`; None if they agree.

    NaN agrees with NaN, and an infinity with the same infinity. Complex numbers are compared part by part.

    Args:
        dtype: the dtype that was rounded to.
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
    """Return where integers differ. Two dtypes may have no common one, so they are compared as Python's integers."""
    if x.dtype is y.dtype:
        return x != y
    return torch.tensor([a != b for a, b in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)]).view(x.shape)


def _parts(x: torch.Tensor) -> torch.Tensor:
    """Return the numbers in float64 with an extra axis: the real part, or both parts."""
    if x.is_complex():
        return torch.view_as_real(x.to(torch.complex128).resolve_conj())
    return x.double()[..., None]
