"""What programs of several processes send, against the least that each strategy has to, and what dividing them costs.

    python benchmarks/sharding.py [--quick] [--rounds 20] [--json FILE]

Nothing is sent: programs are divided for processes that do not exist. The least: a sum over n processes takes
2 (n - 1) / n of its bytes; parameters that are split are gathered, for the forward and for the backward pass, and their
gradients arrive in parts: 3 (n - 1) / n.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from measuring.results import Figure, parser, report, rounds

import gtrace as gt
from gtrace.core.partitioner import processes
from gtrace.core.partitioner.partitioned import DividedRecord, Partitioned
from gtrace.core.partitioner.stages import divide
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.transform.eval_shape import capture_like
from gtrace.sharding import Mesh, NamedSharding, P

WHOLE = P()
BATCH, SIZES = 256, (64, 1024, 1024, 10)
PROCESSES = (4, 64, 1024)


def loss(layers: Any, x: gt.Array, y: gt.Array) -> gt.Array:
    for layer in layers[:-1]:
        x = gt.gelu(x @ layer["w"] + layer["b"])
    scores = gt.log_softmax(x @ layers[-1]["w"] + layers[-1]["b"], axis=-1)
    return -(gt.one_hot(y, SIZES[-1]) * scores).sum(-1).mean()


def step(layers: Any, means: Any, x: gt.Array, y: gt.Array) -> Any:
    value, grads = gt.value_and_grad(loss)(layers, x, y)
    means = gt.tree_map(lambda m, g: 0.9 * m + g, means, grads)
    return gt.tree_map(lambda p, m: p - 0.02 * m, layers, means), means, value


def arguments(mesh: Mesh, data: P, weights: P, biases: P) -> tuple[Any, ...]:
    """Return the arguments of `step`, without values."""

    def array(shape: tuple[int, ...], spec: P, dtype: str = "float32") -> gt.ShapeDtypeStruct:
        return gt.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    layers = [{"w": array((m, n), weights), "b": array((n,), biases)} for m, n in pairwise(SIZES)]
    return layers, layers, array((BATCH, SIZES[0]), data), array((BATCH,), data, "int64")


def digits_arguments(mesh: Mesh) -> tuple[Any, ...]:
    """Return the arguments of a training step of the digits model, data parallel."""

    def array(shape: tuple[int, ...], spec: P = WHOLE, dtype: str = "float32") -> gt.ShapeDtypeStruct:
        return gt.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    layers = [{"w": array((m, n)), "b": array((n,))} for m, n in pairwise((64, 1024, 10))]
    return layers, layers, array((64, 64), P("data")), array((64,), P("data"), "int64")


HEADS, WIDTH, LAYERS, CLASSES = 4, 64, 6, 100


def block(p: Any, x: gt.Array) -> gt.Array:
    """One layer of a transformer."""
    batch, length, _ = x.shape

    def normalized(x: gt.Array, scale: gt.Array) -> gt.Array:
        return (x - x.mean(-1, keepdims=True)) / gt.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale

    h = normalized(x, p["scale_1"])
    q, k, v = (
        gt.permute_dims((h @ p[name]).reshape(batch, length, HEADS, WIDTH // HEADS), (0, 2, 1, 3)) for name in "qkv"
    )
    mixed = gt.softmax(q @ k.mT / (WIDTH // HEADS) ** 0.5, axis=-1) @ v
    x = x + gt.permute_dims(mixed, (0, 2, 1, 3)).reshape(batch, length, WIDTH) @ p["o"]
    return x + gt.gelu(normalized(x, p["scale_2"]) @ p["up"]) @ p["down"]


def transformer_step(params: Any, means: Any, x: gt.Array, y: gt.Array) -> Any:
    def loss(params: Any) -> gt.Array:
        h = x
        for layer in params["layers"]:
            h = block(layer, h)
        scores = gt.log_softmax(h @ params["head"], axis=-1)
        return -(gt.one_hot(y, CLASSES) * scores).sum(-1).mean()

    value, grads = gt.value_and_grad(loss)(params)
    means = gt.tree_map(lambda m, g: 0.9 * m + g, means, grads)
    return gt.tree_map(lambda p, m: p - 0.02 * m, params, means), means, value


def transformer_arguments(mesh: Mesh) -> tuple[Any, ...]:
    """Return the arguments of a step of a transformer of 6 layers, its batch and its products divided."""

    def array(shape: tuple[int, ...], spec: P = WHOLE, dtype: str = "float32") -> gt.ShapeDtypeStruct:
        return gt.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    layer = {
        "scale_1": array((WIDTH,)), "scale_2": array((WIDTH,)), "o": array((WIDTH, WIDTH), P("model")),
        "up": array((WIDTH, 4 * WIDTH), P(None, "model")), "down": array((4 * WIDTH, WIDTH), P("model")),
        **{name: array((WIDTH, WIDTH), P(None, "model")) for name in "qkv"},
    }  # fmt: skip
    params = {"layers": [layer] * LAYERS, "head": array((WIDTH, CLASSES))}
    return params, params, array((16, 32, WIDTH), P("data")), array((16, 32), P("data"), "int64")


def divided(function: Any, args: tuple[Any, ...], count: int) -> tuple[list[float], list[float]]:
    """Return the processor seconds of dividing a captured step, and of reading what an earlier run has kept of it."""
    mesh = args[2].sharding.mesh
    with processes.pretend(mesh.size):
        graph = CANONICAL.run(capture_like("plan", function, args, {}).graph)
    first, again = [], []
    for _ in range(count):
        start = time.process_time()
        made = divide(graph, mesh.size, 0)
        first.append(time.process_time() - start)
        text = made.to_record("name").to_json()
        start = time.process_time()
        Partitioned.from_record(DividedRecord.from_json(text))
        again.append(time.process_time() - start)
    return first, again


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    size = sum(4 * (m * n + n) for m, n in pairwise(SIZES))
    figures = []
    for n in PROCESSES[:1] if options.quick else PROCESSES:
        mesh = Mesh(range(n), "data")
        strategies = {
            "data parallel": (arguments(mesh, P("data"), P(), P()), 2 * (n - 1) / n * size),
            "fully sharded": (arguments(mesh, P("data"), P("data"), P("data")), 3 * (n - 1) / n * size),
        }
        for name, (args, least) in strategies.items():
            seconds, plan = [], None
            for _ in range(rounds(options)):
                start = time.perf_counter()
                plan = gt.sharding.plan(step, *args)
                seconds.append(time.perf_counter() - start)
            assert plan is not None
            details = {"sent, bytes": float(plan.moved), "of the least, x": plan.moved / least}
            figures.append(Figure(f"plan a step, {name}, {n:,} processes", "gtrace", seconds, details=details))
    steps = {
        "digits": (step, digits_arguments(Mesh(range(4), "data"))),
        "transformer, 6 layers": (transformer_step, transformer_arguments(Mesh([[0, 1], [2, 3]], ("data", "model")))),
    }
    for name, (function, args) in steps.items():
        first, again = divided(function, args, rounds(options))
        figures.append(Figure(f"divide a step of {name}, processor time", "gtrace", first))
        figures.append(Figure(f"the same, read in a second run: {name}", "gtrace", again))
    return figures, []


def main(argv: Sequence[str] | None = None) -> None:
    report("sharding", parser(__doc__, 20).parse_args(argv), measure)


if __name__ == "__main__":
    main()
