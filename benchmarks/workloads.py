"""The programs that compilation_benchmark.py, peers.py, transforms.py and dispatch.py time, as data.

Each is written once, for the names that gtrace, torch and JAX share (measuring.libraries), and again for torch
where its users have a function of their own for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import networks
import numpy as np
import torch
from measuring.harness import Work, Workload, to_numpy
from measuring.libraries import COMPILED, EAGER, Function, Names

FLOAT = 4
"""Bytes of a float32."""

TORCH = (EAGER.name, COMPILED.name)


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return normal numbers."""
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def for_torch(function: Function) -> dict[str, Callable[[Names], Function]]:
    """Return the sides of torch, with a function of torch's own."""
    return {name: lambda lib: function for name in TORCH}


def pointwise(name: str, apply: Callable[[Names], Function], shape: tuple[int, ...], torch_function: Any = None,
              reads: int = 1, tolerance: float = 1e-4) -> Workload:  # fmt: skip
    """Return a workload that reads an array and writes one of the same size."""
    return Workload(
        name, lambda: (floats(*shape),), apply, sides=for_torch(torch_function) if torch_function else {},
        work=Work((reads + 1) * FLOAT * math.prod(shape)), tolerance=tolerance,
    )  # fmt: skip


# -- the four of compilation_benchmark.py


def matmul_chain(size: int = 256, length: int = 6) -> Workload:
    def program(lib: Names) -> Function:
        def chain(x: Any, *weights: Any) -> Any:
            for w in weights:
                x = x @ w
            return x

        return chain

    return Workload(
        "Simple Matmul Chain",
        lambda: (floats(size, size), *(floats(size, size, seed=k + 1, scale=size**-0.5) for k in range(length))),
        program, work=Work((length + 2) * FLOAT * size**2, 2 * length * size**3),
    )  # fmt: skip


def mlp_training(batch: int = 128, width: int = 256) -> Workload:
    """Two hidden layers, Adam."""

    def arrays() -> tuple[Any, ...]:
        params = {
            "w1": floats(width, width, seed=1, scale=width**-0.5), "b1": floats(width, seed=2, scale=0.1),
            "w2": floats(width, width, seed=3, scale=width**-0.5), "b2": floats(width, seed=4, scale=0.1),
            "w3": floats(width, 1, seed=5, scale=width**-0.5),
        }  # fmt: skip
        return networks.training_arrays(params, (floats(batch, width), floats(batch, 1, seed=6)))

    def loss(lib: Names, p: Any, x: Any, y: Any) -> Any:
        h = lib.np.tanh(x @ p["w1"] + p["b1"])
        h = lib.np.tanh(h @ p["w2"] + p["b2"])
        return ((h @ p["w3"] - y) ** 2).mean()

    weights = 2 * width**2 + 3 * width
    return networks.training("MLP Training Step", arrays, loss, Work(7 * FLOAT * weights, 6 * batch * weights))


def attention_block(batch: int = 4, length: int = 16, width: int = 64, heads: int = 4) -> Workload:
    def program(lib: Names) -> Function:
        def split(h: Any) -> Any:
            return lib.np.permute_dims(h.reshape((batch, length, heads, width // heads)), (0, 2, 1, 3))

        def block(x: Any, qkv: Any, out: Any) -> Any:
            parts = x @ qkv
            q, k, v = (split(parts[..., j * width : (j + 1) * width]) for j in range(3))
            scores = q @ lib.np.permute_dims(k, (0, 1, 3, 2)) * ((width // heads) ** -0.5)
            mixed = lib.np.permute_dims(lib.nn.softmax(scores, axis=-1) @ v, (0, 2, 1, 3))
            return x + mixed.reshape((batch, length, width)) @ out

        return block

    def own(x: Any, qkv: Any, out: Any) -> Any:
        q, k, v = (a.view(batch, length, heads, width // heads).transpose(1, 2) for a in (x @ qkv).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + mixed.transpose(1, 2).reshape(batch, length, width) @ out

    return Workload(
        "Attention Block",
        lambda: (
            floats(batch, length, width), floats(width, 3 * width, seed=1, scale=width**-0.5),
            floats(width, width, seed=2, scale=width**-0.5),
        ),
        program, sides=for_torch(own),
        work=Work(FLOAT * (2 * batch * length * width + 4 * width**2),
                  2 * batch * length * width * (4 * width + 2 * length)),
    )  # fmt: skip


def mixed_operations(size: int = 256) -> Workload:
    def program(lib: Names) -> Function:
        def mixed(x: Any, y: Any) -> Any:
            a = lib.np.tanh(x @ y) + lib.np.exp(-x * x)
            b = lib.np.where(a > 0, lib.np.sqrt(lib.np.abs(a)), a * 0.5)
            c = lib.nn.softmax(b + y.T, axis=-1)
            return (c * lib.np.sin(a)).sum(0), lib.np.max(b, -1)

        return mixed

    return Workload(
        "Mixed Operations", lambda: (floats(size, size), floats(size, size, seed=1, scale=size**-0.5)), program,
        work=Work(2 * FLOAT * size**2, 2 * size**3),
    )  # fmt: skip


COMPILATION: dict[str, Callable[[], Workload]] = {
    "matmul": matmul_chain, "mlp": mlp_training, "attention": attention_block, "mixed": mixed_operations,
}  # fmt: skip


# -- calls, chains and reductions


def tiny_operations(count: int) -> Workload:
    def program(lib: Names) -> Function:
        def run(x: Any) -> Any:
            for _ in range(count):
                x = x * 0.99 + 0.1 if count > 1 else x * 0.5
            return x

        return run

    return Workload(f"call overhead, {count} tiny operations", lambda: (floats(4),), program, work=Work(2 * FLOAT * 4))


def elementwise_chain(size: int) -> Workload:
    def program(lib: Names) -> Function:
        def run(x: Any, y: Any) -> Any:
            for _ in range(4):
                x = (x * y + 0.5) * 0.9 - y
            return lib.np.where(x > 0, x, 0.1 * x)

        return run

    return Workload(
        f"elementwise chain, {size:,}", lambda: (floats(size), floats(size, seed=1)), program,
        work=Work(3 * FLOAT * size),
    )  # fmt: skip


def reductions(size: int) -> Workload:
    def program(lib: Names) -> Function:
        return lambda x: (x.sum(), x.mean(0), lib.np.max(x, 1), (x * x).sum(1))

    return Workload(f"reductions of {size} x {size}", lambda: (floats(size, size),), program,
                    work=Work(FLOAT * size**2), tolerance=1e-3)  # fmt: skip


def layer_norm(rows: int, width: int) -> Workload:
    def program(lib: Names) -> Function:
        return lambda x, scale, shift: networks.norm(lib, x, scale, shift)

    def own(x: Any, scale: Any, shift: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (width,), scale, shift)

    return Workload(
        f"layer norm of {rows} x {width}", lambda: (floats(rows, width), floats(width, seed=1), floats(width, seed=2)),
        program, sides=for_torch(own), work=Work(2 * FLOAT * rows * width),
    )  # fmt: skip


def gather(rows: int, width: int, count: int) -> Workload:
    def program(lib: Names) -> Function:
        return lambda table, index: table[index]

    return Workload(
        f"gather {count:,} rows of {width}",
        lambda: (floats(rows, width), np.random.default_rng(1).integers(0, rows, count)),
        program, work=Work(2 * FLOAT * count * width),
    )  # fmt: skip


def scatter_add(rows: int, width: int, count: int) -> Workload:
    def program(lib: Names) -> Function:
        return lambda table, index, rows: table.at[index].add(rows)

    def own(table: Any, index: Any, values: Any) -> Any:
        return table.index_add(0, index, values)

    return Workload(
        f"scatter-add {count:,} rows of {width}",
        lambda: (floats(rows, width), np.random.default_rng(1).integers(0, rows, count), floats(count, width, seed=2)),
        program, sides=for_torch(own), work=Work(FLOAT * (2 * rows * width + 3 * count * width)),
    )  # fmt: skip


def normal_draw(size: int) -> Workload:
    """From a seed. Mean and deviation are checked: each library draws numbers of its own."""

    def program(lib: Names) -> Function:
        return lambda seed: lib.random.normal(lib.random.key(seed), (size,))

    def own(seed: Any) -> Any:
        generator = torch.Generator(seed.device).manual_seed(int(seed))
        return torch.randn(size, generator=generator, device=seed.device)

    def moments(x: Any) -> Any:
        numbers = to_numpy(x).astype(np.float64)
        return np.array([numbers.mean(), numbers.std()])

    return Workload(
        f"normal draw of {size:,}", lambda: (np.int64(42),), program,
        sides={EAGER.name: lambda lib: own}, excluded=(COMPILED.name,), checked=moments,
        reference=lambda seed: np.array([0.0, 1.0]), tolerance=10 / math.sqrt(size), work=Work(FLOAT * size),
    )  # fmt: skip


# -- relevance scorers


def entropy(batch: int = 32, tokens: int = 196, width: int = 768) -> Workload:
    """Entropy of the softmax of each token's features."""

    def program(lib: Names) -> Function:
        def score(x: Any) -> Any:
            logs = lib.nn.log_softmax(x, axis=-1)
            return -(lib.np.exp(logs) * logs).sum(-1)

        return score

    return Workload(
        f"scorer: entropy of {batch} x {tokens} x {width}", lambda: (floats(batch, tokens, width),), program,
        work=Work(FLOAT * batch * tokens * width),
    )  # fmt: skip


def edges(batch: int = 32, size: int = 224) -> Workload:
    """Sobel edge salience of grey images."""

    def program(lib: Names) -> Function:
        def score(x: Any) -> Any:
            left, right = x[:, :, :, :-2], x[:, :, :, 2:]
            across = right - left
            gx = across[:, :, :-2] + 2 * across[:, :, 1:-1] + across[:, :, 2:]
            down = x[:, :, 2:] - x[:, :, :-2]
            gy = down[:, :, :, :-2] + 2 * down[:, :, :, 1:-1] + down[:, :, :, 2:]
            return lib.np.sqrt(gx * gx + gy * gy + 1e-12)

        return score

    def own(x: Any) -> Any:
        kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], dtype=x.dtype, device=x.device)
        both = torch.nn.functional.conv2d(x, torch.stack([kernel, kernel.T])[:, None])
        return (both.square().sum(1, keepdim=True) + 1e-12).sqrt()

    return Workload(
        f"scorer: Sobel edges of {batch} x 1 x {size} x {size}", lambda: (floats(batch, 1, size, size),), program,
        sides=for_torch(own), work=Work(2 * FLOAT * batch * size**2),
    )  # fmt: skip


def query_content(batch: int = 32, tokens: int = 196, width: int = 768) -> Workload:
    """Attention scores of one query an image."""

    def program(lib: Names) -> Function:
        def score(query: Any, content: Any) -> Any:
            return lib.nn.softmax(query @ lib.np.permute_dims(content, (0, 2, 1)) * width**-0.5, axis=-1)

        return score

    return Workload(
        f"scorer: query {batch} x 1 x {width} on {batch} x {tokens} x {width}",
        lambda: (floats(batch, 1, width), floats(batch, tokens, width, seed=1)), program,
        work=Work(FLOAT * batch * tokens * width, 2 * batch * tokens * width),
    )  # fmt: skip


# -- transforms


def tiny_value_and_grad(batch: int = 4, width: int = 8) -> Workload:
    def program(lib: Names) -> Function:
        def loss(p: Any, x: Any, y: Any) -> Any:
            return ((lib.np.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"] - y) ** 2).mean()

        return lib.value_and_grad(loss)

    def arrays() -> tuple[Any, ...]:
        p = {"w1": floats(width, width), "b1": floats(width, seed=1), "w2": floats(width, width, seed=2)}
        return p | {"b2": floats(width, seed=3)}, floats(batch, width, seed=4), floats(batch, width, seed=5)

    weights = 2 * width**2 + 2 * width
    return Workload(
        f"value_and_grad, MLP {batch}x{width}", arrays, program, transforms=True,
        work=Work(FLOAT * (2 * weights + 2 * batch * width), 6 * batch * weights),
    )  # fmt: skip


def per_example_gradients(width: int = 64, examples: int = 256) -> Workload:
    def program(lib: Names) -> Function:
        def loss(p: Any, x: Any) -> Any:
            h = lib.np.tanh(x @ p["w1"] + p["b1"])
            h = lib.np.tanh(h @ p["w2"] + p["b2"])
            return ((h @ p["w3"]) ** 2).mean()

        return lib.vmap(lib.grad(loss), (None, 0))

    def arrays() -> tuple[Any, ...]:
        p = {f"w{k}": floats(width, width, scale=0.1, seed=k) for k in (1, 2, 3)}
        return p | {f"b{k}": floats(width, scale=0.1, seed=k) for k in (1, 2)}, floats(examples, width)

    written = examples * (3 * width**2 + 2 * width)
    return Workload(
        f"vmap of the gradient of a {width}-wide MLP, {examples} examples", arrays, program, transforms=True,
        work=Work(FLOAT * written, 6 * written), tolerance=1e-3, excluded=(COMPILED.name,),
    )  # fmt: skip


def hessian(width: int = 64) -> Workload:
    def program(lib: Names) -> Function:
        def run(a: Any, x: Any) -> Any:
            def f(x: Any) -> Any:
                return (lib.np.sin(a @ x) ** 2).sum() + lib.np.log(lib.np.exp(a[:8] @ lib.np.tanh(x)).sum())

            return lib.hessian(f)(x)

        return run

    return Workload(
        f"Hessian of a function of {width} parameters",
        lambda: (floats(width, width, scale=0.2), floats(width, seed=1)),
        program, transforms=True, tolerance=1e-3, excluded=(COMPILED.name,),
        work=Work(FLOAT * (2 * width**2 + width), 2 * width**3),  # the matrix is read, and the Hessian is a product
    )  # fmt: skip


def recurrent(steps: int = 1000, batch: int = 32, width: int = 64) -> Workload:
    """An RNN scanned over its steps, and its gradient by both weight matrices."""

    def cell(lib: Names, h: Any, x: Any, wx: Any, wh: Any) -> Any:
        return lib.np.tanh(x @ wx + h @ wh)

    def program(lib: Names) -> Function:
        def loss(wx: Any, wh: Any, xs: Any, h: Any) -> Any:
            def step(h: Any, x: Any) -> Any:
                h = cell(lib, h, x, wx, wh)
                return h, h

            return (lib.lax.scan(step, h, xs)[1] ** 2).mean()

        return lib.value_and_grad(loss, (0, 1))

    def unrolled(compile_cell: Function) -> Callable[[Names], Function]:
        def make(lib: Names) -> Function:
            one = compile_cell(partial(cell, lib))
            autograd = EAGER.names().value_and_grad

            def loss(wx: Any, wh: Any, xs: Any, h: Any) -> Any:
                hs = []
                for x in xs:
                    h = one(h, x, wx, wh)
                    hs.append(h)
                return (torch.stack(hs) ** 2).mean()

            return autograd(loss, (0, 1))

        return make

    # unrolled, torch.compile would compile every step: minutes; so it gets the cell
    return Workload(
        f"gradient of an RNN scanned over {steps:,} steps, {batch} x {width}",
        lambda: (
            floats(width, width, scale=0.1, seed=1), floats(width, width, scale=0.1, seed=2),
            floats(steps, batch, width), np.zeros((batch, width), np.float32),
        ),
        program, sides={EAGER.name: unrolled(lambda f: f), COMPILED.name: unrolled(torch.compile)},
        excluded=("torch.compile of torch.func",), transforms=True, tolerance=1e-3,
        work=Work(FLOAT * 3 * steps * batch * width, 12 * steps * batch * width**2),
    )  # fmt: skip
