"""CMA-ES on Rosenbrock's function: sorting, weighted covariances, eigenvectors, a dataclass as the state."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.tree_util import register_dataclass

SIZE, COUNT, PARENTS = 3, 8, 4


@register_dataclass
@dataclasses.dataclass
class State:
    mean: jax.Array
    sigma: jax.Array
    cov: jax.Array
    path_sigma: jax.Array
    path_c: jax.Array
    name: str = dataclasses.field(default="cma", metadata=dict(static=True))


def rosenbrock(x):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def constants():
    weights = jnp.log(PARENTS + 0.5) - jnp.log(jnp.arange(1, PARENTS + 1))
    weights = weights / jnp.sum(weights)
    mu = 1.0 / jnp.sum(weights**2)
    c_sigma = (mu + 2) / (SIZE + mu + 5)
    c_c = (4 + mu / SIZE) / (SIZE + 4 + 2 * mu / SIZE)
    c_1 = 2 / ((SIZE + 1.3) ** 2 + mu)
    c_mu = jnp.minimum(1 - c_1, 2 * (mu - 2 + 1 / mu) / ((SIZE + 2) ** 2 + mu))
    return weights, mu, c_sigma, c_c, c_1, c_mu


def generation(state, key):
    weights, mu, c_sigma, c_c, c_1, c_mu = constants()
    values, basis = jnp.linalg.eigh(state.cov)
    root = basis * jnp.sqrt(jnp.maximum(values, 1e-12))
    inverse = (basis / jnp.sqrt(jnp.maximum(values, 1e-12))) @ basis.T
    # eigenvectors have no sign of their own: the symmetric root has one
    moves = random.normal(key, (COUNT, SIZE)) @ (root @ basis.T).T
    points = state.mean + state.sigma * moves
    fitness = jax.vmap(rosenbrock)(points)
    order = jnp.argsort(fitness)[:PARENTS]
    best = moves[order]
    step = weights @ best
    path_sigma = (1 - c_sigma) * state.path_sigma + jnp.sqrt(c_sigma * (2 - c_sigma) * mu) * inverse @ step
    path_c = (1 - c_c) * state.path_c + jnp.sqrt(c_c * (2 - c_c) * mu) * step
    cov = (1 - c_1 - c_mu) * state.cov + c_1 * jnp.outer(path_c, path_c)
    cov = cov + c_mu * jnp.einsum("k,ki,kj->ij", weights, best, best)
    expected = jnp.sqrt(SIZE) * (1 - 1 / (4 * SIZE) + 1 / (21 * SIZE**2))
    sigma = state.sigma * jnp.exp(c_sigma * (jnp.linalg.norm(path_sigma) / expected - 1))
    mean = state.mean + state.sigma * step
    return State(mean, sigma, cov, path_sigma, path_c, state.name), jnp.min(fitness)


def main(wrap):
    zero = jnp.zeros(SIZE)
    start = State(zero, jnp.float32(0.5), jnp.eye(SIZE), zero, zero)
    state, best = wrap(lambda s, key: lax.scan(generation, s, random.split(key, 8)))(start, random.PRNGKey(9))
    assert state.name == "cma"
    return {"best": best, "mean": state.mean, "sigma": state.sigma}
