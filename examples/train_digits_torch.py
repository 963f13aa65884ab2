"""The plain torch twin of ``train_digits.py``: the same weights, batches and update, with torch's autograd.

    python examples/train_digits_torch.py [--epochs 280] [--losses FILE]

It prints the losses and the test accuracies, as ``train_digits.py`` does.
"""

from __future__ import annotations

import argparse
import json

import torch
from train_digits import DECAY, EPOCHS, EVERY, RATE, batches, digits, initial

Layers = list[dict[str, torch.Tensor]]


def logits(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    for layer in layers[:-1]:
        x = torch.nn.functional.gelu(x @ layer["w"] + layer["b"], approximate="tanh")
    return x @ layers[-1]["w"] + layers[-1]["b"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--losses", metavar="FILE", help="write the mean loss of each epoch to FILE, as JSON")
    options = parser.parse_args()

    train_x, test_x, train_y, test_y = digits()
    layers = [{name: torch.from_numpy(p).requires_grad_() for name, p in layer.items()} for layer in initial()]
    weights = [p for layer in layers for p in layer.values()]
    held_x, held_y = torch.from_numpy(test_x), torch.from_numpy(test_y)
    losses = []
    for epoch in range(1, options.epochs + 1):
        total = []
        for x, y in batches(train_x, train_y, epoch):
            loss = torch.nn.functional.cross_entropy(logits(layers, torch.from_numpy(x)), torch.from_numpy(y))
            with torch.no_grad():
                for p, g in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    p.mul_(1 - RATE * DECAY).sub_(RATE * g)
            total.append(loss.item())
        losses.append(sum(total) / len(total))
        if epoch % EVERY == 0 or epoch == options.epochs:
            right = (logits(layers, held_x).argmax(-1) == held_y).float().mean()
            print(f"epoch {epoch:4}  loss {losses[-1]:.6f}  test accuracy {right.item():.4f}")
    if options.losses:
        with open(options.losses, "w", encoding="utf-8") as file:
            json.dump(losses, file)


if __name__ == "__main__":
    main()
