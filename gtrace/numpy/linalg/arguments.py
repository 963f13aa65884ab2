"""The arguments of linear algebra."""

from __future__ import annotations

from typing import Any

from gtrace.errors import ShapeError, message
from gtrace.numpy.products import cross as cross
from gtrace.ops.linalg import matmul as matmul
from gtrace.ops.linalg import outer as outer
from gtrace.ops.linalg import tensordot as tensordot
from gtrace.ops.linalg import vecdot as vecdot
from gtrace.ops.promote import promote_arrays
from gtrace.ops.shape import matrix_transpose as matrix_transpose
from gtrace.trace.array import Array


def matrices(name: str, x: Any, square: bool = False) -> Array:
    """Return an argument as a floating array of matrices.

    Raises:
        ShapeError: it has fewer than two axes, or matrices that are not square.
    """
    a = promote_arrays(name, x, floating=True)[0]
    if a.ndim < 2 or (square and a.shape[-1] != a.shape[-2]):
        kind = "square matrices" if square else "matrices"
        raise ShapeError(message(name, f"{kind} in the last two axes", repr(a.aval), "Use gt.reshape."))
    return a


def pair(name: str, a: Any, b: Any, square: bool = True) -> tuple[Array, Array]:
    x, y = promote_arrays(name, a, b, floating=True)
    return matrices(name, x, square), y
