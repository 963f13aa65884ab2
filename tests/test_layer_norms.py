"""Layer norms that are written out become torch's operators, however they are written; other things do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.interp.interpreter import interpreter
from gtrace.ir.canonical import CANONICAL
from gtrace.ir.layer_norms import BACKWARD, FORWARD, fuse_layer_norms
from gtrace.ir.verify import broken_rule

RNG = np.random.default_rng(0)


def quotient(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred / gt.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale + shift


def reciprocal(x, scale, shift):
    return shift + (x - x.mean(-1, keepdims=True)) * gt.rsqrt(x.var(-1, keepdims=True) + 1e-3) * scale


def scaled_first(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    return scale * (x - mean) / gt.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6) + shift


def mean_of_squares(x, scale, shift):
    """The fast variance, without a limit."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * (gt.rsqrt((x**2).mean(-1, keepdims=True) - mean**2 + 1e-6) * scale) + shift


def sums(x, scale, shift):
    n = x.shape[-1]
    centred = x - x.sum(-1, keepdims=True) / n
    return centred / ((centred**2).sum(-1, keepdims=True) / n + 1e-5) ** 0.5 * scale + shift


def of_nn(x, scale, shift):
    return gt.nn.layer_norm(x, x.shape[-1], scale, shift)


def without_shift(x, scale, shift):
    return quotient(x, scale, 0.0)


def without_scale(x, scale, shift):
    return gt.nn.layer_norm(x, x.shape[-1])


NORMS = [quotient, reciprocal, scaled_first, mean_of_squares, sums, of_nn, without_shift, without_scale]


def alone(norm, x, scale, shift, w):
    return gt.tanh(norm(x, scale, shift) @ w).sum()


def residual(norm, x, scale, shift, w):
    return gt.tanh(x + norm(x, scale, shift) @ w).sum()


def after_another(norm, x, scale, shift, w):
    h = x + gt.tanh(norm(x, scale, shift) @ w)
    h = h + gt.tanh(norm(h, scale, shift) @ w)
    return norm(h, scale, shift).max()


def twice(norm, x, scale, shift, w):
    """Two blocks beside each other."""
    return gt.tanh(x + norm(x, scale, shift) @ w + gt.sin(norm(x, shift, scale)) @ w).sum()


def operands(shape, dtype=np.float64):
    n = shape[-1]
    return [gt.array(RNG.normal(size=size).astype(dtype)) for size in (shape, (n,), (n,), (n, n))]


def fused(function, args):
    """Return the graph of a function, and what becomes of it."""
    graph = CANONICAL.run(gt.make_graph(function)(*args))
    after = fuse_layer_norms(graph)
    assert broken_rule(after) is None
    return graph, after


def calls(graph):
    return [node.params[0] for node in graph.nodes if node.op.name == "aten"]


def difference(graph, after, args):
    """Return the largest difference between the results of two graphs, as a part of the largest element, or of 1."""
    tensors = [torch.from_numpy(np.array(x)) for x in args]
    pairs = zip(interpreter(graph)(tensors), interpreter(after)(tensors), strict=True)
    return max(float((x - y).abs().max() / max(1.0, x.abs().max())) for x, y in pairs)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("use", "count"), [(alone, 1), (residual, 1), (after_another, 3)])
def test_norms_and_their_gradients_are_single_operations(norm, use, count):
    args = operands((2, 3, 8))
    graph, after = fused(gt.value_and_grad(lambda *a: use(norm, *a), argnums=(0, 1, 2, 3)), args)
    assert sorted(calls(after)) == sorted([FORWARD, BACKWARD] * count)
    assert not any(node.op.name in ("sqrt", "rsqrt") for node in after.nodes)
    assert difference(graph, after, args) < 1e-9


@pytest.mark.parametrize("norm", NORMS)
def test_norms_without_gradients(norm):
    args = operands((5, 4))
    graph, after = fused(norm, args[:3])
    assert calls(after) == [FORWARD]
    assert difference(graph, after, args[:3]) < 1e-9


@pytest.mark.parametrize("argnums", [(0,), (3,), (1, 2), (0, 1), (2,)])
def test_gradients_of_some_operands(argnums):
    args = operands((4, 6))
    graph, after = fused(gt.grad(lambda *a: residual(quotient, *a), argnums=argnums), args)
    assert calls(after) == ([FORWARD] if argnums in [(2,), (3,)] else [FORWARD, BACKWARD])
    assert difference(graph, after, args) < 1e-9


@given(
    st.sampled_from(NORMS),
    st.sampled_from([alone, residual, after_another, twice]),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(2, 9),
)
def test_any_shape_gives_what_it_gives_written_out(norm, use, shape, n):
    args = operands((*shape, n))
    graph, after = fused(gt.value_and_grad(lambda *a: use(norm, *a), argnums=(0, 1, 2, 3)), args)
    assert difference(graph, after, args) < 1e-7


def unbiased(x, scale, shift):
    return (x - x.mean(-1, keepdims=True)) / gt.sqrt(x.var(-1, keepdims=True, ddof=1) + 1e-5) * scale + shift


def root_mean_square(x, scale, shift):
    return x / gt.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale + shift


def other_axis(x, scale, shift):
    centred = x - x.mean(0, keepdims=True)
    return centred / gt.sqrt((centred * centred).mean(0, keepdims=True) + 1e-5) * scale + shift


def number_outside(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred / (gt.sqrt((centred * centred).mean(-1, keepdims=True)) + 1e-5) * scale + shift


def of_another(x, scale, shift):
    centred = x - gt.sin(x).mean(-1, keepdims=True)
    return centred / gt.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale + shift


def tiny_number_outside(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred / (gt.sqrt((centred * centred).mean(-1, keepdims=True)) + 1e-14) * scale + shift


def least_variance(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred / gt.sqrt(gt.maximum((centred * centred).mean(-1, keepdims=True), 1e-6)) * scale + shift


def largest_variance(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred / gt.sqrt(gt.minimum((centred * centred).mean(-1, keepdims=True), 1e6) + 1e-5) * scale + shift


def clipped(x, scale, shift):
    return gt.clip(quotient(x, 1.0, 0.0), -50, 50) * scale + shift


def clipped_operand(x, scale, shift):
    centred = gt.clip(x - x.mean(-1, keepdims=True), -1e3, 1e3)
    return centred / gt.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale + shift


OTHERS = [
    unbiased,
    root_mean_square,
    other_axis,
    number_outside,
    of_another,
    tiny_number_outside,
    least_variance,
    largest_variance,
    clipped_operand,
]


@pytest.mark.parametrize("function", OTHERS)
def test_what_is_no_layer_norm_is_left(function):
    args = operands((6, 6))
    graph, after = fused(gt.value_and_grad(lambda *a: alone(function, *a), argnums=(0, 1, 2)), args)
    assert not calls(after)
    assert after == graph


@pytest.mark.parametrize("function", [least_variance, largest_variance, clipped, clipped_operand, tiny_number_outside])
def test_limits_hold_where_the_random_rows_do_not_reach(function):
    x = np.full((4, 6), 3.0)
    x[1, 0], x[2] = 1e9, RNG.normal(size=6) * 1e-12
    args = [gt.array(x), *operands((4, 6))[1:3]]
    graph, after = fused(function, args)
    assert np.isfinite(np.asarray(function(*args))).all() and difference(graph, after, args) < 1e-9


def test_norms_whose_parts_somebody_needs_are_left():
    def parts(x, scale, shift):
        centred = x - x.mean(-1, keepdims=True)
        return quotient(x, scale, shift), centred

    args = operands((6, 6))
    graph, after = fused(parts, args[:3])
    assert after == graph


def test_second_derivatives():
    args = operands((3, 4))
    f = gt.grad(lambda x, *a: alone(quotient, x, *a))
    graph, after = fused(gt.grad(lambda x, *a: gt.sin(f(x, *a)).sum()), args)
    assert difference(graph, after, args) < 1e-7


@pytest.mark.parametrize("jitted", [False, True])
def test_programs_give_what_torch_gives(jitted):
    x, scale, shift, w = (np.array(a) for a in operands((3, 5, 8), np.float32))
    tensors = [torch.from_numpy(a).requires_grad_() for a in (x, scale, shift)]
    h = tensors[0] + torch.nn.functional.layer_norm(tensors[0], (8,), tensors[1], tensors[2]) @ torch.from_numpy(w)
    torch.tanh(h).sum().backward()
    f = gt.grad(lambda *a: residual(of_nn, *a), argnums=(0, 1, 2))
    got = (gt.jit(f) if jitted else f)(*map(gt.array, (x, scale, shift, w)))
    for mine, theirs in zip(got, tensors, strict=True):
        np.testing.assert_allclose(np.asarray(mine), theirs.grad.numpy(), rtol=2e-4, atol=2e-5)


def test_a_batch_of_norms():
    x, scale, shift, w = operands((2, 4, 6))
    graph, after = fused(gt.vmap(gt.grad(lambda x: residual(quotient, x, scale, shift, w))), [x])
    assert difference(graph, after, [x, scale, shift, w][: len(graph.inputs)]) < 1e-9
