"""Recordings with their sizes left open: prepared once, and run at any size as they were recorded.

Recordings of one structure hold their operations in the same order, at the same places of the list. So what follows
from the order alone is found once: which operations an output needs, what each takes, and when a value is free. An
instruction of the list has its types and attributes for the sizes of the call, and keeps torch's function for them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.interpreter.interpreter import refuse_at
from gtrace.core.backends.interpreter.reference import instruction_call
from gtrace.core.backends.interpreter.result_strides import carried_strides, in_order
from gtrace.core.backends.runs import watched
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.devices import CPU, number_tensor
from gtrace.core.ir.aval import Aval, layout
from gtrace.core.ir.graph import Node, RecordedGraph, Scalar
from gtrace.core.ir.named_kernels import Paired, calls_with_derivatives
from gtrace.core.ir.op import Instr
from gtrace.core.ir.simplify import dce

MAX_NUMBERS = 1024
"""How many numbers are kept as tensors: programs repeat theirs."""


@attrs.frozen(eq=False)
class OpenRecording:
    """Runs recordings of one structure, operation by operation. Values are numbered: inputs, results, numbers.

    Attributes:
        slots: of the tensors that are inputs.
        steps: of each operation its place in the list, the values that it takes, the one that it assigns, and those
            that nothing needs after it.
        numbers: of each number its slot, and the place and the operand where its type stands.
        outputs: the values to return.
        ordered: (place of a result, place of an input): the result gets the order of axes that the input has.
        pairs: (place of a named call, place of its derivative): the first may keep what the second needs.
    """

    slots: tuple[int, ...]
    steps: tuple[tuple[int, tuple[int, ...], int, tuple[int, ...]], ...]
    numbers: tuple[tuple[int, int, int], ...]
    outputs: tuple[int, ...]
    ordered: tuple[tuple[int, int], ...]
    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, program: RecordedGraph) -> OpenRecording:
        """Return what runs the recordings of the structure of this one."""
        taken = iter(program.scalar_slots)
        own = {node.out: [next(taken) for x in node.ins if x.__class__ is Scalar] for node in program.graph.nodes}
        graph = dce(program.graph)
        kept = set(graph.outputs)
        last = {value: node.out for node in graph.nodes for value in node.values() if value not in kept}
        numbered = {value: k for k, value in enumerate([*graph.inputs, *[node.out for node in graph.nodes]])}
        numbers: list[tuple[int, int, int]] = []
        steps = []
        for node in graph.nodes:
            ins, slots = [], iter(own[node.out])
            for operand, x in enumerate(node.ins):
                if x.__class__ is int:
                    ins.append(numbered[x])
                else:
                    ins.append(len(numbered) + len(numbers))
                    numbers.append((next(slots), node.out, operand))
            dead = [numbered[value] for value in dict.fromkeys(node.values()) if last.get(value) == node.out]
            steps.append((node.out, tuple(ins), numbered[node.out], tuple(dead)))
        outputs = tuple([numbered[value] for value in graph.outputs])
        ordered = carried_strides(graph, program.strides)
        return cls(
            tuple(program.slots), tuple(steps), tuple(numbers), outputs, ordered, tuple(calls_with_derivatives(graph))
        )

    def run(self, flat: Any, scalars: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run a recording of this structure.

        Args:
            flat: its instructions, by place.
            scalars: its numbers.
            tensors: its inputs, by slot.

        Raises:
            ExecutionError: torch refused an operation because of the values.
        """
        inputs = [tensors[slot] for slot in self.slots]
        constants = [_number(scalars[slot], flat[at], operand) for slot, at, operand in self.numbers]
        env: list[Any] = [*inputs, *[None] * len(self.steps), *constants]
        at = 0
        if self.pairs:
            flat = self._paired(flat)
        try:
            for at, ins, out, dead in watched(self.steps):
                instr = flat[at]
                function = instr.call or instruction_call(instr)
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
            refuse_at(Node(flat[at], (), at), error)
        results = [env[k] for k in self.outputs]
        for place, source in self.ordered:
            x, like = results[place], inputs[source]
            if x.shape == like.shape and x.stride() != like.stride():
                axes = layout(tuple(like.shape), like.stride())
                if axes is not None:
                    results[place] = in_order(x, axes)
        return results

    def _paired(self, flat: Any) -> dict[int, Instr]:
        """Return the instructions, of which calls keep what their derivatives take, for one run."""
        found: dict[int, Instr] = {at: flat[at] for at, *_ in self.steps}
        for pair in self.pairs:
            gradient = instruction_call(flat[pair[1]])
            if isinstance(gradient, Paired):
                for at, kernel in zip(pair, gradient.pair(), strict=True):
                    found[at] = copy.copy(flat[at])
                    object.__setattr__(found[at], "call", kernel)
        return found


_numbers: BoundedTable[Any, torch.Tensor | None] = BoundedTable(MAX_NUMBERS)
"""Numbers as tensors, from their second use on. One that follows from a size may not come again, and a tensor that is
kept between larger ones keeps their memory apart."""


def _number(value: Any, instr: Instr, operand: int) -> torch.Tensor:
    """Return a number as an operand of an instruction."""
    a: Aval = instr.ins[operand]
    device = CPU if instr.op.host_numbers else a.device
    if not value or value != value:  # zeros of both signs are equal, and no NaN is
        return number_tensor(value, a.dtype, device)
    key = value.__class__, value, a.dtype, device
    found = _numbers.get(key)
    if found is None:
        found = number_tensor(value, a.dtype, device)
        _numbers.remember(key, found if key in _numbers else None)
    return found
