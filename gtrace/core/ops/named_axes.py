"""Operations over the named axis of an enclosing `vmap`: sums, extremes, gathers and permutations of its examples.

They belong to the program of one example. The vmap with that name replaces them when it batches the program
(`Rules.named`); other vmaps keep them. `Op.impl` computes the result for an axis with one example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from gtrace.core.ops import reduce
from gtrace.core.ops.batching import places, spread, unchanged
from gtrace.core.ops.checks import reshaped, same_kind
from gtrace.core.ops.counts import accumulator, unshortened
from gtrace.core.ops.declare import Array, Op, Sample, aval, bind, define, lift
from gtrace.core.ops.elementwise import divide, multiply
from gtrace.core.ops.gather import index_op
from gtrace.core.ops.join_split import concat, slice_bounds
from gtrace.core.ops.logic import equal
from gtrace.core.ops.operands import cast
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.shape import constant, moveaxis

Perm = tuple[tuple[int, int], ...]

_PARAMS = ("axis_name", "axis_size")
_ONE = ("i", 1)


def _samples() -> list[Sample]:
    return [Sample((uniform(-2, 2, 3, 4),)), Sample((uniform(-2, 2),))]


# -- sums and extremes


def _psum_named(size: int, batched: Sequence[bool], operands: Sequence[Array], **axis: Any) -> tuple[Array, bool]:
    (x,) = operands
    return (
        reduce.sum(x, 0, dtype=x.aval.dtype) if batched[0] else cast(multiply(unshortened(x), size), x.aval.dtype)
    ), False


psum_op = define(
    "psum", lambda x, axis_name, axis_size: x.clone(), params=_PARAMS, shape=same_kind, linear=True,
    vjp=lambda ct, needed, x, out, **axis: (bind(psum_op, (ct,), tuple(axis.values())),),
    batch=unchanged, named=_psum_named, samples=_samples, reference=lambda x: x,
    user=lambda x: bind(psum_op, (lift("psum", x),), _ONE),
)  # fmt: skip


def _extreme_vjp(ct: Array, needed: Any, x: Array, out: Array, **axis: Any) -> tuple[Array]:
    # all examples that attain the extreme share the derivative equally
    params = tuple(axis.values())
    hit = equal(x, out)
    total, ties = bind(psum_op, (unshortened(ct),), params), bind(psum_op, (cast(hit, accumulator(x)),), params)
    return (multiply(cast(hit, x.aval.dtype), cast(divide(total, ties), x.aval.dtype)),)


def _extreme(name: str, over: Any) -> Op:
    def named(size: int, batched: Sequence[bool], operands: Sequence[Array], **axis: Any) -> tuple[Array, bool]:
        return (over(operands[0], 0) if batched[0] else operands[0]), False

    op: Op = define(
        name, lambda x, axis_name, axis_size: x.clone(), params=_PARAMS, shape=same_kind, vjp=_extreme_vjp,
        batch=unchanged, named=named, samples=_samples, reference=lambda x: x,
        user=lambda x: bind(op, (lift(name, x),), _ONE),
    )  # fmt: skip
    return op


pmax_op = _extreme("pmax", reduce.max)
pmin_op = _extreme("pmin", reduce.min)

# -- indices and elements of other examples


axis_index_op = define(
    "axis_index", lambda axis_name, axis_size, device: torch.zeros((), dtype=torch.int64, device=device),
    params=(*_PARAMS, "device"), arity=0, nondiff="it has no operand",
    named=lambda size, batched, operands, axis_name, axis_size, device: (places(size, torch.device(device)), True),
    span=lambda avals, spans, axis_name, axis_size, device: (0, axis_size - 1),
    samples=lambda: [Sample(())], reference=lambda: numpy.int64(0),
    user=lambda: bind(axis_index_op, (), (*_ONE, "cpu")),
)  # fmt: skip


def _gather_vjp(ct: Array, needed: Any, x: Array, out: Array, **axis: Any) -> tuple[Array]:
    params = tuple(axis.values())
    own = bind(axis_index_op, (), (*params, str(x.aval.device)))
    return (bind(index_op, (bind(psum_op, (ct,), params), own), ((0,),)),)


all_gather_op = define(
    "all_gather", lambda x, axis_name, axis_size: x.unsqueeze(0).expand(axis_size, *x.shape), params=_PARAMS,
    shape=lambda avals, axis_name, axis_size: reshaped(avals[0], (axis_size, *avals[0].shape)),
    vjp=_gather_vjp, linear=True,
    batch=lambda op, size, batched, operands, **axis: moveaxis(bind(op, operands, tuple(axis.values())), 1, 0),
    named=lambda size, batched, operands, **axis: (operands[0] if batched[0] else spread(operands[0], size), False),
    samples=_samples, reference=lambda x: x[None], user=lambda x: bind(all_gather_op, (lift("all_gather", x),), _ONE),
)  # fmt: skip


def _permute_vjp(ct: Array, needed: Any, x: Array, out: Array, perm: Perm, **axis: Any) -> tuple[Array]:
    back = tuple((to, source) for source, to in perm)
    return (bind(ppermute_op, (ct,), (*axis.values(), back)),)


def _permute_named(
    size: int, batched: Sequence[bool], operands: Sequence[Array], perm: Perm, **axis: Any
) -> tuple[Array, bool]:
    x = operands[0] if batched[0] else spread(operands[0], size)
    sources: list[int | None] = [None] * size
    for source, to in perm:
        sources[to] = source
    # a body cannot use outside arrays, so it slices runs of neighbours instead of a gather
    parts: list[Array] = []
    start = 0
    while start < size:
        first, stop = sources[start], start + 1
        while stop < size and sources[stop] == (None if first is None else first + stop - start):
            stop += 1
        if first is None:
            a = x.aval
            parts.append(constant(0, aval((stop - start, *a.shape[1:]), a.dtype, a.device)))
        else:
            parts.append(slice_bounds(x, ((first, first + stop - start, 1), *((0, n, 1) for n in x.shape[1:]))))
        start = stop
    return (parts[0] if len(parts) == 1 else concat(parts, 0)), True


ppermute_op = define(
    "ppermute", lambda x, axis_name, axis_size, perm: x.clone() if perm else torch.zeros_like(x),
    params=(*_PARAMS, "perm"), shape=same_kind, vjp=_permute_vjp, linear=True, batch=unchanged, named=_permute_named,
    samples=_samples, reference=lambda x: x,
    user=lambda x: bind(ppermute_op, (lift("ppermute", x),), (*_ONE, ((0, 0),))),
)  # fmt: skip
