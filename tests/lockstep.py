"""All processes of a partitioned program in one: their local programs run side by side, on threads.

At a collective all must have arrived at the same one. So a program that would hang on processes fails here.
"""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from gtrace.core.backends.interpreter.interpreter import bound_body, bound_impl
from gtrace.core.ir.aval import sharded
from gtrace.core.ir.graph import Graph, Scalar, print_graph, subgraphs
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.sharding import ABSENT, NamedSharding, PartitionSpec, bounds, pairs, parse_mesh
from gtrace.core.ir.verify import verify
from gtrace.core.partitioner.partitioned import DividedRecord, Partitioned
from gtrace.core.partitioner.stages import divide
from gtrace.core.passes.canonical import CANONICAL, canonicalize


def placed(graph: Graph, shardings) -> Graph:
    """Return the graph with shardings on its inputs; None: the input is of one process."""
    avals = tuple(a if s is None else sharded(a, s) for a, s in zip(graph.avals, shardings, strict=True))
    return Graph(graph.inputs, avals, graph.nodes, graph.outputs)


def local_parts(tensor, sharding, mesh):
    if sharding is None:
        return [tensor for _ in mesh.ranks]
    return [
        tensor[sharding.index(tuple(tensor.shape), rank)] if rank in sharding.mesh.ranks else tensor.new_zeros(ABSENT)
        for rank in range(mesh.size)
    ]


def run(graph: Graph, mesh, tensors, canonical=False):
    """Run a program on all processes of a mesh; returns its whole outputs, and the partitioned program of rank 0.

    Raises:
        AssertionError: processes disagree on what comes next, or on a value that each holds.
    """
    graph = CANONICAL.run(graph)
    made = [divide(graph, mesh.size, rank) for rank in range(mesh.size)]
    for one in made:
        verify(one.graph)
        assert one.avals == made[0].avals and one.transfers == made[0].transfers
    shares = [local_parts(t, a.sharding, mesh) for t, a in zip(tensors, graph.avals, strict=True)]
    graphs, given, outputs = [], [], []
    for rank, one in enumerate(made):
        local = one.graph
        inputs = [share[rank] for share in shares]
        order = list(range(len(local.outputs)))
        if canonical:
            form = canonicalize(local)
            inputs, order = [inputs[k] for k in form.inputs], form.outputs
            local = form.graph
        graphs.append(local)
        given.append(inputs)
        outputs.append(order)
    results = _interpret(graphs, mesh, given)
    whole = []
    for k, a in enumerate(made[0].avals):
        parts = [
            results[rank][outputs[rank][k]] if outputs[rank][k] >= 0 else shares[-1 - outputs[rank][k]][rank]
            for rank in range(mesh.size)
        ]
        whole.append(_joined(parts, a, mesh))
    again = Partitioned.from_record(DividedRecord.from_json(made[0].to_record("name").to_json()))
    assert print_graph(again.graph) == print_graph(made[0].graph)
    assert (again.mesh, again.avals, again.transfers) == (made[0].mesh, made[0].avals, made[0].transfers)
    return whole, made[0]


def _joined(parts, a, mesh):
    if a.sharding is None:
        for part in parts:
            torch.testing.assert_close(part, parts[0], rtol=0, atol=0, equal_nan=True)
        return parts[0]
    out = torch.zeros(a.shape, dtype=a.dtype)
    assert all(parts[rank].shape == ABSENT for rank in set(mesh.ranks) - set(a.sharding.mesh.ranks))
    for rank, part in enumerate(parts):
        if rank not in a.sharding.mesh.ranks:
            continue
        index = a.sharding.index(a.shape, rank)
        assert part.shape == out[index].shape, (rank, part.shape, index)
        out[index] = part
    for rank in a.sharding.mesh.ranks:
        # processes that hold one part hold the same values, up to nothing: they computed them alike
        part = parts[rank]
        torch.testing.assert_close(out[a.sharding.index(a.shape, rank)], part, rtol=0, atol=0, equal_nan=True)
    return out


def _interpret(graphs, mesh, given):
    """Run the program of each process on a thread."""
    meeting = _Meeting(mesh)
    with ThreadPoolExecutor(mesh.size) as pool:
        calls = [pool.submit(meeting.run, rank, g, given[rank]) for rank, g in enumerate(graphs)]
    for call in calls:
        if call.exception() is not None and not isinstance(call.exception(), _AnotherFailedError):
            raise call.exception()
    return [call.result() for call in calls]


class _AnotherFailedError(Exception):
    pass


class _Meeting:
    """Where the threads of all processes wait for one another: each collective, in loops too, is one of all of them."""

    def __init__(self, mesh):
        self.mesh = mesh
        self.arrived = {}
        self.results = {}
        self.running = mesh.size
        self.failed = False
        self.changed = threading.Condition()

    def run(self, rank, graph, inputs):
        results = None
        try:
            results = self.interpret(rank, graph, inputs)
            return results
        finally:
            with self.changed:
                self.running -= 1
                # it raised, or the others wait, and this one is done
                waiting = bool(self.arrived) and len(self.arrived) == self.running and not self.results
                self.failed |= results is None or waiting
                self.changed.notify_all()

    def interpret(self, rank, graph, inputs):
        env = dict(zip(graph.inputs, inputs, strict=True))
        for node in graph.nodes:
            operands = [
                torch.tensor(x.value, dtype=x.aval.dtype) if isinstance(x, Scalar) else env[x] for x in node.ins
            ]
            if node.op.collective:
                env[node.out] = [self.send(rank, node, operands[0])]
                assert env[node.out][0].shape == node.instr.aval.avals[0].shape
            elif node.op is REGISTRY["slice_part"]:
                env[node.out] = [_slice(node, operands[0], parse_mesh(node.attributes["mesh"]), rank)]
            elif node.op.rules.body is not None:
                programs = [functools.partial(self.interpret, rank, sub.graph) for sub in subgraphs(node.params)]
                env[node.out] = bound_body(node, programs)(*operands)
            else:
                env[node.out] = bound_impl(node)(*operands)
        return [env[v] for v in graph.outputs]

    def send(self, rank, node, value):
        with self.changed:
            self.arrived[rank] = node, value
            self._deliver()
            self.changed.wait_for(lambda: rank in self.results or self.failed)
            if rank not in self.results:
                raise _AnotherFailedError
            return self.results.pop(rank)

    def _deliver(self):
        """Give results to those that have arrived with all whom they wait for."""
        for rank, (node, _) in list(self.arrived.items()):
            if rank not in self.arrived:
                continue
            group = _members(node, rank)
            if set(group) <= self.arrived.keys() and all(_members(self.arrived[k][0], k) == group for k in group):
                values = [self.arrived.pop(k) for k in group]
                calls = {_meant(one) for one, _ in values}
                assert len(calls) == 1, f"processes communicate differently: {calls}"
                self.results.update(zip(group, _collective(node, group, [x for _, x in values]), strict=True))
                self.changed.notify_all()
        if len(self.arrived) == self.running and not self.results:
            self.failed = True
            self.changed.notify_all()
            raise AssertionError(f"processes wait for one another: {[one.op.name for one, _ in self.arrived.values()]}")


def _members(node, rank):
    """Return the processes that take part in a collective."""
    a = node.attributes
    if node.op is REGISTRY["send_parts"]:
        return tuple(sorted({k for pair in pairs(parse_mesh(a["source"]), parse_mesh(a["target"])) for k in pair}))
    return next(ranks for ranks in parse_mesh(a["mesh"]).groups(a["axes"]) if rank in ranks)


def _meant(node):
    """Return in what processes have to agree: shapes differ."""
    return node.op.name, node.params[:2] if node.op is REGISTRY["send_parts"] else node.params


def _slice(node, x, mesh, rank):
    a = node.attributes
    parts = mesh.parts(a["axes"])
    start, stop = bounds(x.shape[a["dim"]], parts, mesh.part(a["axes"], mesh.coordinates(rank)))
    assert stop - start == a["size"]
    return x.narrow(a["dim"], start, stop - start)


def _collective(node, group, values):
    a, name = node.attributes, node.op.name
    if name == "send_parts":
        found = {
            b: values[group.index(sender)] for sender, b in pairs(parse_mesh(a["source"]), parse_mesh(a["target"]))
        }
        return [found.get(rank, torch.zeros(ABSENT, dtype=values[0].dtype)) for rank in group]
    if name == "all_reduce_parts":
        stacked = torch.stack(values)
        out = stacked.sum(0, dtype=values[0].dtype) if a["kind"] == "sum" else getattr(stacked, f"a{a['kind']}")(0)
        return [out.clone() for _ in values]
    if name == "all_gather_parts":
        out = torch.cat(values, a["dim"])
        assert out.shape[a["dim"]] == a["size"]
        return [out.clone() for _ in values]
    if name == "reduce_scatter_parts":
        return list(sum(values[1:], values[0]).chunk(len(values), a["dim"]))
    pieces = [value.chunk(len(values), a["split"]) for value in values]
    return [torch.cat([own[k] for own in pieces], a["concat"]) for k in range(len(values))]


def sharding(mesh, *spec):
    return NamedSharding(mesh, PartitionSpec(*spec))


def interpret(graph, tensors):
    """Return the outputs of the program in one process."""
    env = dict(zip(graph.inputs, tensors, strict=True))
    for node in graph.nodes:
        operands = [torch.tensor(x.value, dtype=x.aval.dtype) if isinstance(x, Scalar) else env[x] for x in node.ins]
        env[node.out] = bound_impl(node)(*operands)
    return [env[v] for v in graph.outputs]


def close(got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    rtol, atol = {torch.float64: (1e-9, 1e-9), torch.float32: (2e-4, 2e-4)}.get(expected.dtype, (2e-2, 2e-2))
    if not expected.is_floating_point() and not expected.is_complex():
        rtol = atol = 0
    scale = float(np.nanmax(np.abs(expected.nan_to_num(0, 0, 0).numpy()), initial=0)) if rtol else 0
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol * max(scale, 1), equal_nan=True)
