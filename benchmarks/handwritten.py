"""Whole training runs of small programs written by hand for JAX: undecorated gtrace against torch, `gt.jit` and JAX.

    python benchmarks/handwritten.py [--quick] [--model ppo gcn] [--steps 20 120 600] [--only gtrace torch jax.jit]
    python benchmarks/handwritten.py --interpreted [--quick] [--model ppo gcn] [--rounds 1] [--json FILE]

Each run is a process of its own that reads back the loss of every step, sides taking turns; imports are not counted.
"cold" runs begin with empty caches of compiled code, "warm" ones with those of the run before. Losses are compared.
With `--interpreted`, one process that compiles nothing runs a program in gtrace and torch, taking turns step by step:
60 steps of each after 5 that are not counted. The figures are then the medians of the steps.

ppo: an actor and a critic of width 64 on 256 rows. pinn: Burgers' equation at 512 points. flow: a RealNVP of six
couplings on 256 vectors of 16. dropout: a transformer of 4 layers, width 128 and 4 sequences of 64, with dropout.
diffusion: a U-Net of 16 images of 16 by 16. maml: ten sinusoids, one inner step. sac: a soft actor-critic of width 128
on 128 rows. mixer: an MLP-Mixer of 4 blocks, width 96, on 16 images of 64 patches. gcn: three layers of 500 nodes and
2,000 edges. mlp: 784, 512, 512 and 10 wide, batch 128, with dropout. ppo, maml and sac take four batches in turn.

Layers, norms and Adam are written by hand in the style of JAX; torch's have its own layers and its fused Adam. Noise
is data, but for dropout: gtrace and JAX draw the same numbers, and torch others, so that less agreement is asked of
the losses of dropout and mlp.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from handwritten_methods import Flow, Maml, Pinn, Ppo, Sac
from handwritten_networks import Diffusion, DropoutMlp, DropoutTransformer, Gcn, Mixer, Program
from measuring.processes import child
from measuring.results import Figure, report, rounds
from models import AGREEMENT, CONTESTANTS, Step, agree, functional, timed, torch_arrays, training_parser, whole_runs

from gtrace import tree

PROGRAMS: dict[str, Callable[[], Program]] = {
    "ppo": Ppo, "pinn": Pinn, "flow": Flow, "dropout": DropoutTransformer, "diffusion": Diffusion, "maml": Maml,
    "sac": Sac, "mixer": Mixer, "gcn": Gcn, "mlp": DropoutMlp,
}  # fmt: skip
SMALL: dict[str, Callable[[], Program]] = {
    "ppo": lambda: Ppo(8, 8), "pinn": lambda: Pinn(4, 8, 4), "flow": lambda: Flow(2, 8, 4, 8),
    "dropout": lambda: DropoutTransformer(1, 16, 2, 2, 8, 32), "diffusion": lambda: Diffusion(8, 16, 2, 8),
    "maml": lambda: Maml(4, 2, 4), "sac": lambda: Sac(8, 8), "mixer": lambda: Mixer(1, 4, 8, 2),
    "gcn": lambda: Gcn(10, 20, 8, 1), "mlp": lambda: DropoutMlp((16, 64, 10), 128),
}  # fmt: skip
LOOSE = {"dropout": 0.1, "mlp": 0.3}
"""Agreement of losses, as a part of the largest, where torch draws other numbers."""

SIDES = ("gtrace", "torch")
"""Those that are measured unless others are asked for."""

IN_TURN = "in turn"
"""Both in one process, as its argument."""


def step_of(which: str, name: str, quick: bool) -> Callable[[], Step]:
    """Return what makes a step with its state; arrays are made before."""
    made = (SMALL if quick else PROGRAMS)[name]()
    arrays = made.parameters(), made.data()
    if which == "torch":
        laid_out = tree.map(made.torch_layout, arrays)
        return lambda: torch_step(made, laid_out)
    return lambda: functional(which, made.step, arrays, made.state, made.batches)


def torch_step(made: Program, arrays: Sequence[Any]) -> Step:
    """Return a step of torch, with its state."""
    p, data = torch_arrays(arrays)
    step, count = made.torch_step(p), 0

    def run() -> float:
        nonlocal count
        batch = [a[count % made.batches] for a in data] if made.batches else data
        count += 1
        return step(*batch)

    return run


def in_turn(name: str, quick: bool) -> dict[str, Any]:
    """Return the losses of both sides and the seconds of their steps, in one process that compiles nothing."""
    skipped, steps = (1, 4) if quick else (5, 60)
    runs = {which: step_of(which, name, quick)() for which in SIDES}
    found: dict[str, Any] = {which: {"losses": [], "seconds": []} for which in SIDES}
    for k in range(skipped + steps):
        for which, run in runs.items():
            start = time.perf_counter()
            found[which]["losses"].append(run())
            if k >= skipped:
                found[which]["seconds"].append(time.perf_counter() - start)
    return found


def run_of(which: str, name: str, steps: int, quick: bool) -> dict[str, Any]:
    """Run in this process; returns the losses and the seconds of the steps, of each side if they take turns."""
    return in_turn(name, quick) if which == IN_TURN else timed(which, step_of(which, name, quick), steps)


def interpreted(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    figures = []
    for name in options.model:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {("none", which): [] for which in SIDES}
        for _ in range(rounds(options)):
            with tempfile.TemporaryDirectory() as folder:
                turns = child(__file__, (IN_TURN, name, 0, int(options.quick)), folder, GT_AUTO_COMPILE="0")
            for which in SIDES:
                found["none", which].append(turns[which])
        what = f"{name}, interpreted step"
        agree(what, found, LOOSE.get(name, AGREEMENT))
        for which in SIDES:
            medians = tuple(statistics.median(run["seconds"]) for run in found["none", which])
            figures.append(Figure(what, which, medians))
    return figures, []


def whole(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    return whole_runs(__file__, options, loose=LOOSE)


def main(argv: Sequence[str] | None = None) -> None:
    contestants = [which for which in CONTESTANTS if which != "torch.compile"]
    options = training_parser(__doc__, tuple(PROGRAMS), contestants=contestants)
    options.set_defaults(only=SIDES)
    options.add_argument("--interpreted", action="store_true", help="single steps, nothing compiled, in one process")
    given = options.parse_args(argv)
    if given.child:
        which, name, *numbers = given.child
        steps, quick = map(int, numbers)
        print(json.dumps(run_of(which, name, steps, bool(quick))))
        return
    if min(given.steps) < 2:
        options.error(f"expected at least 2 steps, got {min(given.steps)}")
    report("handwritten", given, interpreted if given.interpreted else whole)


if __name__ == "__main__":
    main()
