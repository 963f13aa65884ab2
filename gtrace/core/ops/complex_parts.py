"""The components of complex arrays: real part, imaginary part, and the conjugate.

None of these is holomorphic. Each is linear over the real numbers, and declares its transpose. The pairing is
Re(cotangent * tangent), as in derivatives of complex functions.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core.ir.graph import Scalar
from gtrace.core.ir.op import REGISTRY, define
from gtrace.core.ops.checks import complex_only
from gtrace.core.ops.declare import Array, Sample, bind
from gtrace.core.ops.samples import complex_uniform
from gtrace.core.ops.shape import constant
from gtrace.core.trace.bind import distinct
from gtrace.core.trace.convert import lift, scalar_aval

__all__ = ["real", "imag", "conj", "conjugate"]


def _samples() -> list[Sample]:
    return [Sample((complex_uniform(*shape, seed=k),)) for k, shape in enumerate([(3, 4), (), (0, 2), (5,)])]


def _zero(x: Array) -> Scalar:
    return Scalar(0.0, scalar_aval(x.aval.dtype, x.aval.device))


_PART: dict[str, Any] = {
    "elementwise": True, "complex": True, "check": complex_only, "linear": True, "samples": _samples,
}  # fmt: skip
_real = define(
    "real", lambda x: torch.real(x).contiguous(),
    vjp=lambda ct, needed, x, out: (bind(REGISTRY["complex"], (ct, _zero(ct))),),
    reference=numpy.real, user=lambda x: real(x), **_PART, jax="real",
)  # fmt: skip
_imag = define(
    "imag", lambda x: torch.imag(x).contiguous(),
    # the imaginary part of t is the real part of -i * t
    vjp=lambda ct, needed, x, out: (conj(bind(REGISTRY["complex"], (_zero(ct), ct))),),
    reference=numpy.imag, user=lambda x: imag(x), **_PART, jax="imag",
)  # fmt: skip
_conj = define(
    "conj", torch.conj_physical, fresh=True, vjp=lambda ct, needed, x, out: (conj(ct),),
    reference=numpy.conj, user=lambda x: conj(x), **_PART,
)  # fmt: skip


def real(x: Any) -> Array:
    """Return the real part of x, or x itself if it is real.

    >>> gt.real(gt.array([1 + 2j, 3.0]))
    Array([1., 3.], dtype=float32)
    """
    x = lift("real", x)
    return bind(_real, (x,)) if x.aval.complex else distinct(x)


def imag(x: Any) -> Array:
    """Return the imaginary part of x, or zeros if x is real.

    >>> gt.imag(gt.array([1 + 2j, 3.0]))
    Array([2., 0.], dtype=float32)
    """
    x = lift("imag", x)
    return bind(_imag, (x,)) if x.aval.complex else constant(0, x.aval)


def conj(x: Any) -> Array:
    """Return the complex conjugate of x, or x itself if it is real.

    >>> gt.conj(gt.array([1 + 2j, 3.0]))
    Array([1.-2.j, 3.-0.j], dtype=complex64)
    """
    x = lift("conj", x)
    return bind(_conj, (x,)) if x.aval.complex else distinct(x)


conjugate = conj
