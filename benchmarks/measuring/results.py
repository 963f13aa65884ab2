"""Results of a benchmark: figures, their table, and their file."""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import attrs
from rich import box
from rich.console import Console
from rich.table import Table

from gtrace.core.base.units import bytes_text
from measuring.machine import Load, Watch, commit, describe, versions

FORMAT = 1
"""Of the file; a file of another format is refused."""

OURS = ("gt.jit", "gtrace")
"""How the names of gtrace's own sides begin."""


class BenchmarkError(Exception):
    """A benchmark that must not be reported, or a file that is none."""


def _numbers(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(values)


@attrs.frozen
class Figure:
    """The measurements of one side in one workload.

    Attributes:
        workload: what was done.
        side: who did it, such as "gt.jit" or "torch eager".
        samples: one number for each round.
        unit: of the samples: "s", "bytes" or "count".
        details: further numbers, such as the seconds of the first call; their names end with their unit.
    """

    workload: str
    side: str
    samples: tuple[float, ...] = attrs.field(converter=_numbers)
    unit: str = "s"
    details: dict[str, float] = attrs.field(factory=dict)

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.samples)

    @property
    def noise(self) -> float:
        """Half of the distance between the quartiles, as a part of the median; 0 for a single round."""
        if len(self.samples) < 2 or not self.median:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / 2 / abs(self.median)

    @property
    def ours(self) -> bool:
        """Whether this is a side of gtrace."""
        return self.side.startswith(OURS)


@attrs.frozen
class Run:
    """One run of a program.

    Attributes:
        program: the name of its file in benchmarks/, such as "dispatch".
        settings: what it was told to do.
        figures: what it found.
        left_out: peers that are not installed.
        load: of the machine.
        date, commit: when it was measured, and of which code.
    """

    program: str
    settings: dict[str, Any]
    figures: Sequence[Figure]
    left_out: Sequence[str]
    load: Load
    machine: dict[str, Any] = attrs.field(factory=describe)
    versions: dict[str, str] = attrs.field(factory=versions)
    date: str = "unknown"
    commit: str = "unknown"


def save(runs: Sequence[Run], path: str | Path) -> None:
    """Write runs to a file."""
    data = {"format": FORMAT, "runs": [attrs.asdict(run) | {"busy": run.load.busy} for run in runs]}
    Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def load(path: str | Path) -> list[Run]:
    """Read the runs of a file.

    Raises:
        BenchmarkError: it cannot be read, or was not written by `save`.
    """
    expected = "expected a file that `gtrace bench --json FILE` wrote"
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchmarkError(f"{expected}, got {str(path)!r}: {error.strerror}.") from None
    except ValueError as error:
        raise BenchmarkError(f"{expected}, got {str(path)!r}, which is no JSON: {error}.") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BenchmarkError(f"{expected}, of format {FORMAT}; {str(path)!r} is something else. Measure again.")
    try:
        return [
            Run(**{k: v for k, v in run.items() if k not in ("busy", "figures", "load")}, load=Load(**run["load"]),
                figures=[_figure(figure) for figure in run["figures"]])
            for run in data["runs"]
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise BenchmarkError(f"{expected}, got {str(path)!r}, which was changed or cut off: {what}.") from None


def _figure(entry: dict[str, Any]) -> Figure:
    figure = Figure(**entry)
    if not figure.samples or not all(isinstance(value, (int, float)) and value == value for value in figure.samples):
        raise ValueError(f"the samples of {figure.workload!r} are {list(figure.samples)}")
    return figure


def added(runs: Sequence[Run], new: Run) -> list[Run]:
    """Return the runs of a file with one more; it replaces earlier runs of the same measurement."""
    measured = {figure.workload for figure in new.figures}
    found: list[Run] = []
    for run in runs:
        if run.program == new.program:
            run = attrs.evolve(run, figures=[figure for figure in run.figures if figure.workload not in measured])
        if run.figures:
            found.append(run)
    place = max([k + 1 for k, run in enumerate(found) if run.program == new.program], default=len(found))
    return [*found[:place], new, *found[place:]]


# -- tables


def console(file: TextIO | None = None) -> Console:
    """Return where tables are printed: in colour on a terminal, else as wide as they need to be."""
    stream = file or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 240, highlight=False, soft_wrap=False)


def table(columns: Iterable[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """Return a table; where it does not go to a terminal, it is Markdown."""
    made = Table(title=title, title_justify="left", box=box.ROUNDED if sys.stdout.isatty() else box.MARKDOWN)
    for k, name in enumerate(columns):
        made.add_column(name, justify="left" if k == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def quantity(value: float, unit: str = "s") -> str:
    """Return a number with the unit that suits its size."""
    if unit == "s":
        for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
            if abs(value) >= scale:
                return f"{value / scale:.2f} {name}"
        return f"{value * 1e9:.0f} ns"
    if unit == "bytes":
        return bytes_text(value)
    return f"{value:,.2f}" if value % 1 else f"{value:,.0f}"


def show(run: Run, file: TextIO | None = None) -> None:
    """Print a run: a row for each figure, and the ratio of gtrace's sides to each peer's."""
    workloads: dict[str, list[Figure]] = {}
    for figure in run.figures:
        workloads.setdefault(figure.workload, []).append(figure)
    extras = list(dict.fromkeys(name for figure in run.figures for name in figure.details))
    sides = list(dict.fromkeys(figure.side for figure in run.figures if figure.ours))
    compared = any(not figure.ours for figure in run.figures)
    rows = []
    for workload, figures in workloads.items():
        own = {figure.side: figure.median for figure in figures if figure.ours}
        for k, figure in enumerate(figures):
            ratios = [
                f"{own[side] / figure.median:.2f}" if not figure.ours and side in own and figure.median else ""
                for side in sides
            ]
            details = [
                quantity(figure.details[name], unit_of(name)) if name in figure.details else "" for name in extras
            ]
            value = quantity(figure.median, figure.unit)
            noise = f"{figure.noise:.0%}" if len(figure.samples) > 1 else ""
            rows.append(["" if k else workload, figure.side, value, noise, *(ratios if compared else []), *details])
    heads = [f"{side} / this" for side in sides] if compared else []
    out = console(file)
    out.print(table(["workload", "side", "median", "noise", *heads, *(name.rpartition(", ")[0] for name in extras)],
                    rows))  # fmt: skip
    notes(run, file)


def unit_of(name: str) -> str:
    """Return the unit at the end of a detail's name: "first call, s" is in seconds."""
    return name.rpartition(", ")[2]


def notes(run: Run, file: TextIO | None = None) -> None:
    """Print what was left out, the machine, and how busy it was."""
    out = console(file)
    for line in run.left_out:
        out.print(line, markup=False)
    out.print(", ".join(f"{key} {value}" for key, value in {**run.machine, **run.versions}.items()), markup=False)
    out.print(str(run.load), markup=False)
    if run.load.busy:
        out.print("[bold red]BUSY MACHINE[/]: other programs ran beside this one; take none of these figures for real.")


# -- programs


def parser(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a program's parser, with the options that all have."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it works")
    made.add_argument("--rounds", type=int, help=f"rounds of each measurement (default: {rounds})")
    made.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    made.add_argument("--add", action="store_true", help="to what the file has, in place of what is measured again")
    made.set_defaults(usual_rounds=rounds)
    return made


def add_parts(made: argparse.ArgumentParser, parts: Iterable[str]) -> None:
    """Add the option of a program that consists of parts."""
    made.add_argument("--part", choices=list(parts), nargs="+", action="extend", help="only these")


def measure_parts(
    options: argparse.Namespace, parts: Mapping[str, Callable[..., list[Figure]]], *arguments: Any
) -> list[Figure]:
    """Return the figures of the parts that were asked for, or of all; each part takes the arguments."""
    return [figure for part in options.part or parts for figure in parts[part](*arguments)]


def rounds(options: argparse.Namespace) -> int:
    """Return how many rounds were asked for."""
    return options.rounds or (2 if options.quick else options.usual_rounds)


def report(
    program: str,
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], tuple[Sequence[Figure], Sequence[str]]],
    show: Callable[[Run], None] = show,
) -> Run:
    """Run a program: watch the machine, measure, print and write the file.

    Args:
        measure: returns the figures and the lines about peers that are left out.
        show: prints the run.

    Raises:
        SystemExit: a result was wrong, or a workload empty; nothing is reported.
    """
    watch = Watch(options.quick)
    try:
        # before it measures: a file that is none must not cost an hour
        known = load(options.json) if options.json and options.add and Path(options.json).exists() else []
        figures, left_out = measure(options)
    except BenchmarkError as error:
        raise SystemExit(f"benchmark {program}: {error}") from error
    hidden = {"json", "add", "usual_rounds", "child"}
    settings: Mapping[str, Any] = {k: v for k, v in vars(options).items() if k not in hidden}
    today = datetime.date.today().isoformat()
    run = Run(program, dict(settings), figures, left_out, watch.load(), watch.machine, date=today, commit=commit())
    show(run)
    if options.json:
        save(added(known, run), options.json)
    return run
