"""Functions in compiled code: those with formulas of ours are within 2 units in the last place of float32.

In short programs they are those of the C library, for vectors, which are within 4.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import gtrace as gt

FUNCTIONS = {"erf": (gt.special.erf, scipy.special.erf), "tanh": (gt.tanh, np.tanh), "exp": (gt.exp, np.exp)}
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3e38, -3e38], np.float32)


@pytest.fixture(scope="module", params=[False, True], ids=["inductor", "native"])
def compiled(request):
    """The functions as one compiled program, which takes 120,000 numbers and a few special ones."""
    x = np.concatenate(
        [np.linspace(-5, 5, 60_001), np.linspace(-110, 90, 20_001), np.logspace(-38, 1.2, 39_999)]
    ).astype(np.float32)
    x = np.concatenate([x, SPECIAL])
    more = {"twice": lambda x: x * 2} if request.param else {}  # another program
    f = gt.jit(lambda x: {name: ours(x) for name, (ours, _) in FUNCTIONS.items()} | {n: g(x) for n, g in more.items()})
    with gt.config(native=request.param, compile=True):
        results = f(gt.array(x))
    (program,) = f.programs()
    assert program.tier == "compiled" and program.native is request.param
    return x, {name: y.numpy() for name, y in results.items()}, 4 if request.param else 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(compiled, name):
    x, results, units = compiled
    with np.errstate(over="ignore"):
        want = FUNCTIONS[name][1](x.astype(np.float64))
        finite = np.isfinite(want.astype(np.float32))
    error = np.abs(results[name][finite] - want[finite]) / np.spacing(np.abs(want[finite]).astype(np.float32))
    assert error.max() < units


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(compiled, name):
    with np.errstate(over="ignore"):
        want = FUNCTIONS[name][1](SPECIAL)
    got = compiled[1][name][-len(SPECIAL) :]
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
