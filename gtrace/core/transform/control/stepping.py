"""Runs scan and while_loop step by step from Python, with interpreted or compiled bodies.

A loop with interpreted bodies that takes long goes on in blocks of steps, each a call of a program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch

from gtrace.core.backends import long_loops
from gtrace.core.backends.runs import UNCUT, run, scan_steps
from gtrace.core.base.errors import NonFiniteError
from gtrace.core.ir.graph import Subgraph
from gtrace.core.transform.control.blocks import scan_block, while_block
from gtrace.core.transform.control.tuned import COPIED, VIEWS


def run_scan(
    programs: Sequence[Callable[..., Any]],
    *operands: torch.Tensor,
    length: int,
    reverse: bool,
    consts: int,
    carry: int,
    bodies: Sequence[Subgraph] = (),
) -> list[torch.Tensor]:
    """Run a scan.

    Args:
        programs: holds its body.
        bodies: holds the graph of the body, if that is interpreted.
    """
    step, steps = programs[0], scan_steps(length)
    long = long_loops.begin() if bodies else None
    if steps < length:
        long = None
    fixed, state, xs = operands[:consts], list(operands[consts : consts + carry]), operands[consts + carry :]
    order = range(length - 1, -1, -1) if reverse else range(length)
    outputs: list[_Column] = []
    done = t = 0
    while done < steps:
        put = [column.from_step(done) for column in outputs]
        try:
            for t, row in zip(order[done:steps], _rows(xs, order, done), strict=False):  # noqa: B007 - errors name it
                out = step([*fixed, *state, *row])
                state = out[:carry]
                if len(out) > carry:
                    if not put:
                        outputs = [_Column(y, length, steps, reverse) for y in out[carry:]]
                        put = [column.from_step(0) for column in outputs]
                    for keep, y in zip(put, out[carry:], strict=True):
                        keep(y)
                done += 1
                if long is not None and perf_counter() > long.until and long.is_long(done):
                    break
        except NonFiniteError as error:
            raise error.in_step("scan", t) from None
        if long is not None and done < length:
            count = long.steps
            while length - done >= count:
                start = length - done - count if reverse else done
                own = [*fixed, *state, *[x.narrow(0, start, count) for x in xs]]
                out = long.block(scan_block(bodies[0], count, reverse, consts, carry), own)
                state = out[:carry]
                for column, block in zip(outputs, out[carry:], strict=True):
                    column.put_block(block, start)
                done += count
            long = None
    if steps < length:
        for column in outputs:
            column.repeat_last()
    return [*state, *[column.stacked() for column in outputs]]


def _rows(xs: Sequence[torch.Tensor], order: range, done: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the inputs of each step after the first `done`. Views of some steps are made at once."""
    for first in range(done, len(order), VIEWS):
        places = order[first : first + VIEWS]
        if xs:
            parts = [x.narrow(0, min(places[0], places[-1]), len(places)).unbind(0)[:: order.step] for x in xs]
            yield from zip(*parts, strict=True)
        else:
            yield from itertools.repeat((), len(places))


class _Column:
    """One output of all steps.

    Args:
        y: that of one step.
        steps: that run; fewer than `length` if the loop is cut.
    """

    def __init__(self, y: torch.Tensor, length: int, steps: int, reverse: bool) -> None:
        self._run, self._left, self._reverse = steps, length - steps, reverse
        self._steps: list[torch.Tensor] = []
        self._blocks: list[torch.Tensor] = []
        self._whole = y.new_empty((length, *y.shape)) if y.nbytes >= COPIED else None

    def from_step(self, done: int) -> Callable[[torch.Tensor], Any]:
        """Return what takes the output of the next step, and of each after it.

        Args:
            done: steps so far.
        """
        if self._whole is None:
            return self._steps.append
        rows = self._whole.narrow(0, self._left if self._reverse else 0, self._run)
        places = iter(rows.unbind(0)[:: -1 if self._reverse else 1][done:])
        return lambda y: next(places).copy_(y)

    def put_block(self, block: torch.Tensor, start: int) -> None:
        """Take the outputs of the next steps, which begin at place `start`."""
        if self._whole is not None:
            self._whole.narrow(0, start, len(block)).copy_(block)
            return
        self._end_steps()
        self._blocks.append(block)

    def repeat_last(self) -> None:
        """Have the steps that do not run return what the last one that ran returned."""
        if self._whole is not None:
            last, rest = (self._left, 0) if self._reverse else (self._run - 1, self._run)
            self._whole.narrow(0, rest, self._left).copy_(self._whole[last])
            return
        y = self._steps[-1]
        self._end_steps()
        self._blocks.append(y.expand(self._left, *y.shape))

    def _end_steps(self) -> None:
        if self._steps:
            self._blocks.append(torch.stack(self._steps[:: -1 if self._reverse else 1]))
            self._steps.clear()

    def stacked(self) -> torch.Tensor:
        """Return all outputs."""
        if self._whole is not None:
            return self._whole
        self._end_steps()
        return self._blocks[0] if len(self._blocks) == 1 else torch.cat(self._blocks[:: -1 if self._reverse else 1])


def run_while(
    programs: Sequence[Callable[..., Any]],
    *operands: torch.Tensor,
    cond_consts: int,
    body_consts: int,
    bodies: Sequence[Subgraph] = (),
) -> list[torch.Tensor]:
    """Run a while_loop.

    Args:
        programs: holds its condition and its body.
        bodies: holds their graphs, if these are interpreted.
    """
    (test, step), limit = programs, run.most_steps
    long = long_loops.begin() if bodies else None
    if limit < UNCUT:
        long = None
    fixed = operands[: cond_consts + body_consts]
    first, second = fixed[:cond_consts], fixed[cond_consts:]
    state = list(operands[cond_consts + body_consts :])
    t = 0
    try:
        while t < limit and (going := test([*first, *state])[0]).item():
            state = step([*second, *state])
            t += 1
            if long is not None and perf_counter() > long.until and long.is_long(t):
                break
        else:
            return state
    except NonFiniteError as error:
        raise error.in_step("while_loop", t) from None
    assert long is not None
    steps = made = long.steps
    block = while_block(bodies[0], bodies[1], cond_consts, body_consts)
    most, zero = torch.tensor([steps, 0], device=going.device).unbind()
    while made == steps:
        count, *state = long.block(block, [most, *fixed, zero, *state])
        made = int(count)
    return state
