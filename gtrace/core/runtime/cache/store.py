"""The store: compiled programs and the ledger on disk, for every process of the user.

One folder, flat. An artifact is its manifest, ``NAME.json``, and the file that this names, ``NAME.DIGEST.so``; the name
is a digest of all that the compiled code depends on. A program that was divided among processes is one file,
``NAME.divided``. Files are written aside, then renamed, the code before its manifest, and code is never replaced by
other code. So a manifest names the code it was written with, even if a process is killed while it writes. Those who
write or remove take a lock; readers need none. Nothing here is unpickled. A manifest is trusted only if it has the
checksum that it states, and code is loaded only if it has the one that its manifest states.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import filelock
import platformdirs

from gtrace.core.base.errors import CacheError, CacheWarning
from gtrace.core.base.json_fields import texts
from gtrace.core.base.locks import new_lock
from gtrace.core.partitioner.serialized import SUFFIX, DividedRecord
from gtrace.core.runtime.cache import ledger as ledgers
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.cache.manifest import Code, Manifest, Verdict

MAX_FILES = 4096
"""Artifacts kept, whatever their size."""

LOCK = "lock"
LOCK_SECONDS = 5.0
"""How long to wait for others that write, which takes them milliseconds."""

LEDGER = "ledger.json"
MAX_LEDGER = 4096
"""Signatures in the ledger."""

DERIVED = "derived.json"
MAX_DERIVED = 4096
"""Types and rules derived from torch that are kept."""

STALE_SECONDS = 3600.0
"""Age at which files without a manifest count as left over by a process that was killed."""


class Store:
    """A folder of artifacts, used by any number of processes and threads.

    Problems with it cost one warning each, never a result.

    Args:
        folder: created when it is first written to.
        limit: bytes kept; the least recently used go first.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._families: dict[str, tuple[str, ...]] | None = None
        self._lock = new_lock()
        self._warned: set[str] = set()
        self._refused: str | None = None
        self._empty = True

    # -- reading

    def find(self, name: str) -> Manifest | None:
        """Return the manifest of an artifact; None if there is none."""
        if not self._trusted():
            return None
        path = self.folder / f"{name}.json"
        try:
            manifest = Manifest.from_json(_read_own(path))
            if manifest.name != name:
                raise ValueError(f"it is the manifest of {manifest.name}")
            return manifest
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._damaged(path, error)
            return None

    def code(self, manifest: Manifest) -> Path | None:
        """Return the path of an artifact's code, verified; None, with a warning, if it is not what it should be."""
        about = self.folder / f"{manifest.name}.json"
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
        path = self.folder / manifest.code.file
        if path.parent != self.folder or hashlib.sha256(_read_own(path)).hexdigest() != manifest.code.sha256:
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
                dated.append((os.stat(self.folder / f"{name}.json").st_mtime, name))
        found = [self.find(name) for _, name in sorted(dated)]
        return [manifest for manifest in found if manifest is not None]

    def _names(self) -> list[str]:
        if not self._trusted():
            return []
        try:
            return sorted(f.removesuffix(".json") for f in os.listdir(self.folder) if _is_manifest(f))
        except OSError:
            return []

    # -- writing

    def put(self, manifest: Manifest, code: Path | None = None) -> Path | None:
        """Keep an artifact, or, without code, only its manifest; returns where the code is now.

        If it cannot be kept, that costs a warning, and the result is None.
        """
        try:
            kept, content = None, b""
            if code is not None:
                content = code.read_bytes()
                digest = hashlib.sha256(content).hexdigest()
                file = f"{manifest.name}.{digest[:12]}{code.suffix}"
                manifest = attrs.evolve(manifest, code=Code(file, digest, len(content)))
                kept = self.folder / file
            with self._writing():
                if kept is not None:
                    self._write(kept, content)  # whatever was there: it may be damaged
                self._write_manifest(manifest)
            self._forget_index()
            self.prune()
            return kept
        except OSError as error:
            self._once("write", f"compiled programs are not kept: {error}. Set GT_CACHE_DIR to a folder that can be"
                       " written, or GT_CACHE_SIZE=0.")  # fmt: skip
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
        self._damaged(self.folder / f"{name}.json", error)

    def remove(self, name: str) -> bool:
        """Forget an artifact; returns whether that could be done."""
        try:
            with self._writing():
                # the manifest goes first, so that it never names a missing file
                for file in sorted((f for f in os.listdir(self.folder) if f.startswith(f"{name}.")), key=len):
                    (self.folder / file).unlink(missing_ok=True)
            return True
        except OSError:
            return False
        finally:
            self._forget_index()

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
                    if _is_manifest(entry.name) or entry.name.endswith(SUFFIX):
                        used[name] = status.st_mtime
                    elif entry.name.startswith("tmp-") or entry.name.endswith((".so", ".loop", ".pt2")):
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
            if not self.remove(name):
                break
            total -= sizes[name]
            removed += 1
        return removed

    def clear(self) -> int:
        """Remove everything; returns how many artifacts that were."""
        names = self._names()
        if self._trusted():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._forget_index()
        return len(names)

    def _forget_index(self) -> None:
        with self._lock:
            self._families = None

    def check(self) -> tuple[int, int]:
        """Return how many artifacts there are, and their bytes.

        Raises:
            OSError: the folder cannot be written; a CacheError: it must not be trusted.
        """
        with self._writing():
            pass
        probe = self.folder / f"tmp-probe-{os.getpid()}"
        self._write(probe, b"")
        os.unlink(probe)
        known = self.all()
        return len(known), sum(manifest.size for manifest in known)

    # -- tables: the ledger, and what was derived from torch

    def ledger(self) -> dict[str, LedgerEntry]:
        """Return what earlier processes noted of each signature."""
        if not self._trusted():
            return {}
        path = self.folder / LEDGER
        try:
            return ledgers.from_json(_read_own(path))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._damaged(path, error)
            return {}

    def note(self, entries: Mapping[str, LedgerEntry]) -> None:
        """Add entries to those that the ledger has of each signature."""
        if not entries:
            return
        try:
            with self._writing():
                known = self.ledger()
                for signature, entry in entries.items():
                    before = known.pop(signature, None)
                    known[signature] = entry if before is None else before.plus(entry)  # the latest last
                kept = dict(list(known.items())[-MAX_LEDGER:])
                self._write(self.folder / LEDGER, ledgers.to_json(kept).encode())
        except OSError as error:
            self._once("write", f"the ledger is not kept: {error}.")

    def derived(self) -> dict[str, str]:
        """Return the texts that earlier processes derived from torch, by their keys."""
        if not self._trusted():
            return {}
        path = self.folder / DERIVED
        try:
            return texts(json.loads(_read_own(path)), "derived")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._damaged(path, error)
            return {}

    def keep_derived(self, entries: Mapping[str, str]) -> None:
        """Add texts to those that were derived from torch; the oldest go first."""
        try:
            with self._writing():
                known = self.derived() | dict(entries)
                kept = dict(list(known.items())[-MAX_DERIVED:])
                self._write(self.folder / DERIVED, json.dumps({"derived": kept}).encode())
        except OSError as error:
            self._once("write", f"what was derived from torch is not kept: {error}.")

    # -- divided programs

    def find_divided(self, name: str) -> DividedRecord | None:
        """Return a program that an earlier process divided; None if there is none."""
        if not self._trusted():
            return None
        path = self.folder / f"{name}{SUFFIX}"
        try:
            record = DividedRecord.from_json(_read_own(path))
            if record.name != name:
                raise ValueError(f"it is that of {record.name}")
            with contextlib.suppress(OSError):  # in a read-only folder only the order of use is lost
                os.utime(path)
            return record
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._damaged(path, error)
            return None

    def keep_divided(self, record: DividedRecord) -> None:
        """Keep a divided program."""
        try:
            with self._writing():
                self._write(self.folder / f"{record.name}{SUFFIX}", record.to_json().encode())
            self.prune()
        except OSError as error:
            self._once("write", f"divided programs are not kept: {error}.")

    def refuse_divided(self, name: str, error: Exception) -> None:
        """Remove a divided program that could not be used."""
        self._damaged(self.folder / f"{name}{SUFFIX}", error)

    # -- files

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock of those who write or remove; the folder is made if there is none.

        Raises:
            OSError: it cannot be written, or somebody else takes too long; a CacheError: it must not be trusted.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        reason = _untrustworthy(self.folder)
        if reason:
            raise CacheError(f"{self.folder} {reason}")
        with filelock.FileLock(self.folder / LOCK, timeout=LOCK_SECONDS):
            yield

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

    def _write_manifest(self, manifest: Manifest) -> None:
        self._write(self.folder / f"{manifest.name}.json", manifest.to_json().encode())

    def _damaged(self, path: Path, error: Exception) -> None:
        self._once("damaged", f"{path} cannot be used and is removed: {error}. What it held is made again.")
        with contextlib.suppress(OSError):
            os.unlink(path)

    def _once(self, kind: str, text: str) -> None:
        with self._lock:
            first = kind not in self._warned
            self._warned.add(kind)
        if first:
            warnings.warn(f"[store] {text}", CacheWarning, stacklevel=2)


def _is_manifest(file: str) -> bool:
    return file.endswith(".json") and file not in (LEDGER, DERIVED)


def _by_family(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of artifacts for open sizes, ``FAMILY-REQUEST``, by family."""
    families: dict[str, tuple[str, ...]] = {}
    for name in names:
        family, separator, _ = name.partition("-")
        if separator:
            families[family] = (*families.get(family, ()), name)
    return families


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
