"""Writes jax_halved.json: draws of JAX with ``jax_threefry_partitionable=False``. Run it with JAX installed."""

import json
import pathlib

import jax
import numpy as np

CALLS = """
R.key_data(R.split(R.key(5)))
R.split(R.PRNGKey(7), 3)
R.key_data(R.split(R.key(1), (2, 2)))
R.key_data(R.fold_in(R.key(3), 11))
R.bits(R.key(0), (5,))
R.bits(R.key(0), (2, 3))
R.bits(R.key(2), (7,), 'uint8')
R.bits(R.key(2), (5,), 'uint16')
R.bits(R.key(9))
R.bits(R.key(9), (0, 2))
R.uniform(R.key(4), (3,))
R.uniform(R.key(3), (3,), 'bfloat16').astype('float32')
R.normal(R.PRNGKey(0), (4,))
R.randint(R.key(6), (5,), -3, 100)
R.permutation(R.key(8), 6)
R.gamma(R.key(1), 2.5, (2,))
R.bernoulli(R.key(2), 0.4, (6,))
R.categorical(R.key(3), jax.numpy.zeros(5), shape=(4,))
R.poisson(R.key(3), 4.0, (3,))
R.truncated_normal(R.key(1), -1.0, 1.0, (3,))
jax.vmap(lambda k: R.uniform(k, (3,)))(R.split(R.key(2), 2))
jax.jit(lambda k: R.normal(k, (3,)))(R.key(12))
jax.lax.map(lambda k: R.normal(k, (3,)), R.split(R.key(2), 2))
R.bits(R.key(2), (3,), 'uint64')
R.normal(R.key(0), (3,), 'float64')
R.randint(R.key(6), (3,), 0, 10**12, 'int64')
""".split("\n")[1:-1]

if __name__ == "__main__":
    found = {}
    with jax.threefry_partitionable(False):
        for call in CALLS:
            with jax.enable_x64("64'" in call):
                found[call] = np.asarray(eval(call, {"jax": jax, "R": jax.random})).tolist()
    text = ",\n".join(f"{json.dumps(call)}: {json.dumps(value)}" for call, value in found.items())
    pathlib.Path(__file__).with_name("jax_halved.json").write_text(f"{{\n{text}\n}}\n")
