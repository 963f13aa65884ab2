"""Train an MLP on the 1,797 handwritten digits of scikit-learn: pure functions over a pytree, and no decorator.

    gtrace run examples/train_digits.py [--epochs 280] [--losses FILE]

Every step runs the same program, so gtrace notices, compiles it and uses the compiled form from then on. The table
that ``gtrace run`` prints at the end says whether that paid. ``train_digits_torch.py`` is the same in plain torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gtrace as gt

SIZES = (64, 1024, 10)
BATCH = 16
RATE, DECAY = 0.02, 1e-3
EPOCHS, EVERY = 280, 20
SEED = 0


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images, test images (float32, 64 pixels from -4 to 4), training labels and test labels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        (images / 2 - 4).astype(np.float32), labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=SEED
    )


def initial() -> list[dict[str, np.ndarray]]:
    """Return the weights of each layer, uniform as in Glorot and Bengio (2010), and zero biases."""
    rng = np.random.default_rng(SEED)
    layers = []
    for m, n in pairwise(SIZES):
        bound = (6 / (m + n)) ** 0.5
        layers.append({"w": rng.uniform(-bound, bound, (m, n)).astype(np.float32), "b": np.zeros(n, np.float32)})
    return layers


def batches(images: np.ndarray, labels: np.ndarray, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the full batches of one epoch in an order that only depends on its number."""
    order = np.random.default_rng((SEED, epoch)).permutation(len(images))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield images[chosen], labels[chosen]


def logits(layers: Any, x: Any) -> gt.Array:
    for layer in layers[:-1]:
        x = gt.gelu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def cross_entropy(layers: Any, x: Any, y: Any) -> gt.Array:
    return -(gt.one_hot(y, 10) * gt.log_softmax(logits(layers, x), axis=-1)).sum(-1).mean()


def step(layers: Any, x: Any, y: Any) -> tuple[Any, gt.Array]:
    """One step of gradient descent with weight decay; returns the new layers and the loss before it."""
    loss, grads = gt.value_and_grad(cross_entropy)(layers, x, y)
    return gt.tree_map(lambda p, g: (1 - RATE * DECAY) * p - RATE * g, layers, grads), loss


def accuracy(layers: Any, x: Any, y: Any) -> gt.Array:
    return (gt.argmax(logits(layers, x), axis=-1) == y).astype(gt.float32).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--losses", metavar="FILE", help="write the mean loss of each epoch to FILE, as JSON")
    options = parser.parse_args()

    train_x, test_x, train_y, test_y = digits()
    layers = gt.tree_map(gt.array, initial())
    held_x, held_y = gt.array(test_x), gt.array(test_y)
    losses = []
    for epoch in range(1, options.epochs + 1):
        total = []
        for x, y in batches(train_x, train_y, epoch):
            layers, loss = step(layers, gt.array(x), gt.array(y))
            total.append(float(loss))
        losses.append(sum(total) / len(total))
        if epoch % EVERY == 0 or epoch == options.epochs:
            print(
                f"epoch {epoch:4}  loss {losses[-1]:.6f}  test accuracy {float(accuracy(layers, held_x, held_y)):.4f}"
            )
    if options.losses:
        with open(options.losses, "w", encoding="utf-8") as file:
            json.dump(losses, file)


if __name__ == "__main__":
    main()
