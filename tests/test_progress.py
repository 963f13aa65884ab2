"""``gt.progress``: what a loop sees of it."""

from __future__ import annotations

import io
import itertools

import pytest

import gtrace as gt
from gtrace.events import Forced, bus


class Terminal(io.StringIO):
    def isatty(self):
        return True


def step(state, x):
    loss, slope = gt.value_and_grad(lambda w: ((w * x - 1) ** 2).mean())(state)
    return state - 0.1 * slope, loss


def run(bar, state, steps=None):
    for number, x in bar:
        state, loss = bar.step(step, state, x)
        bar.log(loss=loss)
        if steps is not None and number >= steps:
            break
    return state


def test_it_counts_and_shows_what_it_is_given():
    file = Terminal()
    run(gt.progress([gt.ones(3)] * 5, start=10, interval=0, label="training", file=file), gt.array(0.0))
    out = file.getvalue()
    assert "training" in out and "15/15" in out and "loss 0.1" in out and "steps/s" in out
    assert "interpreted" in out or "compiled" in out
    file = io.StringIO()
    numbers = [number for number, _ in gt.progress(iter("abc"), start=2, file=file)]
    assert numbers == [2, 3, 4] and file.getvalue().startswith("steps 5  ")


def test_values_are_looked_at_only_when_they_are_shown():
    causes = []
    with gt.config(max_pending=10**6):
        stop = bus.subscribe(lambda event: causes.append(event.cause), Forced)
        try:
            run(gt.progress([gt.ones(3)] * 50, interval=1000, file=io.StringIO()), gt.array(0.0))
        finally:
            stop()
    assert causes == ["eval"], "one look, at the end"


def test_a_nan_stops_the_loop_and_is_traced_to_its_line():
    def step(state, x):
        return gt.log(state - x), (state * x).sum()

    bar = gt.progress([gt.ones(2), gt.ones(2), gt.ones(2)], interval=1000, file=io.StringIO())
    with pytest.raises(gt.NonFiniteError, match=r"^\[log\] expected finite values, got NaN in 1 of 2") as caught:
        state = gt.array([8.0, 2.5])
        for _, x in bar:
            state, loss = bar.step(step, state, x)
            bar.log(loss=loss)
    assert f"(at {__file__}:" in str(caught.value)


def test_without_steps_the_error_says_how_to_find_the_origin():
    bar = gt.progress(itertools.count(), interval=0, file=io.StringIO())
    with pytest.raises(gt.NonFiniteError, match=r"finite loss, got nan by step 3.*bar.step") as caught:
        for number, _ in bar:
            bar.log(loss=gt.sqrt(gt.array(2.5 - number)))
    assert __file__ in str(caught.value)


def test_wrong_use():
    with pytest.raises(gt.ArgumentError, match="an iterable"):
        gt.progress(3)
