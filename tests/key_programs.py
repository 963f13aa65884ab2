"""Programs with typed keys, run with JAX by tests/data/make_jax_keys.py and with gtrace by tests/test_jax_keys.py."""

from __future__ import annotations

import functools
import pickle

import numpy as np


def described(jax, out):
    """Return what a program returned, in terms of JSON: of arrays the dtype, the shape and the values."""

    def leaf(x):
        if isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            return ["key", list(x.shape), np.asarray(jax.random.key_data(x)).tolist()]
        if hasattr(x, "dtype"):
            return [str(x.dtype), list(x.shape), np.asarray(x).astype(float).tolist()]
        return x

    leaves, structure = jax.tree.flatten(out)
    return [str(structure), [leaf(x) for x in leaves]]


def programs(jax, jit):
    """Return the programs by name; `jit` is that of `jax`, with options."""
    jnp, lax, random = jax.numpy, jax.lax, jax.random
    k = random.key(42)

    def vmapped_split():
        return jax.vmap(lambda k: random.split(k, 2))(random.split(k, 3))

    def second_axis():
        return jax.vmap(lambda ks: random.normal(ks[0]), in_axes=1)(random.split(k, (2, 3)))

    def last_axis():
        return jax.vmap(lambda ks: random.normal(ks[1]), in_axes=-1)(random.split(k, (2, 3)))

    def last_axis_of_results():
        return jax.vmap(lambda k: random.split(k, 2), out_axes=-1)(random.split(k, 3))

    def second_axis_of_results():
        return jax.vmap(lambda k: random.split(k, 2), out_axes=1)(random.split(k, 3))

    def one_key_for_all():
        return jax.vmap(lambda k, x: random.fold_in(k, x), in_axes=(None, 0))(k, jnp.arange(3))

    def draws_of_a_shape():
        return jax.vmap(functools.partial(random.normal, shape=(2,)))(random.split(k, 3))

    def two_vmaps():
        return jax.vmap(jax.vmap(random.uniform))(random.split(k, (2, 3)))

    def vmap_of_a_state():
        return jax.vmap(
            lambda s: {"k": random.split(s["k"])[0], "x": s["x"] + random.normal(s["k"])},
            in_axes=({"k": 0, "x": None},),
        )({"k": random.split(k, 3), "x": 1.0})

    def carried_by_scan():
        def step(k, _):
            k, s = random.split(k)
            return k, random.normal(s)

        return lax.scan(step, k, None, length=5)

    def scanned_over():
        return lax.scan(lambda c, k: (c + random.normal(k), k), 0.0, random.split(k, 4))

    def scanned_over_jitted():
        return jit(lambda ks: lax.scan(lambda c, k: (c + random.normal(k), random.split(k)), 0.0, ks))(
            random.split(k, 4)
        )

    def fori_loop():
        return lax.fori_loop(0, 4, lambda i, s: (random.fold_in(s[0], i), s[1] + random.normal(s[0])), (k, 0.0))

    def while_loop():
        return lax.while_loop(
            lambda s: s[1] < 3.0, lambda s: (random.split(s[0])[0], s[1] + random.uniform(s[0])), (k, 0.0)
        )

    def cond():
        return lax.cond(True, lambda k: random.split(k)[0], lambda k: k, k)

    def cond_of_an_array():
        return jit(lambda p, k: lax.cond(p, lambda k: random.split(k)[0], lambda k: k, k))(jnp.array(False), k)

    def switch():
        return lax.switch(1, [lambda k: k, lambda k: random.fold_in(k, 7)], k)

    def lax_map():
        return lax.map(random.normal, random.split(k, 3))

    def jitted():
        return jit(lambda k: random.split(k, 3))(k)

    def donated():
        return jit(lambda k: random.split(k)[0], donate_argnums=0)(random.key(3))

    def with_a_static_number():
        return jit(lambda n, k: random.split(k, n), static_argnums=0)(3, k)

    def grad_closed():
        return jax.grad(lambda w: jnp.sum(w * random.normal(k, (3,))))(jnp.ones(3))

    def grad_arg():
        return jax.grad(lambda w, k: jnp.sum(w * random.normal(k, (3,))))(jnp.ones(3), k)

    def value_and_grad_with_aux():
        return jax.value_and_grad(lambda w, s: (jnp.sum(w * random.normal(s["k"], (3,))), s), has_aux=True)(
            jnp.ones(3), {"k": k}
        )

    def checkpointed():
        return jax.grad(jax.checkpoint(lambda w, k: jnp.sum(w**2 * random.normal(k, (3,)))))(jnp.ones(3), k)

    def scan_grad():
        return jax.grad(lambda w: lax.scan(lambda c, k: (c * w + random.normal(k), None), 0.0, random.split(k, 3))[0])(
            2.0
        )

    def carry_grad():
        def f(w):
            def step(c, _):
                k, x = c
                k, s = random.split(k)
                return (k, x * w + random.normal(s)), None

            return lax.scan(step, (k, 0.0), None, length=3)[0][1]

        return jax.grad(f)(2.0)

    def jvp():
        return jax.jvp(lambda w: w * random.normal(k), (2.0,), (1.0,))

    def hessian():
        return jax.hessian(lambda w: jnp.sum(w**2 * random.normal(k, (2,))))(jnp.ones(2))

    def custom_vjp_none():
        @jax.custom_vjp
        def f(k, w):
            return w * random.normal(k)

        f.defvjp(lambda k, w: (f(k, w), (k, w)), lambda r, g: (None, g * random.normal(r[0])))
        return jax.grad(f, 1)(k, 2.0)

    def custom_vjp_float0():
        @jax.custom_vjp
        def f(k, w):
            return w * random.normal(k)

        f.defvjp(
            lambda k, w: (f(k, w), (k, w)), lambda r, g: (np.zeros((), jax.dtypes.float0), g * random.normal(r[0]))
        )
        return jax.grad(f, 1)(k, 2.0)

    def custom_jvp():
        @functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
        def f(k, w):
            return w * random.normal(k)

        @f.defjvp
        def r(k, p, t):
            return f(k, p[0]), t[0] * random.normal(k)

        return jax.grad(f, 1)(k, 2.0)

    def tree_map_over_keys_first():
        p = {"a": jnp.ones(2), "b": jnp.zeros(3)}
        ls, td = jax.tree.flatten(p)
        ks = jax.tree.unflatten(td, list(random.split(k, len(ls))))
        return jax.tree.map(lambda k, x: x + random.normal(k, x.shape), ks, p)

    def tree_map_over_an_array_of_keys():
        p = {"a": jnp.ones(2), "b": jnp.zeros(3)}
        td = jax.tree.structure(p)
        ks = jax.tree.unflatten(td, random.split(k, td.num_leaves))
        return jax.tree.map(lambda x, k: x + random.normal(k, x.shape), p, ks)

    def stacked_states():
        return jax.tree.map(lambda *xs: jnp.stack(xs), {"k": k, "x": 1.0}, {"k": random.key(1), "x": 2.0})

    def selected_states():
        return jax.tree.map(
            lambda a, b: jnp.where(True, a, b), {"k": k, "x": jnp.ones(2)}, {"k": random.key(1), "x": jnp.zeros(2)}
        )

    def vmapped_select():
        return jax.vmap(lambda d, a, b: jax.tree.map(lambda x, y: jax.lax.select(d, x, y), a, b))(
            jnp.array([True, False]), random.split(k, 2), random.split(random.key(5), 2)
        )

    def vmapped_where():
        return jax.vmap(lambda d, a, b: jnp.where(d, a, b))(
            jnp.array([True, False]), random.split(k, 2), random.split(random.key(5), 2)
        )

    def abstract():
        return [
            (x.shape, str(x.dtype))
            for x in [
                jax.eval_shape(lambda k: random.split(k, 3), k),
                jax.eval_shape(lambda k: random.split(k, 3), jax.ShapeDtypeStruct((), k.dtype)),
                jax.eval_shape(random.key, 0),
            ]
        ]

    def reshape():
        return (
            random.split(k, 6).reshape(2, 3),
            random.split(k, 6).reshape((3, -1)),
            random.split(k, (2, 3))[:, 1:],
            random.split(k, (2, 3)).T,
        )

    def unpacked():
        a, b, c = random.split(k, 3)
        return a, b, c

    def indexed():
        ks = random.split(k, 5)
        return (
            ks[jnp.array([3, 1])],
            ks[::2],
            ks[-1],
            ks[None].shape,
            ks[..., 0],
            ks[jnp.array([True, False, True, False, True])],
        )

    def indexed_jitted():
        return jit(lambda ks, i: ks[i])(random.split(k, 4), 2)

    def updated():
        ks = random.split(k, 3)
        return ks.at[1].set(k), ks.at[jnp.array([0, 2])].set(ks[1])

    def dynamic_updates():
        return lax.dynamic_update_slice(random.split(k, 4), random.split(k, 2), (1,)), lax.dynamic_update_index_in_dim(
            random.split(k, 4), k, 1, 0
        )

    def pickled():
        return pickle.loads(pickle.dumps(random.split(k, 2)))

    def words():
        return (
            random.key_data(random.split(k, (2, 3))),
            random.key_data(k),
            random.wrap_key_data(random.key_data(random.split(k, 2))),
        )

    def seeds():
        return [random.key_data(random.key(s)) for s in (0, -1, 2**31 - 1, -(2**31), jnp.int32(5), np.int64(7))]

    def vmapped_seed():
        return jax.vmap(random.key)(jnp.arange(3))

    def jitted_seed():
        return jit(random.key)(5)

    def draws():
        ks = random.split(k, 14)
        return [
            random.normal(ks[0], (2,)),
            random.uniform(ks[1], (2,), minval=-1.0),
            random.randint(ks[2], (3,), 0, 10),
            random.bernoulli(ks[3], 0.3, (4,)),
            random.categorical(ks[4], jnp.zeros(5)),
            random.permutation(ks[5], 6),
            random.choice(ks[6], 10, (3,)),
            random.gamma(ks[7], 2.0),
            random.truncated_normal(ks[8], -1.0, 1.0),
            random.exponential(ks[9]),
            random.gumbel(ks[10]),
            random.bits(ks[11]),
            random.beta(ks[12], 1.0, 2.0),
            random.poisson(ks[13], 3.0),
        ]

    def chosen_keys():
        return random.choice(k, random.split(k, 5), (2,)), random.choice(k, random.split(k, 5))

    def compared():
        ks = random.split(k, 3)
        return ks == ks[1], jnp.all(ks == ks), (ks != k).sum()

    def joined():
        return (
            jnp.concatenate([random.split(k, 2), k[None]]),
            jnp.stack([k, k], axis=-1).shape,
            jnp.expand_dims(k, -1).shape,
        )

    def paths():
        return [
            (jax.tree_util.keystr(p), x.shape)
            for p, x in jax.tree_util.tree_flatten_with_path({"r": k, "p": [jnp.ones(2)]})[0]
        ]

    def broadcast():
        return jnp.broadcast_to(k, (2,)), jnp.repeat(random.split(k, 2), 2), jnp.tile(k, 3)

    def classes_of_dtypes():
        return [bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key)) for x in (k, jnp.ones(2), random.PRNGKey(0))] + [
            bool(jnp.issubdtype(k.dtype, t)) for t in (jnp.integer, np.floating, jax.dtypes.extended, np.generic)
        ]

    def reversed_scan():
        return lax.scan(lambda c, k: (c, random.normal(k)), 0, random.split(k, 3), reverse=True)[1], jnp.flip(
            random.split(k, 3)
        )

    def zeros_like():
        return jnp.zeros_like(random.split(k, 2)), jax.tree.map(jnp.zeros_like, {"k": k})

    def linearized():
        y, f = jax.linearize(lambda w: w * random.normal(k), 2.0)
        return y, f(1.0)

    def vjp():
        y, f = jax.vjp(lambda w: w * random.normal(k, (2,)), 2.0)
        return y, f(jnp.ones(2))

    def jitted_vmap():
        return jit(jax.vmap(lambda k, x: random.normal(k, x.shape) + x))(random.split(k, 3), jnp.ones((3, 2)))

    def checkpointed_scan():
        return jax.grad(
            lambda w: lax.scan(jax.checkpoint(lambda c, k: (c * w + random.normal(k), None)), 0.0, random.split(k, 3))[
                0
            ]
        )(2.0)

    def state_with_none():
        return jit(lambda s: {**s, "k": random.split(s["k"])[1]})({"k": k, "n": None})

    def filled():
        keys = random.split(k, 2)
        return jnp.full((2,), k), jnp.full_like(keys, k), jnp.select([jnp.array([True, False])], [keys], k)

    def one_after_another():
        key, x = k, jnp.zeros(3)
        for _ in range(40):
            key, own = random.split(key)
            x = x * 0.9 + random.normal(own, (3,))
        return key, x

    own = ("jax", "jit", "jnp", "lax", "random", "k", "own")
    return {name: value for name, value in locals().items() if name not in own}
