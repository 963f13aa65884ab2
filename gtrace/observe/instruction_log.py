"""The instruction log: a file with one line, in fixed columns, for each operation recorded, forced, compiled and run.

elapsed   | #line | event    | component | command  | details
  0.100s | #0010 | RECORD   | CLIENT   | matmul   | out=%3 f32[128,256]
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import warnings

from gtrace.core.base.config import Config, config, process_rank
from gtrace.core.base.errors import ConfigError, ConfigWarning
from gtrace.core.base.events import CompileFailed, CompileFinished, CompileStarted, Event, Forced, Ran, Recorded
from gtrace.core.base.plain_files import Log
from gtrace.core.ir.signature import short
from gtrace.observe.event_file import EventFile

RANK = process_rank()


def columns(event: Event) -> tuple[str, str, str, str]:
    """Return event, component, command and details of one line.

    >>> columns(Recorded("matmul", 3, "f32[128,256]"))
    ('RECORD', 'CLIENT', 'matmul', 'out=%3 f32[128,256]')
    """
    match event:
        case Recorded(op=op, value=value, aval=aval):
            return "RECORD", "CLIENT", op, f"out=%{value} {aval}"
        case Forced(cause=cause, location=location, ops=ops):
            return "FORCE", "CLIENT", cause, f"ops={ops} at {location}"
        case CompileStarted(signature=signature):
            return "COMPILE", "WORKER", "Starting", f"sequence={short(signature)}"
        case CompileFinished(signature=signature):
            return "COMPILE", "WORKER", "Complete", f"sequence={short(signature)}"
        case CompileFailed(signature=signature, reason=reason):
            return "COMPILE", "WORKER", "Failed", f"sequence={short(signature)} {' '.join(reason.split())}"
        case Ran(signature=signature, tier=tier):
            return "RUN", f"SHARD {RANK}", "graph", f"sequence={short(signature)} ({tier.upper()})"
    raise TypeError(f"the instruction log does not know {event!r}")


def line(number: int, event: Event) -> str:
    """Return the `number`-th line of the log.

    >>> event = Recorded("matmul", 3, "f32[128,256]")
    >>> line(10, event).partition("| ")[2]  # after the seconds
    '#0010 | RECORD   | CLIENT   | matmul   | out=%3 f32[128,256]'
    """
    kind, component, command, details = columns(event)
    return f"{event.at:7.3f}s | #{number:04d} | {kind:<8} | {component:<8} | {command:<8} | {details}"


class InstructionLog:
    """Subscribes to the bus while the settings name a file.

    The file is opened at the first event, in append mode. So turning the log off and on, or running a second process
    with the same settings, loses nothing. Lines are numbered over the whole process.
    """

    def __init__(self) -> None:
        self._count = 0
        self._target = EventFile[Log](
            self._write, Recorded, Forced, CompileStarted, CompileFinished, CompileFailed, Ran
        )

    def configure(self, settings: Config) -> None:
        """Start, stop or move to another file, by `settings`.

        Raises:
            ConfigError: the file cannot be written.
        """
        path = settings.instruction_log
        if path is not None:
            # the program may change its directory before the first event
            path = os.path.abspath(path)
        if path == self._target.path:
            return
        file = None if path is None else _checked(path)
        self._target.move(path, file)

    def close(self) -> None:
        """Stop listening and close the file."""
        self._target.close()

    def _write(self, event: Event) -> None:
        target = self._target
        with target.lock:
            if not target.open or target.path is None:
                return
            self._count += 1
            try:
                if target.file is None:
                    target.file = Log(target.path)
                target.file.write(line(self._count, event) + "\n")
            except OSError as error:
                # the program's results matter more than their log
                file, target.file = target.file, None
                if file is not None:
                    with contextlib.suppress(OSError):  # closing tries to write the rest again
                        file.close()
                self.close()
                warnings.warn(f"the instruction log {target.path} ended early: {error}", ConfigWarning, stacklevel=2)


def _checked(path: str) -> Log | None:
    """Return the open file, if it is a pipe or a device; None for another one, which the first event opens.

    Raises:
        ConfigError: it cannot be written.
    """
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise _unwritable(path, "it is a directory")
    if not os.path.isdir(folder):
        raise _unwritable(path, f"there is no directory {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise _unwritable(path, "permission denied")
    if os.path.exists(path) and not os.path.isfile(path):
        try:
            return Log(path)
        except OSError as error:
            pipe = error.errno == errno.ENXIO
            raise _unwritable(path, "nobody reads this pipe" if pipe else error.strerror or str(error)) from error
    return None


def _unwritable(path: str, reason: str) -> ConfigError:
    return ConfigError(
        f"[GT_INSTRUCTION_LOG] expected the path of a file that can be written, got {path!r}: {reason}."
        " Name a file in an existing directory."
    )


log = InstructionLog()
"""The log of this process."""

# registered before all handlers of the user's program, so it runs after them
atexit.register(log.close)
config.watch(log.configure)
