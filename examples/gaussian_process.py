"""Gaussian process regression: the kernel is fitted by the marginal likelihood (Rasmussen and Williams, 2006).

    python examples/gaussian_process.py [--quick]

The data are noisy values of a known function, so errors of the mean and the share of points inside the interval that
the process states can be measured.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import gtrace as gt
from gtrace.scipy import linalg

ROWS, PLACES, NOISE, STEPS, RATE = 200, 1000, 0.2, 300, 0.05


def function(x: gt.Array) -> gt.Array:
    return gt.sin(3.0 * x[:, 0]) * gt.exp(-0.3 * x[:, 1] ** 2) + 0.5 * x[:, 1]


class Process(gt.nn.Module):
    """Logarithms of amplitude, noise and a length for each axis."""

    amplitude: gt.Array
    noise: gt.Array
    lengths: gt.Array

    def kernel(self, a: gt.Array, b: gt.Array) -> gt.Array:
        """Return the covariances of the function at places a (n, 2) and b (m, 2)."""
        scaled = (a[:, None] - b) / gt.exp(self.lengths)
        return gt.exp(2 * self.amplitude - 0.5 * (scaled**2).sum(-1))

    def factor(self, x: gt.Array) -> gt.Array:
        """Return the Cholesky factor of the covariance of noisy values."""
        return gt.linalg.cholesky(
            self.kernel(x, x) + (gt.exp(2 * self.noise) + 1e-6) * gt.eye(x.shape[0], dtype=x.dtype)
        )

    def loss(self, x: gt.Array, y: gt.Array) -> gt.Array:
        """Return the negative logarithm of the marginal likelihood, for one value."""
        factor = self.factor(x)
        white = linalg.solve_triangular(factor, y, lower=True)
        total = 0.5 * (white**2).sum() + gt.log(gt.linalg.diagonal(factor)).sum()
        return total / x.shape[0] + 0.5 * math.log(2 * math.pi)

    def predict(self, x: gt.Array, y: gt.Array, places: gt.Array) -> tuple[gt.Array, gt.Array]:
        """Return mean and deviation of the function at places."""
        factor = self.factor(x)
        cross = linalg.solve_triangular(factor, self.kernel(x, places), lower=True)
        mean = cross.T @ linalg.solve_triangular(factor, y, lower=True)
        return mean, gt.sqrt(gt.maximum(gt.exp(2 * self.amplitude) - (cross**2).sum(0), 1e-12))


def data(first: gt.Array, second: gt.Array, rows: int) -> tuple[gt.Array, gt.Array]:
    x = gt.random.uniform(first, (rows, 2), gt.float64, minval=-2.0, maxval=2.0)
    return x, function(x) + NOISE * gt.random.normal(second, (rows,), gt.float64)


def fit(x: gt.Array, y: gt.Array, steps: int) -> Process:
    model = Process(*(gt.zeros(shape, gt.float64) for shape in ((), (), 2)))
    optimizer = gt.optim.adam(RATE)
    state = optimizer.init(model)

    def step(model: Process, state: Any) -> tuple[Process, Any, gt.Array]:
        value, grads = gt.value_and_grad(Process.loss)(model, x, y)
        updates, state = optimizer.update(grads, state)
        return gt.optim.apply_updates(model, updates), state, value

    start = time.perf_counter()
    for number in range(steps):
        model, state, value = step(model, state)
        if number % 50 == 0 or number == steps - 1:
            print(f"step {number:3}  loss {float(value):.4f} nats a value  {time.perf_counter() - start:.0f} s")
    return model


def main(quick: bool = False) -> float:
    keys = gt.random.split(gt.random.key(0), 3)
    x, y = data(keys[0], keys[1], 20 if quick else ROWS)
    places = gt.random.uniform(keys[2], (PLACES, 2), gt.float64, minval=-2.0, maxval=2.0)
    model = fit(x, y, 5 if quick else STEPS)
    mean, spread = model.predict(x, y, places)
    truth = function(places)
    error = float(((mean - truth) ** 2).mean() ** 0.5)
    inside = float((abs(mean - truth) < 1.96 * spread).astype(gt.float64).mean())
    lengths = ", ".join(f"{v:.2f}" for v in gt.exp(model.lengths).tolist())
    print(f"noise {float(gt.exp(model.noise)):.3f} (true: {NOISE}), lengths {lengths}")
    print(f"root mean square error {error:.4f}; {inside:.1%} of {PLACES} places inside the 95% interval")
    return error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
