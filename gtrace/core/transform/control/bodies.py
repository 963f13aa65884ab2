"""Captures users' functions as sub-graphs, with closed-over arrays as inputs and outputs of agreed types."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.core.base import tree
from gtrace.core.base.devices import CPU
from gtrace.core.base.errors import ArgumentError, message, user_location
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Subgraph
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.ops.create import to_device
from gtrace.core.ops.operands import cast, on_device_op, weak_like
from gtrace.core.passes.subgraph_calls import has_effects
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind
from gtrace.core.trace.capture import Captured, capture
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.force import materialize
from gtrace.core.trace.lifted_numbers import lift_numbers
from gtrace.core.trace.promotion import result_dtype
from gtrace.core.trace.record import thread
from gtrace.core.transform.arguments import is_array, lift_outputs, only_arrays


def lift_leaves(name: str, what: str, value: Any) -> tuple[list[Array], tree.TreeDef]:
    """Return the leaves of an argument as Arrays, and its structure; raise an ArgumentError for other leaves."""
    leaves, structure = tree.flatten(value)
    if only_arrays(leaves):
        return leaves, structure
    for k, leaf in enumerate(leaves):
        if not is_array(leaf):
            got = f"{type(leaf).__name__} at {what}{tree.paths(value)[k]}"
            raise ArgumentError(message(name, f"arrays or numbers in {what}", got, "Close over it instead."))
    lifted = [lift(name, leaf) for leaf in leaves]
    devices = {x.aval.device for x in lifted if x.aval.device != CPU}
    if len(devices) == 1:  # numbers, such as counts, stay on the device of the arrays beside them
        (place,) = devices
        lifted = [
            to_device(x, place) if python_scalar(leaf) is not None else x
            for x, leaf in zip(lifted, leaves, strict=True)
        ]
    return lifted, structure


def capture_body(
    name: str,
    what: str,
    function: Callable[..., Any],
    structure: tree.TreeDef,
    avals: Sequence[Aval],
    dtypes: Sequence[Any] | None = None,
    tokens: str = "refused",
    weak: Sequence[Aval] = (),
) -> Captured:
    """Capture a user's function on placeholders.

    Args:
        name, what: for errors: the operation, and which of its arguments the function is.
        structure: the structure of the tuple of its arguments.
        dtypes: strong dtypes to cast the outputs to; None: no cast.
        tokens: as in `capture`.
        weak: with the setting `jax_results`, the function gets arrays that are weak where these are.

    Returns:
        The capture; its result is the structure of the outputs.
    """
    if not callable(function):
        raise ArgumentError(message(name, f"a function as {what}", type(function).__name__, "Pass a callable."))

    def run(inputs: Sequence[Array]) -> tuple[Sequence[Array], Any]:
        arguments: Any = structure.unflatten(weak_like(inputs, weak) if weak else inputs)
        outputs, out_structure = lift_outputs(name, function(*arguments))
        if dtypes is not None and len(dtypes) == len(outputs):
            outputs = [cast(x, dtype) for x, dtype in zip(outputs, dtypes, strict=True)]
        return outputs, out_structure

    captured = capture(run, avals, f"{what} of {name} called at {user_location()}", repeated=True, tokens=tokens)
    return lift_numbers(captured, f"{what} of {name}")


def with_effects(results: list[Array], *captures: Captured) -> list[Array]:
    """Return the results of a loop or branch. Outside of traced functions, print now what its bodies print."""
    if thread.trace.capture is None and results and any(has_effects(captured.graph) for captured in captures):
        materialize(results[0], "callback")
    return results


def settle(start: Sequence[Array], new: Sequence[Aval]) -> list[Array] | None:
    """Convert numbers in a first state to the dtypes and devices that the loop returns; None if all fit."""
    fitted = []
    for x, b in zip(start, new, strict=True):
        a = x.aval
        differs = a.weak and a.shape == b.shape and (b.dtype is not a.dtype or not b.weak)
        y = cast(x, b.dtype) if differs and result_dtype([a, b]) is b.dtype else x
        moves = a.device.type == "cpu" and a.device != b.device and not a.shape
        fitted.append(bind(on_device_op, (y,), (str(b.device),)) if moves else y)
    return fitted if any(x is not y for x, y in zip(fitted, start, strict=True)) else None


@attrs.frozen(eq=False)
class Closure:
    """The union of the constants of several captured functions, which become inputs of all their graphs."""

    constants: list[Array] = attrs.field(factory=list)

    def join(self, captured: Captured) -> None:
        """Add the constants of a captured function."""
        known = {id(x) for x in self.constants}
        self.constants.extend(x for x in captured.constants if id(x) not in known)

    def close(self, captured: Captured, constants_first: bool) -> Subgraph:
        """Return a captured function's program with all constants as inputs, before or after its own inputs."""
        have = {id(x): k for k, x in enumerate(captured.constants)}
        places = tuple([have.get(id(x)) for x in self.constants])
        avals = tuple([x.aval for x in self.constants])

        def make() -> Subgraph:
            return subgraph(_closed(captured.graph, len(have), places, avals, constants_first))

        closed: Subgraph = captured.derived((captured.graph, places, avals, constants_first), make)
        return closed


def _closed(
    graph: Graph, constants: int, places: tuple[int | None, ...], avals: tuple[Aval, ...], constants_first: bool
) -> Graph:
    """Return a program with its constants among others that it does not use, as its first or last inputs.

    Args:
        constants: the number of its constants.
        places: for each constant of the result, its index among the program's constants; None: it is unused.
    """
    count = len(graph.inputs) - constants
    fresh = itertools.count(1 + max([*graph.inputs, *(node.out for node in graph.nodes), -1]))
    extra = [next(fresh) if k is None else graph.inputs[count + k] for k in places]
    own, own_avals = graph.inputs[:count], graph.avals[:count]
    inputs = (*extra, *own) if constants_first else (*own, *extra)
    all_avals = (*avals, *own_avals) if constants_first else (*own_avals, *avals)
    return Graph(inputs, all_avals, graph.nodes, graph.outputs)


def describe(structure: tree.TreeDef) -> str:
    """Return a structure as its tree, with ``*`` for each leaf."""
    return str(structure).removeprefix("PyTreeSpec(").split(", namespace=")[0].rstrip(")") or "nothing"


def check_same(
    name: str,
    expected: tuple[str, tree.TreeDef, Sequence[Aval]],
    got: tuple[str, tree.TreeDef, Sequence[Aval]],
    fix: str,
) -> None:
    """Raise an ArgumentError for the first difference of two results, each a name, a structure and avals."""
    if expected[1] != got[1]:
        raise ArgumentError(
            message(name, f"{got[0]} to have the structure of {expected[0]}, {expected[1]}", str(got[1]), fix)
        )
    if all(a is b for a, b in zip(expected[2], got[2], strict=True)):
        return
    paths = tree.paths(expected[1].unflatten(range(len(expected[2]))))
    for path, a, b in zip(paths, expected[2], got[2], strict=True):
        if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
            raise ArgumentError(
                message(name, f"{a!r} as in {expected[0]}", f"{b!r} in {got[0]}{f' at {path}' if path else ''}", fix)
            )
