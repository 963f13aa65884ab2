"""Remainders of floats are exact in every form and at any length, also where the quotient is beyond the dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtrace as gt

FUNCTIONS = {
    "fmod": (gt.numpy.fmod, np.fmod), "torch.fmod": (torch.fmod, np.fmod),
    "remainder": (gt.remainder, np.mod), "torch.remainder": (torch.remainder, np.mod),
    "%": (lambda x, y: x % y, np.mod),
}  # fmt: skip


def of_all_magnitudes(dtype, n):
    """Numbers of random bits, and hard ones; none of them NaN."""
    words = np.random.default_rng(n).integers(0, 256, (2, n, np.dtype(dtype).itemsize), dtype=np.uint8)
    x, y = np.nan_to_num(np.ascontiguousarray(words).view(dtype)[..., 0], nan=3.0)
    info = np.finfo(dtype)
    hard = [info.max, info.tiny, info.smallest_subnormal, 7.0, 0.1, -0.1, -info.max, np.inf]
    pairs = np.array([(a, b) for a in hard for b in hard], dtype).T[:, :n]
    x[: pairs.shape[1]], y[: pairs.shape[1]] = pairs
    return x, y


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 200])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("form", ["interpreted", "native", "inductor"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_remainder_is_exact_where_the_quotient_overflows(form, dtype, n):
    x, y = of_all_magnitudes(dtype, n)

    def every(x, y):
        return [f(x, y) for f, _ in FUNCTIONS.values()]

    with gt.config(background=False, auto_compile=False, native=form != "inductor"):
        f = every if form == "interpreted" else gt.jit(every, wait=True)
        results = [np.asarray(z) for z in f(gt.array(x), gt.array(y))]
    for (name, (_, right)), found in zip(FUNCTIONS.items(), results, strict=True):
        np.testing.assert_array_equal(found, right(x, y), err_msg=name)


def test_a_number_beside_an_array_is_rounded_to_its_dtype():
    x = torch.full((20,), 1e38)
    for f in (torch.fmod, torch.remainder):
        found = f(gt.from_torch(x), 0.1).to_torch()
        assert torch.equal(found.double(), f(x.double(), torch.full((20,), 0.1).double()))


def test_integers_and_their_errors_are_torchs():
    x = gt.array([7, -7])
    assert (x % 4).tolist() == [3, 1] and gt.numpy.fmod(x, 4).tolist() == [3, -3]
