"""The operation ``aten``: any pure torch operator, with rules derived from torch by tracing.

Its attributes are text, so its programs can be printed, parsed, signed and compiled in another process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from gtrace.core.backends.interpreter.batch_norms import KERNELS
from gtrace.core.backends.interpreter.remainders import OVERLOADS as REMAINDERS
from gtrace.core.backends.interpreter.row_indexing import add_rows, adds_rows, choose_rows, chooses_rows
from gtrace.core.backends.interpreter.short_sums import INDEX_PUT, SUMS, rounded_once
from gtrace.core.base.dtypes import COMPLEX, WIDE_UNSIGNED
from gtrace.core.base.errors import DtypeError, ShapeError, message
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle, parse_type
from gtrace.core.ir.cases import Sample
from gtrace.core.ir.infer import require_kernel
from gtrace.core.ir.op import define
from gtrace.core.ops.shape import full_like_scalar
from gtrace.core.passes.channels_last import NORMS, channels_last
from gtrace.core.trace.array import Array
from gtrace.interop.aten import derived_rules
from gtrace.interop.aten.call_types import results_on_meta
from gtrace.interop.aten.decompose import ALTERNATIVES, FLASH, TOGETHER, TRANSPOSED, attention
from gtrace.interop.aten.derived_on_disk import derivations
from gtrace.interop.aten.handwritten_layers import NORM
from gtrace.interop.aten.overloads import OPERAND, caller, fake_tensors, find_overload, new_caller, of_torch
from gtrace.interop.aten.rule_tables import BATCHES, PULLBACKS, TANGENTS, TYPES
from gtrace.interop.aten.translate import call_aten


def _call(*tensors: torch.Tensor, overload: str, args: tuple[Any, ...]) -> Any:
    try:
        hash(args)
    except TypeError:  # open sizes are symbols, which have no hash
        return _rounding(overload, args, new_caller)(*tensors)
    return _rounding(overload, args, caller)(*tensors)


def _rounding(
    overload: str, args: tuple[Any, ...], called: Callable[..., Callable[..., Any]], **options: Any
) -> Callable[..., Any]:
    """Return the call of an overload. Sums of 16-bit floats are rounded once, which torch's kernels may not do.

    Remainders are exact for all numbers, and batch norms for images in any layout.
    """
    options["instead"] = REMAINDERS.get(overload) or KERNELS.get(overload)
    call = channels_last(overload, args, functools.partial(called, overload, **options))
    sums = overload in SUMS or (overload == INDEX_PUT and args[3:] == (True,))
    return rounded_once(call) if sums else call


def _direct(avals: tuple[Aval, ...], overload: str, args: tuple[Any, ...]) -> Callable[..., Any]:
    if overload == "aten.index.Tensor" and args == (OPERAND, (OPERAND,)) and chooses_rows(*avals):
        return choose_rows
    if overload == INDEX_PUT and args == (OPERAND, (OPERAND,), OPERAND, True):
        x, index, u = avals
        if adds_rows(x, u, index):
            return lambda x, index, u: add_rows(x, u, index)
    return _rounding(overload, args, caller, as_given=overload in NORMS)


def _result(avals: tuple[Aval, ...], overload: str, args: tuple[Any, ...]) -> Aval | Bundle:
    written = TYPES.get(overload)
    found = None if written is None else written(avals, args)
    by_rule = found is not None
    key = "type", overload, args, avals
    if found is None:
        kept = derivations.find(key, parse_type) if of_torch(overload) else None
        if kept is not None:
            return kept
        found = _type_on_meta(avals, overload, args) or _type(avals, overload, args)
    dtypes = {a.dtype for a in avals}
    # on the CPU many operators have kernels for float32 and float64 only
    only_others = dtypes and dtypes.isdisjoint((torch.float32, torch.float64)) and avals[0].device.type == "cpu"
    if only_others or not dtypes.isdisjoint(COMPLEX | WIDE_UNSIGNED):
        require_kernel(aten, (overload, args), avals, {"overload": overload, "args": args})
    if of_torch(overload) and not by_rule:
        derivations.keep(key, repr(found))
    return found


def _type_on_meta(avals: tuple[Aval, ...], overload: str, args: tuple[Any, ...]) -> Aval | Bundle | None:
    """Return the type of a call by torch's meta tensors; None if they cannot tell.

    Fake tensors know more, such as devices. But the first one imports much of torch, which takes a second.
    """
    function, asked = find_overload(overload), [None]

    def on_meta(*values: Any, **named: Any) -> Any:
        asked.append(named.get("device"))
        return results_on_meta(function, values, named)

    operands = [torch.empty(a.shape, dtype=a.dtype, device="meta") for a in avals]
    try:
        with torch.no_grad():
            found = new_caller(overload, args, on_meta)(*operands)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return None
    devices = [asked[-1], *[a.device for a in avals if a.shape], *[a.device for a in avals]]
    return _type_of(found, next((d for d in devices if d is not None), torch.get_default_device()))


def _type_of(result: Any, device: torch.device | None = None) -> Aval | Bundle:
    """Return the type of a tensor or a list of tensors, for another device if given."""
    if isinstance(result, torch.Tensor):
        return aval(tuple(result.shape), result.dtype, device or result.device)
    return bundle(tuple([aval(tuple(t.shape), t.dtype, device or t.device) for t in result]))


def _type(avals: tuple[Aval, ...], overload: str, args: tuple[Any, ...]) -> Aval | Bundle:
    """Return the type of a call by torch's fake tensors.

    Raises:
        DtypeError, ShapeError: torch rejects the operands.
    """
    call = caller(overload, args)
    try:
        with fake_tensors(avals) as fakes, torch.no_grad():
            return _type_of(call(*fakes))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        got = ", ".join(map(str, avals))
        reason = str(error).strip().split("\n")[0]
        kind = DtypeError if re.search("dtype|not implemented for|cast to type|scalar type", reason) else ShapeError
        raise kind(message(overload, "operands that fit", got, f"torch says: {reason}")) from error


def _vjp(ct: Any, needed: Sequence[bool], *rest: Any, overload: str, args: tuple[Any, ...]) -> list[Array | None]:
    if any(ct[k] is not None for k in TOGETHER.get(overload, ())):
        ct = [_zeros(a) if c is None else c for c, a in zip(ct, rest[-1].aval.avals, strict=True)]
    written = PULLBACKS.get(overload)
    if written is not None:
        found = written(ct, needed, rest[:-1], args)
        if found is not None:
            return found
    instead = ALTERNATIVES.get(("vjp", overload))
    if overload == FLASH and any(needed[3:]):
        instead = attention
    return derived_rules.vjp(derived_rules.OperatorCall(overload, args, instead), ct, needed, rest[:-1])


def _zeros(a: Aval) -> Array:
    return full_like_scalar(0, a.dtype, a.shape, a.device)


def _jvp(tangents: Sequence[Array | None], *rest: Any, overload: str, args: tuple[Any, ...]) -> Any:
    written = TANGENTS.get(overload)
    if written is not None:
        found = written(tangents, rest[:-1], rest[-1], overload, args)
        if found is not None:
            return found
    if (overload in PULLBACKS and overload != NORM) or overload in TRANSPOSED:
        return NotImplemented  # the transpose of the pullback; norms have one by hand for order 2 alone
    return derived_rules.jvp(
        derived_rules.OperatorCall(overload, args, ALTERNATIVES.get(("jvp", overload))),
        tangents,
        rest[:-1],
        rest[-1].aval,
    )


def _batch(op: Any, size: int, batched: Sequence[bool], operands: Sequence[Any], overload: str, args: Any) -> Any:
    written = BATCHES.get(overload)
    found = None if written is None else written(overload, args, batched, operands)
    if found is not None:
        return found
    examples = [
        aval(x.shape[1:], x.aval.dtype, x.aval.device) if flag else x.aval
        for x, flag in zip(operands, batched, strict=True)
    ]
    example = aten.instr((overload, args), tuple(examples)).aval
    return derived_rules.batch(derived_rules.OperatorCall(overload, args), batched, operands, example)


def _samples() -> list[Sample]:
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(2, 3, 4))
    return [
        Sample((x,), {"overload": "aten.celu.default", "args": (OPERAND, 1.5)}),
        Sample((x, rng.normal(size=(5, 3, 2))), {"overload": "aten.convolution.default", "args": (
            OPERAND, OPERAND, None, (1,), (1,), (1,), False, (0,), 1)}),
        Sample((x,), {"overload": "aten.logcumsumexp.default", "args": (OPERAND, 2)}),
    ]  # fmt: skip


def _reference(*operands: numpy.ndarray, overload: str, args: tuple[Any, ...]) -> numpy.ndarray:
    x = operands[0]
    if overload == "aten.celu.default":
        return numpy.where(x > 0, x, args[1] * numpy.expm1(numpy.minimum(x, 0) / args[1]))
    if overload == "aten.logcumsumexp.default":
        return numpy.logaddexp.accumulate(x, args[1])
    # a convolution in torch is a correlation, here with a zero at either end
    padded = numpy.pad(x, [(0, 0), (0, 0), (1, 1)])
    windows = numpy.lib.stride_tricks.sliding_window_view(padded, operands[1].shape[2], axis=2)
    return numpy.einsum("ncpk,ock->nop", windows, operands[1])


_VIEWS = ("aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int", "aten.select.int")

aten = define(
    "aten", _call, numbers=True, view=lambda overload, args: overload in _VIEWS, direct=_direct,
    params=("overload", "args"), arity=None, result=_result, vjp=_vjp, jvp=_jvp, batch=_batch,
    samples=_samples, reference=_reference, user=lambda *xs, overload, args: call_aten(overload, args, xs),
)  # fmt: skip
