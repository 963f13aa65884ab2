"""Two ways to run one part of a program, of which the faster one is kept after a few calls of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import attrs
import torch

from gtrace.core.backends.interpreter.interpreter import TensorFunction
from gtrace.core.backends.tuned import CLEARLY_SLOWER, CLOSE, TIMED_CALLS


@attrs.define(eq=False)
class Choice:
    """What is known of two ways.

    Attributes:
        first: whether the first one is kept; None: not decided yet.
        seconds: the shortest call of each, if this process has timed them.
    """

    first: bool | None = None
    seconds: tuple[float, float] | None = None

    @property
    def lasting(self) -> bool:
        """Whether later processes need not time the ways again."""
        if self.first is None or self.seconds is None:
            return self.first is not None
        return max(self.seconds) > CLOSE * min(self.seconds)


class FasterOfTwo:
    """A function of tensors that takes the faster one of two ways.

    The first call takes the first way, and is not timed: code and memory are touched for the first time. Then they take
    turns, because the load of the machine changes. The shortest time of each counts.

    Args:
        first, second: give the same results.
        choice: what earlier processes found, and where it is kept what this one finds.

    Attributes:
        choice: see the argument.
    """

    def __init__(
        self,
        first: TensorFunction,
        second: TensorFunction,
        choice: Choice,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.choice = choice
        self._ways = first, second
        self._clock = clock
        self._begun = False
        self._times: tuple[list[float], list[float]] = [], []

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        kept = self.choice.first
        if kept is not None:
            return self._ways[not kept](tensors)
        if not self._begun:
            results = self._ways[0](tensors)
            self._begun = True
            return results
        mine, others = self._times
        turn = int(len(mine) > len(others))
        begin = self._clock()
        results = self._ways[turn](tensors)
        self._times[turn].append(self._clock() - begin)
        if mine and others and (min(others) > CLEARLY_SLOWER * min(mine) or min(len(mine), len(others)) >= TIMED_CALLS):
            self.choice.seconds = min(mine), min(others)
            self.choice.first = min(mine) <= min(others)
        return results
