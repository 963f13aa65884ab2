"""``ravel_pytree``: turns a pytree of arrays into one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.errors import ShapeError, message
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

    >>> vector, unravel = gt.ravel_pytree({"a": gt.ones(2), "b": gt.zeros((1, 2))})
    >>> vector
    Array([1., 1., 0., 0.], dtype=float32)
    >>> unravel(vector * 2)["b"].shape
    (1, 2)
    """
    leaves, structure = tree.flatten(pytree)
    arrays = [lift("ravel_pytree", x) for x in leaves]
    avals = [x.aval for x in arrays]
    sizes = [math.prod(a.shape) for a in avals]
    bounds = numpy.cumsum([0, *sizes]).tolist()

    def unravel(vector: Any) -> Any:
        x = lift("ravel_pytree", vector)
        if x.shape != (bounds[-1],):
            raise ShapeError(
                message("ravel_pytree", f"a vector of {bounds[-1]} elements", repr(x.aval), "Ravel a tree.")
            )
        parts = [ops.reshape(x[start:stop], a.shape) for a, start, stop in zip(avals, bounds, bounds[1:], strict=False)]
        if len({a.dtype for a in avals}) > 1:
            parts = [cast(part, a.dtype) for part, a in zip(parts, avals, strict=True)]
        return structure.unflatten(parts)

    if not arrays:
        return ops.zeros(0), unravel
    dtype = result_dtype(avals)
    return ops.concat([cast(ops.ravel(x), dtype) for x in arrays]), unravel
