"""Sums of many numbers keep their digits, however they run: numpy/numpy#22956.

`benchmarks/accuracy.py` tries more functions, sizes and dtypes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtrace as gt

N = 1 << 20
X = np.full((N, 2), 0.1, np.float32)
TOTAL = float(X[:, 0].astype(np.float64).sum())
SQUARES = float((X[:, 0].astype(np.float64) ** 2).sum())

# each is 1 but for rounding; adding one by one gives 0.99 to 1.04
SUMS = {
    "leading axis": lambda x: x.sum(axis=0) / TOTAL,
    "mean": lambda x: x.mean(axis=0) * (N / TOTAL),
    "two leading axes": lambda x: x.reshape(1024, N // 1024, 2).sum(axis=(0, 1)) / TOTAL,
    "axes apart": lambda x: x.reshape(N // 8, 8, 2).sum(axis=(0, 2)) * (4 / TOTAL),
    "all": lambda x: x.sum() / (2 * TOTAL),
    "strided": lambda x: x[:, :1].sum() / TOTAL,
    "running, leading axis": lambda x: gt.cumsum(x, axis=0)[-1] / TOTAL,
    "running": lambda x: gt.cumsum(x[:, 0], axis=0)[-1] / TOTAL,
    "logsumexp": lambda x: gt.exp(gt.special.logsumexp(gt.log(x[:, 0]))) / TOTAL,
    "gradient of a bias": lambda x: gt.grad(lambda b: (gt.sin(x + b) + b).sum())(gt.zeros(2)) / (N * (1 + np.cos(0.1))),
}
PRODUCTS = {
    "dot": lambda x: x[:, 0] @ x[:, 1] / SQUARES,
    "matrices": lambda x: x.T @ x / SQUARES,
    "vector and matrix": lambda x: x[:, 0] @ x / SQUARES,
    "einsum": lambda x: gt.einsum("ij,ij->j", x, x) / SQUARES,
}
NORMS = {
    "2": lambda x: gt.linalg.norm(x[:, 0]) ** 2 / SQUARES,
    "1": lambda x: gt.linalg.norm(x[:, 0], 1) / TOTAL,
    "3": lambda x: gt.linalg.norm(x[:, 0], 3) ** 3 * (10 / SQUARES),
    "Frobenius": lambda x: gt.linalg.norm(x) ** 2 / (2 * SQUARES),
    "of columns": lambda x: gt.linalg.matrix_norm(x, ord=1) / TOTAL,
    "along an axis": lambda x: gt.linalg.vector_norm(x, axis=0) ** 2 / SQUARES,
}


@pytest.fixture(scope="module")
def native():
    """All sums in one program of native code, of a value that is computed."""
    jitted = gt.jit(lambda x: {name: f(x * 1.0) for name, f in SUMS.items()})
    with gt.config(compile=True):
        results = gt.eval(jitted(gt.array(X)))
    assert all(program.native for program in jitted.programs())
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_sums(native, name):
    np.testing.assert_allclose(np.asarray(native[name]), 1.0, rtol=3e-6)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    got = PRODUCTS[name](gt.array(X))
    np.testing.assert_allclose(np.asarray(got), 1.0, rtol=5e-5)


@pytest.mark.parametrize("name", NORMS)
def test_norms(name):
    got = NORMS[name](gt.array(X))
    np.testing.assert_allclose(np.asarray(got), 1.0, rtol=3e-6)


BESIDE_TORCH = {
    "leading axis": lambda m, x: m.sum(x * 2, axis=0),
    "all": lambda m, x: m.mean(x * 2),
    "squares": lambda m, x: m.sum(x * x, axis=0),
}
"""Reductions of elementwise operands, which a namespace has under the names of torch."""


def error_beside_torch(got, function, x):
    """Return an error as a multiple of that of torch, or of half a unit in the last place if torch has less."""
    want = function(torch, x.double())

    def error(y):
        return float(((torch.as_tensor(y).double() - want).abs() / want.abs().max()).max())

    return error(got) / max(error(function(torch, x)), torch.finfo(x.dtype).eps / 2)


def random(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 0.1 + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True], ids=["inductor", "native"])
def test_compiled_sums_are_as_exact_as_torchs(native):
    functions = dict(BESIDE_TORCH)
    x = random(1 << 16, 18)  # columns are a vector and a rest
    if not native:
        # a kernel of 16-bit floats, which has four vectors of float64 for one of them
        functions["variance"] = lambda m, x: torch.var(x[:80, 0].to(torch.float16) * 2).to(x.dtype)
    jitted = gt.jit(lambda x: {name: f(gt, x) for name, f in functions.items()})
    with gt.config(compile=True, native=native):
        results = gt.eval(jitted(gt.array(x)))
    assert [(program.tier, program.native) for program in jitted.programs()] == [("compiled", native)]
    errors = {name: error_beside_torch(results[name], f, x) for name, f in BESIDE_TORCH.items()}
    assert max(errors.values()) < 2, errors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradient_of_softmax_is_rounded_once(dtype):
    x = random(20, 100).to(dtype)

    def gradient(m, x):
        grad = torch.func.grad if m is torch else gt.grad
        return grad(lambda x: m.square(m.softmax(x, axis=-1)).sum())(x)

    assert error_beside_torch(gradient(gt, gt.array(x)), gradient, x) < 2
