"""Whole programs of tests/ports, under gtrace and under JAX, in fresh processes; the import is the only difference.

    python benchmarks/programs.py [--program vae lstm] [--rounds 3] [--repeats 10] [--json FILE]

Each run is a process of its own that imports the program, calls its main function, and calls it `--repeats` times more.
It reports the seconds of the first call, of a later one (the median), of the process from start to end, and the most
memory. "cold" runs begin with empty caches of compiled code, "warm" ones with those of the run before. JAX runs the
program under `jax.jit` where it asks for it (`jitted`), and without (`plain`), as gtrace does; JAX's own cache of
compiled code is on. Results are compared with those that are stored for the tests.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "ports"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py"))
CONTESTANTS = ("gtrace plain", "gtrace jitted", "jax plain", "jax jitted")


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


def child(program: str, contestant: str, repeats: int) -> dict[str, Any]:
    """Run one program in this process; returns what was measured."""
    start = time.perf_counter()
    library, how = contestant.split()
    if library == "gtrace":
        importlib.import_module("gtrace.jax").install()
    jax = importlib.import_module("jax")
    if library == "jax":
        jax.config.update("jax_compilation_cache_dir", os.environ["PROGRAMS_JAX_CACHE"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    imported = time.perf_counter() - start
    spec = importlib.util.spec_from_file_location(program, FOLDER / f"{program}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wrap: Callable[..., Any] = jax.jit if how == "jitted" else lambda f: f
    calls = []
    results: Any = None
    for _ in range(1 + repeats):
        began = time.perf_counter()
        results = module.main(wrap)
        for leaf in jax.tree_util.tree_leaves(results):
            np.asarray(leaf)
        calls.append(time.perf_counter() - began)
    return {
        "import": imported, "first": calls[0], "later": statistics.median(calls[1:] or calls),
        "total": time.perf_counter() - start,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "same": same(program, results, jax),
    }  # fmt: skip


def run(program: str, contestant: str, repeats: int, caches: Path) -> dict[str, Any]:
    """Run one program in a process of its own, with caches in a folder."""
    environment = {
        **os.environ, "GT_CACHE_DIR": str(caches / "gtrace"), "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "PROGRAMS_JAX_CACHE": str(caches / "jax"), "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, __file__, "--child", program, contestant, str(repeats)]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = {**json.loads(done.stdout.splitlines()[-1]), "process": time.perf_counter() - began}
    return found


def main(programs: list[str], rounds: int, repeats: int) -> list[dict[str, Any]]:
    """Measure programs, contestants taking turns; prints a row for each, and returns all of them."""
    rows = []
    head = f"{'program':18} {'contestant':14} {'caches':6}"
    print(f"{head} {'process':>8} {'first':>8} {'later':>9} {'peak MB':>8}  same results")
    for program in programs:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for contestant in CONTESTANTS:
                with tempfile.TemporaryDirectory() as folder:
                    for state in ("cold", "warm"):
                        row = run(program, contestant, repeats, Path(folder))
                        found.setdefault((contestant, state), []).append(row)
        for (contestant, state), runs in found.items():
            failed = next((row["error"] for row in runs if "error" in row), None)
            if failed is not None:
                print(f"{program:18} {contestant:14} {state:6} {failed}")
                rows.append({"program": program, "contestant": contestant, "caches": state, "error": failed})
                continue
            best = {key: statistics.median(row[key] for row in runs) for key in ("process", "first", "later", "peak")}
            right = all(row["same"] for row in runs)
            rows.append({"program": program, "contestant": contestant, "caches": state, "same": right, **best})
            print(
                f"{program:18} {contestant:14} {state:6} {best['process']:7.2f}s {best['first']:7.2f}s"
                f" {best['later'] * 1e3:7.1f}ms {best['peak']:8.0f}  {right}",
                flush=True,
            )
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
        parser.add_argument("--program", nargs="+", choices=PROGRAMS, default=PROGRAMS)
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--repeats", type=int, default=10)
        parser.add_argument("--json", type=Path)
        given = parser.parse_args()
        measured = main(given.program, given.rounds, given.repeats)
        if given.json:
            given.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
