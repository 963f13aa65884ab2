"""What each mechanism of gtrace gains: whole runs with everything on, and with one mechanism off.

    python benchmarks/ablation.py [--program WORD ...] [--mechanism NAME ...] [--rounds 3] [--json FILE] [--page FILE]

A program is a training run of models.py, modules.py or handwritten.py, or many calls of a program of peers.py. Its
first run says which mechanisms it uses. Each of them is then switched off by itself (GT_DISABLE), and the run with
everything on comes again before each. Every run is a process of its own: "cold" with empty caches of compiled code,
then "warm" with those of the cold run. The figure is the seconds without a mechanism divided by those with it.

`--page` writes the table from a file of figures: the lines of code of a mechanism, the program that gains most, and the
geometric mean over all programs. Those that do not use it count as 1.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import handwritten
import models
import modules
import peers

import gtrace as gt
from gtrace import tree
from gtrace.bench.libraries import available
from gtrace.bench.processes import child
from gtrace.bench.results import BenchmarkError, Figure, Run, load, parser, report, rounds
from gtrace.core.base.mechanisms import MECHANISMS, Mechanism

FOLDER = Path(__file__).resolve().parent
PACKAGE = Path(gt.__file__).resolve().parent
STEPS = 120
CALLS = 300
"""Calls of a program of peers.py."""


@attrs.frozen
class Program:
    """A program to time.

    Attributes:
        name: of its figures.
        file: in benchmarks/, which runs it as a child.
        arguments: of the child.
    """

    name: str
    file: str
    arguments: tuple[object, ...]


def programs(quick: bool) -> list[Program]:
    """Return the programs that are timed."""
    steps = 4 if quick else STEPS
    found = [Program(f"models {name}", "models.py", ("gtrace", name, steps, int(quick), 6)) for name in models.MODELS]
    found += [Program(f"modules {name}", "modules.py", ("gtrace", name, steps, int(quick))) for name in modules.MODELS]
    found += [
        Program(f"handwritten {name}", "handwritten.py", ("gtrace", name, steps, int(quick)))
        for name in handwritten.PROGRAMS
    ]
    found += [
        Program(f"peers {one.name}, {side}", "ablation.py", (one.name, side, int(quick)))
        for one in peers.programs(quick)
        for side in ("gt.jit", "gtrace")
    ]
    return found


def run_peer(name: str, side: str, quick: bool) -> dict[str, Any]:
    """Call a program of peers.py many times; returns the seconds of the calls."""
    (contestant,), _ = available([side])
    workload = next(one for one in peers.programs(quick) if one.name == name)
    args = tree.map(contestant.convert, workload.arrays())
    start = time.perf_counter()
    function = workload.function(contestant)
    seconds = []
    for _ in range(3 if quick else CALLS):
        contestant.wait(function(*args))
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    return {"seconds": seconds}


def whole_run(program: Program, folder: str, off: str) -> float:
    """Return the seconds of a run."""
    variables = {"GT_DISABLE": off, "GT_MECHANISM_LOG": f"{folder}/mechanisms"}
    return float(sum(child(str(FOLDER / program.file), program.arguments, folder, **variables)["seconds"]))


def cold_and_warm(program: Program, off: str) -> tuple[dict[str, float], list[str]]:
    """Return the seconds of a run with empty caches and of one after it, and the mechanisms that they used."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = {caches: whole_run(program, folder, off) for caches in ("cold", "warm")}
        log = Path(folder) / "mechanisms"
        used = set(log.read_text(encoding="utf-8").split()) if log.exists() else set()
    return seconds, [name for name in MECHANISMS if name in used]


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    chosen = [
        one for one in programs(options.quick)
        if not options.program or any(word in one.name for word in options.program)
    ]  # fmt: skip
    if not chosen:
        raise BenchmarkError(f"expected words of programs, got {', '.join(options.program)}: there is none.")
    figures = []
    for program in chosen:
        _, used = cold_and_warm(program, "")
        names = [name for name in used if not options.mechanism or name in options.mechanism]
        ratios: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds(options)):
            for name in names:
                (with_it, _), (without, _) = cold_and_warm(program, ""), cold_and_warm(program, name)
                for caches, seconds in with_it.items():
                    ratios.setdefault((name, caches), []).append(without[caches] / seconds)
        print(f"measured: {program.name}, {len(names)} mechanisms", file=sys.stderr, flush=True)
        figures += [
            Figure(f"{program.name}, {caches}", name, tuple(samples), "x") for (name, caches), samples in ratios.items()
        ]
    return figures, []


def lines_of(mechanism: Mechanism) -> int:
    """Return the lines of code of a mechanism."""
    count = 0
    for place in mechanism.where.split():
        module, _, functions = place.partition(":")
        for path in sorted(PACKAGE.glob(module if module.endswith(".h") else f"{module}.py")):
            text = path.read_text(encoding="utf-8")
            if not functions:
                count += len(text.splitlines())
                continue
            for node in ast.parse(text).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in functions.split(","):
                    count += (node.end_lineno or node.lineno) - node.lineno + 1
    return count


def page(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the table of mechanisms."""
    yield "| name | lines | programs | best program | gain there | geometric mean | processor |"
    yield "|---|---|---|---|---|---|---|"
    for run in runs:
        processor = run.machine.get("processor", "unknown")
        names = {figure.workload for figure in run.figures}
        for one in MECHANISMS.values():
            found = [figure for figure in run.figures if figure.side == one.name]
            if not found:
                yield f"| `{one.name}` | {lines_of(one)} | 0 | | | | {processor} |"
                continue
            best = max(found, key=lambda figure: figure.median)
            mean = math.exp(sum(math.log(figure.median) for figure in found) / len(names))
            yield (
                f"| `{one.name}` | {lines_of(one)} | {len({f.workload.rpartition(',')[0] for f in found})} |"
                f" {best.workload} | {best.median:.2f} (noise {best.noise:.2f}) | {mean:.3f} | {processor} |"
            )


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 3)
    options.add_argument("--program", metavar="WORD", nargs="+", default=[], help="names that contain one of these")
    options.add_argument("--mechanism", metavar="NAME", nargs="+", default=[], choices=MECHANISMS, help="only these")
    options.add_argument("--page", metavar="FILE", help="print the table of this file of figures, and measure nothing")
    options.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        name, side, quick = given.child
        print(json.dumps(run_peer(name, side, bool(int(quick)))))
        return
    if given.page:
        print("\n".join(page([run for run in load(given.page) if run.program == "ablation"])))
        return
    report("ablation", given, measure)


if __name__ == "__main__":
    main()
