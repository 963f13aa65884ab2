"""More than one process: forked, spawned, interrupted; and other numbers of threads in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import launch
import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.inductor.failures import compiler_errors
from gtrace.core.base.torch_internals import COMPILE_EVENTS
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.worker import client as clients
from gtrace.testing import assert_close

pytestmark = pytest.mark.inductor


def start(code, cache, *args, **settings):
    """Start a script with a store of its own, in a process group of its own, as a terminal would."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {"GT_COMPILE_AFTER": "0"}
    env |= {
        "GT_CACHE_DIR": str(cache),
        "GT_HOTPATH_THRESHOLD": "2",
        "OMP_NUM_THREADS": "1",
        "GT_NATIVE": "0",
    } | settings
    env.setdefault("GT_COMPILE_SHARE", "1")
    env["PYTHONPATH"] = str(Path(gt.__file__).parents[1])  # for scripts in other folders
    command = [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )  # fmt: skip


def finish(process, code=0):
    try:
        out, err = process.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"it hangs: {out} {err}") from None
    assert process.returncode == code, (out, err)
    return out, err


def alive(group):
    """Whether a process of a group is running: one that has ended may still wait to be waited for."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, _, its_group = file.read().rsplit(")", 1)[1].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False


def until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


# -- multiprocessing


MAIN = """
    import json, multiprocessing, sys
    import numpy as np
    import gtrace as gt
    from gtrace.core.runtime.worker.client import worker

    def work(k):
        x = gt.eval(gt.linspace(0, 1, 50))
        for _ in range(4):
            total = float((gt.sinh(x) * 2 + gt.cosh(x)).sum())
        totals = gt.stats().totals
        return round(total, 3), totals.loaded, totals.compiles

    if __name__ == "__main__":
        first = work(0)
        assert worker.wait(400)
        context = multiprocessing.get_context(sys.argv[1])
        with context.Pool(2) as pool:
            pooled = pool.map(work, range(2), chunksize=1)
        one = context.Process(target=work, args=(0,))
        one.start()
        one.join(300)
        print(json.dumps([first, pooled, one.exitcode]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_of_multiprocessing_use_what_the_parent_compiled(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(MAIN))
    run = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    if method == "spawn":  # children import the script by its path
        run = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)"
    out, err = finish(start(run, tmp_path / "programs", script, method))
    assert err == ""
    first, pooled, exitcode = json.loads(out.splitlines()[-1])
    expected = round(float((np.sinh(np.linspace(0, 1, 50)) * 2 + np.cosh(np.linspace(0, 1, 50))).sum()), 3)
    assert exitcode == 0
    assert [abs(total - expected) < 0.01 for total, *_ in (first, *pooled)] == [True] * 3
    if method == "spawn":
        assert [rest for _, *rest in pooled] == [[1, 0]] * 2, "loaded from the store, compiled by nobody"


# -- forks


def test_a_fork_takes_no_lock_with_it(tmp_path):
    """Another thread is anywhere in the engine, the client or the store when the process forks."""
    with gt.config(background=True, cache_dir=str(tmp_path)):
        held, release = threading.Barrier(2, timeout=60), threading.Event()

        def hold():
            with engine.tiering.lock, clients.worker._lock, artifacts.store._lock:
                held.wait()
                release.wait()

        # in the order of a compile: the compiler's lock, then the others
        thread = threading.Thread(target=engine.tiering._compiler.run, args=[hold], kwargs={"wait": True})
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(120)  # ends it if it hangs
            code = 1
            try:
                x = gt.linspace(0, 1, 33)
                total = float((gt.sinh(x) * 2 + gt.cosh(x) - gt.tan(x)).sum())
                clients.worker.stop()
                artifacts.store.family("f" * 24)
                free = engine.tiering._compiler.run(lambda: None, wait=0)
                code = 0 if total > 0 and free else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        release.set()
        thread.join()
    assert status == 0


FORK = """
    import os, signal, sys, time
    import torch
    import gtrace as gt
    from gtrace.core.runtime.worker.client import worker

    x = gt.eval(gt.linspace(0, 1, int(sys.argv[1])))

    def run():
        return float((gt.sinh(x) * 2 + gt.cosh(x)).sum())

    def tier():
        return max((p for p in gt.stats() if "sinh" in p.ops), key=lambda p: p.calls).tier
"""


@pytest.mark.slow
def test_a_forked_child_with_fewer_threads_does_not_wait_for_those_of_its_parent(tmp_path):
    """As the workers of a DataLoader do: OpenMP has one thread in a fork, and waits for others for ever."""
    code = textwrap.dedent(FORK) + textwrap.dedent("""
        torch.set_num_threads(2)
        for _ in range(4):
            total = run()
            assert worker.wait(400)
        assert tier() == "compiled"
        child = os.fork()
        if child == 0:
            signal.alarm(120)
            torch.set_num_threads(1)
            os._exit(0 if abs(run() / total - 1) < 1e-3 else 1)
        print(os.waitpid(child, 0)[1])
    """)
    out, err = finish(start(code, tmp_path, 1_000_000))
    assert (out.split(), err) == (["0"], "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other OpenMP runtimes")
def test_forks_of_a_process_with_threads_of_openmp_use_one(tmp_path):
    """In torch's operations and in native loops."""
    code = textwrap.dedent("""
        import multiprocessing, os, signal
        import torch
        import gtrace as gt

        torch.set_num_threads(2)
        context = multiprocessing.get_context("fork")
        large, x = torch.ones(1000, 1000), gt.eval(gt.ones((128, 1024)))
        f = gt.jit(lambda x, n: gt.fori_loop(0, n, lambda i, c: gt.sin(c), x).sum(), wait=True)

        def child(_):
            signal.alarm(60)  # ends it if it hangs
            return torch.get_num_threads(), round(float(torch.tanh(large).sum())), round(float(f(x, gt.array(9))))

        expected = child(0)
        signal.alarm(0)
        with context.Pool(1) as pool:
            (got,) = pool.map_async(child, [0]).get(100)
        print(expected[0], got[0], got[1:] == expected[1:], torch.get_num_threads())
        pid = os.fork()
        if pid == 0:
            os._exit(child(0)[0])
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    out, err = finish(start(code, tmp_path))
    assert (out.splitlines(), err) == (["2 1 True 2", "1"], "")


@pytest.mark.slow
def test_a_fork_while_the_worker_compiles_asks_its_own(tmp_path):
    """And does not keep the parent's alive."""
    code = textwrap.dedent(FORK) + textwrap.dedent("""
        for _ in range(3):
            run()
        while worker.pid is None:
            time.sleep(0.01)
        assert worker.pending
        child = os.fork()
        if child == 0:
            for _ in range(3):
                run()
            print("child", int(worker.pending), flush=True)
            assert worker.wait(400)
            run()
            print(tier(), flush=True)
            worker.stop()
            time.sleep(60)
            os._exit(0)
        print("parent", worker.pid, flush=True)
        time.sleep(60)
    """)
    process = start(code, tmp_path, 90)
    said = [process.stdout.readline().split() for _ in range(2)]
    (group,) = [int(words[1]) for words in said if words[0] == "parent"]
    assert ["child", "1"] in said
    assert process.stdout.readline().split() == ["compiled"]
    process.kill()
    process.wait()
    until(lambda: not alive(group), 120)  # the child is still there
    os.killpg(process.pid, signal.SIGKILL)
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


# -- threads


@pytest.mark.slow
def test_code_for_another_number_of_threads_is_not_run():
    threads = torch.get_num_threads()
    x = gt.eval(gt.linspace(0, 1, 200_003))
    function = gt.jit(lambda x: gt.sinh(x) * 2 + gt.cosh(x) / 3)
    tiers = {}
    try:
        for count in (2, 1, 2, 1):
            torch.set_num_threads(count)
            got = np.asarray(function(x))
            assert_close(got, np.sinh(np.asarray(x)) * 2 + np.cosh(np.asarray(x)) / 3, check_dtype=False)
            signature = str(function.lower(x).route.program.signature)
            mine = [e for e in engine.programs.values() if str(e.signature) == signature]
            tiers[count] = {e.key.threads: (e.tier, e.ledger.calls) for e in mine}
    finally:
        torch.set_num_threads(threads)
    assert tiers[1] == {2: ("compiled", 2), 1: ("interpreted", 2)}, "each ran what is for its threads"


# -- Ctrl-C


INTERRUPTED = """
    import sys, time
    import gtrace as gt
    from gtrace.core.runtime.worker.client import worker

    x = gt.eval(gt.linspace(0, 1, 50))

    def run(n):
        return (gt.sinh(x) * n + gt.cosh(x)).sum()

    expected = float(run(3.0))
    try:
        print("compiling", flush=True)
        if sys.argv[1] == "background":
            for _ in range(4):
                float(run(3.0))
            pid = worker.pid
            time.sleep(60)
        else:
            print("in this process", flush=True)
            with gt.config(compile=True):
                lost = run(4.0)
                float(lost)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    if sys.argv[1] == "background":
        assert worker.wait(400)
        float(run(3.0))
        print([p.tier for p in gt.stats() if p.calls > 3], flush=True)
    else:
        assert abs(float(run(3.0)) - expected) < 1e-3
        assert float(lost) > expected
        with gt.config(compile=True):
            assert abs(float(run(3.0)) - expected) < 1e-3
    print("done")
"""


@pytest.mark.slow
def test_ctrl_c_does_not_reach_the_worker(tmp_path):
    process = start(INTERRUPTED, tmp_path, "background")
    assert process.stdout.readline() == "compiling\n"
    time.sleep(3)  # in the middle of a compile
    os.killpg(process.pid, signal.SIGINT)
    out, err = finish(process)
    assert (out.splitlines(), err) == (["interrupted", "['compiled']", "done"], "")


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.5, pytest.param(5.0, marks=pytest.mark.long)])
def test_ctrl_c_while_this_process_compiles_leaves_it_usable(tmp_path, after):
    process = start(INTERRUPTED, tmp_path, "here", GT_BACKGROUND="0", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cold"))
    assert [process.stdout.readline() for _ in range(2)] == ["compiling\n", "in this process\n"]
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    out, err = finish(process)
    assert (out.splitlines(), err) == (["interrupted", "done"], "")


@pytest.mark.slow
def test_ctrl_c_that_nobody_catches_ends_the_process_and_its_worker(tmp_path):
    code = """
        import time
        import gtrace as gt
        from gtrace.core.runtime.worker.client import worker
        x = gt.eval(gt.linspace(0, 1, 50))
        for _ in range(4):
            float((gt.sinh(x) * 2 + gt.cosh(x)).sum())
        while worker.pid is None:
            time.sleep(0.01)
        print(worker.pid, flush=True)
        time.sleep(60)
    """
    process = start(code, tmp_path)
    group = int(process.stdout.readline())
    time.sleep(3)
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, err = finish(process, -signal.SIGINT)
    assert time.monotonic() - begin < 60
    assert err.splitlines()[-1] == "KeyboardInterrupt" and err.count("Traceback") == 1
    until(lambda: not alive(group), 120)


def test_an_interrupted_event_of_torchs_compiler_is_not_said_to_overlap_the_next(caplog):
    events = COMPILE_EVENTS.get()()
    with pytest.raises(KeyboardInterrupt), compiler_errors():
        events.log_event_start("interrupted", time.time_ns(), {})
        raise KeyboardInterrupt
    events.log_event_start("next", time.time_ns(), {})
    events.log_event_end("next", time.time_ns(), {}, time.time_ns(), False)
    assert "overlapping" not in caplog.text and not events.get_stack()


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import torch"])
def test_collections_leave_out_what_imports_made_unless_the_program_came_first(before):
    code = f"{before}\nimport gc\nimport gtrace\nprint(gc.get_freeze_count() > 0, gc.isenabled())"
    with launch.from_scratch():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(not before), "True"]
