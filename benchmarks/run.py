"""Run benchmarks, each in its own process, or compare two files of figures. ``gtrace bench`` runs this program."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring.compare import Change, changes, warnings
from measuring.results import BenchmarkError, Run, added, console, load, save, table
from rich.markup import escape

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
    "sizes": "sizes.py",
    "inference": "inference.py",
    "sharding": "sharding.py",
    "steps": "sharding_steps.py",
    "ports": "programs.py",
    "ecosystem": "ecosystem_examples.py",
    "ablation": "ablation.py",
    "agreement": "agreement.py",
    "price": "price.py",
}
"""Benchmarks, and the programs that run them."""

APART = ("ablation",)
"""Programs that take many hours, and do not belong to "all"."""

WITH_WORKLOADS = ("compilation", "peers")
"""Programs whose workloads can be chosen one by one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run or compare; return the exit code.

    Args:
        argv: the arguments after the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(
        prog="gtrace bench",
        description="Run the benchmarks of a checkout, or print what moved by more than its noise between two runs.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"some of: {', '.join((*PROGRAMS, 'all'))}")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, to see that it works")
    parser.add_argument("--rounds", type=_at_least_one, metavar="N", help="rounds of each measurement")
    parser.add_argument("--json", metavar="FILE", help="write the figures of all of them to this file")
    parser.add_argument("--add", action="store_true", help="to what the file has, in place of what is measured again")
    parser.add_argument("--workload", metavar="WORD", nargs="+", default=[],
                        help=f"only these workloads, of {' and '.join(WITH_WORKLOADS)}")  # fmt: skip
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="two files that --json wrote")
    parser.add_argument("--everything", action="store_true", help="with --compare: what did not move, too")
    options = parser.parse_args(argv)
    try:
        if options.compare is not None:
            compare(*options.compare, everything=options.everything)
            return 0
        return int(bool(run(options)))
    except BenchmarkError as error:
        print(f"gtrace bench: {error}", file=sys.stderr)
        return 2


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def run(options: argparse.Namespace) -> list[str]:
    """Run benchmarks; return the names of those that failed.

    Raises:
        BenchmarkError: there are none to run, or the file to add to is none.
    """
    names, file = options.names, options.json
    unknown = [name for name in names if name != "all" and name not in PROGRAMS]
    if unknown or not names:
        got = ", ".join(unknown) or "no name"
        raise BenchmarkError(f"expected some of {', '.join((*PROGRAMS, 'all'))}, got {got}.")
    if options.workload and not set(names) <= set(WITH_WORKLOADS):
        expected = f"{' or '.join(WITH_WORKLOADS)}, whose workloads can be chosen"
        raise BenchmarkError(f"expected {expected}, got {', '.join(names)}.")
    if options.add and file is None:
        raise BenchmarkError("expected --json FILE beside --add, got none. Name the file to add to.")
    runs: list[Run] = load(file) if options.add and Path(file).exists() else []
    failed = []
    every = [name for name in PROGRAMS if name not in APART or name in names]
    for name in every if "all" in names else dict.fromkeys(names):
        console(sys.stderr).print(f"[bold]{name}[/]")
        with tempfile.TemporaryDirectory() as own:
            found = Path(own) / "figures.json"
            command = [sys.executable, str(Path(__file__).with_name(PROGRAMS[name])), "--json", str(found)]
            command += ["--quick"] * options.quick
            command += [] if options.rounds is None else ["--rounds", str(options.rounds)]
            command += ["--workload", *options.workload] if options.workload else []
            if subprocess.run(command).returncode:
                failed.append(name)
            else:
                for measured in load(found):
                    runs = added(runs, measured)
        if file is not None:  # after each: what was measured is not lost if a later one fails
            save(runs, file)
    if failed:
        print(f"gtrace bench: {', '.join(failed)} failed, for the reason above.", file=sys.stderr)
    return failed


def compare(before: str, after: str, *, everything: bool = False) -> None:
    """Print figures that moved by more than their noise between two files.

    Args:
        everything: print what did not move, too.

    Raises:
        BenchmarkError: a file is unreadable.
    """
    old, new = load(before), load(after)
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
        return
    moved = sum(one.moved for one in found)
    out.print(f"{moved} of {len(found)} figures moved by more than their noise")


def _row(change: Change) -> list[str]:
    if not change.moved:
        verdict = "same"
    else:
        verdict = "[red]worse[/]" if change.quotient > 1 else "[green]better[/]"
    return [
        change.program, escape(change.workload), change.side, change.against or "itself", f"{change.before:.3g}",
        f"{change.after:.3g}", f"{change.quotient:.2f}", f"{change.noise:.0%}", verdict,
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
