"""The names of ``jax.typing``."""

from typing import Any

import numpy
import torch

from gtrace.core.base.dtypes import DType
from gtrace.core.trace.array import Array

ArrayLike = Array | numpy.ndarray | numpy.generic | bool | int | float | complex
DTypeLike = DType | torch.dtype | numpy.dtype | str | type[Any]
