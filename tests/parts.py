"""Programs that another one is divided into, run one after the other."""

from __future__ import annotations

from gtrace import ir
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.ir.verify import verify


def run_parts(parts, graph, tensors):
    """Return the outputs of a graph, by its verified parts."""
    env = dict(zip(graph.inputs, tensors, strict=True))
    for part in parts:
        verify(part)
        env.update(zip(part.outputs, interpreter(ir.renumber(part))([env[v] for v in part.inputs]), strict=True))
    return [env[v] for v in graph.outputs]
