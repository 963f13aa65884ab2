"""What composed transforms cost, jitted, beside torch.func under torch.compile, and JAX.

    python benchmarks/transforms.py [--quick] [--rounds 15] [--json FILE]

Per-example gradients of an MLP, a Hessian, and a recurrent network of 1,000 steps with its gradient. All sides get one
core. The first call includes the compile.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

import torch
from workloads import hessian, per_example_gradients, recurrent

import gtrace as gt
from gtrace.bench.harness import Workload, measure
from gtrace.bench.libraries import add_sides, available
from gtrace.bench.results import Figure, parser, report, rounds

CASES: dict[str, tuple[Callable[..., Workload], tuple[int, ...]]] = {
    "per_example": (per_example_gradients, (8, 4)), "hessian": (hessian, (8,)), "recurrent": (recurrent, (10, 2, 4)),
}  # fmt: skip
"""Workloads, and the arguments of their quick forms."""


def measure_all(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sides, left_out = available(options.sides)
    figures = []
    for name in options.case or CASES:
        make, quick = CASES[name]
        figures += measure(make(*quick) if options.quick else make(), sides, rounds(options))
    return figures, left_out


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 15)
    add_sides(options, ["gt.jit", "torch eager", "torch.compile", "torch.compile of torch.func", "jax.jit"])
    options.add_argument("--case", choices=CASES, nargs="+", action="extend", help="only these")
    given = options.parse_args(argv)
    with gt.config(background=False):  # nothing compiles beside what is timed
        report("transforms", given, measure_all)


if __name__ == "__main__":
    main()
