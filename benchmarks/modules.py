"""Whole training runs of torch modules, first steps included: undecorated, by `gtrace.from_module`, and in torch.

    python benchmarks/modules.py [--quick] [--model resnet unet gru] [--steps 120] [--rounds 1] [--json FILE]

Each run is a process of its own, with empty caches of compiled code, that reads back the loss of every step, sides
taking turns; imports are not counted. Losses are compared. torch uses its fused Adam.

resnet: nine blocks with group norms, 16 to 64 wide, of 32 images of 32 by 32. resnet_bn: with batch norms. unet: three
levels, of 8 images. vit: four layers of width 128 on 32 images. gpt: four layers of width 128, batch 16, length 64.
gru: two layers of width 128, batch 32, length 48. wavenet: eight gated convolutions of 8 sequences of 512. graph: three
layers of 500 nodes and 4,000 edges. vae and mlp: of 128 rows of 784.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from measuring.processes import child
from measuring.results import Figure, parser, report, rounds
from models import agree, figures_of
from networks import fused_adam
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import gtrace as gt

CONTESTANTS = ("gtrace", "torch")


class Block(nn.Module):
    """A residual block of two convolutions (He et al., 2015)."""

    def __init__(self, channels: int, features: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, features, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(features, features, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([norm(features), norm(features)])
        same = stride == 1 and channels == features
        self.skip = nn.Identity() if same else nn.Conv2d(channels, features, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.skip(x) + self.norms[1](self.second(h)))


def residual(norm: Callable[[int], nn.Module], depth: int) -> nn.Module:
    sizes = [16] * depth + [32] * depth + [64] * depth
    before = [16, *sizes]
    blocks = [Block(before[k], n, 1 + (n != before[k]), norm) for k, n in enumerate(sizes)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def twice(channels: int, features: int) -> nn.Module:
    parts: list[nn.Module] = []
    for n in (channels, features):
        parts += [nn.Conv2d(n, features, 3, 1, 1), nn.GroupNorm(4, features), nn.SiLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Three levels with skip connections (Ronneberger et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([twice(3, 16), twice(16, 32), twice(32, 64)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.after = nn.ModuleList([twice(64, 32), twice(32, 16)])
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        h = self.down[2](F.max_pool2d(b, 2))
        h = self.after[0](torch.cat([self.up[0](h), b], 1))
        return self.out(self.after[1](torch.cat([self.up[1](h), a], 1)))


class VisionTransformer(nn.Module):
    """torch's encoder layers on patches of 4 by 4 (Dosovitskiy et al., 2020)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 4, 4)
        self.places = nn.Parameter(torch.randn(1, 64, 128) * 0.02)
        kind: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(128, 4, 512, **kind) for _ in range(layers)])
        self.out = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            h = layer(h)
        return self.out(h.mean(1))


class DecoderLayer(nn.Module):
    """Causal attention, whose queries, keys and values are one product, and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.inside, self.outside = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        batch, length, width = h.shape
        parts = self.inside(self.norms[0](h)).chunk(3, -1)
        q, k, v = (one.view(batch, length, 4, width // 4).transpose(1, 2) for one in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.outside(seen.transpose(1, 2).reshape(batch, length, width))
        return h + self.narrower(F.gelu(self.wider(self.norms[1](h))))


class Decoder(nn.Module):
    """A small GPT (Radford et al., 2019)."""

    def __init__(self, layers: int, width: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(65, width), nn.Embedding(64, width)
        self.layers = nn.Sequential(*[DecoderLayer(width) for _ in range(layers)], nn.LayerNorm(width))
        self.out = nn.Linear(width, 65, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.out(self.layers(h)).flatten(0, 1)


class Recurrent(nn.Module):
    """A language model of GRUs."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layers = nn.Embedding(65, 64), nn.GRU(64, 128, 2, batch_first=True)
        self.out = nn.Linear(128, 65)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layers(self.tokens(tokens))[0]).flatten(0, 1)


class WaveNet(nn.Module):
    """Gated, dilated causal convolutions (van den Oord et al., 2016)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 32, 1), nn.Conv1d(32, 64, 1)
        self.gates = nn.ModuleList([nn.Conv1d(32, 64, 2, dilation=2**k) for k in range(layers)])
        self.mixed = nn.ModuleList([nn.Conv1d(32, 32, 1) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        h, total = self.first(x), torch.zeros(())
        for k, (gate, mix) in enumerate(zip(self.gates, self.mixed, strict=True)):
            a, b = gate(F.pad(h, (2**k, 0))).chunk(2, 1)
            out = mix(torch.tanh(a) * torch.sigmoid(b))
            total, h = total + out, h + out
        return self.last(F.relu(total))


class Graph(nn.Module):
    """Sums of messages along edges."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(n, 64) for n in (32, 64, 64)])
        self.others = nn.ModuleList([nn.Linear(n, 64) for n in (32, 64, 64)])
        self.out = nn.Linear(64, 7)

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        for own, other in zip(self.own, self.others, strict=True):
            messages = other(h)[edges[0]]
            h = F.relu(own(h) + torch.zeros(h.shape[0], 64).index_add(0, edges[1], messages) / 8)
        return self.out(h)


class Autoencoder(nn.Module):
    """A variational autoencoder (Kingma and Welling, 2013); returns its reconstruction, means and log variances."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.code = nn.Linear(784, 400), nn.Linear(400, 40)
        self.outside = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, spread = self.code(F.relu(self.inside(x))).chunk(2, 1)
        return torch.cat([self.outside(mean + noise * torch.exp(0.5 * spread)), mean, spread], 1)


def variational(out: Tensor, y: Tensor) -> Tensor:
    logits, mean, spread = out[:, :784], out[:, 784:804], out[:, 804:]
    close = F.binary_cross_entropy_with_logits(logits, y, reduction="sum")
    return (close - 0.5 * (1 + spread - mean**2 - spread.exp()).sum()) / len(y)


class Loss(nn.Module):
    """The loss of a network: its last argument is what the network should give."""

    def __init__(self, network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, *args: Tensor) -> Tensor:
        return self.loss(self.network(*args[:-1]), args[-1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def made(name: str, quick: bool) -> tuple[nn.Module, list[Tensor]]:
    """Return a module that computes its loss, and its arguments."""
    rng = np.random.default_rng(0)
    batch, depth = (2, 1) if quick else (32, 3)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    def below(n: int, *shape: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, n, shape))

    def classes(network: nn.Module, *args: Tensor, count: int = 10) -> tuple[nn.Module, list[Tensor]]:
        return Loss(network, F.cross_entropy), [*args, below(count, len(args[0]))]

    def tokens(network: nn.Module, rows: int, length: int) -> tuple[nn.Module, list[Tensor]]:
        data = below(65, rows, length + 1)
        return Loss(network, F.cross_entropy), [data[:, :-1].contiguous(), data[:, 1:].flatten()]

    torch.manual_seed(0)
    rows = 4 * batch
    if name == "resnet":
        return classes(residual(lambda n: nn.GroupNorm(8, n), depth), normal(batch, 3, 32, 32))
    if name == "resnet_bn":
        return classes(residual(nn.BatchNorm2d, depth), normal(batch, 3, 32, 32))
    if name == "unet":
        images = normal(batch // 4 or 1, 3, 32, 32)
        return Loss(UNet(), F.mse_loss), [images, images / 2]
    if name == "vit":
        return classes(VisionTransformer(depth + 1), normal(batch, 3, 32, 32))
    if name == "gpt":
        return tokens(Decoder(depth + 1), batch // 2, 64)
    if name == "gru":
        return tokens(Recurrent(), batch, 48)
    if name == "wavenet":
        return Loss(WaveNet(8), F.cross_entropy), [normal(batch // 4 or 1, 1, 512), below(64, batch // 4 or 1, 512)]
    if name == "graph":
        return classes(Graph(), normal(500, 32), below(500, 2, 4000), count=7)
    if name == "vae":
        return Loss(Autoencoder(), variational), [normal(rows, 784), normal(rows, 20), torch.rand(rows, 784)]
    return classes(mlp(), normal(rows, 784))


MODELS = ("resnet", "resnet_bn", "unet", "vit", "gpt", "gru", "wavenet", "graph", "vae", "mlp")


def torch_step(module: nn.Module, data: Sequence[Tensor]) -> Callable[[], float]:
    optimizer = fused_adam(module.parameters())

    def run() -> float:
        optimizer.zero_grad()
        value = module(*data)
        value.backward()
        optimizer.step()
        return value.item()

    return run


def gtrace_step(module: nn.Module, data: Sequence[Tensor]) -> Callable[[], float]:
    params, apply = gt.from_module(module)
    optimizer = gt.optim.adam(1e-3)
    moments, state, arrays = optimizer.init(params), apply.state, [gt.from_torch(one) for one in data]

    def loss(params: Any) -> Any:
        return apply(params, *arrays, state=state, train=True)

    def run() -> float:
        nonlocal params, moments, state
        (value, state), grads = gt.value_and_grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(grads, moments, params)
        params = gt.optim.apply_updates(params, updates)
        return float(value)

    return run


def train(which: str, name: str, steps: int, quick: bool) -> dict[str, Any]:
    """Train for some steps; returns the losses and the seconds of the steps."""
    module, data = made(name, quick)
    start = time.perf_counter()
    step = (torch_step if which == "torch" else gtrace_step)(module, data)
    losses, seconds = [], []
    for _ in range(steps):
        losses.append(step())
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    return {"losses": losses, "seconds": seconds}


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    figures = []
    for name in options.model:
        for steps in options.steps:
            found: dict[tuple[str, str], list[dict[str, Any]]] = {("cold", which): [] for which in CONTESTANTS}
            for _ in range(rounds(options)):
                for which in CONTESTANTS:
                    with tempfile.TemporaryDirectory() as folder:
                        run = child(__file__, (which, name, steps, int(options.quick)), folder)
                    found["cold", which].append(run)
            what = f"{name}, {steps} steps"
            agree(what, found)
            figures += [figures_of(what, which, "cold", found["cold", which]) for which in CONTESTANTS]
    return figures, []


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 1)
    options.add_argument("--model", nargs="+", default=MODELS, choices=MODELS)
    options.add_argument("--steps", nargs="+", type=int, default=[120])
    options.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = options.parse_args(argv)
    if given.child:
        which, name, steps, quick = given.child
        print(json.dumps(train(which, name, int(steps), bool(int(quick)))))
        return
    if min(given.steps) < 2:
        options.error(f"expected at least 2 steps, got {min(given.steps)}")
    report("modules", given, measure)


if __name__ == "__main__":
    main()
