"""The store: compiled programs and the ledger on disk, for every process of the user.

The store is one flat folder; `gtrace.core.runtime.cache.folder` has the names of its files. An artifact is a manifest
and the file of code that it names. Its name is a digest of all that the compiled code depends on. A program that was
divided among processes is one file. Files are written aside, then renamed, the code before its manifest. Code is never
replaced by other code. So a manifest names the code it was written with, even if a process is killed while it writes.
Those who write or remove take a lock; readers need none. Nothing here is unpickled. A manifest and the code each have
a checksum in the manifest, and neither is used with another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import filelock

from gtrace.core.base import json_fields
from gtrace.core.base.errors import CacheError, CacheWarning
from gtrace.core.base.locks import new_lock
from gtrace.core.base.private_folders import read_trusted
from gtrace.core.partitioner.partitioned import DividedRecord
from gtrace.core.runtime.cache import folder as folders
from gtrace.core.runtime.cache import ledger as ledgers
from gtrace.core.runtime.cache.folder import (
    DIVIDED,
    LEDGER,
    LOCK,
    MANIFEST,
    MARKER,
    REPORT,
    OwnFile,
    Removed,
    write,
)
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.cache.manifest import Manifest, StoredCode, Verdict

MAX_FILES = 4096
"""Artifacts kept, whatever their size."""

LOCK_SECONDS = 5.0
"""How long to wait for others that write, which takes them milliseconds."""

MAX_LEDGER = 4096
"""Signatures in the ledger."""

MAX_TABLE = 4096
"""Texts that a table keeps."""

TABLE_FORMAT = 2
"""Of the JSON of a table; a file of another format is not read."""

MAX_REPORTS = 16
"""Reports of wrong forms that are kept."""

STALE_SECONDS = 3600.0
"""Age at which files without a manifest count as left over by a process that was killed."""


T = TypeVar("T")
Named = TypeVar("Named", Manifest, DividedRecord)


class Store:
    """A folder of artifacts, used by any number of processes and threads.

    Problems with it cost one warning each, never a result.

    Args:
        folder: created when it is first written to. If it holds what gtrace did not make, a subfolder of it is used.
        limit: bytes kept; the least recently used go first.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.given = folder
        self.limit = limit
        self._located: Path | None = None
        self._families: dict[str, tuple[str, ...]] | None = None
        self._lock = new_lock()
        self._warned: set[str] = set()
        self._empty = True

    @property
    def folder(self) -> Path:
        """The folder of its files: the one that was given, or a subfolder of it."""
        try:
            return self._located or folders.locate(self.given)
        except OSError:  # whoever uses it gets that error
            return self.given

    # -- reading

    def find(self, name: str) -> Manifest | None:
        """Return the manifest of an artifact; None if there is none."""
        return self._read(folders.manifest_file(name), lambda text: _named(Manifest.from_json(text), name))

    def _read(self, file: str, parse: Callable[[bytes], T]) -> T | None:
        """Return what a file says, parsed; None if there is none, or, with a warning, if it is damaged."""
        if not self._trusted():
            return None
        path = self.folder / file
        try:
            return parse(read_trusted(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._damaged(path, error)
            return None

    def code(self, manifest: Manifest) -> Path | None:
        """Return the path of an artifact's code, verified; None, with a warning, if it is not what it should be."""
        about = self.folder / folders.manifest_file(manifest.name)
        for last in (False, True):
            try:
                path = self._verified(manifest)
                break
            except (OSError, ValueError) as error:
                # somebody may have just removed it, or removed it and written it again
                if self.find(manifest.name) != manifest:
                    return None
                if last:
                    self._damaged(about, error)
                    return None
        with contextlib.suppress(OSError):  # in a read-only folder only the order of use is lost
            os.utime(about)
        return path

    def _verified(self, manifest: Manifest) -> Path:
        """Return the path of an artifact's code.

        Raises:
            OSError, ValueError: it is not what it should be.
        """
        if manifest.code is None:
            raise ValueError("it names no code")
        digest, suffix = manifest.code.sha256, Path(manifest.code.file).suffix
        if suffix not in folders.CODE or manifest.code.file != folders.code_file(manifest.name, digest, suffix):
            raise ValueError("its code has not the name that was written")
        path = self.folder / manifest.code.file
        if hashlib.sha256(read_trusted(path)).hexdigest() != digest:
            raise ValueError("its code is not what was written")
        return path

    def family(self, family: str) -> list[Manifest]:
        """Return the manifests of the artifacts for open sizes of one family."""
        with self._lock:
            families = self._families
            if families is None:
                families = self._families = _by_family(self._names())
            names = families.get(family, ())
        found = [self.find(name) for name in names]
        return [manifest for manifest in found if manifest is not None]

    def empty(self) -> bool:
        """Whether it has no artifacts, so that lookups can be skipped."""
        if self._empty:
            self._empty = not self._names()
        return self._empty

    def all(self) -> list[Manifest]:
        """Return every manifest, the least recently used first."""
        dated = []
        for name in self._names():
            with contextlib.suppress(OSError):
                dated.append((os.stat(self.folder / folders.manifest_file(name)).st_mtime, name))
        found = [self.find(name) for _, name in sorted(dated)]
        return [manifest for manifest in found if manifest is not None]

    def used(self, manifest: Manifest) -> float:
        """Return when an artifact was last used, in seconds since 1970."""
        try:
            return os.stat(self.folder / folders.manifest_file(manifest.name)).st_mtime
        except OSError:  # another process has just removed it
            return manifest.created

    def _names(self) -> list[str]:
        return sorted(file.artifact for file in self._own_files() if file.kind == MANIFEST)

    def _own_files(self) -> list[OwnFile]:
        if not self._trusted():
            return []
        try:
            return folders.own_files(self.folder)
        except OSError:
            return []

    # -- writing

    def put(self, manifest: Manifest, code: Path | None = None) -> Path | None:
        """Keep an artifact, or, without code, only its manifest; returns where the code is now.

        If it cannot be kept, that costs a warning, and the result is None.
        """
        try:
            kept, content, file = None, b"", ""
            if code is not None:
                content = code.read_bytes()
                if len(content) > self.limit:
                    raise OSError(f"one of {len(content)} bytes is larger than the limit, {self.limit}")
                digest = hashlib.sha256(content).hexdigest()
                file = folders.code_file(manifest.name, digest, code.suffix)
                manifest = attrs.evolve(manifest, code=StoredCode(file, digest, len(content)))
            with self._writing():
                if file:
                    kept = self.folder / file
                    write(kept, content)  # whatever was there: it may be damaged
                self._write_manifest(manifest)
            self._forget_index()
            self.prune(but=manifest.name)
            return kept
        except OSError as error:
            self._once("write", f"compiled programs are not kept: {error}. Set GT_CACHE_DIR to a folder that can be"
                       " written, or GT_CACHE_SIZE to another limit; 0 keeps none.")  # fmt: skip
            return None

    def set_verdict(self, name: str, verdict: Verdict | None) -> None:
        """Note why an artifact is not to be used, or, with None, that it is; nothing if there is no such artifact."""
        if self.find(name) is None:
            return
        try:
            with self._writing():
                manifest = self.find(name)
                if manifest is not None:
                    self._write_manifest(attrs.evolve(manifest, verdict=verdict))
        except OSError as error:
            self._once("write", f"{self.folder} cannot be written: {error}.")

    def refuse(self, name: str, error: Exception) -> None:
        """Remove an artifact that could not be used."""
        self._damaged(self.folder / folders.manifest_file(name), error)

    def remove(self, name: str) -> Removed | None:
        """Forget an artifact; returns what was removed, or None if that could not be done."""
        try:
            with self._writing():
                # the manifest goes first, so that it never names a missing file
                own = [file for file in self._own_files() if file.artifact == name]
                gone = folders.unlink(sorted(own, key=lambda file: file.kind == "code"))
                return attrs.evolve(gone, artifacts=min(gone.files, 1))
        except OSError:
            return None
        finally:
            self._forget_index()

    def prune(self, limit: int | None = None, but: str = "") -> Removed:
        """Remove leftovers, and the least recently used artifacts beyond the limit; returns what was removed.

        Args:
            but: the name of an artifact that stays: somebody is about to load it.
        """
        limit = self.limit if limit is None else limit
        sizes: dict[str, int] = {}
        used: dict[str, float] = {}
        stale: list[OwnFile] = []
        old = time.time() - STALE_SECONDS
        for file in self._own_files():
            with contextlib.suppress(OSError):
                status = os.lstat(file.path)
                if file.kind in (MANIFEST, DIVIDED):
                    used[file.artifact] = status.st_mtime
                elif (file.kind or file.aside) and status.st_mtime < old:
                    stale.append(file)
                sizes[file.artifact] = sizes.get(file.artifact, 0) + status.st_size
        total, left, gone = sum(sizes.values()), len(used), Removed()
        with contextlib.suppress(OSError):
            gone = folders.unlink(file for file in stale if file.artifact not in used)
        for name in sorted(used, key=used.__getitem__):
            if total <= limit and left <= MAX_FILES:
                break
            if name == but:
                continue
            removed = self.remove(name)
            if removed is None:
                break
            total, left = total - sizes[name], left - 1
            gone += removed
        return gone

    def clear(self) -> Removed:
        """Remove all files of the store, and its folder if gtrace made it; returns what was removed.

        Raises:
            OSError: a file cannot be removed.
        """
        if not self._trusted():
            return Removed()
        with self._writing():
            folder, marker = self.folder, folders.read_marker(self.folder)
            own = self._own_files()
            gone = folders.unlink(sorted(own, key=lambda file: (file.path.name == MARKER, file.kind == "code")))
        if marker is not None and marker.made_folder:
            with contextlib.suppress(OSError):  # it holds files of others
                os.rmdir(folder)
        self._forget_index()
        self._located = self._refused = None
        return attrs.evolve(gone, artifacts=sum(file.kind in (MANIFEST, DIVIDED) for file in own))

    def _forget_index(self) -> None:
        with self._lock:
            self._families = None

    def check(self) -> tuple[int, int]:
        """Return how many artifacts there are, and their bytes.

        Raises:
            OSError: the folder cannot be written; a CacheError: it must not be trusted.
        """
        with self._writing():
            handle, probe = tempfile.mkstemp(prefix=folders.ASIDE, dir=self.folder)
            os.close(handle)
            os.unlink(probe)
        known = self.all()
        return len(known), sum(manifest.size for manifest in known)

    # -- tables: the ledger, what was derived from torch, and what comparisons found

    def ledger(self) -> dict[str, LedgerEntry]:
        """Return what earlier processes noted of each signature."""
        return self._read(LEDGER, ledgers.from_json) or {}

    def note(self, entries: Mapping[str, LedgerEntry]) -> None:
        """Add entries to those that the ledger has of each signature."""
        if not entries:
            return
        with self._kept_or_warned("the ledger is"), self._writing():
            known = self.ledger()
            for signature, entry in entries.items():
                before = known.pop(signature, None)
                known[signature] = entry if before is None else before.plus(entry)  # the latest last
            kept = dict(list(known.items())[-MAX_LEDGER:])
            write(self.folder / LEDGER, ledgers.to_json(kept).encode())

    def table(self, file: str) -> dict[str, str]:
        """Return the texts that earlier processes kept in a table, by their keys.

        Args:
            file: `DERIVED`, what was derived from torch; `WRONG`, forms that no compiler made and that are wrong; or
                `AGREED`, forms that gave what the recorded program gives.
        """
        return self._read(file, lambda text: json_fields.texts(json_fields.checked(text, TABLE_FORMAT), "texts")) or {}

    def extend(self, file: str, entries: Mapping[str, str]) -> None:
        """Add texts to those of a table; the oldest go first."""
        with self._kept_or_warned(f"{file} is"), self._writing():
            known = self.table(file) | dict(entries)
            kept = dict(list(known.items())[-MAX_TABLE:])
            data = json_fields.with_checksum({"format": TABLE_FORMAT, "texts": kept})
            write(self.folder / file, json.dumps(data).encode())

    def forget_table(self, file: str) -> int:
        """Remove a table; returns how many texts it held.

        Raises:
            OSError: the folder cannot be written.
        """
        count = len(self.table(file))
        if count:
            with self._writing():
                folders.unlink([OwnFile(self.folder / file)])
        return count

    # -- reports

    def reports(self) -> list[Path]:
        """Return the paths of the reports of wrong forms, the oldest first."""
        return sorted(file.path for file in self._own_files() if file.path.suffix == REPORT)

    def keep_report(self, text: str) -> Path | None:
        """Keep a report; the oldest go first. Returns its path; None, with a warning, if it cannot be kept."""
        with self._kept_or_warned("a report is"), self._writing():
            path = self.folder / folders.report_file(time.time_ns(), text)
            write(path, text.encode())
            folders.unlink(map(OwnFile, self.reports()[:-MAX_REPORTS]))
            return path
        return None

    # -- divided programs

    def find_divided(self, name: str) -> DividedRecord | None:
        """Return a program that an earlier process divided; None if there is none."""
        record = self._read(folders.divided_file(name), lambda text: _named(DividedRecord.from_json(text), name))
        if record is not None:
            with contextlib.suppress(OSError):  # in a read-only folder only the order of use is lost
                os.utime(self.folder / folders.divided_file(name))
        return record

    def keep_divided(self, record: DividedRecord) -> None:
        """Keep a divided program."""
        with self._kept_or_warned("divided programs are"), self._writing():
            write(self.folder / folders.divided_file(record.name), record.to_json().encode())
        self.prune()

    def refuse_divided(self, name: str, error: Exception) -> None:
        """Remove a divided program that could not be used."""
        self._damaged(self.folder / folders.divided_file(name), error)

    # -- files

    @contextlib.contextmanager
    def _kept_or_warned(self, what: str) -> Iterator[None]:
        """Within the block, an OSError costs a warning: what was to be kept is not."""
        try:
            yield
        except OSError as error:
            self._once("write", f"{what} not kept: {error}.")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock of those who write or remove; the folder is made if there is none.

        Raises:
            OSError: it cannot be written, or somebody else takes too long; a CacheError: it must not be trusted.
        """
        self._located, made = folders.make(self.given)
        lock = self._located / LOCK
        if lock.is_symlink() or (lock.exists() and not lock.is_file()):
            raise CacheError(f"{lock} is not a file of gtrace; remove it")
        with filelock.FileLock(lock, timeout=LOCK_SECONDS):
            if folders.read_marker(self._located) is None:
                folders.write_marker(self._located, made)
                if self._located != self.given:
                    others = f"{self.given} holds files that gtrace did not make"
                    fix = "Set GT_CACHE_DIR to an empty folder to choose another."
                    self._once("subfolder", f"{others}. Compiled programs are kept in {self._located}. {fix}")
            yield

    def _trusted(self) -> bool:
        """Whether nobody else can have written what it holds; asked each time, since modes and owners change."""
        try:
            folder = folders.locate(self.given)
            why = folders.refusal(folder)
            self._located = folder
        except FileNotFoundError:
            return False
        except OSError as error:
            why = f"{self.folder} cannot be read: {error}"
        if why:
            self._once("trust", f"{why}. What it holds is not used; set GT_CACHE_DIR to a folder of yours.")
        return not why

    def _write_manifest(self, manifest: Manifest) -> None:
        write(self.folder / folders.manifest_file(manifest.name), manifest.to_json().encode())

    def _damaged(self, path: Path, error: Exception) -> None:
        what = "cannot be used and is removed"
        try:
            path.unlink(missing_ok=True)
        except OSError:  # a folder, or in a folder that can only be read
            what = "cannot be used, and not be removed"
        self._once("damaged", f"{path} {what}: {error}. What it held is made again.")

    def _once(self, kind: str, text: str) -> None:
        with self._lock:
            first = kind not in self._warned
            self._warned.add(kind)
        if first:
            warnings.warn(f"[store] {text}", CacheWarning, stacklevel=2)


def _named(record: Named, name: str) -> Named:
    """Return a record, if it has this name; raise a ValueError otherwise."""
    if record.name != name:
        raise ValueError(f"it is that of {record.name}")
    return record


def _by_family(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of artifacts for open sizes, ``FAMILY-REQUEST``, by family."""
    families: dict[str, tuple[str, ...]] = {}
    for name in names:
        family, separator, _ = name.partition("-")
        if separator:
            families[family] = (*families.get(family, ()), name)
    return families
