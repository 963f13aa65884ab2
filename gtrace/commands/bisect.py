"""``gtrace bisect SCRIPT``: which mechanism of gtrace a wrong result comes from.

The script runs with everything on and with everything off. Where these differ, halves of the mechanisms are switched
off until one is left. That is tried three ways: interpreted, with every program compiled at its first call, and as the
script runs without this command. The first two do not depend on times.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import attrs

from gtrace.commands import machine_facts
from gtrace.commands.run import read, say
from gtrace.core.base.mechanisms import COMPARISONS, MECHANISMS
from gtrace.core.base.units import printable
from gtrace.core.base.whole_files import write_text

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|\bnan\b|\binf\b)", re.IGNORECASE)


WAYS: dict[str, dict[str, str]] = {
    "interpreted": {"GT_AUTO_COMPILE": "0"},
    "compiled at first sight": {"GT_COMPILE": "1"},
    "compiled when hot": {},
}
"""The ways in which a script runs, with the settings of each; the fastest first."""


@attrs.frozen
class Outcome:
    """The outcome of a run of the script.

    Attributes:
        code: its exit code.
        out, err: what it printed.
    """

    code: int
    out: str
    err: str


@attrs.frozen
class Runs:
    """Runs of a script in processes of their own, with empty stores.

    Attributes:
        command: that runs it.
        folder: for stores and logs.
        timeout: seconds of a run; None: as many as it takes.
    """

    command: tuple[str, ...]
    folder: Path
    timeout: float | None
    known: dict[tuple[str, frozenset[str]], Outcome] = attrs.field(factory=dict, init=False)

    def outcome(self, way: str, off: Collection[str]) -> Outcome:
        """Return what the script comes to with these mechanisms switched off, besides those of GT_DISABLE.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout`.
        """
        key = way, frozenset(off)
        if key not in self.known:
            self.known[key] = self.run(way, off)
        return self.known[key]

    def run(self, way: str, off: Collection[str]) -> Outcome:
        """Return what it comes to when it runs once more."""
        # comparisons would put right results in place of the wrong ones
        before = [COMPARISONS.name, *[name for name in os.environ.get("GT_DISABLE", "").split(",") if name]]
        env = {
            **os.environ,
            "GT_DISABLE": ",".join([*before, *sorted(off)]),
            "GT_CACHE_DIR": str(self.folder / "store"),
            "GT_MECHANISM_LOG": str(self.log),
            **WAYS[way],
        }
        done = subprocess.run(self.command, capture_output=True, text=True, errors="replace", env=env,
                              timeout=self.timeout)  # fmt: skip
        return Outcome(done.returncode, done.stdout, done.stderr)

    @property
    def log(self) -> Path:
        """The file of the mechanisms that changed a program."""
        return self.folder / "mechanisms"

    def used(self) -> list[str]:
        """Return the mechanisms that changed a program in any run so far, in the order of the table."""
        seen = set(self.log.read_text(encoding="utf-8").split()) if self.log.exists() else set()
        return [name for name in MECHANISMS if name in seen]


def difference(one: Outcome, other: Outcome, rtol: float) -> str:
    """Return in words where two outcomes differ; empty if they do not.

    Numbers are equal within `rtol`, relative to the larger one; the text between them must be the same.

    >>> difference(Outcome(0, "loss 0.10000", ""), Outcome(0, "loss 0.10001", ""), rtol=1e-3)
    ''
    >>> difference(Outcome(0, "loss 0.1", ""), Outcome(0, "loss 0.2", ""), rtol=1e-3)
    "line 1: 'loss 0.2', not 'loss 0.1'"
    """
    if one.code != other.code:
        return f"exit code {other.code}, not {one.code}"
    for place, (a, b) in enumerate(zip_longest(one.out.splitlines(), other.out.splitlines()), 1):
        if a is None or b is None or not _same_line(a, b, rtol):
            return f"line {place}: {b!r}, not {a!r}"
    return ""


def _same_line(one: str, other: str, rtol: float) -> bool:
    if _NUMBER.split(one) != _NUMBER.split(other):
        return False
    for a, b in zip(map(float, _NUMBER.findall(one)), map(float, _NUMBER.findall(other)), strict=True):
        if a != b and not (a != a and b != b) and not abs(a - b) <= rtol * max(abs(a), abs(b)):
            return False
    return True


def blamed(names: Sequence[str], right: Callable[[Collection[str]], bool]) -> list[str]:
    """Return the mechanisms without which a script is right, by halving.

    Args:
        names: candidates; with all of them off, the script is right.
        right: whether it is with these off.

    >>> blamed(["a", "b", "c", "d"], lambda off: "c" in off)
    ['c']
    >>> blamed(["a", "b", "c", "d"], lambda off: {"a", "d"} <= set(off))
    ['a', 'd']
    """
    order, found = list(names), list[str]()
    while not found or not right(found):
        # with the first `low` off it is wrong, with the first `high` off it is right
        low, high = 0, len(names)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if right([*found, *names[:middle]]) else (middle, high)
        found.append(names[high - 1])
        names = names[: high - 1]
    return sorted(found, key=order.index)


def list_mechanisms() -> int:
    """Print the table of mechanisms; return the exit code, 0."""
    group = ""
    for one in MECHANISMS.values():
        if one.group != group:
            group = one.group
            print(group)
        print(f"  {one.name:20} {one.what}{'' if one.on else ' (off)'}")
    return 0


def bisect(
    script: str | None,
    args: Sequence[str],
    *,
    module: bool,
    rtol: float,
    timeout: float | None,
    report: str,
) -> int:
    """Find the mechanism that makes a script's results wrong, print its name, and write a report.

    Args:
        module: `script` is the name of a module, as after ``python -m``.
        rtol: by which printed numbers may differ.
        timeout: seconds of a run; None: as many as it takes.
        report: path of the report.

    Returns:
        The exit code: 0 if it is found, 1 if results do not differ, 2 if nothing can be said.
    """
    if script is None:
        say("gtrace bisect: expected the path of a Python script, got none.")
        return 2
    if read("bisect", script, module) is None:
        return 2
    command = (sys.executable, *(("-m", script) if module else (script,)), *args)
    with tempfile.TemporaryDirectory(prefix="gtrace-bisect-") as folder:
        runs = Runs(command, Path(folder), timeout)
        try:
            return _search(runs, script, rtol, report)
        except subprocess.TimeoutExpired as error:
            say(f"gtrace bisect: a run took more than {error.timeout:g} seconds. Pass a larger --timeout.")
            return 2


def _search(runs: Runs, script: str, rtol: float, report: str) -> int:
    first = next(iter(WAYS))
    reference = runs.outcome(first, MECHANISMS)
    if reference.code:
        last = (reference.err.strip().splitlines() or ["it prints no error"])[-1]
        say(
            f"gtrace bisect: {printable(script)} fails with all mechanisms off, too (exit code {reference.code}:"
            f" {printable(last)}). So none of them is to blame."
        )
        return 2
    unstable = difference(reference, runs.run(first, MECHANISMS), rtol)
    if unstable:
        say(
            f"gtrace bisect: two equal runs of {printable(script)} differ ({printable(unstable)}). Print results"
            " alone, no times, and seed what is random; or let it exit with an error if one is wrong."
        )
        return 2
    for way in WAYS:

        def right(off: Collection[str], way: str = way) -> bool:
            found = difference(reference, runs.outcome(way, off), rtol)
            say(f"{way}, {len(off)} of {len(MECHANISMS)} off: {'differs' if found else 'right'}")
            return not found

        if right(()):
            continue
        wrong = difference(reference, runs.outcome(way, ()), rtol)
        names = runs.used()
        if not names or not right(names):
            names = list(MECHANISMS)
            if not right(names):
                say("gtrace bisect: results still differ with all of them off, so equal runs differ.")
                return 2
        found = blamed(names, right)
        for name in found:
            print(f"{name}: {MECHANISMS[name].what}")
        try:
            write_text(report, "\n".join(_report(runs, way, found, wrong, rtol)))
        except OSError as error:
            say(f"gtrace bisect: {printable(report)} cannot be written: {error.strerror}.")
            return 2
        say(f"{printable(report)} has the report. GT_DISABLE={','.join(found)} is a way around it.")
        return 0
    say("gtrace bisect: results with everything on and everything off agree.")
    return 1


def _report(runs: Runs, way: str, found: Sequence[str], wrong: str, rtol: float) -> Iterator[str]:
    """Yield the lines of a report that can be sent."""
    yield "# A result that a mechanism of gtrace changes"
    yield ""
    yield f"    {' '.join(runs.command)}"
    yield ""
    yield f"With everything on, {way}: {wrong} (beyond {rtol:g} of the value)."
    yield "With these off it agrees:"
    yield ""
    for name in found:
        yield f"- {name}: {MECHANISMS[name].what}"
    yield ""
    for what, lines in (("Versions", machine_facts.versions()), ("Compilers", machine_facts.compilers())):
        yield f"## {what}"
        yield ""
        yield from (f"- {line}" for line in lines)
        yield ""
