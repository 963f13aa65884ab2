"""The interpreter: a graph run node by node on torch. The cold tier, and the reference semantics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.errors import ExecutionError
from gtrace.interp.memory import is_out_of_memory, out_of_memory
from gtrace.interp.schedule import reusable, schedule
from gtrace.ir.graph import Graph, Node, Operand, Subgraph, is_subgraphs, subgraphs
from gtrace.ir.unsigned import is_wide, kernel

TensorFunction = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""What every tier provides: a function from input tensors to output tensors, in the graph's order."""


class Owned(list[torch.Tensor]):
    """Inputs that the caller gives away: whoever takes them out of the list may free each after its last use."""


def bound_impl(node: Node) -> Callable[..., Any]:
    """Return the torch function of a node with its attributes filled in; sub-graphs are interpreted."""
    attributes = node.attributes
    if node.op.rules.body is not None:
        return bound_body(node, [interpreted(sub) for sub in subgraphs(node.params)])
    function = kernel(node.instr)
    return functools.partial(function, **attributes) if attributes else function


def direct_impl(node: Node) -> Callable[..., Any]:
    """Return the torch function of a node, specialized to the avals of its operands if `Rules.direct` can."""
    direct = node.op.rules.direct
    if direct is None or any(map(is_wide, node.instr.ins)):
        return bound_impl(node)
    return direct(node.instr.ins, **node.attributes) or bound_impl(node)


def interpreted(sub: Subgraph) -> TensorFunction:
    """Return the interpreter of a sub-graph, which is made once."""
    return sub.derive("interpreted", lambda: interpreter(sub.graph))


def bound_body(node: Node, programs: Sequence[TensorFunction]) -> Callable[..., Any]:
    """Return the function of a node whose sub-graphs run as `programs`."""
    assert node.op.rules.body is not None
    plain = {k: v for k, v in node.attributes.items() if not is_subgraphs(v)}
    return functools.partial(node.op.rules.body, programs, **plain)


def interpreter(
    graph: Graph, around: Callable[[Node, Callable[..., Any]], Callable[..., Any]] | None = None
) -> TensorFunction:
    """Return a function that runs `graph` on torch, one operation after the other.

    Scalars become 0-d tensors once, here. They stay on the CPU: torch combines 0-d CPU tensors with any device.

    Args:
        around: takes a node and the function that computes it, and returns the function to call instead.

    Raises (when run):
        ExecutionError: torch refused an operation because of the values.
    """
    slots: dict[int, int] = {value: k for k, value in enumerate(graph.inputs)}
    constants: list[torch.Tensor] = []
    calls: list[tuple[Callable[..., Any], tuple[int, ...], int, tuple[int, ...]]] = []
    steps = schedule(graph)
    last_use = {value: index for index, step in enumerate(steps) for value in step.ins if isinstance(value, int)}
    kept = set(graph.outputs)
    base = len(graph.inputs) + len(steps)

    def slot(operand: Operand) -> int:
        if isinstance(operand, int):
            return slots[operand]
        constants.append(torch.tensor(operand.value, dtype=operand.aval.dtype))
        return base + len(constants) - 1

    places = reusable(graph, steps)
    for index, step in enumerate(steps):
        ins = tuple(slot(x) for x in step.ins)
        dead = {slots[v] for v in step.ins if isinstance(v, int) and last_use[v] == index and v not in kept}
        slots[step.node.out] = len(graph.inputs) + index
        function = step.function(direct_impl(step.node), places.get(index))
        if around is not None:
            function = around(step.node, function)
        calls.append((function, ins, slots[step.node.out], tuple(dead)))
    outputs = [slots[value] for value in graph.outputs]
    blank: list[Any] = [None] * len(steps)

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        env = [*tensors, *blank, *constants]
        if isinstance(tensors, Owned):
            tensors.clear()
        try:
            for function, ins, out, dead in calls:
                if len(ins) == 2:
                    a, b = ins
                    env[out] = function(env[a], env[b])
                elif len(ins) == 1:
                    env[out] = function(env[ins[0]])
                else:
                    env[out] = function(*[env[k] for k in ins])
                for k in dead:
                    env[k] = None
        except (RuntimeError, IndexError) as error:
            if isinstance(error, (ExecutionError, RecursionError)):
                raise
            if is_out_of_memory(error):
                raise out_of_memory(steps[out - len(graph.inputs)].node.op.name, error) from error
            node = steps[out - len(graph.inputs)].node
            reason = str(error).strip().split("\n")[0]
            where = (
                f" It was recorded at {node.location}."
                if node.location
                else " GT_EAGER=1 shows the line that recorded it."
            )
            raise ExecutionError(
                f"[{node.op.name}] expected values that the operation takes, got {', '.join(map(str, node.instr.ins))}"
                f" that torch refused: {reason}.{where}"
            ) from error
        return [env[k] for k in outputs]

    return run
