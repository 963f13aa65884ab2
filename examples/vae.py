"""A variational autoencoder of scikit-learn's handwritten digits (Kingma and Welling, 2013).

    python examples/vae.py [--quick]

The bound on the log-likelihood of held-out images is compared with that of independent pixels; digits are drawn.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import gtrace as gt

nn = gt.nn
LATENT, WIDTH, BATCH, STEPS, RATE = 8, 256, 128, 2000, 2e-3


class Autoencoder(nn.Module):
    encoder: nn.MLP
    decoder: nn.MLP

    def __init__(self, key: gt.Array) -> None:
        one, other = gt.random.split(key)
        self.encoder = nn.MLP(64, 2 * LATENT, WIDTH, 2, gt.silu, key=one)
        self.decoder = nn.MLP(LATENT, 64, WIDTH, 2, gt.silu, key=other)

    def bound(self, x: gt.Array, key: gt.Array) -> gt.Array:
        """Return the evidence lower bound of each image, in nats."""
        mean, log_scale = gt.numpy.split(self.encoder(x), 2, axis=-1)
        z = mean + gt.exp(log_scale) * gt.random.normal(key, mean.shape)
        divergence = 0.5 * (mean**2 + gt.exp(2 * log_scale) - 1 - 2 * log_scale).sum(-1)
        return -nn.binary_cross_entropy_with_logits(self.decoder(z), x, reduction="none").sum(-1) - divergence


def shown(images: np.ndarray) -> str:
    """Return images (n, 64) beside one another, as text."""
    shades = np.array(list(" .:-=+*#%@"))
    rows = shades[(images.reshape(-1, 8, 8) * 9.99).astype(int)]
    return "\n".join("   ".join("".join(c * 2 for c in rows[k, row]) for k in range(len(rows))) for row in range(8))


def main(quick: bool = False) -> float:
    images = (load_digits(return_X_y=True)[0] / 16.0).astype(np.float32)
    rng = np.random.default_rng(0)
    images = images[rng.permutation(len(images))]
    train, held = images[:1500], gt.array(images[1500:])
    model = Autoencoder(gt.random.key(0))
    steps = 5 if quick else STEPS
    optimizer = gt.optim.adam(gt.optim.cosine_decay_schedule(RATE, steps, 0.05))
    state = optimizer.init(model)

    def step(model: Autoencoder, state: Any, x: gt.Array, key: gt.Array) -> tuple[Autoencoder, Any, gt.Array]:
        value, grads = gt.value_and_grad(lambda model: -model.bound(x, key).mean())(model)
        updates, state = optimizer.update(grads, state)
        return gt.optim.apply_updates(model, updates), state, value

    key, start = gt.random.key(1), time.perf_counter()
    for number in range(steps):
        key, use = gt.random.split(key)
        model, state, value = step(model, state, gt.array(train[rng.integers(0, len(train), BATCH)]), use)
        if number % 250 == 0 or number == steps - 1:
            print(f"step {number:4}  bound {-float(value):.2f} nats  {time.perf_counter() - start:.0f} s")
    bound = float(gt.vmap(lambda key: model.bound(held, key).mean())(gt.random.split(key, 20)).mean())
    means = gt.array(np.clip(train.mean(0), 1e-3, 1 - 1e-3))
    alone = -float(nn.binary_cross_entropy(gt.broadcast_to(means, held.shape), held, reduction="none").sum(-1).mean())
    drawn = gt.sigmoid(model.decoder(gt.random.normal(gt.random.key(2), (6, LATENT))))
    print(shown(drawn.numpy()))
    print(f"independent pixels: {alone:.2f} nats an image")
    print(f"held-out bound: {bound:.2f} nats an image")
    return bound


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
