"""``gt.progress``: what a loop sees of it."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import sys
import time

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.base.events import Forced, bus
from gtrace.observe.progress import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


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


def test_a_nan_is_traced_where_steps_give_their_state_away():
    def step(state, x):
        return state * x, gt.log(state - 1).sum()

    step = gt.jit(step, donate_argnums=0, backend="eager")
    bar = gt.progress(range(9), interval=1000, file=io.StringIO())
    state = gt.full((2,), 4.0)
    with pytest.raises(gt.NonFiniteError, match=r"^\[log\] expected finite values"):
        for _ in bar:
            state, loss = bar.step(step, state, gt.full((2,), 0.5))
            bar.log(loss=loss)


def test_what_cannot_be_run_again_is_said():
    def step(state, x):
        return state, given(x).sum()

    given = gt.jit(lambda x: gt.log(x), donate_argnums=0, backend="eager")
    bar = gt.progress(range(2), interval=1000, file=io.StringIO())
    with pytest.raises(gt.NonFiniteError, match=r"finite loss, got nan .* give no argument away"):
        for _ in bar:
            _, loss = bar.step(step, gt.ones(2), gt.full((2,), -1.0))
            bar.log(loss=loss)


def test_functions_that_take_turns_and_states_that_change_are_run_again_as_they_were():
    def generate(state, x):
        return state * x, (state * x).sum()

    def judge(state, x):
        return state - 1.0, gt.sqrt(state).sum() + x.sum()

    bar = gt.progress(range(9), interval=1000, file=io.StringIO())
    g, j = gt.ones(3), gt.full((5,), 9.0)
    with pytest.raises(gt.NonFiniteError, match=r"^\[sqrt\] expected finite values, got NaN in 5 of 5"):
        for number, _ in bar:
            g, _ = bar.step(generate, g, gt.ones(3))
            j, loss = bar.step(judge, -j if number == 6 else j, g)
            bar.log(loss=loss)


def test_what_is_no_number_is_refused_at_its_line():
    wrong = [
        (gt.ones(3), r"f32\[3\]"), (None, "NoneType"), ("abc", "str"), (1j, "complex"),
        (np.ones(3), r"ndarray of shape \(3,\)"), (torch.ones(2, 2), r"Tensor of shape \(2, 2\)"),
    ]  # fmt: skip
    for value, got in wrong:
        with pytest.raises(gt.ArgumentError, match=f"one number for loss, got {got}.*{__file__}"):
            gt.progress(range(2)).log(loss=value)


def test_after_a_break_the_last_values_are_shown_and_nothing_is_computed():
    file = io.StringIO()
    bar = gt.progress(range(9), interval=1000, file=file)
    for number, _ in bar:
        bar.log(known=gt.array(2.5).block_until_ready(), pending=gt.array(1.5) * 2)
        if number == 3:
            break
    assert file.getvalue().startswith("steps 3/9  ")
    assert "known 2.5" in file.getvalue() and "pending" not in file.getvalue()


def test_steps_are_run_again_with_the_keys_that_they_used():
    def step(state, key):
        noise = gt.random.normal(key, (2,))
        return state, gt.log(-gt.abs(noise)).sum()

    bar = gt.progress([gt.random.key(0)], interval=1000, file=io.StringIO())
    with gt.config(debug_key_reuse=True), pytest.raises(gt.NonFiniteError, match=r"^\[log\] expected finite values"):
        for _, key in bar:
            _, loss = bar.step(step, gt.ones(2), key)
            bar.log(loss=loss)


def test_a_loop_that_ends_before_its_first_step_leaves_no_line(monkeypatch):
    file = Terminal()
    for _ in gt.progress([], interval=0, file=file):
        pass
    before = sys.stdout
    assert shown(file) == ""
    assert sys.stdout is before and "0/0" in file.getvalue()


def test_a_forked_process_draws_its_own_waits(monkeypatch):
    file = Terminal()
    monkeypatch.setattr(sys, "stderr", file)
    line = ProgressLine()
    line.show_command("parent")
    try:
        parents = line._spinner
        assert parents is not None
        line.forked()
        assert line._spinner is None
        parents.set()  # the thread of the parent is in this process, too
        line.show_command("child")
        assert line._spinner is not None, "a thread of its own"
    finally:
        line.show_command("")


def test_a_second_loop_counts_anew():
    bar = gt.progress(range(3), file=io.StringIO())
    assert [number for number, _ in bar] == [number for number, _ in bar] == [0, 1, 2]


def test_without_a_standard_error_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert [number for number, _ in gt.progress(range(2), interval=0)] == [0, 1]
    assert capsys.readouterr().out == ""


def shown(file):
    """What a terminal shows of the last line, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).rstrip("\n").split("\x1b[2K")[-1]


@pytest.mark.parametrize(
    ("columns", "total", "wanted"),
    [(80, 3, r"\[a\] .*━.* 3/3 \S+ steps/s  loss 2 .*"), (30, 3, r"\[a\] 3/3 \S+ steps/s  lo.*…"),
     (80, None, r"\[a\] 3 \S+ steps/s  loss 2 .*")],
)  # fmt: skip
def test_the_line_has_room_for_what_counts(columns, total, wanted, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    float(gt.ones(2).sum())
    file = Terminal()
    bar = gt.progress(iter(range(3)), total=total, label="[a]", interval=0, file=file)
    for number, _ in bar:
        bar.log(loss=number)
    assert re.fullmatch(wanted, shown(file)), shown(file)
    assert len(shown(file)) < columns


def test_a_terminal_that_cannot_erase_gets_one_line(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    for _ in gt.progress(range(3), interval=0, file=file):
        pass
    assert file.getvalue().count("\n") == 1 and "\x1b" not in file.getvalue()


def test_what_a_program_prints_stays_where_it_sends_it(monkeypatch):
    file, out = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", file)
    for number, _ in gt.progress(range(3), interval=0):
        print("row", number, "x" * 200)
    assert out.getvalue().splitlines() == [f"row {number} {'x' * 200}" for number in range(3)]
    assert "row" not in file.getvalue()
    assert sys.stderr is file and sys.stdout is out


def test_above_the_line_a_terminal_shows_what_is_printed(monkeypatch):
    file = Terminal()
    monkeypatch.setattr(sys, "stdout", file)
    inner = io.StringIO()
    for number, _ in gt.progress(range(4), interval=0, file=file):
        print("row", number, end="!")
        print()
        if number == 1:
            held = contextlib.redirect_stdout(inner)
            held.__enter__()
        if number == 2:
            held.__exit__(None, None, None)
    print("end")
    rows = [line.split("\x1b[2K")[-1] for line in file.getvalue().split("\n")]
    assert [row for row in rows if "row" in row or row == "end"] == ["row 0!", "row 1!", "row 3!", "end"]
    assert inner.getvalue() == "row 2!\n"


def test_each_terminal_has_a_line_of_its_own(monkeypatch):
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    waits = ProgressLine()
    waits.show_command("waiting")
    try:
        while "waiting" not in err.getvalue():
            time.sleep(0.01)
        for number, _ in gt.progress(range(3), interval=0, file=out):
            print("row", number)
    finally:
        waits.show_command("")
    rows = [line.split("\x1b[2K")[-1] for line in out.getvalue().split("\n")]
    assert [row for row in rows if "row" in row] == ["row 0", "row 1", "row 2"]
    assert "row" not in err.getvalue() and sys.stdout is out and sys.stderr is err


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")
def test_two_streams_of_one_terminal_share_its_line(monkeypatch):
    master, slave = os.openpty()
    with open(slave, "w") as out, open(os.dup(slave), "w") as err, open(master, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        waits = ProgressLine()
        waits.show_command("waiting")
        written = ""
        try:
            while "waiting" not in written:
                written += screen.read(4096).decode()
            for number, _ in gt.progress(range(3), interval=0, file=out):
                print("row", number)
        finally:
            waits.show_command("")
        print("end", flush=True)
        monkeypatch.undo()
        while "end" not in written:
            written += screen.read(4096).decode()
    shown = re.split(r"\x1b\[2K|\r\n", written)
    assert [text for text in shown if "row" in text or text == "end"] == ["row 0", "row 1", "row 2", "end"]
    assert not [text for text in shown if "waiting" in text and "steps" in text]


def test_wrong_use():
    with pytest.raises(gt.ArgumentError, match="an iterable"):
        gt.progress(3)
