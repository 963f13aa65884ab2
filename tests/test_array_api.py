"""The Python array API standard, 2024.12: names, parameters and dtypes, and values as in NumPy."""

from __future__ import annotations

import inspect
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import gtrace as gt
import gtrace.numpy as gnp

xps = make_strategies_namespace(gnp, api_version="2024.12")

# a line: a name and its parameters; / one by position only, name one by position or name, name= one by name, * any
# number; ? where there is a default
STANDARD = [line.partition(":") for line in (Path(__file__).parent / "data" / "array_api.txt").read_text().splitlines()]

UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
SIGNED = ["int8", "int16", "int32", "int64"]
REAL = ["float32", "float64"]
COMPLEX = ["complex64", "complex128"]
INTEGERS, FLOATS = [*SIGNED, *UNSIGNED], [*REAL, *COMPLEX]
NUMBERS, ORDERED = [*INTEGERS, *FLOATS], [*INTEGERS, *REAL]


def found(name: str):
    value = gnp
    for part in name.split("."):
        value = getattr(value, part)
    return value


def accepts(signature, args, kwargs):
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize(("name", "colon", "parameters"), STANDARD, ids=[line[0] for line in STANDARD])
def test_names_and_parameters(name, colon, parameters):
    assert hasattr(gnp, name.partition(".")[0]), f"gtrace.numpy has no {name}"
    value = found(name)
    if not colon:
        return
    ours = inspect.signature(value)
    least, most, named = [], [], {}
    for parameter in parameters.split():
        word = parameter.rstrip("?=")
        if parameter.endswith("="):
            named[word] = None
        elif word == "/":
            most.append(None)
        elif word != "*":
            most.append(None)
            named[word] = None
        if parameter[-1] not in "?=*":
            least.append(None)
    by_name = {k: None for k in named if f"{k}=" in parameters.split()}
    unnamed = [None] * parameters.split().count("/")
    for args, kwargs in ((least, {}), (most, {}), (most, by_name), (unnamed, named)):
        assert accepts(ours, args, kwargs), f"{name}{ours} does not take {len(args)} arguments and {sorted(kwargs)}"


def test_the_array_object():
    x = gnp.ones((2, 3))
    assert x.__array_namespace__(api_version="2024.12") is gnp and gnp.__array_api_version__ == "2024.12"
    assert (x.ndim, x.size, x.shape, x.T.shape, x.mT.shape) == (2, 6, (2, 3), (3, 2), (3, 2))
    assert x.to_device(x.device, stream=None) is x and x.dtype == gnp.float32
    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    ):
        assert hasattr(x, f"__{name}__") and hasattr(x, f"__r{name}__")
    y = z = gnp.asarray([1, 2])
    y += 1
    assert z.tolist() == [1, 2] and y.tolist() == [2, 3]


def test_the_description_of_the_namespace():
    info = gnp.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] and info.default_device() in info.devices()
    defaults = info.default_dtypes()
    assert gnp.asarray(1.0).dtype == defaults["real floating"] and gnp.asarray(1).dtype == defaults["integral"]
    assert (
        gnp.asarray(1j).dtype == defaults["complex floating"] and gnp.argmax(gnp.ones(1)).dtype == defaults["indexing"]
    )
    for kind, names in {
        "bool": ["bool"], "signed integer": SIGNED, "unsigned integer": UNSIGNED, "integral": INTEGERS,
        "complex floating": COMPLEX, ("bool", "signed integer"): ["bool", *SIGNED],
    }.items():  # fmt: skip
        assert info.dtypes(kind=kind) == {name: getattr(gnp, name) for name in names}
    assert set(info.dtypes()) == {"bool", *NUMBERS}
    assert gnp.finfo(gnp.complex64).bits == 32 and gnp.finfo(gnp.complex128).eps == np.finfo(np.float64).eps


@pytest.mark.parametrize("a", ["bool", *NUMBERS])
def test_dtypes_meet_as_the_standard_says(a):
    for b in ["bool", *NUMBERS]:
        kinds = {"b" if d == "bool" else np.dtype(d).kind for d in (a, b)}
        signed64 = "uint64" in (a, b) and "i" in kinds
        if signed64 or (kinds & set("iu") and kinds & set("fc")) or (len(kinds) > 1 and "b" in kinds):
            continue  # unspecified
        assert gnp.result_type(getattr(gnp, a), getattr(gnp, b)) == getattr(gnp, str(np.promote_types(a, b)))


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_strategies_of_hypothesis_make_arrays(data):
    x = data.draw(xps.arrays(xps.scalar_dtypes(), xps.array_shapes(min_dims=0, min_side=0, max_side=3)))
    assert isinstance(x, gt.Array) and x.numpy().shape == x.shape
    index = data.draw(xps.indices(x.shape, allow_newaxis=True))
    np.testing.assert_array_equal(x[index], x.numpy()[index])


def declared(dtypes: list[str], count: int, names: str) -> dict:
    return dict.fromkeys(names.split(), (dtypes, count))


# name: (the dtypes of its operands, their number)
ELEMENTWISE = {
    **declared(NUMBERS, 1, "abs negative positive sign square isfinite isinf isnan round"),
    **declared(ORDERED, 1, "ceil floor trunc"),
    **declared(FLOATS, 1, "acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log2 log1p reciprocal sin"),
    **declared(FLOATS, 1, "sinh sqrt tan tanh"),
    **declared(COMPLEX, 1, "real imag conj"),
    **declared(REAL, 1, "signbit"),
    **declared(["bool", *INTEGERS], 1, "bitwise_invert"),
    **declared(["bool"], 1, "logical_not"),
    **declared(NUMBERS, 2, "add subtract multiply equal not_equal"),
    **declared(ORDERED, 2, "less less_equal greater greater_equal maximum minimum"),
    **declared(REAL, 2, "atan2 copysign hypot logaddexp nextafter floor_divide remainder pow"),
    **declared(FLOATS, 2, "divide"),
    **declared(["bool", *INTEGERS], 2, "bitwise_and bitwise_or bitwise_xor"),
    **declared(["bool"], 2, "logical_and logical_or logical_xor"),
}


def values(dtype: str):
    """Numbers of a dtype, special ones among them, whose functions neither overflow nor lose all digits."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return st.booleans()
    if kind in "iu":
        return st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max) | st.integers(0, 9)
    width = np.dtype(dtype).itemsize * 8 // (2 if kind == "c" else 1)
    parts = st.floats(-8, 8, width=width).filter(lambda v: v == 0 or abs(v) > 1e-3)
    return st.builds(complex, parts, parts) if kind == "c" else parts | st.sampled_from([np.inf, -np.inf, np.nan, -0.0])


SHAPES = st.sampled_from([(), (0,), (3,), (2, 3), (2, 0), (1, 2, 1)])


@pytest.mark.parametrize("name", ELEMENTWISE)
@given(data=st.data())
@settings(deadline=None, max_examples=8)
def test_elementwise_functions(name, data):
    dtypes, count = ELEMENTWISE[name]
    dtype, shape = data.draw(st.sampled_from(dtypes)), data.draw(SHAPES)
    xs = [data.draw(hnp.arrays(dtype, shape, elements=values(dtype))) for _ in range(count)]
    with np.errstate(all="ignore"):
        check_agreement(found(name)(*map(gt.array, xs)), getattr(np, name)(*xs))


def check_agreement(got, expected):
    expected = np.asarray(expected)
    assert isinstance(got, gt.Array) and got.numpy().dtype == expected.dtype
    tolerance = 1e-4 if expected.dtype in (np.float32, np.complex64) else 1e-9
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


# name: (dtypes, the function of a namespace, an array, an axis and keepdims)
REDUCTIONS = {
    "sum": (NUMBERS, lambda xp, x, axis, keep: xp.sum(x, axis=axis, keepdims=keep)),
    "prod": (NUMBERS, lambda xp, x, axis, keep: xp.prod(x, axis=axis, keepdims=keep)),
    "max": (ORDERED, lambda xp, x, axis, keep: xp.max(x, axis=axis, keepdims=keep)),
    "min": (ORDERED, lambda xp, x, axis, keep: xp.min(x, axis=axis, keepdims=keep)),
    "mean": (REAL, lambda xp, x, axis, keep: xp.mean(x, axis=axis, keepdims=keep)),
    "var": (REAL, lambda xp, x, axis, keep: xp.var(x, axis=axis, correction=0.25, keepdims=keep)),
    "std": (REAL, lambda xp, x, axis, keep: xp.std(x, axis=axis, correction=0.5, keepdims=keep)),
    "any": (["bool", *NUMBERS], lambda xp, x, axis, keep: xp.any(x, axis=axis, keepdims=keep)),
    "all": (["bool", *NUMBERS], lambda xp, x, axis, keep: xp.all(x, axis=axis, keepdims=keep)),
    "argmax": (ORDERED, lambda xp, x, axis, keep: xp.argmax(x, axis=axis, keepdims=keep)),
    "argmin": (ORDERED, lambda xp, x, axis, keep: xp.argmin(x, axis=axis, keepdims=keep)),
    "count_nonzero": (["bool", *NUMBERS], lambda xp, x, axis, keep: xp.count_nonzero(x, axis=axis, keepdims=keep)),
    "cumulative_sum": (NUMBERS, lambda xp, x, axis, keep: xp.cumulative_sum(x, axis=axis, include_initial=keep)),
    "cumulative_prod": (NUMBERS, lambda xp, x, axis, keep: xp.cumulative_prod(x, axis=axis, include_initial=keep)),
    "sort": (ORDERED, lambda xp, x, axis, keep: xp.sort(x, axis=axis, stable=True)),
    "argsort": (ORDERED, lambda xp, x, axis, keep: xp.argsort(x, axis=axis, stable=True)),
    "flip": (NUMBERS, lambda xp, x, axis, keep: xp.flip(x, axis=axis)),
    "roll": (NUMBERS, lambda xp, x, axis, keep: xp.roll(x, 2, axis=axis)),
    "diff": (NUMBERS, lambda xp, x, axis, keep: xp.diff(x, axis=axis, prepend=x, n=2)),
    "concat": (NUMBERS, lambda xp, x, axis, keep: xp.concat([x, x], axis=axis)),
    "stack": (NUMBERS, lambda xp, x, axis, keep: xp.stack([x, x], axis=axis)),
    "expand_dims": (NUMBERS, lambda xp, x, axis, keep: xp.expand_dims(x, axis=axis)),
    "moveaxis": (NUMBERS, lambda xp, x, axis, keep: xp.moveaxis(x, axis, 0)),
    "repeat": (NUMBERS, lambda xp, x, axis, keep: xp.repeat(x, 2, axis=axis)),
    "take": (NUMBERS, lambda xp, x, axis, keep: xp.take(x, xp.asarray([0, -1]), axis=axis)),
    "vecdot": (NUMBERS, lambda xp, x, axis, keep: xp.vecdot(x, x, axis=axis)),
    "reshape": (NUMBERS, lambda xp, x, axis, keep: xp.reshape(x, (1, -1), copy=True)),
    "tile": (NUMBERS, lambda xp, x, axis, keep: xp.tile(x, (2, 1, 1))),
    "permute_dims": (NUMBERS, lambda xp, x, axis, keep: xp.permute_dims(x, tuple(range(x.ndim))[::-1])),
    "searchsorted": (ORDERED, lambda xp, x, axis, keep: xp.searchsorted(
        xp.sort(xp.reshape(x, (-1,))), x, side="right" if keep else "left")),
    "unique_values": (ORDERED, lambda xp, x, axis, keep: xp.sort(xp.unique_values(x))),
    "unique_counts": (NUMBERS, lambda xp, x, axis, keep: xp.sort(xp.unique_counts(x).counts)),
    "unique_inverse": (NUMBERS, lambda xp, x, axis, keep: xp.unique_inverse(x).inverse_indices),
    "unique_all": (NUMBERS, lambda xp, x, axis, keep: xp.unique_all(x).indices),
    "tril": (NUMBERS, lambda xp, x, axis, keep: xp.tril(x[None], k=1)),
    "where": (NUMBERS, lambda xp, x, axis, keep: xp.where(x == x, x, xp.zeros_like(x))),
    "clip": (ORDERED, lambda xp, x, axis, keep: xp.clip(x, 1, 5)),
    "matmul": (NUMBERS, lambda xp, x, axis, keep: x @ (xp.matrix_transpose(x) if x.ndim > 1 else x)),
    "trace": (NUMBERS, lambda xp, x, axis, keep: xp.linalg.trace(x[None], offset=1)),
    "vector_norm": (REAL, lambda xp, x, axis, keep: xp.linalg.vector_norm(x, axis=axis, keepdims=keep, ord=1)),
    "fft": (FLOATS, lambda xp, x, axis, keep: xp.fft.fft(x, n=4, axis=axis, norm="ortho" if keep else "forward")),
    "fftshift": (FLOATS, lambda xp, x, axis, keep: xp.fft.fftshift(x, axes=axis)),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@given(data=st.data())
@settings(deadline=None, max_examples=8)
def test_functions_along_axes(name, data):
    dtypes, function = REDUCTIONS[name]
    dtype, shape = data.draw(st.sampled_from(dtypes)), data.draw(st.sampled_from([(3,), (2, 3), (1, 4, 2)]))
    elements = values(dtype) if np.dtype(dtype).kind in "biu" else st.integers(-3, 3)
    x = data.draw(hnp.arrays(dtype, shape, elements=elements))
    axis, keep = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.booleans())
    with np.errstate(all="ignore"):
        check_agreement(function(gnp, gt.array(x), axis, keep), function(np, x, axis, keep))


def test_arrays_of_no_elements():
    empty = gnp.zeros((2, 0, 3))
    assert gnp.sum(empty, axis=1).tolist() == [[0.0] * 3] * 2 and gnp.prod(empty, axis=1).tolist() == [[1.0] * 3] * 2
    assert gnp.fft.fft(empty).shape == (2, 0, 3) and gnp.fft.rfftn(empty, axes=(0,)).shape == (2, 0, 3)
    assert gnp.fft.irfft(gnp.zeros((0, 3), dtype=gnp.complex64)).shape == (0, 4)
    assert gnp.sort(empty).shape == empty.shape and gnp.concat([empty, empty], axis=None).shape == (0,)
    assert gnp.unique_values(empty).shape == (0,) and gnp.linalg.inv(gnp.zeros((0, 3, 3))).shape == (0, 3, 3)
    with pytest.raises(ValueError, match="non-empty"):
        gnp.max(empty)


def test_rounding_and_distinct_complex_numbers():
    z = np.array([1 + 2j, 1.5 + 1j, 1 + 2j, -0.5j])
    np.testing.assert_array_equal(gnp.round(gt.array(z)), np.round(z))
    for axis in (None, 1):
        np.testing.assert_array_equal(gnp.unique(gt.array([z, z]), axis=axis), np.unique([z, z], axis=axis))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "complex64"])
def test_dtypes_of_sums_are_those_asked_for(dtype):
    x, kind = gnp.ones((2, 3), dtype=gnp.uint8), getattr(gnp, dtype)
    for out in (gnp.sum(x, dtype=kind), gnp.prod(x, dtype=kind), gnp.cumulative_sum(x, axis=1, dtype=kind),
                gnp.cumulative_prod(x, axis=1, dtype=kind), gnp.linalg.trace(x, dtype=kind)):  # fmt: skip
        assert out.dtype == kind


def test_shapes_read_in_the_order_of_fortran():
    x = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(gnp.reshape(gt.array(x), (4, -1), order="F"), x.reshape(4, -1, order="F"))
    np.testing.assert_array_equal(gt.array(x).reshape(8, 3, order="F"), x.reshape(8, 3, order="F"))
    np.testing.assert_array_equal(gnp.ravel(gt.array(x), order="F"), x.ravel(order="F"))
    with pytest.raises(gt.ArgumentError, match="order"):
        gnp.reshape(gt.array(x), (8, 3), "A")
