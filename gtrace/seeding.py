"""The global stream: gt.seed, gt.randn, gt.rand. Each call draws with a key of its own, made on the host.

The key enters the program as an input. A loop that draws is the same program every time, which may get hot and
compile, and still never repeats a number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from gtrace.errors import ArgumentError, message
from gtrace.locks import new_lock
from gtrace.ops.shape import as_int
from gtrace.ops.threefry import MASK, block
from gtrace.random.continuous import normal, uniform
from gtrace.random.keys import key_words
from gtrace.trace.array import Array, wrap
from gtrace.trace.convert import new_tensor
from gtrace.trace.record import thread

__all__ = ["seed", "rand", "randn"]


class _Stream:
    """Keys made of a root key and a counter."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._root: tuple[int, int] | None = None
        self._count = 0

    def restart(self, root: tuple[int, int]) -> None:
        with self._lock:
            self._root, self._count = root, 0

    def key(self) -> Array:
        """Return the next key."""
        with self._lock:
            if self._root is None:
                self._root = key_words(int.from_bytes(os.urandom(8), "little", signed=True))
            count = self._count
            self._count += 1
            words = block(*self._root, count >> 32, count & MASK)
        return wrap(new_tensor(words, torch.int64))


_stream = _Stream()


def _refuse_capture(name: str) -> None:
    capture = thread.trace.capture
    if capture is not None:
        raise ArgumentError(
            message(
                name,
                "to run outside traced functions",
                f"a call while tracing {capture}",
                "It would draw the same numbers at every call: pass a key as an argument and use gt.random.",
            )
        )


def seed(n: int) -> None:
    """Start the stream of ``gt.randn`` and ``gt.rand`` anew, for all threads; without it, it starts anywhere.

    Args:
        n: an integer of at most 64 bits.

    Raises:
        ArgumentError: another n, or a call inside a traced function.

    >>> import gtrace as gt
    >>> gt.seed(0)
    >>> first = gt.randn(3)
    >>> gt.seed(0)
    >>> bool((gt.randn(3) == first).all())
    True
    """
    _refuse_capture("seed")
    number = as_int("seed", "seed", n)
    if not -(1 << 63) <= number < 1 << 63:
        raise ArgumentError(message("seed", "a seed of at most 64 bits", str(number), "Use a smaller one."))
    _stream.restart(key_words(number))


def _draw(name: str, draw: Callable[..., Array], shape: tuple[Any, ...], dtype: Any) -> Array:
    _refuse_capture(name)
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)) else shape
    return draw(_stream.key(), sizes, dtype)


def randn(*shape: Any, dtype: Any = None) -> Array:
    """Return numbers from the standard normal distribution, different at every call.

    Args:
        shape: sizes, or one tuple.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: a call inside a traced function; use ``gt.random.normal`` there.

    >>> import gtrace as gt
    >>> gt.randn(2, 3).shape
    (2, 3)
    """
    return _draw("randn", normal, shape, dtype)


def rand(*shape: Any, dtype: Any = None) -> Array:
    """Return numbers evenly distributed over [0, 1), different at every call.

    Args:
        shape: sizes, or one tuple.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: a call inside a traced function; use ``gt.random.uniform`` there.

    >>> import gtrace as gt
    >>> gt.rand((2, 3), dtype=gt.float64).dtype
    gtrace.float64
    """
    return _draw("rand", uniform, shape, dtype)
