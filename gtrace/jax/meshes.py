"""Meshes and layouts under JAX's names, and `shard_map`, which runs a function for every part of its arrays."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy

import gtrace as gt
from gtrace.distributed import sharding
from gtrace.errors import ShardingError
from gtrace.extend import ArgumentError, Array, PRNGKeyArray, ShapeError, entered_mesh, lift, message, ops, tree
from gtrace.jax.device_functions import Device, device_put, devices, each_with_layout
from gtrace.sharding import Mesh, NamedSharding, PartitionSpec


class AxisType(enum.Enum):
    """What JAX's compiler may do with an axis of a mesh: accepted, and without effect."""

    Auto = "auto"
    Explicit = "explicit"
    Manual = "manual"


@attrs.frozen(repr=False)
class SingleDeviceSharding:
    """The layout of an array that lies on one device.

    >>> import gtrace.jax as jax
    >>> SingleDeviceSharding(jax.devices("cpu")[0])
    SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)
    """

    device: Device
    memory_kind: str = attrs.field(default=None, converter=lambda kind: kind or "device")

    is_fully_addressable = is_fully_replicated = True
    num_devices = 1

    @property
    def device_set(self) -> set[Device]:
        """The devices that have a part."""
        return {self.device}

    addressable_devices = device_set
    _device_assignment = _addressable_device_assignment = property(lambda self: (self.device,))

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the part on the device: all of it."""
        return tuple(global_shape)

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
        """Return the place of each device's part."""
        return {self.device: (slice(None),) * len(global_shape)}

    addressable_devices_indices_map = devices_indices_map

    def is_equivalent_to(self, other: Any, ndim: int) -> bool:
        """Return whether an array of `ndim` dimensions has the same parts in another layout."""
        return self == other

    def with_memory_kind(self, kind: str) -> SingleDeviceSharding:
        """Return the same with a kind of memory."""
        return SingleDeviceSharding(self.device, kind)

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.device!r}, memory_kind={self.memory_kind})"


def _device_set(self: NamedSharding) -> set[Any]:
    """The devices that have a part: those of the mesh; without a mesh, that of new arrays."""
    own = {device.id: device for device in devices()}
    return {own.get(rank, rank) for rank in self.mesh.ranks} or set(devices()[:1])


def _own_devices(self: NamedSharding) -> set[Any]:
    """The devices of this process that have a part."""
    return _device_set(self).intersection(devices())


def _places(self: NamedSharding, global_shape: Sequence[int]) -> dict[Any, tuple[slice, ...]]:
    """Return the place of each device's part."""
    own = {device.id: device for device in devices()}
    return {own.get(rank, rank): self.index(tuple(global_shape), rank) for rank in self.mesh.ranks}


def _equivalent(self: NamedSharding, other: Any, ndim: int) -> bool:
    """Return whether an array of `ndim` dimensions has the same parts in another layout."""
    return isinstance(other, NamedSharding) and self.mesh == other.mesh and self.padded(ndim) == other.padded(ndim)


LAYOUTS = {
    "devices_indices_map": _places, "is_equivalent_to": _equivalent, "device_set": property(_device_set),
    "addressable_devices": property(_own_devices),
    "addressable_devices_indices_map": lambda self, global_shape: {
        device: part for device, part in _places(self, global_shape).items() if device in _own_devices(self)
    },
    "_device_assignment": property(lambda self: tuple(sorted(self.device_set, key=str))),
    "_addressable_device_assignment": property(lambda self: tuple(sorted(_own_devices(self), key=str))),
    "num_devices": property(lambda self: len(self.device_set)),
    "is_fully_addressable": property(lambda self: _own_devices(self) == self.device_set),
    "memory_kind": None,
}  # fmt: skip
"""Names that layouts on meshes get when ``gtrace.jax`` is imported."""


def make_single_device_sharding(device: Device, *, memory_kind: str | None = None) -> SingleDeviceSharding:
    """Return a `SingleDeviceSharding`."""
    return SingleDeviceSharding(device, memory_kind)


def _axis_types(self: Mesh) -> tuple[AxisType, ...]:
    """What the compiler may do with each axis: they are all automatic."""
    return (AxisType.Auto,) * len(self.axis_names)


axis_types = property(_axis_types)
auto_axes_of_mesh = property(lambda self: self.axis_names)
no_axes_of_mesh = property(lambda self: ())
"""The axes of a mesh that are explicit or manual: none."""

all_axes_auto = property(lambda self: bool(self.axis_names))
not_all_axes = property(lambda self: False)
"""Whether a mesh has axes, and all are explicit or manual: never."""


def auto_axes(f: Callable[..., Any], /, *, axes: Any = None, out_sharding: Any = None) -> Callable[..., Any]:
    """Return the function itself, because all axes of all meshes are automatic.

    >>> auto_axes(abs)(-1)
    1
    """
    return f


class AbstractMesh(Mesh):
    """A mesh of axes with these sizes, whether there are as many processes or not.

    >>> AbstractMesh((4,), ("data",))
    Mesh(data=4)
    """

    __slots__ = ()

    axis_types = axis_types
    auto_axes = auto_axes_of_mesh
    explicit_axes = manual_axes = no_axes_of_mesh
    are_all_axes_auto, are_all_axes_explicit, are_all_axes_manual = all_axes_auto, not_all_axes, not_all_axes

    def __init__(
        self,
        axis_sizes: Sequence[int],
        axis_names: Sequence[str] | str,
        axis_types: Any = None,
        *,
        abstract_device: Any = None,
    ) -> None:
        super().__init__(numpy.arange(math.prod(axis_sizes)).reshape(axis_sizes), axis_names)


class set_mesh(contextlib.AbstractContextManager[Mesh]):  # noqa: N801 - JAX's name
    """Enter a mesh: for the ``with`` block, or, without one, from now on.

    >>> import gtrace.jax as jax
    >>> with jax.set_mesh(jax.make_mesh((1,), ("data",))):
    ...     jax.sharding.get_mesh()
    Mesh(data=1)
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        mesh.__enter__()

    def __enter__(self) -> Mesh:
        return self._mesh

    def __exit__(self, *_: object) -> None:
        self._mesh.__exit__()


class _NoMesh(Mesh):
    """The mesh outside of any: without axes, and empty."""

    __slots__ = ()

    empty = True
    axis_types = axis_types
    auto_axes = explicit_axes = manual_axes = no_axes_of_mesh
    are_all_axes_auto = are_all_axes_explicit = are_all_axes_manual = not_all_axes
    _any_axis_explicit = False  # jaxns asks

    def __init__(self) -> None:
        self.axis_names = self.ranks = self.sizes = ()
        self._key = (), (), ()


NO_MESH = _NoMesh()


@functools.lru_cache(maxsize=64)
def undivided(ndim: int) -> NamedSharding:
    """Return the layout that types of arrays have: divided over no axis of no mesh.

    >>> undivided(2)
    NamedSharding(mesh=Mesh(), spec=P(None, None))
    """
    return NamedSharding(NO_MESH, PartitionSpec(*[None] * ndim))


def get_mesh() -> Mesh:
    """Return the mesh that has been entered last; outside of any, one without axes that is ``empty``.

    >>> import gtrace.jax as jax
    >>> jax.sharding.get_mesh().empty
    True
    """
    return entered_mesh() or NO_MESH


get_abstract_mesh = get_mesh


@contextlib.contextmanager
def use_abstract_mesh(mesh: Mesh) -> Iterator[Mesh]:
    """Enter a mesh for the block."""
    with mesh:
        yield mesh


def reshard(xs: Any, out_shardings: Any) -> Any:
    """``gt.with_sharding`` for each array of a pytree; there may be a pytree of layouts, one for each or for a part."""

    def place(leaves: Any, layout: Any) -> Any:
        if isinstance(layout, SingleDeviceSharding):
            return device_put(leaves, layout)
        return tree.map(lambda leaf: sharding.with_sharding(leaf, layout), leaves)

    return each_with_layout(place, xs, out_shardings)


def make_array_from_callback(
    shape: Sequence[int], sharding_: Any, data_callback: Callable[[tuple[slice, ...]], Any], dtype: Any = None
) -> Array:
    """Return an array whose parts a function of their places makes.

    Args:
        data_callback: from a slice for each axis to that part.

    >>> import gtrace.jax as jax
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> layout = jax.NamedSharding(mesh, jax.P("data"))
    >>> jax.make_array_from_callback((3,), layout, lambda place: jax.numpy.arange(3.)[place])
    Array([0., 1., 2.], dtype=float32)
    """
    divided = isinstance(sharding_, NamedSharding)
    own = sharding_.index(tuple(shape), sharding.process_index()) if divided else tuple(slice(0, n) for n in shape)
    part = data_callback(own)
    if isinstance(part, PRNGKeyArray):
        return part._like(make_array_from_callback(shape, sharding_, lambda _: part._data))
    found = gt.array(part, dtype)
    return sharding.from_process_local(sharding_, found, tuple(shape)) if divided else found


def make_array_from_process_local_data(sharding_: Any, local_data: Any, global_shape: Any = None) -> Any:
    """``gt.sharding.from_process_local`` for each array of a pytree; on one device, the arrays themselves.

    Args:
        global_shape: one shape, or a pytree of shapes like `local_data`.

    Raises:
        ShapeError: the data on one device do not have this shape, or there is not one shape for each array.
    """
    data, structure = tree.flatten(local_data)
    alike = global_shape is None or all(isinstance(n, int) for n in global_shape)
    shapes = [global_shape] * len(data) if alike else tree.leaves(global_shape, lambda x: isinstance(x, tuple))
    several = isinstance(sharding_, (NamedSharding, PartitionSpec))
    fits = several or all(shape is None or shape == numpy.shape(x) for x, shape in zip(data, shapes, strict=False))
    if len(shapes) != len(data) or not fits:
        got, fix = f"{global_shape!r} for {[numpy.shape(x) for x in data]}", "Match them."
        raise ShapeError(message("make_array_from_process_local_data", "the shape of each array", got, fix))
    if not several:
        return device_put(local_data, sharding_)
    made = [sharding.from_process_local(sharding_, x, shape) for x, shape in zip(data, shapes, strict=True)]
    return structure.unflatten(made)


# -- functions of the parts of arrays


def _names(dim: Any) -> tuple[str, ...]:
    return () if dim is None else (dim,) if isinstance(dim, str) else tuple(dim)


def _parts(x: Array, spec: PartitionSpec, mesh: Mesh) -> tuple[Array, frozenset[str]]:
    """Return the parts of an array, with an axis in front for each mesh axis of `spec`, in the mesh's order."""
    shape: list[int] = []
    places: dict[str, int] = {}
    dims = [_names(dim) for dim in spec]
    for k, size in enumerate(x.shape):
        for name in dims[k] if k < len(dims) else ():
            places[name] = len(shape)
            shape.append(mesh.shape[name])
            if size % mesh.shape[name]:
                got = f"{spec!r} for {x.aval!r} over {mesh!r}"
                raise ShapeError(message("shard_map", "sizes that the mesh divides", got, "Pad the array."))
            size //= mesh.shape[name]
        shape.append(size)
    order = [name for name in mesh.axis_names if name in places]
    split = ops.reshape(x, tuple(shape))
    return ops.moveaxis(split, tuple(places[n] for n in order), tuple(range(len(order)))), frozenset(order)


def _whole(x: Array, spec: PartitionSpec, mesh: Mesh) -> Array:
    """Return an array from its parts, with an axis in front for each mesh axis; along those not in `spec` the first."""
    used = {name for dim in spec for name in _names(dim)}
    x = x[tuple(slice(None) if name in used else 0 for name in mesh.axis_names)]
    order = [name for name in mesh.axis_names if name in used]
    sizes = x.shape[len(order) :]
    if len(spec) > len(sizes):
        got = f"{spec!r} for a part of shape {sizes}"
        raise ShapeError(message("shard_map", "out_specs with no more entries than dimensions", got, "Remove some."))
    places, shape, at = [], [], 0
    for k, size in enumerate(sizes):
        names = _names(spec[k]) if k < len(spec) else ()
        places += [(name, at + j) for j, name in enumerate(names)]
        at += len(names) + 1
        shape.append(size * math.prod(mesh.shape[name] for name in names))
    target = dict(places)
    return ops.reshape(ops.moveaxis(x, tuple(range(len(order))), tuple(target[name] for name in order)), tuple(shape))


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec) or x is None


def _leaf_specs(specs: Any, values: Any) -> list[PartitionSpec]:
    """Return the specification of each leaf; `specs` is a prefix of the structure."""
    found: list[PartitionSpec] = []

    def note(spec: Any, part: Any) -> None:
        found.extend([PartitionSpec() if spec is None else spec] * len(tree.leaves(part)))

    tree.map(note, specs, values, is_leaf=_is_spec)
    return found


def shard_map(
    f: Callable[..., Any] | None = None, mesh: Mesh | None = None, in_specs: Any = None, out_specs: Any = None, *,
    axis_names: Any = frozenset(), check_vma: bool = True, check_rep: bool = True,
) -> Any:  # fmt: skip
    """Return a function that calls `f` with the parts of its arrays, all at once, and puts the results together.

    The parts are the examples of a `vmap` for each axis of the mesh, by whose names `f` may call ``lax.psum`` and its
    kin. On one process the parts are all here; arrays over several processes are divided as in any program.

    Args:
        in_specs, out_specs: a ``PartitionSpec`` for each argument and result, or a pytree that is a prefix of them. A
            result that is not split over an axis is that of the first place on it.
        mesh: by default the one that has been entered.
        axis_names: must be all axes of the mesh, or empty.
        check_vma, check_rep: ignored.

    Raises:
        ArgumentError: no specifications, or some axes only.
        ShapeError: sizes that the mesh does not divide.

    >>> import gtrace.jax as jax
    >>> mesh = jax.sharding.AbstractMesh((2,), ("i",))
    >>> total = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
    >>> total(jax.numpy.arange(4.))
    Array([2., 4.], dtype=float32)
    """
    if f is None:
        return lambda g: shard_map(g, out_specs=out_specs, in_specs=in_specs, mesh=mesh, axis_names=axis_names)
    if in_specs is None:
        fix = "Pass a PartitionSpec for each argument."
        raise ArgumentError(message("shard_map", "in_specs", "none", fix))

    def call(*args: Any) -> Any:
        over = get_mesh() if mesh is None else mesh
        if over.empty:
            raise ShardingError(
                message("shard_map", "a mesh", "none", "Pass mesh=, or use `with jax.set_mesh(mesh):`.")
            )
        if axis_names and set(axis_names) != set(over.axis_names):
            fix = "Use with_sharding_constraint for the other axes."
            raise ArgumentError(message("shard_map", f"all axes of {over!r}", repr(set(axis_names)), fix))
        specs = in_specs if isinstance(in_specs, tuple) and not _is_spec(in_specs) else (in_specs,) * len(args)
        leaves, structure = tree.flatten(args)
        split = [
            _parts(lift("shard_map", leaf), spec, over)
            for leaf, spec in zip(leaves, _leaf_specs(specs, args), strict=True)
        ]
        kept: list[Any] = []

        def one(*parts: Any) -> list[Any]:
            out, outer = tree.flatten(f(*structure.unflatten(parts)))
            kept[:] = [outer]
            return out

        mapped: Callable[..., Any] = one
        for name in reversed(over.axis_names):
            axes = tuple(0 if name in names else None for _, names in split)
            mapped = gt.vmap(mapped, axes, axis_name=name, axis_size=over.shape[name])
        found = mapped(*[x for x, _ in split])
        value = kept[0].unflatten(found)
        ends = _leaf_specs(out_specs, value)
        return kept[0].unflatten([_whole(x, spec, over) for x, spec in zip(found, ends, strict=True)])

    return call


def visualize_sharding(shape: Sequence[int], sharding_: Any, **options: Any) -> None:
    """Print which part of an array each process holds; see ``gt.sharding.visualize``."""
    print(sharding.visualize(sharding_, shape))


def visualize_array_sharding(arr: Array, **options: Any) -> None:
    """Print which part of an array each process holds; see ``gt.sharding.visualize``."""
    print(sharding.visualize(arr))


def inspect_array_sharding(value: Any, *, callback: Callable[[Any], Any]) -> None:
    """Call a function with the layout of an array, or None for one that is whole on this process."""
    callback(lift("inspect_array_sharding", value).sharding)
