"""``vmap``: a function of one example, applied to a batch at once.

The function is captured for one example; its program is then recorded again for the batch. What that gives is kept, for
later calls that capture an equal program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import optree

from gtrace import tree
from gtrace.errors import ArgumentError, ShapeError, message, user_location
from gtrace.ir.aval import Aval, aval
from gtrace.ir.graph import Graph
from gtrace.ops.batching import spread
from gtrace.ops.shape import moveaxis
from gtrace.trace.array import Array
from gtrace.trace.capture import Captured, capture, replay
from gtrace.trace.convert import lift
from gtrace.trace.record import thread
from gtrace.transform.arguments import is_array, lift_outputs, named
from gtrace.transform.batch import batch
from gtrace.transform.derived import Flags, captured_program

__all__ = ["vmap"]


@contextlib.contextmanager
def _capturing(axis_name: str | None, size: int) -> Iterator[None]:
    """Make an axis known to the operations over it."""
    before = thread.axes
    if axis_name is not None:
        thread.axes = (*before, (axis_name, size))
    try:
        yield
    finally:
        thread.axes = before


@contextlib.contextmanager
def _batching(axis_name: str | None) -> Iterator[None]:
    """Name the axis that is being batched."""
    before = thread.batched_axis
    thread.batched_axis = axis_name
    try:
        yield
    finally:
        thread.batched_axis = before


def without_batch(a: Aval) -> Aval:
    """Return the aval of one example of a batch on axis 0."""
    return aval(a.shape[1:], a.dtype, a.device, a.weak)


def vmap(
    f: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    in_dims: Any = None,
    out_dims: Any = None,
    axis_name: str | None = None,
    axis_size: int | None = None,
) -> Callable[..., Any]:
    """Return `f` applied to each example of a batch, all at once.

    Args:
        f: a function of one example, over pytrees.
        in_axes: the batch axis of the positional arguments: an int for all of them, or a tuple with one entry per
            argument. An entry is an int, None (not batched) or a pytree of these that is a prefix of the argument.
            Negative axes count from the last. Keyword arguments are batched on axis 0.
        out_axes: the batch axis of the outputs, in the same form; None for outputs that do not depend on the batch.
        in_dims, out_dims: torch.func's names for the same.
        axis_name: a name for the axis of the batch, for the collective operations of `gt.lax`, such as `gt.lax.psum`.
        axis_size: the size of the batch, needed if no argument has it.

    Raises (when called):
        ArgumentError: axes that do not fit the arguments' structure, or no batched argument.
        ShapeError: an axis that does not exist, or batches of different sizes.
        ConcretizationError: `f` looks at a value.

    >>> import gtrace as gt
    >>> gt.vmap(lambda x, y: x @ y, in_axes=(0, None))(gt.array([[1., 2.], [3., 4.]]), gt.array([1., 10.]))
    Array([21., 43.], dtype=float32)
    """
    if not callable(f):
        raise ArgumentError(message("vmap", "a function", type(f).__name__, "Pass a callable."))
    for name, ours, theirs in (("in", in_axes, in_dims), ("out", out_axes, out_dims)):
        if theirs is not None and ours != 0:
            raise ArgumentError(message("vmap", f"{name}_axes or {name}_dims", "both", "They are one and the same."))
    if axis_name is not None and not isinstance(axis_name, str):
        raise ArgumentError(message("vmap", "a string as axis_name", repr(axis_name), 'Such as axis_name="batch".'))
    ins = in_axes if in_dims is None else in_dims
    outs = out_axes if out_dims is None else out_dims
    if isinstance(ins, list):
        ins = tuple(ins)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        if isinstance(ins, tuple) and len(ins) != len(args):
            got = f"{len(ins)} for {len(args)} positional arguments"
            raise ArgumentError(message("vmap", "one entry of in_axes an argument", got, "Match them."))
        if ins.__class__ is int and not kwargs:
            axes: list[int | None] = [ins] * len(leaves)
        else:
            axes = _axes("in_axes", ins if isinstance(ins, tuple) else (ins,) * len(args), args)
            axes += [0] * (len(leaves) - len(axes))
        dynamic = [axis is not None or is_array(leaf) for leaf, axis in zip(leaves, axes, strict=True)]
        for k, leaf in enumerate(leaves):
            if dynamic[k] and not is_array(leaf):
                path = tree.paths((args, kwargs))[k]
                got = f"{type(leaf).__name__} at {path}"
                fix = "Give it None in in_axes, or close over it."
                raise ArgumentError(message("vmap", "arrays or numbers along a batch axis", got, fix))
        axes = [axis for axis, flag in zip(axes, dynamic, strict=True) if flag]
        arrays = [lift("vmap", leaf) for leaf, flag in zip(leaves, dynamic, strict=True) if flag]

        def paths() -> list[str]:
            return [p for p, flag in zip(tree.paths((args, kwargs)), dynamic, strict=True) if flag]

        size = _size(arrays, axes, paths, axis_size)
        flags = [axis is not None for axis in axes]
        fronted = [moveaxis(x, axis, 0) if axis else x for x, axis in zip(arrays, axes, strict=True)]
        examples = [without_batch(x.aval) if flag else x.aval for x, flag in zip(fronted, flags, strict=True)]

        def run(inputs: Sequence[Array]) -> Any:
            given = iter(inputs)
            rebuilt: Any = structure.unflatten(
                [next(given) if flag else leaf for leaf, flag in zip(leaves, dynamic, strict=True)]
            )
            positional, keywords = rebuilt
            return lift_outputs("vmap", f(*positional, **keywords))

        with _capturing(axis_name, size):
            name = f"vmap({getattr(f, '__name__', 'f')}) called at {user_location()}"
            captured = capture(run, examples, name, repeated=True)
        operands = (*fronted, *captured.constants)
        batched_operands = (*flags, *[False] * len(captured.constants))
        with _batching(axis_name):
            known = _batched(captured, size, batched_operands) if axis_name is None and not thread.axes else None
            if known is None:
                outputs = batch(captured.graph, size, operands, batched_operands)
            else:
                outputs = list(zip(replay(known[0], operands), known[1], strict=True))
        result = captured.result.unflatten([x for x, _ in outputs])
        ends = [outs] * len(outputs) if outs.__class__ is int else _axes("out_axes", outs, result)
        placed = [_place(x, flag, axis, size) for (x, flag), axis in zip(outputs, ends, strict=True)]
        return captured.result.unflatten(placed)

    return named(wrapped, f)


def _batched(captured: Captured, size: int, flags: Flags) -> tuple[Graph, Flags] | None:
    """Return the program of a function for a batch, and which outputs are batched.

    None: the function is captured for the first time, or has rules of the user's, which are called each time.
    """
    if captured.derived is None:
        return None
    key = size, flags
    if key not in captured.derived:
        captured.derived[key] = _batched_program(captured.graph, size, flags)
    known: tuple[Graph, Flags] | None = captured.derived[key]
    return known


def _batched_program(graph: Graph, size: int, flags: Flags) -> tuple[Graph, Flags] | None:
    if any(node.instr.plain is not None for node in graph.nodes):
        return None
    avals = [
        aval((size, *a.shape), a.dtype, a.device, a.weak) if flag else a
        for a, flag in zip(graph.avals, flags, strict=True)
    ]
    reached: list[bool] = []

    def run(inputs: Sequence[Array]) -> list[Array]:
        outputs = batch(graph, size, inputs, flags)
        reached.extend(flag for _, flag in outputs)
        return [x for x, _ in outputs]

    return captured_program(run, avals), tuple(reached)


def _axes(name: str, spec: Any, value: Any) -> list[int | None]:
    """Return the axis of each leaf of `value`. `spec` is a prefix of its structure, with None and ints as leaves."""
    try:
        expanded = optree.tree_leaves(
            optree.tree_broadcast_prefix(spec, value, none_is_leaf=True, namespace=tree.NAMESPACE),
            none_is_leaf=True,
            namespace=tree.NAMESPACE,
        )
    except (ValueError, TypeError) as error:
        reason = str(error).split(";")[0]
        raise ArgumentError(
            message("vmap", f"{name} to be a prefix of the structure it describes", f"{spec!r}: {reason}", "Match it.")
        ) from None
    # None is a leaf of the expanded spec but not of the value: drop its entries
    places = optree.tree_leaves(value, none_is_leaf=True, namespace=tree.NAMESPACE)
    axes = [axis for axis, leaf in zip(expanded, places, strict=True) if leaf is not None]
    for axis in axes:
        if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
            raise ArgumentError(message("vmap", f"ints or None in {name}", repr(axis), "Such as in_axes=(0, None)."))
    return axes


def _size(
    arrays: Sequence[Array], axes: Sequence[int | None], paths: Callable[[], Sequence[str]], given: int | None
) -> int:
    def where(k: int) -> str:
        path = paths()[k]
        return f"args{path[3:]}" if path.startswith("[0]") else f"kwargs{path[3:]}"

    size, first = given, -1
    for k, (x, axis) in enumerate(zip(arrays, axes, strict=True)):
        if axis is None:
            continue
        if not -x.ndim <= axis < x.ndim:
            got = f"axis {axis} for {x.aval!r} at {where(k)}"
            raise ShapeError(message("vmap", "an axis that the argument has", got, "Use None to share it."))
        if size is None:
            size, first = x.shape[axis], k
        elif x.shape[axis] != size:
            known = where(first) if first >= 0 else "axis_size"
            got = f"{size} at {known} and {x.shape[axis]} at {where(k)}"
            raise ShapeError(message("vmap", "batches of one size", got, "Check in_axes and the shapes."))
    if size is None:
        raise ArgumentError(
            message("vmap", "a batched argument", "in_axes of None alone", "Give an axis, or axis_size.")
        )
    return size


def _place(x: Array, flag: bool, axis: int | None, size: int) -> Array:
    if axis is None:
        if flag:
            got = "one that differs between examples"
            raise ArgumentError(message("vmap", "out_axes None for an output that is shared", got, "Give it an axis."))
        return x
    x = x if flag else spread(x, size)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(
            message("vmap", "an out axis that the output has", f"{axis} for {x.aval!r}", "Check out_axes.")
        )
    return moveaxis(x, 0, axis)
