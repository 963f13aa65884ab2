"""The same programs in gtrace, torch and JAX: calls, compile times, memory, and how far from the machine's limits.

    python benchmarks/peers.py [--quick] [--workload WORD ...] [--sides SIDE ...] [--times-only] [--rounds 15]
        [--json FILE [--add]]

Sides take turns in one process; results are compared with float64 first. Compile times and memory come from two
processes a side, the first with empty caches ("cold") and the second with those that it left ("warm"): the seconds of
each program's first call, and the most memory that a later call took. "of bound" is the time as a multiple of
the least: bytes over the rate of a copy, or operations over that of a large product, both measured here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence

import attrs
import numpy as np
import workloads as w
from measuring.harness import Workload, measure
from measuring.libraries import EAGER, Side, add_sides, available
from measuring.processes import PeakMemory, child
from measuring.results import Figure, Run, console, parser, report, rounds
from measuring.results import show as show_table
from measuring.roofline import measure_bounds
from networks import Transformer

import gtrace as gt
from gtrace import tree
from gtrace.core.runtime.worker.client import worker

GOALS = {"gt.jit": 0.95, "gtrace": 1.0}
"""Of the best torch's time, that each of gtrace's sides should take at most."""

EAGER_GOALS = {"value_and_grad, MLP 4x8": 0.5}
"""Of torch eager's time, that undecorated gtrace should take at most: calls of torch are most of what eager does."""

JAX_GOAL = 1.0
"""Of jax.jit's time, that gt.jit should take at most."""

WORKER_SECONDS = 600.0
"""After so long a compile that nobody waits for is left alone."""

MEMORY_CALLS = 3
"""Calls of a program whose memory is measured."""


def programs(quick: bool) -> list[Workload]:
    """Return the workloads, small ones if `quick`."""
    million = 1000 if quick else 1_000_000
    square = (64, 64) if quick else (1024, 1024)
    rows = (100, 8, 50) if quick else (10_000, 64, 100_000)
    return [
        *(w.tiny_operations(count) for count in (1, 10, 100)),
        *(w.elementwise_chain(10**k) for k in ((3, 4) if quick else range(3, 8))),
        w.pointwise(f"tanh of {million:,}", lambda lib: lib.np.tanh, (million,)),
        w.pointwise(f"gelu of {million:,}", lambda lib: lib.nn.gelu, (million,)),
        w.pointwise(f"softmax of {square[0]} x {square[1]}", lambda lib: lambda x: lib.nn.softmax(x, axis=-1), square),
        w.layer_norm(*square),
        w.reductions(square[0]),
        w.gather(*rows),
        w.scatter_add(*rows),
        w.normal_draw(100_000 if quick else million),
        w.entropy(*((2, 3, 64) if quick else (32, 196, 768))),
        w.edges(*((2, 16) if quick else (32, 224))),
        w.query_content(*((2, 5, 16) if quick else (32, 196, 768))),
        w.matmul_chain(*((32, 3) if quick else ())),
        w.attention_block(),
        w.mixed_operations(*((32,) if quick else ())),
        w.tiny_value_and_grad(),
        w.mlp_training(*((8, 16) if quick else ())),
        (Transformer(1, 32, 4, 2, 16, 64) if quick else Transformer()).workload(),
        w.per_example_gradients(*((8, 4) if quick else ())),
        w.hessian(*((8,) if quick else ())),
        w.recurrent(*((10, 2, 4) if quick else ())),
    ]


def chosen(options: argparse.Namespace) -> list[Workload]:
    """Return the workloads that were asked for."""
    every = programs(options.quick)
    return [one for one in every if options.workload is None or any(word in one.name for word in options.workload)]


# -- compile times and memory, in processes of their own


def run_child(side: Side, names: Sequence[str], quick: bool) -> dict[str, dict[str, float]]:
    """Return the seconds of the first call, and the most memory that a call takes, of each program."""
    one = side.convert(np.ones(2, np.float32))
    side.wait(side.wrap(lambda x: x * 2 + 1)(one))  # the compiler is imported, and its headers compiled
    worker.wait(WORKER_SECONDS)
    found = {}
    for workload in programs(quick):
        if workload.name in names and workload.takes_part(side):
            args = tree.map(side.convert, workload.arrays())
            function = workload.function(side)
            start = time.perf_counter()
            side.wait(function(*args))
            first = time.perf_counter() - start
            memory = PeakMemory()  # from here on: the compiler takes more than most programs
            for _ in range(MEMORY_CALLS):
                side.wait(function(*args))
            found[workload.name] = {"first": first, "peak": memory.bytes()}
            worker.wait(WORKER_SECONDS)  # or it would compile this program beside the next
    return found


def compiled_apart(sides: Sequence[Side], names: Sequence[str], quick: bool) -> dict[tuple[str, str], dict[str, float]]:
    """Return the seconds of first calls, cold and warm, and memory, by side and workload."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for side in sides:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (
                # large arrays are given back to the system when they are freed, so that memory is what a call needs
                child(__file__, (side.name, int(quick), json.dumps(names)), folder, MALLOC_MMAP_THRESHOLD_="65536")
                for _ in range(2)
            )
        for name, values in cold.items():
            found[side.name, name] = {
                "cold, s": values["first"], "warm, s": warm[name]["first"], "peak, bytes": warm[name]["peak"],
            }  # fmt: skip
    return found


def measure_all(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    sides, left_out = available(options.sides)
    workloads = chosen(options)
    bounds = measure_bounds(options.quick)
    left_out.append(
        f"measured: copies {bounds.bytes_per_second / 1e9:.1f} GB a second, products"
        f" {bounds.operations_per_second / 1e9:.0f} GFLOP a second"
    )
    measured = []
    for workload in workloads:
        measured.append((workload, measure(workload, sides, rounds(options))))
        console(sys.stderr).print(f"measured: {workload.name}", markup=False)
    apart = {} if options.times_only else compiled_apart(sides, [one.name for one in workloads], options.quick)
    figures = []
    for workload, found in measured:
        for figure in found:
            details = dict(apart.get((figure.side, workload.name), {}))
            if workload.work is not None:
                details["of bound, x"] = figure.median / bounds.seconds(workload.work)
            figures.append(attrs.evolve(figure, details=details))
    return figures, left_out


def missed(run: Run) -> list[str]:
    """Return a line for each program and goal that was missed."""
    lines = []
    names = dict.fromkeys(figure.workload for figure in run.figures)
    for name in names:
        medians = {figure.side: figure.median for figure in run.figures if figure.workload == name}
        of_torch = [value for side, value in medians.items() if side.startswith("torch")]
        for side, goal in GOALS.items():
            if side in medians and of_torch and medians[side] > goal * min(of_torch):
                lines.append(f"{name}: {side} takes {medians[side] / min(of_torch):.2f} of the best torch, goal {goal}")
        if name in EAGER_GOALS and {"gtrace", EAGER.name} <= medians.keys():
            ratio = medians["gtrace"] / medians[EAGER.name]
            if ratio > EAGER_GOALS[name]:
                lines.append(f"{name}: gtrace takes {ratio:.2f} of torch eager, goal {EAGER_GOALS[name]}")
        if {"gt.jit", "jax.jit"} <= medians.keys() and medians["gt.jit"] > JAX_GOAL * medians["jax.jit"]:
            ratio = medians["gt.jit"] / medians["jax.jit"]
            lines.append(f"{name}: gt.jit takes {ratio:.2f} of jax.jit, goal {JAX_GOAL}")
    return lines


def show(run: Run) -> None:
    show_table(run)
    for line in missed(run):
        console().print(f"missed: {line}", markup=False)


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 15)
    options.add_argument("--workload", metavar="WORD", nargs="+", action="extend",
                         help="programs whose name contains one of these")  # fmt: skip
    add_sides(options)
    options.add_argument("--times-only", action="store_true", help="no compile times, and no memory")
    options.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        side, quick, wanted = given.child
        (chosen_side,), _ = available([side])
        print(json.dumps(run_child(chosen_side, json.loads(wanted), bool(int(quick)))))
        return
    with gt.config(background=False):  # nothing compiles beside what is timed
        report("peers", given, measure_all, show)


if __name__ == "__main__":
    main()
