"""Special matrices, and functions of matrices, under SciPy's names."""

from __future__ import annotations

import math
from typing import Any

import numpy

from gtrace.extend import ArgumentError, Array, ShapeError, message, ops, promote_arrays
from gtrace.numpy import linalg
from gtrace.numpy.products import kron
from gtrace.scipy.linalg import expm, toeplitz

neg = ops.negative

__all__ = [
    "companion", "convolution_matrix", "dft", "eigh_tridiagonal", "expm_frechet", "fiedler", "hadamard", "helmert",
    "invhilbert", "invpascal", "leslie", "pascal", "solve_sylvester", "sqrtm",
]  # fmt: skip


def _vector(name: str, a: Any, least: int = 1) -> Array:
    x = ops.array(a)
    if x.ndim != 1 or x.size < least:
        raise ShapeError(message(name, f"one dimension with at least {least} elements", repr(x.aval), "Use gt.ravel."))
    return x


def companion(a: Any) -> Array:
    """Return the matrix whose eigenvalues are the roots of a polynomial, the highest power first.

    >>> from gtrace.scipy.matrices import companion
    >>> companion(gt.array([1., -3., 2.]))
    Array([[ 3., -2.],
           [ 1.,  0.]], dtype=float32)
    """
    x = _vector("companion", a, 2)
    first = ops.divide(neg(x[1:]), x[0])
    size = x.size - 1
    return ops.concat([ops.expand_dims(first, 0), ops.eye(size, dtype=first.aval.dtype)[: size - 1]])


def convolution_matrix(a: Any, n: int, mode: str = "full") -> Array:
    """Return the matrix whose product with a vector of n elements is their convolution with `a`.

    >>> from gtrace.scipy.matrices import convolution_matrix
    >>> convolution_matrix(gt.array([1., 2.]), 2).tolist()
    [[1.0, 0.0], [2.0, 1.0], [0.0, 2.0]]
    """
    x = _vector("convolution_matrix", a)
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(message("convolution_matrix", "full, same or valid", repr(mode), "Pass one of them."))
    full = toeplitz(
        ops.concat([x, ops.zeros(n - 1, x.aval.dtype)]), ops.concat([x[:1], ops.zeros(n - 1, x.aval.dtype)])
    )
    most, least = max(n, x.size), min(n, x.size)
    if mode == "full":
        return full
    start, count = ((least - 1) // 2, most) if mode == "same" else (least - 1, most - least + 1)
    return full[start : start + count]


def dft(n: int, scale: str | None = None, dtype: Any = None) -> Array:
    """Return the matrix of the discrete Fourier transform; `scale` is None, "sqrtn" or "n".

    >>> from gtrace.scipy.matrices import dft
    >>> dft(2).real.tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    by = {None: 1.0, "sqrtn": math.sqrt(n), "n": float(n)}
    if scale not in by:
        raise ArgumentError(message("dft", "None, sqrtn or n as scale", repr(scale), "Pass one of them."))
    grid = numpy.outer(numpy.arange(n), numpy.arange(n)) % max(n, 1)
    made = numpy.exp(-2j * math.pi * grid / max(n, 1)) / by[scale]
    return ops.array(made, "complex64" if dtype is None else dtype)


def fiedler(a: Any) -> Array:
    """Return the matrix of distances between the elements of a vector.

    >>> from gtrace.scipy.matrices import fiedler
    >>> fiedler(gt.array([1., 4.])).tolist()
    [[0.0, 3.0], [3.0, 0.0]]
    """
    x = _vector("fiedler", a)
    return abs(ops.subtract(x[:, None], x[None, :]))


def hadamard(n: int, dtype: Any = None) -> Array:
    """Return the Hadamard matrix of ones and minus ones; n is a power of 2.

    >>> from gtrace.scipy.matrices import hadamard
    >>> hadamard(2).tolist()
    [[1, 1], [1, -1]]
    """
    if n < 1 or n & (n - 1):
        raise ArgumentError(message("hadamard", "a power of 2", repr(n), "Use one."))
    out = numpy.ones((1, 1), numpy.int32)
    while len(out) < n:
        out = numpy.block([[out, out], [out, -out]])
    return ops.array(out, "int32" if dtype is None else dtype)


def helmert(n: int, full: bool = False) -> Array:
    """Return the Helmert matrix: orthonormal rows, of which the first, all equal, is there with `full` only.

    >>> from gtrace.scipy.matrices import helmert
    >>> helmert(3).shape
    (2, 3)
    """
    lower = numpy.tril(numpy.ones((n, n)), -1) - numpy.diag(numpy.arange(n))
    lower[0] = 1
    rows = numpy.arange(n)
    norms = numpy.sqrt(rows * (rows + 1.0))
    norms[0] = math.sqrt(n)
    made = (lower / norms[:, None]).astype(numpy.float32)
    return ops.array(made if full else made[1:])


def pascal(n: int, kind: str = "symmetric") -> Array:
    """Return binomial coefficients as a matrix: "symmetric", "lower" or "upper".

    >>> from gtrace.scipy.matrices import pascal
    >>> pascal(3, "lower").tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 2.0, 1.0]]
    """
    lower = numpy.array([[math.comb(i, j) for j in range(n)] for i in range(n)], numpy.float64).reshape(n, n)
    return ops.array(_of_kind("pascal", lower, kind).astype(numpy.float32))


def invpascal(n: int, kind: str = "symmetric") -> Array:
    """Return the inverse of `pascal`.

    >>> from gtrace.scipy.matrices import invpascal
    >>> invpascal(2).tolist()
    [[2.0, -1.0], [-1.0, 1.0]]
    """
    signed = [[(-1) ** (i + j) * math.comb(i, j) for j in range(n)] for i in range(n)]
    lower = numpy.array(signed, numpy.float64).reshape(n, n)
    made = lower.T @ lower if kind == "symmetric" else _of_kind("invpascal", lower, kind)
    return ops.array(made.astype(numpy.float32))


def _of_kind(name: str, lower: Any, kind: str) -> Any:
    kinds = {"symmetric": lambda: lower @ lower.T, "lower": lambda: lower, "upper": lambda: lower.T}
    if kind not in kinds:
        raise ArgumentError(message(name, "symmetric, lower or upper as kind", repr(kind), "Pass one of them."))
    return kinds[kind]()


def invhilbert(n: int) -> Array:
    """Return the inverse of the Hilbert matrix, whose elements are integers.

    >>> from gtrace.scipy.matrices import invhilbert
    >>> invhilbert(2).tolist()
    [[4.0, -6.0], [-6.0, 12.0]]
    """
    rows = [
        [(-1) ** (i + j) * (i + j + 1) * math.comb(n + i, n - j - 1) * math.comb(n + j, n - i - 1)
         * math.comb(i + j, i) ** 2 for j in range(n)]
        for i in range(n)
    ]  # fmt: skip
    return ops.array(numpy.array(rows, numpy.float64).reshape(n, n).astype(numpy.float32))


def leslie(f: Any, s: Any) -> Array:
    """Return the matrix of a population: fertilities in the first row, survival below the diagonal.

    >>> from gtrace.scipy.matrices import leslie
    >>> leslie(gt.array([1., 2.]), gt.array([0.5])).tolist()
    [[1.0, 2.0], [0.5, 0.0]]
    """
    f, s = promote_arrays("leslie", _vector("leslie", f, 2), s)
    if s.ndim != 1 or s.size != f.size - 1:
        raise ShapeError(message("leslie", f"{f.size - 1} rates of survival", repr(s.aval), "One less than f."))
    below = ops.multiply(ops.eye(s.size, dtype=s.aval.dtype), s)
    return ops.concat([ops.expand_dims(f, 0), ops.concat([below, ops.zeros((s.size, 1), s.aval.dtype)], 1)])


def sqrtm(A: Any, blocksize: int = 1) -> Array:  # noqa: N803 - SciPy's name
    """Return the principal square root of a matrix that has a basis of eigenvectors, complex.

    >>> from gtrace.scipy.matrices import sqrtm
    >>> gt.round(sqrtm(gt.array([[4., 0.], [0., 9.]])).real, 4).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    values, vectors = linalg.eig(A)
    scaled = vectors * ops.expand_dims(ops.sqrt(values), -2)
    return ops.matrix_transpose(linalg.solve(ops.matrix_transpose(vectors), ops.matrix_transpose(scaled)))


def solve_sylvester(A: Any, B: Any, C: Any) -> Array:  # noqa: N803 - SciPy's names
    """Return X with A @ X + X @ B == C, by one linear system for all elements of X.

    >>> from gtrace.scipy.matrices import solve_sylvester
    >>> solve_sylvester(gt.array([[1.]]), gt.array([[2.]]), gt.array([[6.]]))
    Array([[2.]], dtype=float32)
    """
    a, b, c = promote_arrays("solve_sylvester", A, B, C, floating=True)
    m, n = a.shape[-1], b.shape[-1]
    both = kron(a, ops.eye(n, dtype=a.aval.dtype)) + kron(ops.eye(m, dtype=a.aval.dtype), ops.matrix_transpose(b))
    return ops.reshape(linalg.solve(both, ops.ravel(c)), (m, n))


def expm_frechet(A: Any, E: Any, *, compute_expm: bool = True) -> Any:  # noqa: N803 - SciPy's names
    """Return ``expm(A)`` and its derivative at A in the direction E; the latter alone without `compute_expm`.

    >>> from gtrace.scipy.matrices import expm_frechet
    >>> expm_frechet(gt.zeros((1, 1)), gt.ones((1, 1)))[1]
    Array([[1.]], dtype=float32)
    """
    a, e = promote_arrays("expm_frechet", A, E, floating=True)
    n = a.shape[-1]
    upper = ops.concat([a, e], -1)
    whole = expm(ops.concat([upper, ops.concat([ops.multiply(a, 0), a], -1)], -2))
    derivative = whole[..., :n, n:]
    return (whole[..., :n, :n], derivative) if compute_expm else derivative


def eigh_tridiagonal(d: Any, e: Any, *, eigvals_only: bool = False) -> Any:
    """Return the eigenvalues of a symmetric matrix with diagonal d and e beside it; with the eigenvectors, if asked.

    >>> from gtrace.scipy.matrices import eigh_tridiagonal
    >>> eigh_tridiagonal(gt.array([1., 3.]), gt.array([0.]), eigvals_only=True)
    Array([1., 3.], dtype=float32)
    """
    d, e = promote_arrays("eigh_tridiagonal", _vector("eigh_tridiagonal", d), e, floating=True)
    n = d.size
    beside = ops.eye(n, dtype=d.aval.dtype, k=-1) * ops.concat([e, ops.zeros(1, e.aval.dtype)])
    full = ops.multiply(ops.eye(n, dtype=d.aval.dtype), d) + beside + ops.matrix_transpose(beside)
    return linalg.eigvalsh(full) if eigvals_only else tuple(linalg.eigh(full))
