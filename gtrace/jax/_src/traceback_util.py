"""``jax._src.traceback_util``, which flax imports: gtrace's errors name the user's line in any case."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from gtrace.jax.private_places import public_names


class UnfilteredStackTrace(Exception):  # noqa: N818 - JAX's name
    """JAX's error with the lines that tracebacks leave out. None is raised here."""


_exclude_paths: list[str] = []


def api_boundary(fun: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the function itself."""
    return fun


def register_exclusion(path: str) -> None:
    """Note a file whose lines tracebacks leave out."""
    _exclude_paths.append(path)


def include_frame(frame: types.FrameType) -> bool:
    """Return whether tracebacks show a frame: not if its file is noted."""
    return not frame.f_code.co_filename.startswith(tuple(_exclude_paths))


__getattr__ = public_names(__name__)
