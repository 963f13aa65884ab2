"""What programs are before they are divided."""

from __future__ import annotations

from gtrace.core.base import mechanisms
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.pipeline import CSE, DCE, MOVE_TRANSPOSES, Pass, Pipeline
from gtrace.core.ir.subgraph import without_named_calls
from gtrace.core.passes.attention import fuse_attention, has_attention
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.passes.contractions import has_einsums, multiply_matrices
from gtrace.core.passes.draws import has_draws
from gtrace.core.passes.named_calls import has_named_calls, lower_named_calls
from gtrace.core.passes.norm_operators import turns_axes
from gtrace.core.passes.norms import fuse_norms, has_roots
from gtrace.core.passes.subgraph_calls import has_calls
from gtrace.core.passes.tuned import LEAST_CUT_NODES


def is_divided(graph: Graph) -> bool:
    """Whether a program may be cut into parts: where it repeats, or where it has loops."""
    return len(graph.nodes) >= LEAST_CUT_NODES or has_calls(graph)


def spelled_out(graph: Graph) -> Graph:
    """Return a recorded program with the bodies of its named calls. What a gradient computes again is computed once.

    >>> graph = gt.make_graph(lambda x: gt.nn.layer_norm(x, 4))(gt.ones((2, 4)))
    >>> [node.op.name for node in graph.nodes]
    ['named_call', 'project']
    >>> [node.op.name for node in spelled_out(graph).nodes]
    ['mean', 'sub', 'square', 'mean', 'add', 'rsqrt', 'mul']
    """
    if not has_named_calls(graph):
        return graph
    return CSE.run(without_named_calls(graph))


SIMPLIFIED = Pipeline(
    "simplified",
    (
        Pass("lower_named_calls", lower_named_calls, mechanisms.NAMED_CALLS),  # before bodies are inlined
        CANONICAL,
        Pipeline(
            "einsums",
            (
                Pass("multiply_matrices", multiply_matrices, mechanisms.EINSUM_MATMUL, compared=True),
                CSE,
                MOVE_TRANSPOSES,
                DCE,
            ),
            when=has_einsums,
        ),
        Pass("fuse_norms", fuse_norms, mechanisms.NORM_FUSION),
        Pipeline("axes of norms", (MOVE_TRANSPOSES, CSE, DCE), when=turns_axes),
        Pass("fuse_attention", fuse_attention, mechanisms.ATTENTION_FUSION),
    ),
    when=lambda graph: (
        is_divided(graph) or has_roots(graph) or has_attention(graph) or has_einsums(graph) or has_draws(graph)
    ),
)
