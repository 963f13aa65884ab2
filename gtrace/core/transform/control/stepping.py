"""Runs scan and while_loop step by step from Python, with interpreted or compiled bodies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.backends.cost_model import additions
from gtrace.core.backends.interpreter.interpreter import interpreted
from gtrace.core.backends.tuned import LONG_STEP
from gtrace.core.base.errors import NonFiniteError
from gtrace.core.ir.aval import aval
from gtrace.core.ir.graph import Subgraph
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import replay
from gtrace.core.transform.control.tuned import COPIED, MAX_CHUNK, MAX_UNROLLED
from gtrace.core.transform.subgraph_rules import captured_subgraph


def run_scan(
    programs: Sequence[Callable[..., Any]],
    *operands: torch.Tensor,
    length: int,
    reverse: bool,
    consts: int,
    carry: int,
) -> list[torch.Tensor]:
    """Run a scan; `programs` holds its body."""
    step = programs[0]
    fixed, state = operands[:consts], list(operands[consts : consts + carry])
    order = range(length - 1, -1, -1) if reverse else range(length)
    columns = [x.unbind(0)[:: -1 if reverse else 1] for x in operands[consts + carry :]]
    rows = zip(*columns, strict=True) if columns else itertools.repeat(())
    outputs: list[_Column] = []
    put: list[Callable[[torch.Tensor], Any]] = []
    t = 0
    try:
        for t, row in zip(order, rows, strict=False):  # noqa: B007 - an error names the step
            out = step([*fixed, *state, *row])
            state = out[:carry]
            if len(out) > carry:
                if not put:
                    outputs = [_Column(y, length, reverse) for y in out[carry:]]
                    put = [column.put for column in outputs]
                for keep, y in zip(put, out[carry:], strict=True):
                    keep(y)
    except NonFiniteError as error:
        raise error.in_step("scan", t) from None
    return [*state, *[column.stacked() for column in outputs]]


class _Column:
    """One output of all steps.

    Attributes:
        put: takes the output of the next step.
    """

    def __init__(self, y: torch.Tensor, length: int, reverse: bool) -> None:
        self._reverse = reverse
        self._steps: list[torch.Tensor] = []
        self._whole = y.new_empty((length, *y.shape)) if y.nbytes >= COPIED else None
        self.put: Callable[[torch.Tensor], Any] = self._steps.append
        if self._whole is not None:
            places = iter(self._whole.unbind(0)[:: -1 if reverse else 1])
            self.put = lambda y: next(places).copy_(y)

    def stacked(self) -> torch.Tensor:
        if self._whole is not None:
            return self._whole
        return torch.stack(self._steps[:: -1 if self._reverse else 1])


def run_while(
    programs: Sequence[Callable[..., Any]], *operands: torch.Tensor, cond_consts: int, body_consts: int
) -> list[torch.Tensor]:
    """Run a while_loop; `programs` holds its condition and its body."""
    test, step = programs
    first, second = operands[:cond_consts], operands[cond_consts : cond_consts + body_consts]
    state = list(operands[cond_consts + body_consts :])
    t = 0
    try:
        while test([*first, *state])[0].item():
            state = step([*second, *state])
            t += 1
    except NonFiniteError as error:
        raise error.in_step("while_loop", t) from None
    return state


def chunk_bodies(body: Subgraph, length: int, reverse: bool, consts: int, carry: int) -> tuple[Subgraph]:
    """Return the programs to compile: several steps of a short body, because a call costs as much as such a step."""
    chunk = _chunk_size(body, length)
    return (body if chunk == 1 else _unrolled(body, chunk, reverse, consts, carry),)


def run_chunks(
    programs: Sequence[Callable[..., Any]], body: Subgraph, length: int, reverse: bool, consts: int, carry: int
) -> Callable[..., list[torch.Tensor]]:
    """Return the compiled loop: each call runs a chunk of steps. Steps that do not fill a chunk are interpreted."""
    chunk = _chunk_size(body, length)
    settings: dict[str, Any] = {"reverse": reverse, "consts": consts, "carry": carry}
    whole = length // chunk * chunk
    program = programs[0]
    single = interpreted(body)

    def run(*operands: torch.Tensor) -> list[torch.Tensor]:
        fixed, xs = operands[: consts + carry], operands[consts + carry :]
        if chunk == 1:
            return run_scan([program], *operands, length=length, **settings)
        blocks = [x[:whole].unflatten(0, (whole // chunk, chunk)) for x in xs]
        rest = [x[whole:] for x in xs]
        parts = []
        order = [(program, blocks, whole // chunk), (single, rest, length - whole)]
        for step, columns, count in reversed(order) if reverse else order:
            if count:
                out = run_scan([step], *fixed, *columns, length=count, **settings)
                fixed = (*fixed[:consts], *out[:carry])
                parts.append([y.flatten(0, 1) if step is program else y for y in out[carry:]])
        if reverse:
            parts.reverse()
        stacked = parts[0] if len(parts) == 1 else [torch.cat(ys) for ys in zip(*parts, strict=True)]
        return [*fixed[consts:], *stacked]

    return run


def _chunk_size(body: Subgraph, length: int) -> int:
    nodes = body.graph.nodes
    if any(node.op.rules.body is not None for node in nodes) or additions(body.graph) > LONG_STEP:
        return 1
    most = max(1, min(MAX_CHUNK, length, MAX_UNROLLED // max(1, len(nodes))))
    # prefer a divisor of the length, down to half of the largest size
    return next((k for k in range(most, most // 2, -1) if length % k == 0), most)


def _unrolled(body: Subgraph, chunk: int, reverse: bool, consts: int, carry: int) -> Subgraph:
    """Return the program of `chunk` steps, which are axis 0 of its per-step inputs and outputs."""

    def make() -> Subgraph:
        graph = body.graph
        xs = [aval((chunk, *a.shape), a.dtype, a.device) for a in graph.avals[consts + carry :]]

        def run(inputs: Sequence[Array]) -> list[Array]:
            fixed, state = inputs[:consts], list(inputs[consts : consts + carry])
            columns = [ops.unstack(x) for x in inputs[consts + carry :]]
            steps = []
            for t in range(chunk - 1, -1, -1) if reverse else range(chunk):
                out = replay(graph, [*fixed, *state, *[column[t] for column in columns]])
                state = out[:carry]
                steps.append(out[carry:])
            if reverse:
                steps.reverse()
            return [*state, *[ops.stack(column) for column in zip(*steps, strict=True)]]

        return captured_subgraph(run, [*graph.avals[: consts + carry], *xs])

    return body.memo(("unrolled", chunk, reverse, consts, carry), make)
