"""Hot paths by a fixed count: turn automatic compilation on, or drive a detector by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError

__all__ = ["HotPathDetector", "enable_hot_path_detection"]


def enable_hot_path_detection(hot_threshold: int = 10) -> None:
    """Compile every program at its `hot_threshold`-th repetition, for the rest of the process.

    The same as ``gt.config.update(auto_compile=True, hot_threshold=hot_threshold)``. Without it gtrace measures: it
    compiles a program once interpreting it has cost as much as compiling is expected to.

    Args:
        hot_threshold: repetitions, at least 1.

    Raises:
        ArgumentError: `hot_threshold` is not a positive integer.

    >>> with gt.config():  # undoes it at the end of the block
    ...     gt.enable_hot_path_detection(hot_threshold=5)
    ...     gt.config.hot_threshold
    5
    """
    if not isinstance(hot_threshold, int) or isinstance(hot_threshold, bool) or hot_threshold < 1:
        raise ArgumentError(
            "[enable_hot_path_detection] expected a positive integer as hot_threshold,"
            f" got {hot_threshold!r}. Pass one, such as 10."
        )
    config.update(auto_compile=True, hot_threshold=hot_threshold)


class HotPathDetector:
    """Watches iterations described by hand and says when they have become hot.

    An iteration is hot once it, exactly the same sequence of operations and shapes, was seen `hot_threshold` times.

    >>> detector = HotPathDetector(hot_threshold=2)
    >>> for _ in range(3):
    ...     detector.begin_iteration()
    ...     detector.record_operation("matmul", input_shape=(4, 8))
    ...     print(detector.end_iteration())
    False
    True
    True
    """

    def __init__(self, hot_threshold: int = 10) -> None:
        if not isinstance(hot_threshold, int) or isinstance(hot_threshold, bool) or hot_threshold < 1:
            raise ArgumentError(
                f"[HotPathDetector] expected a positive integer as hot_threshold, got {hot_threshold!r}."
                " Pass one, such as 10."
            )
        self.hot_threshold = hot_threshold
        self._counts: dict[tuple[Any, ...], int] = {}
        self._current: list[Any] | None = None
        self._last: tuple[Any, ...] | None = None

    def begin_iteration(self) -> None:
        """Start an iteration.

        Raises:
            ArgumentError: the previous one was not ended.
        """
        if self._current is not None:
            raise ArgumentError(
                "[HotPathDetector] expected end_iteration(), got a second begin_iteration(). End the iteration first."
            )
        self._current = []

    def record_operation(self, name: str, input_shape: Sequence[int] = ()) -> None:
        """Add one operation to the current iteration.

        Raises:
            ArgumentError: no iteration was begun.
        """
        self._running("record_operation").append((name, tuple(input_shape)))

    def end_iteration(self) -> bool:
        """End the iteration; True when it is hot.

        Raises:
            ArgumentError: no iteration was begun.
        """
        sequence = tuple(self._running("end_iteration"))
        self._current = None
        self._last = sequence
        self._counts[sequence] = self._counts.get(sequence, 0) + 1
        return self.should_compile()

    def should_compile(self) -> bool:
        """True when the last ended iteration is hot."""
        return self._last is not None and self._counts[self._last] >= self.hot_threshold

    def stats(self) -> dict[str, int]:
        """Return the numbers of iterations, of distinct sequences, of hot sequences, and the threshold."""
        return {
            "iterations": sum(self._counts.values()),
            "sequences": len(self._counts),
            "hot_sequences": sum(count >= self.hot_threshold for count in self._counts.values()),
            "hot_threshold": self.hot_threshold,
        }

    def _running(self, call: str) -> list[Any]:
        if self._current is None:
            raise ArgumentError(
                f"[HotPathDetector] expected begin_iteration() before {call}(), got none. Begin the iteration first."
            )
        return self._current
