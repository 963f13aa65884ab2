"""``gt.progress``: what a training loop is doing, without disturbing it."""

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
"""Steps that `Progress.step` remembers, to run them again; beyond it the values are looked at."""

WIDEST, NARROWEST = 40, 8
"""Columns of the bar; it is left out where there is no room for it."""


@attrs.define(eq=False)
class _Chain:
    """Steps of one function, each of which takes the state that the one before has returned.

    Attributes:
        start: the first state. Its Arrays are others than the caller's, which a step may give away.
        newest: what the last step has returned.
    """

    function: Callable[..., Any]
    start: Any
    newest: Any

    def leads_to(self, function: Callable[..., Any], state: Any) -> bool:
        """Whether `state` is what the last step has returned, and `function` the same."""
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
    """Iterates over (number, item) pairs and shows how far that is; made by `progress`."""

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
        """Give the newest values, such as the loss. They are looked at when they are shown, and not before.

        Raises:
            ArgumentError: a value is not one number.
        """
        for name, value in values.items():
            shape = tuple(getattr(value, "shape", ()))
            if math.prod(shape) != 1 or not (type(value) is Array or hasattr(value, "__float__")):
                kind = type(value).__name__ + (f" of shape {shape}" if shape else "")
                got = f"{value.aval!r}" if type(value) is Array else kind
                raise ArgumentError(message("progress", f"one number for {name}", got, "Reduce it, by .mean() say."))
        self._values.update(values)

    def step(self, function: Callable[..., Any], state: Any, *batch: Any) -> Any:
        """Return ``function(state, *batch)``, and remember enough to find out where a NaN comes from.

        Several functions may take turns, and their states may be changed between.

        Args:
            function: a pure function, of which the result, or the first of a tuple of results, is the next state.
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
        """Look at the values given last, and show them.

        Raises:
            NonFiniteError: one of them is NaN or infinite.
        """
        arrays = [x for x in self._values.values() if type(x) is Array]
        if arrays:
            evaluate(arrays)  # together: they are of one program
        self._shown = {name: float(value) for name, value in self._values.items()}
        for name, value in self._shown.items():
            if not math.isfinite(value):
                self._stop(name, value)
        self._chains, self._steps = [], []
        self._draw()
        self._looked = time.perf_counter()

    @property
    def text(self) -> str:
        """What is shown beside the bar: steps a second, the values, and the tier of the program that takes longest."""
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
        """Raise, with the operation that made the first NaN if the steps since the last look can be run again."""
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
        """Return what rich prints: label, bar, count and text; without the bar where there is little room for it."""
        # rich is imported by those who see something
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
        # after a break or an error nothing is computed for the sake of a line
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

    The bar shows the values given to ``.log``, steps a second, and whether the program that takes longest is compiled.
    It looks at values only when it is drawn, so a loop that looks at none stays asynchronous between. At each look a
    NaN or an infinity stops the loop; with ``.step`` the error names the operation and the line it comes from. Where
    the output is no terminal, one line is printed at the end.

    Args:
        start: the number of the first item, such as the step of a checkpoint.
        total: the number after the last item; None: as many as `items` says that it has.
        label: what stands before the bar.
        interval: seconds between two looks.
        file: None: the standard error.

    Raises:
        ArgumentError: `items` is not iterable, or `interval` negative.
        NonFiniteError: (while iterating) a value given to ``.log`` is not finite.

    >>> import gtrace as gt, io
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
