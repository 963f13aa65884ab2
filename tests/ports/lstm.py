"""An LSTM over characters: a scan over time, gradients clipped by their global norm, sampling by categorical draws."""

import jax
import jax.numpy as jnp
from jax import lax, nn, random

TEXT = "hello world, hello there"
LETTERS = sorted(set(TEXT))
HIDDEN = 10


def init(key):
    k1, k2, k3 = random.split(key, 3)
    scale = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    return {
        "wx": scale(k1, (len(LETTERS), 4 * HIDDEN)),
        "wh": scale(k2, (HIDDEN, 4 * HIDDEN)),
        "b": jnp.zeros(4 * HIDDEN).at[HIDDEN : 2 * HIDDEN].set(1.0),
        "out": scale(k3, (HIDDEN, len(LETTERS))),
    }


def cell(params, carry, x):
    h, c = carry
    i, f, g, o = jnp.split(x @ params["wx"] + h @ params["wh"] + params["b"], 4, axis=-1)
    c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
    h = nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h @ params["out"]


def loss(params, inputs, targets):
    start = (jnp.zeros(HIDDEN), jnp.zeros(HIDDEN))
    _, logits = lax.scan(lambda carry, x: cell(params, carry, x), start, nn.one_hot(inputs, len(LETTERS)), unroll=4)
    return -jnp.mean(jnp.take_along_axis(nn.log_softmax(logits, axis=-1), targets[:, None], axis=-1))


def clipped(grads, limit):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, limit / norm), grads), norm


def sample(params, key, count):
    def body(carry, key):
        state, letter = carry
        state, logits = cell(params, state, nn.one_hot(letter, len(LETTERS)))
        letter = random.categorical(key, logits)
        return (state, letter), letter

    start = (jnp.zeros(HIDDEN), jnp.zeros(HIDDEN))
    _, letters = lax.scan(body, (start, jnp.array(3)), random.split(key, count))
    return letters


def main(wrap):
    codes = jnp.array([LETTERS.index(letter) for letter in TEXT])
    params = init(random.PRNGKey(7))

    @wrap
    def update(params, inputs, targets):
        value, grads = jax.value_and_grad(loss)(params, inputs, targets)
        grads, norm = clipped(grads, 0.5)
        return jax.tree.map(lambda p, g: p - 1.0 * g, params, grads), value, norm

    values, norms = [], []
    for _ in range(4):
        params, value, norm = update(params, codes[:-1], codes[1:])
        values.append(value)
        norms.append(norm)
    letters = wrap(lambda p, key: sample(p, key, 6))(params, random.PRNGKey(8))
    return {"losses": jnp.array(values), "norms": jnp.array(norms), "letters": letters}
