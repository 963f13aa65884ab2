"""The progress line of a terminal while compilers work."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable

from gtrace.core.base.events import Awaiting, CompileFailed, CompileFinished, CompileStarted, bus
from gtrace.core.base.locks import new_lock
from gtrace.core.base.threads import start_thread, start_timer
from gtrace.core.ir.signature import short
from gtrace.observe.last_line import STATUS, LastLine, line_of

SHOW_AFTER = 1.0
"""Seconds of waiting before the line appears."""

TURN = 0.1
"""Seconds between two frames of the spinner."""


class ProgressLine:
    """The last line of the terminal. It shows what a call waits for, else what compiles, else a command's status.

    It is visible while there is one of them.
    """

    def __init__(self) -> None:
        self._line: LastLine | None = None
        self._spinner: threading.Event | None = None
        self._awaited = ""
        self._compiled = ""
        self._command = ""
        self._timer: threading.Timer | None = None
        self._lock = new_lock()

    def show_waits(self) -> Callable[[], None]:
        """Show the progress of waiting calls; return a function that stops this."""
        return bus.subscribe(self._waiting, Awaiting)

    def show_compiles(self) -> Callable[[], None]:
        """Show every compile; return a function that stops this."""
        stops = [
            bus.subscribe(self._started, CompileStarted),
            bus.subscribe(self._ended, CompileFinished, CompileFailed),
        ]

        def stop() -> None:
            for function in stops:
                function()
            self._set(compiled="")

        return stop

    def show_command(self, text: str) -> None:
        """Show a command's status; an empty text ends that."""
        with self._lock:
            self._command = text
            self._draw()

    def forked(self) -> None:
        """Show nothing in this forked process, because the drawing threads belong to the parent."""
        self._line = self._spinner = self._timer = None
        self._awaited = self._compiled = self._command = ""

    def _waiting(self, event: Awaiting) -> None:
        with self._lock:
            text = "" if event.over else f"compiling: {event.done} of {event.total} programs done"
            if text and self._timer is None:
                self._timer = start_timer(self._draw, "gtrace progress", SHOW_AFTER)
            elif not text and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._awaited = text
            if not text or self._spinner is not None:
                self._draw()

    def _started(self, event: CompileStarted) -> None:
        self._set(compiled=f"compiling {short(event.signature)} ({event.ops} ops)")

    def _ended(self, _: CompileFinished | CompileFailed) -> None:
        self._set(compiled="")

    def _set(self, compiled: str) -> None:
        with self._lock:
            self._compiled = compiled
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            text = self._awaited or self._compiled or self._command
            if text and self._spinner is None and sys.stderr is not None:
                made, stop = line_of(sys.stderr), threading.Event()
                if start_thread(self._spin, "gtrace spinner", made, stop) is not None:
                    self._line, self._spinner = made, stop
            elif not text and self._spinner is not None and self._line is not None:
                self._spinner.set()
                self._spinner = None
                self._line.clear(STATUS)

    def _spin(self, line: LastLine, stop: threading.Event) -> None:
        spinner = importlib.import_module("rich.spinner").Spinner("dots", style="status.spinner")
        while not stop.is_set():
            with self._lock:
                if not stop.is_set():
                    text = self._awaited or self._compiled or self._command
                    spinner.update(text=importlib.import_module("rich.text").Text(text))
                    line.show(STATUS, spinner)
            stop.wait(TURN)


line = ProgressLine()
"""The line of this process. It shows waits if stderr is a terminal."""

if sys.stderr is not None and sys.stderr.isatty():
    line.show_waits()
if hasattr(os, "register_at_fork"):  # some systems lack it
    os.register_at_fork(after_in_child=line.forked)
