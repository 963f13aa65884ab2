"""Steps of one model on several processes, beside torch's DistributedDataParallel and FSDP2, in turns in one run.

    python benchmarks/sharding_steps.py [--quick] [--workers 2] [--steps 50] [--rounds 5] [--batch 256] [--json FILE]

All start from the same parameters and see the same batches; their losses must agree. A round runs each for so many
steps. The time of a step is that of the slowest process, and the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from measuring.processes import children
from measuring.results import BenchmarkError, Figure, parser, report, rounds
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


def run_child(steps: int, turns: int, batch: int) -> dict[str, list[float]]:
    """Return the seconds a step, of each round, by what made it; this is one of several processes.

    Raises:
        BenchmarkError: losses differ.
    """
    gt.sharding.process_count()  # joins the others
    runs = {
        "gtrace, data parallel": by_gtrace(P(), P()),
        "torch DDP": by_torch(DistributedDataParallel(model())),
        "gtrace, fully sharded": by_gtrace(P("data"), P("data")),
        "torch FSDP2": by_torch(fully_sharded()),
    }
    rng = np.random.default_rng(1)
    x = rng.normal(size=(batch, SIZES[0])).astype(np.float32)
    y = rng.integers(0, SIZES[-1], batch)
    times: dict[str, list[float]] = {name: [] for name in runs}
    losses: dict[str, float] = {}
    for turn in range(turns + 1):  # the first one warms up
        for name, step in runs.items():
            distributed.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                losses[name] = step(x, y)
            took = torch.tensor((time.perf_counter() - start) / steps)
            distributed.all_reduce(took, op=distributed.ReduceOp.MAX)
            if turn:
                times[name].append(float(took))
        if max(losses.values()) - min(losses.values()) > 1e-3 * max(losses.values()):
            raise BenchmarkError(f"expected equal losses, got {losses}")
    return times


PEERS = {"gtrace, data parallel": "torch DDP", "gtrace, fully sharded": "torch FSDP2"}
"""What is compared with what."""


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    steps, batch = (3, 32) if options.quick else (options.steps, options.batch)
    with tempfile.TemporaryDirectory() as folder:
        times = children(__file__, (steps, rounds(options), batch), folder, options.workers)
    figures = []
    for own, peer in PEERS.items():
        workload = f"a step, {own.partition(', ')[2]}, {options.workers} processes, batch {batch}"
        figures += [Figure(workload, "gtrace", times[own]), Figure(workload, peer, times[peer])]
    return figures, []


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 5)
    options.add_argument("--steps", type=int, default=50, help="of a round")
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--workers", type=int, default=2, help="processes")
    options.add_argument("--child", nargs=3, type=int, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        times = run_child(*given.child)
        if gt.sharding.process_index() == 0:
            print(json.dumps(times))
        return
    report("sharding_steps", given, measure)


if __name__ == "__main__":
    main()
