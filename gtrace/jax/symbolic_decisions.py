"""What a function's Python code makes of symbolic sizes: it is traced for several, and may not decide by them.

A program that was recorded at some sizes holds at others only if the code would do the same there. What the code reads
is noted for each of the sizes, so it is known how that follows from the names. Then the code gets integers that know
it. A comparison that depends on the names is an error, as in JAX, and so is any use of a value. Sizes that may be equal
are taken for unequal, as in JAX; an exported function refuses those for which they are equal.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

import gtrace as gt
from gtrace.errors import ExportError, GtraceError
from gtrace.extend import ShapeDtypeStruct, message, noted, tree
from gtrace.jax.errors import InconclusiveDimensionOperation
from gtrace.jax.symbolic_programs import examples, fitted, names_in, same, sized
from gtrace.jax.symbolic_sizes import INVERSE, Scope, SymbolicSize, standing_for

R = TypeVar("R")

_FIX = "Pass sizes, or add a constraint that decides it, as in symbolic_shape(..., constraints=['a >= 2'])."


LEAST_LIMIT = 2**31 - 1
"""What gtrace compares sizes with to see whether a dtype holds them: that is taken to go on as it is."""

_HOLDING = {
    ("lt", True): "<", ("lt", False): ">=", ("le", True): "<=", ("le", False): ">",
    ("gt", True): ">", ("gt", False): "<=", ("ge", True): ">=", ("ge", False): "<",
}  # fmt: skip
"""By a comparison and its result, the one that holds."""


@attrs.frozen
class Assumption:
    """What a program takes to hold for a size that is not known.

    Attributes:
        what: ``"!= 0"`` or ``">= 0"``.
    """

    size: SymbolicSize
    what: str

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it holds for these values of the names."""
        n = self.size.evaluate(values)
        return n != 0 if self.what == "!= 0" else n >= 0

    def __str__(self) -> str:
        return f"{self.size} {self.what}"


class Known:
    """What was computed with the sizes, and what could not be decided.

    Attributes:
        undecided: the comparisons, and the sizes whose value was asked for.
        assumed: what was taken to hold, without being known.
    """

    def __init__(self) -> None:
        self.undecided: list[str] = []
        self.assumed: dict[Assumption, None] = {}

    def computed(self, name: str, operands: Sequence[KnownNumber]) -> KnownNumber:
        """Return the result of an operation of Python's `operator`."""
        function = getattr(operator, name)
        value = function(*[x.value for x in operands])
        try:
            found = function(*[x.size for x in operands])
        except InconclusiveDimensionOperation:
            found = None
        if isinstance(found, SymbolicSize):
            return KnownNumber(self, found, value)
        if found is not None and found == value:
            difference = operands[0].size - operands[1].size
            if name in ("eq", "ne") and isinstance(difference, SymbolicSize) and difference.may_be_zero():
                self.assumed[Assumption(difference, "!= 0")] = None
            return KnownNumber(self, value, value)
        if found is None and any(isinstance(x.size, int) and abs(x.size) >= LEAST_LIMIT for x in operands):
            sign, offset = INVERSE[_HOLDING[name, value]]
            self.assumed[Assumption(sign * (operands[0].size - operands[1].size) + offset, ">= 0")] = None
            return KnownNumber(self, value, value)
        return KnownNumber(self, None, value, f"{operands[0].size} {name} {operands[1].size}")


@attrs.frozen(eq=False)
class KnownNumber:
    """An integer, or the result of a comparison, in a trace for some sizes.

    Attributes:
        size: how it follows from the names; None: that depends on them.
        text: what is said of it in an error.
    """

    sizes: Known
    size: Any
    value: Any
    text: str = ""

    @property
    def name(self) -> str | None:
        """None for what is the same at all sizes."""
        same = self.size is not None and not isinstance(self.size, SymbolicSize)
        return None if same else self.text or str(self.size)

    def wrap_int(self, value: int) -> KnownNumber:
        """Return an integer beside it."""
        return KnownNumber(self.sizes, value, value)

    def looked_at(self) -> Any:
        """Return the value, which the code may decide by."""
        if self.name is not None:
            self.sizes.undecided.append(self.name)
        return self.value


def traced(
    trace: Callable[[Mapping[str, int]], R], values: Sequence[Mapping[str, int]], scope: Scope
) -> tuple[list[R], tuple[Assumption, ...]]:
    """Return what a function records for several values of the names, and what that takes to hold.

    Args:
        trace: calls the function with sizes for these values.

    Raises:
        ExportError: what its Python code does may depend on the sizes.
    """
    found, seen = [], []
    for each in values:
        with standing_for(each), noted() as reads:
            try:
                found.append(trace(each))
            except GtraceError:
                raise
            except Exception as error:
                got = f"{type(error).__name__}: {error}, for {each}"
                raise ExportError(message("symbolic sizes", "code that runs for all of them", got, _FIX)) from error
        seen.append(reads)
    _check_leaks(list(itertools.chain.from_iterable(reads.leaks for reads in seen)))
    rows = [[n for read in reads.log for n in read] for reads in seen]
    if len({tuple(map(len, reads.log)) for reads in seen}) > 1:
        raise _refused("other sizes at some of them")
    known = Known()
    numbers = iter(fitted(rows, values, scope))
    made: Any = [[KnownNumber(known, next(numbers), n) for n in read] for read in seen[0].log]
    with standing_for(values[0]), noted() as plain:
        trace(values[0])
    with standing_for(values[0]), noted(made) as again:
        trace(values[0])
    with standing_for(values[0]):
        trace(values[0])  # what the function keeps of sizes is plain again
    _check_leaks(again.leaks)
    if known.undecided:
        raise _refused(", ".join(dict.fromkeys(known.undecided)))
    if again.steps != plain.steps:
        raise _refused("it runs another way with sizes that are not plain")
    return found, tuple(known.assumed)


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``gt.eval_shape``, also for symbolic sizes. The function is traced for several sizes then.

    Raises:
        ExportError: a size of a result does not follow from those of the arguments in a simple way, or Python code of
            `fun` decides by a size.
        ConcretizationError: `fun` reads a value.

    >>> from gtrace.jax import export
    >>> x = gt.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
    >>> eval_shape(lambda x: gt.concatenate([x, x]).ravel(), x)
    ShapeDtypeStruct(shape=(6*b,), dtype=float32)
    """
    sizes = names_in((args, kwargs))
    if not sizes:
        return gt.eval_shape(fun, *args, **kwargs)
    values = examples(sizes)

    def trace(each: Mapping[str, int]) -> tuple[Any, Any]:
        own, named = sized((args, kwargs), each)
        return tree.flatten(gt.eval_shape(fun, *own, **named))

    found, _ = traced(trace, values, sizes[0].scope)
    same(found)
    rows = [[n for leaf in leaves for n in leaf.shape] for leaves, _ in found]
    shapes = iter(fitted(rows, values, sizes[0].scope))
    leaves, structure = found[0]
    out = [ShapeDtypeStruct(tuple([next(shapes) for _ in x.shape]), x.dtype, x.device) for x in leaves]
    return structure.unflatten(out)


def _check_leaks(leaks: Sequence[str]) -> None:
    if leaks:
        fix = "Read sizes by x.shape and x.size, without a debugger; or pass sizes."
        raise ExportError(message("symbolic sizes", "code whose reads of sizes are known", ", ".join(set(leaks)), fix))


def _refused(got: str) -> ExportError:
    return ExportError(message("symbolic sizes", "Python code that does the same for all of them", got, _FIX))
