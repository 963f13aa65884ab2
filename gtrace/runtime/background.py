"""Compiling in another process: a queue, one thread that looks after it, and the worker, while there is work.

The worker may crash, hang or run out of memory. Each job ends, with a result or with a reason, and no Python of the
program waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import attrs
import torch

from gtrace.config import config
from gtrace.runtime.store import workspace
from gtrace.runtime.unit import Unit

T = TypeVar("T")
R = TypeVar("R")

IDLE_SECONDS = 30.0
"""Without work for so long, the worker is ended."""


@attrs.frozen
class Outcome:
    """What became of a unit.

    Attributes:
        path: of the compiled code, which exists until the receiver returns; None: it failed.
        conditions: on its open sizes.
        seconds: that compiling took.
        reason: why it failed.
        passing: it may well succeed another time: the worker was killed, or had no memory.
    """

    path: Path | None
    conditions: tuple[Any, ...] = ()
    seconds: float = 0.0
    reason: str = ""
    passing: bool = False


Receiver = Callable[[Outcome], None]


class Background:
    """Compiles units in a worker process, one at a time, in the order of submission."""

    def __init__(self) -> None:
        self.forked()

    def forked(self) -> None:
        """Begin anew, as in a process that was forked: the worker and the thread are its parent's."""
        self._jobs: queue.Queue[tuple[Unit, Receiver]] = queue.Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._busy = 0
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """The worker's process; None while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def pending(self) -> int:
        """Units that have not ended."""
        return self._busy

    def submit(self, unit: Unit, receiver: Receiver) -> None:
        """Compile a unit; `receiver` gets its outcome, in another thread."""
        with self._lock:
            self._busy += 1
            self._jobs.put((unit, receiver))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gtrace compiling", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is pending; False if that takes longer."""
        end = time.monotonic() + seconds
        while self._busy:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        """End the worker and what it started, at once; what it had to do never ends."""
        self._stopped = True
        process = self._process
        if process is not None:
            self._end(process)

    def _work(self) -> None:
        while not self._stopped:
            try:
                unit, receiver = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._kill()
                        self._thread = None
                        return
                continue
            try:
                with workspace() as folder:
                    outcome = self._compile(unit, folder)
                    if not self._stopped:
                        receiver(outcome)
            except Exception:  # noqa: BLE001 - what a receiver raises must not keep the others from theirs
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            finally:
                with self._lock:
                    self._busy = max(self._busy - 1, 0)

    def _compile(self, unit: Unit, folder: Path) -> Outcome:
        try:
            process = self._start()
            assert process.stdin is not None
            job = {"unit": unit.describe(), "folder": str(folder)}
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            self._kill()
            return Outcome(None, reason=f"the worker cannot be started: {error}", passing=True)
        timeout = config.current.compile_timeout
        line = self._reply(process, timeout)
        if line is None:
            self._kill()
            return Outcome(None, reason=f"the compiler took more than {timeout} s (GT_COMPILE_TIMEOUT)", passing=True)
        if not line:
            reason = self._last_words(process)
            self._kill()
            return Outcome(None, reason=reason, passing=True)
        told = json.loads(line)
        if "failed" in told:
            return Outcome(None, reason=told["failed"], passing=told.get("passing", False))
        return Outcome(Path(told["path"]), tuple(told["conditions"]), told["seconds"])

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._errors = tempfile.TemporaryFile()
            # its programs must not compile, watch or log anything by themselves
            environment = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
            environment |= {"GT_BACKGROUND": "0", "GT_AUTO_COMPILE": "0", "OMP_NUM_THREADS": "1"}
            environment["PYTHONWARNINGS"] = "ignore"
            # this very gtrace, wherever it was imported from
            root = str(Path(__file__).resolve().parents[2])
            others = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
            environment["PYTHONPATH"] = os.pathsep.join([root, *others])
            # a group, to be ended as one; not a session, in which the scheduler would take it for as important as ours
            self._process = subprocess.Popen(
                # -P: not whatever lies in the working directory, which others can write to
                [sys.executable, "-P", "-m", "gtrace.runtime.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment,
                process_group=0, cwd=tempfile.gettempdir(),
            )  # fmt: skip
        return self._process

    def _reply(self, process: subprocess.Popen[bytes], timeout: float) -> bytes | None:
        """Return the next line; empty if the worker ended, None if it takes too long."""
        assert process.stdout is not None
        end = time.monotonic() + timeout
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(end - time.monotonic(), 0)):
                    return None
                received = os.read(process.stdout.fileno(), 1 << 16)
                if not received:
                    return b""
                line += received
        return line

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        code = process.returncode
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with code {code}"
        words = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            words = f": {lines[-1].strip()}" if lines else ""
        return f"the worker {how}{words}"

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._end(process)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # its whole group: a compiler may be running
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@functools.cache
def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def beside_worker(program: Callable[[T], R], argument: T) -> R:
    """Call `program` while the worker compiles: where torch would use every core, it leaves one to the worker.

    The threads of a torch operation wait for one another. With one more process than cores, two of them come to share a
    core, and each operation takes as long as the scheduler's time slices.
    """
    threads = torch.get_num_threads()
    if threads == 1 or threads < _cores():
        return program(argument)
    torch.set_num_threads(threads - 1)
    try:
        return program(argument)
    finally:
        torch.set_num_threads(threads)


background = Background()
"""The worker of this process."""

atexit.register(background.stop)
if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=background.forked)
