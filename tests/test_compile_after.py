"""A compile that is under way when its program ends: the worker finishes it for the next one, and leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import launch
import pytest

from gtrace.core.runtime.cache.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.inductor,
    pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc"),
]

COMPILER = """#!/bin/sh
for argument; do
    case "$argument" in -c|-shared) compiles=1 ;; esac
done
if [ -n "$compiles" ]; then
    echo $$ >> "{at}$FOR"
    while [ ! -e "{go}" ]; do sleep 0.05; done
fi
exec {compiler} "$@"
"""
"""A C++ compiler that waits for a file before it compiles."""

PROGRAM = """
    import json, os, signal, sys, time
    import gtrace as gt
    from gtrace.core.runtime.worker.client import worker
    at, end = sys.argv[1:3]
    x, y = gt.eval(gt.linspace(-1, 1, 77)), gt.eval(gt.linspace(-2, 2, 55))
    for _ in range(6):
        float((gt.sinh(x) * 2.75 + gt.cosh(x)).sum())
        if "two" in sys.argv:
            float((gt.tanh(y) * 1.25 - gt.arctan(y) + gt.exp(y)).max())
    print(json.dumps([p.tier for p in gt.stats() if len(p.ops) > 2]), flush=True)
    while end != "now" and not os.path.exists(at):
        time.sleep(0.01)
    if end.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, end))
    if end == "code":
        assert worker.wait(240)
        float((gt.sinh(x) * 2.75 + gt.cosh(x)).sum())
        print(json.dumps([p.tier for p in gt.stats() if len(p.ops) > 2]), flush=True)
    sys.exit(3 if end == "three" else 0)
"""


class Place:
    """Folders for a store and for temporary files, and a compiler that waits until it is told to go on."""

    def __init__(self, path):
        self.store, self.temporary = Store(path / "store", 10**9), path / "temporary"
        self.at, self.go, compiler = path / "at", path / "go", path / "g++"
        self.temporary.mkdir()
        found = shutil.which(os.environ.get("CXX", "g++"))
        compiler.write_text(COMPILER.format(at=self.at, go=self.go, compiler=found))
        compiler.chmod(0o700)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {
            "GT_CACHE_DIR": str(self.store.given), "GT_COMPILE_SHARE": "1", "GT_NATIVE": "0",
            "GT_HOTPATH_THRESHOLD": "2", "GT_COMPILE_AFTER": "200", "OMP_NUM_THREADS": "1", "CXX": str(compiler),
            "TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": str(path / "inductor"),
        }  # fmt: skip

    def run(self, end, *args, **settings):
        """Run the program to its end; returns what it printed, and what it ended with."""
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(self.at), end, *args]
        with launch.from_scratch():
            done = subprocess.run(
                command, env=self.environment | settings, capture_output=True, text=True, timeout=240, check=False
            )
        assert not done.stderr.strip() or done.returncode, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], done.returncode

    def kept(self):
        """What the store has code of, the first first."""
        return sorted((m for m in self.store.all() if m.code is not None), key=lambda m: m.created)

    def processes(self):
        """The processes that have this place in their environment, and have not ended."""
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file, open(f"/proc/{pid}/stat") as status:
                    mine = str(self.temporary).encode() in file.read()
                    if mine and status.read().rpartition(")")[2].split()[0] != "Z":
                        found.append(int(pid))
            except OSError:
                continue
        return found

    def files(self):
        """The folders of compiles that are left."""
        return [name for name in os.listdir(self.temporary) if name.startswith("gtrace-compile-")]


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    made.go.touch()
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(("end", "code"), [("three", 3), ("SIGTERM", -15)])
def test_the_next_process_starts_compiled(place, end, code):
    """The compiler waits for what is done after the program's end, so the program waited for nothing."""
    assert place.run(end) == ([["interpreted"]], code)
    assert place.processes() and not place.kept()
    place.go.touch()
    until(place.kept)
    until(lambda: not place.processes() and not place.files())
    before = place.at.read_text()
    assert place.run("now") == ([["compiled"]], 0)
    assert place.at.read_text() == before, "nothing was compiled again"


def test_signals_of_the_terminal_do_not_end_it(place):
    place.run("exit")
    compiler = int(place.at.read_text().split()[0])
    for number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(os.getpgid(compiler), number)
    place.go.touch()
    until(place.kept)
    assert place.kept()[0].verdict is None


def test_the_limit_is_obeyed(place):
    place.run("SIGKILL", GT_COMPILE_AFTER="3")
    start = time.monotonic()
    assert place.processes(), "it goes on"
    until(lambda: not place.processes() and not place.files(), 60)
    assert time.monotonic() - start > 1
    assert not place.kept()


def test_without_a_limit_it_ends_with_the_program(place):
    place.run("exit", GT_COMPILE_AFTER="0")
    until(lambda: not place.processes() and not place.files(), 30)
    assert not place.kept()


def test_a_worker_that_stands_still_goes_on(place):
    """As if it paused for the program when that was killed."""
    place.run("SIGKILL", GT_COMPILE_AFTER="5")
    group = os.getpgid(int(place.at.read_text().split()[0]))
    os.killpg(group, signal.SIGSTOP)
    until(lambda: not place.processes() and not place.files(), 90)
    assert not place.kept()


def test_the_next_process_waits_for_what_is_under_way(place):
    place.run("exit")
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(place.at), "code"]
    with launch.from_scratch():
        second = subprocess.Popen(command, env=place.environment | {"FOR": "2"}, stdout=subprocess.PIPE, text=True)
    assert json.loads(second.stdout.readline()) == ["interpreted"]
    time.sleep(2)
    place.go.touch()
    assert json.loads(second.stdout.readline()) == ["compiled"]
    assert second.wait(60) == 0
    second.stdout.close()
    until(lambda: not place.processes() and not place.files())
    (kept,) = place.kept()
    assert kept.code is not None
    assert not place.at.with_name("at2").exists(), "it compiled nothing itself"


def test_what_waits_is_compiled_afterwards(place):
    assert place.run("exit", "two") == ([["interpreted", "interpreted"]], 0)
    place.go.touch()
    until(lambda: len(place.kept()) == 2)
    until(lambda: not place.processes() and not place.files())
    assert place.run("now", "two")[0] == [["compiled", "compiled"]]


def test_a_store_that_was_removed_does_not_come_back(place):
    place.run("exit")
    shutil.rmtree(place.store.given)
    place.go.touch()
    until(lambda: not place.processes() and not place.files())
    assert not place.store.given.exists()
