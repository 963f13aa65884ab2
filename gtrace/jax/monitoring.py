"""The names of ``jax.monitoring``: libraries report events, and listeners hear of them. gtrace reports none.

`gt.stats` and the logs of gtrace tell what it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_listeners: dict[str, list[Callable[..., None]]] = {"event": [], "duration": [], "scalar": [], "span": []}


def _tell(kind: str, *args: Any, **metadata: Any) -> None:
    for listener in list(_listeners[kind]):
        listener(*args, **metadata)


def record_event(event: str, **kwargs: str | int) -> None:
    """Tell the listeners of an event.

    >>> seen = []
    >>> register_event_listener(lambda event, **metadata: seen.append(event))
    >>> record_event("/mine"); clear_event_listeners(); seen
    ['/mine']
    """
    _tell("event", event, **kwargs)


def record_event_duration_secs(event: str, duration: float, **kwargs: str | int) -> None:
    """Tell the listeners how long an event took."""
    _tell("duration", event, duration, **kwargs)


def record_event_time_span(event: str, start_time: float, end_time: float, **kwargs: str | int) -> None:
    """Tell the listeners when an event began and ended."""
    _tell("span", event, start_time, end_time, **kwargs)


def record_scalar(event: str, value: float | int, **kwargs: str | int) -> None:
    """Tell the listeners of a number."""
    _tell("scalar", event, value, **kwargs)


def register_event_listener(callback: Callable[..., None]) -> None:
    """Add a listener of `record_event`."""
    _listeners["event"].append(callback)


def register_event_duration_secs_listener(callback: Callable[..., None]) -> None:
    """Add a listener of `record_event_duration_secs`."""
    _listeners["duration"].append(callback)


def register_event_time_span_listener(callback: Callable[..., None]) -> None:
    """Add a listener of `record_event_time_span`."""
    _listeners["span"].append(callback)


def register_scalar_listener(callback: Callable[..., None]) -> None:
    """Add a listener of `record_scalar`."""
    _listeners["scalar"].append(callback)


def clear_event_listeners() -> None:
    """Remove all listeners."""
    for found in _listeners.values():
        found.clear()


__all__ = [
    "clear_event_listeners", "record_event", "record_event_duration_secs", "record_event_time_span", "record_scalar",
    "register_event_duration_secs_listener", "register_event_listener", "register_event_time_span_listener",
    "register_scalar_listener",
]  # fmt: skip
