"""Sample operands for the registry walk, as functions that make NumPy arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy

from gtrace.core.base.errors import DtypeError, ShapeError
from gtrace.core.ir.cases import BadSample, Sample


def rng(seed: int = 0) -> numpy.random.Generator:
    """Return a generator whose samples are the same in every run."""
    return numpy.random.default_rng(seed)


def uniform(low: float, high: float, *shape: int, seed: int = 0) -> numpy.ndarray:
    """Return float64 values in [low, high)."""
    return rng(seed).uniform(low, high, shape)


def complex_uniform(*shape: int, seed: int = 0) -> numpy.ndarray:
    """Return complex128 values whose parts are in [-2, 2)."""
    return numpy.asarray(uniform(-2, 2, *shape, seed=seed) + 1j * uniform(-2, 2, *shape, seed=seed + 100))


def unary_floats(low: float = -2.0, high: float = 2.0) -> Callable[[], list[Sample]]:
    """Return samples of one floating array in [low, high)."""
    shapes: list[tuple[int, ...]] = [(3, 4), (), (0, 2), (5,)]
    return lambda: [Sample((uniform(low, high, *shape, seed=k),)) for k, shape in enumerate(shapes)]


def unary_integers() -> list[Sample]:
    return [Sample((rng().integers(-5, 6, (3, 4)),)), Sample((rng(1).integers(0, 2, 5).astype(bool),))]


def binary_floats(
    low: float = -2.0, high: float = 2.0, low2: float | None = None, high2: float | None = None
) -> Callable[[], list[Sample]]:
    """Return samples of two floating arrays that broadcast, and of an array and a Python scalar in both orders."""
    a, b = (low if low2 is None else low2), (high if high2 is None else high2)

    def build() -> list[Sample]:
        x = uniform(low, high, 3, 4)
        return [
            Sample((x, uniform(a, b, 3, 4, seed=1))),
            Sample((x, uniform(a, b, 4, seed=2))),
            Sample((uniform(low, high, 3, 1), uniform(a, b, 1, 4, seed=3))),
            Sample((x, uniform(a, b, seed=4))),
            Sample((x, float(uniform(a, b, seed=5)))),
            Sample((float(uniform(low, high, seed=6)), uniform(a, b, 2, seed=7))),
        ]

    return build


def binary_integers(low2: int = -5, high2: int = 6) -> Callable[[], list[Sample]]:
    """Return samples of two integer arrays that broadcast, and of an array and a Python scalar."""

    def build() -> list[Sample]:
        x, y = rng().integers(-5, 6, (3, 4)), rng(1).integers(low2, high2, (4,))
        return [Sample((x, y)), Sample((x, 3)), Sample((x.astype(numpy.int32), y.astype(numpy.int32)))]

    return build


def binary_booleans() -> list[Sample]:
    x, y = rng().integers(0, 2, (3, 4)).astype(bool), rng(1).integers(0, 2, (4,)).astype(bool)
    return [Sample((x, y)), Sample((x, True))]


def both(*builders: Callable[[], list[Sample]]) -> Callable[[], list[Sample]]:
    """Return a function with the samples of several functions."""
    return lambda: [sample for build in builders for sample in build()]


def shapes_differ() -> list[BadSample]:
    """Return a call with two operands that do not broadcast."""
    return [BadSample((numpy.ones((2, 3)), numpy.ones((4,))), {}, ShapeError, r"broadcast")]


def floats_refused(*args: Any, **kwargs: Any) -> Callable[[], list[BadSample]]:
    """Return a call with floating operands where integers are required."""
    return lambda: [BadSample(args or (numpy.ones(3), numpy.ones(3)), kwargs, DtypeError, r"integer")]


def integral(
    density: Callable[..., float], bounds: Callable[..., tuple[float, float]], *parameters: Any
) -> numpy.ndarray:
    """Return the integral of density(t, *parameters) over bounds(*parameters), by SciPy, for each element.

    It is the reference of functions without a closed form or a function in SciPy.
    """
    quad = importlib.import_module("scipy.integrate").quad

    def one(*given: float) -> float:
        return quad(density, *bounds(*given), given, epsabs=0.0, epsrel=1e-13, limit=200)[0]

    return numpy.vectorize(one, otypes=[float])(*parameters)


def scipy_special(name: str) -> Callable[..., Any]:
    """Return a function of scipy.special as a reference; a call imports SciPy."""

    def reference(*args: Any, **kwargs: Any) -> Any:
        function = getattr(importlib.import_module("scipy.special"), name)
        return function(*args, **kwargs)

    return reference
