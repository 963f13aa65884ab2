"""What comparing costs: whole training runs with comparisons and without them, beside eager torch.

    python benchmarks/price.py [--quick] [--model models/vae handwritten/mlp] [--steps 120] [--rounds 3] [--json FILE]

The programs are those of models.py, modules.py and handwritten.py. Each run is a process of its own that reads back the
loss of every step; sides take turns. "cold" runs begin with empty caches of compiled code, "warm" ones with those of
the run before. A run is told by its seconds, those of its first step, and the most memory that its process held, with
what imports take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import handwritten
import models
import modules
from measuring.processes import child, held
from measuring.results import Figure, report, rounds

LAYERS = 6
PROGRAMS = (
    *[f"models/{name}" for name in (*models.MODELS, *models.OTHERS)],
    *[f"modules/{name}" for name in modules.MODELS],
    *[f"handwritten/{name}" for name in handwritten.PROGRAMS],
)
OFF = {"GT_DISABLE": "comparisons"}
SIDES = {
    "torch": ("torch", {}), "gtrace": ("gtrace", {}), "gtrace, not comparing": ("gtrace", OFF),
    "gt.jit": ("gt.jit", {}), "gt.jit, not comparing": ("gt.jit", OFF),
}  # fmt: skip


def train(which: str, name: str, steps: int, quick: bool) -> dict[str, Any]:
    """Train for some steps; returns the losses, the seconds of the steps, and the bytes that the process held."""
    kind, _, model = name.partition("/")
    if kind == "models":
        run = models.train(which, model, steps, quick, LAYERS)
    else:
        run = {"modules": modules.train, "handwritten": handwritten.run_of}[kind](which, model, steps, quick)
    return run | {"bytes": held("VmHWM")}


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    figures = []
    for name in options.model:
        sides = [side for side in options.only if SIDES[side][0] != "gt.jit" or not name.startswith("modules/")]
        for steps in options.steps:
            found: dict[tuple[str, str], list[dict[str, Any]]] = {}
            for _ in range(rounds(options)):
                for side in sides:
                    which, variables = SIDES[side]
                    with tempfile.TemporaryDirectory() as folder:
                        for caches in options.caches:
                            run = child(__file__, (which, name, steps, int(options.quick)), folder, **variables)
                            found.setdefault((caches, side), []).append(run)
            loose = handwritten.LOOSE.get(name.partition("/")[2], models.AGREEMENT)
            models.agree(f"{name}, {steps} steps", found, loose)
            figures += [_figure(name, steps, caches, side, runs) for (caches, side), runs in found.items()]
    return figures, []


def _figure(name: str, steps: int, caches: str, side: str, runs: Sequence[dict[str, Any]]) -> Figure:
    made = models.figures_of(f"{name}, {steps} steps", side, caches, runs)
    made.details["most memory, bytes"] = statistics.median(run["bytes"] for run in runs)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    options = models.training_parser(__doc__, ("models/transformer",), PROGRAMS[1:], tuple(SIDES))
    given = options.parse_args(argv)
    if given.child:
        which, name, *numbers = given.child
        steps, quick = map(int, numbers)
        print(json.dumps(train(which, name, steps, bool(quick))))
        return
    report("price", given, measure)


if __name__ == "__main__":
    main()
