"""``jax.distributed`` of one process, as which `jax.process_count` shows this one."""

from __future__ import annotations

from typing import Any

from gtrace.errors import ShardingError
from gtrace.extend import ArgumentError, message

__all__ = ["initialize", "is_initialized", "shutdown"]

_begun = False


def initialize(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None,
    local_device_ids: Any = None, cluster_detection_method: str | None = None, initialization_timeout: int = 300,
    heartbeat_timeout_seconds: int = 100, shutdown_timeout_seconds: int = 300,
    coordinator_bind_address: str | None = None, slice_index: int | None = None, partition_index: int | None = None,
) -> None:  # fmt: skip
    """Begin a run of one process. There is nobody to connect to, so only the numbers of processes matter.

    Raises:
        ShardingError: `num_processes` is not 1, or `process_id` not 0.
        ArgumentError: the run has begun already.

    >>> import gtrace.jax as jax
    >>> jax.distributed.initialize()
    >>> jax.distributed.is_initialized()
    True
    >>> jax.distributed.shutdown()
    """
    global _begun
    if num_processes not in (None, 1) or process_id not in (None, 0):
        fix = "Start several processes by torchrun, and lay arrays out with gtrace.sharding: see docs/sharding.md."
        got = f"num_processes={num_processes}, process_id={process_id}"
        raise ShardingError(message("jax.distributed.initialize", "one process", got, fix))
    if _begun:
        fix = "Ask jax.distributed.is_initialized() first."
        raise ArgumentError(message("jax.distributed.initialize", "one call", "a second one", fix))
    _begun = True


def is_initialized() -> bool:
    """Return whether the run has begun by `initialize`, and not ended by `shutdown`."""
    return _begun


def shutdown() -> None:
    """End the run; do nothing if none has begun."""
    global _begun
    _begun = False
