"""Some steps of a loop as a program."""

from __future__ import annotations

import torch

from gtrace.core.backends.native.generator import loop_graph
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.graph import Graph, Node, Scalar, Subgraph
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.subgraph import subgraph


def scan_block(body: Subgraph, steps: int, reverse: bool, consts: int, carry: int) -> Graph:
    """Return some steps of a scan. They take and return what the whole scan does, of these steps."""

    def make() -> Graph:
        kinds = body.graph.avals
        rows = [aval((steps, *a.shape), a.dtype, a.device) for a in kinds[consts + carry :]]
        return _alone("scan", (body, steps, reverse, consts, carry), (*kinds[: consts + carry], *rows))

    made: Graph = body.memo(("block", steps, reverse, consts, carry), make)
    return made


def while_block(cond: Subgraph, body: Subgraph, cond_consts: int, body_consts: int) -> Graph:
    """Return the next steps of a while_loop, at most a certain number.

    It takes this number, the constants, a zero and the state. It returns how many steps it made, and the state.
    """
    made: Graph = body.memo(
        ("block", cond, cond_consts, body_consts), lambda: _while_block(cond, body, cond_consts, body_consts)
    )
    return made


def _while_block(cond: Subgraph, body: Subgraph, cond_consts: int, body_consts: int) -> Graph:
    test, step = cond.graph, body.graph
    state = step.avals[body_consts:]
    count = aval((), torch.int64, test.out_avals[0].device)
    most = test.fresh
    done, left, both = most + 1, most + 2, most + 3
    less = REGISTRY["lt"].instr((), (count, count))
    also = REGISTRY["logical_and"].instr((), (less.aval, test.out_avals[0]))
    counted_test = Graph(
        (most, *test.inputs[:cond_consts], done, *test.inputs[cond_consts:]),
        (count, *test.avals[:cond_consts], count, *test.avals[cond_consts:]),
        (*test.nodes, Node(less, (done, most), left), Node(also, (left, test.outputs[0]), both)),
        (both,),
    )
    before = step.fresh
    one = Scalar(1, aval((), torch.int64, count.device, weak=True))
    counted_step = Graph(
        (*step.inputs[:body_consts], before, *step.inputs[body_consts:]),
        (*step.avals[:body_consts], count, *state),
        (*step.nodes, Node(REGISTRY["add"].instr((), (count, one.aval)), (before, one), before + 1)),
        (before + 1, *step.outputs),
    )
    taken = (count, *test.avals[:cond_consts], *step.avals[:body_consts], count, *state)
    params = subgraph(counted_test), subgraph(counted_step), cond_consts + 1, body_consts
    return _alone("while_loop", params, taken)


def _alone(name: str, params: tuple[object, ...], kinds: tuple[Aval, ...]) -> Graph:
    instr = REGISTRY[name].instr(params, kinds)
    return loop_graph(Node(instr, tuple(range(len(kinds))), len(kinds)))[0]
