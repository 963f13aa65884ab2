"""Programs on a GPU, beside the CPU. Skipped without one."""

import numpy as np
import pytest
import torch

import gtrace as gt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def train(x, w):
    params, optimizer = {"w": w, "b": w[0] * 0.0}, gt.optim.adam(1e-2)
    state = optimizer.init(params)
    for _ in range(5):
        grads = gt.grad(lambda p: (gt.tanh(x @ p["w"] + p["b"]) ** 2).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        params = gt.optim.apply_updates(params, updates)
    return params


PROGRAMS = {
    "elementwise": (lambda x: gt.tanh(x) * 2.0 + gt.exp(-x) ** 1.5, [floats(64, 32)]),
    "sums": (lambda x: (x.sum(0), gt.std(x), gt.cumsum(x, 1), gt.argmax(x, 1)), [floats(33, 70)]),
    "sort": (lambda x: gt.sort(x, 1), [floats(33, 70)]),
    "rows": (lambda x: (x[[0, 2]], x.at[1].set(2.0), gt.where(x > 0.0, x, 0.5)), [floats(5, 4)]),
    "numbers": (lambda x: (gt.clip(x, -0.5, 0.5), gt.logaddexp(x, 1.0), gt.nextafter(x, 1.0)), [floats(8)]),
    "norm": (lambda x, w: gt.nn.layer_norm(x, (32,), w), [floats(16, 32), floats(32)]),
    "attention": (
        lambda q, k, v: gt.nn.scaled_dot_product_attention(q, k, v, is_causal=True),
        [floats(2, 4, 16, 8) for _ in "qkv"],
    ),
    "loop": (
        lambda w, xs: gt.scan(lambda h, x: (gt.tanh(h @ w + x), h.sum()), xs[0], xs),
        [floats(8, 8), floats(6, 4, 8)],
    ),
    "draws": (lambda x: gt.random.normal(gt.random.key(0), (5,)) + x, [floats(5)]),
    "training": (train, [floats(16, 8), floats(8, 4)]),
}  # fmt: skip


def same(got, want):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(want), strict=True):
        assert str(a.device).startswith("cuda") and (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("form", ["undecorated", "jit", "reduce-overhead"])
def test_a_program_gives_what_it_gives_on_the_cpu(name, form):
    function, arrays = PROGRAMS[name]
    here, there = [gt.array(x, device="cuda") for x in arrays], [gt.array(x) for x in arrays]
    run = function if form == "undecorated" else gt.jit(function, wait=True, mode="default" if form == "jit" else form)
    want = function(*there)
    for _ in range(3):
        same(run(*here), want)


def test_numbers_go_to_the_gpu_without_a_wait():
    step, x = gt.jit(lambda x, rate: x * rate, wait=True), gt.ones(1000, device="cuda")
    for k in range(8):
        gt.eval(step(x, 0.5 + k))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = gt.eval((x * 0.25, step(x, 0.125)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [float(result[0]) for result in results] == [0.25, 0.125]


def test_a_call_without_memory_frees_what_it_took():
    x = gt.ones((1024, 1024), device="cuda")
    gt.eval(x)
    before = torch.cuda.memory_allocated()
    with pytest.raises(gt.OutOfMemoryError):
        gt.eval(gt.tanh(x)[0, 0] + gt.zeros((1 << 20, 1 << 22), device="cuda"))
    assert torch.cuda.memory_allocated() == before


def test_new_arrays_follow_the_setting():
    with gt.config(device="cuda"):
        assert str(gt.zeros(3).device) == "cuda:0" and gt.config.device == "cuda"
    assert str(gt.zeros(3).device) == "cpu"
