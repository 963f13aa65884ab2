"""Mixed precision: what computes in float32 whatever it is given, policies, master weights and loss scales."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import gtrace as gt

nn = gt.nn
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 600)) * 3.0, RNG.normal(size=(32, 600)) * 3.0
LABELS = gt.array(RNG.integers(0, 600, 32))
HEADS = RNG.normal(size=(2, 4, 50, 16))
KEPT, WIDE = "the dtype of x", "float32"

# name in docs/nn.md: function of two arrays, and the dtype of its result for 16-bit operands
TABLE = {
    "softmax": (lambda x, y: nn.softmax(x), KEPT),
    "log_softmax": (lambda x, y: nn.log_softmax(x), KEPT),
    "logsumexp": (lambda x, y: nn.logsumexp(x, axis=-1), KEPT),
    "sum": (lambda x, y: gt.sum(abs(x), axis=1), KEPT),
    "mean": (lambda x, y: gt.mean(abs(x), axis=1), KEPT),
    "var": (lambda x, y: gt.var(x, axis=0), KEPT),
    "cumsum": (lambda x, y: gt.cumsum(abs(x), axis=1), KEPT),
    "linalg.norm": (lambda x, y: gt.linalg.norm(x), KEPT),
    "layer_norm": (lambda x, y: nn.layer_norm(x, 600), KEPT),
    "rms_norm": (lambda x, y: nn.rms_norm(x, 600), KEPT),
    "group_norm": (lambda x, y: nn.group_norm(x, 6), KEPT),
    "batch_norm": (lambda x, y: nn.batch_norm_train(x, gt.zeros(600), gt.ones(600))[0], KEPT),
    "instance_norm": (lambda x, y: nn.instance_norm(x.reshape(8, 4, 600)), KEPT),
    "scaled_dot_product_attention": (lambda x, y: attention(x), KEPT),
    "cross_entropy": (lambda x, y: nn.cross_entropy(x, LABELS), WIDE),
    "nll_loss": (lambda x, y: nn.nll_loss(-abs(x), LABELS), WIDE),
    "binary_cross_entropy_with_logits": (lambda x, y: nn.binary_cross_entropy_with_logits(x, y > 0), WIDE),
    "kl_div": (lambda x, y: nn.kl_div(-abs(x), abs(y)), WIDE),
    "mse_loss": (lambda x, y: nn.mse_loss(x, y, reduction="sum"), WIDE),
    "l1_loss": (lambda x, y: nn.l1_loss(x, y, reduction="sum"), WIDE),
    "huber_loss": (lambda x, y: nn.huber_loss(x, y), WIDE),
}


def attention(x):
    q = x.reshape(2, 4, 4, 600)
    return nn.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("dtype", [gt.float16, gt.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", TABLE)
def test_what_stays_in_float32(name, dtype):
    """The result is that of float64, rounded once or, after a rounding of what goes into it, twice."""
    function, result = TABLE[name]
    x, y = gt.array(X).astype(dtype), gt.array(Y).astype(dtype)
    out = function(x, y)
    exact = function(x.astype(gt.float64), y.astype(gt.float64)).numpy()
    assert out.dtype == (gt.float32 if result == WIDE else dtype)
    unit = torch.finfo(torch.float32 if result == WIDE else dtype.torch).eps
    if "attention" in name:
        unit *= 2  # weights are rounded, and then their sum
    if result == WIDE:
        unit *= 8  # of sums of many numbers in float32
    error = np.abs(out.astype(gt.float64).numpy() - exact).max() / np.abs(exact).max()
    assert error <= 0.51 * unit


def test_the_table_in_the_documentation_is_this_one():
    text = (Path(__file__).parent.parent / "docs" / "nn.md").read_text(encoding="utf-8")
    part = text[text.index("computed in float32") :]
    rows = re.findall(r"^\| ([^|]+) \| (float32|the dtype of x) \|$", part, re.MULTILINE)
    documented = {name: result for names, result in rows for name in re.findall(r"`([\w.]+)`", names)}
    assert {name: result for name, (_, result) in TABLE.items()}.items() <= documented.items()
    assert "" not in documented and set(documented.values()) == {KEPT, WIDE}


POLICY = nn.Policy(gt.bfloat16)


def test_a_policy_casts_floating_arrays_only():
    seen = {}

    @POLICY
    def f(model, x, labels, *, key, flag):
        """Its documentation."""
        seen.update(model=model.weight.dtype, x=x["x"].dtype, labels=labels.dtype, key=key.dtype, flag=flag)
        return {"out": model(x["x"]), "labels": labels, "name": "f"}

    key = gt.random.key(0)
    out = f(nn.Linear(2, 2, key=key), {"x": np.ones(2)}, gt.arange(2), key=key, flag=True)
    assert seen == {"model": gt.bfloat16, "x": gt.bfloat16, "labels": gt.int64, "key": key.dtype, "flag": True}
    assert out["out"].dtype == gt.float32 and out["labels"].dtype == gt.int64 and out["name"] == "f"
    assert f.__doc__ == "Its documentation." and f.__name__ == "f"
    assert POLICY.cast_to_param(gt.ones(1, dtype=gt.bfloat16)).dtype == gt.float32
    assert POLICY.cast_to_compute(gt.ones(1, dtype=gt.complex64)).dtype == gt.complex64
    assert nn.Policy("float16", output_dtype="float16")(gt.exp)(gt.ones(1)).dtype == gt.float16
    with pytest.raises(gt.DtypeError):
        nn.Policy("float17")


def test_running_statistics_are_not_rounded():
    """Rounded to 16 bits in each step, a variance was 6 % below what it comes to."""
    norm = nn.BatchNorm(3)
    x = gt.array((RNG.normal(size=(64, 3)) * 3 + 1).astype(np.float32))
    low = high = norm.initial_state()
    for _ in range(60):
        out, low = POLICY(norm)(x, low, training=True)
        _, high = norm(x, high, training=True)
    assert out.dtype == low.running_mean.dtype == gt.float32
    # what is left is the rounding of x
    np.testing.assert_allclose(low.running_mean, high.running_mean, atol=0.01)
    np.testing.assert_allclose(low.running_var, high.running_var, rtol=0.005)


def test_master_weights_keep_updates_that_16_bits_lose():
    """Steps of 1e-4 from 1.0 vanish in bfloat16; under a policy they add up, and gradients have the master's dtype."""
    model = nn.Linear(1, 1, bias=False, key=gt.random.key(0)).replace(weight=gt.ones((1, 1)))
    low = gt.tree.map(lambda x: x.astype(gt.bfloat16), model)
    x = gt.ones((4, 1))
    opt = gt.optim.sgd(1e-4)

    def train(model, apply):
        state = opt.init(model)
        for _ in range(100):
            grads = gt.grad(lambda m: apply(m)(x).mean())(model)
            assert grads.weight.dtype == model.weight.dtype
            updates, state = opt.update(grads, state)
            model = gt.optim.apply_updates(model, updates)
        return float(model.weight[0, 0])

    assert train(low, lambda m: m) == 1.0
    assert train(model, POLICY) == pytest.approx(0.99, abs=1e-5)


@pytest.mark.slow
def test_a_policy_computes_products_in_16_bits_and_learns():
    """A network under float16 with a loss scale learns as it does in float32; a graph shows where casts are."""
    x = gt.array(RNG.normal(size=(64, 4)).astype(np.float32))
    y = gt.sin(x.sum(1, keepdims=True))
    policy = nn.Policy("float16")

    def loss(model, scale):
        value = nn.mse_loss(policy(model)(x), y)
        return scale.scale(value), value

    graph = str(gt.make_graph(loss)(MODEL, nn.DynamicLossScale()))
    assert re.search(r"matmul.*f16\[64,16\]|f16\[64,16\].*matmul", graph)
    losses = {}
    for dtype in ("float16", "float32"):
        policy = nn.Policy(dtype)
        model, opt = MODEL, gt.optim.adam(1e-2)
        state, scale = opt.init(model), nn.DynamicLossScale(2.0**24, period=20)
        for _ in range(150):
            grads, value = gt.grad(loss, has_aux=True)(model, scale)
            finite = nn.all_finite(grads)
            updates, new = opt.update(scale.unscale(grads), state)
            updated = gt.optim.apply_updates(model, updates)
            model, state = nn.select_tree(finite, (updated, new), (model, state))
            scale = scale.adjust(finite)
        losses[dtype] = float(value)
        assert bool(nn.all_finite(model))
        assert (float(scale.factor) < 2.0**24) == (dtype == "float16")
    assert losses["float16"] == pytest.approx(losses["float32"], rel=0.2)
    assert losses["float32"] < 0.1


MODEL = nn.MLP(4, 1, 16, 1, gt.tanh, key=gt.random.key(1))


def test_a_loss_scale_halves_and_doubles():
    scale = nn.DynamicLossScale(8.0, period=2, least=2.0)
    factors = []
    for finite in (True, True, True, False, True, True, False, False, False, False):
        scale = scale.adjust(gt.array(finite))
        factors.append(float(scale.factor))
    assert factors == [8.0, 16.0, 16.0, 8.0, 8.0, 16.0, 8.0, 4.0, 2.0, 2.0]
    largest = nn.DynamicLossScale(3e38, period=1)
    assert float(largest.adjust(gt.array(True)).factor) == float(largest.factor)
    step = gt.jit(lambda s, finite: s.adjust(finite), backend="eager")
    again = step(scale, gt.array(True))
    assert gt.tree.structure(again) == gt.tree.structure(scale) and again.good_steps.dtype == gt.int32
