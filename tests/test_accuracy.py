"""Functions that gtrace has formulas of its own for in compiled code: within 2 units in the last place of float32."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import gtrace as gt

FUNCTIONS = {"erf": (gt.special.erf, scipy.special.erf), "tanh": (gt.tanh, np.tanh), "exp": (gt.exp, np.exp)}
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38, -3e38], np.float32)


@pytest.fixture(scope="module")
def compiled():
    """The functions as one compiled program, which takes 120,000 numbers and a few special ones."""
    x = np.concatenate(
        [np.linspace(-5, 5, 60_001), np.linspace(-110, 90, 20_001), np.logspace(-38, 1.2, 39_999)]
    ).astype(np.float32)
    x = np.concatenate([x, SPECIAL])
    f = gt.jit(lambda x: {name: ours(x) for name, (ours, _) in FUNCTIONS.items()}, wait=True)
    results = f(gt.array(x))
    assert f.programs()[0].tier == "compiled"
    return x, {name: y.numpy() for name, y in results.items()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(compiled, name):
    x, results = compiled
    with np.errstate(over="ignore"):
        want = FUNCTIONS[name][1](x.astype(np.float64))
        finite = np.isfinite(want.astype(np.float32))
    error = np.abs(results[name][finite] - want[finite]) / np.spacing(np.abs(want[finite]).astype(np.float32))
    assert error.max() < 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(compiled, name):
    with np.errstate(over="ignore"):
        want = FUNCTIONS[name][1](SPECIAL)
    got = compiled[1][name][-len(SPECIAL) :]
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
