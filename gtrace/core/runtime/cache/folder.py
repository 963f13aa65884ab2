"""The folder of the store: where it is, the marker in it, and the names that its files have.

A folder is the store's if it has a marker, or nothing but files with names of the store. In any other folder the store
uses a subfolder. So a program, and `gtrace cache`, touch only what gtrace made. The names begin with ``gtrace-``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from gtrace.core.base import json_fields
from gtrace.core.base.errors import CacheError
from gtrace.core.base.private_folders import cache_folder, make_private, read_trusted, why_untrusted
from gtrace.version import __version__

FORMAT = 1
"""Of the folder: its names and its marker. A folder of another format is not used."""

MARKER = "gtrace-cache.json"
SUBFOLDER = "gtrace-cache"
LOCK = "gtrace-lock"
LEDGER = "gtrace-ledger.json"
DERIVED, WRONG, AGREED = "gtrace-derived.json", "gtrace-wrong.json", "gtrace-agreed.json"
ASIDE = "gtrace-tmp-"
"""How the names of files begin that are being written."""

MANIFEST, DIVIDED = ".json", ".divided"
CODE = (".so", ".loop")
REPORT = ".py"

_NAMES = (MARKER, LOCK, LEDGER, DERIVED, WRONG, AGREED)
_OTHERS = re.compile(rf"{ASIDE}[a-z0-9_]{{8}}|gtrace-report-[0-9]{{20}}-[0-9a-f]{{8}}\{REPORT}")
_ARTIFACT = re.compile(
    r"gtrace-(?P<name>(?:[0-9a-f]{24}-)?[0-9a-f]{24}|[0-9a-f]{32})"
    r"(?P<kind>\.json|\.divided|\.[0-9a-f]{12}\.(?:so|loop|pt2))"
)


def manifest_file(name: str) -> str:
    """Return the name of the file that has the manifest of an artifact."""
    return f"gtrace-{name}{MANIFEST}"


def divided_file(name: str) -> str:
    """Return the name of the file that has a divided program."""
    return f"gtrace-{name}{DIVIDED}"


def code_file(name: str, digest: str, suffix: str) -> str:
    """Return the name of the file that has the code of an artifact."""
    return f"gtrace-{name}.{digest[:12]}{suffix}"


def report_file(nanoseconds: int, text: str) -> str:
    """Return the name of the file that has a report. Later ones have later names."""
    return f"gtrace-report-{nanoseconds:020}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}{REPORT}"


@attrs.frozen
class OwnFile:
    """A file of the store.

    Attributes:
        artifact: the name of the artifact that it belongs to; empty: none.
        kind: `MANIFEST`, `DIVIDED` or "code"; empty without an artifact.
    """

    path: Path
    artifact: str = ""
    kind: str = ""

    @property
    def aside(self) -> bool:
        """Whether it was being written."""
        return self.path.name.startswith(ASIDE)


def own_files(folder: Path) -> list[OwnFile]:
    """Return the files of the store in a folder: plain files with names of the store, and nothing else.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        return [file for entry in entries if (file := _own(entry)) is not None]


def _own(entry: os.DirEntry[str]) -> OwnFile | None:
    if not entry.is_file(follow_symlinks=False):
        return None
    path, found = Path(entry.path), _ARTIFACT.fullmatch(entry.name)
    if found is not None:
        kind = found["kind"]
        return OwnFile(path, found["name"], kind if kind in (MANIFEST, DIVIDED) else "code")
    return OwnFile(path) if entry.name in _NAMES or _OTHERS.fullmatch(entry.name) else None


def foreign(folder: Path) -> Iterator[str]:
    """Yield the names of what is in a folder and is not a file of the store.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if _own(entry) is None:
                yield entry.name


def count_foreign(folder: Path) -> int:
    """Return how many files and folders in a folder are not the store's; 0 if it cannot be read."""
    try:
        return sum(1 for _ in foreign(folder))
    except OSError:
        return 0


def _mixed(folder: Path) -> bool:
    """Whether a folder has anything that is not the store's.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        return next(foreign(folder), None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False


@attrs.frozen
class Removed:
    """What was removed.

    Attributes:
        artifacts: compiled and divided programs.
        files: of these, and others.
        size: of the files, in bytes.
    """

    artifacts: int = 0
    files: int = 0
    size: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.artifacts + other.artifacts, self.files + other.files, self.size + other.size)


def unlink(files: Iterable[OwnFile]) -> Removed:
    """Remove files of the store; those that another process has removed are not counted.

    Raises:
        OSError: one cannot be removed.
    """
    gone = Removed()
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            size = os.lstat(file.path).st_size
            os.unlink(file.path)
            gone += Removed(0, 1, size)
    return gone


# -- the marker


@attrs.frozen
class Marker:
    """What the marker of a folder says.

    Attributes:
        format: see `FORMAT`.
        gtrace: the version that wrote it.
        made_folder: whether gtrace made the folder, and so may remove it.
    """

    format: int
    gtrace: str
    made_folder: bool


_read = json_fields.reader(Marker)


def read_marker(folder: Path) -> Marker | None:
    """Return the marker of a folder; None if it has none that can be read."""
    try:
        return _read(json_fields.checked(read_trusted(folder / MARKER), None))
    except (OSError, ValueError):
        return None


def write_marker(folder: Path, made_folder: bool) -> None:
    """Mark a folder as the store's.

    Raises:
        OSError: it cannot be written.
    """
    data = {"about": "A cache of gtrace. `gtrace cache clear` removes what gtrace made in this folder."}
    text = json_fields.with_checksum({**data, "format": FORMAT, "gtrace": __version__, "made_folder": made_folder})
    write(folder / MARKER, json.dumps(text, indent=1).encode())


# -- where the store is


def locate(given: Path) -> Path:
    """Return the folder of a store: the given one, or its subfolder if it holds what gtrace did not make.

    Raises:
        OSError: the folder cannot be read.
    """
    if read_marker(given) is not None:
        return given
    inner = given / SUBFOLDER
    return inner if read_marker(inner) is not None or _mixed(given) else given


def make(given: Path) -> tuple[Path, bool]:
    """Make the folder of a store, if there is none; returns it, and whether it was made now.

    Raises:
        OSError: it cannot be made; a CacheError: it must not be used.
    """
    folder = locate(given)
    made = not folder.exists()
    make_private(folder)
    reason = refusal(folder)
    if reason:
        raise CacheError(reason)
    return folder, made


def refusal(folder: Path) -> str:
    """Return why a folder must not be used; empty if it may be.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    why = why_untrusted(folder)
    if why:
        return why
    marker = read_marker(folder)
    if marker is not None and marker.format != FORMAT:
        return f"{folder} is a cache of gtrace {marker.gtrace} and has format {marker.format}, not {FORMAT}"
    if marker is None and _mixed(folder):
        return f"{folder} holds files that gtrace did not make"
    return ""


def default_folder() -> Path:
    """Return the folder for compiled programs in the user's cache folder; without a home, in the temporary folder."""
    return cache_folder() / "programs"


# -- files


def write(path: Path, content: bytes) -> None:
    """Write a file aside, then rename it, so that others see all of it or nothing.

    Those who can read the folder can read the file: a folder of the administrator's may serve all users.

    Raises:
        OSError: it cannot be written.
    """
    handle, aside = tempfile.mkstemp(prefix=ASIDE, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o600 | os.stat(path.parent).st_mode & 0o044)
        os.replace(aside, path)
    finally:
        with contextlib.suppress(OSError):  # it is there only if something was raised
            os.unlink(aside)
