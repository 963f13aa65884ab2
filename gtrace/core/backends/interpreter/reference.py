"""The reference of a program: torch's function of each operation, one after the other. Every form must agree with it.

`reference` computes in the dtypes of the program. `in_float64` computes with floats of 64 bits instead, to tell how
exact the reference is. `with_noise` moves each rounded value by some roundings, to tell what rounding can change. That
is Monte Carlo arithmetic (Parker, Pierce, Eggert: Monte Carlo arithmetic, Computing in Science & Engineering 2, 2000).
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.interpreter import Around, Owned, TensorFunction, bound_body, refuse_at
from gtrace.core.backends.interpreter.run_errors import is_out_of_memory
from gtrace.core.backends.interpreter.short_sums import SHORT
from gtrace.core.backends.interpreter.tuned import MOVED_AT_ONCE, SIGNS
from gtrace.core.backends.runs import watched
from gtrace.core.base.devices import CPU, number_tensor
from gtrace.core.base.dtypes import FLOAT8, FLOATS
from gtrace.core.base.rounding import is_inexact, rounded
from gtrace.core.base.spill import Kept, Spill
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.graph import Graph, Node, Subgraph, subgraphs
from gtrace.core.ir.op import Instr
from gtrace.core.ir.simplify import dce

WIDE = dict.fromkeys((FLOATS | FLOAT8) - {torch.float64}, torch.float64) | {torch.complex64: torch.complex128}
"""The dtypes of which there is a wider one."""

NOISE = 4.0
"""Roundings by which a rounded value is moved. A form may be this much less exact than the reference."""

FUNCTION = 4.0
"""Roundings of a function such as exp or erf, at most: those of the C library for vectors are not exact."""

_NAMES = {str(kind).removeprefix("torch."): str(wide).removeprefix("torch.") for kind, wide in WIDE.items()}


def reference(graph: Graph, around: Around | None = None) -> TensorFunction:
    """Return a function that runs a graph as it stands.

    Nothing is fused, reordered, specialized or written over. A value is freed after its last use, and so
    are inputs that are given away (`Owned`).

    Args:
        around: takes a node and the function that computes it, and returns the function to call instead. It sees the
            operations in loops and branches too.

    Raises (when run):
        ExecutionError: torch refused an operation because of the values.
    """
    graph = dce(graph)
    steps = _steps(graph, around, set(graph.outputs))

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        env: dict[int, Any] = dict(zip(graph.inputs, tensors, strict=True))
        if isinstance(tensors, Owned):
            tensors.clear()
        for node, function, operands, dead in watched(steps):
            try:
                env[node.out] = function(*[env[x] if x.__class__ is int else x for x in operands])
            except (RuntimeError, IndexError) as error:
                env.clear()  # the error refers to this frame, and would keep its values
                refuse_at(node, error)
            for value in dead:
                del env[value]
        return [env[value] for value in graph.outputs]

    return run


def visit(
    graph: Graph,
    inputs: Sequence[Kept],
    arrived: Callable[[int, torch.Tensor], None],
    spill: Spill,
    around: Around | None = None,
) -> None:
    """Run a graph as it stands, and hand over each result when it is there. Nothing is kept after its last use.

    Args:
        inputs: they are still there afterwards.
        arrived: takes the place of a result, and the result.
        spill: keeps the values between their operations.
        around: see `reference`.

    Raises:
        ExecutionError: torch refused an operation because of the values.
    """
    graph = dce(graph)
    places: dict[int, list[int]] = {}
    for k, value in enumerate(graph.outputs):
        places.setdefault(value, []).append(k)
    env: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True))
    given = set(graph.inputs)
    for value in given & places.keys():
        for k in places[value]:
            arrived(k, env[value].get())
    last = {value for node in graph.nodes for value in node.values()}
    for node, function, operands, dead in watched(_steps(graph, around, set())):
        try:
            made = function(*[_value(env[x]) if x.__class__ is int else x for x in operands])
        except (RuntimeError, IndexError) as error:
            env.clear()
            refuse_at(node, error)
        for k in places.get(node.out, ()):
            arrived(k, made)
        if node.out in last:
            env[node.out] = spill.keep(made) if isinstance(made, torch.Tensor) else made
        del made
        for value in dead:
            kept = env.pop(value)
            if kept.__class__ is Kept and value not in given:
                spill.drop(kept)


def _value(x: Any) -> Any:
    return x.get() if x.__class__ is Kept else x


def _steps(
    graph: Graph, around: Around | None, kept: Collection[int]
) -> list[tuple[Node, Callable[..., Any], list[Any], list[int]]]:
    """Return the steps of a run: the operation, its function, its operands, and what is not used any more.

    Args:
        kept: the values that are still there after the last step.
    """
    last = {value: k for k, node in enumerate(graph.nodes) for value in node.values() if value not in kept}
    steps = []
    for k, node in enumerate(graph.nodes):
        operands = [x if isinstance(x, int) else _number(node, x) for x in node.ins]
        dead = [value for value in dict.fromkeys(node.values()) if last.get(value) == k]
        function = _function(node, around)
        steps.append((node, function if around is None else around(node, function), operands, dead))
    return steps


def _kept_reference(sub: Subgraph) -> TensorFunction:
    made: TensorFunction = sub.memo("reference", lambda: reference(sub.graph))
    return made


def _number(node: Node, x: Any) -> torch.Tensor:
    return number_tensor(x.value, x.aval.dtype, CPU if node.op.host_numbers else x.aval.device)


def instruction_call(instr: Instr) -> Callable[..., Any]:
    """Return torch's function of an instruction with its attributes, as `reference` calls it. The instruction keeps it.

    A named call runs by its kernel, as in torch, if there is one. A thread that makes it too makes an equal one.
    """
    found = instr.call
    if found is None:
        node = Node(instr, (), 0)
        kernel = None
        if instr.op.lowered and instr.op.rules.direct is not None:
            kernel = instr.op.rules.direct(instr.ins, **node.attributes)
        found = kernel or _function(node, None)
        object.__setattr__(instr, "call", found)
    return found


def _function(node: Node, around: Around | None, **changed: Any) -> Callable[..., Any]:
    """Return torch's function of an operation, with its attributes, of which some may be others."""
    if node.op.rules.body is not None:
        if around is None:
            return bound_body(node, list(map(_kept_reference, subgraphs(node.params))))
        return bound_body(node, [reference(sub.graph, around) for sub in subgraphs(node.params)])
    function, attributes = node.instr.kernel(), node.attributes | changed
    return functools.partial(function, **attributes) if attributes else function


def working_bytes(graph: Graph) -> tuple[int, int]:
    """Return how many bytes a run takes, about, with its inputs and results; and how many its largest operation."""
    kinds = graph.value_avals()
    last = {value: k for k, node in enumerate(graph.nodes) for value in node.values()}
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))
    live = peak = sum(a.nbytes for a in graph.avals)
    largest = 0
    for k, node in enumerate(graph.nodes):
        used = {*node.values(), node.out}
        largest = max(largest, sum(kinds[value].nbytes for value in used))
        live += kinds[node.out].nbytes
        peak = max(peak, live)
        live -= sum(kinds[value].nbytes for value in used if last.get(value, k) == k)
    return peak, largest


def in_float64(graph: Graph) -> TensorFunction:
    """Return a function that runs a graph with each float in float64, and each complex number in complex128."""
    run = reference(graph, wide)
    return lambda tensors: [_widened(x) for x in run(tensors)]


def _narrows(node: Node) -> bool:
    """Whether an operation rounds floats to a shorter dtype. The program says so: every form rounds there."""
    kinds = [*_avals(node.instr.ins[0]), *_avals(node.instr.aval)] if node.op.moves else []
    if len(kinds) != 2 or not all(is_inexact(a.dtype) for a in kinds):
        return False
    before, after = (torch.finfo(a.dtype).eps for a in kinds)
    return before < after


def _is_elementwise(node: Node) -> bool:
    """Whether elements of the result follow from one element of each operand."""
    overload = node.attributes.get("overload")  # of torch's operators
    if overload is None:
        return node.op.elementwise
    found: Any = functools.reduce(getattr, overload.split("."), torch.ops)
    return torch.Tag.pointwise in found.tags


def _rounded_to(dtype: torch.dtype, x: Any) -> Any:
    """Return an attribute with the numbers in it rounded to a dtype."""
    if isinstance(x, tuple):
        return tuple([_rounded_to(dtype, y) for y in x])
    return rounded(x, dtype) if isinstance(x, float) else x


def wide(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a node in float64, or complex128; see `Around`.

    An operation that cannot do that runs in its own dtype, and its results are converted. What the program rounds to a
    shorter dtype is rounded. Some of torch's operators round their numbers to the dtype of the elements, and others do
    not. The results tell.
    """
    if _narrows(node):
        return lambda x: _widened(function(x))
    made = _widely(node, function)
    attributes = node.attributes if node.op.rules.body is None and _is_elementwise(node) else {}
    kind = node.instr.ins[0].dtype if attributes and node.instr.ins else torch.bool
    changed = {k: _rounded_to(kind, v) for k, v in attributes.items()} if is_inexact(kind) else attributes
    if changed == attributes:
        return made
    other = _widely(node, _function(node, None, **changed))

    def nearest(*operands: Any) -> Any:
        found, nearer = made(*operands), other(*operands)
        own = function(*[_as(x, a) for x, a in zip(operands, node.instr.ins, strict=True)])
        told = not torch.equal(found.to(own.dtype), own) and torch.equal(nearer.to(own.dtype), own)
        return nearer if told else found

    return nearest


def _widely(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a node in float64, if it can do that, with the numbers that it has."""
    plain = function if node.op.rules.body is None else _function(node, None)
    wanted = {k: _NAMES[v] for k, v in node.attributes.items() if isinstance(v, str) and v in _NAMES}
    if node.op.rules.body is None and wanted:
        function = _function(node, None, **wanted)
    dtypes = [WIDE.get(a.dtype, a.dtype) for a in _avals(node.instr.aval)]

    def call(*operands: Any) -> Any:
        operands = tuple([_each(_widened, x) for x in operands])
        try:
            out = function(*operands)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if is_out_of_memory(error):
                raise
        else:
            if [x.dtype for x in ([out] if isinstance(out, torch.Tensor) else out)] == dtypes:
                return out
        own = [_as(x, a) for x, a in zip(operands, node.instr.ins, strict=True)]
        return _each(_widened, plain(*own))

    return call


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
    moved = signs.moved

    def around(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        op = node.op
        kinds = _avals(node.instr.aval)
        # other casts round too
        moves = op.moves and (kinds[0].dtype is node.instr.ins[0].dtype or _narrows(node))
        if op.rules.body is not None or moves or op.projection or not any(is_inexact(a.dtype) for a in kinds):
            return function
        exactly, elementwise = wide(node, function), _is_elementwise(node)
        deviation = id(node) in deviations
        terms = 1 if op.elementwise else _terms(node)
        roundings = NOISE * (1.0 if op.algebraic else FUNCTION if op.elementwise else _growth(terms, kinds))

        def near(x: Any) -> Any:
            return moved(x, None, roundings) if isinstance(x, torch.Tensor) and is_inexact(x.dtype) else x

        def call(*operands: Any) -> Any:
            out = function(*operands)
            several = not isinstance(out, torch.Tensor)
            results, exact = (list(out), list(exactly(*operands))) if several else ([out], [exactly(*operands)])
            if deviation:
                cancels = 4 * out.abs() < functools.reduce(torch.maximum, [x.abs() for x in operands])
                other = moved(out, _is_rounded(out, exact[0], operands), roundings)
                return torch.where(cancels, function(*map(near, operands)), other)
            pairs = zip(results, exact, strict=True)
            inexact = [_is_rounded(x, y, operands) if is_inexact(x.dtype) else None for x, y in pairs]
            rounded = any(mask is not None and mask.any() for mask in inexact)
            if not rounded and (elementwise or _are_whole(operands)):
                return out
            if not op.elementwise:
                others = list(map(near, operands))
                try:
                    other = function(*others)
                except RuntimeError as error:  # such as of a matrix that was barely positive definite
                    if is_out_of_memory(error):
                        raise
                else:
                    before, results = results, list(other) if several else [other]
                    if elementwise:  # what is exact stays
                        results = [
                            x if mask is None else torch.where(mask, x, y)
                            for x, y, mask in zip(results, before, inexact, strict=True)
                        ]
                    if not rounded and _are_among(results, others, zeros=terms <= 1):
                        return out
                    if not rounded:  # by chance: the mean of equal numbers is, in one order of additions
                        inexact = [None if mask is None else torch.ones_like(mask) for mask in inexact]
            times = roundings * _exponents(node, operands[0]) if op.exponential else roundings
            results = [x if mask is None else moved(x, mask, times) for x, mask in zip(results, inexact, strict=True)]
            return results if several else results[0]

        return call

    return around


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
                    after = torch.where(small, _widened(before) + step * info.tiny, after)
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


def _is_rounded(x: torch.Tensor, exact: torch.Tensor, operands: Sequence[Any]) -> torch.Tensor:
    """Return which elements of a result are rounded."""
    if x.dtype in WIDE:
        return _widened(x) != exact
    # nothing wider: what is an element of an operand, but for the sign, was not rounded
    given = [y.abs().flatten() for y in operands if isinstance(y, torch.Tensor) and is_inexact(y.dtype)]
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
    given = [x.abs().double().flatten() for x in operands if isinstance(x, torch.Tensor) and is_inexact(x.dtype)]
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
    (out, *_), operands = _avals(node.instr.aval), [a for x in node.instr.ins for a in _avals(x)]
    if node.op.contraction is not None:
        return node.op.contraction(node.instr.ins, out, **node.attributes) / max(out.size, 1)
    return max([a.size for a in operands], default=1) / max(out.size, 1)


def _growth(terms: float, kinds: Sequence[Aval]) -> float:
    """Return how much more a sum of so many terms is rounded than one of few."""
    return 1.0 if any(a.dtype in SHORT for a in kinds) else max(1.0, math.sqrt(terms) / 8)


def _avals(kind: Any) -> Sequence[Aval]:
    return kind.avals if isinstance(kind, Bundle) else (kind,)


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x.to(WIDE.get(x.dtype, x.dtype))


def _as(x: Any, kind: Any) -> Any:
    """Return an operand in its own dtype."""
    if isinstance(kind, Bundle):
        return [y.to(a.dtype) for y, a in zip(x, kind.avals, strict=True)]
    return x.to(kind.dtype)


def _each(function: Callable[[torch.Tensor], torch.Tensor], x: Any) -> Any:
    return function(x) if isinstance(x, torch.Tensor) else [function(y) for y in x]
