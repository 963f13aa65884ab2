"""Programs too long for one compile: cut where little crosses, and right however they are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, tensors

import gtrace as gt
from gtrace.ir.rewrite import renumber
from gtrace.ir.verify import verify
from gtrace.runtime import pieces, tiers
from gtrace.runtime.interpret import interpreter
from gtrace.runtime.pieces import cut


@given(graphs(max_nodes=40), st.integers(2, 12))
def test_a_cut_program_computes_the_same(graph, most):
    parts = cut(graph, most)
    assert all(1 <= len(part.nodes) <= most for part in parts) or len(graph.nodes) <= most
    assert [node for part in parts for node in part.nodes] == list(graph.nodes)
    inputs = tensors(graph.avals)
    env = dict(zip(graph.inputs, inputs, strict=True))
    for part in parts:
        verify(part)
        env.update(zip(part.outputs, interpreter(renumber(part))([env[v] for v in part.inputs]), strict=True))
    for value, expected in zip(graph.outputs, interpreter(graph)(inputs), strict=True):
        np.testing.assert_array_equal(env[value].numpy(), expected.numpy())


def test_cuts_fall_between_layers():
    """Inside a layer three values live at a time, between two layers one."""

    def layers(x):
        for _ in range(30):
            x = gt.sin(x) * gt.cos(x) + gt.tanh(x)
        return x

    graph = gt.jit(layers).lower(gt.ones((8, 8))).graph
    parts = cut(graph, 12)
    assert len(parts) > 10
    assert all(len(part.outputs) == 1 for part in parts)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_huge_program_is_compiled_in_pieces_and_equal_ones_once(backend, monkeypatch):
    compiled = []
    original = tiers.compile_unit
    monkeypatch.setattr(tiers, "compile_unit", lambda u: compiled.append(len(u.graph.nodes)) or original(u))
    monkeypatch.setattr(pieces, "MAX_OPS", 60)

    def f(x):
        for _ in range(100):
            x = gt.sin(x) * 0.5 + gt.tanh(x) * 0.25 + 0.125
        return x

    x = gt.array([0.5, -1.0, 2.0])
    expected = np.asarray(x, dtype=np.float64)
    for _ in range(100):
        expected = np.sin(expected) * 0.5 + np.tanh(expected) * 0.25 + 0.125
    np.testing.assert_allclose(np.asarray(gt.jit(f, backend=backend)(x)), expected, rtol=1e-4)
    assert max(compiled) <= 60
    assert len(compiled) <= 4 < 600 / 60, "most pieces are equal"
