"""Runs libraries of JAX on gtrace, unchanged: python tests/ecosystem/run.py [LIBRARY ...] [--tests] [--at FOLDER]

For each library it makes a folder, build/ecosystem/LIBRARY, with the library and what it needs beside JAX. There it
runs the library's quickstart under `gtrace run --jax`, and with `--tests` the tests that its package contains, where
libraries.json names them. Results go to results.json, from which `page.py` writes docs/ecosystem.md. `make ecosystem
LIB=diffrax` calls it. It is no test.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import page

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SECONDS = 600.0
"""The longest time of a quickstart, and of a file of tests."""

CLOSE = 1e-4
"""The bound of a number's difference, relative to the largest of its part. A part "name ~b" is sampled, up to b."""


def pins() -> dict[str, str]:
    """Return the requirements by the normalized name of their package."""
    lines = (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line and not line.startswith("#")]
    return {re.split("==", line)[0].lower().replace("_", "-"): line for line in found}


def made(name: str, library: dict[str, Any]) -> Path:
    """Return the folder with a library's packages, made if it is not there."""
    folder = ROOT / "build" / "ecosystem" / name
    known = pins()
    wanted = sorted(known[package] for package in library["packages"])
    stamp = folder / "packages.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8").splitlines() != wanted:
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-deps", "--upgrade",
             "--target", str(folder), *wanted], check=True,
        )  # fmt: skip
        stamp.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    return folder


def command(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a script or module under ``import jax`` as gtrace's."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-m", "gtrace", "run", "--jax", "--quiet", *args],
        capture_output=True, text=True, timeout=SECONDS, env=environment,
    )  # fmt: skip


def quickstart(name: str, folder: Path) -> dict[str, Any]:
    """Run a quickstart; return its numbers of parts: in all, those that ran, and those with JAX's numbers."""
    expected = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))[name]
    begin = time.perf_counter()
    try:
        done = command(folder, str(HERE / "quickstarts" / f"try_{name}.py"))
        out, words = done.stdout, (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired as expired:
        out, words = (expired.stdout or b"").decode(), f"longer than {SECONDS:.0f} s"
    words = re.sub(r" \((at )?/\S*\)", "", words)  # places on this machine
    found = dict(json.loads(line) for line in out.splitlines() if line.startswith('["'))
    wrong = [part for part in found if part in expected and not close(part, found[part], expected[part])]
    ran = sum(part in expected for part in found)
    return {"parts": len(expected), "ran": ran, "equal": ran - len(wrong), "differ": wrong, "stopped by": words[:200],
            "seconds": round(time.perf_counter() - begin)}  # fmt: skip


def close(part: str, found: list[float], expected: list[float]) -> bool:
    """Whether numbers are those of JAX."""
    if len(found) != len(expected):
        return False
    sampled = re.search(r"~([\d.]+)$", part)
    bound = float(sampled[1]) if sampled else CLOSE * max([abs(x) for x in expected if math.isfinite(x)] or [1.0])
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= bound for a, b in zip(found, expected, strict=True)
    )


def own_tests(library: dict[str, Any], folder: Path) -> str:
    """Return what pytest counted for the tests that the library's package contains; "" if there are none."""
    counts: dict[str, int] = {}
    alone = "-c", os.devnull, "--confcutdir", str(folder), "--rootdir", str(folder)  # not with our own settings
    for file in sorted(path for pattern in library.get("tests", ()) for path in folder.glob(pattern)):
        try:
            done = command(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *alone, str(file))
            last = done.stdout.strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            last = "1 file too long"
        for count, what in re.findall(r"(\d+) (passed|failed|skipped|error|file too long)", last):
            counts[what] = counts.get(what, 0) + int(count)
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--at", help="a folder in which all the packages are already installed")
    parser.add_argument("--tests", action="store_true", help="run the libraries' own tests too")
    options = parser.parse_args()
    libraries = json.loads((HERE / "libraries.json").read_text(encoding="utf-8"))
    unknown = set(options.names) - set(libraries)
    if unknown:
        parser.error(f"expected names among {', '.join(libraries)}, got {', '.join(sorted(unknown))}")
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    for name in options.names or libraries:
        library = libraries[name]
        folder = Path(options.at) if options.at else made(name, library)
        row = {"version": pins()[library["packages"][0]].partition("==")[2], **quickstart(name, folder)}
        tests = own_tests(library, folder) if options.tests else page.read()["libraries"].get(name, {}).get("tests", "")
        row |= {"tests": tests, "commit": git.stdout.strip(), "date": str(datetime.date.today())}
        page.remember("libraries", name, row)
        print(f"{name}: {page.told(row)}", flush=True)
    page.write()


if __name__ == "__main__":
    main()
