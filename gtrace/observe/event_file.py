"""Event files: they listen to the bus while a path is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from gtrace.core.base.events import Event, bus
from gtrace.core.base.locks import new_lock


class _Closed(Protocol):
    def close(self) -> None: ...


File = TypeVar("File", bound=_Closed)


class EventFile(Generic[File]):
    """Subscribes to the bus while it has a path.

    Args:
        write: writes an event. It opens the file, so nothing is written before the first event.
        kinds: the event classes to write.

    Attributes:
        lock: held while writing, starting and stopping. It is re-entrant, because a signal handler may emit meanwhile.
        path: the path of the file; None: none.
        file: the open file; None if it is not open yet.
    """

    def __init__(self, write: Callable[[Any], None], *kinds: type[Event]) -> None:
        self.lock = new_lock()
        self.path: str | None = None
        self.file: File | None = None
        self._write = write
        self._kinds = kinds
        self._stop: Callable[[], None] | None = None

    @property
    def open(self) -> bool:
        """Whether it listens."""
        return self._stop is not None

    def move(self, path: str | None, file: File | None = None) -> None:
        """Continue in another file, which may be open already, or in none."""
        with self.lock:
            self.close()
            self.path, self.file = path, file
            if path is not None:
                self._stop = bus.subscribe(self._write, *self._kinds)

    def close(self) -> None:
        """Stop listening and close the file."""
        with self.lock:
            if self._stop is not None:
                self._stop()
                self._stop = None
            if self.file is not None:
                file, self.file = self.file, None
                file.close()
