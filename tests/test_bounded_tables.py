"""Bounded tables: what is made again when a program goes through more kinds of work than they hold."""

import gc
import random
import sys
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.base.bounded_tables import PARTS, BoundedTable, budget
from gtrace.core.base.events import Canonicalized, bus
from gtrace.core.runtime import engine as engines
from gtrace.core.runtime import programs
from gtrace.core.runtime.engine import Engine, engine


@given(st.integers(1, 40), st.lists(st.integers(0, 100), max_size=300))
def test_a_table_holds_the_newest_and_never_more_than_its_limit(limit, keys):
    table = BoundedTable(limit)
    for key in keys:
        table.remember(key, -key)
        assert len(table) <= limit
        assert table[key] == -key
    assert all(value == -key for key, value in table.items())


def test_tables_leave_the_users_random_numbers_alone():
    random.seed(3)
    expected = random.random()
    random.seed(3)
    table = BoundedTable(4)
    for key in range(100):
        table.remember(key, key)
    assert random.random() == expected


@pytest.fixture
def sweep(monkeypatch):
    """Run that many different programs once each; returns how many were made for the first time, or again."""

    def run(count):
        made = []
        stop = bus.subscribe(made.append, Canonicalized)
        try:
            # what other tests have left in tables counts for the limit of bytes, which is tested below
            with gt.config(auto_compile=False, hot_threshold=1000, program_memory=1 << 40):
                for x in arrays[:count]:
                    assert (x * 2.0 + 1.0).sum().item() == 3.0 * x.size
        finally:
            stop()
        return len(made)

    def prepare(count, limit=None):
        if limit is not None:
            for module in (engines, programs):
                monkeypatch.setattr(module, "MAX_PROGRAMS", limit)
        monkeypatch.setattr(sys.modules["gtrace.core.trace.force"], "engine", Engine())
        arrays.extend(gt.ones(size) for size in range(1, count + 1))
        gt.eval(*arrays)
        return run

    arrays = []
    return prepare


def test_a_turn_through_as_many_programs_as_there_is_room_for_makes_none_again(sweep):
    run = sweep(60, limit=64)
    assert (run(60), run(60)) == (60, 0)


def test_a_turn_through_more_programs_than_there_is_room_for_makes_some_again(sweep):
    run = sweep(96, limit=64)
    assert run(96) == 96
    # two thirds fit; forgetting the oldest would make all of them again, in each turn
    assert all(32 <= run(96) <= 72 for _ in range(5))


def test_ten_thousand_programs_have_room():
    assert min(engines.MAX_PROGRAMS, engine.recordings.limit, engine.forms.limit) >= 10_000


@pytest.mark.long
def test_a_turn_through_ten_thousand_programs_makes_none_again(sweep):
    run = sweep(10_000)
    assert (run(10_000), run(10_000)) == (10_000, 0)


# bytes

UNARY = [gt.sin, gt.cos, gt.tanh, gt.exp, gt.sqrt, gt.square]


def drawn(draw):
    """Return an array of a drawn size that is made by drawn operations and numbers."""
    x = gt.full((draw.randint(1, 9999), 2), draw.random())
    for _ in range(draw.randint(1, 8)):
        x = draw.choice(UNARY)(x) * draw.random()
    return x


JITTED = gt.jit(lambda x: (gt.tanh(x) + 1).sum())


def trained(draw):
    """Return the parameter after a step of Adam."""
    optimizer, w = gt.optim.adam(0.1), gt.ones(draw.randint(1, 9999))
    state = optimizer.init(w)
    updates, state = optimizer.update(gt.grad(lambda w: (w * w).sum())(w), state, w)
    return gt.optim.apply_updates(w, updates)


LOOPS = {
    "programs": lambda draw: drawn(draw).sum(),
    "a jitted function": lambda draw: JITTED(gt.ones(draw.randint(1, 9999))),
    "new jitted functions": lambda draw: gt.jit(lambda x: gt.tanh(x).sum())(gt.ones(draw.randint(1, 9999))),
    "gradients": lambda draw: gt.grad(lambda x: gt.sin(x).sum())(gt.ones(draw.randint(1, 9999))),
    "batches": lambda draw: gt.vmap(lambda x: gt.sin(x).sum() * x)(gt.ones((draw.randint(1, 9999), 2))),
    "loops": lambda draw: gt.lax.scan(lambda c, x: (c + x, c), 0.0, gt.ones(draw.randint(1, 99)))[0],
    "training": trained,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_what_tables_hold_is_bounded_in_bytes_and_never_changes_a_result(name):
    step, draw = LOOPS[name], random.Random(5)
    results, held = [], []
    with gt.config(deterministic=True, program_memory=0):
        step(draw)  # forgets what other tests have made
    with gt.config(deterministic=True, program_memory=60_000) as settings:
        for _ in range(20):
            results.append(np.asarray(step(draw)))
            held.append(budget.held)
    # an entry stays until the next count, and one part more may come in meanwhile
    assert max(held) <= settings.program_memory * (1 + 1 / PARTS) + 20_000
    draw = random.Random(5)
    step(draw)
    with gt.config(deterministic=True):
        for got in results[:4]:
            np.testing.assert_array_equal(got, np.asarray(step(draw)))
            held.append(budget.held)
    assert held[-1] > 0


def test_programs_that_are_forgotten_are_freed():
    x = gt.ones(7919)
    with gt.config(auto_compile=False):
        (x * 2.0 + 1.0).sum().item()
        program = weakref.ref(next(p for p in engine.programs.values() if "f32[7919]" in str(p.graph)))
        with gt.config(program_memory=0):
            (x * 2.0).sum().item()
        gc.collect()
        assert program() is None
        assert (x * 2.0 + 1.0).sum().item() == 3.0 * 7919


def test_what_tables_hold_is_about_what_is_counted():
    draw = random.Random(8)
    with gt.config(deterministic=True):
        drawn(draw).sum().item()
        gc.collect()
        counted = budget.held
        tracemalloc.start()
        try:
            for _ in range(40):
                drawn(draw).sum().item()
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert 0.5 < (budget.held - counted) / taken < 3.0
