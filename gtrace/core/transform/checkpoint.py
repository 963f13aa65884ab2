"""``checkpoint``: recomputes intermediate values in the backward pass instead of keeping them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, message, user_location
from gtrace.core.ir.aval import Bundle, bundle
from gtrace.core.ir.graph import Graph, Node, Subgraph
from gtrace.core.ir.op import Instr, Op, define
from gtrace.core.ir.simplify import dce
from gtrace.core.ir.subgraph import select, subgraph
from gtrace.core.ops.batching import unchanged
from gtrace.core.passes.partial_eval import partial_eval
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind, bind_all
from gtrace.core.trace.capture import capture
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.lifted_numbers import lift_numbers, lift_rule_numbers
from gtrace.core.trace.record import thread
from gtrace.core.transform.arguments import is_array, lift_outputs, named, only_arrays
from gtrace.core.transform.subgraph_rules import batched as batched_graph
from gtrace.core.transform.subgraph_rules import floating, pullback, pushforward

__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies"]

POLICIES = ("nothing_saveable", "dots_saveable", "everything_saveable")

Policy = str | Callable[[Instr], bool]
"""What is kept: one of `POLICIES`, or a function that tells of an instruction whether its result is kept."""

_MARKED = "marked_saveable"
"""The policy that keeps the values of this name, which a policy that is a function has marked."""


class checkpoint_policies:  # noqa: N801 - a namespace, named as in JAX
    """Choices of what `checkpoint` keeps for the backward pass: nothing, matmul results, named values, or everything.

    All choices give the same results. `dots_with_no_batch_dims_saveable` keeps all matmul results.

    >>> f = gt.checkpoint(lambda x: gt.sin(gt.cos(x)), policy=gt.checkpoint_policies.dots_saveable)
    >>> gt.round(gt.grad(f)(gt.array(1.0)), 4)
    Array(-0.7216, dtype=float32)
    """

    nothing_saveable = "nothing_saveable"
    dots_saveable = checkpoint_dots = "dots_saveable"
    dots_with_no_batch_dims_saveable = checkpoint_dots_with_no_batch_dims = "dots_saveable"
    everything_saveable = "everything_saveable"

    @staticmethod
    def save_only_these_names(*names: str) -> Policy:
        """Return the policy that keeps what `checkpoint_name` gave one of these names."""
        return lambda instr: instr.op is named_value_op and instr.attributes["name"] in names

    @staticmethod
    def save_any_names_but_these(*names: str) -> Policy:
        """Return the policy that keeps what `checkpoint_name` gave a name, unless it is one of these."""
        return lambda instr: instr.op is named_value_op and instr.attributes["name"] not in names


named_value_op = define(
    "named_value", lambda x, name: x, params=("name",), identity=True, vjp=lambda ct, needed, x, out, name: (ct,),
    result=lambda avals, name: avals[0], linear=True, batch=unchanged,
    elsewhere="test_rules: a value that a policy keeps by its name",
)  # fmt: skip


def checkpoint_name(x: Any, name: str) -> Any:
    """Return the arrays of a pytree under a name, by which a policy of `checkpoint` may keep them.

    >>> f = lambda x: gt.sin(gt.checkpoint_name(gt.exp(x), "exponential"))
    >>> policy = gt.checkpoint_policies.save_only_these_names("exponential")
    >>> gt.round(gt.grad(gt.checkpoint(f, policy=policy))(gt.array(1.0)), 4)
    Array(-2.4783, dtype=float32)
    """
    return tree.map(lambda leaf: bind(named_value_op, (lift("checkpoint_name", leaf),), (name,)), x)


def _marked(policy: Policy, body: Graph) -> tuple[Graph, str]:
    """Return a program and its policy as text. What a function keeps gets a name, which stays in batches of it."""
    if isinstance(policy, str):
        return body, policy
    renamed: dict[Any, int] = {}
    kept: dict[Any, bool] = {}
    nodes: list[Node] = []
    fresh = body.fresh
    for node in body.nodes:
        nodes.append(attrs.evolve(node, ins=tuple([renamed.get(x, x) for x in node.ins])))
        kept[node.out] = kept[node.ins[0]] if node.op.projection else policy(node.instr)
        if kept[node.out] and node.instr.aval.__class__ is not Bundle:
            renamed[node.out] = fresh + len(renamed)
            nodes.append(Node(named_value_op.instr((_MARKED,), (node.instr.aval,)), (node.out,), renamed[node.out]))
    if not renamed:
        return body, POLICIES[0]
    outputs = tuple([renamed.get(value, value) for value in body.outputs])
    return Graph(body.inputs, body.avals, tuple(nodes), outputs), _MARKED


def _keeps(policy: str) -> Callable[[Node], bool] | None:
    """Return whether the result of an operation is kept, by the text of a policy; None: nothing is."""
    if policy == "dots_saveable":
        return lambda node: node.op.contraction is not None
    if policy == _MARKED:
        return lambda node: node.op is named_value_op and node.params == (_MARKED,)
    return None


def _run(programs: Sequence[Callable[..., Any]], *operands: Any, policy: str) -> Any:
    return programs[0](operands)


def _result(avals: Sequence[Any], body: Subgraph, policy: str) -> Bundle:
    return bundle(body.graph.out_avals)


def _vjp(cts: Any, needed: Any, *rest: Any, body: Subgraph, policy: str) -> list[Array | None]:
    operands = rest[:-1]
    wanted, given = tuple(needed), tuple(ct is not None for ct in cts)
    joint, held = pullback(body, wanted, given)
    present = [ct for ct in cts if ct is not None]
    keeps = _keeps(policy)
    if keeps is not None:
        wide, backward = _saving(joint, len(operands), len(cts), policy, keeps)
        saved = bind_all(checkpoint_op, operands, (wide, policy))[len(cts) :]
    else:
        backward, saved = select(joint, range(len(cts), len(joint.graph.outputs))), []
    (backward,), numbers = lift_rule_numbers([backward], [body], "the derivative of checkpoint", [held])
    grads = iter(bind_all(rematerialize_op, [*operands, *saved, *present, *numbers], (backward, policy)))
    return [next(grads) if flag else None for flag in wanted]


def _saving(
    joint: Subgraph, count: int, outputs: int, policy: str, keeps: Callable[[Node], bool]
) -> tuple[Subgraph, Subgraph]:
    """Return the forward and the backward program.

    The forward program also returns what the policy keeps and the backward program uses. The backward program takes the
    operands, these values and the cotangents.
    """

    def make() -> tuple[Subgraph, Subgraph]:
        graph = joint.graph
        inputs, cts = graph.inputs[:count], graph.inputs[count:]
        forward, _ = partial_eval(graph, inputs)
        early = {node.out for node in forward.nodes}
        outs = {node.out: node.instr.aval for node in graph.nodes if node.out in early and keeps(node)}
        rest = tuple(node for node in graph.nodes if node.out not in outs)
        table = graph.value_avals()
        ins = (*inputs, *outs, *cts)
        lean = dce(Graph(ins, tuple(table[v] for v in ins), rest, graph.outputs[outputs:]))
        used = {v for node in lean.nodes for v in node.values()} | set(lean.outputs)
        kept = [v for v in outs if v in used]
        ins = (*inputs, *kept, *cts)
        backward = Graph(ins, tuple(table[v] for v in ins), lean.nodes, lean.outputs)
        known, _ = partial_eval(
            Graph(graph.inputs, graph.avals, graph.nodes, (*graph.outputs[:outputs], *kept)), inputs
        )
        wide = Graph(inputs, tuple(table[v] for v in inputs), known.nodes, (*graph.outputs[:outputs], *kept))
        return subgraph(wide), subgraph(backward)

    return joint.memo(("saving", policy, count, outputs), make)


def _jvp(ts: Any, *rest: Any, body: Subgraph, policy: str) -> list[Array | None]:
    operands = rest[:-1]
    wanted = floating(body.graph.out_avals)
    pushed, held = pushforward(body, tuple(t is not None for t in ts), wanted)
    tangents = select(pushed, range(len(wanted), len(pushed.graph.outputs)))
    (tangents,), numbers = lift_rule_numbers([tangents], [body], "the tangents of checkpoint", [held])
    given = [*operands, *[t for t in ts if t is not None], *numbers]
    moved = iter(bind_all(checkpoint_op, given, (tangents, policy)))
    return [next(moved) if flag else None for flag in wanted]


def _batch(
    op: Op, size: int, batched: Sequence[bool], operands: Sequence[Array], body: Subgraph, policy: str
) -> list[tuple[Array, bool]]:
    sub, reached, held = batched_graph(body, size, tuple(batched), (False,) * len(body.graph.outputs))
    return list(zip(bind_all(op, (*operands, *held), (sub, policy)), reached, strict=True))


def _narrow(wanted: set[int], body: Subgraph, policy: str) -> tuple[tuple[Subgraph, str], list[int]]:
    kept = sorted(wanted)
    return (select(body, kept), policy), kept


_FIELDS: dict[str, Any] = {
    "params": ("body", "policy"), "arity": None, "body": _run, "result": _result, "vjp": _vjp, "jvp": _jvp,
    "batch": _batch, "narrow": _narrow, "elsewhere": "test_rules: the same function without it",
}  # fmt: skip

rematerialize_op = define("rematerialize", **_FIELDS)
checkpoint_op = define(
    "checkpoint",
    # without a backward pass, nothing needs protection from merging: inline the body
    inlined=lambda graph: all(node.op is not rematerialize_op for node in graph.nodes),
    **_FIELDS,
)


def _with_arrays(value: Any) -> Any:
    """Return a pytree with Arrays for its numbers, which a gradient would give the function too."""
    leaves, structure = tree.flatten(value)
    if only_arrays(leaves):
        return value
    return structure.unflatten([x if python_scalar(x) is None else lift("checkpoint", x) for x in leaves])


def checkpoint(
    f: Callable[..., Any] | None = None, *, policy: Policy | None = None, static_argnums: int | Sequence[int] = ()
) -> Any:
    """Return `f` with a backward pass that recomputes intermediate values instead of keeping them.

    Only the arguments of `f` are kept until the backward pass. A deep network of checkpointed blocks keeps the inputs
    of all blocks. It keeps the intermediate values of one block at a time.

    Args:
        f: a function over pytrees.
        policy: "nothing_saveable" (the default) keeps nothing, "dots_saveable" keeps matmul results, and
            "everything_saveable" keeps everything. ``gt.checkpoint_policies`` has these as attributes, and policies
            that keep values by their names. A function of an instruction of the program tells whether its result is
            kept, or, if it has several, all of them.
        static_argnums: positional arguments that stay Python values.

    >>> gt.grad(gt.checkpoint(lambda x: gt.sin(gt.sin(x))))(0.0)
    Array(1., dtype=float32)
    """
    if f is None:
        return functools.partial(checkpoint, policy=policy, static_argnums=static_argnums)
    if not callable(f):
        raise ArgumentError(message("checkpoint", "a function", type(f).__name__, "Pass a callable."))
    chosen = POLICIES[0] if policy is None else policy
    if not (callable(chosen) or chosen in POLICIES):
        raise ArgumentError(message("checkpoint", f"a policy among {', '.join(POLICIES)}", repr(policy), "Name one."))

    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        static = {k % len(args): args[k % len(args)] for k in numbers}
        if chosen == "everything_saveable" or (thread.trace.tape is None and thread.trace.capture is None):
            args = tuple([x if k in static else _with_arrays(x) for k, x in enumerate(args)])
            return f(*args, **_with_arrays(kwargs))
        args = tuple([None if k in static else x for k, x in enumerate(args)])
        leaves, structure = tree.flatten((args, kwargs))
        dynamic = [k for k, leaf in enumerate(leaves) if is_array(leaf)]
        arrays, _ = lift_outputs("checkpoint", [leaves[k] for k in dynamic])

        def run(inputs: Sequence[Array]) -> Any:
            given = list(leaves)
            for k, x in zip(dynamic, inputs, strict=True):
                given[k] = x
            rebuilt: Any = structure.unflatten(given)
            positional = [static.get(k, x) for k, x in enumerate(rebuilt[0])]
            return lift_outputs("checkpoint", f(*positional, **rebuilt[1]))

        captured = capture(run, [x.aval for x in arrays], f"checkpoint called at {user_location()}", repeated=True)
        captured = lift_numbers(captured, "checkpoint")
        body, text = _marked(chosen, captured.graph)
        operands = [*arrays, *captured.constants]
        return captured.result.unflatten(bind_all(checkpoint_op, operands, (subgraph(body), text)))

    return named(wrapped, f)
