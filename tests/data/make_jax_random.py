"""Write jax_random.json: what jax.random draws, for test_random.py to compare with. Run with jax 0.10 installed:

    JAX_PLATFORMS=cpu python tests/data/make_jax_random.py

Each case is a function of jax.random, a seed, and arguments in JSON, where {"array": ..., "dtype": ...} is an array.
Floats are stored exactly, in hexadecimal. `x64` cases are drawn with jax_enable_x64, as 64-bit dtypes need it.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

SEEDS = [0, 1, 42, 2**31 - 1, 123456789]


def array(values, dtype="float32"):
    return {"array": values, "dtype": dtype}


def case(name, args=(), x64=False, seed=0, **kwargs):
    return {"name": name, "seed": seed, "args": list(args), "kwargs": kwargs, "x64": x64}


def cases():
    for seed in [*SEEDS, -1, -(2**31), 2**32 - 1]:
        yield case("key", seed=seed)
    for seed in (2**32, 2**40 + 5, -(2**33) - 7, 2**63 - 1, -(2**63)):
        yield case("key", seed=seed, x64=True)
    for seed in SEEDS:
        yield case("split", seed=seed)
        yield case("fold_in", [7], seed=seed)
        yield case("fold_in", [2**32 - 1], seed=seed)
        yield case("bits", [[3]], seed=seed)
        yield case("uniform", [[4]], seed=seed)
        yield case("normal", [[4]], seed=seed)
        yield case("randint", [[4], 0, 10], seed=seed)
        yield case("permutation", [6], seed=seed)
    yield case("split", [5])
    yield case("split", [[2, 3]])
    for shape in ([], [0], [7], [2, 3], [2, 1, 3]):
        yield case("bits", [shape])
        yield case("uniform", [shape])
        yield case("normal", [shape])
    for dtype in ("uint8", "uint16"):
        yield case("bits", [[9]], dtype=dtype)
    yield case("bits", [[9]], dtype="uint64", x64=True)

    for dtype in ("float32", "float16", "bfloat16", "float64"):
        x64 = dtype == "float64"
        for name in ("uniform", "normal", "gumbel", "exponential", "laplace"):
            yield case(name, [[20]], dtype=dtype, x64=x64, seed=3)
        yield case("gumbel", [[20]], dtype=dtype, mode="high", x64=x64, seed=3)
        yield case("truncated_normal", [-1.5, 0.75, [20]], dtype=dtype, x64=x64, seed=4)
        for low, high in ((-3.0, 7.3), (0.1, 0.2), (-1.0, 1.0), (1000.0, 1001.0)):
            yield case("uniform", [[30]], dtype=dtype, minval=low, maxval=high, x64=x64, seed=5)
        bounds = array([-1.0, 0.5, 3.0], dtype), array([1.5, 0.75, 300.0], dtype)
        yield case("uniform", [[4, 3]], dtype=dtype, minval=bounds[0], maxval=bounds[1], x64=x64, seed=6)
        yield case("bernoulli", [array([0.1, 0.5, 0.9], dtype), [5, 3]], x64=x64, seed=7)
        yield case("categorical", [array([0.1, 1.5, -0.5, 0.25], dtype)], shape=[9], x64=x64, seed=8)
    yield case("truncated_normal", [array([-1.0, 0.0]), array([0.5, 3.0])], seed=9)
    yield case("truncated_normal", [-2.0, float("inf"), [12]], seed=10)

    for low, high in ((0, 7), (-5, 5), (0, 2**16), (-(2**31), 2**31 - 1), (3, 65539), (10, 11), (0, 2**31 - 1)):
        yield case("randint", [[6], low, high], seed=11)
    for dtype, low, high in (("int32", -100, 1000), ("int16", -(2**15), 2**15), ("uint8", 0, 256), ("int8", -3, 5)):
        yield case("randint", [[6], low, high], dtype=dtype, seed=12)
    big = 2**63
    ranges = [(0, 10), (-(2**40), 2**40), (0, 2**32), (0, 2**32 - 5), (1, 2**32 + 2), (-big, big - 1), (0, big - 1)]
    for low, high in [*ranges, (-(2**62) - 3, 2**62 + 11), (-big, 5)]:
        yield case("randint", [[6], low, high], dtype="int64", seed=13, x64=True)
    lows = [0, -7, -(2**31), 5, 9]
    yield case("randint", [[3, 5], array(lows, "int32"), array([10, 9, 2**31 - 1, 6, 2], "int32")], seed=14)
    highs = [10, 2**40, big - 1, 2**32 + 3, 2**33]
    lows = [0, -(2**40), -big, 3, 5]
    yield case("randint", [[3, 5], array(lows, "int64"), array(highs, "int64")], dtype="int64", seed=14, x64=True)

    yield case("bernoulli", seed=15)
    yield case("bernoulli", [0.25, [12]], seed=15)
    yield case("bernoulli", [0.25, [12]], mode="high", seed=15)
    logits = array([[0.1, 1.5, -0.5], [2.0, 0.0, 1.0]])
    yield case("categorical", [logits], seed=16)
    yield case("categorical", [logits], axis=0, seed=16)
    yield case("categorical", [logits], shape=[4, 2], seed=16)
    yield case("categorical", [logits], axis=0, shape=[2, 2, 3], seed=16, mode="high")
    yield case("categorical", [logits], shape=[3, 2], replace=False, seed=16)
    yield case("categorical", [logits], axis=-2, shape=[2, 3], replace=False, seed=16)

    numbers = array(list(range(10, 22)), "int32")
    matrix = array(np.arange(12).reshape(3, 4).tolist(), "int32")
    yield case("permutation", [1], seed=17)
    yield case("permutation", [0], seed=17)
    yield case("permutation", [2000], seed=17)
    yield case("permutation", [numbers], seed=17)
    for axis in (0, 1, -1):
        yield case("permutation", [matrix], axis=axis, seed=18)
        yield case("permutation", [matrix], axis=axis, independent=True, seed=18)
    p = array([0.1, 0.2, 0.05, 0.4, 0.25])
    for mode in ("low", "high"):
        yield case("choice", [5, [4]], replace=False, p=p, mode=mode, seed=19)
    for replace in (True, False):
        yield case("choice", [5], replace=replace, seed=19)
        yield case("choice", [12, [2, 3]], replace=replace, seed=19)
        yield case("choice", [numbers, [2, 3]], replace=replace, seed=19)
        yield case("choice", [matrix, [2]], replace=replace, axis=1, seed=19)
        yield case("choice", [5, [3]], replace=replace, p=p, seed=20)
        yield case("choice", [5, [0]], replace=replace, seed=20)
    yield case("choice", [matrix, [2, 2]], axis=1, p=array([0.1, 0.2, 0.3, 0.4]), seed=21)


def value(x):
    if isinstance(x, dict):
        return jnp.asarray(np.array(x["array"]), dtype=x["dtype"])
    return tuple(x) if isinstance(x, list) else x


def stored(x):
    """Return an array as JSON, exactly."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    out = np.asarray(x)
    if jnp.issubdtype(out.dtype, jnp.floating):
        values = [float(v).hex() for v in out.ravel()]
    else:
        values = [int(v) for v in out.ravel()]
    return {"dtype": str(out.dtype), "shape": list(out.shape), "values": values}


def draw(one):
    with jax.enable_x64(one["x64"]):
        key = jax.random.key(one["seed"])
        if one["name"] == "key":
            return stored(key)
        kwargs = {k: value(v) for k, v in one["kwargs"].items()}
        return stored(getattr(jax.random, one["name"])(key, *map(value, one["args"]), **kwargs))


if __name__ == "__main__":
    assert jax.config.jax_threefry_partitionable
    lines = [json.dumps(one | {"out": draw(one)}) for one in cases()]
    body = ",\n".join(lines)
    path = Path(__file__).with_name("jax_random.json")
    path.write_text(f'{{"jax": "{jax.__version__}", "cases": [\n{body}\n]}}\n', encoding="utf-8")
