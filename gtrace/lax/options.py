"""Options of JAX's functions, such as precisions, that change no result here."""

from __future__ import annotations

import enum
from typing import Any

__all__ = [
    "AccuracyMode",
    "DotAlgorithmPreset",
    "DotDimensionNumbers",
    "GatherScatterMode",
    "Precision",
    "PrecisionLike",
]

PrecisionLike = Any
"""The values that JAX's functions take as `precision`."""

DotDimensionNumbers = tuple[Any, Any]
"""((contracted axes of lhs, of rhs), (batch axes of lhs, of rhs))."""


class Precision(enum.Enum):
    """How exactly accelerators multiply. Here matmuls use the dtype of the operands, so all values mean the same."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


class AccuracyMode(enum.Enum):
    """How exactly elementary functions are computed; all values mean the same."""

    DEFAULT = 0
    HIGHEST = 1


class DotAlgorithmPreset(enum.Enum):
    """How accelerators compute matmuls; all values mean the same."""

    DEFAULT = enum.auto()
    ANY_F8_ANY_F8_F32 = enum.auto()
    ANY_F8_ANY_F8_F32_FAST_ACCUM = enum.auto()
    ANY_F8_ANY_F8_ANY = enum.auto()
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = enum.auto()
    F16_F16_F16 = enum.auto()
    F16_F16_F32 = enum.auto()
    BF16_BF16_BF16 = enum.auto()
    BF16_BF16_F32 = enum.auto()
    BF16_BF16_F32_X3 = enum.auto()
    BF16_BF16_F32_X6 = enum.auto()
    BF16_BF16_F32_X9 = enum.auto()
    TF32_TF32_F32 = enum.auto()
    TF32_TF32_F32_X3 = enum.auto()
    F32_F32_F32 = enum.auto()
    F64_F64_F64 = enum.auto()


class GatherScatterMode(enum.Enum):
    """The treatment of out-of-range indices; the values are names for ``x.at[i].get(mode=...)``."""

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"
