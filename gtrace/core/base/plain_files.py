"""Files that somebody names: a pipe in the place of one is not waited for, and no device is read without end."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

READER_SECONDS = 5.0
"""How long a full pipe is waited for."""

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


class Log:
    """A file to append texts to, which may be a pipe or a device.

    Args:
        mode: the permissions of a new file, without those that the process takes away.

    Raises:
        OSError: it cannot be written, or is a pipe that nobody reads.
    """

    def __init__(self, path: str, mode: int = 0o666) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_WAIT | getattr(os, "O_BINARY", 0)
        self._handle = os.open(path, flags, mode)

    def write(self, text: str) -> None:
        """Append a text, at once if the file takes it.

        Raises:
            OSError: it cannot be written, or the reader of a full pipe read nothing for `READER_SECONDS`.
        """
        # names of files may have bytes that are no text
        rest = memoryview(text.encode(errors="backslashreplace"))
        while rest:
            try:
                rest = rest[os.write(self._handle, rest) :]
            except BlockingIOError:
                if not select.select([], [self._handle], [], READER_SECONDS)[1]:
                    raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
