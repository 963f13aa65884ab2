"""Named axes of vmap and the collectives over them; the transpose of linear functions."""

from __future__ import annotations

import numpy as np
import pytest

import gtrace as gt
from gtrace import lax

X = np.random.default_rng(0).normal(size=(4, 3))
Y = np.random.default_rng(1).normal(size=(2, 4, 3))


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-6, atol=1e-9)


def everywhere(row, size=4):
    return np.broadcast_to(row, (size, *np.shape(row)))


PAIRS = [(0, 2), (2, 3), (3, 1)]


def permuted(x, perm=PAIRS):
    out = np.zeros_like(x)
    for source, to in perm:
        out[to] = x[source]
    return out


COLLECTIVES = [
    ("psum", lambda x: lax.psum(x, "i"), lambda x: everywhere(x.sum(0))),
    ("psum of a constant", lambda x: x * lax.psum(1, "i"), lambda x: x * 4),
    ("psum of what is shared", lambda x: x + lax.psum(gt.array(2.0), "i"), lambda x: x + 8),
    ("psum of booleans", lambda x: lax.psum(x > 0, "i"), lambda x: everywhere((x > 0).sum(0))),
    ("pmean", lambda x: lax.pmean(x, "i"), lambda x: everywhere(x.mean(0))),
    ("pmax", lambda x: lax.pmax(x, "i"), lambda x: everywhere(x.max(0))),
    ("pmin", lambda x: lax.pmin(x, "i"), lambda x: everywhere(x.min(0))),
    ("axis_index", lambda x: x * lax.axis_index("i"), lambda x: x * np.arange(4)[:, None]),
    ("axis_size", lambda x: x * lax.axis_size("i"), lambda x: x * 4),
    ("all_gather", lambda x: lax.all_gather(x, "i"), lambda x: everywhere(x)),
    ("all_gather axis", lambda x: lax.all_gather(x, "i", axis=-1), lambda x: everywhere(x.T)),
    ("all_gather tiled", lambda x: lax.all_gather(x, "i", tiled=True), lambda x: everywhere(x.ravel())),
    ("ppermute", lambda x: lax.ppermute(x, "i", PAIRS), permuted),
    (
        "ppermute shift",
        lambda x: lax.ppermute(x, "i", [(k, (k + 1) % 4) for k in range(4)]),
        lambda x: np.roll(x, 1, 0),
    ),
    ("ppermute nothing", lambda x: lax.ppermute(x, "i", []), lambda x: 0 * x),
    ("trees", lambda x: lax.psum({"a": x, "b": (x * 2,)}, "i")["b"][0], lambda x: everywhere(2 * x.sum(0))),
]
IDS = [name for name, _, _ in COLLECTIVES]


@pytest.mark.parametrize(("name", "f", "expected"), COLLECTIVES, ids=IDS)
def test_collectives_over_the_batch(name, f, expected):
    close(gt.vmap(f, axis_name="i")(gt.array(X)), expected(X))
    close(gt.vmap(f, in_axes=1, out_axes=0, axis_name="i")(gt.array(X.T)), expected(X))
    close(gt.vmap(gt.jit(f), axis_name="i")(gt.array(X)), expected(X))


@pytest.mark.parametrize(("name", "f", "expected"), COLLECTIVES, ids=IDS)
def test_other_vmaps_pass_them_through(name, f, expected):
    want = np.stack([expected(y) for y in Y])
    close(gt.vmap(gt.vmap(f, axis_name="i"), axis_name="j")(gt.array(Y)), want)
    inner = gt.vmap(gt.vmap(f), in_axes=1, out_axes=1, axis_name="i")
    close(inner(gt.array(Y)), want)


@pytest.mark.parametrize(("name", "f", "expected"), [c for c in COLLECTIVES if "bool" not in c[0]],
                         ids=[name for name in IDS if "bool" not in name])  # fmt: skip
def test_derivatives_through_the_batch(name, f, expected):
    """The gradient of the whole is that of the function written over the whole batch."""
    weight = np.random.default_rng(2).normal(size=expected(X).shape)
    whole = lambda x: (gt.vmap(f, axis_name="i")(x) * gt.array(weight)).sum()  # noqa: E731
    got = np.asarray(gt.grad(whole)(gt.array(X)))
    for place in np.ndindex(X.shape):
        moved = [X.copy(), X.copy()]
        moved[0][place] += 1e-6
        moved[1][place] -= 1e-6
        slope = sum(s * (expected(m) * weight).sum() for s, m in zip((1, -1), moved, strict=True)) / 2e-6
        np.testing.assert_allclose(got[place], slope, atol=1e-7)


@pytest.mark.parametrize(("name", "f", "expected"), [c for c in COLLECTIVES if "bool" not in c[0]],
                         ids=[name for name in IDS if "bool" not in name])  # fmt: skip
def test_derivatives_within_an_example(name, f, expected):
    """Each example's cotangent reaches all examples: the sum of all losses, differentiated by the own input."""
    weight = np.random.default_rng(2).normal(size=expected(X).shape)
    within = gt.vmap(lambda x, w: gt.grad(lambda x: (f(x) * w).sum())(x), axis_name="i")
    whole = gt.grad(lambda x: (gt.vmap(f, axis_name="i")(x) * gt.array(weight)).sum())
    close(within(gt.array(X), gt.array(weight)), whole(gt.array(X)))
    moved = gt.vmap(lambda x, t: gt.jvp(f, (x,), (t,))[1], axis_name="i")
    close(moved(gt.array(X), gt.array(X[::-1].copy())),
          gt.jvp(gt.vmap(f, axis_name="i"), (gt.array(X),), (gt.array(X[::-1].copy()),))[1])  # fmt: skip


def test_several_axes_at_once():
    def f(x):
        return lax.psum(x, ("i", "j")), lax.axis_index(("i", "j")), lax.all_gather(x, ("i", "j")), lax.pmax(x, ("j",))

    total, place, every, most = gt.vmap(gt.vmap(f, axis_name="j"), axis_name="i")(gt.array(Y))
    close(total, np.broadcast_to(Y.sum((0, 1)), Y.shape))
    close(place, np.arange(8).reshape(2, 4))
    close(every[1, 2], Y.reshape(8, 3))
    close(most, np.broadcast_to(Y.max(1, keepdims=True), Y.shape))
    assert gt.vmap(gt.vmap(lambda x: gt.zeros(lax.axis_size(("i", "j"))), axis_name="j"), axis_name="i")(
        gt.array(Y)
    ).shape == (2, 4, 8)


def test_the_inner_of_two_axes_of_one_name():
    f = gt.vmap(gt.vmap(lambda x: lax.psum(x, "i"), axis_name="i"), axis_name="i")
    close(f(gt.array(Y)), np.broadcast_to(Y.sum(1, keepdims=True), Y.shape))


def step(c, x):
    c = c + lax.pmean(x, "i") * lax.axis_index("i")
    return c, lax.psum(c, "i")


def in_scan(x):
    return gt.scan(step, gt.array(0.0, dtype=gt.float64), x)[1]


def scanned(x):
    c = np.cumsum(x.mean(0)[None] * np.arange(4)[:, None], 1)
    return everywhere(c.sum(0))


BODIES = [
    ("scan", in_scan, scanned),
    ("scan without a batched operand", lambda x: x + gt.scan(lambda c, _: (c + lax.axis_index("i"), None), 0,
        None, 3)[0], lambda x: x + 3 * np.arange(4)[:, None]),
    ("cond", lambda x: gt.cond(gt.array(True), lambda: lax.psum(x, "i"), lambda: x),
     lambda x: everywhere(x.sum(0))),
    ("while_loop", lambda x: gt.while_loop(lambda c: lax.pmax(c.sum(), "i") < 50, lambda c: c * 2 + 1, x * x),
     None),
    ("checkpoint", gt.checkpoint(lambda x: gt.sin(lax.psum(x, "i"))), lambda x: everywhere(np.sin(x.sum(0)))),
    ("fori_loop", lambda x: gt.fori_loop(0, 3, lambda k, c: lax.psum(c, "i") / 4, x), lambda x: everywhere(x.mean(0))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "f", "expected"), BODIES, ids=[b[0] for b in BODIES])
def test_collectives_in_bodies(name, f, expected):
    mapped = gt.vmap(f, axis_name="i")
    if expected is not None:
        close(mapped(gt.array(X)), expected(X))
        close(gt.grad(lambda x: (mapped(x) ** 2).sum())(gt.array(X[:, :2])).sum(), slope_of(expected, X[:, :2]))
        return
    c = X * X
    while c.sum(1).max() < 50:
        c = c * 2 + 1
    close(mapped(gt.array(X)), c)


def slope_of(f, x):
    return ((f(x + 1e-6) ** 2).sum() - (f(x - 1e-6) ** 2).sum()) / 2e-6


def test_normalization_over_the_batch_under_jit():
    def normed(x):
        centred = x - lax.pmean(x, "batch")
        return centred / gt.sqrt(lax.pmean(centred**2, "batch") + 1e-5)

    expected = (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5)
    close(gt.jit(gt.vmap(normed, axis_name="batch"))(gt.array(X)), expected)


def test_a_jitted_function_is_traced_for_each_size_of_the_axis():
    f = gt.jit(lambda x: x * lax.axis_size("i") + lax.psum(x, "i"))
    for size in (2, 3, 2):
        x = np.arange(float(size))
        close(gt.vmap(f, axis_name="i")(gt.array(x)), x * size + x.sum())
    with pytest.raises(gt.ArgumentError, match="'i'"):
        f(gt.array(1.0))


def test_the_size_alone():
    close(gt.vmap(lambda: lax.axis_index("i") * 2, axis_name="i", axis_size=3)(), [0, 2, 4])
    total = gt.vmap(lambda x: lax.psum(x, "i"), axis_name="i", out_axes=None)(gt.array(X))
    close(total, X.sum(0))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: lax.psum(gt.ones(2), "k"), gt.ArgumentError, r"\[psum\].*axis_name of an enclosing vmap, got 'k'"),
        (lambda: lax.psum(1, "k"), gt.ArgumentError, "'k'"),
        (lambda: lax.axis_index("k"), gt.ArgumentError, "'k'"),
        (lambda: lax.axis_size("k"), gt.ArgumentError, "'k'"),
        (lambda: gt.vmap(lambda x: lax.pmax(x, ("i", "k")), axis_name="i")(X), gt.ArgumentError, "'k' beside 'i'"),
        (lambda: gt.vmap(lambda x: x, axis_name=3)(X), gt.ArgumentError, "string"),
        (lambda: gt.vmap(lambda x: lax.ppermute(x, "i", [(0, 1), (2, 1)]), axis_name="i")(X), gt.ArgumentError, "once"),
        (lambda: gt.vmap(lambda x: lax.ppermute(x, "i", [(0, 4)]), axis_name="i")(X), gt.ShapeError, r"\[0, 4\)"),
        (lambda: gt.vmap(lambda x: lax.all_gather(x, "i", axis=3), axis_name="i")(X), gt.ShapeError, "axis"),
        (lambda: gt.make_graph(lambda x: lax.psum(x, "i"))(X), gt.ArgumentError, "'i'"),
    ],
)
def test_errors_at_the_line(call, error, match):
    with pytest.raises(error, match=match) as caught:
        call()
    assert "test_axis_names.py" in str(caught.value)


# -- linear functions

W = gt.array(np.random.default_rng(3).normal(size=(3, 2)))
LINEAR = [
    ("matmul", lambda x: x @ W),
    ("slices and sums", lambda x: {"a": 3 * x[1:] - x[:-1], "b": x.sum(0)}),
    ("scan", lambda x: gt.scan(lambda c, row: (0.5 * c + row @ W, c.sum()), gt.zeros(2, dtype=gt.float64), x)),
    ("divided", lambda x: gt.where(gt.arange(3) > 0, x, 0.0) / 7.0),
    ("gathered", lambda x: x.at[gt.array([0, 2])].add(x[gt.array([1, 1])])),
    ("psum", gt.vmap(lambda x: lax.psum(x, "i") - x, axis_name="i")),
]


@pytest.mark.parametrize(("name", "f"), LINEAR, ids=[name for name, _ in LINEAR])
def test_linear_transpose_is_the_pullback(name, f):
    x = gt.array(X)
    y, pullback = gt.vjp(f, x)
    ct = gt.tree.map(lambda v: gt.sin(v + 1.0), y)
    shapes = gt.ShapeDtypeStruct(X.shape, "float64")
    for transposed in (gt.linear_transpose(f, shapes), gt.linear_transpose(f, x)):
        close(transposed(ct)[0], pullback(ct)[0])
    twice = gt.linear_transpose(lambda ct: gt.linear_transpose(f, shapes)(ct)[0], y)
    for got, want in zip(gt.tree.leaves(twice(x)[0]), gt.tree.leaves(y), strict=True):
        close(got, want)


def test_linear_transpose_of_several_arguments():
    f = gt.linear_transpose(lambda a, b: a["k"] * 2 + b.sum(), {"k": np.zeros(3)}, gt.zeros((2, 2), dtype=gt.float64))
    a, b = f(gt.array([1.0, 2.0, 3.0], dtype=gt.float64))
    close(a["k"], [2, 4, 6])
    close(b, np.full((2, 2), 6.0))


@pytest.mark.parametrize(
    ("f", "primal", "ct", "error", "match"),
    [
        (gt.sin, 1.0, 1.0, gt.ArgumentError, "linear function"),
        (lambda x: x * x, 1.0, 1.0, gt.ArgumentError, "linear function"),
        (gt.floor, 1.0, 1.0, gt.ArgumentError, "floor"),
        (lambda x: x, gt.array(1), 1.0, gt.DtypeError, "floating"),
        (lambda x: x, "x", 1.0, gt.ArgumentError, "str"),
        (lambda x: x, gt.zeros(2), gt.zeros(3), gt.ArgumentError, "cotangent"),
        (3, gt.zeros(2), gt.zeros(2), gt.ArgumentError, "function"),
    ],
)
def test_what_has_no_transpose(f, primal, ct, error, match):
    with pytest.raises(error, match=match):
        gt.linear_transpose(f, primal)(ct)


def test_scan_takes_unroll():
    for unroll in (1, 4, True):
        last, _ = gt.scan(lambda c, x: (c + x, None), 0.0, gt.arange(5.0), unroll=unroll)
        assert float(last) == 10.0
