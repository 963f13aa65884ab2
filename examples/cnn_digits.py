"""A convolutional network on the 1,797 handwritten digits of scikit-learn, with batch normalization and dropout.

    python examples/cnn_digits.py [--quick]

The running statistics of the batch norms are passed in and returned. Dropout takes a key for each step.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gtrace as gt

nn = gt.nn
BATCH, EPOCHS, RATE = 64, 40, 4e-3


def network(key: gt.Array) -> nn.Sequential:
    keys = gt.random.split(key, 4)
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False, key=keys[0]), nn.BatchNorm(24), gt.relu,
        nn.Conv2d(24, 48, 3, padding=1, bias=False, key=keys[1]), nn.BatchNorm(48), gt.relu, pool,
        nn.Conv2d(48, 48, 3, padding=1, bias=False, key=keys[2]), nn.BatchNorm(48), gt.relu, pool,
        flat, nn.Dropout(0.3), nn.Linear(192, 10, key=keys[3]),
    )  # fmt: skip


def pool(x: gt.Array) -> gt.Array:
    return gt.nn.max_pool2d(x, 2)


def flat(x: gt.Array) -> gt.Array:
    return x.reshape(x.shape[0], -1)


def loss(model: Any, running: Any, x: gt.Array, y: gt.Array, key: gt.Array) -> tuple[gt.Array, Any]:
    """Return the loss, and the new running statistics."""
    logits, running = model(x, key=key, state=running, training=True)
    return nn.cross_entropy(logits, y, label_smoothing=0.05), running


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images moved by up to one pixel."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    places = rng.integers(0, 3, (len(images), 2))
    return np.stack([x[:, a : a + 8, b : b + 8] for x, (a, b) in zip(padded, places, strict=True)])


def main(quick: bool = False) -> float:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).reshape(-1, 1, 8, 8).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=0
    )
    epochs, each = (1, 2) if quick else (EPOCHS, len(train_x) // BATCH)
    model = network(gt.random.key(0))
    running = model.initial_state()
    optimizer = gt.optim.adamw(gt.optim.cosine_decay_schedule(RATE, epochs * each), weight_decay=1e-3)
    state = optimizer.init(model)

    def step(model: Any, running: Any, state: Any, x: gt.Array, y: gt.Array, key: gt.Array) -> Any:
        (value, running), grads = gt.value_and_grad(loss, has_aux=True)(model, running, x, y, key)
        updates, state = optimizer.update(grads, state, model)
        return gt.optim.apply_updates(model, updates), running, state, value

    key, rng, start = gt.random.key(1), np.random.default_rng(0), time.perf_counter()
    for epoch in range(epochs):
        order, total = rng.permutation(len(train_x)), 0.0
        for k in range(each):
            chosen = order[k * BATCH : (k + 1) * BATCH]
            key, use = gt.random.split(key)
            x, y = gt.array(shifted(train_x[chosen], rng)), gt.array(train_y[chosen])
            model, running, state, value = step(model, running, state, x, y, use)
            total += float(value)
        if epoch % 5 == 4 or epoch == epochs - 1:
            print(f"epoch {epoch + 1:3}  loss {total / each:.4f}  {time.perf_counter() - start:.0f} s")
    logits, _ = model(gt.array(test_x), state=running)
    accuracy = float((gt.argmax(logits, axis=-1) == gt.array(test_y)).mean())
    print(f"test accuracy {accuracy:.4f} on {len(test_y)} digits")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
