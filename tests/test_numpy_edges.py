"""gtrace.numpy against NumPy at the ends of each dtype, with drawn operands and options."""

from __future__ import annotations

import numpy as np
import pytest

import gtrace as gt
import gtrace.numpy as gnp
from gtrace.errors import DtypeError

KINDS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
BINARY = {
    "add": None, "subtract": None, "multiply": None, "maximum": None, "minimum": None, "bitwise_and": None,
    "bitwise_xor": None, "gcd": None, "less": None, "equal": None, "floor_divide": "divisor", "remainder": "divisor",
    "fmod": "divisor", "power": "count", "left_shift": "shift", "right_shift": "shift",
}  # fmt: skip
"""Functions of two integer arrays, and what the second operand has to be."""


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def drawn(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Return integers, half of them near the ends of the dtype or near 0."""
    info = np.iinfo(kind)
    near = [info.min, info.min + 1, 0, 1, 2, 3, 7, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
    anywhere = rng.integers(info.min, info.max, count, kind, endpoint=True)
    return np.where(rng.random(count) < 0.5, rng.choice(np.array(near, kind), count), anywhere)


@pytest.mark.parametrize("kind", KINDS)
def test_integers_at_the_ends_of_their_dtype(kind):
    rng = np.random.default_rng(KINDS.index(kind))
    for name, second in BINARY.items():
        x, y = drawn(rng, kind, 200), drawn(rng, kind, 200)
        if second == "divisor":
            least = (x == np.iinfo(kind).min) & (y == np.array(-1).astype(kind))  # the quotient overflows
            y = np.where((y == 0) | least, np.array(3, kind), y)
        elif second == "count":
            y = np.where(y < 0, np.array(5, kind), y)
        elif second == "shift":  # C++ leaves longer ones undefined for signed integers
            y = y % 8 if kind.startswith("i") else y
        with np.errstate(all="ignore"):
            right = getattr(np, name)(x, y)
        found = np.asarray(getattr(gnp, name)(gt.array(x), gt.array(y)))
        wrong = np.flatnonzero(found != right)
        assert found.dtype == right.dtype and not wrong.size, [
            (name, kind, int(x[i]), int(y[i]), found[i], right[i]) for i in wrong[:3]
        ]
    x = drawn(rng, kind, 200)
    assert gnp.bitwise_count(gt.array(x)).tolist() == [abs(int(n)).bit_count() for n in x]


METHODS = (
    "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf", "closest_observation",
    "interpolated_inverted_cdf", "hazen", "weibull", "median_unbiased", "normal_unbiased",
)  # fmt: skip


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_quantiles_of_tied_and_missing_numbers_by_each_method(name):
    rng = np.random.default_rng(7)
    for method in METHODS:
        for _ in range(12):
            x = rng.integers(-3, 4, (2, rng.integers(1, 9))).astype(np.float64)
            x[0, 0] = np.nan if rng.random() < 0.3 else x[0, 0]
            q = np.append(rng.choice([0.0, 0.25, 0.3, 0.5, 1.0], 2), rng.random())
            x = x[1:] if np.isnan(x[0]).all() else x
            right = getattr(np, name)(x, q, axis=1, method=method)
            found = np.asarray(getattr(gnp, name)(gt.array(x), gt.array(q), axis=1, method=method))
            np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12, err_msg=f"{method} {x} {q}")


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_quantiles_with_weights_are_those_of_repeated_elements(name):
    rng = np.random.default_rng(8)
    for _ in range(15):
        x, weights = rng.integers(-3, 4, rng.integers(1, 7)).astype(float), rng.integers(0, 4, 6)
        weights = weights[: x.size] + (weights[: x.size].sum() == 0)
        x[0] = np.nan if rng.random() < 0.3 and weights[1:].sum() else x[0]
        q = np.append([0.0, 1.0], rng.random(3))
        right = getattr(np, name)(np.repeat(x, weights), q, method="inverted_cdf")
        rows, columns = gt.array(np.stack([x, x])), np.stack([weights, weights], 1)
        for found in (
            getattr(gnp, name)(gt.array(x), q, method="inverted_cdf", weights=weights),
            getattr(gnp, name)(rows, q, axis=1, method="inverted_cdf", weights=weights)[:, 1],
            getattr(gnp, name)(rows.T, q, axis=0, method="inverted_cdf", weights=columns, keepdims=True)[:, 0, 0],
        ):
            if not (name == "quantile" and np.isnan(x).any()):  # a weight of 0 does not hide NaN
                np.testing.assert_array_equal(np.asarray(found), right, err_msg=f"{x} {weights} {q}")
    with pytest.raises(gt.ArgumentError, match="inverted_cdf as the method"):
        gnp.quantile(gt.array(x), 0.5, weights=weights)
    with pytest.raises(gt.ShapeError, match="weights with the shape"):
        gnp.quantile(gt.array(x), 0.5, method="inverted_cdf", weights=np.ones(99))


def test_deviations_from_a_center_of_ones_own():
    x, center = np.array([[1.0, 2.0, 4.0], [0.0, 5.0, np.nan]]), np.array([[1.5], [2.0]])
    squares, real = (x - center) ** 2, np.isfinite(x)
    for name in ("var", "std", "nanvar", "nanstd"):
        total = np.nansum(squares, 1) if name.startswith("nan") else squares.sum(1)
        right = total / ((real.sum(1) if name.startswith("nan") else 3) - 1)
        right = np.sqrt(right) if name.endswith("std") else right
        for correction in ({"ddof": 1}, {"correction": 1}):
            found = getattr(gnp, name)(gt.array(x), axis=1, mean=gt.array(center), **correction)
            np.testing.assert_allclose(np.asarray(found), right, rtol=1e-12, err_msg=name)
    with pytest.raises(gt.ArgumentError, match="correction or ddof"):
        gnp.nanvar(gt.array(x), ddof=1, correction=1)


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
def test_means_of_many_elements_of_16_bits_do_not_overflow(dtype):
    x, every = gt.full(100_000, 3.0, dtype), np.ones(100_000, bool)
    for found in (gnp.mean(x, where=every), gnp.nanmean(x), gnp.nanmean(x, where=every)):
        assert found.dtype == dtype and float(found) == 3.0
    assert float(gnp.nanvar(x)) == float(gnp.var(x, where=every)) == 0.0


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan"), [0.5, 2]])
def test_quantiles_outside_of_their_range_are_refused(q):
    for function, scale in ((gnp.quantile, 1), (gnp.nanquantile, 1), (gnp.percentile, 100), (gnp.nanpercentile, 100)):
        with pytest.raises(gt.ArgumentError, match="a q within its range"):
            function(gt.array([1.0, 2.0]), np.multiply(q, scale).tolist())


SMALL, MASK = gt.array([1, 2, 250], dtype=gt.uint8), gt.array([True, False, True])
TOO_LARGE = {
    "fmax": lambda n: gnp.fmax(SMALL, n),
    "fmin": lambda n: gnp.fmin(n, SMALL),
    "insert": lambda n: gnp.insert(SMALL, 1, n),
    "insert a list": lambda n: gnp.insert(SMALL, 1, [3, n]),
    "put": lambda n: gnp.put(SMALL, 0, n),
    "put_along_axis": lambda n: gnp.put_along_axis(SMALL, gt.array([0]), n, 0, inplace=False),
    "fill_diagonal": lambda n: gnp.fill_diagonal(gnp.ones((2, 2), gt.uint8), n),
    "piecewise": lambda n: gnp.piecewise(SMALL, [MASK], [n]),
    "select": lambda n: gnp.select([MASK], [SMALL], n),
    "searchsorted": lambda n: gnp.searchsorted(SMALL, n),
    "diff": lambda n: gnp.diff(SMALL, prepend=n),
    "ediff1d": lambda n: gnp.ediff1d(SMALL, to_end=n),
    "where": lambda n: gnp.where(MASK, SMALL, n),
    "gcd": lambda n: gnp.gcd(SMALL, n),
    "full_like": lambda n: gnp.full_like(SMALL, n),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_integers_that_the_dtype_cannot_hold_are_refused(name):
    for number in (-1, 256, 10**6):
        with pytest.raises(gt.RangeError, match="for uint8"):
            TOO_LARGE[name](number)
    TOO_LARGE[name](255)


def test_counts_of_distinct_elements_when_fewer_are_asked_for():
    rng = np.random.default_rng(5)
    for axis in (None, 0):
        for _ in range(2):
            x = rng.choice([0.0, 1.0, 2.0, 5.0, np.nan], (9, 2) if axis == 0 else 9)
            values, counts = np.unique(x, return_counts=True, axis=axis, equal_nan=axis is None)
            for size in (1, len(counts) - 1, len(counts), len(counts) + 2):
                found = gnp.unique(gt.array(x), return_counts=True, axis=axis, equal_nan=axis is None, size=size)
                kept = min(size, len(counts))
                np.testing.assert_array_equal(found[0][:kept].numpy(), values[:kept])
                assert found[1].tolist() == [*counts[:kept].tolist(), *[0] * (size - kept)]


def test_negated_complex_numbers_keep_the_signs_of_their_zeros():
    parts = [0.0, -0.0, 1.0, -1.0, np.inf, np.nan]
    z = np.array([complex(a, b) for a in parts for b in parts])
    for kind in (np.complex64, np.complex128):
        right = np.negative(z.astype(kind))
        for found in (gnp.negative(gt.array(z.astype(kind))), gt.jit(lambda x: -x)(gt.array(z.astype(kind)))):
            for ours, theirs in ((found.numpy().real, right.real), (found.numpy().imag, right.imag)):
                np.testing.assert_array_equal(ours, theirs)
                np.testing.assert_array_equal(np.signbit(ours)[ours == 0], np.signbit(theirs)[theirs == 0])


def test_ends_and_first_coefficients_are_exact_beside_infinities_and_nan():
    for endpoint in (True, False):
        ours = gnp.geomspace(gt.array([1.0, -3.0]), gt.array([np.inf, -7.0]), 4, endpoint).numpy()
        with np.errstate(all="ignore"):
            right = np.geomspace([1.0, -3.0], [np.inf, -7.0], 4, endpoint)
        np.testing.assert_array_equal(ours[0], right[0])
        assert not endpoint or (ours[-1] == right[-1]).all()
    assert gnp.poly([np.nan, 1.0])[0] == 1.0 and gnp.poly([]).tolist() == [1.0]
    matrix = np.array([[2.0, 1.0, 5.0], [3.0, 4.0, 7.0], [1.0, 3.0, 5.0]])
    np.testing.assert_allclose(gnp.poly(gt.array(matrix)).numpy(), np.poly(matrix), atol=1e-11)


def test_places_in_a_flattened_array_outside_of_it_become_the_nearest():
    places = gt.array([-7, -6, -1, 0, 5, 6, 100])
    found = gnp.unravel_index(places, (2, 3))
    right = np.unravel_index([0, 0, 5, 0, 5, 5, 5], (2, 3))
    assert [x.tolist() for x in found] == [x.tolist() for x in right]


def test_places_of_common_elements_when_more_are_asked_for():
    x, y = gt.array([3.0, np.nan, 2.0, 7.0]), gt.array([2.0, 3.0, np.nan])
    found = gnp.intersect1d(x, y, return_indices=True, size=4, fill_value=-1.0)
    assert [part.tolist() for part in found] == [[2, 3, -1, -1], [2, 0, 4, 4], [0, 1, 3, 3]]
    alone = gnp.intersect1d(x, y, return_indices=True)
    assert [part.tolist() for part in alone] == [[2, 3], [2, 0], [0, 1]]


def test_sets_without_elements_that_are_asked_for_some():
    none, some, other = gt.array([], dtype=gt.float32), gt.array([3.0, 1.0]), gt.array([5.0])
    for function, x, y in (
        (gnp.intersect1d, none, some), (gnp.intersect1d, some, none), (gnp.intersect1d, some, other),
        (gnp.setxor1d, none, none), (gnp.setxor1d, some, some), (gnp.setdiff1d, none, some),
        (gnp.setdiff1d, some, some),
    ):  # fmt: skip
        assert function(x, y, size=2).tolist() == [0.0, 0.0] and function(x, y, size=2).dtype == "float32"
        assert function(x, y, size=2, fill_value=9).tolist() == [9.0, 9.0]
    assert [x.tolist() for x in gnp.intersect1d(none, some, return_indices=True, size=1)] == [[0.0], [0], [2]]
    assert gnp.setxor1d(some, other, size=4).tolist() == [1.0, 3.0, 5.0, 1.0]
    true = gt.array([True])
    assert gnp.setxor1d(true, true, size=1).tolist() == [False]


def test_complex_numbers_are_sorted_along_the_last_axis_of_any_array():
    x = np.array([[[2 + 1j, 1.0, 2 - 1j], [0.0, -1j, 1j]], [[3.0, 3.0, 1j], [-1.0, 1.0, 0.0]]])
    assert np.array_equal(gnp.sort_complex(gt.array(x)), np.sort_complex(x))


@pytest.mark.parametrize("k", [None, np.ones(1), np.ones(0)])
def test_no_integration_leaves_a_polynomial(k):
    assert gnp.polyint([1.0, 2.0], 0, k).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_lines_of_any_width_have_values_and_finite_derivatives(kind):
    tiny = float(gt.finfo(kind).tiny)
    xp = np.array([-1.0, 0.0, 0.0, tiny / 8, 0.75 * tiny, 2.0, 2.0], kind)
    fp = np.array([3.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0], kind)
    x = np.array([-9.0, -0.5, tiny / 16, tiny / 4, tiny / 2, 1.0, 1e4], kind)
    want = np.interp(*(part.astype(float) * 2**99 for part in (x, xp)), fp)  # NumPy's slopes overflow too
    came = gnp.interp(gt.array(x), gt.array(xp), gt.array(fp))
    np.testing.assert_allclose(np.asarray(came, float), want, rtol=8 * float(gt.finfo(kind).eps))
    slopes = gt.grad(lambda *given: gnp.interp(*given).sum(), (0, 1, 2))(gt.array(x), gt.array(xp), gt.array(fp))
    assert all(np.isfinite(slope).all() for slope in slopes[1:2])
    assert np.isfinite(slopes[2]).all() and slopes[0][0] == slopes[0][-1] == 0
    # the inverse of a width of 5/8 tiny is finite
    np.testing.assert_allclose(float(slopes[0][4] * (0.625 * tiny)), 1.0, rtol=8 * float(gt.finfo(kind).eps))


def test_lines_beyond_the_points_are_constant_however_far():
    far, points = gt.array([-6e4, 6e4], dtype=gt.float16), gt.array([0.0, 1e-3], dtype=gt.float16)
    came, slopes = gt.value_and_grad(lambda xp: gnp.interp(far, xp, points).sum())(points)
    assert came == points[1] and slopes.tolist() == [0, 0]


@pytest.mark.parametrize("places", [0, 1, 2, 8, 99, -1, -99])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_rounding_to_any_digits_has_the_derivative_zero(places, kind):
    x = gt.array([1.25, -3.0], dtype=kind)
    assert gt.grad(lambda x: gnp.round(x, places).sum())(x).tolist() == [0, 0]
    assert gt.jvp(lambda x: gnp.round(x, places), (x,), (x,))[1].tolist() == [0, 0]


@pytest.mark.parametrize("excluded", [{np.int64(1)}, {1}, [np.uint8(1)]])
def test_positions_that_vectorize_leaves_out_are_integers_of_any_type(excluded):
    assert gnp.vectorize(lambda x, y: x + y[0], excluded=excluded)(gt.ones(3), [2.0]).tolist() == [3, 3, 3]


def test_means_without_nan_are_cast_to_integers_as_means_are():
    for x, expected in (([1.5, np.nan, 4.0], 2), ([1, 2, 4], 2), ([np.nan, 1.9, 0.9], 0)):
        found = gnp.nanmean(gt.array(x), dtype=gt.int32)
        assert found.dtype == gt.int32 and int(found) == expected  # those of JAX 0.10.2
    assert float(gnp.nanvar(gt.array([1.0, np.nan, 4.0]), dtype=gt.float64)) == 2.25
    found, plain = (f(gt.array(x), dtype=gt.int32) for f, x in ((gnp.nanvar, [1.5, np.nan, 4]), (gnp.var, [1.5, 4])))
    assert found.dtype == plain.dtype and float(found) == float(plain)


@pytest.mark.parametrize("name", ["histogram", "histogram_bin_edges", "histogramdd"])
def test_complex_numbers_have_no_histogram(name):
    with pytest.raises(DtypeError, match=r"\[histogram\] expected real numbers"):
        getattr(gnp, name)(gt.array([1 + 1j, 2.0, 3.0]))
