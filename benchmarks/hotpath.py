"""Whole loops, undecorated: what automatic compilation costs and gives, compiles included.

    python benchmarks/hotpath.py [--quick] [--steps 2000] [--loop NAME] [--rounds 1] [--json FILE]

For each loop: compiles, total seconds, seconds with GT_AUTO_COMPILE=0, and seconds of the same loop in torch with its
step under torch.compile's defaults. Each runs in a process of its own with empty caches, on one thread, so that none
finds another's programs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from measuring.processes import child
from measuring.results import BenchmarkError, Figure, parser, report, rounds

import gtrace as gt
from gtrace.core.runtime.engine import engine

WIDTH = 64
AGREEMENT = 1e-2
"""Last losses differ by less, as a part of the first."""


def data(batch: int = 128) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, WIDTH)).astype(np.float32)
    return x, np.tanh(x @ rng.normal(size=(WIDTH, 1)).astype(np.float32) * 0.1)


def weights(layers: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    sizes = [WIDTH] * (layers + 1) + [1]
    return [(rng.normal(size=(m, n)) / np.sqrt(m)).astype(np.float32) for m, n in itertools.pairwise(sizes)]


def forward(lib: Any, ws: Any, x: Any, y: Any) -> Any:
    for w in ws[:-1]:
        x = lib.tanh(x @ w)
    return ((x @ ws[-1] - y) ** 2).mean()


Schedule = Callable[[int], tuple[float, int]]
"""From the step to the learning rate and the batch size."""

LOOPS: dict[str, tuple[str, int, Schedule, int]] = {
    "fixed": ("the same step, the loss read every time", 2, lambda k: (0.1, 128), 1),
    "rate": ("a learning rate that changes every step", 2, lambda k: (0.1 / (1 + 0.01 * k), 128), 1),
    "blind": ("a loss that is never read", 2, lambda k: (0.1, 128), 0),
    "batches": ("ten batch sizes in turn", 2, lambda k: (0.1, 64 + 8 * (k % 10)), 1),
    "deep": ("32 layers, unrolled", 32, lambda k: (0.01, 128), 1),
}
"""Description, layers, schedule, and every how many steps the loss is read (0: never)."""


def ours(loop: str, steps: int) -> dict[str, float]:
    _, layers, schedule, look = LOOPS[loop]
    x, y = map(gt.array, data())
    ws = [gt.array(w) for w in weights(layers)]
    step = gt.value_and_grad(lambda ws, x, y: forward(gt, ws, x, y))
    loss = None
    start = time.perf_counter()
    for k in range(steps):
        rate, batch = schedule(k)
        loss, grads = step(ws, x[:batch], y[:batch])
        ws = [w - rate * g for w, g in zip(ws, grads, strict=True)]
        if look and k % look == 0:
            float(loss)
    gt.eval(ws)
    return {"seconds": time.perf_counter() - start, "compiles": engine.tiering.compiles, "loss": float(loss or 0.0)}


def theirs(loop: str, steps: int) -> dict[str, float]:
    _, layers, schedule, look = LOOPS[loop]
    x, y = map(torch.tensor, data())
    ws = [torch.tensor(w, requires_grad=True) for w in weights(layers)]

    @torch.compile
    def compiled(ws: Any, x: Any, y: Any) -> Any:
        return forward(torch, ws, x, y)

    loss = torch.zeros(())
    start = time.perf_counter()
    for k in range(steps):
        rate, batch = schedule(k)
        loss = compiled(ws, x[:batch], y[:batch])
        grads = torch.autograd.grad(loss, ws)
        with torch.no_grad():
            for w, g in zip(ws, grads, strict=True):
                w -= rate * g
        if look and k % look == 0:
            loss.item()
    return {"seconds": time.perf_counter() - start, "compiles": 0, "loss": loss.item()}


SIDES: dict[str, tuple[str, dict[str, str]]] = {
    "gtrace": ("ours", {}),
    "gtrace, not compiling": ("ours", {"GT_AUTO_COMPILE": "0"}),
    "torch.compile": ("theirs", {}),
}
"""What the process of a side runs, and its settings."""


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    steps = 20 if options.quick else options.steps
    figures = []
    for loop in options.loop or LOOPS:
        found: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
        for _ in range(rounds(options)):
            for side, runs in found.items():
                which, environment = SIDES[side]
                with tempfile.TemporaryDirectory() as folder:
                    runs.append(child(__file__, (which, loop, steps), folder, **environment))
        losses = {side: runs[0]["loss"] for side, runs in found.items()}
        first = next(iter(losses.values()))
        for side, loss in losses.items():
            if not abs(loss - first) <= AGREEMENT * max(abs(first), 1e-3):
                raise BenchmarkError(f"{LOOPS[loop][0]}: {side} ends with loss {loss}, the first side with {first}.")
        for side, runs in found.items():
            details = {"compiles, count": max(run["compiles"] for run in runs)} if side == "gtrace" else {}
            samples = tuple(run["seconds"] for run in runs)
            figures.append(Figure(f"{steps:,} steps: {LOOPS[loop][0]}", side, samples, details=details))
    return figures, []


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 1)
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--loop", choices=LOOPS, nargs="+", action="extend", help="only these")
    options.add_argument("--sides", metavar="SIDE", nargs="+", choices=SIDES, default=list(SIDES),
                         help=f"some of: {', '.join(SIDES)}")  # fmt: skip
    options.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        torch.set_num_threads(1)
        which, loop, steps = given.child
        print(json.dumps({"ours": ours, "theirs": theirs}[which](loop, int(steps))))
        return
    report("hotpath", given, measure)


if __name__ == "__main__":
    main()
