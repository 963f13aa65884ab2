"""Computes jax_special.json with JAX: special points, results of integers, and functions of hard arrays.

Run it with Python that has JAX 0.10: ``python tests/data/make_jax_special.py``.
"""

from __future__ import annotations

import json
import pathlib

import jax
import numpy

FILE = pathlib.Path(__file__).with_name("jax_special.json")


def text(found: object) -> str:
    """Return the leaves as text: dtype, shape and elements."""
    leaves = [numpy.asarray(x) for x in jax.tree.leaves(found)]
    return "; ".join(f"{x.dtype}{list(x.shape)} {' '.join(map(repr, x.ravel().tolist()))}" for x in leaves)


def points(jnp: object, expression: str, at: list) -> str:
    """Return the value, and both derivatives along ones, of an expression of x (and y) at a point."""
    names = {"jax": jax, "jnp": jnp, "lax": jax.lax, "nn": jax.nn, "sc": jax.scipy.special}
    x = [jnp.asarray(numpy.asarray(v, "float32")) for v in at]

    def f(*operands: object) -> object:
        return eval(expression, {**names, **dict(zip("xy", operands, strict=False))})

    out, pull = jax.vjp(f, *x)
    forward = jax.jvp(f, tuple(x), tuple(map(jnp.ones_like, x)))[1]
    return text((out, forward, pull(jax.tree.map(jnp.ones_like, out))))


def main() -> None:
    import jax.scipy.cluster.vq
    import jax.scipy.fft
    import jax.scipy.linalg
    import jax.scipy.signal
    import jax.scipy.special
    import jax.scipy.stats

    table = json.loads(FILE.read_text())
    for entry in table["points"]:
        for case in entry["cases"]:
            case[1] = points(jax.numpy, entry["f"], case[0])
    for bits in ("32", "64"):
        jax.config.update("jax_enable_x64", bits == "64")
        names = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, **integers(jax.numpy)}
        for expression in table[bits]:
            table[bits][expression] = text(eval(expression, names))
    jax.config.update("jax_enable_x64", False)
    table["hard"] = {expression: text(eval(expression, hard(jax.numpy))) for expression in table["hard"]}
    FILE.write_text(json.dumps(table, indent=0) + "\n")


def integers(jnp: object) -> dict[str, object]:
    """Return the arrays that the expressions name."""
    return {
        "I": jnp.array([1, 2, 3, 4], "int32"), "Z": jnp.array([0, 0, 1, 0], "int32"),
        "U": jnp.array([1, 2, 3, 4], "uint8"), "S": jnp.array([1, -2, 3, 4], "int8"),
        "V": jnp.array([1, 2, 3, 4], "uint32"), "M": jnp.array([-2147483648, 5], "int32"),
        "b": jnp.array([True, False, True, True]), "one": jnp.array(1, "int32"),
    }  # fmt: skip


def hard(jnp: object) -> dict[str, object]:
    """Return the arrays of NaN, infinities, ties, zeros, no and one element, and matrices, and the modules."""
    nan, inf = numpy.nan, numpy.inf
    arrays = {
        "V": [3, 1, 2, 1, -1],
        "VN": [3, nan, 2, nan, -1],
        "VI": [3, inf, 2, -inf, inf],
        "VZ": [0.0, -0.0, 0.0, -0.0, -0.0],
        "AN": [nan] * 3,
        "M": [[1, 2, 2], [4, -1, 4]],
        "MN": [[1, nan, 2], [nan] * 3],
        "O": [1.5],
        "S": 2.5,
        "MI": [[inf, -inf, 0], [-0.0, inf, inf]],
        "E": [],
        "E03": numpy.zeros((0, 3)),
        "E30": numpy.zeros((3, 0)),
        "K": numpy.arange(24).reshape(2, 3, 4) % 7 - 3,
        "L": numpy.linspace(-1, 1, 9),
        "QZ": numpy.zeros((3, 3)),
        "Q": [[4, 1, 0.5], [1, 3, -1], [0.5, -1, 5]],
        "QS": [[1, 2, 3], [2, 4, 6], [1, 1, 1]],
        "QG": [[1, 2, -3], [0.5, 4, 6], [1, -1, 1]],
        "bv": [1, -2, 0.5],
        "bm": [[1, 0], [-2, 1], [0.5, 3]],
    }
    arrays = {name: jnp.asarray(numpy.asarray(x, "float32")) for name, x in arrays.items()}
    arrays["QB"] = jnp.stack([arrays["Q"], arrays["Q"].at[0].set(jnp.array([1, nan, 0])), arrays["QZ"], arrays["QG"]])
    arrays["QB"] = arrays["QB"].at[1, 1:].set(arrays["QS"][1:])
    return {
        **arrays, "J": jnp.array([[3, 1, 2], [1, 3, 3]], "int32"), "JV": jnp.array([3, 1, 2, 1, 0], "int32"),
        "JU8": jnp.array([[200, 100, 255], [0, 128, 1]], "uint8"), "MP": jnp.array([[True, False, True], [False] * 3]),
        "MPT": jnp.array([[True, True, False], [True, False, True]]), "nan": nan, "inf": inf,
        "MC": jnp.array([[1 + 2j, -1j, 3], [2, 2 - 1j, 2 + 1j]], "complex64"),
        "jax": jax, "jnp": jnp, "lax": jax.lax, "nn": jax.nn, "sp": jax.scipy,
    }  # fmt: skip


if __name__ == "__main__":
    main()
