"""``jax.numpy.pad``: by a function, and with the extremes of complex numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from gtrace import numpy as ours
from gtrace.extend import ArgumentError, Array, by_axis, lift, message, ops
from gtrace.jax import complex_order
from gtrace.jax.keys import taking_keys
from gtrace.jax.weakness import with_weakness

__all__ = ["pad"]

_OPTIONS = {
    "constant": ("constant_values",), "linear_ramp": ("end_values",), "edge": (), "wrap": (), "empty": (),
    **dict.fromkeys(("maximum", "minimum", "mean", "median"), ("stat_length",)),
    **dict.fromkeys(("reflect", "symmetric"), ("reflect_type",)),
}  # fmt: skip
"""By mode: its options."""


@functools.partial(taking_keys, "jax.numpy.pad")
@functools.partial(with_weakness, "jax.numpy.pad")
def pad(array: Any, pad_width: Any, mode: str | Callable[..., Any] = "constant", **kwargs: Any) -> Array:
    """``gt.pad``; the mode may be a function, as in NumPy.

    Args:
        mode: that of ``gt.pad``; or a function of a vector along an axis with zeros at both ends, their numbers, the
            axis and `kwargs`, which returns the vector.
        kwargs: the options of the mode, of ``gt.pad``.

    Raises:
        ArgumentError: an option is not one of the mode.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.pad(jnp.arange(2), 1, lambda vector, width, axis, options: vector - 1).tolist()
    [-1, -1, 0, -1]
    """
    if callable(mode):
        return _by_function(array, pad_width, mode, kwargs)
    unknown = sorted(kwargs.keys() - {*_OPTIONS.get(mode, kwargs)})
    if unknown:
        got = f"unsupported keyword arguments for mode {mode!r}: {', '.join(unknown)}"
        known = ", ".join(_OPTIONS[mode]) or "none"
        raise ArgumentError(message("pad", f"the options of the mode: {known}", got, "Leave them out."))
    if mode in ("maximum", "minimum") and complex_order.is_complex(array):
        return _by_extreme(array, pad_width, mode, kwargs.get("stat_length"))
    return ours.pad(array, pad_width, mode, **kwargs)


def _by_function(array: Any, pad_width: Any, function: Callable[..., Any], options: Any) -> Array:
    x = lift("pad", array)
    widths = by_axis("pad_width", pad_width, x.ndim).tolist()
    x = ours.pad(x, widths)
    for axis, pair in enumerate(widths):
        x = ours.apply_along_axis(function, axis, x, tuple(pair), axis, options)
    return x


def _by_extreme(array: Any, pad_width: Any, mode: str, lengths: Any) -> Array:
    """Pad with the greatest or least of the numbers near each end, by their order in NumPy."""
    extreme = complex_order.max if mode == "maximum" else complex_order.min

    def ends(vector: Array, pair: tuple[int, int], axis: int, counts: Any) -> Array:
        inside = vector[pair[0] : vector.size - pair[1]]
        first, last = (inside.size, inside.size) if counts is None else counts[axis].tolist()
        parts = inside[:first], inside[-last:]
        before, after = (ops.full(n, extreme(part)) for n, part in zip(pair, parts, strict=True))
        return ops.concat([before, inside, after])

    counts = None if lengths is None else by_axis("stat_length", lengths, numpy.ndim(array))
    return _by_function(array, pad_width, ends, counts)
