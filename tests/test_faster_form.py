"""One rule decides which form of a program runs, in this process and the next: one that lost its trial is put away.

Compilers are planted that make slow code, of each kind. Three processes with one store run each program, undecorated, by
`gt.jit`, and by a `gt.jit` that waits, each of them first once. What they compiled, and what ran when all trials were over,
is compared with what the rule says.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("planted_compilers.py")
MODES = "undecorated", "jit", "wait"
NEVER = 1000.0
"""Seconds that Inductor seems to take, for programs that never earn it."""

KINDS = {
    "all are slow": {"slow": ["native", "inductor"]},
    "native code is slow": {"slow": ["native"]},
    "Inductor's code is slow": {"slow": ["inductor"], "native": False},
    "native code is slow and Inductor dear": {"slow": ["native"], "cost": NEVER},
    "nothing is slow": {"slow": []},
    "code for open sizes is slow": {"slow": ["open"], "native": False, "sizes": [64, 65, 66]},
    "code for open sizes is slow and Inductor dear": {
        "slow": ["open"], "native": False, "sizes": [64, 65, 66], "cost": NEVER,
    },
}  # fmt: skip
NAMES = list(KINDS)


def cases(shift, only=NAMES, **others):
    """Return the cases of a process; the modes of each have moved on by `shift` since the first process."""
    everything = itertools.product(NAMES, range(len(MODES)))
    return [
        {"number": number, "mode": MODES[(first + shift) % 3], "sizes": [64], "calls": 300, **KINDS[name], **others}
        for number, (name, first) in enumerate(everything)
        if name in only
    ]


def process(folder, asked, **given):
    """Run cases in a process of its own; return what it saw, by kind, and then by the mode of the first process."""
    environment = {**os.environ, "GT_BACKGROUND": "1", "GT_CACHE_DIR": str(folder), "GT_JIT_WAIT": "2"}
    command = [sys.executable, str(SCRIPT), json.dumps({"cases": asked, **given})]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    seen = json.loads(ended.stdout.splitlines()[-1])
    return {case["number"]: made for case, made in zip(asked, seen, strict=True)}


def of(name, seen):
    """Return what a process saw of one kind of program, for each mode of the first process."""
    number = NAMES.index(name) * len(MODES)
    return [seen[number + k] for k in range(len(MODES))]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store") / "programs"


@pytest.fixture(scope="module")
def processes(store):
    """What three processes saw, one after the other."""
    return [process(store, cases(shift)) for shift in range(3)]
