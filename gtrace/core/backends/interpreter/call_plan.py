"""The torch calls that compute a graph: in which order they run, which memory is reused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs

from gtrace.core.backends.interpreter.tuned import LEAST_REUSED
from gtrace.core.base.mechanisms import MEMORY_REUSE
from gtrace.core.ir.aliasing import is_fresh
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Operand
from gtrace.core.ir.wide_unsigned import is_wide
from gtrace.core.passes.optimizer_updates import ADAM, overwritable


@attrs.frozen(eq=False)
class TorchCall:
    """One call of torch.

    Attributes:
        node: the operation.
    """

    node: Node

    @property
    def ins(self) -> tuple[Operand, ...]:
        """The operands of the call."""
        return self.node.ins

    def function(self, call: Callable[..., Any], places: tuple[int, ...]) -> Callable[..., Any]:
        """Return the function of this step.

        Args:
            call: the function of the node.
            places: the operands that the results overwrite; without any, these have new memory.
        """
        if self.node.op is ADAM:
            return functools.partial(call, over=places)
        place = places[0] if places else None
        if place == 0:
            assert self.node.op.rules.in_place is not None
            call = self.node.op.rules.in_place
        if place == 1:
            return lambda x, y: call(x, y, out=y)
        return call


def plan_calls(graph: Graph) -> list[TorchCall]:
    """Return the calls that compute a graph, in the order in which to make them."""
    return _near([TorchCall(node) for node in graph.nodes])


def _near(steps: Sequence[TorchCall]) -> list[TorchCall]:
    """Order steps so that results are used soon after they are made, while they are in the CPU's cache.

    The walk starts at each result that no other step uses. It visits operands depth first, the one with the longest
    chain of steps first.
    """
    at = {step.node.out: step for step in steps}
    operands: dict[int, list[int]] = {}
    depth: dict[int, int] = {}
    used = set()
    for step in steps:
        out = step.node.out
        values = operands[out] = [v for v in step.ins if v.__class__ is int and v in at]
        used.update(values)
        depth[out] = 1 + max([depth[v] for v in values], default=0)
    order: dict[int, TorchCall] = {}
    pending = [step.node.out for step in reversed(steps) if step.node.out not in used]
    while pending:
        value = pending[-1]
        missing = [v for v in operands[value] if v not in order]
        if missing:
            pending += sorted(missing, key=depth.__getitem__)
        else:
            order.setdefault(value, at[value])
            pending.pop()
    return list(order.values())


def reusable(graph: Graph, steps: Sequence[TorchCall], donated: Collection[int] = ()) -> dict[int, tuple[int, ...]]:
    """Return for each step that may overwrite operands the places of these; of most operations only one.

    The operand must be the result of an earlier step, or an input that is given away, with the shape and dtype of this
    step's result. This step must be its last use. No other value may share its memory: it has memory of its own, and so
    have the results of its users.

    Args:
        donated: the places of the inputs that may be written over.
    """
    if not MEMORY_REUSE.on:
        return {}
    made = {step.node.out: step.node.instr.aval for step in steps if is_fresh(step.node)}
    made |= {graph.inputs[k]: graph.avals[k] for k in donated}
    users: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        for value in step.ins:
            if isinstance(value, int):
                users.setdefault(value, []).append(index)
    kept = set(graph.outputs)

    def is_free(operand: Operand, index: int, a: Aval) -> bool:
        return (
            isinstance(operand, int)
            and operand in made
            and operand not in kept
            and users[operand][-1] == index
            and users[operand].count(index) == 1
            and made[operand].shape == a.shape
            and made[operand].dtype is a.dtype
            and all(is_fresh(steps[user].node) for user in users[operand])
        )

    found: dict[int, tuple[int, ...]] = {}
    for index, step in enumerate(steps):
        a = step.node.instr.aval
        if step.node.op is ADAM:
            kinds = step.node.instr.ins
            found[index] = tuple(k for k in overwritable(step.node) if is_free(step.ins[k], index, kinds[k]))
        elif step.node.op.rules.in_place is not None and not is_wide(a):
            for place, operand in enumerate(step.ins):
                if is_free(operand, index, a) and (place == 0 or a.nbytes >= LEAST_REUSED):
                    found[index] = (place,)
                    break
    if found:
        MEMORY_REUSE.used()
    return found
