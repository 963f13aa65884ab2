"""``gt.signal``: names for regions of a program and for arrays. YAML or `gt.register_config` gives names a meaning.

Annotations never change numbers. A name without a meaning changes nothing, and one process lays nothing out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, ConfigError, message, user_location
from gtrace.core.ir.graph import Region
from gtrace.core.ir.sharding import Mesh, NamedSharding, PartitionSpec
from gtrace.core.partitioner import processes
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.record import RegionLayout, Where, thread
from gtrace.distributed.placing import constrain, put
from gtrace.distributed.signal_config import ShardConfig, SignalConfig
from gtrace.distributed.signals import registry

__all__ = ["AXIS", "context", "enter", "exit", "tensor"]

AXIS = "workers"
"""The name of the only axis of the mesh over which signals lay out arrays."""


def _configs(name: str, backward: str | None) -> tuple[SignalConfig | None, str | None, SignalConfig | None]:
    """Return the meaning of a signal, and the name and the meaning of the signal of its gradients."""
    signals = registry.signals()
    found = signals.get(name)
    other = backward if backward is not None else found.backward_signal if found is not None else None
    if backward is not None and backward not in signals and found is not None:
        known = ", ".join(sorted(signals)) or "none"
        raise ArgumentError(message("signal", "backward to name a signal", repr(backward), f"The signals are {known}."))
    return found, other, None if other is None else signals.get(other)


def _region(name: str, backward: str | None) -> Region | None:
    """Return the region that a signal begins; None if it has no meaning for compiling."""
    found, other, back = _configs(name, backward)
    modes = [_mode(config.compile) if config is not None else None for config in (found, back)]
    if modes == [None, None]:
        return None
    return Region(name, modes[0], Region(other, modes[1]) if other is not None else None)


def _mode(compiled: bool | str) -> str | None:
    return compiled if isinstance(compiled, str) else "default" if compiled else None


def _layouts(name: str, backward: str | None) -> tuple[Mesh, Where, Where] | None:
    """Return the processes and layouts of a signal; None if it gives no layout, or there is one process.

    Raises:
        ConfigError: its workers are not those that run.
    """
    found, other, back = _configs(name, backward)
    configs = [(key, config) for key, config in ((name, found), (other, back)) if config is not None]
    meshes = [_mesh(str(key), config) for key, config in configs if config.shard is not None and processes.launched()]
    if not meshes:
        return None
    if meshes[0] != meshes[-1]:
        got = f"{meshes[0].ranks} and {meshes[-1].ranks} for its gradients"
        raise ConfigError(f"[{name}.shard] expected one order of workers, got {got}.{_at(found)}")
    forward, cotangents = (_where(None if config is None else config.shard) for config in (found, back))
    if back is None and meshes[0].size < processes.count():
        cotangents = forward  # gradients of a stage are computed on the processes of the stage
    return meshes[0], forward, cotangents


def _where(shard: ShardConfig | None) -> Where:
    if shard is None:
        return None
    return () if shard.axis is None else (shard.axis,)


def _at(config: SignalConfig | None) -> str:
    return f" (at {user_location() if config is None or config.location is None else config.location})"


def _mesh(name: str, config: SignalConfig) -> Mesh:
    assert config.shard is not None
    running = processes.count()
    ranks = config.shard.workers
    if ranks is not None and max(ranks) >= running:
        raise ConfigError(
            f"[{name}.shard.workers] expected some of the {running} workers that run, got {list(ranks)}. Write null for"
            f" all of them, or start more with gtrace run --workers N.{_at(config)}"
        )
    return Mesh(range(running) if ranks is None else ranks, AXIS)


def enter(name: str, backward: str | None = None) -> None:
    """Begin the region `name`; see `context`.

    >>> gt.signal.enter("attention")
    >>> y = gt.exp(gt.zeros(2))
    >>> gt.signal.exit("attention")
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(message("signal", "the name of a signal", repr(name), "Pass a string."))
    region, layouts = _region(name, backward), _layouts(name, backward)
    thread.regions.append((name, thread.region, thread.layout))
    if thread.trace.capture is None and region is not None:
        thread.switch(region)
    if layouts is not None:
        mesh, forward, cotangents = layouts
        thread.lay_out(RegionLayout(str(mesh), forward, cotangents))


def exit(name: str) -> None:  # noqa: A001 - the name of the public surface
    """End the region `name`, which must be the last one begun.

    Raises:
        ArgumentError: it is not the last one.

    >>> gt.signal.enter("attention")
    >>> gt.signal.exit("attention")
    """
    if not thread.regions or thread.regions[-1][0] != name:
        last = repr(thread.regions[-1][0]) if thread.regions else "none"
        fix = "Regions end in the opposite order; use a with block."
        raise ArgumentError(message("signal", f"the region begun last, {last}", repr(name), fix))
    _, outer, layout = thread.regions.pop()
    if thread.trace.capture is None:
        thread.switch(outer)
    thread.lay_out(layout)


@contextlib.contextmanager
def context(name: str, backward: str | None = None) -> Iterator[None]:
    """Name the region of the block.

    On several processes, a signal with ``shard`` lays out the region's elementwise results, matmuls and new arrays.
    They are split along the axis, or are the same on each process. Arrays without that axis follow from their operands,
    and so do arrays with fewer elements along it than processes. The backward signal lays out the cotangents of these
    results; without one, they follow from their operands. This holds under `gt.grad`, `gt.vmap` and `gt.jit`, for
    regions inside the function.

    A signal with ``compile: true``, or a mode, makes the region a separate program, compiled at its first run. Its
    gradients are a separate program too, by the backward signal or else by this one. Under `gt.jit` the whole function
    is one program, and so is a program of several processes.

    Args:
        backward: the signal of the region's gradients, instead of the one configured.

    Raises:
        ConfigError: (on several processes) the signal's workers are not those that run.

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


def tensor(x: Any, name: str, backward: str | None = None) -> Any:
    """Return the arrays of a pytree with a name: the signal sets their layout, and that of their cotangents.

    On one process, or if the name has no meaning, they are unchanged.

    Args:
        backward: the signal of the cotangents, instead of the one configured.

    Raises:
        ConfigError: (on several processes) an array has no such axis, or the signal's workers are not those that run.

    >>> gt.signal.tensor(gt.ones(2), name="batch")
    Array([1., 1.], dtype=float32)
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(message("signal", "the name of a signal", repr(name), "Pass a string."))
    layouts = _layouts(name, backward)

    def place(leaf: Any) -> Array:
        array = lift("signal", leaf)
        if layouts is None:
            return array
        mesh, *wheres = layouts
        forward, cotangents = (_sharding(name, mesh, where, array) for where in wheres)
        return constrain(array, None, cotangents) if forward is None else put(array, forward, cotangents)

    return tree.map(place, x)


def _sharding(name: str, mesh: Mesh, where: Where, x: Array) -> NamedSharding | None:
    if where is None:
        return None
    if where and where[0] >= x.ndim:
        raise ConfigError(
            f"[{name}.shard.axis] expected an axis of the array, got {where[0]} for {x.aval!r}. Name another array, or"
            f" change the axis.{_at(registry.signals().get(name))}"
        )
    return NamedSharding(mesh, PartitionSpec(*(AXIS if k in where else None for k in range(x.ndim))))
