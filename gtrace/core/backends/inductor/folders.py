"""The folders that Inductor compiles in: private ones, instead of those that torch makes in the temporary folder."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import CacheError, UnsupportedTorchError
from gtrace.core.base.locks import new_lock
from gtrace.core.base.private_folders import cache_folder, make_cache_folder, make_private

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_NAME, _HEADERS = "inductor", "precompiled_headers"

_lock = new_lock()
_inside = 0
_restore = contextlib.ExitStack()


def inductor_folder() -> Path:
    """Return the folder for what Inductor keeps: the user's choice, which must be private, or our own."""
    chosen = _chosen()
    return make_cache_folder(_NAME) if chosen is None else _checked(_VARIABLE, chosen)


def headers_folder() -> Path:
    """Return the folder of precompiled headers. For errors see `inductor_folder`."""
    return make_private(inductor_folder() / _HEADERS)


def has_headers() -> bool:
    """Whether headers are precompiled, as far as can be seen without making a folder."""
    try:
        folder = (_chosen() or cache_folder() / _NAME) / _HEADERS
        return any(file.suffix == ".gch" for file in folder.iterdir())
    except OSError:
        return False


def _chosen() -> Path | None:
    """Return the folder that the user has chosen."""
    value = os.environ.get(_VARIABLE)
    path = Path(os.path.abspath(value)) if value else None
    # torch sets the variable too, to its folder in the temporary folder, which anybody can make first
    if path is None or (path.name.startswith("torchinductor_") and path.parent == Path(tempfile.gettempdir())):
        return None
    return path


def _checked(variable: str, folder: Path) -> Path:
    try:
        return make_private(folder)
    except OSError as error:
        fix = f"Set {variable} to a folder of yours, or unset it"
        raise CacheError(f"{variable} names a folder that is not used: {error}. {fix}") from error


@contextlib.contextmanager
def private_folders() -> Iterator[None]:
    """Within the block, let Inductor and Triton use private folders only. Blocks of several threads may overlap."""
    global _inside
    with _lock:
        if not _inside:
            try:
                _enter()
            except BaseException:  # Ctrl-C too
                _restore.close()
                raise
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _restore.close()


def _enter() -> None:
    if triton := os.environ.get("TRITON_CACHE_DIR"):
        _checked("TRITON_CACHE_DIR", Path(os.path.abspath(triton)))
    folder, headers = inductor_folder(), headers_folder()
    _restore.callback(_set_variable, os.environ.get(_VARIABLE))
    _set_variable(str(folder))  # before torch's modules are imported, some of which make the folder at once
    # torch sets these when it is imported, whatever the environment says, and remembers which headers it has compiled
    values: dict[internals.Internal, Any] = {
        internals.HEADER_FOLDER: str(headers),
        internals.HEADER_LOCKS: str(headers / "locks"),
    }
    if _is_there(internals.PRECOMPILE_HEADER):
        values[internals.PRECOMPILE_HEADER] = _precompiler(headers)
    values = {name: value for name, value in values.items() if _is_there(name)}
    _restore.callback(_set, {name: name.get() for name in values})
    _set(values)


def _is_there(name: internals.Internal) -> bool:
    """Whether this torch has a private name: a later one may keep its headers in another way."""
    try:
        name.get()
    except UnsupportedTorchError:
        return False
    return True


def _set(values: dict[internals.Internal, Any]) -> None:
    for name, value in values.items():
        setattr(sys.modules[name.module], name.name, value)


def _set_variable(value: str | None) -> None:
    if value is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = value


@functools.cache
def _precompiler(headers: Path) -> Callable[..., str]:
    """Return torch's function that precompiles headers, with a memory of its own for a folder."""
    return functools.cache(inspect.unwrap(internals.PRECOMPILE_HEADER.get()))
