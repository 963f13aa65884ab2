"""Whole loops, undecorated: what automatic compilation costs and gives, compiles included.

    python benchmarks/hotpath.py [--steps 2000] [--json FILE]

For each loop: compiles, total seconds, seconds with GT_AUTO_COMPILE=0, and seconds of the same loop in torch with its
step under torch.compile's defaults. Each runs in a process of its own, so that none finds another's programs; on disk,
Inductor's cache is empty for each as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import gtrace as gt
from gtrace.engine.engine import engine

WIDTH = 64


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


def alone(which: str, loop: str, steps: int, **environment: str) -> dict[str, float]:
    """Run one loop in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--child", which, loop, str(steps)],
            env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "GT_CACHE_DIR": cache} | environment,
            capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def rows(loops: list[str], steps: int) -> Iterator[dict[str, Any]]:
    for loop in loops:
        automatic = alone("ours", loop, steps)
        interpreted = alone("ours", loop, steps, GT_AUTO_COMPILE="0")
        torch_compile = alone("theirs", loop, steps)
        np.testing.assert_allclose(automatic["loss"], interpreted["loss"], rtol=1e-2, atol=1e-5)
        np.testing.assert_allclose(automatic["loss"], torch_compile["loss"], rtol=1e-2, atol=1e-5)
        yield {"loop": LOOPS[loop][0], "automatic": automatic, "interpreted": interpreted, "torch": torch_compile}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--loop", choices=LOOPS, action="append", help="only this one; may be given again")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        which, loop, steps = options.child
        print(json.dumps({"ours": ours, "theirs": theirs}[which](loop, int(steps))))
        return
    found = []
    print(f"| {options.steps} steps of | compiles | total | without compiling | torch.compile |")
    print("|---|---|---|---|---|")
    for row in rows(options.loop or list(LOOPS), options.steps):
        found.append(row)
        seconds = [row[name]["seconds"] for name in ("automatic", "interpreted", "torch")]
        times = " | ".join(f"{value:.2f} s" for value in seconds)
        print(f"| {row['loop']} | {row['automatic']['compiles']} | {times} |", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
