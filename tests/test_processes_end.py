"""Several processes end together: whatever happens to one of three, each other one raises an error that names it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

LIMIT = 6
"""Of GT_COLLECTIVE_TIMEOUT, in seconds."""

HEAD = """
import os, signal, sys, time
import gtrace as gt
from gtrace.sharding import *
rank = int(os.environ["RANK"])
{1}
x = gt.device_put(gt.ones(9), NamedSharding(make_mesh((-1,), "data"), P("data")))
assert float(x.sum()) == 9
started = time.monotonic()
try:
    {0}
    float((x * 2).sum())
except gt.DistributedError as error:
    print(time.monotonic() - started, flush=True)
    raise
"""


def ends(code, first="", **settings):
    """Return how each of three processes ends: its exit code, the last line of its error, and what it printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {
        "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
        "GT_COLLECTIVE_TIMEOUT": str(LIMIT), **settings,
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HEAD.format(code, first)], env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            text=True, stdout=-1, stderr=-1,
        )
        for rank in range(3)
    ]  # fmt: skip
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=120)
            errors = [line for line in err.splitlines() if "Error: " in line or line.endswith("KeyboardInterrupt")]
            found.append((process.returncode, errors[-1] if errors else "", out))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return found


ROWS = {
    "it raises": ("if rank == 1: raise ValueError('own')", "rank 1 has ended with ValueError: own (at <string>:11)"),
    "rank 0 raises": ("if rank == 0: raise KeyError('own')", "rank 0 has ended with KeyError: 'own' (at <string>:11)"),
    "Ctrl-C": (
        "if rank == 1: os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
        "rank 1 has ended with KeyboardInterrupt (at <string>:11)",
    ),
    "it is killed": ("if rank == 2: os.kill(os.getpid(), signal.SIGKILL)", "rank 2 has ended without a word"),
    "rank 0 is killed": (
        "if rank == 0: os.kill(os.getpid(), signal.SIGKILL)",
        "rank 0, which keeps the store, has ended",
    ),
    "it leaves": ("if rank == 1: sys.exit(0)", "rank 1 has come to its end"),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_others_name_it_at_once(row):
    code, words = ROWS[row]
    rank = int(words[5])
    for other, (status, error, out) in enumerate(ends(code)):
        if other != rank:
            assert status == 1 and words in error and "DistributedError: [workers]" in error, (other, status, error)
            assert float(out) < LIMIT, "no limit is waited for"


def test_a_slow_process_is_named_when_the_limit_has_passed():
    first, slow, third = ends(f"time.sleep({LIMIT + 6} * (rank == 1))")
    for status, error, out in (first, third):
        assert status == 1 and f"rank 1 has not come within {LIMIT} s" in error, error
        assert LIMIT - 1 < float(out) < LIMIT + 5
    assert slow[0] == 1 and "DistributedError: [workers]" in slow[1]


def test_a_save_of_one_process_alone_is_named_with_its_line(tmp_path):
    code = f"if rank == 0: gt.save_checkpoint({str(tmp_path / 'run')!r}, {{'x': x}}, step=1)"
    for status, error, out in ends(code):
        assert status == 1 and "rank 0 waits in a save at <string>:11" in error, error
        assert "waits in a program at <string>:12" in error, error
        assert float(out) < LIMIT + 5
    assert not list(tmp_path.glob("run/step*"))


AGREE = """
def differs(call, *words):
    try:
        call()
    except gt.DivergenceError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError("not refused")
import attrs, numpy
import gtrace.core.runtime.sharded as sharded
one = rank == 1
differs(lambda: float(gt.sinh(x + one).sum() if one else gt.sinh(x).sum()), "at rank 1 than at rank 0")
differs(lambda: float(gt.sum(x[: 8 - one])), "at rank 1 than at rank 0", "8", "7")
differs(lambda: float((x.astype("float64") if one else x).sum()), "at rank 1 than at rank 0")
differs(lambda: float(x.sum()) if rank == 0 else float(gt.tanh(x).sum()), "at rank 1 than at rank 0")
with gt.config(deterministic=one):
    differs(lambda: float(gt.sin(x).sum()), "GT_DETERMINISTIC", "True at rank 1 and False at rank 0")
divided = sharded._divided
def other(graph):
    made = divided(graph)
    return attrs.evolve(made, transfers=made.transfers * 2)
if one:
    sharded._divided = other
differs(lambda: float(gt.cos(x).sum()), "same collectives, got Transfer(", "and none at rank 0", "GT_CACHE_DIR")
sharded._divided = divided
known = sharded.toolchain
if one:
    sharded.toolchain = lambda: known() | {"gtrace": "0.0"}
differs(lambda: float(gt.exp(x).sum()), "the same gtrace", "0.0 at rank 1")
sharded.toolchain = known
if os.fork() == 0:
    try:
        float(gt.tan(x).sum())
    except gt.DistributedError as error:
        sys.exit("a fork" not in str(error))
    sys.exit(2)
assert os.wait()[1] == 0
assert float(gt.abs(x).sum()) == 9
print("agreed")
"""


def test_programs_settings_and_divisions_that_differ_are_named_and_the_processes_go_on():
    """A fork that leaves by sys.exit ends too: torch's groups would wait there for threads that it has not."""
    code = "pass\n" + "".join(f"    {line}\n" for line in AGREE.strip().splitlines())
    started = time.monotonic()
    for status, error, out in ends(code):
        assert status == 0 and out == "agreed\n", error
    assert time.monotonic() - started < 100


def test_a_process_that_never_joins():
    for rank, (status, error, _) in enumerate(ends("pass", "if rank == 2: os._exit(0)")):
        if rank != 2:
            assert status == 1 and "DistributedError: [workers] expected the other processes to answer" in error, error
