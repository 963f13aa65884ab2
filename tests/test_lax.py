"""gt.lax: values against NumPy, with JAX's meaning where that differs; derivatives, transforms and errors."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
import gtrace.jax as jax
from gtrace.testing import check_grads, check_vmap

lax = gt.lax
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (3, 4))
Y = RNG.uniform(0.5, 2, (3, 4))
UNIT = RNG.uniform(-0.9, 0.9, (3, 4))
WHOLE, OTHER = RNG.integers(-9, 10, (3, 4)), RNG.choice([-3, -2, 2, 4], (3, 4))


def same(got, want, exact=False):
    got = got.numpy() if isinstance(got, gt.Array) else got
    assert got.shape == np.shape(want) and got.dtype == np.asarray(want).dtype
    np.testing.assert_allclose(got, want, rtol=0 if exact else 1e-12, atol=0 if exact else 1e-14)


ELEMENTWISE = [
    ("abs", np.abs, [X]), ("acos", np.arccos, [UNIT]), ("acosh", np.arccosh, [Y + 1]), ("asin", np.arcsin, [UNIT]),
    ("asinh", np.arcsinh, [X]), ("atan", np.arctan, [X]), ("atanh", np.arctanh, [UNIT]), ("ceil", np.ceil, [X]),
    ("cos", np.cos, [X]), ("cosh", np.cosh, [X]), ("erf", scipy.special.erf, [X]), ("exp", np.exp, [X]),
    ("exp2", np.exp2, [X]), ("expm1", np.expm1, [X]), ("floor", np.floor, [X]), ("is_finite", np.isfinite, [X]),
    ("log", np.log, [Y]), ("log1p", np.log1p, [Y]), ("logistic", scipy.special.expit, [X]),
    ("neg", np.negative, [X]), ("reciprocal", np.reciprocal, [Y]), ("rsqrt", lambda x: 1 / np.sqrt(x), [Y]),
    ("sign", np.sign, [X]), ("sin", np.sin, [X]), ("sinh", np.sinh, [X]), ("sqrt", np.sqrt, [Y]),
    ("square", np.square, [X]), ("tan", np.tan, [UNIT]), ("tanh", np.tanh, [X]), ("stop_gradient", np.array, [X]),
    ("bitwise_not", np.invert, [WHOLE]),
    ("add", np.add, [X, Y]), ("atan2", np.arctan2, [X, Y]), ("div", np.divide, [X, Y]), ("max", np.maximum, [X, Y]),
    ("min", np.minimum, [X, Y]), ("mul", np.multiply, [X, Y]), ("pow", np.power, [Y, X]), ("rem", np.fmod, [X, Y]),
    ("rem", np.fmod, [X, -Y]), ("rem", np.fmod, [np.array([-1e-20, 5.0, -5.0]), 3.0]), ("sub", np.subtract, [X, Y]),
    ("rem", np.fmod, [WHOLE, OTHER]), ("div", lambda x, y: np.trunc(x / y).astype(int), [WHOLE, OTHER]),
    ("nextafter", np.nextafter, [X, Y]), ("eq", np.equal, [WHOLE, OTHER]), ("ne", np.not_equal, [WHOLE, OTHER]),
    ("lt", np.less, [X, Y]), ("le", np.less_equal, [X, Y]), ("gt", np.greater, [X, Y]),
    ("ge", np.greater_equal, [X, Y]), ("bitwise_and", np.bitwise_and, [WHOLE, OTHER]),
    ("bitwise_or", np.bitwise_or, [WHOLE, OTHER]), ("bitwise_xor", np.bitwise_xor, [WHOLE, OTHER]),
    ("shift_left", np.left_shift, [WHOLE, 2]), ("shift_right_arithmetic", np.right_shift, [WHOLE, 2]),
    ("integer_pow", lambda x, y: x**y, [X, 3]), ("integer_pow", lambda x, y: x**y, [Y, -2]),
    ("clamp", lambda a, x, b: np.clip(x, a, b), [-1.0, X, Y]),
    ("select", np.where, [X > 0, X, Y]), ("select_n", lambda w, x, y: np.where(w, y, x), [X > 0, X, Y]),
    ("round", lambda x: np.trunc(x + np.copysign(0.5, x)), [X]),
    ("round", np.array, [np.array([0.0, 3.0, -2.0, 1e300])]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "want", "args"), ELEMENTWISE, ids=[f"{k}-{case[0]}" for k, case in enumerate(ELEMENTWISE)]
)
def test_elementwise_functions(name, want, args):
    given_ = [gt.array(x) if isinstance(x, np.ndarray) else x for x in args]
    same(getattr(lax, name)(*given_), want(*args))


def test_rounding_of_halves():
    x = gt.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997])
    assert lax.round(x).tolist() == [-3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 0.0]
    assert lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN).tolist() == [-2.0, -2.0, 0.0, 0.0, 2.0, 2.0, 0.0]
    assert lax.round(x, 1).tolist()[0] == -2.0


@pytest.mark.parametrize(
    ("low", "x", "high", "value", "slopes"),
    [
        (0.0, 0.5, 1.0, 0.5, (0, 1, 0)), (0.0, -1.0, 1.0, 0.0, (1, 0, 0)), (0.0, 2.0, 1.0, 1.0, (0, 0, 1)),
        (0.0, 0.0, 1.0, 0.0, (0, 0, 0)), (0.0, 1.0, 1.0, 1.0, (0, 0, 0)), (1.0, 1.0, 1.0, 1.0, (0, 0, 0)),
        (1.0, 0.5, 0.0, 0.0, (0, 0, 1)), (2.0, 1.0, 1.0, 1.0, (0, 0, 0)), (0.0, math.nan, 1.0, math.nan, (0, 0, 0)),
    ],
)  # fmt: skip
def test_clamp_has_the_derivatives_of_jax(low, x, high, value, slopes):
    """jax 0.10.2 gives these numbers."""
    same(lax.clamp(gt.array(low), x, high), np.float32(value))
    assert tuple(map(float, gt.grad(lax.clamp, (0, 1, 2))(low, x, high))) == slopes


def test_select_n_clamps_its_integers():
    cases = [gt.full((4,), k) for k in (10, 20, 30)]
    assert lax.select_n(gt.array([-1, 1, 2, 7]), *cases).tolist() == [10, 20, 30, 30]


def test_conversions_and_constants():
    assert lax.convert_element_type(gt.array([1.5]), gt.int32).dtype == torch.int32
    same(lax.full((2,), 3.0, gt.float64), np.full(2, 3.0))
    same(lax.full_like(gt.zeros(2), 3), np.full(2, 3.0, np.float32))
    same(lax.full_like(gt.zeros(2), 3, gt.int64, (1, 2)), np.full((1, 2), 3))
    same(lax.iota(gt.int64, 4), np.arange(4))
    same(lax.broadcasted_iota(gt.float64, (3, 4), -1), np.broadcast_to(np.arange(4.0), (3, 4)))


SHAPES = [
    (lambda x: lax.broadcast(x, (2, 1)), lambda x: np.broadcast_to(x, (2, 1, 3, 4))),
    (lambda x: lax.broadcast_in_dim(x, (3, 2, 4), (0, 2)), lambda x: np.broadcast_to(x[:, None], (3, 2, 4))),
    (lambda x: lax.broadcast_in_dim(x[:, :1], (3, 5), (0, 1)), lambda x: np.broadcast_to(x[:, :1], (3, 5))),
    (lambda x: lax.collapse(x[None], 1), lambda x: x.reshape(1, 12)),
    (lambda x: lax.collapse(x[None], 0, 2), lambda x: x),
    (lambda x: lax.collapse(x[None], 0, -1), lambda x: x),
    (lambda x: lax.concatenate([x, x[:1]], 0), lambda x: np.concatenate([x, x[:1]])),
    (lambda x: lax.expand_dims(x, (0, 3)), lambda x: x[None, ..., None]),
    (lambda x: lax.squeeze(x[:, :1], (1,)), lambda x: x[:, 0]),
    (lambda x: lax.rev(x, (0, 1)), lambda x: x[::-1, ::-1]),
    (lambda x: lax.transpose(x, (1, 0)), lambda x: x.T),
    (lambda x: lax.reshape(x, (2, 6)), lambda x: x.reshape(2, 6)),
    (lambda x: lax.reshape(x, (12,), (1, 0)), lambda x: x.T.reshape(12)),
    (lambda x: lax.slice(x, (0, 1), (3, 4), (2, 2)), lambda x: x[0:3:2, 1:4:2]),
    (lambda x: lax.slice(x, (1, 2), (1, 4)), lambda x: x[1:1, 2:4]),
    (lambda x: lax.slice_in_dim(x, 1, None, axis=1), lambda x: x[:, 1:]),
    (lambda x: lax.slice_in_dim(x, -3, -1, 2, axis=-1), lambda x: x[:, -3:-1:2]),
    (lambda x: lax.index_in_dim(x, -1, 1), lambda x: x[:, -1:]),
    (lambda x: lax.index_in_dim(x, 1, 0, keepdims=False), lambda x: x[1]),
    (lambda x: lax.reduce_sum(x, (0,)), lambda x: x.sum(0)),
    (lambda x: lax.reduce_sum(x, ()), lambda x: x),
    (lambda x: lax.reduce_prod(x, (0, 1)), lambda x: np.float64(x.prod())),
    (lambda x: lax.reduce_max(x, (1,)), lambda x: x.max(1)),
    (lambda x: lax.reduce_min(x, (-1,)), lambda x: x.min(1)),
    (lambda x: lax.reduce_and(x > 0, (0,)), lambda x: (x > 0).all(0)),
    (lambda x: lax.reduce_or(x > 0, (1,)), lambda x: (x > 0).any(1)),
    (lambda x: lax.argmax(x, 1), lambda x: x.argmax(1)),
    (lambda x: lax.argmin(x, 0, gt.int32), lambda x: x.argmin(0).astype(np.int32)),
    (lambda x: lax.cumsum(x, 1), lambda x: x.cumsum(1)),
    (lambda x: lax.cumsum(x, reverse=True), lambda x: x[::-1].cumsum(0)[::-1]),
    (lambda x: lax.cumprod(x, 1), lambda x: x.cumprod(1)),
    (lambda x: lax.cumprod(x, -1, reverse=True), lambda x: x[:, ::-1].cumprod(1)[:, ::-1]),
    (lambda x: lax.cummax(x, 1), lambda x: np.maximum.accumulate(x, 1)),
    (lambda x: lax.cummin(x), lambda x: np.minimum.accumulate(x)),
    (lambda x: lax.cumlogsumexp(x, 1), lambda x: np.logaddexp.accumulate(x, 1)),
    (lambda x: lax.cumlogsumexp(x * 1e4, 0, True), lambda x: np.logaddexp.accumulate(x[::-1] * 1e4)[::-1]),
    (lambda x: lax.sort(x, 0), lambda x: np.sort(x, 0)),
    (lambda x: lax.sort(x), lambda x: np.sort(x)),
    (lambda x: lax.top_k(x, 3)[0], lambda x: -np.sort(-x)[:, :3]),
    (lambda x: lax.top_k(x, 3)[1], lambda x: np.argsort(-x)[:, :3]),
    (lambda x: lax.top_k(x, 0)[0], lambda x: x[:, :0]),
]


@pytest.mark.parametrize("k", range(len(SHAPES)))
def test_functions_of_one_array(k):
    got, want = SHAPES[k]
    same(got(gt.array(X)), want(X))


def test_integers_keep_their_dtype_where_numpy_would_widen():
    x = gt.array([100, 100], dtype=gt.int8)
    assert lax.reduce_sum(x, (0,)).dtype == torch.int8
    assert lax.reduce_prod(x, (0,)).dtype == torch.int8
    assert lax.cumsum(x).dtype == torch.int8
    assert lax.cumprod(x).dtype == torch.int8


def test_running_log_sums_of_infinities():
    x = np.array([-np.inf, -np.inf, 0.0, np.inf, 1.0])
    same(lax.cumlogsumexp(gt.array(x)), np.logaddexp.accumulate(x))


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e7])
def test_running_log_sums_have_derivatives_that_sum_to_1_far_from_0(shift):
    rng = np.random.default_rng(0)
    x, ct = (2 * rng.normal(size=50) + shift).astype(np.float32), rng.normal(size=50).astype(np.float32)
    shares = np.exp(x.astype(float) - x.max()) * np.tri(50)
    shares /= shares.sum(1, keepdims=True)
    got = gt.grad(lambda x: (gt.cumlogsumexp(x) * ct).sum())(x)
    np.testing.assert_allclose(got, ct @ shares, atol=1e-5)
    np.testing.assert_allclose(gt.jvp(gt.cumlogsumexp, (x,), (np.ones(50, "float32"),))[1], np.ones(50), atol=1e-5)


def test_derivatives_of_running_log_sums_of_infinities():
    inf = np.inf
    for x, expected in (([1, -inf, 2], [2.268941, 0, 0.731059]), ([-inf, 1, inf], [1, 1, 1]), ([1, inf, 2], [1, 2, 0])):
        np.testing.assert_allclose(gt.grad(lambda x: gt.cumlogsumexp(x).sum())(np.array(x)), expected, atol=1e-6)


# -- padding


def padded(x, value, config):
    """JAX's definition, element by element."""
    low, high, interior = config
    spread = []
    for k, element in enumerate(x):
        spread += ([value] * interior if k else []) + [element]
    out = [value] * max(low, 0) + spread + [value] * max(high, 0)
    return np.array(out[max(-low, 0) : len(out) - max(-high, 0)], x.dtype)


@given(st.integers(0, 4), st.integers(-3, 4), st.integers(-3, 4), st.integers(0, 3))
def test_pad(size, low, high, interior):
    x = np.arange(1.0, size + 1)
    config = (low, high, interior)
    if size + max(size - 1, 0) * interior + low + high < 0:
        with pytest.raises(gt.ShapeError, match="low, high, interior"):
            lax.pad(gt.array(x), 0.0, [config])
        return
    same(lax.pad(gt.array(x), 7.0, [config]), padded(x, 7.0, config))
    both = lax.pad(gt.array(np.stack([x, x])), gt.array(7.0), [(1, 0, 0), config])
    row = padded(x, 7.0, config)
    same(both, np.stack([np.full_like(row, 7.0), row, row]))


# -- computed starts

BIG = np.arange(60.0).reshape(3, 4, 5)
STARTS = [(0, 0, 0), (1, 2, 3), (2, -1, -5), (-9, 9, 4), (2, 1, 0)]
SIZES = [(1, 2, 3), (3, 2, 5), (3, 4, 5), (2, 0, 1)]


def clamped(starts, sizes, shape):
    fixed = [min(max(s + n if s < 0 else s, 0), n - m) for s, m, n in zip(starts, sizes, shape, strict=True)]
    return tuple(slice(s, s + m) for s, m in zip(fixed, sizes, strict=True))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("starts", STARTS)
def test_dynamic_slices_are_moved_inside(starts, sizes):
    place = clamped(starts, sizes, BIG.shape)
    update = -np.arange(1.0, 1.0 + np.prod(sizes)).reshape(sizes)
    changed = BIG.copy()
    changed[place] = update
    for given_ in (starts, gt.array(starts), [gt.array(s, dtype=gt.int32) for s in starts], (starts[0], *starts[1:])):
        same(lax.dynamic_slice(gt.array(BIG), given_, sizes), BIG[place])
        same(lax.dynamic_update_slice(gt.array(BIG), gt.array(update), given_), changed)


@pytest.mark.parametrize("start", [0, 2, -1, 7])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_dynamic_slices_along_one_axis(start, axis):
    x = gt.array(BIG)
    size = BIG.shape[axis]
    first = min(max(start + size if start < 0 else start, 0), size - 2)
    index = min(max(start + size if start < 0 else start, 0), size - 1)
    two, one = np.take(BIG, [first, first + 1], axis), np.take(BIG, [index], axis)
    moved = np.moveaxis(BIG.copy(), axis, 0)
    moved[first : first + 2] = 0.0
    single = np.moveaxis(BIG.copy(), axis, 0)
    single[index] = -1.0
    for given_ in (start, gt.array(start)):
        same(lax.dynamic_slice_in_dim(x, given_, 2, axis), two)
        same(lax.dynamic_index_in_dim(x, given_, axis), one)
        same(lax.dynamic_index_in_dim(x, given_, axis, keepdims=False), one.squeeze(axis))
        update = gt.zeros(two.shape, dtype=gt.float64)
        same(lax.dynamic_update_slice_in_dim(x, update, given_, axis), np.moveaxis(moved, 0, axis))
        for shape in (one.shape, one.squeeze(axis).shape):
            update = gt.full(shape, -1.0)
            same(lax.dynamic_update_index_in_dim(x, update, given_, axis), np.moveaxis(single, 0, axis))


def test_a_cache_is_filled_in_a_compiled_loop():
    @functools.partial(gt.jit, backend="eager")
    def fill(values):
        def step(i, cache):
            row = lax.dynamic_index_in_dim(values, i, keepdims=False)
            return lax.dynamic_update_slice(cache, row[None] * 2.0, (i, 0))

        return lax.fori_loop(0, 3, step, gt.zeros((4, 4), dtype=gt.float64))

    same(fill(gt.array(X)), np.concatenate([X * 2.0, np.zeros((1, 4))]))


# -- products

A, B = RNG.uniform(-1, 1, (2, 3, 4, 5)), RNG.uniform(-1, 1, (4, 2, 6, 5))


@pytest.mark.parametrize(
    ("numbers", "equation"),
    [
        ((((3,), (3,)), ((0,), (1,))), "abcd,eafd->abcef"),
        ((((3, 2), (3, 0)), ((0,), (1,))), "abcd,cafd->abf"),
        ((((2,), (0,)), ((0, 3), (1, 3))), "abcd,cafd->adbf"),
        ((((0,), (1,)), ((), ())), "abcd,eafg->bcdefg"),
        ((((), ()), ((-1,), (-1,))), "abcd,efgd->dabcefg"),
    ],
)
def test_dot_general(numbers, equation):
    same(lax.dot_general(gt.array(A), gt.array(B), numbers), np.einsum(equation, A, B))


def test_products():
    m, v = gt.array(X), gt.array(X[0])
    same(lax.dot(v, v), np.float64(X[0] @ X[0]))
    same(lax.dot(m, v), X @ X[0])
    same(lax.dot(v, m.T), X[0] @ X.T)
    same(lax.dot(m, m.T), X @ X.T)
    same(lax.batch_matmul(gt.array(A), gt.array(A).mT), A @ np.swapaxes(A, -1, -2))
    wide = lax.dot_general(
        gt.ones(2, dtype=gt.float16), gt.ones(2, dtype=gt.float16), (((0,), (0,)), ((), ())), "float32"
    )
    assert wide.dtype == torch.float32


# -- order


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=8))
def test_sort_of_several_arrays_by_several_keys(rows):
    columns = np.array(rows).T
    for keys in (1, 2, 3):
        got = lax.sort(tuple(gt.array(c) for c in columns), num_keys=keys)
        want = sorted(rows, key=lambda row, keys=keys: row[:keys])
        assert [tuple(row) for row in np.stack([x.numpy() for x in got], 1)] == want


def test_sort_key_val_along_an_axis():
    keys, values = lax.sort_key_val(gt.array(X), gt.array(Y), dimension=0)
    order = np.argsort(X, 0)
    same(keys, np.take_along_axis(X, order, 0))
    same(values, np.take_along_axis(Y, order, 0))


def test_top_k_takes_the_first_of_equal_elements():
    values, places = lax.top_k(gt.array([1.0, 3.0, 3.0, 2.0, 3.0]), 4)
    assert values.tolist() == [3.0, 3.0, 3.0, 2.0] and places.tolist() == [1, 2, 4, 3]


# -- control flow and transforms


def test_control_flow_is_that_of_gt():
    for name in ("cond", "switch", "scan", "while_loop", "fori_loop", "map", "associative_scan"):
        assert getattr(lax, name) is getattr(gt, name)


DIFFERENTIABLE = {
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (gt.array(1), gt.array(9)), (2, 3)), (X,)),
    "dynamic_update_slice": (lambda x, u: lax.dynamic_update_slice(x, u, (gt.array(1), 0)) ** 2, (X, Y[:2, :3])),
    "dynamic_index": (lambda x: lax.dynamic_index_in_dim(x, gt.array(1), 1) ** 2, (X,)),
    "pad": (lambda x, v: lax.pad(x, v, [(1, -1, 2), (-1, 1, 0)]) ** 2, (X, np.array(0.5))),
    "top_k": (lambda x: lax.top_k(x, 2)[0] ** 2, (X,)),
    "sort": (lambda x, y: lax.sort_key_val(x, y)[1] ** 2 * lax.sort((x, y))[0], (X, Y)),
    "rem": (lax.rem, (X, Y)),
    "cumprod": (lambda x: lax.cumprod(x, 1, reverse=True), (X,)),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), (X,)),
    "cummax": (lambda x: lax.cummax(x, 1) ** 2, (X,)),
    "exp2": (lax.exp2, (X,)),
    "dot_general": (lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((0,), (0,)))), (X, Y)),
    "select_n": (lambda x, y: lax.select_n(gt.array(X > 0), x, y) ** 2, (X, Y)),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives(name):
    f, args = DIFFERENTIABLE[name]
    check_grads(f, tuple(gt.array(x) for x in args), order=1)


MAPPED = {
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (X, np.array([0, 2, 9]))),
    "dynamic_update_slice": (lambda x, i: lax.dynamic_update_slice(x, x[:2], (i,)), (X, np.array([0, -1, 9]))),
    "update in two axes": (
        lambda x, i: lax.dynamic_update_slice(x, gt.ones((2, 2)), (i, 1)),
        (BIG, np.array([0, 1, 2])),
    ),
    "top_k": (lambda x: lax.top_k(x, 2), (X,)),
    "sort": (lambda x, y: lax.sort((x, y)), (X, Y)),
    "pad": (lambda x: lax.pad(x, 1.0, [(1, -1, 1)]), (X,)),
    "cummax": (lax.cummax, (X,)),
    "dot_general": (lambda x, y: lax.dot_general(x, y, (((0,), (0,)), ((), ()))), (X, Y)),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap(name):
    f, args = MAPPED[name]
    check_vmap(f, tuple(gt.array(x) for x in args))


# -- errors

ONES, THREE = gt.ones((2, 3)), gt.array([1, 2, 3])
ERRORS = [
    (lambda: lax.round(THREE), gt.DtypeError, "floating"),
    (lambda: lax.round(ONES, 3), gt.ArgumentError, "RoundingMethod"),
    (lambda: lax.integer_pow(ONES, 1.5), gt.ArgumentError, "an integer as y"),
    (lambda: lax.select_n(ONES, ONES), gt.DtypeError, "integers or booleans"),
    (lambda: lax.select_n(ONES > 0, ONES, ONES, ONES), gt.ArgumentError, "one or two cases"),
    (lambda: lax.select_n(THREE), gt.ArgumentError, "at least one case"),
    (lambda: lax.slice(ONES, (0,), (2,)), gt.ShapeError, "for each axis"),
    (lambda: lax.slice(ONES, (0, 0), (2, 4)), gt.ShapeError, "limit <= size"),
    (lambda: lax.slice(ONES, (0, 0), (2, 3), (1, 0)), gt.ShapeError, "stride"),
    (lambda: lax.slice_in_dim(ONES, 0, 2, axis=2), gt.ShapeError, "axis in"),
    (lambda: lax.index_in_dim(ONES, 3, 1), gt.BoundsError, r"an index in \[-3, 3\)"),
    (lambda: lax.dynamic_slice(ONES, (0,), (1, 1)), gt.ShapeError, "a start for each axis"),
    (lambda: lax.dynamic_slice(ONES, (0, 0), (3, 1)), gt.ShapeError, "sizes within the axes"),
    (lambda: lax.dynamic_slice(ONES, (gt.array(0.0), 0), (1, 1)), gt.DtypeError, "integer scalars"),
    (lambda: lax.dynamic_slice(ONES, (0.5, 0), (1, 1)), gt.ArgumentError, "an integer as start"),
    (lambda: lax.dynamic_update_slice(ONES, gt.ones(2), (0, 0)), gt.ShapeError, "as many axes"),
    (lambda: lax.dynamic_update_slice(THREE, gt.ones(2), (0,)), gt.DtypeError, "an update for"),
    (lambda: lax.dynamic_update_index_in_dim(ONES, gt.ones((2, 2)), 0, 1), gt.ShapeError, "size 1 along"),
    (lambda: lax.collapse(ONES, 1, 1), gt.ShapeError, "start before the stop"),
    (lambda: lax.broadcast_in_dim(ONES, (2, 3), (1, 1)), gt.ShapeError, "an axis of the result for each"),
    (lambda: lax.broadcast_in_dim(ONES, (2, 4), (0, 1)), gt.ShapeError, "broadcasts to"),
    (lambda: lax.pad(ONES, 0.0, [(0, 0, 0)]), gt.ShapeError, "for each axis"),
    (lambda: lax.pad(ONES, 0.0, [(0, 0), (0, 0)]), gt.ShapeError, "for each axis"),
    (lambda: lax.pad(ONES, 0.0, [(0, 0, 0), (0, 0, -1)]), gt.ShapeError, "interior >= 0"),
    (lambda: lax.dot(ONES, gt.ones((2, 3, 4))), gt.ShapeError, "vectors or matrices"),
    (lambda: lax.dot(ONES, ONES), gt.ShapeError, "equal sizes"),
    (lambda: lax.dot_general(ONES, ONES, (((0,), (0,)), ((0,), (0,)))), gt.ShapeError, "each axis once"),
    (lambda: lax.batch_matmul(gt.ones((2, 3, 4)), gt.ones((4, 5))), gt.ShapeError, "equal leading axes"),
    (lambda: lax.reduce_sum(ONES > 0, (0,)), gt.DtypeError, "not booleans"),
    (lambda: lax.reduce_and(ONES, (0,)), gt.DtypeError, "integers or booleans"),
    (lambda: lax.top_k(ONES, 4), gt.ShapeError, "a k of at most"),
    (lambda: lax.conv(gt.ones((1, 1, 4)), gt.ones((1, 1, 0)), (1,), "VALID"), gt.ArgumentError, "sizes of windows"),
    (
        lambda: lax.conv(gt.ones((1, 1, 4), "int32"), gt.ones((1, 1, 0), "int32"), (1,), "VALID", None, "int32"),
        gt.ArgumentError,
        "sizes of windows",
    ),
    (
        lambda: lax.conv_general_dilated(gt.ones((1, 1, 4)), gt.ones((1, 1, 3)), (1,), "SAME", feature_group_count=0),
        gt.ArgumentError,
        "counts of groups",
    ),
    (lambda: lax.sort((ONES, ONES), num_keys=3), gt.ArgumentError, "at least one key"),
    (lambda: lax.sort((ONES, THREE)), gt.ShapeError, "one shape"),
]


@pytest.mark.parametrize("k", range(len(ERRORS)))
def test_errors_say_what_was_expected(k):
    call, error, match = ERRORS[k]
    with pytest.raises(error, match=match):
        call()


def test_quotients_of_the_least_integer():
    x, y = np.array([-(2**63), -(2**63), -7]), np.array([2, 3, 2])
    assert gt.lax.div(gt.array(x), gt.array(y)).tolist() == [-(2**62), -3074457345618258602, -3]
    assert gt.lax.rem(gt.array(x), gt.array(y)).tolist() == [0, -2, -1]


@pytest.mark.parametrize("operation", [lax.add, jax.lax.add, jax.lax.max])
def test_what_wraps_an_operation_is_another_function(operation):
    @functools.wraps(operation)
    def least(x, y):
        return lax.min(x, y)

    x = gt.array([3.0, 1.0, 2.0])
    for start in 0.0, -math.inf:
        assert lax.reduce(x, start, least, (0,)) == start
        assert lax.reduce_window(x, start, least, (2,)).tolist() == [start, start]
    with pytest.raises(gt.ShapeError, match=r"\[grad\]"):
        lax.reduce(x, 0.0, gt.grad(lax.add), (0,))


@pytest.mark.parametrize("start", [0, 1, 0.0, 1.0, False, True, np.float64(0), np.float64(1)])
@pytest.mark.parametrize("kind", ["bool", "int8", "int32", "float32"])
@pytest.mark.parametrize("operation", ["add", "mul", "max", "bitwise_or"])
def test_the_dtype_of_a_reduction_depends_on_no_value(operation, kind, start):
    """A function that is not known is applied as it is."""
    if operation == "bitwise_or" and "float" in f"{kind} {type(start)}":
        return
    function = getattr(lax, operation)
    x = gt.array([1, 0, 1], dtype=kind)
    came = lax.reduce(x, start, function, (0,))
    want = lax.reduce(x, start, lambda x, y: function(x, y), (0,))
    assert came == want and came.aval == want.aval
    assert lax.reduce(x[:0], start, lambda x, y: function(x, y), (0,)).dtype == want.dtype


@pytest.mark.parametrize("bits", [(5, 10), (8, 7), (8, 10), (4, 3)])
def test_derivatives_of_reduced_precision_are_reduced_too(bits):
    """JAX's values: the tangent and the cotangent have the fewer bits as well."""
    want = {(5, 10): 1.234375, (8, 7): 1.234375, (8, 10): 1.234375, (4, 3): 1.25}[bits]
    x = np.float32(1.2345678)
    assert gt.grad(lambda y: lax.reduce_precision(y, *bits) * x)(x) == want
    assert [float(y) for y in gt.jvp(lambda y: lax.reduce_precision(y, *bits), (x,), (x,))] == [want, want]
