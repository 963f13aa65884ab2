"""docs/conformance.md says what the code does: some of its rows run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_page_of_torchs_own_tests_is_not_stale():
    pytest.importorskip("expecttest", reason="torch's samples need it")
    program = Path(__file__).with_name("conformance.py")
    # a process of its own: torch's modules for tests change torch's settings
    done = subprocess.run([sys.executable, str(program), "--verify", "8"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
