"""gt.linalg: values against NumPy and SciPy, gradients against torch, in float64; stacks, edges and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.testing import assert_close, check_grads, check_vmap

L, TL, NL = gt.linalg, torch.linalg, np.linalg
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def normal(*shape):
    return RNG.normal(size=shape)


def symmetric(*shape):
    x = normal(*shape)
    return x + np.swapaxes(x, -1, -2)


def positive(*shape):
    x = normal(*shape)
    return x @ np.swapaxes(x, -1, -2) + 0.5 * np.eye(shape[-1])


A, B, TALL, WIDE = normal(3, 3), normal(2, 1, 3, 3), normal(5, 3), normal(2, 3, 5)
S, P, PS = symmetric(4, 4), positive(3, 3), positive(2, 3, 3)
LOW = np.tril(normal(2, 3, 3)) + 2 * np.eye(3)
SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
RANK2 = normal(4, 2) @ normal(2, 5)
INTS = np.array([[2, 1], [1, 3]])


def check(got, want, dtype=None):
    """Compare results, or tuples of them, in shape, dtype and values."""
    if isinstance(want, tuple):
        assert isinstance(got, tuple) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check(g, w, dtype)
        return
    want = np.asarray(want)
    assert got.shape == want.shape
    assert got.dtype == (dtype or torch.from_numpy(np.array(want)).dtype)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5 if dtype else 1e-9, atol=1e-10)


def triangular(a, b, **keywords):
    return np.stack([scipy.linalg.solve_triangular(x, b, **keywords) for x in a])


def residual_free(a, b, rcond=None):
    """NumPy's least squares, with the sums of squares always there."""
    x, _, rank, s = NL.lstsq(a, b, rcond=rcond)
    return x, np.atleast_1d(np.sum((a @ x - b) ** 2, axis=0)), np.int64(rank), s


def each(function):
    return lambda x, *rest: np.stack([function(m, *rest) for m in x])


# function, arguments, keywords, and NumPy's function if it is not that of the same name
TABLE = [
    *[("cholesky", (x,), {"upper": u}, None) for x in (P, PS) for u in (False, True)],
    *[(f, (x,), {}, None) for f in ("det", "inv", "slogdet") for x in (A, B, INTS)],
    ("slogdet", (SINGULAR,), {}, None),
    *[(f, (x,), {}, None) for f in ("eigvalsh",) for x in (S, PS)],
    ("eigvalsh", (A, "U"), {}, None),
    ("eigvalsh", (A,), {"UPLO": "L"}, None),
    *[("svdvals", (x,), {}, lambda x: NL.svd(x, compute_uv=False)) for x in (A, TALL, WIDE)],
    *[("svd", (x,), {"compute_uv": False, "hermitian": h}, None) for h in (False, True) for x in (S, PS)],
    *[("matrix_power", (x, n), {}, None) for x in (A, B) for n in (0, 1, 2, 5, -1, -3)],
    ("matrix_power", (INTS, 3), {}, None),
    ("matrix_power", (INTS, 0), {}, None),
    ("matrix_power", (INTS, -2), {}, None),
    *[("expm", (x,), {}, scipy.linalg.expm) for x in (A, PS)],
    *[("matrix_rank", (x,), {}, None) for x in (A, TALL, WIDE, RANK2, SINGULAR, np.zeros((2, 3)))],
    ("matrix_rank", (S,), {"hermitian": True}, None),
    ("matrix_rank", (PS, 1.0), {}, None),
    ("matrix_rank", (PS, np.array([0.5, 3.0])), {}, None),
    ("matrix_rank", (PS,), {"rtol": np.array([1e-3, 0.9])}, None),
    ("matrix_rank", (PS,), {"tol": 0.6, "hermitian": True}, None),
    *[("cond", (x, p), {}, None) for x in (A, PS) for p in (None, 2, -2, 1, -1, math.inf, -math.inf, "fro", "nuc")],
    *[("cond", (x,), {}, None) for x in (TALL, np.zeros((2, 2)), np.zeros((2, 3)))],
    *[("pinv", (x,), {}, None) for x in (A, TALL, WIDE, RANK2)],
    ("pinv", (PS, 0.3), {}, None),
    ("pinv", (PS,), {"rtol": np.array([1e-3, 0.9])}, None),
    ("pinv", (S,), {"hermitian": True}, None),
    *[("solve", (a, b), {}, None) for a, b in [(A, normal(3)), (A, normal(3, 2)), (PS, normal(3)), (PS, normal(3, 2)),
                                              (A, normal(2, 3, 3)), (B, normal(4, 3, 2)), (INTS, INTS)]],
    *[("solve_triangular", (LOW, b), {"lower": True, "trans": t, "unit_diagonal": u}, triangular)
      for b in (normal(3), normal(3, 2)) for t in (0, 1, "N", "T") for u in (False, True)],
    ("solve_triangular", (np.swapaxes(LOW, 1, 2), normal(3, 2)), {}, triangular),
    *[("lstsq", (a, b), {}, residual_free) for a, b in [(TALL, normal(5)), (TALL, normal(5, 2)), (WIDE[0], normal(3)),
                                                       (RANK2, normal(4, 2)), (TALL, normal(5, 0))]],
    ("lstsq", (TALL, TALL[:, 0], 0.9), {}, residual_free),
    ("lstsq", (TALL, TALL[:, 0], -1), {}, residual_free),
    *[("multi_dot", ([normal(*s) for s in shapes],), {}, None)
      for shapes in [((2, 3), (3, 4)), ((2, 3), (3, 9), (9, 2)), ((3,), (3, 4), (4, 2), (2,)), ((3,), (3,))]],
    ("multi_dot", ([INTS, INTS, INTS],), {}, None),
    ("tensorsolve", (normal(2, 3, 6), normal(2, 3)), {}, None),
    ("tensorsolve", (normal(2, 6, 3), normal(2, 3)), {"axes": (1,)}, None),
    ("tensorinv", (normal(4, 6, 8, 3),), {}, None),
    ("tensorinv", (normal(6, 2, 3), 1), {}, None),
    *[("diagonal", (WIDE,), {"offset": k}, None) for k in (0, 1, -2)],
    *[("trace", (x,), {"offset": k}, None) for x in (WIDE, INTS) for k in (0, 1)],
    ("trace", (INTS,), {"dtype": np.float32}, None),
    ("matrix_transpose", (WIDE,), {}, None),
    ("cross", (normal(4, 3), normal(3)), {}, None),
    ("cross", (normal(3, 4), normal(3, 1)), {"axis": 0}, None),
    ("outer", (normal(3), normal(4)), {}, None),
    ("vecdot", (normal(2, 3), normal(3)), {}, None),
    ("vecdot", (normal(3, 2), normal(3, 2)), {"axis": 0}, None),
    ("tensordot", (normal(2, 3, 4), normal(3, 4, 5)), {}, None),
    ("tensordot", (normal(2, 3, 4), normal(4, 3)), {"axes": ((1, 2), (1, 0))}, None),
    ("matmul", (B, A), {}, None),
    *[("matrix_norm", (x,), {"ord": o, "keepdims": k}, None) for x, k in ((A, False), (WIDE, True))
      for o in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)],
    *[("vector_norm", (WIDE,), {"ord": o, "axis": a, "keepdims": k}, None)
      for o, a, k in [(2, None, False), (2, None, True), (1, 0, False), (3, -1, True), (0, 1, False),
                      (0.5, (0, 2), False), (math.inf, (0, 1), True), (-math.inf, None, False), (-2, 1, False)]],
    ("vector_norm", (np.array([3, 4]),), {}, None),
    *[("norm", (x, *rest), {}, None) for x, *rest in [
        (WIDE,), (WIDE, None, 1), (WIDE, None, (0, 2)), (A, 1), (A, "nuc"), (A[0], 1), (A[0], 0), (WIDE, 1, 0),
        (WIDE, 1, (0, 2)), (WIDE, 1, (2, 0)), (WIDE, math.inf, (-1, -2), True), (WIDE, None, None, True),
        (WIDE, 2, (2, 0), True), (WIDE, -1, 2, True), (INTS,)]],
]  # fmt: skip


def numpy_function(name):
    return getattr(NL, name) if hasattr(NL, name) else getattr(np, name)


@pytest.mark.parametrize(("name", "args", "keywords", "reference"), TABLE,
                         ids=[f"{k}-{case[0]}" for k, case in enumerate(TABLE)])  # fmt: skip
def test_values_are_those_of_numpy(name, args, keywords, reference):
    with np.errstate(all="ignore"):
        want = (reference or numpy_function(name))(*args, **keywords)
    whole = isinstance(args[0], np.ndarray) and args[0].dtype == np.int64
    dtype = gt.float32 if whole and np.asarray(want[0] if isinstance(want, tuple) else want).dtype.kind == "f" else None
    check(getattr(L, name)(*args, **keywords), tuple(want) if isinstance(want, tuple) else want, dtype)


def test_every_function_is_tested():
    apart = {"qr", "eigh", "lu", "lu_factor", "eig", "eigvals"}
    assert apart | {case[0] for case in TABLE} == {n for n in vars(L) if n in L.__dict__ and callable(getattr(L, n))
                                                  and n[0].islower()}  # fmt: skip


# -- decompositions: factors are unique up to signs, so what they are for is checked


@pytest.mark.parametrize("x", [A, TALL, WIDE, B, TALL.T], ids=np.shape)
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr(x, mode):
    q, r = L.qr(x, mode)
    want = NL.qr(x, mode)
    assert q.shape == want.Q.shape and r.shape == want.R.shape
    np.testing.assert_allclose(q @ r, x, atol=1e-12)
    np.testing.assert_allclose(q.mT @ q, np.broadcast_to(np.eye(q.shape[-1]), (*x.shape[:-2], *[q.shape[-1]] * 2)),
                               atol=1e-12)  # fmt: skip
    np.testing.assert_array_equal(r, np.triu(r.numpy()))
    np.testing.assert_allclose(abs(L.qr(x, mode="r")), abs(NL.qr(x, mode="r")), atol=1e-12)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("x", [A, TALL, WIDE, RANK2], ids=np.shape)
def test_svd(x, full):
    u, s, vh = L.svd(x, full_matrices=full)
    want = NL.svd(x, full_matrices=full)
    assert [u.shape, s.shape, vh.shape] == [m.shape for m in want]
    np.testing.assert_allclose(s, want.S, atol=1e-12)
    k = s.shape[-1]
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, atol=1e-12)
    for m in (u, vh.mT):
        np.testing.assert_allclose(m.mT @ m - gt.eye(m.shape[-1], dtype=gt.float64), 0, atol=1e-12)


@pytest.mark.parametrize("x", [S, PS, symmetric(3, 2, 2)], ids=np.shape)
def test_factors_of_symmetric_matrices(x):
    values, vectors = L.eigh(x)
    np.testing.assert_allclose(values, NL.eigvalsh(x), atol=1e-12)
    np.testing.assert_allclose(x @ vectors.numpy(), vectors * values[..., None, :], atol=1e-11)
    lower, upper = np.tril(x), np.triu(x)  # the other half is not read
    for half, uplo in ((lower, "L"), (upper, "U")):
        np.testing.assert_allclose(L.eigh(half, UPLO=uplo).eigenvalues, values, atol=1e-12)
    u, s, vh = L.svd(x, hermitian=True)
    np.testing.assert_allclose(s, NL.svd(x, compute_uv=False), atol=1e-12)
    np.testing.assert_allclose((u * s[..., None, :]) @ vh, x, atol=1e-12)
    np.testing.assert_allclose(u.mT @ u - gt.eye(x.shape[-1], dtype=gt.float64), 0, atol=1e-12)


@pytest.mark.parametrize("x", [A, TALL, WIDE], ids=np.shape)
def test_lu(x):
    p, low, up = L.lu(x)
    for got, want in zip((p, low, up), scipy.linalg.lu(x), strict=True):
        check(got, want)
    if x.ndim == 2:
        factors, pivots = L.lu_factor(x)
        want = scipy.linalg.lu_factor(x) if x.shape[0] == x.shape[1] else None
        if want is not None:
            check((factors, pivots), (want[0], want[1].astype(np.int32)))


@pytest.mark.parametrize("shape", [(5, 5), (5, 2), (2, 5), (0, 3), (3, 0)])
def test_the_order_of_rows_of_lu(shape):
    x = np.random.default_rng(1).normal(size=(3, *shape))
    factors, pivots, order = gt.lax.linalg.lu(x)
    p, low, up = L.lu(x)
    assert order.tolist() == (np.argmax(p.numpy(), axis=-2) if shape[0] else np.zeros((3, 0))).tolist()
    assert_close(low @ up, np.take_along_axis(x, order.numpy()[..., None], 1))
    assert pivots.shape == (3, min(shape)) and factors.shape == x.shape


@pytest.mark.parametrize("upper", [False, True])
def test_a_cholesky_factor_that_does_not_exist_is_nan_in_its_half(upper):
    x = np.stack([np.eye(3), -np.eye(3)])
    half = np.tril(np.ones((3, 3))) > 0
    expected = np.stack([np.eye(3), np.where(half.T if upper else half, np.nan, 0.0)])
    for factor in (L.cholesky, lambda x, upper: gt.vmap(lambda m: L.cholesky(m, upper=upper))(x)):
        np.testing.assert_array_equal(factor(x, upper=upper), expected)


def test_results_have_the_names_of_the_array_api():
    assert L.eigh(S)._fields == ("eigenvalues", "eigenvectors") == L.EigResult._fields
    assert L.qr(A)._fields == ("Q", "R")
    assert L.slogdet(A)._fields == ("sign", "logabsdet")
    assert L.svd(A)._fields == ("U", "S", "Vh")
    out = gt.jit(L.slogdet, backend="eager")(A)
    assert isinstance(out, L.SlogdetResult)  # survives transforms


@pytest.mark.skipif(not hasattr(gt, "complex64"), reason="no complex dtypes")
def test_eigenvalues_of_other_matrices():
    values, vectors = L.eig(A)
    np.testing.assert_allclose(A @ vectors.numpy(), vectors.numpy() * values.numpy(), atol=1e-12)
    np.testing.assert_allclose(np.sort(L.eigvals(A).numpy()), np.sort(NL.eigvals(A)), atol=1e-12)


def test_dtypes():
    assert L.det(INTS).dtype == gt.float32
    assert L.solve(A.astype(np.float32), A).dtype == gt.float64
    assert L.matrix_rank(A).dtype == gt.int64
    assert L.lu_factor(A)[1].dtype == gt.int32
    assert L.matrix_norm(gt.ones((2, 2), dtype=gt.float16)).dtype == gt.float16
    assert L.slogdet(gt.ones((2, 2))).sign.dtype == gt.float32


# -- edges


def test_matrices_without_an_inverse_or_a_factor():
    assert not np.isfinite(L.inv(SINGULAR)).any()
    assert not np.isfinite(L.solve(SINGULAR, np.ones(2))).any()
    assert L.cond(SINGULAR, 1) == math.inf
    assert np.isnan(L.cond(np.array([[math.nan, 1.0], [1.0, 1.0]]), 1))
    assert tuple(map(float, L.slogdet(np.zeros((2, 2))))) == (0.0, -math.inf)


def test_empty_matrices():
    none = np.zeros((0, 0))
    for name in ("det", "inv", "cholesky", "svdvals", "eigvalsh", "pinv", "matrix_rank", "matrix_norm", "slogdet"):
        reference = (lambda x: NL.svd(x, compute_uv=False)) if name == "svdvals" else getattr(NL, name)
        want = reference(none)
        check(getattr(L, name)(none), tuple(want) if isinstance(want, tuple) else want)
        check(getattr(L, name)(np.zeros((0, 2, 2))), getattr(NL, name, reference)(np.zeros((0, 2, 2)))
              if name not in ("slogdet", "svdvals") else getattr(L, name)(np.zeros((0, 2, 2))))  # fmt: skip
    check(L.solve(none, np.zeros(0)), np.zeros(0))
    check(L.solve(np.zeros((0, 2, 2)), np.zeros(2)), np.zeros((0, 2)))
    check(L.solve_triangular(none, np.zeros((0, 2))), np.zeros((0, 2)))
    check(L.vector_norm(np.zeros(0)), np.float64(0))


# -- derivatives

# ours, torch's, arguments
GRADIENTS = {
    "cholesky": (L.cholesky, TL.cholesky, PS),
    "cholesky upper": (lambda x: L.cholesky(x, upper=True), lambda x: TL.cholesky(x, upper=True), P),
    "qr": (lambda x: L.qr(x).Q, lambda x: TL.qr(x).Q, TALL),
    "qr r": (lambda x: L.qr(x, "r"), lambda x: TL.qr(x).R, TALL),
    "svd": (lambda x: abs(L.svd(x, full_matrices=False).U), lambda x: TL.svd(x, full_matrices=False).U.abs(), WIDE),
    "svd hermitian": (lambda x: abs(L.svd(x, hermitian=True).U), lambda x: TL.svd((x + x.mT) / 2).U.abs(), S),
    "svdvals": (L.svdvals, TL.svdvals, WIDE),
    "eigh": (lambda x: abs(L.eigh(x).eigenvectors), lambda x: TL.eigh(x).eigenvectors.abs(), S),
    "eigvalsh": (L.eigvalsh, TL.eigvalsh, S),
    "eigvalsh upper": (lambda x: L.eigvalsh(x, "U"), lambda x: TL.eigvalsh(x, "U"), S),
    "lu": (lambda x: L.lu(x)[2], lambda x: TL.lu(x)[2], B),
    "lu_factor": (lambda x: L.lu_factor(x)[0], lambda x: TL.lu_factor(x)[0], A),
    "det": (L.det, TL.det, B),
    "det singular": (L.det, lambda x: x[0, 0] * x[1, 1] - x[0, 1] * x[1, 0], SINGULAR),
    "slogdet": (lambda x: L.slogdet(x).logabsdet, lambda x: TL.slogdet(x).logabsdet, B),
    "inv": (L.inv, TL.inv, B),
    "pinv": (L.pinv, TL.pinv, WIDE),
    "pinv hermitian": (lambda x: L.pinv(x, hermitian=True), lambda x: TL.pinv(x, hermitian=True), S),
    "expm": (L.expm, TL.matrix_exp, A),
    "matrix_power": (lambda x: L.matrix_power(x, 5), lambda x: TL.matrix_power(x, 5), A),
    "matrix_power -2": (lambda x: L.matrix_power(x, -2), lambda x: TL.matrix_power(x, -2), A),
    "cond": (L.cond, TL.cond, B),
    "cond 1": (lambda x: L.cond(x, 1), lambda x: TL.norm(x, 1) * TL.norm(TL.inv(x), 1), A),
    "solve": (L.solve, TL.solve, B, normal(3, 2)),
    "solve vector": (L.solve, TL.solve, A, normal(3)),
    "solve_triangular": (lambda a, b: L.solve_triangular(a, b, lower=True),
                         lambda a, b: TL.solve_triangular(a, b, upper=False), LOW, normal(3, 2)),
    "solve_triangular transposed": (lambda a, b: L.solve_triangular(a, b, 1, lower=True, unit_diagonal=True),
                                    lambda a, b: TL.solve_triangular(a.mT, b[:, None], upper=True,
                                                                     unitriangular=True)[..., 0], LOW, normal(3)),
    "lstsq": (lambda a, b: L.lstsq(a, b)[0], lambda a, b: TL.lstsq(a, b[:, None]).solution[:, 0], TALL, normal(5)),
    "lstsq residuals": (lambda a, b: L.lstsq(a, b)[1],
                        lambda a, b: ((a @ TL.lstsq(a, b).solution - b) ** 2).sum(0), TALL, normal(5, 2)),
    "lstsq equal singular values": (lambda a, b: L.lstsq(a, b)[0], lambda a, b: TL.pinv(a) @ b, np.eye(3)[:, :2],
                                    normal(3)),
    "multi_dot": (lambda *xs: L.multi_dot(xs), lambda *xs: TL.multi_dot(xs), normal(2, 3), normal(3, 4), normal(4)),
    "tensorsolve": (L.tensorsolve, TL.tensorsolve, normal(2, 3, 6), normal(2, 3)),
    "tensorinv": (lambda a: L.tensorinv(a, 1), lambda a: TL.tensorinv(a, 1), normal(6, 2, 3)),
    "trace": (L.trace, lambda x: x.diagonal(dim1=-2, dim2=-1).sum(-1), WIDE),
    "norm": (lambda x: L.norm(x, 1, (0, 2)), lambda x: TL.norm(x, 1, (0, 2)), WIDE),
    **{f"matrix_norm {o}": (lambda x, o=o: L.matrix_norm(x, ord=o), lambda x, o=o: TL.matrix_norm(x, o), WIDE)
       for o in ("fro", "nuc", 1, 2, -2, math.inf)},
    **{f"vector_norm {o}": (lambda x, o=o: L.vector_norm(x, ord=o, axis=(0, 2)),
                            lambda x, o=o: TL.vector_norm(x, o, (0, 2)), WIDE) for o in (1, 2, 3, 0.5, math.inf)},
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_values_and_gradients_are_those_of_torch(name):
    ours, theirs, *args = GRADIENTS[name]
    tensors = [torch.tensor(x, requires_grad=True) for x in args]
    want = theirs(*tensors)
    weights = np.cos(np.arange(want.numel())).reshape(want.shape)
    (want * torch.tensor(weights)).sum().backward()
    got = ours(*args)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want.detach(), rtol=1e-9, atol=1e-10)
    grads = gt.grad(lambda *xs: (ours(*xs) * weights).sum(), tuple(range(len(args))))(*args)
    for g, x in zip(grads, tensors, strict=True):
        expected = x.grad.numpy()
        if name == "svd hermitian":  # one half is read
            g = (g + g.mT) / 2
        np.testing.assert_allclose(g, expected, rtol=1e-7, atol=1e-8)


SMOOTH = {
    "cholesky": (lambda x: L.cholesky(x @ x.mT + gt.eye(3, dtype=gt.float64)), (A,)),
    "solve": (L.solve, (A, normal(3, 2))),
    "slogdet": (lambda x: L.slogdet(x).logabsdet, (B,)),
    "svd": (lambda x: L.svd(x, full_matrices=False).S, (TALL,)),
    "pinv": (L.pinv, (TALL,)),
    "expm": (L.expm, (A * 0.3,)),
    "eigvalsh": (lambda x: L.eigvalsh(x + x.mT), (A,)),
    "layer_norm": (lambda x: torch.nn.functional.layer_norm(x, (3,)), (A,)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_in_both_modes(name):
    function, args = SMOOTH[name]
    check_grads(function, args, order=2, rtol=1e-4, atol=1e-5)


FACTORS = {
    "eig": (A, lambda x: torch.linalg.eig(x)[1]),
    "eigh": (A + 1j * normal(3, 3), lambda x: torch.linalg.eigh(x + x.mH)[1]),
    "svd": (A + 1j * normal(3, 3), lambda x: torch.linalg.svd(x)[0] * 2.0),
}


@pytest.mark.parametrize("name", FACTORS)
def test_second_derivatives_of_what_is_known_up_to_a_factor_are_those_of_torch(name):
    matrix, factor = FACTORS[name]
    weights = np.cos(np.arange(9.0)).reshape(3, 3)

    def total(x, weights):
        y = factor(x)
        return ((y.real**2 + y.imag**2) * weights).sum()

    def squares(x):
        return (abs(x) ** 2).sum()

    x = torch.tensor(matrix, requires_grad=True)
    (first,) = torch.autograd.grad(total(x, torch.tensor(weights)), x, create_graph=True)
    (want,) = torch.autograd.grad(squares(first), x)
    got = gt.grad(lambda x: squares(gt.grad(total)(x, gt.array(weights))))(gt.array(matrix))
    np.testing.assert_allclose(got, want.resolve_conj().numpy().conj(), rtol=1e-7, atol=1e-9)


def test_the_forward_derivative_of_the_determinant_of_a_singular_matrix():
    got = gt.jvp(L.det, (SINGULAR,), (np.array([[1.0, 0.0], [0.0, 0.0]]),))[1]
    assert_close(got, 4.0)


BATCHES = {
    "solve": (L.solve, (normal(4, 3, 3), normal(4, 3)), 0),
    "solve shared": (L.solve, (A, normal(4, 3, 2)), (None, 0)),
    "cholesky": (L.cholesky, (positive(4, 3, 3),), 0),
    "svdvals": (L.svdvals, (normal(4, 3, 2),), 0),
    "matrix_power": (lambda x: L.matrix_power(x, 0), (normal(4, 2, 2),), 0),
    "lstsq": (lambda a, b: L.lstsq(a, b)[0], (normal(4, 5, 2), normal(4, 5)), 0),
    "norm": (lambda x: L.norm(x, 2), (normal(4, 3, 2),), 0),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches(name):
    function, args, axes = BATCHES[name]
    check_vmap(function, args, axes)


@pytest.mark.parametrize("name", ["solve", "cholesky", "svd"])
def test_traced_functions(name):
    function, args = SMOOTH[name]
    got, want = gt.jit(function, backend="eager")(*args), function(*args)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    grad = gt.grad(lambda x: function(x, *args[1:]).sum())
    np.testing.assert_allclose(gt.jit(grad, backend="eager")(args[0]), grad(args[0]), rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([(), (2,), (1, 2)]), st.integers(0, 999))
def test_any_shape_of_stack(m, n, stack, seed):
    x = np.random.default_rng(seed).normal(size=(*stack, m, n))
    check(L.pinv(x), NL.pinv(x))
    check(L.matrix_rank(x), NL.matrix_rank(x))
    check(L.matrix_norm(x, ord="nuc"), NL.matrix_norm(x, ord="nuc"))
    check(L.slogdet(x @ np.swapaxes(x, -1, -2) + np.eye(m)), tuple(NL.slogdet(x @ np.swapaxes(x, -1, -2) + np.eye(m))))


# -- errors

HALF = np.ones((2, 2), dtype=np.float16)
ERRORS = [
    *[(lambda f=f: getattr(L, f)(TALL), gt.ShapeError, rf"\[{f}\] expected square matrices .* f64\[5,3\]")
      for f in ("cholesky", "eigh", "eigvalsh", "det", "slogdet", "inv", "expm")],
    *[(lambda f=f: getattr(L, f)(A[0]), gt.ShapeError, rf"\[{f}\] expected matrices in the last two axes")
      for f in ("qr", "svd", "svdvals", "lu", "lu_factor", "pinv", "matrix_norm", "matrix_rank", "cond")],
    *[(lambda f=f: getattr(L, f)(HALF), gt.DtypeError, rf"\[{f}\] expected matrices of float32 or float64, got f16")
      for f in ("inv", "svd", "det", "cholesky", "cond")],
    (lambda: L.qr(A, "full"), gt.ArgumentError, r"\[qr\] expected reduced, complete, r or raw"),
    (lambda: L.eigh(A, "l"), gt.ArgumentError, r"\[eigh\] expected L or U as UPLO, got 'l'"),
    (lambda: L.eigvalsh(A, "x"), gt.ArgumentError, r"\[eigvalsh\] expected L or U"),
    (lambda: L.svd(TALL, hermitian=True), gt.ShapeError, r"\[svd\] expected square"),
    (lambda: L.matrix_power(A, 1.5), gt.ArgumentError, r"\[matrix_power\] expected an integer as n"),
    (lambda: L.matrix_power(TALL, 2), gt.ShapeError, r"\[matrix_power\] expected square"),
    (lambda: L.matrix_rank(A, 0.1, rtol=0.1), gt.ArgumentError, r"tol or rtol, got both"),
    (lambda: L.pinv(A, 0.1, rtol=0.1), gt.ArgumentError, r"rcond or rtol, got both"),
    (lambda: L.cond(np.zeros((0, 0))), gt.ShapeError, r"\[cond\] expected matrices with elements"),
    (lambda: L.cond(TALL, 1), gt.ShapeError, r"\[cond\] expected square"),
    (lambda: L.cond(A, 3), gt.ArgumentError, r"\[matrix_norm\] expected fro, nuc"),
    (lambda: L.solve(A, normal(4)), gt.ShapeError, r"\[solve\] expected as many rows .* f64\[3,3\] and f64\[4\]"),
    (lambda: L.solve(A, 1.0), gt.ShapeError, r"\[solve\] expected as many rows"),
    (lambda: L.solve(PS, normal(3, 3, 2)), gt.ShapeError, r"\[solve\] expected leading sizes that broadcast"),
    (lambda: L.solve(TALL, normal(5)), gt.ShapeError, r"\[solve\] expected square"),
    (lambda: L.solve_triangular(A, normal(4)), gt.ShapeError, r"\[solve_triangular\] expected as many rows"),
    (lambda: L.solve_triangular(A, A, 3), gt.ArgumentError, r"\[solve_triangular\] expected 0, 1, 2, N"),
    (lambda: L.lstsq(TALL, normal(4)), gt.ShapeError, r"\[lstsq\] expected as many rows"),
    (lambda: L.lstsq(WIDE, normal(3)), gt.ShapeError, r"\[lstsq\] expected one matrix"),
    (lambda: L.multi_dot([A]), gt.ArgumentError, r"\[multi_dot\] expected two or more arrays, got 1"),
    (lambda: L.multi_dot([A, TALL]), gt.ArgumentError, r"\[multi_dot\] .* cannot be multiplied"),
    (lambda: L.tensorsolve(TALL, normal(5)), gt.ShapeError, r"\[tensorsolve\] expected a square map"),
    (lambda: L.tensorsolve(A, normal(3), axes=(2,)), gt.ShapeError, r"\[tensorsolve\]"),
    (lambda: L.tensorinv(TALL, 1), gt.ShapeError, r"\[tensorinv\] expected as many elements"),
    (lambda: L.tensorinv(A, 0), gt.ShapeError, r"\[tensorinv\] expected as many elements"),
    (lambda: L.diagonal(A[0]), gt.ShapeError, r"\[diagonal\] expected at least two dimensions"),
    (lambda: L.vector_norm(A, ord="fro"), gt.ArgumentError, r"\[vector_norm\] expected a number as ord"),
    (lambda: L.vector_norm(A, axis=2), gt.ShapeError, r"\[vector_norm\]"),
    (lambda: L.matrix_norm(A, ord=3), gt.ArgumentError, r"\[matrix_norm\] expected fro, nuc"),
    (lambda: L.norm(WIDE, 2), gt.ShapeError, r"\[norm\] expected one axis or two, got 3"),
    (lambda: L.norm(WIDE, "fro", 1), gt.ArgumentError, r"\[vector_norm\] expected a number"),
]  # fmt: skip


@pytest.mark.parametrize("k", range(len(ERRORS)))
def test_wrong_arguments(k):
    call, kind, text = ERRORS[k]
    with pytest.raises(kind, match=text):
        call()


H = np.array([[2, 1j, 0], [-1j, -3, 1], [0, 1, 1]])


def test_complex_matrices():
    u, s, vh = (np.asarray(x) for x in gt.linalg.svd(gt.array(H), hermitian=True))
    np.testing.assert_allclose((u * s) @ vh, H, atol=1e-12)
    b = np.array([[1j, 2], [1, 1 - 1j], [0, 3], [1, 1]])
    tall = np.concatenate([H, H[:1] * 1j])
    _, rest, *_ = gt.linalg.lstsq(gt.array(tall), gt.array(b))
    assert_close(rest, np.linalg.lstsq(tall, b)[1])
    for trans in (0, 1, 2, "C"):
        got = gt.linalg.solve_triangular(gt.array(H), gt.array(b[:3]), trans=trans)
        assert_close(got, scipy.linalg.solve_triangular(H, b[:3], trans=trans))


def test_the_order_of_a_norm_may_be_a_number_of_numpy():
    assert gt.linalg.norm(gt.array([3.0, -4.0]), np.int64(1)).item() == 7.0


def test_small_determinants_have_derivatives_everywhere():
    """As in JAX."""
    got = gt.grad(gt.linalg.det)(gt.array([[np.nan, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(got, [[4.0, -3.0], [-2.0, np.nan]])
    np.testing.assert_array_equal(
        gt.grad(gt.linalg.det)(gt.array([[1.0, 2.0], [2.0, 4.0]])), [[4.0, -2.0], [-2.0, 1.0]]
    )
    x = np.arange(9.0).reshape(3, 3)  # of rank 2
    cofactors = [[-3.0, 6.0, -3.0], [6.0, -12.0, 6.0], [-3.0, 6.0, -3.0]]
    np.testing.assert_allclose(gt.grad(gt.linalg.det)(x), cofactors, atol=1e-12)
    np.testing.assert_allclose(gt.vmap(gt.grad(gt.linalg.det))(x[None]), [cofactors], atol=1e-12)
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 4):
        x = rng.normal(size=(5, n, n))
        assert_close(gt.linalg.det(x), np.linalg.det(x))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.permutations("abcde").flatmap(lambda p: st.integers(0, 3).map(lambda n: "".join(p[:n]))), min_size=1,
             max_size=6),
    st.permutations("abcde"), st.integers(0, 5), st.sampled_from([np.float64, np.int64, np.int32]),
)  # fmt: skip
def test_einsums_of_any_operands_are_numpys(terms, order, kept, dtype):
    """More than two are multiplied two at a time; integers of any width are."""
    used = [c for c in order if any(c in term for term in terms)]
    equation = f"{','.join(terms)}->{''.join(used[:kept])}"
    sizes = {"a": 2, "b": 3, "c": 1, "d": 4, "e": 2}
    rng = np.random.default_rng(0)
    operands = [np.asarray(rng.normal(size=[sizes[c] for c in term]) * 3).astype(dtype) for term in terms]
    expected, got = np.einsum(equation, *operands), np.asarray(gt.einsum(equation, *operands))
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_einsums_of_three_operands_are_products_of_two():
    graph = gt.make_graph(lambda x, a, z: gt.einsum("bi,ijk,bj->bk", x, a, z))(
        gt.ones((8, 3)), gt.ones((3, 4, 5)), gt.ones((8, 4))
    )
    assert [len(node.ins) for node in graph.nodes if node.op.name == "einsum"] == [2, 2]


UNKNOWN = {
    "svd": lambda x: gt.linalg.svd(x), "svdvals": gt.linalg.svdvals, "eigh": gt.linalg.eigh,
    "eigvalsh": gt.linalg.eigvalsh, "eig": gt.linalg.eig, "eigvals": gt.linalg.eigvals, "pinv": gt.linalg.pinv,
    "cond": gt.linalg.cond, "nuclear": lambda x: gt.linalg.matrix_norm(x, ord="nuc"), "slogdet": gt.linalg.slogdet,
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_unknown_matrix_leaves_the_others_of_a_batch(name, value):
    x = np.random.default_rng(0).normal(size=(3, 3, 3))
    x = x @ x.transpose(0, 2, 1) + np.eye(3)
    expected = gt.tree.leaves(UNKNOWN[name](gt.array(x)))
    x[1, 2, 1] = value
    for came, right in zip(gt.tree.leaves(UNKNOWN[name](gt.array(x))), expected, strict=True):
        came, right = np.asarray(came), np.asarray(right)
        np.testing.assert_allclose(came[[0, 2]], right[[0, 2]], rtol=1e-9)
        assert np.isnan(came[1]).all() or (name in ("slogdet", "cond") and np.isinf(value))
