"""Plans: the communication and memory of a program on each of many processes, predicted without them."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.core.base.errors import ShardingError, message
from gtrace.core.base.tree import leaves
from gtrace.core.base.units import bytes_text
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.sharding import Mesh, NamedSharding
from gtrace.core.partitioner import processes
from gtrace.core.partitioner.partition import find_meshes
from gtrace.core.partitioner.partitioned import Partitioned, Transfer
from gtrace.core.partitioner.stages import divide
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.trace.record import thread
from gtrace.core.transform.eval_shape import capture_like
from gtrace.distributed.estimate import Estimate, Speeds, Work, estimate, work


@attrs.frozen(eq=False)
class Plan:
    """The work of the first process of a mesh; the parts of other processes are not larger.

    Attributes:
        mesh: the processes.
        transfers: the collectives, in order.
        input_bytes: bytes of the inputs' parts.
        output_bytes: bytes of the outputs' parts.
        peak_bytes: the most bytes that are live at once, including inputs, in recording order without fusion.
        gathered: the operations that each process computes whole: (name, the user's line).
        inputs, outputs: the avals of the whole arrays, with their shardings.
        work: the work of each process.

    Printing it gives a table, with the least bytes that each process sends, and the user's lines.
    """

    mesh: Mesh
    transfers: tuple[Transfer, ...]
    input_bytes: int
    output_bytes: int
    peak_bytes: int
    gathered: tuple[tuple[str, str | None], ...]
    inputs: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    work: Work

    def estimate(self, speeds: Speeds | None = None) -> Estimate:
        """Return a rough estimate of a call's time on hardware of these speeds; nothing is measured."""
        return estimate(self.work, self.transfers, speeds or Speeds())

    @property
    def moved(self) -> float:
        """The bytes that each process sends."""
        return sum(transfer.moved for transfer in self.transfers)

    def __str__(self) -> str:
        lines = [
            f"{self.mesh.size} processes ({self.mesh}): inputs {bytes_text(self.input_bytes)}, outputs"
            f" {bytes_text(self.output_bytes)}, at most {bytes_text(self.peak_bytes)} at once,"
            f" {bytes_text(self.moved)} sent by each"
        ]
        return "\n".join([*lines, *table(self.transfers), *(f"  {name} is not divided" for name, _ in self.gathered)])


def rows(transfers: Sequence[Transfer]) -> list[tuple[str, str, str, str]]:
    """Return the number, axes, bytes and user's line of collectives, grouped by line."""
    groups: dict[tuple[str, str, str], list[Transfer]] = collections.defaultdict(list)
    for transfer in transfers:
        path, _, line = (transfer.location or "").rpartition(":")
        where = f"{os.path.basename(path)}:{line}" if path else ""
        groups[transfer.name, "+".join(transfer.axes), where].append(transfer)
    return [
        (
            f"{sum(one.times for one in group)} {name}",
            f"over {axes}",
            bytes_text(sum(one.moved for one in group)),
            where,
        )
        for (name, axes, where), group in groups.items()
    ]


def table(transfers: Sequence[Transfer]) -> list[str]:
    """Return `rows` as aligned lines."""
    found = rows(transfers)
    widths = [max((len(row[k]) for row in found), default=0) for k in range(4)]
    return ["  " + "  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip() for row in found]


def plan(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Plan:
    """Predict the communication and memory of `f` on each process of a mesh, which need not exist.

    Args:
        args, kwargs: pytrees of arrays, numbers or `ShapeDtypeStruct`, which may have shardings.

    Raises:
        ShardingError: nothing is sharded, or there are two meshes of the same processes.
        ConcretizationError: `f` reads a value.

    >>> from gtrace.sharding import Mesh, NamedSharding, P
    >>> x = gt.ShapeDtypeStruct((1024, 64), "float32", sharding=NamedSharding(Mesh(range(4), "data"), P("data")))
    >>> found = plan(lambda x: x.sum(), x)
    >>> found.moved, [one.name for one in found.transfers]
    (6.0, ['all_reduce'])
    """
    layouts = [getattr(x, "sharding", None) for x in leaves((args, kwargs))]
    given = [layout.mesh for layout in layouts if isinstance(layout, NamedSharding)]
    entered = thread.layout
    thread.layout = None
    try:
        with processes.pretend(max([1, *(1 + max(mesh.ranks) for mesh in given)])):
            graph = capture_like("plan", f, args, kwargs).graph
    finally:
        thread.layout = entered
    meshes = find_meshes(graph)
    if not meshes:
        fix = "Pass gt.ShapeDtypeStruct(shape, dtype, sharding=...)."
        raise ShardingError(message("plan", "an argument with a sharding", "none", fix))
    count = 1 + max(max(mesh.ranks) for mesh in meshes)
    return plan_of(divide(CANONICAL.run(graph), count, meshes[0].ranks[0]))


def plan_of(made: Partitioned) -> Plan:
    """Return the plan of a partitioned program."""
    graph = made.graph
    given = sum(a.nbytes for a in graph.avals)
    returned = sum(a.nbytes for a in graph.out_avals[: len(made.avals)])
    return Plan(
        made.mesh, made.transfers, given, returned, _peak(graph), made.gathered, made.inputs, made.avals, work(graph)
    )


def _peak(graph: Graph) -> int:
    """Return the most bytes that are live at once."""
    last = {value: k for k, node in enumerate(graph.nodes) for value in node.values()}
    last.update(dict.fromkeys((*graph.outputs, *graph.inputs), len(graph.nodes)))
    types = graph.value_avals()
    alive = peak = sum(a.nbytes for a in graph.avals)
    for k, node in enumerate(graph.nodes):
        if isinstance(node.instr.aval, Bundle):
            continue  # its results are projected from it, and count then
        alive += node.instr.aval.nbytes
        peak = max(peak, alive)
        for value in {*node.values(), node.out}:
            if last.get(value, k) == k and not isinstance(types[value], Bundle):
                alive -= types[value].nbytes
    return peak
