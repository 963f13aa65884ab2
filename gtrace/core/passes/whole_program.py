"""What programs are before they are divided."""

from __future__ import annotations

from gtrace.ir.attention import fuse_attention, has_attention
from gtrace.ir.calls import has_calls
from gtrace.ir.canonical import CANONICAL
from gtrace.ir.contractions import has_einsums, multiply_matrices
from gtrace.ir.draws import has_draws
from gtrace.ir.graph import Graph
from gtrace.ir.norm_operators import turns_axes
from gtrace.ir.norms import fuse_norms, has_roots
from gtrace.ir.passes import CSE, DCE, MOVE_TRANSPOSES, Pass, Pipeline
from gtrace.ir.repeats import LEAST_NODES


def is_divided(graph: Graph) -> bool:
    """Whether a program may be cut into parts: where it repeats, or where it has loops."""
    return len(graph.nodes) >= LEAST_NODES or has_calls(graph)


SIMPLIFIED = Pipeline(
    "simplified",
    (
        CANONICAL,
        Pipeline(
            "einsums",
            (Pass("multiply_matrices", multiply_matrices), CSE, MOVE_TRANSPOSES, DCE),
            when=has_einsums,
        ),
        Pass("fuse_norms", fuse_norms),
        Pipeline("axes of norms", (MOVE_TRANSPOSES, CSE, DCE), when=turns_axes),
        Pass("fuse_attention", fuse_attention),
    ),
    when=lambda graph: (
        is_divided(graph) or has_roots(graph) or has_attention(graph) or has_einsums(graph) or has_draws(graph)
    ),
)
