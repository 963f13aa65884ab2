"""``gtrace trace SCRIPT``: run a script, and write what it did as instruction logs and as a Chrome trace."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gtrace.commands.run import execute, read, say
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError
from gtrace.core.base.locks import new_lock
from gtrace.core.base.threads import start_timer
from gtrace.core.base.units import duration_text
from gtrace.core.base.whole_files import write_text
from gtrace.observe.chrome import chrome_trace
from gtrace.observe.timeline import read_timelines


def trace(
    script: str, args: Sequence[str], *, seconds: float | None, folder: str, workers: int = 1, module: bool = False
) -> int:
    """Run a script as ``__main__``; write its log and Chrome trace to a folder at its end, or after `seconds`.

    Processes that the script starts write logs of their own, and are in the same trace.

    Args:
        workers: so many processes that share the work.
        module: `script` is the name of a module, as after ``python -m``.

    Returns:
        The exit code: 2 if the script or the folder cannot be used, 1 if the script raised, else 0. A script that exits
        does so itself.
    """
    source = read("trace", script, module)
    if source is None:
        return 2
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("permission denied")
    except OSError as error:
        reason = error.strerror or str(error)
        say(f"gtrace trace: expected a folder to write to, got {folder!r}: {reason}. Name one by --dir.")
        return 2
    files = TraceFiles(_free_prefix(Path(folder), script if module else Path(script).stem))
    # for the processes that the script starts
    os.environ["GT_TRACE"] = str(files.prefix)
    if seconds is not None:
        os.environ["GT_TRACE_SECONDS"] = str(seconds)
    if workers > 1:
        return _launch(files, workers, script, args, module)
    config.update(trace=str(files.prefix), **({} if seconds is None else {"trace_seconds": seconds}))
    config.default(status=True)
    # at the end of the process: after the script's threads, exit handlers and traceback
    atexit.register(files.write, os.getpid())
    if seconds is not None:
        start_timer(files.end, "gtrace trace", seconds, os.getpid())  # without it, the log ends by itself
    return execute(source, args)


class TraceFiles:
    """The files of one run, which are written once.

    Attributes:
        prefix: their path without suffix.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._lock = new_lock()
        self._written = False

    def end(self, process: int) -> None:
        """End the trace, and write it."""
        config.update(trace=None)
        self.write(process)

    def write(self, process: int) -> None:
        """Write the Chrome trace of all logs, and say where they are.

        Args:
            process: the process that may do it, and not a fork of it.
        """
        with self._lock:
            if os.getpid() != process or self._written:
                return
            self._written = True
        os.environ.pop("GT_TRACE", None)
        config.update(trace=None)
        logs = sorted(self.prefix.parent.glob(f"{self.prefix.name}.log")) + sorted(
            self.prefix.parent.glob(f"{self.prefix.name}.*.log")
        )
        if not logs:
            say("gtrace trace: nothing was recorded: the script made no Array.")
            return
        path = self.prefix.with_name(self.prefix.name + ".json")
        try:
            (timeline,) = read_timelines(logs)
            write_text(path, json.dumps(chrome_trace(timeline)))
        except (OSError, ArgumentError) as error:  # the script has removed the folder, or the disk is full
            say(f"gtrace trace: expected to write {path}, got {error}.")
            return
        command = shlex.join(["gtrace", "visualize", *map(str, logs), "--output", f"{self.prefix.name}.html"])
        say(f"gtrace trace: {len(timeline.spans)} spans in {duration_text(timeline.end)}."
            f" Open {path} in ui.perfetto.dev, or:\n"
            f"  {command}")  # fmt: skip


def _free_prefix(folder: Path, stem: str) -> Path:
    """Return the path of files that are not there yet, with the time of the run."""
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in stem)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        prefix = folder.resolve() / f"trace_{name}_{stamp}{f'_{number}' if number else ''}"
        if not any(folder.glob(f"{prefix.name}.*")):
            return prefix
    raise FileExistsError(str(prefix))


def _launch(files: TraceFiles, workers: int, script: str, args: Sequence[str], module: bool) -> int:
    """Run the script in several processes, each with a log, and merge the logs."""
    command = [sys.executable, "-m", "gtrace", "run", "--quiet", "--workers", str(workers)]
    command += [*["-m"] * module, script, *args]
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return process.wait()  # the processes got it too
    finally:
        files.write(os.getpid())
