"""One rule decides which form of a program runs, in this process and the next: one that lost its trial is put away.

Compilers are planted that make slow code, of each kind. Three processes with one store run each program undecorated, by
`gt.jit`, and by a `gt.jit` that waits. Each of these comes first once. What they compile, and what runs when trials are
over, is compared with what the rule says.
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
    "code for ever new sizes is slow": {
        "slow": ["open"], "native": False, "sizes": list(range(20, 100)), "calls": 1, "open": True,
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


# what is compiled in the first process, and what runs in the end
ONE_SIZE = {
    "all are slow": (["native", "inductor"], []),
    "native code is slow": (["native", "inductor"], ["inductor"]),
    "Inductor's code is slow": (["inductor"], []),
    "native code is slow and Inductor dear": (["native"], []),
    "nothing is slow": (["native"], ["native"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_SIZE)
def test_each_kind_of_compiler_is_asked_once_and_the_faster_form_runs(processes, name):
    compiled, winner = ONE_SIZE[name]
    for k, first in enumerate(MODES):
        seen = [of(name, process)[k] for process in processes]
        assert [one["compiled"] for one in seen] == [compiled, [], []], first
        assert [one["still"] for one in seen] == [winner] * 3, first
        assert [one["ran"] for one in seen[1:]] == [winner] * 2, f"{first}: the slow form is not even tried again"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_SIZE])
def test_code_for_open_sizes_is_tried_once(processes, name):
    for k, first in enumerate(MODES):
        if KINDS[name].get("open") and first == "wait":
            continue  # each size is called once, so no two calls can be compared
        compiled = False
        for process in processes:
            seen = of(name, process)[k]
            assert "open" not in seen["still"], first
            assert not compiled or "open" not in (*seen["ran"], *seen["compiled"]), first
            compiled = compiled or "open" in seen["compiled"]
        assert compiled, first


@pytest.mark.slow
def test_jit_does_not_buy_another_compile_after_code_for_open_sizes_lost(processes):
    name = "code for open sizes is slow and Inductor dear"
    for k, first in enumerate(MODES):
        compiled = [kind for process in processes for kind in of(name, process)[k]["compiled"]]
        assert compiled == ["inductor", "open"], first


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"machine": "another"}, {"version": "0.0.0"}, {"extra": 1}, {}])
def test_another_machine_version_or_program_has_a_trial_of_its_own(processes, store, change):
    name = "Inductor's code is slow"
    extra = {"extra": change["extra"]} if "extra" in change else {}
    seen = process(store, cases(0, [name], **extra), **change)
    for made in of(name, seen):
        assert made["compiled"] == (["inductor"] if change else [])
        assert made["ran"] == made["compiled"] and not made["still"]
