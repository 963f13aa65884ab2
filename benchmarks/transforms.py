"""What composed transforms cost, jitted, beside torch.func under torch.compile, and JAX.

    python benchmarks/transforms.py [--quick] [--rounds 15] [--json FILE]

Per-example gradients of an MLP, a Hessian, and a recurrent network of 1,000 steps with its gradient. All sides get one
core. The first call includes the compile.

Captures are measured undecorated, beside recording once the operations of the captured function (of both, for `cond`).
The function runs each time, and nothing that is recorded is run.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable, Sequence

import torch
from measuring.harness import Workload, interleave, measure
from measuring.libraries import add_sides, available
from measuring.results import Figure, parser, report, rounds
from workloads import hessian, per_example_gradients, recurrent

import gtrace as gt
from gtrace.core.trace.record import Trace, thread

CASES: dict[str, tuple[Callable[..., Workload], tuple[int, ...]]] = {
    "per_example": (per_example_gradients, (8, 4)), "hessian": (hessian, (8,)), "recurrent": (recurrent, (10, 2, 4)),
}  # fmt: skip
"""Workloads, and the arguments of their quick forms."""

CAPTURES = "captures"
REPEATS = 20
"""Of a capture in a round."""


def captures(count: int) -> list[Figure]:
    """Seconds of undecorated transforms that capture functions of 15 operations."""
    x, rows, true = gt.array([1.0, 2.0, 3.0, 4.0]), gt.eval(gt.ones((8, 4))), gt.array(True)

    def body(v: gt.Array) -> gt.Array:
        y = v
        for _ in range(5):
            y = gt.tanh(y * 2.0) + v
        return y

    def other(v: gt.Array) -> gt.Array:
        y = v
        for _ in range(5):
            y = gt.sin(y * 3.0) - v
        return y

    def step(carry: gt.Array, row: gt.Array) -> tuple[gt.Array, gt.Array]:
        return body(carry) + row, carry

    @gt.custom_vjp
    def custom(v: gt.Array) -> gt.Array:
        return body(v)

    custom.defvjp(lambda v: (body(v), v), lambda v, ct: (ct * v,))
    batched, checkpointed = gt.vmap(body), gt.checkpoint(body)
    gradient = gt.grad(lambda v: body(v).sum())
    cases: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
        "vmap": (lambda: batched(rows), lambda: body(x)),
        "scan": (lambda: gt.scan(step, x, rows), lambda: step(x, x)),
        "cond": (lambda: gt.cond(true, body, other, x), lambda: (body(x), other(x))),
        "gradient of checkpoint": (gt.grad(lambda v: checkpointed(v).sum()), gradient),
        "gradient of custom_vjp": (gt.grad(lambda v: custom(v).sum()), lambda v: (body(v).sum(), v * v)),
    }

    def repeated(record: Callable[..., object], *args: gt.Array) -> Callable[[], None]:
        def run() -> None:
            thread.trace = Trace()  # what was recorded before is dropped, and never run
            for _ in range(REPEATS):
                record(*args)

        return run

    figures = []
    gc.disable()
    with gt.config(auto_compile=False, max_pending=10**9):
        for name, (capture, alone) in cases.items():
            args = (x,) if name.startswith("gradient") else ()
            sides = {"gtrace": repeated(capture, *args), "the operations alone": repeated(alone, *args)}
            for side, samples in interleave(sides, count).items():
                figures.append(Figure(f"capture, {name}", side, tuple(value / REPEATS for value in samples)))
            gc.collect()
    gc.enable()
    return figures


def measure_all(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sides, left_out = available(options.sides)
    figures = []
    for name in options.case or (*CASES, CAPTURES):
        if name == CAPTURES:
            figures += captures(rounds(options))
            continue
        make, quick = CASES[name]
        figures += measure(make(*quick) if options.quick else make(), sides, rounds(options))
    return figures, left_out


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 15)
    add_sides(options, ["gt.jit", "torch eager", "torch.compile", "torch.compile of torch.func", "jax.jit"])
    options.add_argument("--case", choices=(*CASES, CAPTURES), nargs="+", action="extend", help="only these")
    given = options.parse_args(argv)
    with gt.config(background=False):  # nothing compiles beside what is timed
        report("transforms", given, measure_all)


if __name__ == "__main__":
    main()
