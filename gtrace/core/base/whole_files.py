"""Files that are written completely or not at all, even if the process is killed or the machine stops."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new file beside `path`, and move it to `path`. A link there is replaced, and not followed.

    Threads, processes and machines may do so at once, because each has its own name for the new file.

    Raises:
        OSError: it cannot be written, or `path` is a pipe, device or folder.
        Whatever `write` raises.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no plain file", os.fspath(path))
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        write(aside)
        sync(aside)
        os.replace(aside, path)
    except OSError as error:
        if error.filename == os.fspath(aside):  # which the caller does not know
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as `write_aside` does."""
    write_aside(Path(path), lambda aside: aside.write_text(text, encoding="utf-8"))


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
