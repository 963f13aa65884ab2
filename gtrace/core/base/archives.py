"""Zip archives: the one way to write them, and the one way to unpack those that somebody else may have made."""

from __future__ import annotations

import io
import lzma
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from gtrace.core.base.units import bytes_text

MAX_FILES = 1 << 16
"""Files in an archive, at most."""

MAX_INFLATED = 1 << 30
"""Bytes to which the compressed files of an archive grow together, at most. The others cannot grow."""

MAX_TEXT = 1 << 26
"""Bytes of a text in an archive, at most."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_DAMAGED = (
    EOFError, KeyError, NotImplementedError, OSError, OverflowError, RuntimeError, ValueError, struct.error,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
"""Exceptions of `zipfile` for damaged archives; RuntimeError: a file in it is encrypted."""


class Archive:
    """A zip archive whose directory was checked: its files have harmless names and kinds, and are not too large."""

    def __init__(self, source: bytes | Path) -> None:
        """Read the directory of an archive, and none of its files.

        Raises:
            ValueError: it is no archive, or has what gtrace writes into none.
        """
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source)
        except _DAMAGED as error:
            raise ValueError(f"it is no whole archive: {_reason(error)}") from error
        try:
            _check(self._archive.infolist(), len(source) if isinstance(source, bytes) else source.stat().st_size)
        except BaseException:
            self._archive.close()
            raise
        self.sizes: dict[str, int] = {entry.filename: entry.file_size for entry in self._archive.infolist()}
        """The bytes of each file, by name."""

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        self._archive.close()

    def read(self, name: str, most: int | None = None) -> bytes:
        """Return a file of the archive.

        Args:
            most: its bytes, at most.

        Raises:
            ValueError: there is no such file, or it is damaged or too large.
        """
        size = self.sizes.get(name)
        if size is None:
            raise ValueError(f"it has no file {name!r}")
        if most is not None and size > most:
            raise ValueError(f"{name!r} has {bytes_text(size)}, more than {bytes_text(most)}")
        try:
            content = self._archive.read(name)
        except _DAMAGED as error:
            raise ValueError(f"{name!r} cannot be read: {_reason(error)}") from error
        if len(content) != size:
            raise ValueError(f"{name!r} has {len(content)} bytes, and states {size}")
        return content


def write_archive(path: Path, files: Iterable[tuple[str, bytes]], compressed: bool = True) -> None:
    """Write files by name as an archive that `Archive` reads. Beyond half of `MAX_INFLATED`, none is compressed."""
    left = MAX_INFLATED // 2 if compressed else 0
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files:
            fits = len(content) <= left
            left -= len(content) * fits
            # not the time: files of equal content are equal, and a clock may be outside of what zip knows
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED if fits else zipfile.ZIP_STORED)


def _check(entries: list[zipfile.ZipInfo], size: int) -> None:
    """Raise for entries that must not be unpacked.

    Args:
        size: the bytes of the archive.
    """
    if len(entries) > MAX_FILES:
        raise ValueError(f"it has {len(entries)} files, more than {MAX_FILES}")
    if len({entry.filename for entry in entries}) < len(entries):
        raise ValueError("two of its files have one name")
    for entry in entries:
        name, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
        if entry.orig_filename != name or set(name) & set("\\:\0") or {"", ".", ".."} & set(name.split("/")):
            raise ValueError(f"{entry.orig_filename!r} is no name of a file inside of a folder")
        if kind not in (0, stat.S_IFREG):
            raise ValueError(f"{name!r} is no plain file")
        if entry.compress_type not in _METHODS or entry.flag_bits & 1:
            raise ValueError(f"{name!r} is encrypted, or compressed in a way that gtrace does not use")
    names = {entry.filename for entry in entries}
    for name in names:
        if any(parent in names for parent in _parents(name)):
            raise ValueError(f"{name!r} is inside of what is a file")
    stored = [entry for entry in entries if entry.compress_type == zipfile.ZIP_STORED]
    inflated = sum(entry.file_size for entry in entries) - sum(entry.file_size for entry in stored)
    if inflated > MAX_INFLATED:
        raise ValueError(f"its files grow to {bytes_text(inflated)}, more than {bytes_text(MAX_INFLATED)}")
    if sum(entry.compress_size for entry in entries) > size or any(e.file_size != e.compress_size for e in stored):
        raise ValueError("its files are larger than it is")


def _parents(name: str) -> Iterable[str]:
    parts = name.split("/")
    return ("/".join(parts[:k]) for k in range(1, len(parts)))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
