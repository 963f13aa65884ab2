"""The array API's own tests on ``gtrace.numpy``; writes docs/array-api.md.

    python tests/array_api_suite/run.py --source PATH [--examples N] [--only EXPRESSION]

PATH is a checkout of data-apis/array-api-tests with its submodule array-api. The project does not contain it.
Hypothesis draws N examples a test, the same ones in each run.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD, PAGE = ROOT / "build" / "array-api", ROOT / "docs" / "array-api.md"
PACKAGES = ("pytest-json-report", "pytest-metadata", "ndindex")
"""What the suite imports beside pytest and hypothesis."""

VERSION = "2024.12"
Failure = tuple[str, str]
"""The name of a test, and the text of its error."""


def source_of(path: str | None) -> Path:
    """Return the checkout.

    Raises:
        SystemExit: there is none.
    """
    source = Path(path) if path else None
    if source is None or not (source / "array_api_tests").is_dir() or not (source / "array-api" / "src").is_dir():
        raise SystemExit(
            f"[array-api] expected a checkout of the array API's tests, got {path or 'none'}. The project does not "
            "contain them. Clone data-apis/array-api-tests with --recurse-submodules, and call "
            "make array-api ARRAY_API_TESTS=PATH."
        )
    return source.resolve()


def run(source: Path, examples: int, only: str) -> tuple[int, list[Failure]]:
    """Run the suite; returns how many tests pass, and the failures."""
    packages, report = BUILD / "packages", BUILD / "report.xml"
    if not packages.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), *PACKAGES]
        subprocess.run(command, check=True)
    env = {
        **os.environ, "ARRAY_API_TESTS_MODULE": "gtrace.numpy", "ARRAY_API_TESTS_VERSION": VERSION,
        "PYTHONPATH": os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(BUILD / "hypothesis"), "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "array_api_tests", "-q", "--disable-deadline", "--derandomize",
        f"--max-examples={examples}", "--xfails-file", str(HERE / "immutable.txt"), "-p", "no:cacheprovider",
        f"--junitxml={report}", *(["-k", only] if only else []),
    ]  # fmt: skip
    report.unlink(missing_ok=True)
    subprocess.run(command, cwd=source, env=env, check=False)
    passed, failures = 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        found = case.find("failure")
        found = case.find("error") if found is None else found
        if found is not None:
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            failures.append((name, found.get("message") or (found.text or "")[-400:]))
        elif case.find("skipped") is None:
            passed += 1
    return passed, failures


def write(passed: int, failures: list[Failure], examples: int) -> None:
    """Write the page."""
    causes = yaml.safe_load((HERE / "causes.yaml").read_text("utf-8"))
    counts: collections.Counter[str] = collections.Counter()
    for name, _ in failures:
        counts[next((c["about"] for c in causes if re.search(c["match"], name)), f"not looked at: {name}")] += 1
    rows = "".join("| {} | {} |\n".format(about.replace("|", "\\|"), n) for about, n in counts.most_common())
    PAGE.write_text(
        f"""# The array API's own tests

`gtrace.numpy` is a namespace of the [array API standard](numpy.md), {VERSION}. Its suite of tests runs on it:

    make array-api ARRAY_API_TESTS=PATH     # a checkout of data-apis/array-api-tests; it writes this page

{passed:,} of {passed + len(failures):,} tests pass, with {examples} examples each. Three more, which
`tests/array_api_suite/immutable.txt` names, assign to elements. gtrace's arrays do not allow that.

| what fails | tests |
|---|---|
{rows}""",
        encoding="utf-8",
    )


def main() -> None:
    """Run the suite, and write the page if all of it ran."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--source")
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    passed, failures = run(source_of(args.source), args.examples, args.only)
    for name, text in failures:
        print(f"{name}: {text[:300]}")
    print(f"{passed} passed, {len(failures)} failed")
    if not args.only:
        write(passed, failures, args.examples)


if __name__ == "__main__":
    main()
