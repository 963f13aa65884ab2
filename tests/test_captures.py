"""Functions that are captured again and again: every capture runs the function, and means what that run recorded."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gtrace as gt

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
