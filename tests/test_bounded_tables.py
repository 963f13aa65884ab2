"""Bounded tables: what is made again when a program goes through more kinds of work than they hold."""

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.base.bounded_tables import BoundedTable
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
            with gt.config(auto_compile=False, hot_threshold=1000):
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
