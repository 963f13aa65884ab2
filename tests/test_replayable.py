"""Functions of the library that are recorded in one go: the same values, programs and errors as the first time."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace import lax, nn, random
from gtrace import numpy as jnp
from gtrace.core.base.events import Recorded, bus
from gtrace.core.ir.op import Instr
from gtrace.core.trace.record import thread
from gtrace.core.trace.replayable import MAX_NUMBERS

X = np.linspace(-2.0, 2.0, 24, dtype=np.float32).reshape(2, 3, 4)
W = np.linspace(0.5, 1.5, 12, dtype=np.float32).reshape(4, 3)
PLACES = np.array([[2, 0, 1], [1, 1, 0]])

FUNCTIONS = {
    "index": lambda x, w, i: x[:, i[0]],
    "two places": lambda x, w, i: w[i[0], i[1]],
    "mixed": lambda x, w, i: x[i[0, 1], ..., ::-2],
    "basic": lambda x, w, i: x[1, None, -1:, ::2],
    "set": lambda x, w, i: x.at[0, i[0]].set(1.5),
    "add": lambda x, w, i: w.at[i].add(x[:, :3, :3]),
    "min": lambda x, w, i: w.at[i[0]].min(0.75),
    "take": lambda x, w, i: gt.take(w, i, axis=0),
    "along": lambda x, w, i: gt.take_along_axis(w[:2], i, axis=1),
    "einsum": lambda x, w, i: gt.einsum("abc,cd->dba", x, w),
    "dot": lambda x, w, i: jnp.dot(x, w),
    "tensordot": lambda x, w, i: jnp.tensordot(x, w, axes=1),
    "outer": lambda x, w, i: jnp.outer(w[0], w[1]),
    "stack": lambda x, w, i: gt.stack([x, x * 2], axis=-1),
    "concat": lambda x, w, i: gt.concat([w, w.astype(gt.float64)]),
    "split": lambda x, w, i: sum(gt.split(x, 2, axis=2)),
    "repeat": lambda x, w, i: gt.repeat(x, 2, axis=1),
    "tile": lambda x, w, i: jnp.tile(w, (2, 1)),
    "pad": lambda x, w, i: jnp.pad(w, ((1, 0), (0, 2)), constant_values=0.5),
    "roll": lambda x, w, i: jnp.roll(x, 1, axis=2),
    "var": lambda x, w, i: jnp.var(x, axis=-1, keepdims=True),
    "std": lambda x, w, i: jnp.std(x, axis=(0, 1)),
    "norm": lambda x, w, i: jnp.linalg.norm(w, axis=0),
    "average": lambda x, w, i: jnp.average(w, axis=1, weights=w[0]),
    "dynamic slice": lambda x, w, i: lax.dynamic_slice_in_dim(x, i[0, 2], 2, axis=2),
    "dynamic update": lambda x, w, i: lax.dynamic_update_slice(w, w[:1] * 3, (i[1, 1], 0)),
    "layer norm": lambda x, w, i: nn.layer_norm(x, 4, w[:, 0]),
    "elu": lambda x, w, i: nn.elu(x, 0.5),
    "cross entropy": lambda x, w, i: nn.cross_entropy(w[:2], i[:, 1]),
    "mixed dtypes": lambda x, w, i: x[:, :, :3] * i[:, None] + (i > 1)[:, None],
    "integers": lambda x, w, i: gt.sqrt(i) + i // 2 + i % 3 - (i == 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_later_calls_are_as_the_first(name):
    function = FUNCTIONS[name]
    x, w, i = gt.array(X), gt.array(W), gt.array(PLACES)
    with gt.config(eager=True):  # each operation by itself
        expected = np.asarray(function(x, w, i))
    results = [function(x, w, i) for _ in range(3)]
    for result in results:
        # norms of a whole program are torch's operators, which round otherwise
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-6)
        assert result.dtype == results[0].dtype

    def total(x, w):
        out = function(x, w, i)
        return (out.astype(gt.float64) * np.cos(np.arange(out.size)).reshape(out.shape)).sum()

    gradients = [gt.eval(gt.grad(total, argnums=(0, 1))(x, w)) for _ in range(3)]
    with gt.config(eager=True):
        expected = gt.grad(total, argnums=(0, 1))(x, w)
    for found in gradients:
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-5, atol=1e-5)
    batched = [gt.vmap(lambda s: function(x * s, w, i))(gt.array([1.0, -0.5])) for _ in range(2)]
    single = np.stack([np.asarray(function(x * s, w, i)) for s in (1.0, -0.5)])
    for result in batched:
        np.testing.assert_allclose(np.asarray(result), single, rtol=1e-6, atol=1e-6)


DRAWS = {
    "uniform": lambda k: random.uniform(k, (3,), minval=-1.0, maxval=2.0),
    "normal": lambda k: random.normal(k, (2, 2)),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (8,)),
    "randint": lambda k: random.randint(k, (5,), 0, 7),
    "categorical": lambda k: random.categorical(k, gt.array(W)),
    "permutation": lambda k: random.permutation(k, gt.array(W)),
    "gamma": lambda k: random.gamma(k, 1.5, (3,)),
    "split": lambda k: random.split(k, 3),
    "fold_in": lambda k: random.fold_in(k, 5),
    "choice": lambda k: random.choice(k, 10, (3,)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_equal_keys_are_equal(name):
    draw = DRAWS[name]
    with gt.config(eager=True):
        expected = [np.asarray(draw(random.key(seed))) for seed in range(3)]
    for seed in (0, 1, 2, 0):
        np.testing.assert_array_equal(np.asarray(draw(random.key(seed))), expected[seed])


def test_dtypes_as_classes_and_named_tuples():
    import gtrace.jax as jax

    with gt.config(x64=True, jax_results=False):
        for _ in range(3):
            for dtype in (jax.numpy.float32, np.float32, "float32", gt.float32):
                assert random.normal(random.key(0), (2,), dtype).dtype == gt.float32
        image, kernel = gt.ones((1, 5, 5, 2)), gt.ones((3, 3, 2, 4))
        numbers = lax.conv_dimension_numbers(image.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
        out = [lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers) for _ in range(3)]
        assert [float(x[0, 2, 2, 0]) for x in out] == [18.0] * 3


def test_typed_keys():
    import gtrace.jax as jax

    with gt.config(x64=True, jax_results=False):
        found = [jax.random.normal(jax.random.key(3), (4,)).tolist() for _ in range(3)]
        assert found == [random.normal(random.key(3), (4,)).tolist()] * 3
        for _ in range(3):
            keys = jax.random.split(jax.random.key(1))
            assert type(keys) is type(jax.random.key(1)) and keys.shape == (2,)


def test_a_key_that_is_used_twice_is_found_after_other_calls():
    key = random.key(0)
    for _ in range(3):
        random.normal(key)
    with gt.config(debug_key_reuse=True):
        random.normal(key)
        with pytest.raises(gt.KeyReuseError, match="used by normal"):
            random.uniform(key)


@given(st.lists(st.sampled_from([0, 1, True, 1.0, 0.0, -0.0, math.nan, 2, 2.5]), min_size=2, max_size=6))
def test_numbers_that_are_equal_are_not_the_same(values):
    x = gt.array([-1.5, 0.5, 3.0])
    for value in values:
        found = np.asarray(gt.stack([gt.where(x > 1, x, value), gt.maximum(x, value)]))
        host = np.array([-1.5, 0.5, 3.0], np.float32)
        expected = np.stack([np.where(host > 1, host, np.float32(value)), np.maximum(host, np.float32(value))])
        np.testing.assert_array_equal(found, expected)
        signs = np.signbit(np.asarray(jnp.pad(x, 1, constant_values=value)))
        assert signs[0] == (math.copysign(1.0, value) < 0) or math.isnan(value)


@given(st.sampled_from(["int32", "int64", "uint8", "float32", "bool"]), st.integers(-3, 300))
def test_comparisons_and_arithmetic_with_integers(dtype, number):
    host = np.array([0, 1, 2, 100]).astype(dtype)
    x = gt.array(host)
    for _ in range(2):
        if dtype == "uint8" and not 0 <= number <= 255:
            with pytest.raises(gt.RangeError):
                x + number
            continue
        result = x + number
        assert str(result.dtype).endswith("int64" if dtype == "bool" else dtype)
        np.testing.assert_array_equal(np.asarray(x > number), host.astype(np.float64) > number)
        np.testing.assert_array_equal(np.asarray(number == x), host.astype(np.float64) == number)
        np.testing.assert_array_equal(
            np.asarray(result).astype(np.float64) % 256, (host.astype(np.float64) + number) % 256
        )


def test_more_numbers_than_are_kept():
    x = gt.array(X)
    for k in range(3 * MAX_NUMBERS):
        number = 0.25 * k
        assert float(jnp.pad(x, 1, constant_values=number)[0, 0, 0]) == number
        assert random.fold_in(random.key(0), k).tolist() == random.split(random.key(0), k + 1)[k].tolist()


def test_settings_are_part_of_what_is_known():
    places = gt.array(PLACES)
    for _ in range(2):
        assert gt.concat([places, places > 0]).dtype == gt.int64
        assert gt.take(gt.array([1, 2, 3]), places).dtype == gt.int64
        with gt.config(x64=False, jax_results=True):
            assert random.randint(random.key(0), (2,), 0, 5).dtype == gt.int32
        assert random.randint(random.key(0), (2,), 0, 5).dtype == gt.int64


def test_errors_are_those_of_the_first_call_at_the_line_of_each():
    x, w = gt.array(X), gt.array(W)
    messages = []
    for _ in range(3):
        with pytest.raises(gt.ShapeError) as caught:
            gt.einsum("abc,dd->abd", x, w)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1 and "test_replayable.py" in messages[0]
    for _ in range(2):
        with pytest.raises(gt.BoundsError):
            x[:, 5]


def recorded_names(function):
    start = len(thread.trace.flat)
    kept = function()
    names = [entry.op.name for entry in thread.trace.flat[start:] if isinstance(entry, Instr)]
    gt.eval(kept)
    return names


def test_places_of_a_known_range_are_not_clamped():
    w, i = gt.eval(gt.array(W), gt.array([0, 2, 1]))
    for _ in range(3):
        assert recorded_names(lambda: w[i]).count("clamp_index") == 1  # these may be anywhere
        assert "clamp_index" not in recorded_names(lambda: w[gt.arange(3)])
        assert "clamp_index" not in recorded_names(lambda: w[gt.argmax(w, axis=1)])


def test_masks_are_looked_at_each_time():
    x = gt.array([1.0, 2.0, 3.0])
    assert x[x > 1].tolist() == [2.0, 3.0]
    assert x[x > 2].tolist() == [3.0]
    assert x[x > 0].tolist() == [1.0, 2.0, 3.0]


def test_a_program_is_the_same_from_its_first_step_on():
    def step(x, w, key):
        h = jnp.dot(x, w)[:2, gt.array([2, 0])]
        return float((gt.stack([h, h]) * random.normal(key, (2, 2, 2))).sum())

    with gt.config(auto_compile=False):
        for seed in range(5):
            step(gt.array(X[0]), gt.array(W), random.key(seed))
        counts = [e.interpreted_calls for e in gt.stats() if "threefry2x32" in e.ops]
    assert max(counts) >= 5


def test_each_operation_is_seen_where_somebody_watches():
    x, w = gt.array(X), gt.array(W)
    gt.eval(gt.einsum("abc,cd->dba", x, w))
    seen = []
    unsubscribe = bus.subscribe(seen.append, Recorded)
    try:
        gt.eval(gt.einsum("abc,cd->dba", x, w))
    finally:
        unsubscribe()
    assert seen


NANS = [math.nan, -math.nan, struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]]


@pytest.mark.parametrize("order", [NANS, NANS[::-1]])
def test_a_nan_keeps_its_sign_and_payload_in_programs(order):
    x, other = gt.array(np.ones(1)), gt.array(np.array([False]))
    functions = [
        lambda v: gt.where(other, x, v),
        lambda v: gt.where(other, 1.0, v).astype(gt.float64),
        lambda v: gt.full((1,), v, dtype=gt.float64),
        lambda v: gt.pad(x, ((0, 1),), constant_values=v)[1:],
        lambda v: gt.jit(lambda x: gt.where(x > 5, x, v))(x),
        lambda v: gt.jit(lambda x, v: gt.where(x > 5, x, v), static_argnums=1)(x, v),
    ]
    for number, function in enumerate(functions):
        for v in order:
            got = np.asarray(function(v))
            assert np.signbit(got) == np.signbit(v)
            if number != 1:  # a number beside no array goes through float32
                assert got.view(np.uint64) == np.float64(v).view(np.uint64)
    static = gt.jit(gt.copysign, static_argnums=1)
    for v in order:
        for got in (gt.copysign(x, v), static(x, v), gt.copysign(gt.ones(1, dtype="float16"), v)):
            assert got.tolist() == [math.copysign(1, v)]
        assert gt.full((1,), complex(0, v)).imag.dtype == np.float32
        assert np.signbit(np.asarray(gt.full((1,), complex(0, v)).imag)) == np.signbit(v)
