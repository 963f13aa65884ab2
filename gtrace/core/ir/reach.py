"""Which results may have a derivative by which operands, without computing one."""

from __future__ import annotations

from collections.abc import Sequence

from gtrace.core.ir.aval import Bundle
from gtrace.core.ir.graph import Graph, Subgraph
from gtrace.core.ir.op import Instr

Flags = tuple[bool, ...]


def reached_results(instr: Instr, flags: Sequence[bool]) -> Flags:
    """Return which results of an operation may have a derivative by its flagged operands."""
    avals = instr.aval.avals if instr.aval.__class__ is Bundle else (instr.aval,)
    rules = instr.op.rules
    if rules.nondiff is not None or not any(flags):
        return (False,) * len(avals)
    if rules.reached is None:
        return tuple([a.floating for a in avals])
    found = rules.reached(tuple(flags), **dict(zip(instr.op.params, instr.params, strict=True)))
    return tuple([flag and a.floating for flag, a in zip(found, avals, strict=True)])


def reached_outputs(sub: Subgraph, flags: Flags) -> Flags:
    """Return which outputs of a program may have a derivative by its flagged inputs.

    >>> from gtrace import ir
    >>> sub = ir.subgraph(gt.make_graph(lambda x, y: (x + y, gt.sin(y), gt.floor(x)))(gt.ones(2), gt.ones(2)))
    >>> reached_outputs(sub, (True, False))
    (True, False, False)
    """
    return sub.memo(("reached", flags), lambda: _outputs(sub.graph, flags))


def _outputs(graph: Graph, flags: Flags) -> Flags:
    found: dict[int, Flags] = {value: (flag,) for value, flag in zip(graph.inputs, flags, strict=True)}
    for node in graph.nodes:
        if node.op.projection:
            (whole,), k = node.values(), node.instr.index
            found[node.out] = (found[whole][k],)
        else:
            given = [isinstance(x, int) and found[x][0] for x in node.ins]
            found[node.out] = reached_results(node.instr, given)
    return tuple([found[value][0] for value in graph.outputs])


def reached_by_loop(body: Subgraph, flags: Flags, consts: int, carry: int) -> Flags:
    """Return which outputs of a loop's body may have a derivative by its flagged inputs, after any number of steps.

    Args:
        consts, carry: the inputs are so many constants, then so many values that the body returns anew, then others.
    """
    while True:
        outs = reached_outputs(body, flags)
        state = flags[consts : consts + carry]
        moved = tuple([was or now for was, now in zip(state, outs[:carry], strict=True)])
        if moved == state:
            return moved + outs[carry:]
        flags = (*flags[:consts], *moved, *flags[consts + carry :])
