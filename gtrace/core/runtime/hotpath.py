"""Hot paths by a fixed count: turn automatic compilation on, or drive a detector by hand."""

from __future__ import annotations

from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError
from gtrace.core.runtime.policy import HotPathDetector

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
