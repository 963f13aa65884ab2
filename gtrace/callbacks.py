"""Calls of Python functions with values of arrays: outside of traced functions, where there are values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from gtrace import tree
from gtrace.abstract import ShapeDtypeStruct
from gtrace.errors import ConcretizationError, ShapeError, message
from gtrace.ops.create import asarray
from gtrace.trace.array import Array
from gtrace.trace.record import thread

__all__ = ["pure_callback"]


def check_values(name: str) -> None:
    """Refuse to look at values while a function is traced.

    Raises:
        ConcretizationError: with the function's name.
    """
    if thread.trace.capture is not None:
        fix = "Call it outside the traced function, or return the values from it."
        raise ConcretizationError(message(name, "arrays with values", f"placeholders of {thread.trace.capture}", fix))


def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, vmap_method: str | None = None, **kwargs: Any
) -> Any:
    """Return what a Python function of NumPy arrays returns, as Arrays.

    It is not recorded: functions that are being traced refuse it, and it has no derivative.

    Args:
        result_shape_dtypes: pytree of what has a shape and a dtype, such as ``gt.ShapeDtypeStruct``.
        args, kwargs: of `callback`: pytrees of arrays.
        vmap_method: of no effect.

    Raises:
        ConcretizationError: a function is being traced.
        ShapeError: the results have other shapes.

    >>> import gtrace as gt
    >>> gt.pure_callback(numpy.sort, gt.ShapeDtypeStruct(3, "float32"), gt.array([3., 1., 2.]))
    Array([1., 2., 3.], dtype=float32)
    """
    check_values("pure_callback")
    args, kwargs = tree.map(lambda x: x.numpy() if isinstance(x, Array) else x, (args, kwargs))
    results = callback(*args, **kwargs)

    def fitted(spec: Any, value: Any) -> Array:
        wanted = ShapeDtypeStruct(spec.shape, spec.dtype)
        out = asarray(numpy.array(value), wanted.dtype)
        if out.shape != wanted.shape:
            raise ShapeError(
                message("pure_callback", f"a result of shape {wanted.shape}", str(out.shape), "Reshape it.")
            )
        return out

    return tree.map(fitted, result_shape_dtypes, results)
