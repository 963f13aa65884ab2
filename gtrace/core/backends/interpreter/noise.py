"""A program with noise: each rounded value is moved by some roundings, to tell what rounding can change.

That is Monte Carlo arithmetic (Parker, Pierce, Eggert: Monte Carlo arithmetic, Computing in Science & Engineering 2,
2000).
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.interpreter.interpreter import Around, TensorFunction
from gtrace.core.backends.interpreter.reference import (
    WIDE,
    avals_of,
    is_elementwise,
    listed,
    narrows,
    reference,
    wide,
    widened,
)
from gtrace.core.backends.interpreter.run_errors import is_out_of_memory
from gtrace.core.backends.interpreter.short_sums import SHORT
from gtrace.core.backends.interpreter.tuned import MOVED_AT_ONCE, SIGNS
from gtrace.core.base.dtypes import FLOAT8
from gtrace.core.base.rounding import is_inexact
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, subgraphs

NOISE = 4.0
"""Roundings by which a rounded value is moved. A form may be this much less exact than the reference."""

FUNCTION = 4.0
"""Roundings of a function such as exp or erf, at most: those of the C library for vectors are not exact."""


def with_noise(graph: Graph, seed: int) -> TensorFunction:
    """Return a function that runs a graph with noise; see `noise`."""
    return reference(graph, noise(graph, seed))


def noise(graph: Graph, seed: int) -> Around:
    """Return what moves each rounded value of a graph up or down by some roundings, at random; see `Around`.

    Values that an operation computes exactly, and not by chance, stay as they are. Of sums over many terms the terms
    are moved as well, and the more, the more terms there are; those of 16 bits are added as float32 and rounded once.

    Args:
        seed: another one gives other moves. With an odd one, all elements of an array move in the same direction.
    """
    signs, deviations = _Signs(seed), set(map(id, _deviations(graph)))

    def around(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        op, kinds = node.op, avals_of(node.instr.aval)
        # other casts round too
        moves = op.moves and (kinds[0].dtype is node.instr.ins[0].dtype or narrows(node))
        if op.rules.body is not None or moves or op.projection or not any(is_inexact(a.dtype) for a in kinds):
            return function
        terms = 1 if op.elementwise else _terms(node)
        roundings = NOISE * (1.0 if op.algebraic else FUNCTION if op.elementwise else _growth(terms, kinds))
        noisy = _Noisy(node, function, wide(node, function), signs, is_elementwise(node), terms, roundings)
        return noisy.deviation if id(node) in deviations else noisy.call

    return around


@attrs.frozen(eq=False)
class _Noisy:
    """An operation with noise.

    Attributes:
        function: what computes it; `exactly`: the same in float64.
        signs: moves values.
        elementwise: whether an element of the result follows from one of each operand.
        terms: how many terms an element of the result may be the sum of.
        roundings: by how many a result is moved.
    """

    node: Node
    function: Callable[..., Any]
    exactly: Callable[..., Any]
    signs: _Signs
    elementwise: bool
    terms: float
    roundings: float

    def deviation(self, *operands: torch.Tensor) -> torch.Tensor:
        """Return a sum of a value and of what follows from sums over it: where they cancel, that of moved operands."""
        out = self.function(*operands)
        cancels = 4 * out.abs() < functools.reduce(torch.maximum, [x.abs() for x in operands])
        moved = self.signs.moved(out, _is_rounded(out, self.exactly(*operands), operands), self.roundings)
        return torch.where(cancels, self.function(*self._near(operands)), moved)

    def call(self, *operands: Any) -> Any:
        """Return the result of another operation, computed of moved operands if it adds up terms, and moved."""
        out = self.function(*operands)
        results, exact = listed(out), listed(self.exactly(*operands))
        pairs = zip(results, exact, strict=True)
        masks = [_is_rounded(x, y, operands) if is_inexact(x.dtype) else None for x, y in pairs]
        rounded = any(mask is not None and mask.any() for mask in masks)
        if not rounded and (self.elementwise or _are_whole(operands)):
            return out
        near = [] if self.node.op.elementwise else self._near(operands)
        of_near = None if self.node.op.elementwise else self._tried(near)
        if of_near is None:
            pass
        elif self.elementwise:  # what is exact stays
            triples = zip(of_near, results, masks, strict=True)
            results = [x if mask is None else torch.where(mask, x, y) for x, y, mask in triples]
        elif rounded:
            results = of_near
        elif _are_among(of_near, near, zeros=self.terms <= 1):  # it chooses elements
            return out
        else:  # exact by chance: the mean of equal numbers is, in one order of additions
            results, masks = of_near, [None if mask is None else torch.ones_like(mask) for mask in masks]
        exponential = self.node.op.exponential
        times = self.roundings * _exponents(self.node, operands[0]) if exponential else self.roundings
        made = zip(results, masks, strict=True)
        results = [x if mask is None else self.signs.moved(x, mask, times) for x, mask in made]
        return results[0] if isinstance(out, torch.Tensor) else results

    def _near(self, operands: Sequence[Any]) -> list[Any]:
        """Return the operands, moved."""
        return [self.signs.moved(x, None, self.roundings) if _is_float(x) else x for x in operands]

    def _tried(self, operands: Sequence[Any]) -> list[torch.Tensor] | None:
        """Return the results; None if torch refuses the operands: a matrix was barely positive definite, perhaps."""
        try:
            return listed(self.function(*operands))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            return None


class _Signs:
    """Moves values up or down.

    Args:
        seed: of the signs. With an odd one, all elements of an array have the same.
    """

    def __init__(self, seed: int) -> None:
        self._draws, self._one = random.Random(seed), bool(seed % 2)
        generator = torch.Generator().manual_seed(seed)
        self._signs = torch.randint(0, 2, (SIGNS,), generator=generator) * 2.0 - 1.0

    def moved(
        self, x: torch.Tensor, rounded: torch.Tensor | None = None, roundings: float | torch.Tensor = 1.0
    ) -> torch.Tensor:
        """Return a tensor of which some elements are moved.

        Args:
            rounded: which ones; None: all.
            roundings: by how many.
        """
        x = x if torch.empty_like(x, device="meta").stride() == x.stride() else x.contiguous()
        out = torch.empty_like(x)
        values, results = _in_memory(x), _in_memory(out)
        info = torch.finfo(x.dtype)
        kind = torch.float64 if info.bits == 64 else torch.float32
        signs = torch.full((MOVED_AT_ONCE,), self._draws.choice((-1.0, 1.0))) if self._one else self._signs
        steps = signs.to(x.device, kind) * (info.eps / 2)
        if not isinstance(roundings, torch.Tensor):
            steps *= roundings
        factors = steps + 1.0
        # `torch.where` takes longer than everything else
        parts = [y for y in (rounded, roundings) if isinstance(y, torch.Tensor)]
        weights = [_in_memory(torch.empty_like(x, dtype=kind).copy_(y)) for y in parts]
        for start in range(0, x.numel(), MOVED_AT_ONCE):
            some = slice(start, min(start + MOVED_AT_ONCE, x.numel()))
            before = values[some] if x.dtype not in FLOAT8 else values[some].float()
            at = self._draws.randrange(len(signs) - MOVED_AT_ONCE + 1)
            place = slice(at, at + len(before))
            step, factor = steps[place], factors[place]
            if weights:
                step = math.prod([w[some] for w in weights], start=step)
                factor = step + 1.0
            after = before * factor
            if not x.is_complex() and not before.abs().amin() >= info.tiny:
                size = before.abs()  # what is too small for all digits is rounded to the last of them
                small = (size < info.tiny) & (size > 0)
                if small.any():
                    after = torch.where(small, widened(before) + step * info.tiny, after)
            results[some] = after
        return out


def _in_memory(x: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor without gaps in their order in memory."""
    return x.as_strided((x.numel(),), (1,))


def _exponents(node: Node, x: torch.Tensor) -> torch.Tensor:
    """Return how often exp(x - y) is off by a rounding if y, which is about as large as the largest x, is rounded."""
    size = x.abs().nan_to_num(0.0, 0.0, 0.0)
    return size.amax(node.attributes["axis"], keepdim=True).double().clamp(min=1.0) if x.numel() else size


def _deviations(graph: Graph) -> Iterator[Node]:
    """Yield sums of a value and of what follows from sums over it, such as x - mean(x).

    Where these cancel, a form that multiplies them first, or computes each by itself, is off by roundings of both.
    """
    origin = {value: value for value in graph.inputs}
    reduced: dict[int, frozenset[int]] = dict.fromkeys(graph.inputs, frozenset())
    for node in graph.nodes:
        values = list(node.values())
        op = node.op
        origin[node.out] = origin[values[0]] if op.moves and values else node.out
        reduced[node.out] = frozenset().union(*[reduced[x] for x in values])
        if not (op.moves or op.elementwise) and (op.rules.linear or op.rules.multilinear or op.contraction is not None):
            reduced[node.out] = frozenset([origin[x] for x in values])
        if node.op.sum and any(origin[x] in reduced[y] for x in values for y in values):
            yield node
        for sub in subgraphs(node.params):
            yield from _deviations(sub.graph)


def _is_float(x: Any) -> bool:
    """Whether it is a tensor of inexact numbers."""
    return isinstance(x, torch.Tensor) and is_inexact(x.dtype)


def _is_rounded(x: torch.Tensor, exact: torch.Tensor, operands: Sequence[Any]) -> torch.Tensor:
    """Return which elements of a result are rounded."""
    if x.dtype in WIDE:
        return widened(x) != exact
    # nothing wider: what is an element of an operand, but for the sign, was not rounded
    given = [y.abs().flatten() for y in operands if _is_float(y)]
    if not given:
        return torch.ones_like(x, dtype=torch.bool)
    return ~torch.isin(x.abs(), torch.cat([y.double() for y in given]))


def _are_whole(operands: Sequence[Any]) -> bool:
    """Whether all operands are whole numbers, whose sums and products are exact in any order."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    return all(not is_inexact(x.dtype) or (not x.is_complex() and bool((x == x.round()).all())) for x in tensors)


def _are_among(results: Sequence[torch.Tensor], operands: Sequence[Any], zeros: bool) -> bool:
    """Whether each inexact result is an element of an operand: the largest of a row is, for example.

    Args:
        zeros: whether it may be 0 as well.
    """
    given = [x.abs().double().flatten() for x in operands if _is_float(x)]
    known = torch.cat(given) if given else torch.empty(0)
    for x in results:
        if not is_inexact(x.dtype):
            continue
        found = x.abs().double().flatten()
        found, wanted = (found[found != 0], known[known != 0]) if zeros else (found, known)
        # most either are the operand's elements in their order, or are others altogether
        few = found[:: len(found) // 64 + 1]
        if not torch.equal(found, wanted) and not (torch.isin(few, known).all() and torch.isin(found, known).all()):
            return False
    return True


def _terms(node: Node) -> float:
    """Return how many terms an element of a result may be the sum of."""
    (out, *_), operands = avals_of(node.instr.aval), [a for x in node.instr.ins for a in avals_of(x)]
    if node.op.contraction is not None:
        return node.op.contraction(node.instr.ins, out, **node.attributes) / max(out.size, 1)
    return max([a.size for a in operands], default=1) / max(out.size, 1)


def _growth(terms: float, kinds: Sequence[Aval]) -> float:
    """Return how much more a sum of so many terms is rounded than one of few."""
    return 1.0 if any(a.dtype in SHORT for a in kinds) else max(1.0, math.sqrt(terms) / 8)
