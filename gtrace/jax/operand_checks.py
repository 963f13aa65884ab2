"""What JAX's elementwise functions refuse: operands of unequal dtypes or numbers of axes, and dtypes of other kinds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gtrace.extend import LONG, ArgumentError, Array, DType, DtypeError, ShapeError, default_dtype, lift, message
from gtrace.jax.scalars import PYTHON
from gtrace.lax.windows import stand_in

_KINDS = {
    "numbers": "iufc", "integers or booleans": "biu", "integers": "iu", "real numbers": "iuf",
    "floats or complex numbers": "fc", "floats": "f", "real numbers or booleans": "biuf",
    "numbers or booleans": "biufc",
}  # fmt: skip
"""Kinds of dtypes in words, and by NumPy's letters."""

_TAKEN = {
    "numbers": "abs add div integer_pow mul neg sign square sub",
    "numbers or booleans": "eq max min ne",
    "real numbers": "rem",
    "real numbers or booleans": "ge gt le lt",
    "integers or booleans": "bitwise_and bitwise_not bitwise_or bitwise_xor",
    "integers": "clz mulhi population_count shift_left shift_right_arithmetic shift_right_logical",
    "floats or complex numbers": """
        acos acosh asin asinh atan atan2 atanh cos cosh exp exp2 expm1 log log1p logistic rsqrt sin sinh sqrt tan tanh
    """,
    "floats": """
        bessel_i0e bessel_i1e betainc cbrt ceil digamma erf erf_inv erfc floor igamma igammac is_finite lgamma nextafter
        polygamma round zeta
    """,
}
"""The elementwise functions by the kind of their operands."""

_ARRAYS = {
    **dict.fromkeys(
        """
        add atan2 bitwise_and bitwise_or bitwise_xor div eq ge gt igamma igammac le lt max min mul mulhi ne nextafter
        polygamma rem shift_left shift_right_arithmetic shift_right_logical sub zeta
        """.split(),
        2,
    ),
    "betainc": 3,
}
"""How many arrays the functions take that do not take one."""

_ALIKE = {
    **dict.fromkeys(["conv", "conv_general_dilated", "conv_transpose", "conv_with_general_padding"], (0, 1)),
    "clamp": (0, 1, 2), "dynamic_update_slice": (0, 1), "pad": (0, 1), "select": (1, 2),
}  # fmt: skip
"""Other functions, with the places of the arguments that have one dtype."""

_KIND_OF = {f"jax.lax.{name}": kind for kind, names in _TAKEN.items() for name in names.split()}


def check_mask(name: str, where: Any, out: Any = None) -> None:
    """Raise if a mask is not of booleans, or there is an `out`."""
    if out is not None:
        raise ArgumentError(message(name, "out left to its default", "another", "Arrays never change: use the result."))
    if where is not None and lift(name, where).dtype != "bool":
        got = repr(lift(name, where).aval)
        raise DtypeError(message(name, "None or a boolean array as `where`", got, "Compare it: where != 0."))


def checked(name: str, function: Any) -> Any:
    """Return a function of JAX's that refuses the operands that JAX's refuses."""
    short = name.rpartition(".")[2]
    if name in _KIND_OF:
        return _checked(short, function, _KIND_OF[name], tuple(range(_ARRAYS.get(short, 1))))
    if name.startswith("jax.lax.") and short in _ALIKE:
        return _checked(short, function, None, _ALIKE[short])
    return function


def _checked(name: str, function: Callable[..., Any], kind: str | None, places: Sequence[int]) -> Callable[..., Any]:
    """Return a function that compares the dtypes of the arguments at these places.

    Args:
        kind: that of the operands of an elementwise function, whose axes are compared too.
    """
    allowed = None if kind is None else frozenset(dtype for dtype in LONG if DType(dtype).kind in _KINDS[kind])
    start, stop = places[0], places[-1] + 1

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        operands = args[start:stop]
        first = operands[0].aval if operands and operands[0].__class__ is Array else None
        if first is not None and (allowed is None or first.dtype in allowed):
            for x in operands:
                if x.__class__ is not Array or x.aval is not first:
                    break
            else:  # types that are equal are one object
                return function(*args, **kwargs)
        dtypes, ranks = set(), set()
        for x in operands:
            if x.__class__ in PYTHON:
                dtypes.add(default_dtype(type(x)))
                continue
            aval = x.aval if x.__class__ is Array else lift(name, x).aval
            dtypes.add(aval.dtype)
            if aval.shape:
                ranks.add(len(aval.shape))
        if len(dtypes) > 1 and kwargs.get("out_dtype") is None:
            got = " and ".join(sorted(LONG[dtype] for dtype in dtypes))
            raise DtypeError(message(name, "arguments of the same dtypes", got, "Convert them, or use jax.numpy."))
        if allowed is not None:
            for dtype in dtypes - allowed:
                raise DtypeError(message(name, str(kind), LONG[dtype], "Convert the operand, or use jax.numpy."))
            if len(ranks) > 1:
                got = " and ".join(map(str, sorted(ranks)))
                raise ShapeError(message(name, "operands of as many axes, or scalars", got, "Use jax.numpy."))
        return function(*args, **kwargs)

    return stand_in(call, function)
