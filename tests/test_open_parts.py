"""Programs that have no open sizes as a whole: loops, operations that are interpreted, and thousands of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends import scheduler
from gtrace.core.backends.executable import Compiled, Executable, interpreted
from gtrace.core.backends.fx import lower
from gtrace.core.runtime import programs
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.engine import engine

pytestmark = pytest.mark.inductor


def rows(n: int, *rest: int) -> gt.Array:
    return gt.eval(gt.array(np.random.default_rng(n).normal(size=(n, *rest)).astype(np.float32)))


def same(got, expected):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-4)


def plain(function, *args):
    with gt.config(auto_compile=False, deterministic=True):
        return gt.eval(function(*args))


@pytest.fixture
def compiles(monkeypatch):
    """Requests that are compiled: native ones by g++, others by torch's symbols without Inductor."""
    made = []
    original = artifacts.compile

    def compile_(name, unit, *args):
        made.append(unit)
        if unit.native:
            return original(name, unit, *args)
        if unit.relations is None:
            return Compiled(interpreted(unit.graph, unit.strides))
        lowered = lower(unit.graph, unit.strides, None, unit.relations)
        return Compiled(Executable(lambda ts: lowered.module(*ts), "process", unit.device), lowered.guards())

    monkeypatch.setattr(artifacts, "compile", compile_)
    return made


def embedded(rows_of):
    return gt.tanh(rows_of * 2.0) - gt.sin(rows_of) * gt.cos(rows_of + 0.5)


def scanned(x):
    """A recurrence over the rows, between operations on all of them, and its gradient."""

    def loss(x):
        last, each = gt.scan(lambda c, row: ((new := gt.tanh(c * 0.9 + row)), new * 2), gt.zeros(3), embedded(x))
        return (gt.exp(each - each.max()) / gt.exp(each).sum()).mean() + last.sum()

    return gt.value_and_grad(loss)(x)


def looped(x):
    """A loop that a condition ends, whose state has the varying size."""
    count, y = gt.while_loop(
        lambda s: s[0] < 4, lambda s: (s[0] + 1, gt.sin(s[1]) * 1.5 + 0.1), (gt.array(0), embedded(x))
    )
    return (gt.exp(y - y.max()) / gt.exp(y - y.max()).sum()) * x + count


def transformed(x):
    """A Fourier transform, for whose numbers Inductor has no code."""
    y = gt.abs(gt.fft.fft(embedded(x).reshape((-1,))))
    y = gt.log(1 + y * y) - gt.sqrt(y + 1) * gt.tanh(y) + gt.cos(y) * gt.sin(y * 0.5)
    return y.reshape((x.shape[0], 3)) * x - x.mean(0)


def branched(x):
    """A branch on a value, between operations on all rows."""
    y = gt.cond(x.sum() > 0, lambda y: gt.sinh(y) * 2, lambda y: gt.cosh(y) - 1, embedded(x))
    return (gt.sin(y) * gt.cos(y) - gt.tanh(y) * x).sum(0) * x.shape[0]


def long(x):
    """More operations than are compiled in one piece."""
    y = x
    for k in range(30):
        y = (gt.sin, gt.tanh, gt.cos, gt.exp, gt.arctan)[k * k % 5](y) * 0.3 + (x if k % 3 else k)
    return y.sum(0) - x.shape[0]


FUNCTIONS = [scanned, looped, transformed, branched, long]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    for table in (
        engine.programs,
        engine.programs._families,
        engine.recordings,
        engine.cuts.found,
    ):
        table.clear()
    monkeypatch.setattr(scheduler, "MAX_OPS", 40)
    monkeypatch.setattr(programs, "MAX_OPS", 40)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:program .* was compiled for 8 sizes:gtrace.errors.CompileWarning")  # `looped`
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS, ids=[f.__name__ for f in FUNCTIONS])
def test_parts_have_open_sizes(function, jitted, native, compiles):
    if not native and function is looped:
        pytest.skip("as with native code")
    f = gt.jit(function, wait=True) if jitted else function
    with gt.config(native=native, **({} if jitted else {"compile": True})):
        for n in (7, 12, 9, 30, 31, 4):
            x = rows(n, 3)
            same(gt.eval(f(x)), plain(function, x))
        before = len(compiles)
        for n in (5, 13, 40, 41, 64, 8):
            x = rows(n, 3)
            same(gt.eval(f(x)), plain(function, x))
    # the code of a loop is for any number of steps; that of other loops and of branches is for the sizes of their state
    fixed = [unit for unit in compiles[before:] if unit.relations is None]
    assert len(fixed) == len(compiles) - before <= (0 if function in (scanned, transformed, long) else 4)
    assert any(unit.relations is not None for unit in compiles)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:program .* was compiled for 8 sizes:gtrace.errors.CompileWarning")
@given(st.sampled_from(FUNCTIONS), st.lists(st.integers(1, 24), min_size=3, max_size=8), st.booleans())
@settings(max_examples=25)
def test_drawn_sizes(function, sizes, jitted):
    if function is looped:
        sizes = sizes[:3]
    f = gt.jit(function) if jitted else function
    with gt.config(**({"jit_wait": 0.0} if jitted else {"compile": True})), pytest.MonkeyPatch.context() as patch:
        original = artifacts.compile

        def compile_(name, unit, *args):
            if unit.native or unit.relations is None:
                return original(name, unit, *args) if unit.native else Compiled(interpreted(unit.graph, unit.strides))
            lowered = lower(unit.graph, unit.strides, None, unit.relations)
            return Compiled(Executable(lambda ts: lowered.module(*ts), "process", unit.device), lowered.guards())

        patch.setattr(artifacts, "compile", compile_)
        for n in sizes:
            x = rows(n, 3)
            same(gt.eval(f(x)), plain(function, x))


@pytest.mark.slow
def test_the_code_of_a_loop_serves_every_number_of_steps(compiles):
    @gt.jit
    def total(x):
        return gt.scan(lambda c, row: (gt.sinh(c * 0.1) + row, c * 2), gt.zeros(5), x)

    before = engine.tiering.compiles
    for n in range(2, 20):
        x = rows(n, 5)
        same(gt.eval(total(x)), plain(total.__wrapped__, x))
    assert engine.tiering.compiles - before == len(compiles) == 1
    assert {program.tier for program in total.programs() if program.has_calls} == {"compiled"}


def test_one_size_is_not_cut(compiles):
    f = gt.jit(scanned)
    x = rows(7, 3)
    f(x), f(x + 1)
    (first,) = f.programs()
    f(rows(8, 3))
    assert len(f.programs()) > 2
    assert first.ledger.calls == 2 and all(program.ledger.calls for program in f.programs())
