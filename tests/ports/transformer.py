"""A block as in GPT-2 and its greedy decoding: causal attention, GELU, tied embeddings, dynamic slices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

VOCABULARY, LENGTH, WIDTH, HEADS = 11, 8, 12, 3


def weights(seed=0):
    rng = np.random.RandomState(seed)

    def normal(*shape):
        return jnp.asarray(rng.randn(*shape).astype(np.float32) * 0.3)

    def linear(n_in, n_out):
        return {"w": normal(n_in, n_out), "b": jnp.zeros(n_out)}

    def norm():
        return {"g": jnp.ones(WIDTH), "b": jnp.zeros(WIDTH)}

    def block():
        return {
            "ln_1": norm(), "ln_2": norm(),
            "attn": {"c_attn": linear(WIDTH, 3 * WIDTH), "c_proj": linear(WIDTH, WIDTH)},
            "mlp": {"c_fc": linear(WIDTH, 4 * WIDTH), "c_proj": linear(4 * WIDTH, WIDTH)},
        }  # fmt: skip

    return {
        "wte": normal(VOCABULARY, WIDTH),
        "wpe": normal(LENGTH, WIDTH),
        "blocks": [block(), block()],
        "ln_f": norm(),
    }


def layer_norm(x, g, b, eps=1e-5):
    mean, variance = jnp.mean(x, axis=-1, keepdims=True), jnp.var(x, axis=-1, keepdims=True)
    return g * (x - mean) / jnp.sqrt(variance + eps) + b


def linear(x, w, b):
    return x @ w + b


def attention(q, k, v, mask):
    return jax.nn.softmax(q @ k.T / np.sqrt(q.shape[-1]) + mask) @ v


def mha(x, c_attn, c_proj):
    qkv = jnp.split(linear(x, **c_attn), 3, axis=-1)
    q, k, v = (jnp.stack(jnp.split(part, HEADS, axis=-1)) for part in qkv)
    mask = (1 - jnp.tri(x.shape[0], dtype=x.dtype)) * -1e10
    heads = jax.vmap(attention, in_axes=(0, 0, 0, None))(q, k, v, mask)
    return linear(jnp.hstack(list(heads)), **c_proj)


def ffn(x, c_fc, c_proj):
    return linear(jax.nn.gelu(linear(x, **c_fc)), **c_proj)


@jax.checkpoint
def block_fn(x, ln_1, ln_2, attn, mlp):
    x = x + mha(layer_norm(x, **ln_1), **attn)
    return x + ffn(layer_norm(x, **ln_2), **mlp)


def logits(params, tokens):
    x = params["wte"][tokens] + params["wpe"][jnp.arange(tokens.shape[0])]
    for block in params["blocks"]:
        x = block_fn(x, **block)
    return layer_norm(x, **params["ln_f"]) @ params["wte"].T


def loss(params, tokens):
    log_probs = jax.nn.log_softmax(logits(params, tokens[:-1]))
    return -jnp.take_along_axis(log_probs, tokens[1:, None], axis=-1).mean()


def decode(params, tokens, start):
    def step(i, tokens):
        scores = lax.dynamic_index_in_dim(logits(params, tokens), i - 1, keepdims=False)
        return lax.dynamic_update_index_in_dim(tokens, jnp.argmax(scores).astype(tokens.dtype), i, axis=0)

    return lax.fori_loop(start, LENGTH, step, tokens)


def main(wrap):
    params = weights()
    tokens = jnp.array([1, 4, 2, 8, 5, 7, 1, 4])
    value, grads = wrap(jax.value_and_grad(loss))(params, tokens)
    norms = jax.tree.map(lambda g: jnp.linalg.norm(g), grads["blocks"][0]["attn"])
    out = wrap(partial(decode, start=3))(params, jnp.where(jnp.arange(LENGTH) < 3, tokens, 0))
    return {"loss": value, "norms": norms, "tokens": out, "logits": logits(params, tokens)[-1]}
