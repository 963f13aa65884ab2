"""Meshes and shardings: which part of an array each process holds. They are plain data that print and parse."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import numpy

from gtrace.core.base.errors import ShardingError, message

Axes = tuple[str, ...]
"""Names of mesh axes, the major one first."""

Dims = tuple[Axes, ...]
"""The mesh axes that split each dimension of an array; () for a dimension that is not split."""


ABSENT = (0,)
"""The shape that a process outside of the mesh holds."""


class Mesh:
    """Processes in a grid with named axes.

    Args:
        workers: ranks, as nested lists or an array with one dimension per axis.
        axis_names: the name of each dimension.

    Raises:
        ShardingError: a name is not an identifier, a name or rank appears twice, or there is not one name per
            dimension.

    >>> mesh = Mesh([[0, 1], [2, 3]], ("data", "model"))
    >>> dict(mesh.shape), mesh
    ({'data': 2, 'model': 2}, Mesh(data=2,model=2))
    """

    __slots__ = ("axis_names", "ranks", "sizes", "_key")

    axis_names: tuple[str, ...]
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]

    def __init__(self, workers: Any, axis_names: Sequence[str] | str) -> None:
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        grid = numpy.asarray(workers)
        if not names or any(not isinstance(name, str) or not name.isidentifier() for name in names):
            raise ShardingError(message("Mesh", "names of axes", repr(axis_names), 'Such as ("data", "model").'))
        if len(set(names)) < len(names):
            raise ShardingError(message("Mesh", "each axis name once", repr(names), "Rename one of them."))
        if grid.dtype.kind not in "iu" or not grid.size or (grid < 0).any() or len(set(grid.flat)) < grid.size:
            raise ShardingError(message("Mesh", "distinct ranks of at least 0", repr(workers), "Name each rank once."))
        if grid.ndim != len(names):
            got = f"{len(names)} for {grid.ndim} dimensions"
            raise ShardingError(message("Mesh", "one axis name per dimension", got, "Name each dimension."))
        self.axis_names = names
        self.ranks = tuple(int(rank) for rank in grid.flat)
        self.sizes = tuple(grid.shape)
        self._key = names, self.ranks, self.sizes

    @property
    def shape(self) -> Mapping[str, int]:
        """The size of each axis, by name."""
        return MappingProxyType(dict(zip(self.axis_names, self.sizes, strict=True)))

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """The size of each axis, in order."""
        return self.sizes

    @property
    def empty(self) -> bool:
        """Whether it has no processes; always False."""
        return False

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.ranks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        text = ",".join(f"{name}={n}" for name, n in zip(self.axis_names, self.sizes, strict=True))
        if self.ranks != tuple(range(len(self.ranks))):
            text += f"@{'.'.join(map(str, self.ranks))}"
        return text

    def __repr__(self) -> str:
        return f"Mesh({self})"

    def __reduce__(self) -> Any:
        return Mesh, (numpy.reshape(self.ranks, self.sizes), self.axis_names)

    def __enter__(self) -> Mesh:
        _entered.meshes.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _entered.meshes.pop()

    def parts(self, axes: Axes) -> int:
        """Return the number of parts into which these axes split a dimension."""
        return math.prod(self.sizes[self.axis_names.index(name)] for name in axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a process along each axis.

        >>> Mesh([[0, 1], [2, 3]], ("data", "model")).coordinates(1)
        {'data': 0, 'model': 1}
        """
        place = numpy.unravel_index(self.ranks.index(rank), self.sizes)
        return {name: int(k) for name, k in zip(self.axis_names, place, strict=True)}

    def part(self, axes: Axes, coordinates: Mapping[str, int]) -> int:
        """Return the index of the part over `axes` that the process at these coordinates has."""
        place = 0
        for name in axes:
            place = place * self.parts((name,)) + coordinates[name]
        return place

    def groups(self, axes: Axes) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ along `axes` alone, each in the order of its parts.

        >>> Mesh([[0, 1], [2, 3]], ("data", "model")).groups(("data",))
        ((0, 2), (1, 3))
        """
        grid = numpy.reshape(self.ranks, self.sizes)
        moved = [self.axis_names.index(name) for name in axes]
        rest = [k for k in range(grid.ndim) if k not in moved]
        rows = grid.transpose(*rest, *moved).reshape(-1, self.parts(axes))
        return tuple(tuple(int(rank) for rank in row) for row in rows)


class _Entered(threading.local):
    """The meshes of the blocks that a thread is in."""

    def __init__(self) -> None:
        self.meshes: list[Mesh] = []


_entered = _Entered()


def entered_mesh() -> Mesh | None:
    """Return the mesh of the innermost ``with mesh:`` block; None outside of any."""
    return _entered.meshes[-1] if _entered.meshes else None


def parse_mesh(text: str) -> Mesh:
    """Parse a mesh.

    Raises:
        ValueError: the text is not a mesh.

    >>> parse_mesh("data=2,model=2@3.2.1.0").ranks
    (3, 2, 1, 0)
    """
    axes, _, order = text.partition("@")
    pairs = [axis.split("=") for axis in axes.split(",")]
    sizes = [int(n) for _, n in pairs]
    ranks = [int(rank) for rank in order.split(".")] if order else range(math.prod(sizes))
    return Mesh(numpy.reshape(numpy.array(ranks), sizes), [name for name, _ in pairs])


class _Unconstrained:
    """A mark that `NamedSharding` rejects, and that libraries compare with."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"


class PartitionSpec(tuple[Any, ...]):
    """The mesh axis that splits each dimension of an array: a name, a tuple of names, or None.

    Dimensions without an entry are not split.

    >>> PartitionSpec("data", None)
    P('data', None)
    """

    __slots__ = ()

    UNCONSTRAINED = _Unconstrained()
    """JAX's mark of a dimension that the compiler lays out. `NamedSharding` rejects it."""

    def __new__(cls, *dims: str | Iterable[str] | None) -> PartitionSpec:
        made = []
        for dim in dims:
            axes = (dim,) if isinstance(dim, str) else tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
            axes = () if dim is None else axes
            if not all(isinstance(name, str) for name in axes) and dim is not PartitionSpec.UNCONSTRAINED:
                raise ShardingError(message("P", "names of mesh axes, or None", repr(dim), 'Such as P("data", None).'))
            made.append(None if not axes else axes[0] if len(axes) == 1 else axes)
        return super().__new__(cls, made)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"

    def __reduce__(self) -> Any:
        return PartitionSpec, tuple(self)


@attrs.frozen
class NamedSharding:
    """A layout of an array over the processes of a mesh.

    Attributes:
        mesh: the processes.
        spec: the mesh axes that split each dimension. A dimension of n elements over k processes has parts of
            ceil(n / k); the last ones may be shorter or empty.

    Raises:
        ShardingError: the mesh lacks an axis, or an axis appears twice.

    >>> NamedSharding(Mesh([0, 1], "data"), PartitionSpec("data"))
    NamedSharding(mesh=Mesh(data=2), spec=P('data'))
    """

    mesh: Mesh
    spec: PartitionSpec

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.mesh, Mesh) or not isinstance(self.spec, PartitionSpec):
            got = f"{self.mesh!r} and {self.spec!r}"
            raise ShardingError(message("NamedSharding", "a Mesh and a PartitionSpec", got, "Pass them in this order."))
        if PartitionSpec.UNCONSTRAINED in self.spec:
            fix = "Leave the constraint out, or name axes."
            raise ShardingError(message("NamedSharding", "names of mesh axes, or None", repr(self.spec), fix))
        seen: set[str] = set()
        for name in itertools.chain(*self.dims(len(self.spec))):
            if name not in self.mesh.axis_names:
                got = f"{name!r} in {self.spec!r}"
                known = ", ".join(self.mesh.axis_names)
                raise ShardingError(message("NamedSharding", "axes of the mesh", got, f"It has {known}."))
            if name in seen:
                got = f"{name!r} twice in {self.spec!r}"
                raise ShardingError(message("NamedSharding", "each axis once", got, "Split one dimension over it."))
            seen.add(name)

    def dims(self, ndim: int) -> Dims:
        """Return the axes that split each dimension of an array with `ndim` dimensions.

        Raises:
            ShardingError: the specification has more than `ndim` entries.
        """
        if len(self.spec) > ndim:
            got = f"{self.spec!r} for an array with {ndim} dimensions"
            raise ShardingError(message("sharding", "no more entries than dimensions", got, "Remove entries."))
        axes = [() if dim is None else (dim,) if isinstance(dim, str) else dim for dim in self.spec]
        return (*axes, *((),) * (ndim - len(axes)))

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each process holds the whole array."""
        return all(self.mesh.parts(axes) == 1 for axes in self.dims(len(self.spec)))

    def padded(self, ndim: int) -> NamedSharding:
        """Return the same sharding with one entry per dimension.

        Raises:
            ShardingError: the specification has more than `ndim` entries.
        """
        return NamedSharding(self.mesh, PartitionSpec(*self.dims(ndim)))

    def shard_shape(self, shape: tuple[int, ...], rank: int | None = None) -> tuple[int, ...]:
        """Return the shape of the part that a process holds; of the largest part if `rank` is None.

        >>> NamedSharding(Mesh([0, 1, 2, 3], "data"), PartitionSpec("data")).shard_shape((10, 3))
        (3, 3)
        """
        if rank is None:
            return tuple(-(-n // self.mesh.parts(axes)) for n, axes in zip(shape, self.dims(len(shape)), strict=True))
        return tuple(part.stop - part.start for part in self.index(shape, rank))

    def index(self, shape: tuple[int, ...], rank: int) -> tuple[slice, ...]:
        """Return the part of an array of this shape that a process holds.

        >>> NamedSharding(Mesh([0, 1, 2, 3], "data"), PartitionSpec("data")).index((10, 3), 3)
        (slice(9, 10, None), slice(0, 3, None))
        """
        place = self.mesh.coordinates(rank)
        return tuple(
            slice(*bounds(n, self.mesh.parts(axes), self.mesh.part(axes, place)))
            for n, axes in zip(shape, self.dims(len(shape)), strict=True)
        )

    @property
    def text(self) -> str:
        """Its text, which `parse_sharding` reads."""
        return f"{print_dims(self.dims(len(self.spec)))}|{self.mesh}"


def pairs(source: Mesh, target: Mesh) -> list[tuple[int, int]]:
    """Return pairs (sender, receiver) of processes that move an array from one mesh to another.

    Between meshes of equal axes, each process sends its part. Otherwise senders hold the whole array.

    >>> pairs(Mesh([0, 1], "x"), Mesh([2, 3], "x")), pairs(Mesh([0, 1], "x"), Mesh([1, 2, 3], "x"))
    ([(0, 2), (1, 3)], [(1, 1), (0, 2), (0, 3)])
    """
    if alike(source, target):
        return list(zip(source.ranks, target.ranks, strict=True))
    return [(rank if rank in source.ranks else source.ranks[0], rank) for rank in target.ranks]


def alike(source: Mesh, target: Mesh) -> bool:
    """Whether two meshes have the same axes with the same sizes."""
    return source.shape == target.shape and source.axis_names == target.axis_names


def bounds(size: int, parts: int, part: int) -> tuple[int, int]:
    """Return the first index of a part of a dimension, and the index after its last.

    >>> [bounds(10, 4, k) for k in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    step = -(-size // parts)
    return min(part * step, size), min((part + 1) * step, size)


def print_dims(dims: Dims) -> str:
    """Return the text of the axes that split each dimension.

    >>> print_dims((("data",), (), ("x", "y")))
    'data,-,x+y'
    """
    return ",".join("+".join(axes) or "-" for axes in dims)


def parse_dims(text: str) -> Dims:
    """Parse the text of `print_dims`.

    >>> parse_dims("data,-,x+y")
    (('data',), (), ('x', 'y'))
    """
    return tuple(() if dim == "-" else tuple(dim.split("+")) for dim in text.split(",")) if text else ()


def parse_sharding(text: str) -> NamedSharding:
    """Parse a sharding.

    Raises:
        ValueError: the text is not a sharding.

    >>> parse_sharding("data,-|data=4")
    NamedSharding(mesh=Mesh(data=4), spec=P('data', None))
    """
    dims, _, mesh = text.partition("|")
    return NamedSharding(parse_mesh(mesh), PartitionSpec(*parse_dims(dims)))
