"""Numbers that know how they follow from sizes: a program that gives them, and what was seen of their values.

Each has the value of the current call, so nothing is reasoned about: arithmetic notes a line of a program, and whatever
looks at a value notes the value as a condition. For sizes that fulfil all conditions the same code makes the same
decisions, with the numbers that the program gives. torch's own symbols need sympy, whose import takes half a second.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

Value = int | float | bool


class Sizes:
    """The open sizes of one trace, with what is computed from them and known of them.

    Attributes:
        lines: the name of each computed number, by operation and names of operands.
        conditions: by the name of a number that was looked at, its value.
    """

    def __init__(self) -> None:
        self.arguments: dict[str, int] = {}
        self.lines: dict[tuple[str, ...], str] = {}
        self.conditions: dict[str, Value] = {}

    def open(self, value: int) -> Number:
        """Return an additional open size, with its value in the current call."""
        name = f"s{len(self.arguments)}"
        self.arguments[name] = value
        return Number(self, name, value)

    def fix(self) -> None:
        """Note all sizes as they are: something depends on them in another way than by their numbers."""
        self.conditions |= self.arguments

    def computed(self, operation: str, operands: Sequence[Number]) -> Number:
        """Return the result of an operation."""
        value = _OPERATIONS[operation](*[x.value for x in operands])
        if all(x.name is None for x in operands):
            return Number(self, None, value)
        same = _unchanged(operation, operands)
        if same is not None:
            return same
        if operation in ("floordiv", "mod"):  # C++ rounds towards zero
            self._keep_natural(operands)
        names = [f"({x.value!r})" if x.name is None else x.name for x in operands]
        if operation in _SYMMETRIC:
            names.sort()
        name = self.lines.setdefault((operation, *names), f"v{len(self.lines)}")
        return Number(self, name, value)

    def _keep_natural(self, operands: Sequence[Number]) -> None:
        if min([x.value for x in operands]) < 0:
            self.fix()
        for x in operands:
            self.computed("ge", (x, x.wrap_int(0))).looked_at()

    def program(self, numbers: Sequence[Number]) -> Callable[..., list[Value] | None]:
        """Return a function of the sizes that gives these numbers; None if a condition does not hold."""
        made = {name: key for key, name in self.lines.items()}
        written: dict[str, None] = {}

        def write(name: str | None) -> None:
            waiting = [] if name is None else [name]
            while waiting:
                one = waiting[-1]
                missing = [each for each in made.get(one, ()) if each in made and each not in written]
                if missing:
                    waiting += missing
                    continue
                waiting.pop()
                if one in made and one not in written:
                    operation, *operands = made[one]
                    written[one] = None
                    lines.append(f"{one} = {_written(operation, operands)}")

        lines: list[str] = []
        for name, value in self.conditions.items():
            write(name)
            lines.append(f"if {name} != {value!r}: return None")
        for number in numbers:
            write(number.name)
        results = ", ".join(repr(x.value) if x.name is None else x.name for x in numbers)
        body = "\n ".join([*lines, f"return [{results}]"])
        space = {"math": math, "nan": math.nan, "inf": math.inf}
        exec(f"def program({', '.join(self.arguments)}):\n {body}", space)  # made of names and numbers
        return space["program"]  # type: ignore[return-value]


class Number:
    """An open number, or a constant beside one, as torch's C++ asks for it: the protocol of ``SymNode``."""

    __slots__ = ("sizes", "name", "value")

    def __init__(self, sizes: Sizes, name: str | None, value: Value) -> None:
        self.sizes = sizes
        self.name = name  # None for a constant
        self.value = value

    def looked_at(self, file: str = "", line: int = 0) -> Value:
        """Return the value, on which the trace depends from then on."""
        if self.name is not None:
            self.sizes.conditions[self.name] = self.value
        return self.value

    guard_int = guard_float = guard_bool = guard_size_oblivious = guard_or_false = guard_or_true = looked_at
    expect_true = statically_known_true = bool_ = int_ = looked_at

    def __deepcopy__(self, memo: Any) -> Number:
        return self  # a copy belongs to the same trace

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open size belongs to its trace")

    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return type(self.value) is float

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_constant(self) -> bool:
        return self.name is None

    def is_symbolic(self) -> bool:
        return self.name is not None

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def constant_int(self) -> Value | None:
        return self.value if self.name is None else None

    constant_bool = maybe_as_int = constant_int

    def nested_int(self) -> None:
        return None

    def wrap_int(self, value: Value) -> Number:
        return Number(self.sizes, None, value)

    wrap_float = wrap_bool = wrap_int

    def clone(self) -> Number:
        return self

    def __repr__(self) -> str:
        return repr(self.looked_at())  # it may become a key

    _graph_repr = __str__ = __repr__

    # -- facts about memory, of all sizes and strides

    def is_contiguous(self, sizes: Sequence[Number], strides: Sequence[Number]) -> Number:
        return self._in_order(sizes, strides, range(len(sizes))[::-1])

    def is_channels_last_contiguous_2d(self, sizes: Sequence[Number], strides: Sequence[Number]) -> Number:
        return self._in_order(sizes, strides, (1, 3, 2, 0)) if len(sizes) == 4 else self.wrap_bool(False)

    def is_channels_last_contiguous_3d(self, sizes: Sequence[Number], strides: Sequence[Number]) -> Number:
        return self._in_order(sizes, strides, (1, 4, 3, 2, 0)) if len(sizes) == 5 else self.wrap_bool(False)

    def is_channels_last_strides_2d(self, sizes: Sequence[Number], strides: Sequence[Number]) -> Number:
        return self._strided(sizes, strides, (1, 3, 2, 0)) if len(sizes) == 4 else self.wrap_bool(False)

    def is_channels_last_strides_3d(self, sizes: Sequence[Number], strides: Sequence[Number]) -> Number:
        return self._strided(sizes, strides, (1, 4, 3, 2, 0)) if len(sizes) == 5 else self.wrap_bool(False)

    def is_non_overlapping_and_dense(self, sizes: Sequence[Number], strides: Sequence[Number]) -> Number:
        axes = [k for k, n in enumerate(sizes) if not self._is("eq", n, 1)]

        def order(one: int, other: int) -> int:
            return -1 if self._is("lt", strides[one], strides[other]) else 1

        axes.sort(key=functools.cmp_to_key(order))
        return self._in_order(sizes, strides, axes)

    def _is(self, relation: str, x: Number, y: Number | int) -> bool:
        y = self.wrap_int(y) if isinstance(y, int) else y
        if relation == "eq" and x.name is not None and x.name == y.name:
            return True
        return bool(self.sizes.computed(relation, (x, y)).looked_at())

    def _in_order(self, sizes: Sequence[Number], strides: Sequence[Number], axes: Sequence[int]) -> Number:
        """Return whether a tensor is dense with these axes, the innermost first."""
        if any(self._is("eq", n, 0) for n in sizes):
            return self.wrap_bool(True)
        step = self.wrap_int(1)
        for k in axes:
            if not self._is("eq", sizes[k], 1):
                if not self._is("eq", strides[k], step):
                    return self.wrap_bool(False)
                step = self.sizes.computed("mul", (step, sizes[k]))
        return self.wrap_bool(True)

    def _strided(self, sizes: Sequence[Number], strides: Sequence[Number], axes: Sequence[int]) -> Number:
        """Return whether torch takes the order of the strides as that of images whose channels come last."""
        least: Number | int = 0
        if self._is("eq", strides[1], 0):
            return self.wrap_bool(False)
        for k in axes:
            if self._is("eq", sizes[k], 0) or self._is("lt", strides[k], least):
                return self.wrap_bool(False)
            if k == 0 and self._is("eq", strides[1], least):
                return self.wrap_bool(False)
            least = strides[k]
            if self._is("gt", sizes[k], 1):
                least = self.sizes.computed("mul", (least, sizes[k]))
        return self.wrap_bool(True)


def _operation(name: str) -> Callable[..., Number]:
    return lambda self, *others: self.sizes.computed(name, (self, *others))


_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "mod": "%", "floordiv": "//", "int_floordiv": "//", "truediv": "/",
    "int_truediv": "/", "float_truediv": "/", "pow": "**", "pow_by_natural": "**", "float_pow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "and", "or": "or",
    "sym_and": "and", "sym_or": "or",
}  # fmt: skip
_FUNCTIONS = {
    "neg": "-", "sym_not": "not ", "sym_float": "float", "sym_min": "min", "sym_max": "max", "ceil": "math.ceil",
    "floor": "math.floor", "trunc": "math.trunc", "round": "round", "sym_sqrt": "math.sqrt", "abs": "abs",
}  # fmt: skip


def _unchanged(operation: str, operands: Sequence[Number]) -> Number | None:
    """Return the operand that an operation of integers returns, or a constant that it gives; None if it computes."""
    if len(operands) != 2 or not all(x.is_int() for x in operands):
        return None
    neutral = {"add": 0, "mul": 1, "sub": 0}.get(operation)
    one, other = operands
    if neutral is not None and other.name is None and other.value == neutral:
        return one
    if neutral is not None and operation != "sub" and one.name is None and one.value == neutral:
        return other
    if operation == "mul" and any(x.name is None and x.value == 0 for x in operands):
        return one.wrap_int(0)
    if operation in ("eq", "ne", "le", "lt", "ge", "gt") and one.name == other.name:
        return one.wrap_bool(operation in ("eq", "le", "ge"))
    return None


_SYMMETRIC = {"add", "mul", "eq", "ne"}


def _written(operation: str, operands: Sequence[str]) -> str:
    """Return an operation as an expression of Python."""
    symbol = _SYMBOLS.get(operation)
    return f"{_FUNCTIONS[operation]}({', '.join(operands)})" if symbol is None else f" {symbol} ".join(operands)


def _compiled(name: str, count: int) -> Callable[..., Any]:
    names = [f"x{k}" for k in range(count)]
    text = f"lambda {', '.join(names)}: {_written(name, names)}"
    found: Callable[..., Any] = eval(compile(text, __file__, "eval"), {"math": math})
    return found


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _compiled(name, 2) for name in (*_SYMBOLS, "sym_min", "sym_max")},
    **{name: _compiled(name, 1) for name in _FUNCTIONS if name not in ("sym_min", "sym_max")},
}

for _name in _OPERATIONS:
    setattr(Number, _name, _operation(_name))
setattr(Number, "str", Number.__repr__)  # noqa: B010 - the name in torch's protocol
