"""Float-to-integer conversion with JAX's results for numbers out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from gtrace.core.backends.native.values import c_type
from gtrace.core.base.dtypes import DTYPES, FLOATS, LONG, SHORT, WIDE_UNSIGNED
from gtrace.core.ir.cpp import Cpp
from gtrace.core.ops.batching import unchanged
from gtrace.core.ops.checks import real_only
from gtrace.core.ops.declare import Array, Aval, Sample, aval, bind, define, lift
from gtrace.core.ops.sharding_rules import same

INTEGERS = frozenset(
    [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
)
"""The dtypes of the saturated results."""


def _saturate(x: torch.Tensor, dtype: str) -> torch.Tensor:
    kind = DTYPES[dtype]
    info = torch.iinfo(kind)
    if info.bits <= 32:
        # in a dtype that represents the bounds exactly
        wide = x if x.dtype is torch.float64 else x.float() if info.bits <= 16 else x.double()
        held = torch.where(wide == wide, wide, 0.0).clamp(info.min, info.max)
        return held.to(torch.int64).to(kind) if kind in WIDE_UNSIGNED else held.to(kind)
    wide, limit = x.double(), 2.0**63
    low = -limit if info.min else 0.0
    out = torch.where((wide >= low) & (wide < limit), wide, 0.0).to(torch.int64)
    if info.min:
        return torch.where(wide >= limit, info.max, torch.where(wide < low, info.min, out))
    upper = torch.where((wide >= limit) & (wide < 2 * limit), wide - limit, 0.0).to(torch.int64)
    out = torch.where(wide >= limit, upper + torch.iinfo(torch.int64).min, out)
    return torch.where(wide >= 2 * limit, -1, out).to(kind)  # modulo 2 ** 64


def _saturate_direct(avals: tuple[Aval, ...], dtype: str) -> Callable[..., torch.Tensor] | None:
    """Check the extremes first: usually a plain conversion is enough."""
    kind = DTYPES[dtype]
    (a,) = avals
    if a.device.type != "cpu" or 0 in a.shape or a.dtype not in FLOATS or kind in WIDE_UNSIGNED:
        return None
    low, high = float(torch.iinfo(kind).min), 2.0 ** (torch.iinfo(kind).bits - (torch.iinfo(kind).min < 0))

    def convert(x: torch.Tensor) -> torch.Tensor:
        least, most = torch.aminmax(x)
        return x.to(kind) if low <= least.item() and most.item() < high else _saturate(x, dtype)

    return convert


def _samples() -> list[Sample]:
    floats = numpy.array([[-3.0e9, -1.5, 0.0, 2.25, 300.0, 3.0e9], [numpy.nan, numpy.inf, -numpy.inf, 127.5, -129, 1]])
    return [Sample((floats,), {"dtype": kind}) for kind in (torch.int32, torch.uint8, torch.int64, torch.uint64)]


def _reference(x: Any, dtype: torch.dtype) -> Any:
    kind = LONG[dtype]
    info = numpy.iinfo(kind)
    values = [0 if v != v else int(max(min(v, 2.0**70), -(2.0**70))) for v in x.ravel().tolist()]
    return numpy.array([max(min(v, int(info.max)), int(info.min)) for v in values], kind).reshape(x.shape)


_op = define(
    "saturate", _saturate, params=("dtype",), direct=_saturate_direct,
    check=real_only, shape=lambda avals, dtype: aval(avals[0].shape, DTYPES[dtype], avals[0].device),
    nondiff="the result is an integer", factors=same, batch=unchanged, samples=_samples, reference=_reference,
    user=lambda x, dtype: saturated(lift("saturate", x), dtype),
    cpp=Cpp(lambda dtype: f"saturated<{c_type(DTYPES[dtype])}>({{0}})", "f", 3),
)  # fmt: skip


def saturated(x: Array, dtype: torch.dtype) -> Array:
    """Return floats truncated to integers; out-of-range numbers become the nearest integer, NaN becomes 0."""
    return bind(_op, (x,), (SHORT[dtype],))
