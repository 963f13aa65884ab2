"""``ravel_pytree``: turns a pytree of arrays into one vector, and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import attrs
import torch

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.dtypes import LONG
from gtrace.core.base.errors import DtypeError, ShapeError, message
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import result_dtype

__all__ = ["ravel_pytree"]


def ravel_pytree(pytree: Any) -> tuple[Array, Callable[[Any], Any]]:
    """Return the elements of a pytree's arrays as one vector, and the function from such a vector to a pytree.

    The vector has the promoted dtype of the arrays. The function restores the dtype of each array; if all have
    one dtype, it keeps that of the vector.

    Raises (the function):
        ShapeError: the vector has another size.
        DtypeError: the arrays have several dtypes, and the vector another one than theirs together.

    >>> vector, unravel = gt.ravel_pytree({"a": gt.ones(2), "b": gt.zeros((1, 2))})
    >>> vector
    Array([1., 1., 0., 0.], dtype=float32)
    >>> unravel(vector * 2)["b"].shape
    (1, 2)
    """
    leaves, structure = tree.flatten(pytree)
    arrays = [lift("ravel_pytree", x) for x in leaves]
    avals = [x.aval for x in arrays]
    if not arrays:
        return ops.zeros(0, torch.float32), _Unravel(structure, (), None)
    dtype = result_dtype(avals)
    parts = tuple([(a.shape, a.dtype) for a in avals])
    unravel = _Unravel(structure, parts, dtype if len({a.dtype for a in avals}) > 1 else None)
    return ops.concat([cast(ops.ravel(x), dtype) for x in arrays]), unravel


@attrs.frozen
class _Unravel:
    """The function from a vector to a pytree. It equals others for the same arrays, so that `jit` knows it.

    Attributes:
        structure: that of the pytree.
        parts: the shape and dtype of each array.
        dtype: that of the vector, where the arrays have several; None: that of the vector is kept.
    """

    structure: tree.TreeDef
    parts: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    dtype: torch.dtype | None

    def __call__(self, vector: Any) -> Any:
        x = lift("ravel_pytree", vector)
        bounds = [0, *itertools.accumulate([math.prod(shape) for shape, _ in self.parts])]
        if x.shape != (bounds[-1],):
            expected = f"a vector of {bounds[-1]} elements"
            raise ShapeError(message("ravel_pytree", expected, repr(x.aval), "Ravel a tree."))
        if self.dtype not in (None, x.aval.dtype):
            fix = "Cast it, or ravel a tree of arrays of one dtype."
            raise DtypeError(message("ravel_pytree", f"a vector of {LONG[self.dtype]}", repr(x.aval), fix))
        arrays = []
        for (shape, dtype), start, stop in zip(self.parts, bounds, bounds[1:], strict=False):
            part = ops.reshape(x[start:stop], shape)
            arrays.append(part if self.dtype is None else cast(part, dtype))
        return self.structure.unflatten(arrays)
