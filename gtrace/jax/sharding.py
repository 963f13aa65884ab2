"""``jax.sharding``: gtrace's own meshes and layouts, under JAX's names; `shard_map` over the axes of one process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from gtrace import sharding, tree
from gtrace.errors import ArgumentError, ShardingError, message
from gtrace.jax.adapt import namespace
from gtrace.jax.devices import Device, devices
from gtrace.sharding import NamedSharding as NamedSharding
from gtrace.sharding import PartitionSpec as PartitionSpec
from gtrace.trace.array import Array
from gtrace.transform.vmap import vmap

Sharding = NamedSharding
"""The class that programs name in annotations and ``isinstance``: there is one kind of layout."""


class Mesh(sharding.Mesh):
    """``gt.sharding.Mesh`` of `jax.devices`, or of ranks.

    >>> import gtrace.jax as jax
    >>> jax.sharding.Mesh(jax.devices(), ("data",))
    Mesh(data=1)
    """

    __slots__ = ()

    def __init__(self, devices: Any, axis_names: Sequence[str] | str) -> None:
        grid = numpy.asarray(devices)
        ranks = [x.id if isinstance(x, Device) else x for x in grid.flat]
        super().__init__(numpy.array(ranks).reshape(grid.shape), axis_names)

    @property
    def devices(self) -> numpy.ndarray:
        """The devices, or the ranks of other processes, in a grid."""
        own = {device.id: device for device in devices()}
        return numpy.array([own.get(rank, rank) for rank in self.ranks], object).reshape(self.sizes)


def make_mesh(
    axis_shapes: Sequence[int], axis_names: Sequence[str], axis_types: Any = None, *, devices: Any = None
) -> Mesh:
    """Return a mesh with axes of these sizes, of the first ranks.

    >>> import gtrace.jax as jax
    >>> jax.make_mesh((1,), ("data",))
    Mesh(data=1)
    """
    sizes = tuple(axis_shapes)
    count = int(numpy.prod(sizes, dtype=numpy.int64))
    ranks = numpy.arange(count) if devices is None else numpy.asarray(devices).reshape(-1)[:count]
    return Mesh(ranks.reshape(sizes), axis_names)


def shard_map(
    f: Callable[..., Any] | None = None, /, *, out_specs: Any = None, in_specs: Any = None, mesh: Any = None,
    axis_names: Any = None, check_vma: bool = True, check_rep: bool = True,
) -> Any:  # fmt: skip
    """Return `f` as a function of whole arrays, with the mesh's axes as names for `lax.psum` and its like.

    Args:
        mesh: all of whose axes have size 1, so that the part of an array that a process has is all of it.

    Raises:
        ArgumentError: no mesh.
        ShardingError: a larger mesh.

    >>> import gtrace.jax as jax
    >>> mesh = jax.make_mesh((1,), ("i",))
    >>> total = lambda x: jax.lax.psum(x.sum(), "i")
    >>> jax.shard_map(total, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())(jax.numpy.ones(3))
    Array(3., dtype=float32)
    """
    if f is None:
        return functools.partial(shard_map, out_specs=out_specs, in_specs=in_specs, mesh=mesh)
    if not isinstance(mesh, sharding.Mesh):
        raise ArgumentError(message("shard_map", "a mesh", repr(mesh), "Pass mesh=jax.make_mesh((1,), ('i',))."))
    if mesh.size != 1:
        fix = "Write the function for whole arrays, and lay them out with gt.with_sharding: programs are divided then."
        raise ShardingError(message("shard_map", "a mesh of one process", repr(mesh), fix))

    @functools.wraps(f)
    def call(*args: Any) -> Any:
        mapped: Callable[..., Any] = f
        for name in reversed(mesh.axis_names):
            mapped = _named(mapped, name)
        return mapped(*args)

    return call


def _named(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return `f` within an axis of size 1."""

    def call(*args: Any) -> Any:
        found = vmap(f, in_axes=None, axis_name=name, axis_size=1)(*args)
        return tree.map(lambda x: x[0] if isinstance(x, Array) else x, found)

    return call


__getattr__, __dir__ = namespace("jax.sharding")
