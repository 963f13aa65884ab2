"""Decompositions of Hermitian matrices, which JAX makes Hermitian first: both halves of what it is given count."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from gtrace.extend import Array, ops, promote_arrays
from gtrace.numpy import linalg


def hermitian_mean(name: str, a: Any) -> Array:
    """Return the mean of matrices and their adjoints."""
    (x,) = promote_arrays(name, a, floating=True)
    other = ops.matrix_transpose(x)
    return (x + (ops.conj(other) if x.aval.complex else other)) / 2


def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    """Return the triangular factor of positive definite matrices, as ``gt.linalg.cholesky`` does.

    Args:
        symmetrize_input: factor the mean of a matrix and its adjoint; else only one half counts.

    >>> import gtrace.jax.numpy as jnp
    >>> jnp.linalg.cholesky(jnp.array([[4., 4.], [0., 5.]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    return linalg.cholesky(hermitian_mean("cholesky", a) if symmetrize_input else a, upper=upper)


def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> linalg.EighResult:  # noqa: N803
    """Return eigenvalues and eigenvectors of Hermitian matrices, as ``gt.linalg.eigh`` does.

    Args:
        UPLO: the half that counts, "L" (by default) or "U", if they are not made Hermitian.
        symmetrize_input: decompose the mean of a matrix and its adjoint.
    """
    return linalg.eigh(hermitian_mean("eigh", a) if symmetrize_input else a, "L" if UPLO is None else UPLO)


def eigvalsh(a: Any, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Array:  # noqa: N803
    """Return the eigenvalues of Hermitian matrices; the parameters are those of `eigh`."""
    return linalg.eigvalsh(hermitian_mean("eigvalsh", a) if symmetrize_input else a, "L" if UPLO is None else UPLO)


def _of_both_halves(name: str) -> Callable[..., Any]:
    """Return a function of ``gt.linalg`` that makes its matrices Hermitian if ``hermitian=True`` says that they are."""
    function = getattr(linalg, name)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(x, *args, **kwargs).arguments
        return function(hermitian_mean(name, x) if given.get("hermitian") else x, *args, **kwargs)

    return call


symmetric = {
    "cholesky": cholesky,
    "eigh": eigh,
    "eigvalsh": eigvalsh,
    **{name: _of_both_halves(name) for name in ("matrix_rank", "pinv", "svd")},
}
"""The functions by their names."""
