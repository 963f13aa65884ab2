"""``gtrace bench``: the programs in ``benchmarks/``, a file of their figures, and what moved between two such files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

import gtrace
from gtrace.bench.compare import Change, changes, warnings
from gtrace.bench.results import BenchmarkError, Run, added, console, load, save, table

PROGRAMS = {
    "compilation": "compilation_benchmark.py",
    "peers": "peers.py",
    "scaling": "scaling.py",
    "dispatch": "dispatch.py",
    "transforms": "transforms.py",
    "loops": "loops.py",
    "models": "models.py",
    "modules": "modules.py",
    "handwritten": "handwritten.py",
    "warmstart": "warmstart.py",
    "hotpath": "hotpath.py",
    "inference": "inference.py",
    "sharding": "sharding.py",
    "steps": "sharding_steps.py",
    "ports": "programs.py",
    "ablation": "ablation.py",
}
"""Benchmarks, and the programs that run them."""

APART = ("ablation",)
"""Programs that take many hours, and do not belong to "all"."""


WITH_WORKLOADS = ("compilation", "peers")
"""Programs whose workloads can be chosen one by one."""


def bench(
    names: Sequence[str], *, quick: bool = False, rounds: int | None = None, file: str | None = None,
    workloads: Sequence[str] = (), add: bool = False,
) -> int:  # fmt: skip
    """Run benchmarks, each in its own process; return 0, 1 if one failed, or 2 if there are none to run.

    Args:
        names: keys of `PROGRAMS`, or "all", which leaves out those of `APART`.
        quick: small sizes and few rounds.
        rounds: of each measurement; None: as many as each program makes.
        file: where the figures of all of them are written.
        workloads: names, or parts of names, of workloads; empty: all.
        add: to what the file has.
    """
    folder = programs()
    unknown = [name for name in names if name != "all" and name not in PROGRAMS]
    if unknown or not names:
        got = ", ".join(unknown) or "no name"
        print(f"gtrace bench: expected some of {', '.join((*PROGRAMS, 'all'))}, got {got}.", file=sys.stderr)
        return 2
    if workloads and not set(names) <= set(WITH_WORKLOADS):
        expected = f"{' or '.join(WITH_WORKLOADS)}, whose workloads can be chosen"
        print(f"gtrace bench: expected {expected}, got {', '.join(names)}.", file=sys.stderr)
        return 2
    if add and file is None:
        print("gtrace bench: expected --json FILE beside --add, got none. Name the file to add to.", file=sys.stderr)
        return 2
    if folder is None:
        print(
            f"gtrace bench: expected the folder benchmarks/ beside the package ({Path(gtrace.__file__).parent}), found"
            " none: it is not part of the wheel. Install a checkout with `pip install -e '.[bench]'`; --compare works"
            " without.",
            file=sys.stderr,
        )
        return 2
    try:
        runs: list[Run] = load(file) if add and file is not None and Path(file).exists() else []
    except BenchmarkError as error:
        print(f"gtrace bench: {error}", file=sys.stderr)
        return 2
    failed = []
    root = os.pathsep.join(filter(None, [str(folder.parent), os.environ.get("PYTHONPATH", "")]))
    every = [name for name in PROGRAMS if name not in APART or name in names]
    for name in every if "all" in names else dict.fromkeys(names):
        console(sys.stderr).print(f"[bold]{name}[/]")
        with tempfile.TemporaryDirectory() as own:
            found = Path(own) / "figures.json"
            command = [sys.executable, str(folder / PROGRAMS[name]), "--json", str(found)]
            command += ["--quick"] * quick + ([] if rounds is None else ["--rounds", str(rounds)])
            command += ["--workload", *workloads] if workloads else []
            if subprocess.run(command, env=os.environ | {"PYTHONPATH": root}).returncode:
                failed.append(name)
            else:
                for run in load(found):
                    runs = added(runs, run)
        if file is not None:  # after each: what was measured is not lost if a later one fails
            save(runs, file)
    if failed:
        print(f"gtrace bench: {', '.join(failed)} failed, for the reason above.", file=sys.stderr)
    return int(bool(failed))


def programs() -> Path | None:
    """Return the folder of the benchmarks: beside the package, in a checkout; None if there is none."""
    folder = Path(gtrace.__file__).resolve().parent.parent / "benchmarks"
    return folder if (folder / PROGRAMS["peers"]).exists() else None


def compare(before: str, after: str, *, everything: bool = False) -> int:
    """Print figures that moved by more than their noise between two files; return 2 if a file is unreadable, else 0.

    Args:
        everything: print what did not move, too.
    """
    try:
        old, new = load(before), load(after)
    except BenchmarkError as error:
        print(f"gtrace bench: {error}", file=sys.stderr)
        return 2
    found = changes(old, new)
    out = console()
    for line in warnings(old, new):
        out.print(f"[yellow]{escape(line)}[/]")
    shown = sorted((one for one in found if everything or one.moved), key=lambda one: -one.quotient)
    if shown:
        columns = ("program", "workload", "side", "of", "before", "after", "after / before", "noise", "verdict")
        out.print(table(columns, map(_row, shown)))
    if not found:
        out.print("the two files have no figure in common")
        return 0
    moved = sum(one.moved for one in found)
    out.print(f"{moved} of {len(found)} figures moved by more than their noise")
    return 0


def _row(change: Change) -> list[str]:
    if not change.moved:
        verdict = "same"
    else:
        verdict = "[red]worse[/]" if change.quotient > 1 else "[green]better[/]"
    return [
        change.program, escape(change.workload), change.side, change.against or "itself", f"{change.before:.3g}",
        f"{change.after:.3g}", f"{change.quotient:.2f}", f"{change.noise:.0%}", verdict,
    ]  # fmt: skip
