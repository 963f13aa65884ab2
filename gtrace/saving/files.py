"""Files that are written whole or not at all, also if the process is killed or the machine stops."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_aside(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file beside `path`, and put it in the place of `path`."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(aside)
        sync(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
