"""Loops and branches in eager mode run in Python, with values, and give what recorded ones give."""

from __future__ import annotations

import numpy as np
import pytest

import gtrace as gt


def check_agrees(function, *args):
    expected = function(*args)
    with gt.config(eager=True):
        found = function(*args)
    assert gt.tree.structure(found) == gt.tree.structure(expected)
    for a, b in zip(gt.tree.leaves(found), gt.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.aval.weak == b.aval.weak
        np.testing.assert_allclose(a, b, rtol=1e-6)


def running(carry, x):
    total = carry["total"] + x["a"] * x["b"].sum()
    return {"total": total, "count": carry["count"] + 1}, (total, {"twice": 2 * x["a"]})


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_scan(steps, reverse):
    xs = {"a": gt.arange(float(steps)), "b": gt.ones((steps, 3))}
    start = {"total": gt.array(1.0), "count": gt.array(0)}
    check_agrees(lambda: gt.scan(running, start, xs, reverse=reverse))
    with gt.config(eager=True):
        last, (totals, _) = gt.scan(running, start, xs, reverse=reverse)
    order = slice(None, None, -1 if reverse else 1)
    expected = 1 + 3 * np.cumsum(np.arange(float(steps))[order])[order]
    np.testing.assert_array_equal(totals, expected)
    assert int(last["count"]) == steps and float(last["total"]) == 1 + 3 * sum(range(steps))


def test_numbers_as_first_states_take_the_types_of_the_body():
    check_agrees(lambda: gt.scan(lambda c, x: (c + x, None), 0, gt.array([1.5, 2.0])))
    check_agrees(lambda: gt.while_loop(lambda x: x < 10, lambda x: x * gt.array(1.5), 1))
    check_agrees(lambda: gt.fori_loop(0, 4, lambda k, x: x + k, 0))
    check_agrees(lambda: gt.fori_loop(gt.array(1), gt.array(4), lambda k, x: x + k, gt.array(0.5)))


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
def test_branches(index):
    check_agrees(lambda x: gt.switch(index, [gt.sin, gt.cos, lambda y: y * 2], x), gt.array([0.5, 2.0]))
    check_agrees(
        lambda x: gt.cond(index > 0, lambda a, b: {"r": a + b}, lambda a, b: {"r": a - b}, x, 2.0), gt.array(3.0)
    )


def test_maps_and_gradients():
    x = gt.array([0.3, -1.2, 2.0])
    check_agrees(lambda x: gt.map(lambda v: gt.sin(v) * 2, x), x)
    check_agrees(gt.grad(lambda x: gt.scan(lambda c, v: (c * v + gt.sin(v), c), gt.array(1.0), x)[1].sum()), x)
    check_agrees(gt.grad(lambda x: gt.cond(x[0] > 0, lambda v: (v**2).sum(), lambda v: v.sum(), x)), x)
    check_agrees(gt.vmap(lambda v: gt.cond(v > 0, gt.sin, gt.cos, v)), x)
    check_agrees(gt.vmap(lambda v: gt.while_loop(lambda s: s < 5, lambda s: s + v * v + 1, v)), x)
    check_agrees(gt.jit(lambda x: gt.scan(lambda c, v: (c + v, c), 0.0, x)), x)


def test_bodies_see_values():
    seen = []

    def body(carry, x):
        if x > 1:  # recorded, this raises
            seen.append(float(x))
        return carry + x, None

    with gt.config(eager=True):
        assert float(gt.scan(body, 0.0, gt.array([1.0, 2.0, 3.0]))[0]) == 6
        assert int(gt.while_loop(lambda n: n != 1, lambda n: n // 2 if n % 2 == 0 else 3 * n + 1, gt.array(6))) == 1
        assert gt.cond(gt.array(True), lambda v: v.tolist(), lambda v: [], gt.array([1.0])) == [gt.array(1.0)]
    assert seen == [2.0, 3.0]
    with pytest.raises(gt.ConcretizationError):
        gt.scan(body, 0.0, gt.array([1.0]))


def test_only_the_branch_that_is_taken_runs():
    def fails(x):
        raise AssertionError("not taken")

    with gt.config(eager=True):
        assert float(gt.cond(False, fails, lambda x: x + 1, 1.0)) == 2


def test_a_state_of_other_types_is_refused():
    with gt.config(eager=True):
        with pytest.raises(gt.ArgumentError, match="while_loop"):
            gt.while_loop(lambda x: x.sum() < 3, lambda x: gt.concat([x, x]), gt.array([1.0]))
        with pytest.raises(gt.ArgumentError, match="scan"):
            gt.scan(lambda c, x: ((c, c), None), 0.0, gt.array([1.0]))
        with pytest.raises(gt.ArgumentError, match="pair"):
            gt.scan(lambda c, x: c, 0.0, gt.array([1.0]))
        with pytest.raises(gt.ArgumentError, match="i64"):  # a number of floats becomes no integer
            gt.while_loop(lambda x: x < 3, lambda x: gt.array(5), 0.5)
        with pytest.raises(gt.ArgumentError, match="f64"):
            gt.scan(lambda c, x: (c.astype("float64"), None), gt.array(0.0), gt.array([1.0, 2.0]))
