"""``gt.profile()``: the time of each operation and each region of a program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any

import attrs
import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.interpreter.profile import timed_interpreter
from gtrace.core.base.errors import ArgumentError, GtraceError, message
from gtrace.core.base.events import (
    Awaiting,
    Canonicalized,
    CompileFailed,
    CompileFinished,
    CompileStarted,
    Ran,
    Recorded,
    bus,
)
from gtrace.core.base.locks import new_lock
from gtrace.core.base.units import duration_text
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.signature import short
from gtrace.core.passes.subgraph_calls import has_calls
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.program import Program
from gtrace.core.trace.record import thread
from gtrace.observe import html

__all__ = ["profile"]

MAX_ROWS = 30
"""The number of printed rows of each kind."""

SHARES = ("products", "memory", "overhead", "compiling", "python")


@attrs.define
class Timing:
    """The time of an operation of an interpreted program, or of a region of a compiled one.

    Attributes:
        name: the operation's name, or the region's description.
        signature: the program's signature.
        line: the user's line; empty if unknown.
        calls: the number of runs.
        seconds: the time of all calls.
        product: whether it is a matmul or a similar product.
        place: its value in the canonical graph; None for a region.
    """

    name: str
    signature: str
    line: str
    product: bool = False
    place: int | None = None
    calls: int = 0
    seconds: float = 0.0


def _is_product(node: Node) -> bool:
    return node.op.contraction is not None


class Profile:
    """The results of `profile`, complete at the end of the block. It prints as tables, also in notebooks.

    Attributes:
        operations: operations of interpreted programs, most expensive first.
        regions: regions of compiled programs, most expensive first.
        seconds: the time of the block.
        recorded: the number of recorded operations.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.recorded = 0
        self._lock = new_lock()
        self._timings: dict[Any, Timing] = {}
        self._interpreters: dict[Program, tuple[Graph, TensorFunction]] = {}
        self._compiled: dict[Program, int] = {}
        self._products: dict[str, float] = {}
        self._ran = 0.0
        self._canonicalized = 0.0
        self._compiling: dict[str, float] = {}
        self._awaited: dict[int, float] = {}
        self._waits: list[tuple[float, float]] = []
        self._stop: list[Callable[[], None]] = []
        self._begin = 0.0

    @property
    def operations(self) -> list[Timing]:
        """The operations of interpreted programs, most expensive first."""
        return self._sorted(lambda timing: timing.place is not None)

    @property
    def regions(self) -> list[Timing]:
        """The regions of compiled programs, most expensive first."""
        return self._sorted(lambda timing: timing.place is None)

    def _sorted(self, chosen: Callable[[Timing], bool]) -> list[Timing]:
        return sorted(filter(chosen, list(self._timings.values())), key=lambda timing: -timing.seconds)

    @property
    def shares(self) -> dict[str, float]:
        """The parts of the block's time, as fractions.

        `products`: matmuls and similar operations; in compiled programs, their interpreted times. `memory`: all other
        operations, whose time goes to reading and writing memory. `overhead`: running programs around their operations,
        and canonicalizing new ones. `compiling`: compiling here, and waiting for the worker. `python`: the rest,
        including recording. With several threads, the other parts may add up to more than 1.
        """
        products = sum(timing.seconds for timing in self.operations if timing.product)
        inside = sum(timing.seconds for timing in self._timings.values())
        for program, calls in self._compiled.items():
            took = sum(t.seconds for t in self.regions if t.signature == program.signature.exact)
            products += min(took, calls * self._products.get(program.signature.exact, 0.0))
        seconds = {
            "products": products,
            "memory": inside - products,
            "overhead": max(self._ran - inside, 0.0) + self._canonicalized,
            "compiling": _union(self._waits),
        }
        seconds["python"] = max(self.seconds - sum(seconds.values()), 0.0)
        return {name: seconds[name] / self.seconds if self.seconds else 0.0 for name in SHARES}

    # -- measuring

    def __enter__(self) -> Profile:
        if engine.observed.instrument is not None:
            got = "another one inside it"
            raise ArgumentError(message("profile", "one profile at a time", got, "End the first one before."))
        if self._begin:
            raise ArgumentError(message("profile", "a new profile", "one that has ended", "Call gt.profile() again."))
        self._stop = [
            bus.subscribe(self._on_recorded, Recorded),
            bus.subscribe(self._on_ran, Ran, Canonicalized),
            bus.subscribe(self._on_compile, CompileStarted, CompileFinished, CompileFailed),
            bus.subscribe(self._on_wait, Awaiting),
        ]
        engine.install(self._instrument)
        engine.recordings.clear()  # programs that are recorded again get the lines of their operations
        self._begin = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = perf_counter() - self._begin
        engine.install(None)
        for stop in self._stop:
            stop()
        if kind is None:
            for program in self._compiled:
                self._measure_products(program)
        self._interpreters.clear()

    def _on_recorded(self, _: Recorded) -> None:
        self.recorded += 1
        if thread.trace.locations is None:
            thread.trace.locations = {}

    def _on_ran(self, event: Ran | Canonicalized) -> None:
        with self._lock:
            if isinstance(event, Ran):
                self._ran += event.seconds
            else:
                self._canonicalized += event.seconds

    def _on_compile(self, event: CompileStarted | CompileFinished | CompileFailed) -> None:
        if isinstance(event, CompileStarted):
            if not event.background:
                self._compiling[event.signature] = event.at
        elif event.signature in self._compiling:
            self._waits.append((self._compiling.pop(event.signature), event.at))

    def _on_wait(self, event: Awaiting) -> None:
        start = self._awaited.setdefault(threading.get_ident(), event.at)
        if event.over:
            del self._awaited[threading.get_ident()]
            self._waits.append((start, event.at))

    def _instrument(self, program: Program, executable: Executable) -> Executable:
        if executable.interprets:
            graph, run = self._interpreters.get(program, (None, None))
            if run is None or graph is not program.graph:
                run = timed_interpreter(program.graph, lambda node, seconds: self._operation(program, node, seconds))
                self._interpreters[program] = program.graph, run
            return attrs.evolve(executable, run=run)
        self._compiled[program] = self._compiled.get(program, 0) + 1
        if executable.calls is not None:
            return attrs.evolve(executable, run=executable.calls.timed(lambda *what: self._region(program, *what)))
        inner = executable.run

        def timed(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            start = perf_counter()
            results = inner(tensors)
            if executable.device.type == "cuda":
                torch.cuda.synchronize(executable.device)
            line = next((node.location for node in program.graph.nodes if node.location), None)
            self._region(program, f"compiled, {len(program.graph.nodes)} operations", line, perf_counter() - start)
            return results

        return attrs.evolve(executable, run=timed)

    def _operation(self, program: Program, node: Node, seconds: float) -> None:
        signature = program.signature.exact
        made = Timing(node.op.name, signature, node.location or "", _is_product(node), node.out)
        self._add((signature, node.out), made, seconds)

    def _region(self, program: Program, name: str, line: str | None, seconds: float) -> None:
        signature = program.signature.exact
        self._add((signature, name, line), Timing(name, signature, line or ""), seconds)

    def _add(self, key: Any, made: Timing, seconds: float) -> None:
        with self._lock:
            timing = self._timings.setdefault(key, made)
            timing.calls += 1
            timing.seconds += seconds

    def _measure_products(self, program: Program) -> None:
        """Measure the products of a compiled program by interpreting it once on zeros."""
        signature, graph = program.signature.exact, program.graph
        known = [t for t in self.operations if t.signature == signature]
        if known:
            self._products[signature] = sum(t.seconds / t.calls for t in known if t.product)
            return
        if has_calls(graph) or program.communicates or not any(map(_is_product, graph.nodes)):
            return
        inside: list[float] = []
        run = timed_interpreter(graph, lambda node, seconds: inside.append(seconds), _is_product)
        try:
            for _ in range(2):  # the first call allocates
                inside.clear()
                run([torch.zeros(a.shape, dtype=a.dtype, device=a.device) for a in graph.avals])
        except GtraceError:
            return  # it does not accept zeros, so the times are unknown
        self._products[signature] = sum(inside)

    # -- showing

    def __repr__(self) -> str:
        return f"<Profile of {duration_text(self.seconds)}; print it for the tables>"

    def __str__(self) -> str:
        lines = [self._head()]
        for title, timings in (("operations of interpreted programs", self.operations),
                               ("regions of compiled programs", self.regions)):  # fmt: skip
            if timings:
                lines += ["", title, f"{'time':>10} {'calls':>8} {'a call':>10}  {'program':<12}  what"]
                for row in map(_cells, timings[:MAX_ROWS]):
                    lines.append(f"{row[0]:>10} {row[1]:>8} {row[2]:>10}  {row[3]:<12}  {row[4]}  {row[5]}".rstrip())
                if len(timings) > MAX_ROWS:
                    lines.append(f"and {len(timings) - MAX_ROWS} more")
        return "\n".join(lines)

    def _head(self) -> str:
        shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in self.shares.items())
        return f"{duration_text(self.seconds)}: {shares}; {self.recorded} operations recorded"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        inside: list[object] = [html.tag("div", self._head())]
        heads = ("time", "calls", "a call", "program", "what", "line")
        for title, timings in (("Operations of interpreted programs", self.operations),
                               ("Regions of compiled programs", self.regions)):  # fmt: skip
            if timings:
                inside += [html.tag("h4", title), html.table(heads, map(_cells, timings[:MAX_ROWS]), heads[:3])]
        return html.fragment(*inside)


def _cells(timing: Timing) -> tuple[str, ...]:
    each = duration_text(timing.seconds / timing.calls)
    return (
        duration_text(timing.seconds), str(timing.calls), each, short(timing.signature), timing.name, timing.line
    )  # fmt: skip


def _union(parts: Iterable[tuple[float, float]]) -> float:
    """Return the total length that intervals cover.

    >>> _union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(parts):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def profile() -> Profile:
    """Return a context that times the operations of interpreted programs and the regions of compiled ones.

    Programs recorded inside it know the user's line of each operation. It slows each operation by some microseconds; on
    a GPU it waits for each. It applies to all threads.

    Raises:
        ArgumentError: (when entered) it is entered twice, or inside another profile.

    >>> with gt.config(auto_compile=False), gt.profile() as p:
    ...     for _ in range(3):
    ...         total = float((gt.ones((64, 64)) @ gt.ones((64, 64))).sum())
    >>> [(t.name, t.calls) for t in p.operations if t.product]
    [('matmul', 3)]
    """
    return Profile()
