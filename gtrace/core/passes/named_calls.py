"""Kernels in place of named calls (`core/transform/named`). Nothing is searched for: the name says what is computed.

Calls without a kernel stay, and the canonical passes put their bodies in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gtrace.core.ir.edit import Replacements, toposort
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.simplify import dce
from gtrace.core.passes.attention import BACKWARD, FORWARD, takes_kernel
from gtrace.core.passes.norm_operators import MEAN, VARIANCE, BatchNorm, LayerNorm, Norm, Operands, normed

Lowering = Callable[["_Calls", Node, Mapping[int, int]], None]
"""(calls, node, by value that takes a result: which) -> None: gives these values kernels, or leaves them alone."""


def has_named_calls(graph: Graph) -> bool:
    """Whether there are named calls, outside of sub-graphs, where none are."""
    return any(node.op.lowered for node in graph.nodes)


def lower_named_calls(graph: Graph) -> Graph:
    """Return a graph with kernels in place of named calls, where there are such for these types and sizes.

    >>> graph = gt.make_graph(lambda x: gt.nn.layer_norm(x, 4))(gt.ones((2, 4)))
    >>> print(lower_named_calls(graph))
    graph(%0: f32[2,4]) {
      %3: (f32[2,4], f32[2,1], f32[2,1]) = aten(%0) {overload='aten.native_layer_norm.default', args=('x', (4,), None, None, 1e-05)}
      %2: f32[2,4] = project(%3) {index=0}
      return %2
    }
    """  # noqa: E501
    if not has_named_calls(graph):
        return graph
    graph = dce(graph)  # a statistic that nobody reads takes a slower kernel
    calls = _Calls(graph)
    for node in graph.nodes:
        if node.op.lowered:
            lowering = _LOWERINGS.get(node.attributes["name"])
            if lowering is not None and node.out in calls.results:
                calls.build.location = node.location
                lowering(calls, node, calls.results[node.out])
    if not calls.build.made:
        return graph
    return dce(Graph(graph.inputs, graph.avals, toposort(calls.build.nodes.values(), graph.inputs), graph.outputs))


class _Calls:
    """The named calls of a program.

    Attributes:
        build: makes nodes.
        results: by call, the values that take its results, and which.
        kept: by call without its body, what its kernel keeps for the kernel of the gradient.
    """

    def __init__(self, graph: Graph) -> None:
        self.build = Replacements(graph)
        self.results: dict[Any, dict[int, Any]] = {}
        self.kept: dict[Any, tuple[int, ...]] = {}
        for node in graph.nodes:
            if node.op.projection:
                self.results.setdefault(node.ins[0], {})[node.out] = node.instr.index

    def forward(self, norm: Norm, given: Operands, results: Mapping[int, Any]) -> tuple[int, ...]:
        """Make a norm with its results, or take what an equal one has kept."""
        key = norm, given
        if results or key not in self.kept:
            self.kept[key] = norm.forward(self.build, given, results, True)
        return self.kept[key]


def _settings(node: Node) -> Any:
    return node.attributes["settings"]


def _norm(node: Node) -> tuple[Norm, Operands] | None:
    """Return the kernel of a norm, and what it takes; None: there is none for these types and sizes."""
    place, eps, has_weight, has_bias, *_ = _settings(node)
    a, x = node.instr.ins[0], node.ins[0]
    if a.weak or eps < 0.0 or not isinstance(x, int):
        return None
    layer = str(node.attributes["name"]).startswith(LAYER_NORM)
    count = len(a.shape)
    found = normed(a, tuple(range(count - place, count)) if layer else tuple(k for k in range(count) if k != place))
    if not isinstance(found, LayerNorm if layer else BatchNorm):
        return None
    vectors: Any = iter(node.ins[1:])
    weight, bias = (next(vectors) if has else None for has in (has_weight, has_bias))
    return found, Operands(x, weight, bias, eps)


def _forward(calls: _Calls, node: Node, results: Mapping[int, int]) -> None:
    found = _norm(node)
    if found is not None:
        calls.forward(*found, {value: (None, MEAN, VARIANCE)[k] for value, k in results.items()})


def _backward(calls: _Calls, node: Node, results: Mapping[int, int]) -> None:
    found = _norm(node)
    if found is None:
        return
    norm, given = found
    places = [k for k, there in enumerate((True, given.weight is not None, given.bias is not None)) if there]
    wanted = [k for k, flag in zip(places, _settings(node)[-1], strict=True) if flag]
    kept = calls.forward(norm, given, {})
    cotangent: Any = node.ins[-1]
    norm.backward(calls.build, given, cotangent, kept, {v: wanted[k] for v, k in results.items()}, False)


# -- attention


def _attention(calls: _Calls, node: Node, results: Mapping[int, int]) -> None:
    """Put torch's kernel for CPUs, or its gradient, in place of attention with heads before positions."""
    causal, scale, *wanted = _settings(node)
    q, k, v = node.instr.ins[:3]
    *batch, heads, queries, depth = q.shape
    groups, keys = k.shape[-3:-1]
    if any(a.dtype not in (torch.float32, torch.float64) or a.device.type != "cpu" or a.weak for a in (q, k, v)):
        return
    if len({a.dtype for a in (q, k, v)}) > 1 or v.shape[-1] != depth or (causal and (groups, keys) != (heads, queries)):
        return
    if not takes_kernel(math.prod(batch) * groups, heads * queries // max(groups, 1), keys) or not depth:
        return
    build = calls.build

    def taken(value: Any) -> int:
        """Heads that share keys and values are one head with more queries."""
        a = build.aval(value)
        return build.shaped(value, (math.prod(batch), groups, a.size // (math.prod(batch) * groups * depth), depth))

    rest = 0.0, causal, None, scale
    operands = [taken(value) for value in node.ins[:3]]
    call = build("aten", (FORWARD, ("x", "x", "x", *rest)), *operands)
    places = [0]
    if wanted:
        kept = build("project", (0,), call), build("project", (1,), call)
        call = build("aten", (BACKWARD, ("x",) * 6 + rest), taken(node.ins[3]), *operands, *kept)
        places = [place for place, flag in enumerate(wanted[0]) if flag]
    for value, which in results.items():
        found, shape = (places[which],), build.aval(value).shape
        if build.aval(call).avals[places[which]].shape == shape:
            build("project", found, call, out=value)
        else:
            build("reshape", (shape,), build("project", found, call), out=value)


LAYER_NORM, BATCH_NORM, ATTENTION = "layer_norm", "batch_norm", "attention"

_LOWERINGS: dict[str, Lowering] = {
    LAYER_NORM: _forward,
    f"{LAYER_NORM}_gradient": _backward,
    BATCH_NORM: _forward,
    f"{BATCH_NORM}_gradient": _backward,
    ATTENTION: _attention,
    f"{ATTENTION}_gradient": _attention,
}
