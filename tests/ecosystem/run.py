"""Runs libraries of JAX on gtrace, unchanged: python tests/ecosystem/run.py [LIBRARY ...] [--jax PYTHON]

For each library it makes a folder, build/ecosystem/LIBRARY, with the library and what it needs beside JAX. There it
runs the library's quickstart under `gtrace run --jax`, and the library's own tests where libraries.json names them:
"tests" are in its package, "sources" in its source distribution. With `--jax` they run on JAX too, and those count that
pass there. Results go to results.json, from which `page.py` writes docs/ecosystem.md. `make ecosystem LIB=diffrax`
calls it. It is no test.
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
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import page

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SECONDS = 600.0
"""The longest time of a quickstart."""

TESTS_SECONDS = 7200.0
"""The longest time of a library's own tests. Those that have ended by then count."""

REASONS = 4
"""How many kinds of failures a row names."""

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


OURS = [sys.executable, "-m", "gtrace", "run", "--jax", "--quiet"]
"""The command that runs a script or module under ``import jax`` as gtrace's."""


def command(
    folder: Path, *args: str, seconds: float = SECONDS, at: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with a library's packages."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        args, capture_output=True, text=True, timeout=seconds, env={**os.environ, "PYTHONPATH": path}, cwd=at
    )


def quickstart(name: str, folder: Path) -> dict[str, Any]:
    """Run a quickstart; return its numbers of parts: in all, those that ran, and those with JAX's numbers."""
    expected = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))[name]
    begin = time.perf_counter()
    try:
        done = command(folder, *OURS, str(HERE / "quickstarts" / f"try_{name}.py"))
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


def files_of_tests(library: dict[str, Any], folder: Path) -> tuple[Path, list[Path]]:
    """Return a folder, and the files of a library's own tests in it: in the package, or in its unpacked sources."""
    patterns = library.get("tests", ())
    if "sources" in library:
        patterns = library["sources"]
        pin = pins()[library["packages"][0]]
        place = ROOT / "build" / "ecosystem" / "sources" / library["packages"][0]
        if not place.exists():
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps",
                 "--no-binary", ":all:", "--dest", str(place), pin], check=True,
            )  # fmt: skip
            (archive,) = place.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
        (folder,) = [path for path in place.iterdir() if path.is_dir()]
    return folder, sorted({path for pattern in patterns for path in folder.glob(pattern)})


def outcomes(python: list[str], folder: Path, at: Path, files: list[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """Run tests; return pytest's word for each one that ended, and the messages of those that failed."""
    alone = "-c", os.devnull, "--confcutdir", str(at), "--rootdir", str(at)  # not with our own settings
    names = [str(file.relative_to(at)) for file in files]
    args = [
        *python,
        "-m",
        "pytest",
        "-v",
        "-rfE",
        "--tb=no",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        *alone,
        *names,
    ]
    try:
        out = command(folder, *args, seconds=TESTS_SECONDS, at=at).stdout
    except subprocess.TimeoutExpired as expired:
        out = (expired.stdout or b"").decode(errors="replace")
    found = dict(re.findall(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", out, re.MULTILINE))
    return found, dict(re.findall(r"^(?:FAILED|ERROR) (\S+::.+?) - (.+)$", out, re.MULTILINE))


def own_tests(library: dict[str, Any], folder: Path, jax: str | None) -> dict[str, Any] | None:
    """Run a library's own tests; return how many count, how many of them pass here, and what stops the others.

    Args:
        jax: a Python with JAX and pytest: tests count if they pass there. None: those that are not skipped count.
    """
    at, files = files_of_tests(library, folder)
    if not files:
        return None
    ours, words = outcomes(OURS, folder, at, files)
    theirs = ours if jax is None else outcomes([jax], folder, at, files)[0]
    counted = {name for name, word in theirs.items() if (word != "SKIPPED" if jax is None else word == "PASSED")}
    wrong = sorted(name for name in counted if ours.get(name) != "PASSED")
    kinds = Counter(reason(words[name]) if name in words else "did not end" for name in wrong)
    reasons = "; ".join(f"{count}: {what}" for what, count in kinds.most_common(REASONS))
    return {"on": "gtrace" if jax is None else "JAX", "of": len(counted), "pass": len(counted) - len(wrong),
            "reasons": reasons, "failed": wrong}  # fmt: skip


def reason(text: str) -> str:
    """Return the kind of a failure: its message without places, numbers and advice."""
    first = re.sub(r" \((at )?/\S*\)", "", text).removeprefix("gtrace.errors.").partition(". ")[0]
    return re.sub(r"\d+", "n", first)[:90]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--at", help="a folder in which all the packages are already installed")
    parser.add_argument("--only", choices=("quickstart", "tests"), help="run this alone")
    parser.add_argument("--jax", help="a Python with JAX and pytest, which says which of the libraries' tests count")
    options = parser.parse_args()
    libraries = json.loads((HERE / "libraries.json").read_text(encoding="utf-8"))
    unknown = set(options.names) - set(libraries)
    if unknown:
        parser.error(f"expected names among {', '.join(libraries)}, got {', '.join(sorted(unknown))}")
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    for name in options.names or libraries:
        library = libraries[name]
        folder = Path(options.at) if options.at else made(name, library)
        row = {"tests": None, **page.read()["libraries"].get(name, {})}
        row["version"] = pins()[library["packages"][0]].partition("==")[2]
        now = {"commit": git.stdout.strip(), "date": str(datetime.date.today())}
        if options.only != "tests" or "parts" not in row:
            row |= quickstart(name, folder) | now
        if options.only != "quickstart":
            tests = own_tests(library, folder, options.jax)
            row["tests"] = tests and tests | now
        page.remember("libraries", name, row)
        print(f"{name}: {page.told(row)}", flush=True)
    page.write()


if __name__ == "__main__":
    main()
