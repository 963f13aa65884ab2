"""The worker and what it leaves behind: nothing waits for it, nothing it does can hurt, and the next process has it."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import attrs
import launch
import numpy as np
import pytest
import torch
from torch._inductor import config as inductor_config

import gtrace as gt
from gtrace.core.backends import artifact as artifact_files
from gtrace.core.backends.aoti import load
from gtrace.core.backends.artifact import compile_artifact
from gtrace.core.backends.guards import evaluate, hold, portable
from gtrace.core.backends.inductor.failures import compiler_errors
from gtrace.core.backends.native import library
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.symbolic import Relation
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base import workspace as workspaces
from gtrace.core.base.errors import CacheError
from gtrace.core.ir.signature import Signature
from gtrace.core.ir.text import parse_graph
from gtrace.core.runtime.cache import artifact_cache as artifact_caches
from gtrace.core.runtime.cache.artifact_cache import ArtifactCache, artifacts
from gtrace.core.runtime.cache.manifest import VerdictKind
from gtrace.core.runtime.cache.store import Store
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.forms import FormEvent
from gtrace.core.runtime.worker import client as clients
from gtrace.core.runtime.worker import lane as lanes
from gtrace.core.runtime.worker import sharing as sharing_module
from gtrace.testing import assert_close

pytestmark = pytest.mark.inductor

WAIT = 400

SINE = "graph(%0: f32[4]) {\n  %1: f32[4] = sin(%0)\n  return %1\n}"


def python(code, cache, *args, **settings):
    """Run a script with a store of its own; returns the process."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {"GT_COMPILE_AFTER": "0"}
    env |= {"GT_CACHE_DIR": str(cache), "GT_COMPILE_SHARE": "1", "GT_NATIVE": "0", "OMP_NUM_THREADS": "1", **settings}
    command = [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


SCRIPT = """
    import json, sys, time
    import numpy as np
    import gtrace as gt
    from gtrace.core.runtime.worker.client import worker

    def step(w, x, y):
        loss, g = gt.value_and_grad(lambda w: ((gt.tanh(x @ w) - y) ** 2).mean())(w)
        return w - 0.1 * g, loss

    def recurrent(xs):
        return gt.scan(lambda c, x: (gt.tanh(c * 0.5 + x), c.sum()), gt.zeros(4), xs)

    def rows(n, m=3):
        return gt.eval(gt.array(np.random.default_rng(n).normal(size=(n, m)).astype(np.float32)))

    jitted = gt.jit(lambda x: gt.sin(x).sum(0) * 2 - gt.cos(x).mean())
    w = gt.eval(gt.ones((3, 2)))
    sizes = [int(n) for n in sys.argv[1].split(",")]
    repeats = int(sys.argv[2])
    values, known, interpreted = [], set(), 0
    for n in sizes:
        for k in range(repeats):
            v, loss = step(w, rows(n), rows(n, 2))
            c, ys = recurrent(rows(12, 4))
            values = [float(loss), np.asarray(v).tolist(), np.asarray(c).tolist(), np.asarray(ys).tolist()]
            values.append(np.asarray(jitted(rows(9))).tolist() if len(sys.argv) > 3 else 0)
            # first calls alone: later ones may be interpreted for a trial, which depends on times
            new = [p for p in gt.stats() if p.signature not in known and len(p.ops) > 2]
            interpreted += sum(p.interpreted_calls for p in new)
            known |= {p.signature for p in new}
    early = gt.stats().totals
    assert worker.wait(270)
    v, loss = step(w, rows(n), rows(n, 2))
    values[0] = float(loss)
    print(json.dumps({
        "values": values, "compiles": gt.stats().totals.compiles, "loaded": gt.stats().totals.loaded,
        "early": early.compiles, "interpreted": interpreted,
        "origins": sorted({p.origin for p in gt.stats() if p.tier == "compiled"}),
        "heavy": [m for m in ("torch._inductor.compile_fx", "torch._dynamo", "sympy") if m in sys.modules],
    }))
"""


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """A store after a first process, and what that said."""
    cache = tmp_path_factory.mktemp("warmed")
    return cache, result(python(SCRIPT, cache, "8,16", 12, "jit", GT_HOTPATH_THRESHOLD="4"))


@pytest.mark.slow
def test_the_first_process_goes_on_while_the_worker_compiles(warmed):
    _, first = warmed
    assert first["early"] <= 2, "hardly anything but the jitted function is compiled when the loop has ended"
    assert first["compiles"] >= 4
    assert "worker" in first["origins"]


@pytest.mark.slow
def test_the_second_process_compiles_nothing_and_interprets_nothing(warmed):
    cache, first = warmed
    with launch.from_scratch():
        second = result(python(SCRIPT, cache, "8,16", 3, "jit", GT_HOTPATH_THRESHOLD="4"))
    assert (second["compiles"], second["interpreted"], second["origins"]) == (0, 0, ["cache"])
    assert second["loaded"] >= 3, "the step, for both sizes, the loop and the jitted function"
    assert second["heavy"] == [], "loading needs no compiler"
    for a, b in zip(second["values"], first["values"], strict=True):
        assert_close(np.float32(a), np.float32(b))


@pytest.mark.slow
def test_a_size_that_no_process_has_seen_runs_the_general_artifact(warmed):
    cache, _ = warmed
    with launch.from_scratch():
        third = result(python(SCRIPT, cache, "23", 3, GT_HOTPATH_THRESHOLD="4"))
    plain = result(python(SCRIPT, cache, "23", 1, GT_AUTO_COMPILE="0"))
    assert (third["compiles"], third["interpreted"], third["heavy"]) == (0, 0, [])
    for a, b in zip(third["values"], plain["values"], strict=True):
        assert_close(np.float32(a), np.float32(b))


@pytest.mark.slow
def test_other_settings_and_no_store_use_none_of_it(warmed):
    cache, _ = warmed
    for settings in ({"GT_CACHE_SIZE": "0"}, {"GT_AUTO_COMPILE": "0"}, {"GT_BACKGROUND": "0"}):
        assert result(python(SCRIPT, cache, "8", 1, **settings))["loaded"] == 0


# -- the key


UNIT = CompileRequest(
    parse_graph(
        "graph(%0: f32[4,8], %1: f32[8]) {\n  %2: f32[4,8] = add(%0, %1)\n  %3: f32[4,8] = sin(%2)\n  return %3\n}"
    ),
    ((8, 1), (1,)),
)  # fmt: skip


def changed(text, old, new):
    return attrs.evolve(UNIT, graph=parse_graph(text.replace(old, new)))


def test_every_part_of_the_key_changes_it():
    text = str(UNIT.graph)
    others = [
        changed(text, "sin", "cos"), changed(text, "f32", "f64"), changed(text, "4,8", "5,8"),
        changed(text, "add(%0, %1)", "add(%0, 1.5:f32[]~)"), changed(text, "add(%0, %1)", "add(%0, 2.5:f32[]~)"),
        attrs.evolve(UNIT, strides=((1, 4), (1,))), attrs.evolve(UNIT, mode="max-autotune"),
        attrs.evolve(UNIT, threads=UNIT.threads + 1),
        attrs.evolve(UNIT, relations=(Relation((0,)), Relation(offset=8), Relation(offset=8))),
    ]  # fmt: skip
    names = [UNIT.name, *(unit.name for unit in others)]
    tools = toolchain()
    assert set(tools) == {"gtrace", "torch", "compiler", "machine", "isa", "products", "off"}
    names += [UNIT.named({**tools, field: "another"}) for field in tools]
    assert len(set(names)) == len(names) == 10 + 7
    assert CompileRequest.from_json(json.loads(json.dumps(UNIT.to_json()))).name == UNIT.name


@pytest.mark.slow
@pytest.mark.parametrize("field", ["gtrace", "torch", "compiler", "machine", "isa", "products", "off"])
def test_artifacts_of_another_toolchain_are_not_used(warmed, field):
    """The second process, but for one field."""
    cache, _ = warmed
    patch = f"""
        from gtrace.core.backends import toolchain as tools, request
        from gtrace.core.runtime import program
        from gtrace.core.runtime.cache import artifact_cache as artifacts
        real = tools.toolchain()
        other = lambda: {{**real, {field!r}: "another"}}
        request.toolchain = program.toolchain = artifacts.toolchain = other
    """
    script = textwrap.dedent(patch) + textwrap.dedent(SCRIPT)
    said = result(python(script, cache, "8", 1, GT_HOTPATH_THRESHOLD="1000"))
    assert said["loaded"] == 0 and said["interpreted"] > 0


# -- in this process


@pytest.fixture
def worker(tmp_path):
    """The worker of this process, with a store of its own."""
    with gt.config(background=True, cache_dir=str(tmp_path / "programs"), hot_threshold=2):
        yield clients.worker
        assert clients.worker.wait(WAIT)


def until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def hot(size, function=lambda x: (gt.sinh(x) * 1.5 + gt.cosh(x)).sum(0)):
    """Run a program until the worker has it; returns a function that runs it again, and its entry."""
    x = gt.eval(gt.linspace(-1, 1, size).reshape((size, 1)))
    known = set(engine.programs)

    def run():
        return np.asarray(function(x))

    expected = run()
    (entry,) = [e for key, e in engine.programs.items() if key not in known]
    run()
    return run, entry, expected


def failed(function, size, fault, words, worker):
    """Let a program become hot and `fault` happen to the worker; everything must stay right, with one warning."""
    with pytest.warns(gt.CompileWarning, match=words) as caught:
        run, entry, expected = hot(size, function)
        fault()
        assert worker.wait(WAIT)
        for _ in range(3):
            np.testing.assert_array_equal(run(), expected)
    (warning,) = [w for w in caught if w.category is gt.CompileWarning]
    assert "\n" not in str(warning.message)
    assert warning.filename == __file__, "the user's line"
    assert entry.tier == "failed"
    return entry


@pytest.mark.slow
def test_a_worker_that_is_killed(worker):
    def long(x):  # seconds of compiling, so that the worker is killed in the middle of it
        total = gt.zeros(1)
        for k in range(60):
            x = gt.sinh(gt.cosh(x * (1.0 / (k + 2))) - 1.0)
            total = total + (gt.sort(x, axis=0) * float(k)).sum(0)
        return total

    def fault():
        until(lambda: worker.pid is not None)
        time.sleep(1.0)
        os.kill(worker.pid, signal.SIGKILL)

    entry = failed(long, 301, fault, "SIGKILL", worker)
    assert artifacts.store.all() == [], "another process may well succeed"
    # and the next program gets a new worker
    run, other, expected = hot(302, lambda x: (gt.sinh(x) * 3.5 - gt.cosh(x) * x).sum(0))
    until(lambda: other.tier == "compiled")
    np.testing.assert_allclose(run(), expected, rtol=1e-5, atol=1e-4)
    assert entry.tier == "failed"


def compile_after(lines, folder, monkeypatch):
    """Have the C++ compiler run these lines of a shell first."""
    compiler = folder / "g++"
    compiler.write_text(f'#!/bin/sh\n{lines}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))


def runs_in_part(function, go):
    """Run a function until the loops that are compiled run, let the rest be compiled by making `go`, and wait for that.

    Returns the tier meanwhile and whether the rest was requested then, and the entry.
    """
    run, entry, expected = hot(5, function)
    try:
        until(lambda: run() is not None and entry.ledger.compiled_calls >= 3)
        meanwhile = entry.tier, entry.forms.is_requested
        assert_close(run(), expected, check_dtype=False)
    finally:
        go.touch()
    until(lambda: run() is not None and entry.tier == "compiled")
    assert_close(run(), expected, check_dtype=False)
    return meanwhile, entry


def test_loops_that_are_compiled_run_before_the_rest_is(worker, tmp_path, monkeypatch):
    later = f"if ! mkdir {tmp_path}/first; then until [ -e {tmp_path}/go ]; do sleep 0.02; done; fi"
    compile_after(f'case "$*" in *loop.cpp*) {later};; esac', tmp_path, monkeypatch)

    def steps(x):
        long, _ = gt.scan(lambda c, _: (gt.sin(c) * 1.01 + c * c * 0.125, None), x, None, length=400)
        short, _ = gt.scan(lambda c, k: (gt.cos(c) * long, c + k), long, gt.arange(3.0))
        return short

    meanwhile, entry = runs_in_part(steps, tmp_path / "go")
    assert meanwhile == ("interpreted", True)
    assert entry.tier == "compiled" and entry.forms.partial is None


@pytest.mark.slow
def test_loops_that_are_on_disk_run_before_the_rest_is_compiled(worker, tmp_path, monkeypatch):
    def long(x):
        return gt.scan(lambda c, _: (gt.sin(c) * 1.02 + c * c * 0.125, None), x, None, length=400)[0]

    def both(x):
        first = long(x)
        return gt.scan(lambda c, k: (gt.cos(c) * first, c + k), first, gt.arange(3.0))[1]

    run, entry, _ = hot(5, long)
    until(lambda: run() is not None and entry.tier == "compiled")
    compile_after(f"until [ -e {tmp_path}/go ]; do sleep 0.02; done", tmp_path, monkeypatch)
    meanwhile, entry = runs_in_part(both, tmp_path / "go")
    assert meanwhile == ("interpreted", True)
    assert entry.tier == "compiled" and entry.forms.partial is None


@pytest.mark.slow
def test_a_worker_that_hangs_is_ended(worker):
    def fault():
        until(lambda: worker.pid is not None)
        os.kill(worker.pid, signal.SIGSTOP)
        stopped.append(worker.pid)

    stopped = []
    with gt.config(compile_timeout=2):
        failed(
            lambda x: (gt.sinh(x) * 4.5 / gt.cosh(x)).sum(0),
            303,
            fault,
            r"more than 2 s \(GT_COMPILE_TIMEOUT\)",
            worker,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(stopped[0], 0)


@pytest.mark.slow
def test_a_compiler_that_hangs_in_this_process_is_ended(tmp_path, monkeypatch):
    # what it has started holds its output open
    compile_after(f"sleep 600 & echo $! > {tmp_path}/started; wait", tmp_path, monkeypatch)
    begin = time.monotonic()
    with (
        gt.config(native=True, compile_timeout=1),
        pytest.warns(gt.CompileWarning, match=r"more than 1 s \(GT_COMPILE_TIMEOUT\)"),
    ):
        f = gt.jit(lambda x: gt.sinh(x) * 5.25 - x[::-1], wait=True)
        assert_close(f(gt.ones(5)), [math.sinh(1) * 5.25 - 1] * 5)
    assert time.monotonic() - begin < 60
    until(lambda: ended(int((tmp_path / "started").read_text())), 20)


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False], ids=["own", "inductor"])
def test_a_hang_in_this_process_is_no_verdict(tmp_path, monkeypatch, native):
    started = f"sleep 600 & echo $! > {tmp_path}/started; wait"
    compiler_that_fails(tmp_path, monkeypatch, started)
    unit = changed(str(UNIT.graph), "add(%0, %1)", f"add(%0, {random.random()}:f32[]~)")
    cache, store = ArtifactCache(), Store(tmp_path / "store", 10**9)
    request = attrs.evolve(unit, native=native)
    with (
        gt.config(compile_timeout=1),
        inductor_config.patch({"cpp.cxx": os.environ["CXX"]}),
        pytest.raises(gt.TransientCompileError, match=r"more than 1 s \(GT_COMPILE_TIMEOUT\)"),
    ):
        monkeypatch.setattr(cache, "store", store)  # settings that change open another
        cache.compile(request.name, request, Signature("s", "s"), ())
    assert store.all() == []
    until(lambda: ended(int((tmp_path / "started").read_text())), 20)


def ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # nobody may have waited for it yet
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


COMPILING = """
    import os, sys, time
    import gtrace as gt
    x = gt.eval(gt.linspace(-1, 1, 77))
    for _ in range(5):
        gt.eval(gt.sinh(x) * 2.75 + gt.cosh(x))
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    print("compiling", flush=True)
    if sys.argv[2] != "exit":
        os.kill(os.getpid(), getattr(__import__("signal"), sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "SIGTERM", "SIGKILL"])
def test_a_program_that_ends_while_the_compiler_works_leaves_nothing(tmp_path, monkeypatch, how):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    # its own files are where TMPDIR says
    compile_after(f'touch "$TMPDIR/cc1.s"; echo $$ > {tmp_path}/at.new; mv {tmp_path}/at.new {tmp_path}/at; sleep 60',
                  tmp_path, monkeypatch)  # fmt: skip
    process = python(
        COMPILING, tmp_path / "store", tmp_path / "at", how, GT_HOTPATH_THRESHOLD="2", GT_NATIVE="1",
        TMPDIR=str(temporary), CXX=str(tmp_path / "g++"),
    )  # fmt: skip
    process.communicate(timeout=120)
    until(lambda: ended(int((tmp_path / "at").read_text())), 20)
    until(lambda: not os.listdir(temporary), 20)
    assert process.returncode == {"exit": 0, "SIGTERM": -signal.SIGTERM, "SIGKILL": -signal.SIGKILL}[how]


@pytest.mark.slow
def test_folders_of_compiles_whose_process_is_gone_are_removed_and_no_others(tmp_path, monkeypatch):
    script = """
        import os, tempfile
        from gtrace.core.base.workspace import workspace
        with workspace() as folder:
            (folder / "loop.cpp").write_text("")
            print(folder, flush=True)
            os.kill(os.getpid(), 9)
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    left = python(script, tmp_path / "store").communicate(timeout=120)[0].strip()
    assert os.path.isdir(left)
    users = [tmp_path / "gtrace-compile-thesis", tmp_path / "gtrace-compile-thesis_1", tmp_path / "gtrace-results"]
    for folder in users:
        folder.mkdir()
        (folder / "results.txt").write_text("of years")
    (tmp_path / "gtrace-compile-abcdefgh").symlink_to(users[0])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with workspaces.workspace() as used:
        assert not os.path.exists(left)
        workspaces.clear_abandoned(tmp_path)
        assert used.is_dir(), "it is in use"
    assert not used.exists()
    assert all((folder / "results.txt").exists() for folder in users)


def test_a_program_that_is_its_own_executable_is_not_started_again(worker, monkeypatch):
    with monkeypatch.context() as changed:
        changed.setattr(sys, "frozen", True, raising=False)
        assert clients.find_python() is None
        worker.end()
        with pytest.warns(gt.CompileWarning, match="needs a Python to run it") as caught:
            for size in (331, 332):
                run, entry, expected = hot(size, lambda x, k=size: (gt.sinh(x) * k + gt.arctan(x)).sum(0))
                assert worker.wait(WAIT)
                np.testing.assert_array_equal(run(), expected)
                assert entry.tier == "interpreted" and "needs a Python" in entry.forms.reason
        assert len([w for w in caught if w.category is gt.CompileWarning]) == 1
        assert worker.pid is None
    assert clients.find_python() == sys.executable


@pytest.mark.parametrize("name", ["uwsgi", "", None])
def test_an_embedded_python_is_found_beside_its_library(monkeypatch, name):
    monkeypatch.setattr(sys, "executable", name and f"/usr/bin/{name}")
    found = clients.find_python()
    assert found is None or os.path.realpath(found) == os.path.realpath(f"{sys.exec_prefix}/bin/python3")


def test_a_worker_without_memory(worker):
    def fault():
        until(lambda: worker.pid is not None)
        # what it has now, and nothing more
        resource.prlimit(worker.pid, resource.RLIMIT_AS, (64 << 20, 64 << 20))

    entry = failed(lambda x: gt.sinh(gt.cosh(x) * 5.5).sum(0), 304, fault, "compiling .* failed", worker)
    assert entry.forms.reason and entry.ledger.compiled_calls == 0
    assert artifacts.store.all() == [], "another process may well have the memory"


def test_no_place_for_the_compilers_files(worker, monkeypatch):
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", "/nonexistent")
        failed(lambda x: (gt.cosh(x) * gt.sinh(x) - gt.tan(x)).sum(0), 311, lambda: None, "no place for the", worker)
    assert artifacts.store.all() == []


@pytest.mark.slow
def test_a_machine_without_compiler(worker, monkeypatch):
    worker.end()  # the next one has the new environment
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.warns(gt.CompileWarning) as caught:
        for size in (305, 306):
            run, entry, expected = hot(size, lambda x: gt.cosh(gt.sinh(x) * 6.5).sum(0))
            assert worker.wait(WAIT)
            np.testing.assert_array_equal(run(), expected)
            assert entry.tier == "interpreted" and "no /nonexistent/g++" in entry.forms.reason
    assert [str(w.message).count("Everything is interpreted") for w in caught] == [1]
    assert worker.pid is None, "there is nothing that it could do"
    # not remembered: an engine that has not seen it tries again
    assert artifacts.store.all() == []
    again, _ = fresh_engine(entry)
    (copy,) = again.programs.values()
    assert copy.tier == "interpreted"


def fresh_engine(entry):
    """Run an entry's program in an engine that knows nothing, as another process would."""
    again = type(engine)()
    route = again.prepare(entry.graph, entry.key.strides)
    tensors = [torch.linspace(-1, 1, a.size, dtype=a.dtype).reshape(a.shape) for a in entry.graph.avals]
    return again, again.call(route, tensors)


@pytest.mark.slow
def test_the_worker_has_a_core_to_itself_and_its_code_all_of_them(worker, monkeypatch):
    monkeypatch.setattr(sharing_module, "_cores", lambda: 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run, entry, expected = hot(200_001, lambda x: gt.sinh(x) * 9.5 + gt.cosh(x))
        assert worker.pending
        seen = []
        plain = entry.forms.executable
        entry.forms.executable = attrs.evolve(
            plain, run=lambda tensors: (seen.append(torch.get_num_threads()), plain.run(tensors))[1]
        )
        np.testing.assert_array_equal(run(), expected)
        assert seen == [1] and torch.get_num_threads() == 2
        until(lambda: entry.tier == "compiled")
        np.testing.assert_allclose(run(), expected, rtol=1e-5, atol=1e-4)
        (manifest,) = [m for m in artifacts.store.all() if m.program == entry.signature.exact]
        assert manifest.threads == 2
        assert b"GOMP_parallel" in artifacts.store.code(manifest).read_bytes()
        # for another number of threads it is another program
        for count, tier in ((1, "interpreted"), (2, "compiled")):
            torch.set_num_threads(count)
            (copy,) = fresh_engine(entry)[0].programs.values()
            assert copy.tier == tier
    finally:
        torch.set_num_threads(threads)


def test_threads_are_given_back_whatever_happens(monkeypatch):
    monkeypatch.setattr(sharing_module, "_cores", lambda: 3)
    threads = torch.get_num_threads()

    def fail(_):
        raise ValueError(torch.get_num_threads())

    try:
        for count, left in ((1, 1), (2, 2), (3, 2), (5, 4)):
            torch.set_num_threads(count)
            with pytest.raises(ValueError, match=str(left)):
                sharing_module.sharing.run(fail, [], 1.0)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_the_worker_ends_when_idle_and_comes_back(worker, monkeypatch):
    monkeypatch.setattr(lanes, "IDLE_SECONDS", 0.2)
    _, entry, _ = hot(306, lambda x: (gt.sinh(x) * 7.5 + gt.tan(x)).sum(0))
    until(lambda: entry.tier == "compiled")
    pid = worker.pid
    until(lambda: worker.pid is None and not worker.serving)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    _, entry, _ = hot(307, lambda x: (gt.sinh(x) * 8.5 - gt.tan(x)).sum(0) * 2)
    until(lambda: entry.tier == "compiled")


PARENT = """
    import sys, time
    import gtrace as gt
    from gtrace.core.runtime.worker.client import worker
    x = gt.eval(gt.linspace(-1, 1, 77))
    for _ in range(5):
        float((gt.sinh(x) * 2 + gt.cosh(x)).sum())
    while worker.pid is None:
        time.sleep(0.01)
    print(worker.pid, flush=True)
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_the_worker_ends_with_its_parent(tmp_path, how):
    parent = python(PARENT, tmp_path, 60 if how == "kill" else 2, GT_HOTPATH_THRESHOLD="2")
    pid = int(parent.stdout.readline())
    time.sleep(2.0)  # in the middle of a compile
    if how == "kill":
        parent.kill()
    parent.wait(30)
    assert parent.stderr.read() == ""
    parent.stdout.close()
    parent.stderr.close()

    def gone():
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:  # nobody may have waited for it yet
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    until(gone, 20)


@pytest.mark.slow
def test_the_worker_imports_nothing_from_its_working_directory(worker, tmp_path, monkeypatch):
    worker.end()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("attrs", "numpy", "torch", "gtrace"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of somebody else')")
    got = []
    worker.submit(UNIT, got.append, WAIT)
    assert worker.wait(WAIT)
    assert got[0].path is not None, got[0].error
    assert os.path.samefile(f"/proc/{worker.pid}/cwd", "/"), "search paths for libraries may name it"


def test_the_compiler_takes_no_header_from_the_working_directory(tmp_path, monkeypatch):
    """An empty entry of a search path, as in CPATH=$CPATH:/usr/local/include, names the working directory."""
    (tmp_path / "planted").mkdir()
    for name in ("cmath", "cstdint", "math.h"):
        (tmp_path / "planted" / name).write_text("#error a header of somebody else")
    monkeypatch.chdir(tmp_path / "planted")
    monkeypatch.setenv("CPATH", os.pathsep)
    assert library.build(parse_graph(SINE), tmp_path).exists()


@pytest.mark.slow
def test_a_fork_does_not_use_its_parents_worker(worker):
    _, entry, _ = hot(308, lambda x: (gt.sinh(x) * 9.5 + gt.arctan(x)).sum(0))
    until(lambda: entry.tier == "compiled")
    child = os.fork()
    if child == 0:
        os._exit(int(worker.pid is not None or worker.pending != 0))
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_results_are_neither_inputs_nor_overwritten(worker):
    def function(x):
        return gt.eval({"view": gt.permute_dims(gt.sinh(x) * 0 + x), "plain": gt.cosh(x) * 10.5, "input": x.T})

    x = gt.eval(gt.ones((5, 31)))
    for _ in range(3):
        function(x)
    assert worker.wait(WAIT)
    for _ in range(45):  # until it takes no more turns with the interpreter
        first = function(x)
    kept = {k: np.array(v) for k, v in first.items()}
    assert not any(np.shares_memory(np.asarray(x), np.asarray(v)) for v in first.values())
    for k in range(5):
        function(gt.eval(x * k))
    for name, value in first.items():
        np.testing.assert_array_equal(np.asarray(value), kept[name])


# -- verdicts that last


@pytest.mark.slow
def test_a_demotion_is_remembered(worker, monkeypatch):
    def slow(executable):
        def run(tensors):
            time.sleep(0.005)
            return executable.run(tensors)

        return attrs.evolve(executable, run=run)

    real = artifact_caches.load
    monkeypatch.setattr(artifact_caches, "load", lambda *args: slow(real(*args)))
    run, entry, _ = hot(309, lambda x: (gt.sinh(x) * 11.5 + gt.arcsinh(x)).sum(0))
    until(lambda: entry.tier == "compiled")
    for _ in range(45):
        run()
    assert entry.tier == "demoted"
    monkeypatch.undo()
    again, _ = fresh_engine(entry)
    (copy,) = again.programs.values()
    assert copy.tier == "demoted" and "slower in an earlier run" in copy.forms.reason
    patient = type(engine)()  # as of a call of a jitted function that waits to the end
    (other,) = patient.prepare(entry.graph, entry.key.strides).programs
    patient.compile_all([other], math.inf)
    assert other.tier == "demoted" and patient.tiering.compiles == 0


@pytest.mark.slow
def test_an_audit_finds_a_wrong_program(worker):
    run, entry, expected = hot(310, lambda x: (gt.sinh(x) * 12.5 + gt.log1p(x * x)).sum(0))
    until(lambda: entry.tier == "compiled")
    with gt.config(audit=1.0):
        assert_close(run(), expected, check_dtype=False)
        assert entry.tier == "compiled", "a right program passes"
        right = entry.forms.executable
        wrong = attrs.evolve(right, run=lambda tensors: [t * 1.01 for t in right.run(tensors)])
        entry.forms.change(FormEvent.FASTER)
        entry.forms.executable = entry.forms.compiled = wrong
        with pytest.warns(gt.AuditWarning, match="was compiled into a wrong one"):
            np.testing.assert_array_equal(run(), expected)
        np.testing.assert_array_equal(run(), expected)
    assert entry.tier == "demoted" and "audit" in entry.forms.reason
    again, _ = fresh_engine(entry)
    (copy,) = again.programs.values()
    assert copy.tier == "demoted" and "wrong in an earlier run" in copy.forms.reason


# -- guards


def test_conditions_say_what_sympy_does():
    import sympy
    from torch.utils._sympy.functions import CeilDiv, FloorDiv, Mod, ModularIndexing, PythonMod

    a, b = sympy.symbols("a b", integer=True, positive=True)
    expressions = [
        a + 2 * b - 3, FloorDiv(a, b), CeilDiv(a, b), Mod(a, b), PythonMod(a, 7), ModularIndexing(a, 3, 5),
        sympy.Max(a, b), sympy.Min(a, b), a**2, sympy.Eq(a, b), sympy.Ne(a, b), a <= b, a < b, a >= b, a > 3,
        sympy.And(a > 1, b > 5), sympy.Or(a > 9, b > 9), sympy.Not(sympy.Eq(a, b)),
    ]  # fmt: skip
    for expression in expressions:
        condition = json.loads(json.dumps(portable(expression, {a: 0, b: 1})))
        for sizes in [(4, 6), (6, 6), (10, 3), (9, 2), (1, 12)]:
            expected = expression.xreplace({a: sympy.Integer(sizes[0]), b: sympy.Integer(sizes[1])})
            assert evaluate(condition, sizes) == expected, (expression, sizes)
    assert hold([["GreaterThan", ["size", 0], 2]], (2,)) and not hold([["GreaterThan", ["size", 0], 2]], (1,))
    with pytest.raises(ValueError, match="sin"):
        portable(sympy.sin(a) > 0, {a: 0})


@pytest.mark.slow
def test_a_unit_of_the_worker_gives_what_one_of_this_process_does(worker, tmp_path):
    x, y = torch.randn(4, 8), torch.randn(8)
    got = []
    cpu = torch.device("cpu")
    worker.submit(UNIT, lambda outcome: got.append((outcome, load(outcome.path, cpu, "worker").run([x, y]))), WAIT)
    assert worker.wait(WAIT)
    ((outcome, result),) = got
    assert outcome.seconds > 0 and not outcome.path.exists(), "what is not kept is removed"
    here, _ = compile_artifact(UNIT, tmp_path)
    assert_close(result[0], load(here, cpu, "process").run([x, y])[0])


# -- failures that say nothing of the program


def compiler_that_fails(tmp_path, monkeypatch, how):
    """A C++ compiler that answers questions and compiles nothing."""
    path = tmp_path / "g++"
    path.write_text(f'#!/bin/sh\ncase "$*" in *.cpp*|*.h*) {how};; esac\nexec g++ "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


KILLED = {
    "kill -9 $$": lambda x: (gt.cosh(gt.sinh(x)) * gt.tan(x)).sum(0),
    "echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1": lambda x: gt.tan(gt.sinh(x)).sum(0),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", KILLED)
def test_a_killed_compiler_is_not_remembered(worker, tmp_path, monkeypatch, how):
    worker.end()
    compiler_that_fails(tmp_path, monkeypatch, how)
    # in this process, which read CXX when it imported Inductor: a program that no earlier run left in Inductor's cache
    unit = changed(str(UNIT.graph), "add(%0, %1)", f"add(%0, {random.random()}:f32[]~)")
    with inductor_config.patch({"cpp.cxx": os.environ["CXX"]}), pytest.raises(gt.TransientCompileError):
        compile_artifact(unit, tmp_path)
    failed(KILLED[how], 500, lambda: None, "compiling .* failed", worker)
    assert artifacts.store.all() == []
    worker.end()


@pytest.mark.slow
def test_a_compiler_that_says_nothing_of_the_program_is_not_remembered(worker, tmp_path, monkeypatch):
    worker.end()
    compiler_that_fails(tmp_path, monkeypatch, "echo 'collect2: fatal error: cannot find ld' >&2; exit 1")
    failed(lambda x: gt.arctan(gt.sinh(x) - gt.tan(x)).sum(0), 530, lambda: None, "compiling .* failed", worker)
    assert artifacts.store.all() == []
    worker.end()


@pytest.mark.parametrize(
    "how", ["exit 0", 'g++ "$@" && for f in "$PWD"/*.loop; do truncate -s 9000 "$f"; done; exit 0']
)
def test_a_library_that_is_missing_or_cut_off_is_neither_loaded_nor_kept(tmp_path, monkeypatch, how):
    """The system ends a process that loads such a library."""
    compiler_that_fails(tmp_path, monkeypatch, how)
    cache = ArtifactCache()
    monkeypatch.setattr(cache, "store", Store(tmp_path / "store", 10**9))
    graph = parse_graph(SINE)
    request = CompileRequest(graph, ((1,),), native=True)
    with pytest.raises(gt.TransientCompileError, match=r"\.loop (is no whole library|cannot be read)"):
        cache.compile(request.name, request, Signature("s", "s"), ())
    assert cache.store.all() == []


def test_a_library_in_the_store_that_was_cut_off_is_not_loaded(tmp_path):
    path = library.build(parse_graph(SINE), tmp_path)
    whole = path.read_bytes()
    artifact_files.load(path, torch.device("cpu"), "process")
    for size in (0, 3, 63, 64, 4096, 9000, len(whole) // 2, len(whole) - 1):
        (tmp_path / f"{size}.loop").write_bytes(whole[:size])
        with pytest.raises(CacheError, match=r"no whole library|cannot be read"):
            artifact_files.load(tmp_path / f"{size}.loop", torch.device("cpu"), "process")


@pytest.mark.slow
def test_a_compiler_that_refuses_the_program_is_remembered(worker, tmp_path, monkeypatch):
    worker.end()
    compiler_that_fails(tmp_path, monkeypatch, "echo 'loop.cpp:3:5: error: expected ; before }' >&2; exit 1")
    entry = failed(lambda x: gt.arctan(gt.cosh(x) - gt.tan(x)).sum(0), 520, lambda: None, "compiling .* failed", worker)
    (manifest,) = artifacts.store.all()
    assert manifest.program == entry.signature.exact and manifest.verdict.kind is VerdictKind.FAILED
    worker.end()
    # an engine that has not seen it does not try again, until it is told to
    again, _ = fresh_engine(entry)
    (copy,) = again.programs.values()
    assert copy.tier == "failed" and f"gtrace cache retry {entry.signature}" in copy.forms.reason
    artifacts.store.remove(manifest.name)
    again, _ = fresh_engine(entry)
    (copy,) = again.programs.values()
    assert copy.tier == "interpreted"


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (FileNotFoundError(errno.ENOENT, "g++"), True),
        (PermissionError(errno.EACCES, "/tmp/folder"), True),
        (OSError(errno.EFBIG, "File too large"), True),
        (ModuleNotFoundError("No module named 'triton'"), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("can't register atexit after shutdown"), True),
        (subprocess.CalledProcessError(-9, "g++"), True),
        (subprocess.CalledProcessError(1, "g++"), True),
        (subprocess.CalledProcessError(1, "g++", b"g++: fatal error: cannot execute 'cc1plus': No such file"), True),
        (subprocess.CalledProcessError(1, "g++", b"p.cpp:1:10: fatal error: vector: No such file or directory"), True),
        (subprocess.CalledProcessError(1, "g++", "p.cpp:4:2: error: 'y' was not declared in this scope"), False),
        (subprocess.CalledProcessError(1, "g++", b"/usr/include/c++/13/cmath:45:5: error: expected ')'"), True),
        (subprocess.CalledProcessError(1, "g++", b"/inc/array:4:2: error: no\np.cpp:1:2:   required from here"), False),
        (subprocess.CalledProcessError(1, "g++", b"p.cpp:4: internal compiler error: in f, at g.cc:12"), False),
        (
            RuntimeError("C++ compile error\n\nOutput:\ncc1plus: out of memory allocating 65536 bytes"),
            True,
        ),
        (RuntimeError("terminate called after throwing an instance of 'std::bad_alloc'"), True),
        (RuntimeError("/usr/bin/ld: final link failed: No space left on device"), True),
        (RuntimeError("C++ compile error\n\nOutput:\nerror: expected ';' before '}' token"), False),
        (AssertionError("while lowering"), False),
    ],
)
def test_what_torch_raises_is_looked_into_for_its_cause(error, transient):
    expected = gt.TransientCompileError if transient else gt.CompileError
    for raised in (lambda e: e, lambda e: wrapped(e), lambda e: inner(e)):
        with pytest.raises(gt.CompileError) as caught, compiler_errors():
            raise raised(error)
        assert type(caught.value) is expected


def wrapped(error):
    try:
        raise ValueError("while compiling") from error
    except ValueError as made:
        return made


def inner(error):
    made = ValueError("while compiling")
    made.inner_exception = error
    return made
