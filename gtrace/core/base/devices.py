"""Devices of arrays."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gtrace.core.base.config import Config, config
from gtrace.core.base.errors import DeviceError

CPU = torch.device("cpu")


def as_device(device: Any) -> torch.device:
    """Normalize a device argument. ``cuda`` gets its index, so that equal devices are equal objects.

    None stands for the setting `device`. Other objects, such as the devices of ``gtrace.jax``, have its name as text,
    or a `device` that has, as layouts on one device do.

    Raises:
        DeviceError: there is no such device, or this build of torch cannot use it.
    """
    if device is None:
        name = config.current.device
        return CPU if name == "cpu" else _chosen(name)
    try:
        result = torch.device(
            device if isinstance(device, (torch.device, str, int)) else str(getattr(device, "device", device))
        )
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f'[device] expected a torch device such as "cpu" or "cuda:0", got {device!r}.') from error
    if result.type == "cuda":
        _check_gpu(device)
        if result.index is None:
            result = torch.device("cuda", torch.cuda.current_device())
    elif result.type != "cpu":
        raise DeviceError(f'[device] expected "cpu" or "cuda", got {device!r}. Other devices are not supported.')
    else:
        result = CPU
    return result


PINNED = 1 << 20
"""Bytes of data that go to a GPU by way of pinned memory. Chosen: pinning more memory takes longer than waiting."""


def sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device. For little data the host does not wait until a GPU has it."""
    here = device.type == "cuda" and type(x) is torch.Tensor and x.device.type == "cpu"
    if here and x.nbytes <= PINNED and x.is_contiguous():
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def number_tensor(value: complex, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a number as a 0-d tensor. A GPU makes it itself: the host would wait for a copy."""
    make = torch.tensor if device.type == "cpu" else functools.partial(torch.full, ())
    return make(value, dtype=dtype, device=device)


@functools.cache
def _chosen(name: str) -> torch.device:
    """Return the device that a setting names. ``cuda`` becomes torch's current GPU at its first use."""
    return as_device(name)


def _check_gpu(device: Any) -> None:
    if not torch.cuda.is_available():
        raise DeviceError(f"[device] expected a device of this machine, got {device!r}: torch sees no GPU. Use cpu.")


def _check_setting(settings: Config) -> None:
    if settings.device != "cpu":
        _check_gpu(settings.device)


config.watch(_check_setting)
