"""Symbolic sizes as text: ``jax.export.symbolic_shape``, and what is known of names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gtrace.extend import ArgumentError, ShapeDtypeStruct, as_dtype, message, tree
from gtrace.jax.symbolic_sizes import INVERSE, OPERATIONS, Scope, SymbolicSize, operation


class SymbolicScope(Scope):
    """The names of some symbolic sizes, and what is known of them.

    Args:
        constraints_str: comparisons such as ``"a >= 4"``, ``"a <= 2*b"`` or ``"mod(a, 4) == 0"``.

    >>> scope = SymbolicScope(["a >= 4"])
    >>> symbolic_shape("a, 2*a", scope=scope)[1] >= 8
    True
    """

    def __init__(self, constraints_str: Sequence[str] = ()) -> None:
        super().__init__()
        self.constraints = tuple(constraints_str)
        found: list[Any] = []
        for text in constraints_str:
            sides = re.split(r"(==|>=|<=|>|<)", text)
            if len(sides) != 3:
                fix = "Compare two expressions, with ==, >=, <=, > or <."
                raise ArgumentError(message("SymbolicScope", "constraints", repr(text), fix))
            (one,), (two,) = (_Parser(side, self).sizes(None) for side in sides[::2])
            signs = [(1, 0), (-1, 0)] if sides[1] == "==" else [INVERSE[sides[1]]]
            found += [sign * (one - two) + offset for sign, offset in signs]
        self.known += [x for x in found if isinstance(x, SymbolicSize)]

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether these values fulfil the constraints."""
        return all(x.evaluate(values) >= 0 for x in self.known)

    def __repr__(self) -> str:
        return f"SymbolicScope({list(self.constraints)})"


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
        if token in OPERATIONS and self.next == "(":
            self._expect("(")
            one = self.sum()
            self._expect(",")
            two = self.sum()
            self._expect(")")
            if token in ("max", "min"):
                return operation(token, one, two, self.scope)
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
