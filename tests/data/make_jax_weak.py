"""Evaluates the expressions in jax_weak.json again with JAX: the dtypes of the results, with ~ where they are weak.

Run it with Python that has JAX 0.10: ``python tests/data/make_jax_weak.py 32``, then with 64.
"""

from __future__ import annotations

import json
import pathlib
import sys

import jax
import jax.numpy as jnp

FILE = pathlib.Path(__file__).with_name("jax_weak.json")


def main(bits: str) -> None:
    jax.config.update("jax_enable_x64", bits == "64")
    table = json.loads(FILE.read_text())
    names = {"jax": jax, "jnp": jnp, "lax": jax.lax}
    for name, expression in table["operands"].items():
        names[name] = eval(expression, names)
    for expression in table[bits]:
        leaves = jax.tree.leaves(jax.eval_shape(lambda text=expression: eval(text, names)))
        table[bits][expression] = " ".join(f"{x.dtype}{'~' if x.weak_type else ''}" for x in leaves)
    FILE.write_text(json.dumps(table, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
