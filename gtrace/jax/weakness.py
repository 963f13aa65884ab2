"""Weak results, which count as numbers in promotion: functions that JAX gives other weakness than gtrace does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gtrace.extend import Array, cast, default_dtype, lift, meeting, weakened

STRONG = frozenset(
    [
        *[
            f"jax.numpy.{name}"
            for name in """
            choose deg2rad degrees diagonal frexp gcd hypot isclose isin isinf isneginf isposinf lcm log10 log2
            logaddexp2 logical_and logical_not logical_or logical_xor polyval rad2deg radians signbit sinc
            sort_complex spacing vander
            """.split()
        ],
        *[f"jax.lax.dynamic_update_{name}" for name in ("index_in_dim", "slice", "slice_in_dim")],
        "jax.lax.associative_scan", "jax.lax.reduce_window", "jax.nn.gelu",
        *[
            f"jax.scipy.special.{name}"
            for name in """
            dawsn erfcinv erfcx exp1 expi expn fresnel gamma gammasgn log_ndtr logit ndtr ndtri owens_t poch sici spence
            wofz
            """.split()
        ],
    ]
)  # fmt: skip
"""Functions whose results never count as numbers."""

OF_SCALARS = frozenset(
    [
        *[f"jax.numpy.{name}" for name in "deg2rad degrees gcd hypot lcm logaddexp2 rad2deg radians sinc".split()],
        "jax.scipy.special.logit",
    ]
)
"""Those among them whose results without dimensions may count as numbers."""

KEPT = {
    **dict.fromkeys([f"jax.numpy.{name}" for name in ("diag", "imag")], (1, 9)),
    "jax.numpy.gradient": (2, 9),
    "jax.numpy.pad": (1, 9),
    "jax.nn.squareplus": (2, 9),
    **dict.fromkeys(["jax.numpy.zeros_like", "jax.numpy.ones_like", "jax.numpy.empty_like"], (1, 1)),
    **dict.fromkeys(["jax.numpy.full_like", "jax.lax.full_like"], (1, 2)),
    **dict.fromkeys([f"jax.lax.cum{name}" for name in ("sum", "prod", "max", "min", "logsumexp")], (1, 3)),
    **dict.fromkeys([f"jax.lax.reduce_{name}" for name in ("sum", "prod", "max", "min")], (1, 3)),
    **dict.fromkeys([f"jax.lax.{name}" for name in ("clz", "population_count", "reduce_precision")], (1, 9)),
    **dict.fromkeys(["jax.lax.mulhi", "jax.lax.shift_right_logical"], (2, 9)),
    **dict.fromkeys([f"jax.scipy.special.{name}" for name in "betaln boxcox boxcox1p comb".split()], (2, 9)),
    **dict.fromkeys(["jax.lax.betainc", "jax.scipy.special.betainc"], (3, 9)),
}
"""Functions whose result counts as a number if what their first arguments promote to does, and no dtype is given.

With each, how many arguments decide, and how many by position come before a dtype.
"""

SCALED = frozenset(
    f"jax.nn.{name}"
    for name in """
    celu elu hard_sigmoid hard_silu hard_swish leaky_relu relu6 selu sparse_plus sparse_sigmoid
    """.split()
)
"""Functions that compute integers and booleans with Python floats of their own, and return weak floats."""


def with_weakness(name: str, function: Any) -> Any:
    """Return a function whose results are weak if those of JAX's function of this name are."""
    if name in STRONG:
        return _strong(function, name in OF_SCALARS)
    if name in SCALED:
        return _scaled(function)
    return _kept(function, *KEPT[name]) if name in KEPT else function


def _strong(function: Callable[..., Any], but_scalars: bool) -> Callable[..., Any]:
    def fixed(x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(map(fixed, x))
        changes = isinstance(x, Array) and x.aval.weak and (x.aval.shape or not but_scalars)
        return cast(x, x.aval.dtype) if changes else x

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fixed(function(*args, **kwargs))

    return call


def _kept(function: Callable[..., Any], deciding: int, before: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if not isinstance(out, Array) or len(args) > before or kwargs.get("dtype") is not None:
            return out
        operands = [
            lift(function.__name__, x).aval for x in args[:deciding] if isinstance(x, (Array, int, float, complex))
        ]
        return weakened(out, out.aval.dtype) if operands and meeting(operands)[1] else out

    return call


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        if type(x) in (bool, int) or (isinstance(x, Array) and not x.aval.floating):
            x = lift(function.__name__, x)
            x = weakened(x, default_dtype(float))
        return function(x, *args, **kwargs)

    return call
