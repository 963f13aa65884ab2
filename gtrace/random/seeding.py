"""The global stream: gt.seed, gt.randn, gt.rand. Each call has its own key, made on the host.

The key is an input of the program. So a loop that samples is the same program at each step, can be compiled, and never
repeats a number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from gtrace.core.base.devices import CPU
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.base.locks import new_lock
from gtrace.core.ops.shape import as_int
from gtrace.core.ops.threefry import MASK, block
from gtrace.core.trace.array import Array, wrap
from gtrace.core.trace.convert import new_tensor
from gtrace.core.trace.record import thread
from gtrace.random.continuous import normal, uniform
from gtrace.random.keys import key_words

__all__ = ["get_rng_state", "rand", "randn", "seed", "set_rng_state"]


class _Stream:
    """Keys derived from a root key and a counter."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._root: tuple[int, int] | None = None
        self._count = 0

    def restart(self, root: tuple[int, int]) -> None:
        with self._lock:
            self._root, self._count = root, 0

    def _started(self) -> tuple[int, int]:
        """Return the root key; the caller holds the lock."""
        if self._root is None:
            self._root = key_words(int.from_bytes(os.urandom(8), "little", signed=True))
        return self._root

    def key(self) -> Array:
        """Return the next key."""
        with self._lock:
            root, count = self._started(), self._count
            self._count += 1
            words = block(*root, count >> 32, count & MASK)
        return wrap(new_tensor(words, torch.int64))

    @property
    def state(self) -> tuple[int, int, int]:
        """The root key and the counter."""
        with self._lock:
            return (*self._started(), self._count)

    @state.setter
    def state(self, state: tuple[int, int, int]) -> None:
        with self._lock:
            self._root, self._count = (state[0], state[1]), state[2]


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
    """Restart the stream of ``gt.randn`` and ``gt.rand`` for all threads. Without it, the stream starts at random.

    Args:
        n: an integer of at most 64 bits.

    Raises:
        ArgumentError: n is invalid, or the call is inside a traced function.

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


def get_rng_state() -> Array:
    """Return the state of the stream of ``gt.randn`` and ``gt.rand`` as an int64 array, to save it.

    >>> gt.seed(0)
    >>> gt.get_rng_state()
    Array([0, 0, 0], dtype=int64)
    """
    _refuse_capture("get_rng_state")
    return wrap(new_tensor(_stream.state, torch.int64, CPU))


def set_rng_state(state: Array) -> None:
    """Continue the stream of ``gt.randn`` and ``gt.rand`` from a state of `get_rng_state`, for all threads.

    Raises:
        ArgumentError: the state is invalid, or the call is inside a traced function.

    >>> state = gt.get_rng_state()
    >>> first = gt.randn(3)
    >>> gt.set_rng_state(state)
    >>> bool((gt.randn(3) == first).all())
    True
    """
    _refuse_capture("set_rng_state")
    if type(state) is not Array or state.aval.dtype is not torch.int64 or state.shape != (3,):
        got = repr(state.aval) if type(state) is Array else type(state).__name__
        fix = "Pass what gt.get_rng_state() returned."
        raise ArgumentError(message("set_rng_state", "an int64 array of shape (3,)", got, fix))
    _stream.state = tuple(state.tolist())


def _draw(name: str, draw: Callable[..., Array], shape: tuple[Any, ...], dtype: Any) -> Array:
    _refuse_capture(name)
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)) else shape
    return draw(_stream.key(), sizes, dtype)


def randn(*shape: Any, dtype: Any = None) -> Array:
    """Return samples of the standard normal distribution, different at each call.

    Args:
        shape: sizes, or one tuple.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: the call is inside a traced function; use ``gt.random.normal`` there.

    >>> gt.randn(2, 3).shape
    (2, 3)
    """
    return _draw("randn", normal, shape, dtype)


def rand(*shape: Any, dtype: Any = None) -> Array:
    """Return numbers uniformly distributed over [0, 1), different at each call.

    Args:
        shape: sizes, or one tuple.
        dtype: floating; float32 by default.

    Raises:
        ArgumentError: the call is inside a traced function; use ``gt.random.uniform`` there.

    >>> gt.rand((2, 3), dtype=gt.float64).dtype
    gtrace.float64
    """
    return _draw("rand", uniform, shape, dtype)
