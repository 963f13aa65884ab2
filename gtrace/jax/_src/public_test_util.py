"""``jax._src.public_test_util``: the checks of derivatives and of numbers, at the place where tinygp looks for them."""

from __future__ import annotations

from typing import Any

import numpy

from gtrace.jax import tree
from gtrace.jax.private_places import public_names
from gtrace.jax.test_util import check_grads

__all__ = ["check_close", "check_grads"]

_BOUNDS = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "complex64": 1e-6, "float64": 1e-15, "complex128": 1e-15}
"""How far numbers of a dtype may differ, for each element of an array; other dtypes not at all."""


def _bound(x: Any, given: Any) -> float:
    name = x.dtype.name
    if isinstance(given, dict):
        given = {numpy.dtype(kind).name: bound for kind, bound in given.items()}.get(name)
    return (_BOUNDS.get(name, 0.0) if given is None else given) * max(x.size, 1)


def check_close(xs: Any, ys: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """Raise an AssertionError unless two pytrees have equal shapes, and numbers that agree.

    Args:
        atol, rtol: bounds, or bounds by dtype, times the number of elements; by default those of the dtypes.

    >>> check_close({"a": numpy.float32(1.0)}, {"a": numpy.float32(1.0 + 1e-7)})
    """

    def check(x: Any, y: Any) -> None:
        a, b = numpy.asarray(x), numpy.asarray(y)
        assert a.shape == b.shape, f"{a.shape} and {b.shape}"
        absolute, relative = (max(_bound(a, given), _bound(b, given)) for given in (atol, rtol))
        if a.dtype.kind == "V":  # bfloat16, of which numpy.testing knows nothing
            a, b = a.astype("float32"), b.astype("float32")
        numpy.testing.assert_allclose(a, b, relative, absolute, err_msg=err_msg)

    tree.map(check, xs, ys)


__getattr__ = public_names(__name__)
