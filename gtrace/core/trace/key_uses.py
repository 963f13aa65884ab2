"""The setting debug_key_reuse: notes the uses of keys, and raises at the second use of a key."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from gtrace.core.base.config import config
from gtrace.core.base.errors import KeyReuseError, message, user_location
from gtrace.core.base.locks import new_lock
from gtrace.core.trace.array import Array
from gtrace.core.trace.force import value_of
from gtrace.core.trace.record import Trace, thread

_lock = new_lock()
_used: dict[int, tuple[weakref.ref[Any], list[tuple[weakref.ref[Trace] | None, str]]]] = {}
"""From the id of a key or its buffer to the object and its uses: the captured trace, if any, and the user's line."""


def consume(name: str, key: Array) -> None:
    """Note that `name` uses up `key`, if the setting is on.

    A key is identified by its Array and by its buffer. A use inside of a branch or the body of a loop counts only
    there: two branches may use the same key, because only one of them runs. One of a jitted function, or under `vmap`,
    counts at each call.

    Raises:
        KeyReuseError: it was used before.
    """
    if not config.current.debug_key_reuse:
        return
    trace = thread.trace if thread.trace.capture is not None else None
    key = key._data if hasattr(key, "_data") else key  # that of typed keys, which are made anew in each call
    with _lock:
        tokens = [token for token in (key, value_of(key)) if token is not None]
        for token in tokens:
            for where, place in _uses(token):
                if where is trace if where is None or trace is None else where() is trace:
                    raise KeyReuseError(
                        message(
                            name,
                            "a key that was not used before",
                            f"one that was used by {place}",
                            "Split it with gt.random.split and use each part once.",
                        )
                    )
        use = (None if trace is None else weakref.ref(trace), f"{name} at {user_location()}")
        for token in tokens:
            _uses(token).append(use)
    if trace is not None:
        trace.used_keys = (*trace.used_keys, key)


def consume_all(name: str, places: Iterable[int], inputs: Sequence[Array]) -> None:
    """Note that a call of a traced function uses up the inputs at these places; see `consume`."""
    for place in places:
        consume(name, inputs[place])


def _uses(token: Any) -> list[tuple[weakref.ref[Trace] | None, str]]:
    identity = id(token)
    found = _used.get(identity)
    if found is None or found[0]() is not token:
        found = (weakref.ref(token, lambda ref: _forget(identity, ref)), [])
        _used[identity] = found
    return found[1]


def _forget(identity: int, ref: weakref.ref[Any]) -> None:
    with _lock:
        found = _used.get(identity)
        if found is not None and found[0] is ref:
            del _used[identity]
