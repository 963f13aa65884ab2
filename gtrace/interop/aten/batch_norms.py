"""Batch norms without tracing: calls of torch's kernels, and handwritten rules; see `handwritten_layers`.

The Jacobian of a normalized channel is a symmetric matrix. So the gradient kernel also computes forward derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core import ops
from gtrace.core.backends.interpreter.batch_norms import statistics_dtype
from gtrace.core.base.dtypes import FLOATS
from gtrace.core.base.errors import DtypeError, message
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle
from gtrace.core.ops.operands import cast
from gtrace.core.trace.array import Array
from gtrace.interop.aten.batched_windows import as_channels, as_images, batch_size, of_channels, whole
from gtrace.interop.aten.handwritten_layers import Pullback, Tangent
from gtrace.interop.aten.overloads import OPERAND
from gtrace.interop.aten.translate import call_aten

TRAINING = "aten._native_batch_norm_legit_functional.default"
WITHOUT_STATISTICS = "aten._native_batch_norm_legit.no_stats"
EVALUATION = "aten._native_batch_norm_legit_no_training.default"
BACKWARD = "aten.native_batch_norm_backward.default"

_CHANNELS = {TRAINING: 5, WITHOUT_STATISTICS: 3, EVALUATION: 5, BACKWARD: 7}
"""How many of the first arguments are operands, each of which may be None."""


def _filled(overload: str, args: tuple[Any, ...], values: Sequence[Any]) -> list[Any]:
    """Return the operand arguments, with None for missing ones."""
    rest = iter(values)
    return [None if entry is None else next(rest) for entry in args[: _CHANNELS[overload]]]


def _call(overload: str, values: Sequence[Array | None], *constants: Any) -> list[Array]:
    entries = tuple([None if x is None else OPERAND for x in values])
    found: list[Array] = call_aten(overload, (*entries, *constants), [x for x in values if x is not None])
    return found


def _statistics(
    overload: str, args: tuple[Any, ...], operands: Sequence[Array]
) -> tuple[tuple[Array | None, ...], bool]:
    """Return the statistics for the gradient kernel, running or of the batch, and which of the two they are."""
    if overload == EVALUATION or not args[_CHANNELS[overload]]:
        return (*operands[-2:], None, None), False
    return (None, None, *call_aten(overload, args, operands)[1:3]), True


def _pullback(
    overload: str, cts: Sequence[Array | None], needed: Sequence[bool], operands: Sequence[Array], args: tuple[Any, ...]
) -> list[Array | None] | None:
    """Return the cotangents by torch's kernel. As in torch, running statistics have none."""
    if cts[0] is None or any(ct is not None for ct in cts[1:]):
        return None
    x, weight, *_ = _filled(overload, args, operands)
    wanted = tuple([bool(need) for need in _filled(overload, args, needed)[:3]])
    found: list[Array | None] = [None] * len(operands)
    if not any(wanted):
        return found
    statistics, train = _statistics(overload, args, operands)
    results = iter(_call(BACKWARD, [cts[0], x, weight, *statistics], train, args[-1], wanted))
    for place, need in enumerate(needed[: sum(entry is not None for entry in args[:3])]):
        found[place] = next(results) if need else None
    return found


def _tangent(
    tangents: Sequence[Array | None], operands: Sequence[Array], out: Array, overload: str, args: tuple[Any, ...]
) -> list[Array | None]:
    x, weight, _, *running = _filled(overload, args, operands)
    of_x, of_weight, of_bias, *_ = _filled(overload, args, tangents)
    terms = []
    if of_x is not None:
        statistics, train = _statistics(overload, args, operands)
        terms += _call(BACKWARD, [of_x, x, weight, *statistics], train, args[-1], (True, False, False))
    if of_weight is not None:
        constants = args[_CHANNELS[overload] :]
        terms.append(_call(overload, [x, of_weight, of_bias, *running], *constants)[0])
    elif of_bias is not None:
        by_channel = ops.reshape(of_bias, (-1, *(1 for _ in x.shape[2:])))
        terms.append(cast(ops.broadcast_to(by_channel, x.shape), x.aval.dtype))
    # as in torch, the statistics have none
    moved = functools.reduce(ops.add, terms) if terms else None
    return [moved, *[None] * (4 if overload == TRAINING else 2)]


def _batch(overload: str, args: tuple[Any, ...], batched: Sequence[bool], operands: Sequence[Array]) -> Any:
    """Return the results for a batch. Examples become additional channels or, in evaluation, additional images."""
    size = batch_size(batched, operands)
    if overload == EVALUATION and not any(batched[1:]):
        out, *rest = call_aten(overload, args, [as_images(operands[0]), *operands[1:]])
        return [(ops.reshape(out, operands[0].shape), True), *[(x, False) for x in rest]]
    images = 2 if overload == BACKWARD else 1
    given = [whole(x, flag, size) for x, flag in zip(operands, batched, strict=True)]
    given = [as_channels(x) if k < images else ops.reshape(x, (-1,)) for k, x in enumerate(given)]

    def split(x: Array) -> Array:
        return of_channels(x, size) if x.ndim > 1 else ops.reshape(x, (size, x.size // size))

    return [(split(x), True) for x in call_aten(overload, args, given)]


def _type(overload: str, avals: Sequence[Aval], args: tuple[Any, ...]) -> Bundle | None:
    """Return the types on devices other than the CPU, whose types are in `layer_types`; None: no rule applies.

    Raises:
        DtypeError: the parameters differ from x in dtype, and are not float32 beside an x of 16 bits.
    """
    values = _filled(overload, args, avals)
    x, parameters = (values[1], values[2:]) if overload == BACKWARD else (values[0], values[1:])
    found = {a.dtype for a in parameters if a is not None}
    if x.dtype not in FLOATS or (not found <= {x.dtype} and (x.dtype.itemsize > 2 or found != {torch.float32})):
        expected = "floats of one dtype, or x of 16 bits and the rest in float32"
        raise DtypeError(message("batch_norm", expected, ", ".join(map(str, avals)), "Cast x or the module."))
    if x.device.type in ("cpu", "meta"):
        return None
    channels = x.shape[1:2]
    if overload == BACKWARD:
        own = parameters[0].dtype if parameters[0] is not None else x.dtype
        shapes = (x.shape, x.dtype), (channels, own), (channels, own)
        kept = [one for one, want in zip(shapes, args[-1], strict=True) if want]
    else:
        statistics = channels, statistics_dtype(x, parameters)
        running = [(a.shape, a.dtype) for a in values[3:5]] if overload == TRAINING else []
        kept = [(x.shape, x.dtype), statistics, statistics, *running]
    return bundle(tuple([aval(shape, dtype, x.device) for shape, dtype in kept]))


TYPES: dict[str, Callable[[Sequence[Aval], tuple[Any, ...]], Bundle | None]] = {
    name: functools.partial(_type, name) for name in _CHANNELS
}
PULLBACKS: dict[str, Pullback] = {
    name: functools.partial(_pullback, name) for name in (TRAINING, WITHOUT_STATISTICS, EVALUATION)
}
TANGENTS: dict[str, Tangent] = dict.fromkeys((TRAINING, WITHOUT_STATISTICS, EVALUATION), _tangent)
BATCHES: dict[str, Callable[..., Any]] = dict.fromkeys(_CHANNELS, _batch)
