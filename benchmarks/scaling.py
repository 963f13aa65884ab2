"""How costs grow: with the size of a graph, the number of programs, the number of steps, and the number of threads.

    python benchmarks/scaling.py [--quick] [--full] [--part NAME] [--rounds 3] [--json FILE]

graph: seconds to record, canonicalize, run for the first time (interpreted) and compile programs of 10 to 10,000
operations (compiled: up to 500), or 50,000 with --full (compiled: 5,000). signatures: a call when 1 to 10,000 programs
are known, each called in turn. memory: what a loop in which everything varies holds on the way and at its end, of
100,000 steps, or a million with --full. threads: 1 to 16 threads that record at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from measuring.processes import child, held
from measuring.results import BenchmarkError, Figure, add_parts, measure_parts, parser, report, rounds

import gtrace as gt
from gtrace import ir

OPERATIONS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, y: x + y, lambda x, y: x * 0.5 - y, lambda x, y: gt.tanh(x), lambda x, y: gt.maximum(x, y),
    lambda x, y: gt.sin(x),
)  # fmt: skip
LENGTH = 16
"""Elements of the arrays: what is measured is what happens around the kernels."""

MOST_ROWS = 3000
THREAD_CALLS, THREAD_OPERATIONS = 20, 200


@attrs.frozen
class Sizes:
    """How far each part goes."""

    graph: tuple[int, ...]
    compiled: int
    signatures: tuple[int, ...]
    steps: int
    threads: tuple[int, ...]


QUICK = Sizes((10, 50), 0, (1, 10), 200, (1, 2))
USUAL = Sizes((10, 100, 500, 1000, 5000, 10_000), 500, (1, 10, 100, 1000, 10_000), 100_000, (1, 2, 4, 8, 16))
FULL = Sizes((*USUAL.graph, 50_000), 5000, USUAL.signatures, 1_000_000, USUAL.threads)


def program(operations: int, seed: int) -> Callable[[Any, Any], Any]:
    """Return a program without repeated structure, another one for each seed."""
    draw = random.Random(f"{operations} {seed}")

    def run(x: Any, y: Any) -> Any:
        count = 0
        while count < operations:
            operation = draw.choice(OPERATIONS)
            x = operation(x, y)
            count += 2 if operation is OPERATIONS[1] else 1
        return x

    return run


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def graph_sizes(sizes: Sizes, count: int) -> list[Figure]:
    """Costs of programs that were never seen before."""
    x, y = gt.ones(LENGTH), gt.full(LENGTH, 0.5)
    seeds = itertools.count()
    figures = []
    # what is paid once in a process: first uses of operations, and the imports of the compiler
    gt.eval(program(100, next(seeds))(x, y))
    if sizes.compiled:
        gt.eval(gt.jit(program(10, next(seeds)), wait=True)(x, y))
    for operations in sizes.graph:
        samples: dict[str, list[float]] = {"record": [], "canonicalize": [], "first run": []}
        with gt.config(auto_compile=False, max_pending=10**9):
            for _ in range(count):
                run = program(operations, next(seeds))
                start = time.perf_counter()
                result = run(x, y)
                middle = time.perf_counter()
                gt.eval(result)
                samples["record"].append(middle - start)
                samples["first run"].append(time.perf_counter() - middle)
                graph = gt.make_graph(program(operations, next(seeds)))(x, y)
                samples["canonicalize"].append(timed(lambda graph=graph: ir.canonicalize(graph)))  # type: ignore[misc]
        if operations <= sizes.compiled:
            jitted = gt.jit(program(operations, next(seeds)), wait=True)
            samples["compile"] = [timed(lambda jitted=jitted: gt.eval(jitted(x, y)))]  # type: ignore[misc]
        for what, values in samples.items():
            details = {"per operation, s": sorted(values)[len(values) // 2] / operations}
            figures.append(Figure(f"{what}, {operations:,} operations", "gtrace", tuple(values), details=details))
    return figures


def live_signatures(sizes: Sizes, count: int) -> list[Figure]:
    """A call of each of many known programs in turn: they differ in the number of rows."""
    figures = []
    with gt.config(auto_compile=False):
        for known in sizes.signatures:
            arrays = [gt.ones(k + 1) for k in range(known)]
            calls = max(1, 1000 // known)

            def sweep(arrays: list[gt.Array] = arrays, calls: int = calls) -> None:
                for _ in range(calls):
                    for x in arrays:
                        gt.eval(x * 2.0 + 1.0)

            sweep()
            samples = tuple(timed(sweep) / (calls * known) for _ in range(count))
            figures.append(Figure(f"call, {known:,} live signatures", "gtrace", samples))
    return figures


def memory_of_steps(steps: int) -> dict[str, int]:
    """Return the bytes held on the way and after all steps of a loop in which everything varies in every step.

    The number of rows, the learning rate, and a number in the body of a scan: hardly a step is a program of before.
    """
    draw = random.Random(0)
    w = gt.ones((LENGTH, LENGTH)) / LENGTH
    marks = {}
    for k in range(1, steps + 1):
        x = gt.full((draw.randrange(1, MOST_ROWS + 1), LENGTH), 0.5)
        decay = draw.random()

        def body(c: Any, t: Any, decay: float = decay) -> tuple[Any, None]:
            return c * decay + t, None

        last, _ = gt.scan(body, gt.zeros(LENGTH), x[:4] @ w)
        w = w + (1.0 / (k + 10)) * gt.tanh(x.T @ x @ w + last)
        w = w / gt.abs(w).max()
        gt.eval(w)
        if k in {max(1, steps // part) for part in (1000, 100, 10, 2)} | {steps}:
            marks[f"after {k:,}, bytes"] = held()
    return marks


def memory(sizes: Sizes, count: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        *marks, (_, last) = child(__file__, ("memory", sizes.steps), folder).items()
    return [Figure(f"memory after {sizes.steps:,} steps", "gtrace", (last,), "bytes", dict(marks))]


def threads_recording(sizes: Sizes, count: int) -> list[Figure]:
    """Seconds an operation, when threads record and run small programs at once."""
    figures = []
    with gt.config(auto_compile=False):
        for number in sizes.threads:

            def work() -> None:
                x, y = gt.ones(LENGTH), gt.full(LENGTH, 0.5)
                for _ in range(THREAD_CALLS):
                    z = x
                    for _ in range(THREAD_OPERATIONS // 2):
                        z = (z + y) * y
                    gt.eval(z)

            def together(number: int = number) -> None:
                crew = [threading.Thread(target=work) for _ in range(number)]
                for one in crew:
                    one.start()
                for one in crew:
                    one.join()

            together()
            operations = number * THREAD_CALLS * THREAD_OPERATIONS
            samples = tuple(timed(together) / operations for _ in range(count))
            figures.append(Figure(f"record and run an operation, {number} threads", "gtrace", samples))
    return figures


PARTS: dict[str, Callable[[Sizes, int], list[Figure]]] = {
    "graph": graph_sizes, "signatures": live_signatures, "memory": memory, "threads": threads_recording,
}  # fmt: skip


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    if options.quick and options.full:
        raise BenchmarkError("expected --quick or --full, got both.")
    sizes = QUICK if options.quick else FULL if options.full else USUAL
    return measure_parts(options, PARTS, sizes, rounds(options)), []


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 3)
    options.add_argument("--full", action="store_true", help="the largest sizes too: about an hour")
    add_parts(options, PARTS)
    options.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        print(json.dumps(memory_of_steps(int(given.child[1]))))
        return
    with gt.config(background=False):
        report("scaling", given, measure)


if __name__ == "__main__":
    main()
