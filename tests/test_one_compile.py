"""One compile of a structure at a time, whatever its sizes: requests, waits, and what is dropped.

The compiler is made up: it answers when the test says so, with the lowered program of torch's symbols.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_compiler import MadeUpCompiler

import gtrace as gt
from gtrace.core.base.errors import CompileError
from gtrace.core.runtime import first_calls, policy
from gtrace.core.runtime.asked import EARLY
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.forms import FormEvent, State
from gtrace.core.runtime.worker.client import WorkerClient, worker
from gtrace.core.runtime.worker.lane import Outcome

pytestmark = pytest.mark.inductor


def rows(n: int, *rest: int) -> gt.Array:
    return gt.eval(gt.array(np.random.default_rng(n).normal(size=(n, *rest)).astype(np.float32)))


@pytest.fixture
def compiler(monkeypatch):
    made = MadeUpCompiler()
    monkeypatch.setattr(artifacts, "request", made.request)
    monkeypatch.setattr(policy, "judge", lambda pairs: 2.0)  # what is made up here is not fast
    gt.eval(gt.ones(1) * 2)  # with what other modules have left pending
    with gt.config(background=True, cache_size=0, native=False, jit_wait=0.0):
        yield made


def step_of(layers):
    """A step on a graph: two sizes vary, and numbers that follow from them. Each test has a structure of its own."""

    def step(w, x, places):
        def loss(w):
            y = x
            for _ in range(layers):
                y = y + gt.tanh(gt.segments.segment_sum((y @ w)[places], places, num_segments=x.shape[0]))
            return (y**2).mean() / x.shape[0]

        return gt.value_and_grad(loss)(w)

    return step


def given_for(n, e, d):
    return rows(d, d) / d, rows(n, d), gt.eval(gt.array(np.random.default_rng(e).integers(0, n, e)))


def plain(function, *args):
    with gt.config(auto_compile=False, deterministic=True):
        return gt.eval(function(*args))


def same(got, expected):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_jitted_function_at_new_sizes_has_one_request_in_the_queue(compiler):
    step = step_of(2)
    f = gt.jit(step)
    for k in range(40):
        args = given_for(20 + k, 70 + k * k % 31, 5)
        same(f(*args), plain(step, *args))
    assert len(compiler.requests) == len(compiler.queue) == 1, "the first size is still being compiled"
    assert compiler.work() == 1
    f(*given_for(100, 200, 5))
    assert len(compiler.requests) == 2 and compiler.open == 1, "the next one is for open sizes"
    for k in range(20):
        f(*given_for(120 + k, 300 + k * k % 31, 5))
    assert len(compiler.requests) == 2
    compiler.work()
    for k in range(20):
        args = given_for(150 + k, 400 + k * k % 31, 5)
        same(f(*args), plain(step, *args))
        assert f.programs()[-1].open_sizes
    assert len(compiler.requests) == 2 and not compiler.queue


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True])
def test_a_structure_costs_at_most_three_compiles(compiler, native, monkeypatch):
    for name in ("SHARE", "LONG_SHARE", "OPENING"):
        monkeypatch.setattr(first_calls, name, 0)  # a busy machine makes calls and preparing take any time
    step = step_of(9 + native)
    d = 6 + native
    with gt.config(native=native):
        f = gt.jit(step)
        for k in range(60):
            f(*given_for(20 + k, 70 + k * k % 31, d))
            if k % 3 == 2:
                compiler.work()
    assert 2 <= max(compiler.structures.values()) <= 3
    assert f.programs()[-1].open_sizes


@pytest.mark.slow
def test_undecorated_code_has_one_request_for_a_structure(compiler):
    step = step_of(4)
    with gt.config(hot_threshold=3):
        for k in range(60):
            for _ in range(4):  # each size is hot by itself
                gt.eval(step(*given_for(20 + k, 70 + k * k % 31, 8)))
            assert len(compiler.queue) <= len(compiler.structures)
            if k % 10 == 9:
                compiler.work(9)
    assert max(compiler.structures.values()) <= 3


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(2, 40), st.integers(2, 60), st.booleans()), min_size=4, max_size=24), st.booleans()
)
@settings(max_examples=15)
def test_drawn_sizes_and_a_compiler_that_works_now_and_then(drawn, jitted):
    step = step_of(5)
    made = MadeUpCompiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "request", made.request)
        how = {} if jitted else {"hot_threshold": 1}
        with gt.config(background=True, cache_size=0, native=False, jit_wait=0.0, **how):
            f = gt.jit(step) if jitted else step
            for n, e, work in drawn:
                args = given_for(n, e, 9)
                same(gt.eval(f(*args)), plain(step, *args))
                families = {id(p.family): p.family for p in engine.programs.values()}.values()
                requested = [p for p in engine.programs.values() if p.forms.is_requested]
                assert len({p.family.key for p in requested}) == len(requested)
                assert all(family.is_busy == any(p.family is family for p in requested) for family in families)
                if work:
                    made.work()
            made.work(len(made.queue))


def test_sizes_that_follow_no_rule_are_compiled_once_they_are_hot(compiler):
    table = {n: 1 + n * n % 7 for n in range(20, 60)}

    def head(x):
        return gt.sinh(x)[: table[x.shape[0]]].sum(0) * 2 - gt.cosh(x).mean(0)

    f = gt.jit(head)
    for n in sorted(table):
        f(rows(n, 3))
        compiler.work()
    assert max(compiler.structures.values()) <= EARLY
    with gt.config(hot_threshold=3):
        for _ in range(3):
            f(rows(59, 3))
    compiler.work()
    assert f.programs()[-1].tier == "compiled" and max(compiler.structures.values()) <= EARLY + 1


def test_sizes_that_repeat_are_compiled_one_after_the_other(compiler):
    def total(x):  # no size in it can be left open
        return gt.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, gt.arctan(s[1]) * 0.75), (gt.array(0), x))

    f = gt.jit(total)
    for _ in range(4):
        for n in (5, 6):
            f(rows(n, 4))
            assert len(compiler.queue) <= 1
        compiler.work()
    assert [p.tier for p in f.programs()] == ["compiled"] * 2 and len(compiler.requests) == 2


def test_jit_waits_once_for_a_structure(compiler, monkeypatch):
    waits = []
    wait = worker.wait

    def measured(seconds, condition=None):
        start = time.perf_counter()
        try:
            return wait(seconds, condition)
        finally:
            waits.append(time.perf_counter() - start)

    monkeypatch.setattr(worker, "wait", measured)
    monkeypatch.setattr(policy.CostModel, "predict", lambda self, ops: 0.1)
    f = gt.jit(step_of(6), wait=0.4)
    for k in range(12):
        f(*given_for(20 + k, 70 + k * k % 31, 10))
        if k % 3 == 2:
            compiler.work()
    assert len(waits) == 1 and 0.2 < waits[0] < 0.6
    again = gt.jit(step_of(6), wait=0.4)  # another function of that structure
    again(*given_for(40, 90, 10))
    assert len(waits) == 1


def test_jit_waits_to_the_end_if_it_was_told(compiler, monkeypatch):
    step = step_of(7)
    gt.jit(step)(*given_for(30, 40, 12))
    assert len(compiler.queue) == 1, "it is at another size when the next call begins"
    end = threading.Event()

    def serve():
        while not end.is_set():
            compiler.work()
            with worker._changed:
                worker._changed.notify_all()
            time.sleep(0.01)

    monkeypatch.setattr(policy, "split_work", lambda sizes, *_: [False] * len(sizes))  # all is left to the worker
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        f = gt.jit(step, wait=True)
        args = given_for(31, 41, 12)
        same(f(*args), plain(step, *args))
        assert [p.tier for p in f.programs()] == ["compiled"] and len(compiler.requests) == 2
    finally:
        end.set()
        thread.join()


def test_requests_that_nobody_waits_for_are_dropped(compiler):
    step = step_of(8)
    f = gt.jit(step)
    f(*given_for(20, 70, 11))
    (program,) = f.programs()
    program.forget()
    assert compiler.work() == 0 and program.forms.state is State.INTERPRETED

    g = gt.jit(lambda x: gt.sinh(x).sum(0) * 3 - gt.cosh(x).mean(0))
    g(rows(20, 11))
    (program,) = g.programs()
    with engine.tiering.lock:
        program.forms.change(FormEvent.FAILED, reason="another thread has compiled it")
    assert compiler.work() == 0

    h = gt.jit(lambda x: gt.sinh(x).sum(0) * 4 - gt.cosh(x).mean(0))
    h(rows(20, 11))
    compiler.work()
    h(rows(21, 11))
    h(rows(22, 11))
    _, second, third = h.programs()
    assert second.forms.is_requested and not third.forms.is_requested
    names, done, _ = compiler.queue[-1]
    done({unit: compiler.made(unit) for unit in names.values()}, 0.01)
    h(rows(22, 11))
    assert third.open_sizes, "the code for open sizes fits"


def test_the_queue_of_the_worker_drops_what_is_not_wanted():
    client, got = WorkerClient(), []
    lane = client._loops
    wanted = iter([True, False, True])
    lane.compile = lambda request, folder, timeout: Outcome(None, error=CompileError("made up"))

    class Native:
        native = True

    for k in range(3):
        client.submit(Native(), lambda outcome, k=k: got.append(k), 1.0, lambda: next(wanted))
    assert client.wait(10.0) and got == [0, 2] and client.pending == 0
    client.stop()
