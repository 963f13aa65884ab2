"""What a call costs: recording, a jitted step, the same step undecorated, and importing, beside torch and JAX.

    python benchmarks/dispatch.py [--rounds 30] [--json FILE]

The peers run interleaved, in rounds of equal numbers of calls; a figure is the median over the rounds. Run it on an
otherwise idle machine. JAX is used if it is installed (``pip install 'gtrace[bench]'``).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peers import Row, interleave, print_table

import gtrace as gt

BATCH, WIDTH = 4, 8
CHAIN = 500


def recording(rounds: int) -> dict[str, float]:
    """Microseconds an operation in a chain of elementwise operations on 4 elements."""
    x, y = gt.array([1.0, 2.0, 3.0, 4.0]), gt.array([1.0, 0.5, 1.0, 2.0])
    tx, ty = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 0.5, 1.0, 2.0])

    def record() -> None:
        # nobody looks at the chain: what was recorded dies with `z`
        z = x
        for _ in range(CHAIN // 2):
            z = z + y
            z = z * y

    def drop() -> None:
        record()
        gt.eval(x)

    def eager() -> None:
        z = tx
        for _ in range(CHAIN // 2):
            z = z + ty
            z = z * ty

    with gt.config(auto_compile=False, max_pending=10**9):
        result = interleave({"gtrace": drop, "torch eager": eager}, 1, rounds * 4)
    return {name: value / CHAIN for name, value in result.items()}


def parameters() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32),
        "b1": np.zeros(WIDTH, np.float32),
        "w2": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32),
        "b2": np.zeros(WIDTH, np.float32),
    }
    return (
        weights,
        rng.normal(size=(BATCH, WIDTH)).astype(np.float32),
        rng.normal(size=(BATCH, WIDTH)).astype(np.float32),
    )


def loss_with(tanh: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the loss, the same text for every library."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = tanh(x @ p["w1"] + p["b1"])
        out = h @ p["w2"] + p["b2"]
        return ((out - y) ** 2).mean()

    return loss


def steps(rounds: int) -> dict[str, float]:
    """Microseconds a call of value-and-grad of the MLP, each library's ways of writing it."""
    weights, x, y = parameters()
    peers: dict[str, Callable[[], Any]] = {}

    p, gx, gy = {k: gt.array(v) for k, v in weights.items()}, gt.array(x), gt.array(y)
    undecorated = gt.value_and_grad(loss_with(gt.tanh))
    jitted = gt.jit(undecorated)

    def hot() -> float:
        value, grads = undecorated(p, gx, gy)
        return float(value) + 0.0 * len(grads)

    peers["gtrace jit"] = lambda: jitted(p, gx, gy)
    peers["gtrace undecorated"] = hot

    tp = {k: torch.tensor(v, requires_grad=True) for k, v in weights.items()}
    tx, ty = torch.tensor(x), torch.tensor(y)
    torch_loss = loss_with(torch.tanh)
    compiled_loss = torch.compile(torch_loss)
    compiled_func = torch.compile(torch.func.grad_and_value(torch_loss))
    plain = {k: v.detach() for k, v in tp.items()}
    leaves = list(tp.values())

    def eager() -> float:
        value = torch_loss(tp, tx, ty)
        grads = torch.autograd.grad(value, leaves)
        return value.item() + 0.0 * len(grads)

    def compiled() -> Any:
        return torch.autograd.grad(compiled_loss(tp, tx, ty), leaves)

    peers["torch eager autograd"] = eager
    peers["torch.compile, autograd"] = compiled
    peers["torch.compile, torch.func"] = lambda: compiled_func(plain, tx, ty)
    if importlib.util.find_spec("jax") is not None:
        import jax
        import jax.numpy as jnp

        jp, jx, jy = {k: jnp.asarray(v) for k, v in weights.items()}, jnp.asarray(x), jnp.asarray(y)
        jax_step = jax.jit(jax.value_and_grad(loss_with(jnp.tanh)))
        peers["jax.jit"] = lambda: jax.block_until_ready(jax_step(jp, jx, jy))
    with gt.config(hot_threshold=2):
        result = interleave(peers, 200, rounds)
    check(jitted(p, gx, gy), undecorated(p, gx, gy), compiled_func(plain, tx, ty))
    return result


def check(jitted: Any, undecorated: Any, reference: Any) -> None:
    """Refuse to report the speed of wrong results."""
    for value, grads in (jitted, undecorated):
        np.testing.assert_allclose(np.asarray(value), reference[1].detach().numpy(), rtol=1e-4)
        for name, g in grads.items():
            np.testing.assert_allclose(np.asarray(g), reference[0][name].detach().numpy(), rtol=1e-3, atol=1e-5)


def importing(rounds: int) -> dict[str, float]:
    """Seconds of a fresh process that imports torch, and one that imports gtrace as well."""
    times: dict[str, list[float]] = {"import torch": [], "import torch, gtrace": []}
    for _ in range(rounds):
        for statement, values in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            values.append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)

    record = recording(options.rounds)
    step = steps(options.rounds)
    imports = importing(9)
    eager = step["torch eager autograd"]
    jitted = "jitted value_and_grad, MLP 4x8"
    rows: list[Row] = [
        ("record one elementwise op", record["gtrace"], "us", "torch eager runs it", record["torch eager"]),
        (jitted, step["gtrace jit"], "us", "torch.compile, backward by autograd", step["torch.compile, autograd"]),
        (jitted, step["gtrace jit"], "us", "torch.compile of torch.func", step["torch.compile, torch.func"]),
        ("the same, undecorated, hot", step["gtrace undecorated"], "us", "torch eager autograd", eager),
        (
            "import beside torch",
            imports["import torch, gtrace"] - imports["import torch"],
            "s",
            "import torch",
            imports["import torch"],
        ),
    ]
    if "jax.jit" in step:
        rows.insert(3, (jitted, step["gtrace jit"], "us", "jax.jit", step["jax.jit"]))
    print_table(rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"recording": record, "steps": step, "importing": imports}, file, indent=2)


if __name__ == "__main__":
    main()
