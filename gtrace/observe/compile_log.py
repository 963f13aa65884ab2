"""The compile log: one line on stderr for each event of the compiler, while ``config.debug_compile`` is 1 or 2."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gtrace.core.base.config import Config, config
from gtrace.core.base.events import (
    CompileFailed,
    CompileFinished,
    CompileStarted,
    Detected,
    Event,
    Judged,
    Loaded,
    Recompiling,
    bus,
)
from gtrace.core.ir.signature import short

MAX_NAMES = 12
"""How many operations of a hot sequence are named; the others are counted."""


def describe(event: Event, level: int) -> str:
    """Return the log's text for `event`, without the mark. At level 2 a traceback adds lines.

    >>> describe(CompileStarted("abc123def456", 9), 1)
    'Compiling sequence abc123def456 (9 ops)'
    """
    match event:
        case Detected(signature=signature, ops=ops, calls=calls, seconds=seconds):
            names = " -> ".join(ops[:MAX_NAMES])
            more = f" -> ... ({len(ops) - MAX_NAMES} more)" if len(ops) > MAX_NAMES else ""
            times = "1 time" if calls == 1 else f"{calls} times"
            return (
                f"Detected hot sequence: {names}{more}"
                f" (signature {short(signature)}, executed {times}, {seconds * 1e3:.1f} ms spent)"
            )
        case Recompiling(signature=signature, change=change):
            return f"Recompiling {short(signature)}: {change}"
        case CompileStarted(signature=signature, ops=ops, background=background):
            return f"Compiling sequence {short(signature)} ({ops} ops){' in the background' * background}"
        case Loaded(signature=signature, seconds=seconds):
            return f"Loaded {short(signature)} from the cache ({seconds * 1e3:.1f} ms)"
        case CompileFinished(seconds=seconds):
            return f"Compilation complete ({seconds:.1f}s)"
        case CompileFailed(reason=reason, traceback=traceback):
            head = f"Compilation failed, interpreting instead: {' '.join(reason.split())}"
            if level >= 2:
                return f"{head}\n{traceback.rstrip()}"
            return f"{head} (GT_DEBUG_COMPILE=2 for the traceback)"
        case Judged(demoted=True, signature=signature, compiled=compiled, interpreted=interpreted):
            return (
                f"Demoted {short(signature)}: compiled {compiled * 1e3:.2f} ms, interpreted {interpreted * 1e3:.2f} ms"
            )
        case Judged(compiled=compiled, interpreted=interpreted):
            return f"Speedup: {interpreted / compiled:.1f}x on subsequent executions"
    raise TypeError(f"the compile log does not know {event!r}")


class CompileLog:
    """Subscribes to the bus while the settings enable it."""

    def __init__(self) -> None:
        self._level = 0
        self._stop: Callable[[], None] | None = None

    def configure(self, settings: Config) -> None:
        """Start, stop or change the level, by `settings`."""
        self._level = settings.debug_compile
        if self._level and self._stop is None:
            kinds = (Detected, Recompiling, CompileStarted, CompileFinished, CompileFailed, Judged, Loaded)
            self._stop = bus.subscribe(self._write, *kinds)
        elif not self._level and self._stop is not None:
            self._stop()
            self._stop = None

    def _write(self, event: Event) -> None:
        # one write, so that lines of several threads do not mix; to the current stderr
        sys.stderr.write(f"[COMPILE] {describe(event, self._level)}\n")
        sys.stderr.flush()


log = CompileLog()
"""The log of this process."""

config.watch(log.configure)
