"""gtrace.numpy against NumPy: values, shapes and dtypes of every function, and the names that are missing."""

from __future__ import annotations

import types
import warnings

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
import gtrace.numpy as gnp
from gtrace import testing
from gtrace.numpy import __array_namespace_info__
from gtrace.testing import assert_close


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


V = rng(0).uniform(-2, 2, 7)
W = rng(1).uniform(0.5, 3, 7)
M = rng(2).uniform(-2, 2, (4, 3))
T = rng(3).uniform(-2, 2, (2, 3, 4))
S = np.sort(rng(4).uniform(-2, 2, 6))
I = np.array([3, 0, 2, 3, 1, 0, 3])  # noqa: E741
J = np.array([[4, -3, 6], [0, 9, -12]])
B = np.array([True, False, True, True, False, False, True])
N = np.array([[1.0, np.nan, 3.0, -2.0], [np.nan, 5.0, 0.5, np.nan], [7.0, 2.0, np.nan, 1.0]])
E = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.5, -2.5])
Z = np.zeros((0, 3))


def call(*args, **kwargs):
    return args, kwargs


# name: calls; the arguments go to both as they are, with arrays made gt.Arrays
CALLS = {
    "abs": [call(V), call(J)],
    "amax": [call(M, 0), call(M, initial=5.0)],
    "amin": [call(M, axis=(0, 1), keepdims=True)],
    "append": [call(V, W), call(M, M, axis=1), call(M, 1.0)],
    "apply_over_axes": [call(lambda x, k: x.sum(k), T, (0, 2)), call(lambda x, k: x.sum(k, keepdims=True), T, 1)],
    "argmax": [call(M), call(M, axis=1, keepdims=True), call(M, keepdims=True)],
    "argpartition": [call(np.array([1.0, 2.0, 3.0]), 1)],
    "argsort": [call(V, kind="stable"), call(M, axis=None), call(M, 0)],
    "argwhere": [call(J), call(np.array(3.0)), call(np.array(0.0)), call(I), call(Z)],
    "around": [call(V, 2), call(J, -1)],
    "array_equal": [call(V, V), call(V, W), call(M, V), call(E, E), call(E, E, equal_nan=True)],
    "array_equiv": [call(V[:1], np.broadcast_to(V[:1], (3, 1))), call(M, V)],
    "array_split": [call(V, 3), call(M, [1, 3]), call(V, 9), call(T, 2, axis=2)],
    "astype": [call(V, np.int32), call(J, np.float64)],
    "atleast_1d": [call(np.array(2.0)), call(V), call(V, np.array(1))],
    "atleast_2d": [call(np.array(2.0)), call(V), call(T)],
    "atleast_3d": [call(np.array(2.0)), call(V), call(M), call(T)],
    "average": [call(M), call(M, 0, W[:4]), call(M, weights=M**2), call(T, (0, 2), T**2, returned=True),
                call(T, (2, 0), (T**2)[:, 0].T), call(M, 1, keepdims=True), call(M, 0, W[:4], keepdims=True),
                call(J, returned=True)],
    "bincount": [call(I), call(I, W), call(I, minlength=9), call(I[:0]), call(I[:0], minlength=3)],
    "bitwise_count": [call(np.array([0, 1, -1, 255, 2**62, -(2**63), 2**63 - 1])), call(J.astype(np.int8))],
    "bitwise_not": [call(I), call(B)],
    "block": [call([[M, M], [np.ones((2, 6))]]), call([V, W]), call(V), call([[V[:2]], [W[:2]]])],
    "broadcast_shapes": [call((2, 1), (3,)), call()],
    "cbrt": [call(E), call(V), call(np.array([27.0, -8.0, 1e-300, 1e300, 0.001]))],
    "choose": [call(I, [V, W, -V, 10.0]), call(I + 9, [V, W], mode="wrap"), call(I - 1, [V, W], mode="clip")],
    "clip": [call(V, -1, 1), call(V, min=0.0), call(V, max=W), call(J, 0, 5)],
    "column_stack": [call([V, W]), call([M, V[:4]])],
    "compress": [call(B, V), call(B[:3], M, axis=0), call([1, 0, 1], M, 1), call(B, M)],
    "concatenate": [call([M, M], 1), call([M, V], axis=None), call([I, I], dtype=np.float64)],
    "convolve": [call(V, W[:3], m) for m in ("full", "same", "valid")]
    + [call(W[:4], V, "same"), call(I, I[:2]), call(V, W, "same"), call(W[:2], V, "valid"), call(V[:4], V[:4], "same")],
    "copy": [call(M)],
    "copysign": [call(V, W), call(V, -1.0), call(E, -1.0), call(I, -1)],
    "corrcoef": [call(M), call(M, rowvar=False), call(V, W), call(V)],
    "correlate": [call(V, W[:3], m) for m in ("full", "same", "valid")]
    + [call(W[:4], V, m) for m in ("full", "same", "valid")] + [call(V, W, "same"), call(I, I[:2])],
    "count_nonzero": [call(J), call(J, 0), call(J, axis=1, keepdims=True)],
    "cov": [call(M), call(M, rowvar=False), call(V, W), call(V), call(M, bias=True), call(M, ddof=2),
            call(M, fweights=np.array([1, 2, 3])), call(M, aweights=W[:3]),
            call(M, fweights=np.array([1, 2, 3]), aweights=W[:3], ddof=0)],
    "cross": [call(M, M[::-1]), call(M[0], M), call(T[0], T[1], axis=0), call(T, T[::-1], 1, 1, 0)],
    "cumprod": [call(V), call(M, 1), call(I), call(M, None), call(B)],
    "cumsum": [call(M, 0), call(M), call(I, dtype=np.float64)],
    "cumulative_prod": [call(V), call(M, axis=1, include_initial=True)],
    "cumulative_sum": [call(V), call(M, axis=0, include_initial=True), call(I, dtype=np.float64)],
    "deg2rad": [call(V)],
    "delete": [call(V, 2), call(V, [0, -1]), call(M, slice(None, None, 2), 0), call(V, B), call(M, 1), call(M, [], 1)],
    "diag": [call(V, k) for k in (0, 2, -1)] + [call(M, k) for k in (0, 1, -2, 7)] + [call(V[:0])],
    "diag_indices": [call(3), call(2, 3)],
    "diag_indices_from": [call(M[:3])],
    "diagflat": [call(M), call(V, -1)],
    "diagonal": [call(M), call(M, 1), call(M, -2), call(T, 0, 1, 2), call(T, -1, 2, 0), call(M, 9)],
    "diff": [call(V), call(M, 2, axis=0), call(B), call(V, prepend=0.0), call(M, append=M[:, :2]), call(V, 9),
             call(V, prepend=V[:2], append=1.0), call(V, 0)],
    "digitize": [call(V, S), call(V, S[::-1]), call(S, S, right=True), call(S, S[::-1], True), call(M, S)],
    "divmod": [call(J, 5), call(V, W)],
    "dsplit": [call(T, 2), call(T, [1, 3])],
    "dstack": [call([M, M]), call([V, W])],
    "ediff1d": [call(M), call(V, 1.0, [2.0, 3.0]), call(I, to_end=7)],
    "exp2": [call(V), call(I)],
    "extract": [call(B, V), call(M > 0, M)],
    "fabs": [call(V)],
    "fix": [call(V), call(E)],
    "flatnonzero": [call(J), call(B)],
    "fliplr": [call(M)],
    "flipud": [call(M), call(V)],
    "float_power": [call(W, V)],
    "fmax": [call(E, 0.5), call(V, W), call(I, 2)],
    "fmin": [call(E, 0.5), call(N, -N), call(I, 2)],
    "fmod": [call(J, 5), call(V, W)],
    "frexp": [call(V * 100), call(E), call(np.array([1e-310, 5e-324, 1.7e308]))],
    "fromfunction": [call(lambda i, j: i * 10 + j, (2, 3), dtype=np.float64)],
    "full_like": [call(V, 2.5), call(V, 1, dtype=np.int64), call(V, 2.0, shape=(2, 2))],
    "gcd": [call(J, 6), call(J, J[::-1])],
    "geomspace": [call(1, 1000, 4), call(-1, -16, 5), call(2, 32, 4, endpoint=False), call(W[:3], 9.0, 4, axis=1)],
    "gradient": [call(V), call(M), call(M, axis=0), call(V, 0.5), call(S, np.sort(W)[:6]), call(V, edge_order=2),
                 call(S, np.sort(W)[:6], edge_order=2), call(T, 0.5, axis=(0, 2)), call(T, 2.0, W[:3].cumsum(), 1.0),
                 call(M, axis=(1,))],
    "heaviside": [call(E, 0.5), call(V, W)],
    "histogram": [call(V), call(V, 4), call(V, S), call(V, 5, (-1, 1)), call(V, 4, density=True),
                  call(V, 4, weights=W), call(M, [-1.0, 0.0, 2.0]), call(np.ones(3), 2), call(E, 3, (-2.0, 2.0))],
    "histogram2d": [call(V, W), call(V, W, [3, 2]), call(V, W, S), call(V, W, 4, density=True),
                    call(V, W, 3, weights=W),
                    call(V, W, [S, 3], [None, (0, 4)])],
    "histogram_bin_edges": [call(V, 5), call(V, 3, (0, 1)), call(V[:0], 2)],
    "histogramdd": [call(M, 3), call(M, [2, 3, 4]), call(M, 2, density=True), call([V, W], [S, 2])],
    "hsplit": [call(M, 3), call(V, [2]), call(T, 3)],
    "hstack": [call([V, W]), call([M, M]), call([1.0, V]), call([M[:, :1], M])],
    "hypot": [call(V, W), call(E, 1.0)],
    "identity": [call(3, np.float64)],
    "indices": [call((2, 3)), call((2, 3), sparse=True), call((4,))],
    "inner": [call(V, W), call(M, M), call(T, V[:4]), call(V, 2.0)],
    "insert": [call(V, 2, 9.0), call(V, [1, 3], [8.0, 9.0]), call(M, 1, 0.0, axis=1), call(M, 1, W[:3], axis=0),
               call(M, [0, 2], 5.0, axis=1), call(V, -1, 1.0), call(M, 1, W[:4], axis=1), call(M, 2, M[:2], axis=0),
               call(M, [1], M[:2], axis=0), call(V, slice(0, 4, 2), 1.0), call(V, 7, 1.0), call(M, 3, 7.0)],
    "interp": [call(V, S, W[:6]), call(V, S, W[:6], 9.0, -9.0), call(V, S, W[:6], period=1.5), call(S, S, W[:6]),
               call(np.array(0.3), S, W[:6]), call(V, S[:1], W[:1]),
               call(V, np.array([0.0, 1.0, 1.0, 2.0]), np.array([0.0, 1.0, 5.0, 6.0]))],
    "intersect1d": [call(I, [3, 1, 9]), call(V, V[::2]), call(I, [3, 1, 9], return_indices=True), call(I, [9]),
                    call(np.array([0.0, 1.0]), np.array([1.0, np.nan]))],
    "invert": [call(I)],
    "isclose": [call(V, V + 1e-9), call(E, E), call(E, E, equal_nan=True), call(V, V + 0.1, 0.0, 0.2), call(I, 3)],
    "isin": [call(I, [0, 9]), call(M, M[1]), call(E, E), call(E, [np.nan]), call(I, []), call(I, [3], invert=True),
             call(B, [True]), call(np.array([np.inf, 1.0]), [np.nan, 1.0, 2.0, 3.0, np.nan, np.nan])],
    "isneginf": [call(E)],
    "isposinf": [call(E)],
    "isreal": [call(M)],
    "isscalar": [call(2.5)],
    "ix_": [call([0, 2], [1]), call(B, I)],
    "kron": [call(V, W), call(M, M[:2]), call(M, V), call(T, M), call(V, 2.0)],
    "lcm": [call(J, 6), call(J, J[::-1])],
    "ldexp": [call(V, I), call(V, 3), call(np.array([1e300, 1e-300, 1.0]), np.array([-2000, 1900, 1023]))],
    "left_shift": [call(I, 2)],
    "lexsort": [call((V, I)), call((I, B.astype(int))), call([M[:, 0], np.round(M[:, 1])]), call((M, np.round(M)), 0)],
    "linspace": [call(0.0, 1.0, 5), call(V[:3], 2.0, 4), call(V[:3], W[:3], 4, axis=1), call(0, 3, 4, retstep=True),
                 call(V[:3], W[:3], 3, endpoint=False, retstep=True), call(V[:3], 1.0, 1), call(V[:3], 1.0, 0)],
    "logaddexp": [call(V, W), call(E, E), call(np.array([1000.0]), 1000.0)],
    "logaddexp2": [call(V, W)],
    "logspace": [call(0.0, 2.0, 5), call(0, 4, 5, base=2), call(0.0, 2.0, 3, endpoint=False)],
    "matvec": [call(M, V[:3]), call(T, V[:4])],
    "max": [call(M, where=M < 1, initial=-9.0), call(M, 1, initial=0.0), call(Z, 0, initial=1.0)],
    "mean": [call(M, where=M > 0), call(I), call(M, 0, dtype=np.float32), call(I, where=B), call(M, 0, keepdims=True)],
    "median": [call(V), call(M, 0), call(M, (0, 1)), call(T, (0, 2), keepdims=True), call(I), call(E), call(N, 1)],
    "meshgrid": [call(V, W), call(V, W[:2], S, indexing="ij"), call(V, W, sparse=True), call(V), call(2.0, V), call()],
    "min": [call(M, where=M < 1, initial=9.0, axis=0)],
    "mod": [call(J, 5)],
    "modf": [call(V), call(E)],
    "nan_to_num": [call(E), call(E, nan=1.0, posinf=2.0, neginf=3.0), call(I), call(E.astype(np.float32))],
    "nanargmax": [call(N, 1), call(N, keepdims=True)],
    "nanargmin": [call(N), call(N, 0)],
    "nancumprod": [call(N, 1)],
    "nancumsum": [call(N), call(N, 0)],
    "nanmax": [call(N, 0), call(N), call(I), call(N, initial=2.5, axis=1)],
    "nanmean": [call(N, 1), call(N), call(N, 0, keepdims=True), call(I), call(N, where=N > 0)],
    "nanmedian": [call(N, 1), call(N), call(N, 0, keepdims=True)],
    "nanmin": [call(N, (0, 1)), call(N, 1, keepdims=True)],
    "nanpercentile": [call(N, 30.0, axis=0), call(N, np.array([0, 75.0]), axis=1)],
    "nanprod": [call(N, 1), call(N, initial=2.0)],
    "nanquantile": [call(N, 0.3, axis=1), call(N, np.array([[0.1], [0.9]]), axis=0), call(N, 0.5, keepdims=True)]
    + [call(N, 0.4, axis=1, method=m) for m in ("lower", "higher", "midpoint", "nearest", "hazen", "weibull")],
    "nanstd": [call(N, 1), call(N, 0, ddof=1)],
    "nansum": [call(N, 1), call(N), call(I), call(N, where=N > 1)],
    "nanvar": [call(N, 1), call(N), call(N, 1, ddof=1), call(N, 0, where=N > 0.7)],
    "ndim": [call(M), call(3), call([[1], [2]])],
    "nextafter": [call(V, W)],
    "nonzero": [call(J), call(T > 0), call(B), call(Z), call(np.zeros((2, 0)))],
    "partition": [call(np.array([2.0, 1.0, 3.0]), 1)],
    "percentile": [call(V, 30), call(M, np.array([0, 25, 100]), axis=0), call(I, 50.0)],
    "piecewise": [call(V, [V < 0, V > 1], [lambda x: -x, lambda x: x * 10]), call(V, [V < 0], [lambda x: -x, 5.0]),
                  call(V, V < 0, [2.0, lambda x: x]), call(I, [I > 1], [lambda x: x + 0.5, 0])],
    "poly": [call(V[:3])],
    "polyadd": [call(V, W[:3]), call(I, [1, 2])],
    "polyder": [call(V), call(V, 3), call(I), call(V[:1]), call(V, 9)],
    "polydiv": [call(V, W[:3]), call(W[:3], V), call(V, W[:1])],
    "polyint": [call(V), call(V, 2), call(V, 2, k=[3.0, 1.0]), call(V, 2, k=4.0)],
    "polymul": [call(V, W[:3]), call(I, [1, 2])],
    "polysub": [call(V, W[:3])],
    "polyfit": [call(V, W[: len(V)], 1), call(V, W[: len(V)], 2)],
    "polyval": [call(V, W), call(V, 2.0), call(I, M), call(V[:1], W), call(V[:0], W)],
    "positive": [call(V)],
    "prod": [call(M, where=M > 0), call(M, 0, initial=2.0), call(M, (0, 1), where=M > 0, initial=3.0)],
    "ptp": [call(M), call(M, 0), call(M, 1, keepdims=True)],
    "quantile": [call(V, 0.3), call(M, np.array([0.0, 0.5, 1.0]), axis=1),
                 call(T, np.array([[0.2], [0.7]]), axis=(0, 2)),
                 call(M, 0.25, axis=0, keepdims=True), call(I, 0.5), call(N, 0.5, axis=1)]
    + [call(M, 0.37, axis=0, method=m) for m in ("lower", "higher", "midpoint", "nearest", "hazen", "weibull",
       "median_unbiased", "normal_unbiased", "interpolated_inverted_cdf")],
    "rad2deg": [call(V)],
    "repeat": [call(V, 2), call(M, [1, 0, 2], 1), call(M, I[:4], axis=0)],
    "resize": [call(V, (2, 5)), call(M, 5), call(V, (0,)), call(V[:0], (2,))],
    "right_shift": [call(I, 1)],
    "rint": [call(V * 3), call(E)],
    "rollaxis": [call(T, k, s) for k in (0, 1, 2, -1) for s in (0, 1, 2, 3)],
    "ravel_multi_index": [call((I % 2, I % 3), (2, 3)), call((I,), (4,))],
    "unravel_index": [call(I, (2, 2)), call(np.array(5), (2, 3)), call(I, 4)],
    "rot90": [call(M, k) for k in (-1, 0, 1, 2, 3, 4)] + [call(T, 1, (1, 2)), call(T, 3, (2, 0))],
    "select": [call([V < 0, V > 1], [V, W * 10], 3.0), call([V < 0, V < 1], [V, W]), call([B], [I])],
    "setdiff1d": [call(I, [3, 1]), call(V, V[:3]), call(np.array([3, 1, 2]), [1], assume_unique=True), call(I, [])],
    "setxor1d": [call(I, [3, 1, 9]), call(V, V[::2])],
    "shape": [call(M), call([[1, 2]]), call(3)],
    "signbit": [call(E)],
    "sinc": [call(V), call(np.array([0.0, 1e-9, 0.02, 0.0318, 0.0319, 1.0]))],
    "size": [call(M), call(M, 1), call([[1, 2]])],
    "sort": [call(M, axis=None), call(M, 0, kind="stable"), call(E)],
    "all": [call(M > 0, 1), call(B), call(M > 0, keepdims=True)],
    "any": [call(M > 1, 0), call(B), call(M > 1, 1, keepdims=True)],
    "argmin": [call(M), call(M, 1), call(M, 0, keepdims=True)],
    "std": [call(M, ddof=1, axis=0), call(M, where=M > 0), call(I)],
    "sum": [call(M, where=M > 0), call(M, 0, initial=2.0), call(I, where=B), call(I, dtype=np.float64),
            call(M, (0, 1)), call(M, 1, where=M[0] > 0), call(Z, 0), call(B)],
    "take": [call(M, I, mode="clip"), call(M, I + 9, 1, mode="wrap"), call(M, I - 9, 0, mode="wrap"),
             call(M, I % 3, 1)],
    "trace": [call(M), call(M, 1), call(T, 0, 1, 2), call(I.reshape(1, 7), -3)],
    "trapezoid": [call(V), call(M), call(M, axis=0), call(V, W), call(V, dx=0.5), call(M, W[:3]),
                  call(M, M**2, axis=0)],
    "tri": [call(3, dtype=np.float64), call(3, 5, 1, dtype=np.int64), call(3, 2, -1, dtype=np.float64)],
    "tril_indices": [call(3), call(3, 1, 4), call(4, -1)],
    "tril_indices_from": [call(M), call(M, 1)],
    "trim_zeros": [call(np.array([0, 0, 1, 0, 2, 0])), call(np.array([0.0, 1.0, 0.0]), "f"),
                   call(np.array([0, 1, 0]), "b"), call(np.zeros(3))],
    "triu_indices": [call(3), call(3, -1, 4)],
    "triu_indices_from": [call(M)],
    "true_divide": [call(V, W)],
    "union1d": [call(I, [9, 3]), call(V, W), call(E, E)],
    "unique": [call(I), call(J), call(E), call(E, equal_nan=False), call(M[[0, 1, 0]], axis=0),
               call(J[:, [1, 0, 1]], axis=1),
               call(I, return_index=True, return_inverse=True, return_counts=True), call(J, return_inverse=True),
               call(B, return_counts=True), call(M[[2, 1, 2]], True, True, True, axis=0), call(V[:0]),
               call(V[:0], return_index=True, return_inverse=True, return_counts=True)],
    "unique_all": [call(J), call(E)],
    "unique_counts": [call(I)],
    "unique_inverse": [call(J)],
    "unique_values": [call(E)],
    "unwrap": [call(V * 3), call(np.cumsum(W) % (2 * np.pi)), call(M * 4, axis=0), call(V * 3, discont=4.0),
               call(np.array([0, 1, 2, -1, 0]), period=4), call(V, period=0.8)],
    "vander": [call(V), call(V, 3), call(V, 4, increasing=True), call(I), call(V, 0)],
    "var": [call(M, ddof=1), call(M, 0, where=M > 0, keepdims=True), call(M, 1, dtype=np.float32),
            call(M, where=M > 0, ddof=1)],
    "vdot": [call(V, W), call(M, M)],
    "vecmat": [call(V[:4], M), call(V[:3], T)],
    "vsplit": [call(M, 2), call(M, [1, 3])],
    "vstack": [call([V, W]), call([M, V[:3]])],
}  # fmt: skip
WINDOWS = ("bartlett", "blackman", "hamming", "hanning")
CALLS |= {name: [call(n) for n in (0, 1, 2, 5, 8)] for name in WINDOWS}
CALLS["kaiser"] = [call(n, beta) for n in (0, 1, 2, 5, 8) for beta in (0.0, 8.6, -14.0)]
CALLS["i0"] = [call(V), call(M)]
# dtypes follow gtrace's rules here: float32 for Python numbers and for means of integers, int64 for places
OWN_DTYPE = {*WINDOWS, "array_split", "average", "bitwise_count", "copysign", "cov", "deg2rad", "exp2", "fromfunction",
             "geomspace", "histogram", "histogram2d", "histogramdd", "histogram_bin_edges", "indices", "isin",
             "linspace", "logspace", "mean", "median", "nanmean", "nanmedian", "percentile", "quantile", "std",
             "select", "ldexp", "poly", "hstack", "polyint", "meshgrid", "vander", "intersect1d",
             "setdiff1d", "kaiser"}  # fmt: skip


def as_gt(value):
    if isinstance(value, np.ndarray):
        return gt.array(value)
    if isinstance(value, list):
        return [as_gt(v) for v in value]
    if isinstance(value, tuple):
        return tuple(as_gt(v) for v in value)
    return value


def flat(value):
    """The arrays of a result, those of tuples and lists in order."""
    return [x for v in value for x in flat(v)] if isinstance(value, (tuple, list)) else [value]


def check_equal(got, expected, exact_dtype: bool, where: str, rtol: float = 1e-9):
    got, expected = flat(got), flat(expected)
    assert len(got) == len(expected), where
    for g, e in zip(got, expected, strict=True):
        g, e = np.asarray(g), np.asarray(e)
        assert g.shape == e.shape, (where, g.shape, e.shape)
        if g.dtype == np.float32:
            rtol = max(rtol, 3e-6)
        if exact_dtype:
            assert g.dtype == e.dtype, (where, g.dtype, e.dtype)
        np.testing.assert_allclose(g, e, rtol=rtol, atol=1e-10 if rtol < 1e-8 else 1e-5, err_msg=where)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_values_shapes_and_dtypes_are_those_of_numpy(name):
    for k, (args, kwargs) in enumerate(CALLS[name]):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            expected = getattr(np, name)(*args, **kwargs)
        given = {key: as_gt(v) for key, v in kwargs.items()}
        check_equal(getattr(gnp, name)(*as_gt(args), **given), expected, name not in OWN_DTYPE, f"{name} {k}")


# -- names


MISSING = {
    "other names of complex dtypes, and functions of them": "clongdouble complexfloating csingle cdouble real_if_close"
    " mintypecode common_type",
    "Arrays never change: assign to a name, or use x.at[...]": "copyto place putmask",
    "linear algebra, Fourier transforms and special functions have pages of their own": "poly1d fft linalg",
    "they make new ufuncs or look into memory, which Arrays do not show": "frompyfunc ufunc may_share_memory"
    " shares_memory byte_bounds require asfortranarray ascontiguousarray isfortran nditer ndenumerate ndindex"
    " nested_iters ndarray flatiter broadcast from_dlpack lib asanyarray asarray_chkfinite",
    "strings, dates, records, matrices and masked arrays are not supported": "asmatrix bmat mat matrix busday_count"
    " busday_offset busdaycalendar is_busday datetime64 datetime_as_string datetime_data timedelta64 isnat recarray"
    " record memmap char rec strings ma chararray bytes_ str_ void object_ character flexible format_parser",
    "reading, writing and printing: np.asarray(x) or x.numpy() first": "array2string array_repr array_str"
    " base_repr binary_repr format_float_positional format_float_scientific fromfile fromregex fromstring fromiter"
    " genfromtxt get_printoptions loadtxt load printoptions save savetxt savez savez_compressed set_printoptions"
    " frombuffer",
    "settings of NumPy itself": "errstate geterr geterrcall seterr seterrcall getbufsize setbufsize get_include info"
    " show_config show_runtime test typename iterable exceptions core f2py testing random polynomial typing dtypes"
    " ctypeslib emath rec ScalarType sctypeDict typecodes matlib version",
    "asked for by too few programs": "min_scalar_type row_stack einsum_path",
    "dtypes that torch lacks, or NumPy's other names": "uint16 uint32 uint64 uint uintc uintp ubyte ushort ulong"
    " ulonglong byte short intc intp long longlong longdouble float128 complex256 clongdouble dtype bool_ astype",
}


def test_the_names_of_numpy_that_are_missing_are_on_the_list():
    """A new one belongs into MISSING, with the reason, and into docs/numpy.md."""
    listed = {name for names in MISSING.values() for name in names.split()}
    missing = {
        name for name, value in vars(np).items()
        if not name.startswith("_") and callable(value) and not isinstance(value, types.ModuleType)
        and not hasattr(gnp, name) and name not in np.__expired_attributes__
    }  # fmt: skip
    assert missing <= listed, sorted(missing - listed)


def test_every_function_here_is_called_by_the_table_or_by_a_test_of_its_own():
    own = {
        "allclose", "apply_along_axis", "vectorize", "put", "put_along_axis", "fill_diagonal", "issubdtype",
        "promote_types", "mask_indices", "packbits", "roots", "sort_complex", "spacing", "unpackbits",
    }  # fmt: skip
    for name, function in vars(gnp).items():
        if isinstance(function, types.FunctionType) and function.__module__.startswith("gtrace.numpy."):
            assert {name, function.__name__} & (own | set(CALLS)) or name.startswith("_"), name


STANDARD = """
abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2 atanh bitwise_and
bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor bool broadcast_arrays broadcast_to
can_cast ceil clip concat copysign cos cosh count_nonzero cumulative_prod cumulative_sum diff divide e empty
empty_like equal exp expand_dims expm1 eye finfo flip float32 float64 floor floor_divide from_dlpack full full_like
greater greater_equal hypot iinfo inf int16 int32 int64 int8 isdtype isfinite isinf isnan less less_equal linspace log
log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum mean
meshgrid min minimum moveaxis multiply nan negative newaxis nextafter nonzero not_equal ones ones_like permute_dims pi
positive pow prod reciprocal remainder repeat reshape result_type roll round searchsorted sign signbit sin sinh sort
sqrt square squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu trunc uint8
unique_all unique_counts unique_inverse unique_values unstack var vecdot where zeros zeros_like
__array_namespace_info__ __array_api_version__
""".split()


def test_the_names_of_the_array_api_are_there():
    assert not [name for name in STANDARD if not hasattr(gnp, name)]
    assert gt.zeros(2).__array_namespace__(api_version=gnp.__array_api_version__) is gnp


def test_namespace_info():
    info = __array_namespace_info__()
    assert info.default_dtypes()["real floating"] is gt.zeros(1).dtype
    assert info.default_device() == gt.zeros(1).device and info.default_device() in info.devices()
    assert "bfloat16" not in info.dtypes() and len(info.dtypes()) == 13  # those of the standard
    assert list(info.dtypes(kind="unsigned integer")) == ["uint8", "uint16", "uint32", "uint64"]
    assert list(info.dtypes(kind="complex floating")) == ["complex64", "complex128"]
    assert set(info.dtypes(kind=("bool", "signed integer"))) == {"bool", "int8", "int16", "int32", "int64"}
    with pytest.raises(gt.ArgumentError, match="kinds among"):
        info.dtypes(kind="float")


# -- dtypes


@pytest.mark.parametrize("a", ["bool", "uint8", "int8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("b", ["bool", "uint8", "int8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("casting", ["no", "safe", "same_kind", "unsafe"])
def test_can_cast_is_numpys(a, b, casting):
    assert gnp.can_cast(a, b, casting) == np.can_cast(a, b, casting)


def test_questions_about_dtypes():
    assert gnp.can_cast(gt.bfloat16, gt.float32) and not gnp.can_cast(gt.bfloat16, gt.float16)
    assert gnp.can_cast(gt.int8, gt.bfloat16) and not gnp.can_cast(gt.int16, gt.bfloat16)
    assert gnp.can_cast(gt.bfloat16, gt.bfloat16, "no") and not gnp.can_cast(gt.bfloat16, gt.int8, "same_kind")
    assert gnp.result_type(gt.int32, 2.5) is gt.float32 and gnp.result_type(2, 3) is gt.int64
    assert gnp.result_type(gt.zeros(2, gt.float16), 2.5, np.float32(1)) is gt.float32
    assert gnp.promote_types("int8", gt.uint8) is gt.int16
    assert gnp.issubdtype(gt.float32, gnp.floating) and not gnp.issubdtype(gt.int8, gnp.floating)
    assert gnp.issubdtype(gt.bool, np.bool_) and gnp.issubdtype(gt.uint8, gnp.unsignedinteger)
    for dtype in ("float16", "float32", "float64"):
        ours, theirs = gnp.finfo(dtype), np.finfo(dtype)
        for field in ("bits", "max", "min", "eps", "epsneg", "tiny", "smallest_normal", "smallest_subnormal"):
            assert getattr(ours, field) == getattr(theirs, field), (dtype, field)
    assert gnp.iinfo(gt.zeros(2, gt.int16)).min == -(2**15) and gnp.finfo(gt.bfloat16).eps == 2**-7
    assert gnp.isdtype(gt.bfloat16, "real floating") and not gnp.isdtype(gt.uint8, ("signed integer", gt.int8))
    for wrong in (lambda: gnp.finfo(gt.int8), lambda: gnp.iinfo(gt.float32), lambda: gnp.result_type()):
        with pytest.raises(TypeError, match="expected"):
            wrong()


# -- functions of functions, grids, updates


def test_vectorize_broadcasts_and_maps():
    a, b = rng(5).normal(size=(4, 1, 3)), rng(6).normal(size=(5, 3))
    dot = gnp.vectorize(lambda x, y: x @ y, signature="(n),(n)->()")
    assert_close(dot(a, b), np.vectorize(np.dot, signature="(n),(n)->()")(a, b))
    assert_close(dot(a[0, 0], b[0]), a[0, 0] @ b[0])
    two = gnp.vectorize(lambda m, v: (m @ v, v.sum()), signature="(m,n),(n)->(m),()")(T, V[:4])
    assert [x.shape for x in two] == [(2, 3), (2,)]
    step = gnp.vectorize(lambda x, y, scale=1.0: gt.where(x > y, x, y) * scale)
    assert_close(step(M, V[:3], scale=2.0), np.maximum(M, V[:3]) * 2)
    kept = gnp.vectorize(lambda x, how: x + len(how), excluded={1})
    assert_close(kept(gt.array(V), "abc"), V + 3)
    with pytest.raises(gt.ShapeError, match="one size for each"):
        dot(V, W[:3])
    with pytest.raises(gt.ArgumentError, match="signature such as"):
        gnp.vectorize(lambda x: x, signature="n->n")(V)
    grad = gt.grad(lambda x: dot(x, b).sum())(gt.array(a))
    assert_close(grad, np.broadcast_to(b.sum(0), a.shape))


def test_apply_along_axis():
    def outer(row):
        return row[:2, None] * row

    for axis in (0, 1, -1):
        for ours, theirs in ((gnp.sort, np.sort), (gnp.sum, np.sum), (outer, outer)):
            got = gnp.apply_along_axis(ours, axis, gt.array(T))
            assert_close(got, np.apply_along_axis(theirs, axis, T))


def test_objects_that_are_indexed():
    for key in (np.s_[0:3], np.s_[0:3, 1:5:2], np.s_[0:1:5j, 0:2:3j]):
        assert_close(gnp.mgrid[key], np.mgrid[key], check_dtype=False)
        for ours, theirs in zip(flat(gnp.ogrid[key]), flat(np.ogrid[key]), strict=True):
            assert_close(ours, theirs, check_dtype=False)
    for key in ((V, 0, slice(0, 3)), ("0,2", V, W), ("1,2,0", V, W), (slice(0, 1, 5j), 2.0), ("-1", M, M)):
        assert_close(gnp.r_[as_gt(key)], np.r_[key], check_dtype=False)
    for key in ((V, W), (M, V[:4])):
        assert_close(gnp.c_[as_gt(key)], np.c_[key])
    assert gnp.s_[1:3, None] == np.s_[1:3, None] and gnp.index_exp[2] == np.index_exp[2]


@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (2, 5), (7, 2), (3, 3, 3)])
@pytest.mark.parametrize("wrap", [False, True])
def test_updates_return_new_arrays(shape, wrap):
    x = rng(7).normal(size=shape)
    for val in (5.0, np.array([1.0, 2.0])):
        expected = x.copy()
        np.fill_diagonal(expected, val, wrap=wrap)
        np.testing.assert_array_equal(gnp.fill_diagonal(gt.array(x), as_gt(val), wrap), expected)
    for ind, v, mode in (([0, -1], [1.0, 2.0], "raise"), ([0, 99, -50], 7.0, "wrap"), ([1, 99], 3.0, "clip")):
        expected = x.copy()
        np.put(expected, ind, v, mode)
        np.testing.assert_array_equal(gnp.put(gt.array(x), ind, v, mode), expected)
    index = x.argmax(0, keepdims=True)
    expected = x.copy()
    np.put_along_axis(expected, index, -9.0, 0)
    np.testing.assert_array_equal(gnp.put_along_axis(gt.array(x), gt.array(index), -9.0, 0), expected)
    with pytest.raises(gt.ArgumentError, match="inplace"):
        gnp.put(gt.array(x), 0, 1.0, inplace=True)


# -- while tracing

TRACED = {
    "nonzero": (lambda x: gnp.nonzero(x > 0, size=5, fill_value=-1), V, [np.flatnonzero(V > 0), -1]),
    "argwhere": (lambda x: gnp.argwhere(x > 0, size=6)[:, 0], V, [np.flatnonzero(V > 0), 0]),
    "flatnonzero cut": (lambda x: gnp.flatnonzero(x > 0, size=2), V, [np.flatnonzero(V > 0)[:2], 0]),
    "unique": (lambda x: gnp.unique(x, size=5), I, [np.unique(I), 0]),
    "unique fill": (lambda x: gnp.unique(x, size=6, fill_value=9), I, [np.unique(I), 9]),
    "unique cut": (lambda x: gnp.unique(x, size=2), I, [np.unique(I)[:2], 0]),
    "unique counts": (lambda x: gnp.unique(x, return_counts=True, size=6)[1], I, [[2, 1, 1, 3], 0]),
    "union1d": (lambda x: gnp.union1d(x, x + 1, size=7), I, [np.union1d(I, I + 1), 0]),
    "intersect1d": (lambda x: gnp.intersect1d(x, x + 1, size=4, fill_value=-5), I, [np.intersect1d(I, I + 1), -5]),
    "setdiff1d": (lambda x: gnp.setdiff1d(x, x + 1, size=3), I, [np.setdiff1d(I, I + 1), 0]),
    "setxor1d": (lambda x: gnp.setxor1d(x, x + 1, size=3, fill_value=7), I, [np.setxor1d(I, I + 1), 7]),
    "bincount": (lambda x: gnp.bincount(x, length=6), I, [np.bincount(I), 0]),
    "compress": (lambda x: gnp.compress(x > 0, x, size=7), V, [V[V > 0], 0]),
    "repeat": (lambda x: gnp.repeat(x, x, total_repeat_length=14), I, [np.repeat(I, I), 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACED)
def test_sizes_make_functions_work_while_tracing(name):
    function, x, (expected, fill) = TRACED[name]
    batched = gt.vmap(function)(gt.array(np.stack([x, x])))  # which traces it
    for out in (function(gt.array(x)), gt.tree.map(lambda y: y[1], batched)):
        for got in map(np.asarray, flat(out)):
            np.testing.assert_array_equal(got, [*expected, *[fill] * (len(got) - len(expected))])


@pytest.mark.parametrize(
    "function",
    [gnp.nonzero, gnp.unique, gnp.bincount, gnp.unique_values, lambda x: gnp.setdiff1d(x, x), gnp.trim_zeros,
     lambda x: gnp.compress(x > 0, x)],
)  # fmt: skip
def test_sizes_that_follow_from_values_are_refused_while_tracing(function):
    with pytest.raises(gt.ConcretizationError, match="Pass size="):
        gt.jit(function)(gt.array(I))


SMOOTH = {
    "average": lambda x: gnp.average(x, weights=x**2),
    "cbrt": lambda x: gnp.cbrt(x),
    "convolve same": lambda x: gnp.convolve(x, x[:3], "same"),
    "convolve": lambda x: gnp.convolve(x, x[:4]),
    "corrcoef": lambda x: gnp.corrcoef(gnp.reshape(x[:6], (2, 3))),
    "correlate": lambda x: gnp.correlate(x, x[1:4], "valid"),
    "cov": lambda x: gnp.cov(gnp.reshape(x[:6], (3, 2)), aweights=x[:2] ** 2),
    "cross": lambda x: gnp.cross(x[:3], x[3:6]),
    "cumlogsumexp": lambda x: gnp.cumlogsumexp(x, reverse=True),
    "cummax": lambda x: gnp.cummax(x),
    "cummin": lambda x: gnp.cummin(x, reverse=True),
    "cumprod": lambda x: gnp.cumprod(x),
    "cumprod with zeros": lambda x: gnp.cumprod(x * gt.array([1.0, 0, 1, 1, 0, 1, 1])),
    "diag": lambda x: gnp.diag(x, 1) @ gnp.diag(x, -1),
    "fill_diagonal": lambda x: gnp.fill_diagonal(gnp.outer(x, x), x),
    "fmod": lambda x: gnp.fmod(x, 0.7),
    "frexp": lambda x: gnp.frexp(x)[0],
    "geomspace": lambda x: gnp.geomspace(x[1] ** 2 + 1, x[0] ** 2 + 2, 3),
    "gradient": lambda x: gnp.gradient(x, gnp.cumsum(x**2 + 0.1), edge_order=2),
    "histogram": lambda x: gnp.histogram(gt.array(W), 3, weights=x)[0],
    "hypot": lambda x: gnp.hypot(x, 0.5),
    "insert": lambda x: gnp.insert(x, 2, x[0] * x[1]),
    "interp": lambda x: gnp.interp(x, gt.array(S), x[:6]),
    "kron": lambda x: gnp.kron(x[:2], x[3:]),
    "ldexp": lambda x: gnp.ldexp(x, 3),
    "linspace": lambda x: gnp.linspace(x, x[0], 4),
    "logaddexp": lambda x: gnp.logaddexp(x, x[0] * 2),
    "logspace": lambda x: gnp.logspace(x[0], x[1], 3),
    "masked mean": lambda x: gnp.mean(x, where=x > 0),
    "masked prod": lambda x: gnp.prod(x, where=x > 0, initial=2.0),
    "masked var": lambda x: gnp.var(x, where=x > 0),
    "median": lambda x: gnp.median(x),
    "nan_to_num": lambda x: gnp.nan_to_num(x * 2),
    "nanvar": lambda x: gnp.nanvar(gt.where(x > 1, gnp.nan, x)),
    "percentile": lambda x: gnp.percentile(x, 37.0),
    "piecewise": lambda x: gnp.piecewise(x, [x < 0], [lambda v: v**2, lambda v: v**3]),
    "polydiv": lambda x: gnp.polydiv(x, x[:3] + 5)[0],
    "polyval": lambda x: gnp.polyval(x[:4], x),
    "poly": lambda x: gnp.poly(x[:3]),
    "quantile of q": lambda x: gnp.quantile(gt.array(W), gnp.abs(x) / 3),
    "select": lambda x: gnp.select([x < 0], [x**2], x**3),
    "sinc": lambda x: gnp.sinc(x),
    "sinc at 0": lambda x: gnp.sinc(x * gt.array([0.0, 1e-3, 0.01, 1, 0, 1, 1])),
    "trace": lambda x: gnp.trace(gnp.outer(x, x), 1),
    "trapezoid": lambda x: gnp.trapezoid(x, x**3),
    "unwrap": lambda x: gnp.unwrap(x * 2),
    "vander": lambda x: gnp.vander(x, 3),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives(name):
    order = 2 if name in ("sinc at 0", "cumprod with zeros", "convolve") else 1
    testing.check_grads(SMOOTH[name], (gt.array(V),), order=order)


def smooth(x):
    return {name: function(x) for name, function in SMOOTH.items()}


def test_a_batch_is_traced_and_gives_the_same():
    batch = gt.vmap(smooth)(gt.array(np.stack([W, V])))
    for name, value in smooth(gt.array(V)).items():
        np.testing.assert_allclose(batch[name][1], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.long
def test_compiled_code_gives_the_same():
    compiled = gt.jit(smooth)(gt.array(V))
    for name, value in smooth(gt.array(V)).items():
        np.testing.assert_allclose(compiled[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_derivatives_of_scans_are_torchs():
    x = rng(8).uniform(-2, 2, (3, 6))
    x[:, [1, 4]] = x[0, 0] * 0
    for ours, theirs in (
        (gnp.cumprod, torch.cumprod), (gnp.cumlogsumexp, torch.logcumsumexp),
        (gnp.cummax, lambda t, k: torch.cummax(t, k).values), (gnp.cummin, lambda t, k: torch.cummin(t, k).values),
    ):  # fmt: skip
        t = torch.tensor(x, requires_grad=True)
        weights = torch.tensor(rng(9).normal(size=x.shape))
        (theirs(t, 1) * weights).sum().backward()
        got = gt.grad(lambda v, ours=ours, w=weights: (ours(v, 1) * gt.array(w)).sum())(gt.array(x))
        np.testing.assert_allclose(got, t.grad, rtol=1e-9, atol=1e-12)


# -- searches

FLOATS = st.floats(-100, 100, width=32).map(lambda v: round(v, 2))
VECTORS = hnp.arrays(np.float64, st.integers(1, 8), elements=FLOATS)
MATRICES = hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), elements=FLOATS)
WITH_NAN = hnp.arrays(np.float64, st.integers(1, 8), elements=st.sampled_from([np.nan, 0.0, 1.0, -2.5, np.inf]))
INTEGERS = hnp.arrays(np.int64, st.integers(0, 8), elements=st.integers(-3, 3))


def check_against_numpy(name, *args, **kwargs):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = getattr(np, name)(*args, **kwargs)
    check_equal(getattr(gnp, name)(*as_gt(args), **kwargs), expected, False, f"{name}{args}{kwargs}")


@settings(max_examples=30)
@given(VECTORS, VECTORS, st.sampled_from(["full", "same", "valid"]))
def test_search_sequences(x, y, mode):
    check_against_numpy("convolve", x, y, mode)
    check_against_numpy("correlate", x, y, mode)
    check_against_numpy("interp", y, np.sort(x) + np.arange(len(x)), np.resize(y, x.shape))
    check_against_numpy("ediff1d", x, y, y)
    check_against_numpy("unwrap", x, period=7.5)


@settings(max_examples=30)
@given(INTEGERS, INTEGERS)
def test_search_sets(x, y):
    check_against_numpy("unique", x, return_index=True, return_inverse=True, return_counts=True)
    for name in ("union1d", "setdiff1d", "setxor1d", "isin"):
        check_against_numpy(name, x, y)
    if x.size and y.size:
        check_against_numpy("intersect1d", x, y, return_indices=True)
        check_against_numpy("digitize", x, np.unique(y))
    check_against_numpy("nonzero", x)


@settings(max_examples=30)
@given(MATRICES, st.data())
def test_search_shapes(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    n = data.draw(st.integers(0, 3))
    check_against_numpy("diff", x, n, axis)
    check_against_numpy("array_split", x, n + 1, axis)
    check_against_numpy("delete", x, data.draw(st.integers(-x.shape[axis], x.shape[axis] - 1)), axis)
    check_against_numpy("insert", x, data.draw(st.integers(-x.shape[axis], x.shape[axis])), 1.0, axis)
    check_against_numpy("cumprod", x, axis)
    check_against_numpy("median", x, axis)
    check_against_numpy("percentile", x, data.draw(st.floats(0, 100)), axis=axis)
    check_against_numpy("ptp", x, axis)
    check_against_numpy("trapezoid", x, axis=axis)
    check_against_numpy("rollaxis", x, axis, data.draw(st.integers(0, x.ndim)))
    check_against_numpy("unique", x, axis=axis)
    if x.ndim > 1:
        check_against_numpy("rot90", x, n)
        check_against_numpy("diagonal", x, n - 1)


@settings(max_examples=30)
@given(WITH_NAN, WITH_NAN)
def test_search_missing_numbers(x, y):
    for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanmedian", "nancumsum", "median", "nan_to_num"):
        check_against_numpy(name, x)
    for name in ("isin", "fmax", "fmin", "setdiff1d", "union1d") if len(x) == len(y) else ("isin", "union1d"):
        check_against_numpy(name, x, y)
    check_against_numpy("unique", x, return_counts=True)


# -- methods and wrong arguments


def test_methods_are_those_of_numpys_arrays():
    x = gt.array(M)
    for name, args in {
        "argsort": (0,), "compress": (B[:3], 1), "cumprod": (1,), "diagonal": (1,), "nonzero": (), "ptp": (0,),
        "repeat": (2, 0), "searchsorted": (V,), "sort": (0,), "trace": (-1,), "item": (2, 1), "cumsum": (0,),
    }.items():  # fmt: skip
        array, ours = (S, gt.array(S)) if name == "searchsorted" else (M.copy(), x)
        expected = np.ptp(array, *args) if name == "ptp" else getattr(array, name)(*args)
        expected = np.sort(M, 0) if name == "sort" else expected
        check_equal(getattr(ours, name)(*as_gt(args)), expected, name != "item", name)
    assert x.item(-1) == M[-1, -1]


WRONG = [
    (lambda x: gnp.max(x, where=x > 0), gt.ArgumentError, "initial"),
    (lambda x: gnp.sum(x, where=gt.ones((9, 7)) > 0), gt.ShapeError, "mask"),
    (lambda x: gnp.var(x, 0, correction=1, ddof=1), gt.ArgumentError, "ddof"),
    (lambda x: gnp.sort(x, kind="bubble"), gt.ArgumentError, "kind"),
    (lambda x: gnp.take(x, gt.array([1]), mode="around"), gt.ArgumentError, "mode"),
    (lambda x: gnp.quantile(x, 0.5, method="best"), gt.ArgumentError, "method"),
    (lambda x: gnp.quantile(x[:0], 0.5), gt.ArgumentError, "elements"),
    (lambda x: gnp.histogram(x, "auto"), gt.ArgumentError, "number of bins"),
    (lambda x: gnp.bincount(x), gt.DtypeError, "integers"),
    (lambda x: gnp.bincount(gt.array([-1])), gt.ArgumentError, ">= 0"),
    (lambda x: gnp.convolve(x, x, "half"), gt.ArgumentError, "full, same or valid"),
    (lambda x: gnp.interp(x, x, x[:3]), gt.ShapeError, "as many xp as fp"),
    (lambda x: gnp.trim_zeros(x, 3), gt.ArgumentError, "got 3"),
    (lambda x: gnp.vectorize(gnp.sin, excluded={-1}), gt.ArgumentError, "positions from 0"),
    (lambda x: gnp.linspace(0, 1j, 3, device="meta"), gt.DeviceError, "cpu"),
    (lambda x: gnp.linspace(x, 1, 3, device="meta"), gt.DeviceError, "cpu"),
    (lambda x: gnp.gradient(x[:1]), gt.ShapeError, "samples"),
    (lambda x: gnp.block([[x], x]), gt.ArgumentError, "one depth"),
    (lambda x: gnp.delete(x, 7), gt.BoundsError, "below 7"),
    (lambda x: gnp.delete(x, np.array([True, False])), gt.ShapeError, "a mask of shape"),
    (lambda x: gnp.insert(x, np.array([True]), 0.0), gt.ShapeError, "a mask of shape"),
    (lambda x: gnp.fabs(x * 1j), gt.DtypeError, "real numbers"),
    (lambda x: gnp.isposinf(x * 1j), gt.DtypeError, "real numbers"),
    (lambda x: gnp.isneginf(x * 1j), gt.DtypeError, "real numbers"),
    (lambda x: gnp.unique(x[:0], size=2), gt.ShapeError, "fill_value"),
    (lambda x: gnp.pad(x, 1, constant_values=(1, 2, 3)), gt.ShapeError, "one pair an axis"),
    (lambda x: gnp.ravel_multi_index((gt.array(1),), (7,), mode="around"), gt.ArgumentError, "wrap or clip"),
    (lambda x: gnp.choose(gt.array([0, 2]), [x[:2], x[:2]]).tolist(), gt.ExecutionError, "out of bounds"),
    (lambda x: gnp.choose(gt.array([0, -1]), [x[:2], x[:2]]).tolist(), gt.ExecutionError, "out of bounds"),
    (lambda x: gnp.insert(x, 8, 0.0), gt.BoundsError, "places in"),
    (lambda x: gnp.diag(gt.zeros((2, 2, 2))), gt.ShapeError, "one or two"),
    (lambda x: gnp.diagonal(x), gt.ShapeError, "two dimensions"),
    (lambda x: gnp.cumulative_sum(gt.zeros((2, 2))), gt.ArgumentError, "axis"),
    (lambda x: gnp.nonzero(gt.array(1.0)), gt.ShapeError, "dimension"),
    (lambda x: gnp.nonzero(x, size=-1), gt.ShapeError, "size >= 0"),
    (lambda x: gnp.meshgrid(x, indexing="ii"), gt.ArgumentError, "xy"),
    (lambda x: gnp.broadcast_shapes((2,), (3,)), gt.ShapeError, "broadcast"),
    (lambda x: gnp.select([], []), gt.ArgumentError, "conditions"),
    (lambda x: gnp.cross(x, x), gt.ShapeError, "two or three"),
    (lambda x: gnp.ldexp(x, 0.5), gt.DtypeError, "integer exponents"),
    (lambda x: gnp.positive(x > 0), gt.DtypeError, "booleans"),
    (lambda x: gnp.asarray(x, dtype=gt.int8, copy=False), gt.ArgumentError, "shared"),
    (lambda x: gnp.fill_diagonal(x, 1), gt.ShapeError, "matrix"),
    (lambda x: gnp.cov(gt.zeros((2, 2, 2))), gt.ShapeError, "two dimensions"),
    (lambda x: gnp.average(x, weights=x[:2]), gt.ShapeError, "weights"),
    (lambda x: gnp.vander(gt.zeros((2, 2))), gt.ShapeError, "one dimension"),
    (lambda x: gnp.can_cast(gt.int8, gt.int16, "maybe"), gt.ArgumentError, "rule"),
    (lambda x: gnp.r_["a", 1], gt.ArgumentError, "integers"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "error", "match"), WRONG)
def test_wrong_arguments_are_refused(function, error, match):
    with pytest.raises(error, match=match):
        function(gt.array(V))


def test_sharing_and_copying():
    host = np.ones(3)
    shared, copied = gnp.asarray(host, copy=False), gnp.asarray(host, copy=True)
    host[0] = 5.0
    assert float(shared[0]) == 5.0 and float(copied[0]) == 1.0
    tensor = torch.ones(3)
    copied = gnp.from_dlpack(tensor, copy=True)
    tensor[0] = 5.0
    assert float(copied[0]) == 1.0 and gnp.from_dlpack(tensor, device="cpu").shape == (3,)
    for like in (gnp.zeros_like, gnp.ones_like, gnp.empty_like):
        assert like(gt.array(M), shape=(2, 2), device="cpu").shape == (2, 2)
    assert gnp.astype(gt.array(M), gt.int32, copy=False, device="cpu").dtype == gt.int32
    assert float(gnp.take(gt.array(V), 99, mode="fill", fill_value=2.5)) == 2.5


# -- fits

POINTS = np.linspace(-2.0, 3.0, 9)
VALUES = np.cos(POINTS)
TWO = np.stack([VALUES, POINTS**2], 1)
FITS = [
    ((POINTS, VALUES, 2), {}),
    ((POINTS, VALUES, 0), {}),
    ((POINTS, TWO, 3), {}),
    ((POINTS, VALUES, 3), {"w": np.arange(1.0, 10.0)}),
    ((POINTS, TWO, 1), {"w": np.arange(1.0, 10.0), "cov": True}),
    ((POINTS, VALUES, 2), {"cov": "unscaled"}),
    ((POINTS, VALUES, 2), {"cov": True}),
    ((POINTS, VALUES, 4), {"rcond": 0.3}),
]


@pytest.mark.parametrize("k", range(len(FITS)))
def test_polyfit(k):
    args, keywords = FITS[k]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = np.polyfit(*args, **keywords)
    check_equal(gnp.polyfit(*args, **keywords), want, True, f"polyfit {k}", rtol=1e-7)


def test_what_polyfit_returns_in_full_and_its_derivative():
    got = gnp.polyfit(POINTS, TWO, 2, full=True)
    want = np.polyfit(POINTS, TWO, 2, full=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-12)
    testing.check_grads(lambda x, y: gnp.polyfit(x, y, 2), (POINTS, VALUES), order=2)
    testing.check_grads(lambda beta: gnp.kaiser(6, beta), (np.array(3.0),), order=2)


def test_kaiser_windows_of_large_parameters():
    assert_close(gnp.kaiser(5, np.array(600.0)), np.kaiser(5, 600.0))
    assert np.isfinite(gnp.kaiser(5, np.array(5000.0))).all()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: gnp.polyfit(POINTS, VALUES, -1), gt.ArgumentError, r"\[polyfit\] expected deg >= 0"),
        (lambda: gnp.polyfit(POINTS, VALUES[1:], 1), gt.ShapeError, r"\[polyfit\] expected points .* f64\[8\]"),
        (lambda: gnp.polyfit(POINTS, VALUES, 1, w=TWO), gt.ShapeError, r"\[polyfit\] expected weights"),
        (lambda: gnp.polyfit(POINTS[:3], VALUES[:3], 2, cov=True), gt.ShapeError, r"\[polyfit\] expected more than 3"),
        (lambda: gnp.kaiser(4, VALUES), gt.ShapeError, r"\[kaiser\] expected one number as beta"),
    ],
)
def test_fits_refuse_what_they_cannot_use(call, error, text):
    with pytest.raises(error, match=text):
        call()


C, D = V[:5] + 1j * W[:5], W[:2] - 1j * V[:2]
ANOTHER = [  # calls of functions that are above with other kinds of arguments
    ("vdot", C, C[::-1]),
    ("vecmat", C[:2], np.outer(D, D)),
    *[("correlate", *pair, mode) for pair in ((C, D), (D, C)) for mode in ("full", "same", "valid")],
    ("cov", np.stack([C, C[::-1] ** 2])),
    ("cov", C, None, True, False, None, np.array([1, 2, 1, 1, 3]), W[:5]),
    ("corrcoef", np.stack([C, C[::-1] ** 2])),
    ("nanvar", np.where(W[:5] > 1.5, C, np.nan)),
    ("nanstd", np.stack([C, C * np.nan]), 1),
    ("nan_to_num", np.array([complex(np.nan, np.inf), complex(-np.inf, 2)])),
    ("nan_to_num", np.array([np.nan, np.inf]), True, np.inf, 1.0),
    ("ldexp", E, np.array([10000, 9999, 5, 10**6, -(10**6), -2000, 2000])),
    ("ldexp", np.array([1.5, -1.0, 5e-324, 1e308]), np.array([-1075, 1023, 2097, -2098])),
    ("interp", np.array([0.3, 9.0, -4.0]), np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 0.0]), None, None, -4.0),
    ("trapezoid", T, T[0]),
    ("trapezoid", T, T[0], 1.0, -2),
    ("gradient", np.array([1.0, 2.0, -np.inf, np.inf])),
    ("gradient", np.array([1e16, 3.0, 1e16 + 4])),
    ("logspace", 0.0, 2.0, 3, True, np.array([2.0, 3.0])),
    ("logspace", np.array([0.0, 1.0]), 2.0, 3, False, np.array([2.0, 3.0]), None, 1),
    ("pad", V, (2, 1), "constant"),
    ("tri", 2, 3, -1),
]


@pytest.mark.parametrize("k", range(len(ANOTHER)), ids=[f"{row[0]} {k}" for k, row in enumerate(ANOTHER)])
def test_other_arguments_give_the_values_of_numpy(k):
    name, *args = ANOTHER[k]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(np, name)(*args)
    got = getattr(gnp, name)(*as_gt(tuple(args)))
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6, atol=1e-12)


def test_names_of_keywords_are_those_of_numpy():
    places = gt.array([1, 5]), gt.array([0, -3])
    hosts = tuple(map(np.asarray, places))
    for name, args, ours, keywords in (
        ("tri", (), (), {"N": 2, "M": 3}),
        ("vander", (V,), (gt.array(V),), {"N": 3}),
        ("ravel_multi_index", (hosts, (3, 4)), (places, (3, 4)), {"mode": "clip"}),
        ("ravel_multi_index", (hosts, (3, 4)), (places, (3, 4)), {"mode": "wrap", "order": "F"}),
        ("pad", (V, 2), (gt.array(V), 2), {"constant_values": (7, 8)}),
        ("pad", (M, 1), (gt.array(M), 1), {"constant_values": ((1, 2), (3, 4))}),
    ):
        assert_close(getattr(gnp, name)(*ours, **keywords), getattr(np, name)(*args, **keywords), check_dtype=False)
    assert gnp.unique(gt.array(V)[:0], size=2, fill_value=7.0).tolist() == [7.0, 7.0]
    assert gnp.take(gt.zeros(0), gt.array([1]), mode="fill", fill_value=3.0).tolist() == [3.0]


def test_fourier_transforms_are_in_memory():
    """torch marks the conjugate of a tensor, which NumPy cannot read."""
    for name in ("ifft", "ihfft"):
        np.testing.assert_allclose(np.asarray(getattr(gt.fft, name)(gt.array(M))), getattr(np.fft, name)(M), atol=1e-12)
    np.testing.assert_array_equal(np.asarray(gt.fft.fftshift(gt.array(M), np.int64(1))), np.fft.fftshift(M, 1))
