"""``jax.interpreters.partial_eval``: runs a function with some known arguments, as flax does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gtrace as gt
from gtrace.extend import PRNGKeyArray, capture_like, replay, tree
from gtrace.jax.adapt import internal
from gtrace.jax.core import ShapedArray
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
    """Run a function with some known arguments; results that depend on these alone have values.

    Returns:
        None in place of JAX's program; the results; no constants.

    >>> from gtrace.jax.extend.linear_util import wrap_init
    >>> given = [PartialVal.unknown(gt.ShapeDtypeStruct((2,), "float32")), PartialVal.known(gt.ones(2))]
    >>> out = trace_to_jaxpr_nounits(wrap_init(lambda x, y: [x + y, y * 2]), given)[1]
    >>> out[0].aval, out[1].const.tolist()
    (ShapedArray(float32[2]), [2.0, 2.0])
    """
    avals = [x.aval for x in pvals if x.aval is not None]
    results: list[Any] = []

    def run(*unknown: Any) -> list[Any]:
        rest = iter(unknown)
        results[:] = fun.call_wrapped(*[x.const if x.aval is None else next(rest) for x in pvals])
        return [leaf for x in results for leaf in tree.leaves(x) if isinstance(leaf, gt.Array)]

    captured = capture_like("partial_eval", run, tuple(avals), {})
    graph = captured.graph
    given = len(tree.leaves(avals))  # keys are nodes, of their data
    dependent = set(graph.inputs[:given])
    for node in graph.nodes:
        if not dependent.isdisjoint(node.values()):
            dependent.add(node.out)
    # what is known does not depend on these numbers, and what does is never computed
    zeros = [gt.zeros(a.shape, a.dtype) for a in graph.avals[:given]]
    values = zip(graph.outputs, replay(graph, [*zeros, *captured.constants]), strict=True)
    out = []
    for x in results:
        number, value = None, x
        if isinstance(x, (gt.Array, PRNGKeyArray)):
            number, leaf = next(values)
            value = tree.structure(x).unflatten([leaf])
        unknown = number in dependent
        out.append(PartialVal(ShapedArray(x.shape, x.dtype), None) if unknown else PartialVal(None, value))
    return None, out, []


__getattr__ = internal("jax.interpreters.partial_eval")
