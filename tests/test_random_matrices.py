"""Correlated normal vectors, orthogonal matrices, and the initializers made of them."""

from __future__ import annotations

import numpy as np
import pytest

import gtrace as gt
from gtrace.testing import check_grads, check_vmap

R, INIT = gt.random, gt.nn.initializers
KEY = R.key(3)
COV = np.array([[2.0, -0.6, 0.3], [-0.6, 1.0, 0.2], [0.3, 0.2, 0.7]])
MEAN = np.array([1.0, -2.0, 3.0])
FLAT = np.outer([1.0, 2.0, -1.0], [1.0, 2.0, -1.0])  # of rank 1
METHODS = ("cholesky", "eigh", "svd")


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


@pytest.mark.parametrize("method", METHODS)
def test_means_and_covariances(method):
    x = R.multivariate_normal(KEY, MEAN, COV, (40000,), gt.float64, method).numpy()
    assert x.shape == (40000, 3)
    np.testing.assert_allclose(x.mean(0), MEAN, atol=0.03)
    np.testing.assert_allclose(np.cov(x.T), COV, atol=0.05)
    # the same numbers as the factor of NumPy gives
    if method == "cholesky":
        noise = R.normal(KEY, (40000, 3), gt.float64).numpy()
        np.testing.assert_allclose(x, MEAN + noise @ np.linalg.cholesky(COV).T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS[1:])
def test_covariances_without_an_inverse(method):
    x = R.multivariate_normal(KEY, np.zeros(3), FLAT, (50,), gt.float64, method).numpy()
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x, x[:, :1] * [1.0, 2.0, -1.0], atol=1e-6)


def test_no_covariance_gives_nan():
    for method in METHODS[:2]:
        assert np.isnan(R.multivariate_normal(KEY, MEAN, -COV, method=method)).any()


def test_shapes_and_dtypes():
    draw = R.multivariate_normal
    assert draw(KEY, MEAN, COV).dtype == gt.float32
    assert draw(KEY, MEAN, COV).shape == (3,)
    assert draw(KEY, np.zeros((4, 1, 3)), np.stack([COV, COV])).shape == (4, 2, 3)
    assert draw(KEY, MEAN, np.stack([COV, COV]), (5, 2)).shape == (5, 2, 3)
    assert draw(KEY, MEAN, COV, (0,)).shape == (0, 3)
    assert draw(KEY, MEAN, COV, (2,), gt.bfloat16).dtype == gt.bfloat16
    assert draw(KEY, np.zeros(0), np.zeros((0, 0)), (2,)).shape == (2, 0)
    np.testing.assert_array_equal(
        gt.jit(lambda k: draw(k, MEAN, COV, (2,)), backend="eager")(KEY), draw(KEY, MEAN, COV, (2,))
    )
    check_vmap(lambda key: draw(key, MEAN, COV, (2,), gt.float64), (R.split(KEY, 3),))


@pytest.mark.parametrize("method", METHODS)
def test_derivatives_by_the_parameters(method):
    def draw(mean, cov):
        return R.multivariate_normal(KEY, mean, cov + cov.mT, (2,), gt.float64, method)

    check_grads(draw, (MEAN, COV), order=1)


@pytest.mark.parametrize("method", ["cholesky"])
def test_second_derivatives(method):
    check_grads(lambda cov: R.multivariate_normal(KEY, MEAN, cov, (2,), gt.float64, method), (COV,), order=2)


@pytest.mark.parametrize(("n", "m"), [(1, None), (4, None), (3, 5), (5, 3), (0, 2)])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_orthogonal_matrices(n, m, shape):
    q = R.orthogonal(KEY, n, shape, gt.float64, m)
    columns = n if m is None else m
    assert q.shape == (*shape, n, columns) and q.dtype == gt.float64
    product = q.mT @ q if n >= columns else q @ q.mT
    np.testing.assert_allclose(product - gt.eye(min(n, columns), dtype=gt.float64), 0, atol=1e-12)


def test_orthogonal_matrices_are_evenly_distributed():
    q = R.orthogonal(KEY, 2, (20000,), gt.float64).numpy()
    angles = np.arctan2(q[:, 1, 0], q[:, 0, 0])
    counts = np.histogram(angles, 8, (-np.pi, np.pi))[0]
    assert abs(counts - 2500).max() < 250
    assert abs((np.linalg.det(q) > 0).mean() - 0.5) < 0.02
    assert R.orthogonal(KEY, 2, dtype=gt.float16).dtype == gt.float16


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 5), (3, 2, 2, 4)])
@pytest.mark.parametrize("axis", [-1, 0])
def test_orthogonal_initializers(shape, axis):
    w = np.moveaxis(INIT.orthogonal(2.0, axis)(KEY, shape, gt.float64).numpy(), axis, -1)
    assert np.moveaxis(w, -1, axis).shape == shape
    rows = w.reshape(-1, w.shape[-1])
    product = rows.T @ rows if rows.shape[0] >= rows.shape[1] else rows @ rows.T
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-11)
    assert INIT.orthogonal()(KEY, shape).dtype == gt.float32


@pytest.mark.parametrize("window", [(3,), (3, 4), (1, 3, 5)])
def test_convolutions_that_keep_norms(window):
    w = INIT.delta_orthogonal(dtype=gt.float64)(KEY, (*window, 2, 4)).numpy()
    middle = w[tuple((n - 1) // 2 for n in window)]
    np.testing.assert_allclose(middle @ middle.T, np.eye(2), atol=1e-12)
    assert np.count_nonzero(w) == np.count_nonzero(middle)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: R.multivariate_normal(KEY, MEAN, COV, method="lu"), gt.ArgumentError, "cholesky, eigh or svd"),
        (lambda: R.multivariate_normal(KEY, MEAN, COV[:2]), gt.ShapeError, r"expected a mean .* f32\[2,3\]"),
        (lambda: R.multivariate_normal(KEY, 1.0, COV), gt.ShapeError, r"expected a mean"),
        (lambda: R.multivariate_normal(KEY, MEAN, np.stack([COV, COV]), (3,)), gt.ShapeError, "broadcast to the shape"),
        (lambda: R.multivariate_normal(KEY, MEAN, COV, dtype=gt.int64), gt.DtypeError, "a floating dtype"),
        (lambda: R.orthogonal(KEY, -1), gt.ShapeError, "sizes >= 0"),
        (lambda: R.orthogonal(KEY, 2.5), gt.ArgumentError, "an integer as n"),
        (lambda: INIT.orthogonal()(KEY, (3,)), gt.ShapeError, "at least two axes"),
        (lambda: INIT.delta_orthogonal()(KEY, (3, 4)), gt.ShapeError, r"a shape \(\*window, in, out\)"),
        (lambda: INIT.delta_orthogonal()(KEY, (3, 4, 2)), gt.ShapeError, r"a shape \(\*window, in, out\)"),
    ],
)
def test_wrong_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()
