"""Files that are written whole or not at all, also if the process is killed or the machine stops."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def write_aside(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file beside `path`, and put it in the place of `path`.

    Threads, processes and machines may do so at once: each has a name aside of its own.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        write(aside)
        sync(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    folder = path.is_dir()
    if folder and not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)  # Windows syncs no file that is only read
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
