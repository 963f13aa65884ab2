"""flowjax: the density and samples of a normalizing flow."""

import jax
import jax.numpy as jnp
from flowjax.distributions import Normal
from flowjax.flows import masked_autoregressive_flow
from parts import show

flow = masked_autoregressive_flow(jax.random.key(0), base_dist=Normal(jnp.zeros(2)), flow_layers=2, nn_depth=1)
x = jnp.array([[0.1, 0.2], [-1.0, 0.5]])
show("density", flow.log_prob(x))
show("samples", flow.sample(jax.random.key(1), (3,)))
