"""``jax.extend.backend``: the platforms of `jax.devices`."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from gtrace.jax.device_functions import Device, default_backend, devices


@attrs.frozen
class Backend:
    """A platform.

    Attributes:
        platform: ``"cpu"`` or ``"gpu"``.
    """

    platform: str

    def devices(self) -> list[Device]:
        """Return the devices of the platform."""
        return devices(self.platform)

    local_devices = devices

    def device_count(self) -> int:
        """Return the number of devices."""
        return len(self.devices())

    local_device_count = device_count


def get_backend(platform: Any = None) -> Backend:
    """Return a platform, by default that of new arrays.

    >>> get_backend().platform
    'cpu'
    """
    return Backend(platform or default_backend())


def backends() -> dict[str, Backend]:
    """Return the platforms that have devices, by name."""
    return {name: Backend(name) for name in ("cpu", "gpu")[: 1 + torch.cuda.is_available()]}


__all__ = ["Backend", "backends", "get_backend"]
