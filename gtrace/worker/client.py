"""Compiling in another process: a queue of requests, a thread that serves it, and the worker process.

The worker may crash, hang or run out of memory. Each request ends, with code or with an error, and the program never
waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import attrs

from gtrace.cache.store import workspace
from gtrace.compile.request import CompileRequest
from gtrace.config import config
from gtrace.errors import CompileError, TransientCompileError, UnsupportedTorchError

IDLE_SECONDS = 30.0
"""After so long without a request the worker is ended."""

NICE = 10
"""Added to the niceness of the worker, unless compiling may cost all of the program's speed."""

RESUME_SECONDS = 0.2
"""A worker that pauses for the program's sake goes on when no program has run for so long."""

_ERRORS = {kind.__name__: kind for kind in (CompileError, TransientCompileError, UnsupportedTorchError)}


@attrs.frozen
class Outcome:
    """What became of a request.

    Attributes:
        path: of the compiled code, which exists until the receiver returns; None if it failed.
        guards: on the open sizes.
        seconds: that compiling took.
        error: why it failed; a `TransientCompileError` also if the worker was killed or could not be started.
    """

    path: Path | None
    guards: tuple[Any, ...] = ()
    seconds: float = 0.0
    error: CompileError | None = None


Receiver = Callable[[Outcome], None]


class WorkerClient:
    """Compiles in a worker process, one request at a time, in the order of submission."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._reset()

    def _reset(self) -> None:
        self._queue: queue.SimpleQueue[tuple[CompileRequest, Receiver, float]] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a finalizer may submit while this thread does
        self._done = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._stopped = False
        self._paused_at: float | None = None
        self._paused_seconds = 0.0  # since the worker started, the present pause not counted
        self._running = 0  # calls of programs
        self._ran = 0.0  # when the last of them ended

    def forked(self) -> None:
        """Begin anew, as in a process that was forked: the worker and the thread are the parent's."""
        self._reset()
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0  # it is not a child of this process, which must not wait for it
            # the worker ends when its input does, so nobody but the parent may keep that open
            self._close(process)

    @property
    def pid(self) -> int | None:
        """The worker's process; None while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def pending(self) -> int:
        """Requests that have not ended."""
        return self._pending

    @property
    def paused(self) -> bool:
        """Whether the worker is stopped for the program's sake."""
        return self._paused_at is not None

    def pause(self) -> None:
        """Stop the worker, and the compilers it started, until `resume`."""
        with self._lock:
            process = self._process
            if self._paused_at is None and process is not None and process.poll() is None:
                self._paused_at = time.monotonic()
                _signal(process, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the worker go on."""
        if self._paused_at is None:
            return
        with self._lock:
            process = self._process
            if self._paused_at is not None:
                self._paused_seconds += time.monotonic() - self._paused_at
                self._paused_at = None
                if process is not None:
                    _signal(process, signal.SIGCONT)

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Within the block, a program runs: a paused worker stays so."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._ran = time.monotonic()

    def submit(self, request: CompileRequest, receiver: Receiver, timeout: float) -> None:
        """Compile something; `receiver` gets the outcome, in another thread.

        Args:
            timeout: seconds after which the worker is stopped.
        """
        with self._lock:
            self._pending += 1
            self._queue.put((request, receiver, timeout))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="gtrace compiling", daemon=True)
                self._thread.start()

    def wait(self, seconds: float, condition: Callable[[], bool] | None = None) -> bool:
        """Wait until nothing is pending; False if that takes longer.

        Args:
            condition: what to wait for instead; something that the outcome of a request brings about.
        """
        self.resume()
        with self._done:
            return self._done.wait_for(condition or (lambda: not self._pending), seconds)

    def stop(self) -> None:
        """End the worker and the compilers it started, at once; pending requests get no outcome."""
        self._stopped = True
        process = self._process
        if process is not None:
            _end(process)

    def _serve(self) -> None:
        while not self._stopped:
            try:
                request, receiver, timeout = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self._end_worker()
                        self._thread = None
                        return
                continue
            try:
                with contextlib.ExitStack() as files:
                    try:
                        folder = files.enter_context(workspace())
                    except OSError as error:
                        reason = f"there is no place for the compiler's files: {error}"
                        outcome = Outcome(None, error=TransientCompileError(reason))
                    else:
                        outcome = self._compile(request, folder, timeout)
                    if not self._stopped:
                        receiver(outcome)
            except Exception:  # noqa: BLE001 - an error of one receiver must not keep the others from theirs
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            finally:
                with self._done:
                    self._pending = max(self._pending - 1, 0)
                    self._done.notify_all()

    def _compile(self, request: CompileRequest, folder: Path, timeout: float) -> Outcome:
        job = {"request": request.to_json(), "folder": str(folder)}
        try:
            process = self._start()
            _send(process, json.dumps(job).encode() + b"\n")
        except OSError as error:
            self._end_worker()
            return Outcome(None, error=TransientCompileError(f"the worker cannot be started: {error}"))
        before = self._paused_total()
        line = self._receive(process, timeout)
        paused = self._paused_total() - before
        if line is None:
            self._end_worker()
            reason = f"the compiler took more than {timeout} s (GT_COMPILE_TIMEOUT)"
            return Outcome(None, error=TransientCompileError(reason))
        if not line:
            reason = self._exit_reason(process)
            self._end_worker()
            return Outcome(None, error=TransientCompileError(reason))
        answer = json.loads(line)
        if "error" in answer:
            return Outcome(None, error=_ERRORS[answer["error"]](answer["reason"]))
        return Outcome(Path(answer["path"]), tuple(answer["guards"]), max(answer["seconds"] - paused, 0.0))

    def _receive(self, process: subprocess.Popen[bytes], timeout: float) -> bytes | None:
        """Return the worker's next line; empty if it ended, None if it takes too long, pauses not counted."""
        assert process.stdout is not None
        end = time.monotonic() + timeout - self._paused_total()
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(RESUME_SECONDS):
                    if not self._running and time.monotonic() - self._ran > RESUME_SECONDS:
                        self.resume()
                    if time.monotonic() - self._paused_total() > end:
                        return None
                    continue
                received = os.read(process.stdout.fileno(), 1 << 16)
                if not received:
                    return b""
                line += received
        return line

    def _paused_total(self) -> float:
        since = self._paused_at
        return self._paused_seconds + (0.0 if since is None else time.monotonic() - since)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end_worker()
            self._paused_at, self._paused_seconds = None, 0.0
            self._stderr = tempfile.TemporaryFile()
            # its programs must not compile, watch or log anything by themselves
            environment = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
            environment |= {"GT_BACKGROUND": "0", "GT_AUTO_COMPILE": "0", "OMP_NUM_THREADS": "1"}
            environment["PYTHONWARNINGS"] = "ignore"
            # this very gtrace, wherever it was imported from
            root = str(Path(__file__).resolve().parents[2])
            others = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
            environment["PYTHONPATH"] = os.pathsep.join([root, *others])
            # a process group of its own: Ctrl-C does not reach it, and it is ended as one. Not a session of its own, to
            # which the scheduler would give as much time as to that of the program.
            niceness = 0 if config.current.compile_share >= 1 else NICE
            self._process = subprocess.Popen(
                # -P: not whatever lies in the working directory, which others can write to
                [sys.executable, "-P", "-m", "gtrace.worker.server", str(niceness)],
                # unbuffered: a fork must not copy half a request, to be written a second time
                bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=environment,
                process_group=0, cwd=tempfile.gettempdir(),
            )  # fmt: skip
        return self._process

    def _exit_reason(self, process: subprocess.Popen[bytes]) -> str:
        """Return how the worker ended, with the last line that it wrote."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        code = process.returncode
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with code {code}"
        last = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
            last = f": {lines[-1].strip()}" if lines else ""
        return f"the worker {how}{last}"

    def _end_worker(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)
            self._close(process)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout, self._stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._stderr = None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a worker and its whole process group: a compiler may be running."""
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _send(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    rest = memoryview(line)
    while rest:
        rest = rest[process.stdin.write(rest) :]


worker = WorkerClient()
"""The worker of this process."""

atexit.register(worker.stop)
if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=worker.forked)
