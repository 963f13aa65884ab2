"""Whole processes of the examples that run libraries of JAX, on gtrace and on JAX.

    python benchmarks/ecosystem_examples.py [--quick] [--rounds 3] [--example NAME] [--jax PYTHON] [--json FILE]

The libraries must be importable, by PYTHONPATH or in the environment. `--jax` names a Python that has JAX, if this one
has none. Each process starts with empty caches, and then once more with what the first one left. Times are of the whole
process, from the start of Python to its end. The processor's seconds include those of compilers.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring.machine import installed
from measuring.processes import whole
from measuring.results import BenchmarkError, Figure, parser, report, rounds

EXAMPLES = {
    "numpyro_posterior": (("numpyro", "sklearn"), 0.02),
    "diffrax_lynx": (("diffrax", "equinox", "optax"), 0.02),
}
"""The libraries that an example needs, and how far the last number of its last line may be from JAX's."""

CACHES = ("caches empty", "second process")


def last_number(printed: str) -> float:
    """Return the last number of the last line."""
    return float(re.findall(r"\d+\.\d+", printed.splitlines()[-1])[-1])


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    sides = {"gtrace": [sys.executable, "-m", "gtrace", "run", "--jax", "--quiet"]}
    left_out = []
    if subprocess.run([options.jax, "-c", "import jaxlib"], capture_output=True).returncode:
        left_out.append(f"left out: jax, because {options.jax} cannot import jaxlib (--jax PYTHON names another)")
    else:
        sides["jax"] = [options.jax]
    figures = []
    for name in options.example or EXAMPLES:
        libraries, bound = EXAMPLES[name]
        missing = [library for library in libraries if not installed(library)]
        if missing:
            left_out.append(f"left out: {name}, because {', '.join(missing)} cannot be imported")
            continue
        script = [str(Path(__file__).resolve().parent.parent / "examples" / f"{name}.py"), *["--quick"] * options.quick]
        found: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
        for _ in range(rounds(options)):
            for side, command in sides.items():
                with tempfile.TemporaryDirectory() as folder:
                    for caches in CACHES:
                        found.setdefault((caches, side), []).append(whole([*command, *script], folder))
        numbers = {last_number(printed) for runs in found.values() for _, _, printed in runs}
        if not options.quick and max(numbers) - min(numbers) > bound:
            raise BenchmarkError(f"{name}: expected one result, got {sorted(numbers)}.")
        for (caches, side), runs in found.items():
            processor = sorted(seconds for _, seconds, _ in runs)[len(runs) // 2]
            samples = [seconds for seconds, _, _ in runs]
            figures.append(Figure(f"{name}, {caches}", side, samples, details={"processor, s": processor}))
    return sorted(figures, key=lambda figure: figure.workload), left_out


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 3)
    options.add_argument("--example", choices=EXAMPLES, nargs="+", help="only these")
    options.add_argument("--jax", metavar="PYTHON", default=sys.executable, help="a Python that has JAX")
    report("ecosystem_examples", options.parse_args(argv), measure)


if __name__ == "__main__":
    main()
