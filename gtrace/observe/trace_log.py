"""The log of ``gtrace trace``: the instruction log with microseconds, durations, threads and lines.

  0.104731s | #0012 | RUN      | SHARD 0  | graph    | sequence=abc12 (COMPILED) took=0.000412s thread=1 at a.py:3

Each process has a file: the first process of a run writes to PREFIX.log, others to PREFIX.PID.log. The first line
identifies the process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from io import FileIO

from gtrace.core.base.config import Config, config
from gtrace.core.base.errors import ConfigError, ConfigWarning, user_location
from gtrace.core.base.events import (
    START,
    Canonicalized,
    Communicated,
    CompileFailed,
    CompileFinished,
    CompileStarted,
    Event,
    Forced,
    Judged,
    Loaded,
    Ran,
    Recorded,
)
from gtrace.core.base.units import printable
from gtrace.core.ir.signature import short
from gtrace.observe.event_file import EventFile
from gtrace.observe.instruction_log import RANK, columns

KINDS = (
    Recorded, Forced, Canonicalized, CompileStarted, CompileFinished, CompileFailed, Loaded, Ran, Communicated, Judged,
)  # fmt: skip


def detailed_columns(event: Event) -> tuple[str, str, str, str]:
    """Return event, component, command and details of one line, without the parts that all lines share.

    >>> detailed_columns(Loaded("abc123def456", 0.5))
    ('LOAD', 'CLIENT', 'artifact', 'sequence=abc123def456')
    """
    match event:
        case Canonicalized(ops=ops, signatures=signatures):
            return "CANON", "CLIENT", "graph", f"ops={ops} sequences={','.join(map(short, signatures)) or '-'}"
        case CompileStarted(signature=signature, ops=ops, background=background):
            where = "worker" if background else "thread"
            return "COMPILE", "WORKER", "Starting", f"sequence={short(signature)} ops={ops} in={where}"
        case Loaded(signature=signature):
            return "LOAD", "CLIENT", "artifact", f"sequence={short(signature)}"
        case Communicated(kind=kind, nbytes=nbytes):
            return "SEND", f"SHARD {RANK}", kind, f"bytes={nbytes}"
        case Judged(signature=signature, demoted=demoted):
            return "JUDGE", "CLIENT", "demoted" if demoted else "kept", f"sequence={short(signature)}"
    return columns(event)


class TraceLog:
    """Subscribes to the bus while the settings name a trace."""

    def __init__(self) -> None:
        self._target = EventFile[FileIO](self._write, *KINDS)
        self._seconds = 0.0
        self._begin()

    def _begin(self) -> None:
        self._target.file = None
        self._count = 0
        self._end = 0.0
        # the system reuses the number of an ended thread
        self._own = threading.local()
        self._others = 0

    def configure(self, settings: Config) -> None:
        """Start, stop or move to other files, by `settings`.

        Raises:
            ConfigError: the folder is missing or not writable.
        """
        prefix = None if settings.trace is None else os.path.abspath(settings.trace)
        self._seconds = settings.trace_seconds
        if prefix == self._target.path:
            return
        if prefix is not None and not os.access(os.path.dirname(prefix), os.W_OK):
            fix = "Make the folder, or name another one."
            raise ConfigError(f"[GT_TRACE] expected a path in a folder that can be written to, got {prefix!r}. {fix}")
        with self._target.lock:
            self._target.close()
            self._begin()
            self._target.move(prefix)

    def close(self) -> None:
        """Stop listening and close the file."""
        self._target.close()

    def forked(self) -> None:
        """Continue in a separate file in this forked process."""
        self._begin()  # no buffered text could be written by both processes

    def _write(self, event: Event) -> None:
        location = "" if isinstance(event, (CompileFinished, CompileFailed)) else user_location()
        target = self._target
        with target.lock:
            if not target.open or target.path is None:
                return
            try:
                if target.file is None:
                    self._open(target.path, event.at)
                if event.at > self._end:
                    self.close()
                    return
                kind, component, command, details = detailed_columns(event)
                if isinstance(event, (Ran, Canonicalized, Loaded, CompileFinished, Communicated)):
                    details += f" took={event.seconds:.6f}s"
                details += f" thread={self._thread(event.at)}"
                if location and not isinstance(event, Forced):
                    details += f" at {location}"
                self._line(event.at, kind, component, command, details)
            except OSError as error:
                # the program's results matter more than their log
                self.close()
                warnings.warn(f"the trace {target.path} ended early: {error}", ConfigWarning, stacklevel=2)

    def _line(self, at: float, kind: str, component: str, command: str, details: str) -> None:
        file = self._target.file
        assert file is not None
        self._count += 1
        details = " ".join(details.split())
        head = f"{at:10.6f}s | #{self._count:04d} | {kind:<8} | {component:<8} | {command:<8}"
        file.write(f"{head} | {details}\n".encode(errors="replace"))

    def _thread(self, at: float) -> int:
        """Return the number of the current thread; the first time, write its name."""
        number: int | None = getattr(self._own, "number", None)
        if number is None:
            main = threading.current_thread() is threading.main_thread()
            self._others += not main
            number = self._own.number = 1 if main else 1 + self._others
            self._line(at, "THREAD", "CLIENT", "started", f"name={threading.current_thread().name} thread={number}")
        return number

    def _open(self, prefix: str, at: float) -> None:
        # unbuffered, so that a killed process leaves complete lines
        try:
            self._target.file = FileIO(f"{prefix}.log", "x")
        except FileExistsError:  # another process of the run uses it
            self._target.file = FileIO(f"{prefix}.{os.getpid()}.log", "a")
        self._end = at + self._seconds
        wall = time.time() - (time.perf_counter() - START)
        script = printable(" ".join(map(str, sys.argv))) or "python"
        run = os.path.basename(prefix)
        details = f"pid={os.getpid()} rank={RANK} wall={wall:.6f} run={run} argv={script}"
        self._line(at, "START", "CLIENT", "process", details)


log = TraceLog()
"""The log of this process."""

config.watch(log.configure)
atexit.register(log.close)
if hasattr(os, "register_at_fork"):  # some systems lack it
    os.register_at_fork(after_in_child=log.forked)
