"""Derivatives that the interpreter finds in programs, and runs as torch's kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.ir.evaluate import evaluate
from gtrace.testing import assert_close

RNG = np.random.default_rng(0)
KERNELS = ["tanh_backward", "sigmoid_backward", "silu_backward", "softmax_backward"]


def ran(function, *args):
    """Return the result of a call, and which of torch's kernels for derivatives it took."""
    with gt.config(auto_compile=False), torch.autograd.profiler.profile() as profile:
        result = np.asarray(function(*args).astype(gt.float64))
    names = [event.name.removeprefix("gtrace ").partition(" at ")[0] for event in profile.function_events]
    return result, [name for name in KERNELS if name in names]


FUNCTIONS = {
    "tanh": (gt.tanh, torch.tanh, "tanh_backward"),
    "sigmoid": (gt.sigmoid, torch.sigmoid, "sigmoid_backward"),
    "silu": (gt.silu, functional.silu, "silu_backward"),
    "silu by hand": (lambda x: x * gt.sigmoid(x), functional.silu, "sigmoid_backward"),
    "softmax": (lambda x: gt.softmax(x, -1), lambda x: torch.softmax(x, -1), "softmax_backward"),
    "softmax of columns": (lambda x: gt.softmax(x, 0), lambda x: torch.softmax(x, 0), "softmax_backward"),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_equal_torch_and_take_its_kernels(name, dtype):
    own, theirs, kernel = FUNCTIONS[name]
    x, ct = (torch.from_numpy(RNG.normal(size=(5, 7)) * 3).to(dtype) for _ in range(2))
    got, kernels = ran(lambda x, ct: gt.vjp(own, x)[1](gt.sin(ct))[0], gt.from_torch(x), gt.from_torch(ct))
    assert kernels == [kernel]
    x = x.detach().requires_grad_()
    theirs(x).backward(torch.sin(ct))
    tolerance = 1e-12 if dtype is torch.float64 else 2e-2 if dtype is torch.bfloat16 else 1e-5
    np.testing.assert_allclose(got, x.grad.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_and_tangents(name):
    own, theirs, _ = FUNCTIONS[name]
    x, t = (RNG.normal(size=(2, 3)) for _ in range(2))

    def squares(f):
        return lambda x: (f(x) ** 2).sum()

    with gt.config(auto_compile=False):
        second = gt.hessian(squares(own))(gt.array(x))
        tangent = gt.jvp(own, (gt.array(x),), (gt.array(t),))[1]
        assert_close(second, torch.autograd.functional.hessian(squares(theirs), torch.from_numpy(x)).numpy())
    _, right = torch.autograd.functional.jvp(theirs, torch.from_numpy(x), torch.from_numpy(t))
    assert_close(tangent, right.numpy())


def test_what_is_not_such_a_derivative_stays():
    x, y = (gt.array(RNG.normal(size=(3, 4))) for _ in range(2))
    a, b = np.asarray(x), np.asarray(y)
    cases = [
        (lambda x, y: x * (2 - y**2), a * (2 - b**2)),
        (lambda x, y: x * (1 - gt.square(y[:1])), a * (1 - b[:1] ** 2)),
        (lambda x, y: x[:1] * (1 - gt.square(y)), a[:1] * (1 - b**2)),
        (lambda x, y: x * (y * (1 - x)), a * b * (1 - a)),
        (lambda x, y: x * y - y * (x * y).sum(), a * b - b * (a * b).sum()),
        (lambda x, y: x * y - x * x * (x * y).sum(1, keepdims=True), a * b - a * a * (a * b).sum(1, keepdims=True)),
        (lambda x, y: gt.sigmoid(x) * (y * (1 - gt.sigmoid(x)) + 1), 1 / (1 + np.exp(-a)) * (b / (1 + np.exp(a)) + 1)),
    ]
    for function, right in cases:
        got, kernels = ran(function, x, y)
        assert_close(got, right)
        assert not kernels


def test_values_that_are_used_again_keep_their_memory():
    x, ct = (gt.array(RNG.normal(size=(300, 300))) for _ in range(2))

    def both(x, ct):
        y, g = gt.tanh(x), gt.sin(ct)
        d = g * (1 - gt.square(y))
        return (d, g, y, d * g)

    with gt.config(auto_compile=False):
        got = [np.asarray(one) for one in both(x, ct)]
    y, g = np.tanh(np.asarray(x)), np.sin(np.asarray(ct))
    for one, right in zip(got, (g * (1 - y * y), g, y, g * (1 - y * y) * g), strict=True):
        assert_close(one, right)


def test_memory_of_either_operand_is_used_again():
    x, ct = (RNG.normal(size=(300, 300)) for _ in range(2))

    def of_result(x, ct):
        return ct * (1 - gt.square(gt.tanh(x)))

    def of_cotangent(x, ct):
        y = gt.tanh(x)
        return gt.sin(ct) * (1 - gt.square(y)), y

    for function, right in (
        (of_result, ct * (1 - np.tanh(x) ** 2)),
        (of_cotangent, np.sin(ct) * (1 - np.tanh(x) ** 2)),
    ):
        graph = gt.make_graph(function)(gt.array(x), gt.array(ct))
        given = [torch.from_numpy(x.copy()), torch.from_numpy(ct.copy())]
        got = interpreter(graph)(given)
        assert_close(got[0], right)
        assert (given[0].numpy() == x).all() and (given[1].numpy() == ct).all()


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 30.0]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        [
            lambda y, ct, k: ct * (k - gt.square(y)),
            lambda y, ct, k: ct * (y * (k - y)),
            lambda y, ct, k: ct * y - y * gt.sum(ct * y, -1, keepdims=True),
            lambda y, ct, k: gt.sum(ct * y, -1, keepdims=True) * y - ct * y,
            lambda y, ct, k: ct * (gt.sigmoid(y) * (y * (k - gt.sigmoid(y)) + 1)),
            lambda y, ct, k: gt.minimum(gt.maximum(y, -k), k),
            lambda y, ct, k: gt.minimum(gt.maximum(y, ct), k),
        ]
    ),
    st.lists(st.sampled_from(SPECIAL), min_size=4, max_size=4),
    st.lists(st.sampled_from(SPECIAL), min_size=4, max_size=4),
    st.sampled_from([1, 1.0, -1.0, 2.0, 0.0]),
    st.sampled_from([(4,), (2, 2), (1, 4), (4, 1)]),
)
def test_near_misses_give_what_they_give_operation_by_operation(function, y, ct, k, shape):
    arrays = [gt.array(x).reshape(shape) for x in (y, ct)]
    graph = gt.make_graph(lambda y, ct: function(y, ct, k))(*arrays)
    inputs = [torch.from_numpy(np.array(x)) for x in arrays]
    (right,) = evaluate(graph, *inputs)
    (came,) = interpreter(graph)(inputs)
    torch.testing.assert_close(came, right, rtol=1e-5, atol=1e-6, equal_nan=True)
