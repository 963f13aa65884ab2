"""penzai: arrays with named axes."""

import jax.numpy as jnp
from parts import show
from penzai import pz

x = pz.nx.wrap(jnp.sin(jnp.arange(24.0)).reshape(2, 3, 4)).tag("batch", "place", "feature")
show("mean", pz.nx.nmap(jnp.mean)(x.untag("place")).unwrap("batch", "feature"))
scaled = x * pz.nx.wrap(jnp.arange(4.0)).tag("feature")
show("product", scaled.unwrap("batch", "place", "feature")[0])
