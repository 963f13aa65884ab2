"""``jax.extend.backend``: the platforms of `jax.devices`."""

from __future__ import annotations

from typing import Any

import torch

from gtrace.jax.device_functions import Backend, default_backend


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
