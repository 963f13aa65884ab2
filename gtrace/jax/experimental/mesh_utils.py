"""``jax.experimental.mesh_utils``: grids of devices for meshes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from gtrace.extend import ShapeError, message
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
    """Return devices in a grid whose axes are those of a group of devices times those of the groups.

    Args:
        mesh_shape, dcn_mesh_shape: the sizes of a group, and those of the grid of groups.

    >>> create_hybrid_device_mesh((1, 1), (1, 1)).shape
    (1, 1)
    """
    shape, groups = tuple(mesh_shape), tuple(dcn_mesh_shape)
    if len(shape) != len(groups):
        fix = "Pass 1 for an axis without groups."
        raise ShapeError(message("create_hybrid_device_mesh", "as many axes", f"{shape} and {groups}", fix))
    given = _all_devices() if devices is None else list(devices)
    grid = numpy.array(given, object).reshape(groups + shape)
    order = [axis for k in range(len(groups)) for axis in (k, len(groups) + k)]
    return grid.transpose(order).reshape([a * b for a, b in zip(groups, shape, strict=True)])
