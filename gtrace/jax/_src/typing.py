"""The names of ``jax._src.typing`` that libraries import."""

from typing import Any, Protocol

import numpy

from gtrace.extend import Array as Array
from gtrace.extend import DType as DType
from gtrace.jax.private_places import public_names
from gtrace.jax.typing import ArrayLike as ArrayLike
from gtrace.jax.typing import DTypeLike as DTypeLike

DimSize = int | Any
Shape = tuple[DimSize, ...]
StaticScalar = numpy.bool_ | numpy.number[Any] | bool | int | float | complex


class SupportsDType(Protocol):
    """The type of what has a dtype."""

    @property
    def dtype(self) -> DType: ...


__getattr__ = public_names(__name__)
