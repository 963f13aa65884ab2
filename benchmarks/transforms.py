"""What composed transforms cost, jitted, beside torch.func under torch.compile, and JAX.

    python benchmarks/transforms.py [--rounds 15] [--json FILE]

Per-example gradients of an MLP, a Hessian, and a recurrent network of 1,000 steps with its gradient. All peers get one
core. The compilers' times are printed too: for each, the seconds of the first call.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peers import Row, interleave, print_table

import gtrace as gt

WIDTH, EXAMPLES = 64, 256
STEPS, BATCH = 1000, 32
HAVE_JAX = importlib.util.find_spec("jax") is not None

Peers = dict[str, Callable[[], Any]]


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def to_torch(values: Any) -> Any:
    return gt.tree.map(torch.tensor, values)


def mlp_loss(tanh: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the loss of one example, the same text for every library."""

    def loss(p: Any, x: Any) -> Any:
        h = tanh(x @ p["w1"] + p["b1"])
        h = tanh(h @ p["w2"] + p["b2"])
        return ((h @ p["w3"]) ** 2).mean()

    return loss


def per_example() -> Peers:
    """Gradients of a 64-wide MLP for each of 256 examples."""
    p = {f"w{k}": normal(WIDTH, WIDTH, scale=0.1, seed=k) for k in (1, 2, 3)}
    p |= {f"b{k}": normal(WIDTH, scale=0.1, seed=k) for k in (1, 2)}
    x = normal(EXAMPLES, WIDTH)
    ours = gt.jit(gt.vmap(gt.grad(mlp_loss(gt.tanh)), (None, 0)))
    gp, gx = gt.tree.map(gt.array, p), gt.array(x)
    theirs = torch.compile(torch.func.vmap(torch.func.grad(mlp_loss(torch.tanh)), in_dims=(None, 0)))
    tp, tx = to_torch(p), torch.tensor(x)
    peers: Peers = {"gtrace": lambda: ours(gp, gx), "torch.compile of torch.func": lambda: theirs(tp, tx)}
    if HAVE_JAX:
        import jax
        import jax.numpy as jnp

        jitted = jax.jit(jax.vmap(jax.grad(mlp_loss(jnp.tanh)), (None, 0)))
        jp, jx = jax.tree.map(jnp.asarray, p), jnp.asarray(x)
        peers["jax.jit"] = lambda: jax.block_until_ready(jitted(jp, jx))
    return peers


def potential(lib: Any, a: Any) -> Callable[[Any], Any]:
    """Return a function of 64 parameters."""

    def f(x: Any) -> Any:
        return (lib.sin(a @ x) ** 2).sum() + lib.log((lib.exp(a[:8] @ lib.tanh(x))).sum())

    return f


def hessians() -> Peers:
    """The Hessian of a function of 64 parameters."""
    a, x = normal(WIDTH, WIDTH, scale=0.2), normal(WIDTH, seed=1)
    ours = gt.jit(gt.hessian(potential(gt, gt.array(a))))
    gx = gt.array(x)
    theirs = torch.compile(torch.func.hessian(potential(torch, torch.tensor(a))))
    tx = torch.tensor(x)
    peers: Peers = {"gtrace": lambda: ours(gx), "torch.compile of torch.func": lambda: theirs(tx)}
    if HAVE_JAX:
        import jax
        import jax.numpy as jnp

        jitted, jx = jax.jit(jax.hessian(potential(jnp, jnp.asarray(a)))), jnp.asarray(x)
        peers["jax.jit"] = lambda: jax.block_until_ready(jitted(jx))
    return peers


def recurrent() -> Peers:
    """A recurrent network of 1,000 steps, batch 32, width 64, and its gradient by both weight matrices."""
    wx, wh = normal(WIDTH, WIDTH, scale=0.1, seed=1), normal(WIDTH, WIDTH, scale=0.1, seed=2)
    xs, h0 = normal(STEPS, BATCH, WIDTH), np.zeros((BATCH, WIDTH), np.float32)

    def our_loss(wx: Any, wh: Any, xs: Any, h: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            h = gt.tanh(x @ wx + h @ wh)
            return h, h

        return (gt.scan(cell, h, xs)[1] ** 2).mean()

    ours = gt.jit(gt.value_and_grad(our_loss, (0, 1)))
    args = [gt.array(v) for v in (wx, wh, xs, h0)]

    cell = torch.compile(lambda h, x, wx, wh: torch.tanh(x @ wx + h @ wh))
    weights = [torch.tensor(w, requires_grad=True) for w in (wx, wh)]
    txs, th = torch.tensor(xs), torch.tensor(h0)

    def torch_loop(step: Callable[..., torch.Tensor]) -> Callable[[], Any]:
        def run() -> Any:
            h, hs = th, []
            for x in txs:
                h = step(h, x, *weights)
                hs.append(h)
            loss = (torch.stack(hs) ** 2).mean()
            return loss, torch.autograd.grad(loss, weights)

        return run

    # unrolled, torch.compile would compile 1,000 steps: minutes; so it gets the cell
    peers: Peers = {
        "gtrace": lambda: ours(*args),
        "torch.compile of the cell, autograd": torch_loop(cell),
        "torch eager, autograd": torch_loop(lambda h, x, wx, wh: torch.tanh(x @ wx + h @ wh)),
    }
    if HAVE_JAX:
        import jax
        import jax.numpy as jnp

        def jax_loss(wx: Any, wh: Any, xs: Any, h: Any) -> Any:
            def cell(h: Any, x: Any) -> Any:
                h = jnp.tanh(x @ wx + h @ wh)
                return h, h

            return (jax.lax.scan(cell, h, xs)[1] ** 2).mean()

        jitted = jax.jit(jax.value_and_grad(jax_loss, (0, 1)))
        jargs = [jnp.asarray(v) for v in (wx, wh, xs, h0)]
        peers["jax.jit"] = lambda: jax.block_until_ready(jitted(*jargs))
    return peers


def check(results: dict[str, Any]) -> None:
    """Refuse to report the speed of wrong results."""
    first, *others = (gt.tree.leaves(value) for value in results.values())
    for leaves in others:
        for a, b in zip(first, leaves, strict=True):
            expected = b.detach().numpy() if isinstance(b, torch.Tensor) else np.asarray(b)
            np.testing.assert_allclose(np.asarray(a), expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())


CASES: dict[str, tuple[str, Callable[[], Peers], int]] = {
    "per_example": ("vmap of the gradient of a 64-wide MLP, 256 examples", per_example, 20),
    "hessian": ("Hessian of a function of 64 parameters", hessians, 50),
    "recurrent": ("gradient of an RNN scanned over 1,000 steps", recurrent, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; may be given again")
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    rows: list[Row] = []
    figures: dict[str, Any] = {}
    for name in options.case or CASES:
        what, build, calls = CASES[name]
        peers = build()
        first, results = {}, {}
        for peer, call in peers.items():
            start = time.perf_counter()
            results[peer] = gt.eval(call())
            first[peer] = time.perf_counter() - start
        check(results)
        times = interleave(peers, calls, options.rounds)
        figures[name] = {"microseconds a call": times, "seconds of the first call": first}
        rows += [(what, times["gtrace"], "us", peer, value) for peer, value in times.items() if peer != "gtrace"]
        print(f"{name}: first call " + ", ".join(f"{peer} {value:.1f} s" for peer, value in first.items()))
    print_table(rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
