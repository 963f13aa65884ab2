"""Runs the core of the tests with the versions of this environment, and prints a row of docs/support.md.

`make compat TORCH=2.15.0 PYTHON=python3.12` runs it. It is no test.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parent

CORE = "arrays jit transforms vmap short_programs images optim modules torch_functions torch_internals launcher".split()

RUNS = {"as it is": {}, "by Inductor": {"GT_NATIVE": "0"}}
"""By name: what the environment says."""


def run(name: str, variables: dict[str, str]) -> str:
    """Run the core once; returns what pytest counted."""
    files = [str(TESTS / f"test_{one}.py") for one in CORE]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    counted = re.findall(r"\d+ (?:passed|failed|errors?)\b", done.stdout.strip().rpartition("\n")[2])
    return f"{name}: {', '.join(counted) or f'pytest ended with {done.returncode}'}"


def main() -> int:
    found = [run(name, variables) for name, variables in RUNS.items()]
    build = f"CUDA {torch.version.cuda}, without a GPU" if torch.version.cuda else "CPU"
    fields = (
        f"{torch.__version__.partition('+')[0]} ({build})", platform.python_version(),
        f"{platform.system()} {platform.machine()}".replace("_", "-"), datetime.date.today().isoformat(),
        "; ".join(found),
    )  # fmt: skip
    print(f"| {' | '.join(fields)} |")
    return int(any("passed" not in one or "failed" in one or "error" in one for one in found))


if __name__ == "__main__":
    sys.exit(main())
