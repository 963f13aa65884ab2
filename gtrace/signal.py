"""``gt.signal``: naming regions of a program. The meaning of a name is set in YAML or with `gt.register_config`.

Every annotation can be ignored: a name without a meaning changes nothing, and the numbers are the same with any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gtrace.errors import ArgumentError, message
from gtrace.ir.graph import Region
from gtrace.shard.signals import registry
from gtrace.trace.array import Array
from gtrace.trace.convert import lift
from gtrace.trace.record import thread


def _region(name: str, backward: str | None) -> Region | None:
    """Return the region that a signal begins; None if it has no meaning for compiling."""
    signals = registry.signals()
    found = signals.get(name)
    other = backward if backward is not None else found.backward_signal if found is not None else None
    if backward is not None and backward not in signals and found is not None:
        known = ", ".join(sorted(signals)) or "none"
        raise ArgumentError(message("signal", "backward to name a signal", repr(backward), f"The signals are {known}."))
    back = None if other is None else signals.get(other)
    modes = [_mode(config.compile) if config is not None else None for config in (found, back)]
    if modes == [None, None]:
        return None
    return Region(name, modes[0], Region(other, modes[1]) if other is not None else None)


def _mode(compiled: bool | str) -> str | None:
    return compiled if isinstance(compiled, str) else "default" if compiled else None


def enter(name: str, backward: str | None = None) -> None:
    """Begin the region `name`; see `context`."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(message("signal", "the name of a signal", repr(name), "Pass a string."))
    region = _region(name, backward)
    thread.regions.append((name, thread.region))
    if thread.trace.capture is None and region is not None:
        thread.switch(region)


def exit(name: str) -> None:  # noqa: A001 - the name of the public surface
    """End the region `name`, the last one that was begun.

    Raises:
        ArgumentError: it is not that one.
    """
    if not thread.regions or thread.regions[-1][0] != name:
        last = repr(thread.regions[-1][0]) if thread.regions else "none"
        fix = "Regions end in the opposite order; use a with block."
        raise ArgumentError(message("signal", f"the region begun last, {last}", repr(name), fix))
    _, outer = thread.regions.pop()
    if thread.trace.capture is None:
        thread.switch(outer)


@contextlib.contextmanager
def context(name: str, backward: str | None = None) -> Iterator[None]:
    """Name the region of the block.

    A signal with ``compile: true``, or a mode, makes the region a program of its own, compiled the first time it runs;
    its gradients are a program of their own too, as set by the backward signal, or else by this one. Other signals
    leave the region with its surroundings. Under `gt.jit` the whole function is one program.

    Args:
        backward: the signal of the region's gradients, instead of the one configured.

    >>> import gtrace as gt
    >>> gt.register_config("doc_head", gt.SignalConfig(compile=True))
    >>> with gt.signal.context("doc_head"):
    ...     y = gt.sin(gt.ones(2)) * 2 + 1
    >>> y.shape
    (2,)
    """
    enter(name, backward)
    try:
        yield
    finally:
        exit(name)


def tensor(x: Any, name: str) -> Array:
    """Return x, named: the signal sets its layout over several workers. In one process it is x.

    >>> import gtrace as gt
    >>> gt.signal.tensor(gt.ones(2), name="batch")
    Array([1., 1.], dtype=float32)
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(message("signal", "the name of a signal", repr(name), "Pass a string."))
    return lift("signal", x)
