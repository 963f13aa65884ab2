"""Correlation of a sequence with a shorter one."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ShapeError, message
from gtrace.core.ir.sharding_rule import Factors
from gtrace.core.ops.batching import align
from gtrace.core.ops.checks import no_booleans, reshaped
from gtrace.core.ops.declare import Array, Aval, BadSample, Sample, bind, define
from gtrace.core.ops.join_split import flip
from gtrace.core.ops.operands import promote_arrays
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.shape import reshape


def _impl(x: torch.Tensor, y: torch.Tensor, pad: int) -> torch.Tensor:
    if not x.is_floating_point() or not x.shape[0]:  # torch convolves only floats, and at least one sequence
        windows = torch.nn.functional.pad(x, (pad, pad)).unfold(-1, y.shape[-1], 1)
        return (windows * y.unsqueeze(-2)).sum(-1, dtype=x.dtype)
    kernels = y.unsqueeze(1)
    return torch.nn.functional.conv1d(x.unsqueeze(0), kernels, padding=pad, groups=y.shape[0]).squeeze(0)


def _check(op: str, avals: tuple[Aval, ...], pad: int) -> None:
    no_booleans(op, avals)
    x, y = avals
    if not x.shape[1] or not y.shape[1] or x.shape[1] + 2 * pad < y.shape[1]:
        raise ShapeError(message("correlate", "sequences with elements, the second the shorter", (x, y), "Swap them."))


def _vjp(ct: Array, needed: Any, x: Array, y: Array, out: Array, pad: int) -> tuple[Array | None, Array | None]:
    gx = bind(_op, (ct, flip(y, 1)), (y.shape[1] - 1 - pad,)) if needed[0] else None
    return gx, bind(_op, (x, ct), (pad,)) if needed[1] else None


def _batch(op: Any, size: int, batched: Any, operands: Any, pad: int) -> Array:
    x, y = align(size, batched, operands)
    rows = x.shape[1]
    out = bind(op, tuple(reshape(z, (size * rows, z.shape[2])) for z in (x, y)), (pad,))
    return reshape(out, (size, rows, out.shape[1]))


_op = define(
    "correlate", _impl, params=("pad",), arity=2, check=_check, vjp=_vjp,
    contraction=lambda avals, out, pad: out.size * avals[1].shape[1],
    shape=lambda avals, pad: reshaped(
        avals[0], (avals[0].shape[0], avals[0].shape[1] + 2 * pad - avals[1].shape[1] + 1)
    ),
    multilinear=True, batch=_batch, factors=lambda avals, pad: Factors("a.,a.->a."),
    samples=lambda: [Sample((uniform(-2, 2, 7), uniform(-2, 2, 3, seed=1)), {"pad": pad}) for pad in (0, 2, 1)]
    + [Sample((numpy.arange(5), numpy.array([1, -1])), {"pad": 1})],
    errors=lambda: [BadSample((numpy.ones(2), numpy.ones(3)), {"pad": 0}, ShapeError, r"shorter")],
    reference=lambda x, y, pad: numpy.correlate(numpy.pad(x, pad), y, "valid"),
    user=lambda x, y, pad: correlate_padded(x, y, pad),
    keeps=slice(None),
)  # fmt: skip


def correlate_padded(x: Any, y: Any, pad: int) -> Array:
    """Return the correlation of x, with `pad` zeros on both sides, and y: result[k] is the sum over j of
    x[k + j - pad] * y[j].

    Args:
        x, y: one-dimensional.
        pad: less than the size of y.
    """
    x, y = promote_arrays("correlate", x, y)
    return reshape(bind(_op, (reshape(x, (1, x.size)), reshape(y, (1, y.size))), (pad,)), (-1,))
