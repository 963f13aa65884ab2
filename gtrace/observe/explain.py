"""``gt.explain``: a program's ledger, the most similar program, and the fields in which the two differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.base.units import duration_text
from gtrace.core.ir.difference import differences
from gtrace.core.ir.signature import matching, short
from gtrace.core.runtime.engine import Engine, engine
from gtrace.core.runtime.program import Program
from gtrace.core.transform.jit import Jitted
from gtrace.observe import explanation_page
from gtrace.observe.explanation_page import ExplainedProgram
from gtrace.observe.profile import Profile
from gtrace.observe.program_stats import ProgramStats
from gtrace.observe.stats import snapshot

__all__ = ["explain"]

MAX_DIFFERENCES = 8
"""The number of listed fields."""


@attrs.frozen
class Explanation:
    """The explanation of a program. Printing it gives the text.

    Attributes:
        program: its ledger, as in `gt.stats`.
        nearest: the ledger of the program that differs in the fewest fields; None if there is no other.
        differences: these fields, from the nearest program to this one.
        text: the printed program.
        programs: the programs that run, with their graphs: one, or all those of a jitted function.
        code: the compiler of a short program, and the faster form of each loop that was timed in both.
        compared: how often it was compared with the recorded program, in which call last, and what was found; empty: it
            was not yet.
    """

    program: ProgramStats
    nearest: ProgramStats | None
    differences: tuple[str, ...]
    text: str
    programs: tuple[ExplainedProgram, ...] = ()
    code: tuple[str, ...] = ()
    compared: str = ""

    def __str__(self) -> str:
        p = self.program
        lines = [f"program {short(p.signature)}: {len(p.ops)} operations, {p.tier}, {_calls(p)}"]
        if p.interpreted_calls:
            lines.append(f"  interpreted: {duration_text(p.interpreted_seconds / p.interpreted_calls)} a call")
        if p.compiled_calls:
            lines.append(f"  compiled: {duration_text(p.compiled_seconds / p.compiled_calls)} a call")
        if p.open_sizes:
            lines.append(f"  its compiled program takes any {', any '.join(p.open_sizes)}")
        if p.compile_seconds:
            even = "never" if p.break_even_calls is None else f"after {p.break_even_calls} calls"
            # without interpreted calls there is nothing to say, as the verdict states
            pays = f"; it pays {even}" if p.interpreted_calls and p.compiled_calls else ""
            lines.append(f"  compiling took {duration_text(p.compile_seconds)}{pays}")
        lines.append(f"  {p.verdict}")
        lines += [f"  {text}" for text in (*self.code, self.compared) if text]
        if self.nearest is None:
            lines.append("no other program is known")
        else:
            lines.append(f"nearest: {short(self.nearest.signature)}, {self.nearest.tier}, {_calls(self.nearest)}")
            lines += [f"  {text}" for text in self.differences[:MAX_DIFFERENCES]]
            if len(self.differences) > MAX_DIFFERENCES:
                lines.append(f"  and {len(self.differences) - MAX_DIFFERENCES} more")
        return "\n".join(lines)

    def to_html(self, profile: Profile | None = None) -> str:
        """Return a page of the programs: their graphs by regions, tiers, times, and the line of each operation.

        It is self-contained and needs no network.

        Args:
            profile: a result of `gt.profile`, whose times are shown for operations and regions.
        """
        title = f"gtrace program {short(self.program.signature)}"
        return explanation_page.page_of(title, str(self), self.programs, profile)

    def _repr_html_(self) -> str:
        return explanation_page.fragment_of(str(self), self.programs)


def _calls(program: ProgramStats) -> str:
    return f"{program.calls} call{'s' * (program.calls != 1)}"


def explain(what: str | Callable[..., Any]) -> Explanation:
    """Return the explanation of a program, with its differences from the most similar one.

    Args:
        what: a signature from `gt.stats` or the logs, or enough of its first digits to be unique. Or a jitted function,
            whose latest program is explained.

    Raises:
        ArgumentError: no program, or more than one, matches.

    >>> with gt.config(auto_compile=False):
    ...     for n in (64, 128):
    ...         total = float((gt.ones(n).block_until_ready() * 7).sum())
    >>> newest = [p for p in gt.stats() if p.ops == ("mul", "sum")][-1]
    >>> len(gt.explain(newest.signature).differences) > 0
    True
    """
    return explain_in(engine, what)


def explain_in(source: Engine, what: str | Callable[..., Any]) -> Explanation:
    """Return the explanation of a program of one engine; see `explain`."""
    programs = list(source.programs.values())
    if isinstance(what, Jitted):
        made = what.programs()
        if not made:
            fix = "Call it first; one that only returns its arguments never has a program."
            got = f"{what.__name__}, which has not"
            raise ArgumentError(message("explain", "a jitted function that has run a program", got, fix))
        program, shown = made[-1], made
    elif isinstance(what, str) and what:
        found = matching(what, (p.signature.exact for p in programs))
        if not found:
            raise ArgumentError(message("explain", "a known signature", repr(what), "gt.stats() lists them."))
        if len(found) > 1:
            got = f"{what!r}, with which {len(found)} of them begin"
            raise ArgumentError(message("explain", "the beginning of one signature", got, "Give more of its digits."))
        program = max((p for p in programs if p.signature.exact == found[0]), key=lambda p: p.ledger.calls)
        shown = [program]
    else:
        fix = "Undecorated functions have no program of their own: pass a signature of gt.stats()."
        got = getattr(what, "__name__", type(what).__name__)
        raise ArgumentError(message("explain", "a signature or a jitted function", got, fix))
    others = [p for p in programs if p is not program]
    nearest, fields = _nearest(program, others)
    return Explanation(
        snapshot(program, source),
        None if nearest is None else snapshot(nearest, source),
        fields,
        str(program.graph),
        tuple(_part(p, source) for p in shown),
        _code(program),
        _compared(program),
    )


def _part(program: Program, source: Engine) -> ExplainedProgram:
    regions = program.schedule.calls if program.tier == "compiled" and program.forms.symbolic is None else ()
    return ExplainedProgram(snapshot(program, source), program.graph, regions)


def _compared(program: Program) -> str:
    ledger = program.ledger
    if not ledger.found:
        return ""
    times = "once" if ledger.comparisons == 1 else f"{ledger.comparisons} times, last"
    return f"compared with the recorded program {times}, in call {ledger.found_at}: {ledger.found}"


def _code(program: Program) -> tuple[str, ...]:
    """Return what compiled a short program."""
    if program.tier != "compiled" or program.forms.symbolic is not None or not program.short:
        return ()
    count = len(program.schedule.requests)
    what = "one native function" if count == 1 else f"{count} native functions"
    return (f"short: it is {what}, which the C++ compiler alone compiled (GT_NATIVE)",)


def _nearest(program: Program, others: list[Program]) -> tuple[Program | None, tuple[str, ...]]:
    """Return the program that differs in the fewest fields, with more calls if equal, and these fields."""
    best: tuple[tuple[int, int], Program, tuple[str, ...]] | None = None
    family = [p for p in others if p.signature.structural == program.signature.structural]
    for other in family or others:
        fields = tuple(differences(other.graph, program.graph, other.key.strides, program.key.strides))
        if not fields:
            fields = tuple(
                f"{name} was {getattr(other.key, name)!r}, now {getattr(program.key, name)!r}"
                for name in ("backend", "mode")
                if getattr(other.key, name) != getattr(program.key, name)
            )
        score = len(fields), -other.ledger.calls
        if best is None or score < best[0]:
            best = score, other, fields
    return (None, ()) if best is None else (best[1], best[2])
