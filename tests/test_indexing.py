"""Indexing and functional updates are NumPy's; composites of the array functions too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gtrace as gt


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
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-12)


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
