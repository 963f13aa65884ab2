"""What a terminal shows while compilers work: how much of what somebody waits for is done."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from gtrace.events import Awaiting, CompileFailed, CompileFinished, CompileStarted, bus
from gtrace.ir.signature import short
from gtrace.locks import new_lock

SHOW_AFTER = 1.0
"""Seconds of waiting before the line is shown."""


class ProgressLine:
    """The last line of the terminal: what is waited for, else what is compiled. It is shown while there is either."""

    def __init__(self) -> None:
        self._status: Any = None
        self._awaited = ""
        self._compiled = ""
        self._timer: threading.Timer | None = None
        self._lock = new_lock()

    def show_waits(self) -> Callable[[], None]:
        """Show how much is done of what a call waits for; returns the function that ends that."""
        return bus.subscribe(self._waiting, Awaiting)

    def show_compiles(self) -> Callable[[], None]:
        """Show every compile; returns the function that ends that."""
        stops = [
            bus.subscribe(self._started, CompileStarted),
            bus.subscribe(self._ended, CompileFinished, CompileFailed),
        ]

        def stop() -> None:
            for function in stops:
                function()
            self._set(compiled="")

        return stop

    def _waiting(self, event: Awaiting) -> None:
        with self._lock:
            text = "" if event.over else f"compiling: {event.done} of {event.total} programs done"
            if text and self._timer is None:
                self._timer = threading.Timer(SHOW_AFTER, self._draw)
                self._timer.daemon = True
                self._timer.start()
            elif not text and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._awaited = text
            if not text or self._status is not None:
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
            text = self._awaited or self._compiled
            if text and self._status is None:
                # rich is imported when there is something to show, which most programs never have
                console = importlib.import_module("rich.console").Console(stderr=True)
                self._status = importlib.import_module("rich.status").Status(text, console=console)
                self._status.start()
            elif text:
                self._status.update(text)
            elif self._status is not None:
                self._status.stop()
                self._status = None


line = ProgressLine()
"""The line of this process. Waits are shown if the standard error is a terminal."""

if sys.stderr is not None and sys.stderr.isatty():
    line.show_waits()
