"""What a drawn program is: inputs, lines of text, results, and what is asked of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch

LOWER = ("float16", "bfloat16")


@attrs.frozen
class Input:
    """An input of a program.

    Attributes:
        values: how it is filled: "normal", "positive", "small", "rows" (some rows are constant), "zeros",
            "tenths" (0.1 each), "large" (where exp nearly overflows), "special" (NaN, infinities and signed zeros too),
            "about N" (the mean is N standard deviations), "mask" (booleans), or "below N" (integers).
        layout: "dense", or "swapped": the last two axes lie in memory the other way round.
        sizes: of the first axis, call by call, in place of that of `shape`.
    """

    name: str
    shape: tuple[int, ...]
    values: str = "normal"
    dtype: str = "float32"
    layout: str = "dense"
    seed: int = 0
    sizes: tuple[int, ...] = ()

    def tensor(self, wide: bool, call: int = 0) -> torch.Tensor:
        """Make it, for a call; a float one in float64, if `wide`, of the same numbers."""
        r = np.random.default_rng(self.seed + 1000 * call)
        shape = (self.sizes[call], *self.shape[1:]) if self.sizes else self.shape
        x = r.normal(size=shape)
        if self.values == "mask":
            return torch.from_numpy(np.asarray(x > -0.5))
        if self.values.startswith("below"):
            return torch.from_numpy(np.asarray(r.integers(0, int(self.values.split()[1]), shape)))
        if self.values.startswith("about"):
            x = x + float(self.values.split()[1])
        if self.values == "positive":
            x = np.abs(x) + 0.1
        elif self.values == "small":
            x = x * 1e-3
        elif self.values == "large":  # near the largest number whose exp is finite, and of its double
            x = np.sign(x) * (87.5 + np.abs(x))
        elif self.values == "tenths":
            x = np.full(self.shape, 0.1)
        elif self.values == "zeros":
            x = x * 0
        elif self.values == "rows" and x.ndim and x.size:
            x[tuple([slice(0, 1)] * (x.ndim - 1))] = 0.75
        elif self.values == "special" and x.size:
            places = r.integers(0, x.size, 3)
            x.reshape(-1)[places] = r.permutation([np.nan, np.inf, -np.inf, 0.0, -0.0])[:3]
        t = torch.from_numpy(np.asarray(x)).to(getattr(torch, self.dtype))
        t = t.double() if wide else t
        if self.layout == "swapped" and t.ndim > 1:
            t = t.transpose(-1, -2).contiguous().transpose(-1, -2)
        return t

    @property
    def is_float(self) -> bool:
        return self.values != "mask" and not self.values.startswith("below")


@attrs.frozen
class Program:
    """A program.

    Attributes:
        lines: assignments, one a line, of names that no line before has assigned.
        outputs: names of results.
        way: "value", "grad" (results and gradients for each float input) or "second" (gradients of those too).
        carry: that many leading results are the leading inputs of the next call; 0 for a single call.
        fresh: whether each call has inputs of its own; then the results of all calls count.
        times: results may be so many times as far from float64 as torch's own; 0: the bound is that of `check`.
        weighted: whether what is differentiated is a sum with weights; else it is the sum.
        definitions: functions that the lines call, each as its text. They are of torch, and lifted.
    """

    generator: str
    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    way: str = "value"
    carry: int = 0
    calls: int = 1
    weighted: bool = True
    definitions: tuple[str, ...] = ()
    fresh: bool = False
    times: int = 0

    def text(self) -> str:
        """Return it as the text of a function of `m`, the vocabulary, and of the inputs."""
        names = ", ".join(x.name for x in self.inputs)
        body = "".join(f"    {line}\n" for line in (*self.definitions, *self.lines))
        return f"def program(m, {names}):\n{body}    return {', '.join(self.outputs)},\n"

    def function(self) -> Callable[..., tuple[Any, ...]]:
        table: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "torch": torch}
        exec(compile(self.text(), f"<{self.generator}>", "exec"), table)
        found: Callable[..., tuple[Any, ...]] = table["program"]
        return found

    def wide(self) -> Program:
        """Return the program that computes in float64 what this one rounds to less."""
        lines = [re.sub(r"m\.astype\((\w+), '(b?float\d+)'\)", r"\1", line) for line in self.lines]
        return attrs.evolve(self, lines=tuple(lines))


class Lines:
    """The lines of a program that is being drawn."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, expression: str) -> str:
        """Assign an expression; returns the name."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return name
