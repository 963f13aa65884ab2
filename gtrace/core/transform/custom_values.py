"""What the rules of `custom_vjp` and `custom_jvp` take and return: arguments, results and cotangents, checked."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import optree

from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, ClosureError, message
from gtrace.core.ir.graph import Subgraph
from gtrace.core.trace.array import Array
from gtrace.core.trace.force import is_over
from gtrace.core.trace.record import thread, thread_has
from gtrace.core.transform.arguments import lift_outputs, like


class KnownZero:
    """A tangent or cotangent that is known to be zero. Rules that ask for such zeros get them.

    Attributes:
        aval: its shape and dtype.
    """

    __slots__ = ()
    aval: Any


def floating_like(
    name: str, what: str, values: Any, structure: tree.TreeDef, patterns: Sequence[Array]
) -> list[Array | None]:
    """Return the result of `like`, with None for leaves that are known to be zero or not floating."""
    leaves, given = tree.flatten(values)
    zero = [isinstance(leaf, KnownZero) for leaf in leaves]
    if any(zero) and given == structure:
        for leaf, flag, x in zip(leaves, zero, patterns, strict=True):
            if flag and leaf.aval.shape != x.aval.shape:
                fix = "Return None where there is no cotangent."
                raise ArgumentError(message(name, f"a {what} of the shape of {x.aval!r}", repr(leaf.aval), fix))
        values = given.unflatten([x if flag else leaf for x, leaf, flag in zip(patterns, leaves, zero, strict=True)])
    found = like(name, what, values, structure, patterns)
    return [None if flag or not x.aval.floating else x for x, flag in zip(found, zero, strict=True)]


@attrs.frozen(eq=False)
class CustomCall:
    """The leaves of a call's arguments: those that are differentiated come first.

    Attributes:
        count: how many of them are differentiated.
        in_structure, out_structure: the structures of the differentiated arguments and of the outputs.
        others: the arguments that are not differentiated, by position; placeholders among their leaves are operands.
        traced: the places of these placeholders among the leaves.
        closed: the placeholders that the function closes over, by their places among the operands.
    """

    count: int
    in_structure: tree.TreeDef
    out_structure: tree.TreeDef
    others: Mapping[int, Any]
    traced: tuple[int, ...]
    closed: Mapping[int, Array] = attrs.field(factory=dict)

    def arguments(self, values: Sequence[Array]) -> list[Any]:
        """Return the differentiated arguments with these leaves."""
        rebuilt: Any = self.in_structure.unflatten(list(values)[: self.count])
        return list(rebuilt)

    def static(self, values: Sequence[Array]) -> Mapping[int, Any]:
        """Return the arguments that are not differentiated, by position, in a call with these operands."""
        if not self.traced:
            return self.others
        leaves, structure = tree.flatten(self.others)
        for place, x in zip(self.traced, values[self.count :], strict=False):
            leaves[place] = x
        rebuilt: Any = structure.unflatten(leaves)
        return dict(rebuilt)

    def standing_in(self, operands: Sequence[Array]) -> contextlib.AbstractContextManager[None]:
        """In the block, the operands stand for the placeholders that the function closes over, whose trace is over.

        A rule closes over them too, and it runs after `vmap` has put a batch in their place.
        """
        found = {id(x): operands[k] for k, x in self.closed.items() if is_over(x)}
        return thread_has(stand_ins={**thread.stand_ins, **found}) if found else contextlib.nullcontext()

    def refuse_constants(self, name: str, active: Sequence[bool]) -> None:
        if any(active[self.count :]):
            got = "a value it closes over is being differentiated"
            raise ClosureError(message(name, "a function of its arguments alone", got, "Pass it as an argument."))

    def check_value(self, name: str, value: Any, body: Subgraph) -> list[Array]:
        """Return the leaves of the output of a rule; raise if it is not like the output of the function."""
        found, structure = lift_outputs(name, value)
        fix = "Return what the function returns."
        if structure != self.out_structure:
            raise ArgumentError(message(name, f"an output of structure {self.out_structure}", str(structure), fix))
        for x, a in zip(found, body.graph.out_avals, strict=True):
            if x.aval.shape != a.shape or not (x.aval.dtype is a.dtype or x.aval.weak or a.weak):
                raise ArgumentError(message(name, f"{a!r} as the rule's output", repr(x.aval), fix))
        return found


def cotangents_of(grads: Any, call: CustomCall, operands: Sequence[Array]) -> list[Array | None]:
    count = len(tree.children(call.in_structure))
    if not isinstance(grads, (tuple, list)) or len(grads) != count:
        got = f"{len(grads)}" if isinstance(grads, (tuple, list)) else type(grads).__name__
        fix = "Return a tuple, with None for arguments that have none."
        raise ArgumentError(message("custom_vjp", f"{count} cotangents from bwd", got, fix))
    out: list[Array | None] = []
    values = iter(operands)
    for g, part in zip(grads, tree.children(call.in_structure), strict=True):
        patterns = [next(values) for _ in range(part.num_leaves)]
        if g is None:
            out += [None] * len(patterns)
        elif tree.structure(g) != part and (found := _prefix(g, part.unflatten(patterns))) is not None:
            leaf = tree.structure(0)
            for x, pattern in zip(found, patterns, strict=True):
                out += [None] if x is None else floating_like("custom_vjp", "cotangent from bwd", x, leaf, [pattern])
        else:
            out += floating_like("custom_vjp", "cotangent from bwd", g, part, patterns)
    return out


def _prefix(given: Any, full: Any) -> list[Any] | None:
    """Return the cotangents of the leaves of `full`, of which one may stand for all in a subtree; None if none fit."""
    try:
        expanded = optree.tree_broadcast_prefix(given, full, none_is_leaf=True, namespace=tree.NAMESPACE)
    except (ValueError, TypeError):
        return None
    pairs = zip(
        optree.tree_leaves(expanded, none_is_leaf=True, namespace=tree.NAMESPACE),
        optree.tree_leaves(full, none_is_leaf=True, namespace=tree.NAMESPACE),
        strict=True,
    )
    return [x for x, leaf in pairs if leaf is not None]
