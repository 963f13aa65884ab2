"""The names of ``jax.profiler``: regions and traces without effect. ``gt.signal`` and ``gt.stats`` observe programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class TraceAnnotation(contextlib.ContextDecorator):
    """A block or a function with a name, without effect."""

    def __init__(self, name: str, **metadata: Any) -> None:
        self.name = name

    def __enter__(self) -> TraceAnnotation:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    @staticmethod
    def is_enabled() -> bool:
        """Return whether a trace is being written: never."""
        return False


class StepTraceAnnotation(TraceAnnotation):
    """A step of a training loop, without effect."""


def annotate_function(func: Callable[..., Any], name: str | None = None, **metadata: Any) -> Callable[..., Any]:
    """Return the function itself."""
    return func


def trace(log_dir: Any, **options: Any) -> AbstractContextManager[None]:
    """Return a block without effect: no trace is written."""
    return contextlib.nullcontext()


def start_trace(log_dir: Any, **options: Any) -> None:
    """Do nothing: no trace is written."""


def stop_trace() -> None:
    """Do nothing: no trace is written."""


def start_server(port: int) -> None:
    """Do nothing: nobody can ask for traces."""


def stop_server() -> None:
    """Do nothing: there is no server."""


__all__ = [
    "StepTraceAnnotation", "TraceAnnotation", "annotate_function", "start_server", "start_trace", "stop_server",
    "stop_trace", "trace",
]  # fmt: skip
