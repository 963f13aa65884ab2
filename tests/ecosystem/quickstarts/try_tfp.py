"""TensorFlow Probability on JAX: distributions, bijectors, and a step of Hamiltonian Monte Carlo."""

import jax
import jax.numpy as jnp
from parts import show
from tensorflow_probability.substrates import jax as tfp

tfd, tfb = tfp.distributions, tfp.bijectors
gamma = tfd.Gamma(2.0, 3.0)
show("gamma", gamma.log_prob(jnp.array([0.2, 1.0])), jax.grad(gamma.log_prob)(0.7))
show("sample", tfd.Normal(jnp.array([0.0, 5.0]), 2.0).sample(3, seed=jax.random.PRNGKey(0)))
show("bijector", tfb.Chain([tfb.Exp(), tfb.Shift(1.0)]).forward_log_det_jacobian(jnp.array([0.1, 0.4]), 0))
kernel = tfp.mcmc.HamiltonianMonteCarlo(lambda x: -0.5 * (x**2).sum(-1), step_size=0.3, num_leapfrog_steps=3)
chain = tfp.mcmc.sample_chain(20, jnp.ones(2), kernel=kernel, trace_fn=None, seed=jax.random.PRNGKey(1))
show("chain", chain[-1], chain.mean(0))
