"""The names of ``jax.scipy.linalg``: those of ``gtrace.scipy.linalg``, ``matrices`` and ``schur``."""

from typing import Any

from gtrace.jax.adapt import namespace
from gtrace.jax.numpy._symmetric import hermitian_mean
from gtrace.scipy import linalg, matrices
from gtrace.scipy import schur as _schur


def eigh(a: Any, b: Any = None, lower: bool = True, eigvals_only: bool = False) -> Any:
    """``gt.scipy.linalg.eigh`` of the mean of a matrix and its adjoint, which JAX decomposes.

    >>> from gtrace.jax.scipy.linalg import eigh
    >>> eigh(gt.array([[0., 2.], [0., 0.]]), eigvals_only=True)
    Array([-1.,  1.], dtype=float32)
    """
    return linalg.eigh(hermitian_mean("eigh", a), b, lower, eigvals_only)


_own = {"eigh": eigh}
del eigh  # the namespace gives it JAX's parameters
__getattr__, __dir__ = namespace("jax.scipy.linalg", _own, linalg, matrices, _schur)
