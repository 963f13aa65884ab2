"""Of ``jax.interpreters.partial_eval``, the run of a function of which some arguments are known, as flax uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gtrace as gt
from gtrace.jax.adapt import internal
from gtrace.jax.core import Tracer
from gtrace.jax.extend.linear_util import WrappedFun


class PartialVal(NamedTuple):
    """A value, or the shape and dtype of one that is not known.

    Attributes:
        aval: None for a known value.
        const: None for an unknown one.
    """

    aval: Any
    const: Any

    @classmethod
    def known(cls, const: Any) -> PartialVal:
        """Return a known value."""
        return cls(None, const)

    @classmethod
    def unknown(cls, aval: Any) -> PartialVal:
        """Return an unknown one."""
        return cls(aval, None)


def trace_to_jaxpr_nounits(
    fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool = False
) -> tuple[None, list[PartialVal], list[Any]]:
    """Run a function with placeholders for the unknown arguments; what depends on none of them has a value.

    Returns:
        None in the place of JAX's program; the results; no constants.

    >>> from gtrace.jax.extend.linear_util import wrap_init
    >>> given = [PartialVal.unknown(gt.ShapeDtypeStruct((2,), "float32")), PartialVal.known(3.0)]
    >>> out = trace_to_jaxpr_nounits(wrap_init(lambda x, y: [x + y, y * 2]), given)[1]
    >>> out[0].aval, out[1].const
    (ShapeDtypeStruct(shape=(2,), dtype=float32), 6.0)
    """
    results: list[Any] = []

    def run(*unknown: Any) -> list[Any]:
        rest = iter(unknown)
        results[:] = fun.call_wrapped(*[x.const if x.aval is None else next(rest) for x in pvals])
        return [x for x in results if isinstance(x, Tracer)]

    avals = iter(gt.eval_shape(run, *[x.aval for x in pvals if x.aval is not None]))
    unknown = [isinstance(x, Tracer) for x in results]
    out = [PartialVal(next(avals), None) if u else PartialVal(None, x) for u, x in zip(unknown, results, strict=True)]
    return None, out, []


__getattr__ = internal("jax.interpreters.partial_eval")
