"""What torch raises while a program runs, as errors of gtrace: lack of memory, and values that it refuses."""

from __future__ import annotations

from typing import NoReturn

import torch

from gtrace.core.base.errors import ExecutionError, OutOfMemoryError, user_location

REFUSALS = (RuntimeError, IndexError, MemoryError)
"""What torch raises where it cannot run an operation on values."""


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


def refuse(what: str, error: BaseException) -> NoReturn:
    """Raise the error of a program in which torch raised one of `REFUSALS`, for lack of memory or because of values."""
    if isinstance(error, ExecutionError):
        try:
            raise error
        finally:
            del error  # which refers to this frame
    if is_out_of_memory(error):
        raise out_of_memory(what, error) from error
    reason = str(error).strip().split("\n")[0]
    raise ExecutionError(
        f"[{what}] expected values that its operations take, got a refusal from torch: {reason}."
        " GT_EAGER=1 shows the operation and the line."
    ) from error
