"""Gaussian process regression: a kernel by vmap, Cholesky factors, the marginal likelihood and its gradients."""

import jax
import jax.numpy as jnp
from jax import grad, random, vmap
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular


def softplus(x):
    return jnp.logaddexp(x, 0.0)


def gram(kernel, xs, ys):
    return vmap(lambda x: vmap(lambda y: kernel(x, y))(ys))(xs)


def exp_quadratic(params, x1, x2):
    amplitude, lengthscale = softplus(params["amplitude"]), softplus(params["lengthscale"])
    return amplitude**2 * jnp.exp(-0.5 * jnp.sum((x1 - x2) ** 2) / lengthscale**2)


def covariance(params, x):
    noise = softplus(params["noise"])
    return gram(lambda a, b: exp_quadratic(params, a, b), x, x) + (noise**2 + 1e-5) * jnp.eye(x.shape[0])


def negative_log_likelihood(params, x, y):
    factor = jnp.linalg.cholesky(covariance(params, x))
    white = solve_triangular(factor, y - jnp.mean(y), lower=True)
    count = x.shape[0]
    return 0.5 * white @ white + jnp.sum(jnp.log(jnp.diag(factor))) + 0.5 * count * jnp.log(2 * jnp.pi)


def fit(params, x, y, steps, rate=0.05):
    momentum = jax.tree.map(lambda p: p * 0, params)
    losses = []
    for _ in range(steps):
        loss, grads = jax.value_and_grad(negative_log_likelihood)(params, x, y)
        momentum = jax.tree.map(lambda m, g: 0.8 * m + 0.2 * g, momentum, grads)
        params = jax.tree.map(lambda p, m: p - rate * m, params, momentum)
        losses.append(loss)
    return params, jnp.array(losses)


def predict(params, x, y, places):
    factor = cho_factor(covariance(params, x), lower=True)
    cross = gram(lambda a, b: exp_quadratic(params, a, b), x, places)
    mean = jnp.mean(y) + cross.T @ cho_solve(factor, y - jnp.mean(y))
    spread = jnp.diag(gram(lambda a, b: exp_quadratic(params, a, b), places, places))
    return mean, spread - jnp.einsum("ij,ij->j", cross, cho_solve(factor, cross))


def main(wrap):
    key, noise = random.split(random.PRNGKey(1))
    x = random.uniform(key, shape=(12, 1), minval=-3.0, maxval=3.0)
    y = jnp.sin(x[:, 0] * 2) + 0.1 * random.normal(noise, (12,))
    params = {"amplitude": jnp.zeros(()), "lengthscale": jnp.zeros(()), "noise": jnp.zeros(()) - 2.0}
    params, losses = wrap(lambda p: fit(p, x, y, 5))(params)
    mean, variance = wrap(predict)(params, x, y, jnp.linspace(-2.0, 2.0, 5)[:, None])
    slope = grad(lambda s: predict(params, x, y, jnp.linspace(-1.0, s, 3)[:, None])[0].sum())(1.0)
    return {"losses": losses, "mean": mean, "variance": variance, "slope": slope, "params": params}
