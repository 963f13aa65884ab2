"""One bad moment is not for ever: no thread or process, an interrupt, a loud compiler, a file that is none."""

from __future__ import annotations

import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import gtrace as gt
from gtrace.core.base.process_groups import MOST_OUTPUT, finish, start_group
from gtrace.core.runtime.cache.manifest import Manifest
from gtrace.core.runtime.cache.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")

ROOT = Path(gt.__file__).parent

PLACE = re.compile(
    r"\bstart_thread\(|\bstart_timer\(|threading\.(?:Thread|Timer|Lock|Condition|Event|Semaphore)\b\(|\bPopen\(|"
    r"subprocess\.run\(|\bstart_group\(|FileLock\(|queue\.\w*Queue\(|\.wait\(|\.wait_for\(|thread\.join\(|_jobs\.get\(|"
    r"\.communicate\(|\.accept\(|\.recv\(|selector\.select\(|\.acquire\(|LOCK_EX\b|running\.result\(|future\.result\(|"
    r"socket\.socket\(|os\.fork\("
)

PLACES = {
    # what starts threads and processes, and who owns them
    "core/base/threads.py": "start_thread and start_timer return None if there is no thread",
    "core/base/process_groups.py": "each compiler has a limit, a guard that ends it, and END_SECONDS after SIGKILL",
    "core/base/locks.py": "free in a fork; whoever waits says how long",
    "core/base/workspace.py": "locks of files that this process has just made, or without waiting",
    "core/backends/native/library.py": "compile_timeout",
    "core/backends/inductor/time_limit.py": "compile_timeout",
    "core/backends/inductor/instructions.py": "compile_timeout",
    "core/backends/inductor/launcher.py": "a lock of files, of a process that precompiles a header with a limit",
    "core/partitioner/processes.py": "the time limit of the process group",
    "core/runtime/asked.py": "jit_wait; the lanes fail requests that no thread can serve",
    "core/runtime/cache/store.py": "LOCK_SECONDS",
    "core/runtime/tier_controller.py": "the ledger counts calls, nobody waits",
    "core/runtime/worker/client.py": "the limit of the caller, compile_timeout, or the end of this process",
    "core/runtime/worker/lane.py": "IDLE_SECONDS, STOP_SECONDS; a request without a thread fails",
    "core/runtime/worker/afterwards.py": "the guard ends a worker that waits for the lock of its folder",
    "core/runtime/worker/server.py": "the worker ends with its input; its program sees it end if it has no thread",
    "saving/checkpoint.py": "the writing thread, or this one; a fork waits for nothing of its parent",
    "saving/files.py": "LOCK_SECONDS",
    "observe/progress.py": "drawing threads; the line is missing without them",
    "observe/status.py": "a thread at a socket; a warning without it",
    # commands that wait for a program of the user, who can end it
    "commands/bench.py": "the program", "commands/bisect.py": "the program", "commands/launch.py": "the launcher",
    "commands/trace.py": "the launcher; without a timer the log ends by its own times",
    "commands/warmup.py": "each compile has its limit", "commands/doctor.py": "compile_timeout",
    "commands/machine_facts.py": "ASK_SECONDS", "commands/top.py": "PATIENCE",
}  # fmt: skip
"""Each file that waits for something or starts something, and why it does so for a while only.

Whoever adds a file says here who is alive to end the wait, and what limit or error it has.
"""


def test_every_place_that_waits_or_starts_something_is_known():
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if any(PLACE.search(line.partition("#")[0]) for line in path.read_text().splitlines() if ">>>" not in line)
    }
    assert found == set(PLACES)


def test_threads_and_plain_locks_are_made_in_one_place():
    """`start_thread` may find none, `new_lock` is free in a fork; the others begin anew in a fork themselves."""
    made = collections.Counter(
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"threading\.(Thread|Timer|R?Lock|Condition)\(", line)
    )
    assert made == {
        "core/base/threads.py": 2, "core/base/locks.py": 1,
        "core/runtime/worker/client.py": 2, "core/runtime/worker/pauses.py": 1, "core/runtime/worker/server.py": 1,
        "saving/checkpoint.py": 1,
    }  # fmt: skip


def run(code, tmp_path, seconds=120, **environment):
    """Run a program with a store and a worker of its own; return what it prints."""
    env = {**os.environ, "GT_CACHE_DIR": str(tmp_path / "store"), "OMP_NUM_THREADS": "1", "GT_BACKGROUND": "1"}
    env |= environment
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("error", ["RuntimeError", "KeyboardInterrupt"])
def test_a_moment_without_threads_or_an_interrupt_at_their_start_is_not_for_ever(tmp_path, error):
    printed = run(
        f"""
        import os, threading
        import gtrace as gt
        x, start = gt.eval(gt.ones(50)), threading.Thread.start

        def refused(thread):
            raise {error}("can't start new thread")

        def attempt(function):
            try:
                return function()
            except (gt.GtraceError, KeyboardInterrupt):
                pass

        threading.Thread.start = refused
        attempt(lambda: print(float(gt.jit(lambda v: gt.sin(v) * 2 - v)(x)[0]) if {error} is RuntimeError else 0))
        attempt(lambda: gt.save_checkpoint("run", {{"x": x}}, step=1, wait=False))
        attempt(lambda: gt.save_checkpoint("run", {{"x": x}}, step=2))
        attempt(lambda: gt.config.update(status=True))
        threading.Thread.start = start
        later = gt.jit(lambda v: gt.cos(v) * 3 - v, wait=60)
        later(x)
        print([p.tier for p in later.programs()], gt.latest_step("run"))
        gt.save_checkpoint("run", {{"x": x}}, step=3, wait=False)
        print(gt.latest_step("run"), gt.load_checkpoint("run")[1])
        """,
        tmp_path,
    ).splitlines()
    assert printed[-1] == "3 3"
    assert printed[-2] == ("['compiled'] 2" if error == "RuntimeError" else "['compiled'] None")


@pytest.mark.slow
def test_a_moment_without_processes_is_not_for_ever(tmp_path):
    printed = run(
        """
        import subprocess
        import gtrace as gt
        x, begin = gt.eval(gt.ones(50)), subprocess.Popen.__init__

        def refused(*args, **kwargs):
            raise BlockingIOError(11, "Resource temporarily unavailable")

        subprocess.Popen.__init__ = refused
        print(float(gt.jit(lambda v: gt.sin(v) * 0 + v, wait=20)(x)[0]))
        subprocess.Popen.__init__ = begin
        later = gt.jit(lambda v: gt.cos(v) * 3 - v, wait=60)
        later(x)
        print([p.tier for p in later.programs()])
        """,
        tmp_path,
    )
    assert printed.splitlines() == ["1.0", "['compiled']"]


@pytest.mark.slow
def test_a_fork_waits_for_no_checkpoint_of_its_parent(tmp_path):
    printed = run(
        """
        import os, threading
        import gtrace as gt
        from gtrace.saving import checkpoint
        x, go, finish = gt.eval(gt.ones(5)), threading.Event(), checkpoint._finish
        checkpoint._finish = lambda *args: (go.wait(60), finish(*args))[1]
        saved = gt.save_checkpoint("run", {"x": x}, step=1, wait=False)
        child = os.fork()
        if not child:
            checkpoint._finish = finish
            assert gt.latest_step("other") is None
            gt.save_checkpoint("other", {"x": x}, step=5)
            os._exit(gt.latest_step("other") != 5)
        print(os.waitpid(child, 0)[1])
        go.set()
        print(saved.result().name)
        """,
        tmp_path,
    )
    assert printed.splitlines()[0] == "0"


@pytest.mark.slow
def test_ctrl_c_in_the_first_deterministic_block_leaves_torch_whole_and_its_settings_as_they_were(tmp_path):
    code = """
        import os, signal, sys, threading, time
        import torch
        import gtrace as gt
        torch.set_default_dtype(torch.float64)
        x = gt.eval(gt.ones((3, 4)))

        def interrupt():
            while "sympy" not in sys.modules:
                time.sleep(0.0005)
            time.sleep({})
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        try:
            with gt.config(deterministic=True):
                gt.eval(gt.sin(x) + 1)
            time.sleep(100)
        except KeyboardInterrupt:
            print("interrupted")
        print(torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())
        with gt.config(deterministic=True):
            gt.eval(gt.cos(x) + 1)
    """
    for seconds in (0.05, 0.2, 0.35):
        assert run(code.format(seconds), tmp_path).split() == ["interrupted", "torch.float64", "False"]


@pytest.mark.slow
def test_a_compiler_is_ended_whether_it_writes_closes_its_output_or_is_silent():
    for command in ("yes error", "exec >&- 2>&-; sleep 60", "sleep 60"):
        begin = time.monotonic()
        assert finish(start_group(["sh", "-c", command]), 0.5) is None
        assert time.monotonic() - begin < 10
    code, output = finish(start_group(["sh", "-c", "yes | head -c 9000000; exit 3"]), 60)
    assert code == 3 and len(output) < MOST_OUTPUT + (1 << 16)


@pytest.mark.slow
def test_a_worker_that_reads_nothing_is_ended(tmp_path):
    """A request that is larger than a pipe."""
    printed = run(
        """
        import subprocess
        import gtrace as gt
        from gtrace.core.runtime.worker import client
        x, begin, servers = gt.eval(gt.ones(5)), subprocess.Popen.__init__, []

        def deaf(self, command, *args, **kwargs):
            server = "gtrace.core.runtime.worker.server" in command
            begin(self, ["sleep", "1000"] if server else command, *args, **kwargs)
            servers.extend([self] * server)

        def long(v):
            for k in range(2000):
                v = gt.sin(v) * (k + 0.5)
            return v

        subprocess.Popen.__init__ = deaf
        gt.jit(long, wait=300)(x)
        print(client.worker.pending, servers[0].poll())
        """,
        tmp_path, GT_COMPILE_TIMEOUT="2", GT_NATIVE="0",
    )  # fmt: skip
    assert printed.split() == ["0", "-9"]


SIGNALS = "import sys; from gtrace.distributed.signals import load_config; load_config(sys.argv[1])"
LOG = "import sys, gtrace as gt; gt.config.update(instruction_log=sys.argv[1]); gt.eval(gt.ones(3) + 1)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "command", "said"),
    [
        ("pipe", ["-c", SIGNALS], "ConfigError: .*it is not a plain file"),
        ("/dev/zero", ["-c", SIGNALS], "ConfigError: .*it is not a plain file"),
        ("pipe", ["-m", "gtrace", "visualize", "--output", "o.json"], "gtrace visualize: .*it is not a plain file"),
        ("/dev/zero", ["-m", "gtrace", "visualize", "--output", "o.json"], "gtrace visualize: .*not a plain file"),
        ("pipe", ["-c", LOG], "ConfigError: .*nobody reads this pipe"),
    ],
)
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_refused_at_once(tmp_path, path, command, said):
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-W", "ignore", *command, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode and re.search(said, done.stderr), done.stderr[-2000:]


@pytest.mark.slow
def test_a_log_goes_to_a_pipe_that_is_read_and_ends_when_nobody_reads_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    x = gt.eval(gt.ones(3))
    with gt.config(instruction_log=str(tmp_path / "pipe"), auto_compile=False):
        assert float((x + 1)[0]) == 2.0
        assert b"RECORD" in os.read(reader, 1 << 16)
        with pytest.warns(gt.ConfigWarning, match="ended early"):
            for k in range(3000):  # more than a pipe holds
                y = x + k
                assert float(y[0]) == 1.0 + k
    os.close(reader)


@pytest.mark.slow
def test_names_that_are_no_text_end_no_program(tmp_path):
    script = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")
    with open(script, "w") as file:
        file.write("import gtrace as gt\nprint(float(gt.eval(gt.ones(3) + 1)[0]))\n")
    log = os.fsdecode(os.fsencode(tmp_path) + b"/\xfe.log")
    env = os.environ | {"GT_INSTRUCTION_LOG": log, "GT_MECHANISM_LOG": "/dev/full"}
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, env=env)
    assert done.stdout == "2.0\n", done.stderr
    for suffix in (".html", ".json", ".svg"):
        output = log + suffix
        command = [sys.executable, "-m", "gtrace", "visualize", log, "--output", output]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and os.path.exists(output), done.stderr[-2000:]


@pytest.mark.slow
def test_a_program_that_is_larger_than_the_store_is_run_and_not_kept(tmp_path):
    printed = run(
        """
        import gtrace as gt
        f = gt.jit(lambda v: gt.cos(v) * 3 - v, wait=60)
        f(gt.eval(gt.ones(50)))
        print([p.tier for p in f.programs()])
        """,
        tmp_path, GT_CACHE_SIZE="2000",
    )  # fmt: skip
    assert printed.split() == ["['compiled']"]
    store = Store(tmp_path / "store", 2000)
    assert all(manifest.code is None and isinstance(manifest, Manifest) for manifest in store.all())


@pytest.mark.slow
def test_a_server_that_is_stopped_leaves_no_folder(tmp_path):
    place = tmp_path / "temporary"
    place.mkdir()
    code = "import gtrace as gt; gt.export(lambda a: gt.sin(a) @ a, gt.ones((4, 4))).save('a.gtx')"
    run(code, tmp_path, TMPDIR=str(place))
    shutil.rmtree(place)
    place.mkdir()
    serve = "import time, gtrace as gt; f = gt.load('a.gtx'); gt.eval(f(gt.ones((4, 4)))); print(1, flush=True)"
    command = [sys.executable, "-c", f"{serve}; time.sleep(100)"]
    for _ in range(2):
        environment = os.environ | {"TMPDIR": str(place)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as server:
            assert server.stdout.readline() == b"1\n"
            server.send_signal(signal.SIGTERM)
    assert [path.name for path in place.iterdir() if "gtrace-" in path.name or "aot" in path.name] == []
