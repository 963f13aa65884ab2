"""The store: compiled programs and the ledger on disk, for every process of the user.

One folder, flat. An artifact is ``NAME.json``, which says what it is, and the file that this names, ``NAME.DIGEST.so``;
the name is a digest of all that the compiled code depends on. Files are written aside, then renamed, the code before
its description, and code is never replaced: whatever is killed at whatever moment, a description leads to the code it
was written with. Nothing here is unpickled; a description is believed only if it has the digest that it states of
itself, and code is loaded only if it has the one that its description states.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from gtrace.errors import CacheError, CacheWarning

FORMAT = 2
"""Of the descriptions; others are not read."""

MAX_FILES = 4096
"""Artifacts kept, whatever their size."""

LEDGER = "ledger.json"
MAX_LEDGER = 4096
"""Signatures in the ledger."""

STALE_SECONDS = 3600.0
"""Age at which files that belong to nothing are leftovers of something that was killed."""


class Store:
    """A folder of artifacts. Problems with it cost one warning each, never a result.

    Args:
        folder: created when it is first written to.
        limit: bytes kept; the least recently used go first.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._families: dict[str, list[str]] | None = None
        self._warned: set[str] = set()
        self._refused: str | None = None
        self._empty = True

    # -- reading

    def find(self, name: str) -> dict[str, Any] | None:
        """Return the description of an artifact, or of what became of one; None if there is none."""
        if not self._trusted():
            return None
        path = self.folder / f"{name}.json"
        try:
            told = json.loads(_read_own(path))
            if told["format"] != FORMAT or told["name"] != name:
                raise ValueError("it describes something else")
            if told["seal"] != seal(told):
                raise ValueError("its content is not what was written")
            return told
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, CacheError) as error:
            self._damaged(path, error)
            return None

    def code(self, told: dict[str, Any]) -> Path | None:
        """Return the path of an artifact's code, verified; None, with a warning, if it is not what it should be."""
        path = self.folder / told["file"]
        try:
            if path.parent != self.folder or hashlib.sha256(_read_own(path)).hexdigest() != told["sha256"]:
                raise ValueError("its content is not what was written")
        except (OSError, ValueError, KeyError, TypeError, CacheError) as error:
            self._damaged(self.folder / f"{told['name']}.json", error)
            return None
        with contextlib.suppress(OSError):  # a folder that can only be read is as good, but for the order of use
            os.utime(self.folder / f"{told['name']}.json")
        return path

    def family(self, family: str) -> list[dict[str, Any]]:
        """Return the descriptions of the artifacts for open sizes of one family."""
        if self._families is None:
            self._families = {}
            for name in self._names():
                if "-" in name:
                    self._families.setdefault(name.partition("-")[0], []).append(name)
        found = [self.find(name) for name in self._families.get(family, ())]
        return [told for told in found if told is not None]

    def empty(self) -> bool:
        """Whether there is nothing to find, so that nothing need be looked for."""
        if self._empty:
            self._empty = not self._names()
        return self._empty

    def all(self) -> list[dict[str, Any]]:
        """Return every description, the least recently used first."""
        dated = []
        for name in self._names():
            with contextlib.suppress(OSError):
                dated.append((os.stat(self.folder / f"{name}.json").st_mtime, name))
        found = [self.find(name) for _, name in sorted(dated)]
        return [told for told in found if told is not None]

    def _names(self) -> list[str]:
        if not self._trusted():
            return []
        try:
            return sorted(
                f.removesuffix(".json") for f in os.listdir(self.folder) if f.endswith(".json") and f != LEDGER
            )
        except OSError:
            return []

    # -- writing

    def put(self, name: str, told: dict[str, Any], code: Path | None = None) -> Path | None:
        """Keep an artifact, or, without code, what became of one; returns where the code is now.

        If it cannot be kept, that costs a warning, and the result is None.
        """
        try:
            self._make()
            told = {**told, "format": FORMAT, "name": name}
            kept = None
            if code is not None:
                content = code.read_bytes()
                told["sha256"] = hashlib.sha256(content).hexdigest()
                told["file"] = f"{name}.{told['sha256'][:12]}{code.suffix}"
                told["bytes"] = len(content)
                kept = self.folder / told["file"]
                self._write(kept, content)  # whatever was there: it may be damaged
            self._describe(name, told)
            if "-" in name and self._families is not None:
                names = self._families.setdefault(name.partition("-")[0], [])
                if name not in names:
                    names.append(name)
            self.prune()
            return kept
        except (OSError, CacheError) as error:
            self._once("write", f"compiled programs are not kept: {error}. Set GT_CACHE_DIR to a folder that can be"
                       " written, or GT_CACHE_SIZE=0.")  # fmt: skip
            return None

    def amend(self, name: str, **fields: Any) -> None:
        """Change fields of a description, if there is one; None removes a field."""
        told = self.find(name)
        if told is not None:
            kept = {k: v for k, v in {**told, **fields}.items() if v is not None}
            try:
                self._describe(name, kept)
            except OSError as error:
                self._once("write", f"{self.folder} cannot be written: {error}.")

    def refuse(self, name: str, error: Exception) -> None:
        """Remove an artifact that could not be used."""
        self._damaged(self.folder / f"{name}.json", error)

    def remove(self, name: str) -> None:
        """Forget an artifact."""
        with contextlib.suppress(OSError):
            # the description goes first: it never leads to nothing
            files = sorted((f for f in os.listdir(self.folder) if f.startswith(f"{name}.")), key=len)
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.folder / file)
        self._families = None

    def prune(self, limit: int | None = None) -> int:
        """Remove leftovers, and the least recently used artifacts beyond the limit; returns how many artifacts."""
        limit = self.limit if limit is None else limit
        sizes: dict[str, int] = {}
        used: dict[str, float] = {}
        stale: dict[str, list[str]] = {}
        old = time.time() - STALE_SECONDS
        if not self._trusted():
            return 0
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    name = entry.name.partition(".")[0]
                    if entry.name.endswith(".json") and entry.name != LEDGER:
                        used[name] = status.st_mtime
                    elif entry.name.startswith("tmp-") or entry.name.endswith((".so", ".pt2")):
                        if status.st_mtime < old:
                            stale.setdefault(name, []).append(entry.path)
                    sizes[name] = sizes.get(name, 0) + status.st_size
        for name, paths in stale.items():
            for path in paths if name not in used else ():
                with contextlib.suppress(OSError):
                    os.unlink(path)
        total, removed = sum(sizes.values()), 0
        for name in sorted(used, key=used.__getitem__):
            if total <= limit and len(used) - removed <= MAX_FILES:
                break
            self.remove(name)
            total -= sizes[name]
            removed += 1
        return removed

    def clear(self) -> int:
        """Remove everything; returns how many artifacts that were."""
        names = self._names()
        if self._trusted():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._families = None
        return len(names)

    def check(self) -> tuple[int, int]:
        """Return how many artifacts there are, and their bytes.

        Raises:
            OSError, CacheError: the folder cannot be written, or must not be trusted.
        """
        self._make()
        probe = self.folder / f"tmp-probe-{os.getpid()}"
        self._write(probe, b"")
        os.unlink(probe)
        known = self.all()
        return len(known), sum(told.get("bytes", 0) for told in known)

    # -- the ledger

    def ledger(self) -> dict[str, dict[str, Any]]:
        """Return what earlier processes noted of each signature."""
        if not self._trusted():
            return {}
        path = self.folder / LEDGER
        try:
            told = json.loads(_read_own(path))
            return {k: v for k, v in told.items() if isinstance(v, dict)}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, CacheError) as error:
            self._damaged(path, error)
            return {}

    def note(self, entries: dict[str, dict[str, Any]]) -> None:
        """Add numbers to what the ledger has of each signature; other fields are replaced."""
        if not entries:
            return
        try:
            self._make()
            with filelock.FileLock(self.folder / "ledger.lock", timeout=5):
                known = self.ledger()
                for signature, fields in entries.items():
                    before = known.pop(signature, {})
                    for key, value in fields.items():
                        number = isinstance(value, (int, float)) and not isinstance(value, bool)
                        before[key] = before.get(key, 0) + value if number else value
                    known[signature] = before  # the latest last
                kept = dict(list(known.items())[-MAX_LEDGER:])
                self._write(self.folder / LEDGER, json.dumps(kept).encode())
        except (OSError, CacheError, filelock.Timeout) as error:
            self._once("write", f"the ledger is not kept: {error}.")

    # -- files

    def _make(self) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        reason = _untrustworthy(self.folder)
        if reason:
            raise CacheError(f"{self.folder} {reason}")

    def _trusted(self) -> bool:
        if self._refused is None:
            try:
                self._refused = _untrustworthy(self.folder)
            except FileNotFoundError:
                return False
            except OSError as error:
                self._refused = f"cannot be read: {error}"
            if self._refused:
                text = (
                    f"{self.folder} {self._refused}. What it holds is not used; set GT_CACHE_DIR to a folder of yours."
                )
                self._once("trust", text)
        return not self._refused

    def _write(self, path: Path, content: bytes) -> None:
        handle, aside = tempfile.mkstemp(prefix="tmp-", dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            with contextlib.suppress(OSError):  # it is there only if something was raised
                os.unlink(aside)

    def _describe(self, name: str, told: dict[str, Any]) -> None:
        self._write(self.folder / f"{name}.json", json.dumps({**told, "seal": seal(told)}, indent=1).encode())

    def _damaged(self, path: Path, error: Exception) -> None:
        self._once("damaged", f"{path} cannot be used and is removed: {error}. The program is compiled again.")
        with contextlib.suppress(OSError):
            os.unlink(path)

    def _once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"[store] {text}", CacheWarning, stacklevel=2)


def seal(told: dict[str, Any]) -> str:
    """Return a digest of a description, which is kept in it: one that was damaged or made by others is not believed."""
    fields = {k: v for k, v in told.items() if k != "seal"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _untrustworthy(folder: Path) -> str:
    """Return why files of a folder must not be loaded; empty if they may be."""
    status = os.stat(folder)
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        return "belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by others"
    return ""


def _read_own(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        CacheError: it is not a plain file of this user.
        OSError: it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
            raise CacheError("it is not a file of this user")
        return file.read()


def default_folder() -> Path:
    """Return the folder for compiled programs in the user's cache folder."""
    return Path(platformdirs.user_cache_dir("gtrace", appauthor=False)) / "programs"


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Make a folder for one compile, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gtrace-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
