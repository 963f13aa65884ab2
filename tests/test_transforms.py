"""Gradients as users see them: over pytrees, of any order, through Python control flow, beside torch's."""

from __future__ import annotations

import concurrent.futures
import gc
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.testing import assert_close


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def close(got, expected, **tolerance):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), **{"rtol": 1e-5, "atol": 1e-6, **tolerance})


def test_structure_of_arguments_and_results():
    params = {"w": gt.array([1.0, 2.0]), "rest": [gt.array(3.0), None, (gt.array([4.0]),)]}
    grads = gt.grad(lambda p: (p["w"] ** 2).sum() * p["rest"][0] + p["rest"][2][0].sum())(params)
    close(grads["w"], [6.0, 12.0])
    close(grads["rest"][0], 5.0)
    close(grads["rest"][2][0], [1.0])
    assert grads["rest"][1] is None
    assert gt.grad(lambda a, b: a * b)(2.0, 3.0).item() == 3.0
    a, b = gt.grad(lambda a, b: a * a * b, argnums=(0, -1))(2.0, 3.0)
    assert (a.item(), b.item()) == (12.0, 4.0)
    (value, aux), g = gt.value_and_grad(lambda x: (x * x, {"twice": x * 2}), has_aux=True)(3.0)
    assert (value.item(), aux["twice"].item(), g.item()) == (9.0, 6.0, 6.0)
    g, aux = gt.grad(lambda x, k: (x**k, k), has_aux=True)(3.0, 2)
    assert (g.item(), aux) == (6.0, 2)
    assert gt.grad(lambda x, *, scale: x * scale)(1.0, scale=4.0).item() == 4.0


def test_unused_inputs_have_zero_gradients():
    a, b = gt.grad(lambda x, y: (x * 0 + 3).sum(), argnums=(0, 1))(gt.ones(2), gt.ones((2, 2)))
    close(a, [0, 0])
    close(b, np.zeros((2, 2)))


def test_higher_orders():
    f = gt.sin
    x = 0.7
    for expected in (np.cos(x), -np.sin(x), -np.cos(x), np.sin(x)):
        f = gt.grad(f)
        assert_close(f(x), expected, check_dtype=False)


def test_nested_gradients_keep_their_variables_apart():
    # d/dx (x * d/dy (x + y)) = 1, and d/dx x * (d/dy x * y) = 2 x
    assert gt.grad(lambda x: x * gt.grad(lambda y: x + y)(1.0))(5.0).item() == 1.0
    assert gt.grad(lambda x: x * gt.grad(lambda y: x * y)(7.0))(5.0).item() == 10.0
    x = gt.array(3.0)
    assert gt.grad(lambda v: v * gt.grad(lambda u: u * v * x)(x))(x).item() == 18.0


def test_python_control_flow_on_values():
    def f(x):
        steps = 0
        while float(x.sum()) < 100:
            x = x * 2 if bool(x[0] > 1) else x * 3
            steps += 1
        return x.sum() * steps

    x = np.array([0.5, 2.0])
    value, g = gt.value_and_grad(f)(gt.array(x))
    step = 1e-6
    expected = [(float(f(gt.array(x + d))) - float(f(gt.array(x - d)))) / (2 * step) for d in np.eye(2) * step]
    assert float(value) == float(f(gt.array(x)))
    close(g, expected)


def test_a_force_in_the_middle_keeps_what_the_backward_pass_needs():
    def f(w, x, look):
        h = gt.tanh(x @ w)
        if look:
            float(h.sum())
        return (h * h).sum()

    w, x = (
        gt.array(np.random.default_rng(0).normal(size=(3, 2))),
        gt.array(np.random.default_rng(1).normal(size=(4, 3))),
    )
    close(gt.grad(f)(w, x, True), gt.grad(f)(w, x, False))
    close(gt.grad(lambda w: gt.grad(f)(w, x, True).sum())(w), gt.grad(lambda w: gt.grad(f)(w, x, False).sum())(w))


def test_vjp_can_be_pulled_more_than_once():
    y, pull = gt.vjp(lambda a, b: {"p": a * b, "s": a + b}, gt.array([1.0, 2.0]), gt.array([3.0, 4.0]))
    close(y["p"], [3, 8])
    for scale in (1.0, 2.0):
        a, b = pull({"p": gt.ones(2) * scale, "s": gt.zeros(2)})
        close(a, np.array([3, 4]) * scale)
        close(b, np.array([1, 2]) * scale)
    _, _, aux = gt.vjp(lambda a: (a, "kept"), 1.0, has_aux=True)
    assert aux == "kept"


def test_jacobians_and_hessians():
    def f(x):
        return {"a": gt.sin(x) * x[0], "b": x.sum()}

    x = gt.array([0.5, 1.0, 2.0])
    jac = gt.jacrev(f)(x)
    expected = torch.func.jacrev(lambda v: torch.sin(v) * v[0])(torch.tensor([0.5, 1.0, 2.0]))
    close(jac["a"], expected)
    close(jac["b"], [1, 1, 1])
    two = gt.jacrev(lambda a, b: a[:, None] * b, argnums=(0, 1))(gt.ones(2), gt.ones(3))
    assert [j.shape for j in two] == [(2, 3, 2), (2, 3, 3)]

    def g(p):
        return (p["u"] ** 2 * p["v"]).sum()

    h = gt.hessian(g)({"u": gt.array([1.0, 2.0]), "v": gt.array([3.0, 4.0])})
    close(h["u"]["u"], np.diag([6.0, 8.0]))
    close(h["u"]["v"], np.diag([2.0, 4.0]))
    close(h["v"]["v"], np.zeros((2, 2)))
    assert gt.jacrev(lambda x: x[:0])(gt.ones(3)).shape == (0, 3)


def test_gradients_of_jitted_functions_and_jitted_gradients():
    f = gt.jit(lambda x: (gt.tanh(x) * x).sum(), backend="eager")
    x = gt.array([0.3, -1.2])
    expected = gt.grad(lambda x: (gt.tanh(x) * x).sum())(x)
    close(gt.grad(f)(x), expected)
    close(gt.jit(gt.grad(f), backend="eager")(x), expected)
    close(gt.grad(lambda v: gt.jit(gt.grad(f), backend="eager")(v).sum())(x), gt.grad(lambda v: gt.grad(f)(v).sum())(x))
    outer = gt.array([2.0, 3.0])
    close(gt.grad(lambda w: gt.jit(lambda v: (v * w).sum(), backend="eager")(x))(outer), [0.3, -1.2])


def _doubled():
    @gt.custom_vjp
    def double(x):
        return x * 2

    double.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 2,))
    return double


@pytest.mark.parametrize(
    "call",
    [
        lambda x: gt.grad(lambda x: gt.tanh(x).sum())(x),
        lambda x: gt.grad(lambda y: gt.grad(lambda x: (x**3).sum())(y).sum())(x),
        lambda x: gt.vjp(gt.tanh, x)[1](x),
        lambda x: gt.jvp(gt.tanh, (x,), (x,)),
        lambda x: gt.hessian(lambda x: (x**3).sum())(x),
        lambda x: gt.vmap(lambda y: y * y.sum())(gt.ones((2, 3))),
        lambda x: gt.grad(gt.checkpoint(lambda x: gt.tanh(x).sum()))(x),
        lambda x: gt.grad(lambda x: _doubled()(x).sum())(x),
        lambda x: gt.scan(lambda c, y: (c + y, c * y), gt.asarray(0.0), x),
        lambda x: gt.while_loop(lambda c: c < 3, lambda c: c + 1, gt.asarray(0.0)),
        lambda x: gt.cond(x[0] > 0, lambda y: y * 2, lambda y: y * 3, x),
        lambda x: gt.jit(gt.value_and_grad(lambda x: gt.tanh(x).sum()))(x),
    ],
)
def test_nothing_waits_for_the_garbage_collector(call):
    """A reference cycle would keep the arrays of a step alive for many more."""
    gt.eval(call(gt.array([1.0, 2.0, 3.0])))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            gt.eval(call(gt.array([1.0, 2.0, 3.0])))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [x for x in gc.garbage if isinstance(x, (gt.Array, torch.Tensor))]
        assert not left
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: gt.grad(lambda x: x)(gt.ones(2)), gt.ShapeError, "scalar output"),
        (lambda: gt.grad(lambda x: (x, x))(1.0), gt.ArgumentError, "scalar array"),
        (lambda: gt.grad(lambda x: x > 0)(1.0), gt.DtypeError, "floating output"),
        (lambda: gt.grad(lambda p: p["n"] * 1.0)({"n": gt.arange(3)}), gt.DtypeError, r"int64 at args\[0\]\['n'\]"),
        (lambda: gt.grad(lambda x: x)("text"), gt.ArgumentError, r"str at args\[0\]"),
        (lambda: gt.grad(lambda x: x, argnums=1)(1.0), gt.ArgumentError, "argnums"),
        (lambda: gt.grad(lambda x: x, has_aux=True)(1.0), gt.ArgumentError, "aux"),
        (lambda: gt.vjp(lambda x: (x, x), 1.0)[1](1.0), gt.ArgumentError, "structure"),
        (lambda: gt.vjp(lambda x: x, gt.ones(2))[1](gt.ones(3)), gt.ArgumentError, "shape and dtype"),
    ],
)
def test_wrong_calls(call, error, match):
    with pytest.raises(error, match=match) as info:
        call()
    assert "test_transforms.py:" in str(info.value)


ACTIVATIONS = [
    (gt.tanh, torch.tanh),
    (gt.relu, torch.relu),
    (gt.silu, torch.nn.functional.silu),
    (gt.gelu, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    (gt.softplus, torch.nn.functional.softplus),
]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from(ACTIVATIONS)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_random_mlps_against_torch(layers, batch, seed):
    rng = np.random.default_rng(seed)
    sizes = [3, *(n for n, _ in layers)]
    weights = [(rng.normal(size=(m, n)), rng.normal(size=n)) for m, n in pairwise(sizes)]
    x = rng.normal(size=(batch, 3))

    def loss(ws, x, side):
        for (w, b), (_, act) in zip(ws, layers, strict=True):
            x = act[side](x @ w + b)
        return (x * x).mean() + x.sum()

    value, grads = gt.value_and_grad(lambda ws, x: loss(ws, x, 0), argnums=(0, 1))(
        [(gt.array(w), gt.array(b)) for w, b in weights], gt.array(x)
    )
    tw = [(torch.tensor(w, requires_grad=True), torch.tensor(b, requires_grad=True)) for w, b in weights]
    tx = torch.tensor(x, requires_grad=True)
    expected = loss(tw, tx, 1)
    expected.backward()
    close(value, expected.detach(), rtol=1e-9)
    close(grads[1], tx.grad, rtol=1e-8)
    for (gw, gb), (w, b) in zip(grads[0], tw, strict=True):
        close(gw, w.grad, rtol=1e-8)
        close(gb, b.grad, rtol=1e-8)


# -- threads


POOL = concurrent.futures.ThreadPoolExecutor(1)


def elsewhere(f):
    return POOL.submit(f).result(timeout=60)


FOLLOWED = {
    "of the argument": lambda x: elsewhere(lambda: x * 6).sum(),
    "run there": lambda x: elsewhere(lambda: gt.eval(x * 6)).sum(),
    "of a pending result": lambda x: (lambda y: elsewhere(lambda: y * 6))(x * 1).sum(),
    "of a result with a value": lambda x: (lambda y: elsewhere(lambda: y * 6))(gt.eval(x * 1)).sum(),
    "by a jitted function": lambda x: elsewhere(lambda: gt.jit(lambda z: z * 6, backend="eager")(x)).sum(),
    "of a pending result, jitted": lambda x: elsewhere(lambda y=x * 1: gt.jit(lambda z: z, backend="eager")(y)).sum(),
    "in a loop's body": lambda x: elsewhere(lambda: gt.scan(lambda c, _: (c * x, None), gt.ones(2), length=2)[0]).sum(),
    "by another gradient": lambda x: elsewhere(lambda: gt.grad(lambda z: (z * x).sum())(gt.ones(2))).sum(),
    "of an inner gradient's": lambda x: x.sum() * gt.grad(lambda z: elsewhere(lambda: z * 6).sum())(gt.ones(2)).sum(),
}


@pytest.mark.parametrize("what", FOLLOWED)
@pytest.mark.parametrize("way", [lambda f: gt.grad(f), lambda f: lambda x: gt.jvp(f, (x,), (x,))])
def test_what_another_thread_computes_from_a_followed_array_is_refused(what, way):
    x = gt.ones(2)
    with pytest.raises(gt.LeakError, match=r"\[grad\] .* in another thread.*stop_gradient"):
        way(FOLLOWED[what])(x)
    # nothing is left behind
    assert float(elsewhere(lambda: x * 6).sum()) == 12
    np.testing.assert_array_equal(np.asarray(gt.grad(lambda x: (x * 6).sum())(x)), [6, 6])


def test_a_placeholder_in_another_thread_names_the_way_out():
    with pytest.raises(gt.ConcretizationError, match="in the thread that traces the function"):
        gt.vmap(lambda x: elsewhere(lambda: x * 6))(gt.ones(2))


def test_other_threads_may_use_what_no_gradient_follows():
    x, before = gt.ones(2), gt.ones(2) * 5
    kept = []

    def f(x):
        kept.append(gt.eval(x * 2))
        constant = elsewhere(lambda: gt.stop_gradient(before) * 6 + before)
        own = elsewhere(lambda: gt.grad(lambda z: (z * z * before).sum())(gt.ones(2) * 3))
        stopped = gt.stop_gradient(x)
        return (x * constant * own * elsewhere(lambda: stopped * 2) * elsewhere(lambda: float(before.sum()))).sum()

    np.testing.assert_array_equal(np.asarray(gt.grad(f)(x)), [35 * 30 * 2 * 10] * 2)
    assert float(elsewhere(lambda: kept[0] * 2).sum()) == 8
    value, pullback = gt.vjp(lambda x: gt.sin(x) * x, x)
    assert_close(elsewhere(lambda: pullback(value)[0]), pullback(value)[0])


CAPTURING = {
    "vmap": lambda f, xs: gt.vmap(f)(xs).sum(),
    "scan": lambda f, xs: gt.scan(lambda total, x: (total + f(x), None), gt.array(0.0), xs)[0],
    "cond": lambda f, xs: gt.cond(xs[0] > 0, f, lambda x: f(-x), xs[0]),
    "while_loop": lambda f, xs: gt.fori_loop(0, 3, lambda k, total: total + f(xs[k]), gt.array(0.0)),
    "checkpoint": lambda f, xs: gt.checkpoint(f)(xs[0]),
    "jit": lambda f, xs: gt.jit(f, backend="eager")(xs[0]),
}


@pytest.mark.parametrize("around", CAPTURING)
@pytest.mark.parametrize("eager", [False, True])
def test_a_gradient_inside_a_captured_function_by_what_it_closes_over_is_seen_from_outside(around, eager):
    xs = gt.array([1.0, -2.0, 3.0])

    def loss(w):
        return CAPTURING[around](lambda x: gt.grad(lambda v: x * v**3)(w), xs)  # 3 x w**2 for each x

    expected = {"vmap": 2.0, "scan": 2.0, "while_loop": 2.0}.get(around, 1.0)
    with gt.config(eager=eager):
        assert_close(gt.grad(loss)(gt.array(2.0)), 6 * 2.0 * expected)
