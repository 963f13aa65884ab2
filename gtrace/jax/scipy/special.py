"""The names of ``jax.scipy.special``: those of ``gtrace.special``."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy

from gtrace import special
from gtrace.extend import Array, as_arrays, lift, ops, promote_arrays
from gtrace.jax.adapt import documented, namespace
from gtrace.jax.weakness import with_weakness


@functools.partial(with_weakness, "jax.scipy.special.erfcinv")
def erfcinv(y: Any) -> Array:
    """Return the x with ``erfc(x) == y``.

    >>> erfcinv(1.0)
    Array(0., dtype=float32)
    """
    (y,) = promote_arrays("erfcinv", y, floating=True)
    return special.ndtri(y * 0.5) * -math.sqrt(0.5) + 0.0  # of 1: 0, and not -0


def kl_div(p: Any, q: Any) -> Array:
    """``rel_entr(p, q) - p + q``, as JAX computes it: NaN of infinities that SciPy's is infinite for.

    >>> round(float(kl_div(0.5, 0.25)), 4)
    0.0966
    """
    p, q = as_arrays("kl_div", p, q)
    return special.rel_entr(p, q) - p + q


def _of_orders(name: str) -> Callable[[Any, Any], Array]:
    """Return a function of an order that takes arrays of orders, too, if their values are known."""
    function = getattr(special, name)

    def call(n: Any, x: Any) -> Array:
        if not numpy.ndim(n):
            out: Array = function(n, x)
            return out
        orders = numpy.asarray(n)
        out = function(int(orders.flat[0]) if orders.size else 0, x)
        for order in numpy.unique(orders).tolist():
            out = ops.where(orders == order, function(int(order), x), out)
        return out

    return documented(
        call, name, f"``gt.special.{name}``, which takes arrays of orders too. Under ``jit`` these must be known."
    )


def _over_all(name: str) -> Callable[..., Array]:
    """Return a function along axes, which without any are all."""
    function = getattr(special, name)

    def call(x: Any, /, *, axis: Any = None) -> Array:
        x = lift(name, x)
        return function(x, axis) if axis is not None else ops.reshape(function(ops.ravel(x), -1), x.shape)

    return documented(call, name, f"``gt.special.{name}``, over all elements if no axis is given, as in SciPy.")


log_softmax, softmax = _over_all("log_softmax"), _over_all("softmax")
expn = with_weakness("jax.scipy.special.expn", _of_orders("expn"))
polygamma = _of_orders("polygamma")

__getattr__, __dir__ = namespace("jax.scipy.special", special)
