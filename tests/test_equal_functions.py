"""Derivatives of torch's functions that torch itself lacks, or has only for values that it looks at."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gtrace as gt
from gtrace.errors import DtypeError

rng = np.random.default_rng(0)


def normal(*shape):
    return torch.from_numpy(rng.normal(size=shape))


def with_zeros(*shape):
    """Numbers with zeros, of which several are written to one place."""
    x = normal(*shape)
    x.view(-1)[:3] = 0
    return x


CLASSES, LABELS = torch.tensor([1, 0, 3]), torch.tensor([[1, 3, -1, 0], [0, -1, 2, 1], [-1, 1, 2, 3]])
PLACES, STARTS = torch.tensor([0, 2, 2, 4, 1, 0, 3]), torch.tensor([0, 3, 3])
MASK = torch.tensor([[True, False, True], [False, False, True]])


def bags(mode, **named):
    return lambda table, *more: F.embedding_bag(
        PLACES, table, STARTS, mode=mode, per_sample_weights=more[0] if more else None, **named
    )


def segments(reduce, **named):
    return lambda x: torch.segment_reduce(x, reduce, lengths=torch.tensor([2, 1, 2]), **named)


def products(include_self):
    index = torch.tensor([[0, 0, 1], [0, 0, 1], [1, 0, 1]])
    return lambda x, y: torch.scatter_reduce(x, 0, index, y, "prod", include_self=include_self)


def in_chunks(reduction, **named):
    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("this torch has no linear_cross_entropy")
    options = importlib.import_module("torch.nn.modules.linear_cross_entropy_options")
    options = options.LinearCrossEntropyOptions(batch_chunk_size=2, allow_retain_graph=True)
    return lambda x, w: F.linear_cross_entropy(x, w, CLASSES, reduction=reduction, options=options, **named)


def statistics(x):
    y, mean, scale = torch.native_group_norm(x, None, None, 2, 4, 3, 2, 0.5)
    return torch.cat([y.reshape(-1), mean.reshape(-1), scale.reshape(-1)])


# name: (function of tensors, arguments by which it is differentiated; makers of functions are called in the test)
FUNCTIONS = {
    **{f"cdist {p}": (lambda x, y, p=p: torch.cdist(x, y, p), normal(3, 2), normal(4, 2))
       for p in (1.0, 1.5, 2.0, 3.0, math.inf)},
    **{f"pdist {p}": (lambda x, p=p: F.pdist(x, p), normal(4, 2)) for p in (1.0, 2.0, 3.0)},
    "multi margin": (lambda x: F.multi_margin_loss(x, CLASSES), normal(3, 4)),
    "multi margin, squared": (
        lambda x: F.multi_margin_loss(x, CLASSES, p=2, margin=0.5, weight=torch.arange(4.0).double(), reduction="none"),
        normal(3, 4)),
    "multi-label margin": (lambda x: F.multilabel_margin_loss(x, LABELS), normal(3, 4)),
    "multi-label margin, each": (lambda x: F.multilabel_margin_loss(x, LABELS, reduction="none"), normal(3, 4)),
    "bags, sums": (bags("sum"), normal(5, 2), normal(7)),
    "bags, means": (bags("mean", padding_idx=2), normal(5, 2)),
    "bags, maxima": (bags("max"), normal(5, 2)),
    **{f"segments, {reduce}": (segments(reduce), normal(5, 2)) for reduce in ("sum", "mean", "max", "min")},
    "segments of rows": (
        lambda x: torch.segment_reduce(x, "max", lengths=torch.tensor([[2, 1], [1, 2]]), axis=1, initial=-1.0),
        normal(2, 3)),
    "products": (products(True), normal(2, 3), with_zeros(3, 3)),
    "products without the first": (products(False), normal(2, 3), with_zeros(3, 3)),
    "products of rows": (
        lambda x, y: torch.index_reduce(x, 1, torch.tensor([1, 0, 1]), y, "prod"), with_zeros(2, 2), with_zeros(2, 3)),
    "masked places": (lambda x, y: torch.index_put(x, (MASK,), y), normal(2, 3, 2), normal(3, 2)),
    "masked places, one value": (lambda x, y: torch.index_put(x, (MASK,), y), normal(2, 3, 2), normal(2)),
    "masked places, added": (
        lambda x, y: torch.index_put(x, (MASK,), y, accumulate=True), normal(2, 3, 2), normal(3, 1)),
    "statistics of groups": (statistics, normal(2, 4, 3)),
}  # fmt: skip


def differences(function, args):
    """The derivatives by each argument, as central differences of values."""
    step, found = 1e-6, []
    for k, x in enumerate(args):
        slopes = []
        for j in range(x.numel()):
            move = torch.zeros(x.numel(), dtype=x.dtype)
            move[j] = step
            move = move.reshape(x.shape)
            up, down = (function(*args[:k], x + way * move, *args[k + 1 :]) for way in (1, -1))
            slopes.append((up - down) / (2 * step))
        found.append(torch.stack(slopes).reshape(x.shape))
    return found


def check(function, *args):
    def loss(*given):
        y = function(*given)
        return torch.sin(y + 0.5).sum()

    places = tuple(range(len(args)))
    gradient = gt.grad(loss, argnums=places)
    given = [gt.array(x) for x in args]
    moves = [torch.cos(torch.arange(x.numel()).double()).reshape(x.shape) for x in args]
    expected = differences(loss, args)

    def close(got, expected):
        np.testing.assert_allclose(np.asarray(got), expected.detach().numpy(), rtol=1e-5, atol=1e-7)

    got = gradient(*given)
    for g, e in zip(got, expected, strict=True):
        close(g, e)
    along = sum((g * m).sum() for g, m in zip(expected, moves, strict=True))
    close(gt.jvp(loss, tuple(given), tuple(map(gt.array, moves)))[1], along)
    for g, e in zip(gt.vmap(gradient)(*[gt.stack([x, x]) for x in given]), got, strict=True):
        close(g[1], e.to_torch())

    def moved(*xs):
        return sum((g * gt.array(m)).sum() for g, m in zip(gradient(*xs), moves, strict=True))

    def plainly(*xs):
        return moved(*map(gt.array, xs)).to_torch()

    for g, e in zip(gt.grad(moved, argnums=places)(*given), differences(plainly, args), strict=True):
        close(g, e)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_all_kinds(name):
    check(*FUNCTIONS[name])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropies_in_chunks(reduction):
    check(in_chunks(reduction), normal(3, 2), normal(4, 2))


def test_ctc_losses_have_torchs_gradient():
    x, targets = normal(6, 2, 4).log_softmax(-1), torch.tensor([[1, 2], [3, 1]])
    lengths = torch.tensor([6, 5]), torch.tensor([2, 1])
    loss = lambda x: F.ctc_loss(x, targets, *lengths, reduction="none").square().sum()  # noqa: E731
    along = normal(6, 2, 4)
    (expected,) = torch.autograd.grad(loss(y := x.clone().requires_grad_()), y)
    np.testing.assert_allclose(gt.grad(loss)(gt.array(x)), expected, rtol=1e-12, atol=1e-14)
    tangent = gt.jvp(loss, (gt.array(x),), (gt.array(along),))[1]
    np.testing.assert_allclose(tangent, (expected * along).sum(), rtol=1e-12)
    with pytest.raises(DtypeError, match="_ctc_loss_backward is not implemented"):  # traced: torch's own derivative
        gt.grad(lambda x: gt.grad(gt.lift(loss))(x).sum())(gt.array(x))
    # torch has no second derivative: differences of its first one, of what came from log_softmax
    normalized = lambda x: loss(torch.log_softmax(x, -1))  # noqa: E731
    ends = [(x + sign * 1e-5 * along).requires_grad_() for sign in (1, -1)]
    up, down = (torch.autograd.grad(normalized(end), end)[0] for end in ends)
    second = gt.grad(lambda x: (gt.grad(normalized)(x) * gt.array(along)).sum())(gt.array(x))
    np.testing.assert_allclose((second * gt.array(along)).sum(), ((up - down) * along).sum() / 2e-5, rtol=1e-7)


def test_places_to_split_at_are_read_from_a_tensor():
    x = gt.arange(6.0)
    for places in (gt.array([1, 3]), torch.tensor([1, 3])):
        for function in (
            lambda x, places=places: torch.tensor_split(x, places)[1].sum(),
            lambda x, places=places: x.tensor_split(places)[1].sum(),
            lambda x, places=places: torch.tensor_split(x, tensor_indices_or_sections=places)[1].sum(),
        ):
            np.testing.assert_array_equal(gt.grad(function)(x), [0, 1, 1, 0, 0, 0])
    lists = gt.lift(lambda x, places: x[: places.tolist()[1]].sum())
    np.testing.assert_array_equal(gt.grad(lists)(x, gt.array([1, 3])), [1, 1, 1, 0, 0, 0])


@pytest.mark.parametrize("norm", [torch.linalg.vector_norm, torch.linalg.norm, torch.norm, gt.linalg.norm])
def test_the_second_derivative_of_a_norm_is_not_finite_at_zero(norm):
    x = gt.zeros(3)
    np.testing.assert_array_equal(gt.grad(norm)(x), np.zeros(3))
    assert np.isnan(gt.jacrev(gt.grad(norm))(x)).all()
