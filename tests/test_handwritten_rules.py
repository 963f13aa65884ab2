"""Convolution, pooling and linear algebra, whose rules are written out: no torch.compile is imported for them."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import textwrap

import launch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace import nn
from gtrace.core.ir.aval import aval
from gtrace.core.passes.canonical import canonicalize
from gtrace.interop import calls
from gtrace.interop.aten import derived_rules, operation
from gtrace.interop.aten.derived_on_disk import derivations
from gtrace.testing import assert_close

X, W, B = gt.ones((2, 4, 9, 8)), gt.ones((6, 4, 3, 3)), gt.ones(6)
CASES = {
    "convolution": (lambda x, w, b: nn.conv2d(x, w, b, 2, 1), (X, W, B)),
    "groups and dilation": (lambda x, w: nn.conv2d(x, w, padding=(2, 1), dilation=(2, 1), groups=2), (X, W[:, :2])),
    "the same size": (lambda x, w: nn.conv2d(x, w, padding="same"), (X, W)),
    "one axis": (lambda x, w: nn.conv1d(x, w, stride=2), (X[:, :, 0], W[:, :, 0])),
    "three axes": (lambda x, w, b: nn.conv3d(x, w, b, padding=1), (X[:, :, None], W[..., None], B)),
    "transposed": (
        lambda x, w, b: nn.conv_transpose2d(x, w, b, 2, 1, (1, 0)), (X, gt.ones((4, 6, 3, 3)), B)
    ),
    "largest": (lambda x: nn.max_pool2d(x, 2), (X,)),
    "largest, of one image": (lambda x: nn.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2)), (X[0],)),
    "largest, beyond the end": (lambda x: nn.max_pool2d(x, 2, ceil_mode=True), (X,)),
    "means": (lambda x: nn.avg_pool2d(x, 2), (X,)),
    "means, all constants": (lambda x: nn.avg_pool2d(x, (3, 2), 1, (1, 0), True, False, 5), (X,)),
    "sums": (lambda x: nn.avg_pool2d(x, 2, 1, divisor_override=1), (X,)),
}  # fmt: skip


def recorded(function, args):
    """The text of a function's canonical graph, and of its gradient's."""

    def loss(*args):
        return gt.sum(gt.sin(function(*args)))

    graphs = gt.make_graph(function)(*args), gt.make_graph(gt.grad(loss, tuple(range(len(args)))))(*args)
    return [str(canonicalize(graph).graph) for graph in graphs]


@pytest.mark.parametrize("case", CASES)
def test_written_rules_are_those_that_torch_records(case, monkeypatch):
    function, args = CASES[case]
    found = recorded(function, args)
    monkeypatch.setattr(operation, "PULLBACKS", {})
    for name in ("convolution", "max_pool", "avg_pool"):
        monkeypatch.setattr(f"gtrace.nn.convolution.{name}", lambda *args: None)
    assert found == recorded(function, args)


sizes = st.tuples(st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=150)
@given(st.data())
def test_written_types_are_those_of_torch(data):
    overload = data.draw(st.sampled_from(sorted(operation.TYPES)))
    x = aval((data.draw(st.integers(1, 2)), data.draw(st.sampled_from([2, 4])), *data.draw(sizes)), gt.float32)
    window, steps, zeros, gaps, more = (data.draw(sizes) for _ in range(5))
    if overload.startswith("aten.convolution."):
        transposed, groups = data.draw(st.booleans()), data.draw(st.integers(1, 2))
        weight = aval((data.draw(st.sampled_from([2, 4])), data.draw(st.integers(1, 4)), *window), gt.float32)
        args = "x", "x", None, steps, zeros, gaps, transposed, more, groups
        avals = x, weight
    elif "max_pool" in overload and "backward" not in overload:
        args = ("x", window, steps, zeros, gaps, data.draw(st.booleans()))[: data.draw(st.integers(2, 6))]
        avals = (x,)
    elif "vector_norm" in overload:
        args = ("x", data.draw(st.sampled_from([2, 1, 0.5])), data.draw(st.sampled_from([None, (1,), (-1, 0)])), True)
        args, avals = args[: data.draw(st.integers(1, 4))], (x,)
    elif "avg_pool" in overload and "backward" not in overload:
        args = ("x", window, steps, zeros, data.draw(st.booleans()), False, 3)[: data.draw(st.integers(2, 7))]
        avals = (x,)
    elif "linalg" in overload:
        rows, columns = data.draw(sizes)
        x = aval((*data.draw(st.sampled_from([(), (2,)])), rows + 1, columns + 1), gt.float32)
        args, avals = ("x",), (x,)
        if "solve" in overload:
            args = ("x", "x") if "_ex" in overload else ("x", "x", True)
            avals = x, aval((*x.shape[:-1], data.draw(st.integers(1, 3))), gt.float32)
    else:
        return  # the types of operands
    written = operation.TYPES[overload](avals, args)
    if written is not None:
        assert written is operation._type_on_meta(avals, overload, args)


@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("order", [2, 1, 3])
def test_norms_with_their_derivatives_and_batches(axis, keepdims, order):
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(2, 3, 4, 5, 2))
    x[:, 1] = 0.0

    def norm(x):
        return gt.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=order)

    def plainly(x):
        own = axis if axis is None or isinstance(axis, tuple) else (axis,)
        return torch.linalg.vector_norm(x, order, own, keepdims)

    def close(got, expected):
        np.testing.assert_allclose(np.asarray(got), expected.numpy(), rtol=1e-12, atol=1e-14)

    given, tangent = torch.tensor(x), torch.tensor(t)
    close(norm(x), plainly(given))
    loss = lambda norm, sin: lambda x: sin(norm(x)).sum()  # noqa: E731
    close(gt.grad(loss(norm, gt.sin))(x), torch.func.grad(loss(plainly, torch.sin))(given))
    forward = gt.jvp(loss(norm, gt.sin), (x,), (t,))[1]
    close(forward, (torch.func.grad(loss(plainly, torch.sin))(given) * tangent).sum())
    several = np.stack([x, t])
    close(gt.vmap(norm)(several), torch.stack([plainly(given), plainly(tangent)]))
    away = torch.tensor(t)
    close(gt.vmap(gt.grad(loss(norm, gt.sin)))(np.stack([t, t]))[0], torch.func.grad(loss(plainly, torch.sin))(away))
    second = gt.grad(lambda x: gt.sum(gt.grad(loss(norm, gt.sin))(x) ** 2))(t)
    close(second, torch.func.grad(lambda x: (torch.func.grad(loss(plainly, torch.sin))(x) ** 2).sum())(away))


@pytest.mark.parametrize(("shape", "groups"), [((3, 8, 5, 4), 4), ((2, 6), 3), ((2, 6, 7), 1), ((0, 4, 3), 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norms_with_their_derivatives_and_batches(shape, groups, affine):
    """The gradient is one call, of torch's kernel, and has derivatives itself."""
    torch.manual_seed(0)
    module = torch.nn.GroupNorm(groups, shape[1], affine=affine).double()
    x, w = torch.randn(2, *shape, dtype=torch.float64)
    apply = gt.from_module(module)[1]
    for p in module.parameters():
        p.data.normal_()
    values = [x.requires_grad_(), *module.parameters()]
    args = [gt.array(one.detach()) for one in values]

    def loss(x, *p):
        return (apply(dict(zip(("weight", "bias"), p, strict=False)), x) ** 3).sum()

    every = tuple(range(len(args)))
    gradient = gt.grad(loss, every)
    calls = [n.attributes["overload"] for n in gt.make_graph(gradient)(*args).nodes if "overload" in n.op.params]
    assert "aten.native_group_norm_backward.default" in calls
    expected = torch.autograd.grad((module(x) ** 3).sum(), values, create_graph=True)
    second = gt.grad(lambda *args: sum(gt.sin(one).sum() for one in gradient(*args)), every)
    expected_second = torch.autograd.grad(sum(torch.sin(one).sum() for one in expected), values, retain_graph=True)
    for ours, theirs in zip((*gradient(*args), *second(*args)), (*expected, *expected_second), strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-8, atol=1e-9)

    def hessian_product(w):
        return gt.jvp(lambda x: gt.grad(loss)(x, *args[1:]), (args[0],), (w,))[1]

    product = torch.autograd.grad((expected[0] * w).sum(), x) if x.numel() else (x,)
    batch = gt.vmap(hessian_product)(gt.stack([gt.array(w), gt.array(w) * 2]))
    np.testing.assert_allclose(batch[1], 2 * product[0].detach(), rtol=1e-8, atol=1e-9)


def test_factors_and_triangular_systems_with_their_derivatives_and_batches():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 4, 4))
    x, b = x @ x.swapaxes(1, 2) + np.eye(4), rng.normal(size=(2, 4, 3))

    def close(got, expected):
        np.testing.assert_allclose(np.asarray(got), expected.detach().numpy(), rtol=1e-9, atol=1e-11)

    def ours(x, b, lower=True):
        half = gt.linalg.cholesky(x)
        return gt.linalg.solve_triangular(half if lower else half.mT, b, lower=lower)

    def torchs(x, b, lower=True):
        half = torch.linalg.cholesky(x)
        return torch.linalg.solve_triangular(half if lower else half.mT, b, upper=not lower)

    given = torch.tensor(x), torch.tensor(b)
    for lower in (True, False):
        loss = lambda f, sin: lambda x, b: sin(f(x, b, lower)).sum()  # noqa: B023, E731
        close(ours(x, b, lower), torchs(*given, lower))
        mine, theirs = loss(ours, gt.sin), loss(torchs, torch.sin)
        expected = torch.func.grad(theirs, (0, 1))(*given)
        for got in (gt.grad(mine, (0, 1))(x, b), gt.vmap(gt.grad(mine, (0, 1)))(x, b)):
            for one, other in zip(got, expected, strict=True):
                close(one, other)
        close(gt.vmap(ours, in_axes=(None, 0))(x[0], b), torchs(given[0][0].expand(2, 4, 4), given[1]))
        second = gt.grad(lambda x: gt.sum(gt.grad(mine)(x, b) ** 2))(x)  # noqa: B023
        close(second, torch.func.grad(lambda x: (torch.func.grad(theirs)(x, given[1]) ** 2).sum())(given[0]))  # noqa: B023
    close(gt.vmap(lambda m: gt.linalg.eigh(m, UPLO="U").eigenvalues)(x), torch.linalg.eigh(given[0]).eigenvalues)
    close(gt.grad(lambda m: gt.linalg.eigh(m).eigenvalues[..., 1].sum())(x),
          torch.func.grad(lambda m: torch.linalg.eigh(m).eigenvalues[..., 1].sum())(given[0]))  # fmt: skip
    assert gt.isnan(gt.linalg.cholesky(-x)).tolist() == torch.ones(2, 4, 4).tril().bool().tolist()


W2 = gt.ones((6, 2, 3, 3))
BATCHED = {
    "convolution": (lambda x, w, b: nn.conv2d(x, w, b, 2, 1), (X, W, B)),
    "groups": (lambda x, w, b: nn.conv2d(x, w, b, padding=(2, 1), dilation=(2, 1), groups=2), (X, W2, B)),
    "one axis": (lambda x, w: nn.conv1d(x, w, stride=2), (X[:, :, 0], W[:, :, 0])),
    "transposed": (lambda x, w, b: nn.conv_transpose2d(x, w, b, 2, 1, (1, 0)), (X, gt.ones((4, 6, 3, 3)), B)),
    "transposed groups": (lambda x, w: nn.conv_transpose2d(x, w, groups=2), (X, gt.ones((4, 3, 3, 3)))),
    "largest": (lambda x: nn.max_pool2d(x, 2), (X,)),
    "largest, of one image": (lambda x: nn.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2)), (X[0],)),
    "means": (lambda x: nn.avg_pool2d(x, (3, 2), 1, (1, 0), True, False, 5), (X,)),
}


@pytest.mark.parametrize("case", BATCHED)
def test_batches_of_windows_are_what_the_examples_give(case):
    function, args = BATCHED[case]
    rng = np.random.default_rng(0)
    every = tuple(range(len(args)))

    def gradients(*args):
        return gt.grad(lambda *args: gt.sum(gt.sin(function(*args))), every)(*args)

    for flags in itertools.product([True, False], repeat=len(args)):
        if not any(flags):
            continue
        given = [rng.normal(size=(3, *x.shape) if flag else x.shape) for x, flag in zip(args, flags, strict=True)]
        examples = [[x[k] if flag else x for x, flag in zip(given, flags, strict=True)] for k in range(3)]
        axes = tuple(0 if flag else None for flag in flags)
        got = gt.vmap(lambda *args: (function(*args), *gradients(*args)), in_axes=axes)(*given)
        expected = zip(*[(function(*one), *gradients(*one)) for one in examples], strict=True)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, np.stack([np.asarray(x) for x in other]), rtol=1e-9, atol=1e-11)


WINDOWS = {
    "convolution": (lambda nn, x, w, b: nn.conv2d(x, w, b, 2, 1), (X, W, B)),
    "groups and dilation": (lambda nn, x, w: nn.conv2d(x, w, None, 1, (2, 1), (2, 1), 2), (X, W2)),
    "one axis": (lambda nn, x, w: nn.conv1d(x, w, None, 2), (X[:, :, 0], W[:, :, 0])),
    "one image": (lambda nn, x, w, b: nn.conv2d(x, w, b), (X[0], W, B)),
    "transposed": (lambda nn, x, w, b: nn.conv_transpose2d(x, w, b, 2, 1, (1, 0)), (X, gt.ones((4, 6, 3, 3)), B)),
    "largest": (lambda nn, x: nn.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2)), (X,)),
    "largest of one image": (lambda nn, x: nn.max_pool2d(x, 2), (X[0],)),
    "means": (lambda nn, x: nn.avg_pool2d(x, (3, 2), 1, (1, 0), True, False, 5), (X,)),
}


@pytest.fixture
def nothing_is_traced(monkeypatch):
    """Fail where a rule is derived from torch, or a function of torch is traced."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"traced: {args}")

    monkeypatch.setattr(derived_rules, "trace_rule", refuse)
    monkeypatch.setattr(calls, "trace_function", refuse)
    monkeypatch.setattr(derivations, "find", lambda key, read: None)
    monkeypatch.setattr(derived_rules, "_rules", {})
    monkeypatch.setattr(derived_rules, "_kinds", {})


def check_derivatives(ours, plain, args, rtol=1e-8):
    """Hold values, both modes, all second derivatives and batches of a function against torch, in float64."""
    rng = np.random.default_rng(9)
    every = tuple(range(len(args)))
    args = [np.asarray(x, dtype="float64") for x in args]
    moves = [rng.normal(size=x.shape) for x in args]
    given, tangents = [torch.tensor(x) for x in args], [torch.tensor(x) for x in moves]

    def close(got, expected):
        for one, other in zip(got, expected, strict=True):
            scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
            np.testing.assert_allclose(np.asarray(one), other.detach().numpy(), rtol=rtol, atol=rtol * scale / 100)

    def loss(sin, function):
        return lambda *args: sin(function(*args)).sum()

    def gradient(*args):
        return gt.grad(loss(gt.sin, ours), every)(*args)

    def moved(*args):
        return gt.jvp(ours, args, tuple(moves))[1]

    def plain_gradient(*args):
        return torch.func.grad(loss(torch.sin, plain), every)(*args)

    def plain_moved(*args):
        return torch.func.jvp(plain, args, tuple(tangents))[1]

    close([ours(*args)], [plain(*given)])
    expected = plain_gradient(*given)
    close(gradient(*args), expected)
    change = plain_moved(*given)
    close([moved(*args)], [change])

    def along(gradients, moves):
        return sum((g * t).sum() for g, t in zip(gradients, moves, strict=True))

    second = torch.func.grad(lambda *args: along(plain_gradient(*args), tangents), every)(*given)
    close(gt.jvp(gradient, args, tuple(moves))[1], second)
    close(gt.grad(lambda *args: along(gradient(*args), moves), every)(*args), second)

    def slope(*args):
        return gt.jvp(loss(gt.sin, ours), args, tuple(moves))[1]

    close([gt.jvp(slope, args, tuple(moves))[1]], [along(second, tangents)])
    close(gt.grad(slope, every)(*args), second)
    stacked = [np.stack([x, x]) for x in args]
    close(gt.vmap(ours)(*stacked), [plain(*given)] * 2)
    close([g[1] for g in gt.vmap(gradient)(*stacked)], expected)
    both = gt.vmap(lambda *moves: gt.jvp(ours, args, moves)[1])(*[np.stack([t, 2 * t]) for t in moves])
    close(both, [change, 2 * change])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's forward mode
@pytest.mark.parametrize("case", WINDOWS)
def test_windows_in_both_modes_twice(case, nothing_is_traced):
    function, args = WINDOWS[case]
    rng = np.random.default_rng(3)
    args = [rng.normal(size=x.shape) for x in args]
    check_derivatives(functools.partial(function, nn), functools.partial(function, torch.nn.functional), args)


TALL = np.random.default_rng(1).normal(size=(2, 4, 3))
SQUARE, RIGHT = np.random.default_rng(2).normal(size=(2, 3, 3)), np.random.default_rng(3).normal(size=(2, 3, 2))
LINEAR = {
    "solve": (lambda linalg, a, b: linalg.solve(a, b), (SQUARE, RIGHT)),
    "inv": (lambda linalg, x: linalg.inv(x), (SQUARE,)),
    "slogdet": (lambda linalg, x: linalg.slogdet(x)[1], (SQUARE,)),
    "sign of slogdet": (lambda linalg, x: linalg.slogdet(x)[0] + 0 * x[..., 0, 0], (SQUARE,)),
    "Q": (lambda linalg, x: linalg.qr(x)[0], (TALL,)),
    "R": (lambda linalg, x: linalg.qr(x)[1], (TALL,)),
    "Q and R": (lambda linalg, x: linalg.qr(x)[0] @ linalg.qr(x * x)[1], (TALL,)),
    "wide R": (lambda linalg, x: linalg.qr(x)[1], (TALL.swapaxes(-1, -2),)),
    "eigenvalues": (lambda linalg, x: linalg.eigh(x + x.mT)[0], (SQUARE,)),
    "eigenvectors": (lambda linalg, x: linalg.eigh(x + x.mT)[1] ** 2, (SQUARE,)),
    "singular values": (lambda linalg, x: linalg.svdvals(x), (TALL,)),
    "left": (lambda linalg, x: linalg.svd(x, full_matrices=False)[0] ** 2, (TALL,)),
    "right": (lambda linalg, x: linalg.svd(x, full_matrices=False)[2] ** 2, (TALL,)),
    "left of wide ones": (lambda linalg, x: linalg.svd(x, full_matrices=False)[0] ** 2, (TALL.swapaxes(-1, -2),)),
    "right of wide ones": (lambda linalg, x: linalg.svd(x, full_matrices=False)[2] ** 2, (TALL.swapaxes(-1, -2),)),
    "all of square ones": (
        lambda linalg, x: (linalg.svd(x)[0] * linalg.svd(x)[1][..., None, :]) ** 2 @ (linalg.svd(x)[2] ** 2),
        (SQUARE,),
    ),
    "values of full ones": (lambda linalg, x: linalg.svd(x)[1], (TALL,)),
    "values alone": (lambda linalg, x: linalg.eigvalsh(x + x.mT), (SQUARE,)),
    "both": (lambda linalg, x: linalg.eigh(x + x.mT)[1] ** 2 * linalg.eigh(x + x.mT)[0][..., None], (SQUARE,)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_algebra_with_its_derivatives_and_batches(name):
    function, args = LINEAR[name]
    ours, torchs = functools.partial(function, gt.linalg), functools.partial(function, torch.linalg)
    every = tuple(range(len(args)))

    def close(got, expected):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(np.asarray(one), other.detach().numpy(), rtol=1e-8, atol=1e-10)

    def gradient(*args):
        return gt.grad(lambda *args: gt.sin(ours(*args)).sum(), every)(*args)

    def plain_gradient(*args):
        return torch.func.grad(lambda *args: torch.sin(torchs(*args)).sum(), every)(*args)

    given = [torch.tensor(x) for x in args]
    close([ours(*args)], [torchs(*given)])
    close([gt.vmap(ours)(*args)], [torchs(*given)])
    expected = plain_gradient(*given)
    close(gradient(*args), expected)
    close(gt.vmap(gradient)(*args), expected)
    if name != "wide R":  # torch has no second derivative of it
        second = torch.func.grad(lambda *args: sum((g**2).sum() for g in plain_gradient(*args)), every)(*given)
        close(gt.grad(lambda *args: sum(gt.sum(g**2) for g in gradient(*args)), every)(*args), second)


WIDE, TRIANGLE = TALL.swapaxes(-1, -2), np.eye(3) * 2 + SQUARE / 4
POSITIVE = SQUARE @ SQUARE.swapaxes(-1, -2) + np.eye(3)
LARGER = np.random.default_rng(6).normal(size=(2, 5, 5))
PLAIN = torch.linalg
BOTH_MODES = {
    "cholesky": (lambda x: gt.linalg.cholesky(x @ x.mT), lambda x: PLAIN.cholesky(x @ x.mT), (POSITIVE,)),
    "inv": (gt.linalg.inv, PLAIN.inv, (TRIANGLE,)),
    "solve": (gt.linalg.solve, PLAIN.solve, (TRIANGLE, RIGHT)),
    "lower": (
        lambda a, b: gt.linalg.solve_triangular(a, b, lower=True),
        lambda a, b: PLAIN.solve_triangular(a, b, upper=False), (TRIANGLE, RIGHT),
    ),
    "upper, ones": (
        lambda a, b: gt.linalg.solve_triangular(a, b, unit_diagonal=True),
        lambda a, b: PLAIN.solve_triangular(a, b, upper=True, unitriangular=True), (TRIANGLE, RIGHT),
    ),
    "det": (gt.linalg.det, PLAIN.det, (LARGER,)),
    "slogdet": (lambda x: gt.linalg.slogdet(x)[1], lambda x: PLAIN.slogdet(x)[1], (TRIANGLE,)),
    "Q": (lambda x: gt.linalg.qr(x)[0], lambda x: PLAIN.qr(x)[0], (TALL,)),
    "R": (lambda x: gt.linalg.qr(x)[1], lambda x: PLAIN.qr(x)[1], (TALL,)),
    "Q of square ones": (lambda x: gt.linalg.qr(x, "complete")[0], lambda x: PLAIN.qr(x)[0], (TRIANGLE,)),
    "singular values": (gt.linalg.svdvals, PLAIN.svdvals, (TALL,)),
    "vectors": (lambda x: gt.linalg.svd(x, full_matrices=False)[0] ** 2 @ gt.linalg.svd(x, full_matrices=False)[2] ** 2,
                lambda x: PLAIN.svd(x, False)[0] ** 2 @ PLAIN.svd(x, False)[2] ** 2, (TALL,)),
    "vectors of wide ones": (lambda x: gt.linalg.svd(x, full_matrices=False)[2] ** 2,
                             lambda x: PLAIN.svd(x, False)[2] ** 2, (WIDE,)),
    "eigh": (lambda x: gt.linalg.eigh(x + x.mT)[1] ** 2 * gt.linalg.eigh(x + x.mT)[0][..., None],
             lambda x: PLAIN.eigh(x + x.mT)[1] ** 2 * PLAIN.eigh(x + x.mT)[0][..., None], (SQUARE,)),
    "eigenvalues": (lambda x: abs(gt.linalg.eigvals(x) - 0.3), lambda x: abs(PLAIN.eig(x)[0] - 0.3), (SQUARE,)),
    "eigenvectors": (lambda x: abs(gt.linalg.eig(x)[1]), lambda x: abs(PLAIN.eig(x)[1]), (SQUARE,)),
    "expm": (gt.linalg.expm, PLAIN.matrix_exp, (SQUARE,)),
    "pinv": (gt.linalg.pinv, PLAIN.pinv, (TALL,)),
    "pinv of wide ones": (lambda x: gt.linalg.pinv(x, rtol=1e-9), lambda x: PLAIN.pinv(x, rtol=1e-9), (WIDE,)),
    "pinv of symmetric ones": (
        lambda x: gt.linalg.pinv(x + x.mT, hermitian=True), lambda x: PLAIN.pinv(x + x.mT, hermitian=True), (TRIANGLE,)
    ),
    "lstsq": (lambda a, b: gt.linalg.lstsq(a, b)[0], lambda a, b: PLAIN.pinv(a) @ b, (TALL[0], TALL[1][:, :2])),
    "cond": (gt.linalg.cond, lambda x: PLAIN.svdvals(x)[..., 0] / PLAIN.svdvals(x)[..., -1], (SQUARE,)),
    "lu_factor": (lambda x: gt.linalg.lu_factor(x)[0], lambda x: PLAIN.lu_factor(x)[0], (LARGER,)),
    "lu of tall ones": (lambda x: gt.linalg.lu(x)[1], lambda x: PLAIN.lu(x)[1], (TALL,)),
    "lu of wide ones": (lambda x: gt.linalg.lu(x)[2], lambda x: PLAIN.lu(x)[2], (WIDE,)),
    "multi_dot": (
        lambda a, b, c: gt.linalg.multi_dot([a, b, c, a[0]]), lambda a, b, c: PLAIN.multi_dot([a, b, c, a[0]]),
        (SQUARE[0], RIGHT[0], RIGHT[1].T),
    ),
    "whole lu": (lambda x: gt.linalg.lu(x)[1] * gt.linalg.lu(x)[0] @ gt.linalg.lu(x)[2],
                 lambda x: PLAIN.lu(x)[1] * PLAIN.lu(x)[0] @ PLAIN.lu(x)[2], (SQUARE,)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", BOTH_MODES)
def test_linear_algebra_in_both_modes_twice(name, nothing_is_traced):
    ours, plain, args = BOTH_MODES[name]
    check_derivatives(ours, plain, args, rtol=1e-7)


def cofactors(x):
    n = len(x)
    return np.array([[np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) * (-1) ** (i + j) for j in range(n)]
                     for i in range(n)])  # fmt: skip


def replaced_rows(x, move, count):
    """The derivative of det, `count` times in one direction: det is linear in each row."""
    total = 0.0
    for rows in itertools.permutations(range(len(x)), count):
        y = x.copy()
        y[list(rows)] = move[list(rows)]
        total += np.linalg.det(y)
    return total


@pytest.mark.parametrize("kind", ["product", "zero rows", "zero columns"])
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
@pytest.mark.parametrize("n", [4, 5, 8])
def test_determinants_of_singular_matrices_have_derivatives(n, lost, kind, nothing_is_traced):
    rng = np.random.default_rng(n)
    x, move = rng.normal(size=(n, n)), rng.normal(size=(n, n))
    if kind == "product":
        x = x[:, lost:] @ rng.normal(size=(n, n))[lost:]
    elif kind == "zero rows":
        x[:lost] = 0
    else:
        x[:, :lost] = 0
    gradient = gt.grad(gt.linalg.det)
    scale = np.linalg.norm(x) ** (n - 1)
    np.testing.assert_allclose(gradient(x), cofactors(x), rtol=1e-9, atol=1e-12 * scale)
    np.testing.assert_allclose(gt.vmap(gradient)(np.stack([move, x]))[1], gradient(x), rtol=1e-9, atol=1e-12 * scale)

    def slope(x):
        return gt.jvp(gt.linalg.det, (x,), (move,))[1]

    def curvature(x):
        return gt.jvp(slope, (x,), (move,))[1]

    for count, got in ((1, slope(x)), (2, curvature(x)), (3, gt.jvp(curvature, (x,), (move,))[1])):
        np.testing.assert_allclose(got, replaced_rows(x, move, count), rtol=1e-8, atol=1e-11 * scale)
    second = (gt.grad(lambda x: (gradient(x) * move).sum())(x) * move).sum()
    np.testing.assert_allclose(second, replaced_rows(x, move, 2), rtol=1e-8, atol=1e-11 * scale)


def test_determinants_of_what_is_no_number():
    assert gt.isnan(gt.grad(gt.linalg.det)(np.full((4, 4), np.nan))).all()


COMPLEX = {
    "cholesky": (lambda x: gt.linalg.cholesky(x @ gt.conj(x.mT)), lambda x: PLAIN.cholesky(x @ x.mH)),
    "inv": (gt.linalg.inv, PLAIN.inv),
    "solve": (lambda x: gt.linalg.solve(x, x @ x + 1), lambda x: PLAIN.solve(x, x @ x + 1)),
    "det": (gt.linalg.det, PLAIN.det),
    "sign of slogdet": (lambda x: gt.linalg.slogdet(x)[0], lambda x: PLAIN.slogdet(x)[0]),
    "slogdet": (lambda x: gt.linalg.slogdet(x)[1], lambda x: PLAIN.slogdet(x)[1]),
    "Q": (lambda x: gt.linalg.qr(x[:, :3])[0], lambda x: PLAIN.qr(x[:, :3])[0]),
    "R": (lambda x: gt.linalg.qr(x[:3])[1], lambda x: PLAIN.qr(x[:3])[1]),
    "singular values": (lambda x: gt.linalg.svdvals(x[:3]), lambda x: PLAIN.svdvals(x[:3])),
    "left": (lambda x: abs(gt.linalg.svd(x[:, :3], full_matrices=False)[0]) ** 2,
             lambda x: abs(PLAIN.svd(x[:, :3], False)[0]) ** 2),
    "polar": (lambda x: (lambda u, s, v: u @ v)(*gt.linalg.svd(x)), lambda x: (lambda u, s, v: u @ v)(*PLAIN.svd(x))),
    "eigh": (lambda x: abs(gt.linalg.eigh(x + gt.conj(x.mT))[1]) ** 2, lambda x: abs(PLAIN.eigh(x + x.mH)[1]) ** 2),
    "eigvalsh": (lambda x: gt.linalg.eigvalsh(x + gt.conj(x.mT)), lambda x: PLAIN.eigvalsh(x + x.mH)),
    "eig": (lambda x: gt.linalg.eig(x)[0], lambda x: PLAIN.eig(x)[0]),
    "eigenvectors": (lambda x: abs(gt.linalg.eig(x)[1]) ** 2, lambda x: abs(PLAIN.eig(x)[1]) ** 2),
    "expm": (gt.linalg.expm, PLAIN.matrix_exp),
    "pinv": (lambda x: gt.linalg.pinv(x[:, :3]), lambda x: PLAIN.pinv(x[:, :3])),
    "lu": (lambda x: gt.linalg.lu(x)[1] * gt.linalg.lu(x)[2], lambda x: PLAIN.lu(x)[1] * PLAIN.lu(x)[2]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", COMPLEX)
def test_linear_algebra_of_complex_matrices(name, nothing_is_traced):
    ours, plain = COMPLEX[name]
    x, move, weights = np.random.default_rng(12).normal(size=(3, 2, 4, 4))
    x, move, weights = (one[0] + 1j * one[1] for one in (x, move, weights))

    def loss(x):
        y = ours(x).ravel()
        y = y * weights.ravel()[: y.size]
        return gt.real(y * y + y).sum()

    def plain_loss(x):
        y = plain(x).ravel()
        y = y * torch.tensor(weights.ravel()[: y.numel()])
        return (y * y + y).real.sum()

    given = torch.tensor(x)
    np.testing.assert_allclose(ours(x), plain(given), rtol=1e-9, atol=1e-11)
    expected = torch.func.grad(plain_loss)(given).conj().resolve_conj()
    for got in (gt.grad(loss)(x), gt.vmap(gt.grad(loss))(x[None])[0]):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9)
    slope = torch.func.jvp(plain_loss, (given,), (torch.tensor(move),))[1]
    assert_close(gt.jvp(loss, (x,), (move,))[1], slope)
    step = 1e-5
    ahead, behind = (np.asarray(gt.grad(loss)(x + way * step * move)) for way in (1, -1))
    second = np.asarray(gt.jvp(gt.grad(loss), (x,), (move,))[1])
    np.testing.assert_allclose(second, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6 * abs(second).max())
    both = gt.jvp(lambda x: gt.jvp(loss, (x,), (move,))[1], (x,), (move,))[1]
    assert_close(both, (second * move).sum().real, steps=5_000)  # expm squares products of products


def test_a_system_whose_matrix_all_examples_share():
    got = gt.vmap(gt.linalg.solve, in_axes=(None, 0))(SQUARE[0], RIGHT)
    assert_close(got, np.linalg.solve(SQUARE[:1], RIGHT))
    got = gt.vmap(gt.linalg.solve, in_axes=(0, None))(SQUARE, RIGHT[0])
    assert_close(got, np.linalg.solve(SQUARE, RIGHT[:1]))


ROWS = np.random.default_rng(4).normal(size=(2, 3, 4, 6))
TRANSFORMS = {
    "fft": [(), (None, 1), (6, -1, "ortho"), (None, -2, "forward")],
    "ifft": [(), (None, 1), (None, -1, "ortho")],
    "rfft": [(), (None, 1), (None, -1, "ortho"), (None, -1, "forward"), (5,)],
    "irfft": [(), (None, 1), (11,), (None, -1, "ortho"), (4,)],
    "fft2": [(), (None, (0, 1), "ortho")],
    "ifft2": [()],
    "rfft2": [(), (None, (1, 0))],
    "irfft2": [(), (None, (1, 0)), ((4, 11), (-2, -1), "forward")],
    "fftn": [()],
    "rfftn": [()],
    "irfftn": [(), ((3, 4, 11),)],
}


@pytest.mark.slow
@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize(("name", "args"), [(name, args) for name, each in TRANSFORMS.items() for args in each])
def test_fourier_transforms_with_their_derivatives_and_batches(name, args, complex_):
    if complex_ and name.startswith("rfft"):
        return
    one = name.endswith("fft")
    keywords = dict(zip(("n", "axis", "norm") if one else ("s", "axes", "norm"), args, strict=False))
    torchs = dict(zip(("n" if one else "s", "dim", "norm"), args, strict=False))
    weights = np.random.default_rng(5).normal(size=64)

    def ours(x, y):
        z = getattr(gt.fft, name)(x + 1j * y if complex_ else x, **keywords)
        return gt.concat([gt.real(z).ravel(), gt.imag(z).ravel() if z.aval.complex else gt.zeros(0, "float64")])

    def plainly(x, y):
        z = getattr(torch.fft, name)(torch.complex(x, y) if complex_ else x, **torchs)
        return torch.cat([z.real.ravel(), z.imag.ravel()]) if z.is_complex() else z.ravel()

    def loss(sin, function, weights):
        return lambda x, y: (sin(function(x, y)) * weights(function(x, y).shape[0])).sum()

    mine = loss(gt.sin, ours, lambda n: np.resize(weights, n))
    theirs = loss(torch.sin, plainly, lambda n: torch.tensor(np.resize(weights, n)))
    x, y = ROWS[0], ROWS[1]
    tx, ty = torch.tensor(x), torch.tensor(y)

    def close(got, expected):
        np.testing.assert_allclose(np.asarray(got), expected.numpy(), rtol=1e-8, atol=1e-9)

    close(ours(x, y), plainly(tx, ty))
    every = (0, 1) if complex_ else 0
    expected = torch.func.grad(theirs, every)(tx, ty)
    got = gt.grad(mine, every)(x, y)
    for one, other in zip(got, expected, strict=True) if complex_ else [(got, expected)]:
        close(one, other)
    close(gt.jvp(lambda x: mine(x, y), (x,), (y,))[1], torch.func.jvp(lambda x: theirs(x, ty), (tx,), (ty,))[1])
    both = gt.vmap(gt.grad(mine, 0))(np.stack([x, y]), np.stack([y, x]))
    close(both[0], expected[0] if complex_ else expected)
    close(both[1], torch.func.grad(theirs, 0)(ty, tx))
    second = torch.func.grad(lambda x: (torch.func.grad(theirs, 0)(x, ty) ** 2).sum())(tx)
    close(gt.grad(lambda x: gt.sum(gt.grad(mine, 0)(x, y) ** 2))(x), second)


CODE = {
    "networks": """
        from gtrace import nn

        def loss(w, u, v, x):
            h = nn.max_pool2d(nn.relu(nn.conv2d(x, w, padding=1)), 2)
            h = nn.conv_transpose2d(nn.avg_pool2d(nn.conv2d(h, u, stride=2), 2), v, stride=2)
            return gt.sum(h * h)

        w, u, v, x = (gt.ones(shape) for shape in ((4, 3, 3, 3), (6, 4, 3, 3), (6, 2, 2, 2), (2, 3, 16, 16)))
        gt.eval(gt.value_and_grad(loss, (0, 1, 2))(w, u, v, x))
        gt.eval(gt.vmap(gt.grad(loss, (0, 1, 2)), (None, None, None, 0))(w, u, v, x[:, None]))
    """,
    "forward mode": """
        from gtrace import nn

        def network(w, u, x):
            h = nn.max_pool2d(nn.relu(nn.conv2d(x, w, padding=1)), 2)
            return gt.sum(nn.avg_pool2d(nn.conv_transpose2d(h, u, stride=2), 2) ** 2)

        w, u, x = (gt.ones(shape) for shape in ((4, 3, 3, 3), (4, 6, 2, 2), (2, 3, 8, 8)))
        gt.eval(gt.jvp(network, (w, u, x), (w, u, x)))
        gt.eval(gt.jvp(gt.grad(network, (0, 1)), (w, u, x), (w, u, x)))
        gt.eval(gt.vmap(lambda x: nn.conv2d(x, w))(x))

        def algebra(m):
            q, r = gt.linalg.qr(gt.linalg.cholesky(m @ m.mT + gt.eye(5)))
            p, l, u = gt.linalg.lu(m)
            parts = [q, r, l @ u, gt.linalg.lu_factor(m)[0], gt.linalg.expm(m), gt.linalg.pinv(m[:, :3]),
                     gt.linalg.inv(m), gt.linalg.lstsq(m, p)[0], abs(gt.linalg.eig(m)[1]), gt.linalg.eigh(m)[1],
                     gt.linalg.svd(m)[0], gt.linalg.cond(m), abs(gt.linalg.eigvals(m)), gt.linalg.det(m)]
            parts.append(gt.linalg.multi_dot([m, m[:, :2], m[:2]]))
            return sum(gt.sum(part * part) for part in parts) + gt.linalg.matrix_rank(m)

        m = gt.eye(5) + gt.arange(25.0).reshape((5, 5)) ** 0.5 % 1
        gt.eval((algebra(m), gt.jvp(algebra, (m,), (m,)), gt.grad(algebra)(m), gt.jacfwd(gt.grad(algebra))(m)))
        gt.eval(gt.vmap(gt.grad(algebra))(gt.stack([m, m])))
    """,
    "linear algebra": """
        def loss(m, x):
            half = gt.linalg.solve_triangular(gt.linalg.cholesky(m), x, lower=True)
            q, r = gt.linalg.qr(gt.linalg.inv(m) + half)
            x = gt.linalg.solve(m, q @ r) + gt.linalg.eigh(m)[1]
            return gt.linalg.norm(x) + gt.linalg.slogdet(m)[1].sum()

        power = lambda x: gt.sum(abs(gt.fft.fft2(x)) * abs(gt.fft.irfft(gt.fft.rfft(x) * 1j)))
        gt.eval((gt.grad(power)(gt.ones((4, 4))), gt.vmap(gt.grad(power))(gt.ones((3, 4, 4)))))
        m, x = gt.stack([gt.eye(3)] * 2), gt.ones((2, 3, 3))
        gt.eval((gt.value_and_grad(loss, (0, 1))(m, x), gt.vmap(gt.value_and_grad(loss, (0, 1)))(m, x)))
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("rules", ["gtrace's", "JAX's"])
@pytest.mark.parametrize("what", CODE)
def test_what_is_common_is_differentiated_without_torch_compile(what, rules, tmp_path):
    begin = ["import sys", "import gtrace as gt"] + ["import gtrace.jax"] * (rules == "JAX's")
    code = "\n".join([*begin, textwrap.dedent(CODE[what]), 'print(*sys.modules, sep="\\n")'])
    environment = os.environ | {"GT_CACHE_DIR": str(tmp_path)}
    with launch.from_scratch():
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    imported = set(done.stdout.split())
    assert "gtrace.numpy" in imported
    assert ("gtrace.jax" in imported) == (rules == "JAX's")
    assert not {"torch._dynamo", "torch.fx.experimental.symbolic_shapes"} & imported
