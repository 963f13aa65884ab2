"""The interpreter writes over memory that nothing needs any more, and over no other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_graph, smooth_graph, tensors

import gtrace as gt
from gtrace.runtime import interpret
from gtrace.runtime.interpret import interpreter

ALWAYS, NEVER = 0, 1 << 60


def run(graph, inputs, least):
    before = interpret.LEAST_REUSED
    interpret.LEAST_REUSED = least
    try:
        return interpreter(graph)(inputs)
    finally:
        interpret.LEAST_REUSED = before


@given(st.integers(0, 10**9), st.integers(3, 40), st.booleans())
def test_results_and_inputs_are_what_they_are_without(seed, nodes, smooth):
    graph = smooth_graph(seed, nodes, 3) if smooth else random_graph(seed, nodes, 3)
    inputs = tensors(graph.avals, seed)
    kept = [t.clone() for t in inputs]
    expected = [t.clone() for t in run(graph, inputs, NEVER)]
    program_results = run(graph, inputs, ALWAYS)
    for a, b in zip((*program_results, *inputs), (*expected, *kept), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_memory_is_used_again():
    x = gt.ones((300, 300))
    graph = gt.make_graph(lambda x: ((x * 2 + 1) * 3 - 4) / 5)(x)
    (result,) = run(graph, [x.to_torch()], ALWAYS)
    reused = interpret._reusable(graph, {v: k for k, node in enumerate(graph.nodes) for v in node.values()})
    assert list(reused) == [1, 2, 3, 4], "all but the first, whose operand is the caller's"
    np.testing.assert_allclose(result.numpy(), np.full((300, 300), 1.0))
    # a view, or another use later on, keeps it from being written over
    graph = gt.make_graph(lambda x: ((y := x * 2).T + 1, y * 3))(x)
    assert interpret._reusable(graph, {v: k for k, node in enumerate(graph.nodes) for v in node.values()}) == {}
