"""A scene of distance functions, rendered by marching along rays, and moved by the gradient of its picture."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import grad, lax, vmap


class Scene(NamedTuple):
    centers: jax.Array
    radius: jax.Array
    floor: float = -1.0


def norm(v, axis=-1, keepdims=False, eps=0.0):
    return jnp.sqrt((v * v).sum(axis, keepdims=keepdims).clip(eps))


def normalize(v):
    return v / norm(v, keepdims=True, eps=1e-20)


def distance(scene, p):
    balls = vmap(lambda c, r: jnp.linalg.norm(p - c) - r)(scene.centers, scene.radius)
    q = jnp.abs(p - jnp.array([1.0, -0.6, 0.0])) - 0.4
    box = jnp.linalg.norm(jnp.maximum(q, 0.0)) + jnp.minimum(jnp.max(q), 0.0)
    torus = jnp.hypot(jnp.hypot(p[0] + 1.0, p[2]) - 0.5, p[1]) - 0.15
    return jnp.minimum(jnp.minimum(-jax.nn.logsumexp(-8.0 * balls) / 8.0, box), jnp.minimum(torus, p[1] - scene.floor))


def rays(forward, width, height, fx=0.2):
    right = jnp.cross(forward, jnp.array([0.0, 1.0, 0.0]))
    down = jnp.cross(right, forward)
    frame = normalize(jnp.vstack([right, down, forward]))
    fy = fx / width * height
    y, x = jnp.mgrid[fy : -fy : height * 1j, -fx : fx : width * 1j].reshape(2, -1)
    return normalize(jnp.c_[x, -y, jnp.ones_like(x)]) @ frame


def render(scene, width=4, height=3):
    camera = jnp.array([3.0, 3.0, 4.0])
    light = normalize(jnp.array([1.5, 1.0, 0.0]))
    sdf = partial(distance, scene)
    directions = rays(normalize(-camera), width, height)
    hits = vmap(lambda d: lax.fori_loop(0, 12, lambda _, p: p + sdf(p) * d, camera))(directions)
    normals = vmap(grad(sdf))(hits)
    color = normals.dot(light).clip(0.0) + 0.2
    return (color.reshape(height, width).clip(0, 1) ** (1.0 / 2.2)), hits


def main(wrap):
    k1, k2 = jax.random.split(jax.random.PRNGKey(0))
    scene = Scene(jax.random.uniform(k1, (3, 3), minval=-1.0, maxval=1.0), jax.random.uniform(k2, (3,)))
    picture, hits = wrap(render)(scene)
    target = picture * 0.9

    @wrap
    def fit(radius):
        return jax.value_and_grad(lambda r: jnp.square(render(scene._replace(radius=r))[0] - target).mean())(radius)

    value, slope = fit(scene.radius)
    pixels = (picture * 255).astype("uint8")
    return {"picture": picture, "hits": hits[:2], "loss": value, "slope": slope, "pixel": pixels[0, 0]}
