"""A neural ordinary differential equation learns the motion of a damped, nonlinear pendulum (Chen et al., 2018).

    python examples/neural_ode.py [--quick]

The field is an MLP; Runge-Kutta steps in a `gt.scan` integrate it, and gradients go through the loop. Trajectories are
then continued for three times as long as those that were seen, from starts that were not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gtrace as gt

SECONDS, POINTS, STEPS, RATE = 3.0, 31, 1500, 5e-3


def pendulum(y: gt.Array) -> gt.Array:
    """Return the change of (angle, speed) in a second."""
    angle, speed = y[..., 0], y[..., 1]
    return gt.stack((speed, -4.0 * gt.sin(angle) - 0.3 * speed), axis=-1)


def integrate(field: Callable[[gt.Array], gt.Array], start: gt.Array, points: int) -> gt.Array:
    """Return the trajectory from `start` at points 0.1 s apart, by the classical Runge-Kutta method."""
    dt = SECONDS / (POINTS - 1)

    def step(y: gt.Array, _: None) -> tuple[gt.Array, gt.Array]:
        a = field(y)
        b = field(y + 0.5 * dt * a)
        c = field(y + 0.5 * dt * b)
        d = field(y + dt * c)
        y = y + dt / 6 * (a + 2 * b + 2 * c + d)
        return y, y

    rest = gt.scan(step, start, None, points - 1)[1]
    return gt.concat((start[None], rest))


def starts(key: gt.Array, count: int) -> gt.Array:
    return gt.random.uniform(key, (count, 2), minval=-2.0, maxval=2.0)


def fit(key: gt.Array, seen: gt.Array, steps: int) -> gt.nn.MLP:
    """Return a network that is the field of the trajectories from `seen`."""
    truth = integrate(pendulum, seen, POINTS)
    model = gt.nn.MLP(2, 2, 48, 2, gt.tanh, key=key)
    optimizer = gt.optim.adam(gt.optim.cosine_decay_schedule(RATE, steps, 0.01))
    state = optimizer.init(model)

    def step(model: gt.nn.MLP, state: Any) -> tuple[gt.nn.MLP, Any, gt.Array]:
        value, grads = gt.value_and_grad(lambda m: ((integrate(m, seen, POINTS) - truth) ** 2).mean())(model)
        updates, state = optimizer.update(grads, state)
        return gt.optim.apply_updates(model, updates), state, value

    begin = time.perf_counter()
    for number in range(steps):
        model, state, value = step(model, state)
        if number % 250 == 0 or number == steps - 1:
            print(f"step {number:4}  error {float(value) ** 0.5:.4f}  {time.perf_counter() - begin:.0f} s")
    return model


def main(quick: bool = False) -> float:
    keys = gt.random.split(gt.random.key(0), 3)
    model = fit(keys[1], starts(keys[0], 32), 5 if quick else STEPS)
    new = starts(keys[2], 64)
    points = 3 * (POINTS - 1) + 1
    error = float(((integrate(model, new, points) - integrate(pendulum, new, points)) ** 2).mean() ** 0.5)
    print(f"root mean square error over {3 * SECONDS:.0f} s from 64 new starts: {error:.4f}")
    return error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
