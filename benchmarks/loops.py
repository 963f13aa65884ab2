"""Loops of functional programs, jitted, against jax.jit and, for some, torch eager.

    python benchmarks/loops.py [--only NAME] [--rounds N]

Needs ``pip install 'gtrace[bench]'``. The programs are written once, for any library with JAX's names. Peers take
turns in one process; figures are medians of whole calls, arguments already converted. A ratio below 1 is in our favour.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy
import numpy
import torch
from peers import interleave

import gtrace as gt
import gtrace.lax
import gtrace.numpy
import gtrace.random

OURS = SimpleNamespace(
    np=gtrace.numpy,
    lax=gtrace.lax,
    random=gtrace.random,
    nn=gt.nn,
    tree=gt.tree,
    grad=gt.grad,
    vmap=gt.vmap,
    jit=gt.jit,
)
JAX = SimpleNamespace(
    np=jax.numpy,
    lax=jax.lax,
    random=jax.random,
    nn=jax.nn,
    tree=jax.tree,
    grad=jax.grad,
    vmap=jax.vmap,
    jit=jax.jit,
)

Program = Callable[..., Any]


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> numpy.ndarray:
    """Return normal numbers."""
    return (numpy.random.default_rng(seed).normal(size=shape) * scale).astype(numpy.float32)


# -- programs: each takes a library, and returns a function and its arguments


def euler(x: Any, y: Any, z: Any) -> tuple[Any, Any, Any]:
    """One step of the Lorenz system."""
    dt = 0.01
    return x + dt * 10.0 * (y - x), y + dt * (x * (28.0 - z) - y), z + dt * (x * y - 8.0 / 3.0 * z)


def lorenz(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    def run(x: Any, y: Any, z: Any) -> Any:
        return lib.lax.scan(lambda s, _: (euler(*s), s[0]), (x, y, z), None, length=10_000)

    return run, (1.0, 1.0, 1.0)


def lorenz_gradient(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    def end(x: Any, y: Any, z: Any) -> Any:
        return lib.lax.scan(lambda s, _: (euler(*s), None), (x, y, z), None, length=2_000)[0][0]

    return lib.grad(end, (0, 1, 2)), (1.0, 1.0, 1.0)


def counter(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    def run(x: Any) -> Any:
        return lib.lax.while_loop(lambda s: s[0] < 5_000, lambda s: (s[0] + 1, s[1] * 0.999 + 1.0), (0, x))

    return run, (1.0,)


def nested(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    def run(x: Any) -> Any:
        inner = lambda i, c: lib.lax.fori_loop(0, 50, lambda j, d: d * 0.99 + 1.0, c) + i  # noqa: E731
        return lib.lax.fori_loop(0, 200, inner, x)

    return run, (1.0,)


def batched_while(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    def run(x: Any) -> Any:
        return lib.lax.while_loop(lambda v: lib.np.sum(v * v) < 100.0, lambda v: v * 1.1 + 0.1, x)

    return lib.vmap(run), (floats(256, 3),)


def runge_kutta(lib: Any, field: Callable[[Any], Any], start: Any, end: float) -> tuple[Program, tuple[Any, ...]]:
    """Return an adaptive solver of y' = field(y) by the pair of Dormand and Prince, 1980."""
    table = (
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    )
    low = (5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40)

    def run(y: Any) -> Any:
        def step(state: Any) -> Any:
            t, y, h, count = state
            ks = [field(y)]
            for row in table:
                ks.append(field(y + h * sum(c * k for c, k in zip(row, ks, strict=False) if c)))
            high = y + h * sum(c * k for c, k in zip(table[-1], ks, strict=False) if c)
            rough = y + h * sum(c * k for c, k in zip(low, ks, strict=True) if c)
            error = lib.np.max(lib.np.abs(high - rough) / (1e-5 + 1e-4 * lib.np.abs(high)))
            good = error <= 1.0
            factor = lib.np.clip(0.9 * (error + 1e-10) ** -0.2, 0.2, 5.0)
            return lib.np.where(good, t + h, t), lib.np.where(good, high, y), h * factor, count + 1

        first = (lib.np.zeros(()), y, lib.np.full((), 1e-3), 0)
        return lib.lax.while_loop(lambda s: (s[0] < end) & (s[3] < 100_000), step, first)

    return run, (numpy.asarray(start, numpy.float32),)


def stiff(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    def van_der_pol(y: Any) -> Any:
        return lib.np.stack([y[1], 50.0 * (1.0 - y[0] ** 2) * y[1] - y[0]])

    return runge_kutta(lib, van_der_pol, [2.0, 0.0], 20.0)


def smooth(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    def lotka_volterra(y: Any) -> Any:
        return lib.np.stack([1.1 * y[0] - 0.4 * y[0] * y[1], 0.1 * y[0] * y[1] - 0.4 * y[1]])

    return runge_kutta(lib, lotka_volterra, [10.0, 5.0], 50.0)


def hmc(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    """1,000 samples of a normal distribution in ten dimensions, 20 leapfrog steps each."""
    np = lib.np

    def run(q: Any, scales: Any, noise: Any, uniforms: Any) -> Any:
        def energy(q: Any) -> Any:
            return 0.5 * np.sum((q / scales) ** 2)

        slope = lib.grad(energy)

        def leapfrog(state: Any, _: Any) -> Any:
            q, p = state
            p = p - 0.05 * slope(q)
            q = q + 0.1 * p
            return (q, p - 0.05 * slope(q)), None

        def sample(q: Any, given: Any) -> Any:
            p, u = given
            (new, moved), _ = lib.lax.scan(leapfrog, (q, p), None, length=20)
            change = energy(q) + 0.5 * np.sum(p * p) - energy(new) - 0.5 * np.sum(moved * moved)
            q = np.where(np.log(u) < change, new, q)
            return q, q

        return lib.lax.scan(sample, q, (noise, uniforms))

    uniforms = numpy.random.default_rng(3).uniform(size=1_000).astype(numpy.float32)
    return run, (floats(10), numpy.abs(floats(10, seed=1)) + 0.5, floats(1_000, 10, seed=2), uniforms)


def kalman(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    """Four states, two observations."""
    np = lib.np

    def run(a: Any, c: Any, q: Any, r: Any, ys: Any) -> Any:
        def step(state: Any, y: Any) -> Any:
            x, p = state
            x, p = a @ x, a @ p @ a.T + q
            s = c @ p @ c.T + r
            determinant = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
            inverse = np.stack([np.stack([s[1, 1], -s[0, 1]]), np.stack([-s[1, 0], s[0, 0]])]) / determinant
            k = p @ c.T @ inverse
            x = x + k @ (y - c @ x)
            p = p - k @ c @ p
            return (x, p), x

        return lib.lax.scan(step, (np.zeros(4), np.eye(4)), ys)

    eye = numpy.eye(4, dtype=numpy.float32)
    args = (eye * 0.9 + floats(4, 4, scale=0.05), floats(2, 4, seed=1), eye * 0.1, eye[:2, :2] * 0.5)
    return run, (*args, floats(1_000, 2, seed=2))


def particles(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    """64 bodies that attract one another."""
    np = lib.np

    def run(x: Any, v: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            x, v = state
            apart = x[None, :, :] - x[:, None, :]
            inverse = (np.sum(apart * apart, 2) + 0.01) ** -1.5
            v = v + 0.001 * np.sum(apart * inverse[:, :, None], 1)
            return (x + 0.001 * v, v), None

        return lib.lax.scan(step, (x, v), None, length=1_000)[0]

    return run, (floats(64, 3), floats(64, 3, seed=1))


def rnn_gradient(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    np = lib.np

    def loss(wx: Any, wh: Any, xs: Any) -> Any:
        _, ys = lib.lax.scan(lambda h, x: (np.tanh(x @ wx + h @ wh),) * 2, np.zeros((32, 64)), xs)
        return np.mean(ys * ys)

    return lib.grad(loss, (0, 1)), (floats(64, 64, scale=0.1), floats(64, 64, seed=1, scale=0.1), floats(1_000, 32, 64))


def lstm_gradient(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    np = lib.np

    def sigmoid(x: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-x))

    def loss(wx: Any, wh: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = np.split(x @ wx + h @ wh, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            return (h, c), h

        start = (np.zeros((128, 256)), np.zeros((128, 256)))
        return np.mean(lib.lax.scan(step, start, xs)[1] ** 2)

    weights = (floats(256, 1024, scale=0.05), floats(256, 1024, seed=1, scale=0.05))
    return lib.grad(loss, (0, 1)), (*weights, floats(200, 128, 256))


def ppo(lib: Any) -> tuple[Program, tuple[Any, ...]]:
    """Training by proximal policy optimization on a pole to balance, as one program.

    10 updates of 4 epochs of 4 minibatches, on rollouts of 64 steps in 16 environments.
    """
    np, lax, random = lib.np, lib.lax, lib.random
    steps, environments, parts = 64, 16, 4

    def move(state: Any, action: Any) -> tuple[Any, Any]:
        v, angle, spin = (state[:, k] for k in (1, 2, 3))
        cos, sin = np.cos(angle), np.sin(angle)
        push = (np.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        change = np.stack([v, push - 0.05 * turn * cos / 1.1, spin, turn], axis=1)
        new = state + 0.02 * change
        return new, (np.abs(new[:, 0]) > 2.4) | (np.abs(new[:, 2]) > 0.2)

    def apply(params: Any, state: Any) -> tuple[Any, Any]:
        h = np.tanh(state @ params["hidden"])
        return lib.nn.log_softmax(h @ params["policy"]), (h @ params["value"])[..., 0]

    def pick(logs: Any, action: Any) -> Any:
        return np.take_along_axis(logs, action[:, None], axis=1)[:, 0]

    def play(params: Any, state: Any, key: Any) -> tuple[Any, Any]:
        def step(state: Any, key: Any) -> tuple[Any, Any]:
            choose, restart = random.split(key)
            logs, value = apply(params, state)
            action = random.categorical(choose, logs)
            new, done = move(state, action)
            fresh = random.uniform(restart, (environments, 4), minval=-0.05, maxval=0.05)
            return np.where(done[:, None], fresh, new), (state, action, pick(logs, action), value, done * 1.0)

        return lax.scan(step, state, random.split(key, steps))

    def advantages(values: Any, done: Any) -> Any:
        def back(carry: Any, given: Any) -> Any:
            following, total = carry
            value, ended = given
            total = 1.0 + 0.99 * following * (1.0 - ended) - value + 0.94 * (1.0 - ended) * total
            return (value, total), total

        zero = np.zeros(environments)
        return lax.scan(back, (zero, zero), (values, done), reverse=True)[1]

    def loss(params: Any, batch: Any) -> Any:
        state, action, known, value, advantage = batch
        logs, values = apply(params, state)
        ratio = np.exp(pick(logs, action) - known)
        normal = (advantage - np.mean(advantage)) / (np.std(advantage) + 1e-8)
        gain = np.mean(np.minimum(ratio * normal, np.clip(ratio, 0.8, 1.2) * normal))
        entropy = -np.mean(np.sum(np.exp(logs) * logs, axis=-1))
        return 0.5 * np.mean((values - value - advantage) ** 2) - gain - 0.01 * entropy

    def update(carry: Any, key: Any) -> tuple[Any, Any]:
        params, state = carry
        playing, shuffling = random.split(key)
        state, (states, actions, logs, values, done) = play(params, state, playing)
        batch = (states, actions, logs, values, advantages(values, done))
        flat = [x.reshape((steps * environments, *x.shape[2:])) for x in batch]

        def epoch(params: Any, key: Any) -> tuple[Any, None]:
            order = random.permutation(key, steps * environments)
            chosen = [x[order].reshape((parts, -1, *x.shape[1:])) for x in flat]
            learn = lambda p, b: (lib.tree.map(lambda x, g: x - 0.05 * g, p, lib.grad(loss)(p, b)), None)  # noqa: E731
            return lax.scan(learn, params, chosen)[0], None

        params, _ = lax.scan(epoch, params, random.split(shuffling, 4))
        return (params, state), np.mean(done)

    def run(hidden: Any, policy: Any, value: Any, state: Any) -> Any:
        params = {"hidden": hidden, "policy": policy, "value": value}
        return lax.scan(update, (params, state), random.split(random.PRNGKey(0), 10))[1]

    weights = floats(4, 32, scale=0.5), floats(32, 2, seed=1, scale=0.1), floats(32, 1, seed=2, scale=0.1)
    return run, (*weights, floats(environments, 4, seed=3, scale=0.02))


PROGRAMS: dict[str, Callable[[Any], tuple[Program, tuple[Any, ...]]]] = {
    "scan, 10,000 Euler steps of the Lorenz system": lorenz,
    "gradient of 2,000 such steps": lorenz_gradient,
    "while_loop, 5,000 iterations of a counter and a scalar": counter,
    "fori_loop of 200 over a fori_loop of 50": nested,
    "vmap of a while_loop, 256 examples of 3": batched_while,
    "adaptive RK45 of a stiff system": stiff,
    "adaptive RK45 of a system that is not stiff": smooth,
    "HMC, 1,000 samples of 20 leapfrog steps": hmc,
    "Kalman filter, 1,000 steps, 4 x 4": kalman,
    "64 particles, 1,000 steps": particles,
    "gradient of an RNN over 1,000 steps, 32 x 64": rnn_gradient,
    "PPO, 10 updates of 16 environments": ppo,
    "gradient of an LSTM over 200 steps, 128 x 256": lstm_gradient,
}


def lorenz_eager() -> Callable[[], Any]:
    """Return the first program in torch, as a loop of Python over 1,000 steps, a tenth of the work."""

    def run() -> Any:
        state = tuple(torch.tensor(1.0) for _ in range(3))
        for _ in range(1_000):
            state = euler(*state)
        return state

    return run


def measure(name: str, rounds: int) -> None:
    """Print one row."""
    peers: dict[str, Callable[[], Any]] = {}
    first: dict[str, float] = {}
    results = {}
    for peer, lib in (("gtrace", OURS), ("jax", JAX)):
        function, args = PROGRAMS[name](lib)
        jitted = lib.jit(function)
        own = [gt.array(x) if lib is OURS else jax.numpy.asarray(x) for x in args]
        wait = gt.eval if lib is OURS else jax.block_until_ready
        start = time.perf_counter()
        results[peer] = wait(jitted(*own))
        first[peer] = time.perf_counter() - start
        peers[peer] = lambda f=jitted, a=own, w=wait: w(f(*a))  # type: ignore[misc]
    for ours, theirs in zip(gt.tree.leaves(results["gtrace"]), jax.tree.leaves(results["jax"]), strict=True):
        if not numpy.allclose(numpy.asarray(ours), numpy.asarray(theirs), rtol=1e-2, atol=1e-2, equal_nan=True):
            print(f"{name}: the results differ", file=sys.stderr)
            break
    once = max(1, int(0.01 / max(1e-6, interleave(peers, 1, 3)["gtrace"] / 1e6)))
    times = interleave(peers, min(once, 100), rounds)
    ours, theirs = times["gtrace"] / 1e3, times["jax"] / 1e3
    print(f"| {name} | {ours:.3f} | {theirs:.3f} | {ours / theirs:.2f} | {first['gtrace']:.2f} | {first['jax']:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure programs whose name contains this")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    gt.config.update(jit_wait=float("inf"))
    print("| program | gtrace, ms | jax.jit, ms | ratio | first call, s | jax's, s |\n|---|---|---|---|---|---|")
    for name in PROGRAMS:
        if options.only in name:
            measure(name, options.rounds)
    if options.only in "torch eager":
        ours = gt.jit(lorenz(OURS)[0])
        args = [gt.array(x) for x in (1.0, 1.0, 1.0)]
        times = interleave({"gtrace": lambda: gt.eval(ours(*args)), "torch": lorenz_eager()}, 1, options.rounds)
        print(f"Lorenz, 10,000 steps, of torch eager's time: {times['gtrace'] / (10 * times['torch']):.4f}")


if __name__ == "__main__":
    main()
