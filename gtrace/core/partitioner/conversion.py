"""From one layout of a value to another: the collectives and slices that this takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.sharding import Axes, Dims, Mesh, bounds
from gtrace.core.partitioner.layouts import ShardingLayout
from gtrace.core.partitioner.local_program import LocalProgram


@attrs.frozen(eq=False)
class Converter:
    """Changes the layouts of values of a local program.

    Attributes:
        place: the coordinates of this process in the mesh.
    """

    program: LocalProgram
    mesh: Mesh
    place: Mapping[str, int]

    def real(self, dims: Dims) -> Dims:
        """Return layout `dims` without axes of one process."""
        return tuple(tuple(name for name in axes if self.mesh.parts((name,)) > 1) for axes in dims)

    def part_shape(self, shape: Sequence[int], dims: Dims) -> tuple[int, ...]:
        """Return the shape of this process's part of an array."""
        found = []
        for n, axes in zip(shape, dims, strict=True):
            start, stop = bounds(n, self.mesh.parts(axes), self.mesh.part(axes, self.place))
            found.append(stop - start)
        return tuple(found)

    def convert(self, local: int, shape: tuple[int, ...], source: ShardingLayout, target: ShardingLayout) -> int:
        """Return a local value of an array of this shape in another layout."""
        dims, partial = list(source.dims), [name for name in source.partial if name not in target.partial]
        parts = self.mesh.parts
        if partial:
            for d, want in enumerate(target.dims):
                more = want[len(dims[d]) :]
                if (
                    more
                    and want[: len(dims[d])] == dims[d]
                    and set(more) <= set(partial)
                    and not shape[d] % parts(want)
                ):
                    local = self._collective("reduce_scatter_parts", local, shape, dims, more, d)
                    dims[d] = want
                    partial = [name for name in partial if name not in more]
            if partial:
                local = self.all_reduce(local, shape, dims, tuple(partial))
        local = self._slices(local, shape, dims, target.dims)
        local = self._exchanges(local, shape, dims, target.dims)
        for d, (have, want) in enumerate(zip(dims, target.dims, strict=True)):
            kept = 0
            while kept < min(len(have), len(want)) and have[kept] == want[kept]:
                kept += 1
            if kept < len(have):
                if shape[d] % parts(have):
                    kept = 0  # parts of unequal sizes are joined all at once
                size = shape[d] // parts(have[:kept])
                local = self._collective("all_gather_parts", local, shape, dims, have[kept:], d, size)
                dims[d] = have[:kept]
        return self._slices(local, shape, dims, target.dims)

    def _slices(self, local: int, shape: tuple[int, ...], dims: list[Axes], target: Dims) -> int:
        """Take parts of dimensions that are to be divided more, along axes that are free."""
        for d, want in enumerate(target):
            more = want[len(dims[d]) :]
            busy = {name for axes in dims for name in axes}
            if not more or want[: len(dims[d])] != dims[d] or set(more) & busy:
                continue
            if dims[d] and shape[d] % self.mesh.parts(want):
                continue  # it has to be whole first
            size = self.part_shape((shape[d],), (want,))[0]
            whole = self.program.emit(REGISTRY["slice_part"], (local,), (str(self.mesh), more, d, size))
            local = self.program.emit(REGISTRY["project"], (whole,), (0,))
            dims[d] = want
        return local

    def _exchanges(self, local: int, shape: tuple[int, ...], dims: list[Axes], target: Dims) -> int:
        """Move axes from one dimension to another one."""
        for d, want in enumerate(target):
            more = want[len(dims[d]) :]
            if not more or want[: len(dims[d])] != dims[d] or shape[d] % self.mesh.parts(want):
                continue
            for k, have in enumerate(dims):
                rest = have[: len(have) - len(more)]
                if k != d and have[len(rest) :] == more and rest == target[k] and not shape[k] % self.mesh.parts(have):
                    local = self._collective("all_to_all_parts", local, shape, dims, more, d, k)
                    dims[d], dims[k] = want, rest
                    break
        return local

    def all_reduce(
        self, local: int, shape: tuple[int, ...], dims: Sequence[Axes], axes: Axes, kind: str = "sum"
    ) -> int:
        """Add up, or otherwise reduce, the values of the processes along `axes`."""
        return self._collective("all_reduce_parts", local, shape, dims, axes, kind)

    def _collective(
        self, name: str, local: int, shape: tuple[int, ...], dims: Sequence[Axes], axes: Axes, *params: Any
    ) -> int:
        largest = math.prod(-(-n // self.mesh.parts(own)) for n, own in zip(shape, dims, strict=True))
        nbytes = largest * self.program.types[local].dtype.itemsize
        return self.program.collective(name, self.mesh, local, axes, nbytes, *params)
