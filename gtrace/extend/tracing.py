"""Tracing: functions as graphs, and what is known of a value while it is traced."""

from gtrace.core.backends.symbolic import fit
from gtrace.core.ir.graph import subgraphs
from gtrace.core.ir.op import Leaf
from gtrace.core.ir.sharding import entered_mesh
from gtrace.core.passes.subgraph_calls import has_effects
from gtrace.core.trace.capture import Captured, capture, located, replay
from gtrace.core.trace.donation import give_away
from gtrace.core.trace.force import is_placeholder, materialize, sources, value_of, whole, with_values
from gtrace.core.trace.lifted_numbers import lift_numbers
from gtrace.core.trace.record import Donation, Trace, followed, followers, thread
from gtrace.core.trace.replayable import replayable
from gtrace.core.trace.replayed_trees import Replayed
from gtrace.core.trace.size_reads import noted
from gtrace.core.transform.eval_shape import OpenSize, aval_of, capture_like
from gtrace.core.transform.jit import Jitted
from gtrace.core.transform.jit_options import both_ways
from gtrace.core.transform.jit_stages import Compiled, Lowered, Traced
from gtrace.core.transform.subgraph_rules import captured_program

__all__ = [
    "Captured", "Compiled", "Donation", "Jitted", "Leaf", "Lowered", "OpenSize", "Replayed", "Trace", "Traced",
    "aval_of", "both_ways", "capture", "capture_like", "captured_program", "entered_mesh", "fit", "followed",
    "followers", "give_away", "has_effects", "is_placeholder", "lift_numbers", "located", "materialize", "noted",
    "replay", "replayable", "sources", "subgraphs", "thread", "value_of", "whole", "with_values",
]  # fmt: skip
