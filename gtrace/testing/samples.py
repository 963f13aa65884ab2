"""How any other operation is drawn: with the attributes and types with which its samples use it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.devices import CPU
from gtrace.core.base.errors import GtraceError
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.cases import Sample
from gtrace.core.ir.graph import Operand, Scalar
from gtrace.core.ir.op import Op, Params
from gtrace.core.trace.capture import capture
from gtrace.testing.nodes import FLOAT_SCALARS, Unfinished
from gtrace.testing.require import st


def fits_a_sample(op: Op, graph: Unfinished, a: Aval) -> bool:
    return bool(_choices(op, graph, a))


def as_in_a_sample(op: Op, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    params, kinds = draw(st.sampled_from(_choices(op, graph, graph.avals[x])))
    return graph.add(op.name, [_value_of(draw, graph, x, a) for a in kinds], params)


def _choices(op: Op, graph: Unfinished, a: Aval) -> list[tuple[Params, tuple[Aval, ...]]]:
    """Return attributes and operand avals of an operation whose floats have the dtype of `a`, if that is floating."""
    if not (a.floating or not graph.continuous):
        return []
    dtype = a.dtype if a.floating else next((d for d in graph.dtypes if d.is_floating_point), None)
    found = []
    for params, kinds in sampled(op):
        if dtype is None and any(kind.floating for kind in kinds):
            continue
        cast = tuple(
            aval(kind.shape, dtype if kind.floating and dtype is not None else kind.dtype, weak=kind.weak)
            for kind in kinds
        )
        try:
            out = op.instr(params, cast).aval
        except GtraceError:
            continue
        if out.dtype in graph.dtypes or not out.floating:
            found.append((params, cast))
    return found


def _value_of(draw: st.DrawFn, graph: Unfinished, x: int, a: Aval) -> Operand:
    """Draw a value of an aval, or make one: of `x`, or of a scalar. An index must be in range: it is always made."""
    if a.weak and not a.shape:
        return Scalar(0 if not a.floating else draw(st.sampled_from(FLOAT_SCALARS)), a)
    if a.floating:
        known = graph.where(lambda b: b is a)
        if known:
            return draw(st.sampled_from(known))
        own = graph.avals[x]
        if own.dtype is a.dtype and len(own.shape) <= len(a.shape) and _stretches(own.shape, a.shape):
            return graph.add("broadcast_to", [x], (a.shape,))
    number: Any = draw(st.sampled_from(FLOAT_SCALARS)) if a.floating else a.dtype is torch.bool
    scalar = Scalar(number if a.floating or a.dtype is torch.bool else 0, aval((), a.dtype, weak=True))
    return graph.add("full", [scalar], (a.shape, str(CPU)))


def _stretches(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m in (n, 1) for m, n in zip(reversed(a), reversed(b), strict=False))


@functools.cache
def sampled(op: Op) -> tuple[tuple[Params, tuple[Aval, ...]], ...]:
    """Return the attributes and operand avals with which the samples of an operation record it."""
    found: dict[tuple[Params, tuple[Aval, ...]], None] = {}
    for sample in op.cases.samples() if op.cases.samples is not None else []:
        call = caller(op, sample)
        avals = [ops.array(x).aval for x in arrays_in(list(sample.args))]
        recorded = capture(lambda given, call=call: (tree.leaves(call(*given)), None), avals, op.name)  # type: ignore[misc]
        for node in recorded.graph.nodes:
            if node.op is op:
                found[node.params, node.instr.ins] = None
    return tuple(found)


def arrays_in(value: Any) -> Iterator[numpy.ndarray]:
    """Iterate over the arrays in an argument, or in nested lists and tuples of arguments."""
    if isinstance(value, numpy.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_in(item)


def map_arrays(function: Callable[[numpy.ndarray], Any], value: Any) -> Any:
    """Return an argument, or nested lists and tuples of them, with each array replaced."""
    if isinstance(value, numpy.ndarray):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_arrays(function, item) for item in value)
    return value


def caller(op: Op, sample: Sample) -> Callable[..., Any]:
    """Return the call that a sample is as a function of its arrays."""

    def call(*values: Any) -> Any:
        rest = iter(values)
        assert op.cases.user is not None
        return op.cases.user(*map_arrays(lambda _: next(rest), list(sample.args)), **sample.kwargs)

    return call
