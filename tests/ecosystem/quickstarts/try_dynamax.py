"""dynamax: the likelihood and smoothing of a hidden Markov model."""

import jax.numpy as jnp
from dynamax.hidden_markov_model import hmm_filter, hmm_smoother
from parts import show

initial, transition = jnp.array([0.6, 0.4]), jnp.array([[0.7, 0.3], [0.2, 0.8]])
likelihoods = jnp.log(jnp.array([[0.9, 0.2], [0.1, 0.7], [0.8, 0.3], [0.5, 0.5]]))
filtered = hmm_filter(initial, transition, likelihoods)
show("filter", filtered.marginal_loglik, filtered.filtered_probs)
show("smoother", hmm_smoother(initial, transition, likelihoods).smoothed_probs)
