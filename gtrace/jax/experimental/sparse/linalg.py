"""``jax.experimental.sparse.linalg``: leading eigenvalues of an operator, and direct solutions of sparse systems."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy

import gtrace as gt
from gtrace import lax
from gtrace.extend import ArgumentError, Array, DtypeError, ShapeError, message
from gtrace.jax.experimental.sparse._rows import BCSR
from gtrace.jax.lax import custom_linear_solve

__all__ = ["lobpcg_standard", "spsolve"]

Product = Callable[[Array], Array]
KEPT = 0.99
"""How much of a unit vector has to be left, when others are taken out of it once more, for it to count as new."""


def _lengths(x: Array) -> Array:
    return gt.sqrt(gt.sum(x * x, 0))


def _descending(a: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of a symmetric matrix, the largest first, and its eigenvectors."""
    values, vectors = gt.linalg.eigh((a + a.mT) / 2)
    return gt.flip(values, 0), gt.flip(vectors, 1)


def _orthonormal(x: Array) -> Array:
    """Return an orthonormal basis of the columns of a matrix; columns of zeros stand for what depends on others.

    The basis comes from the eigenvectors of the products of the columns. Twice, because once is not exact enough.
    """
    for _ in range(2):
        lengths = _lengths(x)
        x = x / gt.where(lengths == 0, 1.0, lengths)
        values, vectors = _descending(x.mT @ x)
        least = values[0] * numpy.finfo(numpy.dtype(x.dtype)).eps
        large = values > least
        x = (x @ vectors) * gt.where(large, 1 / gt.sqrt(gt.where(large, values, 1.0)), 0.0)
        lengths = _lengths(x)
        x = x / gt.where(lengths == 0, 1.0, lengths)
    return x


def _without(basis: Array, x: Array) -> Array:
    """Return an orthonormal basis of what is left of columns without their parts in a basis."""
    for _ in range(2):
        x = _orthonormal(x - basis @ (basis.mT @ x))
    for _ in range(2):
        x = x - basis @ (basis.mT @ x)
    return x * (_lengths(x) >= KEPT).astype(x.dtype)


def lobpcg_standard(A: Any, X: Any, m: int = 100, tol: Any = None) -> tuple[Array, Array, Array]:  # noqa: N803 - JAX's names
    """Return the largest eigenvalues of a symmetric matrix, its eigenvectors, and the number of steps (LOBPCG).

    Each step takes the best vectors of the span of those so far, of the last changes, and of what is left over.

    Args:
        A: the matrix, of shape (n, n), or a function that multiplies it by a matrix of shape (n, ...).
        X: where to begin, of shape (n, k), with 5 k < n.
        m: the most steps.
        tol: how small what is left over has to be, relative to 10 n (|A v| + value); by default the dtype's epsilon.

    >>> import gtrace.jax.numpy as jnp
    >>> values, vectors, steps = lobpcg_standard(jnp.diag(jnp.arange(8.0)), jnp.ones((8, 1)))
    >>> round(values[0].item(), 4), vectors.shape
    (7.0, (8, 1))
    """
    x = gt.array(X)
    if x.ndim != 2 or not 0 < x.shape[1] * 5 < x.shape[0]:
        raise ShapeError(message("lobpcg_standard", "X of shape (n, k) with 0 < 5 k < n", repr(x.aval), "Use eigh."))
    n, k = x.shape
    matrix = None if callable(A) else gt.array(A)
    product: Product = A if matrix is None else lambda v: matrix @ v
    tried = gt.eval_shape(product, gt.ShapeDtypeStruct((n, 1), x.dtype))
    if tried.shape != (n, 1):
        raise ShapeError(
            message("lobpcg_standard", f"A of shape ({n}, {n})", f"a product of {tried.shape}", "Check A.")
        )
    if tried.dtype != x.dtype:
        raise DtypeError(message("lobpcg_standard", "one dtype", f"{tried.dtype} and {x.dtype}", "Convert X."))
    bound = float(numpy.finfo(numpy.dtype(x.dtype)).eps) if tol is None else tol

    def left_over(x: Array, values: Array) -> tuple[Array, Array]:
        ax = product(x)
        rest = ax - values * x
        return rest, gt.sum(_lengths(rest) < bound * 10 * n * (_lengths(ax) + values), dtype=gt.int32)

    def going(state: Any) -> Array:
        return gt.logical_and(state[0] < m, state[4] < k)

    def step(state: Any) -> Any:
        i, x, change, rest, _, _ = state
        both = gt.numpy.concatenate([x, change], 1)
        span = gt.numpy.concatenate([both, _without(both, rest)], 1)
        values, vectors = _descending(span.mT @ product(span))
        x = span @ vectors[:, :k]
        x = x / _lengths(x)
        # the part of the span that leads from the old vectors to the new ones, and is orthogonal to these
        lead, _ = gt.linalg.qr(vectors[:k, k:].mT)
        change = span @ (vectors[:, k:] @ lead)
        lengths = _lengths(change)
        change = change / gt.where(lengths == 0, 1.0, lengths)
        rest, done = left_over(x, values[:k])
        return i + 1, x, change, rest, done, values[:k]

    x = _orthonormal(x)
    values = gt.sum(x * product(x), 0)
    other = _without(x, gt.eye(n, k, dtype=x.dtype) + 1 / gt.arange(1, n + 1, dtype=x.dtype)[:, None])
    start = (gt.array(0, gt.int32), x, other, left_over(x, values)[0], gt.array(0, gt.int32), values)
    steps, x, _, _, _, values = lax.while_loop(going, step, start)
    return values, x, steps


def _solution(data: Any, indices: Any, indptr: Any, b: Any) -> Any:
    """Solve by SciPy, which factorizes."""
    try:
        library = importlib.import_module("scipy.sparse")
        solver = importlib.import_module("scipy.sparse.linalg").spsolve
    except ImportError as error:
        fix = "Install scipy, or use jax.scipy.sparse.linalg.gmres."
        raise ArgumentError(message("spsolve", "the package scipy", "none", fix)) from error
    data, indices, indptr, b = map(numpy.ascontiguousarray, (data, indices, indptr, b))
    matrix = library.csr_matrix((data, indices, indptr), shape=(b.size, b.size))
    return solver(matrix, b).astype(b.dtype)


def _transposed(data: Any, indices: Any, indptr: Any, b: Any) -> Any:
    library = importlib.import_module("scipy.sparse")
    data, indices, indptr, b = map(numpy.ascontiguousarray, (data, indices, indptr, b))
    turned = library.csr_matrix((data, indices, indptr), shape=(b.size, b.size)).T.tocsr()
    return _solution(turned.data, turned.indices, turned.indptr, b)


def spsolve(data: Any, indices: Any, indptr: Any, b: Any, tol: float = 1e-6, reorder: int = 1) -> Array:
    """Return the solution of a system with a square matrix in compressed rows, by a direct method of SciPy's.

    Derivatives in the elements and in the right side are those of the system.

    Args:
        data, indices, indptr: the elements, their columns, and where the rows begin.
        b: the right side, a vector.
        tol, reorder: without effect.

    >>> spsolve(gt.array([2., 4.]), gt.array([0, 1]), gt.array([0, 1, 2]), gt.array([1., 1.])).tolist()
    [0.5, 0.25]
    """
    values, columns, begins, right = map(gt.array, (data, indices, indptr, b))
    if right.ndim != 1 or begins.shape != (right.shape[0] + 1,) or values.shape != columns.shape or values.ndim != 1:
        expected = "vectors: elements, columns, begins of rows, and a right side for each row"
        got = ", ".join(repr(x.aval) for x in (values, columns, begins, right))
        raise ShapeError(message("spsolve", expected, got, "Pass a square matrix."))
    if values.dtype != right.dtype:
        raise DtypeError(message("spsolve", "one dtype", f"{values.dtype} and {right.dtype}", "Convert one."))
    matrix = BCSR((values, columns, begins), shape=(right.shape[0],) * 2).to_bcoo()

    def solved(function: Callable[..., Any]) -> Callable[..., Array]:
        like = gt.ShapeDtypeStruct(right.shape, right.dtype)
        return lambda _, v: gt.pure_callback(function, like, gt.stop_gradient(values), columns, begins, v)

    return custom_linear_solve(lambda v: matrix @ v, right, solved(_solution), solved(_transposed))
