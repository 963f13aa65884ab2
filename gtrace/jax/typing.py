"""The names of ``jax.typing``."""

from typing import Any

import numpy
import torch

from gtrace.dtypes import DType
from gtrace.trace.array import Array

ArrayLike = Array | numpy.ndarray | numpy.generic | bool | int | float | complex
DTypeLike = DType | torch.dtype | numpy.dtype | str | type[Any]
