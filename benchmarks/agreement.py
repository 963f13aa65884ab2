"""What comparing each form with the recorded program costs, and which wrong code it catches.

    python benchmarks/agreement.py [--part cost caught] [--program WORD ...] [--rounds 5] [--json FILE]

`cost`: whole runs of the programs of models.py and handwritten.py, imports and compiles included, with comparisons and
without (GT_DISABLE=comparisons). The first process begins with an empty store, the second one has its code.

`caught`: programs of which Inductor's code is wrong if a mending is switched off. Wrong elements of the results are
counted with comparisons and without. They are those of the first call, which nobody has seen to be wrong before.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ablation
import numpy as np
import torch
from measuring.processes import child
from measuring.results import Figure, add_parts, measure_parts, parser, report, rounds

import gtrace as gt

FILE = str(Path(__file__).resolve())
STEPS = 300
SIDES = {"gtrace": "", "gtrace without comparisons": "comparisons"}


def run_whole(family: str, name: str, steps: str, quick: str) -> str:
    """Run steps of a program; returns that nothing was found, as JSON."""
    step = ablation.step_of(ablation.Program(family, name, "gtrace"), quick == "1")
    for _ in range(int(steps)):
        step()
    return "null"


def cost(options: object) -> list[Figure]:
    """Return the seconds of whole runs; the sides take turns."""
    found: dict[tuple[str, str], list[float]] = {}
    quick = bool(options.quick)  # type: ignore[attr-defined]
    words = options.program or [""]  # type: ignore[attr-defined]
    for one in ablation.programs(quick):
        if one.family not in ("models", "handwritten") or one.side != "gtrace":
            continue
        if not any(word in one.title for word in words):
            continue
        arguments = ["run", one.family, one.name, 3 if quick else STEPS, int(quick)]
        for _ in range(rounds(options)):  # type: ignore[arg-type]
            for side, off in SIDES.items():
                with tempfile.TemporaryDirectory() as folder:
                    for process in ("first process", "second process"):
                        begun = time.perf_counter()
                        child(FILE, arguments, folder, GT_DISABLE=off)
                        seconds = time.perf_counter() - begun
                        found.setdefault((f"{one.family} {one.name}, {process}", side), []).append(seconds)
    return [Figure(workload, side, seconds) for (workload, side), seconds in found.items()]


# -- wrong code


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    high = torch.tanh(x).sort(0).values.bfloat16().float()
    return high, torch.tanh(x).sort(0).values - high


def least(x: Any) -> Any:
    y: Any = gt.array(numbers(2, 2, 3)[1])
    return torch.amin(torch.atan2(x, y), -1).sum()


def pooled(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool1d(x, 3, 3, ceil_mode=True).sum()


def nearest(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.nn.functional.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest") + 1)


WRONG: dict[str, tuple[str, Callable[..., object], Callable[[], torch.Tensor]]] = {
    "abs of int8": (
        "small_integers", gt.lift(lambda x: x.abs().to(torch.int32)), lambda: torch.arange(-128, 128).to(torch.int8),
    ),
    "argmin of uint8": (
        "small_integers", gt.lift(lambda x: (x + x).argmin(2)),
        lambda: (numbers(9, 20, 40).abs() * 3 + 3).to(torch.uint8),
    ),
    "rounding to bfloat16": ("short_floats", gt.lift(split), lambda: numbers(40, 24)),
    "fmod of bfloat16 by a number": (
        "short_floats", gt.lift(lambda x: torch.fmod(x, 1.7) + 0),
        lambda: torch.tensor([1.703125, -1.703125]).bfloat16(),
    ),
    "gradient of a minimum": ("held_values", gt.grad(least), lambda: numbers(2, 2, 3)[0]),
    "average pooling": ("ceil_mode_pooling", gt.grad(pooled), lambda: torch.ones(1, 1, 8)),
    "nearest neighbours": ("nearest_by_scales", gt.lift(nearest), lambda: numbers(1, 1, 3, 4)),
}  # fmt: skip
"""Of each case the mending, a function and its input."""


def run_wrong(name: str) -> tuple[int, int]:
    """Return how many elements of the first results are not those of the recorded program, and how many warnings."""
    _, function, make = WRONG[name]
    x = gt.array(make())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        came = gt.tree.leaves(gt.eval(gt.jit(function, wait=True)(x)))
    with gt.config(deterministic=True):
        right = gt.tree.leaves(gt.eval(function(x)))
    pairs = zip([a.to_torch().double() for a in came], [b.to_torch().double() for b in right], strict=True)
    wrong = sum(int((~np.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)).sum()) for a, b in pairs)
    return wrong, sum(issubclass(w.category, gt.AuditWarning) for w in caught)


def caught(options: object) -> list[Figure]:
    """Return how many elements are wrong while a mending is off."""
    figures = []
    for name, (mechanism, _, _) in WRONG.items():
        for side, off in SIDES.items():
            with tempfile.TemporaryDirectory() as folder:
                disabled = ",".join(filter(None, [mechanism, off]))
                wrong, warned = child(FILE, ["wrong", name], folder, GT_DISABLE=disabled, GT_NATIVE="0")
            workload = f"{name}, without {mechanism}: wrong elements"
            figures.append(Figure(workload, side, [wrong], "count", {"warnings, count": float(warned)}))
    return figures


PARTS = {"cost": cost, "caught": caught}


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 5)
    add_parts(options, PARTS)
    options.add_argument(
        "--program", nargs="+", metavar="WORD", help="only programs whose titles have one of these words"
    )
    options.add_argument("--child", nargs="+", help="run a program, and print what it found")
    given = options.parse_args(argv)
    if given.child:
        task, *arguments = given.child
        print(json.dumps(run_wrong(*arguments)) if task == "wrong" else run_whole(*arguments))
        return
    report("agreement", given, lambda options: (measure_parts(options, PARTS, options), []))


if __name__ == "__main__":
    main()
