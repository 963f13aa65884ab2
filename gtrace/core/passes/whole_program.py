"""What programs are before they are divided."""

from __future__ import annotations

from gtrace.core.base import mechanisms
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.pipeline import CSE, DCE, MOVE_TRANSPOSES, Pass, Pipeline
from gtrace.core.passes.attention import fuse_attention, has_attention
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.passes.contractions import has_einsums, multiply_matrices
from gtrace.core.passes.draws import has_draws
from gtrace.core.passes.norm_operators import turns_axes
from gtrace.core.passes.norms import fuse_norms, has_roots
from gtrace.core.passes.subgraph_calls import has_calls
from gtrace.core.passes.tuned import LEAST_CUT_NODES


def is_divided(graph: Graph) -> bool:
    """Whether a program may be cut into parts: where it repeats, or where it has loops."""
    return len(graph.nodes) >= LEAST_CUT_NODES or has_calls(graph)


SIMPLIFIED = Pipeline(
    "simplified",
    (
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
