"""The names of ``jax.lax.linalg``."""

import enum
from typing import Any

from gtrace.extend import ArgumentError, Array, lift, message, ops
from gtrace.jax.adapt import namespace
from gtrace.jax.numpy._symmetric import cholesky as _cholesky
from gtrace.jax.numpy._symmetric import hermitian_mean
from gtrace.lax import linalg
from gtrace.numpy.linalg import svd
from gtrace.scipy import schur as triangular
from gtrace.scipy.schur import tridiagonal as tridiagonal


class EigImplementation(enum.Enum):
    """Which library computes eigenvalues: torch's, whatever it says."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


class EighImplementation(enum.Enum):
    """Which algorithm computes eigenvalues of Hermitian matrices: torch's, whatever it says."""

    QR = "QR"
    JACOBI = "Jacobi"
    QDWH = "QDWH"


class SvdAlgorithm(enum.Enum):
    """Which algorithm computes singular values: torch's, whatever it says."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"


def cholesky(x: Any, *, symmetrize_input: bool = True) -> Array:
    """Return the lower triangular factor of positive definite matrices, of their Hermitian mean by default."""
    return _cholesky(x, symmetrize_input=symmetrize_input)


def eigh(
    x: Any, *, lower: bool = True, symmetrize_input: bool = True, sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None, implementation: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the eigenvectors of Hermitian matrices, in columns, and the eigenvalues in ascending order.

    Args:
        lower: the half that counts, if they are not made Hermitian.
        symmetrize_input: decompose the mean of a matrix and its adjoint.
        sort_eigenvalues, implementation: ignored.
        subset_by_index: the range of the returned eigenvalues in that order.
    """
    given = hermitian_mean("eigh", x) if symmetrize_input else x
    return linalg.eigh(given, lower=lower, subset_by_index=subset_by_index)


def lu(x: Any) -> list[Array]:
    """``gt.lax.linalg.lu``, as a list."""
    return list(linalg.lu(x))


def schur(
    x: Any, *, compute_schur_vectors: bool = True, sort_eig_vals: bool = False, select_callable: Any = None
) -> list[Array]:
    """Return the triangular form of matrices, with blocks of 2 for pairs, and, if asked, the unitary matrices.

    Raises:
        ArgumentError: the eigenvalues are to be sorted.
    """
    if sort_eig_vals or select_callable is not None:
        raise ArgumentError(message("schur", "sort_eig_vals=False", "True", "Sort the eigenvalues of jnp.linalg.eig."))
    found = triangular.schur(x)
    return list(found) if compute_schur_vectors else [found[0]]


def hessenberg(a: Any) -> tuple[Array, Array]:
    """Return the Hessenberg form of matrices as LAPACK's gehrd has it: with the reflectors, and their factors."""
    return triangular.reflectors(a)


def qdwh(
    x: Any, *, is_hermitian: bool = False, max_iterations: Any = None, eps: Any = None, dynamic_shape: Any = None
) -> tuple[Array, Array, int, bool]:
    """Return the polar decomposition: a unitary matrix and a Hermitian one, whose product is x; by singular values.

    Returns:
        The two, 1 for the number of steps, and True: it has converged.

    Raises:
        ArgumentError: `dynamic_shape`.
    """
    if dynamic_shape is not None:
        raise ArgumentError(message("qdwh", "no dynamic_shape", repr(dynamic_shape), "Take a slice."))
    u, s, vh = svd(lift("qdwh", x), full_matrices=False)
    v = ops.conj(ops.matrix_transpose(vh)) if vh.aval.complex else ops.matrix_transpose(vh)
    return ops.matmul(u, vh), ops.matmul(v * ops.expand_dims(s, -2), vh), 1, True


__getattr__, __dir__ = namespace("jax.lax.linalg", linalg)
