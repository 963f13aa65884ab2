"""The names of ``jax.numpy.fft``."""

from __future__ import annotations

import functools
from typing import Any

from gtrace.extend import Array, ShapeError, as_arrays, message, ops
from gtrace.jax.adapt import namespace
from gtrace.jax.weakness import with_weakness
from gtrace.numpy import fft as _ours


def _of_jax(name: str) -> Any:
    """Return a transform that takes exactly two axes, if its name says so, and one that keeps shapes none at all."""
    ours = getattr(_ours, name)

    @functools.wraps(ours)
    def transform(a: Any, *args: Any, **kwargs: Any) -> Array:
        axes = kwargs.get("axes", args[1] if len(args) > 1 else (-2, -1))
        if name.endswith("2") and len(axes) != 2:
            raise ShapeError(message(name, "two axes", str(axes), f"Use {name[:-1]}n for others."))
        sizes = args[0] if args else kwargs.get("s", kwargs.get("n"))
        if not name.startswith(("r", "ir")) and sizes is None:
            (x,) = as_arrays(name, a)
            if not x.size:
                return ops.multiply(x, 1j)
        return ours(a, *args, **kwargs)

    return with_weakness(f"jax.numpy.fft.{name}", transform)


fft, ifft, fftn, ifftn = _of_jax("fft"), _of_jax("ifft"), _of_jax("fftn"), _of_jax("ifftn")
fft2, ifft2, rfft2, irfft2 = _of_jax("fft2"), _of_jax("ifft2"), _of_jax("rfft2"), _of_jax("irfft2")

__getattr__, __dir__ = namespace("jax.numpy.fft", _ours)
