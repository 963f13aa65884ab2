"""``scan``: a loop of known length with a carry. Each step reads a slice of the inputs, and outputs are stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle
from gtrace.core.ir.graph import Graph, Subgraph
from gtrace.core.ir.op import Op, define
from gtrace.core.ir.reach import Flags, reached_by_loop
from gtrace.core.ir.subgraph import select, subgraph
from gtrace.core.ops.batching import spread
from gtrace.core.ops.operands import cast, weak_like
from gtrace.core.ops.shape import as_int, constant
from gtrace.core.passes.partial_eval import partial_eval
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind_all
from gtrace.core.trace.capture import replay
from gtrace.core.trace.lifted_numbers import lift_rule_numbers
from gtrace.core.transform.arguments import repeat_empty
from gtrace.core.transform.control.bodies import Closure, capture_body, check_same, lift_leaves, settle, with_effects
from gtrace.core.transform.control.code_motion import MovedLoop, finish, hoist, prune, sink
from gtrace.core.transform.control.in_python import runs_in_python, scan_in_python
from gtrace.core.transform.control.stepping import run_scan
from gtrace.core.transform.subgraph_rules import Held, holding, pullback, pushforward
from gtrace.core.transform.subgraph_rules import batched as batched_graph

__all__ = ["scan"]

# -- the operation


def _result(avals: Sequence[Aval], body: Subgraph, length: int, reverse: bool, consts: int, carry: int) -> Bundle:
    outs = body.graph.out_avals
    stacked = [aval((length, *a.shape), a.dtype, a.device) for a in outs[carry:]]
    return bundle((*outs[:carry], *stacked))


def scan_arrays(
    loop: MovedLoop,
    operands: Sequence[Array],
    reverse: bool,
    totals: frozenset[int] = frozenset(),
    hoisting: bool = True,
) -> list[Array]:
    """Record a scan.

    Args:
        operands: constants, initial carry, and inputs with the steps on axis 0.
        totals: the outputs, counted after the carry, to sum over the steps instead of stacking.
        hoisting: False keeps the operands, so that two scans can share them.

    Returns:
        The final carry and the outputs.
    """
    core, sunk = sink(loop)
    if not core.carry and sunk is not None and not core.graph.outputs:
        results: list[Array] = []  # all work was moved out of the loop
    else:
        lean, used = prune(*(hoist(core, operands) if hoisting else (core, operands)))
        results = bind_all(scan_op, used, (lean.body, lean.length, reverse, lean.consts, lean.carry))
    final, outs = results[: core.carry], results[core.carry :]
    if sunk is not None:
        return [*final, *finish(core, sunk, operands, outs, totals)]
    return [*final, *[x.sum(0) if k in totals else x for k, x in enumerate(outs)]]


# -- derivatives
#
# Both modes run a second, linear loop on residuals of the first loop. The first loop is recorded again, with the
# residuals as additional outputs. Canonicalization then replaces the loop without residuals by the one with them.


def _linear_loop(
    joint: Subgraph, loop: MovedLoop, operands: Sequence[Array], reverse: bool
) -> tuple[Graph, list[tuple[Array, bool]]]:
    """Record the first loop with residuals.

    Args:
        joint: takes the inputs of the body and of the linear step; returns the outputs of both, in this order.

    Returns:
        The program of a step of the linear loop, with the residuals as last inputs. Then the residuals, each with a
        flag for one value per step.
    """
    graph = joint.graph
    count, outputs = len(loop.graph.inputs), len(loop.graph.outputs)
    known = graph.inputs[:count]
    first, linear = partial_eval(
        Graph(graph.inputs, graph.avals, graph.nodes, graph.outputs[outputs:]), known, again=True
    )
    residuals = first.outputs
    consts, xs = known[: loop.consts], known[loop.consts + loop.carry :]
    fixed = _reached(first, consts)
    found: dict[int, tuple[Array, bool]] = {}
    place = {value: k for k, value in enumerate(known)}
    inner: list[int] = []
    for value in residuals:
        if value in place and value in set(consts):
            found[value] = operands[place[value]], False
        elif value in place and value in set(xs):
            found[value] = operands[place[value]], True
        elif value in fixed:
            continue
        else:
            inner.append(value)
    outside = [value for value in residuals if value in fixed and value not in found]
    if outside:
        program, _ = partial_eval(Graph(first.inputs, first.avals, first.nodes, tuple(outside)), consts)
        results = dict(zip(program.outputs, replay(program, operands[: loop.consts]), strict=True))
        found.update({value: (results[value], False) for value in outside})
    if inner:
        whole = Graph(known, first.avals, graph.nodes, (*graph.outputs[:outputs], *inner))
        wide = MovedLoop(_restricted(whole, known), loop.consts, loop.carry, loop.length)
        stacks = scan_arrays(*_lifted(wide, operands, loop.body), reverse, hoisting=False)[outputs:]
        found.update({value: (x, True) for value, x in zip(inner, stacks, strict=True)})
    return linear, [found[value] for value in residuals]


def _holding(
    joint: Subgraph, held: Held, loop: MovedLoop, operands: Sequence[Array]
) -> tuple[Subgraph, MovedLoop, Sequence[Array]]:
    """Return the derived body, the loop and its operands with what the derived body holds as first constants."""
    if not held:
        return joint, loop, operands
    graph = loop.graph
    fresh = 1 + max([*graph.inputs, *[node.out for node in graph.nodes]])
    inputs = (*range(fresh, fresh + len(held)), *graph.inputs)
    body = subgraph(Graph(inputs, (*[x.aval for x in held], *graph.avals), graph.nodes, graph.outputs))
    wider = MovedLoop(body, loop.consts + len(held), loop.carry, loop.length)
    return holding(joint, held, 0), wider, [*held, *operands]


def _restricted(graph: Graph, inputs: Sequence[int]) -> Subgraph:
    known, _ = partial_eval(graph, inputs)
    return subgraph(Graph(tuple(inputs), graph.avals, known.nodes, graph.outputs))


def _reached(graph: Graph, inputs: Sequence[int]) -> set[int]:
    """Return the values that depend on the given inputs alone."""
    reached = set(inputs)
    for node in graph.nodes:
        if all(value in reached for value in node.values()):
            reached.add(node.out)
    return reached


def _lifted(loop: MovedLoop, operands: Sequence[Array], origin: Subgraph) -> tuple[MovedLoop, Sequence[Array]]:
    """Return a loop derived from one with body `origin`, with the changing numbers as additional constants."""
    (body,), numbers = lift_rule_numbers([loop.body], [origin], "a loop derived from scan")
    if not numbers:
        return loop, operands
    graph, consts = body.graph, loop.consts
    end = len(graph.inputs) - len(numbers)
    order = [*range(consts), *range(end, len(graph.inputs)), *range(consts, end)]
    inputs, avals = tuple(graph.inputs[k] for k in order), tuple(graph.avals[k] for k in order)
    body = subgraph(Graph(inputs, avals, graph.nodes, graph.outputs))
    return (
        MovedLoop(body, consts + len(numbers), loop.carry, loop.length),
        [*operands[:consts], *numbers, *operands[consts:]],
    )


def _run_linear(
    linear: Graph,
    residuals: Sequence[tuple[Array, bool]],
    init: Sequence[Array],
    xs: Sequence[Array],
    length: int,
    reverse: bool,
    totals: frozenset[int],
    origin: Subgraph,
) -> list[Array]:
    """Record the second loop: `linear` takes carry, a step of `xs` and residuals; `origin` is the first body."""
    own = len(init) + len(xs)
    names = linear.inputs[own:]
    fixed = [(v, x) for v, (x, flag) in zip(names, residuals, strict=True) if not flag]
    stepped = [(v, x) for v, (x, flag) in zip(names, residuals, strict=True) if flag]
    table = dict(zip(linear.inputs, linear.avals, strict=True))
    inputs = (*[v for v, _ in fixed], *linear.inputs[:own], *[v for v, _ in stepped])
    body = subgraph(Graph(inputs, tuple(table[v] for v in inputs), linear.nodes, linear.outputs))
    loop = MovedLoop(body, len(fixed), len(init), length)
    operands = [*[x for _, x in fixed], *init, *xs, *[x for _, x in stepped]]
    return scan_arrays(*_lifted(loop, operands, origin), reverse, totals)


def _vjp(
    cts: Any, needed: Any, *rest: Any, body: Subgraph, length: int, reverse: bool, consts: int, carry: int
) -> list[Array | None]:
    operands: Sequence[Array] = rest[:-1]
    graph = body.graph
    outs = graph.out_avals
    loop = MovedLoop(body, consts, carry, length)
    # include every carry that may have a derivative: its cotangent may become nonzero in the loop
    moving = reached_by_loop(body, tuple(needed), consts, carry)[:carry]
    wanted = (*needed[:consts], *moving, *needed[consts + carry :])
    given = (*moving, *[ct is not None for ct in cts[carry:]])
    joint, held = pullback(body, tuple(wanted), given)
    joint, loop, operands = _holding(joint, held, loop, operands)
    linear, residuals = _linear_loop(joint, loop, operands, reverse)
    # the linear step returns cotangents of constants, carry and inputs, but a loop returns its carry first
    n_consts, n_carry = sum(needed[:consts]), sum(moving)
    order = [*range(n_consts, n_consts + n_carry), *range(n_consts), *range(n_consts + n_carry, len(linear.outputs))]
    linear = Graph(linear.inputs, linear.avals, linear.nodes, tuple(linear.outputs[k] for k in order))
    init = [constant(0.0, a) if ct is None else ct for ct, a, flag in zip(cts, outs, moving, strict=False) if flag]
    steps = [ct for ct in cts[carry:] if ct is not None]
    results = _run_linear(linear, residuals, init, steps, length, not reverse, frozenset(range(n_consts)), body)
    into_carry = iter(results[:n_carry])
    others = iter(results[n_carry:])
    grads: list[Array | None] = [next(others) if flag else None for flag in needed[:consts]]
    grads += [next(into_carry) if flag else None for flag in moving]
    return grads + [next(others) if flag else None for flag in needed[consts + carry :]]


def _jvp(
    ts: Any, *rest: Any, body: Subgraph, length: int, reverse: bool, consts: int, carry: int
) -> list[Array | None]:
    operands: Sequence[Array] = rest[:-1]
    outs = body.graph.out_avals
    loop = MovedLoop(body, consts, carry, length)
    given = tuple([t is not None for t in ts])
    wanted = reached_by_loop(body, given, consts, carry)
    if not any(wanted):
        return [None] * len(wanted)
    moving = wanted[:carry]
    moved = (*given[:consts], *moving, *given[consts + carry :])
    joint, held = pushforward(body, moved, wanted)
    joint, loop, operands = _holding(joint, held, loop, operands)
    linear, residuals = _linear_loop(joint, loop, operands, reverse)
    n_consts = sum(t is not None for t in ts[:consts])
    init = [
        constant(0.0, a) if t is None else t
        for t, a, flag in zip(ts[consts : consts + carry], outs, moving, strict=False)
        if flag
    ]
    steps = [t for t in ts[consts + carry :] if t is not None]
    # the tangents of the constants are inputs of the linear step, like constant residuals
    fixed = [(t, False) for t in ts[:consts] if t is not None]
    own = len(init) + len(steps)
    inputs = (*linear.inputs[n_consts : n_consts + own], *linear.inputs[:n_consts], *linear.inputs[n_consts + own :])
    table = dict(zip(linear.inputs, linear.avals, strict=True))
    linear = Graph(inputs, tuple(table[v] for v in inputs), linear.nodes, linear.outputs)
    results = iter(_run_linear(linear, [*fixed, *residuals], init, steps, length, reverse, frozenset(), body))
    return [next(results) if flag else None for flag in wanted]


def _batch(
    op: Op,
    size: int,
    batched: Sequence[bool],
    operands: Sequence[Array],
    body: Subgraph,
    length: int,
    reverse: bool,
    consts: int,
    carry: int,
) -> list[tuple[Array, bool]]:
    flags = list(batched)
    outputs = len(body.graph.outputs)
    while True:
        # a carry is batched if its initial value is, or if the body makes it so
        forced = (*flags[consts : consts + carry], *[False] * (outputs - carry))
        sub, reached, held = batched_graph(body, size, tuple(flags), forced)
        if list(reached[:carry]) == flags[consts : consts + carry]:
            break
        flags[consts : consts + carry] = reached[:carry]
    given = []
    for k, (x, was, flag) in enumerate(zip(operands, batched, flags, strict=True)):
        if k >= consts + carry:
            given.append(ops.moveaxis(x, 0, 1) if flag else x)
        else:
            given.append(x if was == flag else spread(x, size))
    sub = holding(sub, held, consts)
    given[consts:consts] = held
    results = scan_arrays(MovedLoop(sub, consts + len(held), carry, length), given, reverse)
    out = []
    for k, (x, flag) in enumerate(zip(results, reached, strict=True)):
        out.append((ops.moveaxis(x, 1, 0) if flag and k >= carry else x, flag))
    return out


def _narrow(
    wanted: set[int], body: Subgraph, length: int, reverse: bool, consts: int, carry: int
) -> tuple[tuple[Any, ...], list[int]]:
    kept = [k for k in range(len(body.graph.outputs)) if k < carry or k in wanted]
    return (select(body, kept), length, reverse, consts, carry), kept


def _moving(flags: Flags, body: Subgraph, length: int, reverse: bool, consts: int, carry: int) -> Flags:
    return reached_by_loop(body, flags, consts, carry)


scan_op = define(
    "scan", params=("body", "length", "reverse", "consts", "carry"), arity=None, loop=True, body=run_scan,
    result=_result, vjp=_vjp, jvp=_jvp, batch=_batch, narrow=_narrow, reached=_moving,
    elsewhere="test_control: the same steps in a Python loop",
)  # fmt: skip


# -- the user's function


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """Run ``carry, y = f(carry, x)`` for each slice x of `xs` along axis 0; return the last carry and the stacked ys.

    The loop is one operation with one body. So recording and compiling 10,000 steps takes as long as 10. Parts of the
    body that do not depend on the carry run for all steps at once.

    Args:
        f: takes and returns pytrees; the carry keeps its structure, shapes and dtypes.
        init: the first carry.
        xs: pytree of arrays with the steps on axis 0; None if there are none.
        length: the number of steps; needed without `xs`.
        reverse: run from the last slice to the first; ys are stacked in the order of `xs` nevertheless.
        unroll: accepted as in JAX, and ignored: the compiled loop chooses how many steps it unrolls.

    Raises:
        ArgumentError: `f` does not return a pair, or its carry differs from `init`; names the leaf.
        ShapeError: inputs have different lengths, or neither inputs nor `length` are given.

    >>> gt.scan(lambda total, x: (total + x, total + x), 0.0, gt.array([1., 2., 3.]))
    (Array(6., dtype=float32), Array([1., 3., 6.], dtype=float32))
    """
    start, carry_structure = lift_leaves("scan", "init", init)
    inputs, _ = lift_leaves("scan", "xs", xs)
    steps = _length(inputs, xs, length)
    if runs_in_python() and steps:  # without a step, tracing f says what the ys are
        return scan_in_python(f, carry_structure.unflatten(start), xs, inputs, steps, bool(reverse))
    slices = [aval(x.shape[1:], x.aval.dtype, x.aval.device) for x in inputs]
    structure = tree.structure((init, xs))

    def step(carry: Any, x: Any) -> Any:
        out = f(carry, x)
        if isinstance(out, tuple) and len(out) == 2:  # what is none of these is an error below
            return out[0], repeat_empty(out[1], steps, lambda: [0] * len(tree.leaves(out[1])))
        return out

    for _ in range(3):
        # a Python number as first carry takes the dtype that the body returns
        avals = [*[x.aval for x in start], *slices]
        function = step if callable(f) else f
        captured = capture_body("scan", "f", function, structure, avals, weak=[x.aval for x in (*start, *inputs)])
        outputs, out_structure = captured.graph.out_avals, captured.result
        pair = tree.children(out_structure)
        if len(pair) != 2 or not tree.is_tuple(out_structure):
            got = str(out_structure)
            raise ArgumentError(message("scan", "(carry, y) from f", got, "Return a pair; y may be None."))
        new = outputs[: pair[0].num_leaves]
        settled = settle(start, new) if pair[0] == carry_structure else None
        if settled is None:
            break
        start = settled
    check_same(
        "scan",
        ("init", carry_structure, [x.aval for x in start]),
        ("the carry that f returns", pair[0], new),
        "The carry keeps its structure, shapes and dtypes: cast it in f, or start with another.",
    )
    if any(a is not b for a, b in zip([x.aval for x in start], new, strict=True)):
        captured = capture_body(
            "scan",
            "f",
            step,
            structure,
            avals,
            [*[x.aval.dtype for x in start], *[a.dtype for a in outputs[len(start) :]]],
            weak=[x.aval for x in (*start, *inputs)],
        )
        start = [cast(x, x.aval.dtype) for x in start]
    closure = Closure()
    closure.join(captured)
    body = closure.close(captured, constants_first=True)
    if steps == 0:
        outs = body.graph.out_avals[len(start) :]
        results = [*start, *[constant(0, aval((0, *a.shape), a.dtype, a.device)) for a in outs]]
    else:
        loop = MovedLoop(body, len(closure.constants), len(start), steps)
        results = scan_arrays(loop, [*closure.constants, *start, *inputs], bool(reverse))
    # with JAX's number rules, results are as weak as the body's
    return captured.result.unflatten(weak_like(with_effects(results, captured), captured.graph.out_avals))


def _length(inputs: Sequence[Array], xs: Any, length: int | None) -> int:
    steps = None if length is None else as_int("scan", "length", length)
    if steps is not None and steps < 0:
        raise ShapeError(message("scan", "a length >= 0", str(steps), "Pass a non-negative integer."))
    for k, x in enumerate(inputs):
        if not x.shape:
            got = f"{x.aval!r} at xs{tree.paths(xs)[k]}"
            raise ShapeError(message("scan", "inputs with an axis of steps", got, "Close over what has none."))
        if steps is None:
            steps = x.shape[0]
        elif x.shape[0] != steps:
            got = f"{x.shape[0]} at xs{tree.paths(xs)[k]} beside {steps}"
            raise ShapeError(message("scan", "inputs of one length", got, "Their first axes are the steps."))
    if steps is None:
        raise ShapeError(message("scan", "xs or length", "neither", "Pass length=n to loop without inputs."))
    return steps
