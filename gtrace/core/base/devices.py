"""Devices that arrays can be on."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core.base.errors import DeviceError

CPU = torch.device("cpu")


def as_device(device: Any) -> torch.device:
    """Normalize a device argument; ``cuda`` gets its index, so that equal devices are equal objects.

    Raises:
        DeviceError: no such device, or one this torch build cannot use.
    """
    if device is None:
        return CPU
    try:
        result = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f'[device] expected a torch device such as "cpu" or "cuda:0", got {device!r}.') from error
    if result.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError(
                f"[device] expected a device of this machine, got {device!r}: torch sees no GPU. Use cpu."
            )
        if result.index is None:
            result = torch.device("cuda", torch.cuda.current_device())
    elif result.type != "cpu":
        raise DeviceError(f'[device] expected "cpu" or "cuda", got {device!r}. Other devices are not supported.')
    else:
        result = CPU
    return result
