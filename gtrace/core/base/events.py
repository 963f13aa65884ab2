"""The event bus: the recorder and the engine emit, observers subscribe.

Emitting is free while nobody listens: emitters check ``bus.wanted`` before they build an event.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs

from gtrace.core.base.locks import new_lock

START = time.perf_counter()
"""The time at which the process began to use gtrace. Logs count seconds from here."""


@attrs.frozen
class Event:
    """Base class of events; `at` is in seconds since `START`."""

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
class Canonicalized(Event):
    """A recorded program was brought to canonical form. `signatures`: one for each of its parts."""

    ops: int
    signatures: tuple[str, ...]
    seconds: float


@attrs.frozen
class Communicated(Event):
    """This process took part in a collective. `nbytes`: the size of its tensor; 0 if it sent none."""

    kind: str
    nbytes: int
    seconds: float


@attrs.frozen
class Divided(Event):
    """A program of several processes is about to run; `made` is a `gtrace.core.partitioner.partitioned.Partitioned`."""

    digest: int
    made: Any


@attrs.frozen
class Detected(Event):
    """A program became hot."""

    signature: str
    ops: tuple[str, ...]
    calls: int
    seconds: float


@attrs.frozen
class Recompiling(Event):
    """A program is about to compile that differs from a compiled one only in sizes, scalars or strides."""

    signature: str
    change: str


@attrs.frozen
class CompileStarted(Event):
    """`background`: the worker compiles while the program goes on."""

    signature: str
    ops: int
    background: bool = False


@attrs.frozen
class Loaded(Event):
    """A compiled program was found on disk; `seconds`: the time to find and load it."""

    signature: str
    seconds: float


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
class Awaiting(Event):
    """A call waits for `total` compilations, of which `done` have ended; `over`: it has stopped waiting."""

    done: int
    total: int
    over: bool = False


@attrs.frozen
class Judged(Event):
    """A compiled program was timed against its interpreted form; medians in seconds a call."""

    signature: str
    interpreted: float
    compiled: float
    demoted: bool


@attrs.frozen
class Compared(Event):
    """A call was compared with the recorded program, which took `seconds`.

    Attributes:
        problem: what differed; empty: the results agreed.
        skipped: why it was not compared; empty: it was.
    """

    signature: str
    seconds: float
    problem: str
    skipped: str = ""


class Bus:
    """Delivers each event to the subscribers of its class, in order of subscription.

    Attributes:
        wanted: the event classes with subscribers. Emitters check it before they build an event.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._subscribers: dict[type[Event], tuple[Callable[[Any], None], ...]] = {}
        self._watchers: list[Callable[[], None]] = []
        self.wanted: frozenset[type[Event]] = frozenset()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after every change of `wanted`, for emitters that derive state from it."""
        self._watchers.append(watcher)

    def subscribe(self, subscriber: Callable[[Any], None], *kinds: type[Event]) -> Callable[[], None]:
        """Deliver events of `kinds` to `subscriber`; return a function that unsubscribes it."""
        with self._lock:
            for kind in kinds:
                self._subscribers[kind] = (*self._subscribers.get(kind, ()), subscriber)
        self._changed()

        def unsubscribe() -> None:
            with self._lock:
                for kind in kinds:
                    # compared by equality: each access to a bound method makes another object
                    rest = tuple(s for s in self._subscribers.get(kind, ()) if s != subscriber)
                    if rest:
                        self._subscribers[kind] = rest
                    else:
                        self._subscribers.pop(kind, None)
            self._changed()

        return unsubscribe

    def _changed(self) -> None:
        with self._lock:
            self.wanted = frozenset(self._subscribers)
        for watcher in self._watchers:
            watcher()

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers.get(type(event), ()):
            subscriber(event)


bus = Bus()
