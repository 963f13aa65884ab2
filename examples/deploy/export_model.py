"""Export a small classifier, weights and all, for `main.cpp`: python examples/deploy/export_model.py FOLDER

Writes ``classifier.gtx``, which ``gt.load`` reads, and ``classifier.pt2``, which C++ does.
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


def main(folder: str) -> None:
    exported = classifier()
    exported.save(Path(folder) / "classifier.gtx")
    exported.save_package(Path(folder) / "classifier.pt2")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
