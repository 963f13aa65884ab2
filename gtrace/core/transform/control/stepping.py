"""Runs scan and while_loop step by step from Python, with interpreted or compiled bodies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.base.errors import NonFiniteError
from gtrace.core.transform.control.tuned import COPIED


def run_scan(
    programs: Sequence[Callable[..., Any]], *operands: torch.Tensor, length: int, reverse: bool, consts: int, carry: int
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
