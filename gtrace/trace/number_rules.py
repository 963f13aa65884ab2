"""The setting `x64`: whether dtypes of 64 bits are in use, and what they become where they are not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gtrace.config import config
from gtrace.trace.record import thread

_DEFAULT = {bool: torch.bool, int: torch.int64, float: torch.float32, complex: torch.complex64}

NARROW = {
    torch.int64: torch.int32, torch.uint64: torch.uint32, torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}  # fmt: skip
"""What the dtypes of 64 bits become where the setting `x64` is off."""


def wide() -> bool:
    """Whether dtypes of 64 bits are in use: the setting `x64`, and always in rules of operations."""
    return thread.in_rule or config.current.x64


def narrowed(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that values from outside, and results of counting, have under the setting `x64`."""
    return dtype if wide() else NARROW.get(dtype, dtype)


def default_dtype(kind: type) -> torch.dtype:
    """Return the dtype of an array made from Python scalars of a kind."""
    return narrowed(_DEFAULT[kind])


@contextlib.contextmanager
def rule() -> Iterator[None]:
    """Run a rule of an operation: its integers are int64, so that what it records does not depend on settings."""
    before = thread.in_rule
    thread.in_rule = True
    try:
        yield
    finally:
        thread.in_rule = before


def of_user(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the user's that a rule calls; it follows the settings again."""

    def call(*args: Any, **kwargs: Any) -> Any:
        before = thread.in_rule
        thread.in_rule = False
        try:
            return function(*args, **kwargs)
        finally:
            thread.in_rule = before

    return call
