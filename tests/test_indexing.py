"""Indexing and functional updates are NumPy's; composites of the array functions too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.errors import ArgumentError, BoundsError, DtypeError
from gtrace.testing import assert_close


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


@st.composite
def shapes_and_indices(draw):
    """A shape and an index that NumPy may or may not take."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    bound = st.one_of(st.none(), st.integers(-6, 6))
    together = tuple(draw(st.lists(st.integers(1, 2), max_size=2)))
    index = []
    axis = 0
    while axis < len(shape):
        size = shape[axis]
        kind = draw(st.integers(0, 7))
        if kind == 0:
            index.append(draw(st.integers(-size, size - 1)))
        elif kind <= 2:
            index.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -2, 3]))))
        elif kind == 3:
            index.append(None)
            continue
        elif kind == 4:
            count = int(np.prod(together))
            places = draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count))
            index.append(np.array(places, dtype=np.int64).reshape(together))
        elif kind == 5:
            mask = draw(st.lists(st.booleans(), min_size=size, max_size=size))
            index.append(np.array(mask))
        elif kind == 6 and Ellipsis not in [i for i in index if not isinstance(i, np.ndarray)]:
            index.append(Ellipsis)
            axis += draw(st.integers(0, len(shape) - axis)) - 1
        else:
            break
        axis += 1
    return shape, tuple(index)


def to_gt(index):
    return tuple(gt.array(i) if isinstance(i, np.ndarray) else i for i in index)


def refused(index, ndim: int) -> bool:
    """Whether an ellipsis that stands for no axes separates index arrays, which NumPy treats unlike adjacent ones."""
    kinds = ["..." if i is Ellipsis else "slice" if i is None or isinstance(i, slice) else "place" for i in index]
    axes = sum(i is not None and i is not Ellipsis for i in index)
    if "..." not in kinds or axes < ndim or not any(isinstance(i, np.ndarray) for i in index):
        return False
    middle = kinds.index("...")
    return "place" in kinds[:middle] and "place" in kinds[middle:]


@given(shapes_and_indices())
def test_reading(case):
    shape, index = case
    host = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    try:
        expected = host[index]
    except IndexError:
        with pytest.raises((gt.GtraceError, IndexError)):
            gt.eval(gt.array(host)[to_gt(index)])
        return
    if refused(index, len(shape)):
        with pytest.raises(gt.ArgumentError, match="Leave the ellipsis out"):
            gt.array(host)[to_gt(index)]
        return
    for given_index in (index, to_gt(index)):
        got = gt.array(host)[given_index]
        assert got.shape == expected.shape
        np.testing.assert_array_equal(np.asarray(got), expected)


@given(shapes_and_indices(), st.sampled_from(["set", "add", "multiply", "min", "max"]), st.booleans())
def test_updating(case, name, whole):
    shape, index = case
    assume(not refused(index, len(shape)))
    host = np.arange(1, 1 + np.prod(shape), dtype=np.float64).reshape(shape)
    try:
        target = host[index].shape
    except IndexError:
        assume(False)
    values = np.random.default_rng(0).uniform(0.5, 9, target if whole else ()).round(2)
    expected = host.copy()
    if name == "set":
        flat = np.zeros(shape, np.int64)
        np.add.at(flat, index, 1)
        assume(not whole or flat.max(initial=0) <= 1)  # repeated places take any one of the values
        expected[index] = values
    else:
        ufunc = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}[name]
        ufunc.at(expected, index, values)
    got = getattr(gt.array(host).at[to_gt(index)], name)(gt.array(values) if whole else float(values))
    assert_close(got, expected)


@given(shapes_and_indices(), st.sampled_from(["set", "add", "multiply", "min", "max"]))
def test_gradients_of_updates(case, name):
    shape, index = case
    assume(not refused(index, len(shape)))
    host = np.random.default_rng(0).uniform(0.5, 2, shape)
    try:
        target = host[index].shape
    except IndexError:
        assume(False)
    flat = np.zeros(shape, np.int64)
    np.add.at(flat, index, 1)
    assume(flat.max(initial=0) <= 1)
    values = np.random.default_rng(1).uniform(0.5, 2, target)
    weight = gt.array(np.random.default_rng(2).normal(size=shape))

    def f(x, u):
        return (getattr(x.at[to_gt(index)], name)(u) * weight).sum()

    got = gt.grad(f, argnums=(0, 1))(gt.array(host), gt.array(values))
    for k, g in enumerate(got):
        arrays = [host, values]
        expected = np.zeros_like(arrays[k])
        for place in np.ndindex(arrays[k].shape):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[k][place] += sign * 1e-6
                ends.append(float(f(*map(gt.array, moved))))
            expected[place] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(np.asarray(g), expected, atol=1e-6)


X = np.random.default_rng(0).normal(size=(3, 4))
V = np.random.default_rng(1).normal(size=5)

COMPOSITES = [
    ("var", lambda m, x: m.var(x, axis=0), X),
    ("std", lambda m, x: m.std(x), X),
    ("clip", lambda m, x: m.clip(x, -0.5, 0.5), X),
    ("round", lambda m, x: m.round(x, 2), X),
    ("stack", lambda m, x: m.stack([x, x + 1], axis=1), X),
    ("split", lambda m, x: m.split(x, 2, axis=1)[1], X),
    ("split at", lambda m, x: m.split(x, [1, 3], axis=1)[1], X),
    ("tile", lambda m, x: m.tile(x, (2, 1, 2)), X),
    ("repeat", lambda m, x: m.repeat(x, 3, axis=1), X),
    ("repeat each", lambda m, x: m.repeat(x, [2, 0, 1], axis=0), X),
    ("pad", lambda m, x: m.pad(x, ((1, 2), (0, 1))), X),
    ("pad edge", lambda m, x: m.pad(x, 1, mode="edge"), X),
    ("pad reflect", lambda m, x: m.pad(x, 2, mode="reflect"), X),
    ("pad wrap", lambda m, x: m.pad(x, (2, 1), mode="wrap"), X),
    ("pad symmetric", lambda m, x: m.pad(x, 2, mode="symmetric"), V),
    ("roll flat", lambda m, x: m.roll(x, 2), X),
    ("roll axes", lambda m, x: m.roll(x, (1, -1), axis=(0, 1)), X),
    ("moveaxis", lambda m, x: m.moveaxis(x[None], 0, -1), X),
    ("swapaxes", lambda m, x: m.swapaxes(x, 0, 1), X),
    ("outer", lambda m, x: m.outer(x, x), V),
    ("tensordot", lambda m, x: m.tensordot(x, x, axes=((1,), (1,))), X),
    ("dot", lambda m, x: m.dot(x, x.T), X),
    ("tril", lambda m, x: m.tril(x, 1), X),
    ("cumsum", lambda m, x: m.cumsum(x), X),
    ("prod", lambda m, x: m.prod(x, axis=(0, 1)), X),
    ("squeeze", lambda m, x: m.squeeze(x[:, None, :1]), X),
    ("expand", lambda m, x: m.expand_dims(x, (0, 3)), X),
    ("powers", lambda m, x: x**2 + x**3 - x**0 + abs(x) ** 0.5 + 2.0**x, X),
    ("negative power", lambda m, x: (x * x + 1) ** -2, X),
    ("mod", lambda m, x: x % 0.7 + x // 0.3 - (2.0 % (abs(x) + 1)), X),
    ("where", lambda m, x: m.where(x > 0, x, 0.0), X),
    ("mask", lambda m, x: x[x > 0], X),
    ("max", lambda m, x: m.max(x, axis=1, keepdims=True), X),
    ("logaddexp", lambda m, x: m.log1p(m.exp(x)), X),
    ("matmul", lambda m, x: (x @ x.T) @ x[:, 0], X),
    ("eye", lambda m, x: x @ m.eye(4, 5, 1), X),
    ("linspace", lambda m, x: x * m.linspace(0, 1, 4), X),
    ("arange", lambda m, x: x + m.arange(4, 0, -1), X),
    ("full", lambda m, x: x + m.full((3, 1), 2.5), X),
]


@pytest.mark.parametrize(("name", "f", "x"), COMPOSITES, ids=[c[0] for c in COMPOSITES])
def test_composites_are_numpys(name, f, x):
    expected = f(np, x)
    got = f(gt, gt.array(x))
    assert got.shape == expected.shape
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot_of_many_classes(axis, dtype):
    """Large results are written otherwise than small ones."""
    codes = np.random.default_rng(0).integers(0, 250, (40, 9)).astype(dtype)
    if dtype != "uint8":
        codes[3] = [-1, 300, 299, 0, -300, 2**31 - 1, -(2**31), 7, 301]
    want = np.moveaxis(codes[..., None].astype(np.int64) == np.arange(300), -1, axis)
    for kind in ("float32", "bool", "int8"):
        got = gt.one_hot(gt.array(codes), 300, axis=axis, dtype=kind)
        assert got.dtype == kind
        np.testing.assert_array_equal(got, want.astype(kind))
    batched = gt.vmap(lambda row: gt.one_hot(row, 300))(gt.array(codes))
    np.testing.assert_array_equal(batched, codes[..., None].astype(np.int64) == np.arange(300))


def test_one_hot_softplus_and_friends():
    np.testing.assert_array_equal(np.asarray(gt.one_hot(gt.array([1, -1, 5]), 3)), [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    assert gt.one_hot(gt.array([[1]]), 3, axis=0).shape == (3, 1, 1)
    assert gt.softplus(gt.array([1000.0, -1000.0])).tolist() == [1000.0, 0.0]
    assert gt.grad(lambda x: gt.prod(x))(gt.array([2.0, 0.0, 3.0])).tolist() == [0.0, 6.0, 0.0]
    assert gt.grad(lambda x: gt.max(x))(gt.array([2.0, 2.0, 1.0])).tolist() == [0.5, 0.5, 0.0]
    assert gt.take_along_axis(gt.array([[3.0, 1.0]]), gt.array([[1, 1, 0]]), axis=1).tolist() == [[1.0, 1.0, 3.0]]


def test_zero_factors_in_scattered_products():
    x, u = gt.array([2.0, 3.0]), gt.array([0.0, 5.0, 0.0])
    index = gt.array([0, 0, 1])
    g = gt.grad(lambda u: (x.at[index].multiply(u) * gt.array([1.0, 10.0])).sum())(u)
    assert g.tolist() == [10.0, 0.0, 30.0]


INDICES = {
    "rows": lambda i, j: (i,),
    "columns": lambda i, j: (slice(None), i),
    "elements": lambda i, j: (i, j),
    "after a slice": lambda i, j: (slice(1, 3), i),
    "apart": lambda i, j: (i, slice(None), j),
    "in two dimensions": lambda i, j: (slice(None), np.stack([i, j])),
}


@settings(max_examples=30, deadline=None, database=None)
@given(st.sampled_from(sorted(INDICES)), st.integers(0, 9), st.sampled_from([None, "clip", "promise_in_bounds"]))
def test_of_the_values_set_at_one_place_the_written_one_has_the_derivative(name, seed, mode):
    rng = np.random.default_rng(seed)
    shape = (3, 4, 2) if name == "apart" else (3, 4)
    i, j = rng.integers(0, 2, 5), rng.integers(0, 2, 5)
    if mode is None:
        i[rng.integers(0, 5)] = 9  # left out
    index = INDICES[name](i, j)

    def run(x, u):
        return x.at[index].set(u, mode=mode)

    near = tuple(np.minimum(p, 1) if isinstance(p, np.ndarray) else p for p in index)
    x, u, weight = (rng.integers(1, 9, s).astype(float) for s in (shape, np.zeros(shape)[near].shape, shape))
    if mode is not None:
        expected = x.copy()
        expected[index] = u
        np.testing.assert_array_equal(np.asarray(run(gt.array(x), gt.array(u))), expected)
    into_x, into_u = gt.grad(lambda x, u: (run(x, u) * weight).sum(), (0, 1))(gt.array(x), gt.array(u))
    # it is linear: the gradients say what any other values give
    other_x, other_u = (rng.integers(-9, 9, z.shape).astype(float) for z in (x, u))
    right = (np.asarray(run(gt.array(other_x), gt.array(other_u))) * weight).sum()
    assert float((into_x * other_x).sum() + (into_u * other_u).sum()) == right
    moved = gt.jvp(run, (x, u), (other_x, other_u))[1]
    assert float((moved * weight).sum()) == right


def test_products_at_repeated_places_have_second_and_third_derivatives():
    index = np.array([0, 1, 1, 0, 1, 0, 2])
    u = np.array([0.0, 2.0, 0.0, 0.0, 3.0, 5.0, 4.0])
    x = np.array([1.0, 2.0, 3.0])

    def dense(u):  # the same as products of what belongs to each place
        return sum(
            float(k + 1) * x[k] * gt.prod(gt.stack([u[n] for n in np.flatnonzero(index == k)])) for k in range(3)
        )

    def run(u):
        return (gt.array(x).at[index].multiply(u) * np.array([1.0, 2.0, 3.0])).sum()

    for transform in (gt.grad, gt.hessian, lambda f: gt.jacfwd(gt.hessian(f))):
        np.testing.assert_array_equal(
            np.asarray(transform(run)(gt.array(u))), np.asarray(transform(dense)(gt.array(u)))
        )


# places outside their axis

I = np.array([2, -1, 5, -6, 0, -5, 4, -7])  # noqa: E741 - of an axis with 5 places: 5, -6 and -7 are outside
NEAR = np.array([2, 4, 4, 0, 0, 0, 4, 0])
INSIDE = (I >= -5) & (I < 5)
WIDE = np.random.default_rng(3).normal(size=(3, 5))
U = np.random.default_rng(4).uniform(0.5, 2, 8)


def unknown(index):
    """The index as an operation's result, so that nothing is known of its range."""
    return gt.array(index) * 1


READS = [
    ("x[i]", lambda x, i: x[i], V, V[NEAR]),
    ("get", lambda x, i: x.at[i].get(indices_are_sorted=False, unique_indices=False), V, V[NEAR]),
    ("get clip", lambda x, i: x.at[i].get(mode="clip"), V, V[NEAR]),
    ("get fill", lambda x, i: x.at[i].get(mode="fill"), V, np.where(INSIDE, V[NEAR], np.nan)),
    ("get fill value", lambda x, i: x.at[i].get(mode="fill", fill_value=7), V, np.where(INSIDE, V[NEAR], 7)),
    ("last axis", lambda x, i: x[:, i], WIDE, WIDE[:, NEAR]),
    ("fill last axis", lambda x, i: x.at[1:, i].get(mode="fill"), WIDE, np.where(INSIDE, WIDE[1:, NEAR], np.nan)),
    ("two arrays", lambda x, i: x[i, i], WIDE.T[:, :3], WIDE.T[NEAR, np.array([2, 2, 2, 0, 0, 0, 2, 0])]),
    ("take", lambda x, i: gt.take(x, i), V, V[NEAR]),
    ("take axis", lambda x, i: gt.take(x, i, 1), WIDE, WIDE[:, NEAR]),
    ("take fill", lambda x, i: gt.take(x, i, 1, mode="fill"), WIDE, np.where(INSIDE, WIDE[:, NEAR], np.nan)),
    ("take wrap", lambda x, i: gt.take(x, i, mode="wrap"), V, V[I % 5]),
    ("along", lambda x, i: gt.take_along_axis(x, i[None], 1), WIDE, WIDE[:, NEAR]),
    ("along fill", lambda x, i: gt.take_along_axis(x, i[None], 1, mode="fill"), WIDE,
     np.where(INSIDE, WIDE[:, NEAR], np.nan)),
    ("along None", lambda x, i: gt.take_along_axis(x, i, None), V, V[NEAR]),
    ("embedding", lambda x, i: gt.nn.embedding(i, x), WIDE.T, WIDE.T[NEAR]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "f", "x", "expected"), READS, ids=[r[0] for r in READS])
def test_reading_outside(name, f, x, expected):
    for index in (unknown(I), gt.array(I), I):
        np.testing.assert_array_equal(np.asarray(f(gt.array(x), index)), expected)
    rows = gt.vmap(lambda k: f(gt.array(x), k))(unknown(np.stack([I, I])))
    np.testing.assert_array_equal(np.asarray(rows), np.stack([expected, expected]))
    weight = np.random.default_rng(5).normal(size=expected.shape)
    slope = gt.grad(lambda x: gt.sum(gt.numpy.nan_to_num(f(x, unknown(I))) * gt.array(weight)))(gt.array(x))
    step = np.random.default_rng(6).normal(size=x.shape)
    sides = [np.nan_to_num(np.asarray(f(gt.array(x + s * step), unknown(I)))) for s in (1, -1)]
    want = ((sides[0] - sides[1]) * weight).sum() / 2
    assert_close((np.asarray(slope) * step).sum(), want, scale=max(np.abs(side * weight).sum() for side in sides))


UPDATES = {
    "set": lambda a, i, u: a.__setitem__(i, u),
    "add": np.add.at,
    "subtract": np.subtract.at,
    "multiply": np.multiply.at,
    "divide": np.divide.at,
    "power": np.power.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}
PLACES = [  # distinct, so that it is known which value `set` takes
    ("vector", np.array([1, 7, -5, 4, -6]), lambda i: i, (5,)),
    ("one", np.array([9]), lambda i: i, (5,)),
    ("scalar inside", np.array(-2), lambda i: i, (5,)),
    ("scalar outside", np.array(5), lambda i: i, (5, 2)),
    ("second axis", np.array([1, 7, -5, 4, -6]), lambda i: (slice(None), i), (3, 5)),
    ("backwards", np.array([1, 7, -5, 4, -6]), lambda i: (slice(None, None, -1), i), (3, 5)),
    ("two arrays", np.array([[1, 7, 2, -1, -4], [0, 1, 9, -3, 2]]), lambda i: (i[0], i[1]), (4, 3)),
    ("crossed", np.array([[1, 7], [0, -4]]), lambda i: (i[0][:, None], slice(None), i[1]), (3, 2, 3)),
    ("with an integer", np.array([1, 7, -4]), lambda i: (i, 1), (4, 3)),
]


def sifted(index, shape):
    """The same index in NumPy with the places outside left out, and which of the values it takes."""
    parts = index if isinstance(index, tuple) else (index,)
    arrays = [np.asarray(p) for p in parts if not isinstance(p, slice)]
    axes = [k for k, p in enumerate(parts) if not isinstance(p, slice)]
    arrays = np.broadcast_arrays(*arrays)
    inside = np.all([(a >= -shape[k]) & (a < shape[k]) for a, k in zip(arrays, axes, strict=True)], axis=0)
    return dict(zip(axes, arrays, strict=True)), parts, inside


@pytest.mark.parametrize(("label", "index", "at", "shape"), PLACES, ids=[p[0] for p in PLACES])
@pytest.mark.parametrize("name", UPDATES)
def test_updating_outside(name, label, index, at, shape):
    host = np.random.default_rng(0).uniform(0.5, 2, shape)
    arrays, parts, inside = sifted(at(index), shape)
    expected = host.copy()
    target = gt.array(host)[at(gt.array(index))].shape
    values = np.random.default_rng(1).uniform(0.5, 2, target)
    for place in np.ndindex(inside.shape):
        if inside[place]:
            one = tuple(arrays[k][place] if k in arrays else p for k, p in enumerate(parts))
            before = sum(1 for p in parts[: min(arrays)] if isinstance(p, slice)) if contiguous(arrays) else 0
            UPDATES[name](expected, one, values[(slice(None),) * before + place])
    update = lambda x, i, u: getattr(x.at[at(i)], name)(u)  # noqa: E731
    got = update(gt.array(host), unknown(index), gt.array(values))
    assert_close(got, expected)
    if label in ("vector", "two arrays", "scalar outside"):
        rows = gt.vmap(update)(gt.array(np.stack([host, host])), unknown(np.stack([index, index])),
                               gt.array(np.stack([values, values])))  # fmt: skip
        assert_close(rows, np.stack([expected, expected]))
        weight = gt.array(np.random.default_rng(2).normal(size=shape))
        f = lambda x, u: (update(x, unknown(index), u) * weight).sum()  # noqa: E731
        slopes = gt.grad(f, argnums=(0, 1))(gt.array(host), gt.array(values))
        for k, slope in enumerate(slopes):
            arguments = [host, values]
            step = np.random.default_rng(3).normal(size=arguments[k].shape) * 1e-6
            ends = [
                float(f(*(gt.array(a + s * step if j == k else a) for j, a in enumerate(arguments)))) for s in (1, -1)
            ]
            np.testing.assert_allclose((np.asarray(slope) * step).sum(), (ends[0] - ends[1]) / 2, atol=1e-10)


def contiguous(arrays):
    axes = sorted(arrays)
    return axes == list(range(axes[0], axes[-1] + 1))


def test_updates_by_mode():
    x, i = gt.array([1.0, 2.0, 3.0]), unknown(np.array([0, 5]))
    for mode, expected in ((None, [11, 2, 3]), ("drop", [11, 2, 3]), ("fill", [11, 2, 3]), ("clip", [11, 2, 13])):
        assert x.at[i].add(10.0, mode=mode).tolist() == expected
        assert x.at[i].set(x[i] + 10.0, mode=mode).tolist() == expected
        assert x.at[i].apply(lambda v: v + 10, mode=mode).tolist() == expected
    inside = unknown(np.array([0, -1]))
    for mode in (None, "promise_in_bounds"):
        assert x.at[inside].multiply(2.0, mode=mode, unique_indices=True).tolist() == [2, 2, 6]
        assert x.at[inside].get(mode=mode).tolist() == [1, 3]
    assert np.signbit(np.asarray(gt.array([-0.0]).at[unknown(np.array([3]))].add(1.0)))
    assert x.at[1:].apply(gt.square).tolist() == [1, 4, 9]
    assert x.at[gt.array([True, False, True])].divide(2.0).tolist() == [0.5, 2, 1.5]
    assert gt.array([2, 3]).at[unknown(np.array([1, 7]))].power(3).tolist() == [2, 27]
    assert gt.array([True, False]).at[unknown(np.array([1, 7]))].add(True).tolist() == [True, True]


REPEATED = [
    (np.array([0, 0, 2]), None),
    (np.array([[0, 1], [1, 1]]), None),
    (np.array([1, 1, 9, 9, -9]), None),
    (np.array([1, 1, 9, 9, -9]), "clip"),
    ((np.array([0, 0, 2]), np.array([1, 1, 1])), None),
    ((1, np.array([2, 2, -1])), None),
    ((slice(None, None, -2), np.array([0, 0])), None),
    ((np.array([True, False, True]), np.array([1, 1])), None),
    (np.array([], dtype=int), None),
    (np.array([1]), None),
]


def times_applied(shape, index, mode):
    """How often each element of an array is named."""
    if isinstance(index, np.ndarray):
        near = np.where(index < 0, index + shape[0], index)
        index = near.clip(0, shape[0] - 1) if mode == "clip" else near[(near >= 0) & (near < shape[0])]
    times = np.zeros(shape, int)
    np.add.at(times, index, 1)
    return times


@pytest.mark.parametrize(("index", "mode"), REPEATED)
def test_apply_at_repeated_places(index, mode):
    host = np.arange(1.0, 10.0).reshape(3, 3)
    times = times_applied(host.shape, index, mode)
    expected = 3.0**times * (host + 0.5) - 0.5  # of v * 3 + 1, applied so often

    def run(x, index=index):
        return x.at[index].apply(lambda v: v * 3 + 1, mode=mode)

    given = index if isinstance(index, tuple) else (index,)
    pending = tuple(unknown(i) if isinstance(i, np.ndarray) and i.dtype == int else i for i in given)
    with gt.config(deterministic=True):  # compiling takes seconds; the next test does so
        unseen, slope = gt.jvp(lambda x: run(x, pending), (host,), (np.ones((3, 3)),))
        for got, right in (
            (run(gt.array(host)), expected),
            (unseen, expected),
            (slope, 3.0**times),
            (gt.grad(lambda x: run(x).sum())(host), 3.0**times),
        ):
            np.testing.assert_array_equal(np.asarray(got), right)


def test_apply_at_places_without_values():
    def apply(x, i, **options):
        return x.at[i].apply(lambda v: v * v, **options)

    x, i = gt.array([2.0, 3.0]), gt.array([[0, 0], [1, 0]])
    assert gt.jit(apply)(x, i).tolist() == [256, 9]
    assert gt.vmap(apply, (None, 0))(x, i).tolist() == [[16, 3], [4, 9]]
    assert gt.array([3], dtype="uint8").at[i * 0].apply(lambda v: v * 3).tolist() == [243]
    with pytest.raises(gt.ArgumentError, match="forward mode"):
        gt.jit(gt.grad(lambda x, i: apply(x, i).sum()))(x, i[0])
    slope = gt.jit(gt.grad(lambda x, i: apply(x, i, unique_indices=True).sum()))(x, i[1])
    assert slope.tolist() == [4, 6]
    slope = gt.grad(lambda w: x.at[[0, 0, 0]].apply(lambda v: v * w).sum())(gt.array(2.0))
    assert slope.tolist() == 2 * 3 * 2**2


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("int8", -128), ("int64", -(2**63)), ("uint8", 255), ("bool", True), ("float32", np.nan)],
)
def test_what_fills(dtype, fill):
    x = gt.zeros(2, dtype=dtype)
    for got in (x.at[unknown(np.array([7]))].get(mode="fill"), gt.take(x, gt.array([7]), mode="fill")):
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(got), [fill])
    assert np.isnan(np.asarray(gt.zeros((0, 2)).at[gt.array([1])].get(mode="fill"))).tolist() == [[True, True]]


def test_interpreted_and_compiled_alike():
    def f(x, i, u):
        return x[i] * 2, x.at[i].set(u), gt.take_along_axis(x, i, 0), x.at[i[2]].set(u[0])

    index = np.array([2, -1, 5, -6])
    arguments = gt.array(V), gt.array(index), gt.array(U[:4])
    for got, expected in zip(gt.jit(f)(*arguments), f(*arguments), strict=True):
        assert_close(got, expected)


@pytest.mark.parametrize("places", [(40,), (5, 8), (2, 4, 5), ()])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_rows_chosen_and_added_at_many_places(places, dtype):
    """Many and wide rows are read and added by other kernels than few: from either end, and in any layout."""
    rng = np.random.default_rng(3)
    x = rng.integers(-9, 9, (7, 300, 2)).astype(dtype)
    index = rng.integers(-7, 7, places)
    u = rng.integers(-9, 9, (*places, 300, 2)).astype(dtype)
    turned = np.ascontiguousarray(x.transpose(1, 2, 0))
    for given_ in (gt.array(x), gt.transpose(gt.array(turned), (2, 0, 1))):
        np.testing.assert_array_equal(np.asarray(given_[gt.array(index)]), x[index])
        np.testing.assert_array_equal(np.asarray(gt.lift(lambda a, i: a[i])(given_, gt.array(index))), x[index])
        if dtype is np.bool_:
            continue
        expected = x.copy()
        np.add.at(expected, index, u)
        np.testing.assert_array_equal(np.asarray(given_.at[gt.array(index)].add(gt.array(u))), expected)
        by_torch = gt.lift(lambda a, i, u: a.index_put((i,), u, accumulate=True))
        np.testing.assert_array_equal(np.asarray(by_torch(given_, gt.array(index), gt.array(u))), expected)


def test_rows_without_elements_are_added():
    x, index = gt.zeros((5, 0)), gt.array([[0, 3], [4, -1]])
    assert x.at[index].add(gt.zeros((2, 2, 0))).numpy().shape == (5, 0)


@pytest.mark.parametrize("outside", [7, -8])
def test_rows_outside_are_errors_of_torch(outside):
    x, index = gt.ones((7, 300)), gt.array([0] * 50 + [outside])
    with pytest.raises(gt.ExecutionError, match=f"index {outside} is out of bounds"):
        gt.eval(gt.lift(lambda a, i: a[i])(x, index))
    with pytest.raises(gt.ExecutionError, match="out of"):
        gt.eval(gt.lift(lambda a, i: a.index_put((i,), torch.ones(51, 300), accumulate=True))(x, index))
    no_place = gt.array(np.zeros(0, np.int64))
    added = gt.lift(lambda a, i: a.index_put((i,), torch.ones(0, 300), accumulate=True))(x, no_place)
    np.testing.assert_array_equal(np.asarray(added), np.ones((7, 300)))


@pytest.mark.parametrize(
    ("index", "checked"),
    [
        (lambda: gt.arange(5), 0),
        (lambda: gt.arange(4, -1, -1)[:, None], 0),
        (lambda: gt.argsort(gt.array(V)), 0),
        (lambda: gt.argmax(gt.array(WIDE), axis=1), 0),
        (lambda: gt.argsort(gt.array(V))[gt.arange(2)], 0),
        (lambda: np.array([0, -5, 4]), 0),
        (lambda: [1, 2], 0),
        (lambda: gt.arange(6), 1),
        (lambda: gt.arange(-6, 0), 1),
        (lambda: np.array([0, 5]), 1),
        (lambda: gt.array(I), 1),
    ],
)
def test_only_what_may_be_outside_is_checked(index, checked):
    graph = gt.make_graph(lambda x: x[index()])(gt.array(V))
    assert sum(node.op.name == "clamp_index" for node in graph.nodes) == checked


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: x.at[gt.array([0])].set(1.0, mode="wild"), gt.ArgumentError, "mode"),
        (lambda x: x.at[gt.array([0])].get(mode="raise"), gt.ArgumentError, "mode"),
        (lambda x: gt.take(x, gt.array([0]), mode="wild"), gt.ArgumentError, "mode"),
        (lambda x: gt.take_along_axis(x, gt.array([0]), 0, mode="wild"), gt.ArgumentError, "mode"),
        (lambda x: x.at[1:].apply(gt.sum), gt.ShapeError, "elementwise"),
        (lambda x: gt.arange(3).at[0].divide(2), gt.DtypeError, "floating"),
        (lambda x: x[:0][gt.array([0])], gt.BoundsError, "elements"),
        (lambda x: x[9], gt.BoundsError, "out of range"),
        (lambda x: gt.eval(gt.take(x, gt.array([9]), mode="raise")), gt.ExecutionError, "out of"),
    ],
)
def test_errors_of_modes(call, error, match):
    with pytest.raises(error, match=match):
        call(gt.array(V))


def test_an_update_is_one_operation():
    """Whatever is known of the places."""
    index, u = gt.array([0, 9]), gt.array(np.array([1.0, 2.0]))
    for name in ("set", "add"):
        for mode in (None, "promise_in_bounds"):
            graph = gt.make_graph(lambda x, i, u: getattr(x.at[i], name)(u, mode=mode))(gt.array(V), index, u)  # noqa: B023
            assert len(graph.nodes) == 1, graph


@pytest.mark.parametrize(
    ("usual", "other", "error"),
    [
        (lambda x: x[1], lambda x: x[1.0], (ArgumentError, DtypeError)),
        (lambda x: x[0:2], lambda x: x[0:2.0], ArgumentError),
        (lambda x: x[:, 1], lambda x: x[:, 5], BoundsError),
        (lambda x: x.reshape((3, 2)), lambda x: x.reshape((3.0, 2)), ArgumentError),
        (lambda x: gt.permute_dims(x, (1, 0)), lambda x: gt.permute_dims(x, (1.0, 0)), ArgumentError),
    ],
)
def test_what_equals_a_usual_index_is_checked_all_the_same(usual, other, error):
    """Views are remembered by what was given: 1, 1.0 and True are equal and mean different things."""
    x = gt.arange(6.0).reshape(2, 3)
    for _ in range(2):
        usual(x)
    with pytest.raises(error):
        other(x)
    assert x[1].shape == (3,) and x[True].shape == (1, 2, 3)


def test_remembered_views_agree_with_numpy():
    host = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    x = gt.array(host)
    for index in [1, -1, ..., None, (), (0, 1), (..., 1), (None, 1), np.s_[:, 1], np.s_[::-1, ..., 1:3], np.s_[:, 2:0],
                  np.s_[1:, None, ::2], np.s_[..., ::-2], (slice(0, 1), 0), np.s_[0:1, 0, True:]]:  # fmt: skip
        for _ in range(2):
            np.testing.assert_array_equal(np.asarray(x[index]), host[index], err_msg=str(index))


ROWS = [
    2, -1, np.s_[1:3], np.s_[-2:], np.s_[0:1], (2, ...), (None, 2), (2, None), np.s_[2, :, None], np.s_[1:3, None],
    np.s_[None, 1:2], np.s_[3:, :],
]  # fmt: skip


@pytest.mark.parametrize("index", ROWS, ids=str)
def test_rows_of_a_value_are_views_of_it(index):
    x = gt.eval(gt.arange(24.0).reshape(4, 3, 2))
    rows = x[index]
    np.testing.assert_array_equal(np.asarray(rows), np.asarray(x)[index])
    base = x.to_torch(copy=False)
    assert rows.to_torch(copy=False).untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


@pytest.mark.slow
def test_batches_that_python_chooses_are_one_program():
    data = gt.eval(gt.linspace(-1, 1, 6 * 8 * 4).reshape(6 * 8, 4))
    params = gt.eval(gt.ones((4, 3)) * 0.5)

    def step(params, k):
        batch = data[8 * k : 8 * (k + 1)]
        value, gradient = gt.value_and_grad(lambda p: (gt.tanh(batch @ p) ** 2 + data[k].sum()).mean())(params)
        return params - 0.1 * gradient, value

    def run(seen):
        now = params
        with gt.config(auto_compile=False):
            for k in range(6):
                now, value = step(now, k)
                float(value)
                seen.append(len(list(gt.stats())))
        return now

    seen = []
    taught = run(seen)
    assert seen[1] == seen[-1]  # the first step begins with other parameters
    expected = np.asarray(params).astype(np.float64)
    for k in range(6):
        batch = np.asarray(data)[8 * k : 8 * (k + 1)]
        y = np.tanh(batch @ expected)
        expected = expected - 0.1 * batch.T @ (2 * y * (1 - y**2) / y.size)
    assert_close(taught, expected, check_dtype=False)


def test_gradients_follow_rows_of_what_they_are_taken_by():
    x = gt.eval(gt.arange(6.0).reshape(3, 2) + 1)

    def looks(x):
        y = gt.eval(x * 2)  # a value, which the gradient follows
        return (y[0] * y[1]).sum() + (x[2] * x[1]).sum()

    def does_not(x):
        y = x * 2
        return (y[0] * y[1]).sum() + (x[2] * x[1]).sum()

    np.testing.assert_array_equal(np.asarray(gt.grad(looks)(x)), np.asarray(gt.grad(does_not)(x)))
    w = gt.eval(gt.ones(2) * 3)
    np.testing.assert_array_equal(np.asarray(gt.grad(lambda w: (w * x[1]).sum())(w)), [3, 4])
    np.testing.assert_array_equal(np.asarray(gt.jit(lambda: x[1] + x[0])()), [4, 6])


@pytest.mark.slow
def test_rows_keep_their_values_when_the_array_is_given_away_or_updated_in_place():
    x = gt.eval(gt.ones((64, 256)) * 2)
    rows = x[1:3]
    with gt.config(auto_compile=False):
        gt.eval(gt.jit(lambda x: x * 0 - 1, donate_argnums=0)(x))
    assert np.all(np.asarray(rows) == 2)
    params = gt.eval(gt.linspace(-1, 1, 128 * 256).reshape(128, 256))
    optimizer = gt.optim.adam(0.1)
    state = optimizer.init(params)
    with gt.config(auto_compile=False):
        for _ in range(3):
            before, rows = np.array(params[:5]), params[0:5]
            value, gradient = gt.value_and_grad(lambda p: (p * p).sum())(params)
            updates, state = optimizer.update(gradient, state, params)
            params = gt.optim.apply_updates(params, updates)
            gt.eval(params, state, value)
            np.testing.assert_array_equal(np.asarray(rows), before)
            assert not np.array_equal(np.asarray(params[:5]), before)


BOUND = st.none() | st.tuples(st.sampled_from(["int32", "int64", "uint8", None]), st.integers(0, 5))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(BOUND, BOUND, st.sampled_from([None, 1, 2, -1]), st.booleans()), min_size=2, max_size=6))
def test_slices_whose_bounds_are_arrays_follow_the_values_of_each_call(calls):
    x = np.arange(30.0).reshape(6, 5)
    for low, high, step, second in calls:
        bounds = [p and p[1] for p in (low, high)]
        given = [p and (p[1] if p[0] is None else gt.array(p[1] + 1, dtype=p[0]) - 1) for p in (low, high)]
        ours, theirs = slice(*given, step), slice(*bounds, step)
        index, expected = ((slice(1, 4), ours), (slice(1, 4), theirs)) if second else (ours, theirs)
        y = gt.array(x)
        assert np.array_equal(y[index], x[expected])
        updated = x.copy()
        updated[expected] = -1.0
        assert np.array_equal(y.at[index].set(-1.0), updated)
        assert np.array_equal(gt.grad(lambda y, index=index: y[index].sum())(y), np.where(updated == -1.0, 1.0, 0.0))


@pytest.mark.parametrize("index", [-2, [-2, 1], (slice(None), -1)])
def test_negative_places_that_do_not_count_break_a_promise(index):
    x = gt.ones((2, 3)) if isinstance(index, tuple) else gt.arange(5.0)
    promise = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
    kept = x.at[index].set(9.0, mode="drop", wrap_negative_indices=False).tolist()
    assert x.at[index].set(9.0, **promise).tolist() == kept
    assert x.at[index].apply(lambda y: y * 0 + 9, **promise).tolist() == kept
    assert gt.jit(lambda y: y.at[index].set(9.0, **promise))(x).tolist() == kept


@pytest.mark.parametrize("wrap", [lambda f: f, gt.jit])
def test_tuples_within_an_index_are_arrays(wrap):
    x = np.arange(24).reshape(2, 3, 4)
    index = ((0, 1), (2, -1))
    np.testing.assert_array_equal(wrap(lambda x, i: x[i])(x, index), x[index])
    want = x.copy()
    want[index] = 0
    np.testing.assert_array_equal(wrap(lambda x, i: gt.array(x).at[i].set(0))(x, index), want)
    np.testing.assert_array_equal(gt.array(x)[((0, 1), (1, 0)), 1:], x[((0, 1), (1, 0)), 1:])
