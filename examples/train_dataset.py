"""Train on a torch Dataset by a DataLoader: evaluation, and checkpoints from which a later run goes on.

    python examples/train_dataset.py [--quick] [--checkpoint FOLDER]

With a folder, each epoch ends with a checkpoint, and the next run goes on from the newest one. The order of an epoch
and its dropout follow from its number, so a run that was interrupted ends as one that was not.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

import gtrace as gt

SEED, EPOCHS, BATCH, RATE = 0, 20, 32, 2e-3


class Digits(Dataset):
    """The digits of scikit-learn; every fifth one is held out."""

    def __init__(self, held_out: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        chosen = [k for k in range(len(labels)) if (k % 5 == 0) == held_out]
        self.images, self.labels = torch.tensor(images[chosen]).float() / 8 - 1, torch.tensor(labels[chosen])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[k].reshape(1, 8, 8), self.labels[k]


torch.manual_seed(SEED)
net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 10),
)  # fmt: skip
params, apply = gt.from_module(net)
optimizer = gt.optim.adamw(RATE)


def step(state: dict[str, Any], x: gt.Array, y: gt.Array, key: gt.Array) -> tuple[dict[str, Any], gt.Array]:
    def loss_of(params: Any) -> tuple[gt.Array, Any]:
        logits, buffers = apply(params, x, state=state["buffers"], train=True, key=key)
        return gt.nn.cross_entropy(logits, y), buffers

    (loss, buffers), grads = gt.value_and_grad(loss_of, has_aux=True)(state["params"])
    updates, own = optimizer.update(grads, state["optimizer"], state["params"])
    return {"params": gt.optim.apply_updates(state["params"], updates), "optimizer": own, "buffers": buffers}, loss


def accuracy(state: dict[str, Any], loader: DataLoader) -> float:
    found = []
    for x, y in loader:
        logits, _ = apply(state["params"], gt.from_torch(x), state=state["buffers"])
        found.append(gt.argmax(logits, axis=-1) == gt.from_torch(y))
    return float(gt.concat(found).astype(gt.float32).mean())


def main(quick: bool = False, checkpoint: str | None = None, epochs: int = EPOCHS) -> float:
    state, first = {"params": params, "optimizer": optimizer.init(params), "buffers": apply.state}, 0
    if checkpoint is not None and gt.latest_step(checkpoint) is not None:
        state, first = gt.load_checkpoint(checkpoint, like=state)
        print(f"goes on after epoch {first}")
    order = torch.Generator()
    batches = DataLoader(Digits(held_out=False), BATCH, shuffle=True, drop_last=True, generator=order)
    held_out = Digits(held_out=True)
    for epoch in range(first + 1, (2 if quick else epochs) + 1):
        order.manual_seed(epoch)
        keys = gt.random.split(gt.random.fold_in(gt.random.key(SEED), epoch), len(batches))
        losses = []
        for (x, y), key in zip(batches, keys, strict=True):
            state, loss = step(state, gt.from_torch(x), gt.from_torch(y), key)
            losses.append(loss)
        print(f"epoch {epoch:3}  loss {float(sum(losses)) / len(losses):.4f}")
        if checkpoint is not None:
            gt.save_checkpoint(checkpoint, state, step=epoch, keep=2, wait=False)
    result = accuracy(state, DataLoader(held_out, 120))
    print(f"test accuracy {result:.3f} on {len(held_out)} digits")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two epochs")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="save after each epoch, and go on from there")
    options = parser.parse_args()
    main(options.quick, options.checkpoint)
