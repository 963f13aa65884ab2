"""Complex arrays from real and imaginary parts, angles, and predicates."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.base.dtypes import COMPLEX
from gtrace.core.base.errors import DtypeError, message
from gtrace.core.ir.aval import Aval, aval, broadcast
from gtrace.core.ops.checks import complex_only
from gtrace.core.ops.complex_parts import conj, imag, real
from gtrace.core.ops.declare import Array, BadSample, Sample, bind, define
from gtrace.core.ops.elementwise import absolute, multiply, reciprocal, sign, subtract
from gtrace.core.ops.exact_arithmetic import complex_sign
from gtrace.core.ops.logic import equal, not_equal, where
from gtrace.core.ops.operands import cast, promote
from gtrace.core.ops.samples import complex_uniform, shapes_differ, uniform
from gtrace.core.ops.trigonometry import arctan2
from gtrace.core.trace.convert import lift, python_scalar
from gtrace.core.trace.promotion import as_dtype, default_dtype

__all__ = ["angle", "complex", "iscomplex", "iscomplexobj", "isreal", "isrealobj"]

_OF_PARTS = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def _check(op: str, avals: tuple[Aval, ...]) -> None:
    if avals[0].dtype not in _OF_PARTS or avals[0].dtype is not avals[1].dtype:
        raise DtypeError(message("complex", "real parts of float32 or float64", avals, "Use x.astype(gt.float32)."))


def _aval(avals: tuple[Aval, ...]) -> Aval:
    return aval(broadcast("complex", avals), _OF_PARTS[avals[0].dtype], avals[0].device, all(a.weak for a in avals))


def _joined(re: Any, im: Any) -> numpy.ndarray:
    parts = numpy.stack(numpy.broadcast_arrays(re, im), -1)
    return parts.view(numpy.result_type(parts, numpy.complex64))[..., 0]


_complex = define(
    "complex", torch.complex, arity=2, elementwise=True, fresh=True, complex=True, shape=_aval, check=_check,
    linear=True, vjp=lambda ct, needed, re, im, out: (real(ct), imag(conj(ct))),
    samples=lambda: [Sample((uniform(-2, 2, 3, 4), uniform(-2, 2, 4, seed=1))), Sample((uniform(-2, 2, 5), 0.5)),
                     Sample((uniform(-2, 2), uniform(-2, 2, 2, seed=1)))],
    errors=lambda: [*shapes_differ(), BadSample((complex_uniform(3), numpy.ones(3)), {}, DtypeError, "real parts")],
    reference=_joined, user=lambda re, im: complex(re, im), jax="complex",
)  # fmt: skip


def _turned(t: Array, x: Array, along: Array) -> Array:
    """Return (t - along * Re(conj(along) * t)) / abs(x), 0 where x is 0: what is across the direction `along`."""
    size = absolute(x)
    zero = equal(size, 0.0)
    across = subtract(t, multiply(along, real(multiply(conj(along), t))))
    return where(zero, 0.0, multiply(across, reciprocal(where(zero, 1.0, size))))


_complex_sign = define(
    "complex_sign", complex_sign, elementwise=True, complex=True, check=complex_only,
    jvp=lambda ts, x, out: _turned(ts[0], x, out), vjp=lambda ct, needed, x, out: (_turned(ct, x, conj(out)),),
    samples=lambda: [Sample((complex_uniform(3, 4),)), Sample((complex_uniform(),))],
    reference=numpy.sign, user=lambda x: sign(x),
)  # fmt: skip


def complex(re: Any, im: Any) -> Array:  # noqa: A001 - the name in JAX and torch
    """Return the complex array with these real and imaginary parts, which broadcast.

    Args:
        re, im: real arrays. float64 parts give complex128, all others complex64.

    Raises:
        DtypeError: a part is complex.

    >>> gt.complex(gt.array([1., 2.]), 3.0)
    Array([1.+3.j, 2.+3.j], dtype=complex64)
    """
    parts = promote("complex", re, im, floating=True)
    if parts[0].aval.dtype in (torch.float16, torch.bfloat16):
        parts = promote("complex", re, im, numpy.zeros((), numpy.float32))[:2]
    return bind(_complex, parts)


def angle(z: Any, deg: bool = False) -> Array:
    """Return the angle of z in the complex plane, in (-pi, pi], or in degrees with `deg`.

    >>> gt.angle(gt.array([1 + 1j, -1.0, 2j]), deg=True)
    Array([ 45., 180.,  90.], dtype=float32)
    """
    z = lift("angle", z)
    z = z if z.aval.floating else cast(z, default_dtype(float))
    out = arctan2(imag(z), real(z))
    return multiply(out, 180.0 / numpy.pi) if deg else out


def isreal(x: Any) -> Array:
    """Return where the imaginary part of x is zero.

    >>> gt.isreal(gt.array([1 + 1j, 2.0]))
    Array([False,  True], dtype=bool)
    """
    return equal(imag(x), 0)


def iscomplex(x: Any) -> Array:
    """Return where the imaginary part of x is not zero.

    >>> gt.iscomplex(gt.array([1 + 1j, 2.0]))
    Array([ True, False], dtype=bool)
    """
    return not_equal(imag(x), 0)


def iscomplexobj(x: Any) -> bool:
    """Return whether the dtype of x, an array or a number, is complex, whatever its values.

    >>> gt.iscomplexobj(gt.array([1.0], dtype=gt.complex64)), gt.iscomplexobj(1.0)
    (True, False)
    """
    if python_scalar(x) is not None:
        return numpy.iscomplexobj(x)
    if isinstance(x, (list, tuple)):
        return any(map(iscomplexobj, x))
    if not hasattr(x, "dtype"):
        return numpy.iscomplexobj(x)
    return getattr(x.dtype, "kind", "") != "V" and as_dtype(x.dtype) in COMPLEX  # keys and `float0` have kind V


def isrealobj(x: Any) -> bool:
    """Return whether the dtype of x, an array or a number, is not complex.

    >>> gt.isrealobj(gt.ones(2)), gt.isrealobj(1j)
    (True, False)
    """
    return not iscomplexobj(x)
