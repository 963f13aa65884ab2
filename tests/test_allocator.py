"""Freed memory is kept for the next call."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import launch
import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides by itself")

SCRIPT = """
import resource
import gtrace as gt
from gtrace.core.base.allocator import keep_freed_memory

x = gt.eval(gt.ones(12_000_000))  # 12,000 pages
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
with gt.config(auto_compile=False):
    for step in range(24):
        if step == 4:
            before = faults()
        float(gt.sum(gt.sin(x) * 2.0))
print(keep_freed_memory(), (faults() - before) // 20)
"""


def run(**environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env | environment, capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.slow
def test_a_step_takes_the_memory_that_the_last_one_freed():
    kept, faults = run()
    assert kept == "True" and faults < 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_what_the_environment_says_holds(name):
    assert run(**{name: "1048576"})[0] == "False"


@pytest.mark.slow
def test_what_concerns_the_whole_process_can_be_switched_off():
    assert run(GT_DISABLE="kept_memory")[0] == "False"
    code = "import gc; import gtrace; print(gc.isenabled(), gc.get_freeze_count() > 0)"
    for names, expected in (("frozen_imports", "True False\n"), ("", "True True\n")):
        command = [sys.executable, "-c", code]
        with launch.from_scratch():  # the others are forks, in which much is frozen
            done = subprocess.run(command, env=os.environ | {"GT_DISABLE": names}, capture_output=True, text=True)
        assert done.stdout == expected, done.stderr
