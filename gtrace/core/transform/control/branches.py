"""``cond`` and ``switch``: a value selects one of several functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, DtypeError, ShapeError, message
from gtrace.core.ir.aval import Aval, Bundle, bundle
from gtrace.core.ir.graph import Subgraph
from gtrace.core.ir.op import Op, define
from gtrace.core.ir.reach import Flags, reached_outputs
from gtrace.core.ir.subgraph import select
from gtrace.core.ops.gather import index_op
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind, bind_all
from gtrace.core.trace.capture import NoOutputs
from gtrace.core.trace.convert import lift
from gtrace.core.trace.lifted_numbers import lift_rule_numbers
from gtrace.core.transform.control.bodies import (
    Closure,
    capture_body,
    check_same,
    has_effects,
    lift_leaves,
    with_effects,
)
from gtrace.core.transform.control.in_python import branch_in_python, runs_in_python
from gtrace.core.transform.subgraph_rules import batched as batched_graph
from gtrace.core.transform.subgraph_rules import floating, pullback, pushforward

__all__ = ["cond", "switch"]

NONE_GIVEN: Any = object()
"""Marks an operand that was not passed by name."""

Branches = tuple[Subgraph, ...]


def _run(programs: Sequence[Callable[..., Any]], index: torch.Tensor, *operands: torch.Tensor) -> list[torch.Tensor]:
    return programs[min(max(int(index.item()), 0), len(programs) - 1)](operands)


def _result(avals: Sequence[Aval], branches: Branches) -> Bundle:
    return bundle(branches[0].graph.out_avals)


def _vjp(cts: Any, needed: Any, index: Array, *rest: Any, branches: Branches) -> list[Array | None]:
    operands = rest[:-1]
    wanted, given = tuple(needed[1:]), tuple(ct is not None for ct in cts)
    count = len(cts)
    made = [pullback(b, wanted, given) for b in branches]
    derived, held = [_outputs_from(sub, count) for sub, _ in made], [arrays for _, arrays in made]
    pulled, numbers = lift_rule_numbers(derived, branches, "the derivative of switch", held)
    present = [ct for ct in cts if ct is not None]
    grads = iter(bind_all(switch_op, (index, *operands, *present, *numbers), (pulled,)))
    return [None, *[next(grads) if flag else None for flag in wanted]]


def _jvp(ts: Any, index: Array, *rest: Any, branches: Branches) -> list[Array | None]:
    operands = rest[:-1]
    moved = tuple(t is not None for t in ts[1:])
    wanted = _moving((False, *moved), branches)
    if not any(wanted):
        return [None] * len(wanted)
    made = [pushforward(b, moved, wanted) for b in branches]
    derived, held = [_outputs_from(sub, len(wanted)) for sub, _ in made], [arrays for _, arrays in made]
    pushed, numbers = lift_rule_numbers(derived, branches, "the tangents of switch", held)
    present = [t for t in ts[1:] if t is not None]
    results = iter(bind_all(switch_op, (index, *operands, *present, *numbers), (pushed,)))
    return [next(results) if flag else None for flag in wanted]


def _outputs_from(sub: Subgraph, first: int) -> Subgraph:
    return select(sub, range(first, len(sub.graph.outputs)))


def _batch(
    op: Op, size: int, batched: Sequence[bool], operands: Sequence[Array], branches: Branches
) -> list[tuple[Array, bool]]:
    flags = tuple(batched[1:])
    count = len(branches[0].graph.outputs)
    if not batched[0]:
        forced = (False,) * count
        while True:
            made = [batched_graph(b, size, flags, forced) for b in branches]
            reached = tuple(any(out[k] for _, out, _ in made) for k in range(count))
            if reached == forced or all(out == reached for _, out, _ in made):
                break
            forced = reached
        subs = [sub for sub, _, _ in made]
        common, numbers = lift_rule_numbers(subs, branches, "the batch of switch", [held for _, _, held in made])
        outs = bind_all(op, (*operands, *numbers), (common,))
        return list(zip(outs, reached, strict=True))
    # examples may take different branches, so compute all branches and select
    index = ops.clip(operands[0], 0, len(branches) - 1)
    rows = ops.arange(size, device=index.aval.device)
    made = [batched_graph(b, size, flags, (True,) * count) for b in branches]
    zero = lift("switch", 0)
    results = []
    for k, (sub, _, held) in enumerate(made):
        given = operands[1:]
        if any(floating(sub.graph.out_avals)) and not has_effects(sub.graph):
            given = _taken(index == k, flags, given)
        results.append(bind_all(op, (zero, *given, *held), ((sub,),)))
    return [
        (bind(index_op, (ops.stack(column), index, rows), ((0, 1),)), True) for column in zip(*results, strict=True)
    ]


def _taken(taken: Array, flags: Sequence[bool], operands: Sequence[Array]) -> list[Array]:
    """Return the operands of a branch that only some examples take.

    The other examples get the operands of an example that takes it. Their results are not selected, but must be finite,
    as must their derivatives: a cotangent of 0 times infinity is NaN.

    Args:
        taken: the examples that take the branch.
        flags: marks operands with the batch on axis 0.
    """
    one, any_taken = ops.argmax(taken), ops.any(taken)
    given = []
    for x, flag in zip(operands, flags, strict=True):
        held = ops.stop_gradient(x)
        if flag:
            mask = ops.reshape(taken, (-1, *[1] * (len(x.aval.shape) - 1)))
            given.append(ops.where(mask, x, held[one]))
        else:
            given.append(ops.where(any_taken, x, held) if x.aval.floating else x)
    return given


def _narrow(wanted: set[int], branches: Branches) -> tuple[tuple[Branches], list[int]]:
    kept = sorted(wanted)
    return (tuple(select(branch, kept) for branch in branches),), kept


def _moving(flags: Flags, branches: Branches) -> Flags:
    each = [reached_outputs(b, flags[1:]) for b in branches]
    return tuple([any(column) for column in zip(*each, strict=True)])


switch_op = define(
    "switch", params=("branches",), arity=None, branch=True, body=_run, result=_result, vjp=_vjp,
    jvp=_jvp, batch=_batch, narrow=_narrow, reached=_moving,
    elsewhere="test_control: a choice in Python, example by example",
)  # fmt: skip


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = NONE_GIVEN) -> Any:
    """Return ``branches[index](*operands)``. The index may be traced, and is clamped to the valid range.

    Only the selected branch runs. Under `vmap` with a batched index, all branches run, and each example selects one.

    Args:
        index: an integer scalar.
        branches: functions that return the same structure, shapes and dtypes.
        operands: pytrees of arrays.
        operand: the only operand, by name.

    Raises:
        ArgumentError: branches disagree; names both, and the leaf.

    >>> gt.switch(gt.array(1), [gt.sin, lambda x: x * 10], gt.array(2.0))
    Array(20., dtype=float32)
    """
    names = [f"branches[{k}]" for k in range(len(branches))]
    return _switch("switch", index, list(branches), names, _operands("switch", operands, operand))


def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any, operand: Any = NONE_GIVEN
) -> Any:
    """Return ``true_fun(*operands)`` if `pred` holds, else ``false_fun(*operands)``; `pred` may be traced.

    Args:
        pred: a boolean or number, 0-d.
        true_fun, false_fun: functions that return the same structure, shapes and dtypes.
        operand: the only operand, by name.

    Raises:
        ArgumentError: the functions disagree; names both, and the leaf.

    >>> gt.cond(gt.array(True), lambda x: x + 1, lambda x: x - 1, gt.array(5.0))
    Array(6., dtype=float32)
    """
    flag = lift("cond", pred)
    if flag.aval.shape:
        raise ShapeError(message("cond", "a scalar pred", repr(flag.aval), "Use gt.where, or gt.vmap over cond."))
    index = cast(flag if flag.aval.dtype is torch.bool else flag != 0, torch.int64)
    given = _operands("cond", operands, operand)
    return _switch("cond", index, [false_fun, true_fun], ["false_fun", "true_fun"], given)


def _operands(name: str, operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if operand is NONE_GIVEN:
        return operands
    if operands:
        raise ArgumentError(message(name, "operands by position or by name", "both", "Pass them by position."))
    return (operand,)


def _switch(name: str, index: Any, functions: list[Any], names: list[str], operands: tuple[Any, ...]) -> Any:
    if not functions:
        raise ArgumentError(message(name, "at least one branch", "none", "Pass a non-empty sequence."))
    place = lift(name, index)
    if place.aval.shape:
        raise ShapeError(message(name, "a scalar index", repr(place.aval), "Use gt.vmap over switch."))
    if place.aval.floating:
        raise DtypeError(message(name, "an integer index", repr(place.aval), "Use x.astype(gt.int64)."))
    place = cast(place, torch.int64)
    leaves, structure = lift_leaves(name, "operands", operands)
    if runs_in_python():
        given: Any = structure.unflatten(leaves)
        return branch_in_python(name, functions, place, given)
    avals = [x.aval for x in leaves]

    def captured(dtypes: Sequence[Any] | None = None, tokens: str = "if any") -> list[Any]:
        pairs = zip(names, functions, strict=True)
        return [capture_body(name, n, f, structure, avals, dtypes, tokens) for n, f in pairs]

    captures = captured()
    token = any(c.token for c in captures)
    if token and not all(c.token for c in captures):
        captures = captured(tokens="always")
    first = captures[-1]
    dtypes = None
    if any(c.graph.out_avals != first.graph.out_avals for c in captures):
        dtypes = _common(captures)
        captures = captured(dtypes)
        first = captures[-1]
    for n, c in zip(names, captures, strict=True):
        check_same(
            name,
            (names[-1], first.result, first.graph.out_avals),
            (n, c.result, c.graph.out_avals),
            "Return the same structure, shapes and dtypes from each.",
        )
    closure = Closure()
    for c in captures:
        closure.join(c)
    branches = tuple(closure.close(c, constants_first=False) for c in captures)
    out: tree.TreeDef | NoOutputs = NoOutputs(first.result) if token else first.result
    results = bind_all(switch_op, (place, *leaves, *closure.constants), (branches,))
    return out.unflatten(with_effects(results, *captures))


def _common(captures: Sequence[Any]) -> list[Any] | None:
    """Return a common dtype for each output of the branches; None if strong dtypes or the number of outputs differ."""
    columns = list(zip(*[c.graph.out_avals for c in captures], strict=False))
    if any(len(c.graph.out_avals) != len(columns) for c in captures):
        return None
    dtypes = []
    for column in columns:
        strong = {a.dtype for a in column if not a.weak}
        dtypes.append(strong.pop() if len(strong) == 1 else column[0].dtype if not strong else None)
    if any(dtype is None for dtype in dtypes):
        return None
    return dtypes
