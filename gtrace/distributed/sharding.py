"""``gt.sharding``: arrays over several processes, with the names of ``jax.sharding``.

A `Mesh` is a grid of processes with named axes. A `PartitionSpec` names the mesh axis that splits each dimension of an
array. Together they are a `NamedSharding`. Programs of sharded arrays are divided among the processes, and compute the
same results as on one process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from gtrace.core.base.errors import ShapeError, ShardingError, message
from gtrace.core.base.tree import map as tree_map
from gtrace.core.ir.aval import aval, sharded
from gtrace.core.ir.sharding import ABSENT, Mesh, NamedSharding, PartitionSpec, entered_mesh
from gtrace.core.partitioner import processes
from gtrace.core.trace.array import Array, Shard, wrap_as
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import whole
from gtrace.distributed.placing import constrain, put
from gtrace.distributed.plan import Plan, plan

__all__ = [
    "Mesh", "NamedSharding", "P", "PartitionSpec", "Plan", "Shard", "device_put", "from_process_local", "make_mesh",
    "plan", "process_count", "process_index", "visualize", "with_sharding",
]  # fmt: skip

P = PartitionSpec


def process_count() -> int:
    """Return the number of processes that run the program.

    >>> process_count()
    1
    """
    return processes.count()


def process_index() -> int:
    """Return the rank of this process.

    >>> process_index()
    0
    """
    return processes.rank()


def make_mesh(shape: Sequence[int], axis_names: Sequence[str] | str, workers: Sequence[int] | None = None) -> Mesh:
    """Return a mesh of all processes.

    Args:
        shape: the size of each axis; one of them may be -1 and is then computed.
        workers: the ranks in the order of the mesh; None: 0, 1, ...

    Raises:
        ShardingError: the product of the sizes is not the number of processes.

    >>> make_mesh((-1,), ("data",))
    Mesh(data=1)
    """
    sizes = list(shape)
    ranks = list(range(process_count())) if workers is None else list(workers)
    rest = math.prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and rest > 0 and not len(ranks) % rest:
        sizes[sizes.index(-1)] = len(ranks) // rest
    if any(n < 1 for n in sizes) or math.prod(sizes) != len(ranks):
        got = f"{tuple(shape)} for {len(ranks)} process{'es' * (len(ranks) > 1)}"
        fix = "Start as many as the mesh has with gtrace run --workers N, or make one size -1."
        raise ShardingError(message("make_mesh", "sizes whose product is the number of processes", got, fix))
    return Mesh(numpy.reshape(ranks, sizes), axis_names)


def _sharding(op: str, sharding: NamedSharding | PartitionSpec | None, ndim: int) -> NamedSharding:
    """Return a sharding of an array with `ndim` dimensions; a bare specification uses the entered mesh."""
    mesh = entered_mesh()
    if isinstance(sharding, PartitionSpec) and mesh is not None:
        sharding = NamedSharding(mesh, sharding)
    if not isinstance(sharding, NamedSharding):
        fix = "Pass gt.sharding.NamedSharding(mesh, P(...)), or use a `with mesh:` block around P(...)."
        raise ShardingError(message(op, "a sharding", repr(sharding), fix))
    processes.check_mesh(sharding.mesh)
    return sharding.padded(ndim)


def device_put(x: Any, sharding: NamedSharding | PartitionSpec | Any) -> Any:
    """Return the arrays of a pytree laid out over processes.

    Arrays without a sharding must be the same on every process; each then keeps its part. Sharded arrays are sent when
    their program runs.

    Args:
        x: an array, or a pytree of arrays.
        sharding: a `NamedSharding`; a `PartitionSpec` inside a ``with mesh:`` block; or a pytree of these like x.

    Raises:
        ShardingError: there is no sharding, its processes are not those that run, or it does not fit an array.

    >>> mesh = gt.sharding.make_mesh((-1,), ("data",))
    >>> x = gt.device_put(gt.arange(4), gt.sharding.NamedSharding(mesh, gt.sharding.P("data")))
    >>> x.sharding, x.sum()
    (NamedSharding(mesh=Mesh(data=1), spec=P('data')), Array(6, dtype=int64))
    """
    if isinstance(sharding, (NamedSharding, PartitionSpec)):
        return tree_map(lambda leaf: _put(leaf, sharding), x)
    return tree_map(_put, x, sharding)


def _put(x: Any, sharding: Any) -> Array:
    array = lift("device_put", x)
    return put(array, _sharding("device_put", sharding, array.ndim))


def with_sharding(x: Any, sharding: NamedSharding | PartitionSpec) -> Any:
    """Return the arrays of a pytree in the layout of `sharding`. They are computed in that layout.

    It is an operation of the program, also inside `gt.jit`, `gt.grad` and `gt.vmap` (which adds an unsplit dimension).
    Values stay the same, and derivatives are those of the identity. A cotangent gets the layout that suits its use.

    Raises:
        ShardingError: as for `device_put`.

    >>> mesh = gt.sharding.make_mesh((-1,), ("data",))
    >>> with mesh:
    ...     y = gt.jit(lambda x: gt.with_sharding(x * 2, gt.sharding.P("data")))(gt.ones(3))
    >>> y
    Array([2., 2., 2.], dtype=float32)
    """

    def place(leaf: Any) -> Array:
        array = lift("with_sharding", leaf)
        return constrain(array, _sharding("with_sharding", sharding, array.ndim))

    return tree_map(place, x)


def from_process_local(sharding: NamedSharding, data: Any, shape: Sequence[int] | None = None) -> Array:
    """Return an array whose parts the processes pass.

    Args:
        data: the part of this process. Outside of the mesh, only its dtype and shape count.
        shape: the shape of the whole array; None: each split dimension is that of `data` times the number of parts.

    Raises:
        ShapeError: `data` does not have the shape of this process's part.
        ShardingError: as for `device_put`.

    >>> sharding = gt.sharding.NamedSharding(gt.sharding.make_mesh((-1,), "data"), gt.sharding.P("data"))
    >>> gt.from_process_local(sharding, gt.ones((2, 3))).shape
    (2, 3)
    """
    array = lift("from_process_local", data)
    target = _sharding("from_process_local", sharding, array.ndim)
    parts = [target.mesh.parts(axes) for axes in target.dims(array.ndim)]
    full = tuple(n * k for n, k in zip(array.shape, parts, strict=True)) if shape is None else tuple(shape)
    if processes.rank() not in target.mesh.ranks:
        absent = sharded(aval(full, array.aval.dtype, array.aval.device), target)
        return wrap_as(whole(array, "from_process_local").new_empty(ABSENT), absent)
    expected = target.shard_shape(full, processes.rank()) if len(full) == array.ndim else None
    if array.shape != expected:
        got = f"{array.shape} at rank {processes.rank()}"
        fix = f"The array has shape {full}, over {target!r}."
        raise ShapeError(message("from_process_local", f"a part of shape {expected}", got, fix))
    a = aval(full, array.aval.dtype, array.aval.device)
    return wrap_as(whole(array, "from_process_local"), sharded(a, target))


def visualize(x: Array | NamedSharding, shape: Sequence[int] | None = None) -> str:
    """Return a picture of the processes that hold the parts of an array, by its first two dimensions.

    Args:
        x: an array, or a sharding of one with this `shape`.

    Raises:
        ShardingError: x is neither, is a sharding without a shape, or belongs to this process alone.

    >>> mesh = Mesh([[0, 1], [2, 3]], ("data", "model"))
    >>> print(visualize(NamedSharding(mesh, P("data", "model")), (8, 4)))
    ┌───┬───┐
    │ 0 │ 1 │
    ├───┼───┤
    │ 2 │ 3 │
    └───┴───┘
    """
    sharding = x.sharding if isinstance(x, Array) else x
    size = x.shape if isinstance(x, Array) else shape
    if not isinstance(sharding, NamedSharding) or size is None:
        fix = "Pass an array that is laid out over a mesh, or a NamedSharding and a shape."
        raise ShardingError(message("visualize", "a sharded array", repr(sharding), fix))
    dims = (*sharding.dims(len(size))[:2], (), ())[:2]
    rows, columns = (sharding.mesh.parts(axes) for axes in dims)
    holders: dict[tuple[int, int], list[str]] = {}
    for rank in sorted(sharding.mesh.ranks):
        place = sharding.mesh.coordinates(rank)
        cell = sharding.mesh.part(dims[0], place), sharding.mesh.part(dims[1], place)
        holders.setdefault(cell, []).append(str(rank))
    cells = [[",".join(holders[row, column]) for column in range(columns)] for row in range(rows)]
    width = max(len(text) for line in cells for text in line) + 2

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join(["─" * width] * columns) + right

    lines = [rule("┌", "┬", "┐")]
    for k, line in enumerate(cells):
        lines.append("│" + "│".join(text.center(width) for text in line) + "│")
        lines.append(rule("├", "┼", "┤") if k < rows - 1 else rule("└", "┴", "┘"))
    return "\n".join(lines)
