"""Operations of sharded programs: the constraint that users record, and the collectives of a partitioned program.

A collective takes a part of an array from each process and returns another part. It runs from Python between compiled
parts, like a loop, so its result is a bundle of one array. Attributes name the mesh and its axes, never a process
group. So equal local programs of different processes are one program. Operands after the first only order the
collectives, because all processes must communicate in the same order.

A cotangent has the layout of its value. If every process holds the whole value, each holds the whole cotangent. So the
transpose of a sum over processes is the identity: each summand's cotangent is that of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from gtrace.core.ir.aval import Aval, Bundle, bundle
from gtrace.core.ir.cases import Sample
from gtrace.core.ir.op import Op, define
from gtrace.core.ir.sharding import pairs, parse_dims, parse_mesh, print_dims
from gtrace.core.ops.checks import reshaped, same_kind
from gtrace.core.ops.samples import uniform
from gtrace.core.partitioner import processes
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind, bind_all
from gtrace.core.trace.convert import lift

# -- what users record


def _placed_vjp(ct: Array, needed: Any, x: Array, out: Array, mesh: str, spec: str | None, backward: str | None) -> Any:
    return (ct if backward is None else bind(placed_op, (ct,), (mesh, backward, spec)),)


def _placed_batch(op: Any, size: int, batched: Any, operands: Any, mesh: str, spec: Any, backward: Any) -> Array:
    def wider(dims: str | None) -> str | None:
        return None if dims is None else print_dims(((), *parse_dims(dims)))

    return bind(placed_op, operands, (mesh, wider(spec), wider(backward)))


placed_op: Op = define(
    "with_sharding", lambda x, mesh, spec, backward: x, params=("mesh", "spec", "backward"), placement=True,
    shape=same_kind, linear=True, vjp=_placed_vjp, batch=_placed_batch,
    samples=lambda: [Sample((uniform(-2, 2, 3, 4), "data=1", "data,-", None)),
                     Sample((uniform(-2, 2, 3), "data=1", "-", "data"))],
    reference=lambda x, *_: numpy.array(x),
    user=lambda x, *params: bind(placed_op, (lift("with_sharding", x),), params),
)  # fmt: skip

# -- collectives of a partitioned program

_ELSEWHERE = "test_partitioner: the programs of all processes, side by side, against the whole program"


def _one(a: Aval) -> Bundle:
    return bundle((a,))


def _resized(a: Aval, dim: int, size: int) -> Aval:
    return reshaped(a, (*a.shape[:dim], size, *a.shape[dim + 1 :]))


def _after(operands: Sequence[Any], ct: Array) -> list[Array | None]:
    """Return the cotangents of a collective's operands; operands that only order it have none."""
    return [ct, *[None] * (len(operands) - 2)]


def _reduce(programs: Any, x: torch.Tensor, *_: torch.Tensor, mesh: str, axes: tuple[str, ...], kind: str) -> Any:
    return [processes.all_reduce(x, processes.group(parse_mesh(mesh), axes), kind)]


all_reduce_op = define(
    "all_reduce_parts", collective=lambda n: 2 * (n - 1) / n, elsewhere=_ELSEWHERE,
    params=("mesh", "axes", "kind"), arity=None, body=_reduce,
    result=lambda avals, mesh, axes, kind: _one(avals[0].plain),
    vjp=lambda cts, needed, *operands, mesh, axes, kind: _after(operands, cts[0]),
)  # fmt: skip


def _gather(programs: Any, x: torch.Tensor, *_: torch.Tensor, mesh: str, axes: Any, dim: int, size: int) -> Any:
    return [processes.all_gather(x, processes.group(parse_mesh(mesh), axes), dim, size)]


all_gather_op = define(
    "all_gather_parts", collective=lambda n: n - 1.0, elsewhere=_ELSEWHERE,
    params=("mesh", "axes", "dim", "size"), arity=None, body=_gather,
    result=lambda avals, mesh, axes, dim, size: _one(_resized(avals[0], dim, size)),
    vjp=lambda cts, needed, *operands, mesh, axes, dim, size: _after(
        operands, bind_all(slice_op, (cts[0],), (mesh, axes, dim, operands[0].shape[dim]))[0]
    ),
)  # fmt: skip


def _reduce_scatter(programs: Any, x: torch.Tensor, *_: torch.Tensor, mesh: str, axes: Any, dim: int) -> Any:
    return [processes.reduce_scatter(x, processes.group(parse_mesh(mesh), axes), dim)]


reduce_scatter_op = define(
    "reduce_scatter_parts", collective=lambda n: (n - 1) / n, elsewhere=_ELSEWHERE,
    params=("mesh", "axes", "dim"), arity=None, body=_reduce_scatter,
    result=lambda avals, mesh, axes, dim: _one(
        _resized(avals[0], dim, avals[0].shape[dim] // parse_mesh(mesh).parts(axes))
    ),
    vjp=lambda cts, needed, *operands, mesh, axes, dim: _after(
        operands, bind_all(all_gather_op, (cts[0],), (mesh, axes, dim, operands[0].shape[dim]))[0]
    ),
)  # fmt: skip


def _all_to_all(programs: Any, x: torch.Tensor, *_: torch.Tensor, mesh: str, axes: Any, split: int, concat: int) -> Any:
    return [processes.all_to_all(x, processes.group(parse_mesh(mesh), axes), split, concat)]


def _transposed(avals: Sequence[Aval], mesh: str, axes: tuple[str, ...], split: int, concat: int) -> Bundle:
    parts = parse_mesh(mesh).parts(axes)
    a = _resized(avals[0], split, avals[0].shape[split] // parts)
    return _one(_resized(a, concat, a.shape[concat] * parts))


all_to_all_op: Op = define(
    "all_to_all_parts", collective=lambda n: (n - 1) / n, elsewhere=_ELSEWHERE,
    params=("mesh", "axes", "split", "concat"), arity=None, body=_all_to_all,
    result=_transposed,
    vjp=lambda cts, needed, *operands, mesh, axes, split, concat: _after(
        operands, bind_all(all_to_all_op, (cts[0],), (mesh, axes, concat, split))[0]
    ),
)  # fmt: skip


def _send(programs: Any, x: torch.Tensor, *_: torch.Tensor, source: str, target: str, shape: tuple[int, ...]) -> Any:
    return [processes.send(x, pairs(parse_mesh(source), parse_mesh(target)), shape)]


send_op = define(
    "send_parts", collective=lambda n: 1.0, elsewhere=_ELSEWHERE,
    params=("source", "target", "shape"), arity=None, body=_send,
    result=lambda avals, source, target, shape: _one(reshaped(avals[0], shape)),
    nondiff="programs are divided after their derivatives were taken",
)  # fmt: skip


def _slice(programs: Any, x: torch.Tensor, mesh: str, axes: tuple[str, ...], dim: int, size: int) -> Any:
    grid = parse_mesh(mesh)
    step = -(-x.shape[dim] // grid.parts(axes))
    # a copy, so that the result does not keep the whole array alive
    return [x.narrow(dim, min(processes.part(grid, axes) * step, x.shape[dim]), size).clone()]


slice_op: Op = define(
    "slice_part", elsewhere=_ELSEWHERE, params=("mesh", "axes", "dim", "size"), body=_slice,
    result=lambda avals, mesh, axes, dim, size: _one(_resized(avals[0], dim, size)),
    vjp=lambda cts, needed, x, out, mesh, axes, dim, size: (
        bind_all(all_gather_op, (cts[0],), (mesh, axes, dim, x.shape[dim]))[0],
    ),
)  # fmt: skip
