"""Whole training runs of real models, first steps included: gtrace against torch and JAX.

    python benchmarks/models.py [--quick] [--model transformer lstm cnn] [--steps 20] [--rounds 1] [--json FILE]

Each run is a process of its own that reads back the loss of every step, sides taking turns; imports are not counted.
"cold" runs begin with empty caches of compiled code, "warm" ones with those of the run before. Losses are compared.

The transformer has width 256, 4 heads, batch 8, sequence 128 and vocabulary 1024; the LSTM has width 128, batch 32 and
sequence 64; the CNN has six convolutions, 32 to 128 wide, of 64 images of 32 by 32. Others, on demand: a Llama of four
layers of the transformer's sizes, with 8 heads of queries and 2 of keys; a convolutional VAE of 64 images of 28 by 28;
and a small transformer, of 4 layers, width 128 and 4 sequences of 64. All are trained by Adam. torch's
models use its own layers (layer_norm, scaled_dot_product_attention, nn.LSTM, conv2d, cross_entropy) and its fused
optimizer. The arrays that a run begins with are made before it is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from measuring.libraries import EAGER, JITTED, UNDECORATED, Function, Names, Side, available
from measuring.processes import child
from measuring.results import BenchmarkError, Figure, parser, report, rounds
from networks import Cnn, Llama, Lstm, Transformer, Vae, fused_adam, training_step

from gtrace import eval as wait
from gtrace import jit, tree

CONTESTANTS = ("gtrace", "gtrace, not compiling", "gt.jit", "gt.jit, wait=True", "torch", "torch.compile", "jax.jit")
MODELS = ("transformer", "lstm", "cnn")
OTHERS = ("llama", "vae", "small transformer")
AGREEMENT, AGREED_STEPS = 1e-2, 10
"""Losses of all runs differ by less, as a part of the largest, in so many steps; later, rounding grows."""

Step = Callable[[], float]
Model = Transformer | Lstm | Cnn | Llama | Vae


def model(name: str, layers: int, quick: bool) -> Model:
    """Return a model, small if `quick`."""
    if name == "transformer":
        return Transformer(1, 32, 2, 2, 16, 64) if quick else Transformer(layers)
    if name == "small transformer":
        return Transformer(1, 16, 2, 2, 8, 32) if quick else Transformer(4, 128, 4, 4, 64, 256)
    if name == "llama":
        return Llama(1, 32, 4, 2, 2, 16, 64) if quick else Llama()
    if name == "vae":
        return Vae(4, 4, 8) if quick else Vae()
    if name == "cnn":
        return Cnn((4, 8), 4, 8) if quick else Cnn()
    return Lstm(8, 4, 5) if quick else Lstm()


def side_of(which: str) -> Side:
    """Return the side of gtrace or JAX that a contestant is."""
    if which == "jax.jit":
        return available([which])[0][0]
    return JITTED if "jit" in which else UNDECORATED


def with_moments(lib: Names, p: Any) -> list[Any]:
    """Return the state of a training step with Adam."""
    zeros = lib.tree.map(lib.np.zeros_like, p)
    return [p, zeros, zeros]


def functional(
    which: str, program: Callable[[Names], Function], arrays: Sequence[Any],
    state_of: Callable[[Names, Any], list[Any]] = with_moments, batches: int = 0,
) -> Step:  # fmt: skip
    """Return a step of gtrace or JAX, with its state.

    Args:
        program: from a library's names to a step from its state, its number and data to its state and the loss.
        arrays: parameters and data.
        state_of: from the parameters to the state that training begins with.
        batches: along the first axis of the data, taken in turn; 0: the data are one batch.
    """
    side = side_of(which)
    lib = side.names()
    update = program(lib)
    step: Any = update
    if which == "gt.jit":
        step = jit(update)
    elif side is not UNDECORATED:
        step = side.wrap(update)
    parameters, data = arrays
    given = [side.convert(a) for a in data]
    state, count = state_of(lib, tree.map(side.convert, parameters)), 0

    def run() -> float:
        nonlocal state, count
        batch = [a[count % batches] for a in given] if batches else given
        count += 1
        *state, value = step(*state, float(count) if side is UNDECORATED else number(side, count), *batch)
        if side is UNDECORATED:
            wait(state, value)
        return float(value)

    return run


def number(side: Side, value: int) -> Any:
    """Return a number as an array: an argument of a jitted function that changes."""
    return side.convert(np.float32(value))


def torch_training(loss: Function, parameters: Sequence[torch.Tensor], limit: float | None = None) -> Function:
    """Return a training step of torch from data to the loss.

    Args:
        limit: on the norm of all gradients.
    """
    optimizer = fused_adam(parameters)

    def step(*data: Any) -> float:
        value = loss(*data)
        optimizer.zero_grad()
        value.backward()
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        return value.item()

    return step


def torch_arrays(arrays: Sequence[Any]) -> tuple[Any, list[torch.Tensor]]:
    """Return torch's parameters and data."""
    parameters, data = arrays
    p = tree.map(lambda a: torch.nn.Parameter(torch.from_numpy(a.copy())), parameters)
    return p, [torch.from_numpy(a) for a in data]


def torch_step(which: str, made: Model, arrays: Sequence[Any]) -> Step:
    """Return a step of torch, with its state."""
    p, data = torch_arrays(arrays)
    if not isinstance(made, Lstm):
        parameters = tree.leaves(p)
        loss = lambda x, y: made.torch_loss(EAGER.names(), p, x, y)  # noqa: E731
    else:
        lstm = made.torch_layer(p)
        parameters = [one for one in lstm.parameters() if one.requires_grad] + [p["out"]]

        def loss(x: Any, y: Any) -> Any:
            _, (h, _) = lstm(x)
            return ((h[0] @ p["out"] - y) ** 2).mean()

    step = torch_training(torch.compile(loss) if which == "torch.compile" else loss, parameters)
    return lambda: step(*data)


def train(which: str, name: str, steps: int, quick: bool, layers: int) -> dict[str, Any]:
    """Train for some steps; returns the losses and the seconds of the steps."""
    made = model(name, layers, quick)
    arrays = made.parameters(), made.data()
    if which.startswith("torch"):
        return timed(which, lambda: torch_step(which, made, arrays), steps)
    return timed(which, lambda: functional(which, lambda lib: training_step(lib, made.loss), arrays), steps)


def timed(which: str, step_of: Callable[[], Step], steps: int) -> dict[str, Any]:
    """Return the losses and the seconds of some steps, the first with the arrays' conversion."""
    if which == "jax.jit":  # as torch and gtrace are: imported, and the backend started
        side_of(which).convert(np.zeros(1))
    start = time.perf_counter()
    step = step_of()
    losses, seconds = [], []
    for _ in range(steps):
        losses.append(step())
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    return {"losses": losses, "seconds": seconds}


def figures_of(what: str, which: str, caches: str, runs: Sequence[dict[str, Any]]) -> Figure:
    """Return the whole runs as samples, and what their steps took."""
    times = [run["seconds"] for run in runs]
    details = {
        "first step, s": statistics.median(s[0] for s in times),
        "median of the last half, s": statistics.median(statistics.median(s[len(s) // 2 :]) for s in times),
        "longest later, s": statistics.median(max(s[1:]) for s in times),
    }
    return Figure(f"{what}, {caches}", which, tuple(sum(s) for s in times), details=details)


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    return whole_runs(__file__, options, (options.layers,))


def whole_runs(
    file: str, options: argparse.Namespace, further: Sequence[object] = (), loose: Mapping[str, float] | None = None
) -> tuple[list[Figure], list[str]]:
    """Return the figures of whole training runs, each a process of its own, and what was left out.

    Args:
        file: that is run, with the contestant, the model, the number of steps, and whether it is quick.
        further: arguments.
        loose: agreement of losses, for models of which less than `AGREEMENT` is asked.
    """
    _, left_out = available(["jax.jit"])
    contestants = [which for which in options.only if which != "jax.jit" or not left_out]
    figures = []
    for name in options.model:
        for steps in options.steps:
            found: dict[tuple[str, str], list[dict[str, Any]]] = {}
            for _ in range(rounds(options)):
                for which in contestants:
                    environment = {"GT_AUTO_COMPILE": "0"} if which == "gtrace, not compiling" else {}
                    arguments = (which, name, steps, int(options.quick), *further)
                    with tempfile.TemporaryDirectory() as folder:
                        for caches in options.caches:
                            run = child(file, arguments, folder, **environment)
                            found.setdefault((caches, which), []).append(run)
            what = f"{name}, {steps} steps"
            agree(what, found, (loose or {}).get(name, AGREEMENT))
            for caches in options.caches:
                figures += [figures_of(what, which, caches, found[caches, which]) for which in contestants]
    return figures, left_out


def agree(what: str, found: dict[tuple[str, str], list[dict[str, Any]]], agreement: float = AGREEMENT) -> None:
    """Refuse to report runs that trained something else.

    Raises:
        BenchmarkError: losses differ.
    """
    losses = np.array([run["losses"][:AGREED_STEPS] for runs in found.values() for run in runs])
    spread = float(np.abs(losses - losses[0]).max() / np.abs(losses[0]).max())
    if not spread <= agreement:
        raise BenchmarkError(f"{what}: losses differ by {spread:.1e} of the largest, more than {agreement:.0e}.")


def training_parser(
    doc: str | None, models: Sequence[str], others: Sequence[str] = (), contestants: Sequence[str] = CONTESTANTS
) -> argparse.ArgumentParser:
    """Return a parser of options for whole training runs of models, and of others on demand."""
    options = parser(doc, 1)
    options.add_argument("--model", nargs="+", default=models, choices=(*models, *others))
    options.add_argument("--steps", nargs="+", type=int, default=[20])
    options.add_argument("--caches", nargs="+", default=["cold", "warm"], choices=["cold", "warm"])
    options.add_argument("--only", nargs="+", default=contestants, choices=contestants)
    options.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = training_parser(__doc__, MODELS, OTHERS)
    options.add_argument("--layers", type=int, default=6)
    given = options.parse_args(argv)
    if given.child:
        which, name, *numbers = given.child
        steps, quick, layers = map(int, numbers)
        print(json.dumps(train(which, name, steps, bool(quick), layers)))
        return
    if min(given.steps) < 2:
        options.error(f"expected at least 2 steps, got {min(given.steps)}")
    report("models", given, measure)


if __name__ == "__main__":
    main()
