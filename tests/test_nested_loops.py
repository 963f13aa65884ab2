"""Loops and branches in one another, drawn at random, against the same steps written out in Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_native_loops import close, interpreted, natively

import gtrace as gt
from gtrace.core.backends import schedule as schedules
from gtrace.core.backends.executable import Compiled
from gtrace.core.runtime.compilation import for_own_sizes

MOST_STEPS = 60
"""That an example takes: they are written out, one by one."""

STEPS = {
    "sine": lambda c, s: (gt.sin(0.8 * c + s), s),
    "mean": lambda c, s: (c, gt.tanh(s + 0.3 * c.mean())),
    "product": lambda c, s: (c - 0.3 * c * s, 0.9 * s),
    "turn": lambda c, s: (gt.concat([c[1:], c[:1]]) * 0.9, s + 0.1 * c[0]),
    "replace": lambda c, s: (c.at[1].set(gt.cos(s)), s),
}
"""What is done to a vector and a number; no step makes rounding errors grow."""

SMALL = tuple(sorted(STEPS))
ROWS, COLUMNS = 32, 48
LARGE_STEPS = {
    "matrix product": lambda c, s: (gt.tanh(c @ gt.eye(COLUMNS, k=1, dtype=gt.float64) + s), s),
    "products": lambda c, s: (0.5 * c + (c @ c.T) @ c * 1e-4, 0.9 * s),
    "softmax": lambda c, s: (gt.softmax(c, -1) * s + 0.3 * c, s + 0.01 * c.mean()),
    "sort": lambda c, s: (gt.sort(c, -1) * 0.9, s),
    "running sum": lambda c, s: (gt.cumsum(c, 0) * 0.05, s - 0.1 * c[0, 0]),
    "turned rows": lambda c, s: (gt.concat([c[1:], c[:1]]) * gt.cos(s), s),
    "centre": lambda c, s: (c - c.mean(0), gt.tanh(s + c.max())),
}
"""What is done to a matrix and a number: steps long enough for Inductor to compile them."""


@st.composite
def programs(draw, budget=MOST_STEPS, depth=3, steps=SMALL):
    """A tree: the name of a step, or a tuple of a kind, a length and the programs in it."""
    kinds = ["step"] if depth == 0 else ["scan", "reversed", "fori", "while", "cond", "checkpoint", "both", "step"]
    kind = draw(st.sampled_from(kinds))
    if kind == "step":
        return draw(st.sampled_from(steps))
    length = draw(st.integers(0, min(50, budget))) if kind in ("scan", "reversed", "fori", "while") else 1
    inner = programs(budget // max(length, 1), depth - 1, steps)
    return kind, length, draw(inner), draw(inner) if kind in ("cond", "both") else None


def has(program, kind):
    return not isinstance(program, str) and (
        program[0] == kind or any(has(part, kind) for part in program[2:] if part is not None)
    )


def with_loops(program, c, s):
    """Run a program with the loops and branches of gtrace."""
    if isinstance(program, str):
        return (STEPS.get(program) or LARGE_STEPS[program])(c, s)
    kind, length, body, other = program
    if kind == "both":
        return with_loops(other, *with_loops(body, c, s))
    if kind == "checkpoint":
        return gt.checkpoint(lambda c, s: with_loops(body, c, s))(c, s)
    if kind == "cond":
        return gt.cond(s > 0, lambda c, s: with_loops(body, c, s), lambda c, s: with_loops(other, c, s), c, s)
    if kind == "fori":
        # an integer times a Python number would be of float32

        def counted(i, state):
            return with_loops(body, state[0] + 0.01 * gt.astype(i, gt.float64), state[1])

        return gt.fori_loop(0, length, counted, (c, s))
    if kind == "while":
        # the bound is a value of the program
        bound = length + 0.0 * s
        return gt.while_loop(
            lambda state: state[0] < bound, lambda state: (state[0] + 1, *with_loops(body, *state[1:])), (0, c, s)
        )[1:]

    def step(state, x):
        new, number = with_loops(body, state[0] + x * s, state[1])  # s is closed over
        return (new, number), new * x

    (c, last), ys = gt.scan(step, (c, s), gt.linspace(0.1, 0.2, length, dtype=gt.float64), reverse=kind == "reversed")
    return c, last + 0.1 * ys.sum() / max(length, 1)


def written_out(program, c, s):
    """Run the same with Python's."""
    if isinstance(program, str):
        return (STEPS.get(program) or LARGE_STEPS[program])(c, s)
    kind, length, body, other = program
    if kind == "both":
        return written_out(other, *written_out(body, c, s))
    if kind == "checkpoint":
        return written_out(body, c, s)
    if kind == "cond":
        return written_out(body if float(s) > 0 else other, c, s)
    if kind in ("fori", "while"):
        for i in range(length):
            c, s = written_out(body, c + 0.01 * i if kind == "fori" else c, s)
        return c, s
    xs = [0.1 + 0.1 * k / max(length - 1, 1) for k in range(length)]
    last, total = s, gt.array(0.0, dtype=gt.float64)
    for x in reversed(xs) if kind == "reversed" else xs:
        c, last = written_out(body, c + x * s, last)
        total = total + (c * x).sum()
    return c, last + 0.1 * total / max(length, 1)


def everything(run, program):
    """Return a function of a vector and a number: values, and the derivatives that the program has."""

    def loss(c, s):
        c, s = run(program, c, s)
        return (c * c).sum() + gt.sin(s)

    def f(c, s):
        reverse = () if has(program, "while") else gt.grad(loss, (0, 1))(c, s)
        return run(program, c, s), gt.jvp(loss, (c, s), (gt.cos(c), s + 1.0)), reverse

    return f


def assert_as_written_out(program, number, run, c=(0.3, -0.8, 1.1)):
    """Compare a way to run the program with what is written out."""
    c, s = gt.array(c, dtype=gt.float64), gt.array(number, dtype=gt.float64)
    # undecorated: the branches are those that the values take
    expected = interpreted(everything(written_out, program), c, s)
    close(run(everything(with_loops, program), c, s), expected, 1e-8, 1e-10)


NUMBERS = st.floats(-1, 1).filter(lambda x: math.fabs(x) > 1e-3)
UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=UNHURRIED)
@given(programs(budget=16, depth=3), NUMBERS)
def test_nested_loops_interpreted(program, number):
    assert_as_written_out(program, number, interpreted)


@pytest.mark.slow
@settings(max_examples=2, suppress_health_check=UNHURRIED)
@given(programs(budget=12, depth=2).filter(lambda p: has(p, "scan") or has(p, "while")), NUMBERS)
def test_nested_loops_as_native_code(program, number):
    assert_as_written_out(program, number, natively)


@pytest.mark.long
@settings(max_examples=400, suppress_health_check=UNHURRIED)
@given(programs(), NUMBERS)
def test_long_nested_loops_interpreted(program, number):
    assert_as_written_out(program, number, interpreted)


@pytest.mark.long
@settings(max_examples=100, suppress_health_check=UNHURRIED)
@given(programs(), NUMBERS)
def test_long_nested_loops_as_native_code(program, number):
    assert_as_written_out(program, number, natively)


@pytest.mark.long
@settings(max_examples=20, suppress_health_check=UNHURRIED)
@given(programs(budget=30), NUMBERS)
def test_nested_loops_under_jit(program, number):
    """The way that programs take: interpreted at first, and compiled when they are hot."""

    def run(f, *args):
        jitted = gt.jit(f)
        for _ in range(3):
            results = gt.eval(jitted(*args))
        return results

    assert_as_written_out(program, number, run)


@pytest.mark.long
@settings(max_examples=20, suppress_health_check=UNHURRIED)
@given(programs(budget=10, steps=tuple(sorted(LARGE_STEPS))), NUMBERS)
def test_nested_loops_of_large_steps_compiled(program, number):
    def run(f, *args):
        jitted = gt.jit(f, wait=True)
        for _ in range(3):
            results = gt.eval(jitted(*args))
        return results

    start = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    assert_as_written_out(program, number, run, start)


@pytest.mark.slow
def test_equal_parts_of_one_program_are_compiled_once_and_all_run_compiled(monkeypatch):
    program = ("cond", 1, ("scan", 0, ("scan", 0, "mean", None), None), ("fori", 1, ("scan", 1, "mean", None), None))
    jitted = []

    def run(f, *args):
        jitted.append(gt.jit(f, wait=True))
        return gt.eval(jitted[0](*args))

    assert_as_written_out(program, 1.0, run)
    (entry,) = [entry for entry in jitted[0].programs() if entry.schedule.requests]
    assert entry.tier == "compiled"
    way = for_own_sizes(entry)
    requests = entry.schedule.requests
    assert 1 < len(way.names()) < len(requests)
    interpreters = []
    monkeypatch.setattr(schedules, "interpreter", lambda graph: interpreters.append(graph) or graph)
    monkeypatch.setattr(schedules, "_refusable", lambda run, graph: run)  # native code may refuse values
    once = Compiled(entry.forms.executable)
    way.in_part(dict.fromkeys(way.names().values(), once))
    assert not [request for request in requests if any(graph is request.graph for graph in interpreters)]


EMPTY_BESIDE = {
    "branches": lambda x, e: gt.cond(
        x[0] > 0, lambda c, e: (gt.sin(c) + c, e), lambda c, e: (c * gt.cos(c) + 1.0, e), x, e
    ),
    "loop": lambda x, e: gt.fori_loop(0, 3, lambda i, s: (gt.where(s[0][0] > 0.5, gt.sin(s[0]), s[0]), s[1]), (x, e)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EMPTY_BESIDE))
def test_an_array_without_elements_passes_through_compiled_loops_and_branches(name):
    """The fuzzer's find: a body that only hands one on was not compiled, and a CompileWarning said so."""
    f, x, empty = EMPTY_BESIDE[name], gt.array([0.3, 0.2, -0.1]), gt.zeros((0, 2))
    expected = interpreted(f, x, empty)
    with gt.config(background=False):
        found = gt.eval(gt.jit(f, wait=True)(x, empty))
    assert found[1].shape == (0, 2)
    close(found[0], expected[0], rtol=1e-5)
