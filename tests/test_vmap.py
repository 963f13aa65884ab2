"""`vmap` as users call it: axes over pytrees, nesting, composition with the other transforms, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
import gtrace.numpy as gnp
from gtrace.testing import arguments, as_function, check_vmap, graphs


def array(*shape, seed=0):
    return gt.array(np.random.default_rng(seed).normal(size=shape))


def close(got, expected, rtol=1e-9, atol=1e-11):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def test_axes_over_pytrees():
    def f(p, x):
        return {"y": p["w"] @ x + p["b"][0], "w": p["w"]}

    p = {"w": array(4, 2, 3), "b": (array(2),)}
    x = array(3, 4, seed=1)
    got = gt.vmap(f, in_axes=({"w": 0, "b": None}, -1), out_axes={"y": 1, "w": 0})(p, x)
    expected = np.stack([np.asarray(p["w"])[i] @ np.asarray(x)[:, i] + np.asarray(p["b"][0]) for i in range(4)], 1)
    close(got, {"y": expected, "w": p["w"]})


def test_one_axis_serves_a_whole_tree_and_none_is_no_leaf():
    got = gt.vmap(lambda t: (t["a"] + t["b"][0], t["c"]))({"a": gt.ones(3), "b": [gt.arange(3)], "c": None})
    close(got, (np.arange(3) + 1.0, None))


def test_outputs_that_are_the_same_for_all_examples():
    w = array(2)
    a, b = gt.vmap(lambda x: (w * 2, x * 2), out_axes=(None, 0))(gt.ones(3))
    assert a.shape == (2,) and b.shape == (3,)
    assert gt.vmap(lambda x: w * 2)(gt.ones(3)).shape == (3, 2)
    assert gt.vmap(lambda: w, axis_size=3)().shape == (3, 2)


def test_keyword_arguments_are_batched_on_axis_0():
    close(gt.vmap(lambda x, *, y: x * y)(gt.arange(3), y=gt.arange(3)), np.array([0, 1, 4]))


def test_torchs_names_for_the_axes():
    x = array(2, 3)
    close(gt.vmap(lambda v: v * 2, in_dims=1, out_dims=1)(x), np.asarray(x) * 2)


def test_nested():
    x, y = array(3), array(4, seed=1)
    outer = gt.vmap(gt.vmap(lambda a, b: a * b, (None, 0)), (0, None))
    close(outer(x, y), np.outer(x, y))
    cube = array(2, 3, 4)
    around = gt.vmap(gt.vmap(gt.vmap(lambda v: v * 2), in_axes=1, out_axes=1), in_axes=-1, out_axes=-1)
    close(around(cube), np.asarray(cube) * 2)


def test_it_records_no_loop():
    graph = gt.make_graph(gt.vmap(lambda x: gt.tanh(x @ x).sum()))
    assert len(graph(gt.ones((1000, 4, 4))).nodes) == len(graph(gt.ones((2, 4, 4))).nodes) == 3


def mlp(p, x):
    h = gt.tanh(x @ p["w1"] + p["b1"])
    return ((h @ p["w2"]) ** 2).sum()


def params(seed=0):
    return {"w1": array(3, 5, seed=seed), "b1": array(5, seed=seed + 1), "w2": array(5, 2, seed=seed + 2)}


def test_per_example_gradients_and_the_gradient_of_a_batch():
    p, xs = params(), array(7, 3, seed=9)
    each = gt.vmap(gt.grad(mlp), (None, 0))(p, xs)
    rows = [gt.grad(mlp)(p, xs[i]) for i in range(7)]
    close(each, gt.tree_map(lambda *r: gt.stack(r), *rows))
    whole = gt.grad(lambda p: gt.vmap(mlp, (None, 0))(p, xs).sum())(p)
    close(whole, gt.tree_map(lambda g: g.sum(0), each))


def test_with_jit_on_either_side():
    p, xs = params(), array(7, 3, seed=9)
    expected = gt.vmap(gt.grad(mlp), (None, 0))(p, xs)
    close(gt.jit(gt.vmap(gt.grad(mlp), (None, 0)), backend="eager")(p, xs), expected)
    close(gt.vmap(gt.jit(gt.grad(mlp), backend="eager"), (None, 0))(p, xs), expected)


def test_under_an_undecorated_gradient_that_looks_at_values():
    def f(w, xs):
        y = gt.vmap(lambda x: gt.sin(w * x))(xs)
        return y.sum() if float(y.sum()) > 0 else -y.sum()

    w, xs = gt.array(0.7), array(5)
    total = np.sin(0.7 * np.asarray(xs)).sum()
    close(gt.grad(f)(w, xs), np.sign(total) * (np.cos(0.7 * np.asarray(xs)) * np.asarray(xs)).sum(), 1e-5)


@pytest.mark.slow
@given(graphs(20, continuous=True, control=True), st.integers(1, 4), st.data())
def test_random_programs_against_the_stacked_loop(graph, size, data):
    inputs = len(graph.inputs)
    flags = data.draw(st.lists(st.booleans(), min_size=inputs, max_size=inputs).filter(any))
    examples = [data.draw(arguments(graph)) for _ in range(size)]
    args = [gt.stack([example[k] for example in examples]) if flag else examples[0][k] for k, flag in enumerate(flags)]
    check_vmap(as_function(graph), args, tuple(0 if flag else None for flag in flags))


@pytest.mark.parametrize("name", ["fft", "ifft", "fft2", "rfft", "rfftn", "irfft", "hfft"])
def test_transforms_of_a_batch_of_none(name):
    x = gt.zeros((0, 3, 4), dtype=gt.float64)
    f = getattr(gnp.fft, name)
    got = gt.vmap(f)(x)
    expected = getattr(np.fft, name)(np.zeros((3, 4)))
    assert got.numpy().shape == (0, *expected.shape)
    assert gt.grad(lambda x: gt.abs(gt.vmap(f)(x)).sum())(x).numpy().shape == x.shape


def test_convolutions_of_a_batch_of_none():
    x, y = gt.zeros((0, 5)), gt.zeros((0, 3))
    assert gt.vmap(gnp.convolve)(x, y).numpy().shape == (0, 7)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: gt.vmap(lambda x, y: x, (0,))(1, 2), gt.ArgumentError, "one entry of in_axes an argument"),
        (lambda: gt.vmap(lambda x: x, ({"a": 0},))({"b": gt.ones(2)}), gt.ArgumentError, "in_axes to be a prefix"),
        (lambda: gt.vmap(lambda x: x, 1)(gt.ones(2)), gt.ShapeError, r"axis 1 for f32\[2\] at args\[0\]"),
        (lambda: gt.vmap(lambda x, y: x)(gt.ones(2), gt.ones(3)), gt.ShapeError, r"2 at args\[0\] and 3 at args\[1\]"),
        (lambda: gt.vmap(lambda d: d)({"a": gt.ones(2), "b": gt.ones(3)}), gt.ShapeError, r"3 at args\[0\]\['b'\]"),
        (lambda: gt.vmap(lambda x: x, None)(gt.ones(2)), gt.ArgumentError, "a batched argument"),
        (lambda: gt.vmap(lambda x: x, 0, None)(gt.ones(2)), gt.ArgumentError, "differs between examples"),
        (lambda: gt.vmap(lambda x: x, 0, 3)(gt.ones(2)), gt.ShapeError, "out axis"),
        (lambda: gt.vmap(lambda x: x, 0, (0, 0))(gt.ones(2)), gt.ArgumentError, "out_axes to be a prefix"),
        (lambda: gt.vmap(lambda x: x, "a")(gt.ones(2)), gt.ArgumentError, "ints or None"),
        (lambda: gt.vmap(lambda x: x, in_axes=1, in_dims=1), gt.ArgumentError, "one and the same"),
        (lambda: gt.vmap(lambda x: x)("text"), gt.ArgumentError, "str at"),
        (lambda: gt.vmap(lambda x: x if x > 0 else -x)(gt.ones(2)), gt.ConcretizationError, "gt.where"),
        (lambda: gt.vmap(lambda x: "text")(gt.ones(2)), gt.ArgumentError, "arrays or numbers as outputs"),
        (lambda: gt.vmap(3), gt.ArgumentError, "a function"),
    ],
)
def test_wrong_calls(call, error, match):
    with pytest.raises(error, match=match) as info:
        call()
    assert "test_vmap.py:" in str(info.value)


def test_numbers_that_are_not_batched_may_be_sizes_static_arguments_and_compared():
    def powers(x, n, flag):
        assert flag is True
        return gt.stack([x**k for k in range(n)]) + gt.zeros(n)

    x = gt.array([1.0, 2.0])
    expected = [[1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]
    assert gt.vmap(powers, in_axes=(0, None, None))(x, 3, True).tolist() == expected
    jitted = gt.jit(powers, static_argnums=(1, 2), backend="eager")
    assert gt.vmap(jitted, in_axes=(0, None, None))(x, 3, True).tolist() == expected
    assert gt.vmap(lambda x, n: n, in_axes=(0, None))(x, 3).tolist() == [3, 3]
    for rate in (0.5, -0.5, 0.25):
        assert gt.vmap(lambda x, r: x * r if r > 0 else x, (0, None))(x, rate).sum() == (3 * rate if rate > 0 else 3)
