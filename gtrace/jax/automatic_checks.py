"""The checks of `checkify` for divisions by zero, NaN and indices: a recorded program is run with checks beside it.

A check is a boolean, whether it failed, the values for its text, and the text. Loops carry those of their bodies: what
the first step found in which one failed. A branch that did not run has found nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs

import gtrace as gt
from gtrace.errors import CheckError
from gtrace.extend import (
    TOKEN,
    ArgumentError,
    Array,
    Aval,
    bind,
    capture,
    emit_all,
    function_of,
    located,
    message,
    thread,
    tree,
)
from gtrace.ir import Bundle, Graph, Node, Scalar, Subgraph

Found = tuple[Any, Any, str]
"""Whether a check failed, the pytree of the values for its text, and the text."""

_MOVES = frozenset(
    """
    after astype broadcast_to clamp_index concat expand_dims flip full gather identity index index_put named_value pad
    permute reshape scatter_add slice slice_update sort stop_gradient sum_to unslice where
    """.split()
)
"""Operations that make no NaN: they move or choose elements."""

_DIVISIONS = frozenset(["div", "floor_divide"])


@attrs.frozen
class _Sites:
    """The checks of a program: the structure of booleans and values, their types, and the texts."""

    structure: tree.TreeDef
    avals: tuple[Aval, ...]
    texts: tuple[str, ...]

    def none(self) -> list[Array]:
        """Return checks that did not fail."""
        return [gt.zeros(a.shape, a.dtype) for a in self.avals]

    def found(self, leaves: Sequence[Array]) -> list[Found]:
        """Return the checks with these booleans and values."""
        pairs: Any = self.structure.unflatten(leaves)
        return [(failed, values, text) for (failed, values), text in zip(pairs, self.texts, strict=True)]


@attrs.frozen(eq=False)
class StatedCheck:
    """A check that a traced function states: an operation, which `Checker` replaces, and which raises elsewhere.

    Attributes:
        structure: of the boolean and the values for the text, which are the operands.
        text: the text.
    """

    structure: tree.TreeDef
    text: str

    def __call__(self, arrays: list[Any]) -> list[Any]:
        """Raise a CheckError if the check failed; return a token."""
        pair: Any = self.structure.unflatten(arrays[: self.structure.num_leaves])
        failed, (args, named) = pair
        if failed:
            raise CheckError(self.text.format(*args, **named))
        return [TOKEN]

    def found(self, operands: Sequence[Array], levels: Sequence[Any]) -> Found:
        """Return the check; under `vmap`, whose axes `levels` has, the first example that failed."""
        leaves = list(operands[: self.structure.num_leaves])
        for _, flags, _ in levels:
            at = first_failed(leaves[0]) if flags[0] else 0
            leaves = [x[at] if flag else x for x, flag in zip(leaves, flags, strict=False)]
        pair: Any = self.structure.unflatten(leaves)
        return pair[0], pair[1], self.text


def first_failed(failed: Array) -> Any:
    """Return the place on axis 0 of the first example in which something failed."""
    return gt.argmax(gt.any(failed, tuple(range(1, failed.ndim))))


def _clamp_of(index: Any, made: dict[int, Node]) -> Node | None:
    """Return what moves an index inside; None: nothing does.

    A slice adds its offsets to a start that was moved, and an index adds the size to what was negative.
    """
    node = _unshaped(index, made)
    if node is not None and node.op.name == "add":
        parts = [_unshaped(x, made) for x in node.ins]
        node = next((n for n in parts if n is not None and n.op.name == "clamp_index"), None)
    return node if node is not None and node.op.name == "clamp_index" else None


def _keeps_stopped(cond: Graph, body: Graph) -> bool:
    """Whether a loop runs while any example does, and the others keep their state, as `vmap` makes it."""
    made = {node.out: node for node in body.nodes}
    last = [made.get(out) for out in body.outputs]
    olds = body.inputs[len(body.inputs) - len(last) :]
    kept = [n is not None and n.op.name == "where" and n.ins[2] == old for n, old in zip(last, olds, strict=True)]
    return all(kept) and bool(cond.nodes) and cond.nodes[-1].op.name == "any"


def _unshaped(value: Any, made: dict[int, Node]) -> Node | None:
    """Return the operation whose result a value is in another shape."""
    node = made.get(value) if isinstance(value, int) else None
    while node is not None and node.op.name in ("reshape", "broadcast_to"):
        node = made.get(node.ins[0]) if isinstance(node.ins[0], int) else None
    return node


def _leaves(found: Sequence[Found]) -> list[Array]:
    return tree.leaves([pair[:2] for pair in found])


class Checker:
    """Runs programs operation by operation, and adds checks.

    Attributes:
        kinds: which checks: among "div", "nan" and "index".
        found: the checks so far.
    """

    def __init__(self, kinds: frozenset[str]) -> None:
        self.kinds = kinds
        self.found: list[Found] = []

    def run(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Record the operations of a program on these inputs, with checks; return its outputs."""
        env: dict[int, Any] = dict(zip(graph.inputs, inputs, strict=True))
        made = {node.out: node for node in graph.nodes}
        for node in located(graph):
            operands: list[Any] = [env[x] if isinstance(x, int) else x for x in node.ins]
            if node.op.projection:
                env[node.out] = operands[0][node.instr.index]
                self._nan(made[node.ins[0]], env[node.out])  # type: ignore[index]  # it is of a node
                continue
            if node.op.name in _DIVISIONS and "div" in self.kinds:
                self._division(node, env, made)
            if node.op.name in ("gather", "index", "index_put") and "index" in self.kinds:
                self._indices(node, env, made)
            stated = function_of(node.attributes["call"]) if node.op.name == "host_call" else None
            if isinstance(stated, StatedCheck):
                self.found.append(stated.found(operands, node.attributes["levels"]))
                env[node.out] = [gt.zeros(a.shape, a.dtype) for a in node.instr.aval.avals]
                continue
            out = self._result(node, operands)
            env[node.out] = out
            if isinstance(out, Array):
                self._nan(node, out)
        return [env[x] for x in graph.outputs]

    def _note(self, node: Node, failed: Array, values: Any, text: str) -> None:
        place = f" (at {node.location})".replace("{", "{{").replace("}", "}}") if node.location else ""
        self.found.append((failed, ((), values), text + place))

    # -- the checks

    def _nan(self, node: Node, out: Array) -> None:
        has_program = isinstance(node.attributes.get("body"), Subgraph)  # whose operations are checked
        if "nan" in self.kinds and out.aval.floating and not has_program and node.op.name not in _MOVES:
            name = node.attributes["overload"] if node.op.name == "aten" else node.op.name
            self._note(node, gt.any(gt.isnan(out)), {}, f"nan generated by primitive: {name}.")

    def _division(self, node: Node, env: dict[int, Any], made: dict[int, Node]) -> None:
        given = node.ins[1]
        if isinstance(given, int) and given in made and made[given].op.name == "where" and not node.instr.aval.floating:
            given = made[given].ins[2]  # integers are divided by 1 in place of 0
        if isinstance(given, Scalar):
            failed = gt.array(given.value == 0)
        else:
            failed = gt.any(gt.equal(env[given], 0))
        self._note(node, failed, {}, "division by zero")

    def _indices(self, node: Node, env: dict[int, Any], made: dict[int, Node]) -> None:
        shape = node.instr.ins[0].shape
        if node.op.name == "gather":
            dims, given = (node.attributes["axis"],), node.ins[1:]
        else:
            dims = node.attributes["dims"]
            given = node.ins[-len(dims) :]
        together = []
        for x, d in zip(given, dims, strict=True):
            clamp, low, high = _clamp_of(x, made), -shape[d], shape[d] - 1
            asked = x
            if clamp is not None:
                asked, (low, high) = clamp.ins[0], clamp.params
            place = env[asked] if isinstance(asked, int) else gt.array(asked.value)
            if isinstance(x, int) and clamp is not None and place.shape != env[x].shape:  # the start of a slice
                self._outside(node, shape, [(place, low, high, d)])
            else:
                together.append((place, low, high, d))
        self._outside(node, shape, together)

    def _outside(self, node: Node, shape: tuple[int, ...], asked: list[tuple[Array, int, int, int]]) -> None:
        """Check indices: each has its least and its greatest value, and its axis."""
        if not asked or 0 in (math.prod(x.shape) for x, *_ in asked):
            return
        indices, *rest = zip(*asked, strict=True)
        lows, highs, dims = (gt.array(list(numbers)) for numbers in rest)
        places = gt.stack(gt.broadcast_arrays(*indices), -1)
        wrong = (places < lows) | (places > highs)
        first = gt.argmax(gt.ravel(wrong))
        which = first % len(asked)
        place, size = gt.ravel(places)[first], gt.array([shape[d] for *_, d in asked])[which]
        counted = place + gt.where(place < 0, -lows[which], 0)  # from the end
        values = {"index": counted, "axis": dims[which], "size": size}
        text = f"out-of-bounds indexing for array of shape {shape}: index {{index}} is out of bounds for axis {{axis}}"
        self._note(node, gt.any(wrong), values, text + " with size {size}.")

    # -- operations with programs

    def _result(self, node: Node, operands: list[Any]) -> Any:
        rule = {"scan": self._scan, "while_loop": self._while, "switch": self._switch}.get(node.op.name)
        if rule is not None:
            found = rule(node, operands)
            if found is not None:
                return found
        body = node.attributes.get("body")
        if rule is None and isinstance(body, Subgraph) and thread.trace.tape is None:
            # under a gradient it keeps its rule, and has no checks
            results = self.run(body.graph, operands)
            return results if isinstance(node.instr.aval, Bundle) else results[0]
        if isinstance(node.instr.aval, Bundle):
            return emit_all(node.instr, operands)
        return bind(node.op, operands, node.params)

    def _sites(self, graph: Graph) -> _Sites:
        """Return the checks of a program."""
        kept: list[_Sites] = []

        def run(inputs: Sequence[Array]) -> Any:
            inner = Checker(self.kinds)
            outputs = inner.run(graph, inputs)
            leaves, structure = tree.flatten([pair[:2] for pair in inner.found])
            texts = tuple([text for _, _, text in inner.found])
            kept.append(_Sites(structure, tuple([x.aval for x in leaves]), texts))
            return [*outputs, *leaves], None

        capture(run, graph.avals, "a function under checkify")
        return kept[0]

    def _checked(self, graph: Graph, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Return the outputs of a program, and the leaves of its checks."""
        inner = Checker(self.kinds)
        return inner.run(graph, inputs), _leaves(inner.found)

    def _merged(self, sites: _Sites, old: tuple[Any, list[Array]], new: list[Array]) -> tuple[Any, list[Array]]:
        """Return what a loop has found after one more step: what it had found, unless nothing had failed."""
        failed, before = old
        now = [pair[0] for pair in sites.found(new)]
        fails = gt.any(gt.stack(now))
        take = fails & ~failed
        return failed | fails, [gt.where(take, b, a) for a, b in zip(before, new, strict=True)]

    def _scan(self, node: Node, operands: list[Any]) -> Any:
        p = node.attributes
        graph, consts, count = p["body"].graph, operands[: p["consts"]], p["carry"]
        sites = self._sites(graph)
        if not sites.texts:
            return None
        start, xs = operands[p["consts"] :][:count], operands[p["consts"] + count :]

        def step(state: Any, x: Any) -> Any:
            carry, found = state
            outs, new = self._checked(graph, [*consts, *carry, *x])
            return (outs[:count], self._merged(sites, found, new)), outs[count:]

        first = (start, (gt.array(False), sites.none()))
        (carry, (_, leaves)), ys = gt.scan(step, first, xs, length=p["length"], reverse=p["reverse"])
        self.found += sites.found(leaves)
        return [*carry, *ys]

    def _while(self, node: Node, operands: list[Any]) -> Any:
        p = node.attributes
        split, both = p["cond_consts"], p["cond_consts"] + p["body_consts"]
        asked, done, start = operands[:split], operands[split:both], operands[both:]
        cond, body = p["cond"].graph, p["body"].graph
        before, inside = self._sites(cond), self._sites(body)
        if not (before.texts or inside.texts):
            return None
        if inside.texts and _keeps_stopped(cond, body):
            got = "a loop that goes on while any example does, and keeps what the others have, as vmap makes it"
            fix = "Use jax.vmap(checkify.checkify(f)): a stopped example is computed again, so checks of it would fail."
            raise ArgumentError(message("checkify", "checkify under vmap", got, fix))

        def unfinished(state: Any) -> Any:
            return Checker(frozenset()).run(cond, [*asked, *state[0]])[0]

        def step(state: Any) -> Any:
            carry, of_cond, of_body = state
            _, new = self._checked(cond, [*asked, *carry])
            outs, own = self._checked(body, [*done, *carry])
            of_cond = self._merged(before, of_cond, new) if before.texts else of_cond
            return outs, of_cond, self._merged(inside, of_body, own) if inside.texts else of_body

        nothing = [(gt.array(False), sites.none()) for sites in (before, inside)]
        carry, of_cond, of_body = gt.while_loop(unfinished, step, (start, *nothing))
        self.found += [*before.found(of_cond[1]), *inside.found(of_body[1])]
        self.run(cond, [*asked, *carry])  # the last time that it was asked
        return list(carry)

    def _switch(self, node: Node, operands: list[Any]) -> Any:
        graphs = [branch.graph for branch in node.attributes["branches"]]
        sites = [self._sites(graph) for graph in graphs]
        if not any(s.texts for s in sites):
            return None

        def branch(k: int) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                outs, own = self._checked(graphs[k], given)
                return outs, [own if j == k else s.none() for j, s in enumerate(sites)]

            return call

        outs, leaves = gt.switch(operands[0], [branch(k) for k in range(len(graphs))], *operands[1:])
        for s, own in zip(sites, leaves, strict=True):
            self.found += s.found(own)
        return list(outs)
