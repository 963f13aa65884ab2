"""What compiling costs across processes: first runs, second runs, and steps while the worker compiles.

    python benchmarks/warmstart.py [--quick] [--rounds 5] [--long] [--json FILE]

The program is a training step of examples/train_digits.py, undecorated, against the same step in plain torch, under
torch.compile (its caches on disk warm) and under jax.jit (its persistent cache warm). Each figure comes from processes
of its own, peers taking turns.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring.libraries import available, functional
from measuring.machine import installed
from measuring.processes import child
from measuring.results import Figure, add_parts, measure_parts, parser, report, rounds

from gtrace import tree

SIZES, BATCH, RATE, DECAY = (64, 1024, 10), 16, 0.02, 1e-3
TINY = (8, 8, 1)
DISTURBANCES, DISTURBANCE_SECONDS = 5, 5
LENGTHS = (50, 200, 2000)
LONG = (20_000, 60_000, 150_000)
CALLS = 2000


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
    worker = importlib.import_module("gtrace.core.runtime.worker.client").worker
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
    return {k: [statistics.median(v), max(v[5:] or v), len(v)] for k, v in times.items()}


def tiny_step(lib: Any, value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    """Return a training step of a tiny MLP, the same text for every library."""

    def loss(ws: Any, x: Any, y: Any) -> Any:
        return ((lib.tanh(x @ ws[0] + ws[1]) @ ws[2] + ws[3] - y) ** 2).mean()

    def step(ws: Any, x: Any, y: Any) -> Any:
        value, grads = value_and_grad(loss)(ws, x, y)
        return [w - 0.01 * g for w, g in zip(ws, grads, strict=True)], value

    return step


def calls(which: str, count: int) -> dict[str, Any]:
    """Seconds of calls of a tiny MLP's jitted training step: as users call it, and without what jit does around it."""
    side = next(one for one in available([{"gtrace": "gt.jit"}.get(which, which)])[0])
    lib = side.names()
    gradients = functional if which == "torch.compile" else lib.value_and_grad
    ws, x, _ = arrays(TINY)
    args = tree.map(side.convert, [ws, x, x[:, :1] * 0.5])
    update = side.wrap(tiny_step(lib.np, gradients))
    update(*args)
    raw = lambda: side.wait(update(*args))  # noqa: E731
    if which == "gtrace":
        route = update.lower(*args).route
        executable = route.program.forms.executable
        given = [a.to_torch() for a in tree.leaves(args)]
        raw_inputs = [given[k] for k in route.inputs]
        raw = lambda: executable.run(raw_inputs)  # noqa: E731
    found = {}
    for name, function in (("call", lambda: update(*args)), ("raw", raw)):
        for _ in range(count):
            function()
        samples = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(count):
                function()
            samples.append((time.perf_counter() - start) / count)
        found[name] = samples
    return found


TASKS: dict[str, Callable[[str, int], dict[str, Any]]] = {"steps": steps, "disturbance": disturbance, "calls": calls}


def run(task: str, which: str, count: int, folder: str | Path) -> dict[str, Any]:
    """Run a task in a process of its own, with its caches in `folder`."""
    return child(__file__, (task, which, count), folder)


def second_processes(options: argparse.Namespace) -> list[Figure]:
    """Processes that find what others compiled."""
    with tempfile.TemporaryDirectory() as folder:
        run("disturbance", "gtrace", 1, folder)
        names = [name for name in ("gtrace", "torch.compile", "jax.jit") if installed(LIBRARY[name])]
        for name in names[1:]:
            run("steps", name, 3, folder)
        firsts: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds(options)):
            for name, times in firsts.items():
                times.append(run("steps", name, 1, folder)["first"])
        tiny = {name: run("calls", name, 20 if options.quick else CALLS, folder) for name in names}
    what = "second process: import done to first compiled step"
    return [
        *(Figure(what, name, tuple(times)) for name, times in firsts.items()),
        *(Figure("raw call of a tiny jitted step", name, tuple(tiny[name]["raw"])) for name in names),
        *(Figure("the same through gt.jit", name, tuple(tiny[name]["call"])) for name in names),
    ]


def first_processes(options: argparse.Namespace) -> list[Figure]:
    """Processes that begin with empty caches."""
    figures = []
    for count in LENGTHS[:1] if options.quick else LENGTHS + LONG * options.long:
        totals: dict[str, list[float]] = {"gtrace": [], "torch": []}
        for _ in range(rounds(options) if count in LENGTHS else 1):
            for name, times in totals.items():
                with tempfile.TemporaryDirectory() as folder:
                    times.append(run("steps", name, count, folder)["total"])
        figures += [
            Figure(f"first process: {count:,} steps, caches empty", "torch eager" if name == "torch" else name, times)
            for name, times in totals.items()
        ]
    return figures


def disturbances(options: argparse.Namespace) -> list[Figure]:
    """Steps before, while and after the worker compiles; medians over several runs, because machines stall."""
    runs = []
    for _ in range(1 if options.quick else DISTURBANCES):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run("disturbance", "gtrace", 1 if options.quick else DISTURBANCE_SECONDS, folder))
    labels = {"before": "undisturbed step", "while": "step while the worker compiles", "after": "compiled step"}
    return [
        Figure(label, "gtrace", tuple(one[key][0] for one in runs), details={
            "longest, s": statistics.median(one[key][1] for one in runs),
            "steps, count": statistics.median(one[key][2] for one in runs),
        })
        for key, label in labels.items()
    ]  # fmt: skip


PARTS: dict[str, Callable[[argparse.Namespace], list[Figure]]] = {
    "second": second_processes, "first": first_processes, "disturbance": disturbances,
}  # fmt: skip


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    _, left_out = available(["jax.jit"])
    return measure_parts(options, PARTS, options), left_out


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 5)
    options.add_argument("--long", action="store_true", help="first processes long enough to compile, too: 5 minutes")
    add_parts(options, PARTS)
    options.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        task, which, count = given.child
        print(json.dumps(TASKS[task](which, int(count))))
        return
    report("warmstart", given, measure)


if __name__ == "__main__":
    main()
