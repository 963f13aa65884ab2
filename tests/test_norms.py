"""Norms that are written out become torch's operators, however they are written; other things do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.ir.verify import broken_rule
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.passes.norm_operators import (
    BATCH,
    BATCH_BACKWARD,
    BATCH_WITH_VARIANCE,
    GROUP,
    GROUP_BACKWARD,
    LAYER,
    LAYER_BACKWARD,
)
from gtrace.core.passes.norms import fuse_norms
from gtrace.testing import assert_close

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


def as_flax_does(x, scale, shift):
    mean = x.mean(-1)
    variance = gt.maximum(0.0, gt.square(x).mean(-1) - gt.square(mean))[..., None]
    factor = gt.rsqrt(variance + 1e-6) * scale.reshape((1,) * (x.ndim - 1) + (-1,))
    return (x - mean[..., None]) * factor + shift.reshape((1,) * (x.ndim - 1) + (-1,))


def without_shift(x, scale, shift):
    return quotient(x, scale, 0.0)


def without_scale(x, scale, shift):
    return gt.nn.layer_norm(x, x.shape[-1])


NORMS = [
    quotient, reciprocal, scaled_first, mean_of_squares, sums, of_nn, as_flax_does, without_shift, without_scale,
]  # fmt: skip


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
    after = fuse_norms(graph)
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
    assert sorted(calls(after)) == sorted([LAYER, LAYER_BACKWARD] * count)
    assert not any(node.op.name in ("sqrt", "rsqrt") for node in after.nodes)
    assert difference(graph, after, args) < 1e-9


@pytest.mark.parametrize("norm", NORMS)
def test_norms_without_gradients(norm):
    args = operands((5, 4))
    graph, after = fused(norm, args[:3])
    assert calls(after) == [LAYER]
    assert difference(graph, after, args[:3]) < 1e-9


@pytest.mark.parametrize("argnums", [(0,), (3,), (1, 2), (0, 1), (2,)])
def test_gradients_of_some_operands(argnums):
    args = operands((4, 6))
    graph, after = fused(gt.grad(lambda *a: residual(quotient, *a), argnums=argnums), args)
    assert calls(after) == ([LAYER] if argnums in [(2,), (3,)] else [LAYER, LAYER_BACKWARD])
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
    number_outside,
    of_another,
    tiny_number_outside,
    least_variance,
    largest_variance,
    clipped_operand,
]


@pytest.mark.parametrize("function", OTHERS)
def test_what_is_no_norm_is_left(function):
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


@pytest.mark.parametrize(
    "after", [lambda y: 2.0 * y + 1.0, lambda y: y * y - y, gt.nn.gelu], ids=["linear", "square", "gelu"]
)
def test_norms_that_algebra_follows_are_single_operations(after):
    args = operands((6, 6))
    graph, fused_ = fused(lambda *a: after(quotient(*a)), args[:3])
    assert calls(fused_) == [LAYER] and difference(graph, fused_, args[:3]) < 1e-9
    norm, args = batch("second", two_passes)
    graph, fused_ = fused(gt.value_and_grad(lambda *a: gt.tanh(after(norm(*a)) + a[0]).sum(), argnums=(0, 1, 2)), args)
    assert calls(fused_) == [BATCH, BATCH_BACKWARD] and difference(graph, fused_, args) < 1e-9


def test_sums_over_axes_apart_are_counted_at_small_sizes():
    def norm(x, scale):
        mean, count = (lambda x: x.sum((0, 2), keepdims=True) / count), x.shape[0] * x.shape[2]
        return (x - mean(x)) / gt.sqrt(mean((x - mean(x)) ** 2) + 1e-5) * scale

    graph = CANONICAL.run(gt.make_graph(norm)(gt.zeros((64, 32, 1024)), gt.zeros((32, 1))))
    assert calls(fuse_norms(graph)) == [BATCH]


def test_second_derivatives():
    args = operands((3, 4))
    f = gt.grad(lambda x, *a: alone(quotient, x, *a))
    graph, after = fused(gt.grad(lambda x, *a: gt.sin(f(x, *a)).sum()), args)
    assert difference(graph, after, args) < 1e-7


def test_a_norm_whose_scale_is_its_own_gradient():
    def program(x, cotangent):
        gradient = gt.vjp(lambda scale: quotient(x, scale, 0.0), gt.ones(8))[1](cotangent)[0]
        y, pullback = gt.vjp(lambda x, scale: quotient(x, scale, 0.0), x, gradient)
        return y, *pullback(cotangent)

    args = [gt.array(RNG.normal(size=(4, 8))) for _ in range(2)]
    graph, after = fused(program, args)
    assert difference(graph, after, args) < 1e-9


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


# -- over other axes


def batch_of(axes, channel, variance, flat=False):
    """A batch norm over some axes; `flat`: statistics without axes of one element."""

    def norm(x, scale, shift):
        if not flat:
            shape = [x.shape[k] if k == channel else 1 for k in range(x.ndim)]
            scale, shift = scale.reshape(shape), shift.reshape(shape)
        mean = x.mean(axes, keepdims=not flat)
        return (x - mean) * gt.rsqrt(variance(x, mean, axes, not flat) + 1e-5) * scale + shift

    return norm


def two_passes(x, mean, axes, keepdims):
    return gt.square(x - mean).mean(axes, keepdims=keepdims)


def of_numpy(x, mean, axes, keepdims):
    return x.var(axes, keepdims=keepdims)


def limited(x, mean, axes, keepdims):
    """As Flax does: rounding may bring it below 0."""
    return gt.maximum(0.0, gt.square(x).mean(axes, keepdims=keepdims) - gt.square(mean))


VARIANCES = [two_passes, of_numpy, limited]
BATCHES = {
    "last": ((3, 4, 5, 16), (0, 1, 2), 3, False),
    "last, flat": ((3, 4, 5, 16), (0, 1, 2), 3, True),
    "second": ((3, 6, 4, 5), (0, 2, 3), 1, False),
    "of vectors": ((7, 18), (0,), 1, True),
    "of series": ((3, 6, 5), (0, 2), 1, False),
    "of volumes": ((2, 3, 2, 4, 16), (0, 1, 2, 3), 4, True),
}


def batch(name, variance):
    shape, axes, channel, flat = BATCHES[name]
    n = shape[channel]
    args = [gt.array(RNG.normal(size=size)) for size in (shape, (n,), (n,))]
    return batch_of(axes, channel, variance, flat), args


def wavy(norm, *args):
    return gt.tanh(gt.sin(norm(*args)) * 2.0).sum()


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("name", BATCHES)
def test_batch_norms_and_their_gradients_are_single_operations(name, variance):
    norm, args = batch(name, variance)
    graph, after = fused(gt.value_and_grad(lambda *a: wavy(norm, *a), argnums=(0, 1, 2)), args)
    assert calls(after) == [BATCH, BATCH_BACKWARD]
    assert not any(node.op.name in ("sqrt", "rsqrt", "mean") for node in after.nodes)
    assert difference(graph, after, args) < 1e-9
    graph, after = fused(norm, args)
    assert calls(after) == [BATCH] and difference(graph, after, args) < 1e-9


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("name", BATCHES)
def test_running_statistics_come_from_the_operator(name, variance, ddof):
    norm, args = batch(name, variance)
    shape, axes, channel, flat = BATCHES[name]
    count = np.prod(shape) // shape[channel]

    def step(x, scale, shift, running):
        loss, grads = gt.value_and_grad(lambda *a: wavy(norm, *a), argnums=(0, 1, 2))(x, scale, shift)
        mean = x.mean(axes, keepdims=not flat)
        new = variance(x, mean, axes, not flat) * (count / (count - ddof))
        return loss, grads, 0.9 * running + 0.1 * mean.reshape(-1), 0.9 * running + 0.1 * new.reshape(-1)

    args = [*args, gt.array(RNG.normal(size=shape[channel]))]
    graph, after = fused(step, args)
    assert calls(after) == [BATCH_WITH_VARIANCE, BATCH_BACKWARD]
    assert difference(graph, after, args) < 1e-9


def test_a_norm_whose_scale_follows_from_its_mean_is_left_or_right():
    x = gt.array(RNG.normal(size=(5, 4, 16)))

    def adaptive(x):
        mean = x.mean((0, 1))
        return (x - mean) / gt.sqrt(x.var((0, 1)) + 1e-5) * gt.tanh(mean) + gt.sin(mean), mean * 2.0

    graph, after = fused(adaptive, [x])
    assert difference(graph, after, [x]) < 1e-9


@pytest.mark.parametrize("variance", VARIANCES)
def test_constant_channels(variance):
    """Their variance is 0, or less by rounding, where the limited one has a corner."""
    norm, (x, scale, shift) = batch("last", variance)
    x = x.at[..., :2].set(3.0)
    grads = gt.value_and_grad(lambda *a: wavy(norm, *a), argnums=(1, 2))
    graph, after = fused(grads, [x, scale, shift])
    assert calls(after) == [BATCH, BATCH_BACKWARD] and difference(graph, after, [x, scale, shift]) < 1e-6


def groups_last(x, groups=3):
    n, *sizes, c = x.shape
    x = x.reshape((n, *sizes, groups, c // groups))
    axes = (*range(1, x.ndim - 2), x.ndim - 1)
    return (x - x.mean(axes, keepdims=True)) * gt.rsqrt(x.var(axes, keepdims=True) + 1e-5)


def groups_second(x, groups=3):
    x = x.reshape((x.shape[0], groups, 2, -1))
    return (x - x.mean((2, 3), keepdims=True)) / gt.sqrt(x.var((2, 3), keepdims=True) + 1e-5)


def instances(x):
    axes = tuple(range(1, x.ndim - 1))
    return (x - x.mean(axes, keepdims=True)) / gt.sqrt(x.var(axes, keepdims=True) + 1e-3)


def examples(x):
    axes = tuple(range(1, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / gt.sqrt(x.var(axes, keepdims=True) + 1e-3)


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (3, 6, 6), (2, 3, 2, 2, 6)])
@pytest.mark.parametrize(
    ("norm", "names"),
    [(groups_last, [GROUP, GROUP_BACKWARD]), (instances, []),
     (groups_second, [LAYER, LAYER_BACKWARD]), (examples, [LAYER, LAYER_BACKWARD])],
)  # fmt: skip
def test_norms_of_groups_and_of_examples(norm, names, shape):
    x, w = (gt.array(RNG.normal(size=shape)) for _ in range(2))
    f = gt.value_and_grad(lambda x, w: wavy(lambda x: norm(x * w), x), argnums=(0, 1))
    graph, after = fused(f, [x, w])
    assert calls(after) == names and difference(graph, after, [x, w]) < 1e-9


@given(
    st.sampled_from(VARIANCES), st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data(),
)  # fmt: skip
def test_norms_over_any_axes_give_what_they_give_written_out(variance, shape, data):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape)))))
    x, w = (gt.array(RNG.normal(size=shape)) for _ in range(2))

    def norm(x, w):
        mean = x.mean(axes, keepdims=True)
        return (x - mean) * gt.rsqrt(variance(x, mean, axes, True) + 1e-2) * w[(0,) * w.ndim] + w

    graph, after = fused(gt.value_and_grad(lambda *a: wavy(norm, *a), argnums=(0, 1)), [x, w])
    assert difference(graph, after, [x, w]) < 1e-7


@pytest.mark.slow
def test_a_network_of_images_by_channels_trains_as_written_out():
    """Parts, layouts and updates included: float32, channels last, by hand."""
    x, y = gt.array(RNG.normal(size=(8, 16, 16, 3)), gt.float32), gt.array(RNG.normal(size=(8, 16)), gt.float32)
    sizes = [(3, 3, 3, 16), *[(3, 3, 16, 16)] * 3]
    params = [{"w": gt.array(RNG.normal(size=n) * 0.1, gt.float32), "g": gt.ones(16), "b": gt.zeros(16)} for n in sizes]

    def loss(params, norm):
        h = x
        for p in params:
            h = gt.lax.conv_general_dilated(h, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            h = gt.nn.relu(norm(h, p["g"], p["b"]))
        return ((h.mean((1, 2)) - y) ** 2).mean()

    def train(norm):
        p, losses = params, []
        for _ in range(4):
            value, grads = gt.value_and_grad(loss)(p, norm)
            p = gt.tree.map(lambda p, g: p - 0.5 * g, p, grads)
            losses.append(float(value))
        return losses

    def of_torch(h, scale, shift):
        out = torch.nn.functional.batch_norm(h.transpose(0, 3, 1, 2), None, None, scale, shift, True)
        return out.transpose(0, 2, 3, 1)

    with gt.config(auto_compile=False):
        expected = train(of_torch)
        for variance in VARIANCES:
            for flat in (True, False):
                got = train(batch_of((0, 1, 2), 3, variance, flat))
                assert_close(got, expected)


@pytest.mark.parametrize("name", BATCHES)
def test_second_derivatives_of_batch_norms(name):
    norm, args = batch(name, of_numpy)
    first = gt.grad(lambda *a: wavy(norm, *a), argnums=(0, 1))
    graph, after = fused(gt.grad(lambda *a: sum(gt.sin(g).sum() for g in first(*a)), argnums=(0, 1)), args)
    assert difference(graph, after, args) < 1e-7


GUARDS = {
    "none": lambda y, variance: y,
    "limited": lambda y, variance: y,  # in the norm itself
    "positive": lambda y, variance: y * (variance > 0),
    "zero": lambda y, variance: y + 3.0 * (variance == 0),
    "chosen": lambda y, variance: gt.where(variance > 0, y, 7.0),
}
BESIDE = {
    "a number": lambda x, y: x.sum(),
    "products": lambda x, y: gt.tanh(x @ gt.ones((x.shape[-1], 2))).sum() + 0.5 * x.sum(),
    "both": lambda x, y: (2.0 * x + x * x).sum() + gt.tanh(x).sum(),
    "the norm": lambda x, y: (y * y).sum() + x.sum(),
    "nothing": lambda x, y: 0.0,
}


@settings(max_examples=20)
@given(
    shape=st.sampled_from([(3, 4), (2, 3, 4), (5, 1), (4, 2), (1, 6)]),
    special=st.sampled_from([None, 0.0, 0.1, -0.0, np.inf, np.nan, 1e200]),
    eps=st.sampled_from([1e-5, 1.0, 1e-30]),
    guard=st.sampled_from(sorted(GUARDS)),
    beside=st.sampled_from(sorted(BESIDE)),
    scale=st.sampled_from([None, 2.0, -1.0, "array"]),
    shift=st.sampled_from([None, 7.0, "array"]),
)
def test_near_misses_give_what_they_give_written_out(shape, special, eps, guard, beside, scale, shift):
    """Rows without variance, or not finite; numbers for arrays; further terms in the gradient."""
    x = np.random.default_rng(3).normal(size=shape)
    if special is not None:
        x[-1] = special

    def loss(x, w, b):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        limited = gt.maximum(variance, 0.0) if guard == "limited" else variance
        y = centred / gt.sqrt(limited + eps)
        if scale is not None:
            y = y * (w if scale == "array" else scale)
        if shift is not None:
            y = y + (b if shift == "array" else shift)
        y = GUARDS[guard](y, variance)
        return gt.sin(y).sum() + BESIDE[beside](x, y), y

    arrays = [gt.array(z) for z in (x, np.linspace(-1, 2, shape[-1]), np.ones(shape[-1]))]
    graph = CANONICAL.run(gt.make_graph(gt.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays))
    inputs = [torch.from_numpy(np.array(z)) for z in arrays]
    expected = interpreter(graph)(inputs)
    for came, right in zip(interpreter(fuse_norms(graph))(inputs), expected, strict=True):
        if special == 1e200:  # the formulas overflow at other places, and torch's kernel of the gradient is NaN there
            if came.shape != x.shape:  # a sum over rows
                continue
            came, right = came[:-1], right[:-1]
        # gradients of a row without variance are differences of numbers of this size
        size = 1.0 if special is None else eps**-0.5
        torch.testing.assert_close(came, right, rtol=1e-9, atol=max(1e-9, 1e-15 * size), equal_nan=True)


def test_rows_without_variance_that_a_comparison_hides():
    x = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], np.float32)

    def norm(np, x):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return (centred / np.sqrt(variance + 1e-5) + 7.0) * (variance > 0)

    np.testing.assert_allclose(np.asarray(norm(gt, gt.array(x))), norm(np, x), rtol=1e-5)
