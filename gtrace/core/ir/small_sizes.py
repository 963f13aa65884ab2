"""Programs at small sizes and in float64, to evaluate quickly and exactly what a rewrite replaces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base.devices import CPU
from gtrace.core.base.dtypes import COMPLEX, INEXACT, LONG, SHORT
from gtrace.core.base.errors import GtraceError
from gtrace.core.ir.aval import Aval, Bundle, aval
from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.op import Instr

Step = tuple[Instr, tuple[Any, ...]]
"""An instruction, and its operands: numbers of values, and scalars. Each step has the next number after the inputs."""

LEAST = 17
"""Sizes below are kept."""

PRIMES = (5, 7, 11, 13, 17, 19, 23, 29)
"""What sizes become. Two sets of sizes are taken, so that a number of the program is not equal to both by chance."""

_NAMES = {
    names[kind]: names[torch.complex128 if kind in COMPLEX else torch.float64]
    for names in (SHORT, LONG)
    for kind in INEXACT
}


@attrs.frozen
class SmallSizes:
    """What becomes of sizes, devices and dtypes.

    Attributes:
        of: sizes and products of sizes, and the smaller ones in their place.
        devices: the names of devices other than the CPU.
    """

    of: Mapping[int, int]
    devices: frozenset[str]

    def shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        """Return a shape with other sizes."""
        return tuple([self.of.get(n, n) for n in shape])

    def aval(self, a: Aval) -> Aval:
        """Return the type of a value at these sizes."""
        return aval(self.shape(a.shape), wide(a.dtype), CPU, a.weak)

    def scalar(self, x: Scalar) -> Scalar:
        """Return a number; one that counts elements counts those at these sizes."""
        value = x.value
        if value.__class__ is int:
            value = self.of.get(value, value)
        elif value.__class__ is float and math.isfinite(value) and value:
            for n, small in self.of.items():
                for one, other in zip(_counts(n), _counts(small), strict=True):
                    if abs(value - one) <= 1e-12 * abs(one):
                        return Scalar(other, self.aval(x.aval))
        return Scalar(value, self.aval(x.aval))

    def param(self, x: Any) -> Any:
        """Return an attribute at these sizes."""
        if x.__class__ is tuple:
            return tuple(map(self.param, x))
        if x.__class__ is int:
            return self.of.get(x, x)
        if x.__class__ is str:
            return "cpu" if x in self.devices else _NAMES.get(x, x)
        return x

    def program(self, avals: Sequence[Aval], steps: Sequence[Step]) -> list[Step] | None:
        """Return a program of inputs of these types at these sizes; None: it has no such form."""
        kinds: list[Any] = [self.aval(a) for a in avals]
        made: list[Step] = []
        for instr, ins in steps:
            operands = tuple([self.scalar(x) if isinstance(x, Scalar) else x for x in ins])
            types = tuple([x.aval if isinstance(x, Scalar) else kinds[x] for x in operands])
            try:
                small = instr.op.instr(tuple(map(self.param, instr.params)), types)
            except (GtraceError, RuntimeError, ValueError, TypeError):
                return None  # such as a reshape of sizes that are equal by chance
            pairs = zip(each(small.aval), each(instr.aval), strict=True)
            if any(a.shape != self.shape(b.shape) or a.dtype is not wide(b.dtype) for a, b in pairs):
                return None
            kinds.append(small.aval)
            made.append((small, operands))
        return made


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the widest dtype of a kind of numbers."""
    if dtype in COMPLEX:
        return torch.complex128
    return torch.float64 if dtype in INEXACT else dtype


def each(kind: Any) -> tuple[Aval, ...]:
    """Return the types of the arrays of a value."""
    return kind.avals if isinstance(kind, Bundle) else (kind,)


def _counts(n: int) -> tuple[float, ...]:
    """Return numbers by which programs count elements."""
    return (float(n), 1 / n, n - 1.0, 1 / (n - 1), (n - 1) / n, n / (n - 1))


def small_sizes(avals: Sequence[Aval], programs: Sequence[Sequence[Step]]) -> Iterator[SmallSizes]:
    """Yield sizes at which programs are evaluated: two small ones, then their own."""
    shapes = {a.shape: a for a in avals}
    together: list[tuple[int, ...]] = []  # sizes whose product counts elements
    for instr, _ in itertools.chain.from_iterable(programs):
        for a in each(instr.aval):
            shapes.setdefault(a.shape, a)
        if instr.op.rules.linear is True and "axes" in instr.op.params and not instr.op.moves:  # sums and means
            axes = instr.params[instr.op.params.index("axes")]
            together.append(tuple([instr.ins[0].shape[k] for k in axes if instr.ins[0].shape[k] != 1]))
    devices = frozenset(str(a.device) for a in shapes.values() if a.device != CPU)
    together += [
        shape[i:j] for shape in shapes for i in range(len(shape)) for j in range(i + 2, len(shape) + 1)
    ]  # fmt: skip
    runs = {(math.prod(sizes), sizes) for sizes in together if len(sizes) > 1 and 1 not in sizes and 0 not in sizes}
    products = dict(sorted(runs, key=lambda run: (run[0], -len(run[1]), run[1])))
    large = sorted({n for shape in shapes for n in shape if n >= LEAST})
    if large:
        for first in (0, 1):
            of: dict[int, int] = {}
            primes = itertools.cycle(PRIMES[first:])
            for n in sorted({*large, *products}):
                if n in products:
                    of[n] = math.prod(of.get(k, k) for k in products[n])
                else:
                    of[n] = next(primes)
            yield SmallSizes({n: small for n, small in of.items() if n != small}, devices)
    yield SmallSizes({}, devices)
