"""A network of pairs of functions, as in stax, on synthetic digits: initializers, dropout, momentum."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.random as npr
from jax import nn, random
from jax.nn.initializers import glorot_normal, normal, zeros
from jax.scipy.special import logsumexp


def Dense(out_dim, w_init=glorot_normal(), b_init=normal(1e-2)):
    def init_fun(rng, input_shape):
        k1, k2 = random.split(rng)
        return input_shape[:-1] + (out_dim,), (w_init(k1, (input_shape[-1], out_dim)), b_init(k2, (out_dim,)))

    def apply_fun(params, inputs, **kwargs):
        w, b = params
        return jnp.dot(inputs, w) + b

    return init_fun, apply_fun


def elementwise(fun, **options):
    return lambda rng, shape: (shape, ()), lambda params, x, **kwargs: fun(x, **options)


def Dropout(rate):
    def apply_fun(params, inputs, rng=None):
        keep = random.bernoulli(rng, rate, inputs.shape)
        return jnp.where(keep, inputs / rate, 0)

    return lambda rng, shape: (shape, ()), apply_fun


Relu = elementwise(nn.relu)
LogSoftmax = elementwise(nn.log_softmax, axis=-1)


def serial(*layers):
    inits, applies = zip(*layers)

    def init_fun(rng, input_shape):
        params = []
        for init in inits:
            rng, layer_rng = random.split(rng)
            input_shape, param = init(layer_rng, input_shape)
            params.append(param)
        return input_shape, params

    def apply_fun(params, inputs, rng=None):
        rngs = random.split(rng, len(applies)) if rng is not None else (None,) * len(applies)
        for fun, param, layer_rng in zip(applies, params, rngs):
            inputs = fun(param, inputs, rng=layer_rng)
        return inputs

    return init_fun, apply_fun


init_random_params, predict = serial(Dense(12), Relu, Dropout(0.8), Dense(10, b_init=zeros), LogSoftmax)


def digits(count):
    rng = npr.RandomState(3)
    centers = rng.rand(10, 20)
    labels = rng.randint(0, 10, count)
    images = centers[labels] + 0.2 * rng.randn(count, 20)
    return images, np.eye(10)[labels]


def loss(params, rng, batch):
    inputs, targets = batch
    return -jnp.mean(jnp.sum(predict(params, inputs, rng=rng) * targets, axis=1))


def accuracy(params, rng, batch):
    inputs, targets = batch
    return jnp.mean(jnp.argmax(predict(params, inputs, rng=rng), axis=1) == jnp.argmax(targets, axis=1))


def main(wrap):
    images, targets = digits(24)
    _, params = init_random_params(random.PRNGKey(0), (-1, 20))
    velocity = jax.tree_util.tree_map(jnp.zeros_like, params)

    @wrap
    def update(i, params, velocity, batch):
        rng = random.fold_in(random.PRNGKey(11), i)
        value, grads = jax.value_and_grad(loss)(params, rng, batch)
        velocity = jax.tree_util.tree_map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree_util.tree_map(lambda p, v: p - 0.1 * v, params, velocity), velocity, value

    values = []
    for k in range(6):
        part = slice((k % 2) * 12, (k % 2) * 12 + 12)
        params, velocity, value = update(k, params, velocity, (images[part], targets[part]))
        values.append(value)
    score = accuracy(params, random.PRNGKey(12), (images, targets))
    return {"losses": jnp.array(values), "accuracy": score, "total": logsumexp(params[0][0]), "dtype": str(value.dtype)}
