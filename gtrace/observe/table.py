"""The table that ends ``gtrace run``: ``gt.stats()`` through rich, which only the command line imports."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gtrace.ir.signature import short
from gtrace.observe.stats import ProgramStats, Stats, duration

MAX_ROWS = 20
"""Programs shown; the line below the table counts the others."""

_TIERS = {"compiled": "green", "failed": "red", "demoted": "yellow"}


def render(stats: Stats) -> Table:
    """Return the table of `stats`: a row for each program that ran or was compiled, up to `MAX_ROWS`."""
    table = Table()
    table.add_column("signature", no_wrap=True)
    for name in ("ops", "calls"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("tier", no_wrap=True)
    for name in ("interpreted", "compiled", "compiling", "saved"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for program in _shown(stats)[:MAX_ROWS]:
        saved = "" if program.saved_seconds is None or not program.compiled_calls else duration(program.saved_seconds)
        # text, not markup: a compiler's message may hold square brackets
        table.add_row(
            short(program.signature),
            str(len(program.ops)),
            str(program.calls),
            Text(program.tier, style=_TIERS.get(program.tier, "")),
            duration(program.interpreted_seconds) if program.interpreted_calls else "",
            duration(program.compiled_seconds) if program.compiled_calls else "",
            duration(program.compile_seconds) if program.compile_seconds else "",
            saved,
            Text(program.verdict, overflow="fold"),
        )
    return table


def write(stats: Stats, file: TextIO) -> None:
    """Write the table to `file`: in colour on a terminal, else as plain text of whatever width it needs."""
    terminal = file.isatty()
    console = Console(
        file=file, force_terminal=terminal, color_system="auto" if terminal else None, width=None if terminal else 200
    )
    if _shown(stats):
        console.print(render(stats))
        console.print(_summary(stats), highlight=False)
    else:
        console.print("gtrace: no program ran")


def _shown(stats: Stats) -> list[ProgramStats]:
    return [program for program in stats if program.calls or program.compile_seconds]


def _summary(stats: Stats) -> str:
    totals, shown = stats.totals, len(_shown(stats))
    parts = [
        _count(shown, "program") + (f" ({shown - MAX_ROWS} not shown)" if shown > MAX_ROWS else ""),
        _count(totals.calls, "call"),
        _count(totals.compiles, "compile"),
    ]
    if totals.loaded:
        parts.insert(2, f"{totals.loaded} found compiled")
    if totals.compile_seconds:
        parts[-1] += f" in {duration(totals.compile_seconds)}"
        parts.append(f"{duration(totals.saved_seconds)} saved by compiled calls")
    return ", ".join(parts)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
