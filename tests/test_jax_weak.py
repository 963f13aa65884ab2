"""Dtypes of results, and whether they count as numbers in promotion, beside those of JAX (tests/data/jax_weak.json)."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

import gtrace as gt
from gtrace.core.trace.array import Array

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


def test_floats_that_integers_do_not_hold_become_the_nearest_integer():
    import gtrace.jax

    jax, jnp = gtrace.jax, gtrace.jax.numpy
    values = [3e9, -3e9, float("nan"), float("inf"), -float("inf"), -1.0, 1.5, 300.0]
    expected = {
        "int8": [127, -128, 0, 127, -128, -1, 1, 127],
        "uint8": [255, 0, 0, 255, 0, 0, 1, 255],
        "int32": [2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31), -1, 1, 300],
        "uint32": [3000000000, 0, 0, 2**32 - 1, 0, 0, 1, 300],
    }
    with gt.config(x64=False, jax_results=True):
        x = jnp.array(values)
        for dtype, integers in expected.items():
            assert x.astype(dtype).tolist() == integers
            assert jax.lax.convert_element_type(x, dtype).tolist() == integers
            assert jax.jit(lambda v, dtype=dtype: v.astype(dtype), backend="inductor")(x).tolist() == integers
            steps = jax.jit(lambda v, dtype=dtype: jax.lax.map(lambda e: e.astype(dtype), v))
            assert steps(x).tolist() == integers
        assert x.astype("bfloat16").astype("int8").tolist() == expected["int8"]
        assert jax.vmap(lambda v: v.astype("int8"))(x).tolist() == expected["int8"]
        assert jax.grad(lambda v: (v * v.astype("int8")).sum())(x[6:]).tolist() == [1.0, 127.0]
    with gt.config(x64=True, jax_results=True):
        wide = x.astype("float64") * 1e10
        assert wide.astype("int64").tolist()[:5] == [2**63 - 1, -(2**63), 0, 2**63 - 1, -(2**63)]
        assert wide.astype("uint64").tolist()[:6] == [2**64 - 1, 0, 0, 2**64 - 1, 0, 0]
        assert jnp.array([1e19, 2.0**63, 7.0]).astype("uint64").tolist() == [10**19, 2**63, 7]


def test_conversions_outside_of_the_rules_of_jax_are_one_call():
    graph = gt.make_graph(lambda x: x.astype("int32"))(gt.ones(2))
    assert "astype" in str(graph) and "saturate" not in str(graph)


@pytest.mark.parametrize("compiled", [False, True])
def test_integers_divided_by_zero_have_the_values_of_jax(compiled):
    import gtrace.jax

    jax, jnp = gtrace.jax, gtrace.jax.numpy

    def divided(x, y):
        return x // y, x % y, jax.lax.div(x, y), jax.lax.rem(x, y), jnp.fmod(x, y), *divmod(x, y)

    with gt.config(x64=False, jax_results=True):
        x, y = jnp.array([5, -5, -1, 0, 7, -7]), jnp.array([0, 0, 0, 0, 2, 2])
        run = jax.jit(divided, backend="inductor") if compiled else divided
        down, left, down_left = [-2, -2, -2, -1, 3, -4], [0, 0, 0, 0, 1, 1], [-1, -1, -1, -1, 3, -3]
        expected = [down, left, down_left, [5, -5, -1, 0, 1, -1], [0, 0, 0, 0, 1, -1], down, left]
        assert [v.tolist() for v in run(x, y)] == expected
        assert (x // 0).tolist() == [-2, -2, -2, -1, -2, -2] and (3 % y).tolist() == [0, 0, 0, 0, 1, 1]
        assert jax.jit(lambda a, b: jax.lax.map(lambda v: v[0] // v[1], (a, b)))(x, y).tolist() == down
        small = x.astype("int8").astype("uint8")
        assert (small // small[3]).tolist() == [255] * 6 and jax.lax.rem(small, small[3]).tolist() == small.tolist()
        assert (x // 2).dtype == "int32" and (x.astype("int8") // y.astype("int8")).dtype == "int8"
        assert jnp.where(y > 0, 8 // y, 0).tolist() == [0, 0, 0, 0, 4, 4]
        for other in (np.asarray(y), y.to_torch()):
            assert [v.tolist() for v in run(x, other)] == [v.tolist() for v in divided(x, other)] == expected


def test_integers_divided_by_zero_raise_outside_of_the_rules_of_jax():
    with pytest.raises(gt.errors.ExecutionError, match="ZeroDivisionError"):
        (gt.array([1]) // gt.array([0])).tolist()


@pytest.mark.parametrize(
    ("call", "weak"),
    [
        (lambda jax, x: jax.numpy.logaddexp2(x(2.0), 3.0), True),
        (lambda jax, x: jax.numpy.hypot(x(2.0), 3.0), True),
        (lambda jax, x: jax.numpy.hypot(jax.numpy.full(2, 2.0), 3.0), False),
        (lambda jax, x: jax.numpy.unravel_index(x(5), (2, 3))[0], True),
        (lambda jax, x: jax.numpy.unravel_index(jax.numpy.array([True]), (2, 3))[0], True),
        (lambda jax, x: jax.numpy.choose(x(0), [x(1), 2]), False),
        (lambda jax, x: jax.lax.pow(x(2.0), jax.numpy.int32(2)), False),
        (lambda jax, x: jax.lax.pow(x(2.0), 2), True),
        (lambda jax, x: jax.scipy.special.expn(1, x(0.5)), False),
    ],
)
def test_weak_results_are_those_of_jax(call, weak):
    import gtrace.jax as jax

    with gt.config(x64=False, jax_results=True):
        assert call(jax, jax.numpy.asarray).aval.weak == weak
