"""Derivative rules of operations with their sizes left open; see `gtrace.core.trace.open_programs`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL, BoundedTable
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Scalar
from gtrace.core.ir.op import Instr, Params
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import capture
from gtrace.core.trace.open_programs import OpenProgram, resized, split, tried

AXES = frozenset({"axes", "axis"})
"""Attributes whose integers are never sizes."""

MAX_RULES = 4096
"""Programs of rules that are kept."""


@attrs.frozen(eq=False)
class OpenRule:
    """The operations that a rule records, for any sizes of one pattern.

    Attributes:
        program: these operations.
        fixed: whether that holds only for the numbers of the operation that it was found for.
    """

    program: OpenProgram
    fixed: bool


@attrs.frozen(eq=False)
class DerivedCall:
    """The rule of an operation that records one call of it; see `gtrace.core.ir.rules.Rules.derived`.

    Attributes:
        needed, given: which operands need a cotangent, and which results have one.
    """

    needed: tuple[bool, ...]
    given: tuple[bool, ...]

    def of(self, instr: Instr) -> Params | None:
        """Return the attributes of the call that the rule records for an instruction."""
        assert instr.op.rules.derived is not None
        named = dict(zip(instr.op.params, instr.params, strict=True))
        return instr.op.rules.derived(instr.ins, self.needed, self.given, **named)


def derived_call(instr: Instr, cts: Sequence[Any], needed: Sequence[bool]) -> DerivedCall | None:
    """Return the rule of an operation with several results; None if it is not `DerivedCall`."""
    if instr.op.rules.derived is None:
        return None
    made = DerivedCall(tuple(needed), tuple(ct is not None for ct in cts))
    return None if made.of(instr) is None else made


def sizes_of(instr: Instr) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
    """Return the sizes of an instruction, and their pattern; see `split`.

    None: there are sub-graphs, several results, or a rule of the user.
    """
    if instr.plain is not None or any(a.__class__ is not Aval for a in (*instr.ins, instr.aval)):
        return None
    if not all(map(_is_plain, instr.params)):
        return None
    return split([a.shape for a in (*instr.ins, instr.aval)], instr.params)


def _is_plain(value: Any) -> bool:
    if value.__class__ is tuple:
        return all(map(_is_plain, value))
    return value is None or value.__class__ in (str, bool, int, float)


_rules: BoundedTable[Any, OpenRule | None] = BoundedTable(
    MAX_RULES, lambda rule: SMALL if rule is None else SMALL + PER_OPERATION * len(rule.program.steps)
)
_missing: Any = object()

Rule = Callable[[Instr, Sequence[Any], Array, Array, Sequence[bool]], Sequence[Array | None]]
"""(instruction, operands, result, its cotangent, which operands need one) -> their cotangents."""


def open_rule(
    rule: Rule, instr: Instr, operands: Sequence[Any], out: Array, ct: Array, needed: Sequence[bool],
    steady: Collection[int],
) -> OpenRule | None:  # fmt: skip
    """Return the operations that a rule records at any size like those of an instruction; None if they differ.

    Args:
        steady: sizes that do not change; see `tried`.
    """
    known = sizes_of(instr)
    if known is None or ct.aval is not out.aval:
        return None
    sizes, pattern = known
    arrays = [*[x for x in operands if x.__class__ is Array], out, ct]
    scalars = tuple([x.key for x in operands if x.__class__ is Scalar])
    same = tuple([next(j for j, y in enumerate(arrays) if y is x) for x in arrays])
    steady = tuple([n for n in sizes if n in steady])
    key = instr.structure, pattern, tuple(needed), scalars, same, steady
    found = _rules.get(key, _missing)
    if found is _missing:
        found = _found(rule, instr, operands, same, needed, sizes, steady)
        _rules.remember(key, found)
    return found


def _found(
    rule: Rule, instr: Instr, operands: Sequence[Any], same: Sequence[int], needed: Sequence[bool],
    sizes: tuple[int, ...], steady: Collection[int],
) -> OpenRule | None:  # fmt: skip
    numbers = [x.value for x in operands if x.__class__ is Scalar]
    record = recorder(rule, instr, operands, same, needed)
    program = tried(record, sizes, numbers, steady)
    if program is not None:
        return OpenRule(program, bool(numbers) and any(x.__class__ is not float for x in numbers))
    if not numbers:
        return None
    program = tried(lambda others, _: record(others, numbers), sizes, (), steady)
    return None if program is None else OpenRule(program, True)


def recorder(
    rule: Rule, instr: Instr, operands: Sequence[Any], same: Sequence[int], needed: Sequence[bool]
) -> Callable[[Mapping[int, int], Sequence[Any]], tuple[Graph, Any] | None]:
    """Return what runs the rule of an instruction for other sizes and numbers; see `Record`.

    Args:
        same: for each array that the rule takes, the first one that is the same.
    """

    def record(others: Mapping[int, int], numbers: Sequence[Any]) -> tuple[Graph, Any] | None:
        params = [
            value if name in AXES else resized(value, others)
            for name, value in zip(instr.op.params, instr.params, strict=True)
        ]
        other = instr.op.instr(tuple(params), tuple([resized(a, others) for a in instr.ins]))
        if other.aval is not resized(instr.aval, others):
            return None
        kinds = [a for a, x in zip(other.ins, operands, strict=True) if x.__class__ is Array]

        def run(placeholders: Sequence[Array]) -> tuple[list[Array], list[bool]]:
            arrays = [placeholders[k] for k in same]
            given: Iterator[Array] = iter(arrays)
            own = iter(numbers)
            values = [Scalar(next(own), x.aval) if x.__class__ is Scalar else next(given) for x in operands]
            found = rule(other, values, arrays[-2], arrays[-1], needed)
            return [g for g in found if g is not None], [g is not None for g in found]

        captured = capture(run, [*kinds, other.aval, other.aval], "a derivative")
        return None if captured.constants else (captured.graph, captured.result)

    return record
