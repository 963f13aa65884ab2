"""``gt.progress``: what a training loop is doing, without disturbing it."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TextIO, TypeVar

from gtrace.config import config
from gtrace.errors import ArgumentError, NonFiniteError, message
from gtrace.jit import eval as evaluate
from gtrace.observe.stats import stats
from gtrace.trace.array import Array

__all__ = ["progress"]

T = TypeVar("T")

MAX_STEPS = 1000
"""Steps that `Progress.step` remembers, to run them again; beyond it the values are looked at."""


class Progress(Generic[T]):
    """Iterates over (number, item) pairs and shows how far that is; made by `progress`."""

    def __init__(
        self, items: Iterable[T], start: int, total: int | None, label: str, interval: float, file: TextIO
    ) -> None:
        self._items = items
        self._number, self._first, self._total = start, start, total
        self._label, self._interval, self._file = label, interval, file
        self._values: dict[str, Any] = {}
        self._shown: dict[str, float] = {}
        self._began = self._looked = time.perf_counter()
        self._bar: Any = None
        self._function: Callable[..., Any] | None = None
        self._state: Any = None
        self._batches: list[tuple[Any, ...]] = []

    def __iter__(self) -> Iterator[tuple[int, T]]:
        self._began = self._looked = time.perf_counter()
        try:
            for item in self._items:
                yield self._number, item
                self._number += 1
                if time.perf_counter() - self._looked >= self._interval or len(self._batches) >= MAX_STEPS:
                    self.look()
            self.look()
        finally:
            self._close()

    def log(self, **values: Any) -> None:
        """Give the newest values, such as the loss. They are looked at when they are shown, and not before."""
        self._values.update(values)

    def step(self, function: Callable[..., Any], state: Any, *batch: Any) -> Any:
        """Return ``function(state, *batch)``, and remember enough to find out where a NaN comes from.

        Args:
            function: a pure function, of which the result, or the first of a tuple of results, is the next state.
        """
        if self._function is None:
            self._function, self._state = function, state
        self._batches.append(batch)
        return function(state, *batch)

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
        self._function, self._state, self._batches = None, None, []
        if self._file.isatty():
            self._draw()
        self._looked = time.perf_counter()

    @property
    def text(self) -> str:
        """What is shown beside the bar: steps a second, the values, and the tier of the program that takes longest."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        parts = [f"{(self._number - self._first) / seconds:.3g} steps/s"]
        parts += [f"{name} {value:.4g}" for name, value in self._shown.items()]
        programs = list(stats())
        if programs:
            hot = max(programs, key=lambda p: p.interpreted_seconds + p.compiled_seconds)
            parts.append(f"{hot.tier}, compiling" if hot.compiling else hot.tier)
        return "  ".join(parts)

    def _stop(self, name: str, value: float) -> None:
        """Raise, with the operation that made the first NaN if the steps since the last look can be run again."""
        if self._function is not None:
            state = self._state
            with config(debug_nans=True):
                for batch in self._batches:
                    result = evaluate(self._function(state, *batch))
                    state = result[0] if isinstance(result, tuple) else result
        steps = len(self._batches)
        again = f"Running the last {steps} steps again, interpreted, gave none."
        fix = again if steps else "Call the step as bar.step(function, state, batch) to see where it comes from."
        text = message("progress", f"a finite {name}", f"{value} by step {self._number - 1}", fix)
        raise NonFiniteError(text)

    def _draw(self) -> None:
        if self._bar is None:
            # rich is imported by those who see something
            library = importlib.import_module("rich.progress")
            console = importlib.import_module("rich.console").Console(file=self._file)
            columns = [
                "{task.description}",
                library.BarColumn(),
                "{task.completed}/{task.total}",
                "{task.fields[text]}",
            ]
            self._bar = library.Progress(*columns, console=console, auto_refresh=False)
            self._bar.start()
            self._bar.add_task(self._label, total=self._total, completed=0, text="")
        (task,) = self._bar.task_ids
        self._bar.update(task, completed=self._number, text=self.text, refresh=True)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._number > self._first:
            print(f"{self._label} {self._number}{'' if self._total is None else f'/{self._total}'}  {self.text}",
                  file=self._file)  # fmt: skip


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
