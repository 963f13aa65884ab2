"""``gt.progress``: shows the state of a training loop without disturbing it."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TextIO, TypeVar

import attrs

from gtrace.core.base import tree
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, DonatedError, NonFiniteError, message
from gtrace.core.runtime.engine import engine
from gtrace.core.trace.array import Array, fresh
from gtrace.core.trace.force import value_of
from gtrace.core.transform.jit import Jitted
from gtrace.core.transform.jit import eval as evaluate
from gtrace.observe.last_line import BAR, LastLine, line_of

__all__ = ["progress"]

T = TypeVar("T")

MAX_STEPS = 1000
"""The number of steps that `Progress.step` keeps for a rerun; beyond it the values are read."""

WIDEST, NARROWEST = 40, 8
"""The width of the bar, which is dropped if there is no room."""


@attrs.define(eq=False)
class _Chain:
    """Consecutive steps of one function, each of which takes the state that the one before returned.

    Attributes:
        start: the first state, in separate Arrays, because a step may donate the caller's.
        newest: the result of the last step.
    """

    function: Callable[..., Any]
    start: Any
    newest: Any

    def leads_to(self, function: Callable[..., Any], state: Any) -> bool:
        """Whether `state` is the result of the last step, and `function` the same."""
        if function is not self.function:
            return False
        if state is self.newest:
            return True
        ours, theirs = tree.leaves(self.newest), tree.leaves(state)
        return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def _next_state(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def _kept(leaf: Any) -> Any:
    return fresh(leaf) if type(leaf) is Array and value_of(leaf) is not None else leaf


class Progress(Generic[T]):
    """Iterates over (number, item) pairs and shows the progress; `progress` makes it."""

    def __init__(
        self, items: Iterable[T], start: int, total: int | None, label: str, interval: float, file: TextIO | None
    ) -> None:
        self._items = items
        self._number, self._first, self._total = start, start, total
        self._label, self._interval, self._file = label, interval, file
        self._values: dict[str, Any] = {}
        self._shown: dict[str, float] = {}
        self._began = self._looked = time.perf_counter()
        self._line: LastLine | None = None
        self._chains: list[_Chain] = []
        self._steps: list[tuple[_Chain, tuple[Any, ...]]] = []

    def __iter__(self) -> Iterator[tuple[int, T]]:
        self._number = self._first
        self._began = self._looked = time.perf_counter()
        try:
            for item in self._items:
                yield self._number, item
                self._number += 1
                if time.perf_counter() - self._looked >= self._interval or len(self._steps) >= MAX_STEPS:
                    self.look()
            self.look()
        finally:
            self._close()

    def log(self, **values: Any) -> None:
        """Set the newest values, such as the loss. They are read only when they are shown.

        Raises:
            ArgumentError: a value is not a single number.
        """
        for name, value in values.items():
            shape = tuple(getattr(value, "shape", ()))
            if math.prod(shape) != 1 or not (type(value) is Array or hasattr(value, "__float__")):
                kind = type(value).__name__ + (f" of shape {shape}" if shape else "")
                got = f"{value.aval!r}" if type(value) is Array else kind
                raise ArgumentError(message("progress", f"one number for {name}", got, "Reduce it, by .mean() say."))
        self._values.update(values)

    def step(self, function: Callable[..., Any], state: Any, *batch: Any) -> Any:
        """Return ``function(state, *batch)``, and keep enough to find the origin of a NaN.

        Several functions may alternate, and their states may change in between.

        Args:
            function: a pure function. Its result, or the first of a tuple of results, is the next state.
        """
        chain = next((one for one in reversed(self._chains) if one.leads_to(function, state)), None)
        if chain is None:
            if isinstance(function, Jitted):
                evaluate(state)  # as the call does
            chain = _Chain(function, tree.map(_kept, state), None)
            self._chains.append(chain)
        self._steps.append((chain, batch))
        result = function(state, *batch)
        chain.newest = _next_state(result)
        return result

    def look(self) -> None:
        """Read the newest values, and show them.

        Raises:
            NonFiniteError: a value is NaN or infinite.
        """
        arrays = [x for x in self._values.values() if type(x) is Array]
        if arrays:
            evaluate(arrays)  # together, because they belong to one program
        self._shown = {name: float(value) for name, value in self._values.items()}
        for name, value in self._shown.items():
            if not math.isfinite(value):
                self._stop(name, value)
        self._chains, self._steps = [], []
        self._draw()
        self._looked = time.perf_counter()

    @property
    def text(self) -> str:
        """The text beside the bar: steps a second, the values, and the tier of the most expensive program."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        parts = [f"{(self._number - self._first) / seconds:.3g} steps/s"]
        parts += [f"{name} {value:.4g}" for name, value in self._shown.items()]
        programs = list(engine.programs.values())
        if programs:
            hot = max(programs, key=lambda p: p.ledger.seconds)
            parts.append(f"{hot.tier}, compiling" if hot.forms.is_requested else hot.tier)
        return "  ".join(parts)

    @property
    def _count(self) -> str:
        return f"{self._number}" if self._total is None else f"{self._number}/{self._total}"

    def _stop(self, name: str, value: float) -> None:
        """Raise; name the operation that made the first NaN if the steps since the last read can run again."""
        steps = len(self._steps)
        fix = "Call the step as bar.step(function, state, batch) to see where it comes from."
        if steps:
            fix = f"Running the last {steps} calls of bar.step again, interpreted, gave none."
            try:
                self._run_again()
            except DonatedError:
                fix = "To see where it comes from, let the steps give no argument away (donate_argnums)."
        text = message("progress", f"a finite {name}", f"{value} by step {self._number - 1}", fix)
        raise NonFiniteError(text)

    def _run_again(self) -> None:
        states = {chain: chain.start for chain in self._chains}
        with config(debug_nans=True, debug_key_reuse=False):  # the same keys are used again
            for chain, batch in self._steps:
                states[chain] = _next_state(evaluate(chain.function(states[chain], *batch)))

    def _draw(self) -> None:
        if self._file is None:
            return
        if self._line is None:
            self._line = line_of(self._file)
        if self._line.usable:
            self._line.show(BAR, self._row(self._line.width))

    def _row(self, width: int) -> Any:
        """Return the row for rich: label, bar, count and text; without the bar if there is little room."""
        # only those who show something import rich
        made = importlib.import_module("rich.text").Text
        label, words = made(self._label), made(f"{self._count} {self.text}")
        room = width - label.cell_len - words.cell_len - 2
        if self._total is None or room < NARROWEST:
            return made(f"{self._label} {words.plain}", no_wrap=True, overflow="ellipsis")
        row = importlib.import_module("rich.table").Table.grid(padding=(0, 1))
        bar = importlib.import_module("rich.progress_bar").ProgressBar(
            total=self._total, completed=self._number, width=min(room, WIDEST)
        )
        row.add_row(label, bar, words)
        return row

    def _close(self) -> None:
        if self._file is None:
            return
        if self._number == self._first:  # no step has ended
            if self._line is not None:
                self._line.clear(BAR)
            return
        # after a break or an error, compute nothing for this line
        values = {k: v for k, v in self._values.items() if type(v) is not Array or value_of(v) is not None}
        self._shown |= {name: float(value) for name, value in values.items()}
        if self._line is not None and self._line.usable:
            self._draw()
            self._line.clear(BAR, keep=True)
        else:
            print(f"{self._label} {self._count}  {self.text}", file=self._file)


def progress(
    items: Iterable[T],
    *,
    start: int = 0,
    total: int | None = None,
    label: str = "steps",
    interval: float = 0.5,
    file: TextIO | None = None,
) -> Progress[T]:
    """Return an iterator over (number, item) pairs that shows a bar on the terminal.

    The bar shows the values given to ``.log``, steps a second, and whether the most expensive program is compiled.
    It reads values only when it is drawn, so a loop that reads none stays asynchronous in between. If it reads a NaN or
    an infinity, it stops the loop; with ``.step`` the error names the operation and its line. If the output is not a
    terminal, one line is printed at the end.

    Args:
        start: the number of the first item, such as the step of a checkpoint.
        total: the number after the last item; None: the length of `items`, if known.
        label: the text before the bar.
        interval: seconds between two reads.
        file: None: stderr.

    Raises:
        ArgumentError: `items` is not iterable, or `interval` is negative.
        NonFiniteError: (while iterating) a value given to ``.log`` is not finite.

    >>> import io
    >>> def step(w, x):
    ...     loss, slope = gt.value_and_grad(lambda w: ((w * x - 1) ** 2).sum())(w)
    ...     return w - 0.1 * slope, loss
    >>> w = gt.array(0.0)
    >>> bar = gt.progress([gt.ones(2), gt.ones(2)], file=io.StringIO())
    >>> for number, x in bar:
    ...     w, loss = bar.step(step, w, x)
    ...     bar.log(loss=loss)
    >>> print(f"{float(w):.2f}")
    0.64
    """
    if not isinstance(items, Iterable) or interval < 0:
        got = f"{type(items).__name__} and {interval}"
        raise ArgumentError(message("progress", "an iterable and an interval >= 0", got, "Pass batches, or a range."))
    if total is None and isinstance(items, Sized):
        total = start + len(items)
    return Progress(items, start, total, label, interval, sys.stderr if file is None else file)
