"""A convolutional network on pictures of bars: conv_general_dilated, pooling by reduce_window, cross entropy."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn, random

LAYOUT = ("NHWC", "HWIO", "NHWC")


def pictures(count):
    """Pictures of 8 by 8 with one bright row or column; the class is which of the four bands it lies in."""
    rng = np.random.RandomState(0)
    places, upright = rng.randint(0, 8, count), rng.randint(0, 2, count)
    images = rng.rand(count, 8, 8, 1).astype(np.float32) * 0.3
    for image, place, up in zip(images, places, upright):
        image[(slice(None), place) if up else place] += 1.0
    return images, (places // 4 + 2 * upright).astype(np.int32)


def init(rng):
    keys = random.split(rng, 3)
    he = nn.initializers.he_normal()
    return [
        (he(keys[0], (3, 3, 1, 4)), jnp.zeros(4)),
        (he(keys[1], (3, 3, 4, 8)), jnp.zeros(8)),
        (nn.initializers.lecun_normal()(keys[2], (2 * 2 * 8, 4)), jnp.zeros(4)),
    ]


def conv(x, kernel, bias):
    y = lax.conv_general_dilated(
        x, kernel, window_strides=(1, 1), padding="SAME", dimension_numbers=LAYOUT, precision=lax.Precision.HIGHEST
    )
    return nn.relu(y + bias)


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def forward(params, x):
    for kernel, bias in params[:-1]:
        x = pool(conv(x, kernel, bias))
    w, b = params[-1]
    return x.reshape((x.shape[0], -1)) @ w + b


def loss(params, images, labels):
    log_probs = nn.log_softmax(forward(params, images))
    return -jnp.mean(jnp.sum(nn.one_hot(labels, 4) * log_probs, axis=-1))


def main(wrap):
    images, labels = pictures(16)
    params = init(random.PRNGKey(4))

    @wrap
    def update(params, images, labels):
        value, grads = jax.value_and_grad(loss)(params, images, labels)
        return [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, grads)], value

    values = []
    for _ in range(4):
        params, value = update(params, images, labels)
        values.append(value)
    accuracy = jnp.mean(jnp.argmax(forward(params, images), axis=-1) == labels)
    return {"losses": jnp.stack(values), "accuracy": accuracy, "kernel": params[0][0].ravel()[:6]}
