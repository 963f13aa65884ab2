"""Runs one file of JAX's tests in this process, and appends a row of JSON a test to a file.


Tests run in one order, which is drawn once: a run that its time ends is a sample. Tests that OUT has are left out.
While a test runs, its name stands in OUT.now, so that the caller knows which one ended the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import signal
import sys
import time
import traceback
import types
import unittest
from pathlib import Path
from typing import Any

import outcomes

LONGEST = 60.0
"""Seconds of a test, at most."""


class TooLong(BaseException):
    """A test took longer than `LONGEST`."""


class _Result(unittest.TestResult):
    """Keeps the errors themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: list[BaseException] = []

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest's name
        """Keep an error."""
        self.raised.append(err[1])

    addFailure = addError  # noqa: N815 - unittest's name

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802 - unittest's name
        """Keep the error of a part of a test."""
        if err is not None:
            self.raised.append(err[1])


def cases_of(module: types.ModuleType) -> list[unittest.TestCase]:
    """Return the tests that a module defines, in the order in which they run."""
    loader = unittest.TestLoader()
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, unittest.TestCase)]
    own = [c for c in classes if c.__module__ in (module.__name__, "builtins")]
    tests = [c(name) for c in own for name in loader.getTestCaseNames(c)]
    tests.sort(key=lambda t: t.id())
    random.Random(0).shuffle(tests)
    return tests


def run_test(test: unittest.TestCase, used: list[str]) -> dict[str, Any]:
    """Run one; `used` has the internals of JAX that it has asked for."""
    result, start = _Result(), time.monotonic()
    used.clear()
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        test.run(result)
    except TooLong as exc:
        result.raised.append(exc)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    skipped = [str(why) for _, why in result.skipped]
    skipped += [str(e) for e in result.raised if isinstance(e, unittest.SkipTest)]
    return outcomes.row(
        test.id(), time.monotonic() - start, result.raised, [f"internal: {used[0]}"] if used else skipped
    )


def load(args: argparse.Namespace) -> tuple[types.ModuleType, list[str], Any]:
    """Return the module of tests, the list of internals that are used, and the state that says that a test runs."""
    file = Path(args.source, "tests", f"{args.file}.py")
    if args.on_jax:
        sys.path.insert(0, str(file.parent))
        return importlib.import_module(args.file), [], types.SimpleNamespace()
    standins = importlib.import_module("standins")
    standins.install(Path(args.source))
    if args.x64:
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    return standins.load(file), standins.Tests.used, standins.Tests


def main() -> None:
    """Run a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("file")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--most", type=int, default=sys.maxsize)
    parser.add_argument("--only", default="")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--on-jax", action="store_true")
    args = parser.parse_args()
    begin, now = time.monotonic(), args.out.with_suffix(".now")
    done = set()
    if args.out.exists():
        done = {outcomes.plain(json.loads(line)["test"]) for line in args.out.read_text("utf-8").splitlines()}
    with args.out.open("a", encoding="utf-8") as log:

        def write(**row: Any) -> None:
            log.write(json.dumps(row) + "\n")
            log.flush()

        try:
            module, used, state = load(args)
            tests = cases_of(module)
        except Exception as exc:  # noqa: BLE001 - whatever the file does while it is loaded
            write(test="(loading)", outcome="failed", kind="b", error=type(exc).__name__, text=str(exc)[:1500],
                  places=traceback.format_exc().splitlines()[-8:], seconds=time.monotonic() - begin)  # fmt: skip
            return
        if not done:
            write(test="(collected)", outcome="collected", number=len(tests))

        def too_long(*_: Any) -> None:
            raise TooLong(f"longer than {LONGEST:g} s")

        signal.signal(signal.SIGALRM, too_long)
        for test in tests[: args.most]:
            if time.monotonic() - begin > args.seconds:
                break
            if outcomes.plain(test.id()) in done or not re.search(args.only, test.id()):
                continue
            now.write_text(test.id(), encoding="utf-8")
            state.running = True
            row = run_test(test, used)
            state.running = False
            write(**row)
    now.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # tests leave threads and callbacks behind, which JAX's own runner ends likewise
