"""Whether two results of one program agree as far as their dtypes let them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

TOLERANCES = {
    torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.complex128: 1e-9,
    torch.complex64: 2e-4,
}  # fmt: skip
"""Of the largest magnitude in a result: sums in another order, and fused operations, differ by many roundings."""


def disagreement(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> str:
    """Return in what results differ from those expected, in words; empty if they agree.

    >>> disagreement([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.00001])])
    ''
    >>> disagreement([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.5])])
    'result 0: 1 of 2 elements, by up to 0.5 where the largest is 2'
    """
    for k, (a, b) in enumerate(zip(expected, got, strict=True)):
        if a.shape != b.shape or a.dtype is not b.dtype:
            return f"result {k} is {b.dtype}{list(b.shape)}, not {a.dtype}{list(a.shape)}"
        if not a.numel():
            continue
        if a.dtype not in TOLERANCES:
            count = int((a != b).sum())
            if count:
                return f"result {k}: {count} of {a.numel()} elements"
            continue
        wide = torch.complex128 if a.is_complex() else torch.float64
        x, y = a.to(wide), b.to(wide)
        same = (x == y) | (x.isnan() & y.isnan())
        finite = x.isfinite() & y.isfinite()
        largest = float(x[finite].abs().max()) if finite.any() else 0.0
        off = (x - y).abs()
        wrong = ~same & ~(finite & (off <= TOLERANCES[a.dtype] * max(largest, 1e-30)))
        count = int(wrong.sum())
        if count:
            worst = float(off[wrong & finite].max()) if (wrong & finite).any() else float("inf")
            return (
                f"result {k}: {count} of {a.numel()} elements, by up to {worst:.3g} where the largest is {largest:.3g}"
            )
    return ""
