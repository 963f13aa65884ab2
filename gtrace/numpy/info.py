"""The array API's inspection of a namespace."""

from __future__ import annotations

import re
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base.devices import CPU, as_device
from gtrace.core.base.dtypes import BY_TORCH, DType, complex64, float32
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ops.dtype_info import KINDS
from gtrace.core.trace.promotion import default_dtype

__all__ = ["__array_namespace_info__"]


class NamespaceInfo:
    """The answers of ``gtrace.numpy`` to the array API's questions.

    >>> gnp.__array_namespace_info__().capabilities()["boolean indexing"]
    True
    """

    def capabilities(self) -> dict[str, Any]:
        """Return what results may depend on: masks as indices and sizes that follow from values work outside traces."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> torch.device:
        """Return the device of new arrays."""
        return as_device(None)

    def devices(self) -> list[torch.device]:
        """Return the devices of this machine."""
        return [CPU, *(torch.device("cuda", k) for k in range(torch.cuda.device_count()))]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtypes of arrays made from Python numbers, and of indices."""
        integer = DType(default_dtype(int))
        return {"real floating": float32, "complex floating": complex64, "integral": integer, "indexing": integer}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the dtypes of the standard by name, all of them, or those of a kind; see ``gt.isdtype``.

        Raises:
            ArgumentError: another kind.
        """
        kinds = kind if isinstance(kind, tuple) else (kind,)
        unknown = [k for k in kinds if k is not None and k not in KINDS]
        if unknown:
            raise ArgumentError(message("dtypes", f"kinds among {', '.join(KINDS)}", repr(unknown[0]), "Use those."))
        standard = [dtype for dtype in BY_TORCH.values() if not re.search("float(8|16)", dtype.name)]
        return {dtype.name: dtype for dtype in standard if kind is None or ops.isdtype(dtype, kinds)}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807 - the standard's name
    """Return what the array API asks a namespace about itself: devices, dtypes and capabilities.

    >>> gnp.__array_namespace_info__().default_dtypes()["integral"]
    gtrace.int64
    """
    return NamespaceInfo()
