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

    DEFAULT = 0
    F32_F32_F32 = 1
    BF16_BF16_F32 = 2
    TF32_TF32_F32 = 3


class GatherScatterMode(enum.Enum):
    """The treatment of out-of-range indices; the values are names for ``x.at[i].get(mode=...)``."""

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"
