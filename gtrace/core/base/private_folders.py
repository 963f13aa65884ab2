"""Folders and files that only this user or root can have written. Code is loaded and compiled from no others.

The rule is ssh's rule for keys. A folder belongs to this user or to root, and neither group nor others can write to
it. The same holds for all folders above it. A sticky folder such as `/tmp` may be open to all. Links on
the way belong to this user or to root.
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from gtrace.core.base.errors import CacheError

_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_LINKS = 40
"""The maximal number of links on the way to a folder, as in Linux."""


def why_untrusted(folder: Path, shared: bool = False) -> str:
    """Return why another user could have written the content of a folder; empty if none could.

    Args:
        shared: whether the folder itself may be sticky too. Then the caller must check each of its files.

    Raises:
        OSError: the folder, or one above it, is missing or unreadable.
    """
    why = _why_on_the_way(folder)
    if why or shared:
        return why
    status = os.stat(folder)
    return _why(folder, status) if stat.S_ISDIR(status.st_mode) else f"{folder} is not a folder"


def make_private(folder: Path) -> Path:
    """Return a folder that only this user or root can write to; make missing folders on the way.

    Raises:
        CacheError: it exists, and another user could have written its content.
        OSError: it cannot be made.
    """
    missing = []
    path = Path(os.path.abspath(folder))
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)  # another process may make it at the same time
    why = why_untrusted(folder)
    if why:
        raise CacheError(why)
    return folder


def read_trusted(path: Path, links: bool = False) -> bytes:
    """Return the content of a file that only this user or root can have written.

    Args:
        links: whether the path may be a link, and whether the folders on the way are checked. A caller that has
            checked the folder needs neither.

    Raises:
        CacheError: another user could have written it, or it is not a regular file.
        OSError: it cannot be read.
    """
    # O_NONBLOCK: opening a pipe must not wait
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if links else getattr(os, "O_NOFOLLOW", 0))
    flags |= getattr(os, "O_BINARY", 0)  # otherwise Windows changes the ends of lines
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        why = "" if stat.S_ISREG(status.st_mode) else f"{path} is not a plain file"
        why = why or _why(path, status) or (_why_on_the_way(path) if links else "")
        if why:
            raise CacheError(why)
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def temporary_folder(prefix: str = "gtrace-") -> Path:
    """Make a private folder inside the temporary folder; the caller removes it.

    Args:
        prefix: the beginning of its name.

    Raises:
        CacheError: another user could replace it.
        OSError: it cannot be made.
    """
    # the C++ compiler reads these variables in another order than Python does
    given = [os.environ.get(name) for name in ("TMPDIR", "TMP", "TEMP")]
    for parent in dict.fromkeys((tempfile.gettempdir(), *(path for path in given if path and os.path.isdir(path)))):
        why = why_untrusted(Path(parent), shared=True)
        if why:
            raise CacheError(f"{why}. Set TMPDIR to a folder of yours")
    return Path(tempfile.mkdtemp(prefix=prefix))


def cache_folder() -> Path:
    """Return the user's folder for gtrace; without a home folder, one in the temporary folder."""
    try:
        folder = Path(platformdirs.user_cache_dir("gtrace", appauthor=False))
    except (RuntimeError, KeyError):  # neither the environment nor the system knows a home folder
        return _second_folder()
    return folder if folder.is_absolute() else _second_folder()


def make_cache_folder(name: str) -> Path:
    """Return a private folder for compilers, in the user's cache folder or else in the temporary one.

    Raises:
        CacheError: another user could have written to both.
        OSError: neither can be made.
    """
    try:
        return make_private(cache_folder() / name)
    except OSError:  # the home folder is read-only, or belongs to another user
        return make_private(_second_folder() / name)


def _second_folder() -> Path:
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    return Path(tempfile.gettempdir()) / f"gtrace-{user}"


def _why_on_the_way(path: Path) -> str:
    if not hasattr(os, "geteuid"):  # Windows: a user's folders are closed to others by default
        return ""
    return next(filter(None, (_why(inner, status, sticky=True) for inner, status in _way(path))), "")


def _way(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each folder and link on the way to a path, and the path itself."""
    waiting = list(reversed(Path(os.path.abspath(folder)).parts[1:]))
    path, links = Path(os.path.abspath(os.sep)), 0
    yield path, os.lstat(path)
    while waiting:
        part = waiting.pop()
        if part == os.pardir:
            path = path.parent
            continue
        inner = path / part
        status = os.lstat(inner)
        yield inner, status
        if not stat.S_ISLNK(status.st_mode):
            path = inner
            continue
        links += 1
        if links > _LINKS:
            raise OSError(f"{folder} has too many links")
        target = Path(os.readlink(inner))
        if target.is_absolute():
            path = Path(target.anchor)
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _why(path: Path, status: os.stat_result, sticky: bool = False) -> str:
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user"
    if stat.S_ISLNK(status.st_mode):  # the mode of a link has no meaning
        return ""
    if status.st_mode & _OTHERS and not (sticky and status.st_mode & stat.S_ISVTX):
        return f"{path} can be written by others (chmod go-w {shlex.quote(os.fspath(path))} closes it to them)"
    return ""
