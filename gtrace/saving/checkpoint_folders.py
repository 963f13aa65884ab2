"""Folders of checkpoints: lists, replaces and removes them.

Only files with the names of a checkpoint's files are removed, and only in folders that are checkpoints. Other folders,
and other files in a checkpoint, stay.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gtrace.core.base import json_fields
from gtrace.core.base.errors import CheckpointError, message
from gtrace.core.base.whole_files import sync

ARRAYS, PARTS, MANIFEST = "arrays.safetensors", "parts", "checkpoint.json"

_NAME = re.compile(r"(?:step_(\d+)|\.step_(\d+)\.replaced)")
"""Names of complete checkpoints. One that was being replaced counts if its replacement was never completed."""

_LEFT = re.compile(r"\.step_\d+\.(writing|removed|replaced)")

_FILE = re.compile(
    r"(?:checkpoint\.json|arrays\.safetensors)|\.(?:checkpoint\.json|arrays\.safetensors)\.[0-9a-f]{16}\.tmp"
)
_PART = re.compile(r"\d+\.safetensors|\.\d+\.safetensors\.[0-9a-f]{16}\.tmp")


def place(root: Path, step: int) -> Path:
    """Return the folder of a step."""
    return root / f"step_{step:09d}"


def aside(root: Path, step: int) -> Path:
    """Return the folder in which a step is written."""
    return root / f".step_{step:09d}.writing"


def checkpoints(root: Path) -> dict[int, Path]:
    """Return the complete checkpoints by step."""
    found: dict[int, Path] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(root.iterdir(), reverse=True):  # folders with another name come last
            match = _NAME.fullmatch(path.name)
            if match is not None and path.is_dir() and ((path / MANIFEST).exists() or not any(_others(path))):
                found.setdefault(int(match[1] or match[2]), path)
    return found


def check_place(root: Path, step: int) -> None:
    """Raise if the folder of a step exists but is not a checkpoint.

    Raises:
        CheckpointError: it exists, and is not a checkpoint.
    """
    path = place(root, step)
    if os.path.lexists(path) and not _is_ours(path):
        fix = "Save into another folder, or give it another name."
        raise CheckpointError(message("save_checkpoint", f"a checkpoint in {path}", "something else", fix))


def begin(root: Path, step: int, parts: bool) -> None:
    """Make the folder in which a step is written; remains of killed processes go.

    Raises:
        CheckpointError: the folder of the step is not a checkpoint, or the new folder is a link.
        OSError: it cannot be made.
    """
    check_place(root, step)
    clear(root)
    made = aside(root, step)
    for path in (made, made / PARTS) if parts else (made,):
        if path.is_symlink():  # else the files would be written where it leads
            fix = "Remove it, and see who made it."
            raise CheckpointError(message("save_checkpoint", "a folder to write in", f"{path}, which is a link", fix))
        path.mkdir(parents=True, exist_ok=True)


def discard(root: Path, step: int) -> None:
    """Remove what was written of a step that could not be finished."""
    _remove(aside(root, step), None)


def finish(root: Path, step: int, keep: int | None) -> Path:
    """Rename a written checkpoint, and remove the oldest ones beyond `keep`."""
    final = place(root, step)
    check_place(root, step)
    replaced = root / f".{final.name}.replaced"
    if final.exists():
        os.replace(final, replaced)
    try:
        os.replace(aside(root, step), final)
    except OSError:
        if replaced.exists():
            os.replace(replaced, final)
        raise
    sync(root)
    _remove(replaced, final)
    known = {number: path for number, path in checkpoints(root).items() if _is_ours(path)}
    for number in sorted(known)[:-keep] if keep else ():
        doomed = root / f".{known[number].name.strip('.')}.removed"
        os.replace(known[number], doomed)
        _remove(doomed, known[number])
    return final


def clear(root: Path) -> None:
    """Remove the remains of killed processes."""
    for path in root.glob(".step_*"):
        match = _LEFT.fullmatch(path.name)
        if match is not None and not path.is_symlink() and path.is_dir():
            final = root / path.stem.strip(".")
            if match[1] != "replaced" or final.exists():
                _remove(path, None if match[1] == "writing" else final)


def read_manifest(folder: Path) -> bytes:
    """Return the content of a checkpoint's manifest.

    Raises:
        OSError: it cannot be read; a ValueError: it is not a regular file.
    """
    path = folder / MANIFEST
    if path.exists() and not path.is_file():  # opening a pipe would wait
        raise ValueError("it is no plain file")
    return path.read_bytes()


def _is_ours(path: Path) -> bool:
    """Whether a folder is a checkpoint, perhaps a damaged one."""
    if path.is_symlink() or not path.is_dir():
        return False
    with contextlib.suppress(OSError, ValueError):
        return "leaves" in json_fields.checked(read_manifest(path), None)
    return not any(_others(path))


def _others(folder: Path) -> Iterator[Path]:
    """Yield the files in a checkpoint that do not belong to it."""
    for path in folder.iterdir():
        if path.name == PARTS and path.is_dir() and not path.is_symlink():
            yield from (inner for inner in path.iterdir() if not _PART.fullmatch(inner.name) or inner.is_dir())
        elif not _FILE.fullmatch(path.name) or path.is_dir():
            yield path


def _remove(folder: Path, home: Path | None) -> None:
    """Remove a checkpoint's files and its folder; other files in it move to `home`, or stay."""
    with contextlib.suppress(OSError):  # the next save tries again
        for path, pattern in ((folder, _FILE), (folder / PARTS, _PART)):
            if path.is_dir() and not path.is_symlink():
                for file in path.iterdir():
                    if pattern.fullmatch(file.name) and not file.is_dir():
                        file.unlink()
        with contextlib.suppress(OSError):  # it is missing, or contains other files
            os.rmdir(folder / PARTS)
        rest = list(folder.iterdir())
        if rest and home is not None:
            home.mkdir(exist_ok=True)
            for path in rest:
                if not os.path.lexists(home / path.name):
                    os.rename(path, home / path.name)
        os.rmdir(folder)
