"""Hamiltonian Monte Carlo for a Bayesian linear regression, whose posterior is known exactly.

    python examples/hmc.py [--quick]

Leapfrog steps in a `gt.fori_loop`, transitions in a `gt.scan`, chains by `gt.vmap`: one compiled program.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import gtrace as gt

FEATURES, ROWS, NOISE, PRIOR = 5, 40, 0.5, 2.0
CHAINS, DRAWS, STEP, LEAPS = 8, 2000, 0.08, 12


def data(key: gt.Array) -> tuple[gt.Array, gt.Array]:
    one, two, three = gt.random.split(key, 3)
    x = gt.random.normal(one, (ROWS, FEATURES))
    x = gt.numpy.column_stack([x[:, 0], x[:, 0] + 0.5 * x[:, 1], *[x[:, k] for k in range(2, FEATURES)]])  # correlated
    weights = gt.random.normal(two, (FEATURES,)) * PRIOR
    return x, x @ weights + NOISE * gt.random.normal(three, (ROWS,))


def log_density(weights: gt.Array, x: gt.Array, y: gt.Array) -> gt.Array:
    """Return the logarithm of prior times likelihood, but for a constant."""
    residuals = (y - x @ weights) / NOISE
    return -0.5 * (residuals**2).sum() - 0.5 * ((weights / PRIOR) ** 2).sum()


def transition(q: gt.Array, key: gt.Array, x: gt.Array, y: gt.Array) -> tuple[gt.Array, gt.Array]:
    """Return the next draw, and whether the proposal was accepted."""
    force = gt.grad(lambda q: log_density(q, x, y))
    key_p, key_u = gt.random.split(key)
    p = gt.random.normal(key_p, q.shape)

    def leap(_: Any, state: tuple[gt.Array, gt.Array]) -> tuple[gt.Array, gt.Array]:
        q, p = state
        p = p + 0.5 * STEP * force(q)
        q = q + STEP * p
        return q, p + 0.5 * STEP * force(q)

    new_q, new_p = gt.fori_loop(0, LEAPS, leap, (q, p))
    gain = log_density(new_q, x, y) - 0.5 * (new_p**2).sum() - log_density(q, x, y) + 0.5 * (p**2).sum()
    accept = gt.log(gt.random.uniform(key_u)) < gain
    return gt.where(accept, new_q, q), accept


def sample(key: gt.Array, x: gt.Array, y: gt.Array, count: int) -> tuple[gt.Array, gt.Array]:
    """Return the draws of one chain (count, features), and the share of accepted proposals."""
    first, rest = gt.random.split(key)

    def body(q: gt.Array, key: gt.Array) -> tuple[gt.Array, tuple[gt.Array, gt.Array]]:
        q, accepted = transition(q, key, x, y)
        return q, (q, accepted)

    _, (draws, accepted) = gt.scan(body, gt.random.normal(first, (FEATURES,)) * PRIOR, gt.random.split(rest, count))
    return draws, accepted.astype(gt.float32).mean()


def posterior(x: gt.Array, y: gt.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact mean and covariance of the weights."""
    precision = (x.T @ x).numpy() / NOISE**2 + np.eye(FEATURES) / PRIOR**2
    cov = np.linalg.inv(precision)
    return cov @ (x.T @ y).numpy() / NOISE**2, cov


def main(quick: bool = False) -> float:
    x, y = data(gt.random.key(3))
    count = 20 if quick else DRAWS
    start = time.perf_counter()
    keys = gt.random.split(gt.random.key(1), CHAINS)
    draws, rate = gt.vmap(lambda key: sample(key, x, y, count))(keys)
    chains = draws.numpy()[:, count // 4 :].astype(np.float64)  # without the first quarter
    seconds = time.perf_counter() - start

    mean, cov = posterior(x, y)
    flat = chains.reshape(-1, FEATURES)
    spread = np.sqrt(np.diag(cov))
    off_mean = np.abs(flat.mean(0) - mean) / spread
    off_cov = np.abs(np.cov(flat.T) - cov) / np.outer(spread, spread)
    within, between = chains.var(1, ddof=1).mean(0), chains.mean(1).var(0, ddof=1)
    r_hat = np.sqrt(1 - 1 / chains.shape[1] + between / within).max()
    print(f"{CHAINS} chains of {count} draws in {seconds:.1f} s, {float(rate.mean()):.0%} accepted, R-hat {r_hat:.4f}")
    print(f"largest error of a mean: {off_mean.max():.3f} posterior deviations; of a covariance: {off_cov.max():.3f}")
    return float(max(off_mean.max(), off_cov.max()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few draws only")
    main(parser.parse_args().quick)
