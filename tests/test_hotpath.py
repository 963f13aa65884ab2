"""Hot paths: what compiles, when, how often, and what happens when the compiler fails."""

import contextlib
import contextvars
import itertools
import json
import math
import os
import re
import subprocess
import sys
import textwrap
import threading

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.executable import Executable
from gtrace.core.runtime import policy as policy_module
from gtrace.core.runtime import programs
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.ledger import LedgerEntry
from gtrace.core.runtime.decisions import Action
from gtrace.core.runtime.decisions import decide as choose
from gtrace.core.runtime.engine import Engine, engine
from gtrace.core.runtime.first_calls import CALLS, PREPARED, SHARE
from gtrace.core.runtime.forms import (
    PARTIAL_CALLS,
    TRANSITIONS,
    Code,
    FormEvent,
    Forms,
    PartialForm,
    Rival,
    State,
    Trial,
)
from gtrace.core.runtime.policy import (
    CLEAR_TRIAL,
    TRIAL,
    TRIAL_SHARE,
    Advice,
    CostModel,
    History,
    Policy,
    decide,
    judge,
)
from gtrace.core.runtime.program_ledger import Ledger
from gtrace.testing import assert_close

EARLIER = set()


@pytest.fixture(autouse=True, scope="module")
def earlier():
    EARLIER.update(program.signature for program in gt.stats())


def only(ops):
    """The record of the one program with these operations that a test of this module ran."""
    found = [p for p in gt.stats() if sorted(p.ops) == sorted(ops) and p.signature not in EARLIER]
    assert len(found) == 1, f"{len(found)} programs with {ops}"
    return found[0]


def test_a_program_compiles_once_at_the_threshold_and_never_again():
    x = gt.arange(5.0)
    gt.eval(x)
    before = engine.tiering.compiles
    values = []
    with gt.config(hot_threshold=3, auto_compile=True):
        for k in range(6):
            # fresh Arrays and a fresh function each time, as in a training loop
            values.append((lambda v: float((gt.sinh(v) * gt.cosh(v) - v).sum()))(x))
            assert engine.tiering.compiles == before + (k >= 2)
    program = only(["sinh", "cosh", "mul", "sub", "sum"])
    # the compiled program takes turns with the interpreter until it is judged
    assert (program.tier, program.interpreted_calls, program.compiled_calls) == ("compiled", 4, 2)
    assert_close(np.float32(values), np.float32([values[0]] * 6))

    # jit of the same body is the same program: nothing left to compile, whoever asks, however often
    with gt.config(auto_compile=False):
        for _ in range(3):
            assert_close(gt.jit(lambda v: (gt.sinh(v) * gt.cosh(v) - v).sum())(x), values[0], check_dtype=False)
    assert engine.tiering.compiles == before + 1
    assert only(["sinh", "cosh", "mul", "sub", "sum"]).calls == 9


def test_compile_at_first_sight_and_never_at_the_second():
    w = gt.array([0.5, -1.5])
    gt.eval(w)
    before, seen = engine.tiering.compiles, {p.signature for p in gt.stats()}
    with gt.config(compile=True, auto_compile=False):
        for _ in range(3):
            grad = gt.grad(lambda v: (gt.exp(v) * v).sum())(w)
            assert_close(grad, [1.5 * math.exp(0.5), -0.5 * math.exp(-1.5)], check_dtype=False)
    assert engine.tiering.compiles == before + 1
    (program,) = [p for p in gt.stats() if p.signature not in seen and p.compiled_calls == 3]
    assert program.interpreted_calls == 0
    assert program.verdict == "compiled before it ever ran: nothing to compare with"


@pytest.mark.parametrize(
    ("size", "settings", "why"),
    [  # each its own size, so that each has a program of its own
        (31, {"compile": True, "min_seq": 4}, "too short to compile"),
        (32, {"hot_threshold": 1, "min_seq": 4}, "too short to compile"),
        (33, {"auto_compile": False, "hot_threshold": 1, "min_seq": 1}, "not compiled: automatic compilation is off"),
        (34, {"hot_threshold": 9, "min_seq": 1}, "cold: 5 of 9 repetitions"),
        (35, {"min_seq": 1}, "cold: "),
    ],
)
def test_what_does_not_compile(size, settings, why):
    x = gt.zeros(size)
    gt.eval(x)
    before = engine.tiering.compiles
    with gt.config(**settings):
        key = {p.signature for p in gt.stats()}
        for _ in range(5):
            assert float((gt.cos(x) + 1).sum()) == 2 * size
        (program,) = [p for p in gt.stats() if p.signature not in key]
    assert engine.tiering.compiles == before
    assert (program.tier, program.calls, len(program.ops)) == ("interpreted", 5, 3)
    assert program.verdict.startswith(why)


def test_two_threads_compile_one_program_once():
    x = gt.arange(7.0)
    gt.eval(x)
    before, results = engine.tiering.compiles, []
    barrier = threading.Barrier(2)

    def work():
        barrier.wait()
        results.append(float((gt.tan(x) * 2 - x).sum()))

    with gt.config(compile=True):
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert engine.tiering.compiles == before + 1
    assert len(results) == 2
    assert results[0] == results[1]


FAILING = """
    import json, warnings
    import gtrace as gt
    x = gt.arange(4.0)
    gt.eval(x)
    values = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            values.append(float((x * 2 + 1).sum()))
        values.append(gt.jit(lambda x: (x * 2 + 1).sum())(x).item())
    (program,) = [p for p in gt.stats() if "add" in p.ops]
    print(json.dumps({
        "values": values,
        "warnings": [[w.category.__name__, str(w.message), w.filename, w.lineno] for w in caught],
        "tier": program.tier, "verdict": program.verdict, "calls": program.interpreted_calls,
        "compiles": gt.stats().totals.compiles,
    }))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "compiler", ["exit 1", 'case "$*" in *--version*) echo g++ 12;; *) echo broken >&2; exit 1;; esac']
)
def test_a_compiler_that_fails_costs_one_warning(compiler, tmp_path):
    cxx = tmp_path / "c++"
    cxx.write_text(f"#!/bin/sh\n{compiler}\n")
    cxx.chmod(0o755)
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(FAILING))
    log = tmp_path / "log"
    settings = {
        "CXX": str(cxx), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "GT_HOTPATH_THRESHOLD": "2",
        "GT_INSTRUCTION_LOG": str(log), "GT_DEBUG_COMPILE": "1",
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, script], env=os.environ | settings, capture_output=True, text=True, check=True
    )
    got = json.loads(run.stdout)
    assert got["values"] == [16.0] * 5
    assert got["tier"] == "failed"
    assert got["verdict"].startswith("failed: ")
    assert got["calls"] == 5
    assert got["compiles"] == 0
    ((category, message, filename, line),) = got["warnings"]
    assert category == "CompileWarning"
    assert "interpreting instead" in message
    assert (filename, line) == (str(script), 10), "the warning points to the user's line"
    attempts = [line for line in log.read_text().splitlines() if "| COMPILE  |" in line]
    assert [line.split(" | ")[4].strip() for line in attempts] == ["Starting", "Failed"], "it is not tried again"
    last = run.stderr.splitlines()[-1]
    assert last.startswith("[COMPILE] Compilation failed, interpreting instead: ")
    assert last.endswith("(GT_DEBUG_COMPILE=2 for the traceback)")


# a program that never leaves this process: the engine itself


def entry_of(function, *arrays):
    """An engine of its own, with the program of `function` as its entry, and the inputs' tensors."""
    own = Engine()
    tensors = [x.to_torch() for x in arrays]
    route = own.prepare(gt.make_graph(function)(*arrays), [t.stride() for t in tensors])
    return own, route.program, [tensors[k] for k in route.inputs]


def interpret_by(entry, executable):
    """Have a program that is interpreted run something else instead."""
    entry.forms.interpreted = entry.forms.executable = executable


def arrive_in_part(entry, partial):
    """Have code for parts of a program arrive."""
    entry.forms.change(FormEvent.REQUESTED, awaited=partial)
    entry.forms.change(FormEvent.ARRIVED_IN_PART, partial=partial)


class Clock:
    """The engine's clock, for a test that says how long calls take: whatever else the machine does, they take that."""

    def __init__(self):
        self.now = 1.0

    def __call__(self):
        self.now += 1e-6
        return self.now

    def slower(self, executable, seconds):
        """The same executable, which takes that much longer. The seconds are a number or a function."""

        def run(inputs):
            self.now += seconds() if callable(seconds) else seconds
            return executable.run(inputs)

        return attrs.evolve(executable, run=run)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for name in ("engine", "clock"):
        monkeypatch.setattr(sys.modules[f"gtrace.core.runtime.{name}"], "perf_counter", clock)
    return clock


def sizes_of(sizes):
    """Run a program for sizes, each as often as it is there; returns its results, and what `gt.stats` says of it."""
    data = np.linspace(-0.001, 0.001, max(sizes))
    known = {p.signature for p in gt.stats()}
    results = [np.asarray(gt.sinh(gt.cumsum(gt.array(data[:n]))) * 0.0625 - gt.array(data[:n])) for n in sizes]
    for n, result in zip(sizes, results, strict=True):
        assert_close(result, np.sinh(np.cumsum(data[:n])) * 0.0625 - data[:n])
    return [p for p in gt.stats() if p.signature not in known], gt.stats().totals.as_recorded


def test_programs_of_ever_new_sizes_run_as_they_were_recorded():
    many = 300
    programs, others = sizes_of(range(2, many + 2))
    assert len(programs) == sum(p.calls for p in programs) >= PREPARED
    assert others == many - len(programs)
    assert len(programs) - PREPARED <= many // SHARE, "preparing takes a sixteenth of their time"


def test_sizes_that_come_again_are_prepared():
    rounds = CALLS + 6
    programs, others = sizes_of([*range(1002, 1012)] * rounds)
    assert len(programs) == 10
    assert others == (10 - PREPARED) * CALLS
    assert sum(p.calls for p in programs) == 10 * rounds - others


def test_numbers_that_change_with_the_sizes_are_never_those_of_another_call():
    data = np.linspace(-0.001, 0.001, 3030)
    for k in range(4 * CALLS):
        for n in range(3010, 3020):
            got = np.asarray(gt.cosh(gt.cumsum(gt.array(data[:n]))) * float(k % 5) - (-1.0) ** k)
            expected = np.cosh(np.cumsum(data[:n])) * (k % 5) - (-1.0) ** k
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def steps_of(steps, length, width, numbers):
    """Train for some steps whose update has `numbers`; returns programs, and how many calls ran as recorded."""
    known, before = {p.signature for p in gt.stats()}, gt.stats().totals.as_recorded
    x = np.linspace(0.1, 0.9, width)
    w, m = gt.array(x), gt.zeros(width, dtype="float64")
    expected, moment = x.copy(), np.zeros(width)
    for k in range(steps):
        h, g = w, expected
        for j in range(length):
            h, g = gt.sin(h * 0.5 + j) + 0.25, np.sin(g * 0.5 + j) + 0.25
        m, moment = 0.5 * m + h, 0.5 * moment + g
        w, expected = w - numbers(k) * m, expected - numbers(k) * moment
        assert_close(w, expected)
    return [p for p in gt.stats() if p.signature not in known], gt.stats().totals.as_recorded - before


def test_the_first_call_of_a_long_program_runs_as_it_was_recorded():
    """The first step, with zeros, is a program by itself; the second and third differ in numbers alone."""
    programs, others = steps_of(6, 40, 7, lambda k: 0.1 + 0.01 * k)
    assert others == 2 and [p.calls for p in programs] == [4]
    programs, others = steps_of(6, 50, 7, lambda k: 0.1)
    assert others == 2 and [p.calls for p in programs] == [4]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["short", "large", "scan", "watched", "hot"])
def test_other_programs_are_prepared_at_their_first_call(case):
    length, width = {"short": (20, 7), "large": (40, 2_000_000), "watched": (41, 9)}.get(case, (41, 11))
    settings = {"hot_threshold": 1000} if case == "hot" else {}
    with gt.config(**settings), gt.profile() if case == "watched" else contextlib.nullcontext():
        if case == "scan":
            x = gt.arange(3.0)
            for _ in range(50):
                x = gt.sin(x) + 0.5
            programs = len(gt.stats())
            gt.eval(gt.lax.scan(lambda c, _: (gt.cos(c), None), x, None, length=3)[0])
            assert len(gt.stats()) > programs
            return
        programs, others = steps_of(2, length, width, lambda k: 0.1)
    assert others == 0 and len(programs) == 2


@pytest.mark.parametrize(("setting", "first"), [({"hot_threshold": 1000}, 2002), ({"deterministic": True}, 3002)])
def test_each_size_is_prepared_where_that_matters(setting, first):
    with gt.config(**setting):
        programs, others = sizes_of(range(first, first + 20))
    assert len(programs) == 20 and others == 0


@pytest.mark.parametrize(("usual", "kept"), [(0.0, True), (0.002, False), (60.0, True)])
def test_compiled_parts_that_make_a_program_slower_are_given_up(clock, usual, kept):
    own, entry, tensors = entry_of(lambda x: (x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    parts = clock.slower(attrs.evolve(entry.forms.executable, origin="worker"), 0.004)
    arrive_in_part(entry, PartialForm(parts, usual))
    with gt.config(hot_threshold=1000):
        for _ in range(8):
            assert own.run(entry, tensors)[0].item() == 8.0
    assert (entry.forms.state is State.PARTIAL) == kept
    assert (entry.ledger.compiled_calls, entry.ledger.interpreted_calls) == ((8, 0) if kept else (1 + PARTIAL_CALLS, 3))


def test_one_slow_call_does_not_give_compiled_parts_up(clock):
    own, entry, tensors = entry_of(lambda x: (x * 3 + 1).sum(), gt.array([1.0, 2.0]))
    delays = iter([0.02, 0.02])
    parts = clock.slower(entry.forms.executable, lambda: next(delays, 0.0))
    arrive_in_part(entry, PartialForm(attrs.evolve(parts, origin="worker"), 0.01))
    with gt.config(hot_threshold=1000):
        for _ in range(8):
            assert own.run(entry, tensors)[0].item() == 11.0
    assert entry.forms.state is State.PARTIAL


@pytest.mark.inductor
@pytest.mark.parametrize(("interpreted", "compiled", "tier"), [(0.004, 0.001, "compiled"), (0.0, 0.004, "demoted")])
def test_a_compiled_program_that_loses_is_demoted_and_stays_so(clock, interpreted, compiled, tier):
    own, entry, tensors = entry_of(lambda x: (x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    result = entry.forms.executable
    interpret_by(entry, clock.slower(result, interpreted))
    with gt.config(auto_compile=False):
        for _ in range(3):
            own.run(entry, tensors)
        own.tiering.judging.adopt(entry, Code(clock.slower(result, compiled)))
        for _ in range(2 * TRIAL + 2):
            assert own.run(entry, tensors)[0].item() == 8.0
    assert entry.tier == tier
    if tier == "compiled":
        assert CLEAR_TRIAL <= entry.ledger.interpreted_calls - 3 <= TRIAL
    else:
        assert entry.ledger.compiled_calls == TRIAL
    # the sleep's time, as the ratio of medians gives it
    said = re.fullmatch(r"compiled (\d+\.\d\d) ms, interpreted \d+\.\d\d ms", entry.forms.reason)
    assert float(said[1]) > 2 if tier == "demoted" else not entry.forms.reason
    with gt.config(compile=True):
        own.run(entry, tensors)
    assert (entry.tier, own.tiering.compiles) == (tier, 0)


@pytest.mark.inductor
@pytest.mark.parametrize(("interpreted", "compiled", "tier"), [(0.002, 0.0005, "compiled"), (0.0, 0.002, "demoted")])
def test_a_program_that_was_never_interpreted_is_judged_at_little_cost(monkeypatch, clock, interpreted, compiled, tier):
    """As those that are found on disk, or compiled ahead of their first call."""
    monkeypatch.setattr(policy_module, "OPERATION_SECONDS", 0.001)
    own, entry, tensors = entry_of(lambda x: (x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    result = entry.forms.executable
    interpret_by(entry, clock.slower(result, interpreted))
    own.tiering.judging.adopt(entry, Code(clock.slower(result, compiled)))
    calls = 0
    with gt.config(auto_compile=False):
        while entry.forms.trial is not None and calls < 5000:
            calls += 1
            assert own.run(entry, tensors)[0].item() == 8.0
    assert entry.tier == tier
    assert (CLEAR_TRIAL if tier == "compiled" else TRIAL) <= entry.ledger.interpreted_calls <= TRIAL
    if tier == "compiled":
        # the last comparison came when it had taken its share
        assert entry.ledger.interpreted_seconds < 1.5 * TRIAL_SHARE * entry.ledger.compiled_seconds
        assert entry.ledger.saved_seconds > 0


def test_interpreted_calls_that_something_else_held_up_are_not_counted_as_saved(clock):
    """Beside other programs on the same cores, interpreted calls may take a hundred times as long."""
    own, entry, tensors = entry_of(lambda x: (x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    result, durations = entry.forms.executable, itertools.cycle([0.05, 0.001, 0.05])
    interpret_by(entry, clock.slower(result, lambda: next(durations)))
    with gt.config(auto_compile=False):
        for _ in range(3):
            own.run(entry, tensors)
        own.tiering.judging.adopt(entry, Code(clock.slower(result, 0.0005)))
        while entry.forms.trial is not None:
            own.run(entry, tensors)
    assert entry.tier == "compiled"
    assert 0 < entry.ledger.saved_seconds < 0.005 * entry.ledger.compiled_calls
    assert entry.ledger.break_even_calls is not None


@pytest.mark.slow
def test_a_verdict_is_reviewed_when_the_load_changes(clock):
    """As when another program takes the second core: what was faster becomes the slower form, and back."""
    own, entry, tensors = entry_of(lambda x: (x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    result, load = entry.forms.executable, {"compiled": 0.0, "interpreted": 0.001}

    def under_load(form):
        return clock.slower(result, lambda: load[form])

    def until(tier):
        for calls in range(2000):
            if entry.tier == tier and entry.forms.trial is None:
                return calls
            assert own.run(entry, tensors)[0].item() == 8.0
        raise AssertionError(f"it is not {tier}")

    interpret_by(entry, under_load("interpreted"))
    with gt.config(auto_compile=False):
        own.run(entry, tensors)
        own.tiering.judging.adopt(entry, Code(under_load("compiled")))
        until("compiled")
        load["compiled"] = 0.004
        # the trials after the first take a tenth of the program's time
        assert until("demoted") > 2 * TRIAL
        assert entry.forms.reason.startswith("compiled ")
        load["interpreted"] = 0.009
        until("compiled")
        assert not entry.forms.reason


def test_under_gt_compile_nothing_is_on_trial():
    own, entry, tensors = entry_of(lambda x: (x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    with gt.config(compile=True):
        for _ in range(60):
            own.run(entry, tensors)
    assert (entry.tier, entry.forms.trial, entry.ledger.interpreted_calls) == ("compiled", None, 0)


def test_programs_that_ran_for_the_least_time_are_forgotten(monkeypatch):
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 6)
    own, kept, tensors = entry_of(lambda x: x * 2 + 1, gt.array([1.0]))
    kept.ledger.count(1.0, compiled=False)
    for size in range(2, 40):
        route = own.prepare(gt.make_graph(lambda x: x * 2 + 1)(gt.ones(size)), [(1,)])
        with gt.config(auto_compile=False):
            for _ in range(3):
                own.call(route, [torch.ones(size)])
            own.run(kept, tensors)
    assert kept in own.programs.values()
    assert len(own.programs) <= 6


# what may happen to a program


def in_state(state):
    """The forms of a program in a state, by the shortest way of events there."""
    ways = {State.INTERPRETED: ()}
    while state not in ways:
        for event, (before, after) in TRANSITIONS.items():
            known = [ways[one] for one in before if one in ways]
            if known and event not in (FormEvent.REFUSED, FormEvent.ACCEPTED):  # they leave no rival
                ways.setdefault(after, (*min(known, key=len), event))
    forms = Forms(Executable(list, "interpreter", torch.device("cpu")), Ledger())
    for event in ways[state]:
        happen(forms, event)
    assert forms.state is state
    return forms


def happen(forms, event):
    made = Executable(list, "worker", forms.interpreted.device)
    given = {
        FormEvent.ADOPTED: {"code": Code(made), "trial": Trial([forms])}, FormEvent.ACCEPTED: {"code": Code(made)},
        FormEvent.REQUESTED: {"awaited": made}, FormEvent.ARRIVED_IN_PART: {"partial": PartialForm(made, 1.0)},
        FormEvent.FASTER: {"rival": Rival(1.0, 1.0, 1.0)},
        FormEvent.SLOWER: {"rival": Rival(1.0, 1.0, 1.0), "reason": "slow"},
        FormEvent.REVIEWED: {"trial": Trial([forms])}, FormEvent.MISINTERPRETED: {"interpreted": made},
    }  # fmt: skip
    forms.change(event, **given.get(event, {}))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", FormEvent)
def test_what_happens_to_a_program_is_in_the_table(state, event):
    forms = in_state(state)
    forms.ledger.settle(gt.config.current)
    forms.ledger.owe(1.0)
    forms.ledger.took(2.0)
    ran, judged, partial = forms.executable, forms.trial, forms.partial
    before, after = TRANSITIONS[event]
    if state not in before:
        kept = attrs.asdict(forms, recurse=False)
        with pytest.raises(
            gt.errors.GtraceError, match=rf"\[program\] expected an event .* while it is {state.value}, got"
        ):
            happen(forms, event)
        assert attrs.asdict(forms, recurse=False) == kept, "a refusal changes nothing"
        return
    happen(forms, event)
    assert forms.state is after
    assert forms.tier in ("interpreted", "compiled", "failed", "demoted")
    expected = {"interpreted": forms.interpreted, "compiled": forms.compiled}.get(forms.tier, forms.interpreted)
    if after is State.PARTIAL:
        expected = forms.partial.executable
    assert forms.executable is expected is not None
    assert (forms.partial is not None) == (after is State.PARTIAL)
    assert (forms.trial is not None) == (after in (State.TRIAL, State.REVIEW))
    assert forms.is_requested == (after in (State.REQUESTED, State.PARTIAL))
    assert forms.is_open == (after in (State.INTERPRETED, State.REQUESTED, State.PARTIAL))
    assert not forms.at_rest, "no form is believed before it agreed with the reference"
    forms.agree(forms.executable)
    assert forms.at_rest == (after in (State.KEPT, State.COMPILED, State.DEMOTED, State.FAILED))
    assert forms.ledger.settled is None and forms.ledger.waiting is None, "nothing is left of the state before"
    if forms.executable is ran and judged is None:
        assert forms.ledger.usual == 2.0, "the same form goes on to run"
    else:
        assert forms.ledger.usual == (1.0 if partial and forms.executable is forms.interpreted else 0.0)


def test_a_compile_that_fails_after_the_worker_was_faster_changes_nothing(monkeypatch, recwarn):
    own, entry, tensors = entry_of(lambda x: gt.sinh(x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    expected = own.run(entry, tensors)[0]

    def compile_too_late(*_):
        own.tiering.judging.adopt(entry, Code(attrs.evolve(entry.forms.interpreted, origin="worker")))
        raise gt.errors.CompileError("too late")

    monkeypatch.setattr(artifacts, "compile", compile_too_late)
    own.compile(entry)
    assert (entry.tier, entry.forms.state, entry.forms.reason) == ("compiled", State.TRIAL, "")
    assert all(own.run(entry, tensors)[0] == expected for _ in range(3)) and not recwarn.list


@pytest.mark.parametrize(
    ("settings", "calls", "looked", "action"),
    [
        ({"min_seq": 9}, 5, True, Action.SETTLE),
        ({"auto_compile": False}, 5, False, Action.SETTLE),
        ({"hot_threshold": 6}, 5, False, Action.LOOK),
        ({"hot_threshold": 6}, 5, True, Action.COMPILE),
        ({"hot_threshold": 7}, 5, True, Action.WAIT),
        ({"compile": True}, 0, False, Action.COMPILE),
        ({}, 0, True, Action.WAIT),
        ({}, 10**6, True, Action.COMPILE),
    ],
)
def test_a_decision_changes_nothing(settings, calls, looked, action):
    own, entry, _ = entry_of(lambda x: gt.sinh(x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    for _ in range(min(calls, 5)):
        entry.ledger.count(calls / 5, compiled=False)
    if looked:
        entry.ledger.look()
    with gt.config(**{"auto_compile": True, "min_seq": 1, **settings}):
        before = [attrs.asdict(one, recurse=False) for one in (entry.ledger, entry.forms, entry.family)]
        found = choose(entry, gt.config.current, own.tiering.expected)
    assert found.action is action
    assert before == [attrs.asdict(one, recurse=False) for one in (entry.ledger, entry.forms, entry.family)]
    for state in set(State) - {State.INTERPRETED}:
        entry.forms = in_state(state)
        assert choose(entry, gt.config.current, own.tiering.expected).action is Action.NOTHING


# decisions

seconds = st.floats(0, 1e6)
histories = st.builds(History, ops=st.integers(1, 50), calls=st.integers(1, 1000), seconds=seconds)
policies = st.builds(
    Policy,
    auto_compile=st.booleans(),
    compile=st.booleans(),
    hot_threshold=st.none() | st.integers(1, 100),
    min_seq=st.integers(1, 10),
)


@given(histories, policies, seconds)
def test_decisions_follow_the_documented_order(history, policy, expected):
    decision = decide(history, policy, expected)
    if history.ops < policy.min_seq or not (policy.compile or policy.auto_compile):
        assert decision is Advice.NEVER
    elif policy.compile:
        assert decision is Advice.COMPILE
    elif policy.hot_threshold is not None:
        assert (decision is Advice.COMPILE) == (history.calls >= policy.hot_threshold)
    else:
        assert (decision is Advice.COMPILE) == (history.seconds >= expected)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.integers(1, 100))
def test_predictions_move_towards_what_compiles_took(measured, ops):
    model = CostModel()
    prior = model.predict(ops)
    for each in measured:
        model.learn(ops, each)
    mean = sum(measured) / len(measured)
    assert min(prior, mean) * 0.999 <= model.predict(ops) <= max(prior, mean) * 1.001
    assert abs(model.predict(ops) - mean) <= abs(prior - mean) + 1e-6


def test_compiles_of_earlier_processes_are_expected_again(tmp_path):
    entries = {f"{k:032x}": LedgerEntry(nodes=200, compile_seconds=13.5) for k in range(20)}
    with gt.config(background=True, cache_dir=str(tmp_path)):
        artifacts.store.note(entries)
    own, entry, tensors = entry_of(lambda x: gt.sinh(x * 2 + 1).sum(), gt.array([1.0, 2.0]))
    own.tiering.worker_cost.startup = 0.0
    before = own.tiering.worker_cost.predict(200)
    with gt.config(background=True, cache_dir=str(tmp_path), hot_threshold=10**6):
        own.run(entry, tensors)
    assert_close(before, 4.5)
    assert 10 < own.tiering.worker_cost.predict(200) < 13.5


def test_a_verdict_needs_samples_of_both():
    assert judge([(1.0, 1.0)] * (TRIAL - 1)) is None
    assert judge([(1.4, 1.0)] * (TRIAL - 1)) is None
    assert judge([(2.1, 1.0)] * (CLEAR_TRIAL - 1)) is None
    assert judge([(0.1, 1.0)] + [(2.1, 1.0)] * (CLEAR_TRIAL - 1)) == 2.1, "a loop is not to be interpreted twenty times"
    assert judge([(2.0, 9.0)] * 5 + [(2.0, 1.0)] * (TRIAL - 5)) == 2.0, "the first compiled calls do not count"


# the detector and the switch


def iterate(detector, *operations):
    detector.begin_iteration()
    for name, shape in operations:
        detector.record_operation(name, input_shape=shape)
    return detector.end_iteration()


def test_the_detector_turns_hot_at_the_threshold():
    detector = gt.hotpath.HotPathDetector(hot_threshold=3)
    step = ("matmul", (4, 8)), ("relu", (4, 8))
    assert [iterate(detector, *step) for _ in range(5)] == [False, False, True, True, True]
    assert detector.should_compile()
    assert iterate(detector, ("matmul", (5, 8)), step[1]) is False, "another shape is another sequence"
    assert not detector.should_compile()
    assert iterate(detector, step[1], step[0]) is False, "another order, too"
    assert iterate(detector, *step) is True
    assert detector.stats() == {"iterations": 8, "sequences": 3, "hot_sequences": 1, "hot_threshold": 3}


def test_the_detector_refuses_calls_out_of_order():
    detector = gt.hotpath.HotPathDetector()
    assert detector.hot_threshold == 10
    assert not detector.should_compile()
    with pytest.raises(gt.ArgumentError, match="expected begin_iteration"):
        detector.record_operation("add")
    with pytest.raises(gt.ArgumentError, match="expected begin_iteration"):
        detector.end_iteration()
    detector.begin_iteration()
    with pytest.raises(gt.ArgumentError, match="second begin_iteration"):
        detector.begin_iteration()


@pytest.mark.parametrize("call", [gt.enable_hot_path_detection, gt.hotpath.HotPathDetector])
@pytest.mark.parametrize("threshold", [0, -1, 2.5, "10", True, None])
def test_a_threshold_is_a_positive_integer(call, threshold):
    before = gt.config.current
    with pytest.raises(gt.ArgumentError, match="expected a positive integer as hot_threshold, got"):
        call(hot_threshold=threshold)
    assert gt.config.current == before


def test_hot_path_detection_is_a_setting():
    with gt.config(auto_compile=False):
        gt.enable_hot_path_detection()
        assert (gt.config.auto_compile, gt.config.hot_threshold) == (True, 10)
        gt.enable_hot_path_detection(hot_threshold=4)
        assert gt.config.hot_threshold == 4
