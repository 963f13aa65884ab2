"""Export a small classifier, weights and all, and a recurrent filter, for `main.cpp`.

    python examples/deploy/export_model.py FOLDER

Writes ``classifier.gtx`` and ``filter.gtx``, which ``gt.load`` reads, and ``.pt2`` files, which C++ does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import gtrace as gt

COLUMNS, CLASSES = 8, 3


def classifier() -> gt.Exported:
    rng = np.random.default_rng(0)
    hidden = gt.array(rng.normal(size=(COLUMNS, 16)).astype(np.float32))
    head = gt.array(rng.normal(size=(16, CLASSES)).astype(np.float32))

    def probabilities(x: gt.Array) -> gt.Array:
        return gt.softmax(gt.tanh(x @ hidden) @ head, axis=-1)

    return gt.export(probabilities, gt.ShapeDtypeStruct(("batch", COLUMNS), "float32"))


def recurrent_filter() -> gt.Exported:
    """A scan over any number of rows; in each step a loop that a value ends, and a branch."""

    def halved(row: gt.Array) -> gt.Array:
        return gt.while_loop(lambda r: gt.abs(r).max() > 1, lambda r: r * 0.5, row)

    def step(level: gt.Array, row: gt.Array) -> tuple[gt.Array, gt.Array]:
        level = gt.cond(row.sum() > 0, lambda: 0.5 * level + halved(row), lambda: level)
        return level, gt.tanh(level)

    def run(x: gt.Array) -> gt.Array:
        return gt.scan(step, gt.zeros(COLUMNS), x)[1]

    return gt.export(run, gt.ShapeDtypeStruct(("steps", COLUMNS), "float32"))


def main(folder: str) -> None:
    for name, exported in (("classifier", classifier()), ("filter", recurrent_filter())):
        exported.save(Path(folder) / f"{name}.gtx")
        exported.save_package(Path(folder) / f"{name}.pt2")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
