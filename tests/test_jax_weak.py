"""Dtypes of results, and whether they count as numbers in promotion, beside those of JAX (tests/data/jax_weak.json)."""

from __future__ import annotations

import json
import pathlib

import pytest

import gtrace as gt
from gtrace.trace.array import Array

TABLE = json.loads((pathlib.Path(__file__).parent / "data" / "jax_weak.json").read_text())


def results(jax, expressions):
    names = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax}
    for name, expression in TABLE["operands"].items():
        names[name] = eval(expression, names)
    found = {}
    for expression in expressions:
        leaves = [x for x in jax.tree.leaves(eval(expression, names)) if isinstance(x, Array)]
        found[expression] = " ".join(f"{x.dtype}{'~' if x.aval.weak else ''}" for x in leaves)
    return found


@pytest.mark.parametrize("bits", ["32", "64"])
def test_results_are_weak_where_those_of_jax_are(bits):
    import gtrace.jax

    with gt.config(x64=bits == "64", jax_results=True):
        assert results(gtrace.jax, TABLE[bits]) == TABLE[bits]


def test_weak_results_of_moved_elements_meet_narrow_arrays_as_numbers():
    import gtrace.jax

    jnp = gtrace.jax.numpy
    with gt.config(x64=False, jax_results=True):
        decay = jnp.arange(4) * 0.5
        half = jnp.ones(2, "bfloat16")
        for part in (decay[1:3], decay.reshape(2, 2)[0], jnp.stack([decay, decay])[0, :2], jnp.sort(decay)[:2]):
            assert (half * part).dtype == "bfloat16"
        assert (half * jnp.log2(decay[1:3])).dtype == "float32" and (half * decay.sum()).dtype == "float32"


def test_weak_arrays_and_their_strong_forms_are_different_inputs():
    import gtrace.jax

    with gt.config(x64=False, jax_results=True):
        weak = gtrace.jax.numpy.arange(4) * 0.5
        strong = weak.astype("float32")
        gt.eval(weak, strong)
        one, other = weak + 1, strong + 1
        assert gt.eval((one, other)) and one.aval.weak and not other.aval.weak
        assert one.tolist() == other.tolist() == [1.0, 1.5, 2.0, 2.5]


def test_sums_by_einsum_keep_the_dtype_of_integers():
    x = gt.array([[1, 2], [3, 4]], dtype=gt.int32)
    assert gt.einsum("ij->i", x).dtype == gt.int32 and gt.einsum("ij->i", x).tolist() == [3, 7]
