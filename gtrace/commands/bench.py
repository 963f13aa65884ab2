"""``gtrace bench ARGS``: the program ``benchmarks/run.py`` of a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import gtrace


def bench(args: Sequence[str]) -> int:
    """Run the program with these arguments; return its exit code, or 2 if it is not there."""
    package = Path(gtrace.__file__).resolve().parent
    program = package.parent / "benchmarks" / "run.py"
    if not program.exists():
        print(
            f"gtrace bench: expected the folder benchmarks/ beside the package ({package}), found none: it is not part"
            " of the wheel. Install a checkout with `pip install -e '.[bench]'`.",
            file=sys.stderr,
        )
        return 2
    path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run([sys.executable, str(program), *args], env=os.environ | {"PYTHONPATH": path}).returncode
