"""Functions that are captured again and again: every capture runs the function, and means what that run recorded."""

from __future__ import annotations

import re
import time

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.ir.graph import Graph
from gtrace.core.trace import capture
from gtrace.testing import arguments, assert_close, graphs

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def looped(f):
    return lambda x: gt.scan(lambda c, row: (f(c) + row, c), gt.zeros(3), x)[0]


TRANSFORMS = {
    "vmap": lambda f: gt.vmap(f),
    "scan": looped,
    "while_loop": lambda f: (
        lambda x: gt.while_loop(lambda s: abs(s).sum() < 50, lambda s: 0.1 * f(s) + 1.5 * s + 1, x[0])
    ),
    "cond": lambda f: lambda x: gt.cond(x.sum() > 0, f, lambda v: v, x[0]),
    "checkpoint": lambda f: gt.grad(lambda x: gt.checkpoint(lambda v: f(v) * v)(x[0]).sum()),
    "vmap of grad": lambda f: gt.vmap(gt.grad(lambda v: (f(v) * v).sum())),
    "grad of scan": lambda f: gt.grad(lambda x: looped(f)(x).sum()),
}

factor = 1.0


def test_a_function_that_depends_on_what_changes_gives_the_results_of_each_call():
    """Against functions without such dependence, which are made anew for each value."""
    global factor
    x = gt.eval(gt.array(X))
    held = {"array": x[0], "operation": gt.sin, "axis": 0, "key": "a"}
    calls = []

    def reads(v):
        calls.append(None)
        if len(calls) % 2:  # what was recorded depends on how often it ran
            v = v + len(calls)
        v = held["operation"](v * factor) + held["array"]
        return v[::-1] if held["axis"] else v

    def expected(calls, factor, operation, array, axis):
        def plain(v):
            calls[0] += 1
            if calls[0] % 2:
                v = v + calls[0]
            v = operation(v * factor) + array
            return v[::-1] if axis else v

        return plain

    for name, transform in TRANSFORMS.items():
        for k in range(12):
            factor = 1.0 + k // 3
            held["array"] = x[k % 2] * 1.0
            held["operation"] = gt.sin if k % 4 < 2 else gt.tanh
            held["axis"] = k // 6
            begun = [len(calls)]
            got = transform(reads)(x)
            plain = expected(begun, factor, held["operation"], held["array"], held["axis"])
            wanted = np.asarray(transform(plain)(x))
            np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-6, err_msg=f"{name} {k}")


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_function_runs_at_each_call(name):
    ran = []

    def f(v):
        ran.append(None)
        return gt.sin(v)

    transformed = TRANSFORMS[name](f)
    counts = []
    for _ in range(4):
        before = len(ran)
        gt.eval(transformed(X))
        counts.append(len(ran) - before)
    assert counts[0] >= 1 and counts == counts[:1] * 4


def test_numbers_that_equal_one_another_but_are_not_the_same():
    signs = [0.0, -0.0, 0.0, -0.0]
    for zero in signs:
        got = gt.vmap(lambda v, zero=zero: v * 0 + v * zero - 0.0)(gt.array([-1.0, 1.0]))
        plain = gt.array([-1.0, 1.0]) * 0 + gt.array([-1.0, 1.0]) * zero - 0.0
        np.testing.assert_array_equal(np.signbit(np.asarray(got)), np.signbit(np.asarray(plain)))
    for one in (1, 1.0, True, 1, 1.0, True):
        got = gt.vmap(lambda v, one=one: gt.array([1, 2, 3])[v] * one)(gt.array([0, 2]))
        assert got.dtype == (gt.array([1, 3]) * one).dtype


def test_an_error_names_the_line_of_its_own_call():
    def first(v):
        return gt.log(v)

    def second(v):
        return gt.log(v)

    x = gt.array([1.0, -1.0])
    with gt.config(debug_nans=True):
        for f in (first, second, first, second, first, second):
            with pytest.raises(gt.NonFiniteError) as error:
                gt.eval(gt.vmap(f)(x))
            assert f":{f.__code__.co_firstlineno + 1}" in str(error.value)


def test_an_error_in_a_function_that_is_captured_within_another_names_its_line():
    def first(v):
        return gt.log(v) * 2.0

    def second(v):
        return gt.log(v) * 2.0

    x = gt.array([[1.0, -1.0], [2.0, 3.0]])
    with gt.config(debug_nans=True):
        for f in (first, second, first, second, first, second):
            with pytest.raises(gt.NonFiniteError) as error:
                gt.eval(gt.vmap(lambda row, f=f: gt.vmap(f)(row).sum())(x))
            assert f":{f.__code__.co_firstlineno + 1}" in str(error.value)


def test_an_error_in_a_body_names_the_line_of_its_loop_or_branch():
    """Equal bodies share the lines of the first one."""

    def first(x):
        return gt.scan(lambda c, _: (gt.log(c) * 1.5, None), x, None, length=2)[0]

    def second(x):
        return gt.scan(lambda c, _: (gt.log(c) * 1.5, None), x, None, length=2)[0]

    def third(x):
        return gt.cond(x[0] > 0, lambda c: gt.log(c) * 1.5, lambda c: c, x)

    with gt.config(debug_nans=True):
        for f in (first, second, third, first, second):
            with pytest.raises(gt.NonFiniteError) as error:
                gt.eval(f(gt.array([1.0, -1.0])))
            assert re.search(rf"The \w+ is at .*:{f.__code__.co_firstlineno + 1}\.$", str(error.value))


def test_axes_of_a_batch_that_equal_one_another_but_are_not_the_same():
    x = gt.array(np.arange(6.0).reshape(2, 3))
    for _ in range(3):
        assert gt.vmap(lambda v: v.sum(), in_axes=1)(x).shape == (3,)
        assert gt.vmap(lambda v: v.sum(), in_axes=0)(x).shape == (2,)
        for wrong in (True, False, (True,), 1.0):
            with pytest.raises(gt.ArgumentError):
                gt.vmap(lambda v: v.sum(), in_axes=wrong)(x)
        with pytest.raises(gt.ShapeError):
            gt.vmap(lambda v: v.sum(), axis_size=5)(x)


def test_arguments_of_a_batch_of_all_kinds_in_turn():
    x, rows = gt.array(X), X.copy()

    def f(v, scale, *, shift=0.0):
        return (v * scale + shift).sum()

    for k in range(3):
        scale = float(k)
        for batch in (x, rows):
            got = gt.vmap(f, in_axes=(0, None))(batch, scale)
            assert_close(got, (X * scale).sum(1))
            got = gt.vmap(f, in_axes=(-1, None))(batch, gt.array(scale), shift=gt.ones(3))
            assert_close(got, (X * scale + 1).sum(0))


def test_a_number_that_changes_while_another_capture_stays_is_the_number_of_its_own_call():
    x = gt.eval(gt.array(X))
    for k in range(8):
        for factor in (2.0, 3.0 + k):
            got = gt.scan(lambda c, row, factor=factor: (c * factor + row, None), gt.zeros(3), x)[0]
            assert_close(got, X[0] * factor + X[1])


def test_a_placeholder_that_leaks_is_refused_each_time():
    leaked = []
    for _ in range(3):
        gt.vmap(lambda v: (leaked.append(v), v * 2)[1])(X)
        with pytest.raises(gt.LeakError):
            leaked[-1] + 1


def test_a_call_costs_little_more_than_recording_the_function():
    """Generous, because it measures times: without what is remembered it is 20 times the cost and more."""
    x = gt.eval(gt.array(X))

    def body(v):
        for _ in range(30):
            v = gt.tanh(v * 2.0 + 1.0)
        return v

    mapped, scanned = gt.vmap(body), looped(body)

    def seconds(f):
        times = []
        for _ in range(30):
            begin = time.perf_counter()
            result = f(x)
            times.append(time.perf_counter() - begin)
            gt.eval(result)
        return sorted(times)[len(times) // 3]

    with gt.config(auto_compile=False):
        plain = seconds(body)
        assert seconds(mapped) < 14 * plain
        assert seconds(scanned) < 14 * plain


@pytest.mark.slow
@settings(max_examples=25)
@given(graphs(12, control=True), st.booleans(), st.data())
def test_a_program_recorded_in_one_go_is_the_program(graph, pending, data):
    """Inputs may be pending, may be outputs, and may be given twice; numbers are those of the program."""
    values = data.draw(arguments(graph))
    whole = Graph(graph.inputs, graph.avals, graph.nodes, (*graph.outputs, graph.inputs[0], graph.outputs[0]))
    expected = interpreter(whole)([x.to_torch() for x in values])
    given = [gt.where(True, x, x) if pending else x for x in values]
    before = gt.sin(2.5)  # numbers and values that stand before
    got = gt.eval(capture.replay(whole, given))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), other.numpy(), rtol=1e-5, atol=1e-6)
    assert_close(before, np.sin(2.5), check_dtype=False)


@pytest.mark.slow
@settings(max_examples=20)
@given(graphs(8, smooth=True, control=True), st.booleans(), st.data())
def test_gradients_of_a_program_recorded_in_one_go_are_those_of_its_operations(graph, looked, data):
    values = data.draw(arguments(graph))

    def loss(*xs):
        outs = capture.replay(graph, xs)
        if looked:
            gt.eval(outs)  # in the middle of the gradient
        return sum(x.sum() for x in outs)

    grads = gt.grad(loss, argnums=range(len(values)))
    got = grads(*values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "_entries", lambda graph: None)
        expected = grads(*values)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-9, atol=1e-12)


def test_what_is_recorded_in_between_does_not_change_a_program_recorded_in_one_go(monkeypatch):
    graph = gt.make_graph(lambda x: gt.sin(x) * 0.5 + x)(gt.ones(3))
    entries, seen = capture._entries(graph), []

    class Interrupted(tuple):
        def __iter__(self):
            for k, place in enumerate(super().__iter__()):
                if k == 1:
                    seen.append(gt.exp(gt.array(1.0)) * 3.0)
                yield place

    noisy = attrs.evolve(entries, values=Interrupted(entries.values))
    monkeypatch.setattr(capture, "_entries", lambda graph: noisy)
    (got,) = capture.replay(graph, [gt.array([1.0, 2.0, -0.5])])
    assert_close(got, np.sin([1, 2, -0.5]) * 0.5 + [1, 2, -0.5], check_dtype=False)
    assert_close(seen[0], 3 * np.e)
    assert len(seen) == 1
