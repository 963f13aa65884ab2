"""Compiling beside the program: a queue of requests, the thread that serves it, and the process that does the work.

A compiler may crash, hang or run out of memory. Each request ends, with code or with an error, and the program never
waits for it.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from gtrace.core.backends.native.library import late
from gtrace.core.backends.request import CompileRequest
from gtrace.core.base.errors import CompileError, TransientCompileError
from gtrace.core.base.process_groups import end_group, read_output
from gtrace.core.base.threads import start_thread
from gtrace.core.base.workspace import workspace
from gtrace.core.runtime.worker.pauses import Pauses

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


@attrs.frozen(eq=False)
class _Job:
    request: CompileRequest
    receiver: Receiver
    timeout: float
    wanted: Callable[[], bool]


class Lane(abc.ABC):
    """Compiles requests one at a time, in the order of submission.

    Attributes:
        process: what compiles, if it is running.
        thread: what serves the queue; None while there is nothing to do.
    """

    def __init__(self, pauses: Pauses, lock: threading.RLock, changed: threading.Condition) -> None:
        """Make a lane.

        Args:
            changed: of the lock; notified whenever a request comes or has ended.
        """
        self.process: subprocess.Popen[bytes] | None = None
        self.thread: threading.Thread | None = None
        self._pauses, self._lock, self._changed = pauses, lock, changed
        self._jobs: collections.deque[_Job] = collections.deque()  # that in progress is the first until it has ended
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
            self._jobs.append(_Job(request, receiver, timeout, wanted))
            self._changed.notify_all()
        self.ensure_served()

    def ensure_served(self) -> None:
        """Start the thread if requests wait for it. If it cannot be started, they fail, at once."""
        with self._lock:
            # one whose start was interrupted ends as soon as it sees another one here, before it takes a request
            if not self._jobs or (self.thread is not None and self.thread.is_alive()):
                return
            self.thread = None if self._stopped else start_thread(self._serve, "gtrace compiling")
            if self.thread is not None:
                return
            failed = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        if not self._stopped:
            for job in failed:
                job.receiver(Outcome(None, error=TransientCompileError("no thread can be started")))

    @property
    def pending(self) -> int:
        """How many requests have not ended."""
        return len(self._jobs)

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
        return [job.request for job in list(self._jobs)]

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
        while (job := self._next()) is not None:
            self._began = time.monotonic(), self._pauses.seconds
            self._current = job.request
            try:
                if job.wanted():
                    self._serve_one(job)
            except Exception:  # noqa: BLE001 - an error of one receiver must not keep the others from theirs
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            finally:
                with self._lock:
                    self._current = None
                    self._jobs.popleft()
                    self._changed.notify_all()

    def _next(self) -> _Job | None:
        """Wait for a request; None if none comes for a while, or none is for this thread."""
        with self._lock:
            if self.thread not in (None, threading.current_thread()):
                return None
            self.thread = threading.current_thread()  # also one whose start was interrupted before it was noted
            if not self._stopped and self._changed.wait_for(lambda: self._jobs or self._stopped, IDLE_SECONDS):
                return None if self._stopped else self._jobs[0]
            self.thread = None
            if not self._stopped:
                self.end()
            return None

    def _serve_one(self, job: _Job) -> None:
        with contextlib.ExitStack() as files:
            try:
                folder = files.enter_context(workspace())
            except OSError as error:
                reason = f"there is no place for the compiler's files: {error}"
                outcome = Outcome(None, error=TransientCompileError(reason))
            else:
                try:
                    outcome = self.compile(job.request, folder, job.timeout)
                except Exception as error:  # noqa: BLE001 - of gtrace itself; whoever waits gets it
                    self.end()
                    reason = f"{type(error).__name__}: {error}"
                    outcome = Outcome(None, error=TransientCompileError(reason))
            if not self._stopped:
                job.receiver(outcome)

    def limit(self, timeout: float) -> Callable[[], bool]:
        """Return a function that tells whether a compiler has worked for so long, pauses not counted.

        It also lets compilers go on that were paused for a program that has ended.
        """
        until = time.monotonic() + timeout - self._pauses.seconds

        def is_late() -> bool:
            self._pauses.resume_if_idle()
            return time.monotonic() - self._pauses.seconds > until

        return is_late

    def receive(self, process: subprocess.Popen[bytes], is_late: Callable[[], bool], end: bytes) -> bytes | None:
        """Return what a compiler writes, up to `end` or until it closes its output; None if that takes too long."""
        assert process.stdout is not None
        return read_output(process.stdout, is_late, end)

    def late(self, timeout: float) -> Outcome:
        """End a compiler that took too long; returns what became of its request."""
        self.end()
        return Outcome(None, error=TransientCompileError(late(timeout)))
