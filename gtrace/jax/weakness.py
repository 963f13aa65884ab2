"""Which of JAX's functions give results that count as numbers in promotion, where those here differ by themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gtrace.ops.promote import cast, weakened
from gtrace.trace.array import Array

STRONG = frozenset(
    [
        *[
            f"jax.numpy.{name}"
            for name in """
            choose deg2rad degrees diagonal frexp gcd histogram_bin_edges hypot isclose isin isinf isneginf isposinf
            lcm log10 log2 logaddexp2 logical_and logical_not logical_or logical_xor polyval rad2deg radians signbit
            sinc spacing vander
            """.split()
        ],
        *[f"jax.lax.dynamic_update_{name}" for name in ("index_in_dim", "slice", "slice_in_dim")],
        "jax.lax.associative_scan", "jax.lax.reduce_window", "jax.nn.gelu", "jax.scipy.special.logit",
    ]
)  # fmt: skip
"""Functions whose results never count as numbers."""

KEPT = {
    **dict.fromkeys(["jax.numpy.zeros_like", "jax.numpy.ones_like", "jax.numpy.empty_like"], 1),
    **dict.fromkeys(["jax.numpy.full_like", "jax.lax.full_like"], 2),
    **dict.fromkeys([f"jax.lax.cum{name}" for name in ("sum", "prod", "max", "min", "logsumexp")], 3),
    **dict.fromkeys([f"jax.lax.reduce_{name}" for name in ("sum", "prod", "max", "min")], 3),
}
"""Functions whose result counts as a number if their first argument does, and no dtype is given.

With each, how many arguments by position come before a dtype.
"""


def with_weakness(name: str, function: Any) -> Any:
    """Return a function whose results are weak where those of JAX's of this name are."""
    if name in STRONG:
        return _strong(function)
    return _kept(function, KEPT[name]) if name in KEPT else function


def _strong(function: Callable[..., Any]) -> Callable[..., Any]:
    def fixed(x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(map(fixed, x))
        return cast(x, x.aval.dtype) if isinstance(x, Array) and x.aval.weak else x

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fixed(function(*args, **kwargs))

    return call


def _kept(function: Callable[..., Any], before: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if not args or not isinstance(args[0], Array) or not args[0].aval.weak:
            return out
        if len(args) > before or kwargs.get("dtype") is not None or out.aval.dtype is not args[0].aval.dtype:
            return out
        return weakened(out, out.aval.dtype)

    return call
