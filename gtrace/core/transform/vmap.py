"""``vmap``: applies a function of one example to a batch.

The function is captured for one example, and its program is recorded again for the batch. The batched program is cached
for later calls that capture an equal program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import optree

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.bounded_tables import SMALL, BoundedTable
from gtrace.core.base.errors import ArgumentError, ShapeError, message, user_location
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.graph import Graph
from gtrace.core.ops.batching import spread
from gtrace.core.trace.array import Array
from gtrace.core.trace.capture import Captured, capture, note_token, replay
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import materialize
from gtrace.core.trace.key_uses import consume_all
from gtrace.core.trace.record import thread, thread_has
from gtrace.core.transform.arguments import is_array, is_empty, lift_outputs, name_of, named, only_arrays, repeat_empty
from gtrace.core.transform.batch import batch
from gtrace.core.transform.subgraph_rules import Flags, batched_program

__all__ = ["vmap"]


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
    """Return a function that applies `f` to all examples of a batch at once.

    Args:
        f: a function of one example, over pytrees.
        in_axes: the batch axis of the positional arguments: an int for all of them, or a tuple with one entry per
            argument. An entry is an int, None (not batched) or a pytree of these that is a prefix of the argument.
            `f` gets an unbatched Python number unchanged. Negative axes count from the last. Keyword arguments are
            batched on axis 0.
        out_axes: the batch axis of the outputs, in the same form; None for outputs that do not depend on the batch.
        in_dims, out_dims: torch.func's names of `in_axes` and `out_axes`.
        axis_name: a name of the batch axis, for the collective operations of `gt.lax`, such as `gt.lax.psum`.
        axis_size: the size of the batch; needed if no argument is batched.

    Raises (when called):
        ArgumentError: the axes do not fit the arguments' structure, or no argument is batched.
        ShapeError: an axis does not exist, or batch sizes differ.
        ConcretizationError: `f` reads a value.

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

    spec = _Spec(ins, axis_size)
    of = f"vmap({name_of(f)}) called at"

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        examples = spec.examples(args, kwargs, leaves, structure)
        size, dynamic = examples.size, examples.dynamic
        arrays = leaves if dynamic is None else [leaf for leaf, flag in zip(leaves, dynamic, strict=True) if flag]
        if examples.axes is not None:
            arrays = [ops.moveaxis(x, axis, 0) if axis else x for x, axis in zip(arrays, examples.axes, strict=True)]

        def run(inputs: Sequence[Array]) -> Any:
            if dynamic is not None:
                rest = iter(inputs)
                inputs = [next(rest) if flag else leaf for leaf, flag in zip(leaves, dynamic, strict=True)]
            rebuilt: Any = structure.unflatten(inputs)
            positional, keywords = rebuilt
            value = f(*positional, **keywords)
            return lift_outputs("vmap", repeat_empty(value, size, lambda: _axes("out_axes", outs, value)))

        name = f"{of} {user_location()}"
        if axis_name is None and thread.batched_axis is None:
            captured = capture(run, examples.avals, name, repeated=True, tokens="if any", knows=True)
            outputs = _for_batch(captured, size, arrays, examples.flags)
        else:
            axes = thread.axes if axis_name is None else (*thread.axes, (axis_name, size))
            with thread_has(axes=axes):
                captured = capture(run, examples.avals, name, repeated=True, tokens="if any", knows=True)
            with thread_has(batched_axis=axis_name):
                outputs = _for_batch(captured, size, arrays, examples.flags)
        if captured.used:
            consume_all("vmap", captured.used, (*arrays, *captured.constants))
        if captured.token:
            note_token(*[x for x, _ in outputs])
            return captured.result.unflatten([])
        if captured.effects and thread.trace.capture is None:  # such a function runs when it is called
            for x, _ in outputs:
                materialize(x, "vmap")
        if outs == 0 and outs.__class__ is int:
            return captured.result.unflatten([x if flag else spread(x, size) for x, flag in outputs])
        result = captured.result.unflatten([x for x, _ in outputs])
        if outs.__class__ is int:
            ends: list[int | None] = [outs] * len(outputs)
        else:
            found = zip(_axes("out_axes", outs, result), tree.leaves(result), strict=True)
            ends = [axis for axis, x in found if not is_empty(x)]
        placed = [_place(x, flag, axis, size) for (x, flag), axis in zip(outputs, ends, strict=True)]
        return captured.result.unflatten(placed)

    return named(wrapped, f)


@attrs.frozen(eq=False)
class _Examples:
    """Facts that follow from the structure and types of a call's arguments.

    Attributes:
        size: the size of the batch.
        flags: flags the batched arrays among the leaves.
        axes: the batch axes of the arrays; None: all are batched on axis 0 or not at all.
        avals: the avals of the arrays of one example.
        dynamic: flags the leaves that are arrays; None: all.
    """

    size: int
    flags: Flags
    axes: tuple[int | None, ...] | None
    avals: list[Aval]
    dynamic: list[bool] | None


MAX_KINDS = 1024
"""The number of cached kinds of arguments."""

_met: BoundedTable[Hashable, _Examples] = BoundedTable(MAX_KINDS, lambda known: SMALL + 100 * len(known.avals))


class _Spec:
    """The batch axes of the arguments, and the size of the batch if given.

    Facts about arguments of given structure and types are cached. If the axes are ints, all calls share the cache.
    """

    def __init__(self, axes: Any, size: int | None) -> None:
        self.axes, self.size = axes, size
        self.key: Hashable
        self.met: BoundedTable[Hashable, _Examples]
        several = axes if axes.__class__ is tuple else (axes,)
        if all(x is None or x.__class__ is int for x in (*several, size)):
            self.key, self.met = (axes, size), _met
        else:  # pytrees of axes, perhaps without a hash; or True, which equals 1 and is rejected
            self.key, self.met = None, BoundedTable(MAX_KINDS)

    def examples(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], structure: Any) -> _Examples:
        """Return the cached facts about the arguments, or compute them; see `examine`."""
        if not only_arrays(leaves):
            return self.examine(args, kwargs, leaves)
        key = (self.key, structure, *[x.aval for x in leaves])
        try:
            known = self.met.get(key)
        except TypeError:  # a user's class has unhashable data in its structure
            return self.examine(args, kwargs, leaves)
        if known is None:
            known = self.examine(args, kwargs, leaves)
            self.met.remember(key, known)
        return known

    def examine(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> _Examples:
        """Return the facts about a call's arguments, whose leaves become Arrays; raise for axes that do not fit."""
        ins = self.axes
        if isinstance(ins, tuple) and len(ins) != len(args):
            got = f"{len(ins)} for {len(args)} positional arguments"
            raise ArgumentError(message("vmap", "one entry of in_axes an argument", got, "Match them."))
        if ins.__class__ is int and not kwargs:
            axes: list[int | None] = [ins] * len(leaves)
        else:
            axes = _axes("in_axes", ins if isinstance(ins, tuple) else (ins,) * len(args), args)
            axes += [0] * (len(leaves) - len(axes))
        # an unbatched Python number stays one, as in JAX: it may be a size, a static argument or compared
        dynamic = [
            axis is not None or (is_array(leaf) and type(leaf) not in (int, float, bool, complex))
            for leaf, axis in zip(leaves, axes, strict=True)
        ]
        for k, leaf in enumerate(leaves):
            if dynamic[k] and not is_array(leaf):
                path = tree.paths((args, kwargs))[k]
                got = f"{type(leaf).__name__} at {path}"
                fix = "Give it None in in_axes, or close over it."
                raise ArgumentError(message("vmap", "arrays or numbers along a batch axis", got, fix))
        axes = [axis for axis, flag in zip(axes, dynamic, strict=True) if flag]
        leaves[:] = [lift("vmap", leaf) if flag else leaf for leaf, flag in zip(leaves, dynamic, strict=True)]
        avals = [leaf.aval for leaf, flag in zip(leaves, dynamic, strict=True) if flag]

        def paths() -> list[str]:
            return [p for p, flag in zip(tree.paths((args, kwargs)), dynamic, strict=True) if flag]

        size = _size(avals, axes, paths, self.size)
        examples = [a if axis is None else _example(a, axis) for a, axis in zip(avals, axes, strict=True)]
        flags = tuple([axis is not None for axis in axes])
        return _Examples(size, flags, tuple(axes) if any(axes) else None, examples, None if all(dynamic) else dynamic)


def _example(a: Aval, axis: int) -> Aval:
    """Return the aval of one example of a batch on `axis`."""
    shape = list(a.shape)
    del shape[axis]
    return aval(tuple(shape), a.dtype, a.device, a.weak)


def _for_batch(captured: Captured, size: int, arrays: Sequence[Array], flags: Flags) -> list[tuple[Array, bool]]:
    """Record a captured function for a batch; return its outputs, and flags of batched ones."""
    operands = (*arrays, *captured.constants)
    flags = (*flags, *[False] * len(captured.constants))
    known = None if thread.axes or thread.batched_axis is not None else _batched(captured, size, flags)
    if known is None:
        return batch(captured.graph, size, operands, flags)
    return list(zip(replay(known[0], operands), known[1], strict=True))


def _batched(captured: Captured, size: int, flags: Flags) -> tuple[Graph, Flags] | None:
    """Return a function's program for a batch, and flags of its batched outputs.

    None if it is captured for the first time, or has user-defined rules, which must run each time.
    """
    if captured.memo is None:
        return None
    known: tuple[tuple[Graph, Flags] | None] = captured.derived(
        (size, flags), lambda: (_batched_program(captured.graph, size, flags),)
    )
    return known[0]


def _batched_program(graph: Graph, size: int, flags: Flags) -> tuple[Graph, Flags] | None:
    if any(node.instr.plain is not None for node in graph.nodes):
        return None
    program, reached, held = batched_program(graph, size, flags, (False,) * len(graph.outputs))
    return None if held else (program, reached)


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
    avals: Sequence[Aval], axes: Sequence[int | None], paths: Callable[[], Sequence[str]], given: int | None
) -> int:
    def where(k: int) -> str:
        path = paths()[k]
        return f"args{path[3:]}" if path.startswith("[0]") else f"kwargs{path[3:]}"

    size, first = given, -1
    for k, (x, axis) in enumerate(zip(avals, axes, strict=True)):
        if axis is None:
            continue
        if not -len(x.shape) <= axis < len(x.shape):
            got = f"axis {axis} for {x!r} at {where(k)}"
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
    return ops.moveaxis(x, 0, axis)
