"""Whether two results of one program agree up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gtrace.core.base.rounding import difference, is_inexact

STEPS = {
    torch.float64: 4_000_000, torch.float32: 1_600, torch.float16: 20, torch.bfloat16: 12, torch.complex128: 4_000_000,
    torch.complex64: 1_600,
}  # fmt: skip
"""Roundings that a result may be off by: sums in another order, fused operations, and programs that amplify errors.

float64 has digits to spare, so that a wrong program is seen through a bound that amplified errors rarely reach.
"""


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
        found = difference(b, a, a.dtype, STEPS.get(a.dtype, 1))
        if found is not None:
            text = f"result {k}: {found.count} of {found.size} elements"
            more = f", by up to {found.off:.3g} where the largest is {found.scale:.3g}" if is_inexact(a.dtype) else ""
            return text + more
    return ""
