"""Compiling beside the program: a queue of requests, the thread that serves it, and the process that does the work.

A compiler may crash, hang or run out of memory. Each request ends, with code or with an error, and the program never
waits for it.
"""

from __future__ import annotations

import abc
import contextlib
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs

from gtrace.core.backends.native.library import late
from gtrace.core.backends.request import CompileRequest
from gtrace.core.base.errors import CompileError, TransientCompileError
from gtrace.core.base.process_groups import end_group
from gtrace.core.runtime.cache.workspace import workspace
from gtrace.core.runtime.worker.pauses import RESUME_SECONDS, Pauses

IDLE_SECONDS = 30.0
"""After so long without a request the thread ends, and with it what it has started."""

STARVES_SECONDS, STARVES_STOPPED = 5.0, 0.9
"""A request starves if it took longer than so many seconds, and its compiler was stopped for that part of them."""

STOP_SECONDS = 1.0
"""How long the end of the program waits for the thread to remove the files of its compile. It takes milliseconds."""


@attrs.frozen
class Outcome:
    """What became of a request.

    Attributes:
        path: of the compiled code, which exists until the receiver returns; None if it failed.
        guards: on the open sizes.
        seconds: that compiling took.
        error: why it failed; a `TransientCompileError` also if the compiler was killed or could not be started.
    """

    path: Path | None
    guards: tuple[Any, ...] = ()
    seconds: float = 0.0
    error: CompileError | None = None


Receiver = Callable[[Outcome], None]


def always() -> bool:
    """Return True: whoever asked for a compile waits for it in any case."""
    return True


class Lane(abc.ABC):
    """Compiles requests one at a time, in the order of submission.

    Attributes:
        process: what compiles, if it is running.
        thread: what serves the queue; None while there is nothing to do.
    """

    def __init__(self, pauses: Pauses, lock: AbstractContextManager[Any], ended: Callable[[], None]) -> None:
        """Make a lane.

        Args:
            ended: called whenever a request has ended.
        """
        self.process: subprocess.Popen[bytes] | None = None
        self.thread: threading.Thread | None = None
        self._pauses, self._lock, self._ended = pauses, lock, ended
        self._queue: queue.SimpleQueue[tuple[CompileRequest, Receiver, float, Callable[[], bool]]] = queue.SimpleQueue()
        self._stopped = False
        self._current: CompileRequest | None = None  # which it is busy with
        self._began = 0.0, 0.0  # when, and how long the compilers had been stopped then

    @abc.abstractmethod
    def compile(self, request: CompileRequest, folder: Path, timeout: float) -> Outcome:
        """Compile a request into a folder.

        Args:
            timeout: seconds after which the compiler is ended; pauses do not count.
        """

    def submit(self, request: CompileRequest, receiver: Receiver, timeout: float, wanted: Callable[[], bool]) -> None:
        """Compile something; `receiver` gets the outcome, in the lane's thread; see `WorkerClient.submit`."""
        with self._lock:
            self._queue.put((request, receiver, timeout, wanted))
            if self.thread is None:
                self.thread = threading.Thread(target=self._serve, name="gtrace compiling", daemon=True)
                self.thread.start()

    @property
    def starves(self) -> bool:
        """Whether a request has hardly been worked at, because its compiler was stopped."""
        if self._current is None:
            return False
        began, before = self._began
        waited = time.monotonic() - began
        return waited > STARVES_SECONDS and self._pauses.seconds - before > STARVES_STOPPED * waited

    def requested(self) -> list[CompileRequest]:
        """Return the request in progress, and those that wait."""
        found = [] if self._current is None else [self._current]
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._queue.get_nowait()[0])
        return found

    def stop(self) -> None:
        """End the compiler at once; pending requests get no outcome."""
        self._stopped = True
        process, thread = self.process, self.thread
        if process is not None:
            end_group(process)
        if self._current is not None and thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)

    def started(self, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Note what compiles from now on."""
        self.process = process
        self._pauses.add(process)
        if self._stopped:  # meanwhile
            end_group(process)
        return process

    def end(self) -> None:
        """End the compiler, if it is running; the next request starts one again."""
        process, self.process = self.process, None
        if process is not None:
            end_group(process)
            self._pauses.remove(process)
            self.close(process)

    def close(self, process: subprocess.Popen[bytes]) -> None:
        """Close the pipes to a process."""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _serve(self) -> None:
        while not self._stopped:
            try:
                request, receiver, timeout, wanted = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self.end()
                        self.thread = None
                        return
                continue
            self._began = time.monotonic(), self._pauses.seconds
            self._current = request
            try:
                if not wanted():
                    continue
                with contextlib.ExitStack() as files:
                    try:
                        folder = files.enter_context(workspace())
                    except OSError as error:
                        reason = f"there is no place for the compiler's files: {error}"
                        outcome = Outcome(None, error=TransientCompileError(reason))
                    else:
                        outcome = self.compile(request, folder, timeout)
                    if not self._stopped:
                        receiver(outcome)
            except Exception:  # noqa: BLE001 - an error of one receiver must not keep the others from theirs
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            finally:
                self._current = None
                self._ended()

    def receive(self, process: subprocess.Popen[bytes], timeout: float, end: bytes) -> bytes | None:
        """Return what a compiler writes, up to `end` or until it closes its output; None if that takes too long."""
        assert process.stdout is not None
        until = time.monotonic() + timeout - self._pauses.seconds
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not (end and text.endswith(end)):
                if not selector.select(RESUME_SECONDS):
                    self._pauses.resume_if_idle()
                    if time.monotonic() - self._pauses.seconds > until:
                        return None
                    continue
                received = os.read(process.stdout.fileno(), 1 << 16)
                if not received:
                    break
                text += received
        return text

    def late(self, timeout: float) -> Outcome:
        """End a compiler that took too long; returns what became of its request."""
        self.end()
        return Outcome(None, error=TransientCompileError(late(timeout)))
