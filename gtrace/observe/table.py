"""``gt.stats()`` as a table: by rich in a terminal, or as HTML. rich is imported at the first print."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gtrace.core.base.units import duration_text, printable
from gtrace.core.ir.signature import short
from gtrace.observe import html
from gtrace.observe.program_stats import ProgramStats, Totals

MAX_ROWS = 20
"""The number of shown programs; a line below the table counts the others."""

COLUMNS = ("signature", "ops", "calls", "tier", "interpreted", "compiled", "compiling", "saved", "verdict")
NUMBERS = ("ops", "calls", "interpreted", "compiled", "compiling", "saved")
"""The right-aligned columns."""

GIVE_WAY = ("compiling", "interpreted", "ops", "compiled", "saved", "signature", "verdict")
"""The columns that are dropped in turn if there is little room."""

TIERS = {"compiled": "green", "failed": "red", "demoted": "yellow", "compiling": "cyan"}
"""The colours of tiers."""


class _Console(Console):
    """A console that reports a closed pipe to its caller, instead of ending the program."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class FittingTable:
    """A table that drops columns if there is little room. The last column gets the remaining width.

    Args:
        columns: their names.
        rows: texts; those of the last column define their own overflow.
        numbers: the right-aligned columns.
        give_way: the columns to drop in turn; empty ones go first.
        least: the minimal width of the last column.
        options: options of rich's table.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], numbers: Sequence[str],
        give_way: Sequence[str], least: int, **options: Any,
    ) -> None:  # fmt: skip
        self._rows = [dict(zip(columns, row, strict=True)) for row in rows]
        self._columns, self._numbers, self._least, self._options = columns, numbers, least, options
        self._give_way = sorted(give_way, key=lambda name: any(row[name] for row in self._rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        endless = options.update(width=10_000)
        for count in range(len(self._give_way) + 1):
            names = [name for name in self._columns if name not in self._give_way[:count]]
            fixed = self._table([name for name in names if name != self._columns[-1]])
            needed = Measurement.get(console, endless, fixed).maximum + self._least * (self._columns[-1] in names)
            if needed <= options.max_width:
                break
        yield self._table(names)

    def _table(self, names: Sequence[str]) -> Table:
        table = Table(**self._options)
        for name in names:
            justify: Any = "right" if name in self._numbers else "left"
            table.add_column(name, justify=justify, no_wrap=name != self._columns[-1], overflow="fold")
        for row in self._rows:
            table.add_row(*(row[name] for name in names))
        return table


def render(stats: Sequence[ProgramStats]) -> FittingTable:
    """Return the table of `stats`: a row for each program that ran or was compiled, up to `MAX_ROWS`."""
    rows = []
    for program in _shown(stats)[:MAX_ROWS]:
        *plain, verdict = _cells(program)
        # text, not markup: a compiler's message may contain square brackets
        plain[COLUMNS.index("tier")] = Text(program.tier, style=TIERS.get(program.tier, ""))
        rows.append((*plain, Text(printable(verdict), overflow="fold")))
    return FittingTable(COLUMNS, rows, NUMBERS, GIVE_WAY, 14)


def _cells(program: ProgramStats) -> list[Any]:
    return [
        short(program.signature),
        str(len(program.ops)),
        str(program.calls),
        program.tier,
        duration_text(program.interpreted_seconds) if program.interpreted_calls else "",
        duration_text(program.compiled_seconds) if program.compiled_calls else "",
        duration_text(program.compile_seconds) if program.compile_seconds else "",
        "" if program.saved_seconds is None or not program.compiled_calls else duration_text(program.saved_seconds),
        program.verdict,
    ]


def as_text(stats: Sequence[ProgramStats], totals: Totals) -> str:
    """Return the table as plain text, as wide as the terminal if there is one."""
    file = io.StringIO()
    terminal = sys.stdout is not None and sys.stdout.isatty()
    _write(stats, totals, Console(file=file, width=shutil.get_terminal_size().columns if terminal else 200))
    return file.getvalue().rstrip("\n")


def as_html(stats: Sequence[ProgramStats], totals: Totals) -> str:
    """Return the table as a notebook shows it."""
    rows = []
    for program in _shown(stats)[:MAX_ROWS]:
        cells = _cells(program)
        cells[0] = html.tag("code", cells[0])
        cells[COLUMNS.index("tier")] = html.tag("span", program.tier, class_=program.tier)
        rows.append(cells)
    if not rows:
        return html.fragment("gtrace: no program ran")
    return html.fragment(html.table(COLUMNS, rows, NUMBERS), html.tag("div", _summary(stats, totals)))


def write(stats: Sequence[ProgramStats], totals: Totals, file: TextIO) -> None:
    """Write the table to `file`: in colour on a terminal, else as plain text of any width."""
    terminal = file.isatty()
    plain = {} if terminal else {"color_system": None, "width": 200}
    _write(stats, totals, _Console(file=file, force_terminal=terminal, **plain))  # type: ignore[arg-type]


def _write(stats: Sequence[ProgramStats], totals: Totals, console: Console) -> None:
    if _shown(stats):
        console.print(render(stats))
        console.print(_summary(stats, totals), highlight=False)
    else:
        console.print("gtrace: no program ran")


def _shown(stats: Sequence[ProgramStats]) -> list[ProgramStats]:
    return [program for program in stats if program.calls or program.compile_seconds]


def _summary(stats: Sequence[ProgramStats], totals: Totals) -> str:
    shown = len(_shown(stats))
    parts = [
        _count(shown, "program") + (f" ({shown - MAX_ROWS} not shown)" if shown > MAX_ROWS else ""),
        _count(totals.calls, "call"),
        _count(totals.compiles, "compile"),
    ]
    if totals.loaded:
        parts.insert(2, f"{totals.loaded} found compiled")
    besides = totals.as_recorded + totals.by_open_code
    if besides:
        parts.insert(
            2, f"{_count(besides, 'call')} of new sizes besides, {totals.by_open_code} of them by compiled code"
        )
    if totals.compile_seconds:
        parts[-1] += f" in {duration_text(totals.compile_seconds)}"
        parts.append(f"{duration_text(totals.saved_seconds)} saved by compiled calls")
    return ", ".join(parts)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
