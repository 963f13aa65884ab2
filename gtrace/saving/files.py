"""A folder for one writer: a process locks it while it saves there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
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

_held: set[int] = set()
"""The open files of the locks that this process holds."""


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
    _held.add(handle)
    try:
        yield
    finally:
        _held.discard(handle)
        path.unlink(missing_ok=True)
        os.close(handle)


def _forked() -> None:
    while _held:  # otherwise a process that outlives its parent keeps the lock
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):  # some systems lack it
    os.register_at_fork(after_in_child=_forked)
