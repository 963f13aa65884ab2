"""Train the digits model on several processes. What is split, and how, is in a YAML file; the script does not change.

    gtrace run --workers 4 examples/train_sharded.py [--signals FILE] [--epochs 12] [--losses FILE]

FILE is examples/signals.yaml (data parallel), or signals_fully_sharded.yaml beside it. On one process, without
``--workers``, the signals are ignored, and the numbers are the same up to rounding. With ``--checkpoint`` the state is
saved after each epoch, and a run goes on after the last one saved, also on another number of processes:

    torchrun --nproc-per-node 4 --max-restarts 3 examples/train_sharded.py --checkpoint FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import train_digits as digits

import gtrace as gt

BATCH = 64
RATE, MOMENTUM = 0.02, 0.9
EPOCHS = 12
SIGNALS = Path(__file__).with_name("signals.yaml")

State = tuple[Any, Any]


def initial() -> State:
    """Return the parameters, and the optimizer's state: the mean of past gradients of each."""
    layers = gt.tree_map(gt.array, digits.initial())
    return gt.signal.tensor((layers, gt.tree_map(gt.zeros_like, layers)), name="parameters")


def step(state: State, x: Any, y: Any) -> tuple[State, gt.Array]:
    """One step of gradient descent with momentum; returns the new state and the loss before it."""
    layers, means = state
    loss, grads = gt.value_and_grad(digits.cross_entropy)(layers, x, y)
    means = gt.tree_map(lambda m, g: MOMENTUM * m + g, means, grads)
    return (gt.tree_map(lambda p, m: p - RATE * m, layers, means), means), loss


def train(epochs: int, checkpoint: str | None = None) -> tuple[list[float], float]:
    """Return the mean loss of each epoch, and the accuracy on the test images at the end."""
    digits.BATCH = BATCH
    train_x, test_x, train_y, test_y = digits.digits()
    state, losses, done = initial(), [], 0
    if checkpoint is not None and gt.latest_step(checkpoint) is not None:
        (state, text), done = gt.load_checkpoint(checkpoint, like=(state, ""))
        losses = json.loads(text)
    for epoch in range(done + 1, epochs + 1):
        total = []
        for x, y in digits.batches(train_x, train_y, epoch):
            state, loss = step(state, *gt.signal.tensor((gt.array(x), gt.array(y)), name="batch"))
            total.append(float(loss))
        losses.append(sum(total) / len(total))
        if checkpoint is not None:
            gt.save_checkpoint(checkpoint, (state, json.dumps(losses)), step=epoch, wait=False)
    held = gt.signal.tensor((gt.array(test_x), gt.array(test_y)), name="batch")
    return losses, float(digits.accuracy(state[0], *held))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--signals", metavar="FILE", default=str(SIGNALS), help="the YAML file (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--losses", metavar="FILE", help="write the mean loss of each epoch to FILE, as JSON")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="save the state to FOLDER, and go on from there")
    options = parser.parse_args()

    gt.load_config(options.signals)
    losses, accuracy = train(options.epochs, options.checkpoint)
    if gt.sharding.process_index() == 0:
        print(f"{gt.sharding.process_count()} processes  loss {losses[-1]:.6f}  test accuracy {accuracy:.4f}")
        if options.losses:
            with open(options.losses, "w", encoding="utf-8") as file:
                json.dump(losses, file)


if __name__ == "__main__":
    main()
