"""Loops of functional programs, jitted, against jax.jit and, for some, torch eager.

    python benchmarks/loops.py [--quick] [--only NAME] [--rounds 15] [--json FILE]

The programs are written once, for the names that gtrace and JAX share. The first call includes the compile. Results are
compared with the same programs as plain loops of Python over float64 tensors, where rounding does not change them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy
from measuring.harness import Workload, measure, to_numpy
from measuring.libraries import EAGER, Function, Names, add_sides, available, gtrace_names, reference_names
from measuring.results import Figure, parser, report, rounds

import gtrace as gt
from gtrace import tree

Made = tuple[Function, tuple[Any, ...]]


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> numpy.ndarray:
    """Return normal numbers."""
    return (numpy.random.default_rng(seed).normal(size=shape) * scale).astype(numpy.float32)


# -- programs: each takes a library, and returns a function and its arguments


def euler(x: Any, y: Any, z: Any) -> tuple[Any, Any, Any]:
    """One step of the Lorenz system."""
    dt = 0.01
    return x + dt * 10.0 * (y - x), y + dt * (x * (28.0 - z) - y), z + dt * (x * y - 8.0 / 3.0 * z)


def lorenz(lib: Names) -> Made:
    def run(x: Any, y: Any, z: Any) -> Any:
        return lib.lax.scan(lambda s, _: (euler(*s), s[0]), (x, y, z), None, length=10_000)

    return run, (1.0, 1.0, 1.0)


def lorenz_gradient(lib: Names) -> Made:
    def end(x: Any, y: Any, z: Any) -> Any:
        return lib.lax.scan(lambda s, _: (euler(*s), None), (x, y, z), None, length=2_000)[0][0]

    return lib.grad(end, (0, 1, 2)), (1.0, 1.0, 1.0)


def counter(lib: Names) -> Made:
    def run(x: Any) -> Any:
        return lib.lax.while_loop(lambda s: s[0] < 5_000, lambda s: (s[0] + 1, s[1] * 0.999 + 1.0), (0, x))

    return run, (1.0,)


def nested(lib: Names) -> Made:
    def run(x: Any) -> Any:
        inner = lambda i, c: lib.lax.fori_loop(0, 50, lambda j, d: d * 0.9999 + 1.0, c) + i  # noqa: E731
        return lib.lax.fori_loop(0, 200, inner, x)

    return run, (1.0,)


def batched_while(lib: Names) -> Made:
    def run(x: Any) -> Any:
        return lib.lax.while_loop(lambda v: lib.np.sum(v * v) < 100.0, lambda v: v * 1.1 + 0.1, x)

    return lib.vmap(run), (floats(256, 3),)


def runge_kutta(lib: Names, field: Callable[[Any], Any], start: Any, end: float) -> Made:
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
            h = lib.np.minimum(h, end - t)
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


def stiff(lib: Names) -> Made:
    def van_der_pol(y: Any) -> Any:
        return lib.np.stack([y[1], 50.0 * (1.0 - y[0] ** 2) * y[1] - y[0]])

    return runge_kutta(lib, van_der_pol, [2.0, 0.0], 20.0)


def smooth(lib: Names) -> Made:
    def lotka_volterra(y: Any) -> Any:
        return lib.np.stack([1.1 * y[0] - 0.4 * y[0] * y[1], 0.1 * y[0] * y[1] - 0.4 * y[1]])

    return runge_kutta(lib, lotka_volterra, [10.0, 5.0], 50.0)


def hmc(lib: Names) -> Made:
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


def kalman(lib: Names) -> Made:
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


def particles(lib: Names) -> Made:
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


def rnn_gradient(lib: Names) -> Made:
    np = lib.np

    def loss(wx: Any, wh: Any, xs: Any) -> Any:
        _, ys = lib.lax.scan(lambda h, x: (np.tanh(x @ wx + h @ wh),) * 2, np.zeros((32, 64)), xs)
        return np.mean(ys * ys)

    return lib.grad(loss, (0, 1)), (floats(64, 64, scale=0.1), floats(64, 64, seed=1, scale=0.1), floats(1_000, 32, 64))


def lstm_gradient(lib: Names) -> Made:
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


def ppo(lib: Names) -> Made:
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


@attrs.frozen
class Loop:
    """A program, and how its results are judged.

    Attributes:
        make: from a library's names to a function and its arguments.
        checked: the part of a result that rounding does not change much.
        tolerance: largest difference, as a part of the largest number.
        quick: whether it is small enough for --quick.
        reference: from the arguments to the right results; None: plain loops over float64 tensors.
    """

    make: Callable[[Names], Made]
    checked: Callable[[Any], Any] = lambda result: result
    tolerance: float = 1e-3
    quick: bool = False
    reference: Callable[..., Any] | None = None

    def workload(self, name: str) -> Workload:
        return Workload(
            name, lambda: tuple(map(as_float32, self.make(gtrace_names())[1])), lambda lib: self.make(lib)[0],
            sides={EAGER.name: lambda lib: self.make(reference_names())[0]}, checked=self.checked,
            tolerance=self.tolerance, transforms=True, reference=self.reference,
            excluded=() if self.make is lorenz else (EAGER.name,),
        )  # fmt: skip


def as_float32(value: Any) -> numpy.ndarray:
    return numpy.asarray(value, numpy.float32)


def each_example(xs: Any) -> Any:
    """Return what the batch of while_loops makes, an example at a time: torch.func has no rule for such a batch."""
    out = []
    for x in xs.astype(numpy.float64):
        while (x * x).sum() < 100.0:
            x = x * 1.1 + 0.1
        out.append(x)
    return numpy.stack(out)


def interpreted_ppo(*arrays: Any) -> Any:
    """Return what the training makes interpreted: its random draws are those of JAX, which torch does not have."""
    with gt.config(auto_compile=False):
        return gt.eval(ppo(gtrace_names())[0](*map(gt.array, arrays)))


def magnitudes(result: Any) -> Any:
    """Return logarithms, of numbers of which rounding leaves little more."""
    return tree.map(lambda x: numpy.log(1.0 + numpy.abs(to_numpy(x))), result)


# the Lorenz system is chaotic: in 2,000 steps, a difference of rounding grows to the size of the numbers themselves
PROGRAMS: dict[str, Loop] = {
    "scan, 10,000 Euler steps of the Lorenz system": Loop(lorenz, lambda result: result[1][:500], 1e-2),
    "gradient of 2,000 such steps": Loop(lorenz_gradient, magnitudes, 0.3),
    "while_loop, 5,000 iterations of a counter and a scalar": Loop(counter, quick=True),
    "fori_loop of 200 over a fori_loop of 50": Loop(nested),
    "vmap of a while_loop, 256 examples of 3": Loop(batched_while, quick=True, reference=each_example),
    "adaptive RK45 of a stiff system": Loop(stiff, lambda result: result[1], 1e-2),
    "adaptive RK45 of a system that is not stiff": Loop(smooth, lambda result: result[1], 1e-2),
    "HMC, 1,000 samples of 20 leapfrog steps": Loop(hmc, lambda result: result[1]),
    "Kalman filter, 1,000 steps, 4 x 4": Loop(kalman),
    "64 particles, 1,000 steps": Loop(particles, tolerance=1e-2),
    "gradient of an RNN over 1,000 steps, 32 x 64": Loop(rnn_gradient),
    "PPO, 10 updates of 16 environments": Loop(ppo, tolerance=0.3, reference=interpreted_ppo),
    "gradient of an LSTM over 200 steps, 128 x 256": Loop(lstm_gradient),
}


def measure_all(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    sides, left_out = available(options.sides)
    figures = []
    for name, loop in PROGRAMS.items():
        if options.only in name and (loop.quick or not options.quick):
            figures += measure(loop.workload(name), sides, rounds(options))
    return figures, left_out


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 15)
    add_sides(options, ["gt.jit", "torch eager", "jax.jit"])
    options.add_argument("--only", default="", help="programs whose name contains this")
    with gt.config(background=False):  # nothing compiles beside what is timed
        report("loops", options.parse_args(argv), measure_all)


if __name__ == "__main__":
    main()
