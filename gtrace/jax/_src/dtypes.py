"""``jax._src.dtypes``, at the place where flax looks for it."""

from typing import Any

from gtrace.jax.dtypes import extended, finfo, issubdtype
from gtrace.jax.extend.absent import absent_class

DType = Any
ExtendedDType = absent_class("ExtendedDType")

__all__ = ["DType", "ExtendedDType", "extended", "finfo", "issubdtype"]
