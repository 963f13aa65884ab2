"""What compiling costs across processes: first runs, second runs, and steps while the worker compiles.

    python benchmarks/warmstart.py [--rounds 5] [--long] [--json FILE]

The program is a training step of examples/train_digits.py, undecorated, against the same step in plain torch, under
torch.compile (its caches on disk warm) and under jax.jit (its persistent cache warm). Each figure comes from processes
of its own, peers taking turns.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peers import Row, print_table

ROOT = Path(__file__).resolve().parent.parent
SIZES, BATCH, RATE, DECAY = (64, 1024, 10), 16, 0.02, 1e-3
TINY = (8, 8, 1)
DISTURBANCES = 5
LENGTHS = (50, 200, 2000)
LONG = (20_000, 60_000, 150_000)


def arrays(sizes: tuple[int, ...] = SIZES) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return weights and biases, images and labels, of the digits' shapes."""
    rng = np.random.default_rng(0)
    weights = []
    for m, n in itertools.pairwise(sizes):
        weights += [(rng.normal(size=(m, n)) / np.sqrt(m)).astype(np.float32), np.zeros(n, np.float32)]
    return weights, rng.normal(size=(BATCH, sizes[0])).astype(np.float32), rng.integers(0, sizes[-1], BATCH)


# -- the same step, three times


def gtrace_step() -> Callable[[], float]:
    gt = importlib.import_module("gtrace")
    ws, x, y = arrays()
    state = [gt.array(w) for w in ws]
    x, y = gt.array(x), gt.array(y)

    def loss(ws: Any, x: Any, y: Any) -> Any:
        h = gt.gelu(x @ ws[0] + ws[1]) @ ws[2] + ws[3]
        return -(gt.one_hot(y, 10) * gt.log_softmax(h, axis=-1)).sum(-1).mean()

    def step() -> float:
        nonlocal state
        value, grads = gt.value_and_grad(loss)(state, x, y)
        state = [(1 - RATE * DECAY) * w - RATE * g for w, g in zip(state, grads, strict=True)]
        return float(value)

    return step


def _torch_loss(ws: Any, x: Any, y: Any) -> Any:
    functional = importlib.import_module("torch.nn.functional")
    return functional.cross_entropy(functional.gelu(x @ ws[0] + ws[1], approximate="tanh") @ ws[2] + ws[3], y)


def torch_step() -> Callable[[], float]:
    torch = importlib.import_module("torch")
    ws, x, y = arrays()
    state = [torch.tensor(w, requires_grad=True) for w in ws]
    x, y = torch.tensor(x), torch.tensor(y)

    def step() -> float:
        value = _torch_loss(state, x, y)
        with torch.no_grad():
            for w, g in zip(state, torch.autograd.grad(value, state), strict=True):
                w.mul_(1 - RATE * DECAY).sub_(RATE * g)
        return value.item()

    return step


def compiled_step() -> Callable[[], float]:
    torch = importlib.import_module("torch")
    ws, x, y = arrays()
    state = [torch.tensor(w) for w in ws]
    x, y = torch.tensor(x), torch.tensor(y)

    @torch.compile
    def update(state: Any, x: Any, y: Any) -> Any:
        grads, value = torch.func.grad_and_value(_torch_loss)(state, x, y)
        return value, [(1 - RATE * DECAY) * w - RATE * g for w, g in zip(state, grads, strict=True)]

    def step() -> float:
        nonlocal state
        value, state = update(state, x, y)
        return value.item()

    return step


def jax_step() -> Callable[[], float]:
    jax = importlib.import_module("jax")
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_CACHE"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    ws, x, y = arrays()
    state = [jax.numpy.asarray(w) for w in ws]

    def loss(ws: Any, x: Any, y: Any) -> Any:
        h = jax.nn.gelu(x @ ws[0] + ws[1]) @ ws[2] + ws[3]
        return -(jax.nn.one_hot(y, 10) * jax.nn.log_softmax(h)).sum(-1).mean()

    @jax.jit
    def update(state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state, x, y)
        return value, [(1 - RATE * DECAY) * w - RATE * g for w, g in zip(state, grads, strict=True)]

    def step() -> float:
        nonlocal state
        value, state = update(state, x, y)
        return float(value)

    return step


STEPS: dict[str, Callable[[], Callable[[], float]]] = {
    "gtrace": gtrace_step, "torch": torch_step, "torch.compile": compiled_step, "jax.jit": jax_step,
}  # fmt: skip
LIBRARY = {"gtrace": "gtrace", "torch": "torch", "torch.compile": "torch", "jax.jit": "jax"}


# -- what a child process does


def steps(which: str, count: int) -> dict[str, Any]:
    """Seconds from the import to the end of the first step, and of `count` steps; what the worker did."""
    importlib.import_module(LIBRARY[which])
    if which == "jax.jit":
        importlib.import_module("jax").numpy.zeros(1).block_until_ready()  # the backend starts
    start = time.perf_counter()
    step = STEPS[which]()
    value = step()
    first = time.perf_counter() - start
    for _ in range(count - 1):
        value = step()
    return {"first": first, "total": time.perf_counter() - start, "value": value}


def disturbance(which: str, seconds: int) -> dict[str, Any]:
    """Steps before, while and after the worker compiles the step."""
    gt = importlib.import_module("gtrace")
    worker = importlib.import_module("gtrace.worker.client").worker
    step = STEPS[which]()
    times: dict[str, list[float]] = {"before": [], "while": [], "after": []}
    end = time.perf_counter() + seconds
    with gt.config(auto_compile=False):
        while time.perf_counter() < end:
            start = time.perf_counter()
            step()
            times["before"].append(time.perf_counter() - start)
    with gt.config(hot_threshold=1):
        step()
    while worker.pending:
        start = time.perf_counter()
        step()
        times["while"].append(time.perf_counter() - start)
    for _ in range(2000):
        start = time.perf_counter()
        step()
        times["after"].append(time.perf_counter() - start)
    return {k: [statistics.median(v), max(v[5:]), len(v)] for k, v in times.items()}


def calls(which: str, count: int) -> dict[str, Any]:
    """Microseconds of a call of a jitted training step of a tiny MLP, result not looked at."""
    ws, x, _ = arrays(TINY)
    y = x[:, :1] * 0.5
    if which == "gtrace":
        gt = importlib.import_module("gtrace")

        def step(ws: Any, x: Any, y: Any) -> Any:
            loss = lambda ws: ((gt.tanh(x @ ws[0] + ws[1]) @ ws[2] + ws[3] - y) ** 2).mean()  # noqa: E731
            value, grads = gt.value_and_grad(loss)(ws)
            return [w - 0.01 * g for w, g in zip(ws, grads, strict=True)], value

        update, args = gt.jit(step, wait=True), [[gt.array(w) for w in ws], gt.array(x), gt.array(y)]
        update(*args)
        route = update.lower(*args).route
        executable = route.program.executable
        given = [a.to_torch() for a in (*args[0], *args[1:])]
        raw_inputs = [given[k] for k in route.inputs]
        raw = lambda: executable.run(raw_inputs)  # noqa: E731
    elif which == "torch.compile":
        torch = importlib.import_module("torch")

        def step(ws: Any, x: Any, y: Any) -> Any:
            loss = lambda ws: ((torch.tanh(x @ ws[0] + ws[1]) @ ws[2] + ws[3] - y) ** 2).mean()  # noqa: E731
            grads, value = torch.func.grad_and_value(loss)(ws)
            return [w - 0.01 * g for w, g in zip(ws, grads, strict=True)], value

        update, args = torch.compile(step), [[torch.tensor(w) for w in ws], torch.tensor(x), torch.tensor(y)]
        raw = lambda: update(*args)  # noqa: E731
    else:
        jax = importlib.import_module("jax")

        def step(ws: Any, x: Any, y: Any) -> Any:
            loss = lambda ws: ((jax.numpy.tanh(x @ ws[0] + ws[1]) @ ws[2] + ws[3] - y) ** 2).mean()  # noqa: E731
            value, grads = jax.value_and_grad(loss)(ws)
            return [w - 0.01 * g for w, g in zip(ws, grads, strict=True)], value

        update, args = jax.jit(step), [[jax.numpy.asarray(w) for w in ws], jax.numpy.asarray(x), jax.numpy.asarray(y)]
        raw = lambda: jax.block_until_ready(update(*args))  # noqa: E731
    found = {}
    for name, function in (("call", lambda: update(*args)), ("raw", raw)):
        for _ in range(count):
            function()
        rounds = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(count):
                function()
            rounds.append((time.perf_counter() - start) / count * 1e6)
        found[name] = statistics.median(rounds)
    return found


TASKS: dict[str, Callable[[str, int], dict[str, Any]]] = {"steps": steps, "disturbance": disturbance, "calls": calls}


def child(task: str, which: str, count: int, folder: str) -> dict[str, Any]:
    """Run a task in a process of its own, with its caches in `folder`."""
    environment = os.environ | {
        "GT_CACHE_DIR": f"{folder}/gtrace", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "JAX_CACHE": f"{folder}/jax",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", __file__, "--child", task, which, str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def warm(folder: str) -> None:
    """Fill the caches: gtrace's worker, torch's and jax's persistent ones."""
    child("disturbance", "gtrace", 1, folder)
    for which in ("torch.compile", "jax.jit"):
        child("steps", which, 3, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", action="store_true", help="first processes long enough to compile, too: 5 minutes")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        task, which, count = options.child
        print(json.dumps(TASKS[task](which, int(count))))
        return
    rows: list[Row] = []
    found: Any
    with tempfile.TemporaryDirectory() as folder:
        warm(folder)
        firsts: dict[str, list[float]] = {name: [] for name in ("gtrace", "torch.compile", "jax.jit")}
        for _ in range(options.rounds):
            for name, times in firsts.items():
                times.append(child("steps", name, 1, folder)["first"] * 1e3)
        medians = {name: statistics.median(found) for name, found in firsts.items()}
        what = "second process: import done to first compiled step"
        rows += [(what, medians["gtrace"], "ms", peer, medians[peer]) for peer in ("torch.compile", "jax.jit")]
        tiny = {name: child("calls", name, 2000, folder) for name in firsts}
        for kind, what in (("raw", "raw call of a tiny jitted step"), ("call", "the same through gt.jit")):
            rows += [
                (what, tiny["gtrace"][kind], "us", peer, tiny[peer][kind]) for peer in ("torch.compile", "jax.jit")
            ]
    for count in LENGTHS + LONG * options.long:
        totals: dict[str, list[float]] = {"gtrace": [], "torch": []}
        for _ in range(options.rounds if count in LENGTHS else 1):
            for name, times in totals.items():
                with tempfile.TemporaryDirectory() as folder:
                    times.append(child("steps", name, count, folder)["total"] * 1e3)
        ours, theirs = (statistics.median(totals[name]) for name in totals)
        rows.append((f"first process: {count} steps, caches empty", ours, "ms", "torch eager", theirs))
    print_table(rows)
    runs = []
    for _ in range(DISTURBANCES):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(child("disturbance", "gtrace", 5, folder))
    # of each figure the median over the runs: a machine that others use stops for longer than that now and then
    found = {k: [statistics.median(run[k][j] for run in runs) for j in range(3)] for k in runs[0]}
    before, during = found["before"], found["while"]
    print(f"\nsteps while the worker compiles: median {during[0] * 1e3:.2f} ms, {during[0] / before[0]:.2f} of the"
          f" undisturbed {before[0] * 1e3:.2f} ms; longest {during[1] * 1e3:.1f} ms (undisturbed"
          f" {before[1] * 1e3:.1f} ms); {during[2]:.0f} steps; compiled {found['after'][0] * 1e3:.2f} ms")  # fmt: skip
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "disturbance": found}, file, indent=2)


if __name__ == "__main__":
    main()
