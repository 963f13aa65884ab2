"""Networks, their losses and Adam, written once for gtrace and JAX and once as torch's users write them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from measuring.harness import Arrays, Work, Workload
from measuring.libraries import COMPILED, EAGER, Function, Names

from gtrace import tree

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


# -- Adam


def adam(lib: Names, p: Any, m: Any, v: Any, g: Any, t: Any) -> Any:
    """Return the parameters and both moments after step `t`, which counts from 1."""
    m = lib.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, m, g)
    v = lib.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, g)
    rate, scale = RATE / (1 - BETA1**t), 1 / (1 - BETA2**t)
    return lib.tree.map(lambda p, m, v: p - rate * m / (lib.np.sqrt(v * scale) + EPSILON), p, m, v), m, v


def fused_adam(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, fused=True)


Loss = Callable[..., Any]
"""From a library's names, the parameters and the data to a number."""


def training_arrays(params: Any, data: tuple[Any, ...]) -> Arrays:
    """Return the arguments of a training step: parameters, moments, the number of the step, data."""
    zeros = tree.map(np.zeros_like, params)
    return params, zeros, zeros, np.float32(1.0), *data


def training_step(lib: Names, loss: Loss) -> Function:
    """Return a step that takes and returns all of its state: parameters, moments, and the loss."""

    def step(p: Any, m: Any, v: Any, t: Any, *data: Any) -> Any:
        value, g = lib.value_and_grad(lambda p: loss(lib, p, *data))(p)
        return *adam(lib, p, m, v, g, t), value

    return step


def torch_trainer(loss: Function, compiled: bool) -> Function:
    """Return a step as torch's users write it: leaves with gradients, and a fused optimizer that writes in place.

    It returns None for the parameters and for the second moment, which change in place, then the loss.
    """
    state: dict[str, Any] = {}
    apply = torch.compile(loss) if compiled else loss

    def step(p: Any, m: Any, v: Any, t: Any, *data: Any) -> Any:
        if not state:
            state["p"] = tree.map(lambda leaf: torch.nn.Parameter(leaf.clone()), p)
            state["leaves"], structure = tree.flatten(state["p"])
            state["optimizer"] = fused_adam(state["leaves"])
        value = apply(state["p"], *data)
        state["optimizer"].zero_grad()
        value.backward()
        state["optimizer"].step()
        if "m" not in state:
            moments = [state["optimizer"].state[leaf]["exp_avg"] for leaf in state["leaves"]]
            state["m"] = tree.unflatten(structure, moments)
        return None, state["m"], None, value

    return step


def training(
    name: str, arrays: Callable[[], Arrays], loss: Loss, work: Work, torch_loss: Loss | None = None
) -> Workload:
    """Return a training step with Adam as a workload. Its loss and first moment, a tenth of the gradient, are checked.

    Args:
        torch_loss: as torch's users write it; None: the same.
    """

    def trainer(compiled: bool) -> Callable[[], Function]:
        own = torch_loss or loss
        return lambda: torch_trainer(lambda p, *data: own(EAGER.names(), p, *data), compiled)

    return Workload(
        name, arrays, lambda lib: training_step(lib, loss), transforms=True, work=work, tolerance=2e-3,
        trainers={EAGER.name: trainer(False), COMPILED.name: trainer(True)},
        checked=lambda result: (result[1], result[3]),
    )  # fmt: skip


# -- layers, and what they are given


def small_weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return weights of a language model."""
    return (rng.normal(size=shape) * 0.02).astype(np.float32)


def batch_of_tokens(shape: tuple[int, int], vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of tokens, and those to predict."""
    rng = np.random.default_rng(1)
    return rng.integers(0, vocabulary, shape), rng.integers(0, vocabulary, shape)


def norm(lib: Names, h: Any, scale: Any, shift: Any) -> Any:
    """Layer norm, written out."""
    centred = h - h.mean(-1, keepdims=True)
    return centred / lib.np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale + shift


# -- a transformer


class Transformer:
    """A language model: pre-norm blocks, tied embeddings, and one batch of tokens."""

    def __init__(self, layers: int = 6, width: int = 256, heads: int = 4, batch: int = 8, length: int = 128,
                 vocabulary: int = 1024) -> None:  # fmt: skip
        self.layers, self.width, self.heads = layers, width, heads
        self.batch, self.length, self.vocabulary = batch, length, vocabulary

    def parameters(self) -> dict[str, Any]:
        normal = functools.partial(small_weights, np.random.default_rng(0))
        width = self.width

        def zeros(n: int) -> np.ndarray:
            return np.zeros(n, np.float32)

        def layer() -> dict[str, np.ndarray]:
            return {
                "scale1": 1 + zeros(width), "shift1": zeros(width), "qkv": normal(width, 3 * width),
                "qkv_bias": zeros(3 * width), "out": normal(width, width), "out_bias": zeros(width),
                "scale2": 1 + zeros(width), "shift2": zeros(width), "up": normal(width, 4 * width),
                "up_bias": zeros(4 * width), "down": normal(4 * width, width), "down_bias": zeros(width),
            }  # fmt: skip

        return {
            "tokens": normal(self.vocabulary, width), "places": normal(self.length, width),
            "layers": [layer() for _ in range(self.layers)], "scale": 1 + zeros(width), "shift": zeros(width),
        }  # fmt: skip

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        return batch_of_tokens((self.batch, self.length), self.vocabulary)

    def loss(self, lib: Names, p: Any, x: Any, y: Any) -> Any:
        width, heads, length = self.width, self.heads, self.length

        def split(h: Any) -> Any:
            return lib.np.permute_dims(h.reshape((self.batch, length, heads, width // heads)), (0, 2, 1, 3))

        places = lib.np.arange(length)
        mask = lib.np.where(places[:, None] >= places[None, :], 0.0, -1e9)
        h = p["tokens"][x] + p["places"]
        for layer in p["layers"]:
            qkv = norm(lib, h, layer["scale1"], layer["shift1"]) @ layer["qkv"] + layer["qkv_bias"]
            q, k, v = (split(qkv[..., j * width : (j + 1) * width]) for j in range(3))
            scores = q @ lib.np.permute_dims(k, (0, 1, 3, 2)) * ((width // heads) ** -0.5) + mask
            mixed = lib.np.permute_dims(lib.nn.softmax(scores, axis=-1) @ v, (0, 2, 1, 3))
            h = h + mixed.reshape((self.batch, length, width)) @ layer["out"] + layer["out_bias"]
            inner = norm(lib, h, layer["scale2"], layer["shift2"]) @ layer["up"] + layer["up_bias"]
            h = h + lib.nn.gelu(inner, approximate=False) @ layer["down"] + layer["down_bias"]
        scores = norm(lib, h, p["scale"], p["shift"]) @ p["tokens"].T
        return -(lib.nn.log_softmax(scores, axis=-1) * lib.nn.one_hot(y, self.vocabulary)).sum(-1).mean()

    def torch_loss(self, lib: Names, p: Any, x: Any, y: Any) -> Any:
        """With torch's own layers."""
        f = torch.nn.functional
        shape = (self.batch, self.length, self.heads, self.width // self.heads)
        size = (self.width,)
        h = p["tokens"][x] + p["places"]
        for d in p["layers"]:
            qkv = f.layer_norm(h, size, d["scale1"], d["shift1"]) @ d["qkv"] + d["qkv_bias"]
            q, k, v = (a.view(shape).transpose(1, 2) for a in qkv.chunk(3, -1))
            mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + mixed.transpose(1, 2).reshape(h.shape) @ d["out"] + d["out_bias"]
            inner = f.gelu(f.layer_norm(h, size, d["scale2"], d["shift2"]) @ d["up"] + d["up_bias"])
            h = h + inner @ d["down"] + d["down_bias"]
        scores = f.layer_norm(h, size, p["scale"], p["shift"]) @ p["tokens"].T
        return f.cross_entropy(scores.view(-1, self.vocabulary), y.view(-1))

    def workload(self) -> Workload:
        """A training step with Adam."""
        width, tokens = self.width, self.batch * self.length
        weights = 12 * width**2 * self.layers + self.vocabulary * width
        attention = 12 * tokens * self.length * width * self.layers
        return training(
            f"transformer training step, {self.layers} layers, width {width}",
            lambda: training_arrays(self.parameters(), self.data()), self.loss,
            Work(7 * 4 * weights, 6 * tokens * weights + attention), self.torch_loss,
        )  # fmt: skip


# -- an LSTM


class Lstm:
    """An LSTM over sequences, of whose last state a number is asked."""

    def __init__(self, width: int = 128, batch: int = 32, steps: int = 64) -> None:
        self.width, self.batch, self.steps = width, batch, steps

    def parameters(self) -> dict[str, np.ndarray]:
        rng, width = np.random.default_rng(0), self.width

        def uniform(*shape: int) -> np.ndarray:
            return (rng.uniform(-1, 1, size=shape) / math.sqrt(width)).astype(np.float32)

        return {
            "inputs": uniform(width, 4 * width), "state": uniform(width, 4 * width), "bias": uniform(4 * width),
            "out": uniform(width, 1),
        }  # fmt: skip

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        xs = np.random.default_rng(1).normal(size=(self.steps, self.batch, self.width)).astype(np.float32)
        return xs, np.sin(xs.sum((0, 2)))[:, None].astype(np.float32)

    def loss(self, lib: Names, p: Any, xs: Any, y: Any) -> Any:
        width = self.width

        def step(state: Any, x: Any) -> Any:
            h, c = state
            gates = x @ p["inputs"] + h @ p["state"] + p["bias"]
            i, f, g, o = (gates[:, k * width : (k + 1) * width] for k in range(4))
            c = lib.nn.sigmoid(f) * c + lib.nn.sigmoid(i) * lib.np.tanh(g)
            return (lib.nn.sigmoid(o) * lib.np.tanh(c), c), None

        start = lib.np.zeros((self.batch, width))
        (h, _), _ = lib.lax.scan(step, (start, start), xs)
        return ((h @ p["out"] - y) ** 2).mean()

    def torch_layer(self, p: dict[str, torch.Tensor]) -> torch.nn.LSTM:
        """Return torch's own LSTM with parameters of ours; its second bias, which the others lack, is not trained."""
        lstm = torch.nn.LSTM(self.width, self.width)
        with torch.no_grad():
            lstm.load_state_dict({
                "weight_ih_l0": p["inputs"].T, "weight_hh_l0": p["state"].T, "bias_ih_l0": p["bias"],
                "bias_hh_l0": 0 * p["bias"],
            })  # fmt: skip
        lstm.get_parameter("bias_hh_l0").requires_grad_(False)
        return lstm


# -- a CNN


class Cnn:
    """A classifier of images: stages of two convolutions of 3 by 3 and a halving by maxima, and a mean over places."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128), batch: int = 64, size: int = 32) -> None:
        self.widths, self.batch, self.size = widths, batch, size
        self.classes = 10

    def parameters(self) -> dict[str, Any]:
        rng = np.random.default_rng(0)

        def kernel(*shape: int) -> np.ndarray:
            return (rng.normal(size=shape) * math.sqrt(2 / math.prod(shape[1:]))).astype(np.float32)

        sizes = [(wide, below) for below, wide in zip((3, *self.widths), self.widths, strict=False)]
        convolutions = [
            {"kernel": kernel(wide, count, 3, 3), "bias": np.zeros(wide, np.float32)}
            for wide, below in sizes
            for count in (below, wide)
        ]
        return {"convolutions": convolutions, "out": kernel(self.classes, self.widths[-1]).T.copy()}

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        images = rng.normal(size=(self.batch, 3, self.size, self.size)).astype(np.float32)
        return images, rng.integers(0, self.classes, self.batch)

    def loss(self, lib: Names, p: Any, x: Any, y: Any) -> Any:
        h = x
        for k, layer in enumerate(p["convolutions"]):
            h = lib.nn.relu(lib.lax.conv(h, layer["kernel"], (1, 1), "SAME") + layer["bias"][:, None, None])
            if k % 2:
                h = lib.lax.reduce_window(h, -math.inf, lib.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        scores = h.mean((2, 3)) @ p["out"]
        return -(lib.nn.log_softmax(scores, axis=-1) * lib.nn.one_hot(y, self.classes)).sum(-1).mean()

    def torch_loss(self, lib: Names, p: Any, x: Any, y: Any) -> Any:
        """With torch's own layers."""
        f = torch.nn.functional
        h = x
        for k, layer in enumerate(p["convolutions"]):
            h = f.relu(f.conv2d(h, layer["kernel"], layer["bias"], padding="same"))
            if k % 2:
                h = f.max_pool2d(h, 2)
        return f.cross_entropy(h.mean((2, 3)) @ p["out"], y)


# -- a Llama


class Llama:
    """A language model with rotary embeddings, root-mean-square norms, grouped queries and gated layers."""

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 8, groups: int = 2, batch: int = 8,
                 length: int = 128, vocabulary: int = 1024) -> None:  # fmt: skip
        self.layers, self.width, self.heads, self.groups = layers, width, heads, groups
        self.batch, self.length, self.vocabulary = batch, length, vocabulary
        self.depth, self.inner = width // heads, 8 * width // 3
        angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, self.depth, 2) / self.depth)
        self.turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def parameters(self) -> dict[str, Any]:
        normal = functools.partial(small_weights, np.random.default_rng(0))
        width, keys = self.width, self.groups * self.depth

        def layer() -> dict[str, np.ndarray]:
            return {
                "norm1": np.ones(width, np.float32), "queries": normal(width, width), "keys": normal(width, keys),
                "values": normal(width, keys), "out": normal(width, width), "norm2": np.ones(width, np.float32),
                "gate": normal(width, self.inner), "up": normal(width, self.inner), "down": normal(self.inner, width),
            }  # fmt: skip

        return {
            "tokens": normal(self.vocabulary, width), "layers": [layer() for _ in range(self.layers)],
            "norm": np.ones(width, np.float32), "head": normal(width, self.vocabulary),
        }  # fmt: skip

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        return batch_of_tokens((self.batch, self.length), self.vocabulary)

    def loss(self, lib: Names, p: Any, x: Any, y: Any) -> Any:
        np_, (cos, sin) = lib.np, (lib.np.asarray(t)[:, None, :] for t in self.turn)
        shape = (self.batch, self.length, -1, self.depth)

        def norm(h: Any, scale: Any) -> Any:
            return h / np_.sqrt((h * h).mean(-1, keepdims=True) + 1e-5) * scale

        def rotated(h: Any) -> Any:
            a, b = h[..., ::2], h[..., 1::2]
            return np_.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(h.shape)

        h = p["tokens"][x]
        seen = np_.tril(np_.ones((self.length, self.length), dtype=bool))
        for layer in p["layers"]:
            inner = norm(h, layer["norm1"])
            q, k, v = (np_.reshape(inner @ layer[name], shape) for name in ("queries", "keys", "values"))
            k, v = (np_.repeat(one, self.heads // self.groups, axis=2) for one in (rotated(k), v))
            scores = np_.einsum("blhd,bmhd->bhlm", rotated(q), k) * self.depth**-0.5
            weights = lib.nn.softmax(np_.where(seen, scores, -1e9), axis=-1)
            h = h + np_.einsum("bhlm,bmhd->blhd", weights, v).reshape(h.shape) @ layer["out"]
            inner = norm(h, layer["norm2"])
            h = h + (lib.nn.silu(inner @ layer["gate"]) * (inner @ layer["up"])) @ layer["down"]
        scores = lib.nn.log_softmax(norm(h, p["norm"]) @ p["head"], axis=-1)
        return -np_.take_along_axis(scores, y[..., None], axis=-1).mean()

    def torch_loss(self, lib: Names, p: Any, x: Any, y: Any) -> Any:
        """With torch's own layers."""
        f = torch.nn.functional
        cos, sin = (torch.from_numpy(t)[:, None, :] for t in self.turn)
        shape, size = (self.batch, self.length, -1, self.depth), (self.width,)

        def rotated(h: Any) -> Any:
            a, b = h[..., ::2], h[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(h.shape)

        h = p["tokens"][x]
        for d in p["layers"]:
            inner = f.rms_norm(h, size, d["norm1"], 1e-5)
            q, k, v = ((inner @ d[name]).view(shape) for name in ("queries", "keys", "values"))
            q, k, v = (one.transpose(1, 2) for one in (rotated(q), rotated(k), v))
            mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            h = h + mixed.transpose(1, 2).reshape(h.shape) @ d["out"]
            inner = f.rms_norm(h, size, d["norm2"], 1e-5)
            h = h + (f.silu(inner @ d["gate"]) * (inner @ d["up"])) @ d["down"]
        scores = f.rms_norm(h, size, p["norm"], 1e-5) @ p["head"]
        return f.cross_entropy(scores.view(-1, self.vocabulary), y.view(-1))


# -- a variational autoencoder


class Vae:
    """A convolutional variational autoencoder (Kingma and Welling, 2014) of images of 28 by 28."""

    def __init__(self, width: int = 16, latents: int = 16, batch: int = 64) -> None:
        self.width, self.latents, self.batch = width, latents, batch

    def parameters(self) -> dict[str, Any]:
        rng, width, flat = np.random.default_rng(0), self.width, 2 * self.width * 49

        def normal(*shape: int) -> np.ndarray:
            return (rng.normal(size=shape) / math.sqrt(math.prod(shape[1:]))).astype(np.float32)

        sizes = {"down1": (width, 1), "down2": (2 * width, width), "up1": (2 * width, 2 * width),
                 "up2": (width, 2 * width), "image": (1, width)}  # fmt: skip
        kernels = {name: normal(*size, 3, 3) for name, size in sizes.items()}
        biases = {f"{name}_bias": np.zeros(size[0], np.float32) for name, size in sizes.items()}
        return kernels | biases | {
            "mean": normal(self.latents, flat).T.copy(), "spread": normal(self.latents, flat).T.copy() * 0.1,
            "code": normal(flat, self.latents).T.copy(),
        }  # fmt: skip

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        return rng.random((self.batch, 1, 28, 28), np.float32), rng.normal(size=(self.batch, self.latents)).astype("f4")

    def loss(self, lib: Names, p: Any, x: Any, noise: Any) -> Any:
        np_, relu = lib.np, lib.nn.relu

        def conv(h: Any, name: str, step: int = 1) -> Any:
            padding = ((1, 1), (1, 1))
            return lib.lax.conv(h, p[name], (step, step), padding) + p[f"{name}_bias"][:, None, None]

        def doubled(h: Any) -> Any:
            return np_.repeat(np_.repeat(h, 2, axis=2), 2, axis=3)

        h = relu(conv(relu(conv(x, "down1", 2)), "down2", 2)).reshape((self.batch, -1))
        mean, spread = h @ p["mean"], h @ p["spread"]
        h = relu((mean + np_.exp(0.5 * spread) * noise) @ p["code"]).reshape((self.batch, -1, 7, 7))
        h = relu(conv(doubled(relu(conv(doubled(h), "up1"))), "up2"))
        scores = conv(h, "image")
        cross = np_.maximum(scores, 0) - scores * x + np_.log1p(np_.exp(-np_.abs(scores)))
        return cross.sum((1, 2, 3)).mean() - 0.5 * (1 + spread - mean**2 - np_.exp(spread)).sum(-1).mean()

    def torch_loss(self, lib: Names, p: Any, x: Any, noise: Any) -> Any:
        """With torch's own layers."""
        f = torch.nn.functional

        def conv(h: Any, name: str, step: int = 1) -> Any:
            return f.conv2d(h, p[name], p[f"{name}_bias"], step, 1)

        h = f.relu(conv(f.relu(conv(x, "down1", 2)), "down2", 2)).flatten(1)
        mean, spread = h @ p["mean"], h @ p["spread"]
        h = f.relu((mean + torch.exp(0.5 * spread) * noise) @ p["code"]).view(self.batch, -1, 7, 7)
        h = f.relu(conv(f.interpolate(f.relu(conv(f.interpolate(h, scale_factor=2), "up1")), scale_factor=2), "up2"))
        cross = f.binary_cross_entropy_with_logits(conv(h, "image"), x, reduction="none")
        return cross.sum((1, 2, 3)).mean() - 0.5 * (1 + spread - mean**2 - spread.exp()).sum(-1).mean()
