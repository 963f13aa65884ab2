"""Forward mode: ``jvp`` and ``linearize``.

The function runs once on fresh Arrays while the trace keeps a tape, as for gradients. Then tangents walk the tape
forwards. An operation without a rule for tangents gets one by transposing its vector-Jacobian product, which is linear
in the cotangent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gtrace.core import ops
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.graph import Graph, Scalar
from gtrace.core.ir.op import Instr
from gtrace.core.ops.elementwise import neg
from gtrace.core.ops.operands import weak_like, with_avals
from gtrace.core.ops.shape import constant
from gtrace.core.passes.partial_eval import partial_eval
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind
from gtrace.core.trace.capture import capture, replay
from gtrace.core.trace.promotion import rule
from gtrace.core.trace.record import thread, thread_has
from gtrace.core.transform.arguments import ArrayCall, empty_like
from gtrace.core.transform.tape import Tape, pull, record, run_taped

__all__ = ["jvp", "linearize"]


def push(tape: Tape, outputs: Sequence[Array], tangents: Sequence[Array | None]) -> list[Array]:
    """Walk the tape forwards; return the tangents of `outputs`, given those of its inputs (None: zero)."""
    found: dict[int, Any] = {id(x): t for x, t in zip(tape.inputs, tangents, strict=True) if t is not None}
    for instr, operands, out in tape.entries:
        if instr.op.projection:
            several = found.get(id(operands[0]))
            t = None if several is None else several[instr.index]
        else:
            ts = [found.get(id(x)) for x in operands]
            if not instr.aval.floating or instr.op.rules.nondiff is not None or all(t is None for t in ts):
                continue
            with rule():
                t = tangent(instr, operands, out, ts)
        if t is not None:
            found[id(out)] = t
    return [found[id(x)] if id(x) in found else constant(0.0, x.aval) for x in outputs]


def tangent(instr: Instr, operands: Sequence[Any], out: Array, ts: Sequence[Array | None]) -> Any:
    """Return the tangent of an operation's result, or a list of tangents if it has several results."""
    op, params = instr.op, instr.params
    values = [x.value if x.__class__ is Scalar else x for x in operands]
    attributes = dict(zip(op.params, params, strict=True))
    if op.rules.jvp is not None:
        t = op.rules.jvp(ts, *values, out, **attributes)
        return _transposed(instr, operands, values, out, ts) if t is NotImplemented else t
    if op.rules.linear:
        moved = list(operands)
        for k in op.rules.linear if isinstance(op.rules.linear, tuple) else range(len(operands)):
            moved[k] = _or_zero(ts[k], operands[k])
        t = bind(op, moved, params)
    elif op.rules.partials is not None or op.rules.multilinear:
        total: Array | None = None
        for k, each in enumerate(ts):
            if each is None:
                continue
            if op.rules.partials is None:
                term = bind(op, [*operands[:k], each, *operands[k + 1 :]], params)
            else:
                partial = op.rules.partials[k](*values, out, **attributes)
                term = (
                    ops.multiply(each, partial) if partial.__class__ is not int else each if partial == 1 else neg(each)
                )
            total = term if total is None else ops.add(total, term)
        assert total is not None
        t = total
    else:
        return _transposed(instr, operands, values, out, ts)
    return t if t.aval.shape == out.aval.shape else ops.broadcast_to(t, out.aval.shape)


def _or_zero(t: Array | None, x: Any) -> Any:
    return t if t is not None else Scalar(type(x.value)(0), x.aval) if x.__class__ is Scalar else constant(0.0, x.aval)


def _transposed(
    instr: Instr, operands: Sequence[Any], values: Sequence[Any], out: Array, ts: Sequence[Array | None]
) -> Any:
    """Return the tangent by transposing the operation's vector-Jacobian product."""
    op = instr.op
    assert op.rules.vjp is not None
    pullback = op.rules.vjp
    several = instr.aval.__class__ is Bundle
    avals = instr.aval.avals if several else (instr.aval,)
    floating = [k for k, a in enumerate(avals) if a.floating]
    zeros = [constant(0.0, avals[k]) for k in floating]
    if thread.deferred is not None and instr.plain is not None:
        thread.deferred.append(op.name)
        return [constant(0.0, a) if a.floating else None for a in avals]
    needed = [t is not None for t in ts]

    def run(cts: list[Array]) -> Any:
        ct: Any = cts[0]
        if several:
            ct = [None] * len(avals)
            for k, c in zip(floating, cts, strict=True):
                ct[k] = c
        return pullback(ct, needed, *values, out, **dict(zip(op.params, instr.params, strict=True)))

    grads, tape = record(zeros, run)
    pairs = [(g, t) for g, t in zip(grads, ts, strict=True) if g is not None and t is not None]
    with thread_has(linear=True):
        results = pull(tape, [g for g, _ in pairs], [t for _, t in pairs])
    if not several:
        return results[0]
    all_results: list[Array | None] = [None] * len(avals)
    for k, t in zip(floating, results, strict=True):
        all_results[k] = t
    return all_results


# -- user functions


def _taped(
    name: str, f: Callable[..., Any], primals: Any, has_aux: bool
) -> tuple[ArrayCall, list[Array], Any, Tape, Any]:
    if not isinstance(primals, (tuple, list)):
        got = type(primals).__name__
        raise ArgumentError(message(name, "a tuple of primals", got, "One for each argument, such as (x,)."))
    call = ArrayCall(name, f, tuple(range(len(primals))), tuple(primals), {}, integers=True)
    return call, *run_taped(name, call, has_aux)


def _tangents(found: Sequence[Array], avals: Sequence[Aval]) -> list[Any]:
    """Return tangents that are as weak as the outputs; those of integers have the dtype ``float0``."""
    tangents = weak_like(found, avals)
    return [x if a.floating else empty_like(x) for x, a in zip(tangents, avals, strict=True)]


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """Return f(*primals) and its derivative in the direction `tangents`.

    Args:
        primals: a tuple of the arguments of `f`: pytrees of floating or complex arrays, integers and bools.
        tangents: the same structure, shapes and dtypes; those of integers and bools are NumPy arrays of ``float0``.
        has_aux: `f` returns (output, aux), and aux is a third result.

    Returns:
        (output, tangent of the output). That of integers and bools has the dtype ``float0``.

    Raises:
        ArgumentError: the tangents do not match the primals; names the key path.

    >>> gt.jvp(lambda x: x ** 3, (2.0,), (1.0,))
    (Array(8., dtype=float32), Array(12., dtype=float32))
    """
    call, outputs, structure, tape, aux = _taped("jvp", f, primals, has_aux)
    ts = call.tangents("jvp", tuple(tangents))
    moved = structure.unflatten(_tangents(push(tape, outputs, ts), [x.aval for x in outputs]))
    value = structure.unflatten(outputs)
    return (value, moved, aux) if has_aux else (value, moved)


def linearize(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return f(*primals) and the linear function from tangents of the primals to the tangent of the output.

    The part that does not depend on the tangents runs once, here; the linear function reuses it. Rules of `custom_vjp`
    are transposed when the linear function is called. A rule without a transpose raises then.

    >>> y, push = gt.linearize(lambda x: x ** 3, 2.0)
    >>> push(1.0), push(10.0)
    (Array(12., dtype=float32), Array(120., dtype=float32))
    """
    call, outputs, structure, tape, aux = _taped("linearize", f, primals, has_aux)
    inputs, avals = [x.aval for x in call.inputs], [x.aval for x in outputs]

    def split(deferred: list[str] | None) -> tuple[Graph, list[Array]] | None:
        """Return the linear part, and what it takes from the other part; None if something was deferred."""
        what = "the linear part of linearize"
        with thread_has(deferred=deferred):
            captured = capture(lambda ts: (push(tape, outputs, ts), None), inputs, what, repeated=True)
        if deferred:
            return None
        known, linear = captured.derived(
            ("linearize", len(inputs)), lambda: partial_eval(captured.graph, captured.graph.inputs[len(inputs) :])
        )
        return linear, replay(known, captured.constants)

    first = split([])

    def pushforward(*tangents: Any) -> Any:
        ts = with_avals(call.tangents("linearize", tangents), inputs)
        found = first or split(None)
        assert found is not None  # nothing is deferred now
        linear, residuals = found
        return structure.unflatten(_tangents(replay(linear, (*ts, *residuals)), avals))

    value = structure.unflatten(outputs)
    return (value, pushforward, aux) if has_aux else (value, pushforward)
