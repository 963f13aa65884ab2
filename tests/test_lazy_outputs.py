"""Arrays that a program leaves out since they follow from its results: what is added to parameters, mostly."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace import ir
from gtrace.core.base.events import Forced, bus
from gtrace.core.passes.recomputable_outputs import recomputable_outputs, recomputation
from gtrace.core.passes.tuned import LEAST_LAZY_NODES, MAX_LAZY_NODES
from gtrace.testing import assert_close

RNG = np.random.default_rng(1)  # seeds whose gradients cancel differ by more, on some processors
WEIGHTS = {k: RNG.normal(size=(5, 5)) for k in "abcdefg"}
X = RNG.normal(size=(7, 5))


def loss(weights):
    x = gt.array(X)
    for w in weights.values():
        x = gt.tanh(x @ w) + x
    return gt.square(x).mean()


def by_adam(weights, state):
    value, grads = gt.value_and_grad(loss)(weights)
    updates, state = gt.optim.adamw(0.01, weight_decay=0.1).update(grads, state, weights)
    return value, grads, updates, state, gt.optim.apply_updates(weights, updates)


def by_momentum(weights, state):
    value, grads = gt.value_and_grad(loss)(weights)
    updates, state = gt.optim.sgd(0.01, momentum=0.9, nesterov=True).update(grads, state, weights)
    return value, grads, updates, state, gt.optim.apply_updates(weights, updates)


def by_hand(weights, state):
    value, grads = gt.value_and_grad(loss)(weights)
    state = gt.tree.map(lambda s, g: 0.9 * s + g, state, grads)
    steps = gt.tree.map(lambda s, g: 0.01 * s / (1 + abs(g)), state, grads)
    return value, grads, steps, state, gt.tree.map(lambda w, s: w - s, weights, steps)


def start(step, names=tuple(WEIGHTS)):
    """Return weights, of other names for other tests: what one looks at, programs of that structure then compute."""
    weights = {name: gt.array(WEIGHTS[name]) for name in names}
    if step is by_hand:
        return weights, gt.tree.map(gt.zeros_like, weights)
    optimizer = gt.optim.adamw(0.01) if step is by_adam else gt.optim.sgd(0.01, momentum=0.9)
    return weights, optimizer.init(weights)


STEPS = [by_adam, by_momentum, by_hand]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_arrays_that_are_looked_at_later_have_the_values_of_the_jitted_step(step):
    weights, state = start(step)
    expected_weights, expected_state = weights, state
    jitted = gt.jit(step)
    for k in range(6):
        value, grads, updates, state, weights = step(weights, state)
        float(value)
        expected = jitted(expected_weights, expected_state)
        _, _, _, expected_state, expected_weights = expected
        for x, y in zip(gt.tree.leaves((value, weights, state)), gt.tree.leaves(
            (expected[0], expected_weights, expected_state)), strict=True):  # fmt: skip
            assert_close(x, y)
        if k >= 3:  # the first of these is when nobody has looked at one yet
            for x, y in zip(gt.tree.leaves((updates, grads)), gt.tree.leaves((expected[2], expected[1])), strict=True):
                np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-9, atol=1e-15)


def forced(function):
    """Return how many operations each program has that a call runs."""
    seen = []
    stop = bus.subscribe(lambda event: seen.append(event.ops), Forced)
    try:
        function()
    finally:
        stop()
    return seen


def test_updates_are_left_out_until_somebody_looks_at_them(default_settings):
    weights, state = start(by_adam, "abc")
    counts = []
    for k in range(8):
        value, _, updates, state, weights = by_adam(weights, state)
        float(value)
        if k % 2:
            counts.append(forced(lambda updates=updates: gt.eval(updates)))
    first, *later = counts
    assert len(first) == 3
    # the second step's program may be another one than the third's
    assert all(0 < n <= MAX_LAZY_NODES for n in first), "what they follow from is not computed again"
    assert later[1:] == [[], []], "from then on they are computed with the step"


LOOKS = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x * 1, gt.jit(abs)]
NAMES = ["abc", "abcd", "abcde", "abcdef"]


@pytest.mark.parametrize(("look", "names"), list(zip(LOOKS, NAMES, strict=True)))
def test_arrays_that_are_left_out_are_like_others(look, names, default_settings):
    weights, state = start(by_hand, names)
    for _ in range(2):
        value, grads, updates, state, weights = by_hand(weights, state)
        float(value)
    one, other = updates["a"], updates["b"]
    expected = [0.01 * np.asarray(state[k]) / (1 + np.abs(np.asarray(grads[k]))) for k in "ab"]
    assert_close(np.abs(np.asarray(look(one))), np.abs(expected[0]))
    assert_close(gt.grad(lambda x: (x * other).sum())(one), expected[1])
    assert (one.shape, str(one.dtype), one.device.type) == ((5, 5), "float64", "cpu")


def test_threads_may_look_at_them(default_settings):
    weights, state = start(by_adam, "abcd")
    for _ in range(2):
        value, _, updates, state, weights = by_adam(weights, state)
        float(value)
    found = [None] * 4

    def look(k):
        found[k] = {name: np.asarray(x) for name, x in updates.items()}

    threads = [threading.Thread(target=look, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for name, x in updates.items():
        assert all((one[name] == np.asarray(x)).all() for one in found)


def test_a_step_that_raises_leaves_them_pending_and_nothing_is_lost(default_settings):
    weights, state = start(by_adam, "abcde")
    value, _, updates, state, weights = by_adam(weights, state)
    broken = gt.take(gt.arange(5), gt.array([7]), mode="raise")
    with pytest.raises(gt.ExecutionError):
        float(value + broken.sum())
    assert np.isfinite(np.asarray(updates["a"])).all()
    assert np.isfinite(np.asarray(weights["a"])).all()


UNARY = [(gt.sin, np.sin), (gt.tanh, np.tanh), (abs, np.abs), (lambda x: x * 0.5, lambda x: x * 0.5)]
BINARY = [np.add, np.subtract, np.multiply]


@pytest.mark.slow
@given(st.data())
def test_any_program_any_arrays_alive_looked_at_in_any_order(data):
    arrays = [RNG.normal(size=(3,)) for _ in range(3)]
    known = [(gt.array(x), x) for x in arrays]
    inputs = list(known)
    for _ in range(LEAST_LAZY_NODES + 6):
        kind = data.draw(st.sampled_from(["unary", "binary", "added", "sum"]))
        x, y = data.draw(st.sampled_from(known))
        if kind == "unary":
            f, g = data.draw(st.sampled_from(UNARY))
            known.append((f(x), g(y)))
        elif kind == "sum":
            known.append((x.sum() + gt.zeros((3,), dtype=gt.float64), np.zeros(3) + y.sum()))
        else:
            f = data.draw(st.sampled_from(BINARY if kind == "binary" else BINARY[:2]))
            other, there = data.draw(st.sampled_from(known if kind == "binary" else inputs))
            known.append((getattr(gt, f.__name__)(other, x), f(there, y)))
    kept = data.draw(st.lists(st.sampled_from(known), min_size=2, unique_by=id))
    del known, inputs, x
    for array, expected in data.draw(st.permutations(kept)):
        assert_close(array, expected)


def chain(x, p, between):
    y = x.sum() + gt.exp(x) @ x * x
    total = y
    for _ in range(LEAST_LAZY_NODES):
        total = gt.sin(total)
    update = y
    for _ in range(between):
        update = gt.cos(update)
    return y, total, update, p + update


@pytest.mark.parametrize(("between", "places"), [(1, {2}), (MAX_LAZY_NODES, {2}), (MAX_LAZY_NODES + 1, set())])
def test_what_takes_few_operations_is_left_out(between, places):
    graph = gt.make_graph(lambda x, p: chain(x, p, between))(gt.ones(4), gt.ones(4))
    found = recomputable_outputs(graph)
    assert found.keys() == places
    assert not recomputable_outputs(graph, wanted=places)
    for place, sources in found.items():
        part = recomputation(attrs_with_outputs(graph, place), sources)
        whole = ir.evaluate(graph, np.arange(4.0, dtype="f"), np.ones(4, "f"))
        named = dict(zip(graph.outputs, whole, strict=True))
        (value,) = ir.evaluate(part, *[named[v] for v in part.inputs])
        np.testing.assert_array_equal(value, whole[place])


def attrs_with_outputs(graph, place):
    return ir.Graph(graph.inputs, graph.avals, graph.nodes, (graph.outputs[place],))


@pytest.mark.parametrize(
    "use",
    [
        lambda p, u: p * u,  # no sum
        lambda p, u: u - p,  # not subtracted from it
        lambda p, u: gt.sin(p + u),  # the sum is no output
        lambda p, u: p + u + u,  # used again
        lambda p, u: p[:1] + u,  # not added to an input
        lambda p, u: p.sum() + u,
    ],
)
def test_what_is_used_otherwise_is_computed(use):
    def program(x, p):
        y, total, update, _ = chain(x, p, 3)
        return y, total, update, use(p, update)

    assert not recomputable_outputs(gt.make_graph(program)(gt.ones(4), gt.ones(4)))
