"""What generators of programs share: their table, and what is drawn in many of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fuzz.programs import Program

Generator = Callable[[Random], Program]
GENERATORS: dict[str, Generator] = {}
"""Each takes a `random.Random` and returns a program."""

UNARY = "exp sin cos tanh sigmoid relu erf softplus abs".split()
NUMBERS = ["0.5", "2.0", "-1.0", "1e-3", "3", "0.0", "-0.75"]


def generator(function: Generator) -> Generator:
    GENERATORS[function.__name__] = function
    return function


def way(r: Random) -> str:
    return r.choice(["value", "grad", "grad", "second"])


def floats(r: Random) -> str:
    return r.choice(["normal"] * 4 + ["rows", "positive", "small", "zeros"])


def tree(r: Random, names: list[str], depth: int) -> str:
    """Draw an expression of arrays of one shape."""
    if depth == 0 or r.random() < 0.15:
        return r.choice(names) if r.random() < 0.85 else r.choice(NUMBERS)
    kind = r.randrange(8)
    a = tree(r, names, depth - 1)
    if kind < 3:
        return f"({a} {r.choice('+-*')} {tree(r, names, depth - 1)})"
    if a in NUMBERS:
        a = r.choice(names)
    if kind == 3:
        return f"({a} / (1.5 + {r.choice(names)} * {r.choice(names)}))"
    if kind == 4:
        compared = f"{r.choice(names)} {r.choice(['>', '<=', '>='])} {r.choice(['0.0', '0.5', *names])}"
        return f"m.where({compared}, {a}, {r.choice(names)})"
    if kind == 5:
        return f"m.{r.choice(['maximum', 'minimum'])}({r.choice(names)}, {r.choice([a, '0.5'])})"
    if kind == 6:
        return f"({r.choice(names)}) ** {r.choice(['2', '3', '2.0'])}"
    if r.random() < 0.1:  # slopes of infinity before a selection
        return f"m.sqrt(m.relu({a}))"
    return f"m.{r.choice(UNARY)}({r.choice(names) if a.startswith('m.exp') else a})"
