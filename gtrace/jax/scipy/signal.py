"""The names of ``jax.scipy.signal``, and what differs from SciPy's there."""

from __future__ import annotations

import functools
from typing import Any

import numpy

from gtrace.extend import Array, ops
from gtrace.jax.adapt import namespace
from gtrace.scipy import signal, spectral


@functools.wraps(spectral.csd)
def csd(x: Any, y: Any, *args: Any, **kwargs: Any) -> tuple[Array, Array]:
    return spectral.csd(x, x.copy() if y is x else y, *args, **kwargs)  # complex, even if both signals are one


@functools.wraps(spectral.istft)
def istft(Zxx: Any, fs: float = 1.0, *args: Any, **kwargs: Any) -> tuple[Array, Array]:  # noqa: N803 - SciPy's
    times, out = spectral.istft(Zxx, fs, *args, **kwargs)
    # JAX counts along the first axis, not along the axis of times
    return times if out.ndim == 1 else ops.array(numpy.arange(out.shape[0]) / fs, times.aval.dtype), out


__getattr__, __dir__ = namespace("jax.scipy.signal", signal, spectral)
