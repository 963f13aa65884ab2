"""The interpreter: a graph run node by node on torch. The cold tier, and the reference semantics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.errors import ExecutionError, NonFiniteError
from gtrace.ir.graph import Graph, Node, Operand, Subgraph, is_subgraphs, subgraphs

Program = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""What every tier provides: input tensors to output tensors, in the order of the graph's."""


def bound_impl(node: Node) -> Callable[..., Any]:
    """Return the torch function of a node with its attributes filled in; sub-graphs are interpreted."""
    attributes = node.attributes
    if node.op.body is not None:
        return bound_body(node, [interpreted(sub) for sub in subgraphs(node.params)])
    return functools.partial(node.op.impl, **attributes) if attributes else node.op.impl


def direct_impl(node: Node) -> Callable[..., Any]:
    """Return the torch function of a node for operands of just its avals."""
    direct = node.op.direct
    function = None if direct is None else direct(node.instr.ins, **node.attributes)
    return bound_impl(node) if function is None else function


def interpreted(sub: Subgraph) -> Program:
    """Return the interpreter of a sub-graph, made once."""
    return sub.derive("interpreted", lambda: interpreter(sub.graph))


def checked(graph: Graph) -> Program:
    """Return an interpreter of `graph` that refuses what no finite computation gives.

    Raises (when run):
        NonFiniteError: an operation gave an infinity from finite operands, or a NaN from operands without one.
    """

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        env: dict[int, Any] = dict(zip(graph.inputs, tensors, strict=True))
        for node in graph.nodes:
            if node.op.body is None:
                function = bound_impl(node)
            else:
                function = bound_body(node, [checked(sub.graph) for sub in subgraphs(node.params)])
            operands = [env[x] if isinstance(x, int) else torch.tensor(x.value, dtype=x.aval.dtype) for x in node.ins]
            env[node.out] = out = function(*operands)
            if isinstance(out, torch.Tensor) and out.is_floating_point():
                _refuse_non_finite(node, out, [x for x in operands if isinstance(x, torch.Tensor)])
        return [env[value] for value in graph.outputs]

    return run


def _refuse_non_finite(node: Node, out: torch.Tensor, operands: Sequence[torch.Tensor]) -> None:
    bad = ~torch.isfinite(out)
    if not bad.any():
        return
    floats = [x for x in operands if x.is_floating_point()]
    nan = bool(torch.isnan(out).any())
    explained = any(torch.isnan(x).any() for x in floats) if nan else any(not torch.isfinite(x).all() for x in floats)
    if explained:
        return
    what = "NaN" if nan else "an infinity"
    count = int(torch.isnan(out).sum()) if nan else int(bad.sum())
    raise NonFiniteError(
        f"[{node.op.name}] expected finite values, got {what} in {count} of {out.numel()} elements of"
        f" {node.instr.aval!r}, from operands {', '.join(map(repr, node.instr.ins))} without any. Guard the operands,"
        f" or turn GT_DEBUG_NANS off. (at {node.location or 'an unknown line'})"
    )


def bound_body(node: Node, programs: Sequence[Program]) -> Callable[..., Any]:
    """Return the function of a node with sub-graphs, which run as `programs`."""
    assert node.op.body is not None
    plain = {k: v for k, v in node.attributes.items() if not is_subgraphs(v)}
    return functools.partial(node.op.body, programs, **plain)


IN_PLACE = {"add", "sub", "mul", "div"}
"""Operations that may write their result over an operand that nothing needs any more."""

FRESH = IN_PLACE | {"matmul", "exp", "tanh", "square", "gelu_grad", "sigmoid"}
"""Operations whose result is memory of its own."""

LEAST_REUSED = 1 << 16
"""Bytes from which on memory is worth using again."""


def _reusable(graph: Graph, last_use: dict[int, int]) -> dict[int, int]:
    """Return which nodes may write over which of their operands, by place.

    The operand must be a result of this program of the same kind as the node's, with memory of its own, which no other
    value shares: all that use it make memory of their own too.
    """
    made = {node.out: node for node in graph.nodes}
    users: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for value in node.values():
            users.setdefault(value, []).append(node)
    kept = set(graph.outputs)
    found: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        if node.op.name not in IN_PLACE or node.instr.aval.nbytes < LEAST_REUSED:
            continue
        for place, operand in enumerate(node.ins):
            if (
                isinstance(operand, int)
                and operand in made
                and made[operand].op.name in FRESH
                and operand not in kept
                and last_use[operand] == index
                and node.instr.ins[place].shape == node.instr.aval.shape
                and node.instr.ins[place].dtype is node.instr.aval.dtype
                and all(user.op.name in FRESH for user in users[operand])
            ):
                found[index] = place
                break
    return found


def _into(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return a binary torch function that writes its result over one of its operands."""
    if place == 0:
        return lambda x, y: function(x, y, out=x)
    return lambda x, y: function(x, y, out=y)


def interpreter(graph: Graph) -> Program:
    """Return a program that runs `graph` on torch, one operation after the other.

    Scalars become 0-d tensors once, here; they stay on the CPU, where torch lets them meet tensors of any device.

    Raises (when run):
        ExecutionError: torch refused an operation because of the values.
    """
    slots: dict[int, int] = {value: k for k, value in enumerate(graph.inputs)}
    constants: list[torch.Tensor] = []
    steps: list[tuple[Callable[..., Any], tuple[int, ...], int, tuple[int, ...]]] = []
    last_use: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        for value in node.values():
            last_use[value] = index
    kept = set(graph.outputs)
    base = len(graph.inputs) + len(graph.nodes)

    def slot(operand: Operand) -> int:
        if isinstance(operand, int):
            return slots[operand]
        constants.append(torch.tensor(operand.value, dtype=operand.aval.dtype))
        return base + len(constants) - 1

    reusable = _reusable(graph, last_use)
    for index, node in enumerate(graph.nodes):
        ins = tuple(slot(x) for x in node.ins)
        dead = {slots[v] for v in node.values() if last_use[v] == index and v not in kept}
        slots[node.out] = len(graph.inputs) + index
        function = direct_impl(node)
        if index in reusable:
            function = _into(function, reusable[index])
        steps.append((function, ins, slots[node.out], tuple(dead)))
    outputs = [slots[value] for value in graph.outputs]
    blank: list[Any] = [None] * len(graph.nodes)

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        env = [*tensors, *blank, *constants]
        try:
            for function, ins, out, dead in steps:
                if len(ins) == 2:
                    a, b = ins
                    env[out] = function(env[a], env[b])
                elif len(ins) == 1:
                    env[out] = function(env[ins[0]])
                else:
                    env[out] = function(*[env[k] for k in ins])
                for k in dead:
                    env[k] = None
        except (RuntimeError, IndexError, ValueError) as error:
            if isinstance(error, ExecutionError):
                raise
            node = graph.nodes[out - len(graph.inputs)]
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
