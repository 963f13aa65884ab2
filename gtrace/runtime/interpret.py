"""The interpreter: a graph run node by node on torch. The cold tier, and the reference semantics."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from gtrace.errors import ExecutionError, NonFiniteError
from gtrace.ir.graph import Graph, Node, Operand, Scalar, Subgraph, is_subgraphs, subgraphs

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


IN_PLACE: dict[str, Callable[..., Any]] = {
    "add": torch.Tensor.add_, "sub": torch.Tensor.sub_, "mul": torch.Tensor.mul_, "div": torch.Tensor.div_,
}  # fmt: skip
"""Operations that may write their result over an operand that nothing needs any more, and how they do."""

FRESH = {*IN_PLACE, "matmul", "exp", "tanh", "square", "gelu_grad", "sigmoid", "sum", "log_softmax_grad"}
"""Operations whose result is memory of its own."""

LEAST_REUSED = 1 << 16
"""Bytes from which on memory of the second operand is worth using again."""


@attrs.frozen(eq=False)
class Step:
    """One call of torch.

    Attributes:
        node: the operation; of two that are one call, the second.
        ins: what it takes.
        factor: of a sum or difference: the number that its second operand is multiplied by; None: none, or it is the
            third operand.
    """

    node: Node
    ins: tuple[Operand, ...]
    factor: float | None = None

    def function(self, place: int | None) -> Callable[..., Any]:
        """Return what computes it, over the operand at `place` if there is one."""
        call = direct_impl(self.node) if place != 0 else IN_PLACE[self.node.op.name]
        if len(self.ins) > len(self.node.ins):
            if place == 1:
                return lambda x, y, factor: call(x, y, alpha=factor.item(), out=y)
            return lambda x, y, factor: call(x, y, alpha=factor.item())
        if self.factor is not None:
            call = functools.partial(call, alpha=self.factor)
        if place == 1:
            return lambda x, y: call(x, y, out=y)
        return call


def _steps(graph: Graph) -> list[Step]:
    """Return the calls that compute a graph.

    A product with a number that is only added or subtracted is one call with that, x + factor * y, as which torch's own
    optimizers update parameters; it is rounded once, whether the number is a constant or an input.
    """
    made = {node.out: node for node in graph.nodes}
    uses = collections.Counter(graph.outputs)
    for node in graph.nodes:
        uses.update(node.values())
    numbers = {v for v, a in zip(graph.inputs, graph.avals, strict=True) if a.weak and not a.shape}
    steps: dict[int, Step] = {}
    for node in graph.nodes:
        steps[node.out] = Step(node, node.ins)
        a = node.instr.aval
        if (
            node.op.name not in ("add", "sub")
            or a.dtype not in (torch.float32, torch.float64)
            or a.device.type != "cpu"
            or {operand.shape for operand in node.instr.ins} != {a.shape}
        ):
            continue
        for x, y in (node.ins, node.ins[::-1])[: 2 if node.op.commutative else 1]:
            product = made.get(y) if isinstance(y, int) else None
            if not isinstance(x, int) or product is None or product.op.name != "mul" or uses[product.out] != 1:
                continue
            for value, factor in (product.ins, product.ins[::-1]):
                if isinstance(factor, Scalar) and isinstance(value, int):
                    steps[node.out] = Step(node, (x, value), factor.value)
                elif factor in numbers and a.shape:
                    steps[node.out] = Step(node, (x, value, factor))
                else:
                    continue
                steps.pop(product.out)
                break
            if product.out not in steps:
                break
    return _near(list(steps.values()))


def _near(steps: Sequence[Step]) -> list[Step]:
    """Return steps in an order in which results are used soon after they are made, while they are in cache.

    From each result that nothing else needs, operands are visited depth first, the one that takes most steps before the
    others.
    """
    at = {step.node.out: step for step in steps}
    depth: dict[int, int] = {}
    used = set()
    for step in steps:
        values = [v for v in step.ins if isinstance(v, int) and v in at]
        used.update(values)
        depth[step.node.out] = 1 + max([depth[v] for v in values], default=0)
    order: dict[int, Step] = {}
    pending = [step.node.out for step in reversed(steps) if step.node.out not in used]
    while pending:
        value = pending[-1]
        missing = [v for v in at[value].ins if isinstance(v, int) and v in at and v not in order]
        if missing:
            pending += sorted(missing, key=depth.__getitem__)
        else:
            order.setdefault(value, at[value])
            pending.pop()
    return list(order.values())


def _fresh(node: Node) -> bool:
    """Whether the result of a node is memory of its own."""
    # summed to the shape that it has, an operand stays itself
    return node.op.name in FRESH or (node.op.name == "sum_to" and node.instr.ins[0].shape != node.instr.aval.shape)


def _reusable(graph: Graph, steps: Sequence[Step]) -> dict[int, int]:
    """Return which steps may write over which of their operands, by place.

    The operand must be a result of this program of the same kind as the step's, with memory of its own, which no other
    value shares: all that use it make memory of their own too.
    """
    made = {step.node.out: step.node for step in steps if _fresh(step.node)}
    users: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        for value in step.ins:
            if isinstance(value, int):
                users.setdefault(value, []).append(index)
    kept = set(graph.outputs)
    found: dict[int, int] = {}
    for index, step in enumerate(steps):
        instr = step.node.instr
        if step.node.op.name not in IN_PLACE:
            continue
        for place, operand in enumerate(step.ins):
            if (
                isinstance(operand, int)
                and operand in made
                and operand not in kept
                and users[operand][-1] == index
                and users[operand].count(index) == 1
                and made[operand].instr.aval.shape == instr.aval.shape
                and made[operand].instr.aval.dtype is instr.aval.dtype
                and all(_fresh(steps[user].node) for user in users[operand])
                and (place == 0 or instr.aval.nbytes >= LEAST_REUSED)
            ):
                found[index] = place
                break
    return found


def interpreter(graph: Graph) -> Program:
    """Return a program that runs `graph` on torch, one operation after the other.

    Scalars become 0-d tensors once, here; they stay on the CPU, where torch lets them meet tensors of any device.

    Raises (when run):
        ExecutionError: torch refused an operation because of the values.
    """
    slots: dict[int, int] = {value: k for k, value in enumerate(graph.inputs)}
    constants: list[torch.Tensor] = []
    calls: list[tuple[Callable[..., Any], tuple[int, ...], int, tuple[int, ...]]] = []
    steps = _steps(graph)
    last_use = {value: index for index, step in enumerate(steps) for value in step.ins if isinstance(value, int)}
    kept = set(graph.outputs)
    base = len(graph.inputs) + len(steps)

    def slot(operand: Operand) -> int:
        if isinstance(operand, int):
            return slots[operand]
        constants.append(torch.tensor(operand.value, dtype=operand.aval.dtype))
        return base + len(constants) - 1

    reusable = _reusable(graph, steps)
    for index, step in enumerate(steps):
        ins = tuple(slot(x) for x in step.ins)
        dead = {slots[v] for v in step.ins if isinstance(v, int) and last_use[v] == index and v not in kept}
        slots[step.node.out] = len(graph.inputs) + index
        calls.append((step.function(reusable.get(index)), ins, slots[step.node.out], tuple(dead)))
    outputs = [slots[value] for value in graph.outputs]
    blank: list[Any] = [None] * len(steps)

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        env = [*tensors, *blank, *constants]
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
        except (RuntimeError, IndexError, ValueError) as error:
            if isinstance(error, ExecutionError):
                raise
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
