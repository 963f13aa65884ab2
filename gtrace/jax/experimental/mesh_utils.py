"""``jax.experimental.mesh_utils``: grids of devices for meshes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from gtrace.jax.device_functions import devices as _all_devices


def create_device_mesh(mesh_shape: Sequence[int], devices: Any = None, **options: Any) -> numpy.ndarray:
    """Return devices in a grid of a shape.

    >>> create_device_mesh((1, 1)).shape
    (1, 1)
    """
    given = _all_devices() if devices is None else list(devices)
    return numpy.array(given, object).reshape(tuple(mesh_shape))


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int], devices: Any = None, **options: Any
) -> numpy.ndarray:
    """Return devices in a grid whose sizes are the products of those within a machine and those between machines.

    >>> create_hybrid_device_mesh((1, 1), (1, 1)).shape
    (1, 1)
    """
    return create_device_mesh([a * b for a, b in zip(mesh_shape, dcn_mesh_shape, strict=True)], devices)
