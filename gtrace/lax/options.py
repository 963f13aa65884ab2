"""Names of choices that JAX's functions take, such as precisions. They change no result here."""

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
"""What JAX's functions take as `precision`."""

DotDimensionNumbers = tuple[Any, Any]
"""((contracted axes of lhs, of rhs), (batch axes of lhs, of rhs))."""


class Precision(enum.Enum):
    """How exactly accelerators multiply. Products are computed in the dtype of the operands, so each means the same."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


class AccuracyMode(enum.Enum):
    """How exactly elementary functions are computed; each means the same."""

    DEFAULT = 0
    HIGHEST = 1


class DotAlgorithmPreset(enum.Enum):
    """How accelerators compute products; each means the same."""

    DEFAULT = 0
    F32_F32_F32 = 1
    BF16_BF16_F32 = 2
    TF32_TF32_F32 = 3


class GatherScatterMode(enum.Enum):
    """What indices outside an axis mean; the values are the names that ``x.at[i].get(mode=...)`` takes."""

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"
