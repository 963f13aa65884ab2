"""A variational autoencoder of binary patterns: reparameterized gradients, Adam by hand, keys split in a scan."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, nn, random

WIDTH, HIDDEN, LATENT = 12, 16, 3


def dense(key, n_in, n_out):
    return {"w": nn.initializers.glorot_normal()(key, (n_in, n_out)), "b": jnp.zeros((n_out,))}


def init(key):
    keys = random.split(key, 5)
    return {
        "hidden": dense(keys[0], WIDTH, HIDDEN),
        "mean": dense(keys[1], HIDDEN, LATENT),
        "scale": dense(keys[2], HIDDEN, LATENT),
        "back": dense(keys[3], LATENT, HIDDEN),
        "out": dense(keys[4], HIDDEN, WIDTH),
    }


def apply(layer, x):
    return jnp.dot(x, layer["w"]) + layer["b"]


def encode(params, x):
    h = nn.relu(apply(params["hidden"], x))
    return apply(params["mean"], h), nn.softplus(apply(params["scale"], h)) + 1e-4


def decode(params, z):
    return apply(params["out"], nn.relu(apply(params["back"], z)))


def elbo(params, key, x):
    mean, scale = encode(params, x)
    z = mean + scale * random.normal(key, mean.shape)
    logits = decode(params, z)
    likelihood = -jnp.sum(jnp.logaddexp(0.0, jnp.where(x, -1.0, 1.0) * logits))
    divergence = -0.5 * jnp.sum(1.0 + 2 * jnp.log(scale) - mean**2 - scale**2)
    return (likelihood - divergence) / x.shape[0]


def data(key, count):
    kinds = random.randint(key, (count,), 0, 3)
    return jnp.arange(WIDTH) % 3 == kinds[:, None]


def adam(params, grads, state, step, rate=0.02, b1=0.9, b2=0.999):
    m, v = state
    m = jax.tree_util.tree_map(lambda m, g: b1 * m + (1 - b1) * g, m, grads)
    v = jax.tree_util.tree_map(lambda v, g: b2 * v + (1 - b2) * g**2, v, grads)
    scale = rate * jnp.sqrt(1 - b2**step) / (1 - b1**step)
    params = jax.tree_util.tree_map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, (m, v)


def train(key, steps):
    key_params, key_data, key_steps = random.split(key, 3)
    params, x = init(key_params), data(key_data, 16)
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)

    def step(carry, inputs):
        params, state = carry
        k, key = inputs
        value, grads = jax.value_and_grad(elbo)(params, key, x)
        grads = jax.tree_util.tree_map(lambda g: -g, grads)
        return adam(params, grads, state, k + 1), value

    keys = random.split(key_steps, steps)
    (params, _), values = lax.scan(step, (params, (zeros, zeros)), (jnp.arange(steps), keys))
    return values, jnp.std(params["out"]["w"])


def main(wrap):
    values, spread = wrap(partial(train, steps=6))(random.PRNGKey(0))
    return {"elbo": values, "spread": spread}
