"""Dtypes as JAX has them: promotion, float8, dtypes of lists, and what arrays say of themselves."""

import array
import warnings

import numpy as np
import pytest

import gtrace as gt
import gtrace.jax as jax
import gtrace.jax.numpy as jnp
from gtrace.errors import DtypeError, ShapeError


@pytest.fixture(autouse=True)
def _settings():
    with gt.config(x64=False, jax_results=True):
        yield


KNOWN = {
    "a float beside int8": (lambda: jnp.result_type(jnp.int8, 2.0), "float32"),
    "the type int": (lambda: jnp.promote_types("int8", int), "int8"),
    "the type float": (lambda: jnp.promote_types("bfloat16", float), "bfloat16"),
    "None": (lambda: jnp.result_type(None), "float32"),
    "64 bits": (lambda: jnp.promote_types("int64", "float16"), "float16"),
    "64 bits that stay": (lambda: jnp.promote_types("int64", "int32"), "int64"),
    "the types int and float": (lambda: jnp.promote_types(int, float), "float64"),
    "the type float and integers": (lambda: jnp.promote_types(float, "int32"), "float64"),
    "the type complex and floats": (lambda: jnp.promote_types("float64", complex), "complex128"),
    "booleans": (lambda: jnp.promote_types(bool, "int4"), "int4"),
    "a NumPy double": (lambda: jnp.result_type(np.ones(2)), "float32"),
    "a weak int16": (lambda: jnp.result_type(jnp.asarray(1.5).astype("float32") * 0 + jnp.int16(1)), "float32"),
    "int4": (lambda: jnp.promote_types(jnp.int4, bool), "int4"),
    "int4 and a number": (lambda: jnp.result_type(jnp.int4, int), "int4"),
    "float4 and int8": (lambda: jnp.promote_types(jnp.float4_e2m1fn, "int8"), "float4_e2m1fn"),
    "float8 and integers": (lambda: jnp.promote_types("int32", jnp.float8_e5m2), "float8_e5m2"),
    "a number and an int16": (lambda: jnp.array([1, np.int16(2)]).dtype, "int16"),
    "a number and a float16": (lambda: jnp.asarray([0, np.float16(1)]).dtype, "float16"),
    "numbers": (lambda: jnp.array([1, 2.5]).dtype, "float32"),
    "nested lists": (lambda: jnp.array([[jnp.int8(1)], [2]]).dtype, "int8"),
    "a weak array in a list": (lambda: jnp.array([jnp.array(1)]).dtype, "int32"),
    "empty lists": (lambda: jnp.array([[], []]).dtype, "float32"),
    "a boolean and a number": (lambda: jnp.array([np.bool_(True), 2.5]).dtype, "float32"),
    "a buffer": (lambda: jnp.asarray(array.array("h", [1, 2])).dtype, "int16"),
    "astype without a dtype": (lambda: jnp.astype(jnp.arange(2), None).dtype, "float32"),
    "the default float": (lambda: jnp.zeros(2, jnp.float_).dtype, "float32"),
}


@pytest.mark.parametrize("case", KNOWN)
def test_dtypes_of_results(case):
    function, expected = KNOWN[case]
    assert function().name == expected


def test_names_of_default_dtypes_are_of_64_bits():
    assert jnp.int_ == np.int64 and jnp.float_ == np.float64 and jnp.complex_ == np.complex128


@pytest.mark.parametrize(
    "a, b", [("int4", "int8"), ("int4", float), ("float8_e3m4", "float32"), ("int2", "uint2"), ("int4", "float8_e4m3")]
)
def test_dtypes_without_a_common_one(a, b):
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.promote_types(a, b)


def test_functions_of_dtypes_that_torch_lacks():
    assert jnp.issubdtype(jnp.int4, jnp.signedinteger) and jnp.issubdtype(jnp.float8_e3m4, np.floating)
    assert not jnp.issubdtype(jnp.uint4, np.uint64) and not jnp.issubdtype(jnp.bfloat16, object)
    assert jnp.isdtype(jnp.uint2, "unsigned integer") and jnp.isdtype(jnp.float8_e5m2, ("bool", "real floating"))
    assert [jax.dtypes.itemsize_bits(x) for x in (jnp.int2, "float6_e2m3fn", jnp.float8_e4m3, bool)] == [2, 6, 8, 8]
    assert (jnp.iinfo(jnp.int4).min, jnp.iinfo(jnp.uint4).max) == (-8, 15)
    assert jnp.dtype(jnp.int4) == "int4" and {jnp.dtype("int4"): 1}[jnp.dtype(jnp.int4)] == 1
    assert jax.dtypes.result_type(jnp.array(1.0), return_weak_type_flag=True) == ("float32", True)
    with pytest.raises(DtypeError, match="a dtype that torch has, got int4"):
        jnp.zeros(2, jnp.int4)


def test_numpy_scalars_are_instances_of_scalar_classes():
    assert isinstance(np.float32(1), jnp.float32) and not isinstance(np.float64(1), jnp.float32)


X = [1.5, 300.0, 0.1]
"""As float8_e4m3fn 1.5, 288 and 0.1015625."""

FLOAT8 = {
    "the sum": (lambda x: x + x, [3.0, np.nan, 0.203125]),
    "a number": (lambda x: 2.0 / x, [1.375, 0.0078125, 20.0]),
    "integers": (lambda x: x * jnp.arange(3), [0.0, 288.0, 0.203125]),
    "a function": (lambda x: jnp.exp(-x), [0.21875, 0.0, 0.875]),
    "a reduction": (jnp.max, 288.0),
    "a gradient": (jax.grad(lambda x: (x[::2] * x[::2]).sum()), [3.0, 0.0, 0.203125]),
    "under jit": (jax.jit(lambda x: x * 1.5), [2.25, 448.0, 0.15625]),
}


@pytest.mark.parametrize("case", FLOAT8)
def test_arithmetic_of_float8_is_in_float32_and_rounded(case):
    function, expected = FLOAT8[case]
    out = function(jnp.array(X, jnp.float8_e4m3fn))
    assert out.dtype == "float8_e4m3fn"
    np.testing.assert_array_equal(np.asarray(out.astype("float32")), np.float32(expected))


def test_float8_compares():
    x = jnp.array(X, jnp.float8_e4m3fn)
    assert (x > 1).tolist() == [True, True, False]
    with pytest.raises(DtypeError, match="float8"):
        x + jnp.ones(3)
    with gt.config(jax_results=False), pytest.raises(DtypeError, match="storage"):
        x + x


@pytest.mark.parametrize(
    "function",
    [
        lambda: jnp.ones(2, int) + jnp.ones(2),
        lambda: jnp.arange(2) * 1.5,
        lambda: 1.5 < jnp.arange(2),
        lambda: jnp.ones(2) * True,
        lambda: jnp.subtract(jnp.ones(2), np.ones(2, "float16")),
        lambda: jnp.promote_types("int8", "int16"),
        lambda: jnp.add.outer(jnp.arange(2), jnp.ones(2)),
        lambda: jnp.multiply.at(jnp.ones(2), 0, jnp.arange(1), inplace=False),
        lambda: jnp.logical_and(jnp.arange(2), jnp.ones(2)),
        lambda: jnp.divmod(jnp.arange(2), jnp.ones(2)),
        lambda: divmod(jnp.arange(2), 2.5),
        lambda: jnp.arange(2) << jnp.ones(2, "int8"),
        lambda: jnp.arange(2) >> jnp.ones(2, "int8"),
    ],
)
def test_strict_promotion_refuses(function):
    function()
    with jax.numpy_dtype_promotion("strict"), pytest.raises(jax.dtypes.TypePromotionError):
        function()
    function()


def test_strict_promotion_takes_numbers_that_give_way():
    with jax.numpy_dtype_promotion("strict"):
        assert (jnp.ones(2) * 2 + 0.5).tolist() == [2.5, 2.5] and (jnp.arange(2) + 1).tolist() == [1, 2]
        assert jnp.add(jnp.float16(1), 1.5).dtype == "float16" and (jnp.ones(2) ** jnp.arange(2)).dtype == "float32"
        assert jnp.var(jnp.arange(4)).item() == 1.25  # gtrace's own code promotes


def test_rank_promotion_is_refused_or_warned_about():
    x, y = jnp.ones(2), jnp.ones((1, 2))
    with jax.numpy_rank_promotion("raise"):
        with pytest.raises(ShapeError, match=r"\(2,\) \(1, 2\)"):
            x + y
        with pytest.raises(ShapeError, match=r"\(2,\) \(1, 2\)"):
            divmod(x, y)
        assert jnp.add.outer(x, y).shape == (2, 1, 2)
        assert (y + 1).shape == (1, 2) and (x @ jnp.ones((2, 2))).shape == (2,)
    with jax.numpy_rank_promotion("warn"), pytest.warns(UserWarning, match=r"for add on shapes \(2,\) \(1, 2\)"):
        jnp.add(x, y)
    looped = jnp.vectorize(lambda x, y: x.sum() + y, signature="(n),()->()")
    with jax.numpy_rank_promotion("raise"):
        assert looped(jnp.ones((1, 2)), x).shape == (2,) and looped(jnp.ones((3, 2)), 1.0).shape == (3,)
        with pytest.raises(ShapeError, match="vectorize"):
            looped(jnp.ones((1, 1, 2)), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (x + y).shape == (1, 2)


def test_complex_ranges():
    assert jnp.linspace(0, 1 + 1j, 3).tolist() == [0j, 0.5 + 0.5j, 1 + 1j]
    assert jnp.linspace(jnp.array([0, 1j]), 1, 2).tolist() == [[0j, 1j], [1 + 0j, 1 + 0j]]
    assert jnp.arange(3, dtype="complex64").tolist() == [0j, 1 + 0j, 2 + 0j]
    assert jnp.arange(0, dtype="complex64").shape == (0,)
    np.testing.assert_allclose(jnp.logspace(0, 1j, 3), np.logspace(0, 1j, 3), rtol=1e-6)


def test_layout_of_one_device():
    x = jnp.ones(2)
    assert x.sharding == jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert x.sharding.num_devices == 1 and x.sharding.is_fully_replicated and x.sharding.shard_shape((2,)) == (2,)
    assert jax.device_put(2.0, x.sharding).sharding == x.sharding == jnp.zeros(3, device=x.sharding).sharding
    assert jax.lax.with_sharding_constraint(x, x.sharding).tolist() == [1.0, 1.0]
    made = jax.ShapeDtypeStruct((2,), "float32", sharding=x.sharding)
    assert jax.eval_shape(lambda x: x + 1, made).shape == (2,)
    mesh = jax.make_mesh((1,), ("x",))
    layout = jax.NamedSharding(mesh, jax.P("x"))
    assert jax.device_put(x, layout).sharding == layout and len(x.addressable_shards) == 1
    assert x.device == jax.devices()[0] == x.addressable_shards[0].device
    with gt.config(jax_results=False):
        assert x.sharding is None


def test_process_local_data_on_a_device():
    data, device = {"a": np.arange(10).reshape(2, 5)}, jax.devices()[0]
    for shape in (None, (2, 5), {"a": (2, 5)}):
        assert jax.make_array_from_process_local_data(device, data, shape)["a"].shape == (2, 5)
    for shape in ((2, 8), {"a": (2, 6)}, {"a": (2, 5), "b": (3, 5)}):
        with pytest.raises(ValueError, match="the shape of each array"):
            jax.make_array_from_process_local_data(device, data, shape)


def test_weak_type_of_the_aval():
    assert jnp.asarray(1.0).aval.weak_type and not jnp.ones(2).aval.weak_type
    assert jnp.pad(jnp.asarray(1.0)[None], 1).weak_type


def test_methods():
    x = jnp.arange(4) + 1
    assert 3 in x and 7 not in x and x[1:].item((0,)) == 2
    with pytest.raises(ValueError, match="a vector and a scalar"):
        assert 2 in jnp.ones((2, 2))
    swapped = np.array([1.5, 2.0], "complex64")
    np.testing.assert_array_equal(np.asarray(jnp.asarray(swapped).byteswap()), swapped.byteswap())
    assert x.astype("int16").byteswap().tolist() == [256, 512, 768, 1024]
    assert x[:0].view("int8").shape == (0,) and x.astype("int32")[:1].view("int16").tolist() == [1, 0]
    x.delete()
    x.delete()
    assert x.is_deleted()
    with pytest.raises(RuntimeError, match=r"x\.delete\(\)"):
        x + 1


def test_masked_arrays_and_scalars():
    masked = np.ma.array([1, 2], mask=[True, False])
    assert jnp.array(masked).tolist() == [1, 2]
    assert jnp.isscalar(np.array(16)) and jnp.isscalar(2.5) and jnp.isscalar("a") and not jnp.isscalar([16])


def test_saved_objects_stay_numpys(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}, 1], object))
    assert jnp.load(tmp_path / "x.npy", allow_pickle=True).dtype == object


def test_types_of_python_are_dtypes_of_64_bits():
    assert jnp.isdtype("float64", float)
    assert not jnp.isdtype(float, "float32")
    assert jnp.isdtype(complex, (jnp.int32, "complex floating"))
    assert jnp.issubdtype(jnp.float64, float)
    assert not jnp.issubdtype(jnp.float32, float)
    assert jnp.can_cast("int64", int)
    assert not jnp.can_cast(float, "float32")
    assert [jax.dtypes.itemsize_bits(x) for x in (bool, int, float, complex, "int4")] == [8, 64, 64, 128, 4]
    assert jnp.finfo(float).bits == 64
    assert jax.dtypes.scalar_type_of("int4") is int
