"""Type inference: runs torch on meta tensors, unless the operation has a rule for its result type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.base.dtypes import COMPLEX, FLOAT8, WIDE_UNSIGNED
from gtrace.core.base.errors import DeviceError, DtypeError, ShapeError, message
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.base.torch_modes import without_modes
from gtrace.core.ir.aval import Aval, Bundle, aval, broadcast
from gtrace.core.ir.declaration import Declaration
from gtrace.core.ir.wide_unsigned import is_wide

BY_VALUE = WIDE_UNSIGNED | FLOAT8
"""Dtypes for which torch has few kernels: whether it has one is asked anew for all attributes and sizes."""


@without_modes
def infer(op: Declaration, params: tuple[Any, ...], avals: tuple[Aval, ...]) -> Aval | Bundle:
    """Return the result type, by running torch on meta tensors or by the operation's rules.

    Exceptions that are not torch's come from the operation's own code, and pass unchanged.
    """
    rules = op.rules
    named = dict(zip(op.params, params, strict=True))
    devices = {a.device for a in avals if a.__class__ is Aval and (a.shape or not a.weak)}
    if len(devices) > 1:
        raise DeviceError(message(op.name, "operands on one device", avals, "Move one with .to(device)."))
    if rules.check is not None:
        rules.check(op.name, avals, **named)
    if op.identity:
        return avals[0]
    if rules.result is not None:
        return rules.result(avals, **named)
    shape = broadcast(op.name, avals) if op.elementwise else None
    if any(a.dtype in COMPLEX or a.dtype in FLOAT8 for a in avals if a.__class__ is Aval):
        require_kernel(op, params, avals, named)
    known = None if rules.shape is None else rules.shape(avals, **named)
    if isinstance(known, Aval):
        return known if known.weak or not _is_weak(op, avals) else aval(known.shape, known.dtype, known.device, True)
    if "device" in named:
        device = torch.device(named["device"])
        named["device"] = "meta"
    else:
        device = next(iter(devices)) if devices else avals[0].device
    # operands of one element give the same result dtype as any operands with as many dimensions
    single = (op.elementwise or known is not None) and device.type == "cpu"
    known = shape if known is None else known
    kinds = exact_key(params) if op.numbers else params, *[(a.dtype, len(a.shape)) for a in avals]
    dtype = op.dtypes.get(kinds) if single else None
    if dtype is None and single and rules.nondiff is None and (op.elementwise or not params):
        # a differentiable result is floating, and torch keeps a floating dtype that all operands have
        common = {a.dtype for a in avals}
        dtype = common.pop() if common in ({torch.float32}, {torch.float64}) else None
    if dtype is None:
        if single:
            tensors = [torch.ones((1,) * len(a.shape), dtype=_kept(a.dtype)) for a in avals]
        else:
            tensors = [torch.empty(a.shape, dtype=_kept(a.dtype), device="meta") for a in avals]
        try:
            out = op.impl(*tensors, **named)
        except RecursionError:
            raise
        except RuntimeError as error:
            kind = DtypeError if _takes_other_dtypes(op, named, tensors) else ShapeError
            got = ", ".join(map(str, avals)) + (f" with {named}" if named else "")
            reason = str(error).strip().split("\n")[0]
            raise kind(message(op.name, "operands that fit", got, f"torch says: {reason}")) from error
        dtype = out.dtype
        if dtype is _STAND_IN and any(map(is_wide, avals)):
            dtype = next(a.dtype for a in avals if is_wide(a))
        if single:
            op.dtypes.remember(kinds, dtype)
        elif known is None:
            known = tuple(out.shape)
    assert known is not None
    return aval(tuple(known), dtype, device, _is_weak(op, avals))


def _is_weak(op: Declaration, avals: Sequence[Aval]) -> bool:
    """Whether the result counts as a number in promotion: if all operands that decide it do."""
    if op.keeps is None and not op.elementwise:
        return False
    deciding = avals if op.keeps is None else avals[op.keeps]
    return bool(deciding) and all(a.weak for a in deciding)


_STAND_IN = torch.uint8
"""Replaces wide unsigned operands, for which torch has few kernels. A result of this dtype has theirs."""


def _kept(dtype: torch.dtype) -> torch.dtype:
    return _STAND_IN if dtype in WIDE_UNSIGNED else dtype


def require_kernel(op: Declaration, params: tuple[Any, ...], avals: Sequence[Any], named: dict[str, Any]) -> None:
    """Raise for operands whose dtypes torch has no kernel for. Meta and fake tensors do not show that.

    The operation runs on zeros. For wide unsigned and float8 operands it runs each time, because attributes select the
    kernels. For others it runs once for each combination of dtypes.
    """
    unsigned = any(a.dtype in WIDE_UNSIGNED for a in avals)
    kinds = "kernel", *[p for p in params if isinstance(p, str)], *[(a.dtype, len(a.shape)) for a in avals]
    if kinds in op.dtypes and not unsigned and not any(a.dtype in FLOAT8 for a in avals):
        return
    shapes = [(1,) * len(a.shape) if op.elementwise else a.shape for a in avals]
    zeros = [torch.zeros(s, dtype=a.dtype, device=a.device) for s, a in zip(shapes, avals, strict=True)]
    try:
        op.impl(*zeros, **named)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if "ZeroDivisionError" in str(error) or not _takes_other_dtypes(op, named, zeros):
            return  # the dtype is not the cause
        got = " and ".join(map(repr, avals)) + (f" with {named}" if named else "")
        if unsigned:
            expected = "signed or 8-bit integers"
            fix = "torch has no such kernel for wide unsigned integers. Use x.astype(gt.int64)."
        elif any(a.dtype in FLOAT8 for a in avals):
            expected = "dtypes to compute with"
            fix = "float8 is for storage: convert first, with x.astype(gt.float32)."
        elif any(a.complex for a in avals):
            expected = "real operands"
            fix = "Complex numbers have no order and no sign. Use x.real, x.imag or gt.abs(x)."
        else:
            expected = "operands of another dtype"
            fix = "torch has no such kernel. Use x.astype(gt.float32)."
        raise DtypeError(message(op.name, expected, got, fix)) from error
    op.dtypes.remember(kinds, avals[0].dtype)


def _takes_other_dtypes(op: Declaration, named: dict[str, Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the operation accepts operands of these shapes if all of them, or one, have another dtype."""
    for dtype in (torch.float32, torch.int64, torch.bool):
        # torch warns when it casts complex tensors to real ones
        alike = [t.new_zeros(t.shape, dtype=dtype) if t.is_complex() else t.to(dtype) for t in tensors]
        for operands in (alike, *([*tensors[:k], t, *tensors[k + 1 :]] for k, t in enumerate(alike))):
            try:
                op.impl(*operands, **named)
            except (RuntimeError, TypeError, ValueError, LookupError):
                continue  # the caller reports the first failure
            return True
    return False
