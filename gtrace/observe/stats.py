"""``gt.stats()``: the costs and savings of each program so far, with a verdict in plain English."""

from __future__ import annotations

import importlib
from typing import Any

import attrs

from gtrace.core.base.config import config
from gtrace.core.base.units import duration_text
from gtrace.core.runtime import policy as policies
from gtrace.core.runtime.engine import Engine, engine
from gtrace.core.runtime.program import Program
from gtrace.observe.program_stats import ProgramStats, Totals

__all__ = ["stats"]


class Stats(list[ProgramStats]):
    """A list of `ProgramStats`, most expensive first, with their `totals`. It prints as a table, also in notebooks."""

    def __init__(
        self,
        programs: list[ProgramStats],
        compiles: int,
        loaded: int = 0,
        as_recorded: int = 0,
        by_open_code: int = 0,
        comparisons: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        super().__init__(programs)
        self._compiles = compiles
        self._loaded = loaded
        self._as_recorded = as_recorded
        self._by_open_code = by_open_code
        self._comparisons = comparisons

    def __str__(self) -> str:
        # only those who print a table import rich
        text: str = importlib.import_module("gtrace.observe.table").as_text(self, self.totals)
        return text

    def __repr__(self) -> str:
        return f"<Stats of {len(self)} program{'s' * (len(self) != 1)}; print it for the table>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        text: str = importlib.import_module("gtrace.observe.table").as_html(self, self.totals)
        return text

    @property
    def totals(self) -> Totals:
        """The sums over the programs of this list."""
        compared, disagreed, not_compared = self._comparisons
        return Totals(
            programs=len(self),
            calls=sum(p.calls for p in self),
            compiles=self._compiles,
            loaded=self._loaded,
            as_recorded=self._as_recorded,
            by_open_code=self._by_open_code,
            compared=compared,
            disagreed=disagreed,
            not_compared=not_compared,
            interpreted_seconds=sum(p.interpreted_seconds for p in self),
            compiled_seconds=sum(p.compiled_seconds for p in self),
            compile_seconds=sum(p.compile_seconds for p in self),
            saved_seconds=sum(p.saved_seconds or 0.0 for p in self),
        )


def stats() -> Stats:
    """Return the ledger of every program in this process, sorted by the time spent on each.

    >>> with gt.config(auto_compile=False):
    ...     total = float((gt.ones(3) * 2).sum())
    >>> any("sum" in program.ops and program.interpreted_calls for program in gt.stats())
    True
    """
    return collect(engine)


def collect(source: Engine) -> Stats:
    """Return the ledger of one engine; see `stats`."""
    programs = [snapshot(program, source) for program in list(source.programs.values())]
    programs.sort(key=lambda program: -program.total_seconds)
    counts = attrs.astuple(source.comparisons.counts)
    by_code = source.sizes.by_code
    as_recorded = source.sizes.calls - by_code
    return Stats(programs, source.tiering.compiles, source.tiering.loaded, as_recorded, by_code, counts)


def snapshot(program: Program, source: Engine) -> ProgramStats:
    """Return the current ledger of one program, with the verdict under the current settings."""
    settings = config.current
    policy = policies.Policy(settings.auto_compile, settings.compile, settings.hot_threshold, settings.min_seq)
    ledger = ProgramStats(
        signature=program.signature.exact,
        structural=program.signature.structural,
        ops=tuple(node.op.name for node in program.graph.nodes),
        tier=program.tier,
        **program.ledger.figures(),
        expected_compile_seconds=source.tiering.expected(program, settings),
        compiling=program.forms.is_requested,
        origin=program.forms.origin,
        library_share=program.ledger.library_share,
        break_even_calls=program.ledger.break_even_calls,
        saved_seconds=program.ledger.saved_seconds,
        reason=program.forms.reason,
        open_sizes=program.open_sizes,
    )
    return attrs.evolve(ledger, verdict=verdict(ledger, policy))


def verdict(program: ProgramStats, policy: policies.Policy) -> str:
    """Return in plain English whether compiling `program` pays under the settings in `policy`."""
    if program.tier in ("failed", "demoted"):
        return f"{program.tier}: {program.reason}"
    if program.reason:
        return f"stays interpreted: {program.reason}"
    if not program.calls:
        return "never run"
    if program.compiling:
        return "compiling in the background"
    if program.tier == "interpreted":
        return _cold(program, policy)
    return _compiled(program)


def _cold(program: ProgramStats, policy: policies.Policy) -> str:
    if len(program.ops) < policy.min_seq:
        return "too short to compile"
    if policy.compile:
        return "not compiled yet: it last ran before GT_COMPILE was set"
    if not policy.auto_compile:
        return "not compiled: automatic compilation is off"
    if policy.hot_threshold is not None:
        return f"cold: {program.interpreted_calls} of {policy.hot_threshold} repetitions"
    products = f", {100 * program.library_share:.0f}% of it in products" if program.library_share else ""
    return (
        f"cold: {duration_text(program.interpreted_seconds)} spent interpreting{products},"
        f" compiling would cost about {duration_text(program.expected_compile_seconds)}"
    )


def _compiled(program: ProgramStats) -> str:
    if program.saved_seconds is None and program.origin == "cache":
        return "compiled by an earlier run"
    if program.saved_seconds is None:
        return "compiled before it ever ran: nothing to compare with"
    if not program.compiled_calls:
        return "compiled, not run since"
    if program.break_even_calls is None:
        return "compiled, but no faster so far"
    net = program.saved_seconds - program.compile_seconds
    if net >= 0:
        return f"paid back: saved {duration_text(net)} net"
    more = program.break_even_calls - program.compiled_calls
    return f"not paid back yet: about {more} more call{'s' if more != 1 else ''}"
