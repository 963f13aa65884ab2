"""``jax.experimental.multihost_utils`` of one process, as which `jax.process_count` shows this one."""

from __future__ import annotations

from typing import Any

import gtrace as gt
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
    """Return the pytree: the part of this process is the whole."""
    return local_inputs


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return the pytree: the whole is the part of this process."""
    return global_inputs
