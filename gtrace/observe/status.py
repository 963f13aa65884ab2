"""The status of this process for ``gtrace top``: a socket in a private folder of its user.

A thread waits at the socket and works only on request. The folder has a socket PID.sock for each program.
"""

from __future__ import annotations

import atexit
import contextlib
import heapq
import importlib
import json
import os
import socket
import stat
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from gtrace.core.base.config import Config, config, process_rank
from gtrace.core.base.errors import ConfigWarning
from gtrace.core.base.locks import new_lock
from gtrace.core.base.threads import start_thread
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.worker.client import worker
from gtrace.observe.stats import snapshot

SHOWN = 20
"""The number of reported programs."""

PAUSE = 0.05
"""The minimal seconds between two answers, so that endless requests cost the program little."""


LONGEST = 80
"""The maximal length of the folder's path; the path of a socket has at most 107 letters."""


def folders() -> list[Path]:
    """Return folders for the sockets of the user's programs; the first holds that of this process.

    Other programs may have another environment: one started by cron has no runtime folder.

    Raises:
        OSError: the system has no such sockets.
    """
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "getuid"):
        raise OSError("this system has no Unix sockets")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # after `su`, the variable names another user's folder
    paths = [Path(runtime, "gtrace")] if runtime and os.access(runtime, os.W_OK) else []
    paths += [Path(parent, f"gtrace-{os.getuid()}") for parent in (os.environ.get("TMPDIR") or "/tmp", "/tmp")]
    return list(dict.fromkeys(path for path in paths if len(str(path)) <= LONGEST))


def is_private(path: Path) -> bool:
    """Whether a folder exists and belongs to the user alone."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def folder() -> Path:
    """Return the folder of this process's socket.

    Raises:
        OSError: it cannot be made, or belongs to somebody else.
    """
    path = folders()[0]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(path):
        raise PermissionError(f"{path} is not a folder of this user's alone")
    return path


def status() -> dict[str, Any]:
    """Return the status of this process. Times are in seconds; `programs` holds the `SHOWN` most expensive ones."""
    programs = list(engine.programs.values())
    most = heapq.nlargest(SHOWN, programs, key=lambda program: program.ledger.seconds)
    return {
        "pid": os.getpid(),
        "command": [str(argument) for argument in sys.argv],
        "rank": process_rank(),
        "at": time.monotonic(),
        "programs": [_row(program) for program in most if program.ledger.calls or program.ledger.compile_seconds],
        "count": len(programs),
        "calls": sum(program.ledger.calls for program in programs),
        "compiles": engine.tiering.compiles,
        "loaded": engine.tiering.loaded,
        "pending": worker.pending,
        "worker": _worker(),
        "memory": _memory(),
        "gpu": torch.cuda.memory_allocated() if torch.cuda.is_initialized() else None,
        "store": None if artifacts.store is None else str(artifacts.store.folder),
    }


def _row(program: Program) -> dict[str, Any]:
    ledger = snapshot(program, engine)
    names = list(dict.fromkeys(ledger.ops))
    return {
        "signature": ledger.signature, "ops": len(ledger.ops), "names": names[:8], "tier": ledger.tier,
        "calls": ledger.calls, "seconds": program.ledger.seconds, "compiling": ledger.compiling,
        "verdict": ledger.verdict,
    }  # fmt: skip


def _worker() -> str:
    if worker.pid is None:
        return "compiling" if worker.pending else "none"
    return f"{'paused' if worker.paused else 'compiling' if worker.pending else 'idle'}, process {worker.pid}"


def _memory() -> int:
    """Return the current memory of this process in bytes; the peak if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        resource = importlib.import_module("resource")  # some systems lack it
        most: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class StatusServer:
    """Answers requests while the settings enable it."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._socket: socket.socket | None = None
        self._path: Path | None = None

    def configure(self, settings: Config) -> None:
        """Start or stop, by `settings`. If the socket fails, the program runs on after a warning."""
        with self._lock:
            if settings.status and self._socket is None:
                try:
                    self._open()
                except OSError as error:
                    text = f"gtrace top cannot watch this program: {error}. Set GT_STATUS=0, or TMPDIR."
                    warnings.warn(text, ConfigWarning, stacklevel=2)
            elif not settings.status:
                self.close()

    def _open(self) -> None:
        path = folder() / f"{os.getpid()}.sock"
        path.unlink(missing_ok=True)  # left by an earlier process with this number
        made = socket.socket(socket.AF_UNIX)
        try:
            made.bind(str(path))
            path.chmod(0o600)
            made.listen(4)
        except OSError:
            made.close()
            raise
        self._socket, self._path = made, path
        if start_thread(self._serve, "gtrace status", made) is None:
            self.close()
            raise OSError("no thread can be started")

    def close(self) -> None:
        """Stop, and remove the socket."""
        with self._lock:
            made, self._socket = self._socket, None
            path, self._path = self._path, None
        if made is not None:
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)  # wakes the thread
            made.close()
        if path is not None:
            path.unlink(missing_ok=True)

    def forked(self) -> None:
        """Leave the socket to the parent of this forked process, which is the program that people watch."""
        made, self._socket, self._path = self._socket, None, None
        if made is not None:
            made.close()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                if self._socket is not listening:
                    return
                time.sleep(PAUSE)  # too many open files, for now
                continue
            with connection, contextlib.suppress(OSError):  # the client may be gone
                connection.settimeout(2.0)
                connection.sendall(json.dumps(status()).encode())
            time.sleep(PAUSE)


server = StatusServer()
"""The server of this process."""

config.watch(server.configure)
atexit.register(server.close)
if hasattr(os, "register_at_fork"):  # some systems lack it
    os.register_at_fork(after_in_child=server.forked)
