"""Loops built on scan, and loops whose length depends on a value: ``while_loop``, ``fori_loop``, ``map``,
``associative_scan``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.config import config
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ir.aval import Aval, Bundle, bundle
from gtrace.core.ir.graph import Graph, Subgraph
from gtrace.core.ir.op import Op, define
from gtrace.core.ir.reach import Flags, reached_by_loop
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.ops import indexed_updates
from gtrace.core.ops.batching import spread
from gtrace.core.ops.host_calls import names_called
from gtrace.core.ops.join_split import slice_axis
from gtrace.core.ops.operands import cast, weakened
from gtrace.core.ops.shape import as_int, constant, normalize_axis
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind_all
from gtrace.core.trace.capture import replay
from gtrace.core.trace.lifted_numbers import lift_rule_numbers
from gtrace.core.trace.promotion import default_dtype
from gtrace.core.transform.control.bodies import Closure, capture_body, check_same, lift_leaves, settle, with_effects
from gtrace.core.transform.control.in_python import runs_in_python, while_in_python
from gtrace.core.transform.control.scan import scan
from gtrace.core.transform.control.stepping import run_while
from gtrace.core.transform.subgraph_rules import batched as batched_graph
from gtrace.core.transform.subgraph_rules import captured_subgraph, holding, pushforward
from gtrace.core.transform.vmap import vmap

__all__ = ["while_loop", "fori_loop", "map", "associative_scan"]

# -- while_loop


def _result(avals: Sequence[Aval], cond: Subgraph, body: Subgraph, cond_consts: int, body_consts: int) -> Bundle:
    return bundle(body.graph.out_avals)


def _no_vjp(*_: Any, **__: Any) -> NoReturn:
    got = "a gradient through it: reverse mode needs the values of every step, and their number is not known"
    fix = "Use gt.scan, or gt.fori_loop with Python ints as bounds; or gt.jvp and gt.jacfwd."
    raise ArgumentError(message("while_loop", "forward mode", got, fix))


def _jvp(ts: Any, *rest: Any, cond: Subgraph, body: Subgraph, cond_consts: int, body_consts: int) -> list[Array | None]:
    operands = rest[:-1]
    outs = body.graph.out_avals
    start = cond_consts + body_consts
    moving = reached_by_loop(body, tuple([t is not None for t in ts[cond_consts:]]), body_consts, len(outs))
    if not any(moving):
        return [None] * len(moving)
    consts_moved = tuple(t is not None for t in ts[cond_consts:start])
    pushed, held = pushforward(body, (*consts_moved, *moving), moving)
    (pushed,), numbers = lift_rule_numbers([pushed], [body], "the tangents of while_loop", [held])
    # the pushforward takes (constants, state, tangents of constants, tangents of the state), but a loop takes all
    # constants first
    graph, count, fixed = pushed.graph, len(body.graph.inputs), sum(consts_moved)
    end = len(graph.inputs) - len(numbers)
    order = [*range(body_consts), *range(count, count + fixed), *range(end, len(graph.inputs)),
             *range(body_consts, count), *range(count + fixed, end)]  # fmt: skip
    inputs = tuple(graph.inputs[k] for k in order)
    step = subgraph(Graph(inputs, tuple(graph.avals[k] for k in order), graph.nodes, graph.outputs))
    test = _with_more_inputs(cond, [a for a, flag in zip(outs, moving, strict=True) if flag])
    tangents = [
        constant(0.0, a) if t is None else t for t, a, flag in zip(ts[start:], outs, moving, strict=True) if flag
    ]
    moved = [t for t in ts[cond_consts:start] if t is not None]
    given = [*operands[:start], *moved, *numbers, *operands[start:], *tangents]
    results = bind_all(while_op, given, (test, step, cond_consts, body_consts + fixed + len(numbers)))
    found = iter(results[len(outs) :])
    return [next(found) if flag else None for flag in moving]


def _with_more_inputs(sub: Subgraph, avals: Sequence[Aval]) -> Subgraph:
    """Return the program with additional, unused inputs."""
    return captured_subgraph(
        lambda inputs: replay(sub.graph, inputs[: len(sub.graph.inputs)]), [*sub.graph.avals, *avals]
    )


def _batch(
    op: Op,
    size: int,
    batched: Sequence[bool],
    operands: Sequence[Array],
    cond: Subgraph,
    body: Subgraph,
    cond_consts: int,
    body_consts: int,
) -> list[tuple[Array, bool]]:
    start = cond_consts + body_consts
    flags = list(batched)
    while True:
        step, reached, kept = batched_graph(body, size, tuple(flags[cond_consts:]), tuple(flags[start:]))
        test, each, asked = batched_graph(cond, size, (*flags[:cond_consts], *flags[start:]), (False,))
        if each[0]:
            # examples stop at different times, so the whole state is batched
            reached = (True,) * len(reached)
        if list(reached) == flags[start:]:
            break
        flags[start:] = reached
    given = [x if was == flag else spread(x, size) for x, was, flag in zip(operands, batched, flags, strict=True)]
    test, step = holding(test, asked, cond_consts), holding(step, kept, body_consts)
    given = [*given[:cond_consts], *asked, *given[cond_consts:start], *kept, *given[start:]]
    cond_consts, body_consts = cond_consts + len(asked), body_consts + len(kept)
    start = cond_consts + body_consts
    if each[0]:
        refused = names_called(step.graph) & {"check", "io_callback"}
        if refused:
            got = "one in a loop whose examples stop at different times: stopped ones would have it again"
            fix = "Use vmap(checkify(f)), or gt.map in place of vmap."
            raise ArgumentError(message("while_loop", f"no {' or '.join(refused)} under vmap", got, fix))
        test, step = _until_all_stop(test, step, cond_consts, body_consts)
        given = [*given[:cond_consts], *given[:start], *given[start:]]
        body_consts += cond_consts
    results = bind_all(op, given, (test, step, cond_consts, body_consts))
    return list(zip(results, reached, strict=True))


def _until_all_stop(test: Subgraph, step: Subgraph, cond_consts: int, body_consts: int) -> tuple[Subgraph, Subgraph]:
    """Return test and step of a loop that runs until all examples have stopped; a stopped example keeps its state."""

    def go_on(inputs: Sequence[Array]) -> list[Array]:
        return [ops.any(replay(test.graph, inputs)[0])]

    def move(inputs: Sequence[Array]) -> list[Array]:
        first, second = inputs[:cond_consts], inputs[cond_consts : cond_consts + body_consts]
        state = inputs[cond_consts + body_consts :]
        running = replay(test.graph, [*first, *state])[0]
        moved = replay(step.graph, [*second, *state])
        return [
            ops.where(ops.reshape(running, (running.size, *(1,) * (new.ndim - 1))), new, old)
            for new, old in zip(moved, state, strict=True)
        ]

    state_avals = step.graph.avals[body_consts:]
    both = [*test.graph.avals[:cond_consts], *step.graph.avals[:body_consts], *state_avals]
    return captured_subgraph(go_on, test.graph.avals), captured_subgraph(move, both)


def _moving(flags: Flags, cond: Subgraph, body: Subgraph, cond_consts: int, body_consts: int) -> Flags:
    return reached_by_loop(body, flags[cond_consts:], body_consts, len(body.graph.outputs))


while_op = define(
    "while_loop", params=("cond", "body", "cond_consts", "body_consts"), arity=None, loop=True, body=run_while,
    result=_result, vjp=_no_vjp, jvp=_jvp, batch=_batch, reached=_moving,
    elsewhere="test_control: the same steps in a Python loop",
)  # fmt: skip


def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """Return the first of ``init_val, body_fun(init_val), ...`` for which `cond_fun` is false.

    Forward mode works. Reverse mode does not, because the number of steps is unknown: use `scan` or `fori_loop`.

    Args:
        cond_fun: takes the state and returns a boolean scalar.
        body_fun: takes the state and returns the next one, with the same structure, shapes and dtypes.
        init_val: pytree of arrays.

    Raises:
        ArgumentError: `cond_fun` does not return a boolean scalar, or `body_fun` changes structure or types.

    >>> gt.while_loop(lambda x: x < 100, lambda x: x * 2, 1.0)
    Array(128., dtype=float32)
    """
    start, structure = lift_leaves("while_loop", "init_val", init_val)
    if runs_in_python():
        return while_in_python(cond_fun, body_fun, structure.unflatten(start))
    one = tree.structure((init_val,))
    for _ in range(3):
        avals = [x.aval for x in start]
        step = capture_body("while_loop", "body_fun", body_fun, one, avals)
        new = step.graph.out_avals
        settled = settle(start, new) if step.result == structure else None
        if settled is None:
            break
        start = settled
    fix = "The state keeps its structure, shapes and dtypes: cast it in body_fun, or start with another."
    check_same("while_loop", ("init_val", structure, avals), ("what body_fun returns", step.result, new), fix)
    if any(a is not b for a, b in zip(avals, new, strict=True)):
        start = [cast(x, x.aval.dtype) for x in start]
        avals = [x.aval for x in start]
        step = capture_body("while_loop", "body_fun", body_fun, one, avals, [a.dtype for a in avals])
    test = capture_body("while_loop", "cond_fun", cond_fun, one, avals)
    outs = test.graph.out_avals
    if len(outs) != 1 or outs[0].shape or outs[0].dtype is not torch.bool:
        got = ", ".join(repr(a) for a in outs) or "nothing"
        raise ArgumentError(message("while_loop", "a boolean scalar from cond_fun", got, "Return a comparison."))
    first, second = Closure(), Closure()
    first.join(test)
    second.join(step)
    params = (
        first.close(test, constants_first=True),
        second.close(step, constants_first=True),
        len(first.constants),
        len(second.constants),
    )
    results = bind_all(while_op, [*first.constants, *second.constants, *start], params)
    return structure.unflatten(with_effects(results, test, step))


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """Return `init_val` after ``x = body_fun(i, x)`` for each i in [`lower`, `upper`).

    With Python ints as bounds it is a `scan`, which reverse mode supports. With traced bounds it is a `while_loop`.

    Args:
        unroll: accepted as in JAX, and ignored; see `scan`.

    >>> gt.fori_loop(0, 5, lambda i, total: total + i, gt.array(0))
    Array(10, dtype=int64)
    """
    bounds: list[int] = []
    for name, bound in (("lower", lower), ("upper", upper)):
        try:
            if type(bound) is not Array:
                bounds.append(operator.index(bound))
        except TypeError:
            raise ArgumentError(message("fori_loop", f"an integer as {name}", repr(bound), "Pass an int.")) from None
    if len(bounds) == 2:
        places = ops.arange(bounds[0], max(bounds))
        # in JAX the count is as weak as the bounds
        weak = config.current.jax_results
        return scan(lambda x, i: (body_fun(weakened(i, i.aval.dtype) if weak else i, x), None), init_val, places)[0]
    kind = default_dtype(int)
    last = cast(_whole("upper", upper), kind)

    def body(state: Any) -> Any:
        i, x = state
        return i + 1, body_fun(i, x)

    return while_loop(lambda state: state[0] < last, body, (cast(_whole("lower", lower), kind), init_val))[1]


indexed_updates.loop = fori_loop


def _whole(name: str, bound: Any) -> Array:
    (x,), _ = lift_leaves("fori_loop", name, bound)
    if x.aval.floating or x.aval.shape:
        raise ArgumentError(
            message("fori_loop", f"an integer scalar as {name}", repr(x.aval), "Use x.astype(gt.int64).")
        )
    return x


def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:  # noqa: A001 - JAX's name
    """Apply `f` to each slice of `xs` along its first axis, and stack the results.

    Slices are mapped one after the other, or all at once if that takes little memory. With `batch_size`, `vmap` maps
    that many at a time.

    >>> gt.map(lambda x: x * 2, gt.array([1., 2.]))
    Array([2., 4.], dtype=float32)
    """
    if batch_size is None:
        return scan(lambda _, x: (None, f(x)), None, xs)[1]
    count = as_int("map", "batch_size", batch_size)
    if count < 1:
        raise ShapeError(message("map", "batch_size >= 1", str(count), "Pass a positive integer."))
    leaves, structure = lift_leaves("map", "xs", xs)
    if not leaves or any(not x.shape or x.shape[0] != leaves[0].shape[0] for x in leaves):
        got = ", ".join(repr(x.aval) for x in leaves) or "none"
        raise ShapeError(message("map", "arrays of one length", got, "Their first axes are mapped over."))
    whole = leaves[0].shape[0] // count * count
    blocks = structure.unflatten(
        [ops.reshape(slice_axis(x, 0, 0, whole), (whole // count, count, *x.shape[1:])) for x in leaves]
    )
    each = vmap(f)
    done = scan(lambda _, x: (None, each(x)), None, blocks)[1]
    flat = tree.map(lambda y: ops.reshape(y, (whole, *y.shape[2:])), done)
    if whole == leaves[0].shape[0]:
        return flat
    rest = each(structure.unflatten([slice_axis(x, 0, whole, x.shape[0]) for x in leaves]))
    return tree.map(lambda a, b: ops.concat([a, b]), flat, rest)


# -- associative_scan


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Return the running results of an associative function, in a logarithmic number of steps.

    The algorithm combines neighbours, scans these results, and fills in the other elements (Ladner and Fischer, 1980).

    Args:
        fn: an associative function of two pytrees like `elems`, elementwise along `axis`, whose length varies.
        elems: pytree of arrays with one length along `axis`.

    >>> gt.associative_scan(gt.add, gt.array([1., 2., 3., 4.]))
    Array([ 1.,  3.,  6., 10.], dtype=float32)
    """
    leaves, structure = lift_leaves("associative_scan", "elems", elems)
    if not leaves:
        raise ArgumentError(message("associative_scan", "at least one array", "none", "Pass elems with leaves."))
    places = [normalize_axis("associative_scan", axis, x.ndim) for x in leaves]
    sizes = {x.shape[k] for x, k in zip(leaves, places, strict=True)}
    if len(sizes) > 1:
        got = " and ".join(str(n) for n in sorted(sizes))
        raise ShapeError(message("associative_scan", "arrays of one length along axis", got, "Check their shapes."))

    def combine(a: list[Array], b: list[Array]) -> list[Array]:
        out, got = tree.flatten(fn(structure.unflatten(a), structure.unflatten(b)))
        if got != structure:
            fix = "Return the structure of elems."
            raise ArgumentError(message("associative_scan", f"{structure} from fn", str(got), fix))
        return out

    def part(xs: list[Array], start: int, stop: int | None, step: int) -> list[Array]:
        return [x[(*(slice(None),) * k, slice(start, stop, step))] for x, k in zip(xs, places, strict=True)]

    def run(xs: list[Array]) -> list[Array]:
        count = xs[0].shape[places[0]]
        if count < 2:
            return xs
        even = count - count % 2
        odd = run(combine(part(xs, 0, even, 2), part(xs, 1, even, 2)))
        fill = combine(part(odd, 0, (count - 1) // 2, 1), part(xs, 2, None, 2)) if count > 2 else []
        first = part(xs, 0, 1, 1)
        evens = [ops.concat([a, b], k) for a, b, k in zip(first, fill, places, strict=True)] if fill else first
        return [_interleave(a, b, k) for a, b, k in zip(evens, odd, places, strict=True)]

    if reverse:
        leaves = [ops.flip(x, k) for x, k in zip(leaves, places, strict=True)]
    results = run(leaves)
    if reverse:
        results = [ops.flip(x, k) for x, k in zip(results, places, strict=True)]
    return structure.unflatten(results)


def _interleave(a: Array, b: Array, axis: int) -> Array:
    """Return a0, b0, a1, b1, ... along an axis; `a` has as many elements as `b`, or one more."""
    count = b.shape[axis]
    shape = (*b.shape[:axis], 2 * count, *b.shape[axis + 1 :])
    head = a if a.shape[axis] == count else slice_axis(a, axis, 0, count)
    pairs = [ops.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])) for x in (head, b)]
    joined = ops.reshape(ops.concat(pairs, axis + 1), shape)
    return joined if a.shape[axis] == count else ops.concat([joined, slice_axis(a, axis, count, count + 1)], axis)
