"""Sizes without values: integer expressions of names, as ``jax.export.symbolic_shape`` makes them."""

from __future__ import annotations

import contextlib
import contextvars
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gtrace.extend import ArgumentError, OpenSize, ShapeDtypeStruct, as_dtype, message, tree
from gtrace.jax.errors import InconclusiveDimensionOperation

Interval = tuple[float, float]

_values: contextvars.ContextVar[Mapping[str, int] | None] = contextvars.ContextVar("sizes", default=None)
"""What the names stand for in a function that is being traced."""

_INVERSE = {">=": (1, 0), ">": (1, -1), "<=": (-1, 0), "<": (-1, -1)}
"""The sign and the offset that turn the difference of two sides into a number that is not negative."""


@contextlib.contextmanager
def standing_for(values: Mapping[str, int]) -> Iterator[None]:
    """Return a block in which each name has a value, so that its sizes are integers."""
    token = _values.set(values)
    try:
        yield
    finally:
        _values.reset(token)


class SymbolicScope:
    """The names of some symbolic sizes, and what is known of them.

    Args:
        constraints_str: comparisons such as ``"a >= 4"``, ``"a <= 2*b"`` or ``"mod(a, 4) == 0"``.

    >>> scope = SymbolicScope(["a >= 4"])
    >>> symbolic_shape("a, 2*a", scope=scope)[1] >= 8
    True
    """

    def __init__(self, constraints_str: Sequence[str] = ()) -> None:
        self.constraints = tuple(constraints_str)
        self.known: list[SymbolicSize] = []  # expressions that are not negative
        found: list[Any] = []
        for text in constraints_str:
            sides = re.split(r"(==|>=|<=|>|<)", text)
            if len(sides) != 3:
                fix = "Compare two expressions, with ==, >=, <=, > or <."
                raise ArgumentError(message("SymbolicScope", "constraints", repr(text), fix))
            (one,), (two,) = (_Parser(side, self).sizes(None) for side in sides[::2])
            signs = [(1, 0), (-1, 0)] if sides[1] == "==" else [_INVERSE[sides[1]]]
            found += [sign * (one - two) + offset for sign, offset in signs]
        self.known += [x for x in found if isinstance(x, SymbolicSize)]

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether these values fulfil the constraints."""
        return all(x.evaluate(values) >= 0 for x in self.known)

    def __repr__(self) -> str:
        return f"SymbolicScope({list(self.constraints)})"


Atom = str | tuple[str, Any, Any]
"""A name; or an operation with its operands, which are integers or symbolic sizes."""

Monomial = tuple[tuple[Atom, int], ...]
"""Atoms with their powers."""

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "max": max, "min": min,
}  # fmt: skip


class SymbolicSize(OpenSize):
    """A size as a polynomial of names with integer coefficients; also of quotients, remainders, maxima and minima.

    Names are sizes of at least 1. A comparison whose result depends on them is an error.

    >>> a, b = symbolic_shape("a, b")
    >>> (a + 1) * 2 - b, (4 * a + 1) // 2, a >= 1, a == b
    (- b + 2*a + 2, 2*a, True, False)
    """

    __slots__ = ("terms", "scope")

    def __init__(self, terms: Mapping[Monomial, int], scope: SymbolicScope) -> None:
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
        values = _values.get()
        difference: Any = sign * (self - other) + offset
        if isinstance(difference, int) or values is not None:
            return (difference if isinstance(difference, int) else difference.evaluate(values)) >= 0
        low, high = difference.bounds()
        if low >= 0 or high < 0:
            return bool(low >= 0)
        fix = "It depends on the sizes: add a constraint, as in symbolic_shape(..., constraints=['a >= 2'])."
        raise InconclusiveDimensionOperation(message("comparison", "a known result", f"{self} {text} {other}", fix))

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, *_INVERSE[">="], ">=") if _is_size(other) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, *_INVERSE[">"], ">") if _is_size(other) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return self._compare(other, *_INVERSE["<="], "<=") if _is_size(other) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, *_INVERSE["<"], "<") if _is_size(other) else NotImplemented

    def __eq__(self, other: object) -> bool:
        """Whether the two are equal for all sizes, as far as is known."""
        if not _is_size(other) or (isinstance(other, SymbolicSize) and other.scope is not self.scope):
            return False
        difference: Any = self - other
        values = _values.get()
        if isinstance(difference, int):
            return difference == 0
        if values is not None:
            return bool(difference.evaluate(values) == 0)
        return bool(difference.bounds() == (0, 0))

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        values = _values.get()
        if values is None:
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
        return quotient if rest == 0 else quotient + _operation("floordiv", rest, other, self.scope)

    def __rfloordiv__(self, other: Any) -> Any:
        return _operation("floordiv", other, self, self.scope)

    def __mod__(self, other: Any) -> Any:
        if not _is_size(other):
            return NotImplemented
        if not isinstance(other, int):
            return self - (self // other) * other
        rest = self._made({monomial: factor % other for monomial, factor in self.terms.items()})
        return rest % other if isinstance(rest, int) else _operation("mod", rest, other, self.scope)

    def __rmod__(self, other: Any) -> Any:
        return _operation("mod", other, self, self.scope)

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


def _operation(name: str, one: Any, two: Any, scope: SymbolicScope) -> Any:
    if isinstance(one, int) and isinstance(two, int):
        return _OPERATIONS[name](one, two)
    return SymbolicSize({(((name, one, two), 1),): 1}, scope)


def _value_of(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return values[atom]
    return _OPERATIONS[atom[0]](*[x.evaluate(values) if isinstance(x, SymbolicSize) else x for x in atom[1:]])


def _atom_text(atom: Atom) -> str:
    return atom if isinstance(atom, str) else f"{atom[0]}({atom[1]}, {atom[2]})"


def _product(one: Interval, two: Interval) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in one for y in two]
    return min(ends), max(ends)


def is_symbolic_dim(p: Any) -> bool:
    """Return whether a size is an expression of names, not an integer.

    >>> is_symbolic_dim(symbolic_shape("a")[0]), is_symbolic_dim(3)
    (True, False)
    """
    return isinstance(p, SymbolicSize)


class _Parser:
    """Reads sizes from a text."""

    _TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(\.\.\.)|([-+*^(),]))")

    def __init__(self, text: str, scope: SymbolicScope) -> None:
        self.text, self.scope, self.at = text, scope, 0
        self.tokens: list[str] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            found = self._TOKEN.match(text, place)
            if not found:
                raise self.error()
            self.tokens.append(found[0].strip())
            place = found.end()

    def error(self) -> Exception:
        """Return the error for a text that is none of sizes."""
        fix = "Write sizes with commas between: names, numbers, sums and products, floordiv, mod, max, min."
        return ArgumentError(message("symbolic_shape", "sizes", repr(self.text), fix))

    @property
    def next(self) -> str:
        """The next token; empty at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def sizes(self, like: Sequence[Any] | None) -> tuple[Any, ...]:
        """Return all sizes. ``_`` and ``...`` are those of `like`."""
        if self.tokens and self.tokens[0] == "(" and self.tokens[-1] == ")" and self._is_pair():
            self.tokens = self.tokens[1:-1]
        found: list[Any] = []
        while self.next:
            if self._skip("..."):
                if like is None or self.next:
                    raise self.error()
                found += self._given(like, len(found), None)
                break
            if self._skip("_"):
                found += self._given(like, len(found), len(found) + 1)
            else:
                found.append(self.sum())
            if self.next and not self._skip(","):
                raise self.error()
        if like is not None and len(found) != len(like):
            got, fix = f"{self.text!r} for {tuple(like)}", "Use ... for the others."
            raise ArgumentError(message("symbolic_shape", "as many sizes as the array has", got, fix))
        return tuple(found)

    def _given(self, like: Sequence[Any] | None, start: int, stop: int | None) -> list[Any]:
        part = list((like or ())[start:stop])
        if (stop is not None and not part) or None in part:
            raise self.error()
        return part

    def _is_pair(self) -> bool:
        depth = 0
        for k, token in enumerate(self.tokens):
            depth += (token == "(") - (token == ")")
            if not depth:
                return k == len(self.tokens) - 1
        return False

    def _skip(self, token: str) -> bool:
        found = self.next == token
        self.at += found
        return found

    def sum(self) -> Any:
        """Return a sum of products."""
        total: Any = -self.product() if self._skip("-") else self.product()
        while self.next in ("+", "-"):
            total = total + self.product() if self._skip("+") else self._minus(total)
        return total

    def _minus(self, total: Any) -> Any:
        self.at += 1
        return total - self.product()

    def product(self) -> Any:
        """Return a product of powers."""
        result = self.power()
        while self._skip("*"):
            result = result * self.power()
        return result

    def power(self) -> Any:
        """Return a name, number, or operation, or a power of one."""
        base = self.atom()
        if self._skip("^"):
            exponent = self.next
            if not exponent.isdigit():
                raise self.error()
            self.at += 1
            return base ** int(exponent)
        return base

    def atom(self) -> Any:
        """Return a name, number, or operation, or a sum in parentheses."""
        token = self.next
        self.at += 1
        if token.isdigit():
            return int(token)
        if token == "(":
            inner = self.sum()
            self._expect(")")
            return inner
        if token in _OPERATIONS and self.next == "(":
            self._expect("(")
            one = self.sum()
            self._expect(",")
            two = self.sum()
            self._expect(")")
            if token in ("max", "min"):
                return _operation(token, one, two, self.scope)
            return one // two if token == "floordiv" else one % two
        if not token.isidentifier():
            raise self.error()
        return SymbolicSize({((token, 1),): 1}, self.scope)

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise self.error()


def symbolic_shape(
    shape_spec: str | None, *, constraints: Sequence[str] = (), scope: SymbolicScope | None = None,
    like: Sequence[Any] | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return sizes from a text: integers, and expressions of names, which are sizes of at least 1.

    Args:
        shape_spec: with commas between sizes. ``_`` is a size of `like`, and ``...`` at the end the rest of them. None:
            all of them.
        constraints: see `SymbolicScope`.
        scope: that of other sizes, to combine these with them.

    Raises:
        ArgumentError: the text is none of sizes, or does not fit `like`; or both `constraints` and `scope` are given.

    >>> symbolic_shape("b, 2*b + 1, ...", like=(1, 2, 5))
    (b, 2*b + 1, 5)
    """
    if scope is not None and constraints:
        fix = "Give the constraints to the scope."
        raise ArgumentError(message("symbolic_shape", "constraints or a scope", "both", fix))
    return _Parser("..." if shape_spec is None else shape_spec, scope or SymbolicScope(constraints)).sizes(like)


def symbolic_args_specs(
    args: Any, shapes_specs: Any, constraints: Sequence[str] = (), scope: SymbolicScope | None = None
) -> Any:
    """Return a pytree of arrays with a `ShapeDtypeStruct` of symbolic sizes for each.

    Args:
        shapes_specs: a text for `symbolic_shape`, or a pytree of them, one for each array or for a part of `args`.

    >>> import gtrace as gt
    >>> symbolic_args_specs({"x": gt.ones((2, 3))}, "b, ...")
    {'x': ShapeDtypeStruct(shape=(b, 3), dtype=float32)}
    """
    own = scope or SymbolicScope(constraints)
    leaf = lambda x: x is None or isinstance(x, str)  # noqa: E731 - None is a leaf
    if isinstance(shapes_specs, (tuple, list)) and isinstance(args, (tuple, list)):
        shapes_specs = type(args)(shapes_specs)

    def spec(text: str | None, part: Any) -> Any:
        def one(x: Any) -> ShapeDtypeStruct:
            shape, dtype = getattr(x, "shape", ()), as_dtype(getattr(x, "dtype", type(x)))
            return ShapeDtypeStruct(symbolic_shape(text, scope=own, like=shape), dtype)

        return tree.map(one, part)

    return tree.map(spec, shapes_specs, args, is_leaf=leaf)
