"""Computes jax_special.json with JAX: values and derivatives at special points, and results of integers.

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
    import jax.scipy.special

    table = json.loads(FILE.read_text())
    for entry in table["points"]:
        for case in entry["cases"]:
            case[1] = points(jax.numpy, entry["f"], case[0])
    for bits in ("32", "64"):
        jax.config.update("jax_enable_x64", bits == "64")
        names = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, **integers(jax.numpy)}
        for expression in table[bits]:
            table[bits][expression] = text(eval(expression, names))
    FILE.write_text(json.dumps(table, indent=0) + "\n")


def integers(jnp: object) -> dict[str, object]:
    """Return the arrays that the expressions name."""
    return {
        "I": jnp.array([1, 2, 3, 4], "int32"), "Z": jnp.array([0, 0, 1, 0], "int32"),
        "U": jnp.array([1, 2, 3, 4], "uint8"), "S": jnp.array([1, -2, 3, 4], "int8"),
        "V": jnp.array([1, 2, 3, 4], "uint32"), "M": jnp.array([-2147483648, 5], "int32"),
        "b": jnp.array([True, False, True, True]), "one": jnp.array(1, "int32"),
    }  # fmt: skip


if __name__ == "__main__":
    main()
