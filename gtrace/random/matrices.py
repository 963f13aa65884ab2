"""Samples that need matrix factorizations: correlated normal vectors, and orthogonal matrices."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from gtrace.core import ops
from gtrace.core.base.dtypes import COMPLEX
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.ops.ndarray_methods import diagonal
from gtrace.core.ops.operands import cast
from gtrace.core.ops.shape import as_int, as_sizes
from gtrace.core.trace.array import Array
from gtrace.core.trace.convert import lift
from gtrace.core.trace.promotion import as_dtype
from gtrace.core.trace.replayable import replayable
from gtrace.interop.aten import factorizations
from gtrace.interop.torch_functions import call_torch
from gtrace.random.continuous import draw_normal, float_dtype, normal
from gtrace.random.keys import fresh_key

__all__ = ["multivariate_normal", "orthogonal"]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype for which torch has decompositions."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@replayable
def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Any = None, dtype: Any = None, method: str = "cholesky"
) -> Array:
    """Return samples of the normal distribution with a mean and a covariance.

    Samples are differentiable in both, for positive definite covariances.

    Args:
        mean: (..., n).
        cov: (..., n, n); only its symmetric part counts.
        shape: the shape of the result without its last axis; None: the broadcast leading axes of `mean` and `cov`.
        dtype: floating; float32 by default.
        method: the factorization of the covariance. "cholesky" is fastest. "eigh" and "svd" also allow singular
            covariances. A matrix that is not a covariance gives NaN, except with "svd", which takes absolute values of
            its eigenvalues.

    Raises:
        ArgumentError: `method` or the key is invalid.
        ShapeError, DtypeError: wrong arguments.

    >>> cov = gt.array([[2., 1.], [1., 2.]])
    >>> x = gt.random.multivariate_normal(gt.random.key(0), gt.zeros(2), cov, (5000,))
    >>> gt.round((x.T @ x) / 5000)
    Array([[2., 1.],
           [1., 2.]], dtype=float32)
    """
    kind = float_dtype("multivariate_normal", dtype)
    if method not in ("cholesky", "eigh", "svd"):
        expected = "cholesky, eigh or svd as method"
        raise ArgumentError(message("multivariate_normal", expected, repr(method), "Pass one of them."))
    center, matrix = (cast(lift("multivariate_normal", z), _wide(kind)) for z in (mean, cov))
    n = center.shape[-1] if center.ndim else None
    if matrix.shape[-2:] != (n, n):
        got = f"{center.aval!r} and {matrix.aval!r}"
        raise ShapeError(
            message("multivariate_normal", "a mean (..., n) and a covariance (..., n, n)", got, "Fix one.")
        )
    given = None if shape is None else as_sizes("multivariate_normal", shape)
    try:
        common = numpy.broadcast_shapes(center.shape[:-1], matrix.shape[:-2])
        sizes = common if given is None else given
        fits = numpy.broadcast_shapes(common, sizes) == sizes
    except ValueError:
        fits = False
    if not fits:
        got = f"{center.aval!r} and {matrix.aval!r} for {given}"
        fix = "The shape must cover that of the parameters."
        raise ShapeError(message("multivariate_normal", "parameters that broadcast to the shape", got, fix))
    found = fresh_key("multivariate_normal", key)
    factor = _factor(matrix, method)
    noise = draw_normal(found, (*sizes, center.shape[-1]), kind)
    moved = ops.squeeze(factor @ ops.expand_dims(cast(noise, _wide(kind)), -1), -1)
    return cast(center + moved, kind)


def _factor(cov: Array, method: str) -> Array:
    """Return a matrix whose product with its transpose is the covariance."""
    found = None
    if method == "cholesky":
        found = factorizations.cholesky((cov + ops.matrix_transpose(cov)) * 0.5)
    return call_torch("multivariate_normal", _torch_factor, cov, method) if found is None else found


def _torch_factor(cov: torch.Tensor, method: str) -> torch.Tensor:
    cov = (cov + cov.mT) / 2
    if method == "cholesky":
        factor, info = torch.linalg.cholesky_ex(cov)
        return torch.where(info[..., None, None] == 0, factor, torch.nan)
    if method == "svd":
        u, s, _ = torch.linalg.svd(cov)
        return u * torch.sqrt(s).unsqueeze(-2)
    values, vectors = torch.linalg.eigh(cov)
    # rounding turns zeros into negative numbers
    bound = torch.linalg.vector_norm(values, dim=-1, keepdim=True) * (torch.finfo(cov.dtype).eps * cov.shape[-1])
    roots = torch.sqrt(torch.where(values.abs() <= bound, values.abs(), values))
    return vectors * roots.unsqueeze(-2)


@replayable
def orthogonal(key: Any, n: int, shape: Any = (), dtype: Any = None, m: int | None = None) -> Array:
    """Return orthogonal matrices, uniformly distributed (Mezzadri, 2007).

    Args:
        n: the number of rows.
        shape: of the stack of matrices.
        dtype: floating; float32 by default. Complex matrices are unitary.
        m: the number of columns; None: n. If n < m, the rows are orthonormal, otherwise the columns.

    Returns:
        shape + (n, m).

    Raises:
        ArgumentError, DtypeError, ShapeError: wrong arguments.

    >>> q = gt.random.orthogonal(gt.random.key(0), 3)
    >>> bool((abs(q @ q.T - gt.eye(3)) < 1e-5).all())
    True
    """
    sizes, wanted = as_sizes("orthogonal", shape), None if dtype is None else as_dtype(dtype)
    kind = wanted if wanted in COMPLEX else float_dtype("orthogonal", wanted)
    rows = as_int("orthogonal", "n", n)
    columns = rows if m is None else as_int("orthogonal", "m", m)
    if rows < 0 or columns < 0:
        raise ShapeError(message("orthogonal", "sizes >= 0", f"{rows} and {columns}", "Pass non-negative integers."))
    noise = cast(normal(key, (*sizes, max(rows, columns), min(rows, columns)), kind), _wide(kind))
    q, r = factorizations.qr(noise, "reduced") or call_torch("orthogonal", torch.linalg.qr, noise)
    # the signs of the factors depend on the algorithm; a positive diagonal makes the distribution uniform
    q = cast(q * ops.expand_dims(ops.sign(diagonal(r, 0, -2, -1)), -2), kind)
    return ops.matrix_transpose(q) if rows < columns else q
