"""``jax._src.distributed``: the state of a run of several processes, as a run of one process has it."""

from __future__ import annotations

from types import SimpleNamespace

__all__ = ["global_state"]

global_state = SimpleNamespace(client=None, service=None, process_id=0, num_processes=1, coordinator_address=None)
"""What libraries ask about several processes: there is no coordinator. `gtrace.distributed` has its own processes."""
