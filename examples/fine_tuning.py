"""A transformer of torch learns a task, and another one by small additions to its frozen weights (Hu et al., 2021).

    python examples/fine_tuning.py [--quick]

The model is a `torch.nn.TransformerEncoder` by `gt.from_module`. It learns to turn a sequence round. Then each matrix W
becomes W + A @ B, with A and B of rank 4, and only these learn to turn it round and add three to each number. The same
steps in plain torch are timed beside.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import gtrace as gt

NUMBERS, LENGTH, WIDTH, RANK, BATCH, STEPS = 16, 8, 64, 4, 64, 150
Params = dict[str, gt.Array]


class Model(torch.nn.Module):
    """An encoder that says a number for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.nn.Embedding(NUMBERS, WIDTH)
        self.places = torch.nn.Parameter(0.3 * torch.randn(LENGTH, WIDTH))
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, NUMBERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(self.numbers(x) + self.places))
        return logits


def loss_of(logits: gt.Array, x: gt.Array, shift: int) -> gt.Array:
    right = gt.flip((x + shift) % NUMBERS, axis=1)
    return -(gt.nn.log_softmax(logits) * gt.nn.one_hot(right, NUMBERS)).sum(-1).mean()


def accuracy(logits: gt.Array, x: gt.Array, shift: int) -> float:
    return float((logits.argmax(-1) == gt.flip((x + shift) % NUMBERS, axis=1)).mean())


def fitted(model: Callable[[Any, gt.Array], gt.Array], weights: Any, shift: int, steps: int, rate: float) -> Any:
    """Return weights that were fitted to a task, by steps that also run in the background's compiled form."""
    optimizer = gt.optim.adam(rate)
    state = optimizer.init(weights)
    begin, half = time.perf_counter(), 0.0
    for number in range(steps):
        x = gt.random.randint(gt.random.fold_in(gt.random.key(shift), number), (BATCH, LENGTH), 0, NUMBERS)
        value, grads = gt.value_and_grad(lambda w, x=x: loss_of(model(w, x), x, shift))(weights)
        updates, state = optimizer.update(grads, state)
        weights = gt.optim.apply_updates(weights, updates)
        if number == steps // 2:
            half = time.perf_counter()
        if number % 50 == 0 or number == steps - 1:
            print(f"step {number:4}  loss {float(value):.4f}  {time.perf_counter() - begin:.0f} s")
    print(f"{1e3 * (time.perf_counter() - half) / max(1, steps - 1 - steps // 2):.1f} ms a step in the second half")
    return weights


def added(params: Params, small: dict[str, tuple[gt.Array, gt.Array]]) -> Params:
    """Return the frozen weights with their additions of low rank."""
    return params | {name: params[name] + a @ b for name, (a, b) in small.items()}


def times_of_torch(module: torch.nn.Module, params: Params, small: Any, steps: int) -> float:
    """Return the milliseconds of a step of the same fine-tuning in plain torch."""
    frozen = {name: x.to_torch() for name, x in params.items()}
    pairs = {name: [x.to_torch().requires_grad_() for x in pair] for name, pair in small.items()}
    optimizer = torch.optim.Adam([x for pair in pairs.values() for x in pair], 5e-3)
    begin = time.perf_counter()
    for _ in range(steps):
        x = torch.randint(NUMBERS, (BATCH, LENGTH))
        weights = frozen | {name: frozen[name] + a @ b for name, (a, b) in pairs.items()}
        logits = torch.func.functional_call(module, weights, (x,))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ((x + 3) % NUMBERS).flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return 1e3 * (time.perf_counter() - begin) / steps


def main(quick: bool = False) -> float:
    steps = 3 if quick else STEPS
    torch.manual_seed(0)
    module = Model()
    params, apply = gt.from_module(module)
    params = fitted(apply, params, 0, steps, 2e-3)
    keys = iter(gt.random.split(gt.random.key(1), len(params)))
    small = {
        name: (0.1 * gt.random.normal(next(keys), (w.shape[0], RANK)), gt.zeros((RANK, w.shape[1])))
        for name, w in params.items()
        if w.ndim == 2 and name != "places"
    }
    count, whole = (sum(x.size for x in gt.tree.leaves(tree)) for tree in (small, params))
    print(f"{count} numbers learn, beside {whole} that are frozen")
    small = fitted(lambda small, x: apply(added(params, small), x), small, 3, steps, 5e-3)
    print(f"plain torch: {times_of_torch(module, params, small, max(3, steps // 4)):.1f} ms a step")
    new = gt.random.randint(gt.random.key(99), (256, LENGTH), 0, NUMBERS)
    before, after = accuracy(apply(params, new), new, 3), accuracy(apply(added(params, small), new), new, 3)
    print(f"accuracy in the new task: {before:.3f} before, {after:.3f} after fine-tuning")
    return after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
