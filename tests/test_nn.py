"""gt.nn: values and gradients against torch.nn.functional in float64; extremes, transforms and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's usual name
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.testing import assert_close, check_grads, check_vmap

nn = gt.nn
RNG = np.random.default_rng(0)


def floats(*shape, low=-2.0, high=2.0):
    return RNG.uniform(low, high, shape)


def positive(*shape):
    return floats(*shape, low=0.1, high=2.0)


def signs(*shape):
    return RNG.choice([-1.0, 1.0], shape)


X = floats(3, 4, 5)
POSITIVE = torch.tensor(X > 0)
WIDE = np.concatenate([np.linspace(-7.3, 7.1, 23), [-1e4, 1e4, 0.25]])


def check_against_torch(got, want, inputs):
    """Compare values and gradients of two functions of float64 arrays, ours and torch's."""
    arrays = [gt.array(x) for x in inputs]
    tensors = [torch.tensor(x, requires_grad=x.dtype == np.float64) for x in inputs]
    expected = want(*tensors)
    out = got(*arrays)
    assert out.shape == tuple(expected.shape)
    assert out.dtype == expected.dtype
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-11)
    if not expected.requires_grad:
        return
    weights = np.linspace(0.5, 1.5, out.size).reshape(out.shape)
    (expected * torch.tensor(weights)).sum().backward()
    places = tuple(k for k, x in enumerate(inputs) if x.dtype == np.float64)
    grads = gt.grad(lambda *xs: (got(*xs) * weights).sum(), places)(*arrays)
    for k, g in zip(places, grads, strict=True):
        wanted = tensors[k].grad
        wanted = np.zeros(inputs[k].shape) if wanted is None else wanted.numpy()
        np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-8, atol=1e-10, err_msg=f"gradient {k}")


# name in gt.nn, torch's function, keyword arguments (the same for both)
ACTIVATIONS = [
    ("celu", F.celu, {}),
    ("celu", F.celu, {"alpha": 2.5}),
    ("elu", F.elu, {}),
    ("elu", F.elu, {"alpha": 0.5}),
    ("selu", F.selu, {}),
    ("gelu", F.gelu, {}),
    ("hard_sigmoid", lambda x: F.relu6(x + 3) / 6, {}),
    ("hard_silu", F.hardswish, {}),
    ("hard_swish", F.hardswish, {}),
    ("hard_tanh", F.hardtanh, {}),
    ("hard_tanh", F.hardtanh, {"min_val": -0.5, "max_val": 2.0}),
    ("hardshrink", F.hardshrink, {}),
    ("hardshrink", F.hardshrink, {"lambd": 1.5}),
    ("leaky_relu", F.leaky_relu, {}),
    ("leaky_relu", F.leaky_relu, {"negative_slope": 0.3}),
    ("log_sigmoid", F.logsigmoid, {}),
    ("mish", F.mish, {}),
    ("relu", F.relu, {}),
    ("relu6", F.relu6, {}),
    ("sigmoid", F.sigmoid, {}),
    ("silu", F.silu, {}),
    ("swish", F.silu, {}),
    ("soft_sign", F.softsign, {}),
    ("softsign", F.softsign, {}),
    ("softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x)), {}),
    ("softshrink", F.softshrink, {}),
    ("softshrink", F.softshrink, {"lambd": 1.5}),
    ("tanh", F.tanh, {}),
    ("tanhshrink", F.tanhshrink, {}),
    ("threshold", F.threshold, {"threshold": 0.5, "value": -3.0}),
]


@pytest.mark.parametrize(("name", "want", "kwargs"), ACTIVATIONS, ids=lambda x: x if isinstance(x, str) else None)
def test_activations_as_torch_also_far_out(name, want, kwargs):
    own = {"approximate": False} if name == "gelu" else kwargs
    check_against_torch(lambda x: getattr(nn, name)(x, **own), lambda x: want(x, **kwargs), [WIDE])


@pytest.mark.parametrize("name", ["none", "tanh"])
def test_gelu_refuses_the_names_that_torch_has(name):
    with pytest.raises(gt.ArgumentError, match="True or False as approximate"):
        nn.gelu(gt.ones(2), approximate=name)
    want = F.gelu(torch.linspace(-3, 3, 9), approximate=name)
    assert_close(F.gelu(gt.linspace(-3, 3, 9), approximate=name), want)
    assert_close(nn.gelu(gt.linspace(-3, 3, 9), approximate=name == "tanh"), want)


def squareplus(x, b):
    return (x + torch.sqrt(x * x + b)) / 2


def sparse_plus(x):
    return torch.where(x <= -1, 0.0, torch.where(x >= 1, x, (x + 1) ** 2 / 4))


MORE = {
    "glu": (lambda x: nn.glu(x, axis=1), lambda x: F.glu(x, dim=1), [X]),
    "glu last": (nn.glu, F.glu, [floats(3, 6)]),
    "prelu": (nn.prelu, F.prelu, [X, floats(4)]),
    "prelu one": (nn.prelu, F.prelu, [X, floats(1)]),
    "prelu vector": (nn.prelu, F.prelu, [floats(5), floats(1)]),
    "squareplus": (lambda x: nn.squareplus(x, 3.0), lambda x: squareplus(x, 3.0), [WIDE[:-3]]),
    "sparse_plus": (nn.sparse_plus, sparse_plus, [WIDE]),
    "sparse_sigmoid": (nn.sparse_sigmoid, lambda x: torch.clamp((x + 1) / 2, 0, 1), [WIDE]),
    "softmin": (lambda x: nn.softmin(x, axis=1), lambda x: F.softmin(x, dim=1), [X]),
    "softmax where": (
        lambda x: nn.softmax(x, 1, where=X > 0),
        lambda x: torch.softmax(torch.where(POSITIVE, x, -torch.inf), 1).nan_to_num(0.0),
        [floats(3, 4, 5)],
    ),
    "softmax where axes": (
        lambda x: nn.softmax(x, (0, 2), where=X > 0),
        lambda x: torch.exp(x) * POSITIVE / (torch.exp(x) * POSITIVE).sum((0, 2), keepdim=True),
        [floats(3, 4, 5)],
    ),
    "log_softmax where": (
        lambda x: gt.where(X > 0, nn.log_softmax(x, None, where=X > 0), 0.0),
        lambda x: torch.where(POSITIVE, x - torch.logsumexp(torch.where(POSITIVE, x, -torch.inf), (0, 1, 2)), 0.0),
        [floats(3, 4, 5)],
    ),
    "standardize": (
        lambda x: nn.standardize(x, 1),
        lambda x: (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, unbiased=False, keepdim=True) + 1e-5),
        [X],
    ),
}


@pytest.mark.parametrize("name", sorted({name for name, *_ in ACTIVATIONS} | {"squareplus", "sparse_plus"}))
def test_activations_in_all_floating_dtypes(name):
    f = getattr(nn, name)
    extra = (0.5, 1.0) if name == "threshold" else ()
    for dtype in (gt.float16, gt.bfloat16, gt.float32):
        x = gt.array([-600.0, -3.0, 0.0, 0.25, 600.0], dtype=dtype)
        value, grad = f(x, *extra), gt.grad(lambda x: f(x, *extra).astype("float64").sum())(x)
        assert value.dtype == dtype and grad.dtype == dtype
        assert bool(gt.isfinite(value).all()) and bool(gt.isfinite(grad).all())
    assert math.isnan(float(f(gt.array(math.nan), *extra)))
    assert f(3, *extra).dtype == (torch.int64 if name == "relu" else torch.float32)


def batch_norm(x, mean, var, weight=1.0, bias=0.0, eps=1e-5):
    """Like torch's, but differentiable by the statistics too."""
    mean, var, weight, bias = (torch.as_tensor(y).reshape(-1, *(1,) * (x.ndim - 2)) for y in (mean, var, weight, bias))
    return (x - mean) / torch.sqrt(var + eps) * weight + bias


STATS = [floats(4), positive(4)]
NORMALIZATION = {
    "layer_norm": (lambda x: nn.layer_norm(x, 5), lambda x: F.layer_norm(x, (5,)), [X]),
    "layer_norm affine": (
        lambda x, w, b: nn.layer_norm(x, (4, 5), w, b, eps=1e-3),
        lambda x, w, b: F.layer_norm(x, (4, 5), w, b, eps=1e-3),
        [X, floats(4, 5), floats(4, 5)],
    ),
    "rms_norm": (lambda x: nn.rms_norm(x, 5), lambda x: F.rms_norm(x, (5,)), [X]),
    "rms_norm weight": (
        lambda x, w: nn.rms_norm(x, (4, 5), w, eps=0.1),
        lambda x, w: F.rms_norm(x, (4, 5), w, 0.1),
        [X, floats(4, 5)],
    ),
    "group_norm": (
        lambda x, w, b: nn.group_norm(x, 2, w, b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        [floats(2, 4, 3, 2), floats(4), floats(4)],
    ),
    "group_norm rows": (lambda x: nn.group_norm(x, 2, eps=0.1), lambda x: F.group_norm(x, 2, eps=0.1), [floats(3, 4)]),
    "instance_norm": (
        lambda x, w, b: nn.instance_norm(x, w, b),
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        [floats(2, 3, 4, 2), floats(3), floats(3)],
    ),
    "batch_norm": (nn.batch_norm, batch_norm, [X, *STATS, floats(4), floats(4)]),
    "batch_norm plain": (
        lambda x, m, v: nn.batch_norm(x, m, v, eps=0.1),
        lambda x, m, v: batch_norm(x, m, v, eps=0.1),
        [floats(3, 4), *STATS],
    ),
    "batch_norm axis": (
        lambda x, m, v: nn.batch_norm(x, m, v, axis=-1),
        lambda x, m, v: batch_norm(x.mT, m, v).mT,
        [floats(3, 5, 4), *STATS],
    ),
    "batch_norm_train": (
        lambda x, w, b: nn.batch_norm_train(x, STATS[0], STATS[1], w, b)[0],
        lambda x, w, b: F.batch_norm(x, torch.zeros(4).double(), torch.ones(4).double(), w, b, training=True),
        [X, floats(4), floats(4)],
    ),
    "local_response_norm": (
        lambda x: nn.local_response_norm(x, 3, alpha=0.5, beta=0.6, k=2.0),
        lambda x: F.local_response_norm(x, 3, alpha=0.5, beta=0.6, k=2.0),
        [X],
    ),
    "local_response_norm even": (
        lambda x: nn.local_response_norm(x, 4, alpha=0.5),
        lambda x: F.local_response_norm(x, 4, alpha=0.5),
        [floats(2, 6, 2, 2)],
    ),
    "normalize": (nn.normalize, F.normalize, [X]),
    "normalize p": (lambda x: nn.normalize(x, p=3, axis=-1), lambda x: F.normalize(x, p=3, dim=-1), [X]),
    "normalize zeros": (nn.normalize, F.normalize, [np.array([[0.0, 0.0], [3.0, 4.0]])]),
    "normalize max": (lambda x: nn.normalize(x, math.inf, 0), lambda x: F.normalize(x, math.inf, 0), [X]),
}

EMBEDDING = {
    "embedding": (nn.embedding, F.embedding, [np.array([[1, 0, 1], [3, 3, 2]]), floats(4, 3)]),
    "embedding padding": (
        lambda i, t: nn.embedding(i, t, padding_idx=-1),
        lambda i, t: F.embedding(i, t, padding_idx=-1),
        [np.array([[1, 0, 1], [3, 3, 2]]), floats(4, 3)],
    ),
}


@pytest.mark.parametrize("name", [*MORE, *NORMALIZATION, *EMBEDDING])
def test_layers_as_torch(name):
    check_against_torch(*{**MORE, **NORMALIZATION, **EMBEDDING}[name])


# our function, torch's, inputs, and keyword arguments of either; each is tried with every reduction
BATCH, CLASSES = 6, 5
LOGITS, LABELS = floats(BATCH, CLASSES), RNG.integers(0, CLASSES, BATCH)
PROBS = np.exp(LOGITS[::-1]) / np.exp(LOGITS[::-1]).sum(1, keepdims=True)
IMAGE, PIXELS = floats(2, CLASSES, 3), RNG.integers(0, CLASSES, (2, 3))
SOME = np.where(np.arange(BATCH) % 3 == 0, 2, LABELS)
VECTORS = [floats(BATCH, 4), floats(BATCH, 4), floats(BATCH, 4)]
UNIT = floats(BATCH, low=0.05, high=0.95)
LOSSES = [
    ("mse_loss", [X, floats(3, 4, 5)], {}),
    ("l1_loss", [X, floats(3, 4, 5)], {}),
    ("smooth_l1_loss", [X, floats(3, 4, 5)], {}),
    ("smooth_l1_loss", [X, floats(3, 4, 5)], {"beta": 0.3}),
    ("smooth_l1_loss", [X, floats(3, 4, 5)], {"beta": 0.0}),
    ("huber_loss", [X, floats(3, 4, 5)], {}),
    ("huber_loss", [X, floats(3, 4, 5)], {"delta": 0.3}),
    ("cross_entropy", [LOGITS, LABELS], {}),
    ("cross_entropy", [LOGITS, LABELS, positive(CLASSES)], {}),
    ("cross_entropy", [LOGITS, SOME], {"ignore_index": 2}),
    ("cross_entropy", [LOGITS, SOME, positive(CLASSES)], {"ignore_index": 2, "label_smoothing": 0.2}),
    ("cross_entropy", [LOGITS, SOME], {"ignore_index": 2, "label_smoothing": 0.2}),
    ("cross_entropy", [LOGITS, PROBS], {}),
    ("cross_entropy", [LOGITS, PROBS, positive(CLASSES)], {"label_smoothing": 0.1}),
    ("cross_entropy", [IMAGE, PIXELS, positive(CLASSES)], {}),
    ("cross_entropy", [LOGITS[0], LABELS[0]], {}),
    ("cross_entropy", [LOGITS * 1e4, LABELS], {}),
    ("nll_loss", [LOGITS, LABELS], {}),
    ("nll_loss", [LOGITS, SOME, positive(CLASSES)], {"ignore_index": 2}),
    ("nll_loss", [IMAGE, PIXELS], {}),
    ("binary_cross_entropy", [UNIT, floats(BATCH, low=0.0, high=1.0)], {}),
    ("binary_cross_entropy", [UNIT, floats(BATCH, low=0.0, high=1.0)], {"weight": positive(BATCH)}),
    ("binary_cross_entropy_with_logits", [LOGITS, PROBS], {}),
    ("binary_cross_entropy_with_logits", [LOGITS * 1e4, signs(BATCH, CLASSES) * 0.5 + 0.5], {}),
    ("binary_cross_entropy_with_logits", [LOGITS, PROBS], {"weight": positive(CLASSES)}),
    ("binary_cross_entropy_with_logits", [LOGITS, PROBS], {"pos_weight": positive(CLASSES)}),
    ("kl_div", [np.log(PROBS), PROBS[::-1].copy()], {}),
    ("kl_div", [np.log(PROBS), np.log(PROBS[::-1])], {"log_target": True}),
    ("poisson_nll_loss", [LOGITS, positive(BATCH, CLASSES)], {}),
    ("poisson_nll_loss", [LOGITS, positive(BATCH, CLASSES) * 3], {"full": True}),
    ("poisson_nll_loss", [PROBS, positive(BATCH, CLASSES)], {"log_input": False, "eps": 0.1}),
    ("gaussian_nll_loss", [LOGITS, floats(BATCH, CLASSES), positive(BATCH, CLASSES)], {}),
    ("gaussian_nll_loss", [LOGITS, floats(BATCH, CLASSES), positive(BATCH)], {"full": True}),
    ("gaussian_nll_loss", [LOGITS, floats(BATCH, CLASSES), positive(BATCH, 1) * 0.1], {"eps": 0.1}),
    ("hinge_embedding_loss", [LOGITS, signs(BATCH, CLASSES)], {"margin": 0.7}),
    ("cosine_embedding_loss", [*VECTORS[:2], signs(BATCH)], {"margin": 0.1}),
    ("margin_ranking_loss", [UNIT, floats(BATCH), signs(BATCH)], {"margin": 0.2}),
    ("triplet_margin_loss", VECTORS, {}),
    ("triplet_margin_loss", VECTORS, {"margin": 0.3, "p": 1.0}),
    ("triplet_margin_loss", VECTORS, {"margin": 2.0, "swap": True}),
    ("soft_margin_loss", [LOGITS, signs(BATCH, CLASSES)], {}),
    ("multi_margin_loss", [LOGITS, LABELS], {"margin": 0.8}),
    ("multi_margin_loss", [LOGITS, LABELS], {"p": 2, "weight": positive(CLASSES)}),
]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize(
    ("name", "inputs", "kwargs"), LOSSES, ids=[f"{k}-{name}" for k, (name, *_) in enumerate(LOSSES)]
)
def test_losses_as_torch(name, inputs, kwargs):
    theirs = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    # torch gives no derivative to some operands: those are constants in both
    fixed = {"hinge_embedding_loss": 1, "cosine_embedding_loss": 2, "margin_ranking_loss": 2, "soft_margin_loss": 1}
    last = fixed.get(name, 2 if name in ("cross_entropy", "nll_loss") else len(inputs))
    rest, differentiated = inputs[last:], inputs[:last]
    inputs = [np.asarray(x) for x in differentiated]
    for reduction in ("none", "mean", "sum") + (("batchmean",) if name == "kl_div" else ()):
        check_against_torch(
            lambda *xs, reduction=reduction: getattr(nn, name)(*xs, *rest, **kwargs, reduction=reduction),
            lambda *xs, reduction=reduction: getattr(F, name)(
                *xs, *[torch.tensor(x) for x in rest], **theirs, reduction=reduction
            ),
            inputs,
        )


def test_classes_on_another_axis():
    got = nn.cross_entropy(gt.array(np.moveaxis(IMAGE, 1, -1)), gt.array(PIXELS), reduction="none", axis=-1)
    want = F.cross_entropy(torch.tensor(IMAGE), torch.tensor(PIXELS), reduction="none")
    assert_close(got, want)


def test_all_targets_ignored_is_nan_as_in_torch():
    assert math.isnan(float(nn.cross_entropy(gt.zeros((2, 3)), gt.array([-100, -100]))))


def test_a_target_that_is_no_class_raises_when_run():
    with pytest.raises(gt.ExecutionError):
        nn.cross_entropy(gt.zeros((2, 3)), gt.array([0, -1])).numpy()


DISTANCES = {
    "cosine_similarity": (nn.cosine_similarity, F.cosine_similarity, VECTORS[:2]),
    "cosine_similarity broadcast": (
        lambda x, y: nn.cosine_similarity(x, y, axis=-1, eps=0.5),
        lambda x, y: F.cosine_similarity(x, y, dim=-1, eps=0.5),
        [floats(3, 1, 4), floats(2, 4)],
    ),
    "pairwise_distance": (nn.pairwise_distance, F.pairwise_distance, VECTORS[:2]),
    "pairwise_distance p": (
        lambda x, y: nn.pairwise_distance(x, y, 1.5, keepdims=True),
        lambda x, y: F.pairwise_distance(x, y, 1.5, keepdim=True),
        VECTORS[:2],
    ),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_as_torch(name):
    check_against_torch(*DISTANCES[name])


# -- attention

Q, K, V = floats(2, 6, 3, 4), floats(2, 6, 5, 4), floats(2, 6, 5, 2)
KG, VG = floats(2, 2, 5, 4), floats(2, 2, 5, 2)
MASK = RNG.uniform(size=(2, 1, 3, 5)) < 0.6
MASK[1, 0, 2] = False  # a query without a key
BIAS = floats(6, 3, 5)


ATTENTION = {
    "plain": ((Q, K, V), {}),
    "scale": ((Q, K, V), {"scale": 0.3}),
    "causal": ((Q, K, V), {"is_causal": True}),
    "mask": ((Q, K, V), {"attn_mask": MASK}),
    "bias": ((Q, K, V), {"attn_mask": BIAS}),
    "minus infinity": ((Q, K, V), {"attn_mask": np.where(MASK, 0.5, -math.inf)}),
    "grouped": ((Q, KG, VG), {"enable_gqa": True}),
    "grouped mask": ((Q, KG, VG), {"enable_gqa": True, "attn_mask": MASK}),
    "one head": ((Q[0, 0], K[0, 0], V[0, 0]), {"is_causal": True}),
    "no batch": ((Q[0], K[0], V[0]), {}),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_scaled_dot_product_attention_as_torch(name):
    inputs, kwargs = ATTENTION[name]
    theirs = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    check_against_torch(
        lambda *xs: nn.scaled_dot_product_attention(*xs, **kwargs),
        lambda *xs: F.scaled_dot_product_attention(*xs, **theirs),
        list(inputs),
    )


def heads_last(x):
    return np.ascontiguousarray(np.swapaxes(x, -2, -3))


def attention_by_hand(mask=None, bias=0.0):
    k, v = np.repeat(KG, 3, axis=1), np.repeat(VG, 3, axis=1)
    scores = np.einsum("bhqd,bhkd->bhqk", Q, k) / 2.0 + bias
    weights = np.exp(scores) * (True if mask is None else mask)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    return np.einsum("bhqk,bhkd->bhqd", weights, v)


ROW, COLUMN = np.arange(3)[:, None], np.arange(5)
KEYS = np.array([2, 5]).reshape(2, 1, 1, 1)
JAX_ATTENTION = {
    "plain": ({}, {}),
    "bias and mask": ({"bias": BIAS, "mask": MASK}, {"bias": BIAS, "mask": MASK}),
    "causal": ({"is_causal": True, "mask": MASK}, {"mask": MASK & (ROW >= COLUMN)}),
    "window": ({"local_window_size": 1}, {"mask": abs(ROW - COLUMN) <= 1}),
    "window pair": ({"local_window_size": (2, 0)}, {"mask": (COLUMN >= ROW - 2) & (COLUMN <= ROW)}),
    "key lengths": (
        {"key_value_seq_lengths": np.array([2, 5])},
        {"mask": COLUMN < KEYS},
    ),
    "query lengths": ({"query_seq_lengths": np.array([1, 3])}, {"mask": ROW < np.array([1, 3]).reshape(2, 1, 1, 1)}),
}


@pytest.mark.parametrize("name", JAX_ATTENTION)
def test_dot_product_attention_with_heads_last(name):
    kwargs, by_hand = JAX_ATTENTION[name]
    got = nn.dot_product_attention(*[gt.array(heads_last(x)) for x in (Q, KG, VG)], **kwargs)
    assert_close(got, heads_last(attention_by_hand(**by_hand)))


def test_attention_of_one_example_without_a_batch():
    inputs = [heads_last(x[0]) for x in (Q, KG, VG)]
    got = nn.dot_product_attention(*inputs, key_value_seq_lengths=np.array([2]))
    assert_close(got, heads_last(attention_by_hand(mask=COLUMN < 2)[0]))


def test_gradients_stay_finite_where_a_query_has_no_key():
    def loss(q, k, v, b):
        return nn.scaled_dot_product_attention(q, k, v, b).sum()

    bias = np.full((2, 1, 3, 5), -math.inf)
    with gt.config(debug_nans=True):
        grads = gt.grad(loss, (0, 1, 2, 3))(*[gt.array(x) for x in (Q, K, V, bias)])
        assert all(float(abs(g).max()) == 0.0 for g in grads)


# -- batch statistics, draws


@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_running_statistics_as_torch(momentum):
    mean, var = torch.tensor(STATS[0]), torch.tensor(STATS[1])
    F.batch_norm(torch.tensor(X), mean, var, training=True, momentum=momentum)
    _, got_mean, got_var = nn.batch_norm_train(gt.array(X), STATS[0], STATS[1], momentum=momentum)
    assert_close(got_mean, mean)
    assert_close(got_var, var)


def test_standardize_over_some_elements():
    got = nn.standardize(gt.array(X), axis=(0, 2), where=X > -1).numpy()
    some = np.where(X > -1, X, np.nan)
    mean, var = (f(some, axis=(0, 2), keepdims=True) for f in (np.nanmean, np.nanvar))
    assert_close(got, (X - mean) / np.sqrt(var + 1e-5))
    given = nn.standardize(gt.array(X), mean=1.0, variance=4.0, epsilon=0.0).numpy()
    assert_close(given, (X - 1.0) / 2.0)


def test_dropout_keeps_the_mean_and_its_mask_the_gradient():
    key = gt.random.key(1)
    out = nn.dropout(gt.ones(20000), 0.25, key)
    assert set(np.unique(out.numpy())) == {0.0, np.float32(1 / 0.75)}
    assert abs(float(out.mean()) - 1.0) < 0.02
    np.testing.assert_array_equal(gt.grad(lambda x: nn.dropout(x, 0.25, key).sum())(gt.ones(20000)), out)
    assert nn.dropout(gt.ones(3), 0.5, training=False).tolist() == [1.0] * 3
    assert nn.dropout(gt.ones(3), 1.0).tolist() == [0.0] * 3
    rows = nn.dropout(gt.ones((100, 4)), 0.5, key, broadcast_axes=1).numpy()
    assert (rows == rows[:, :1]).all() and 0 < rows.mean() < 2


def test_alpha_dropout_keeps_mean_and_variance():
    x = gt.random.normal(gt.random.key(1), (50000,))
    out = nn.alpha_dropout(x, 0.3, gt.random.key(2)).numpy()
    assert abs(out.mean()) < 0.02 and abs(out.var() - 1.0) < 0.03
    assert nn.alpha_dropout(gt.ones(2), 1.0).tolist() == [0.0, 0.0]


def test_gumbel_softmax_draws_as_categorical_and_learns_as_softmax():
    logits = gt.array(np.log([0.2, 0.5, 0.3]))
    keys = gt.random.split(gt.random.key(0), 4000)
    hard = gt.vmap(lambda k: nn.gumbel_softmax(logits, k, hard=True))(keys).numpy()
    assert (hard.sum(1) == 1).all() and set(np.unique(hard)) == {0.0, 1.0}
    np.testing.assert_allclose(hard.mean(0), [0.2, 0.5, 0.3], atol=0.03)
    grads = [
        gt.grad(lambda x, hard=hard: (nn.gumbel_softmax(x, keys[0], 0.5, hard) * gt.arange(3)).sum())(logits)
        for hard in (True, False)
    ]
    assert_close(grads[0], grads[1])


# -- initializers

INIT = nn.initializers
SCALED = [
    ("glorot_uniform", 1.0, "avg"),
    ("xavier_uniform", 1.0, "avg"),
    ("glorot_normal", 1.0, "avg"),
    ("xavier_normal", 1.0, "avg"),
    ("lecun_uniform", 1.0, "in"),
    ("lecun_normal", 1.0, "in"),
    ("he_uniform", 2.0, "in"),
    ("kaiming_uniform", 2.0, "in"),
    ("he_normal", 2.0, "in"),
    ("kaiming_normal", 2.0, "in"),
]


@pytest.mark.parametrize(("name", "scale", "mode"), SCALED)
def test_scaled_initializers_have_the_variance_of_their_fans(name, scale, mode):
    # a kernel of 3 positions, 40 inputs and 80 outputs
    x = getattr(INIT, name)(dtype="float64")(gt.random.key(0), (3, 40, 80)).numpy()
    count = {"in": 120, "avg": 180}[mode]
    assert x.dtype == np.float64
    assert abs(x.mean()) < 0.01
    np.testing.assert_allclose(x.var(), scale / count, rtol=0.05)


def test_simple_initializers():
    key = gt.random.key(0)
    assert INIT.zeros(key, (2,)).tolist() == [0.0, 0.0]
    assert INIT.ones(key, (2,), gt.float16).dtype == torch.float16
    assert INIT.zeros(key, (2,), gt.int32).dtype == torch.int32
    assert INIT.constant(gt.array([1.0, 2.0]))(key, (2, 2)).tolist() == [[1.0, 2.0]] * 2
    x = INIT.uniform(3.0)(key, (4000,)).numpy()
    assert x.min() >= 0 and 2.9 < x.max() < 3.0
    np.testing.assert_allclose(INIT.normal(0.5)(key, (4000,)).numpy().std(), 0.5, rtol=0.05)
    x = INIT.truncated_normal(0.5, lower=-1.0, upper=3.0)(key, (4000,)).numpy()
    assert x.min() > -0.5 and 1.0 < x.max() < 1.5
    x = INIT.variance_scaling(1.0, "fan_out", "normal", in_axis=0, out_axis=1, batch_axis=2)(key, (50, 60, 4)).numpy()
    np.testing.assert_allclose(x.var(), 1 / 60, rtol=0.05)
    assert INIT.he_normal()(key, (0, 3)).shape == (0, 3)
    assert gt.jit(lambda k: INIT.he_normal()(k, (3, 2)), backend="eager")(key).shape == (3, 2)


# -- dtypes, second derivatives, transforms


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16])
def test_16_bit_operands_keep_their_dtype_and_do_not_overflow(dtype):
    x = gt.array(np.linspace(-600.0, 600.0, 24).reshape(2, 3, 4), dtype=dtype)  # squares overflow float16
    ones = gt.ones(3, dtype=dtype)
    for out in (
        nn.layer_norm(x, 4),
        nn.rms_norm(x, 4),
        nn.group_norm(x, 3),
        nn.instance_norm(x),
        nn.batch_norm(x, ones, ones),
        nn.batch_norm_train(x, ones, ones)[0],
        nn.normalize(x),
        nn.standardize(x),
        nn.scaled_dot_product_attention(x, x, x, scale=0.001),
        nn.dropout(x, 0.5, gt.random.key(0)),
        nn.cosine_similarity(x, x * 0.0),
        nn.pairwise_distance(x, x * 0.5),
    ):
        assert out.dtype == dtype and bool(gt.isfinite(out).all())


SMOOTH = {
    "cross_entropy": (lambda x: nn.cross_entropy(x, LABELS, label_smoothing=0.1), (LOGITS,)),
    "layer_norm": (lambda x, w: nn.layer_norm(x, 5, w), (floats(2, 5), floats(5))),
    "attention": (lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, MASK), (Q[:, :2], K[:, :2], V[:, :2])),
    "softmax where": (lambda x: nn.softmax(x, where=X[0] > 0), (floats(4, 5),)),
    "mish": (nn.mish, (floats(5),)),
    "bce": (lambda x: nn.binary_cross_entropy_with_logits(x, PROBS), (LOGITS,)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_in_both_modes(name):
    f, args = SMOOTH[name]
    check_grads(f, tuple(gt.array(x) for x in args), order=2)


MAPPED = {
    "cross_entropy": (lambda x, y: nn.cross_entropy(x, y, weight=gt.arange(5)), (LOGITS, LABELS)),
    "group_norm": (lambda x: nn.group_norm(x, 2), (floats(3, 2, 4, 2),)),
    "batch_norm_train": (lambda x: nn.batch_norm_train(x, *STATS), (floats(2, 3, 4),)),
    "attention": (lambda q, m: nn.scaled_dot_product_attention(q, K[0], V[0], m), (Q, MASK)),
    "embedding": (lambda i: nn.embedding(i, LOGITS, padding_idx=1), (np.array([[1, 2], [0, 1]]),)),
    "prelu": (nn.prelu, (floats(2, 3, 4), floats(2, 4))),
    "triplet": (nn.triplet_margin_loss, tuple(v.reshape(2, 3, 4) for v in VECTORS)),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap(name):
    f, args = MAPPED[name]
    check_vmap(f, tuple(gt.array(x) for x in args))


def test_a_training_step_under_jit():
    x, y = gt.array(floats(8, 4)), gt.array(RNG.integers(0, 3, 8))

    def loss(p, key):
        hidden = nn.layer_norm(nn.gelu(x @ p["w"]), 6, p["g"])
        return nn.cross_entropy(nn.dropout(hidden, 0.3, key) @ p["v"], y, label_smoothing=0.1)

    params = {"w": gt.array(floats(4, 6)), "g": gt.ones(6), "v": gt.array(floats(6, 3))}
    plain = gt.value_and_grad(loss)(params, gt.random.key(3))
    jitted = gt.jit(gt.value_and_grad(loss), backend="eager")(params, gt.random.key(3))
    assert_close(jitted, plain)


# -- extremes

EXTREME = st.one_of(st.floats(-1e4, 1e4), st.sampled_from([0.0, 1e4, -1e4, 88.0, -104.0, 1e-30]))


@given(st.lists(EXTREME, min_size=3, max_size=3), st.integers(0, 2), st.sampled_from([0.0, 0.1]))
def test_cross_entropy_of_extreme_logits(row, label, smoothing):
    x = np.array([row, [0.0, 1.0, 2.0]], np.float32)
    labels = np.array([label, 1])
    f = lambda z: nn.cross_entropy(z, labels, label_smoothing=smoothing)  # noqa: E731
    value, grad = gt.value_and_grad(f)(gt.array(x))
    t = torch.tensor(x.astype(np.float64), requires_grad=True)
    want = F.cross_entropy(t, torch.tensor(labels), label_smoothing=smoothing)
    want.backward()
    np.testing.assert_allclose(float(value), want.item(), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=2e-6)


@given(st.lists(EXTREME, min_size=4, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4))
def test_softmax_of_extreme_logits_over_some_elements(row, where):
    x = gt.array(np.array(row, np.float32))
    p = nn.softmax(x, where=np.array(where))
    assert_close(p.numpy().sum(), 1.0 if any(where) else 0.0, check_dtype=False)
    assert not p.numpy()[~np.array(where)].any()
    log_p = nn.log_softmax(x, where=np.array(where)).numpy()
    assert (log_p[~np.array(where)] == -np.inf).all() and (log_p[np.array(where)] <= 0).all()
    grad = gt.grad(lambda z: (nn.softmax(z, where=np.array(where)) * gt.arange(4)).sum())(x).numpy()
    assert np.isfinite(grad).all() and abs(grad.sum()) < 1e-4
    total = nn.softmin(x).numpy() - nn.softmax(-x).numpy()
    assert not total.any()


@given(EXTREME, st.sampled_from([0.0, 0.5, 1.0]))
def test_binary_cross_entropy_of_extreme_logits(x, y):
    f = lambda z: nn.binary_cross_entropy_with_logits(z, gt.array(y))  # noqa: E731
    value, grad = gt.value_and_grad(f)(gt.array(np.float32(x)))
    z = np.float64(np.float32(x))
    want = y * np.logaddexp(0.0, -z) + (1 - y) * np.logaddexp(0.0, z)
    np.testing.assert_allclose(float(value), want, rtol=1e-5, atol=1e-37)
    assert -1.0 <= float(grad) <= 1.0


def test_certain_probabilities_have_finite_losses():
    p, y = gt.array([0.0, 0.0, 1.0, 1.0]), gt.array([0.0, 1.0, 0.0, 1.0])
    assert nn.binary_cross_entropy(p, y, reduction="none").tolist() == [0.0, 100.0, 100.0, 0.0]
    assert np.isfinite(gt.grad(lambda q: nn.binary_cross_entropy(q, y))(p).numpy()).all()


@pytest.mark.parametrize("around", [lambda f: f, gt.jit], ids=["plain", "jit"])
def test_certain_and_wrong_probabilities_have_the_gradient_that_torch_has(around):
    p, y = np.array([0.0, 1.0, 1e-20, 0.25, 0.75]), np.array([1.0, 0.0, 1.0, 1.0, 0.25])
    q = torch.tensor(p, requires_grad=True)
    torch.nn.functional.binary_cross_entropy(q, torch.tensor(y), reduction="sum").backward()
    loss = lambda z: nn.binary_cross_entropy(z, gt.array(y), reduction="sum")  # noqa: E731
    for _ in range(2):
        np.testing.assert_allclose(around(gt.grad(loss))(gt.array(p)).numpy(), q.grad.numpy(), rtol=1e-8)
        curve = around(gt.jacfwd(gt.grad(loss)))(gt.array(p)).numpy().diagonal()
        np.testing.assert_allclose(curve[3:], y[3:] / p[3:] ** 2 + (1 - y[3:]) / (1 - p[3:]) ** 2, rtol=1e-12)


# -- errors

ONES = gt.ones((2, 3))
ERRORS = [
    (lambda: nn.mse_loss(ONES, gt.ones((2, 1))), gt.ShapeError, "arrays of one shape"),
    (lambda: nn.mse_loss(ONES, ONES, reduction="avg"), gt.ArgumentError, "a reduction among"),
    (lambda: nn.kl_div(ONES, ONES, "avg"), gt.ArgumentError, "batchmean"),
    (lambda: nn.kl_div(gt.ones(()), gt.ones(()), "batchmean"), gt.ShapeError, "a batch"),
    (lambda: nn.huber_loss(ONES, ONES, delta=0), gt.ArgumentError, "delta above 0"),
    (lambda: nn.huber_loss(ONES, ONES, delta=-1), gt.ArgumentError, ">= 0 as delta"),
    (lambda: nn.cross_entropy(ONES, gt.array([0, 1, 2])), gt.ShapeError, r"targets of shape \(2,\)"),
    (lambda: nn.cross_entropy(ONES, gt.ones(2)), gt.ShapeError, "Class numbers are integers"),
    (lambda: nn.cross_entropy(ONES, gt.array([0, 1]), gt.ones(2)), gt.ShapeError, "a weight of shape"),
    (lambda: nn.cross_entropy(ONES, ONES, label_smoothing=2), gt.ArgumentError, r"in \[0, 1\]"),
    (lambda: nn.cross_entropy(ONES, ONES, axis=2), gt.ShapeError, "axis in"),
    (lambda: nn.nll_loss(ONES, gt.ones(2)), gt.DtypeError, "integers"),
    (lambda: nn.binary_cross_entropy(ONES, ONES, gt.ones((4, 2, 3))), gt.ShapeError, "a weight that broadcasts"),
    (lambda: nn.multi_margin_loss(ONES, gt.array([0, 1]), p=3), gt.ArgumentError, "1 or 2"),
    (lambda: nn.multi_margin_loss(ONES, gt.array([0])), gt.ShapeError, "one target"),
    (lambda: nn.multi_margin_loss(ONES, gt.array([0, 1]), weight=gt.ones(2)), gt.ShapeError, "for each class"),
    (lambda: nn.cosine_embedding_loss(ONES, ONES, gt.ones(3)), gt.ShapeError, "one target"),
    (lambda: nn.pairwise_distance(ONES, ONES, p=0), gt.ArgumentError, "above 0 as p"),
    (lambda: nn.normalize(ONES, p=gt.array(2.0)), gt.ArgumentError, "a number >= 0 as p"),
    (lambda: nn.glu(ONES), gt.ShapeError, "even size"),
    (lambda: nn.prelu(ONES, gt.ones(2)), gt.ShapeError, "1 or 3 elements"),
    (lambda: nn.softshrink(ONES, -1), gt.ArgumentError, "lambd"),
    (lambda: nn.softmax(ONES, where=gt.array([True, False])), gt.ShapeError, "broadcast"),
    (lambda: nn.layer_norm(ONES, 2), gt.ShapeError, "last axes"),
    (lambda: nn.layer_norm(ONES, 3, gt.ones(2)), gt.ShapeError, "a weight of shape"),
    (lambda: nn.rms_norm(ONES, ()), gt.ShapeError, "last axes"),
    (lambda: nn.group_norm(ONES, 2), gt.ShapeError, "divides 3"),
    (lambda: nn.instance_norm(ONES), gt.ShapeError, "at least 3 axes"),
    (lambda: nn.batch_norm(ONES, gt.ones(2), gt.ones(3)), gt.ShapeError, "a mean of shape"),
    (lambda: nn.batch_norm_train(gt.ones((1, 3)), gt.ones(3), gt.ones(3)), gt.ShapeError, "two values"),
    (lambda: nn.batch_norm_train(ONES, gt.ones(2), gt.ones(3)), gt.ShapeError, "running statistics"),
    (lambda: nn.local_response_norm(gt.ones((1, 2, 3)), 0), gt.ShapeError, "size >= 1"),
    (lambda: nn.dropout(ONES, 1.5, gt.random.key(0)), gt.ArgumentError, r"in \[0, 1\]"),
    (lambda: nn.dropout(ONES, 0.5), gt.ArgumentError, "a key"),
    (lambda: nn.alpha_dropout(ONES, 0.5), gt.ArgumentError, "a key"),
    (lambda: nn.embedding(ONES, ONES), gt.DtypeError, "integers"),
    (lambda: nn.embedding(gt.array(0), gt.array(1.0)), gt.ShapeError, "table with rows"),
    (lambda: nn.embedding(gt.array(0), ONES, padding_idx=2), gt.ShapeError, "padding_idx"),
    (lambda: nn.scaled_dot_product_attention(Q, KG, VG), gt.ShapeError, "enable_gqa"),
    (lambda: nn.scaled_dot_product_attention(Q, K, VG), gt.ShapeError, "agree in all but"),
    (lambda: nn.scaled_dot_product_attention(Q, K[:1], V[:1]), gt.ShapeError, "one batch"),
    (lambda: nn.scaled_dot_product_attention(Q, V, V), gt.ShapeError, "one depth"),
    (lambda: nn.scaled_dot_product_attention(Q, K, V, gt.ones((4, 3))), gt.ShapeError, "a bias that broadcasts"),
    (lambda: nn.dot_product_attention(Q[0, 0], K[0, 0], V[0, 0]), gt.ShapeError, "at least 3"),
    (lambda: nn.dot_product_attention(Q, Q, Q, mask=np.ones((7, 1, 1), bool)), gt.ShapeError, "a mask that"),
    (lambda: nn.dot_product_attention(Q, Q, Q, mask=gt.zeros((1, 1, 1))), gt.DtypeError, "are the bias"),
    (lambda: nn.dot_product_attention(Q, Q, Q, query_seq_lengths=gt.array([1])), gt.ShapeError, "lengths of shape"),
    (lambda: INIT.he_normal()(gt.random.key(0), (3,)), gt.ShapeError, "two axes"),
    (lambda: INIT.variance_scaling(1.0, "fan", "normal"), gt.ArgumentError, "a mode among"),
    (lambda: INIT.normal()(gt.random.key(0), (3,), gt.int32), gt.DtypeError, "floating"),
]


@pytest.mark.parametrize("k", range(len(ERRORS)))
def test_errors_say_what_was_expected(k):
    call, error, match = ERRORS[k]
    with pytest.raises(error, match=match):
        call()


def test_what_gt_publishes_is_published_here_and_not_a_second_one():
    shared = [name for name in vars(nn) if hasattr(gt, name) and not name.startswith("_")]
    assert len(shared) >= 10
    for name in shared:
        assert getattr(nn, name) is getattr(gt, name)


def test_attention_hides_no_nan():
    query = gt.array([[[[np.nan], [1.0]]]])
    for bias in (None, gt.zeros((1, 1, 2, 2))):
        got = nn.scaled_dot_product_attention(query, gt.ones((1, 1, 2, 1)), gt.ones((1, 1, 2, 1)), bias)
        np.testing.assert_array_equal(got.numpy().ravel(), [np.nan, 1.0])


def test_embedding_gives_a_padding_row_no_derivative_also_for_places_outside():
    places = gt.array([0, 3, -1, 7, -9, 1, 2])
    for padding, expected in ((0, [0, 1, 1, 3]), (3, [2, 1, 1, 0]), (-1, [2, 1, 1, 0]), (1, [2, 0, 1, 3])):
        slopes = gt.grad(lambda table: gt.sum(nn.embedding(places, table, padding)))(gt.ones((4, 2)))  # noqa: B023
        assert slopes[:, 0].tolist() == expected


@pytest.mark.parametrize("dtype", [gt.float32, gt.float64, gt.bfloat16])
def test_relu_stops_every_cotangent_where_it_is_0(dtype):
    """Also infinite ones and NaN; where the operand is NaN the slope is 0, as in JAX."""
    x = gt.array([-1.0, 1.0, -2.0, 0.0, -np.inf, np.inf, np.nan], dtype=dtype)
    ct = gt.array([np.inf, 2.0, np.nan, -np.inf, np.inf, np.inf, 1.0], dtype=dtype)
    right = [0.0, 2.0, 0.0, 0.0, 0.0, np.inf, 0.0]
    for pulled in (lambda x, ct: gt.vjp(gt.nn.relu, x)[1](ct)[0], lambda x, ct: gt.jvp(gt.nn.relu, (x,), (ct,))[1]):
        assert pulled(x, ct).astype(gt.float32).tolist() == right
        assert gt.jit(pulled)(x, ct).astype(gt.float32).tolist() == right


def test_slopes_of_limited_functions_at_nan_are_those_of_jax():
    nan = gt.array(math.nan)
    for function in (gt.nn.relu6, gt.nn.hard_sigmoid):
        assert math.isnan(function(nan)) and float(gt.grad(function)(nan)) == 0.0
    assert float(gt.grad(gt.nn.hard_tanh)(nan)) == 1.0 and math.isnan(gt.grad(gt.nn.hard_swish)(nan))
