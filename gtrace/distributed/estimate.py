"""Estimates the time of one process's program on hardware of given speeds."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from gtrace.core.ir.graph import Graph, Node, subgraphs
from gtrace.core.partitioner.partitioned import Transfer


@attrs.frozen
class Speeds:
    """The speeds of one process. The defaults are round numbers for an accelerator of 2023 and its network.

    Attributes:
        flops: multiplications and additions of matmuls per second.
        memory: bytes read or written per second.
        network: bytes sent per second.
        latency: the minimal seconds of a collective.
    """

    flops: float = 100e12
    memory: float = 1.5e12
    network: float = 25e9
    latency: float = 20e-6


@attrs.frozen
class Estimate:
    """The seconds of a call, if communication and computation do not overlap.

    Attributes:
        computing: the longer of matmuls at full speed, and memory traffic.
        sending: the lower bound of the collectives' time.
    """

    computing: float
    sending: float

    @property
    def total(self) -> float:
        """The total time."""
        return self.computing + self.sending


@attrs.frozen
class Work:
    """The work of a program.

    Attributes:
        flops: multiplications and additions of its matmuls.
        nbytes: bytes read and written, if elementwise operations are fused with their neighbours.
    """

    flops: float = 0.0
    nbytes: float = 0.0

    def times(self, n: float) -> Work:
        """Return the work of n runs."""
        return Work(self.flops * n, self.nbytes * n)

    def plus(self, other: Work) -> Work:
        """Return the work of both."""
        return Work(self.flops + other.flops, self.nbytes + other.nbytes)


def work(graph: Graph) -> Work:
    """Return the work of a program. A loop of unknown length counts once; of branches, the largest counts.

    >>> work(gt.make_graph(lambda x, y: gt.tanh(x @ y))(gt.ones((2, 3)), gt.ones((3, 5)))).flops
    60.0
    """
    total = Work(0.0, float(sum(a.nbytes for a in (*graph.avals, *graph.out_avals))))
    for node in graph.nodes:
        total = total.plus(_work(node))
    return total


def _work(node: Node) -> Work:
    op = node.op
    subs = subgraphs(node.params)
    if subs:
        inner = [work(sub.graph) for sub in subs]
        if op.branch:
            return max(inner, key=lambda one: (one.nbytes, one.flops))
        whole = Work()
        for one in inner:
            whole = whole.plus(one)
        return whole.times(float(node.attributes.get("length", 1)))
    if op.elementwise or op.free or op.projection or op.constant or op.rules.body is not None:
        return Work()
    nbytes = float(sum(a.nbytes for a in (*node.instr.ins, node.instr.aval)))
    if op.contraction is None:
        return Work(0.0, nbytes)
    return Work(2.0 * op.contraction(node.instr.ins, node.instr.aval, **node.attributes), nbytes)


def estimate(given: Work, transfers: Sequence[Transfer], speeds: Speeds) -> Estimate:
    """Return the time of a call.

    >>> estimate(Work(flops=1e12, nbytes=1e9), [], Speeds(flops=1e12, memory=1e12))
    Estimate(computing=1.0, sending=0.0)
    """
    computing = max(given.flops / speeds.flops, given.nbytes / speeds.memory)
    sending = sum(one.moved / speeds.network + one.times * speeds.latency for one in transfers)
    return Estimate(computing, float(sending))
