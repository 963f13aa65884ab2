"""Jitted functions that are not called again for a new size.

A jitted function is called for each size, to record its program. Once code for open sizes has run recordings of it, and
is known to be right and fast, that is all that the calls are for. So the function is called a few times more, with
placeholders of sizes that stand in, small and larger ones. If it records the same program each time, whose integers
follow from the sizes, one more call shows what its Python code makes of them (`gtrace.core.trace.size_reads`). Sizes
for which the code decides the same run without a call of the function. Now and then one is compared with a recording.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.backends.symbolic import Relation, fit
from gtrace.core.base import tree
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.open_numbers import Number, Sizes
from gtrace.core.ir.aval import Aval, aval, contiguous_strides
from gtrace.core.ir.graph import Graph, Scalar
from gtrace.core.ir.op import Instr
from gtrace.core.passes.user_passes import registered
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.open_calls import OpenCalls
from gtrace.core.runtime.open_routes import Reading
from gtrace.core.runtime.route_finder import MIDDLE_SIZES, POWERS, SMALL_SIZES
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import Captured
from gtrace.core.trace.force import materialize
from gtrace.core.trace.size_reads import noted

MOST_TRIES = 3
"""How often it is tried to leave the sizes of a kind of call open, at most."""

MOST_KINDS = 256
"""Kinds of calls of a function that are kept, which differ in more than sizes."""

WITH_LINES = 4
"""Sizes of a kind of call whose operations get their lines in the user's code."""

REPEATED = 12
"""Calls of one size after which it is prepared by itself."""

LARGER = 4
"""The largest size that stands in, in terms of the largest of a call: the function may make arrays by itself."""

Capture = Callable[[Sequence[Aval]], Captured]
"""Calls the function with placeholders."""


@attrs.frozen(eq=False)
class OpenFunction:
    """A jitted function with open sizes, for arguments of one kind.

    Attributes:
        calls: runs its program.
        limits: (place of a size, the smallest, the largest), of those that vary.
        decides: None for sizes for which the Python code decides otherwise.
        constants: the arrays that the program takes after the arguments.
        results: (dtype, device, weakness) of each.
        structure: of the result.
    """

    calls: OpenCalls
    limits: tuple[tuple[int, int, int], ...]
    decides: Callable[..., list[Any] | None]
    constants: tuple[Array, ...]
    results: tuple[tuple[torch.dtype, torch.device, bool], ...]
    structure: tree.TreeDef

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Aval]] | None:
        """Run the program without a call of the function; return its results and their types.

        None: the function has to be called.
        """
        given = [*tensors, *[materialize(x, "jit") for x in self.constants]]
        dims = [n for x in given for n in x.shape]
        if not all(least <= dims[place] <= most for place, least, most in self.limits):
            return None
        if not self.calls.route.reading.allows(dims):
            return None
        if self.decides(*[dims[place] for place, _, _ in self.limits]) is None:
            return None
        found = engine.sizes.run_alone(self.calls, dims, given)
        if found is None:
            return None
        kinds = [aval(tuple(x.shape), *kind) for x, kind in zip(found, self.results, strict=True)]
        return found, kinds


class OpenFunctions:
    """The kinds of calls of a jitted function, with open sizes where that is known."""

    def __init__(self) -> None:
        self._found: BoundedTable[Hashable, OpenFunction] = BoundedTable(MOST_KINDS, SMALL)
        self._tries: BoundedTable[Hashable, int] = BoundedTable(MOST_KINDS, SMALL)
        self._met: BoundedTable[Hashable, int] = BoundedTable(MOST_KINDS, SMALL)
        self._times: BoundedTable[int, int] = BoundedTable(4096, SMALL)  # by hashes of keys

    def is_new(self, key: Hashable, leaves: Sequence[Array]) -> bool:
        """Whether few sizes of a call were met: its operations get their lines, which those of others share."""
        kind = (key, *map(_kind, leaves))
        count = self._met.get(kind, 0)
        self._met.remember(kind, count + 1)
        return count < WITH_LINES

    def run(
        self, key: Hashable, leaves: Sequence[Array], tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[Aval], tree.TreeDef] | None:
        """Run a call of new sizes without a call of the function; None: it has to be called.

        Args:
            key: what the call is besides its arrays.
            tensors: the arrays.
        """
        if not self._found:
            return None
        found = self._found.get((key, *map(_kind, leaves)))
        if found is None or not all(x.is_contiguous() for x in tensors):
            return None
        name = hash((key, *[x.shape for x in tensors]))
        times = self._times.get(name, 0)
        if times >= REPEATED:
            return None
        self._times.remember(name, times + 1)
        made = found.run(tensors)
        return None if made is None else (*made, found.structure)

    def learn(
        self, key: Hashable, leaves: Sequence[Array], tensors: Sequence[torch.Tensor], captured: Any, capture: Capture
    ) -> None:
        """Leave the sizes of a call open, which was captured, if code for open sizes is known to be right and fast.

        Args:
            captured: its program, with `graph`, `constants` and `out_structure`.
            capture: captures the function for other types of arguments.
        """
        kind = (key, *map(_kind, leaves))
        if not engine.sizes.by_code or kind in self._found:
            return
        graph: Graph = captured.graph
        given = [*tensors, *[materialize(x, "jit") for x in captured.constants]]
        known = engine.sizes.known(graph.structure([tuple(x.stride()) for x in given]))
        if known is None or not known.open or registered.passes:
            return
        dims = [n for x in given for n in x.shape]
        calls = next((one for one in known.open if one.is_settled and one.route.reading.allows(dims)), None)
        tries = self._tries.get(kind, 0)
        if calls is None or not calls.route.reading.is_complete or tries == MOST_TRIES:
            return
        if any(a.sharding is not None for a in graph.avals) or not isinstance(captured.out_structure, tree.TreeDef):
            return
        self._tries.remember(kind, tries + 1)
        found = _opened(calls, dims, len(leaves), captured, capture)
        if found is not None:
            self._found.remember(kind, found)


def _kind(x: Array) -> Hashable:
    a = x.aval
    return a.dtype, len(a.shape), a.device, a.weak, a.sharding


@attrs.frozen(eq=False)
class _Row:
    """Sizes that were tried.

    Attributes:
        free: those that vary.
        reads: what the function read of the sizes of arrays; None: it did something else.
    """

    free: tuple[int, ...]
    reads: list[tuple[int, ...]] | None


def _opened(calls: OpenCalls, dims: Sequence[int], count: int, captured: Any, capture: Capture) -> OpenFunction | None:
    """Return a function with open sizes; None if it does not do the same for all sizes.

    Args:
        dims: the sizes of its inputs in a call.
        count: how many of the inputs are arguments.
        captured: its program there.
    """
    reading, graph = calls.route.reading, captured.graph
    places = [place for place, _, _ in reading.limits]
    own = tuple([dims[place] for place in places])
    rows = []
    for free in [own, *_stand_ins(own)]:
        sizes = list(dims)
        for place, n in zip(places, free, strict=True):
            sizes[place] = n
        sizes = [relation(sizes) for relation in reading.sizes]
        if reading.allows(sizes):
            rows.append(_Row(free, _reads(reading, sizes, count, captured, capture)))
    if rows[0].reads is None:
        return None
    alike = [row for row in rows if row.reads is not None and len(row.reads) == len(rows[0].reads)]
    limits = [(min(column), max(column)) for column in zip(*[row.free for row in alike], strict=True)]
    if len(alike) < 4 or any(
        all(least <= n <= most for n, (least, most) in zip(row.free, limits, strict=True))
        for row in rows
        if row not in alike
    ):
        return None
    table = [[*row.free, *[n for read in row.reads or () for n in read]] for row in alike]
    relations = fit(table, len(own))
    if isinstance(relations, int):
        return None
    decides = _decisions(graph, own, relations[len(own) :], rows[0].reads, captured, capture)
    if decides is None:
        return None
    results = tuple([(a.dtype, a.device, a.weak) for a in graph.out_avals])
    bounds = tuple([(place, *limit) for place, limit in zip(places, limits, strict=True)])
    return OpenFunction(calls, bounds, decides, captured.constants, results, captured.out_structure)


def _stand_ins(own: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Iterate over sizes in place of those of a call."""
    order = sorted(range(len(own)), key=lambda k: own[k])
    for row in (SMALL_SIZES, MIDDLE_SIZES, POWERS):
        free = [0] * len(own)
        for n, k in zip(row, order, strict=False):
            free[k] = n
        if 0 not in free:
            yield tuple(free)
    most = LARGER * max(own)
    yield tuple([2 * n + 1 for n in own])
    yield tuple([most + k for k in range(len(own))])
    for k in range(len(own)):
        yield (*own[:k], most + 1, *own[k + 1 :])


def _reads(
    reading: Reading, dims: Sequence[int], count: int, captured: Any, capture: Capture
) -> list[tuple[int, ...]] | None:
    """Return what the function reads at these sizes; None if it records another program, or raises."""
    rest = iter(dims)
    avals = [aval(tuple([next(rest) for _ in a.shape]), a.dtype, a.device, a.weak) for a in captured.graph.avals]
    if tuple(avals[count:]) != captured.graph.avals[count:]:
        return None
    with noted() as reads:
        found = _captured(capture, avals[:count])
    if found is None or reads.leaks or not _is_alike(found, captured):
        return None
    instructions: dict[int, Instr] = {node.out: node.instr for node in found.graph.nodes}
    numbers = [x.value for node in found.graph.nodes for x in node.ins if x.__class__ is Scalar]
    return reads.log if reading.follows(dims, instructions, numbers) and reading.computes(dims, numbers) else None


def _captured(capture: Capture, avals: Sequence[Aval]) -> Captured | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the call itself has warned
            return capture(avals)
    except Exception:  # noqa: BLE001 - whatever the function raises for these sizes, it did not for its own
        return None


def _is_alike(found: Captured, captured: Any) -> bool:
    """Whether a function has recorded a program of the same form, with the same arrays from outside."""
    if len(found.constants) != len(captured.constants) or not all(map(_is, found.constants, captured.constants)):
        return False
    form = _form(found.graph) == _form(captured.graph)
    return form and found.result == captured.out_structure and not found.token


def _form(graph: Graph) -> Hashable:
    return graph.structure([contiguous_strides(a.shape) for a in graph.avals])


def _is(x: Array, y: Array) -> bool:
    if x is y or x.aval is not y.aval:
        return x is y
    return torch.equal(materialize(x, "jit"), materialize(y, "jit"))


def _decisions(
    graph: Graph,
    own: Sequence[int],
    relations: Sequence[Relation],
    reads: Sequence[tuple[int, ...]],
    captured: Any,
    capture: Capture,
) -> Callable[..., list[Any] | None] | None:
    """Return what tells for which sizes the Python code decides as at its own; see `OpenFunction.decides`."""
    sizes = Sizes()
    free = [sizes.open(n) for n in own]
    rest = iter(relations)
    made = [[_number(next(rest), free) for _ in read] for read in reads]
    count = len(graph.avals) - len(captured.constants)
    with noted() as plain:
        _captured(capture, graph.avals[:count])
    with noted(made) as seen:
        found = _captured(capture, graph.avals[:count])
    program = sizes.program([])  # before the programs are compared, which looks at integers too
    _captured(capture, graph.avals[:count])  # what the function keeps of sizes is plain again
    if seen.leaks or seen.steps != plain.steps or len(seen.log) != len(made):
        return None
    if found is None or not _is_alike(found, captured) or found.graph != graph:
        return None

    def decides(*sizes: int) -> list[Any] | None:
        try:
            return program(*sizes)
        except ArithmeticError:
            return None

    return decides if decides(*own) is not None else None


def _number(relation: Relation, free: Sequence[Number]) -> Number:
    """Return an integer that follows from sizes."""
    constant, computed = free[0].wrap_int, free[0].sizes.computed

    def product(places: Sequence[int]) -> Number:
        found = free[places[0]]
        for place in places[1:]:
            found = computed("mul", (found, free[place]))
        return found

    if not relation.places:
        return constant(relation.offset)
    found = product(relation.places)
    if relation.divisor != 1:
        found = computed("floordiv", (computed("add", (found, constant(relation.shift))), constant(relation.divisor)))
    found = computed("mul", (found, constant(relation.factor)))
    if relation.others:
        found = computed("add", (found, computed("mul", (product(relation.others), constant(relation.weight)))))
    return computed("add", (found, constant(relation.offset)))
