"""The names of ``jax.typing``."""

from typing import Any

import numpy
import torch

from gtrace.extend import Array, DType

ArrayLike = Array | numpy.ndarray | numpy.generic | bool | int | float | complex
DTypeLike = DType | torch.dtype | numpy.dtype | str | type[Any]
