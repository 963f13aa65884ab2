"""Modules in training, at data whose mean is large beside its deviation: as exact as in torch, measured by float64."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import gtrace as gt

ROUNDINGS = 16 * np.finfo(np.float32).eps
"""An error that is the order of additions: the exact one of torch may be a tenth of it, by chance."""

IMAGES = (32, 3, 24, 24)

MODULES = {
    "convolution and batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU()), (32, 3, 32, 32),
    ),
    "two of them": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24, affine=False),
        ), IMAGES,
    ),
    "an odd number of pixels": (
        lambda: nn.Sequential(nn.Conv2d(3, 24, 3, bias=False), nn.BatchNorm2d(24)), (29, 3, 25, 21),
    ),
    "without running statistics": (
        lambda: nn.Sequential(nn.Conv2d(3, 24, 3, bias=False), nn.BatchNorm2d(24, track_running_stats=False)),
        IMAGES,
    ),
    "series": (lambda: nn.Sequential(nn.Conv1d(4, 16, 5, bias=False), nn.BatchNorm1d(16)), (32, 4, 256)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(2, 8, 3, bias=False), nn.BatchNorm3d(8)), (8, 2, 12, 12, 12)),
    "batch norm of rows": (lambda: nn.BatchNorm1d(16), (512, 16)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.GroupNorm(4, 16)), IMAGES),
    "instance norm": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.InstanceNorm2d(16)), IMAGES),
    "layer norm": (lambda: nn.LayerNorm(64), (128, 64)),
    "pooled": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 9)),
        IMAGES,
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), (8, 40, 32)),
}  # fmt: skip


def cubes(out):
    return (out**3).mean()


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_in_training_is_as_exact_as_in_torch(name, mean):
    make, shape = MODULES[name]
    torch.manual_seed(1)
    net = make().train()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.05 * torch.randn_like(p)
    x = mean + torch.randn(shape)
    exact, own = copy.deepcopy(net).double(), copy.deepcopy(net)
    params, apply = gt.from_module(net)
    results = {"output": [exact(x.double()), own(x)]}
    for out in results["output"]:
        cubes(out).backward()

    def loss(params):
        out, state = apply(params, gt.from_torch(x), state=apply.state, train=True)
        return cubes(out), (out, state)

    (_, (out, state)), grads = gt.value_and_grad(loss, has_aux=True)(params)
    results = {"output": (*[y.detach() for y in results["output"]], out)}
    results |= {k: (p.grad, dict(own.named_parameters())[k].grad, grads[k]) for k, p in exact.named_parameters()}
    buffers = dict(own.named_buffers())
    results |= {k: (b, buffers[k], state[k]) for k, b in exact.named_buffers() if b.is_floating_point()}
    for k, (right, by_torch, found) in results.items():
        right = right.numpy()
        size = np.abs(right).max() + 1e-30
        torch_error, error = (
            np.sqrt(np.mean((np.asarray(y, np.float64) - right) ** 2)) / size for y in (by_torch, found)
        )
        assert error <= 2 * torch_error + ROUNDINGS, (k, error, torch_error)
