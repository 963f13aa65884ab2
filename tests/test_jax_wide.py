"""``gtrace.jax`` with ``jax_enable_x64``: dtypes and numbers of 64 bits, and their kin of 16, as JAX 0.10 has them."""

import io

import numpy as np
import pytest

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp


@pytest.fixture(autouse=True)
def _settings():
    with gt.config(x64=True, jax_results=True):
        yield


SHORT = jnp.array([[1, 2, 5], [3, 1, 2]], "int32")
HALF = SHORT.astype("float16")
SINGLE = SHORT.astype("float32")

DTYPES = {
    "int8 and uint64": (lambda: jnp.int8(1) + jnp.uint64(1), "float64"),
    "int64 and uint64 in where": (lambda: jnp.where(True, jnp.int64(1), jnp.uint64(2)), "float64"),
    "astype of the type float": (lambda: SINGLE.astype(float), "float64"),
    "astype of the type complex": (lambda: SINGLE.astype("complex64").astype(complex), "complex128"),
    "astype of None": (lambda: SINGLE.astype(None), "float64"),
    "jnp.astype of None": (lambda: jnp.astype(SINGLE, None), "float64"),
    "the triangular window": (lambda: jnp.bartlett(5), "float64"),
    "phases of int8": (lambda: jnp.unwrap(SHORT[0].astype("int8")), "float64"),
    "phases of float32": (lambda: jnp.unwrap(SINGLE[0]), "float32"),
    "phases with a whole period": (lambda: jnp.unwrap(SHORT[0].astype("int8"), period=4), "int8"),
    "steps of a NumPy scalar": (lambda: jnp.linspace(np.float32(0), 1, 3), "float32"),
    "the step of integers": (lambda: jnp.linspace(0, 1, 3, retstep=True, dtype="int32")[1], "float32"),
    "covariance weighted by integers": (lambda: jnp.cov(SHORT, aweights=np.array([1, 2, 3])), "float32"),
    "covariance weighted by doubles": (lambda: jnp.cov(SINGLE, aweights=np.array([1.0, 2, 3])), "float64"),
    "covariance of halves": (lambda: jnp.cov(HALF, fweights=np.array([1, 2, 3])), "float16"),
    "counts by doubles": (lambda: jnp.histogram(HALF, bins=np.array([0.0, 2, 6]))[0], "float16"),
    "edges of doubles": (lambda: jnp.histogram(SINGLE, bins=np.array([0.0, 2, 6]))[1], "float32"),
    "edges by themselves": (lambda: jnp.histogram_bin_edges(HALF, bins=np.array([0, 2, 6])), "float16"),
    "weighted counts": (lambda: jnp.histogram(HALF, 2, weights=SINGLE)[0], "float32"),
    "densities": (lambda: jnp.histogram(SHORT, 2, weights=HALF, density=True)[0], "float16"),
    "no roots": (lambda: jnp.roots(SINGLE[0, :1]), "complex64"),
    "a derivative of integers": (lambda: jnp.polyder(SHORT[0]), "float32"),
    "angles of integers": (lambda: jnp.angle(SHORT), "float64"),
    "rounded integers": (lambda: jnp.rint(SHORT), "float64"),
    "sorted wide integers": (lambda: jnp.sort_complex(SHORT.astype("int64")), "complex128"),
    "Bernoulli's numbers": (lambda: jax.scipy.special.bernoulli(2), "float64"),
    "a shape": (lambda: jax.lax.shape_as_value((2, 3)), "int32"),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name):
    call, expected = DTYPES[name]
    assert call().dtype == expected


def test_integers_without_a_common_dtype_meet_in_weak_floats():
    assert (jnp.int8(1) + jnp.uint64(1)).weak_type and not (jnp.float64(1) + jnp.uint64(1)).weak_type
    assert (jnp.int64(-1) < jnp.uint64(1)) and (
        jnp.ones(2, "float32") * (jnp.int8(1) + jnp.uint64(1))
    ).dtype == "float32"
    with gt.config(jax_results=False), pytest.raises(gt.errors.DtypeError, match="int8 and uint64"):
        jnp.int8(1) + jnp.uint64(1)


def test_negative_seeds_have_64_bits():
    top = 2**32 - 1
    words = [top, top - 2]
    for seed in (-3, np.int64(-3), jnp.int64(-3)):
        assert jax.random.PRNGKey(seed).tolist() == jax.random.key_data(jax.random.key(seed)).tolist() == words
    assert jax.jit(jax.random.PRNGKey)(-3).tolist() == words
    for seed in (np.int32(-3), jnp.int32(-3)):
        assert jax.random.PRNGKey(seed).tolist() == [0, top - 2]
    with gt.config(x64=False):
        assert jax.random.PRNGKey(-3).tolist() == jax.random.PRNGKey(np.int64(-3)).tolist() == [0, top - 2]


def test_steps_without_a_distance():
    for num in (0, 1):
        for start in (0, np.ones((2, 2)), np.ones(2, "complex64")):
            step = jnp.linspace(start, 2, num, retstep=True)[1]
            assert step.shape == () and bool(jnp.isnan(step)) and not step.weak_type


def test_division_of_polynomials_keeps_the_size():
    quotient, rest = jnp.polydiv(np.array([1.0, 0, -1]), np.array([1.0, 1]))
    assert quotient.tolist() == [1, -1] and rest.tolist() == [0, 0, 0]
    assert jnp.polydiv(np.array([1.0, 0, -1]), np.array([2.0]))[1].tolist() == [0, 0, 0]
    for part in jnp.polydiv(np.array([0]), np.array([0]), trim_leading_zeros=True):
        assert np.isnan(part.tolist()).tolist() == [True]


def test_rounding_to_places_that_floats_lack():
    x = jnp.array([1.5, -7.25, np.inf], "float32")
    assert jnp.round(x, 1000).tolist() == x.tolist() and jnp.round(x[:2], -400).tolist() == [0, 0]
    assert jnp.round(jnp.float16(5), -10) == 0 and jnp.round(jnp.arange(3), 400).tolist() == [0, 1, 2]


def test_numbers_repeat_along_an_axis():
    assert jnp.repeat(np.int64(3), 2, axis=0).tolist() == jnp.repeat(3, 2, axis=-1).tolist() == [3, 3]


def test_slopes_of_halves_are_rounded_once():
    found = jnp.gradient(np.array([1, 4, 9], "float16"), np.array([0, 1, 3], "float16"))
    assert found.dtype == "float16" and found.tolist() == [3, 2.833984375, 2.5]


def test_the_covariance_of_several_fits_is_one():
    x = np.arange(6.0)
    y = np.arange(30.0).reshape(6, 5) ** 2
    for cov, shape in (("unscaled", (2, 2, 1)), (True, (2, 2, 5))):
        found, expected = jnp.polyfit(x, y, 1, cov=cov)[1], np.polyfit(x, y, 1, cov=cov)[1]
        assert found.shape == shape
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_methods_order_complex_numbers():
    x = jnp.array([1 + 2j, 1 + 1j, 0])
    assert x.argsort().tolist() == jnp.lexsort((x,)).tolist() == [2, 1, 0] and x.sort()[-1] == x.max() == 1 + 2j
    assert x.min() == 0 and (x.argmax(), x.argmin()) == (0, 2)


def test_the_softmax_of_scipy_is_over_all_elements():
    x, special = SINGLE.astype("float64"), jax.scipy.special
    assert abs(float(special.softmax(x).sum()) - 1) < 1e-12 and special.softmax(3) == 1
    np.testing.assert_allclose(special.log_softmax(x), jnp.log(special.softmax(x)), rtol=1e-12)
    np.testing.assert_allclose(special.softmax(x, axis=1), jax.nn.softmax(x), rtol=1e-12)


def test_saved_bfloat16_comes_back():
    with io.BytesIO() as file:
        np.save(file, np.array([0x3FC0, 0xC000], "uint16").view("V2"))  # as NumPy saves it
        file.seek(0)
        found = jnp.load(file)
    assert found.dtype == "bfloat16" and found.tolist() == [1.5, -2]


def test_numbers_of_float8():
    assert jnp.arange(4, dtype=jnp.float8_e4m3fn).astype("float32").tolist() == [0, 1, 2, 3]


def test_indices_of_axes_and_vectors_of_nothing():
    index = jax.vmap(lambda x: (jax.lax.axis_index("i"), jax.lax.axis_index("i") * x), axis_name="i")
    assert [x.dtype for x in index(jnp.ones(2, "int16"))] == ["int32", "int32"]
    assert jax.flatten_util.ravel_pytree(())[0].dtype == "float32"


def test_places_beyond_int32():
    for n, want in ((2**31 - 1, "int32"), (2**31, "int64")):
        many = jax.ShapeDtypeStruct((n,), "float32")
        assert jax.eval_shape(lambda a: jnp.searchsorted(a, 0.0), many).dtype == want
        assert jax.eval_shape(lambda a: jnp.digitize(0.0, a), many).dtype == want
