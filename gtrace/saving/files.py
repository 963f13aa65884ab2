"""Files that are written completely or not at all, even if the process is killed or the machine stops."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gtrace.core.base.errors import CheckpointError, message

try:
    import fcntl
except ImportError:  # some systems lack it
    fcntl = None  # type: ignore[assignment]

LOCK = ".saving"
"""The file that a process locks while it writes a checkpoint, and then removes."""

LOCK_SECONDS = 10.0
"""Seconds that a process waits for another one that writes to the same folder."""


def write_aside(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file beside `path`, and move it to `path`.

    Threads, processes and machines may do so at once, because each has its own name for the new file.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write(aside)
        sync(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """In the block, no other process or thread is in such a block for this folder. A missing folder is made.

    A killed process leaves the file, but not its lock.

    Raises:
        CheckpointError: another process does not leave such a block.
        OSError: the folder is not writable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    path, until = folder / LOCK, time.monotonic() + LOCK_SECONDS
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the earlier owner of the lock removed the file, so another process may have made a new one
            if path.exists() and os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        except BlockingIOError:
            pass
        except FileNotFoundError:  # removed in between
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if time.monotonic() > until:
            fix = "Give each run a folder of its own, or let only one process save."
            raise CheckpointError(message("save_checkpoint", "a folder for itself", f"{folder} in use", fix))
        time.sleep(0.05)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    folder = path.is_dir()
    if folder and not hasattr(os, "O_DIRECTORY"):  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)  # Windows does not sync files opened for reading
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
