"""Compilers that stand still for the program's sake."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

from gtrace.core.base.process_groups import signal_group

RESUME_SECONDS = 0.2
"""Compilers that pause for the program's sake go on when no program has run for so long."""


class Pauses:
    """Stops the compilers of this process, each a process group of its own, and lets them go on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may pause while this thread does
        self._groups: set[subprocess.Popen[bytes]] = set()
        self._since: float | None = None
        self._seconds = 0.0  # the present pause not counted
        self._running = 0  # calls of programs
        self._held = 0  # those of them beside which no compiler runs
        self._ran = 0.0  # when the last of them ended

    @property
    def paused(self) -> bool:
        """Whether the compilers are stopped."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """How long they have been stopped so far."""
        since = self._since
        return self._seconds + (0.0 if since is None else time.monotonic() - since)

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Have a compiler stopped with the others; at once, if they are."""
        with self._lock:
            self._groups.add(process)
            if self.paused:
                signal_group(process, signal.SIGSTOP)
            elif self._held:
                self.pause()

    def remove(self, process: subprocess.Popen[bytes]) -> None:
        """Forget a compiler, which has ended."""
        with self._lock:
            self._groups.discard(process)

    def pause(self) -> None:
        """Stop the compilers, and what they started, until `resume`."""
        with self._lock:
            running = [process for process in self._groups if process.poll() is None]
            if running and self._since is None:
                self._since = time.monotonic()
                for process in running:
                    signal_group(process, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the compilers go on, unless they are held."""
        if self._since is None:
            return
        with self._lock:
            if self._since is not None and not self._held:
                self._seconds += time.monotonic() - self._since
                self._since = None
                for process in self._groups:
                    signal_group(process, signal.SIGCONT)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within the block, a program runs, and the compilers stand still, also those that start in it."""
        with self._lock:
            self._held += 1
            self.pause()
        try:
            with self.beside():
                yield
        finally:
            with self._lock:
                self._held = max(self._held - 1, 0)
            self.resume()

    def release(self) -> None:
        """Let the compilers go on whoever holds them: somebody waits for them."""
        with self._lock:
            self._held = 0
            self.resume()

    def resume_if_idle(self) -> None:
        """Let the compilers go on if no program has run for a while."""
        if not self._running and time.monotonic() - self._ran > RESUME_SECONDS:
            self.resume()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Within the block, a program runs: compilers that are paused stay so."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._ran = time.monotonic()
