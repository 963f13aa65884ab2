"""mctx: a search with a model that is a table."""

import jax
import jax.numpy as jnp
import mctx
from parts import show

values, rewards = jnp.array([0.1, 0.5, -0.2]), jnp.array([[0.0, 1.0], [0.5, -0.5], [0.2, 0.1]])


def model(params, key, action, state):
    new = (state + action + 1) % 3
    out = mctx.RecurrentFnOutput(reward=rewards[state, action], discount=jnp.full(state.shape, 0.9),
                                 prior_logits=jnp.zeros((*state.shape, 2)), value=values[new])  # fmt: skip
    return out, new


logits = jnp.array([[0.1, 0.3], [0.0, 0.0]])
root = mctx.RootFnOutput(prior_logits=logits, value=values[:2], embedding=jnp.array([0, 1]))
for name, policy in (("muzero", mctx.muzero_policy), ("gumbel", mctx.gumbel_muzero_policy)):
    found = jax.jit(lambda key, policy=policy: policy((), key, root, model, num_simulations=16))(jax.random.key(0))
    show(name, found.action, found.action_weights)
