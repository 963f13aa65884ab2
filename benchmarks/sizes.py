"""Whole runs of programs whose sizes never repeat: gtrace, undecorated and jitted, against torch.

    python benchmarks/sizes.py [--quick] [--program WORD ...] [--calls 30 300 3000] [--only SIDE ...] [--rounds 1]
        [--caches cold warm] [--json FILE [--add]]

Each run is a process of its own, and sides take turns. "cold" runs begin with empty caches of compiled code, "warm"
ones with those of the run before. What each call returns is compared with torch's. The samples are the processor's
seconds of the process, first calls included, imports and exporting not, because other programs on a machine move them
least. "beside" are those of the processes that compile, "compiles" those that arrived during the run, "queued" the most
requests that waited at a time, and "peak" the memory of the process at most. For the service, "p99" is the wall time in
which 99 of 100 requests are answered, and only the later half of them counts.

torch.compile(dynamic=True) takes minutes a program: ``--only gtrace gt.jit torch`` leaves it out. ``--quick`` runs four
programs, eight calls each, with empty caches.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from measuring.libraries import Function
from measuring.machine import installed
from measuring.processes import child, held, processor_beside
from measuring.results import BenchmarkError, Figure, Run, console, parser, report, rounds
from measuring.results import show as show_table
from networks import fused_adam
from sizes_programs import PROGRAMS, REQUEST, Batch, Call, Program

import gtrace as gt
from gtrace.core.runtime.worker.client import worker

EXPORTED = "gtrace, exported"
CONTESTANTS = ("gtrace", "gt.jit", EXPORTED, "torch", "torch.compile")
QUICK = ("graph network", "generation, a module of torch", "particles", "service, 8 threads")
CALLS, QUICK_CALLS = (30, 300, 3000), 8

AGREEMENT = 2e-3
"""Results of one call differ by less, as a part of the largest of the run: float32, after up to 30 steps of Adam."""

GOALS = {30: 1.3, 300: 1.05, 3000: 0.8}
"""Of torch eager's processor time, that a run of so many calls should take at most."""

MEMORY_GOAL = 1.1
"""Of torch eager's memory, that a run should take at most."""

RATE_GOAL, WAIT_GOAL = 1.0, 1.2
"""Of torch eager's requests a second, at least, and of the time in which it answers 99 of 100, at most."""


def compiler(which: str) -> Function:
    """Return what a side does with a function before it is called."""
    if which == "gt.jit":
        return gt.jit
    if which == EXPORTED:
        return lambda function: gt.export(function, REQUEST)
    if which == "torch.compile":
        return functools.partial(torch.compile, dynamic=True)
    return lambda function: function


# -- what a child process does


def import_all(program: Program) -> None:
    """Do once what the libraries import or start at their first use: torch's optimizers take a second."""
    program.theirs(compiler("torch"))
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.sum().backward()
    fused_adam([parameter]).step()
    gt.eval(gt.grad(lambda x: (x * x).sum())(gt.ones(2)))


def run(which: str, name: str, calls: int) -> dict[str, Any]:
    """Run a program for so many calls, each of sizes that are new."""
    program = next(one for one in PROGRAMS if one.name == name)
    import_all(program)
    rng = np.random.default_rng(7)
    batches = [program.batch(rng, k) for k in range(calls)] if program.threads > 1 else []
    make = functools.partial(program.theirs if which.startswith("torch") else program.ours, compiler(which))
    exported = make() if which == EXPORTED else None  # ahead of time
    wall, processor, beside = time.perf_counter(), time.process_time(), processor_beside()
    call = exported or make()
    processor = time.process_time() - processor
    if program.threads > 1:
        found = _served(call, batches, program.threads)
    else:
        found = _called(call, program, rng, calls)
    found["processor"] += processor
    return found | {
        "wall": time.perf_counter() - wall, "beside": processor_beside() - beside,
        "compiles": gt.stats().totals.compiles, "peak": held("VmHWM"),
    }  # fmt: skip


def _called(call: Call, program: Program, rng: np.random.Generator, calls: int) -> dict[str, Any]:
    values, seconds, queued = [], [], 0
    for k in range(calls):
        data = program.batch(rng, k)
        before = time.process_time()
        values.append(call(k, *data))
        seconds.append(time.process_time() - before)
        queued = max(queued, worker.pending)
    later = statistics.median(seconds[calls // 2 :])
    return {"values": values, "processor": sum(seconds), "later": later, "queued": queued}


def _served(call: Call, batches: Sequence[Batch], threads: int) -> dict[str, Any]:
    """Answer requests by threads that each take the next one; returns also how fast, and the slowest of 100."""
    values: list[Any] = [None] * len(batches)
    waits = [0.0] * len(batches)
    errors: list[BaseException] = []
    waiting, queued, lock = iter(range(len(batches))), 0, threading.Lock()

    def serve() -> None:
        nonlocal queued
        try:
            while True:
                with lock:
                    k = next(waiting, None)
                if k is None:
                    return
                before = time.perf_counter()
                values[k] = call(k, *batches[k])
                waits[k] = time.perf_counter() - before
                queued = max(queued, worker.pending)
        except Exception as error:
            errors.append(error)
            raise

    servers = [threading.Thread(target=serve) for _ in range(threads)]
    start, processor = time.perf_counter(), time.process_time()
    for one in servers:
        one.start()
    for one in servers:
        one.join()
    if errors:
        raise errors[0]
    wall, processor = time.perf_counter() - start, time.process_time() - processor
    p99 = float(np.quantile(waits[len(waits) // 2 :], 0.99))
    return {"values": values, "processor": processor, "queued": queued, "rate": len(batches) / wall, "p99": p99}


# -- all of them


def contestants(program: Program, options: argparse.Namespace) -> list[str]:
    """Return the sides that run a program: only the service is exported."""
    return [which for which in options.only if which != EXPORTED or program.threads > 1]


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    figures, left_out = [], []
    words = options.program or (QUICK if options.quick else ("",))
    for program in PROGRAMS:
        if not any(word in program.name for word in words):
            continue
        if not installed(program.needs):
            left_out.append(f"left out: {program.name}, because {program.needs} is not installed")
            continue
        for calls in options.calls:
            found: dict[tuple[str, str], list[dict[str, Any]]] = {}
            for _ in range(rounds(options)):
                for which in contestants(program, options):
                    with tempfile.TemporaryDirectory() as folder:
                        for caches in options.caches:
                            one = child(__file__, (which, program.name, calls), folder)
                            found.setdefault((caches, which), []).append(one)
            agree(f"{program.name}, {calls} calls", found)
            figures += [figure_of(f"{program.name}, {calls} calls, {caches}", which, runs)
                        for (caches, which), runs in sorted(found.items(), key=lambda item: item[0][0])]  # fmt: skip
            console().print(f"measured: {program.name}, {calls} calls", markup=False)
    return figures, left_out


def agree(what: str, found: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    """Refuse to report runs whose calls did not all return what torch's did.

    Raises:
        BenchmarkError: they differ.
    """
    (_, first), *_ = sorted(found.items(), key=lambda item: item[0][1] != "torch")
    expected = np.array(first[0]["values"])
    largest = np.abs(expected).max()
    for (caches, which), runs in found.items():
        for one in runs:
            off = np.abs(np.array(one["values"]) - expected).max() / largest
            if not off <= AGREEMENT:
                raise BenchmarkError(f"{what}: {which}, {caches}, is off by {off:.1e} of the largest result.")


DETAILS = {
    "later": "call of the second half, s", "wall": "wall, s", "beside": "beside, s", "compiles": "compiles, count",
    "queued": "queued, count", "peak": "peak, bytes", "rate": "requests a second, count", "p99": "p99, s",
}  # fmt: skip


def figure_of(workload: str, which: str, runs: Sequence[dict[str, Any]]) -> Figure:
    """Return the whole runs as samples, and medians of the rest."""
    details = {
        name: statistics.median(one[key] for one in runs)
        for key, name in DETAILS.items()
        if key in runs[0] and not (which.startswith("torch") and key in ("compiles", "queued"))
    }
    return Figure(workload, which, tuple(one["processor"] for one in runs), details=details)


def missed(run: Run) -> list[str]:
    """Return a line for each goal that was missed."""
    lines = []
    for name in dict.fromkeys(figure.workload for figure in run.figures):
        sides = {figure.side: figure for figure in run.figures if figure.workload == name}
        eager, compiled = sides.get("torch"), sides.get("torch.compile")
        calls = int(name.split(", ")[-2].split()[0])
        for side, figure in sides.items():
            if not figure.ours or eager is None:
                continue
            ratio, goal = figure.median / eager.median, GOALS.get(calls)
            if goal is not None and ratio > goal:
                lines.append(f"{name}: {side} takes {ratio:.2f} of torch eager, goal {goal}")
            if compiled is not None and figure.median > compiled.median:
                lines.append(f"{name}: {side} takes {figure.median / compiled.median:.2f} of torch.compile")
            ratio = figure.details["peak, bytes"] / eager.details["peak, bytes"]
            if ratio > MEMORY_GOAL:
                lines.append(f"{name}: {side} takes {ratio:.2f} of torch eager's memory, goal {MEMORY_GOAL}")
            if DETAILS["rate"] in figure.details:
                rate, wait = (figure.details[key] / eager.details[key] for key in (DETAILS["rate"], DETAILS["p99"]))
                if rate < RATE_GOAL:
                    lines.append(f"{name}: {side} answers {rate:.2f} of torch eager's requests, goal {RATE_GOAL}")
                if wait > WAIT_GOAL:
                    lines.append(f"{name}: {side} takes {wait:.2f} of torch eager's p99, goal {WAIT_GOAL}")
    return lines


def show(run: Run) -> None:
    show_table(run)
    for line in missed(run):
        console().print(f"missed: {line}", markup=False)


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 1)
    options.add_argument("--program", metavar="WORD", nargs="+", action="extend",
                         help="programs whose name contains one of these")  # fmt: skip
    options.add_argument("--calls", nargs="+", type=int, default=None)
    options.add_argument("--caches", nargs="+", default=None, choices=["cold", "warm"])
    options.add_argument("--only", nargs="+", default=None, choices=CONTESTANTS)
    options.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        which, name, calls = given.child
        print(json.dumps(run(which, name, int(calls))))
        return
    given.calls = given.calls or ([QUICK_CALLS] if given.quick else list(CALLS))
    given.caches = given.caches or (["cold"] if given.quick else ["cold", "warm"])
    given.only = given.only or (["gtrace", "gt.jit", "torch"] if given.quick else list(CONTESTANTS))
    if given.quick and given.rounds is None:
        given.rounds = 1
    if min(given.calls) < 2:
        options.error(f"expected at least 2 calls, got {min(given.calls)}")
    report("sizes", given, measure, show)


if __name__ == "__main__":
    main()
