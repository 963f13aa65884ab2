"""Regions of a program under ``gt.signal``: programs of their own where the signal says so, the same numbers always."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.runtime.engine import engine
from gtrace.core.trace.bind import bind
from gtrace.core.trace.record import thread
from gtrace.testing import arguments, assert_close, graphs


@pytest.fixture(autouse=True)
def signals(default_settings):
    gt.register_config("region_backward", gt.SignalConfig(compile="max-autotune"))
    gt.register_config("region_plain", gt.SignalConfig())
    gt.register_config("region_own", gt.SignalConfig(compile=True))
    gt.register_config("region_tuned", gt.SignalConfig(compile=True, backward_signal="region_backward"))
    gt.register_config("region_forward", gt.SignalConfig(compile=True, backward_signal="region_plain"))
    with gt.config(auto_compile=False):
        yield
    assert not thread.regions


def programs_of(run):
    before = {key: entry.ledger.calls for key, entry in engine.programs.items()}
    result = gt.eval(run())
    ran = [entry for key, entry in engine.programs.items() if entry.ledger.calls > before.get(key, 0)]
    return result, [(entry.tier, [node.op.name for node in entry.graph.nodes], entry.key.mode) for entry in ran]


def loss_with(name, size):
    x = gt.array(np.linspace(-1, 1, size * 4, dtype=np.float32).reshape(size, 4))

    def loss(w):
        h = gt.tanh(x @ w)
        if name is None:
            h = gt.sinh(h) * h + gt.cosh(h)
        else:
            with gt.signal.context(name):
                h = gt.sinh(h) * h + gt.cosh(h)
        return (h**2).mean()

    return loss


W = np.full((4, 4), 0.3, np.float32)


def test_a_region_is_a_program_of_its_own():
    w = gt.eval(gt.array(W))
    expected, whole = programs_of(lambda: loss_with(None, 21)(w))
    assert len(whole) == 1
    got, parts = programs_of(lambda: loss_with("region_own", 21)(w))
    assert_close(got, expected)
    own = [ops for tier, ops, _ in parts if tier == "compiled"]
    assert [sorted(ops) for ops in own] == [["add", "cosh", "mul", "sinh"]]
    assert sorted(tier for tier, _, _ in parts) == ["compiled", "interpreted", "interpreted"]
    for name in ("region_plain", "region_unknown"):
        assert programs_of(lambda name=name: loss_with(name, 21)(w))[1] == whole


@pytest.mark.slow
def test_gradients_of_a_region_have_a_program_of_their_own():
    w = gt.eval(gt.array(W))
    (expected, slopes), _ = programs_of(lambda: gt.value_and_grad(loss_with(None, 22))(w))
    modes = {}
    for name in ("region_own", "region_tuned", "region_forward"):
        for _ in range(2):
            (value, grads), parts = programs_of(lambda name=name: gt.value_and_grad(loss_with(name, 22))(w))
        assert_close(value, expected)
        assert_close(grads, slopes)
        modes[name] = sorted(mode for tier, _, mode in parts if tier == "compiled")
        assert not any("tanh" in ops for tier, ops, _ in parts if tier == "compiled")
    assert modes["region_own"] == ["default", "default"]  # the same signal, forwards and backwards
    assert modes["region_tuned"] == ["default", "max-autotune"]
    assert modes["region_forward"] == ["default"]  # gradients with the surroundings


def test_the_backward_of_a_context_overrides_the_configured_one():
    w, x = gt.eval(gt.array(W)), gt.eval(gt.ones((23, 4)))

    def loss(w):
        with gt.signal.context("region_own", backward="region_plain"):
            return (gt.sinh(x @ w) * 2 + 1).sum()

    _, parts = programs_of(lambda: gt.grad(loss)(w))
    assert [tier for tier, _, _ in parts].count("compiled") <= 1


@given(
    graphs(12, continuous=True).flatmap(lambda graph: st.tuples(st.just(graph), arguments(graph))),
    st.lists(st.sampled_from(["region_own", "region_plain", None]), min_size=12, max_size=12),
)
def test_regions_change_no_number(program, names):
    """Random programs, each operation in a region or in none, under the interpreter for all parts."""
    graph, inputs = program
    names += [None] * len(graph.nodes)

    def run(names):
        env = dict(zip(graph.inputs, inputs, strict=True))
        for node, name in zip(graph.nodes, names, strict=False):
            operands = [env[x] if isinstance(x, int) else x for x in node.ins]
            if name is not None:
                gt.signal.enter(name)
            env[node.out] = bind(node.op, operands, node.params)
            if name is not None:
                gt.signal.exit(name)
        return gt.eval([env[value] for value in graph.outputs])

    original = engine.compile
    engine.compile = lambda entry: None
    try:
        got, expected = run(names), run([None] * len(names))
    finally:
        engine.compile = original
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)  # matmuls see other strides


def test_regions_nest_and_survive_a_force():
    x = gt.eval(gt.linspace(0, 1, 31))
    with gt.signal.context("region_own"):
        y = gt.sinh(x) * 2 - 1
        with gt.signal.context("region_plain"):
            z = gt.cosh(y) + y
        float(z.sum())
        y = gt.tanh(y) * gt.sin(y) + z
    expected = np.sinh(np.linspace(0, 1, 31)) * 2 - 1
    expected = np.tanh(expected) * np.sin(expected) + np.cosh(expected) + expected
    assert_close(y, expected, check_dtype=False)


def test_a_jitted_function_is_one_program():
    f = gt.jit(loss_with("region_own", 24), backend="eager")
    w = gt.eval(gt.array(W))
    _, parts = programs_of(lambda: f(w))
    assert len(parts) == 1
    assert_close(f(w), loss_with(None, 24)(w))


def test_wrong_uses():
    with pytest.raises(gt.ArgumentError, match="begun last, none"):
        gt.signal.exit("region_own")
    gt.signal.enter("region_own")
    with pytest.raises(gt.ArgumentError, match=r"begun last, 'region_own', got 'region_plain'"):
        gt.signal.exit("region_plain")
    gt.signal.exit("region_own")
    for wrong in (lambda: gt.signal.enter(""), lambda: gt.signal.tensor(gt.ones(2), name=3)):
        with pytest.raises(gt.ArgumentError, match="name of a signal") as info:
            wrong()
        assert "test_regions.py:" in str(info.value)
    with pytest.raises(gt.ArgumentError, match="backward to name a signal"):
        gt.signal.enter("region_own", backward="nowhere")
    x = gt.ones(3)
    assert gt.signal.tensor(x, name="batch") is x
