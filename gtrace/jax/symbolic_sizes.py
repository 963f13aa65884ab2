"""Sizes without values: integer expressions of names."""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gtrace.extend import ArgumentError, OpenSize, message
from gtrace.jax.errors import InconclusiveDimensionOperation

Interval = tuple[float, float]

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""The code that may ask for the value of a size in a traced function: gtrace's own."""

_values: contextvars.ContextVar[Mapping[str, int] | None] = contextvars.ContextVar("sizes", default=None)
"""What the names stand for in a function that is being traced."""

INVERSE = {">=": (1, 0), ">": (1, -1), "<=": (-1, 0), "<": (-1, -1)}
"""The sign and the offset that turn the difference of two sides into a number that is not negative."""


@contextlib.contextmanager
def standing_for(values: Mapping[str, int]) -> Iterator[None]:
    """Return a block in which each name has a value, so that its sizes are integers."""
    token = _values.set(values)
    try:
        yield
    finally:
        _values.reset(token)


class Scope:
    """What is known of some names.

    Attributes:
        known: expressions that are not negative.
    """

    def __init__(self) -> None:
        self.known: list[SymbolicSize] = []


Atom = str | tuple[str, Any, Any]
"""A name; or an operation with its operands, which are integers or symbolic sizes."""

Monomial = tuple[tuple[Atom, int], ...]
"""Atoms with their powers."""

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "max": max, "min": min,
}  # fmt: skip


class SymbolicSize(OpenSize):
    """A size as a polynomial of names with integer coefficients; also of quotients, remainders, maxima and minima.

    Names are sizes of at least 1. A comparison whose result depends on them is an error.

    >>> from gtrace.jax.export import symbolic_shape
    >>> a, b = symbolic_shape("a, b")
    >>> (a + 1) * 2 - b, (4 * a + 1) // 2, a >= 1, a == b
    (- b + 2*a + 2, 2*a, True, False)
    """

    __slots__ = ("terms", "scope")

    def __init__(self, terms: Mapping[Monomial, int], scope: Scope) -> None:
        self.terms = dict(terms)
        self.scope = scope

    def names(self) -> set[str]:
        """Return the names in the expression."""
        found: set[str] = set()
        for monomial in self.terms:
            for atom, _ in monomial:
                inner = [atom] if isinstance(atom, str) else [x for x in atom[1:] if isinstance(x, SymbolicSize)]
                for x in inner:
                    found |= {x} if isinstance(x, str) else x.names()
        return found

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the integer that it is for these values of the names."""
        total = 0
        for monomial, factor in self.terms.items():
            for atom, power in monomial:
                factor *= _value_of(atom, values) ** power
            total += factor
        return total

    # -- what is known of it

    def bounds(self) -> Interval:
        """Return the least and the largest value that it may have, as far as is known."""
        low, high = self._own_bounds()
        for known in self.scope.known:  # x = (x - known) + known, where known >= 0
            rest = self - known
            low = max(low, rest if isinstance(rest, int) else rest._own_bounds()[0])
            rest = self + known
            high = min(high, rest if isinstance(rest, int) else rest._own_bounds()[1])
        return low, high

    def may_be_zero(self) -> bool:
        """Return whether it may be 0, as far as is known."""
        low, high = self.bounds()
        return low <= 0 <= high

    def _own_bounds(self) -> Interval:
        low = high = 0.0
        for monomial, factor in self.terms.items():
            one: Interval = (factor, factor)
            for atom, power in monomial:
                for _ in range(power):
                    one = _product(one, self._atom_bounds(atom))
            low, high = low + one[0], high + one[1]
        return low, high

    def _atom_bounds(self, atom: Atom) -> Interval:
        if isinstance(atom, str):
            low, high = 1.0, math.inf
            for known in self.scope.known:
                factor = known.terms.get(((atom, 1),), 0)
                rest = known.terms.get((), 0)
                if len(known.terms) == (2 if rest else 1) and factor:  # factor * name + rest >= 0
                    low = max(low, math.ceil(-rest / factor)) if factor > 0 else low
                    high = min(high, math.floor(rest / -factor)) if factor < 0 else high
            return low, high
        one, two = (x._own_bounds() if isinstance(x, SymbolicSize) else (x, x) for x in atom[1:])
        if atom[0] == "max":
            return max(one[0], two[0]), max(one[1], two[1])
        if atom[0] == "min":
            return min(one[0], two[0]), min(one[1], two[1])
        if two[0] <= 0:
            return -math.inf, math.inf
        if atom[0] == "mod":
            return 0, two[1] - 1
        ends = [x / y for x in one for y in two if not (math.isinf(x) and math.isinf(y))]
        low, high = (math.floor(x) if math.isfinite(x) else x for x in (min(ends), max(ends)))
        return low, math.inf if math.isinf(one[1]) else high

    def _compare(self, other: Any, sign: int, offset: int, text: str) -> bool:
        difference: Any = sign * (self - other) + offset
        if isinstance(difference, int):
            return difference >= 0
        low, high = difference.bounds()
        if low >= 0 or high < 0:
            return bool(low >= 0)
        fix = "It depends on the sizes: add a constraint, as in symbolic_shape(..., constraints=['a >= 2'])."
        raise InconclusiveDimensionOperation(message("comparison", "a known result", f"{self} {text} {other}", fix))

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, *INVERSE[">="], ">=") if _is_size(other) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, *INVERSE[">"], ">") if _is_size(other) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return self._compare(other, *INVERSE["<="], "<=") if _is_size(other) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, *INVERSE["<"], "<") if _is_size(other) else NotImplemented

    def __eq__(self, other: object) -> bool:
        """Whether the two are equal for all sizes, as far as is known."""
        if not _is_size(other) or (isinstance(other, SymbolicSize) and other.scope is not self.scope):
            return False
        difference: Any = self - other
        return difference == 0 if isinstance(difference, int) else bool(difference.bounds() == (0, 0))

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        values = _values.get()
        if values is None or not sys._getframe(1).f_code.co_filename.startswith(_PACKAGE):
            fix = "It has no value: pass it as a size, or use x.shape in the function."
            raise InconclusiveDimensionOperation(message("symbolic size", "an integer", str(self), fix))
        return self.evaluate(values)

    __int__ = __index__

    # -- arithmetic

    def _terms_of(self, other: Any) -> dict[Monomial, int]:
        if isinstance(other, SymbolicSize):
            if other.scope is not self.scope:
                fix = "Make them by one call of symbolic_shape, or pass scope=."
                got = f"{self} and {other}"
                raise ArgumentError(message("symbolic sizes", "expressions of one scope", got, fix))
            return other.terms
        return {(): int(other)}

    def _made(self, terms: Mapping[Monomial, int]) -> Any:
        kept = {monomial: factor for monomial, factor in terms.items() if factor}
        return kept.get((), 0) if not kept.keys() - {()} else SymbolicSize(kept, self.scope)

    def __add__(self, other: Any) -> Any:
        if not _is_size(other):
            return NotImplemented
        total = dict(self.terms)
        for monomial, factor in self._terms_of(other).items():
            total[monomial] = total.get(monomial, 0) + factor
        return self._made(total)

    def __mul__(self, other: Any) -> Any:
        if not _is_size(other):
            return NotImplemented
        total: dict[Monomial, int] = {}
        for monomial, factor in self.terms.items():
            for second, times in self._terms_of(other).items():
                powers = dict(monomial)
                for atom, power in second:
                    powers[atom] = powers.get(atom, 0) + power
                key = tuple(sorted(powers.items(), key=lambda item: str(item[0])))
                total[key] = total.get(key, 0) + factor * times
        return self._made(total)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + other * -1 if _is_size(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other if _is_size(other) else NotImplemented

    def __pow__(self, power: int) -> Any:
        result: Any = 1
        for _ in range(power):
            result = self * result
        return result

    def __floordiv__(self, other: Any) -> Any:
        if not _is_size(other):
            return NotImplemented
        divisor = self._terms_of(other)
        (first, factor), several = next(iter(divisor.items())), len(divisor) > 1
        quotient = self._made({} if several else _divided(self.terms, first, factor))
        rest = self - quotient * other
        if isinstance(rest, int) and isinstance(other, int):
            return quotient + rest // other
        return quotient if rest == 0 else quotient + operation("floordiv", rest, other, self.scope)

    def __rfloordiv__(self, other: Any) -> Any:
        return operation("floordiv", other, self, self.scope)

    def __mod__(self, other: Any) -> Any:
        if not _is_size(other):
            return NotImplemented
        if not isinstance(other, int):
            return self - (self // other) * other
        rest = self._made({monomial: factor % other for monomial, factor in self.terms.items()})
        return rest % other if isinstance(rest, int) else operation("mod", rest, other, self.scope)

    def __rmod__(self, other: Any) -> Any:
        return operation("mod", other, self, self.scope)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    # -- text

    def __repr__(self) -> str:
        ordered = sorted(self.terms.items(), key=lambda term: (sum(p for _, p in term[0]), str(term[0])), reverse=True)
        text = ""
        for monomial, factor in ordered:
            sign = " - " if factor < 0 else " + "
            text += sign if text else sign[1:] if factor < 0 else ""
            atoms = [_atom_text(atom) + (f"^{power}" if power > 1 else "") for atom, power in monomial]
            text += "*".join([str(abs(factor)), *atoms] if abs(factor) != 1 or not atoms else atoms)
        return text


def _is_size(x: Any) -> bool:
    return isinstance(x, (int, SymbolicSize))


def _divided(terms: Mapping[Monomial, int], by: Monomial, factor: int) -> dict[Monomial, int]:
    """Return the terms that a multiple of one term divides, divided by it."""
    out = {}
    for monomial, own in terms.items():
        powers = dict(monomial)
        for atom, power in by:
            powers[atom] = powers.get(atom, 0) - power
        if own % factor == 0 and min(powers.values(), default=0) >= 0:
            out[tuple([item for item in powers.items() if item[1]])] = own // factor
    return out


def operation(name: str, one: Any, two: Any, scope: Scope) -> Any:
    """Return a quotient, remainder, maximum or minimum."""
    if isinstance(one, int) and isinstance(two, int):
        return OPERATIONS[name](one, two)
    return SymbolicSize({(((name, one, two), 1),): 1}, scope)


def _value_of(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return values[atom]
    return OPERATIONS[atom[0]](*[x.evaluate(values) if isinstance(x, SymbolicSize) else x for x in atom[1:]])


def _atom_text(atom: Atom) -> str:
    return atom if isinstance(atom, str) else f"{atom[0]}({atom[1]}, {atom[2]})"


def _product(one: Interval, two: Interval) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in one for y in two]
    return min(ends), max(ends)


def is_symbolic_dim(p: Any) -> bool:
    """Return whether a size is an expression of names, not an integer.

    >>> from gtrace.jax.export import symbolic_shape
    >>> is_symbolic_dim(symbolic_shape("a")[0]), is_symbolic_dim(3)
    (True, False)
    """
    return isinstance(p, SymbolicSize)
