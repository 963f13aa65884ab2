"""Steps of one model on several processes, beside torch's DistributedDataParallel and FSDP2, in turns in one run.

    gtrace run --quiet --workers 2 benchmarks/sharding_steps.py [--steps 50] [--rounds 5] [--batch 256] [--json FILE]

All start from the same parameters and see the same batches; their losses must agree. A round runs each for so many
steps. The time of a step is that of the slowest process, and the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gtrace as gt
from gtrace.sharding import NamedSharding, P, make_mesh

SIZES = (64, 1024, 1024, 10)
RATE = 0.02


def initial() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the parameters that all begin with."""
    rng = np.random.default_rng(0)
    return [
        (rng.uniform(-1, 1, (m, n)).astype(np.float32) / m**0.5, np.zeros(n, np.float32)) for m, n in pairwise(SIZES)
    ]


Step = Callable[[np.ndarray, np.ndarray], float]


def by_gtrace(weights: P, biases: P) -> Step:
    """Return a step of gtrace; parameters are laid out as given, and the batch is split."""
    mesh = make_mesh((-1,), "data")
    params = [
        (gt.device_put(w, NamedSharding(mesh, weights)), gt.device_put(b, NamedSharding(mesh, biases)))
        for w, b in initial()
    ]

    def loss(params: Any, x: gt.Array, y: gt.Array) -> gt.Array:
        for w, b in params[:-1]:
            x = gt.relu(x @ w + b)
        scores = gt.log_softmax(x @ params[-1][0] + params[-1][1], axis=-1)
        return -(gt.one_hot(y, SIZES[-1]) * scores).sum(-1).mean()

    @gt.jit(wait=True)
    def update(params: Any, x: gt.Array, y: gt.Array) -> Any:
        value, grads = gt.value_and_grad(loss)(params, x, y)
        return gt.tree_map(lambda p, g: p - RATE * g, params, grads), value

    split = NamedSharding(mesh, P("data"))

    def step(x: np.ndarray, y: np.ndarray) -> float:
        nonlocal params
        params, value = update(params, gt.device_put(gt.array(x), split), gt.device_put(gt.array(y), split))
        return float(value)

    return step


def model() -> nn.Sequential:
    """Return the model in torch."""
    layers: list[nn.Module] = []
    for w, b in initial():
        linear = nn.Linear(*w.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(w.T.copy()))
            linear.bias.copy_(torch.from_numpy(b))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def by_torch(net: nn.Module) -> Step:
    """Return a step of torch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    rank, count = distributed.get_rank(), distributed.get_world_size()

    def step(x: np.ndarray, y: np.ndarray) -> float:
        own = slice(rank * len(x) // count, (rank + 1) * len(x) // count)
        value = nn.functional.cross_entropy(net(torch.from_numpy(x[own])), torch.from_numpy(y[own]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        total = value.detach().clone()
        distributed.all_reduce(total)
        return float(total) / count

    return step


def fully_sharded() -> nn.Module:
    """Return the model with its parameters split, by FSDP2."""
    net = model()
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    count = gt.sharding.process_count()  # joins the others
    runs = {
        "gtrace, data parallel": by_gtrace(P(), P()),
        "torch DDP": by_torch(DistributedDataParallel(model())),
        "gtrace, fully sharded": by_gtrace(P("data"), P("data")),
        "torch FSDP2": by_torch(fully_sharded()),
    }
    rng = np.random.default_rng(1)
    x = rng.normal(size=(options.batch, SIZES[0])).astype(np.float32)
    y = rng.integers(0, SIZES[-1], options.batch)
    times: dict[str, list[float]] = {name: [] for name in runs}
    losses: dict[str, float] = {}
    for turn in range(options.rounds + 1):  # the first one warms up
        for name, step in runs.items():
            distributed.barrier()
            start = time.perf_counter()
            for _ in range(options.steps):
                losses[name] = step(x, y)
            took = torch.tensor((time.perf_counter() - start) / options.steps)
            distributed.all_reduce(took, op=distributed.ReduceOp.MAX)
            if turn:
                times[name].append(float(took))
        spread = max(losses.values()) - min(losses.values())
        if spread > 1e-3 * max(losses.values()):
            raise AssertionError(f"expected equal losses, got {losses}")
    rows = {name: statistics.median(found) * 1e3 for name, found in times.items()}
    if gt.sharding.process_index() == 0:
        print(f"{count} processes, batch {options.batch}, ms a step:")
        for name, ms in rows.items():
            print(f"  {name:22} {ms:8.2f}")
        for own, other in (("gtrace, data parallel", "torch DDP"), ("gtrace, fully sharded", "torch FSDP2")):
            print(f"  {own} / {other}: {rows[own] / rows[other]:.2f}")
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
