"""Runs libraries of JAX on gtrace, unchanged: python tests/ecosystem/run.py [LIBRARY ...] [--jax PYTHON]

For each library it makes a folder, build/ecosystem/LIBRARY, with the library and what it needs beside JAX. There it
runs the library's quickstart under `gtrace run --jax`, and the library's own tests where libraries.json names them:
"tests" are in its package, "sources" in its source distribution. With `--jax` they run on JAX too, and those count that
pass there. `--files` runs a part of them. Results go to results.json, from which `page.py` writes docs/ecosystem.md.
`make ecosystem LIB=diffrax` calls it. It is no test.
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

FILE_SECONDS = 900.0
"""The longest time of a file of a library's own tests. Those that have ended by then count."""

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
        args,
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=at,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "500"},  # pytest cuts messages to the width
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


def outcomes(python: list[str], folder: Path, at: Path, names: list[str]) -> dict[str, Any]:
    """Run tests, files or single ones; return pytest's word for each that ended, and the messages of the failed."""
    alone = "-c", os.devnull, "--confcutdir", str(at), "--rootdir", str(at)  # not with our own settings
    words = "-v", "-rfE", "--tb=no", "--continue-on-collection-errors", "-p", "no:cacheprovider"
    try:
        out = command(folder, *python, "-m", "pytest", *words, *alone, *names, seconds=FILE_SECONDS, at=at).stdout
    except subprocess.TimeoutExpired as expired:
        out = (expired.stdout or b"").decode(errors="replace")
    found = re.findall(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", out, re.MULTILINE)
    said = re.findall(r"^(?:FAILED|ERROR) (\S+?(?:::.+?)?) - (.+)$", out, re.MULTILINE)
    return {"found": dict(found), "words": dict(said)}


def kept_outcomes(
    where: str, python: list[str], library: dict[str, Any], folder: Path, at: Path, files: list[Path], again: bool
) -> dict[str, Any]:
    """Return the outcomes of each file, which a file of `build` keeps; run those that it lacks, or all `again`.

    A file has a process of its own, and so has each test of "alone" in libraries.json, which spoils it for others.
    """
    kept = ROOT / "build" / "ecosystem" / "outcomes" / f"{where}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    for file in files:
        name = str(file.relative_to(at))
        if name in known and not again:
            continue
        apart = [test for test in library.get("alone", ()) if test.startswith(f"{name}::")]
        found = outcomes(python, folder, at, [name, *(f"--deselect={test}" for test in apart)])
        for test in apart:
            one = outcomes(python, folder, at, [test])
            found = {key: {**found[key], **one[key]} for key in found}
        known[name] = {**found, "commit": git.stdout.strip()}
        kept.write_text(json.dumps(known), encoding="utf-8")
        print(f"{where}: {name}: {dict(Counter(found['found'].values()))}", flush=True)
    return known


def own_tests(
    name: str, library: dict[str, Any], folder: Path, jax: str | None, only: list[str]
) -> dict[str, Any] | None:
    """Run a library's own tests; return how many count, how many of them pass here, and what stops the others.

    Args:
        jax: a Python with JAX and pytest: tests count if they pass there. None: those that are not skipped count.
        only: patterns of the files that run; the row is of these and of those that ran before. Empty: all.
    """
    at, files = files_of_tests(library, folder)
    if not files:
        return None
    if only:
        files = [file for file in files if any(file.match(pattern) for pattern in only)]
    ours = kept_outcomes(f"{name}-gtrace", OURS, library, folder, at, files, again=True)
    theirs = ours if jax is None else kept_outcomes(f"{name}-JAX", [jax], library, folder, at, files, again=False)
    counts = {"PASSED"} if jax else {"PASSED", "FAILED", "ERROR", "XFAIL", "XPASS"}
    counted = {test: file for file in ours for test, word in theirs[file]["found"].items() if word in counts}
    wrong = sorted(test for test, file in counted.items() if ours[file]["found"].get(test) != "PASSED")
    kinds = Counter(
        reason(next((ours[counted[test]]["words"][key] for key in (test, counted[test])
                     if key in ours[counted[test]]["words"]), "did not end"))
        for test in wrong
    )  # fmt: skip
    told = [f"{count}: {what}" for what, count in kinds.most_common(REASONS)]
    told += [f"{sum(kinds.values()) - sum(n for _, n in kinds.most_common(REASONS))}: others"] * (len(kinds) > REASONS)
    commits = ", ".join(dict.fromkeys(ours[file]["commit"] for file in ours))
    return {"on": "gtrace" if jax is None else "JAX", "of": len(counted), "pass": len(counted) - len(wrong),
            "reasons": "; ".join(told), "failed": wrong, "commit": commits}  # fmt: skip


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
    parser.add_argument("--files", nargs="+", default=[], help="run these files of the tests, such as '*_ops_test.py'")
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
            tests = own_tests(name, library, folder, options.jax, options.files)
            row["tests"] = tests and {**tests, "date": now["date"]}
        page.remember("libraries", name, row)
        print(f"{name}: {page.told(row)}", flush=True)
    page.write()


if __name__ == "__main__":
    main()
