"""Networks as people write them for JAX, layers and norms by hand, and as torch's users do."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from measuring.libraries import Function, Names
from models import torch_training, with_moments
from networks import Transformer, adam, norm, training_step
from torch.nn import functional as F  # noqa: N812

import gtrace
from gtrace import tree

Batch = tuple[np.ndarray, ...]


class Program:
    """A model that is trained by Adam, once in the style of JAX and once as torch's users write it.

    Attributes:
        batches: along the first axis of the data, taken in turn; 0: the data are one batch.
    """

    batches = 0

    def parameters(self) -> Any:
        """Return a pytree of arrays."""
        raise NotImplementedError

    def data(self) -> Batch:
        """Return what a step takes."""
        raise NotImplementedError

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        """In the style of JAX."""
        raise NotImplementedError

    def torch_loss(self, p: Any, *data: Any) -> Any:
        """With torch's own layers."""
        raise NotImplementedError

    def state(self, lib: Names, p: Any) -> list[Any]:
        """Return what training begins with."""
        return with_moments(lib, p)

    def step(self, lib: Names) -> Function:
        """Return a step from the state, its number and data to the state and the loss."""
        return training_step(lib, self.loss)

    def torch_step(self, p: Any) -> Function:
        """Return a step of torch from data to the loss, as a number."""
        return torch_training(functools.partial(self.torch_loss, p), tree.leaves(p))

    def torch_layout(self, a: np.ndarray) -> np.ndarray:
        """Return parameters or data as torch's users lay them out."""
        return a


class Drawing(Program):
    """A program whose loss draws random numbers: it takes a key before the data, split from that of the last step."""

    def state(self, lib: Names, p: Any) -> list[Any]:
        return [*with_moments(lib, p), lib.random.key(0)]

    def step(self, lib: Names) -> Function:
        def step(p: Any, m: Any, v: Any, key: Any, t: Any, *data: Any) -> Any:
            key, own = lib.random.split(key)
            value, g = lib.value_and_grad(lambda p: self.loss(lib, p, own, *data))(p)
            return *adam(lib, p, m, v, g, t), key, value

        return step


# -- layers


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def affine(rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    """Return a layer's weights and biases."""
    return {"w": normal(rng, inputs, outputs) / np.float32(math.sqrt(inputs)), "b": np.zeros(outputs, np.float32)}


def affine_layers(rng: np.random.Generator, *sizes: int) -> list[dict[str, np.ndarray]]:
    """Return the layers of an MLP."""
    return [affine(rng, *pair) for pair in itertools.pairwise(sizes)]


def linear(layer: Any, x: Any) -> Any:
    return x @ layer["w"] + layer["b"]


def torch_linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """As one operation of torch."""
    if x.ndim == 2:
        return torch.addmm(layer["b"], x, layer["w"])
    return F.linear(x, layer["w"].T, layer["b"])


def mlp(layers: Sequence[Any], x: Any, activation: Callable[[Any], Any], apply: Function = linear) -> Any:
    for layer in layers[:-1]:
        x = activation(apply(layer, x))
    return apply(layers[-1], x)


def scales(width: int) -> dict[str, np.ndarray]:
    """Return the parameters of a norm."""
    return {"scale": np.ones(width, np.float32), "shift": np.zeros(width, np.float32)}


def layer_norm(lib: Names, p: Any, h: Any) -> Any:
    return norm(lib, h, p["scale"], p["shift"])


def torch_layer_norm(p: Any, h: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(h, h.shape[-1:], p["scale"], p["shift"])


def cross_entropy(lib: Names, scores: Any, y: Any) -> Any:
    return -lib.np.take_along_axis(lib.nn.log_softmax(scores, axis=-1), y[..., None], axis=-1).mean()


def dropped(lib: Names, key: Any, h: Any, rate: float) -> Any:
    """Return `h` with some of it replaced by zeros."""
    keep = lib.random.bernoulli(key, 1 - rate, h.shape)
    return lib.np.where(keep, h / (1 - rate), 0.0)


# -- with dropout


class DropoutMlp(Drawing):
    """A classifier with dropout after each hidden layer."""

    rate = 0.2

    def __init__(self, sizes: tuple[int, ...] = (784, 512, 512, 10), batch: int = 128) -> None:
        self.sizes, self.batch = sizes, batch

    def parameters(self) -> Any:
        return affine_layers(np.random.default_rng(0), *self.sizes)

    def data(self) -> Batch:
        rng = np.random.default_rng(1)
        return normal(rng, self.batch, self.sizes[0]), rng.integers(0, self.sizes[-1], self.batch)

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        key, h, y = data
        for layer, own in zip(p[:-1], lib.random.split(key, len(p) - 1), strict=True):
            h = dropped(lib, own, lib.nn.relu(linear(layer, h)), self.rate)
        scores = lib.nn.log_softmax(linear(p[-1], h), axis=-1)
        return -(scores * lib.nn.one_hot(y, self.sizes[-1])).sum(-1).mean()

    def torch_loss(self, p: Any, *data: Any) -> Any:
        h, y = data
        for layer in p[:-1]:
            h = F.dropout(F.relu(torch_linear(layer, h)), self.rate)
        return F.cross_entropy(torch_linear(p[-1], h), y)


class DropoutTransformer(Drawing):
    """A language model with dropout of embeddings, and of what attention and MLPs add to them."""

    rate = 0.1

    def __init__(self, layers: int = 4, width: int = 128, heads: int = 4, batch: int = 4, length: int = 64,
                 vocabulary: int = 256) -> None:  # fmt: skip
        self.like = Transformer(layers, width, heads, batch, length, vocabulary)
        self.shape = (batch, length, heads, width // heads)

    def parameters(self) -> Any:
        return self.like.parameters()

    def data(self) -> Batch:
        return self.like.data()

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        key, x, y = data
        length = self.like.length
        seen = lib.np.tril(lib.np.ones((length, length), dtype=bool))
        first, *keys = lib.random.split(key, 1 + 2 * self.like.layers)
        h = dropped(lib, first, p["tokens"][x] + p["places"], self.rate)
        for j, d in enumerate(p["layers"]):
            qkv = norm(lib, h, d["scale1"], d["shift1"]) @ d["qkv"] + d["qkv_bias"]
            q, k, v = (part.reshape(self.shape) for part in lib.np.split(qkv, 3, axis=-1))
            scores = lib.np.einsum("blhd,bmhd->bhlm", q, k) * self.shape[-1] ** -0.5
            weights = lib.nn.softmax(lib.np.where(seen, scores, -1e9), axis=-1)
            mixed = lib.np.einsum("bhlm,bmhd->blhd", weights, v).reshape(h.shape) @ d["out"] + d["out_bias"]
            h = h + dropped(lib, keys[2 * j], mixed, self.rate)
            inner = norm(lib, h, d["scale2"], d["shift2"]) @ d["up"] + d["up_bias"]
            inner = lib.nn.gelu(inner, approximate=False) @ d["down"] + d["down_bias"]
            h = h + dropped(lib, keys[2 * j + 1], inner, self.rate)
        return cross_entropy(lib, norm(lib, h, p["scale"], p["shift"]) @ p["tokens"].T, y)

    def torch_loss(self, p: Any, *data: Any) -> Any:
        x, y = data
        size = (self.like.width,)
        h = F.dropout(F.embedding(x, p["tokens"]) + p["places"], self.rate)
        for d in p["layers"]:
            qkv = F.linear(F.layer_norm(h, size, d["scale1"], d["shift1"]), d["qkv"].T, d["qkv_bias"])
            q, k, v = (part.view(self.shape).transpose(1, 2) for part in qkv.chunk(3, -1))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(h.shape)
            h = h + F.dropout(F.linear(mixed, d["out"].T, d["out_bias"]), self.rate)
            inner = F.gelu(F.linear(F.layer_norm(h, size, d["scale2"], d["shift2"]), d["up"].T, d["up_bias"]))
            h = h + F.dropout(F.linear(inner, d["down"].T, d["down_bias"]), self.rate)
        scores = F.linear(F.layer_norm(h, size, p["scale"], p["shift"]), p["tokens"])
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), y.view(-1))


# -- diffusion


def kernel(rng: np.random.Generator, size: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    """Return the parameters of a convolution, in the order of JAX's users: height, width, inputs, outputs."""
    weights = normal(rng, size, size, inputs, outputs) / np.float32(math.sqrt(size * size * inputs))
    return {"w": weights, "b": np.zeros(outputs, np.float32)}


def conv(lib: Names, p: Any, h: Any) -> Any:
    """Of images whose channels come last."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return lib.lax.conv_general_dilated(h, p["w"], (1, 1), "SAME", dimension_numbers=numbers) + p["b"]


def torch_conv(p: Any, h: torch.Tensor) -> torch.Tensor:
    return F.conv2d(h, p["w"], p["b"], padding="same")


class Diffusion(Program):
    """A U-Net of two sizes that predicts the noise in images (Ho et al., 2020)."""

    groups, times = 8, 1000

    def __init__(self, narrow: int = 32, wide: int = 64, batch: int = 16, size: int = 16) -> None:
        self.narrow, self.wide, self.batch, self.size = narrow, wide, batch, size
        self.kept = np.cumprod(1 - np.linspace(1e-4, 0.02, self.times)).astype(np.float32)
        self.speeds = np.exp(-math.log(10_000) * np.arange(narrow // 2) / (narrow // 2)).astype(np.float32)

    def parameters(self) -> Any:
        rng = np.random.default_rng(0)
        narrow, wide = self.narrow, self.wide

        def block(inputs: int, outputs: int) -> dict[str, Any]:
            made = {
                "norm1": scales(inputs), "conv1": kernel(rng, 3, inputs, outputs), "time": affine(rng, wide, outputs),
                "norm2": scales(outputs), "conv2": kernel(rng, 3, outputs, outputs),
            }  # fmt: skip
            return made if inputs == outputs else made | {"skip": kernel(rng, 1, inputs, outputs)}

        return {
            "time": affine_layers(rng, narrow, wide, wide), "first": kernel(rng, 3, 3, narrow),
            "down": block(narrow, narrow), "middle": [block(narrow, wide), block(wide, wide)],
            "up": block(narrow + wide, narrow), "norm": scales(narrow), "last": kernel(rng, 3, narrow, 3),
        }  # fmt: skip

    def data(self) -> Batch:
        """Return images, noise and times."""
        rng = np.random.default_rng(1)
        shape = (self.batch, self.size, self.size, 3)
        return normal(rng, *shape), normal(rng, *shape), rng.integers(0, self.times, self.batch)

    def torch_layout(self, a: np.ndarray) -> np.ndarray:
        if a.ndim != 4:
            return a
        is_kernel = a.shape[0] == a.shape[1] in (1, 3)
        return np.ascontiguousarray(a.transpose((3, 2, 0, 1) if is_kernel else (0, 3, 1, 2)))

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        images, noise, times = data
        np_, silu = lib.np, lib.nn.silu

        def group_norm(p: Any, h: Any) -> Any:
            g = h.reshape((*h.shape[:3], self.groups, -1))
            centred = g - g.mean((1, 2, 4), keepdims=True)
            g = centred / np_.sqrt((centred**2).mean((1, 2, 4), keepdims=True) + 1e-5)
            return g.reshape(h.shape) * p["scale"] + p["shift"]

        def block(p: Any, h: Any) -> Any:
            inner = conv(lib, p["conv1"], silu(group_norm(p["norm1"], h))) + linear(p["time"], when)[:, None, None]
            inner = conv(lib, p["conv2"], silu(group_norm(p["norm2"], inner)))
            return inner + (conv(lib, p["skip"], h) if "skip" in p else h)

        kept = np_.asarray(self.kept)[times][:, None, None, None]
        angles = times[:, None] * np_.asarray(self.speeds)
        when = silu(mlp(p["time"], np_.concatenate([np_.sin(angles), np_.cos(angles)], axis=-1), silu))
        h = conv(lib, p["first"], np_.sqrt(kept) * images + np_.sqrt(1 - kept) * noise)
        large = block(p["down"], h)
        n, height, width, channels = large.shape
        h = large.reshape((n, height // 2, 2, width // 2, 2, channels)).mean((2, 4))
        for own in p["middle"]:
            h = block(own, h)
        h = np_.repeat(np_.repeat(h, 2, axis=1), 2, axis=2)
        h = block(p["up"], np_.concatenate([h, large], axis=-1))
        return ((conv(lib, p["last"], silu(group_norm(p["norm"], h))) - noise) ** 2).mean()

    def torch_loss(self, p: Any, *data: Any) -> Any:
        images, noise, times = data

        def group_norm(p: Any, h: Any) -> Any:
            return F.group_norm(h, self.groups, p["scale"], p["shift"])

        def block(p: Any, h: Any) -> Any:
            time = torch_linear(p["time"], when)[:, :, None, None]
            inner = torch_conv(p["conv1"], F.silu(group_norm(p["norm1"], h))) + time
            inner = torch_conv(p["conv2"], F.silu(group_norm(p["norm2"], inner)))
            return inner + (torch_conv(p["skip"], h) if "skip" in p else h)

        kept = torch.from_numpy(self.kept)[times][:, None, None, None]
        angles = times[:, None] * torch.from_numpy(self.speeds)
        when = F.silu(mlp(p["time"], torch.cat([angles.sin(), angles.cos()], -1), F.silu, torch_linear))
        h = torch_conv(p["first"], kept.sqrt() * images + (1 - kept).sqrt() * noise)
        large = block(p["down"], h)
        h = F.avg_pool2d(large, 2)
        for own in p["middle"]:
            h = block(own, h)
        h = block(p["up"], torch.cat([F.interpolate(h, scale_factor=2), large], 1))
        return F.mse_loss(torch_conv(p["last"], F.silu(group_norm(p["norm"], h))), noise)


# -- an MLP-Mixer


class Mixer(Program):
    """Blocks of two MLPs, along patches and along channels (Tolstikhin et al., 2021)."""

    def __init__(self, blocks: int = 4, patches: int = 64, width: int = 96, batch: int = 16) -> None:
        self.blocks, self.patches, self.width, self.batch = blocks, patches, width, batch
        self.inputs, self.classes = 48, 10

    def parameters(self) -> Any:
        rng, width = np.random.default_rng(0), self.width

        def block() -> dict[str, Any]:
            return {
                "norm1": scales(width), "patches": affine_layers(rng, self.patches, width // 2, self.patches),
                "norm2": scales(width), "channels": affine_layers(rng, width, 4 * width, width),
            }  # fmt: skip

        return {
            "first": affine(rng, self.inputs, width), "blocks": [block() for _ in range(self.blocks)],
            "norm": scales(width), "last": affine(rng, width, self.classes),
        }  # fmt: skip

    def data(self) -> Batch:
        rng = np.random.default_rng(1)
        return normal(rng, self.batch, self.patches, self.inputs), rng.integers(0, self.classes, self.batch)

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        x, y = data
        gelu = functools.partial(lib.nn.gelu, approximate=False)
        h = linear(p["first"], x)
        for own in p["blocks"]:
            inner = lib.np.swapaxes(layer_norm(lib, own["norm1"], h), 1, 2)
            h = h + lib.np.swapaxes(mlp(own["patches"], inner, gelu), 1, 2)
            h = h + mlp(own["channels"], layer_norm(lib, own["norm2"], h), gelu)
        return cross_entropy(lib, linear(p["last"], layer_norm(lib, p["norm"], h).mean(1)), y)

    def torch_loss(self, p: Any, *data: Any) -> Any:
        x, y = data
        h = torch_linear(p["first"], x)
        for own in p["blocks"]:
            inner = torch_layer_norm(own["norm1"], h).transpose(1, 2)
            h = h + mlp(own["patches"], inner, F.gelu, torch_linear).transpose(1, 2)
            h = h + mlp(own["channels"], torch_layer_norm(own["norm2"], h), F.gelu, torch_linear)
        return F.cross_entropy(torch_linear(p["last"], torch_layer_norm(p["norm"], h).mean(1)), y)


# -- a graph network


def segment_sum(lib: Names) -> Function:
    """Return a library's sums of segments."""
    return gtrace.segments.segment_sum if lib.np is gtrace.numpy else importlib.import_module("jax").ops.segment_sum


class Gcn(Program):
    """A classifier of nodes from weighted sums over their edges (Kipf and Welling, 2016)."""

    def __init__(self, nodes: int = 500, edges: int = 2000, width: int = 64, layers: int = 3) -> None:
        self.nodes, self.edges, self.width, self.layers = nodes, edges, width, layers
        self.inputs, self.classes = 32, 7

    def parameters(self) -> Any:
        rng, width = np.random.default_rng(0), self.width

        def layer() -> dict[str, Any]:
            return {"scale": scales(width)["scale"], "own": affine(rng, width, width),
                    "others": normal(rng, width, width) / np.float32(math.sqrt(width))}  # fmt: skip

        return {
            "first": affine(rng, self.inputs, width), "layers": [layer() for _ in range(self.layers)],
            "last": affine(rng, width, self.classes),
        }  # fmt: skip

    def data(self) -> Batch:
        """Return features of nodes, the ends of edges, their weights, and classes."""
        rng = np.random.default_rng(1)
        senders, receivers = rng.integers(0, self.nodes, (2, self.edges))
        degrees = [np.maximum(np.bincount(ends, minlength=self.nodes), 1)[ends] for ends in (senders, receivers)]
        weights = (1 / np.sqrt(degrees[0] * degrees[1])).astype(np.float32)
        features = normal(rng, self.nodes, self.inputs)
        return features, senders, receivers, weights, rng.integers(0, self.classes, self.nodes)

    def loss(self, lib: Names, p: Any, *data: Any) -> Any:
        x, senders, receivers, weights, y = data
        h = linear(p["first"], x)
        for own in p["layers"]:
            inner = h / lib.np.sqrt((h * h).mean(-1, keepdims=True) + 1e-5) * own["scale"]
            messages = (inner @ own["others"])[senders] * weights[:, None]
            sums = segment_sum(lib)(messages, receivers, num_segments=self.nodes)
            h = h + lib.nn.relu(linear(own["own"], inner) + sums)
        return cross_entropy(lib, linear(p["last"], h), y)

    def torch_loss(self, p: Any, *data: Any) -> Any:
        x, senders, receivers, weights, y = data
        h = torch_linear(p["first"], x)
        for own in p["layers"]:
            inner = F.rms_norm(h, h.shape[-1:], own["scale"], 1e-5)
            messages = (inner @ own["others"]).index_select(0, senders) * weights[:, None]
            h = h + F.relu(torch_linear(own["own"], inner).index_add(0, receivers, messages))
        return F.cross_entropy(torch_linear(p["last"], h), y)
