"""Folders of compiles in progress and of loaded packages, in the temporary folder.

What a process left that is gone is cleared by the next.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from gtrace.core.base.locks import new_lock
from gtrace.core.base.private_folders import temporary_folder

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no locks of this kind
    fcntl = None  # type: ignore[assignment]

PREFIX = "gtrace-compile-"
_NAME = re.compile(re.escape(PREFIX) + r"\w{8}")

IN_USE = "in-use"
"""A file in each folder, locked by the process that uses it: the system gives the lock back when the process ends."""

CLEAR_SECONDS = 10.0
"""How often a process looks for abandoned folders. Its own children, such as those of a pool, may leave some."""

_cleared: dict[Path, float] = {}
"""When this process has looked through a temporary folder."""


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Make a folder for one compile, removed afterwards.

    Raises:
        OSError: there is no place for it; a CacheError: another user could replace it.
    """
    folder, owner = temporary_folder(PREFIX), os.getpid()
    try:
        now = time.monotonic()
        if now - _cleared.get(folder.parent, -CLEAR_SECONDS) >= CLEAR_SECONDS:
            _cleared[folder.parent] = now
            clear_abandoned(folder.parent)
        handle = _use(folder)
        try:
            yield folder
        finally:
            os.close(handle)
    finally:
        if os.getpid() == owner:  # a fork must not remove what its parent uses
            shutil.rmtree(folder, ignore_errors=True)


class Unpacked:
    """A folder for the files of a package that is loaded, which torch unpacks into the temporary folder.

    It exists until `remove`, or as long as this object; see `workspace` for a process that is killed.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self) -> None:
        files = contextlib.ExitStack()
        self._folder = files.enter_context(workspace())
        self.remove = weakref.finalize(self, files.close)

    @contextlib.contextmanager
    def unpacking(self) -> Iterator[None]:
        """Within the block, torch unpacks into the folder."""
        with _unpacking:
            before = os.environ.get("TMPDIR")
            tempfile.gettempdir()  # Python's own stays what it is
            os.environ["TMPDIR"] = str(self._folder)
            try:
                yield
            finally:
                if before is None:
                    os.environ.pop("TMPDIR", None)
                else:
                    os.environ["TMPDIR"] = before


_unpacking = new_lock()


def clear_abandoned(place: Path) -> None:
    """Remove the folders of this user's compiles whose process is gone."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # it is in use, or somebody else clears it
                    _clear(Path(entry.path))


def _use(folder: Path) -> int:
    """Lock a folder for as long as the returned file is open."""
    path = folder / f"{IN_USE}.new"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: nobody may take this folder for an abandoned one
            return handle
        # others look for this name: they never see it without the lock
        os.rename(path, folder / IN_USE)
    return handle


def _clear(folder: Path) -> None:
    """Remove a folder that nobody uses.

    Raises:
        OSError: it is in use, or none of this user's.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    handle = os.open(folder / IN_USE, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
