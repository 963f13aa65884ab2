"""Whole training runs of real models, first steps included: gtrace against torch and JAX.

    python benchmarks/models.py [--model transformer lstm] [--steps 20 120] [--layers 6] [--rounds 1] [--json FILE]

Each run is a process of its own that reads back the loss of every step, peers taking turns. "cold" runs begin with
empty caches of compiled code, "warm" ones with those of the run before. Losses are compared.

The transformer has width 256, 4 heads, batch 8, sequence 128 and vocabulary 1024; the LSTM has width 128, batch 32 and
sequence 64. Both are trained by Adam. torch's models use its own layers (layer_norm, scaled_dot_product_attention,
nn.LSTM, cross_entropy) and its fused optimizer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
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

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEADS, BATCH, LENGTH, VOCABULARY = 256, 4, 8, 128, 1024
HIDDEN, SEQUENCES, TICKS = 128, 32, 64
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
CONTESTANTS = ("gtrace", "gtrace, not compiling", "gt.jit", "gt.jit, wait=True", "torch", "torch.compile", "jax.jit")

Step = Callable[[], float]


def tokens() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(0, VOCABULARY, (BATCH, LENGTH)), rng.integers(0, VOCABULARY, (BATCH, LENGTH))


def transformer_parameters(layers: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 0.02).astype(np.float32)

    def zeros(n: int) -> np.ndarray:
        return np.zeros(n, np.float32)

    def layer() -> dict[str, np.ndarray]:
        return {
            "scale1": 1 + zeros(WIDTH), "shift1": zeros(WIDTH), "qkv": normal(WIDTH, 3 * WIDTH),
            "qkv_bias": zeros(3 * WIDTH), "out": normal(WIDTH, WIDTH), "out_bias": zeros(WIDTH),
            "scale2": 1 + zeros(WIDTH), "shift2": zeros(WIDTH), "up": normal(WIDTH, 4 * WIDTH),
            "up_bias": zeros(4 * WIDTH), "down": normal(4 * WIDTH, WIDTH), "down_bias": zeros(WIDTH),
        }  # fmt: skip

    return {
        "tokens": normal(VOCABULARY, WIDTH), "places": normal(LENGTH, WIDTH),
        "layers": [layer() for _ in range(layers)], "scale": 1 + zeros(WIDTH), "shift": zeros(WIDTH),
    }  # fmt: skip


def lstm_parameters() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def uniform(*shape: int) -> np.ndarray:
        return (rng.uniform(-1, 1, size=shape) / math.sqrt(HIDDEN)).astype(np.float32)

    return {
        "inputs": uniform(HIDDEN, 4 * HIDDEN), "state": uniform(HIDDEN, 4 * HIDDEN), "bias": uniform(4 * HIDDEN),
        "out": uniform(HIDDEN, 1),
    }  # fmt: skip


def sequences() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    xs = rng.normal(size=(TICKS, SEQUENCES, HIDDEN)).astype(np.float32)
    return xs, np.sin(xs.sum((0, 2)))[:, None].astype(np.float32)


# -- gtrace and JAX, which share their names


def transformer_loss(lib: Any, nn: Any, p: Any, x: Any, y: Any) -> Any:
    def norm(h: Any, scale: Any, shift: Any) -> Any:
        mean = h.mean(-1, keepdims=True)
        return (h - mean) / lib.sqrt(((h - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift

    def heads(h: Any) -> Any:
        return lib.permute_dims(h.reshape((BATCH, LENGTH, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    mask = lib.where(lib.arange(LENGTH)[:, None] >= lib.arange(LENGTH)[None, :], 0.0, -1e9)
    h = p["tokens"][x] + p["places"]
    for layer in p["layers"]:
        qkv = norm(h, layer["scale1"], layer["shift1"]) @ layer["qkv"] + layer["qkv_bias"]
        q, k, v = (heads(qkv[..., j * WIDTH : (j + 1) * WIDTH]) for j in range(3))
        scores = q @ lib.permute_dims(k, (0, 1, 3, 2)) * ((WIDTH // HEADS) ** -0.5) + mask
        mixed = lib.permute_dims(nn.softmax(scores, axis=-1) @ v, (0, 2, 1, 3)).reshape((BATCH, LENGTH, WIDTH))
        h = h + mixed @ layer["out"] + layer["out_bias"]
        inner = norm(h, layer["scale2"], layer["shift2"]) @ layer["up"] + layer["up_bias"]
        h = h + nn.gelu(inner, approximate=False) @ layer["down"] + layer["down_bias"]
    scores = norm(h, p["scale"], p["shift"]) @ p["tokens"].T
    return -(nn.log_softmax(scores, axis=-1) * nn.one_hot(y, VOCABULARY)).sum(-1).mean()


def lstm_loss(lib: Any, nn: Any, p: Any, xs: Any, y: Any) -> Any:
    def tick(state: Any, x: Any) -> Any:
        h, c = state
        gates = x @ p["inputs"] + h @ p["state"] + p["bias"]
        i, f, g, o = (gates[:, k * HIDDEN : (k + 1) * HIDDEN] for k in range(4))
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * lib.tanh(g)
        return (nn.sigmoid(o) * lib.tanh(c), c), None

    start = lib.zeros((SEQUENCES, HIDDEN))
    (h, _), _ = nn.scan(tick, (start, start), xs)
    return ((h @ p["out"] - y) ** 2).mean()


def adam(lib: Any, tree_map: Any, p: Any, m: Any, v: Any, g: Any, t: Any) -> Any:
    m = tree_map(lambda m, g: BETA1 * m + (1 - BETA1) * g, m, g)
    v = tree_map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, g)
    rate, scale = RATE / (1 - BETA1**t), 1 / (1 - BETA2**t)
    return tree_map(lambda p, m, v: p - rate * m / (lib.sqrt(v * scale) + EPSILON), p, m, v), m, v


def functional(which: str, model: str, layers: int) -> Step:
    transformer = model == "transformer"
    parameters = transformer_parameters(layers) if transformer else lstm_parameters()
    loss = transformer_loss if transformer else lstm_loss
    if which == "jax.jit":
        jax = importlib.import_module("jax")
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_CACHE"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        lib, nn, tree_map, transform = jax.numpy, jax.nn, jax.tree.map, jax
        jax.nn.scan = jax.lax.scan
        lib.array = jax.numpy.asarray
    else:
        lib = nn = transform = importlib.import_module("gtrace")
        tree_map = lib.tree_map

    def update(p: Any, m: Any, v: Any, t: Any, x: Any, y: Any) -> Any:
        value, g = transform.value_and_grad(lambda p: loss(lib, nn, p, x, y))(p)
        return *adam(lib, tree_map, p, m, v, g, t), value

    step: Any = update
    if which == "jax.jit":
        step = transform.jit(update)
    elif which.startswith("gt.jit"):
        step = transform.jit(update, wait=True if "wait" in which else None)
    data = [lib.array(a) for a in (tokens() if transformer else sequences())]
    p = tree_map(lib.array, parameters)
    state = [p, tree_map(lib.zeros_like, p), tree_map(lib.zeros_like, p)]
    count = 0

    def run() -> float:
        nonlocal state, count
        count += 1
        *state, value = step(*state, lib.array(float(count)) if "jit" in which else float(count), *data)
        if which.startswith("gtrace"):
            transform.eval(state, value)
        return float(value)

    return run


# -- torch


def torch_step(which: str, model: str, layers: int) -> Step:
    torch = importlib.import_module("torch")
    f = torch.nn.functional

    def leaf(a: np.ndarray) -> Any:
        return torch.nn.Parameter(torch.from_numpy(a.copy()))

    if model == "transformer":
        given = transformer_parameters(layers)
        p: Any = {
            k: [{n: leaf(b) for n, b in d.items()} for d in a] if k == "layers" else leaf(a) for k, a in given.items()
        }
        parameters = [a for k, a in p.items() if k != "layers"] + [a for d in p["layers"] for a in d.values()]

        def loss(x: Any, y: Any) -> Any:
            h = p["tokens"][x] + p["places"]
            for d in p["layers"]:
                qkv = f.layer_norm(h, (WIDTH,), d["scale1"], d["shift1"]) @ d["qkv"] + d["qkv_bias"]
                q, k, v = (a.view(BATCH, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2) for a in qkv.chunk(3, -1))
                mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True)
                h = h + mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH) @ d["out"] + d["out_bias"]
                inner = f.gelu(f.layer_norm(h, (WIDTH,), d["scale2"], d["shift2"]) @ d["up"] + d["up_bias"])
                h = h + inner @ d["down"] + d["down_bias"]
            scores = f.layer_norm(h, (WIDTH,), p["scale"], p["shift"]) @ p["tokens"].T
            return f.cross_entropy(scores.view(-1, VOCABULARY), y.view(-1))

        data = [torch.from_numpy(a) for a in tokens()]
    else:
        weights: Any = lstm_parameters()
        lstm = torch.nn.LSTM(HIDDEN, HIDDEN)
        out = leaf(weights["out"])
        with torch.no_grad():
            for target, source in (
                (lstm.weight_ih_l0, weights["inputs"].T), (lstm.weight_hh_l0, weights["state"].T),
                (lstm.bias_ih_l0, weights["bias"]), (lstm.bias_hh_l0, 0 * weights["bias"]),
            ):  # fmt: skip
                target.copy_(torch.from_numpy(source.copy()))
        lstm.bias_hh_l0.requires_grad_(False)  # a second bias, which the others do not have
        parameters = [p for p in lstm.parameters() if p.requires_grad] + [out]

        def loss(x: Any, y: Any) -> Any:
            _, (h, _) = lstm(x)
            return ((h[0] @ out - y) ** 2).mean()

        data = [torch.from_numpy(a) for a in sequences()]
    optimizer = torch.optim.Adam(parameters, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, fused=True)
    if which == "torch.compile":
        loss = torch.compile(loss)

    def run() -> float:
        value = loss(*data)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.item()

    return run


# -- runs


def run(which: str, model: str, layers: int, steps: int) -> dict[str, Any]:
    """Train for some steps; returns the losses and the seconds of the steps, preparation counted with the first."""
    start = time.perf_counter()
    step = (torch_step if which.startswith("torch") else functional)(which, model, layers)
    losses, seconds = [], []
    for _ in range(steps):
        losses.append(step())
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    return {"losses": losses, "seconds": seconds}


def child(which: str, model: str, layers: int, steps: int, folder: str) -> dict[str, Any]:
    """Make a run in a process of its own, with its caches in `folder`."""
    environment = os.environ | {
        "GT_CACHE_DIR": f"{folder}/gtrace", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "JAX_CACHE": f"{folder}/jax",
        "GT_AUTO_COMPILE": "0" if which == "gtrace, not compiling" else "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", __file__, "--child", which, model, str(layers), str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", default=["transformer", "lstm"], choices=["transformer", "lstm"])
    parser.add_argument("--steps", nargs="+", type=int, default=[20, 120])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=CONTESTANTS, choices=CONTESTANTS)
    parser.add_argument("--json", help="also write every time to this file")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        which, model, layers, steps = options.child
        print(json.dumps(run(which, model, int(layers), int(steps))))
        return
    everything = []
    for model in options.model:
        print(f"\n{model}\n\n| | steps | caches | first step | median of the last half | longest later | in all |")
        print("|---|---|---|---|---|---|---|")
        for steps in options.steps:
            found: dict[tuple[str, str], list[dict[str, Any]]] = {}
            for _ in range(options.rounds):
                for which in options.only:
                    with tempfile.TemporaryDirectory() as folder:
                        for caches in ("cold", "warm"):
                            found.setdefault((which, caches), []).append(
                                child(which, model, options.layers, steps, folder)
                            )
            for (which, caches), runs in found.items():
                times = [one["seconds"] for one in runs]
                first = statistics.median(s[0] for s in times)
                typical = statistics.median(statistics.median(s[len(s) // 2 :]) for s in times) * 1e3
                longest = statistics.median(max(s[1:]) for s in times) * 1e3
                total = statistics.median(sum(s) for s in times)
                print(f"| {which} | {steps} | {caches} | {first:.2f} s | {typical:.0f} ms | {longest:.0f} ms"
                      f" | {total:.1f} s |", flush=True)  # fmt: skip
                about = {"model": model, "which": which, "steps": steps, "caches": caches}
                everything += [{**about, **one} for one in runs]
            losses = np.array([one["losses"] for (_, runs) in found.items() for one in runs])
            spread = np.abs(losses - losses[0]).max() / np.abs(losses[0]).max()
            print(f"\nlosses agree to {spread:.1e}\n")
    if options.json:
        Path(options.json).write_text(json.dumps(everything), encoding="utf-8")


if __name__ == "__main__":
    main()
