"""The logs, ``gt.stats`` and its table."""

import io
import os
import re
import subprocess
import sys
import threading

import attrs
import numpy as np
import pytest
import torch
from rich.console import Console

import gtrace as gt
from gtrace.core.base import events
from gtrace.core.base.events import Bus, bus
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.policy import Policy
from gtrace.observe import table
from gtrace.observe.compile_log import describe
from gtrace.observe.program_stats import ProgramStats
from gtrace.observe.stats import Stats, verdict

LINE = re.compile(
    r" {0,6}\d+\.\d{3}s \| #\d{4,} \| (RECORD  |FORCE   |COMPILE |RUN     )"
    r" \| (CLIENT  |WORKER  |SHARD 0 ) \| \S.{7,} \| \S.*"
)


def here():
    """file:line of the caller."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@pytest.fixture
def log(tmp_path):
    """A function that returns the lines of the instruction log so far, each as its columns."""
    path = tmp_path / "log"
    with gt.config(instruction_log=str(path), auto_compile=False):

        def lines():
            text = path.read_text() if path.exists() else ""
            for line in text.splitlines():
                assert LINE.fullmatch(line), line
            return [[column.strip() for column in line.split(" | ")] for line in text.splitlines()]

        yield lines


# the instruction log


def test_each_step_of_a_program_is_a_line(log):
    x = gt.array([[1.0, 2.0], [3.0, 4.0]])
    y = gt.log_softmax(x @ x)
    float(y.sum())
    lines = log()
    assert [line[2:5] for line in lines if line[4] != "log_softmax"] == [
        ["RECORD", "CLIENT", "matmul"],
        ["RECORD", "CLIENT", "sum"],
        ["FORCE", "CLIENT", "float"],
        ["RUN", "SHARD 0", "graph"],
    ]
    assert re.fullmatch(r"out=%\d+ f32\[2,2\]", lines[0][5])
    assert re.fullmatch(r"sequence=[0-9a-f]{12} \(INTERPRETED\)", lines[-1][5])
    numbers = [int(line[1][1:]) for line in lines]
    assert numbers == list(range(numbers[0], numbers[0] + len(lines))), "every line has the next number"
    times = [float(line[0][:-1]) for line in lines]
    assert times == sorted(times)


def recorded():
    x = gt.array([1.0])
    gt.eval(x)
    return x * 2


CAUSES = {
    "float": (lambda y: float(y), "float"),
    "int": (lambda y: int(y), "int"),
    "bool": (lambda y: bool(y), "bool"),
    "item": (lambda y: y.item(), "item"),
    "tolist": (lambda y: y.tolist(), "tolist"),
    "str": (lambda y: str(y), "print"),
    "repr": (lambda y: repr(y), "print"),
    "f-string": (lambda y: f"{y:.2f}", "format"),
    "if": (lambda y: 1 if y > 0 else 2, "bool"),
    "numpy": (lambda y: y.numpy(), "numpy"),
    "np.asarray": (lambda y: np.asarray(y), "numpy"),
    "torch": (lambda y: y.to_torch(), "to_torch"),
    "block": (lambda y: y.block_until_ready(), "block_until_ready"),
    "eval": (lambda y: gt.eval({"y": y}), "eval"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_a_force_is_logged_with_its_cause_and_the_users_line(case, log):
    force, cause = CAUSES[case]
    y = recorded()
    force(y)
    (line,) = [line for line in log() if line[2] == "FORCE"]
    assert line[4] == cause
    ops = 2 if case == "if" else 1
    assert line[5] == f"ops={ops} at {__file__}:{force.__code__.co_firstlineno}"
    force(y) if case != "if" else None
    assert len([line for line in log() if line[2] == "FORCE"]) == 1, "what has a value is not forced again"


def forces(log):
    return [(line[4], line[5].rpartition(" at ")[2]) for line in log() if line[2] == "FORCE"]


def test_an_argument_of_jit_is_forced_by_jit(log):
    double = gt.jit(lambda x: x * 2, backend="eager")
    y = recorded()
    double(y), (line := here())
    assert forces(log) == [("jit", line)]


def test_the_budget_forces(log):
    x = gt.array([1.0])
    gt.eval(x)
    with gt.config(max_pending=5):
        for _ in range(9):
            x, line = x + 1, here()
    assert forces(log)[0] == ("budget", line)
    assert x.item() == 10.0


def test_an_array_of_another_thread_is_forced_by_that(log):
    theirs = []
    thread = threading.Thread(target=lambda: theirs.append(recorded()))
    thread.start()
    thread.join()
    y, line = theirs[0] + 1, here()
    assert forces(log) == [("thread", line)]
    assert y.item() == 3.0


def test_compiling_is_logged(log):
    gt.jit(lambda x: (x * 5 + 3).sum(), backend="eager")(gt.array([1.0, 1.0]))
    signature = next(p.signature for p in gt.stats() if p.compiled_calls and p.ops == ("mul", "add", "sum"))
    tail = [line[2:] for line in log() if line[2] in ("COMPILE", "RUN")]
    assert tail == [
        ["COMPILE", "WORKER", "Starting", f"sequence={signature[:12]}"],
        ["COMPILE", "WORKER", "Complete", f"sequence={signature[:12]}"],
        ["RUN", "SHARD 0", "graph", f"sequence={signature[:12]} (COMPILED)"],
    ]


def test_the_log_follows_the_setting_and_appends(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for _ in range(2):
        with gt.config(instruction_log=str(first)):
            float(recorded())
            with gt.config(instruction_log=str(second)):
                float(recorded())
            float(recorded())
        float(recorded())
    assert sum("FORCE" in line for line in first.read_text().splitlines()) == 4
    assert sum("FORCE" in line for line in second.read_text().splitlines()) == 2


def test_nothing_is_written_before_something_happens(tmp_path):
    with gt.config(instruction_log=str(tmp_path / "log")):
        pass
    assert not (tmp_path / "log").exists()


def test_a_pending_program_is_logged_from_the_moment_the_log_starts(tmp_path):
    x = recorded()
    with gt.config(instruction_log=str(tmp_path / "log"), auto_compile=False):
        y = x + 1
        assert y.item() == 3.0
    kinds = [line.split(" | ")[2].strip() for line in (tmp_path / "log").read_text().splitlines()]
    assert kinds == ["RECORD", "FORCE", "RUN"]


@pytest.mark.parametrize(("name", "reason"), [("absent/log", "there is no directory"), ("", "it is a directory")])
def test_a_log_that_cannot_be_written_is_refused(name, reason, tmp_path):
    before = gt.config.current
    path = str(tmp_path / name)
    with pytest.raises(gt.ConfigError, match=re.escape("[GT_INSTRUCTION_LOG] expected the path")) as caught:
        gt.config.update(instruction_log=path)
    assert reason in str(caught.value)
    assert gt.config.current is before


def test_a_log_that_stops_being_writable_ends_with_a_warning():
    with gt.config(instruction_log="/dev/full"):
        with pytest.warns(
            gt.ConfigWarning, match="the instruction log /dev/full ended early: .*No space left"
        ) as caught:
            assert float(recorded()) == 2.0
        assert len(caught) == 1
        assert float(recorded()) == 2.0


def test_threads_do_not_mix_their_lines(log):
    def work():
        for _ in range(30):
            float(recorded())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = log()
    numbers = [int(line[1][1:]) for line in lines]
    assert numbers == list(range(numbers[0], numbers[0] + len(lines)))
    assert sum(line[2] == "FORCE" for line in lines) == 120
    assert sum(line[2] == "RECORD" for line in lines) == 120


# the compile log

GOLDEN = [
    (
        events.Detected("abc123def456", ("matmul", "relu", "sum"), 15, 0.0124),
        "Detected hot sequence: matmul -> relu -> sum (signature abc123def456, executed 15 times, 12.4 ms spent)",
    ),
    (events.CompileStarted("abc123def456", 9), "Compiling sequence abc123def456 (9 ops)"),
    (events.CompileFinished("abc123def456", 2.31), "Compilation complete (2.3s)"),
    (events.Judged("abc123def456", 0.0032, 0.001, False), "Speedup: 3.2x on subsequent executions"),
    (
        events.Recompiling("abc123def456", "input 0 dim 0 was 64, now 128"),
        "Recompiling abc123def456: input 0 dim 0 was 64, now 128",
    ),
    (
        events.Judged("abc123def456", 0.00097, 0.00121, True),
        "Demoted abc123def456: compiled 1.21 ms, interpreted 0.97 ms",
    ),
    (
        events.CompileFailed("abc123def456", "no\n  compiler", "Traceback ..."),
        "Compilation failed, interpreting instead: no compiler (GT_DEBUG_COMPILE=2 for the traceback)",
    ),
]


@pytest.mark.parametrize(("event", "line"), GOLDEN)
def test_each_line_of_the_compile_log(event, line, capsys):
    assert describe(event, 1) == line
    with gt.config(debug_compile=1):
        bus.emit(event)
    bus.emit(event)
    assert capsys.readouterr() == ("", f"[COMPILE] {line}\n"), "once: while the setting holds"


def test_level_2_adds_the_traceback(capsys):
    with gt.config(debug_compile=1), gt.config(debug_compile=2):
        bus.emit(events.CompileFailed("abc", "no compiler", "Traceback\n  here\n"))
    assert capsys.readouterr().err == (
        "[COMPILE] Compilation failed, interpreting instead: no compiler\nTraceback\n  here\n"
    )


def test_a_long_sequence_is_shortened():
    text = describe(events.Detected("abc", ("add",) * 15, 1, 0.0), 1)
    assert text.count("add") == 12
    assert "-> ... (3 more) (signature abc, executed 1 time, 0.0 ms spent)" in text


def test_recompiling_names_what_changed(capsys):
    def step(x, rate):
        return (x - x * rate).sum()

    with gt.config(debug_compile=1):
        for size, rate in ((64, 0.5), (128, 0.5), (128, 0.25)):
            gt.jit(lambda x, rate=rate: step(x, rate), backend="eager")(gt.ones(size))
        gt.jit(lambda x: (x - x * 0.25).sum(), backend="eager")(gt.from_torch(torch.ones(256)[::2]))
    lines = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines() if "Recompiling" in line]
    assert lines == [
        "input 0 dim 0 was 64, now 128",
        "scalar 0 was 0.5:f32[]~, now 0.25:f32[]~",
        "input 0 strides were (1,), now (2,)",
    ]


@pytest.mark.slow
def test_the_environment_turns_the_compile_log_on():
    code = "import gtrace as gt; gt.jit(lambda x: x * 2 + 1, backend='eager')(gt.ones(3))"
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"GT_DEBUG_COMPILE": "1"}, capture_output=True, text=True
    )
    lines = run.stderr.splitlines()
    assert re.fullmatch(r"\[COMPILE\] Compiling sequence [0-9a-f]{12} \(2 ops\)", lines[0])
    assert re.fullmatch(r"\[COMPILE\] Compilation complete \(\d+\.\ds\)", lines[1])
    assert len(lines) == 2


# the bus


def test_the_bus_delivers_to_those_who_asked_until_they_stop():
    own, seen, changes = Bus(), [], []
    own.watch(lambda: changes.append(own.wanted))
    event = events.CompileFinished("abc", 1.0)
    own.emit(event)
    stop = own.subscribe(seen.append, events.CompileFinished, events.CompileStarted)
    stop_other = own.subscribe(seen.append, events.CompileFinished)
    own.emit(event)
    own.emit(events.Ran("abc", "compiled", 0.1))
    assert seen == [event, event]
    stop_other()
    stop()
    own.emit(event)
    assert len(seen) == 2
    assert changes[0] == {events.CompileFinished, events.CompileStarted}
    assert changes[-1] == own.wanted == frozenset()


# stats

PROGRAM = ProgramStats(
    signature="abc123def456",
    structural="def456abc123",
    ops=("matmul", "relu", "sum"),
    tier="compiled",
    interpreted_calls=10,
    interpreted_seconds=0.02,
    compiled_calls=100,
    compiled_seconds=0.1,
    compile_seconds=2.0,
    expected_compile_seconds=2.6,
    break_even_calls=440,
    saved_seconds=0.5,
    reason="",
)
POLICY = Policy(auto_compile=True, compile=False, hot_threshold=None, min_seq=3)
COLD = attrs.evolve(PROGRAM, tier="interpreted", compiled_calls=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "not paid back yet: about 340 more calls"),
        ({"compiled_calls": 439}, "not paid back yet: about 1 more call"),
        ({"saved_seconds": 3.2}, "paid back: saved 1.2 s net"),
        ({"saved_seconds": 2.0}, "paid back: saved 0 s net"),
        ({"saved_seconds": None}, "compiled before it ever ran: nothing to compare with"),
        ({"break_even_calls": None}, "compiled, but no faster so far"),
        ({"compiled_calls": 0}, "compiled, not run since"),
        ({"tier": "failed", "reason": "no compiler"}, "failed: no compiler"),
        (
            {"tier": "demoted", "reason": "compiled 2.00 ms, interpreted 1.00 ms"},
            "demoted: compiled 2.00 ms, interpreted 1.00 ms",
        ),
        ({"compiled_calls": 0, "interpreted_calls": 0}, "never run"),
    ],
)
def test_the_verdict_on_a_program_that_the_compiler_saw(changes, words):
    assert verdict(attrs.evolve(PROGRAM, **changes), POLICY) == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "cold: 20.0 ms spent interpreting, compiling would cost about 2.6 s"),
        ({"hot_threshold": 50}, "cold: 10 of 50 repetitions"),
        ({"min_seq": 4}, "too short to compile"),
        ({"auto_compile": False}, "not compiled: automatic compilation is off"),
        ({"compile": True}, "not compiled yet: it last ran before GT_COMPILE was set"),
    ],
)
def test_the_verdict_on_a_program_that_was_never_compiled(changes, words):
    assert verdict(COLD, attrs.evolve(POLICY, **changes)) == words


def test_stats_keeps_the_ledger():
    x = gt.ones(77)
    gt.eval(x)
    with gt.config(auto_compile=False):
        for _ in range(3):
            float((gt.arcsinh(gt.cosh(x)) * 3).sum())
        programs = gt.stats()
    (program,) = [p for p in programs if p.ops == ("cosh", "asinh", "mul", "sum")]
    assert (program.tier, program.calls, program.interpreted_calls, program.compiled_calls) == ("interpreted", 3, 3, 0)
    assert program.interpreted_seconds > 0
    assert program.total_seconds == program.interpreted_seconds
    assert (program.compile_seconds, program.break_even_calls, program.reason) == (0, None, "")
    assert program.verdict == "not compiled: automatic compilation is off"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        program.tier = "compiled"
    assert [p.total_seconds for p in programs] == sorted((p.total_seconds for p in programs), reverse=True)
    assert isinstance(programs, list)
    with gt.config(auto_compile=False):
        float((gt.arcsinh(gt.cosh(x)) * 3).sum())
    assert program.calls == 3, "a record does not change"
    assert next(p for p in gt.stats() if p.signature == program.signature).calls == 4


def test_programs_of_one_structure_share_the_structural_signature():
    with gt.config(auto_compile=False):
        before = {p.signature for p in gt.stats()}
        for size, scale in ((78, 2.5), (79, 2.5), (83, 3.5)):
            float((gt.rsqrt(gt.ones(size).block_until_ready()) * scale).sum())
        new = [p for p in gt.stats() if p.signature not in before and "rsqrt" in p.ops]
    assert len(new) == len({p.signature for p in new}) == 3
    assert len({p.structural for p in new}) == 1


def test_totals_add_up():
    programs = Stats([PROGRAM, attrs.evolve(COLD, saved_seconds=None, compile_seconds=0.0, compiled_seconds=0.0)], 1)
    totals = programs.totals
    assert (totals.programs, totals.calls, totals.compiles) == (2, 120, 1)
    assert totals.interpreted_seconds == pytest.approx(0.04)
    assert (totals.compiled_seconds, totals.compile_seconds, totals.saved_seconds) == (0.1, 2.0, 0.5)
    assert gt.stats().totals.compiles == engine.tiering.compiles


# the table


def shown(programs, compiles=0):
    file = io.StringIO()
    stats = Stats(programs, compiles)
    table.write(stats, stats.totals, file)
    return file.getvalue()


def test_the_table_shows_the_ledger():
    text = shown([attrs.evolve(PROGRAM, verdict="paid [back]: saved it")], 1)
    row = [cell.strip() for cell in text.splitlines()[3].strip("│").split("│")]
    assert row == [
        "abc123def456", "3", "110", "compiled", "20.0 ms", "0.10 s", "2.0 s", "0.50 s", "paid [back]: saved it"
    ]  # fmt: skip
    assert text.splitlines()[-1] == "1 program, 110 calls, 1 compile in 2.0 s, 0.50 s saved by compiled calls"


def test_the_table_leaves_blank_what_did_not_happen():
    quiet = attrs.evolve(COLD, compile_seconds=0.0, compiled_seconds=0.0, saved_seconds=0.0, verdict="cold")
    row = [cell.strip() for cell in shown([quiet]).splitlines()[3].strip("│").split("│")]
    assert row == ["abc123def456", "3", "10", "interpreted", "20.0 ms", "", "", "", "cold"]


def test_the_table_stays_short_and_counts_the_rest():
    text = shown([attrs.evolve(PROGRAM, signature=f"{k:012d}") for k in range(25)], 25)
    assert f"{19:012d}" in text
    assert f"{20:012d}" not in text
    assert text.splitlines()[-1].startswith("25 programs (5 not shown), 2750 calls, 25 compiles")


@pytest.mark.parametrize("width", [25, 40, 80, 100])
def test_a_narrow_table_leaves_columns_out_and_shortens_no_number(width):
    console = Console(file=io.StringIO(), width=width)
    program = attrs.evolve(PROGRAM, tier="interpreted", interpreted_calls=1234567, compiled_calls=0)
    console.print(table.render(Stats([program], 1)))
    lines = console.file.getvalue().splitlines()
    assert "1234567" in lines[3] and "interpreted" in lines[3]
    assert "…" not in lines[3]
    assert max(map(len, lines)) <= width


def test_a_program_that_never_ran_is_not_shown():
    never = attrs.evolve(COLD, interpreted_calls=0, compile_seconds=0.0)
    assert shown([never]) == "gtrace: no program ran\n"
