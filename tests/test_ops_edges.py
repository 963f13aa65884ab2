"""Array functions in their corners: no axes, nothing to reduce, ties, signs, infinities, and wrong arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
import gtrace.numpy
from gtrace.core.ops.draw_functions import nextafter
from gtrace.core.ops.shape import sum_to
from gtrace.core.trace.bind import bind
from gtrace.testing import assert_close


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4))
V = RNG.normal(size=5)
Z = np.array([1.0, 0.0, -2.0, 3.0])
SIGNS = np.array([-7.0, -2.5, -0.5, 0.5, 2.5, 7.0])
N = np.arange(6).reshape(2, 3)

# (name, function of the namespace and the array, the array)
SAME = [
    # no axes are none, not all
    *[
        (f"{name} over no axes", lambda m, x, name=name: getattr(m, name)(x, axis=()), X)
        for name in ("sum", "mean", "max", "min", "prod", "any", "all", "var", "std")
    ],
    *[
        (f"{name} over two axes", lambda m, x, name=name: getattr(m, name)(x, axis=(0, -1), keepdims=True), X)
        for name in ("sum", "mean", "max", "min", "prod", "any", "all", "var", "std")
    ],
    *[
        (f"{name} of nothing", lambda m, x, name=name: getattr(m, name)(x[:, :0], axis=1), X)
        for name in ("sum", "prod", "any", "all")
    ],
    *[
        (f"{name} of a number", lambda m, x, name=name: getattr(m, name)(x[0]), V)
        for name in ("sum", "mean", "max", "min", "prod", "any", "all", "var", "std", "argmax", "argmin", "cumsum")
    ],
    ("sums of integers", lambda m, x: m.sum(x, axis=()), N),
    ("argmax keeps dims", lambda m, x: m.argmax(x, axis=1, keepdims=True), X),
    ("argmax, first of ties", lambda m, x: m.argmax(x * 0, axis=1), X),
    ("argmin of all", lambda m, x: m.argmin(x), X),
    ("argmax with NaN", lambda m, x: m.argmax(m.where(x > 0, x, np.nan)), V),
    ("count", lambda m, x: m.count_nonzero(x, axis=0), Z),
    ("cumsum backwards", lambda m, x: m.cumsum(x, axis=-2), X),
    ("max with NaN", lambda m, x: m.max(m.where(x > 0, x, np.nan)), V),
    # rounding and signs
    ("round places", lambda m, x: m.round(x, 1), V),
    ("round tens", lambda m, x: m.round(x * 1000, -2), V),
    ("round integers", lambda m, x: m.round(x, 2), N),
    ("round integer tens", lambda m, x: m.round(x * 7, -1), N),
    ("halves", lambda m, x: m.round(x), SIGNS),
    ("sign", lambda m, x: m.sign(m.where(x == 0, np.nan, x)), Z),
    *[
        (f"{name} by {d}", lambda m, x, name=name, d=d: getattr(m, name)(x, d), SIGNS)
        for name in ("remainder", "floor_divide")
        for d in (2.0, -2.0, 0.3, float("inf"), -float("inf"))
    ],
    *[
        (f"{d} {name}", lambda m, x, name=name, d=d: getattr(m, name)(d, x), SIGNS)
        for name in ("remainder", "floor_divide")
        for d in (2.0, -5.0)
    ],
    *[
        (f"integer {name} by {d}", lambda m, x, name=name, d=d: getattr(m, name)(x - 3, d), N)
        for name in ("remainder", "floor_divide")
        for d in (2, -4)
    ],
    # powers
    *[(f"power {y}", lambda m, x, y=y: m.power(x, y), np.abs(V)) for y in (0, 1, 2, 3, -1, -2, 0.0, 0.5, 2.0, -1.5)],
    ("powers of negatives", lambda m, x: x**2 + x**3 + x**-1 + x**2.0, V),
    ("power of arrays", lambda m, x: m.power(abs(x), x), V),
    ("powers of two", lambda m, x: 2.0**x + 2**x, V),
    ("integer powers", lambda m, x: x**3 + 2**x, N),
    ("truth", lambda m, x: (x > 0) ** 2 + (x > 0) * 3, V),
    # moving
    ("roll far", lambda m, x: m.roll(x, 7, axis=1), X),
    ("roll twice", lambda m, x: m.roll(x, (1, 2), axis=(0, 0)), X),
    ("roll one axis by two", lambda m, x: m.roll(x, (1, 2), axis=0), X),
    ("roll two axes", lambda m, x: m.roll(x, 1, axis=(0, 2)), X),
    ("moveaxis", lambda m, x: m.moveaxis(x, (0, 1), (-1, -2)), X),
    ("swapaxes", lambda m, x: m.swapaxes(x, 0, -1), X),
    ("transpose", lambda m, x: m.transpose(x), X),
    ("transpose by axes", lambda m, x: m.transpose(x, (-1, 0, 1)), X),
    ("flip all", lambda m, x: m.flip(x), X),
    ("flip two", lambda m, x: m.flip(x, (0, -1)), X),
    ("split evenly", lambda m, x: m.concatenate(m.split(x, np.int64(2), axis=2)[::-1]), X),
    ("split outside", lambda m, x: m.split(x, [1, 9, -1], axis=2)[0], X),
    ("split before", lambda m, x: m.split(x, [-2], axis=2)[1], X),
    ("concat flat", lambda m, x: m.concatenate([x, x[0]], axis=None), X),
    ("stack last", lambda m, x: m.stack([x, -x], axis=-1), X),
    ("expand", lambda m, x: m.expand_dims(x, (0, -1)), X),
    ("squeeze", lambda m, x: m.squeeze(x[:1, :, :1], axis=(0, 2)), X),
    ("reshape empty", lambda m, x: m.reshape(x[:0], (3, -1)), X),
    ("ravel empty", lambda m, x: m.ravel(x[:0]), X),
    ("tile more axes", lambda m, x: m.tile(x, (2, 1, 1, 2)), X),
    ("tile none", lambda m, x: m.tile(x, (0, 1)), X),
    ("tile one", lambda m, x: m.tile(x, 3), V),
    ("repeat flat", lambda m, x: m.repeat(x, 2), X),
    ("repeat none", lambda m, x: m.repeat(x, 0, axis=0), X),
    *[
        (f"pad {mode}", lambda m, x, mode=mode: m.pad(x, ((1, 0), (2, 3), (0, 0)), mode=mode), X)
        for mode in ("constant", "edge", "reflect", "symmetric", "wrap")
    ],
    ("pad far", lambda m, x: m.pad(x, 11, mode="reflect"), V),
    ("pad pair", lambda m, x: m.pad(x, (1, 2), constant_values=4.5), X),
    ("tril", lambda m, x: m.tril(x, -1) + m.triu(x, 2), X),
    # choosing
    ("take along from the end", lambda m, x: m.take_along_axis(x, m.asarray([[[-1, 0]], [[1, -4]]]), axis=2), X),
    ("take flat", lambda m, x: m.take(x, m.asarray([[0, -1]])), X),
    ("take", lambda m, x: m.take(x, m.asarray([1, -1, 0]), axis=1), X),
    ("clip below", lambda m, x: m.clip(x, 0.0, None), V),
    ("clip by array", lambda m, x: m.clip(x, x[::-1], 0.5), V),
    ("where", lambda m, x: m.where(x > 0, x, 0) + m.where(x > 0, 1.0, -1.0), V),
    # products
    ("dot", lambda m, x: m.dot(x, m.swapaxes(x, 1, 2)), X),
    ("dot numbers", lambda m, x: m.dot(x, 3.0), X),
    ("inner", lambda m, x: m.dot(x, x), V),
    ("outer", lambda m, x: m.outer(x, x), X[0]),
    ("tensordot 0", lambda m, x: m.tensordot(x, x, axes=0), V),
    ("tensordot all", lambda m, x: m.tensordot(x, x, axes=3), X),
    ("tensordot axes", lambda m, x: m.tensordot(x, x, axes=([0, 2], [0, 2])), X),
    ("tensordot count", lambda m, x: m.tensordot(x, x.T, axes=np.int64(1)), X),
    *[
        (f"einsum {e}", lambda m, x, e=e: m.einsum(e, x, x), X)
        for e in ("ijk,ijk->", "ijk,ijl->kl", "ijk,abc->", "ijk,ijk", "...k,...k->...", "i...,i...->...", "ijk,ijl->il")
    ],
    (
        "einsum diagonal",
        lambda m, x: m.einsum("ijij->ij", m.reshape(x, (2, 3, 4))[:, :, None, None, 0] * m.ones((1, 1, 2, 3))),
        X,
    ),
    ("einsum broadcast", lambda m, x: m.einsum("ij,ij->ij", x[0], x[0][:1]), X),
    ("einsum order", lambda m, x: m.einsum("kij", x), X),
    ("matmul of integers", lambda m, x: x @ x.T, N),
    # making
    ("linspace without end", lambda m, x: x * m.linspace(-1, 2, 5, endpoint=False), V),
    ("linspace of one", lambda m, x: x * m.linspace(3, 4, 1), V),
    ("linspace of integers", lambda m, x: x + m.linspace(0, 10, 3, dtype=int), N),
    ("arange down", lambda m, x: m.arange(5, -2, -3) + 0 * N[0, 0], N),
    ("arange of fractions", lambda m, x: m.arange(0.0, 1.0, 0.25)[:4] + 0 * x[0, 0], N),
    ("arange of nothing", lambda m, x: m.arange(3, 1), N),
    ("eye", lambda m, x: m.eye(3, 4, -1) @ x[0].T, X),
    ("full", lambda m, x: m.full((2, 1), 3) + x[0, 0], N),
    ("full of", lambda m, x: m.full_like(x, 2.5), X),
]


@pytest.mark.parametrize(("name", "f", "x"), SAME, ids=[case[0] for case in SAME])
def test_as_numpy(name, f, x):
    with np.errstate(all="ignore"):
        expected = np.asarray(f(np, x))
    got = f(gt, gt.array(x))
    assert got.shape == expected.shape
    assert got.dtype.is_floating_point == (expected.dtype.kind == "f")
    np.testing.assert_allclose(np.asarray(got, dtype=np.float64), expected.astype(np.float64), rtol=1e-6, atol=1e-7)


# no slope: the square root at the variance 0 of one element, NaN, steps
SMOOTH = [
    case for case in SAME if case[2].dtype.kind == "f" and case[2] is not SIGNS and case[2] is not Z
    and not case[0].startswith(("std over no axes", "std of a number", "max with NaN", "round", "any", "all", "arg"))
]  # fmt: skip


@pytest.mark.parametrize(("name", "f", "x"), SMOOTH, ids=[case[0] for case in SMOOTH])
def test_slopes_along_a_direction(name, f, x):
    y = f(gt, gt.array(x))
    rng = np.random.default_rng(1)
    weight, along = gt.array(rng.normal(size=y.shape)), rng.normal(size=x.shape)

    def total(v):
        return gt.sum(f(gt, v) * weight)

    def first(v):
        return gt.sum(gt.grad(total)(v) * gt.array(along))

    step = 1e-6
    for function in (total, first):
        slope = np.sum(np.asarray(gt.grad(function)(gt.array(x))) * along)
        ends = [float(function(gt.array(x + s * step * along))) for s in (1, -1)]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-4, atol=1e-4)


def test_variances_of_few_elements():
    x = gt.array([1.0, 3.0])
    assert [float(gt.var(x, correction=c)) for c in (0, 1, 2, 3, 0.5)] == [
        1.0,
        2.0,
        np.inf,
        np.inf,
        pytest.approx(4 / 3),
    ]
    assert np.isnan(float(gt.var(x[:1], correction=1))) and np.isnan(float(gt.std(x[:0])))


FAR, STEP = [-np.inf, -1e30, -2e4, 2e4, 1e30, np.inf], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def slope_of(f):
    return gt.grad(lambda x: gt.sum(f(x)))


# derivatives in corners: (name, function, point, derivative of the sum)
SLOPES = [
    ("x ** 0 at 0", lambda x: x**0, [0.0, np.inf, -1.0], [0.0, 0.0, 0.0]),
    ("x ** 0.0 at 0", lambda x: x**0.0, [0.0, 2.0], [0.0, 0.0]),
    ("x ** array of 0", lambda x: x ** gt.zeros(2), [0.0, 2.0], [0.0, 0.0]),
    ("x ** 1 at 0", lambda x: x ** gt.ones(2), [0.0, -2.0], [1.0, 1.0]),
    ("x ** 2.0 of negatives", lambda x: x**2.0, [-3.0, 0.0], [-6.0, 0.0]),
    ("0 ** x", lambda x: 0.0**x, [1.0, 2.0], [0.0, 0.0]),
    ("2 ** x", lambda x: 2.0**x, [0.0, 1.0], [np.log(2), 2 * np.log(2)]),
    ("array of 0 ** x", lambda x: gt.zeros(2) ** x, [1.0, 2.0], [0.0, 0.0]),
    ("maximum at a tie", lambda x: gt.maximum(x, 1.0), [0.0, 1.0, 2.0], [0.0, 0.5, 1.0]),
    ("minimum at a tie", lambda x: gt.minimum(x, 1.0), [0.0, 1.0, 2.0], [1.0, 0.5, 0.0]),
    ("clip at its bounds", lambda x: gt.clip(x, 0.0, 1.0), [-1.0, 0.0, 0.5, 1.0, 2.0], [0.0, 0.5, 1.0, 0.5, 0.0]),
    ("max of ties", gt.max, [1.0, 3.0, 3.0], [0.0, 0.5, 0.5]),
    ("abs at 0", gt.abs, [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]),
    ("relu at 0", gt.relu, [-2.0, 0.0, 2.0], [0.0, 0.0, 1.0]),
    ("prod with one zero", gt.prod, [2.0, 0.0, 3.0], [0.0, 6.0, 0.0]),
    ("prod with two zeros", gt.prod, [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]),
    ("remainder", lambda x: x % 3.0, [-4.0, 4.0], [1.0, 1.0]),
    ("guarded log", lambda x: gt.where(x > 0, gt.log(gt.where(x > 0, x, 1.0)), 0.0), [-1.0, 0.0, 2.0], [0.0, 0.0, 0.5]),
    ("softplus far out", gt.softplus, [-1000.0, 0.0, 1000.0], [0.0, 0.5, 1.0]),
    ("gelu far out", gt.gelu, FAR, STEP),
    ("gelu without tanh far out", lambda x: gt.gelu(x, approximate=False), FAR, STEP),
    ("silu far out", gt.silu, FAR, STEP),
    ("slope of gelu far out", slope_of(gt.gelu), FAR, [0.0] * 6),
    ("slope of gelu without tanh far out", slope_of(lambda x: gt.gelu(x, approximate=False)), FAR, [0.0] * 6),
    ("slope of silu far out", slope_of(gt.silu), FAR, [0.0] * 6),
    ("logsumexp of nothing", gt.logsumexp, [-np.inf, -np.inf], [np.nan, np.nan]),  # as in JAX
    ("logsumexp far out", gt.logsumexp, [-1000.0, 1000.0], [0.0, 1.0]),
    ("logsumexp of infinity", gt.logsumexp, [np.inf, 1.0], [np.nan, 0.0]),  # as in JAX
    ("sum over no axes", lambda x: gt.sum(x, axis=()) * x, [2.0, 3.0], [4.0, 6.0]),
    ("taken twice", lambda x: gt.take_along_axis(x, gt.array([-1, 1, 0]), axis=0), [2.0, 3.0], [1.0, 2.0]),
    ("repeated", lambda x: gt.repeat(x, gt.array([2, 0])), [2.0, 3.0], [2.0, 0.0]),
    ("padded around", lambda x: gt.pad(x, 1, mode="wrap"), [2.0, 3.0], [2.0, 2.0]),
]


@pytest.mark.parametrize(("name", "f", "point", "slope"), SLOPES, ids=[case[0] for case in SLOPES])
def test_derivatives_in_corners(name, f, point, slope):
    assert_close(slope_of(f)(gt.array(point)), slope)


@pytest.mark.parametrize("approximate", [True, False])
@pytest.mark.parametrize("corner", [*FAR, np.nan, 39.0, -39.0])
def test_slopes_of_gelu_of_large_arrays_with_a_corner(approximate, corner):
    """The slopes of large arrays are those of their elements one by one."""
    x = np.linspace(-9, 9, 70_000, dtype=np.float32)
    x[12_345] = corner
    slope = slope_of(lambda x: gt.gelu(x, approximate=approximate))
    got = slope(gt.array(x)).numpy()
    assert_close(got[12_345], slope(gt.array(x[12_345:12_346])).numpy()[0])
    np.testing.assert_allclose(got[:9000], slope(gt.array(x[:9000])), rtol=1e-5, atol=1e-7)


def test_logsumexp_of_nothing_is_the_logarithm_of_zero():
    rows = gt.array([[-np.inf, -np.inf], [-np.inf, 1.0]])
    assert gt.logsumexp(rows, axis=1).tolist() == [-np.inf, 1.0]


def test_repeated_derivatives_of_powers_end_at_zero():
    for y, expected in ((2, (0.0, 2.0, 0.0, 0.0)), (3, (0.0, 0.0, 6.0, 0.0)), (2.0, (0.0, 2.0, 0.0, 0.0))):
        f = lambda x, y=y: x**y  # noqa: E731
        for value in expected:
            f = gt.grad(f)
            assert float(f(0.0)) == value


WRONG = [
    (lambda x: gt.sum(x, axis=2), gt.ShapeError, r"axis in \[-2, 2\)"),
    (lambda x: gt.sum(x, axis=(0, 0)), gt.ShapeError, "once"),
    (lambda x: gt.sum(x, axis=0.5), gt.ArgumentError, "integer"),
    (lambda x: gt.max(x[:0]), gt.ShapeError, r"\[max\] expected a non-empty axis, .* Pass initial="),
    (lambda x: gt.argmin(x[:0]), gt.ShapeError, r"\[argmin\] expected a non-empty axis"),
    (lambda x: gt.any(x, where=gt.ones(5)), gt.ShapeError, r"\[any\] expected a mask"),
    (lambda x: gt.add(x, gt.ones(5)), gt.ShapeError, r"\[add\] expected shapes that broadcast"),
    (lambda x: gt.subtract(x > 0, x > 1), gt.DtypeError, r"\[sub\] expected numbers, not booleans"),
    (lambda x: x & x, gt.DtypeError, r"\[bitwise_and\] expected integer or boolean operands"),
    (lambda x: gt.triu(x[0]), gt.ShapeError, r"\[triu\] expected at least two dimensions"),
    (lambda x: gt.split(x, 2, axis=1), gt.ShapeError, "divides 3"),
    (lambda x: gt.split(x, 0), gt.ShapeError, "parts"),
    (lambda x: gt.split(x, 1.5), gt.ArgumentError, "integer"),
    (lambda x: gt.stack([x, x[0]]), gt.ShapeError, "one shape"),
    (lambda x: gt.stack([x], axis=4), gt.ShapeError, "axis"),
    (lambda x: gt.stack([]), gt.ShapeError, "at least one"),
    (lambda x: gt.concat([x, x[0]]), gt.ShapeError, "equal in every axis"),
    (lambda x: gt.concat([1.0, 2.0]), gt.ShapeError, "stack"),
    (lambda x: gt.reshape(x, (-1, -1)), gt.ShapeError, "6 elements"),
    (lambda x: gt.reshape(x, (4, -1)), gt.ShapeError, "6 elements"),
    (lambda x: gt.reshape(x, 2.5), gt.ArgumentError, "integer"),
    (lambda x: gt.squeeze(x, axis=0), gt.ShapeError, "size 1"),
    (lambda x: gt.expand_dims(x, 5), gt.ShapeError, "axis"),
    (lambda x: gt.permute_dims(x, (0,)), gt.ShapeError, "once"),
    (lambda x: gt.moveaxis(x, (0, 1), 0), gt.ShapeError, "as many"),
    (lambda x: gt.matrix_transpose(x[0]), gt.ShapeError, "two dimensions"),
    (lambda x: gt.broadcast_to(x, (3, 2)), gt.ShapeError, "broadcast"),
    (lambda x: gt.tile(x, -1), gt.ShapeError, ">= 0"),
    (lambda x: gt.repeat(x, [1, 2], axis=1), gt.ShapeError, "one for each"),
    (lambda x: gt.repeat(x, -1), gt.ShapeError, ">= 0"),
    (lambda x: gt.pad(x, -1), gt.ShapeError, ">= 0"),
    (lambda x: gt.pad(x, ((1, 1),) * 3), gt.ShapeError, "one pair"),
    (lambda x: gt.pad(x, 1, mode="meen"), gt.ArgumentError, "reflect"),
    (lambda x: gt.pad(x[:0], 1, mode="edge"), gt.ShapeError, "none on axis 0"),
    (lambda x: gt.pad(x, 0.5), gt.ShapeError, "widths"),
    (lambda x: gt.roll(x, (1, 2, 3), axis=(0, 1)), gt.ShapeError, "as many shifts"),
    (lambda x: gt.tril(x[0]), gt.ShapeError, "two dimensions"),
    (lambda x: gt.take(x, 0.5), gt.DtypeError, "integers"),
    (lambda x: gt.take_along_axis(x, gt.array([0])), gt.ShapeError, "as many axes"),
    (lambda x: gt.take_along_axis(x, gt.zeros((4, 1), dtype=int)), gt.ShapeError, "broadcast"),
    (lambda x: x[::0], gt.ShapeError, "step"),
    (lambda x: x[0.5], gt.ArgumentError, "integer"),
    (lambda x: x["a"], gt.ArgumentError, "str"),
    (lambda x: x[:2, :1, :1], gt.BoundsError, "at most 2"),
    (lambda x: x[..., ...], gt.BoundsError, "ellipsis"),
    (lambda x: x[gt.array([0.5])], gt.DtypeError, "integers"),
    (lambda x: x.at[5].set(1), gt.BoundsError, "out of range"),
    (lambda x: x.at[5].set(1, wrap_negative_indices=False), gt.BoundsError, "out of range"),
    (lambda x: x.at[0, 5].get(mode="fill", wrap_negative_indices=False), gt.BoundsError, "out of range"),
    (lambda x: x.at[0].set(gt.ones(2)), gt.ShapeError, "broadcasts"),
    (lambda x: gt.one_hot(x, 3), gt.ArgumentError, "integers"),
    (lambda x: gt.one_hot(gt.array([1]), 3, axis=5), gt.ShapeError, "axis"),
    (lambda x: gt.eye(-1), gt.ShapeError, ">= 0"),
    (lambda x: gt.zeros((2, -1)), gt.ShapeError, ">= 0"),
    (lambda x: gt.linspace(0, 1, -1), gt.ShapeError, ">= 0"),
    (lambda x: gt.arange(300, dtype=gt.int8), gt.DtypeError, "299"),
    (lambda x: gt.arange("a"), gt.ArgumentError, "number"),
    (lambda x: x @ 2.0, gt.ShapeError, "scalars"),
    (lambda x: gt.tensordot(x, x, axes=3), gt.ShapeError, "number of axes"),
    (lambda x: gt.tensordot(x, x, axes=-1), gt.ShapeError, "number of axes"),
    (lambda x: gt.tensordot(x, x, axes=1), gt.ShapeError, "equal sizes"),
    (lambda x: gt.tensordot(x, x, axes=((0, 0), (0, 0))), gt.ShapeError, "once"),
    (lambda x: gt.einsum("ij,jk->ik", x), gt.ArgumentError, "operands"),
    (lambda x: gt.einsum("ijk->i", x), gt.ArgumentError, "2 axes"),
    (lambda x: gt.einsum("ii", x), gt.ShapeError, "square"),
    (lambda x: gt.einsum("ij->ii", x), gt.ArgumentError, "each once"),
    (lambda x: gt.einsum(x, x), gt.ArgumentError, "equation"),
    (lambda x: -(x > 0), gt.DtypeError, "not booleans"),
    (lambda x: (x > 0) - (x > 0), gt.DtypeError, "not booleans"),
    (lambda x: (x > 0) @ (x > 0).T, gt.DtypeError, "not booleans"),
    (lambda x: abs(x > 0), gt.DtypeError, "not booleans"),
    (lambda x: (x > 0) << 1 == (x > 0) << (x > 0), gt.DtypeError, "not booleans"),
    (lambda x: ~x, gt.DtypeError, "integer or boolean"),
    (lambda x: gt.array([2]) ** -1, gt.DtypeError, ">= 0"),
    (lambda x: gt.round(x, 0.5), gt.ArgumentError, "integer"),
]


@pytest.mark.parametrize(("call", "error", "match"), WRONG)
def test_wrong_arguments_are_refused_at_their_line(call, error, match):
    x = gt.ones((2, 3))
    with pytest.raises(error, match=match) as info:
        call(x)
    assert "test_ops_edges.py:" in str(info.value)


@pytest.mark.parametrize("call", [lambda x, y: x // y, lambda x, y: x % y])
def test_integers_divided_by_zero_raise_when_run(call):
    pending = call(gt.array([1, 2]), gt.array([1, 0]))
    with pytest.raises(gt.ExecutionError, match="ZeroDivisionError"):
        gt.eval(pending)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(gt.float16, torch.int16), (gt.bfloat16, torch.int16), (gt.float32, torch.int32), (gt.float64, torch.int64)],
    ids=str,
)
def test_the_next_float_is_one_step_away_in_bits(dtype, bits):
    x = gt.array([1.0, 2.0, -1.0, -2.0, 0.5]).astype(dtype)
    for y, steps in ((float("inf"), [1, 1, -1, -1, 1]), (float("-inf"), [-1, -1, 1, 1, -1]), (x, [0] * 5)):
        got = nextafter(x, y)
        assert got.dtype == dtype
        assert (got.to_torch().view(bits) - x.to_torch().view(bits)).tolist() == steps


def test_derivatives_of_operations_with_a_number_are_as_exact_as_the_dtype():
    x = gt.array([1.0], dtype="float64")
    assert gt.grad(lambda x: (x / 3.0).sum())(x).tolist() == [1.0 / 3.0]
    assert gt.jvp(lambda x: x / 3.0, (x,), (x,))[1].tolist() == [1.0 / 3.0]
    assert_close(gt.grad(lambda x: gt.atan2(x, 0.1).sum())(x).tolist(), [0.1 / 1.01])
    assert_close(gt.grad(lambda x: gt.atan2(0.1, x).sum())(x).tolist(), [-0.1 / 1.01])
    assert gt.grad(lambda x: (x / 0.0).sum())(x).tolist() == [float("inf")]
    assert gt.grad(lambda x: (x / -0.0).sum())(x).tolist() == [-float("inf")]


@pytest.mark.parametrize("value", [2.5, 3, -0.0, math.nan, True, 2**70, np.float32(0.5), 1j])
@pytest.mark.parametrize("dtype", [gt.float32, gt.float64, gt.int32])
def test_where_takes_the_same_numbers_each_time(value, dtype):
    mask, x = gt.array([True, False]), gt.array([1, 2], dtype=dtype)
    outcomes = []
    for _ in range(3):
        for operands in ((x, value), (value, x)):
            try:
                out = gt.where(mask, *operands)
            except gt.DtypeError:
                outcomes.append("refused")
            else:
                outcomes.append((out.dtype.name, repr(out.tolist())))
    assert outcomes[:2] == outcomes[2:4] == outcomes[4:]
    if isinstance(value, (float, int)) and outcomes[0] != "refused":
        assert repr(gt.where(mask, value, x).tolist()[0]) == repr(
            float(value) if x.aval.floating or value.__class__ is float else int(value)
        )


@pytest.mark.parametrize(("shift", "axis"), [(1, 0), ([1, -2], (0, 1)), (5, None), (-3, 1)])
def test_roll_by_traced_shifts(shift, axis):
    x = gt.arange(12.0).reshape(3, 4)
    expected = np.roll(np.asarray(x), shift, axis)
    by = gt.array(shift)
    np.testing.assert_array_equal(gt.roll(x, by, axis), expected)
    np.testing.assert_array_equal(gt.jit(lambda x, by: gt.roll(x, by, axis))(x, by), expected)
    ct = gt.grad(lambda x: (gt.roll(x, by, axis) * x.reshape(3, 4)[::-1]).sum())(x)
    np.testing.assert_array_equal(ct, gt.grad(lambda x: (gt.roll(x, shift, axis) * x.reshape(3, 4)[::-1]).sum())(x))


def test_roll_by_a_shift_an_example():
    x = gt.arange(12.0).reshape(3, 4)
    shifts = gt.array([0, 1, -1])
    expected = np.stack([np.roll(row, k) for row, k in zip(np.asarray(x), (0, 1, -1), strict=True)])
    np.testing.assert_array_equal(gt.vmap(gt.roll)(x, shifts), expected)
    with pytest.raises(gt.DtypeError, match="integers as shift"):
        gt.roll(x, gt.array(1.5), 0)


def test_the_derivative_of_logsumexp_far_from_zero_keeps_float32s_accuracy() -> None:
    x = np.array([-3600.125, -3600.875, -3601.75], np.float32)
    weights = np.exp(x.astype(np.float64) - x.max())
    weights /= weights.sum()
    assert_close(gt.grad(gt.logsumexp)(gt.array(x)), weights, check_dtype=False)
    assert_close(gt.jacfwd(gt.logsumexp)(gt.array(x)), weights, check_dtype=False)
    curvature = np.diag(weights) - np.outer(weights, weights)
    assert_close(gt.hessian(gt.logsumexp)(gt.array(x)), curvature, check_dtype=False)


@given(
    st.lists(st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 2.0, np.inf, np.nan]), max_size=8),
    st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 1.0, 2.0, np.inf, np.nan]), min_size=1, max_size=8),
    st.sampled_from(["left", "right"]),
)
def test_searches_take_nan_for_the_largest(a, v, side):
    a, v = np.sort(np.array(a, np.float32)), np.array(v, np.float32)
    came = np.asarray(gt.searchsorted(gt.array(a), gt.array(v), side))
    np.testing.assert_array_equal(came, np.searchsorted(a, v, side))


PADDING = (
    {"mode": "linear_ramp", "end_values": ((5, -4), (0, 3))},
    {"mode": "linear_ramp"},
    {"mode": "maximum"},
    {"mode": "minimum", "stat_length": ((1, 2), (3, 1))},
    {"mode": "mean"},
    {"mode": "mean", "stat_length": 2},
    {"mode": "median", "stat_length": (3, 2)},
    {"mode": "median"},
    {"mode": "reflect", "reflect_type": "odd"},
    {"mode": "symmetric", "reflect_type": "odd"},
)


@pytest.mark.parametrize("options", PADDING, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("widths", [((1, 2), (0, 3)), ((7, 0), (9, 8)), 0])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_modes_of_padding_are_numpys(options, widths, dtype):
    x = np.random.default_rng(0).integers(-9, 9, (3, 4)).astype(dtype)
    came = np.asarray(gt.pad(gt.array(x), widths, **options))
    assert came.dtype == dtype
    np.testing.assert_allclose(came, np.pad(x, widths, **options), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_power_zero_is_constant_also_at_numbers_without_a_reciprocal(dtype):
    tiny = float(gt.finfo(dtype).tiny)
    x = gt.array([0.0, tiny / 64, -tiny / 64, tiny, 1.5, math.inf], dtype=dtype)
    assert gt.grad(lambda x: (x ** gt.zeros(6, dtype=dtype)).sum())(x).tolist() == [0.0] * 6
    mixed = gt.grad(gt.grad(lambda x, y: x**y), 1)
    for number in [x[1], x[4], *(x[3] * k for k in (0.3, 1, 20, 170, 700))]:
        assert float(mixed(number, gt.zeros((), dtype))) == float(1 / number)
    assert math.isnan(mixed(x[0], gt.zeros((), dtype)))  # as JAX's is


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "bool", "float16"])
@pytest.mark.parametrize("way", [lambda f: f, lambda f: gt.jit(f, wait=True)], ids=["interpreted", "jitted"])
def test_a_sum_to_a_shape_has_the_dtype_of_its_operand(dtype, way):
    """A drawn program showed it: the rule said int32, and torch's function gave int64."""
    x = gt.array(np.array([[1, 0, 1], [0, 0, 1]])).astype(dtype)
    for shape, expected in (((3,), [1, 0, 2]), ((2, 1), [[2], [1]]), ((), 3)):
        got = way(lambda x, shape=shape: bind(sum_to, (x,), (shape,)))(x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got), np.array(expected).astype(dtype))
