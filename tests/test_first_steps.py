"""Programs whose reference would take too long are compared by the first steps of their loops."""

from __future__ import annotations

import functools
import math
import time
import warnings

import attrs
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.interpreter.reference import reference
from gtrace.core.backends.native import library
from gtrace.core.backends.native.generator import generate
from gtrace.core.backends.runs import SHORT_LOOP, EndedError, during, ended_once, look
from gtrace.core.base.mechanisms import COMPARISONS
from gtrace.core.runtime import comparisons, first_steps
from gtrace.core.runtime.comparisons import Comparisons
from gtrace.core.runtime.compilation import for_own_sizes
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.first_steps import time_limit
from gtrace.core.runtime.routes import Route

LENGTH, PATIENCE = 30_000, 0.2
"""Steps of which the reference takes longer than so many seconds."""

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """What one test has found out, another one does not know, and references are not waited for as long as usual."""
    gt.config.update(cache_size=0)
    monkeypatch.setattr(comparisons, "PATIENCE", PATIENCE)


@pytest.fixture
def reasons(monkeypatch):
    """Why forms were not compared."""
    found, skip = [], Comparisons.skip
    monkeypatch.setattr(Comparisons, "skip", lambda self, *args: found.append(args[1]) or skip(self, *args))
    return found


def salted(x, salt):
    """Tests share no code if each has a salt of its own."""
    for _ in range(salt):
        x = gt.sin(x + 0.125)
    return x


def scanned(x, salt, length=LENGTH):
    def step(c, i):
        return salted(gt.sin(c) * 0.5 + gt.cos(c) * 0.40625 + i * 1e-6, salt), c.sum()

    return gt.scan(step, x, gt.arange(length))


def backwards(x, salt):
    xs = gt.arange(2 * LENGTH) * 1e-5
    return gt.scan(lambda c, i: (salted(gt.cos(c) * 0.75 + i, salt), (c[0], i * c[1])), x, xs, reverse=True)


def until(x, salt):
    def step(state):
        i, c = state
        return i + 1, salted(gt.cos(c) * 0.40625 + gt.tanh(c), salt)

    return gt.while_loop(lambda state: state[0] < LENGTH, step, (gt.array(0), x))[1]


def nested(x, salt):
    def inner(c, i):
        return salted(gt.cos(c) * 0.5 + i * 1e-3, salt), c[0]

    def outer(c, _):
        c, rows = gt.scan(inner, c, gt.arange(2000) * 0.5)
        c = gt.while_loop(lambda c: gt.abs(c).sum() < 1e3, lambda c: c * 1.25 + 1, c)
        return gt.tanh(c * 1e-3), (rows.sum(), rows[-1])

    return gt.scan(outer, x, None, length=100)


def beside_layers(x, salt):
    """A recording that is divided, and compared as a whole."""
    for k in range(120):
        x = gt.sin(x * (1.0 + k % 3 / 8)) * 0.5 + gt.mean(x) * 0.25
    c, sums = gt.scan(lambda c, i: (salted(gt.cos(c) * 0.625 - i * 1e-6, salt), c[1]), x, gt.arange(LENGTH))
    return gt.sin(c) * 2, sums[:5], x.sum()


WAYS = [scanned, backwards, until, nested, beside_layers]


def called(way, jitted, salt, times=2):
    """The results of the last call, and the warnings."""
    x = gt.from_torch(torch.linspace(0, 1, 7))
    function = gt.jit(lambda x: way(x, salt), wait=True) if jitted else lambda x: way(x, salt)
    with warnings.catch_warnings(record=True) as caught, gt.config(compile=not jitted, background=False):
        warnings.simplefilter("always")
        for _ in range(times):
            results = gt.tree.leaves(gt.eval(function(x)))
    return [y.to_torch() for y in results], [w for w in caught if issubclass(w.category, gt.AuditWarning)]


def lie_in_loops(monkeypatch):
    """Have the C++ of loops lose a thousandth of each cosine."""

    def lying(graph):
        code = generate(graph)
        if not any(node.op.loop for node in graph.nodes):
            return code
        text = code.text.replace("float(m::cos(", "float(0.999f * m::cos(")
        assert text != code.text
        return attrs.evolve(code, text=text)

    monkeypatch.setattr(library, "generate", lying)


@pytest.mark.slow
@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("way", [way for way in WAYS if way is not nested])  # its reference takes a minute
def test_native_code_of_a_long_loop_that_loses_a_term_is_found(monkeypatch, way, jitted, reasons):
    with gt.config(deterministic=True):
        right, _ = called(way, False, jitted, times=1)
    lie_in_loops(monkeypatch)
    got, caught = called(way, jitted, jitted, times=1)
    assert len(caught) == 1 and "wrong one" in str(caught[0].message)
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert not [reason for reason in reasons if "too long" in reason]


def _timed(found):
    """`compare_first_steps`, whose outcomes are noted with their seconds."""

    def timed(*args):
        start = time.thread_time()
        found.append((first_steps.compare_first_steps(*args), time.thread_time() - start))
        return found[-1][0]

    return timed


@pytest.mark.slow
@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_right_long_loop_is_believed_and_compared_in_little_time(monkeypatch, way, jitted, reasons):
    monkeypatch.setattr(comparisons, "compare_first_steps", _timed(found := []))
    again, wholes = comparisons._again, []
    monkeypatch.setattr(comparisons, "_again", lambda *args: wholes.append(args) or again(*args))
    got, caught = called(way, jitted, 2 + jitted)
    assert not caught and not [reason for reason in reasons if "too long" in reason]
    assert found and all(one.steps >= 2 and not one.problem for one, _ in found)
    assert way is beside_layers or found[0][0].steps >= 8
    assert wholes or way is not beside_layers
    assert sum(seconds for _, seconds in found) < 5 * PATIENCE
    monkeypatch.setattr(COMPARISONS, "on", False)
    without, _ = called(way, jitted, 2 + jitted)
    assert all(torch.equal(a, b) for a, b in zip(got, without, strict=True))


@pytest.mark.slow
def test_a_hundred_thousand_steps(monkeypatch, reasons):
    """With the patience that comparisons have by default."""
    monkeypatch.undo()
    gt.config.update(cache_size=0)

    def way(x, salt):
        return scanned(x, salt, 100_000)

    monkeypatch.setattr(comparisons, "compare_first_steps", _timed(found := []))
    _, caught = called(way, True, 5)
    assert not caught and 0 < found[0][1] < comparisons.PATIENCE
    lie_in_loops(monkeypatch)
    _, caught = called(way, True, 6, times=1)
    assert len(caught) == 1 and not reasons


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 3, SHORT_LOOP, 50])
@pytest.mark.parametrize("way", [scanned, backwards, until, nested])
def test_native_code_and_the_reference_are_cut_alike(way, most):
    x = gt.linspace(0, 1, 7)
    function = gt.jit(lambda x: way(x, 4), wait=True)
    gt.eval(function(x))
    (program,) = [program for program in function.programs() if program.has_calls]
    assert all(request.native for request in for_own_sizes(program).schedule.requests)
    inputs = [torch.linspace(-1, 1, a.size).reshape(a.shape).to(a.dtype) for a in program.graph.avals]
    with during(most_steps=most):
        expected = reference(program.graph)(inputs)
        got = program.forms.executable.run(inputs)
        one = reference(program.graph)(inputs)
    for a, b, c in zip(got, expected, one, strict=True):
        assert a.shape == b.shape and torch.equal(b, c)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_scan_that_is_cut_repeats_its_last_step():
    graph = gt.make_graph(lambda x: gt.scan(lambda c, i: (c + i, c * 1.0), x, gt.arange(20.0)))(gt.array(1.0))
    back = gt.make_graph(lambda x: gt.scan(lambda c, i: (c + i, c * 1.0), x, gt.arange(20.0), reverse=True))(
        gt.array(1.0)
    )
    whole = reference(graph)([torch.tensor(1.0)])
    with during(most_steps=3):
        c, rows = reference(graph)([torch.tensor(1.0)])
        assert c == 4 and rows.tolist() == [1, 1, 2, *[2] * 17]
        c, rows = reference(back)([torch.tensor(1.0)])
        assert c == 1 + 19 + 18 + 17 and rows.tolist() == [*[38] * 17, 38, 20, 1]
    assert all(torch.equal(a, b) for a, b in zip(reference(graph)([torch.tensor(1.0)]), whole, strict=True))


def test_what_the_reference_takes_at_least():
    loop = gt.make_graph(lambda x: gt.fori_loop(0, 1000, lambda i, c: gt.sin(gt.cos(c)), x))(gt.ones(3))
    assert first_steps.least_seconds(loop) >= 2000 * first_steps.OPERATION_SECONDS
    branch = gt.make_graph(lambda x: gt.cond(x.sum() > 0, lambda x: x, lambda x: gt.sin(gt.cos(x)), x))(gt.ones(3))
    assert first_steps.least_seconds(branch) < 6 * first_steps.OPERATION_SECONDS
    start = time.thread_time()
    reference(loop)([torch.ones(3)])
    assert time.thread_time() - start > first_steps.least_seconds(loop)


def test_loops_of_which_one_step_takes_too_long_are_not_compared(monkeypatch, reasons):
    monkeypatch.setattr(comparisons, "PATIENCE", 0.0)
    monkeypatch.setattr(comparisons, "LOOP_TIMES", 0.0)
    gt.eval(gt.fori_loop(0, 50, lambda i, c: gt.tanh(c * 1.6875 + i), gt.ones(9)))
    assert reasons == ["the reference of the first steps of its loops takes too long"]


def test_a_run_that_is_ended_for_another_reason_is_no_comparison_that_takes_too_long():
    with pytest.raises(EndedError) as caught, ended_once(lambda: True, "a program"), time_limit(math.inf):
        look()
    assert caught.value.of == "a program"
    with pytest.raises(TimeoutError), time_limit(-1.0):
        look()


def test_what_was_compared_in_parts_is_not_compared_as_a_whole_after_a_comparison_within():
    x, comparisons = torch.linspace(0, 1, 3), engine.comparisons
    graph = gt.make_graph(lambda x: gt.sin(x))(gt.array(x))

    def whole(call):
        return comparisons.whole(graph, [(1,)], (), call, Route(None, (), (-1,)))

    inner = whole(lambda tensors: [torch.sin(tensors[0])])
    within = functools.partial(comparisons.compare_whole, inner)
    outer = whole(lambda tensors: comparisons.separately(within, tensors))
    before = comparisons.counts.compared
    (got,) = comparisons.compare_whole(outer, [x])
    assert torch.equal(got, torch.sin(x)) and comparisons.counts.compared == before + 1
