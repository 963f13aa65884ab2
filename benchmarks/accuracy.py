"""How exact long sums and their kin are in compiled code, beside torch eager.

    python benchmarks/accuracy.py [--sizes 100 10000] [--dtypes float32] [--axes last first all] [--forms native]

Each function reduces an elementwise operand. An error is the largest over all results, against float64 and relative to
the largest result. It is divided by that of torch eager, or by half a unit in the last place if torch has less. The
last lines are the worst ratio of each function. Each ratio above 2 has a line of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gtrace as gt

LIMIT = 2.0
"""The ratio above which a form is called less exact than torch."""

WIDTH = 20
"""Results along the other axis, of at most 1e5 elements each: a vector, and some more. Longer ones are three."""

LONG = 10**7
"""Elements above which only sums and running sums are made, along one axis."""

FUNCTIONS: dict[str, Callable[[Any, Any, int], Any]] = {
    "sum": lambda m, x, axis: m.sum(x, axis=axis),
    "cumsum": lambda m, x, axis: m.cumsum(x, axis=axis),
    "mean": lambda m, x, axis: m.mean(x, axis=axis),
    "sum of squares": lambda m, x, axis: m.sum(x * x, axis=axis),
    "norm": lambda m, x, axis: m.linalg.vector_norm(x, axis=axis),
    "norm 1": lambda m, x, axis: m.linalg.vector_norm(x, ord=1, axis=axis),
    "logsumexp": lambda m, x, axis: m.special.logsumexp(x, axis=axis),
    "softmax": lambda m, x, axis: m.softmax(x, axis=axis),
    "log_softmax": lambda m, x, axis: m.log_softmax(x, axis=axis),
    "var": lambda m, x, axis: m.var(x, axis=axis, correction=1),
    "std": lambda m, x, axis: m.std(x, axis=axis, correction=1),
    "prod": lambda m, x, axis: m.prod(1 + (x - 0.201) * 0.01, axis=axis),
    "cumprod": lambda m, x, axis: m.cumprod(1 + (x - 0.201) * 0.01, axis=axis),
    "torch.std": lambda m, x, axis: torch.std(x, axis),
    "torch.norm": lambda m, x, axis: torch.linalg.vector_norm(x, dim=axis),
    "torch.logsumexp": lambda m, x, axis: torch.logsumexp(x, axis),
}
"""Functions that torch and gtrace name alike, of a namespace, an operand and an axis; and torch's, of an Array."""

GRADIENTS = ("mean", "norm", "logsumexp", "softmax", "log_softmax", "var")


def data(size: int, axis: str) -> np.ndarray:
    """Return numbers from 0.05 to 0.15: sums that grow, in which lost digits add up."""
    width = WIDTH if size <= 10**5 else 3
    shape = {"last": (width, size), "first": (size, width), "all": (size,)}[axis]
    return np.random.default_rng(size).uniform(0.05, 0.15, shape).astype(np.float32)


def programs(size: int, axis: str) -> dict[str, Callable[[Any], Any]]:
    """Return the functions of one operand that are made for a size, by name."""
    place = 0 if axis == "first" else -1

    def scaled(x: Any) -> Any:
        return x * 2 + 0.001

    def forward(function: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda x: function(_space(x), scaled(x), place)

    def gradient(function: Callable[..., Any]) -> Callable[[Any], Any]:
        def loss(x: Any) -> Any:
            out = function(_space(x), scaled(x), place)
            return (out * out).sum()

        return lambda x: _grad(x)(loss)(x)

    names = list(FUNCTIONS)[:2] if size > LONG else list(FUNCTIONS)
    found = {name: forward(FUNCTIONS[name]) for name in names}
    if size <= LONG:
        # of a value that was added to each row, as a bias is
        found["gradient of bias"] = lambda x: _bias(x, place)
        found |= {f"gradient of {name}": gradient(FUNCTIONS[name]) for name in GRADIENTS}
    return found


def _bias(x: Any, place: int) -> Any:
    start = x.sum(axis=place, keepdims=True) * 0
    return _grad(x)(lambda b: _space(x).sin(x * 2 + b).sum())(start)


def _space(x: Any) -> Any:
    return gt if isinstance(x, gt.Array) else torch


def _grad(x: Any) -> Any:
    return gt.grad if isinstance(x, gt.Array) else torch.func.grad


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest error, relative to the largest result."""
    return float((got.double() - want).abs().max() / want.abs().max())


def ratios(size: int, axis: str, dtype: str, form: str) -> dict[str, float]:
    """Return the ratio of each function, for one operand and one form."""
    x = torch.from_numpy(data(size, axis)).to(getattr(torch, dtype))
    table, native = programs(size, axis), form == "native"
    # short programs are native, and a long one saves many compiles by Inductor
    parts = [{name: f} for name, f in table.items()] if native else [table]
    found: dict[str, gt.Array] = {}
    for part in parts:
        jitted = gt.jit(lambda x, part=part: {name: f(x) for name, f in part.items()})
        with gt.config(compile=True, native=native):
            made = gt.eval(jitted(gt.array(x)))
        if any(program.tier == "compiled" and program.native is native for program in jitted.programs()):
            found |= made
    half = torch.finfo(x.dtype).eps / 2
    return {
        name: error(torch.as_tensor(found[name]), want := f(x.double())) / max(error(f(x), want), half)
        for name, f in table.items()
        if name in found
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10**k for k in range(2, 9)])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--axes", nargs="+", default=["last", "first", "all"])
    parser.add_argument("--forms", nargs="+", default=["native", "Inductor"])
    given = parser.parse_args()
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for size in given.sizes:
        for case in [(a, d, f) for a in given.axes for d in given.dtypes for f in given.forms]:
            axis, dtype, form = case
            if size > LONG and axis != "all":
                continue
            where = f"{size:,} along {axis}, {dtype}, {form}"
            for name, ratio in ratios(size, axis, dtype, form).items():
                if not ratio <= LIMIT:
                    print(f"{name:24} {ratio:8.1f}   {where}", flush=True)
                worst[name, form] = max(worst.get((name, form), (0.0, "")), (ratio, where))
    print("\nworst ratios")
    for (name, _), (ratio, where) in sorted(worst.items()):
        print(f"{name:24} {ratio:8.1f}   {where}")


if __name__ == "__main__":
    main()
