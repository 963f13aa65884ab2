"""The digits example learns, and its losses are the same however it runs, and the same as in plain torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gtrace.testing import assert_close

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PREFIX = 20
# rounding errors do not grow here (measured: 40 roundings), so this can be below the 1e-4 that a user may count on,
# and tell a slightly wrong derivative from rounding
STEPS = 250


def train(folder, script: str, *args: str, **settings: str) -> tuple[np.ndarray, str]:
    """Run an example in a process of its own; returns its losses and what it printed."""
    losses = folder / f"{script}-{'-'.join([*args, *settings, *settings.values()])}.json"
    env = {name: value for name, value in os.environ.items() if not name.startswith("GT_")} | {"GT_COMPILE_AFTER": "0"}
    env |= {"OMP_NUM_THREADS": "1", "GT_COMPILE_SHARE": "1", "GT_CACHE_DIR": str(folder / "programs"), **settings}
    command = [sys.executable, "-W", "error::UserWarning", str(EXAMPLES / script), "--losses", str(losses), *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(losses.read_text(encoding="utf-8"))), done.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The whole default run, under the default settings."""
    return train(tmp_path_factory.mktemp("whole"), "train_digits.py")


@pytest.mark.slow
def test_the_default_run_learns(whole):
    losses, printed = whole
    accuracy = float(re.findall(r"test accuracy (\d\.\d+)", printed)[-1])
    assert accuracy >= 0.97
    assert losses[-1] < losses[0] / 50


@pytest.mark.slow
def test_the_run_agrees_with_plain_torch(whole, tmp_path, large):
    """--large: to the end, where the accuracies are equal too."""
    twin, printed = train(tmp_path, "train_digits_torch.py", *([] if large else ["--epochs", "60"]))
    assert_close(np.float32(whole[0][: len(twin)]), np.float32(twin), steps=STEPS, scale=twin)
    if large:
        assert printed.splitlines()[-1].split()[-1] == whole[1].splitlines()[-1].split()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"GT_AUTO_COMPILE": "0"}, {"GT_AUTO_COMPILE": "1", "GT_HOTPATH_THRESHOLD": "100"}, {"GT_COMPILE": "1"}],
    ids=["interpreted", "compiled on the way", "compiled at once"],
)
def test_losses_do_not_depend_on_how_it_runs(whole, tmp_path, settings):
    losses, _ = train(tmp_path, "train_digits.py", "--epochs", str(PREFIX), **settings)
    assert_close(np.float32(losses), np.float32(whole[0][:PREFIX]), steps=STEPS, scale=losses)
