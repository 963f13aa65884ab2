"""What programs of several processes send, against the least that each strategy has to, and what dividing them costs.

    python benchmarks/sharding.py [--rounds 20] [--json FILE]

Nothing is sent: programs are divided for processes that do not exist. The least: a sum over n processes takes
2 (n - 1) / n of its bytes; parameters that are split are gathered, for the forward and for the backward pass, and their
gradients arrive in parts: 3 (n - 1) / n.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise
from typing import Any

import gtrace as gt
from gtrace.sharding import Mesh, NamedSharding, P

BATCH, SIZES = 256, (64, 1024, 1024, 10)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    size = sum(4 * (m * n + n) for m, n in pairwise(SIZES))
    rows = {}
    for n in (4, 64, 1024):
        mesh = Mesh(range(n), "data")
        strategies = {
            "data parallel": (arguments(mesh, P("data"), P(), P()), 2 * (n - 1) / n * size),
            "fully sharded": (arguments(mesh, P("data"), P("data"), P("data")), 3 * (n - 1) / n * size),
        }
        for name, (args, least) in strategies.items():
            times = []
            for _ in range(options.rounds):
                start = time.perf_counter()
                plan = gt.sharding.plan(step, *args)
                times.append(time.perf_counter() - start)
            row = {
                "sent": plan.moved,
                "least": least,
                "ratio": plan.moved / least,
                "ms": statistics.median(times) * 1e3,
            }
            rows[f"{name}, {n}"] = row
            print(
                f"{name:14} on {n:5}: {row['ratio']:.3f} of the least bytes; traced and divided in {row['ms']:.1f} ms"
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
