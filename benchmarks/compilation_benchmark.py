"""What compiling costs and gives: whole runs of four workloads, not compiled against compiled, first calls included.

    python benchmarks/compilation_benchmark.py [--quick] [--workload NAME] [--iterations 100] [--rounds 3] [--json FILE]

"No Compile" is undecorated code that is interpreted throughout; "Compile" is gt.jit(wait=True) with empty caches.
Beside them: undecorated code as it comes, which compiles in the background; gt.jit in a second process, which finds
what the first one compiled; and torch.compile. Each run is a process of its own, and the sides take turns. Results are
compared with a float64 reference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import attrs
import workloads
from measuring.harness import Workload, compare, expected, other, refuse_empty
from measuring.libraries import COMPILED, JITTED, UNDECORATED, Side
from measuring.processes import child
from measuring.results import BenchmarkError, Figure, Run, console, notes, parser, report, rounds

from gtrace import tree

WARMUP = 5

COLUMNS: dict[str, tuple[Side, dict[str, str]]] = {
    "No Compile": (UNDECORATED, {"GT_AUTO_COMPILE": "0"}),
    "Compile": (JITTED, {}),
    "Background": (UNDECORATED, {}),
    "2nd Process": (JITTED, {}),
    "torch.compile": (COMPILED, {}),
}
"""The side that a column runs, and the settings of its process. A second process has the caches that "Compile" left."""

BESIDE = ("Background", "2nd Process", "torch.compile")

QUICK = {"matmul": (32, 3), "mlp": (8, 16), "attention": (2, 8, 16), "mixed": (32,)}


def workload(name: str, quick: bool) -> Workload:
    """Return one of the four, small if `quick`."""
    make: Any = workloads.COMPILATION[name]
    return make(*QUICK[name]) if quick else make()


def run_child(name: str, column: str, iterations: int, quick: bool) -> list[float]:
    """Return the seconds of each iteration, once the last result was found right."""
    chosen, (side, _) = workload(name, quick), COLUMNS[column]
    arrays = chosen.arrays()
    args = tree.map(side.convert, arrays)
    function = chosen.function(side)
    seconds, result = [], None
    for _ in range(iterations):
        start = time.perf_counter()
        result = side.wait(function(*args))
        seconds.append(time.perf_counter() - start)
    if side.name in chosen.trainers:  # it trained, from its first call on
        fresh = chosen.function(side)
        result = side.wait(fresh(*args))
    compare(chosen, column, result, expected(chosen, arrays))
    if column == "No Compile":
        changed = other(arrays)
        second = side.wait(function(*tree.map(side.convert, changed)))
        refuse_empty(chosen, column, arrays, result, second)
    return seconds


@attrs.frozen
class Totals:
    """A column of a workload: medians over the rounds.

    Attributes:
        warmup, steady, total: seconds of the first iterations, of the others, and of all.
        curve: seconds that had passed at the end of each iteration.
    """

    warmup: float
    steady: float
    total: float
    curve: tuple[float, ...]


def totals(samples: Sequence[Sequence[float]]) -> Totals:
    """Return the medians of several runs' seconds of each iteration."""
    curve = [statistics.median(column) for column in zip(*(itertools.accumulate(run) for run in samples), strict=True)]
    warmup = curve[WARMUP - 1]
    return Totals(warmup, curve[-1] - warmup, curve[-1], tuple(curve))


def break_even(without: Totals, compiled: Totals) -> int | None:
    """Return from which iteration on compiling has paid for itself, or would have, if the run went on; None: never."""
    count = len(without.curve)
    behind = [k for k in range(count) if compiled.curve[k] > without.curve[k]]
    if not behind:
        return 1
    if behind[-1] < count - 1:
        return behind[-1] + 2
    gained = (without.steady - compiled.steady) / (count - WARMUP)
    return count + math.ceil((compiled.total - without.total) / gained) if gained > 0 else None


def verdict(without: Totals, compiled: Totals) -> str:
    """Return which of the two wins, by how much, and from when on."""
    overall, steady = without.total / compiled.total, without.steady / compiled.steady
    at = break_even(without, compiled)
    winner = f"COMPILE WINS ({overall:.2f}x" if overall > 1 else f"NO COMPILE WINS ({1 / overall:.2f}x"
    if at is None:
        turn = "no break-even"
    elif at <= len(without.curve):
        turn = f"break-even at iteration {at}"
    else:
        turn = f"break-even at about iteration {at}"
    return f"VERDICT: {winner} faster overall), steady-state {steady:.2f}x, {turn}"


def seconds(value: float) -> str:
    return f"{value:.3f}s" if value >= 0.1 else f"{value * 1e3:.3f}ms"


def layout(name: str, iterations: int, columns: dict[str, Totals]) -> str:
    """Return the report of one workload."""
    without, compiled = columns["No Compile"], columns["Compile"]
    beside = [column for column in BESIDE if column in columns]
    lines = [f"WORKLOAD: {name}", f"Iterations: {iterations} (warmup: {WARMUP})"]
    lines.append(f"{'Results':<34}{'No Compile':>13}{'Compile':>11}{'Speedup':>12}"
                 + "".join(f"{column:>15}" for column in beside))  # fmt: skip
    rest = iterations - WARMUP
    for label, field, divisor in (
        (f"Warmup (first {WARMUP} iters):", "warmup", 1), ("  Per iteration:", "warmup", WARMUP),
        (f"Steady state (remaining {rest} iters):", "steady", 1), ("  Per iteration:", "steady", rest),
        ("TOTAL TIME:", "total", 1), ("Average per iteration:", "total", iterations),
    ):  # fmt: skip
        a, b = (getattr(column, field) / divisor for column in (without, compiled))
        others = "".join(f"{seconds(getattr(columns[column], field) / divisor):>15}" for column in beside)
        lines.append(f"{label:<36}{seconds(a):>11}{seconds(b):>11}{a / b:>11.2f}x{others}")
    lines.append(verdict(without, compiled))
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    if options.iterations <= WARMUP + 1:
        raise BenchmarkError(f"expected more than {WARMUP + 1} iterations, got {options.iterations}.")
    out = console()
    figures = []
    for name in options.workload or workloads.COMPILATION:
        runs: dict[str, list[list[float]]] = {column: [] for column in COLUMNS if column not in options.without}
        for _ in range(rounds(options)):
            with tempfile.TemporaryDirectory() as shared:
                for column, samples in runs.items():
                    with tempfile.TemporaryDirectory() as own:
                        folder = shared if column in ("Compile", "2nd Process") else own
                        arguments = (name, column, options.iterations, int(options.quick))
                        samples.append(child(__file__, arguments, folder, **COLUMNS[column][1]))
        what = workload(name, options.quick).name
        found = {column: totals(samples) for column, samples in runs.items()}
        out.print(layout(what, options.iterations, found) + "\n", markup=False)
        for column, samples in runs.items():
            side = {"No Compile": "gtrace", "Compile": "gt.jit", "Background": "gtrace, background",
                    "2nd Process": "gt.jit, second process"}.get(column, column)  # fmt: skip
            figures.append(Figure(f"{what}, whole run", side, tuple(sum(run) for run in samples)))
            steady = [value for run in samples for value in run[WARMUP:]]
            figures.append(Figure(f"{what}, steady iteration", side, tuple(steady)))
    return figures, []


def show(run: Run) -> None:
    """Print what stands below the workloads, which are printed as they end."""
    notes(run)


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 3)
    options.add_argument("--workload", choices=workloads.COMPILATION, nargs="+", action="extend",
                         help="only these")  # fmt: skip
    options.add_argument("--iterations", type=int, default=100)
    options.add_argument("--without", choices=BESIDE, nargs="+", action="extend", default=[],
                         help="leave out this column")  # fmt: skip
    options.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        name, column, iterations, quick = given.child
        print(json.dumps(run_child(name, column, int(iterations), bool(int(quick)))))
        return
    report("compilation_benchmark", given, measure, show)


if __name__ == "__main__":
    main()
