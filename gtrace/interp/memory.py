"""Errors for lack of memory, as distinct from values that torch refuses."""

from __future__ import annotations

import torch

from gtrace.errors import OutOfMemoryError, user_location


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python ran out of memory.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("index 3 is out of bounds"))
    (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # the CPU allocator raises a plain RuntimeError
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def out_of_memory(what: str, error: BaseException) -> OutOfMemoryError:
    """Return the error to raise in place of `error`, for which `is_out_of_memory` holds."""
    lines = str(error).strip().splitlines() or ["no memory"]
    return OutOfMemoryError(
        f"[{what}] expected memory for its results, got none: {lines[0]}. Use smaller batches, drop arrays that are"
        f" not needed any more, or recompute with gt.checkpoint. (at {user_location()})"
    )
