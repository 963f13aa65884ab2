"""The primitive that reduces values at equal places by a product or an extremum."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.ir.wide_unsigned import flipped
from gtrace.core.ops.batching import align, places
from gtrace.core.ops.checks import same_kind
from gtrace.core.ops.counts import accumulator, over_count
from gtrace.core.ops.declare import Array, Op, Sample, bind, define, lift
from gtrace.core.ops.elementwise import add, multiply
from gtrace.core.ops.gather import index_op, index_put_op, update_reference
from gtrace.core.ops.join_split import flip, neighbours
from gtrace.core.ops.logic import equal, where
from gtrace.core.ops.operands import cast
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.shape import ravel, reshape
from gtrace.core.ops.sorting import argsort_op


def _scatter_impl(x: torch.Tensor, index: torch.Tensor, u: torch.Tensor, mode: str) -> torch.Tensor:
    return torch.scatter_reduce(x, 0, index, u, mode, include_self=True)


def _scatter_bits(x: torch.Tensor, index: torch.Tensor, u: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "prod":
        return _scatter_impl(x, index, u, mode)
    return flipped(_scatter_impl(flipped(x), index, flipped(u), mode))


def _chosen(values: Array, index: Array) -> Array:
    return bind(index_op, (values, index), ((0,),))


def _products_before(index: Array, u: Array) -> Array:
    """Return the product of the earlier values of the same place, for sorted places, by doubling."""
    distance, out = 1, where(equal(index, neighbours(index, 0, 1, -1)), neighbours(u, 0, 1, 1.0), 1.0)
    while distance < u.shape[0]:
        same = equal(index, neighbours(index, 0, distance, -1))
        out = multiply(out, where(same, neighbours(out, 0, distance, 1.0), 1.0))
        distance *= 2
    return out


def _other_factors(x: Array, index: Array, u: Array) -> Array:
    """Return, for each value, the product of what else is multiplied at its place.

    There is no division, so derivatives of any order are right where values are 0.
    """
    order = bind(argsort_op, (index,), (0, False))
    place, factors = _chosen(index, order), _chosen(u, order)
    behind = flip(_products_before(flip(place, 0), flip(factors, 0)), 0)
    others = multiply(_products_before(place, factors), behind)
    return multiply(_chosen(x, index), _chosen(others, bind(argsort_op, (order,), (0, False))))


def _scatter_vjp(ct: Array, needed: Any, x: Array, index: Array, u: Array, out: Array, mode: str) -> tuple[Any, ...]:
    if mode == "prod":
        into_u = multiply(_chosen(ct, index), _other_factors(x, index, u)) if needed[2] and u.size else None
        return bind(scatter_op, (ct, index, u), ("prod",)), None, into_u
    # all elements that attain the extremum share the derivative equally
    wide = accumulator(x)
    hit_x, hit_u = cast(equal(x, out), wide), cast(equal(u, _chosen(out, index)), wide)
    share = over_count(ct, bind(index_put_op, (hit_x, hit_u, index), ((0,), (False,), True)))
    into_x, into_u = multiply(cast(hit_x, x.aval.dtype), share), cast(hit_u, x.aval.dtype)
    return into_x, None, multiply(into_u, _chosen(share, index))


def _scatter_batch(op: Op, size: int, batched: Any, operands: Any, mode: str) -> Array:
    x, index, u = align(size, batched, operands)
    width = x.shape[1]
    offsets = multiply(reshape(places(size, x.aval.device), (size, 1)), width)
    return reshape(bind(op, (ravel(x), ravel(add(index, offsets)), ravel(u)), (mode,)), (size, width))


scatter_op = define(
    "scatter_reduce", _scatter_impl, params=("mode",), arity=3, indices=True, shape=same_kind, vjp=_scatter_vjp,
    batch=_scatter_batch, unsigned=_scatter_bits,
    samples=lambda: [Sample((uniform(0.5, 2, 5), numpy.array([0, 3, 3]), uniform(0.5, 2, 3, seed=1), name))
                     for name in ("multiply", "min", "max")]
    + [Sample((numpy.ones(3), numpy.array([0, 2, 2, 0, 2, 2]), numpy.array([0.0, 0.0, 2, 3, 0, 5]), "multiply"))],
    reference=update_reference, user=lambda x, index, u, name: getattr(lift("at", x).at[index], name)(u),
    keeps=slice(1),
)  # fmt: skip
