"""Whole programs of tests/ports, under gtrace and under JAX, in fresh processes; the import is the only difference.

    python benchmarks/programs.py [--quick] [--program NAME ...] [--rounds 3] [--repeats 10] [--json FILE]

Each run is a process of its own that imports the program, calls its main function, and calls it `--repeats` times more.
It reports the seconds of the first call, of a later one (the median), of all with the import of gtrace and torch, or of
JAX, and the most memory.
"cold" runs begin with empty caches of compiled code, "warm" ones with those of the run before. A side that jits runs
the program under `jax.jit` where it asks for it. Results are compared with those that are stored for the tests.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring.machine import installed
from measuring.processes import age, child, held
from measuring.results import BenchmarkError, Figure, parser, report, rounds

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "ports"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
SIDES = ("gtrace", "gt.jit", "jax", "jax.jit")
QUICK_PROGRAM = "kalman"
MEASURED = {"first call": "first", "later call": "later", "process, import to end": "total"}
"""The figures of a run, by what the tables call them."""


def same(program: str, results: Any, jax: Any) -> bool:
    """Whether results are those that are stored, as the tests compare them."""
    stored = json.loads((ROOT / "tests" / "data" / "jax_ports.json").read_text(encoding="utf-8"))[program]
    for path, leaf in jax.tree_util.tree_flatten_with_path(results)[0]:
        expected = stored[jax.tree_util.keystr(path)]
        if isinstance(expected, str):
            if leaf != expected:
                return False
        elif not np.allclose(np.asarray(leaf).ravel(), expected["values"], rtol=2e-4, atol=2e-5):
            return False
    return True


def run_child(program: str, side: str, repeats: int) -> dict[str, Any]:
    """Run one program in this process; returns what was measured."""
    start = time.perf_counter()
    if side in ("gtrace", "gt.jit"):
        start -= age()  # this program has imported gtrace and torch already
        importlib.import_module("gtrace.jax").install()
    jax = importlib.import_module("jax")
    spec = importlib.util.spec_from_file_location(program, FOLDER / f"{program}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wrap: Callable[..., Any] = jax.jit if side.endswith("jit") else lambda f: f
    calls = []
    results: Any = None
    for _ in range(1 + repeats):
        began = time.perf_counter()
        results = module.main(wrap)
        for leaf in jax.tree_util.tree_leaves(results):
            np.asarray(leaf)
        calls.append(time.perf_counter() - began)
    return {
        "first": calls[0], "later": statistics.median(calls[1:] or calls), "total": time.perf_counter() - start,
        "peak": held("VmHWM"), "same": same(program, results, jax),
    }  # fmt: skip


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    sides = [side for side in SIDES if side.startswith("g") or installed("jax")]
    left_out = [] if len(sides) == len(SIDES) else ["left out: jax, because it is not installed"]
    repeats = 1 if options.quick else options.repeats
    figures = []
    for program in options.program or ([QUICK_PROGRAM] if options.quick else PROGRAMS):
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for _ in range(rounds(options)):
            for side in sides:
                with tempfile.TemporaryDirectory() as folder:
                    for caches in ("cold", "warm"):
                        row = child(__file__, (program, side, repeats), folder, JAX_PLATFORMS="cpu")
                        if not row["same"]:
                            raise BenchmarkError(f"{program}: {side} is wrong: its results are not those stored.")
                        found.setdefault((caches, side), []).append(row)
        for caches in ("cold", "warm"):
            for label, key in MEASURED.items():
                for side in sides:
                    runs = found[caches, side]
                    details = {"peak, bytes": statistics.median(row["peak"] for row in runs)}
                    samples = [row[key] for row in runs]
                    figures.append(Figure(f"{program}, {label}, {caches}", side, samples, details=details))
    return figures, left_out


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 3)
    options.add_argument("--program", choices=PROGRAMS, nargs="+", action="extend", help="only these")
    options.add_argument("--repeats", type=int, default=10, help="calls after the first one")
    options.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        program, side, repeats = given.child
        print(json.dumps(run_child(program, side, int(repeats))))
        return
    report("programs", given, measure)


if __name__ == "__main__":
    main()
