"""Updates that write over their operands, once all else of a program has run and nobody else has these operands.

A program that is interrupted or that fails is run again from its inputs, so none of them may be written over before
its last operation has run. The interpreter therefore leaves updates whose results nothing else of the program reads to
its caller, if the caller allows it, and returns `DeferredResult` in place of these results. The caller makes the
updates in place (`gtrace.core.trace.completion`), or on copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from time import perf_counter
from typing import Any

import attrs
import torch

from gtrace.core.base.tensor_ownership import is_alone

Operands = tuple[list[torch.Tensor], ...]
"""Lists of arrays."""


@attrs.frozen(eq=False)
class DeferredUpdate:
    """A call of a kernel of torch that writes over lists of arrays.

    Attributes:
        kernel: a function in C, so that neither signals nor other code of this thread run in the middle of it.
        operands: its first operands.
        rest, keywords: the others.
        written: the places of the lists that it writes over.
        owned: the places of the lists whose arrays nobody else ever had.
        settled: the operands that the update was made on, copies; empty until then.
    """

    kernel: Callable[..., Any]
    operands: Operands
    rest: tuple[Any, ...]
    keywords: dict[str, Any]
    written: tuple[int, ...]
    owned: tuple[int, ...] = ()
    settled: list[Operands] = attrs.field(factory=list)

    def call(self, operands: Operands) -> Callable[[], Any]:
        """Return the call of the kernel on these operands."""
        return functools.partial(self.kernel, *operands, *self.rest, **self.keywords)

    def in_place(self, inputs: Collection[int]) -> Operands:
        """Return the operands, with copies of what the kernel writes over and somebody else has.

        Args:
            inputs: the identities of tensors that the caller has, each in one list.
        """
        return self._operands(lambda arrays, k: is_alone(arrays, k, 1 + (id(arrays[k]) in inputs)))

    def _operands(self, is_free: Callable[[list[torch.Tensor], int], bool]) -> Operands:
        return tuple(
            [arrays[k] if is_free(arrays, k) else arrays[k].clone() for k in range(len(arrays))]
            if place in self.written and place not in self.owned
            else arrays
            for place, arrays in enumerate(self.operands)
        )

    def settle(self) -> float:
        """Make the update on copies, if it was not; returns the seconds that it took, the copies aside."""
        if self.settled:
            return 0.0
        operands = self._operands(lambda arrays, k: False)
        start = perf_counter()
        self.call(operands)()
        self.settled.append(operands)
        return perf_counter() - start


@attrs.frozen(eq=False)
class DeferredResult:
    """Stands for a result of a program until its update is made.

    Attributes:
        update: that update.
        place, number: the array that it is: `number` of list `place` of the operands.
    """

    update: DeferredUpdate
    place: int
    number: int

    def stride(self) -> tuple[int, ...]:
        """Return the strides that the result will have."""
        return self.update.operands[self.place][self.number].stride()

    def settle(self) -> torch.Tensor:
        """Return the result of the update, made on copies."""
        self.update.settle()
        return self.update.settled[0][self.place][self.number]


def settled(x: torch.Tensor | DeferredResult) -> torch.Tensor:
    """Return a result of a program that is needed now."""
    return x.settle() if x.__class__ is DeferredResult else x  # type: ignore[return-value]
