"""Loops that take long in one call go on in blocks of steps.

Each block is a call of one program, which becomes hot, is compiled, compared and judged like any other. A program that
is called once would be counted when its call has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import attrs
import torch

from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.runs import during, look
from gtrace.core.backends.runs import run as current
from gtrace.core.backends.tuned import BLOCK_SECONDS, LONG_LOOP_SECONDS
from gtrace.core.base.mechanisms import LOOPS_IN_BLOCKS
from gtrace.core.ir.graph import Graph


@attrs.define(eq=False)
class Blocks:
    """How the loops of a call go on, if they take long.

    Attributes:
        prepare: makes a function of a block's program and of its inputs' strides.
        waits: whether loops go on step by step for now, because code for the whole call is being compiled.
        saved: seconds that blocks took less than their steps would have; None: no loop went on in blocks.
    """

    prepare: Callable[[Graph, Sequence[tuple[int, ...]]], TensorFunction]
    waits: Callable[[], bool]
    saved: float | None = None

    def around(self, run: TensorFunction) -> TensorFunction:
        """Return a function of which the loops may go on in blocks."""

        def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            with during(blocks=self):
                return run(tensors)

        return call


class LongLoop:
    """A loop that runs step by step, until it has taken long.

    Attributes:
        until: when it has.
        steps: that a block has.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._start = perf_counter()
        self._before = 0  # steps
        self._step = 0.0  # seconds
        self._run: TensorFunction | None = None
        self.until = self._start + LONG_LOOP_SECONDS
        self.steps = 1

    def is_long(self, done: int) -> bool:
        """Return whether it has taken long, in steps after the first, and say how many steps a block has.

        Args:
            done: steps so far.
        """
        now = perf_counter()
        if done == 1:  # this may have loaded code
            self._start, self._before = now, 1
            return False
        if self._blocks.waits():
            self.until = now + LONG_LOOP_SECONDS
            return False
        self._step = (now - self._start) / (done - self._before)
        count = max(int(BLOCK_SECONDS / self._step), 1)
        self.steps = 1 << (count.bit_length() - 1)  # so that equal loops have equal blocks
        return True

    def block(self, graph: Graph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the next block, whose program is always the same."""
        given = [x if x.is_contiguous() else x.contiguous() for x in tensors]
        if self._run is None:
            LOOPS_IN_BLOCKS.used()
            self._run = self._blocks.prepare(graph, [x.stride() for x in given])
        look()
        start = perf_counter()
        with during(blocks=None, in_block=True):
            results = self._run(given)
        self._blocks.saved = (self._blocks.saved or 0.0) + self._step * self.steps - (perf_counter() - start)
        return results


def begin() -> LongLoop | None:
    """Return what a loop asks between its steps that begins now; None: it asks nobody."""
    if current.in_block:
        current.in_block = False
        return None
    return None if current.blocks is None else LongLoop(current.blocks)
