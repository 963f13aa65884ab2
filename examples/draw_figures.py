"""The figures of this folder's README, from the examples' own functions.

    python examples/draw_figures.py [--quick] [--out FOLDER]

It needs `pip install gtrace[plot]`, for matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gaussian_process
import hmc
import matplotlib
import neural_ode
import numpy as np
from matplotlib.figure import Figure

import gtrace as gt

BLUE, ORANGE, GREY = "#2066a8", "#d95f02", "#9a9a9a"


def drawn(title: str, x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.0, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def process(quick: bool) -> Figure:
    """The mean of the Gaussian process and its 95% interval, along a line, and the data near it."""
    keys = gt.random.split(gt.random.key(0), 3)
    x, y = gaussian_process.data(keys[0], keys[1], 20 if quick else gaussian_process.ROWS)
    model = gaussian_process.fit(x, y, 5 if quick else gaussian_process.STEPS)
    line = gt.linspace(-2.0, 2.0, 200).astype(gt.float64)
    places = gt.stack((line, gt.zeros(200, gt.float64)), axis=1)
    mean, spread = (z.numpy() for z in model.predict(x, y, places))
    figure, axes = drawn("Gaussian process, at second coordinate 0", "first coordinate", "value")
    axes.fill_between(line, mean - 1.96 * spread, mean + 1.96 * spread, color=BLUE, alpha=0.2, lw=0, label="95%")
    axes.plot(line, mean, color=BLUE, label="mean")
    axes.plot(line, gaussian_process.function(places), color=ORANGE, ls="--", label="function")
    near = np.abs(x.numpy()[:, 1]) < 0.3
    axes.plot(x.numpy()[near, 0], y.numpy()[near], ".", color=GREY, label="data within 0.3")
    axes.legend(frameon=False, fontsize=8)
    return figure


def posterior(quick: bool) -> Figure:
    """Draws of two weights, and the exact posterior's ellipses of one, two and three deviations."""
    x, y = hmc.data(gt.random.key(3))
    keys = gt.random.split(gt.random.key(1), hmc.CHAINS)
    count = 20 if quick else 300
    draws = gt.vmap(lambda key: hmc.sample(key, x, y, count)[0])(keys).numpy()[:, count // 4 :]
    mean, cov = hmc.posterior(x, y)
    figure, axes = drawn("Hamiltonian Monte Carlo, two weights", "weight 0", "weight 1")
    axes.plot(*draws[..., :2].reshape(-1, 2).T, ".", ms=2, color=GREY, label="draws", rasterized=True)
    turn = np.linspace(0, 2 * np.pi, 100)
    circle = np.linalg.cholesky(cov[:2, :2]) @ np.stack((np.cos(turn), np.sin(turn)))
    for k in (1, 2, 3):
        axes.plot(
            *(mean[:2, None] + k * circle), color=BLUE, lw=1, label="exact: 1, 2, 3 deviations" if k == 1 else None
        )
    axes.legend(frameon=False, fontsize=8)
    return figure


def pendulum(quick: bool) -> Figure:
    """Angles of the pendulum and of the network's field, from starts that it has not seen."""
    keys = gt.random.split(gt.random.key(0), 3)
    model = neural_ode.fit(keys[1], neural_ode.starts(keys[0], 32), 5 if quick else neural_ode.STEPS)
    new = neural_ode.starts(keys[2], 4)
    points = 3 * (neural_ode.POINTS - 1) + 1
    times = np.linspace(0, 3 * neural_ode.SECONDS, points)
    figure, axes = drawn("Neural differential equation, new starts", "seconds", "angle")
    axes.plot(times, neural_ode.integrate(neural_ode.pendulum, new, points).numpy()[..., 0], color=GREY, lw=3)
    axes.plot(times, neural_ode.integrate(model, new, points).numpy()[..., 0], color=BLUE, ls="--", lw=1)
    axes.axvline(neural_ode.SECONDS, color=ORANGE, lw=1)
    axes.plot([], [], color=GREY, lw=3, label="pendulum")
    axes.plot([], [], color=BLUE, ls="--", lw=1, label="network")
    axes.plot([], [], color=ORANGE, lw=1, label="end of what it was fitted to")
    axes.legend(frameon=False, fontsize=8)
    return figure


FIGURES: dict[str, Callable[[bool], Figure]] = {
    "gaussian_process": process, "hmc": posterior, "neural_ode": pendulum,
}  # fmt: skip


def main(quick: bool = False, out: Path = Path(__file__).parent / "figures") -> list[Path]:
    """Write the figures; returns their paths."""
    matplotlib.rcParams.update({"font.size": 9, "savefig.dpi": 90})
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in FIGURES.items():
        written.append(out / f"{name}.png")
        draw(quick).savefig(written[-1], metadata={"Software": None})
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    given = parser.parse_args()
    for path in main(given.quick, given.out):
        print(path)
