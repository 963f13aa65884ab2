"""Programs over several meshes, or over some of the processes: each operation runs on one mesh.

The program is cut into stages of one mesh, in order, and each is divided by itself. Processes outside of its mesh leave
a stage out, and hold an empty tensor in place of its results. Between stages values are sent from one mesh to another.
What depends on arrays of no mesh alone is computed by every process. All decisions follow from the program, so that
processes agree on who sends what, and on the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.base.errors import ShardingError, message
from gtrace.core.ir.aval import Aval, Bundle, aval
from gtrace.core.ir.graph import Graph, Node, Scalar
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.sharding import ABSENT, Dims, Mesh, alike, pairs, print_dims
from gtrace.core.partitioner.local_program import LocalProgram
from gtrace.core.partitioner.partition import Partitioner, find_meshes, named_meshes, partition
from gtrace.core.partitioner.partitioned import Partitioned, Transfer


def divide(graph: Graph, count: int, rank: int) -> Partitioned:
    """Return the program of the process `rank`.

    Args:
        graph: the program of all processes. Inputs without a sharding are whole, and the same, on each process.
        count: how many processes there are.
    """
    meshes = find_meshes(graph)
    if len(meshes) == 1 and meshes[0].size == count:
        return partition(graph, meshes[0], rank)
    return _Stages(graph, count, rank).run()


class _Stages:
    def __init__(self, graph: Graph, count: int, rank: int) -> None:
        self.graph, self.count, self.rank = graph, count, rank
        self.program = LocalProgram()
        self.types: dict[int, Any] = graph.value_avals()
        self.home: dict[int, Mesh | None] = {}
        self.local: dict[tuple[int, Mesh | None], int | None] = {}  # None: this process is not in the mesh
        self.dims: dict[tuple[int, Mesh | None], Dims] = {}
        self.placed: dict[int, Aval] = {}  # the types of values over meshes, with their shardings
        self.computed: set[int] = set()
        self.absent: dict[tuple[torch.dtype, torch.device], int] = {}
        self.wholes: dict[int, int] = {}
        self.kept: dict[int, None] = {}
        self.sent: list[Transfer] = []
        self.users: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in node.values():
                self.users.setdefault(value, []).append(node)

    def run(self) -> Partitioned:
        graph, program = self.graph, self.program
        for value, a in zip(graph.inputs, graph.avals, strict=True):
            self._input(value, a)
        stages: list[tuple[Mesh | None, list[Node]]] = []
        for node in _together(graph.nodes):
            mesh = self._mesh(node)
            self.home[node.out] = mesh
            if not stages or stages[-1][0] != mesh:
                stages.append((mesh, []))
            stages[-1][1].append(node)
        stage = {node.out: k for k, (_, nodes) in enumerate(stages) for node in nodes}
        needed = set(graph.outputs)
        for k, (_, nodes) in enumerate(stages):
            needed |= {v for node in nodes for v in node.values() if stage.get(v) != k}
        for mesh, nodes in stages:
            if mesh is None:
                self._everywhere(nodes)
            else:
                self._stage(mesh, nodes, needed)
        outputs, avals = [], []
        for value in graph.outputs:
            found = self.local[value, self.home[value]]
            outputs.append(self._absent(self.types[value]) if found is None else found)
            avals.append(self.placed.get(value, self.types[value]))
        program.flush()
        # a value that processes send stays in the programs of all of them, even if one does not use it
        if program.latest is not None:
            self.kept[program.latest] = None
        local = program.finish([*outputs, *self.kept])
        gathered = tuple(dict.fromkeys(program.gathered))
        everyone = Mesh(range(self.count), "all")
        return Partitioned(everyone, local, graph.avals, tuple(avals), tuple(self.sent), gathered)

    def _input(self, value: int, a: Aval) -> None:
        if a.sharding is None:
            self.home[value], self.dims[value, None] = None, ((),) * len(a.shape)
            self.local[value, None] = self.program.input(a)
            return
        mesh = self.home[value] = a.sharding.mesh
        dims = a.sharding.dims(len(a.shape))
        shape = a.sharding.shard_shape(a.shape, self.rank) if self.rank in mesh.ranks else ABSENT
        local = self.program.input(aval(shape, a.dtype, a.device, a.weak))
        self.local[value, mesh] = local if self.rank in mesh.ranks else None
        self.dims[value, mesh] = tuple(tuple(n for n in axes if mesh.parts((n,)) > 1) for axes in dims)
        self.placed[value] = a

    def _mesh(self, node: Node) -> Mesh | None:
        """Return the mesh that an operation runs on: what it is laid out over, or where most of its operands are."""
        if node.op.projection:
            return self.home[node.ins[0]]  # type: ignore[index]
        asked = named_meshes(node)
        if len(asked) > 1:
            fix = "Put the stages of a pipeline outside of the loop or branch."
            raise ShardingError(message(node.op.name, "one mesh in the body of a loop or branch", asked, fix))
        if asked:
            return asked[0]
        meshes = dict.fromkeys(mesh for v in node.values() if (mesh := self.home[v]) is not None)
        if not meshes:
            return None
        later = self.users.get(node.out, ())
        if later and later[0].op.placement and named_meshes(later[0]):
            return named_meshes(later[0])[0]
        held = {mesh: sum(self.types[v].nbytes for v in set(node.values()) if self.home[v] == mesh) for mesh in meshes}
        return max(held, key=held.__getitem__)

    def _everywhere(self, nodes: Sequence[Node]) -> None:
        """Have every process compute operations."""
        for node in nodes:
            self.program.location = node.location
            operands = [x if isinstance(x, Scalar) else self._known(x, None) for x in node.ins]
            if node.op.placement and not isinstance(operands[0], Scalar):
                self.local[node.out, None] = operands[0]  # only its cotangent is laid out
            else:
                op, params = (REGISTRY["full"], ((), "cpu")) if node.op.placement else (node.op, node.params)
                self.local[node.out, None] = self.program.emit(op, operands, params)
            if not isinstance(node.instr.aval, Bundle):
                self.dims[node.out, None] = ((),) * len(node.instr.aval.shape)

    def _known(self, value: int, mesh: Mesh | None) -> int:
        found = self.local[value, mesh]
        assert found is not None
        return found

    def _stage(self, mesh: Mesh, nodes: Sequence[Node], needed: set[int]) -> None:
        """Divide operations over a mesh, and add what this process computes of them."""
        made = {node.out for node in nodes}
        first = {v: node for node in reversed(nodes) for v in node.values() if v not in made}
        inputs = tuple(sorted(first))
        for value in inputs:
            self.program.location = first[value].location
            self._bring(value, mesh)
        outputs = tuple(v for v in made if v in needed and not isinstance(self.types[v], Bundle))
        types = tuple(self.types[v].plain for v in inputs)
        self._add(mesh, Graph(inputs, types, tuple(nodes), tuple(sorted(outputs))))

    def _add(self, mesh: Mesh, graph: Graph) -> None:
        inside = self.rank in mesh.ranks
        program = self.program
        program.flush()
        given = [self.dims[v, mesh] for v in graph.inputs]
        place = mesh.coordinates(self.rank if inside else mesh.ranks[0])
        part = Partitioner(graph, mesh, place, given, [v in self.computed for v in graph.inputs])
        if inside and program.latest is not None:
            part.program.latest = part.program.input(program.types[program.latest])
        part.divide()
        layouts = part.layouts()
        outputs = [part.demand(v, layout) for v, layout in zip(graph.outputs, layouts, strict=True)]
        part.program.flush()
        last = part.program.latest
        local = part.program.finish(outputs if last is None else [*outputs, last])
        self.sent += part.program.transfers
        program.gathered += part.program.gathered
        self.computed |= part.computed
        found: list[int | None] = [None] * len(outputs)
        if inside:
            operands = [self._known(v, mesh) for v in graph.inputs]
            operands += [program.latest] * (len(local.inputs) - len(operands))  # type: ignore[list-item]
            names = dict(zip(local.inputs, operands, strict=True))
            for node in local.nodes:
                program.location = node.location
                ins = [x if isinstance(x, Scalar) else names[x] for x in node.ins]
                names[node.out] = program.emit(node.op, ins, node.params)
            found = [names[v] for v in local.outputs[: len(outputs)]]
            program.latest = None if last is None else names[local.outputs[-1]]
        for value, layout, name in zip(graph.outputs, layouts, found, strict=True):
            self.home[value] = mesh
            self.local[value, mesh], self.dims[value, mesh] = name, layout.dims
            self.placed[value] = part.placed_aval(value, layout.dims)

    def _bring(self, value: int, mesh: Mesh) -> None:
        """Have the processes of a mesh hold a value."""
        if (value, mesh) in self.local:
            return
        source, a = self.home[value], self.types[value]
        if source is None:
            self.local[value, mesh], self.dims[value, mesh] = self.local[value, None], self.dims[value, None]
            return
        given, location = value, self.program.location
        if not alike(source, mesh) and any(self.dims[value, source]):
            given = self._gathered(value, source)
        dims, local = self.dims[given, source], self.local[given, source]
        shape: tuple[int, ...] = ABSENT
        if self.rank in mesh.ranks:
            part = Partitioner(Graph((value,), (a.plain,), (), (value,)), mesh, mesh.coordinates(self.rank), [dims])
            shape = part.converter.part_shape(a.shape, dims)
        nbytes = -(-a.nbytes // source.parts(tuple(name for axes in dims for name in axes)))
        self.sent.append(Transfer("send_parts", mesh.axis_names, 2, nbytes, location))
        self.program.location = location
        found = None
        if local is not None:
            self.kept[local] = None
        if any(self.rank in pair for pair in pairs(source, mesh)):
            operand = self._absent(a) if local is None else local
            found = self.program.after("send_parts", operand, (str(source), str(mesh), shape))
        self.local[value, mesh] = found if self.rank in mesh.ranks else None
        self.dims[value, mesh] = dims

    def _gathered(self, value: int, mesh: Mesh) -> int:
        """Return a value that is `value`, whole on each process of its mesh."""
        known = self.wholes.get(value)
        if known is None:
            a = self.types[value].plain
            known = self.wholes[value] = max(self.types) + 1
            self.types[known] = a
            spec = print_dims(((),) * len(a.shape))
            instr = REGISTRY["with_sharding"].instr((str(mesh), spec, None), (a,))
            node = Node(instr, (value,), known, self.program.location)
            self._add(mesh, Graph((value,), (a,), (node,), (known,)))
        return known

    def _absent(self, a: Aval) -> int:
        """Return what stands for an array that this process has nothing of."""
        known = self.absent.get((a.dtype, a.device))
        if known is None:
            zero = Scalar(False if a.dtype is torch.bool else 0, aval((), a.dtype, a.device))
            known = self.program.emit(REGISTRY["full"], (zero,), (ABSENT, str(a.device)))
            self.absent[a.dtype, a.device] = known
        return known


def _together(nodes: Sequence[Node]) -> list[Node]:
    """Return operations in order, with the results of each bundle right behind it."""
    results: dict[int, list[Node]] = {}
    for node in nodes:
        if node.op.projection:
            results.setdefault(node.ins[0], []).append(node)  # type: ignore[arg-type]
    return [one for node in nodes if not node.op.projection for one in (node, *results.get(node.out, ()))]
