"""Functions of ``jax.lax`` that gtrace's did not have or computed otherwise: convolutions, windows, orders, dtypes."""

import numpy as np
import pytest

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.errors import ShapeError
from gtrace.jax import lax
from gtrace.jax.scipy import special


@pytest.fixture(autouse=True)
def as_jax():
    with gt.config(jax_results=True, x64=False):
        yield


def whole(*shape, seed=0, dtype="int32"):
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


def same(found, expected):
    assert np.dtype(found.dtype) == expected.dtype
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


# -- convolutions


def convolved(x, w, strides, pads, gaps=(1, 1), groups=1):
    """The convolution of images with a kernel by loops."""
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    n, o = x.shape[0], w.shape[0]
    reach = [(k - 1) * g + 1 for k, g in zip(w.shape[2:], gaps, strict=True)]
    sizes = [(m - r) // s + 1 for m, r, s in zip(x.shape[2:], reach, strides, strict=True)]
    out = np.zeros((n, o, *sizes), x.dtype)
    share, part = o // groups, w.shape[1]
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            a, b = i * strides[0], j * strides[1]
            seen = x[:, :, a : a + reach[0] : gaps[0], b : b + reach[1] : gaps[1]]
            for k in range(o):
                first = k // share * part
                out[:, k, i, j] = (seen[:, first : first + part] * w[k]).sum((1, 2, 3))
    return out


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "int16"])
def test_convolutions_of_integers_keep_their_dtype_and_wrap_around(dtype):
    x, w = whole(2, 4, 6, 7, dtype=dtype), whole(6, 2, 3, 2, seed=1, dtype=dtype)
    found = lax.conv_general_dilated(x, w, (2, 1), [(1, 2), (0, 1)], rhs_dilation=(1, 2), feature_group_count=2)
    same(found, convolved(x, w, (2, 1), [(1, 2), (0, 1)], (1, 2), 2))
    same(lax.conv(x, w[:, [0, 1, 0, 1]], (1, 1), "VALID"), convolved(x, w[:, [0, 1, 0, 1]], (1, 1), [(0, 0)] * 2))


def test_a_preferred_integer_dtype_is_computed_in():
    x = np.full((1, 1, 3), 100, "int8")
    same(lax.conv(x, x, (1,), "VALID", preferred_element_type="int32"), np.array([[[30000]]], "int32"))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_parts_of_the_batch_have_their_own_features(dtype):
    x, w = whole(4, 3, 5, 5, dtype=dtype), whole(6, 3, 2, 2, seed=1, dtype=dtype)
    found = lax.conv_general_dilated(x, w, (1, 1), "valid", batch_group_count=2)
    halves = [convolved(x[2 * k : 2 * k + 2], w[3 * k : 3 * k + 3], (1, 1), [(0, 0)] * 2) for k in range(2)]
    same(found, np.concatenate(halves, 1))


def test_convolutions_without_spatial_axes_and_beyond_the_operand():
    x, w = whole(2, 5, dtype="float32"), whole(3, 5, dtype="float32")
    same(lax.conv(x, w, (), "VALID"), x @ w.T)
    same(lax.conv_transpose(x, w.T, (), "SAME"), x @ w.T)
    assert lax.conv(jnp.ones((1, 1, 2)), jnp.ones((4, 1, 3)), (1,), "VALID").shape == (1, 4, 0)


def test_consistent_padding_makes_the_gradient_of_a_convolution():
    x, w = whole(2, 9, 10, 3, dtype="float32"), whole(4, 4, 2, 3, seed=1, dtype="float32")
    numbers, pads = ("NHWC", "HWIO", "NHWC"), [(1, 0), (2, 1)]
    found = lax.conv_transpose(x, w, (2, 1), pads, transpose_kernel=True, use_consistent_padding=True)

    def forward(y):
        return lax.conv_general_dilated(y, w, (2, 1), pads, dimension_numbers=numbers)

    same(found, np.asarray(jax.vjp(forward, jnp.zeros(found.shape))[1](x)[0]))


# -- windows and reductions


def test_windows_of_several_arrays():
    x, at = jnp.array([3.0, 1.0, 4.0, 1.0, 5.0]), jnp.arange(5)

    def larger(a, b):
        first = a[0] >= b[0]
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    most, places = lax.reduce_window((x, at), (-jnp.inf, -1), larger, (2,), (1,), "VALID")
    assert most.tolist() == [3, 4, 4, 5] and places.tolist() == [0, 2, 2, 4]


def test_paddings_by_name_are_those_of_the_operand_without_elements_in_between():
    assert lax.reduce_window(jnp.ones((4, 6)), 0.0, lax.add, (2, 1), (2, 1), "SAME", (2, 3)).shape == (3, 16)


@pytest.mark.parametrize(
    ("operation", "start", "name"), [(lax.add, 0, "sum"), (lax.max, -np.inf, "max"), (lax.mul, 1, "prod")]
)
def test_reductions_by_known_operations_are_theirs(operation, start, name):
    program = jax.make_jaxpr(lambda x: lax.reduce(x, np.float32(start), operation, (0,)))(jnp.ones((3, 2)))
    assert f"reduce_{name}" in {str(equation.primitive) for equation in program.eqns}


# -- products


def test_products_of_booleans():
    x, y = np.array([[True, False], [False, False]]), np.array([True, True])
    assert lax.dot(x, y).tolist() == [True, False] and lax.dot(x, y).dtype == "bool"


def test_products_of_groups():
    x, w, sizes = whole(2, 8, 4, dtype="float32"), whole(3, 2, 4, 5, dtype="float32"), [[3, 4, 1], [1, 2, 2]]
    numbers = lax.RaggedDotDimensionNumbers((([2], [2]), ([0], [1])), [1], [0])
    found = np.asarray(lax.ragged_dot_general(x, w, jnp.array(sizes), numbers))
    for k, counts in enumerate(sizes):
        group = np.repeat(np.arange(3), counts)
        expected = np.stack([x[k, row] @ w[g, k] for row, g in enumerate(group)])
        np.testing.assert_allclose(found[k, : len(group)], expected)
        assert not found[k, len(group) :].any()
    inner = lax.RaggedDotDimensionNumbers((([2], [1]), ([0], [0])), [2], [])
    found = lax.ragged_dot_general(x, w[0], jnp.array([1, 3]), inner)
    same(found, np.stack([x[:, :, :1] @ w[0, :, :1], x[:, :, 1:] @ w[0, :, 1:]]))
    batches = lax.RaggedDotDimensionNumbers((([2], [1]), ([0], [0])), [0], [])
    same(lax.ragged_dot_general(x, w[0], jnp.array([1, 0]), batches), x @ w[0])  # all batches, as JAX's
    with pytest.raises(TypeError, match="one ragged axis"):
        lax.ragged_dot_general(x, w, jnp.array(sizes), numbers.__class__(numbers.dot_dimension_numbers, [2], [0]))


def test_out_dtype():
    same(lax.mul(jnp.int8(100), jnp.int8(100), out_dtype="int32"), np.int32(10000))


# -- orders of complex numbers

Z = np.array([2 + 1j, 1 + 2j, 2 - 1j, 1 + 2j, 0 + 5j], "complex64")


def test_complex_numbers_are_ordered_as_in_numpy():
    y = np.roll(Z, 1)
    for name in ("greater", "greater_equal", "less", "less_equal", "maximum", "minimum", "fmax", "fmin"):
        same(getattr(jnp, name)(Z, y), getattr(np, name)(Z, y))
    for name in ("sort", "max", "min", "argmax", "argmin"):
        assert np.array_equal(getattr(jnp, name)(Z), getattr(np, name)(Z))
    assert np.array_equal(jnp.argsort(Z), np.argsort(Z, stable=True))
    assert ((jnp.array(Z) < y) == (Z < y)).all() and ((jnp.array(Z) >= y) == (Z >= y)).all()
    assert jnp.max(Z, where=Z.imag > 1, initial=0) == np.max(Z, where=Z.imag > 1, initial=0)
    same(lax.max(Z, y), np.maximum(Z, y))
    same(lax.reduce_max(Z.reshape(1, 5), (1,)), np.max(Z.reshape(1, 5), 1))
    assert lax.sort((Z, np.arange(5, dtype="int32")))[1].tolist() == np.argsort(Z, stable=True).tolist()
    assert lax.argmax(Z, 0, "int32") == 0 and lax.argmin(Z, 0, "int32") == 4


# -- what is refused


@pytest.mark.parametrize(
    "call",
    [
        lambda: lax.add(jnp.ones(2), jnp.ones(2, "int32")),
        lambda: lax.mul(jnp.ones(2, "bfloat16"), 2.0),
        lambda: lax.sub(jnp.ones((2, 3)), jnp.ones(3)),
        lambda: lax.exp(1),
        lambda: lax.lt(1j, 2j),
        lambda: lax.bitwise_and(1.0, 2.0),
        lambda: lax.div(1, 2.0),
        lambda: lax.clamp(0, jnp.ones(2), 1),
        lambda: lax.argmax(jnp.ones(2), 0, "float32"),
        lambda: lax.argmin(jnp.ones(2), -1, "int32"),
        lambda: lax.split(jnp.arange(5), [6]),
        lambda: lax.split(jnp.arange(5), [6, -1]),
        lambda: lax.pad(jnp.zeros(2), jnp.zeros(2), [(0, 0, 0)]),
        lambda: lax.reduce({"x": jnp.ones(5)}, {"y": 0.0}, lambda x, y: x, [0]),
        lambda: lax.reduce(jnp.ones(5), jnp.ones(5), lax.add, [0]),
        lambda: lax.reduce(jnp.arange(3), 0, lax.add, (0, 0)),
        lambda: lax.conv(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2)), (1,), (3,)),
        lambda: lax.gather(jnp.ones((3, 4)), jnp.ones((2, 1), "int32"), numbers(start_index_map=(2,)), (1, 4)),
        lambda: lax.gather(jnp.ones((3, 4)), jnp.ones((2, 2), "int32"), numbers(start_index_map=(0, 0)), (1, 4)),
        lambda: lax.gather(jnp.ones((3, 4)), jnp.ones((2, 1), "int32"), numbers(offset_dims=(2,)), (1, 4)),
        lambda: lax.gather(jnp.ones((3, 4)), jnp.ones((2, 1), "int32"), numbers(), (2, 4)),
    ],
)
def test_operands_that_do_not_fit_are_refused(call):
    with pytest.raises((TypeError, ValueError), match=r"\[\w+\] expected"):
        call()


def numbers(**given):
    roles = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), **given}
    return lax.GatherDimensionNumbers(**roles)


def test_convolutions_of_booleans():
    x, w = np.array([[[True, True, False, False]]]), np.array([[[True, True]]])
    expected = np.array([[[True, True, False]]])
    same(lax.conv(x, w, (1,), "VALID"), expected)
    same(lax.conv_general_dilated(lhs=x, rhs=w, window_strides=(1,), padding="VALID"), expected)
    same(lax.conv_with_general_padding(x, w, (1,), [(0, 0)], None, None), expected)
    same(
        lax.conv_transpose(x, w, (1,), "VALID", dimension_numbers=("NCH", "OIH", "NCH")),
        np.array([[[1, 1, 1, 0, 0]]], bool),
    )
    patches = np.array([[[True, True, False], [True, False, False]]])
    same(lax.conv_general_dilated_patches(x, (2,), (1,), "VALID"), patches)
    same(lax.conv(x, w, (1,), "VALID", preferred_element_type="int32"), np.array([[[2, 1, 0]]], "int32"))


# -- numbers


def test_reduce_precision_to_any_bits():
    x = np.array([1.1, -3.7, 1e-3, 17.0, 0.24, np.inf, np.nan, -0.0], "float32")
    same(lax.reduce_precision(x, 3, 4), np.array([1.125, -3.75, 0, np.inf, 0, np.inf, np.nan, -0.0], "float32"))
    assert jax.grad(lambda x: lax.reduce_precision(x, 3, 4) * 2)(1.1) == 2


@pytest.mark.slow
def test_orders_that_are_arrays():
    n, x = jnp.array([[1], [2]]), jnp.array([1.0, 2.0])
    for name in ("polygamma", "expn"):
        function = getattr(special, name)
        found = jax.jit(lambda x, f=function: f(n, x))(x)
        np.testing.assert_array_equal(found, [function(1, x), function(2, x)])


def test_polygamma_of_orders_that_are_floats():
    x = jnp.array([0.5, 1.0, 3.0])
    same(lax.polygamma(jnp.array([0.0, 1.0, 2.0]), x), np.array([-1.96351, 1.644934, -0.1541138], "float32"))
    same(lax.polygamma(1.0, x), np.array([4.934802, 1.644934, 0.394934], "float32"))
    same(lax.polygamma(jnp.array([2.5, -1.0, np.nan]), x), np.full(3, np.nan, "float32"))
    same(jax.jit(jax.grad(lambda x: lax.polygamma(1.0, x)))(2.0), np.float32(-0.4041138))
    with pytest.raises(TypeError, match="expected floats, got int32"):
        lax.polygamma(1, 2)


def test_the_derivative_of_a_power_by_both_at_an_exponent_of_zero():
    mixed = jax.grad(jax.grad(lax.pow), 1)
    assert mixed(4.0, 0.0) == 0.25
    assert jax.grad(lax.pow)(0.0, 0.0) == 0


def test_keys_beyond_the_end():
    keys = jax.random.split(jax.random.key(0), 4)
    for found in (keys.at[7].get(mode="fill"), jnp.take(keys, 9)):
        assert jax.random.key_data(found).tolist() == [2**32 - 1] * 2


# -- complex numbers


def test_the_order_of_complex_nan():
    nan = np.nan
    z = np.array(
        [nan + 1j, complex(1, nan), complex(nan, nan), complex(2, nan), 0, nan - 3j, complex(-1, nan)], "complex64"
    )
    same(jnp.argsort(jnp.array(z)), np.array([6, 4, 1, 3, 5, 0, 2], "int32"))
    same(jnp.sort(jnp.array(z)), z[[6, 4, 1, 3, 5, 0, 2]])
    same(lax.sort(jnp.array(z)), z[[6, 4, 1, 3, 5, 0, 2]])
    same(jnp.argsort(jnp.array(z), descending=True), np.array([2, 0, 5, 3, 1, 4, 6], "int32"))


def test_extremes_of_no_complex_numbers():
    none = jnp.zeros((0, 2), "complex64")
    same(lax.reduce_max(none, (0,)), np.array([-np.inf, -np.inf], "complex64"))
    same(lax.reduce_min(none, (0,)), np.array([np.inf, np.inf], "complex64"))
    low = complex(-np.inf, -5)
    same(lax.reduce_max(jnp.array([low]), (0,)), np.complex64(low))


def test_gather_without_indices_reads_nothing():
    rows = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    for wrap in (lambda f: f, jax.jit):
        assert wrap(lambda x, i: lax.gather(x, i, rows, (1,)))(jnp.ones(0), jnp.ones((0, 1), "int32")).shape == (0,)
    with pytest.raises(ShapeError, match="within the operand"):
        lax.gather(jnp.ones(0), jnp.ones((1, 1), "int32"), rows, (1,))
