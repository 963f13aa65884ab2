"""Cached pullbacks: a gradient recorded again must be what it was, and must not be what a look-alike's was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.runtime.engine import engine
from gtrace.core.transform import jacobian, tape
from gtrace.testing import assert_close


@pytest.fixture(autouse=True)
def interpret():
    with gt.config(auto_compile=False):
        yield


def walks(monkeypatch):
    """Count the backward walks that rules are applied for, from an empty recording on."""
    float(gt.zeros(()) + 1)  # runs what earlier tests left pending, which would be part of the first recording
    calls = []
    original = tape.pull_some
    monkeypatch.setattr(tape, "pull_some", lambda *args: (calls.append(1), original(*args))[1])
    return calls


def test_a_repeated_gradient_walks_its_tape_once(monkeypatch):
    calls = walks(monkeypatch)
    w, x = gt.array([1.0, 2.0]), gt.array([3.0, 5.0])
    gt.eval(w, x)
    f = gt.grad(lambda w: gt.sin(w * x).sum() * 17.25)
    first = np.asarray(f(w))
    np.testing.assert_array_equal(np.asarray(f(w)), first)
    calls.clear()
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(f(w)), first)
    assert_close(first, 17.25 * np.cos([3.0, 10.0]) * np.array([3.0, 5.0]), check_dtype=False)
    assert not calls
    f(gt.ones(2))
    f(gt.ones(3)[:2])
    assert calls, "nothing counts the walks"


def test_a_repeated_gradient_in_a_capture_walks_its_tape_once_and_keeps_its_lines(monkeypatch):
    calls = walks(monkeypatch)
    w, x = gt.array([1.0, 2.0]), gt.array([[3.0, 5.0], [1.0, 0.0]])

    def of_rows(v):
        return gt.grad(lambda w: gt.sin(w * v).sum() * 17.5)(w)

    def lines():
        graph = gt.make_graph(gt.vmap(of_rows))(x)
        return [(node.op.name, node.location) for node in graph.nodes]

    first, before = np.asarray(gt.vmap(of_rows)(x)), lines()
    assert_close(first, 17.5 * np.cos(np.array([1.0, 2.0]) * np.asarray(x)) * np.asarray(x), check_dtype=False)
    calls.clear()
    np.testing.assert_array_equal(np.asarray(gt.vmap(of_rows)(x)), first)
    assert lines() == before
    assert all(location and "test_cached_pullbacks.py" in location for _, location in before)
    assert not calls


def test_a_repeated_hessian_is_recorded_again_without_its_rules(monkeypatch):
    pushed = []
    original = jacobian.push
    monkeypatch.setattr(jacobian, "push", lambda *args: (pushed.append(1), original(*args))[1])
    a = gt.array([[1.0, 2.0], [3.0, -1.0]])
    f = gt.hessian(lambda x: (gt.sin(a @ x) ** 2).sum() * 0.75)

    def expected(x):
        m = np.asarray(a)
        return 0.75 * m.T @ np.diag(2 * np.cos(2 * m @ np.array(x))) @ m

    for k, x in enumerate(([0.5, 1.0], [0.5, 1.0], [-1.0, 2.0])):
        np.testing.assert_allclose(np.asarray(f(gt.array(x))), expected(x), rtol=1e-4, atol=1e-5)
        assert len(pushed) == 1, k
    other = np.asarray(gt.hessian(lambda x: (gt.sin(a @ x) ** 2).sum() * 0.5)(gt.array([0.5, 1.0])))
    np.testing.assert_allclose(other, expected([0.5, 1.0]) / 1.5, rtol=1e-4, atol=1e-5)
    assert len(pushed) == 2


def test_one_buffer_as_input_and_as_constant_is_told_apart():
    w = gt.array([2.0, 3.0])
    gt.eval(w)
    programs = {
        "square": (lambda v: (v * v).sum(), [4.0, 6.0]),
        "constant second": (lambda v: (v * w).sum(), [2.0, 3.0]),
        "constant first": (lambda v: (w * v).sum(), [2.0, 3.0]),
        "constant only": (lambda v: (w * w).sum() + 0.0 * v.sum(), [0.0, 0.0]),
    }
    for _ in range(3):
        for name, (f, expected) in programs.items():
            np.testing.assert_array_equal(np.asarray(gt.grad(f)(w)), expected, err_msg=name)


def test_one_array_for_two_arguments():
    w = gt.array([2.0, 3.0])
    gt.eval(w)
    for _ in range(3):
        a, b = gt.grad(lambda u, v: (u * u * v).sum(), argnums=(0, 1))(w, w)
        np.testing.assert_array_equal(np.asarray(a), [8.0, 18.0])
        np.testing.assert_array_equal(np.asarray(b), [4.0, 9.0])
        b, a = gt.grad(lambda u, v: (v * v * u).sum(), argnums=(0, 1))(w, w)
        np.testing.assert_array_equal(np.asarray(a), [8.0, 18.0])
        np.testing.assert_array_equal(np.asarray(b), [4.0, 9.0])


def test_an_input_that_leaves_its_gradient_as_aux_is_a_constant_in_the_next():
    w = gt.array([2.0, 3.0])
    gt.eval(w)
    _, inner = gt.grad(lambda v: ((v * v).sum(), v), has_aux=True)(w)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(gt.grad(lambda v: (v * v).sum())(w)), [4.0, 6.0])
        np.testing.assert_array_equal(np.asarray(gt.grad(lambda v: (v * inner).sum())(w)), [2.0, 3.0])
        np.testing.assert_array_equal(np.asarray(gt.grad(lambda v: (inner * v).sum())(w)), [2.0, 3.0])


def test_scalars_are_part_of_the_plan():
    w = gt.array([1.0, 2.0])
    gt.eval(w)
    for scale in (2.0, 3.0, -0.0, 0.0, 2.0):
        got = np.asarray(gt.grad(lambda v, scale=scale: (v * v * scale).sum())(w))
        np.testing.assert_array_equal(got, 2 * scale * np.array([1.0, 2.0]))
        assert (np.signbit(got) == np.signbit(scale)).all()


def test_a_computed_nan_is_a_known_number(monkeypatch):
    calls = walks(monkeypatch)
    recordings = len(engine.recordings)
    for _ in range(6):
        g = gt.grad(lambda x: (x * float("nan") + x * -0.0).sum())(gt.array([1.0, 2.0]))
        assert np.isnan(g.numpy()).all()
    assert len(calls) == 1
    assert len(engine.recordings) - recordings <= 1


def test_stop_gradient_on_one_path_only():
    w = gt.array([1.0, 2.0])
    gt.eval(w)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(gt.grad(lambda v: (gt.stop_gradient(v) * v).sum())(w)), [1.0, 2.0])
        np.testing.assert_array_equal(np.asarray(gt.grad(lambda v: (v * v).sum())(w)), [2.0, 4.0])


def test_cotangents_are_inputs_of_the_plan():
    w = gt.array([1.0, 2.0])
    gt.eval(w)
    for _ in range(3):
        _, pullback = gt.vjp(lambda v: v * v, w)
        for scale in (1.0, 5.0):
            (g,) = pullback(gt.ones(2) * scale)
            np.testing.assert_array_equal(np.asarray(g), scale * np.array([2.0, 4.0]))


UNARY = [
    (gt.sin, torch.sin),
    (gt.tanh, torch.tanh),
    (lambda x: x * 0.5, lambda x: x * 0.5),
    (lambda x: x**2, lambda x: x**2),
]
BINARY = [(gt.add, torch.add), (gt.multiply, torch.mul), (gt.subtract, torch.sub), (gt.maximum, torch.maximum)]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=12
    )
)
def test_random_programs_repeated_agree_with_torch(steps):
    """Programs over two inputs and a constant that shares a buffer with the first, run three times each."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=3).astype(np.float32), rng.normal(size=3).astype(np.float32)
    ga, gb = gt.array(a), gt.array(b)
    gt.eval(ga, gb)
    ta, tb = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)

    def run(x, y, constant, side):
        values = [x, y, constant]
        for kind, which, i, j in steps:
            p, q = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[which][side](p) if kind == 0 else BINARY[which][side](p, q))
        total = values[-1]
        for v in values[3:-1]:
            total = total + v
        return total.sum()

    # a program may use neither input: torch then wants a path all the same
    value = run(ta, tb, ta.detach(), 1) + 0.0 * (ta + tb).sum()
    value.backward()
    expected = [np.zeros(3) if t.grad is None else t.grad.numpy() for t in (ta, tb)]
    for _ in range(3):
        got = gt.grad(lambda x, y: run(x, y, ga, 0), argnums=(0, 1))(ga, gb)
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(np.asarray(g), e, rtol=1e-4, atol=1e-4)
