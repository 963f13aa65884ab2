"""Hares and lynxes by a differential equation that is half known, with diffrax, equinox and optax, as written for JAX.

    gtrace run --jax examples/diffrax_lynx.py [--quick]    on gtrace
    python examples/diffrax_lynx.py [--quick]              on JAX, if it is installed

The pelts that the Hudson's Bay Company counted in 21 years (Howard, 2009) follow Lotka's and Volterra's equations
roughly. A small network learns what these leave over (a universal differential equation: Rackauckas et al., 2020). The
solver chooses its steps, and gradients go through it. Every fourth year is held out.
"""

from __future__ import annotations

import argparse
import time

try:
    import diffrax
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing}. Run: pip install --no-deps diffrax equinox optax lineax optimistix jaxtyping "
        "wadler-lindig absl-py; then: gtrace run --jax examples/diffrax_lynx.py"
    ) from missing

HARES = (30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1, 40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6,
         14.6, 16.2, 24.7)  # fmt: skip
LYNXES = (4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4, 8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7,
          10.1, 8.6)  # fmt: skip
STEPS, RATE = 1000, 1e-2


class Field(eqx.Module):
    """The change of the logarithms of both numbers, in a year."""

    rates: jax.Array  # how hares grow and lynxes die, alone
    effects: jax.Array  # of ten lynxes on hares, and of ten hares on lynxes
    start: jax.Array
    network: eqx.nn.MLP | None

    def __init__(self, key, corrected):
        self.rates, self.effects = jnp.array([0.5, -0.8]), jnp.array([-0.3, 0.25])
        self.start = jnp.log(jnp.array([HARES[0], LYNXES[0]]) / 10)
        self.network = eqx.nn.MLP(2, 2, 16, 2, jnp.tanh, key=key) if corrected else None

    def __call__(self, t, y, args):
        change = self.rates + self.effects * jnp.exp(y[::-1])
        return change if self.network is None else change + 0.1 * self.network(y)

    def at(self, years):
        """Return the logarithms of both numbers, in tens of thousands, at the given years."""
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(self), diffrax.Tsit5(), years[0], years[-1], dt0=0.1, y0=self.start,
            saveat=diffrax.SaveAt(ts=years), stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-5),
        )  # fmt: skip
        return solution.ys


def error(field, years, seen, weights):
    """Return the mean square of the differences, of the years that have a weight."""
    return (weights[:, None] * (field.at(years) - seen) ** 2).sum() / (2 * weights.sum())


def fitted(field, years, seen, weights, steps):
    optimizer = optax.adamw(optax.cosine_decay_schedule(RATE, steps), weight_decay=1e-3)
    state = optimizer.init(eqx.filter(field, eqx.is_array))

    @eqx.filter_jit
    def step(field, state):
        value, grads = eqx.filter_value_and_grad(error)(field, years, seen, weights)
        updates, state = optimizer.update(grads, state, eqx.filter(field, eqx.is_array))
        return eqx.apply_updates(field, updates), state, value

    begin = time.perf_counter()
    for number in range(steps):
        field, state, value = step(field, state)
        if number % 250 == 0 or number == steps - 1:
            print(f"step {number:4}  error {float(value) ** 0.5:.4f}  {time.perf_counter() - begin:.1f} s")
    return field


def main(quick=False):
    years = jnp.arange(float(len(HARES)))
    seen = jnp.log(jnp.stack([jnp.array(HARES), jnp.array(LYNXES)], axis=1) / 10)
    known = jnp.where(years % 4 == 3, 0.0, 1.0)
    errors = {}
    for name, corrected in (("Lotka and Volterra", False), ("with a network", True)):
        field = fitted(Field(jax.random.key(0), corrected), years, seen, known, 3 if quick else STEPS)
        errors[name] = [float(jnp.sqrt(error(field, years, seen, weights))) for weights in (known, 1 - known)]
        print(f"{name}: error of the logarithm {errors[name][0]:.3f}, in held-out years {errors[name][1]:.3f}")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
