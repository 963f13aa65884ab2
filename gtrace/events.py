"""The one event bus: the recorder and the engine emit, the observers subscribe.

Emitting costs nothing while nobody listens: emitters look into ``bus.wanted`` before they build an event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs

START = time.perf_counter()
"""The moment the process began to use gtrace; logs count seconds from here."""


@attrs.frozen
class Event:
    """Base of all events; `at` is in seconds since `START`."""

    at: float = attrs.field(factory=lambda: time.perf_counter() - START, init=False)


@attrs.frozen
class Recorded(Event):
    """An operation was appended to a pending graph."""

    op: str
    value: int
    aval: str


@attrs.frozen
class Forced(Event):
    """A pending graph was closed and run. `cause`: float, print, numpy, eval, budget, jit, ..."""

    cause: str
    location: str
    ops: int


@attrs.frozen
class Ran(Event):
    """A program ran. `tier` is "interpreted" or "compiled"."""

    signature: str
    tier: str
    seconds: float


@attrs.frozen
class Detected(Event):
    """A signature proved hot."""

    signature: str
    ops: tuple[str, ...]
    calls: int
    seconds: float


@attrs.frozen
class CompileStarted(Event):
    signature: str
    ops: int


@attrs.frozen
class CompileFinished(Event):
    signature: str
    seconds: float


@attrs.frozen
class CompileFailed(Event):
    signature: str
    reason: str
    traceback: str


@attrs.frozen
class Judged(Event):
    """A compiled program was timed against its interpreted self (seconds a call, medians)."""

    signature: str
    interpreted: float
    compiled: float
    demoted: bool


class Bus:
    """Delivers each event to the subscribers of its class, in order of subscription.

    Attributes:
        wanted: the event classes somebody listens to; emitters look here before they build an event.
    """

    def __init__(self) -> None:
        self._subscribers: dict[type[Event], tuple[Callable[[Any], None], ...]] = {}
        self.wanted: frozenset[type[Event]] = frozenset()

    def subscribe(self, subscriber: Callable[[Any], None], *kinds: type[Event]) -> Callable[[], None]:
        """Deliver events of `kinds` to `subscriber`; returns the function that stops it."""
        for kind in kinds:
            self._subscribers[kind] = (*self._subscribers.get(kind, ()), subscriber)
        self.wanted = frozenset(self._subscribers)

        def unsubscribe() -> None:
            for kind in kinds:
                rest = tuple(s for s in self._subscribers.get(kind, ()) if s is not subscriber)
                if rest:
                    self._subscribers[kind] = rest
                else:
                    self._subscribers.pop(kind, None)
            self.wanted = frozenset(self._subscribers)

        return unsubscribe

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers.get(type(event), ()):
            subscriber(event)


bus = Bus()
