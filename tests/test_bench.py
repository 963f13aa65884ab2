"""The benchmarks: what the harness refuses, what comparing two files finds, and that each program runs."""

from __future__ import annotations

import importlib
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.commands import cli

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "benchmarks"
sys.path.insert(0, str(PROGRAMS))

import run as bench  # noqa: E402
from measuring import machine  # noqa: E402
from measuring.compare import LEAST, changes, warnings  # noqa: E402
from measuring.harness import Workload, case, measure, prepare  # noqa: E402
from measuring.libraries import EAGER, UNDECORATED, available  # noqa: E402
from measuring.results import BenchmarkError, Figure, Run, added, load, quantity, save, show  # noqa: E402

IDLE = machine.Load(0.0, 0.0, 2)


def workload(program, **fields):
    return Workload("w", lambda: (np.linspace(-1, 1, 8, dtype=np.float32),), lambda lib: program, **fields)


def run_with(*figures, load=IDLE, **fields):
    return Run("p", {"rounds": 3}, figures, (), load, {"cores": 2}, {"torch": "2"}, **fields)


# -- the harness


def test_a_workload_is_measured_for_each_side_with_its_rounds():
    figures = measure(Workload("w", lambda: (np.ones(3, np.float32),), lambda lib: lambda x: lib.np.exp(x) * 2),
                      [UNDECORATED, EAGER], 3)  # fmt: skip
    assert [(figure.side, len(figure.samples)) for figure in figures] == [("gtrace", 3), ("torch eager", 3)]
    assert all(figure.median > 0 and figure.details["first call, s"] > 0 for figure in figures)


@pytest.mark.parametrize("side", [UNDECORATED, EAGER], ids=lambda side: side.name)
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda x: x, "returns its arguments"),
        (lambda x: (x * 0.0).sum(), "the same for other arguments"),
        (lambda x: (), "no number"),
        (lambda x: x[:0], "no number"),
    ],
)
def test_a_workload_that_computes_nothing_is_refused(program, why, side):
    with pytest.raises(BenchmarkError, match=why):
        prepare(case(workload(program)), side)


def test_a_wrong_result_is_noticed():
    right = workload(lambda x: x * 2)
    wrong = attrs.evolve(right, sides={"gtrace": lambda lib: lambda x: x * 2.001})
    prepare(case(right), UNDECORATED)
    with pytest.raises(BenchmarkError, match=r"w: gtrace is wrong: its array 0 differs .* by 5\.0e-04"):
        prepare(case(wrong), UNDECORATED)
    prepare(case(attrs.evolve(wrong, tolerance=1e-2)), UNDECORATED)


def test_a_result_that_is_wrong_for_other_arguments_only_is_noticed():
    known = gt.array(np.linspace(-1, 1, 8, dtype=np.float32)) * 2
    remembered = workload(lambda x: x * 2, sides={"gtrace": lambda lib: lambda x: known + 0 * x})
    with pytest.raises(BenchmarkError, match="the same for other arguments"):
        prepare(case(remembered), UNDECORATED)


@pytest.mark.parametrize("result", [lambda x: (x * 2, x * 3), lambda x: (x * 2)[:4], lambda x: x * float("nan")])
def test_results_of_another_shape_or_number_or_without_a_value_are_noticed(result):
    with pytest.raises(BenchmarkError, match="w: gtrace"):
        prepare(case(workload(lambda x: x * 2, sides={"gtrace": lambda lib: result})), UNDECORATED)


def test_the_reference_is_made_with_float64():
    seen = []
    program = lambda lib: lambda x: (seen.append(x.dtype), x * 3)[1]  # noqa: E731
    case(Workload("w", lambda: (np.ones(3, np.float32),), program))
    assert seen == [torch.float64, torch.float64] and torch.get_default_dtype() is torch.float32


def test_what_is_not_installed_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr("measuring.libraries.installed", lambda name: name != "jax")
    sides, lines = available()
    assert {side.name for side in sides} >= {"gt.jit", "gtrace", "torch eager", "torch.compile"}
    assert lines == ["left out: jax.jit, because jax is not installed (pip install 'gtrace[bench]')"]


# -- the machine


def test_processes_of_the_benchmark_are_not_other_programs():
    table = {1: machine.Process(0, 100), 5: machine.Process(1, 7), 6: machine.Process(5, 3), 7: machine.Process(6, 2)}
    assert machine.own_seconds(table, 5) == 12
    start, end = machine.Clock(0.0, 10.0, 1.0), machine.Clock(10.0, 25.0, 6.0)
    assert machine.others(start, end) == 1.0
    assert machine.others(None, end) is None


def test_this_process_is_found_among_the_processes():
    table = machine.processes()
    assert machine.own_seconds(table, os.getpid()) >= table[os.getpid()].ticks
    assert machine.clock().busy > 0


@pytest.mark.parametrize(("before", "during", "busy"), [(0.1, 0.1, False), (0.3, 0.0, True), (0.0, 0.3, True)])
def test_a_busy_machine_is_said_to_be_busy(before, during, busy, capsys):
    run = run_with(Figure("w", "gtrace", (1.0,)), load=machine.Load(before, during, 2))
    show(run)
    assert ("BUSY MACHINE" in capsys.readouterr().out) == busy == run.load.busy


# -- figures


def test_a_table_shows_ratios_to_peers_and_details(capsys):
    show(run_with(Figure("w", "gt.jit", (1e-3,), details={"cold, s": 2.0}), Figure("w", "jax.jit", (2e-3,))))
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if "jax.jit" in line)
    assert "2.00 ms" in row and "0.50" in row and "2.00 s" in out and "cold" in out


def test_quantities_have_the_unit_that_suits_them():
    assert [quantity(value) for value in (2.5, 2.5e-3, 2.5e-6, 2e-9)] == ["2.50 s", "2.50 ms", "2.50 us", "2 ns"]
    assert quantity(3 * 2**20, "bytes") == "3.0 MiB" and quantity(12345, "count") == "12,345"


def test_runs_come_back_from_their_file(tmp_path):
    run = run_with(Figure("w", "gtrace", (1.0, 2.0), "bytes", {"cold, s": 3.0}), load=machine.Load(0.5, None, 2))
    save([run], tmp_path / "f.json")
    (back,) = load(tmp_path / "f.json")
    assert attrs.asdict(back) == json.loads(json.dumps(attrs.asdict(run))) | {"figures": [attrs.asdict(run.figures[0])]}
    assert json.loads((tmp_path / "f.json").read_text())["runs"][0]["busy"] is True


def damaged(**changes):
    figure = {"workload": "w", "side": "gt.jit", "samples": [1.0]} | changes
    return json.dumps({"format": 1, "runs": [attrs.asdict(run_with()) | {"figures": [figure]}]})


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 0, "runs": []}', '{"format": 1}', '{"format": 1, "runs": [{}]}',
     '{"format": 1, "runs": 3}', damaged(samples=[]), damaged(samples=["1"]), damaged(samples=[math.nan]),
     damaged(color="red")],
)  # fmt: skip
def test_another_file_is_refused(tmp_path, text, capsys):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(BenchmarkError, match="expected a file that `gtrace bench --json FILE` wrote"):
        load(tmp_path / "f.json")
    assert bench.main(["--compare", str(tmp_path / "f.json"), str(tmp_path / "none.json")]) == 2
    assert "gtrace bench: expected a file" in capsys.readouterr().err


# -- comparing


def samples(median, noise):
    """Nine rounds, symmetric about their median, whose quartiles are at `noise` from it."""
    return [median * (1 + 2 * noise * k / 4) for k in range(-4, 5)]


times = st.floats(1e-6, 1e3)
noises = st.floats(0, 0.2)


@given(times, times, noises, noises, st.floats(-0.9, 0.9), st.floats(0.1, 10))
def test_noise_is_no_change_whatever_the_speed_of_the_machine(ours, theirs, noise, other, part, speed):
    drift = 1 + part * max(LEAST, noise)
    before = [Figure("w", "gtrace", samples(ours, noise)), Figure("w", "torch eager", samples(theirs, other))]
    after = [
        Figure("w", "gtrace", samples(ours * drift * speed, noise)),
        Figure("w", "torch eager", samples(theirs * speed, other)),
    ]
    (change,) = changes([run_with(*before)], [run_with(*after)])
    assert not change.moved and change.against == "torch eager"


@given(times, times, noises, noises, st.booleans(), st.floats(0.1, 10))
def test_a_planted_change_is_found_whatever_the_speed_of_the_machine(ours, theirs, noise, other, slower, speed):
    planted = 1.05 + 4 * (noise + other)
    factor = planted if slower else 1 / planted
    before = [Figure("w", "gtrace", samples(ours, noise)), Figure("w", "torch eager", samples(theirs, other))]
    after = [
        Figure("w", "gtrace", samples(ours * factor * speed, noise)),
        Figure("w", "torch eager", samples(theirs * speed, other)),
    ]
    (change,) = changes([run_with(*before)], [run_with(*after)])
    assert change.moved and (change.quotient > 1) == slower


def test_figures_without_a_peer_are_compared_as_they_are_and_new_ones_are_not():
    before = run_with(Figure("memory", "gtrace", samples(100, 0.01), "bytes"))
    after = run_with(Figure("memory", "gtrace", samples(150, 0.01), "bytes"), Figure("new", "gtrace", (1.0,)))
    (change,) = changes([before], [after])
    assert change.moved and change.against == "" and change.quotient == pytest.approx(1.5)


def test_a_single_round_says_nothing_of_small_changes():
    one, other, third = (run_with(Figure("w", "gtrace", (value,))) for value in (1.0, 1.2, 2.0))
    assert not changes([one], [other])[0].moved
    assert changes([one], [third])[0].moved


def test_what_makes_files_hard_to_compare_is_said():
    run = run_with(Figure("w", "gtrace", (1.0,)))
    other = attrs.evolve(run, machine={"cores": 8}, versions={"torch": "3"}, load=machine.Load(1.0, 1.0, 2))
    lines = "\n".join(warnings([run], [other]))
    assert "machine differ: cores 2 and 8" in lines and "torch 2 and 3" in lines and "second run was on a busy" in lines
    assert warnings([run], [run]) == []
    assert warnings([], [run]) == ["p: only the second file has it"]


def test_the_command_compares_two_files(tmp_path, capsys):
    for name, factor in (("a", 1.0), ("b", 2.0)):
        figures = Figure("w [x]", "gt.jit", samples(factor, 0.01)), Figure("same", "gt.jit", samples(1.0, 0.01))
        save([run_with(*figures)], tmp_path / name)
    assert bench.main(["--compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "w [x]" in out and "worse" in out and "same" not in out and "1 of 2 figures moved" in out
    bench.main(["--compare", str(tmp_path / "a"), str(tmp_path / "b"), "--everything"])
    assert "same" in capsys.readouterr().out
    save([run_with(Figure("other", "gt.jit", [1.0]))], tmp_path / "b")
    assert bench.main(["--compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "the two files have no figure in common" in capsys.readouterr().out


# -- the programs


def test_a_name_that_is_none_is_refused(capsys):
    for names in (["speed"], []):
        assert bench.main(names) == 2
        assert "expected some of compilation, peers" in capsys.readouterr().err


def test_without_a_checkout_the_command_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gt, "__file__", str(tmp_path / "gtrace" / "__init__.py"))
    assert cli.main(["bench", "peers"]) == 2
    error = capsys.readouterr().err
    assert f"expected the folder benchmarks/ beside the package ({tmp_path}" in error and "pip install -e" in error


@pytest.mark.parametrize("arguments", [["peers", "--quick"], ["--compare", "a", "b"], ["--help"], []])
def test_the_command_passes_its_arguments_on(arguments, monkeypatch):
    commands = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: commands.append(command) or SimpleNamespace(returncode=3)
    )
    assert cli.main(["bench", *arguments]) == 3
    assert commands == [[sys.executable, str(PROGRAMS / "run.py"), *arguments]]


def test_options_without_use_are_refused(capsys):
    assert bench.main(["peers", "--add"]) == 2
    assert "expected --json FILE beside --add, got none" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.main(["peers", "--rounds", "0"])
    assert "--rounds: expected an integer of at least 1, got '0'" in capsys.readouterr().err


def test_each_name_has_its_program():
    shared = {
        "run.py",
        "workloads.py",
        "networks.py",
        "page.py",
        "quotes.py",
        "accuracy.py",
        "handwritten_networks.py",
        "handwritten_methods.py",
        "sizes_programs.py",
    }
    assert {path.name for path in PROGRAMS.glob("*.py")} - shared == set(bench.PROGRAMS.values())


def python(*arguments):
    # nothing compiles: what is measured is not looked at
    environment = os.environ | {"GT_AUTO_COMPILE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "ignore", *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


PLAIN = ["--sides", "gtrace", "torch eager"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        pytest.param("peers", [*PLAIN, "--times-only"], marks=pytest.mark.long),
        ("peers", ["--sides", "torch eager", "--workload", "softmax of"]),
        pytest.param("scaling", [], marks=pytest.mark.long),
        ("dispatch", PLAIN),
        ("transforms", ["--sides", "torch eager", "--case", "per_example", "--case", "captures"]),
        ("loops", PLAIN),
        ("models", ["--model", "lstm", "--only", "gtrace", "torch", "--steps", "3", "--caches", "cold"]),
        ("modules", ["--model", "mlp", "--steps", "3"]),
        pytest.param("handwritten", ["--model", "sac", "--steps", "3", "--caches", "cold"], marks=pytest.mark.long),
        ("handwritten", ["--interpreted", "--model", "gcn", "mlp"]),
        ("warmstart", ["--part", "first"]),
        ("hotpath", ["--loop", "fixed", "--sides", "gtrace"]),
        ("sizes", ["--program", "graph", "LSTM", "service", "--only", "gtrace", "torch"]),
        pytest.param("inference", [], marks=pytest.mark.long),
        ("sharding", []),
        pytest.param("steps", [], marks=pytest.mark.long),
        pytest.param("ports", [], marks=pytest.mark.long),
        ("ecosystem", []),
        pytest.param("agreement", ["--part", "cost", "--program", "handwritten gcn"], marks=pytest.mark.long),
        ("price", ["--model", "models/lstm", "--steps", "9", "--only", "gtrace", "torch", "--caches", "cold"]),
        pytest.param("ablation", ["--program", "handwritten gcn", "--mechanism", "cse"], marks=pytest.mark.long),
    ],
)
def test_each_program_runs_and_writes_its_figures(name, arguments, tmp_path):
    file = tmp_path / "figures.json"
    out = python(str(PROGRAMS / bench.PROGRAMS[name]), "--quick", "--rounds", "1", "--json", str(file), *arguments)
    (run,) = load(file)
    assert run.program == Path(bench.PROGRAMS[name]).stem and run.settings["quick"] and "processor" in out
    assert run.figures or run.left_out
    for figure in run.figures:
        assert figure.workload in out and np.isfinite(figure.samples).all()
    if name == "peers" and "--times-only" not in arguments:
        assert {"cold, s", "warm, s", "peak, bytes"} <= run.figures[0].details.keys()


@pytest.mark.slow
def test_the_command_runs_programs_and_joins_their_files(tmp_path, monkeypatch):
    monkeypatch.setenv("GT_AUTO_COMPILE", "0")
    file = tmp_path / "all.json"
    assert cli.main(["bench", "sharding", "--quick", "--rounds", "1", "--json", str(file)]) == 0
    assert [run.program for run in load(file)] == ["sharding"]


def test_figures_are_added_to_those_that_a_file_has():
    first = run_with(Figure("a", "gtrace", (1.0,)), Figure("b", "gtrace", (2.0,)))
    other = attrs.evolve(first, program="other")
    again = run_with(Figure("b", "gtrace", (3.0,)), Figure("c", "gtrace", (4.0,)))
    found = [(run.program, [(f.workload, f.median) for f in run.figures]) for run in added([first, other], again)]
    assert found == [("p", [("a", 1.0)]), ("p", [("b", 3.0), ("c", 4.0)]), ("other", [("a", 1.0), ("b", 2.0)])]
    assert [run.program for run in added([run_with(Figure("b", "gtrace", (2.0,)))], again)] == ["p"]


@pytest.fixture
def benchmark_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return importlib.import_module


def test_a_program_is_measured_in_parts(benchmark_modules, tmp_path):
    file = tmp_path / "parts.json"
    peers = benchmark_modules("peers")
    common = ["--quick", "--rounds", "1", "--sides", "gtrace", "--times-only", "--add", "--json"]
    with gt.config(auto_compile=False):
        for names in (["tanh", "gelu"], ["softmax of", "tanh"]):
            peers.main([*common, str(file), "--workload", *names])
    found = [[figure.workload.split()[0] for figure in run.figures] for run in load(file)]
    assert found == [["gelu"], ["tanh", "softmax"]]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SystemExit, match="expected a file that `gtrace bench --json FILE` wrote"):
        peers.main([*common, str(tmp_path / "other.json")])


def test_single_workloads_are_of_some_programs_only(capsys):
    assert bench.main(["loops", "--workload", "tanh"]) == 2
    assert "expected compilation or peers, whose workloads can be chosen, got loops" in capsys.readouterr().err


RESULTS = [run for path in sorted((PROGRAMS / "results").glob("*.json")) for run in load(path)]


@pytest.mark.parametrize("run", RESULTS, ids=lambda run: run.program)
def test_the_command_of_a_table_measures_it_again(run, benchmark_modules, monkeypatch):
    page, module = benchmark_modules("page"), benchmark_modules(run.program)
    asked = []
    monkeypatch.setattr(module, "report", lambda name, options, *rest: asked.append(vars(options)))
    _, program, *arguments = shlex.split(page.command(attrs.asdict(run)))
    assert program == f"benchmarks/{run.program}.py"
    module.main(arguments)
    (options,) = asked
    settings = {name: value for name, value in run.settings.items() if name in options}
    assert settings and {name: options[name] for name in settings} == settings


def test_each_program_beside_its_peers_has_a_bound(benchmark_modules):
    peers = benchmark_modules("peers")
    assert [workload.name for workload in peers.programs(False) if workload.work is None] == []


@pytest.fixture(scope="module")
def compilation():
    sys.path.insert(0, str(PROGRAMS))
    yield importlib.import_module("compilation_benchmark")
    sys.path.remove(str(PROGRAMS))


def test_the_report_of_a_workload_has_its_layout(compilation):
    without = compilation.totals([[0.43] * 100])
    compiled = compilation.totals([[1.65] * 5 + [0.19] * 95])
    text = compilation.layout("MLP Training Step", 100, {"No Compile": without, "Compile": compiled})
    assert text.splitlines() == [
        "WORKLOAD: MLP Training Step",
        "Iterations: 100 (warmup: 5)",
        "Results                              No Compile    Compile     Speedup",
        "Warmup (first 5 iters):                  2.150s     8.250s       0.26x",
        "  Per iteration:                         0.430s     1.650s       0.26x",
        "Steady state (remaining 95 iters):      40.850s    18.050s       2.26x",
        "  Per iteration:                         0.430s     0.190s       2.26x",
        "TOTAL TIME:                             43.000s    26.300s       1.63x",
        "Average per iteration:                   0.430s     0.263s       1.63x",
        "VERDICT: COMPILE WINS (1.63x faster overall), steady-state 2.26x, break-even at iteration 31",
    ]


@pytest.mark.parametrize(
    ("compiled", "end"),
    [
        ([2.0] * 5 + [0.5] * 15, "COMPILE WINS (1.14x faster overall), steady-state 2.00x, break-even at iteration 15"),
        ([2.0] * 5 + [0.9] * 15, "break-even at about iteration 55"),
        ([2.0] * 20, "no break-even"),
        ([0.5] * 20, "break-even at iteration 1"),
    ],
)
def test_the_verdict_says_when_compiling_pays(compilation, compiled, end):
    text = compilation.verdict(compilation.totals([[1.0] * 20]), compilation.totals([compiled]))
    assert text.endswith(end)


@given(st.lists(st.floats(0.01, 10), min_size=8, max_size=30), st.lists(st.floats(0.01, 10), min_size=30))
def test_from_the_break_even_on_compiling_is_ahead(compilation, first, second):
    without, compiled = compilation.totals([first]), compilation.totals([second[: len(first)]])
    at = compilation.break_even(without, compiled)
    ahead = [c <= w for c, w in zip(compiled.curve, without.curve, strict=True)]
    if at is not None and at <= len(first):
        assert all(ahead[at - 1 :]) and (at == 1 or not ahead[at - 2])
    else:
        assert not ahead[-1]


@pytest.mark.parametrize("name", ["matmul", "mlp", "attention", "mixed"])
def test_each_workload_of_the_compilation_benchmark_runs_uncompiled(compilation, name):
    with gt.config(auto_compile=False):
        assert len(compilation.run_child(name, "No Compile", 7, True)) == 7


@pytest.mark.long
def test_the_compilation_benchmark_runs(tmp_path):
    file = tmp_path / "figures.json"
    arguments = ["--quick", "--rounds", "1", "--iterations", "20", "--workload", "matmul", "--json", str(file)]
    left_out = [word for column in ("Background", "torch.compile") for word in ("--without", column)]
    out = python(str(PROGRAMS / "compilation_benchmark.py"), *arguments, *left_out)
    assert "WORKLOAD: Simple Matmul Chain" in out and "VERDICT: " in out and "2nd Process" in out
    (run,) = load(file)
    assert {figure.side for figure in run.figures} == {"gtrace", "gt.jit", "gt.jit, second process"}


def test_every_mechanism_has_a_place_that_the_ablation_counts():
    ablation = importlib.import_module("ablation")
    assert set(ablation.PLACES) == set(ablation.MECHANISMS)
    assert [name for name in ablation.PLACES if not ablation.lines_of(name)] == []
