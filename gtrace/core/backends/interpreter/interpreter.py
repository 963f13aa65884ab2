"""The interpreter: a graph run node by node on torch. The cold tier, and the reference semantics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import attrs
import torch

from gtrace.core.backends.interpreter.run_errors import is_out_of_memory, out_of_memory
from gtrace.core.backends.runs import watched
from gtrace.core.base.devices import CPU, number_tensor
from gtrace.core.base.errors import ExecutionError, refused
from gtrace.core.base.mechanisms import DIRECT_CALLS
from gtrace.core.ir.graph import Graph, Node, Subgraph, is_subgraphs, subgraphs
from gtrace.core.ir.wide_unsigned import is_wide

Around = Callable[[Node, Callable[..., Any]], Callable[..., Any]]
"""From a node and the function that computes it to the function to call instead."""

TensorFunction = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""What every tier provides: a function from input tensors to output tensors, in the graph's order."""


class Owned(list[torch.Tensor]):
    """Inputs that the caller gives away: whoever takes them out of the list may free each after its last use."""

    __slots__ = ()


def bound_impl(node: Node) -> Callable[..., Any]:
    """Return the torch function of a node with its attributes filled in; sub-graphs are interpreted."""
    instr = node.instr
    if instr.op.rules.body is not None:
        bodies = subgraphs(instr.params)
        bound = bound_body(node, [interpreted(sub) for sub in bodies])
        return functools.partial(bound, bodies=bodies) if instr.op.loop else bound
    function = instr.kernel()
    return functools.partial(function, **node.attributes) if instr.params else function


def direct_impl(node: Node) -> Callable[..., Any]:
    """Return the torch function of a node, specialized to the avals of its operands if `Rules.direct` can."""
    direct = node.op.rules.direct
    if direct is None or not DIRECT_CALLS.on or any(map(is_wide, node.instr.ins)):
        return bound_impl(node)
    call = direct(node.instr.ins, **node.attributes)
    if call is None:
        return bound_impl(node)
    DIRECT_CALLS.used()
    return call


def interpreted(sub: Subgraph) -> TensorFunction:
    """Return the interpreter of a sub-graph, which is made once."""
    return sub.memo("interpreted", lambda: interpreter(sub.graph))


def bound_body(node: Node, programs: Sequence[TensorFunction]) -> Callable[..., Any]:
    """Return the function of a node whose sub-graphs run as `programs`."""
    assert node.op.rules.body is not None
    plain = {k: v for k, v in node.attributes.items() if not is_subgraphs(v)}
    return functools.partial(node.op.rules.body, programs, **plain)


def in_call_order(nodes: Sequence[Node]) -> list[Node]:
    """Order nodes so that results are used soon after they are made, while they are in the CPU's cache.

    The walk starts at each result that no other node uses. It visits operands depth first, the one with the longest
    chain of nodes first.
    """
    at = {node.out: node for node in nodes}
    operands: dict[int, list[int]] = {}
    depth: dict[int, int] = {}
    used = set()
    for node in nodes:
        values = operands[node.out] = [v for v in node.values() if v in at]
        used.update(values)
        depth[node.out] = 1 + max([depth[v] for v in values], default=0)
    order: dict[int, Node] = {}
    pending = [node.out for node in reversed(nodes) if node.out not in used]
    while pending:
        value = pending[-1]
        missing = [v for v in operands[value] if v not in order]
        if missing:
            pending += sorted(missing, key=depth.__getitem__)
        else:
            order.setdefault(value, at[value])
            pending.pop()
    return list(order.values())


@attrs.frozen(eq=False)
class CallPlan:
    """The calls of torch that compute a graph, in order. Values are numbered: inputs, results, numbers.

    Attributes:
        calls: of each the function, the values it takes, the value it assigns, and those that nothing needs after it.
        constants: the numbers, as 0-d tensors. They are on the CPU for operations that are `Op.host_numbers`, and
            on the device of the operation for others.
        outputs: the values to return.
        nodes: those of the calls.
    """

    calls: tuple[tuple[Callable[..., Any], tuple[int, ...], int, tuple[int, ...]], ...]
    constants: tuple[torch.Tensor, ...]
    outputs: tuple[int, ...]
    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, graph: Graph, around: Around | None = None) -> CallPlan:
        """Return the plan of a graph; see `interpreter`."""
        slots: dict[int, int] = {value: k for k, value in enumerate(graph.inputs)}
        constants: list[torch.Tensor] = []
        numbers: dict[tuple[str, torch.dtype, torch.device], int] = {}
        calls = []
        nodes = in_call_order(graph.nodes)
        last_use = {value: node.out for node in nodes for value in node.values()}
        last_use.update(dict.fromkeys(graph.outputs, -1))
        base = len(graph.inputs) + len(nodes)
        for index, node in enumerate(nodes):
            ins, dead = [], []
            for x in node.ins:
                if isinstance(x, int):
                    place = slots[x]
                    if last_use[x] == node.out and place not in dead:
                        dead.append(place)
                else:
                    device = CPU if node.op.host_numbers else x.aval.device
                    number = repr(x.value), x.aval.dtype, device
                    place = numbers.setdefault(number, base + len(constants))
                    if place == base + len(constants):
                        constants.append(number_tensor(x.value, x.aval.dtype, device))
                ins.append(place)
            out = slots[node.out] = len(graph.inputs) + index
            function = direct_impl(node)
            if around is not None:
                function = around(node, function)
            calls.append((function, tuple(ins), out, tuple(dead)))
        return cls(tuple(calls), tuple(constants), tuple([slots[value] for value in graph.outputs]), tuple(nodes))

    def refuse(self, index: int, error: Exception) -> NoReturn:
        """Raise the error of a call that raised `error`."""
        refuse_at(self.nodes[index], error)


def refuse_at(node: Node, error: Exception) -> NoReturn:
    """Raise the error of a node whose call raised `error`."""
    if isinstance(error, (ExecutionError, RecursionError)):
        try:
            raise error
        finally:
            del error  # which refers to this frame
    if is_out_of_memory(error):
        raise out_of_memory(node.op.name, error) from error
    where = f"It was recorded at {node.location}." if node.location else "GT_EAGER=1 shows the line that recorded it."
    raise ExecutionError(refused(node.op.name, ", ".join(map(str, node.instr.ins)), error, where)) from error


def interpreter(graph: Graph, around: Around | None = None) -> TensorFunction:
    """Return a function that runs `graph` on torch, one operation after the other.

    Args:
        around: takes a node and the function that computes it, and returns the function to call instead.

    Raises (when run):
        ExecutionError: torch refused an operation because of the values.
    """
    plan = CallPlan.of(graph, around)
    calls, constants, outputs = plan.calls, plan.constants, plan.outputs
    first = len(graph.inputs)
    blank: list[Any] = [None] * len(calls)
    several = len(outputs) != 1

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        owned = tensors.__class__ is Owned
        env = [*tensors, *blank, *constants]
        if owned:
            tensors.clear()  # type: ignore[attr-defined]
        try:
            for function, ins, out, dead in watched(calls):
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
            env.clear()  # the error refers to this frame, and would keep its values
            plan.refuse(out - first, error)
        return [env[k] for k in outputs] if several else [env[outputs[0]]]

    return run
