"""rlax: returns, V-trace and a projection of distributions."""

import jax
import jax.numpy as jnp
import rlax
from parts import show

rewards, discounts, values = jnp.array([1.0, 0.0, -1.0, 2.0]), jnp.full(4, 0.9), jnp.array([0.5, 0.2, -0.3, 0.7])
show("lambda returns", rlax.lambda_returns(rewards, discounts, values, 0.8))
ratios = jnp.array([1.2, 0.7, 1.0, 2.0])
show("v-trace", rlax.vtrace(values, jnp.append(values[1:], 0.1), rewards, discounts, ratios))
q, a = jnp.array([0.1, 0.5, -0.2]), 1
show("q-learning", jax.grad(lambda q: rlax.q_learning(q, a, 1.0, 0.9, jnp.array([0.3, 0.4, 0.2])) ** 2)(q))
atoms = jnp.linspace(-1, 1, 5)
show("projection", rlax.categorical_l2_project(atoms * 0.5 + 0.2, jnp.full(5, 0.2), atoms))
