"""The settings ``jax_numpy_dtype_promotion`` and ``jax_numpy_rank_promotion``: checks of what the user combines.

While one of them is on, operators of Arrays and elementwise functions of two arrays in ``jax.numpy`` check their
operands. Calls by gtrace's own functions are not checked, and without the settings nothing is in the way.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.extend import (
    COMPLEX,
    INEXACT,
    LONG,
    ArgumentError,
    Array,
    Aval,
    DtypeError,
    ShapeError,
    avals_and_numbers,
    message,
)

DTYPES = ("standard", "strict")
RANKS = ("allow", "warn", "raise")
"""The values of the two settings."""

_OPERATORS = [
    f"__{side}{name}__"
    for side in ("", "r")
    for name in "add sub mul truediv floordiv mod divmod lshift rshift and or xor".split()
]
_OPERATORS += [f"__{name}__" for name in "eq ne lt le gt ge".split()]
_FUNCTIONS = """
    add arctan2 bitwise_and bitwise_or bitwise_xor copysign divide divmod equal floor_divide fmax fmin fmod gcd greater
    greater_equal heaviside hypot lcm left_shift less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor
    maximum minimum mod multiply nextafter not_equal remainder right_shift subtract true_divide
""".split()
"""What is checked: powers take integers beside floats."""

_METHODS = {"at": (0, 2), "outer": (0, 1)}
"""The methods of ufuncs whose arguments at two places are checked to be of one dtype."""


def fits_strictly(avals: Sequence[Aval], numbers: Sequence[bool | int | float | complex]) -> bool:
    """Return whether operands promote without a change of any array's dtype."""
    strong = {a.dtype for a in avals if not a.weak} | {torch.bool for x in numbers if x is True or x is False}
    if len(strong) != 1:
        return not strong
    ranks = [_rank(a.dtype) for a in avals if a.weak] + [_RANKS[type(x)] for x in numbers]
    own = _rank(next(iter(strong)))
    return own >= max(ranks, default=0) if own else max(ranks, default=0) == 0


_RANKS = {bool: 0, int: 1, float: 2, complex: 3}


def _rank(dtype: torch.dtype) -> int:
    return 3 if dtype in COMPLEX else 2 if dtype in INEXACT else 0 if dtype is torch.bool else 1


def mixed(op: str, dtypes: Sequence[str]) -> DtypeError:
    """Return the error for operands that are not of one dtype under strict promotion."""
    got = " and ".join(dtypes)
    fix = "Cast one with x.astype(...), or set jax_numpy_dtype_promotion to standard."
    return DtypeError(message(op, "operands of one dtype", got, fix))


class _Checks:
    """The checks in force, and the functions that they stand before."""

    def __init__(self) -> None:
        self.dtypes, self.ranks = DTYPES[0], RANKS[0]
        self._plain: dict[tuple[Any, str], Any] = {}

    def follow(self, dtypes: str, ranks: str) -> None:
        """Put the checks that the two settings ask for in place, or take them away."""
        for name, value, known in (("dtype", dtypes, DTYPES), ("rank", ranks, RANKS)):
            if value not in known:
                expected = f"jax_numpy_{name}_promotion among {', '.join(known)}"
                raise ArgumentError(message("jax.config", expected, repr(value), "Pass one of them."))
        self.dtypes, self.ranks = dtypes, ranks
        wanted = (dtypes, ranks) != (DTYPES[0], RANKS[0])
        if wanted and not self._plain:
            numpy_names = sys.modules["gtrace.jax.numpy"]
            for place, own in [(Array, _OPERATORS), (numpy_names, _FUNCTIONS)]:
                for name in own:
                    self._plain[place, name] = function = getattr(place, name)
                    setattr(place, name, self._checking(name.strip("_"), function))
        elif not wanted:
            for (place, name), function in self._plain.items():
                setattr(place, name, function)
            self._plain.clear()

    def _checking(
        self, name: str, function: Callable[..., Any], depth: int = 1, places: tuple[int, ...] | None = None
    ) -> Callable[..., Any]:
        """Return a function with the checks before it.

        Args:
            depth: how many frames above are the user's; a ufunc adds one.
            places: those of the operands; None: they are all arguments, and their ranks are checked too.
        """
        if isinstance(function, sys.modules["gtrace.jax.numpy"].ufunc):
            made = attrs.evolve(function, call=self._checking(name, function._func, depth + 1))
            for method, chosen in _METHODS.items():
                vars(made)[method] = self._checking(name, getattr(function, method), places=chosen)
            return made

        @functools.wraps(function)
        def call(*operands: Any, **options: Any) -> Any:
            if not sys._getframe(depth).f_globals.get("__name__", "").startswith("gtrace."):
                if places is None:
                    self._check(name, operands, self.ranks)
                else:
                    self._check(name, [operands[k] for k in places if k < len(operands)], RANKS[0])
            return function(*operands, **options)

        return call

    def _check(self, name: str, operands: Sequence[Any], ranks: str) -> None:
        if not all(isinstance(x, (Array, numpy.ndarray, numpy.generic, int, float, complex)) for x in operands):
            return  # the function itself says what it takes
        self.check_ranks(name, [numpy.shape(x) for x in operands], ranks)
        if self.dtypes == "strict":
            avals, numbers = avals_and_numbers(operands)
            if not fits_strictly(avals, numbers):
                raise mixed(name, [LONG[a.dtype] for a in avals] + [type(x).__name__ for x in numbers])

    def check_ranks(self, name: str, shapes: Sequence[tuple[int, ...]], ranks: str) -> None:
        """Do what the setting says, "warn" or "raise", if arrays have several numbers of dimensions."""
        if ranks == "allow" or len({len(shape) for shape in shapes} - {0}) <= 1:
            return
        text = " ".join(map(str, shapes))
        if ranks == "raise":
            fix = "They could not be broadcast together: use jnp.expand_dims, or let jax_numpy_rank_promotion allow it."
            raise ShapeError(message(name, "operands of as many dimensions", text, fix))
        warnings.warn(f"Following NumPy automatic rank promotion for {name} on shapes {text}", stacklevel=4)


checks = _Checks()
