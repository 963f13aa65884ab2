"""Whether a shared library is whole: the system ends a process that loads one which was cut off."""

from __future__ import annotations

import struct
from pathlib import Path

from gtrace.core.base.archives import Archive
from gtrace.core.base.errors import CacheError

_MAGIC = b"\x7fELF"
_OTHERS = (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")
"""How libraries of other systems than Linux begin. They are not looked into."""


def check_library(path: Path) -> None:
    """Raise a CacheError unless a shared library, or each in a package, has all the bytes that its tables name.

    torch unpacks a package where the names in it say, so they are checked too.
    """
    try:
        if path.suffix == ".pt2":
            with Archive(path) as archive:
                whole = all(_whole(archive.read(name)) for name in archive.sizes if name.endswith(".so"))
        else:
            whole = _whole(path.read_bytes())
    except (OSError, ValueError, struct.error) as error:
        raise CacheError(f"{path} cannot be read: {error}") from error
    if not whole:
        raise CacheError(f"{path} is no whole library: the compiler or the disk lost a part of it")


def _whole(content: bytes) -> bool:
    if not content.startswith(_MAGIC):
        return content.startswith(_OTHERS)
    order = "<" if content[5] == 1 else ">"
    if content[4] == 2:  # of 64 bits
        segments, sections = struct.unpack_from(f"{order}QQ", content, 32)
        size, count, section_size, section_count = struct.unpack_from(f"{order}HHHH", content, 54)
        start, length = "QxxxxxxxxxxxxxxxxQ", 8
    else:
        segments, sections = struct.unpack_from(f"{order}II", content, 28)
        size, count, section_size, section_count = struct.unpack_from(f"{order}HHHH", content, 42)
        start, length = "IxxxxxxxxI", 4
    ends = [sections + section_size * section_count, segments + size * count]
    if max(ends) > len(content) or not count:
        return False
    for k in range(count):
        offset, inside = struct.unpack_from(f"{order}{start}", content, segments + k * size + length)
        ends.append(offset + inside)
    return max(ends) <= len(content)
