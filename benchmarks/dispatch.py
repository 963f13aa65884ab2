"""What a call costs: recording, a jitted step, the same step undecorated, and importing, beside torch and JAX.

    python benchmarks/dispatch.py [--quick] [--rounds 30] [--json FILE]

One thread. The step is the value and the gradients of a tiny MLP.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
from measuring.harness import interleave, measure
from measuring.libraries import add_sides, available
from measuring.processes import environment
from measuring.results import Figure, parser, report, rounds
from workloads import tiny_value_and_grad

import gtrace as gt

CHAIN = 500
IMPORTS = 9


def recording(count: int) -> list[Figure]:
    """Seconds an operation in a chain of elementwise operations on 4 elements."""
    x, y = gt.array([1.0, 2.0, 3.0, 4.0]), gt.array([1.0, 0.5, 1.0, 2.0])
    tx, ty = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 0.5, 1.0, 2.0])

    def record() -> None:
        # nobody looks at the chain: what was recorded dies with `z`
        z = x
        for _ in range(CHAIN // 2):
            z = z + y
            z = z * y

    def drop() -> None:
        record()
        gt.eval(x + y)  # ends what is pending: the recorder would take a chain of thousands for a loop

    def eager() -> None:
        z = tx
        for _ in range(CHAIN // 2):
            z = z + ty
            z = z * ty

    with gt.config(auto_compile=False, max_pending=10**9):
        times = interleave({"gtrace": drop, "torch eager": eager}, count)
    return [
        Figure("record one elementwise operation (torch: run it)", side, tuple(value / CHAIN for value in samples))
        for side, samples in times.items()
    ]


def importing(count: int) -> list[Figure]:
    """Seconds of a fresh process that imports torch, and what gtrace adds to one."""
    times: dict[str, list[float]] = {"import torch": [], "import torch, gtrace": []}
    for _ in range(count):
        for statement, values in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True, env=environment())
            values.append(time.perf_counter() - start)
    bare, both = times.values()
    added = tuple(b - a for a, b in zip(bare, both, strict=True))
    return [
        Figure("import, beside torch", "gtrace", added),
        Figure("import, beside torch", "torch itself", tuple(bare)),
    ]


def measure_all(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    sides, left_out = available(options.sides)
    count = rounds(options)
    return [
        *recording(count),
        *measure(tiny_value_and_grad(), sides, count),
        *importing(1 if options.quick else IMPORTS),
    ], left_out


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 30)
    add_sides(options)
    given = options.parse_args(argv)
    torch.set_num_threads(1)
    with gt.config(background=False):  # nothing compiles beside what is timed
        report("dispatch", given, measure_all)


if __name__ == "__main__":
    main()
