"""``jax.experimental.multihost_utils`` of one process, as which `jax.process_count` shows this one."""

from __future__ import annotations

from typing import Any

import gtrace as gt
from gtrace.distributed import sharding
from gtrace.extend import tree

__all__ = [
    "assert_equal", "broadcast_one_to_all", "global_array_to_host_local_array", "host_local_array_to_global_array",
    "process_allgather", "reached_preemption_sync_point", "sync_global_devices",
]  # fmt: skip


def sync_global_devices(name: str) -> None:
    """Do nothing: there is no other process to wait for."""


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Return the pytree."""
    return in_tree


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Do nothing: there is one pytree."""


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Return the arrays of all processes as NumPy arrays: this one's, with an axis of size 1 unless `tiled`.

    >>> process_allgather(gt.ones(2)).shape
    (1, 2)
    """
    return tree.map(lambda x: gt.array(x if tiled else gt.array(x)[None]).numpy(), in_tree)


def reached_preemption_sync_point(step_id: int) -> bool:
    """Return whether the processes agreed to save at this step, before they are stopped: never."""
    return False


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return arrays that are divided among the processes of a mesh, of the part that each process has.

    Args:
        pspecs: how the arrays are divided: one `PartitionSpec`, or a pytree that is a prefix of theirs.

    >>> import gtrace.jax as jax
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> host_local_array_to_global_array(gt.ones(2), mesh, jax.P("data")).tolist()
    [1.0, 1.0]
    """

    def whole(x: Any, spec: Any) -> Any:
        layout = sharding.NamedSharding(global_mesh, spec)
        return sharding.from_process_local(layout, gt.array(x))

    return _each(whole, local_inputs, pspecs)


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return the part that this process has of arrays that are divided among the processes of a mesh.

    >>> import gtrace.jax as jax
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> global_array_to_host_local_array(gt.ones(2), mesh, jax.P("data")).tolist()
    [1.0, 1.0]
    """

    def own(x: Any, spec: Any) -> Any:
        array = gt.array(x)
        layout = sharding.NamedSharding(global_mesh, spec)
        return array[layout.index(array.shape, sharding.process_index())]

    return _each(own, global_inputs, pspecs)


def _each(function: Any, values: Any, specs: Any) -> Any:
    """Apply a function to each array and its `PartitionSpec`."""

    def part(spec: Any, leaves: Any) -> Any:
        return tree.map(lambda leaf: function(leaf, spec), leaves)

    return tree.map(part, specs, values, is_leaf=lambda x: isinstance(x, sharding.PartitionSpec))
