"""Files that somebody names: a pipe in the place of one is not waited for, and no device is read without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def read_plain(path: str | Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, or is a pipe, a device or a folder.
    """
    handle = os.open(path, os.O_RDONLY | _NO_WAIT | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", os.fspath(path))
        return file.read()


def open_log(path: str) -> int:
    """Open a file to append to, which may be a pipe or a device.

    Writing never waits: where a pipe is full, an OSError is raised.

    Raises:
        OSError: it cannot be written, or is a pipe that nobody reads.
    """
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_WAIT | getattr(os, "O_BINARY", 0), 0o666)
