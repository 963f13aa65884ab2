"""`jvp`, `linearize`, `jacfwd`, and how they compose with reverse mode, with `vmap` and with `jit`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.jax import float0
from gtrace.testing import arguments, as_function, assert_close, graphs


def close(got, expected, rtol=1e-7, atol=1e-9):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


PROGRAMS = graphs(10, smooth=True).flatmap(
    lambda graph: st.tuples(st.just(as_function(graph)), arguments(graph), arguments(graph))
)
"""Programs with where to differentiate them, and tangents."""


def inner(xs, ys):
    return sum(((x * y).sum() for x, y in zip(xs, ys, strict=True)), start=gt.array(0.0, dtype=gt.float64))


@given(PROGRAMS)
def test_jvp_against_finite_differences(program):
    f, xs, ts = program
    out, moved = gt.jvp(f, xs, ts)
    close(out, f(*xs))
    step = 1e-5
    ends = [f(*[x + sign * step * t for x, t in zip(xs, ts, strict=True)]) for sign in (1, -1)]
    for a, b, t in zip(*ends, moved, strict=True):
        scale = 1 + float(abs(a).max())
        np.testing.assert_allclose(np.asarray(t), np.asarray(a - b) / (2 * step), rtol=1e-4, atol=1e-4 * scale)


@given(PROGRAMS)
def test_vjp_is_the_transpose_of_jvp(program):
    f, xs, ts = program
    moved = gt.jvp(f, xs, ts)[1]
    out, pullback = gt.vjp(f, *xs)
    cts = tuple(gt.cos(gt.arange(y.size, dtype=gt.float64)).reshape(y.shape) for y in out)
    close(inner(moved, cts), inner(ts, pullback(cts)))


@pytest.mark.slow
@given(PROGRAMS)
def test_second_order_in_every_composition(program):
    f, xs, ts = program

    def loss(*xs):
        return sum(((y * y).mean() for y in f(*xs)), start=gt.array(0.0, dtype=gt.float64))

    argnums = tuple(range(len(xs)))
    reverse_over_reverse = gt.grad(lambda *xs: inner(gt.grad(loss, argnums)(*xs), ts), argnums)(*xs)
    forward_over_reverse = gt.jvp(gt.grad(loss, argnums), xs, ts)[1]
    reverse_over_forward = gt.grad(lambda *xs: gt.jvp(loss, xs, ts)[1], argnums)(*xs)
    close(forward_over_reverse, reverse_over_reverse, 1e-6, 1e-8)
    close(reverse_over_forward, reverse_over_reverse, 1e-6, 1e-8)
    forward_over_forward = gt.jvp(lambda *xs: gt.jvp(loss, xs, ts)[1], xs, ts)[1]
    close(forward_over_forward, inner(reverse_over_reverse, ts), 1e-6, 1e-8)


@pytest.mark.slow
@given(PROGRAMS)
def test_linearize_and_jit_and_vmap_agree_with_jvp(program):
    f, xs, ts = program
    out, moved = gt.jvp(f, xs, ts)
    value, push = gt.linearize(f, *xs)
    close(value, out)
    close(push(*ts), moved)
    doubled = [2 * t for t in ts]
    close(push(*doubled), [2 * t for t in moved])
    close(gt.jit(lambda xs, ts: gt.jvp(f, xs, ts), backend="eager")(xs, ts), (out, moved))
    batch = gt.vmap(lambda *ts: gt.jvp(f, xs, ts)[1])(*[gt.stack([t, 2 * t]) for t in ts])
    close(batch, [gt.stack([t, 2 * t]) for t in moved])


@given(PROGRAMS)
def test_jacobians_of_both_modes(program):
    f, xs, _ = program
    argnums = tuple(range(len(xs)))
    close(gt.jacfwd(f, argnums)(*xs), gt.jacrev(f, argnums)(*xs), 1e-6, 1e-8)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_jacobians_and_hessians_against_torch():
    def f(x, lib):
        return lib.sin(x) * x.sum() + (x[0] * x) ** 2

    x = np.array([0.5, -1.0, 2.0])
    expected = torch.func.jacrev(lambda v: f(v, torch))(torch.tensor(x))
    for jac in (gt.jacfwd, gt.jacrev):
        close(jac(lambda v: f(v, gt))(gt.array(x)), expected)
    expected = torch.func.hessian(lambda v: f(v, torch).sum())(torch.tensor(x))
    for hess in (gt.hessian, lambda g: gt.jacfwd(gt.jacfwd(g)), lambda g: gt.jacrev(gt.jacrev(g)),
                 lambda g: gt.jacrev(gt.jacfwd(g))):  # fmt: skip
        close(hess(lambda v: f(v, gt).sum())(gt.array(x)), expected)
    third = gt.jacfwd(gt.hessian(lambda v: (v**4).sum()))(gt.array(x))
    close(third, np.einsum("i,ij,ik->ijk", 24 * x, np.eye(3), np.eye(3)))


def test_structures_of_jacobians():
    out = gt.jacfwd(lambda p, q: {"a": p["x"][:, None] * q, "b": q.sum()}, (0, 1))({"x": gt.ones(2)}, gt.ones(3))
    assert out["a"][0]["x"].shape == (2, 3, 2) and out["a"][1].shape == (2, 3, 3)
    assert out["b"][0]["x"].shape == (2,) and out["b"][1].shape == (3,)
    jac, aux = gt.jacfwd(lambda x: (x * 2, "kept"), has_aux=True)(1.0)
    assert float(jac) == 2 and aux == "kept"
    assert gt.jacfwd(lambda x: x[:0])(gt.ones(3)).shape == (0, 3)
    assert gt.jacfwd(lambda x: gt.ones(2))(gt.ones(3)).tolist() == [[0, 0, 0]] * 2


def test_jvp_looks_at_values_and_returns_aux():
    def f(x):
        return (x * 2 if float(x) > 0 else x * 3), {"seen": float(x)}

    assert [float(v) for v in gt.jvp(f, (-1.0,), (1.0,), has_aux=True)[:2]] == [-3.0, 3.0]
    assert gt.jvp(f, (2.0,), (1.0,), has_aux=True)[2] == {"seen": 2.0}


def test_linearize_again_is_of_the_new_point_and_what_is_closed_over():
    for factor in (2.0, 2.0, 3.0, gt.array(2.0), gt.array(5.0)):
        for at in (0.3, 0.7):
            y, push = gt.linearize(lambda x, k=factor: gt.sin(x * k) * k, gt.array(at))
            assert_close(y, np.sin(at * float(factor)) * float(factor), check_dtype=False)
            slope = np.cos(at * float(factor)) * float(factor) ** 2
            assert_close([push(1.0), push(2.0)], [slope, 2 * slope], check_dtype=False)


def test_linearize_again_tells_closed_over_values_from_arguments():
    shared, other = gt.array(3.0), gt.array(5.0)
    # one recorded form, with an argument and an Array that is closed over, in all ways that they can be one or two
    for x, y, k in ((shared, shared, shared), (shared, other, other), (other, shared, other), (shared, shared, other)):
        for _ in range(2):
            gt.eval(x, y, k)
            value, push = gt.linearize(lambda a, b, k=k: a * b * k + a * k, x, y)
            moved = float(push(1.0, 10.0))
            a, b, c = float(x), float(y), float(k)
            assert (float(value), moved) == (a * b * c + a * c, b * c + c + 10 * a * c)


def test_linearize_again_has_the_rule_of_its_own_call():
    for scale in (2.0, 3.0, 2.0):

        @gt.custom_jvp
        def f(x):
            return gt.sin(x)

        f.defjvp(lambda primals, tangents, scale=scale: (gt.sin(primals[0]), tangents[0] * scale))
        assert float(gt.linearize(f, gt.array(0.5))[1](1.0)) == scale


def test_linearize_computes_the_rest_once():
    calls = []

    def f(x):
        calls.append(1)
        return gt.sin(gt.exp(x))

    _, push = gt.linearize(f, gt.array(0.3))
    slope = np.cos(np.exp(0.3)) * np.exp(0.3)
    close([push(1.0), push(2.0)], [slope, 2 * slope], 1e-5)
    assert len(calls) == 1
    graph = gt.make_graph(push)(1.0)
    assert "sin" not in str(graph) and "exp" not in str(graph) and "cos" not in str(graph)


def test_perturbations_are_not_confused():
    # d/dx (x * d/dy (x + y)) = 1
    assert float(gt.jvp(lambda x: x * gt.jvp(lambda y: x + y, (1.0,), (1.0,))[1], (5.0,), (1.0,))[1]) == 1.0
    assert float(gt.grad(lambda x: x * gt.jvp(lambda y: x * y, (7.0,), (1.0,))[1])(5.0)) == 10.0
    assert float(gt.jvp(lambda x: x * gt.grad(lambda y: x * y * y)(3.0), (2.0,), (1.0,))[1]) == 24.0


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: gt.jvp(lambda x: x, 1.0, 1.0), gt.ArgumentError, "a tuple of primals"),
        (lambda: gt.jvp(lambda x: x, (1.0,), (1.0, 2.0)), gt.ArgumentError, "tangent of structure"),
        (lambda: gt.jvp(lambda d: d["a"], ({"a": gt.ones(2)},), ({"a": gt.ones(3)},)), gt.ArgumentError, r"\['a'\]"),
        (lambda: gt.jvp(lambda x: x, (gt.arange(2),), (gt.arange(2),)), gt.ArgumentError, "dtype float0 for i64"),
        (lambda: gt.jacfwd(lambda x: x > 0)(1.0), gt.DtypeError, "floating outputs"),
        (lambda: gt.linearize(lambda x: x, 1.0)[1](gt.ones(2)), gt.ArgumentError, "shape and dtype"),
        (lambda: gt.jvp(lambda x: "text", (1.0,), (1.0,)), gt.ArgumentError, "str at the top"),
    ],
)
def test_wrong_calls(call, error, match):
    with pytest.raises(error, match=match) as info:
        call()
    assert "test_forward.py:" in str(info.value)


def test_integers_among_primals_have_no_derivative():
    """Their tangents and cotangents have no values: NumPy's arrays of the dtype float0, as in JAX."""

    def taken(x, i, on):
        return gt.where(on, x[i], 0.0).sum()

    primals = gt.arange(3.0), gt.array([0, 2]), gt.array([True, False])
    none = [np.zeros(2, float0)] * 2
    _, pullback = gt.vjp(taken, *primals)
    by_x, by_i, by_on = pullback(gt.array(2.0))
    assert by_x.tolist() == [2.0, 0.0, 0.0] and by_i.dtype == by_on.dtype == float0 and by_i.shape == (2,)
    assert [float(y) for y in gt.jvp(taken, primals, (gt.ones(3), *none))] == [0.0, 1.0]
    assert float(gt.linearize(taken, *primals)[1](gt.ones(3), *none)) == 1.0
    with pytest.raises(gt.ArgumentError, match="a tangent of dtype float0 for i64"):
        gt.jvp(taken, primals, (gt.ones(3), primals[1], none[1]))
    with pytest.raises(gt.DtypeError):
        gt.grad(taken, argnums=1)(*primals)
    _, pullback = gt.vjp(lambda x: (x * 2.0, gt.argmax(x)), gt.arange(3.0))
    assert pullback((gt.ones(3), np.zeros((), float0)))[0].tolist() == [2.0, 2.0, 2.0]


def pulled(x, i):
    """Return cotangents, of which the second has no values."""
    (y, j), pullback = gt.vjp(lambda x, i: (x * i, i), x, i)
    return pullback((y, np.zeros(j.shape, float0)))


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x, i: pulled(x, i), (3,)),
        (lambda x, i: gt.jit(pulled)(x, i), (3,)),
        (lambda x, i: gt.jit(lambda pair: (pair[0] * 1.0, pair[1]))(pulled(x, i)), (3,)),
        (lambda x, i: gt.eval_shape(pulled, x, i), (3,)),
        (lambda x, i: gt.checkpoint(pulled)(x, i), (3,)),
        (lambda x, i: gt.jit(gt.checkpoint(pulled))(x, i), (3,)),
        (lambda x, i: gt.vmap(pulled)(x, i), (3,)),
        (lambda x, i: gt.jit(gt.vmap(pulled, (0, None), (0, 1)))(x, i), (3, 3)),
        (lambda x, i: gt.scan(lambda c, x: (c, pulled(x, i)), 0.0, x)[1], (3, 3)),
        (lambda x, i: gt.cond(x[0] == 0, pulled, pulled, x, i), (3,)),
        (lambda x, i: gt.jvp(lambda x: (x * i, i), (x,), (x,))[1], (3,)),
        (lambda x, i: gt.vmap(lambda x, i: gt.jvp(lambda x: (x * i, i), (x,), (x,))[1])(x, i), (3,)),
        (lambda x, i: gt.linearize(lambda x: (x * i, i), x)[1](x), (3,)),
    ],
)
def test_tangents_without_values_cross_transforms(call, shape):
    for _ in range(2):
        moved, empty = call(gt.arange(3.0), gt.arange(3))
        assert empty.dtype == float0 and empty.shape == shape
        assert not isinstance(moved, gt.Array) or moved.aval.floating


LOST = {
    "a function of NumPy's": lambda x: np.sin(x).sum(),
    "asarray": lambda x: (x * np.asarray(x)).sum(),
    "of a result": lambda x: (x * np.asarray(gt.exp(x))).sum(),
    "numpy": lambda x: gt.array(x.numpy()).sum(),
    "to_torch": lambda x: (x * x.to_torch()).sum(),
    "dlpack": lambda x: gt.array(torch.from_dlpack(x)).sum(),
}


@pytest.mark.parametrize("transform", [gt.grad, gt.jacfwd, lambda f: lambda x: gt.vjp(f, x), gt.hessian])
@pytest.mark.parametrize("name", LOST)
def test_a_value_that_is_differentiated_does_not_leave_as_an_array(name, transform):
    with pytest.raises(gt.ConcretizationError, match=r"use gt's function, such as gt\.sin for np\.sin"):
        transform(LOST[name])(gt.array([1.0, 2.0]))


def test_constants_and_numbers_may_leave_a_gradient():
    x = gt.array([1.0, 2.0])
    kept = gt.array([3.0, 4.0])
    assert gt.grad(lambda x: (x * np.asarray(kept)).sum())(x).tolist() == [3.0, 4.0]
    assert gt.grad(lambda x: (x * np.asarray(gt.stop_gradient(x))).sum())(x).tolist() == [1.0, 2.0]
    assert gt.grad(lambda x: x.sum() if float(x.sum()) > 0 else -x.sum())(x).tolist() == [1.0, 1.0]
    assert np.asarray(gt.grad(lambda x: (x * x).sum())(x)).tolist() == [2.0, 4.0]
