"""Products with JAX's `preferred_element_type`: the dtype in which they are computed, and that of the result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gtrace import numpy as ours
from gtrace.extend import as_dtype, cast, lift, promote_arrays
from gtrace.jax.adapt import JAX_NAMES, adapted

__all__ = ["convolve", "correlate", "dot", "einsum", "inner", "matmul", "tensordot", "vdot", "vecdot"]

_OPERANDS = {
    "convolve": 2, "correlate": 2, "dot": 2, "inner": 2, "matmul": 2, "tensordot": 2, "vdot": 2, "vecdot": 2,
}  # fmt: skip
"""The functions that take it, with the number of their operands."""

_OF_FLOATS = ("convolve", "correlate")
"""Those that compute integers as floats."""


def computed_in(name: str, dtype: Any, operands: Any) -> list[Any]:
    """Return operands in a dtype."""
    kind = as_dtype(dtype)
    return [cast(lift(name, x), kind) for x in operands]


def typed(name: str, module: str = "jax.numpy", source: Any = ours) -> Callable[..., Any]:
    """Return a product of gtrace's, with JAX's parameters and `preferred_element_type`."""
    count = _OPERANDS[name]
    function = adapted(f"{module}.{name}", getattr(source, name), JAX_NAMES[module][name])

    @functools.wraps(function)
    def call(*args: Any, preferred_element_type: Any = None, **options: Any) -> Any:
        if preferred_element_type is not None:
            args = (*computed_in(name, preferred_element_type, args[:count]), *args[count:])
        operands = [lift(name, x) for x in args[:count]]
        if name in _OF_FLOATS:
            out = function(*promote_arrays(name, *operands, floating=True), *args[count:], **options)
            return out if preferred_element_type is None else cast(out, as_dtype(preferred_element_type))
        if all(x.aval.dtype is torch.bool for x in operands):
            out = function(*[cast(x, torch.int32) for x in operands], *args[count:], **options)
            return cast(out, torch.bool)
        return function(*args, **options)

    del call.__wrapped__  # its parameters are not those of this one
    call.__doc__ = f"``gt.numpy.{name}``, computed in `preferred_element_type`."
    return call


convolve, correlate, dot, inner = typed("convolve"), typed("correlate"), typed("dot"), typed("inner")
matmul, tensordot, vdot, vecdot = typed("matmul"), typed("tensordot"), typed("vdot"), typed("vecdot")


def einsum(subscripts: Any, /, *operands: Any, preferred_element_type: Any = None, **options: Any) -> Any:
    """``gt.einsum``, computed in `preferred_element_type`; operands may alternate with lists of axes.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.einsum(jnp.ones((2, 3)), [0, 1], jnp.ones(3), [1], [0])
    Array([3., 3.], dtype=float32)
    """
    if not isinstance(subscripts, str):
        given = [subscripts, *operands]
        operands, terms = tuple(given[0 : len(given) - len(given) % 2 : 2]), given[1::2]
        letters = ["".join(chr(ord("a") + axis) for axis in term) for term in terms]
        out = "".join(chr(ord("a") + axis) for axis in given[-1]) if len(given) % 2 else None
        subscripts = ",".join(letters) + ("" if out is None else f"->{out}")
    if preferred_element_type is not None:
        operands = tuple(computed_in("einsum", preferred_element_type, operands))
    lifted = [lift("einsum", x) for x in operands]
    if lifted and all(x.aval.dtype is torch.bool for x in lifted):  # whether any of the products is true
        return cast(ours.einsum(subscripts, *[cast(x, torch.int32) for x in lifted]), torch.bool)
    return ours.einsum(subscripts, *operands)
