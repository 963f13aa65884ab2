"""``jax.sharding``: gtrace's own meshes and layouts, under JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy

from gtrace.distributed import sharding
from gtrace.distributed.sharding import NamedSharding as NamedSharding
from gtrace.distributed.sharding import PartitionSpec as PartitionSpec
from gtrace.jax import meshes
from gtrace.jax.adapt import namespace
from gtrace.jax.device_functions import Device, devices

Sharding = NamedSharding | meshes.SingleDeviceSharding
"""The layouts, for annotations and ``isinstance``."""


class Mesh(sharding.Mesh):
    """``gt.sharding.Mesh`` of `jax.devices`, or of ranks.

    >>> import gtrace.jax as jax
    >>> jax.sharding.Mesh(jax.devices(), ("data",))
    Mesh(data=1)
    """

    __slots__ = ()

    axis_types = meshes.axis_types
    auto_axes = meshes.auto_axes_of_mesh
    explicit_axes = manual_axes = meshes.no_axes_of_mesh
    are_all_axes_auto = meshes.all_axes_auto
    are_all_axes_explicit = are_all_axes_manual = meshes.not_all_axes

    def __init__(self, devices: Any, axis_names: Sequence[str] | str, axis_types: Any = None) -> None:
        grid = numpy.asarray(devices)
        ranks = [x.id if isinstance(x, Device) else x for x in grid.flat]
        super().__init__(numpy.array(ranks).reshape(grid.shape), axis_names)

    @property
    def devices(self) -> numpy.ndarray:
        """The devices, or the ranks of other processes, in a grid."""
        own = {device.id: device for device in devices()}
        return numpy.array([own.get(rank, rank) for rank in self.ranks], object).reshape(self.sizes)


def make_mesh(
    axis_sizes: Sequence[int] | None = None, axis_names: Sequence[str] = (), axis_types: Any = None, *,
    devices: Any = None, axis_shapes: Sequence[int] = (),
) -> Mesh:  # fmt: skip
    """Return a mesh with axes of these sizes, of the first ranks. JAX 0.10 names the sizes `axis_shapes`.

    >>> import gtrace.jax as jax
    >>> jax.make_mesh((1,), ("data",))
    Mesh(data=1)
    """
    sizes = tuple(axis_shapes if axis_sizes is None else axis_sizes)
    count = int(numpy.prod(sizes, dtype=numpy.int64))
    ranks = numpy.arange(count) if devices is None else numpy.asarray(devices).reshape(-1)[:count]
    return Mesh(ranks.reshape(sizes), axis_names)


@attrs.frozen
class AbstractDevice:
    """What a kind of devices is, without any.

    Attributes:
        device_kind: its name.
        num_cores: the cores of one.
    """

    device_kind: str
    num_cores: int | None = None
    platform: str | None = None


__getattr__, __dir__ = namespace("jax.sharding", meshes)
