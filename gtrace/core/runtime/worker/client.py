"""Compiling beside the program: the C++ compiler for loops and short programs, a worker with Inductor for the rest."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from gtrace.core.backends.native import library
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.toolchain import compiler_path, require_compiler
from gtrace.core.base.config import config
from gtrace.core.base.errors import CompileError, TransientCompileError, UnableError, UnsupportedTorchError
from gtrace.core.base.process_groups import Guard, guarded, wait_for_end, write_input
from gtrace.core.runtime.worker import afterwards
from gtrace.core.runtime.worker.lane import Lane, Outcome, Receiver, always
from gtrace.core.runtime.worker.pauses import Pauses

_ERRORS = {kind.__name__: kind for kind in (CompileError, TransientCompileError, UnableError, UnsupportedTorchError)}


_NO_PYTHON = (
    "the compile worker needs a Python to run it, and {!r}, which runs this program, is none. GT_BACKGROUND=0 compiles"
    " in this process"
)


_LAST_BYTES = 1 << 16
"""Of what the worker wrote before it ended: its last line is among them."""


def find_python() -> str | None:
    """Return the Python that starts the worker; None in a frozen program, or where another program embeds Python."""
    if getattr(sys, "frozen", False):  # its executable is the program
        return None
    beside = os.path.join(sys.exec_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    for path in (sys.executable, beside):
        if path and re.match(r"python|pypy", os.path.basename(path)) and os.access(path, os.X_OK):
            return path
    return None


class WorkerLane(Lane):
    """Compiles in a Python process, `gtrace.core.runtime.worker.server`, which it starts at the first request."""

    _stderr: IO[bytes] | None = None
    _guard: Guard | None = None
    _outlives: Path | None = None  # the folder of a compile in progress that may outlive this process
    _left = False

    def compile(self, request: CompileRequest, folder: Path, timeout: float) -> Outcome:
        try:
            require_compiler(request.device)
        except UnableError as error:  # before the worker starts, which takes seconds
            return Outcome(None, error=error)
        outcome = afterwards.from_earlier(request, lambda: self._stopped, timeout)
        if outcome is not None:
            return outcome
        python = find_python()
        if python is None:
            return Outcome(None, error=UnableError(_NO_PYTHON.format(sys.executable)))
        after = afterwards.terms(request)
        job = {"request": request.to_json(), "folder": str(folder), "after": after}
        before, is_late = self._pauses.seconds, self.limit(timeout)
        try:
            process = self._start(python)
            assert process.stdin is not None
            if not write_input(process.stdin, json.dumps(job).encode() + b"\n", is_late):
                return self.late(timeout)
        except OSError as error:
            self.end()
            return Outcome(None, error=TransientCompileError(f"the worker cannot be started: {error}"))
        with guarded(process, folder, after["seconds"] if after else 0):
            self._outlives = folder if after else None
            line = self.receive(process, is_late, b"\n")
            with self._lock:
                self._outlives = None
                left = self._left
            if left:  # this process is ending, and the worker keeps the result
                threading.Event().wait()
        paused = self._pauses.seconds - before
        if line is None:
            return self.late(timeout)
        if not line.endswith(b"\n"):
            reason = self._exit_reason(process)
            self.end()
            return Outcome(None, error=TransientCompileError(reason))
        answer = json.loads(line)
        if "error" in answer:
            return Outcome(None, error=_ERRORS[answer["error"]](answer["reason"]))
        return Outcome(Path(answer["path"]), tuple(answer["guards"]), max(answer["seconds"] - paused, 0.0))

    def leave(self, waiting: Iterable[CompileRequest]) -> bool:
        """Leave the compile in progress to the worker, because this process ends; returns whether there is one.

        Args:
            waiting: requests that the worker may serve after it.
        """
        with self._lock:
            folder, process, request = self._outlives, self.process, self._current
            if folder is None or process is None or request is None:
                return False
            self._left = self._stopped = True
        afterwards.leave(folder, request, waiting, config.current.compile_after)
        self._pauses.release()
        process.returncode = 0  # nobody waits for it
        return True

    def _start(self, python: str) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.end()
            self._pauses.resume()
            self._stderr = tempfile.TemporaryFile()
            # its programs must not compile, watch or log anything by themselves
            environment = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
            environment |= {"GT_BACKGROUND": "0", "GT_AUTO_COMPILE": "0", "OMP_NUM_THREADS": "1"}
            environment["PYTHONWARNINGS"] = "ignore"
            environment["TMPDIR"] = tempfile.gettempdir()  # where this process looks for what the worker finishes
            environment.setdefault("TORCH_COMPILE_DEBUG_DIR", tempfile.gettempdir())  # else its working directory
            # this very gtrace, wherever it was imported from
            root = str(Path(__file__).resolve().parents[4])
            others = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
            environment["PYTHONPATH"] = os.pathsep.join([root, *others])
            # what is named relative to the working directory of this process
            places = os.environ.get("PATH", os.defpath).split(os.pathsep)
            environment["PATH"] = os.pathsep.join(map(os.path.abspath, places))
            if "CXX" in os.environ and (compiler := compiler_path()) is not None:
                environment["CXX"] = compiler
            # a process group of its own: Ctrl-C does not reach it, and it is ended as one. Not a session of its own, to
            # which the scheduler would give as much time as to that of the program.
            process = subprocess.Popen(
                # -P: not whatever lies in the working directory, which others can write to
                [python, "-P", "-m", "gtrace.core.runtime.worker.server"],
                # unbuffered: a fork must not copy half a request, to be written a second time
                bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=environment,
                # nor there: a search path for libraries may name the working directory
                process_group=0, cwd=os.path.abspath(os.sep),
            )  # fmt: skip
            # a worker that is stopped does not see its input end
            self._guard = Guard(process, seconds=config.current.compile_after)
            return self.started(process)
        return self.process

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
            self._stderr.seek(max(self._stderr.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
            last = f": {lines[-1].strip()}" if lines else ""
        return f"the worker {how}{last}"

    def close(self, process: subprocess.Popen[bytes]) -> None:
        super().close(process)
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None


class NativeLane(Lane):
    """Compiles loops and short programs: this process makes their code, and the C++ compiler runs beside it."""

    def compile(self, request: CompileRequest, folder: Path, timeout: float) -> Outcome:
        start, before = time.perf_counter(), self._pauses.seconds
        try:
            command, path = library.prepare(request.graph, folder)
            try:
                process = self._start(command, folder)
            except OSError as error:
                return Outcome(None, error=TransientCompileError(f"{command[0]} cannot be started: {error}"))
            with guarded(process, folder):
                is_late = self.limit(timeout)
                output = self.receive(process, is_late, b"")
                code = None if output is None else wait_for_end(process, is_late)
            if output is None or code is None:
                return self.late(timeout)
            self.end()
            library.check(command, code, output.decode(errors="replace"))
        except CompileError as error:
            return Outcome(None, error=error)
        return Outcome(path, (), time.perf_counter() - start - (self._pauses.seconds - before))

    def _start(self, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
        return self.started(library.start(command, folder))


class WorkerClient:
    """Compiles in other processes: native loops, and beside them everything else."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pauses = Pauses()
        self._lock = threading.RLock()  # a finalizer may submit while this thread does
        # entered by its lock, which an interrupt cannot leave held
        self._changed = threading.Condition(self._lock)
        self._worker = WorkerLane(self._pauses, self._lock, self._changed)
        self._loops = NativeLane(self._pauses, self._lock, self._changed)

    def forked(self) -> None:
        """Begin anew, as in a process that was forked: the compilers and the threads are the parent's."""
        lanes = self._worker, self._loops
        self._reset()
        for lane in lanes:
            process = lane.process
            if process is not None:
                process.returncode = 0  # it is not a child of this process, which must not wait for it
                # the worker ends when its input does, so nobody but the parent may keep that open
                lane.close(process)

    @property
    def pid(self) -> int | None:
        """The worker's process; None while there is none."""
        process = self._worker.process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def pending(self) -> int:
        """How many requests have not ended."""
        return self._worker.pending + self._loops.pending

    @property
    def long(self) -> int:
        """How many of them are not native loops."""
        return self._worker.pending

    @property
    def serving(self) -> bool:
        """Whether a thread waits for requests or for a compiler."""
        return self._worker.thread is not None or self._loops.thread is not None

    @property
    def starves(self) -> bool:
        """Whether a request has hardly been worked at, because its compiler was stopped."""
        return self._worker.starves or self._loops.starves

    @property
    def paused(self) -> bool:
        """Whether the compilers are stopped for the program's sake."""
        return self._pauses.paused

    def pause(self) -> None:
        """Stop the compilers until `resume`."""
        self._pauses.pause()

    def resume(self) -> None:
        """Let the compilers go on."""
        self._pauses.resume()

    def held(self) -> AbstractContextManager[None]:
        """Return a context in which a program runs and the compilers stand still, unless somebody waits for them."""
        return self._pauses.held()

    def beside(self) -> AbstractContextManager[None]:
        """Return a context in which a program runs: compilers that are paused stay so."""
        return self._pauses.beside()

    def submit(
        self, request: CompileRequest, receiver: Receiver, timeout: float, wanted: Callable[[], bool] = always
    ) -> None:
        """Compile something; `receiver` gets the outcome, in another thread; in this one if none can be started.

        Args:
            timeout: seconds after which the compiler is ended.
            wanted: called in that thread before the compiler begins. If it says no, the request is dropped, and
                `receiver` gets nothing.
        """
        (self._loops if request.native else self._worker).submit(request, receiver, timeout, wanted)

    def wait(self, seconds: float, condition: Callable[[], bool] | None = None) -> bool:
        """Wait until nothing is pending; False if that takes longer.

        Args:
            condition: what to wait for instead; something that the outcome of a request brings about.
        """
        self._pauses.release()
        for lane in (self._worker, self._loops):
            lane.ensure_served()  # an interrupt may have left requests without a thread
        with self._lock:
            return self._changed.wait_for(condition or (lambda: not self.pending), seconds)

    def end(self) -> None:
        """End the worker; the next request starts another one."""
        self._worker.end()

    def leave(self) -> None:
        """At the end of this process: leave what is requested to the worker if it compiles; otherwise end all."""
        if config.current.compile_after:
            waiting = [*self._worker.requested(), *self._loops.requested()]
            if self._worker.leave(waiting):
                self._loops.stop()
                return
        self.stop()

    def stop(self) -> None:
        """End the compilers at once; pending requests get no outcome."""
        self._worker.stop()
        self._loops.stop()


worker = WorkerClient()
"""The compilers of this process."""

atexit.register(worker.leave)
if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=worker.forked)
