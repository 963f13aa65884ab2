"""A network of stax trained with gradients that are clipped for each example, and with noise."""

import itertools

import jax.numpy as jnp
import numpy.random as npr
from jax import grad, random, vmap
from jax.example_libraries import optimizers, stax
from jax.tree_util import tree_flatten, tree_map, tree_reduce, tree_unflatten

init_random_params, predict = stax.serial(
    stax.Conv(4, (3, 3), padding="SAME", strides=(2, 2)),
    stax.Relu,
    stax.MaxPool((2, 2), (1, 1)),
    stax.Flatten,
    stax.Dense(5),
    stax.LogSoftmax,
)


def loss(params, batch):
    inputs, targets = batch
    return -jnp.mean(jnp.sum(predict(params, inputs) * targets, axis=1))


def clipped_grad(params, l2_norm_clip, example):
    leaves, treedef = tree_flatten(grad(loss)(params, example))
    norm = jnp.linalg.norm(jnp.array([jnp.linalg.norm(leaf.ravel()) for leaf in leaves]))
    return tree_unflatten(treedef, [leaf / jnp.maximum(norm / l2_norm_clip, 1.0) for leaf in leaves])


def private_grad(params, batch, rng, l2_norm_clip, noise_multiplier, batch_size):
    clipped = vmap(clipped_grad, (None, None, 0))(params, l2_norm_clip, batch)
    leaves, treedef = tree_flatten(clipped)
    sums = [leaf.sum(0) for leaf in leaves]
    rngs = random.split(rng, len(sums))
    noised = [g + l2_norm_clip * noise_multiplier * random.normal(r, g.shape) for r, g in zip(rngs, sums)]
    return tree_unflatten(treedef, [g / batch_size for g in noised])


def main(wrap):
    rng = npr.RandomState(0)
    labels = rng.randint(0, 5, 8)
    images = (npr.RandomState(5).rand(5, 36)[labels] + 0.1 * rng.randn(8, 36)).reshape(-1, 1, 6, 6, 1)
    targets = jnp.eye(5)[labels]
    out_shape, params = init_random_params(random.PRNGKey(0), (-1, 6, 6, 1))
    opt_init, opt_update, get_params = optimizers.adam(optimizers.exponential_decay(0.1, 4, 0.5))
    itercount = itertools.count()

    @wrap
    def update(rng, i, opt_state, batch):
        params = get_params(opt_state)
        rng = random.fold_in(rng, i)
        return opt_update(i, private_grad(params, batch, rng, 1.5, 0.1, 8), opt_state)

    opt_state = opt_init(params)
    for _ in range(3):
        opt_state = update(random.PRNGKey(1), next(itercount), opt_state, (images, targets[:, None]))
    params = get_params(opt_state)
    squares = tree_map(lambda x: jnp.sum(x**2), params)
    return {
        "shape": jnp.array(out_shape), "loss": loss(params, (images[:, 0], targets)),
        "norm": jnp.sqrt(tree_reduce(lambda a, b: a + b, squares, 0.0)), "bias": params[-2][1],
        "clipped": optimizers.l2_norm(optimizers.clip_grads(params, 1.0)),
    }  # fmt: skip
