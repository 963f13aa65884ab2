"""Timelines: instruction logs parsed into spans and lanes, for pictures, pages and Chrome traces.

There are three kinds of lanes. Threads record and canonicalize, the worker compiles, and shards run programs. Logs of
``gtrace trace`` have durations, threads and lines. Logs of `GT_INSTRUCTION_LOG` have only milliseconds, so a run begins
at the line before it.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.base.plain_files import read_plain
from gtrace.core.base.units import printable
from gtrace.core.ir.op import REGISTRY

LINE = re.compile(
    r" *(?P<at>\d{1,15}\.\d+)s \| #(?P<number>\d{1,20}) \| (?P<event>\S+) *\| (?P<component>\S+(?: \d+)?) *"
    r"\| (?P<command>\S+) *\| (?P<details>.*)"
)
_DETAILS = re.compile(
    r"(?P<head>.*?)(?: took=(?P<took>\d{1,15}\.\d+)s)?(?: thread=(?P<thread>\d{1,20}))?(?: at (?P<line>.+:\d+))?"
)
_FIELD = re.compile(r"(\w+)=(\S+)")
_START = {"pid": r"\d{1,20}", "rank": r"\d{1,20}", "wall": r"\d{1,15}(\.\d+)?", "run": r"\S+"}
"""The mark and the pattern of the first line of a `gtrace trace` log."""

GAP = 2e-3
"""Seconds without a recorded operation that end a span of recording."""

LEAST = 1e-6
"""The minimal length of a span: the resolution of the logs."""

SPANS = ("record", "canonicalize", "run interpreted", "run compiled", "compile", "load", "collective")
"""The kinds of spans."""

OPERATIONS = ("product", "elementwise", "loop", "collective", "other")
"""The kinds of operations."""


def kind_of(operation: str) -> str:
    """Return the kind of an operation, by its name.

    >>> [kind_of(name) for name in ("matmul", "exp", "scan", "reshape")]
    ['product', 'elementwise', 'loop', 'other']
    """
    op = REGISTRY.get(operation)
    if op is None:
        return "other"
    if op.contraction:
        return "product"
    if op.elementwise:
        return "elementwise"
    if op.collective:
        return "collective"
    return "other" if op.rules.body is None else "loop"


@attrs.frozen
class Operation:
    """A recorded operation.

    Attributes:
        at: seconds since the start of the run.
    """

    name: str
    at: float
    line: str

    @property
    def kind(self) -> str:
        """One of `OPERATIONS`."""
        return kind_of(self.name)


@attrs.define(eq=False)
class Span:
    """An event with a duration.

    Attributes:
        kind: one of `SPANS`.
        start, end: seconds since the start of the run.
        line: the user's line; empty if unknown.
        sequence: the first digits of the program's signature; empty if there is no program.
        details: other information, as text.
        operations: for a recording, the recorded operations.
        swap: for a compile or load, the first run of its program; None if there was none.
    """

    kind: str
    start: float
    end: float
    line: str = ""
    sequence: str = ""
    details: str = ""
    operations: list[Operation] = attrs.field(factory=list)
    swap: Span | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def name(self) -> str:
        """Its name in a picture."""
        return f"{self.kind} {self.sequence}".strip()


@attrs.define(eq=False)
class Lane:
    """The spans of one thread, worker or shard. They are disjoint or nested.

    Attributes:
        process: the index of the process in the run.
        name: its name.
    """

    process: int
    name: str
    spans: list[Span] = attrs.field(factory=list)


@attrs.define(eq=False)
class Process:
    """A process of a run.

    Attributes:
        pid: its process id; 0 if unknown.
        rank: its rank among the processes that share the work.
    """

    pid: int
    rank: int
    name: str


@attrs.define(eq=False)
class Timeline:
    """A run.

    Attributes:
        name: the name of the run.
        processes: its processes.
        lanes: its lanes in display order.
    """

    name: str
    processes: list[Process]
    lanes: list[Lane]

    def title(self, lane: Lane) -> str:
        """Return the name of a lane among those of other processes."""
        if len(self.processes) == 1:
            return lane.name
        process = self.processes[lane.process]
        if len({other.rank for other in self.processes}) == 1:
            return f"{process.pid} {lane.name}"
        return lane.name if lane.name.startswith("shard") else f"rank {process.rank} {lane.name}"

    @property
    def spans(self) -> list[Span]:
        """The spans of all lanes."""
        return [span for lane in self.lanes for span in lane.spans]

    @property
    def end(self) -> float:
        """Seconds from the start of the run to the end of its last span."""
        return max((span.end for span in self.spans), default=0.0)


@attrs.frozen
class Row:
    """One parsed line of a log."""

    at: float
    number: int
    event: str
    component: str
    command: str
    head: str
    took: float | None
    thread: int
    line: str

    @property
    def fields(self) -> dict[str, str]:
        return dict(_FIELD.findall(self.head))


def parse_row(text: str) -> Row | None:
    """Parse one line of a log; None if it is incomplete, as the last line of a killed process may be.

    >>> parse_row("  3.801s | #0152 | RUN      | SHARD 0  | graph    | sequence=abc123def456 (COMPILED)").command
    'graph'
    """
    found = LINE.fullmatch(text)
    if found is None:
        return None
    details = _DETAILS.fullmatch(found["details"])
    assert details is not None  # every group of the pattern is optional
    return Row(
        float(found["at"]),
        int(found["number"]),
        found["event"],
        found["component"],
        found["command"],
        details["head"],
        None if details["took"] is None else float(details["took"]),
        int(details["thread"] or 1),
        details["line"] or "",
    )


def read_timelines(paths: Sequence[str | Path]) -> list[Timeline]:
    """Return the runs in these logs, in the order of their first logs.

    Logs of one run's processes are merged. A `GT_INSTRUCTION_LOG` file may contain several runs.

    Raises:
        ArgumentError: a file is not an instruction log.
        OSError: a file cannot be read.
    """
    runs: dict[tuple[Path, str], list[tuple[float, list[Row], Process]]] = {}
    names: dict[tuple[Path, str], str] = {}
    for path, given in {Path(path).absolute(): path for path in paths}.items():  # a repeated path is read once
        text = read_plain(given).decode(errors="replace")
        rows = [row for row in map(parse_row, text.splitlines()) if row is not None]
        if not rows:
            got = f"{str(given)!r}, which is empty" if not text else f"{str(given)!r}, without a line of one"
            fix = "Pass files that gtrace trace or GT_INSTRUCTION_LOG wrote."
            raise ArgumentError(message("visualize", "an instruction log", got, fix))
        if rows[0].event == "START":
            about, mark, script = rows[0].head.partition("argv=")
            fields = dict(_FIELD.findall(about))
            if not mark:
                got = f"{str(given)!r}, which was cut off in its first line"
                raise ArgumentError(message("visualize", "an instruction log", got, "There is nothing in it to draw."))
            for name, form in _START.items():
                if not re.fullmatch(form, fields.get(name, "")):
                    got = f"{str(given)!r}, whose first line has no {name} that can be read"
                    raise ArgumentError(message("visualize", "an instruction log", got, "Trace the program again."))
            process = Process(int(fields["pid"]), int(fields["rank"]), script)
            run = path.parent, fields["run"]
            # a renamed file, such as before.log, sets the name
            names[run] = fields["run"] if path.stem.startswith(fields["run"]) else printable(path.stem)
            runs.setdefault(run, []).append((float(fields["wall"]), rows, process))
            continue
        begins = [0, *[k for k, row in enumerate(rows) if row.number == 1 and k]]
        for number, (start, end) in enumerate(itertools.pairwise([*begins, len(rows)]), 1):
            name = printable(path.stem) + (f" ({number})" if number > 1 else "")
            process = Process(0, 0, printable(path.name))
            runs.setdefault((path, name), []).append((0.0, rows[start:end], process))
    return [_timeline(names.get(run, run[1]), logs) for run, logs in runs.items()]


def _timeline(name: str, logs: list[tuple[float, list[Row], Process]]) -> Timeline:
    logs.sort(key=lambda log: (log[2].rank, log[0] + log[1][0].at))
    start = min(wall + rows[0].at for wall, rows, _ in logs)
    lanes = []
    for number, (wall, rows, process) in enumerate(logs):
        lanes += _Reader(number, process, wall - start).read(rows)
    return Timeline(name, [process for *_, process in logs], lanes)


class _Reader:
    """Parses the log of one process."""

    def __init__(self, number: int, process: Process, offset: float) -> None:
        self._number, self._process, self._offset = number, process, offset
        self._names: dict[int, str] = {}
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._recording: dict[int, Span] = {}
        self._cause: dict[int, Row] = {}
        self._compiling: dict[str, tuple[Row, float]] = {}
        self._began: dict[str, Row] = {}
        self._made: dict[str, Span] = {}
        self._worker_free = 0.0

    def read(self, rows: Sequence[Row]) -> list[Lane]:
        """Return the lanes of the process: its threads, worker and shard."""
        before = rows[0].at
        for row in rows:
            at = row.at + self._offset
            took = row.at - before if row.took is None else row.took
            self._row(row, at - took, at)
            before = row.at
        for sequence, (row, at) in list(self._compiling.items())[:1]:  # the others were waiting
            at, end = max(at, self._worker_free), rows[-1].at + self._offset
            self._add("worker", row, Span("compile", at, end, row.line, sequence, "not finished"))
        for own in self._lanes.values():
            _nest(own.spans)
        order = {"thread": 0, "worker": 1, "shard": 2}
        return [lane for _, lane in sorted(self._lanes.items(), key=lambda item: (order[item[0][0]], item[0][1]))]

    def _row(self, row: Row, start: float, end: float) -> None:
        if row.event != "RECORD":
            self._recording.pop(row.thread, None)
        sequence = row.fields.get("sequence", "")
        match row.event:
            case "THREAD":
                self._names[row.thread] = row.head.partition("name=")[2]
            case "RECORD":
                self._record(row, end)
            case "FORCE":
                self._cause[row.thread] = row
            case "CANON":
                self._add("thread", row, Span("canonicalize", start, end, row.line, details=row.head))
            case "LOAD":
                self._made[sequence] = self._add("thread", row, Span("load", start, end, row.line, sequence))
            case "SEND":
                self._add("shard", row, Span("collective", start, end, row.line, details=f"{row.command} {row.head}"))
            case "COMPILE" if row.command == "Starting":
                self._compiling[sequence] = row, end
            case "COMPILE":
                self._compiled(row, sequence, start, end)
            case "RUN":
                self._run(row, sequence, start, end)

    def _record(self, row: Row, at: float) -> None:
        span = self._recording.get(row.thread)
        if span is None or at - span.end > GAP:
            span = self._add("thread", row, Span("record", at - LEAST, at, row.line))
            self._recording[row.thread] = span
        span.end = at
        span.operations.append(Operation(row.command, at, row.line))

    def _compiled(self, row: Row, sequence: str, start: float, end: float) -> None:
        # after a failure for open sizes, the same program compiles for its own sizes
        began, at = self._compiling.pop(sequence, (self._began.get(sequence, row), start))
        self._began[sequence] = began
        background = began.fields.get("in", "worker") == "worker"
        details = "failed" if row.command == "Failed" else ""
        if background:
            # the worker compiles one program at a time, in the order of requests
            at = max(at, self._worker_free)
            self._worker_free = end
        span = Span("compile", at, end, began.line, sequence, details)
        self._add("worker" if background else "thread", began, span)
        if not details:
            self._made[sequence] = span

    def _run(self, row: Row, sequence: str, start: float, end: float) -> None:
        compiled = "(COMPILED)" in row.head
        force = self._cause.pop(row.thread, None)
        details = f"forced by {force.command}, {force.head}" if force is not None else ""
        line = row.line or (force.line if force is not None else "")
        span = Span("run compiled" if compiled else "run interpreted", start, end, line, sequence, details)
        self._add("shard", row, span)
        if compiled and sequence in self._made:
            self._made.pop(sequence).swap = span

    def _add(self, group: str, row: Row, span: Span) -> Span:
        key = group, 0 if group == "worker" else row.thread
        if key not in self._lanes:
            self._lanes[key] = Lane(self._number, self._lane_name(group, row.thread))
        span.start = max(span.start, 0.0)
        self._lanes[key].spans.append(span)
        return span

    def _lane_name(self, group: str, thread: int) -> str:
        name = self._names.get(thread, "MainThread" if thread == 1 else f"thread {thread}")
        if group == "thread":
            return name
        if group == "worker":
            return "worker"
        other = "" if name == "MainThread" else f" {name}"
        return f"shard {self._process.rank}{other}"


def _nest(spans: list[Span]) -> None:
    """Sort spans by start, and clip each to its enclosing span: times have errors of some us."""
    for span in spans:
        span.end = max(span.end, span.start + LEAST)
    spans.sort(key=lambda span: (span.start, -span.end))
    around: list[Span] = []
    for span in spans:
        while around and around[-1].end <= span.start + LEAST / 2:
            around.pop()
        if around and span.end > around[-1].end:
            outer = around[-1]
            if outer.end - span.start > span.end - outer.end:
                span.end = outer.end
            else:
                span.start = outer.end
        around.append(span)
    spans.sort(key=lambda span: (span.start, -span.end))


def summary(operations: Iterable[Operation]) -> str:
    """Return the names and counts of operations, the most frequent first.

    >>> summary([Operation("mul", 0.0, ""), Operation("add", 0.1, ""), Operation("mul", 0.2, "")])
    'mul 2, add 1'
    """
    counts = collections.Counter(operation.name for operation in operations)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
