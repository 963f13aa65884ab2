"""Python without its lock: gtrace says so once, and writes over nothing that somebody else may have."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from gtrace.core.base import tensor_ownership

ROOT = Path(__file__).parents[1]

SCRIPT = """
import json, sys, warnings
sys._is_gil_enabled = lambda: False
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import gtrace as gt
    import gtrace.jax
    total = float((gt.arange(4) * 2).sum())
print(json.dumps([total, [[w.category.__name__, str(w.message)] for w in caught if "GIL" in str(w.message)]]))
"""


@pytest.mark.slow
def test_one_warning_says_what_is_not_safe():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    total, ((category, text),) = json.loads(done.stdout)
    assert total == 12 and category == "RuntimeWarning"
    assert "Use gtrace in one thread, or start Python with -X gil=1" in text


def test_counts_of_references_are_not_believed(monkeypatch):
    tensors = [torch.ones(3)]
    monkeypatch.setattr(tensor_ownership, "_counter", tensor_ownership._counter.__wrapped__)
    assert tensor_ownership.is_alone(tensors, 0)
    monkeypatch.setattr(tensor_ownership, "FREE_THREADED", True)
    assert not tensor_ownership.is_alone(tensors, 0)


def test_the_project_names_the_versions_that_were_run():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = (ROOT / "docs" / "support.md").read_text()
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert project["requires-python"] == ">=" + named[0]
    assert all(f" | {version}." in rows for version in named)
