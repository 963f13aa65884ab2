"""Library functions whose operations follow from the types of their arguments, so they are recorded at once.

A random draw has a dozen operations. Checking, promoting and recording them one by one takes 100 us at each call, and
20 us for an `einsum`. The recording of a call is kept as a program. Calls with arguments of the same types append that
program to the pending list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

import attrs
import torch

from gtrace.core.base import tree
from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL, BoundedTable
from gtrace.core.base.config import config
from gtrace.core.base.dtypes import DType
from gtrace.core.base.errors import ConcretizationError
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.base.mechanisms import OPEN_RULES, TEMPLATES
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.op import Instr
from gtrace.core.ir.simplify import dce
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import distinct, emit
from gtrace.core.trace.capture import capture, replay, room
from gtrace.core.trace.index_ranges import span
from gtrace.core.trace.open_programs import OpenProgram, resized, split, tried
from gtrace.core.trace.record import SETTLED, thread

F = TypeVar("F", bound=Callable[..., Any])

MAX_TEMPLATES = 256
"""The number of argument types for which a function's program is kept."""

MAX_NUMBERS = 32
"""Distinct numbers beside arrays of the same types. After that many, the function is not captured for new ones."""

HOLDERS: dict[type, Callable[[Any, Array], Any]] = {}
"""Classes whose objects hold one Array in `_data`, with their constructors."""

PURE: set[Callable[..., Any]] = set()
"""Operations as functions, such as the combining function of `reduce_window`. They are known to be pure."""

_NUMBERS = (int, float)
_NAMED = (int, bool, str, type(None), type(Ellipsis), torch.dtype, torch.device, DType)


@attrs.frozen(eq=False)
class Template:
    """The recording of a function for arguments of some types.

    Attributes:
        graph: its inputs are the arguments, followed by the constants.
        constants: Arrays that the function makes from numbers.
        structure: the structure of the results; None: a single Array.
        instr: the only instruction, applied to the unchanged arguments; None: there is more than that.
        passed: the places of results that are arguments, or constants.
    """

    graph: Graph
    constants: tuple[Array, ...]
    structure: tree.TreeDef | None
    instr: Instr | None
    passed: tuple[int, ...] = attrs.field(init=False)

    @passed.default
    def _passed(self) -> tuple[int, ...]:
        return tuple(k for k, value in enumerate(self.graph.outputs) if value in self.graph.inputs)

    @classmethod
    def of(cls, function: Callable[[Sequence[Array]], Any], avals: Sequence[Aval], name: str) -> Template:
        """Capture a function of Arrays of `avals`, which returns a pytree of Arrays.

        Args:
            name: the name of the function in errors.

        Raises:
            ConcretizationError: the function reads a value.
        """

        def run(arrays: Sequence[Array]) -> tuple[list[Array], tree.TreeDef | None]:
            result = function(arrays)
            return ([result], None) if result.__class__ is Array else tree.flatten(result)

        captured = capture(run, avals, name)
        graph = dce(captured.graph)
        # each call has its own lines
        graph = attrs.evolve(graph, nodes=tuple([Node(node.instr, node.ins, node.out) for node in graph.nodes]))
        instr = None
        if captured.result is None and not captured.constants and len(graph.nodes) == 1:
            (node,) = graph.nodes
            if node.ins == graph.inputs and graph.outputs == (node.out,) and node.instr.plain is None:
                instr = node.instr
        return cls(graph, captured.constants, captured.result, instr)

    def replay(self, arrays: Sequence[Array]) -> Any:
        """Record the operations for arguments of these types; return the results."""
        if self.instr is not None:
            return emit(self.instr, arrays)
        results = replay(self.graph, (*arrays, *self.constants))
        if self.passed:
            results = [distinct(x) if k in self.passed else x for k, x in enumerate(results)]
        return finished(results, self.structure)


def finished(results: Sequence[Array], structure: tree.TreeDef | None) -> Any:
    """Return the results of a function in their structure."""
    return results[0] if structure is None else structure.unflatten(results)


def weight(template: Template | None) -> int:
    """Return the approximate bytes of a template in a table."""
    return SMALL if template is None else SMALL + PER_OPERATION * len(template.graph.nodes)


def replayable(function: F) -> F:
    """Return a function that records all operations at once after its first call with arguments of given types.

    The function must be pure. Its recording must follow from types of Arrays, holders and sequences, and
    from numbers, names, dtypes and slices. Calls with other arguments run the function, and so do functions that read
    values.
    """
    return _replayable(function, False)


def replayable_with_places(function: F) -> F:
    """Like `replayable`, for a function that takes integers as indices. Its recording depends on their known range."""
    return _replayable(function, True)


def _replayable(function: F, places: bool) -> F:
    if not TEMPLATES.on:
        return function
    table: BoundedTable[Any, Template | None] = BoundedTable(MAX_TEMPLATES, weight)
    numbers: BoundedTable[Any, int] = BoundedTable(MAX_TEMPLATES)
    programs: BoundedTable[Any, Any] = BoundedTable(MAX_TEMPLATES)
    missing = object()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        trace = thread.trace
        if not trace.limit and trace.capture is None:  # each operation needs handling
            return function(*args, **kwargs)
        settings = config.process if config.blocks() is None else config.current
        rules = (
            settings.x64,
            settings.jax_results,
            settings.check_static_indices,
            settings.threefry_partitionable,
            settings.device,
        )
        key: list[Any] = [rules, trace.place, thread.in_rule]
        arrays: list[Array] = []
        if settings.debug_key_reuse:
            return function(*args, **kwargs)
        try:
            described = _describe(args, key, arrays, places)
            for name, value in kwargs.items():
                key.append(name)
                described = described and _describe((value,), key, arrays, places)
        except RecursionError:  # a list that contains itself, for which the function raises
            described = False
        if not described:
            return function(*args, **kwargs)
        exact = tuple(key)
        found: Any = table.get(exact, missing)
        if found is missing:
            if arrays and OPEN_RULES.on and room(trace, 1):
                known = opened(key, args, kwargs, arrays)
                if known is not None:
                    OPEN_RULES.used()
                    program, sizes = known
                    return finished(program.record(trace, arrays, sizes), program.result)
            found = make(exact, args, kwargs, [x.aval for x in arrays])
        if found is None or (found.instr is None and not room(trace, len(found.graph.nodes))):
            return function(*args, **kwargs)
        return found.replay(arrays)

    def opened(
        key: Sequence[Any], args: Any, kwargs: Any, arrays: Sequence[Array]
    ) -> tuple[OpenProgram, tuple[int, ...]] | None:
        """Return the program for all sizes like those of a call, and these; None: it has none, or no other was met."""
        found = split([x.aval.shape for x in arrays], [None if x.__class__ is Aval else x for x in key])
        if found is None or not all(x.aval.kind for x in arrays):
            return None
        sizes, pattern = found
        name = pattern, tuple([x.aval.kind for x in arrays])
        known = programs.get(name, missing)
        if known is missing:
            programs.remember(name, sizes)
            return None
        if known.__class__ is tuple:  # the sizes of the first call
            known = tried(functools.partial(recorded, args, kwargs, [x.aval for x in arrays]), sizes, (), known)
            programs.remember(name, known)
        return None if known is None or not known.conditions.hold(sizes) else (known, sizes)

    def recorded(
        args: Any, kwargs: Any, avals: Sequence[Aval], others: Mapping[int, int], _: Any
    ) -> tuple[Graph, Any] | None:
        def run(arrays: Sequence[Array]) -> tuple[list[Array], tree.TreeDef | None]:
            given = iter(arrays)
            positional, named = _filled(args, given, others), _filled(tuple(kwargs.values()), given, others)
            result = function(*positional, **dict(zip(kwargs, named, strict=True)))
            return ([result], None) if result.__class__ is Array else tree.flatten(result)

        captured = capture(run, [resized(a, others) for a in avals], function.__name__)
        return None if captured.constants else (dce(captured.graph), captured.result)

    def make(key: Any, args: Any, kwargs: Any, avals: Sequence[Aval]) -> Template | None:
        if not avals:
            return None
        kinds = tuple([x.__class__ if x.__class__ in _NUMBERS else x for x in key])
        count = numbers.get(kinds, 0)
        if count > MAX_NUMBERS:
            return None
        numbers.remember(kinds, count + 1)

        def run(arrays: Sequence[Array]) -> Any:
            given = iter(arrays)
            positional, named = _filled(args, given), _filled(tuple(kwargs.values()), given)
            return function(*positional, **dict(zip(kwargs, named, strict=True)))

        try:
            found = Template.of(run, avals, function.__name__)
        except ConcretizationError:
            found = None
        TEMPLATES.used()
        table.remember(key, found)
        return found

    return call  # type: ignore[return-value]


def _describe(values: Sequence[Any], key: list[Any], arrays: list[Array], places: bool) -> bool:
    """Add the types of arguments to a key, and their Arrays to `arrays`; return whether they have a key."""
    for x in values:
        kind = x.__class__
        if kind is Array:
            if places and x._trace is not SETTLED and not x.aval.floating and span(x) is not None:
                return False
            key.append(x.aval)
            arrays.append(x)
        elif kind in _NAMED:
            key.append(kind)
            key.append(x)
        elif kind is float:
            key.append(float)
            key.append(x if x and x == x else exact_key(x))  # 0.0 equals -0.0, and a NaN does not equal itself
        elif kind is tuple or kind is list:
            key.append(kind)
            key.append(len(x))
            if not _describe(x, key, arrays, places):
                return False
        elif kind is slice:
            key.append(slice)
            if not _describe((x.start, x.stop, x.step), key, arrays, places):
                return False
        elif kind in HOLDERS:
            key += (kind, x.dtype)
            if not _describe((x._data,), key, arrays, places):
                return False
        elif isinstance(x, type) or (kind is FunctionType and x in PURE):
            key.append(kind)
            key.append(x)
        elif isinstance(x, tuple) and hasattr(kind, "_fields"):
            count = len(arrays)
            key.append(kind)
            if not _describe(tuple(x), key, arrays, places) or len(arrays) != count:  # numbers and names alone
                return False
        else:
            return False
    return True


def _filled(values: Sequence[Any], arrays: Iterator[Array], sizes: Mapping[int, int] | None = None) -> Any:
    """Return arguments with their Arrays replaced by others, in the order in which `_describe` finds them.

    Args:
        sizes: other integers, by those that become these; None: all stay.
    """
    filled: list[Any] = []
    for x in values:
        kind = x.__class__
        if kind is Array:
            filled.append(next(arrays))
        elif kind is tuple or kind is list:
            filled.append(_filled(x, arrays, sizes))
        elif kind in HOLDERS:
            filled.append(HOLDERS[kind](x, next(arrays)))
        elif kind is slice:
            filled.append(slice(*_filled([x.start, x.stop, x.step], arrays, sizes)))
        else:
            filled.append(sizes.get(x, x) if sizes is not None and kind is int else x)
    return filled if values.__class__ is list else tuple(filled)
