"""Functions of torch that write to tensors and to views of them, traced as new values: the same numbers as in torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import launch
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import gtrace as gt
from gtrace.testing import assert_close

VIEWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "row": lambda x, k: x[k % x.shape[0]] if x.dim() else x,
    "slice": lambda x, k: x[k % 2 :] if x.dim() else x,
    "steps": lambda x, k: x[..., :: 1 + k % 2] if x.dim() else x,
    "transposed": lambda x, k: x.transpose(0, -1) if x.dim() else x,
    "permuted": lambda x, k: x.permute(*range(1, x.dim()), 0) if x.dim() else x,
    "flat": lambda x, k: x.view(-1) if x.is_contiguous() else x,
    "unsqueezed": lambda x, k: x.unsqueeze(k % (x.dim() + 1)),
    "part": lambda x, k: x.chunk(2, 0)[0] if x.dim() else x,
    "unbound": lambda x, k: x.unbind(0)[-1] if x.dim() else x,
    "split": lambda x, k: x.split([1, x.shape[0] - 1])[k % 2] if x.dim() and x.shape[0] > 1 else x,
    "diagonal": lambda x, k: x.diagonal() if x.dim() == 2 else x,
    "alias": lambda x, k: x.view(x.shape),
}

WRITES: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "add": lambda x, s, k: x.add_(s.sum() * 0.1),
    "mul": lambda x, s, k: x.mul_(1 + k / 4),
    "zero": lambda x, s, k: x.zero_(),
    "fill": lambda x, s, k: x.fill_(k / 2),
    "copy": lambda x, s, k: x.copy_(s.mean()),
    "clamp": lambda x, s, k: x.clamp_(-k / 3, 1.0),
    "masked": lambda x, s, k: x.masked_fill_(x > 0.5, -1.0),
    "where": lambda x, s, k: x.index_fill_(0, torch.tensor([0]), 2.0) if x.dim() and x.shape[0] else x,
    "item": lambda x, s, k: x.__setitem__(0, s.mean()) if x.dim() and x.shape[0] else None,
    "sigmoid": lambda x, s, k: x.sigmoid_(),
    "integer": lambda x, s, k: x.pow_(2),
}

steps = st.lists(
    st.tuples(st.booleans(), st.sampled_from(sorted(VIEWS)), st.sampled_from(sorted(WRITES)), st.integers(0, 5)),
    min_size=1,
    max_size=8,
)


def program(chosen: list[tuple[bool, str, str, int]]) -> Callable[[Tensor], Tensor]:
    """A function that takes views, of its copy of the argument and of one another, and writes to them."""

    def run(x: Tensor) -> Tensor:
        base = x * 1.0
        tensors = [base]
        for is_view, view, write, k in chosen:
            target = tensors[k % len(tensors)]
            if is_view:
                tensors.append(VIEWS[view](target, k))
            elif target.numel():
                WRITES[write](target, tensors[-1], k)
        return torch.cat([(one * (k + 1)).reshape(-1) for k, one in enumerate(tensors)])

    return run


@pytest.mark.slow
@given(steps)
def test_views_and_writes_in_any_order(chosen: list[tuple[bool, str, str, int]]) -> None:
    function = program(chosen)
    x = torch.linspace(-1.0, 1.5, 12, dtype=torch.float64).reshape(3, 4)
    assert_close(gt.lift(function)(gt.from_torch(x)), function(x).numpy())


@given(steps)
def test_gradients_through_views_and_writes(chosen: list[tuple[bool, str, str, int]]) -> None:
    function = program(chosen)
    x = torch.linspace(-1.0, 1.5, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    try:
        (expected,) = torch.autograd.grad(function(x).sum(), x)
    except RuntimeError:  # torch's own rules of writing to views and to what a derivative needs
        return
    found = gt.grad(lambda x: gt.lift(function)(x).sum())(gt.from_torch(x.detach()))
    assert_close(found, expected.numpy())


def bounded(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y.clamp_(-1.0, 1.0)
        y[1:].mul_(3.0)
        new = y + 1  # has no gradient
        new.mul_(x)
    return (y**2).sum() + (new * x).sum()


def infinite(x: Tensor) -> Tensor:
    y = x / 0
    with torch.no_grad():
        y.nan_to_num_(0.0, 2.0, -2.0)
    return y.sum()


def test_what_is_written_to_under_no_grad_keeps_its_gradient() -> None:
    x = torch.tensor([0.25, -3.0, 2.0], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([[1.0, 0.5, 2.0]], dtype=torch.float64)

    def similar(x: Tensor) -> Tensor:
        return torch.cosine_similarity(x[None], other).sum()  # torch writes to its norms that way

    for f in (bounded, similar):
        expected = f(x)
        (slope,) = torch.autograd.grad(expected, x)
        value, found = gt.value_and_grad(gt.lift(f))(gt.array(x.detach()))
        assert_close(value, expected.detach())
        assert_close(found, slope)
    assert float(gt.lift(infinite)(gt.array(x.detach()))) == float(infinite(x.detach())) == 2.0


def test_a_write_to_what_was_there_before_is_refused() -> None:
    table = torch.zeros(3)
    with pytest.raises(gt.ArgumentError, match=r"one that writes|functional"):
        gt.lift(lambda x: table.add_(x))(gt.ones(3))
    with pytest.raises(gt.ArgumentError, match=r"one that writes"):
        gt.lift(lambda x: x.mul_(2.0))(gt.ones(3))
    assert table.tolist() == [0.0, 0.0, 0.0]


def test_operands_that_do_not_fit_are_torchs_error() -> None:
    with pytest.raises(gt.ArgumentError, match=r"torch says"):
        gt.lift(lambda x: torch.zeros(2).add_(x))(gt.ones(3))
    with pytest.raises(gt.ArgumentError, match=r"torch says"):
        gt.lift(lambda x: torch.zeros(3, dtype=torch.int64).add_(x))(gt.ones(3))


def test_known_numbers_may_be_looked_at() -> None:
    def scaled(x: Tensor) -> Tensor:
        sizes = torch.tensor([3, 4])
        count, rest = sizes.tolist()
        return x * count + rest + int((sizes * 2).sum()) + torch.arange(2)[sizes > 3].numel()

    assert gt.lift(scaled)(gt.ones(2)).tolist() == [22.0, 22.0]


def test_new_tensors_follow_what_is_written_to_them() -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = x.new_zeros(len(x) + 1, 4)
            out[1:, :2] = x[:, 2:]
            out[0].copy_(x.sum(0))
            left, right = out.chunk(2, 1)
            right += left.cumsum(0)
            return out

    x = torch.arange(8.0).reshape(2, 4)
    params, apply = gt.from_module(Rows())
    assert apply(params, gt.from_torch(x)).tolist() == Rows()(x).tolist()


PROGRAM = """
import sys
import torch, gtrace as gt
from torch import nn

def train(module, *data, **settings):
    params, apply = gt.from_module(module)
    optimizer = gt.optim.adam(1e-3)
    moments, state = optimizer.init(params), apply.state
    for _ in range(2):
        def loss(params):
            out, new = apply(params, *data, state=state, train=True, **settings)
            return (out * out).mean(), new
        (value, state), grads = gt.value_and_grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(grads, moments, params)
        params = gt.optim.apply_updates(params, updates)
        float(value)

image = gt.ones((2, 3, 8, 8))
train(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
                    nn.Linear(72, 4)), image)
train(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), image)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True, activation="gelu")
train(layer, gt.ones((2, 5, 16)), key=gt.random.key(0))
class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.layers, self.out = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 9)
    def forward(self, tokens):
        scores = self.out(self.layers(self.tokens(tokens))[0])
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
train(Tokens(), gt.arange(8).reshape(2, 4))
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


@pytest.mark.slow
def test_training_a_module_does_not_import_torch_compile(tmp_path: Any) -> None:
    env = {**os.environ, "GT_CACHE_DIR": str(tmp_path), "GT_BACKGROUND": "1"}
    with launch.from_scratch():
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
