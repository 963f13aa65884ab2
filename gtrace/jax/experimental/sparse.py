"""Of ``jax.experimental.sparse``, `BCOO`: arrays of two dimensions by the places of their elements.

Products with dense arrays, and derivatives in the stored elements, touch these alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy

import gtrace as gt
from gtrace.extend import ArgumentError, Array, ShapeError, message, tree

__all__ = ["BCOO", "BCSR", "JAXSparse", "bcoo_fromdense", "bcoo_todense", "sparsify"]


class JAXSparse:
    """The base class of sparse matrices."""


class BCSR(JAXSparse):
    """Matrices in compressed rows, which there are not.

    Raises:
        ArgumentError: one is made.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        raise ArgumentError(message("BCSR", "a matrix in coordinates", "compressed rows", "Use BCOO."))


class BCOO(JAXSparse):
    """A matrix that stores some elements. The others are zero, and several elements at one index are added.

    Args:
        args: the elements, of shape (n,), and their places, integers of shape (n, 2).
        shape: of the matrix.

    >>> import gtrace.jax.numpy as jnp
    >>> m = BCOO.fromdense(jnp.array([[0., 2.], [0., 3.]]))
    >>> m.nse, (m @ jnp.array([1., 10.])).tolist()
    (2, [20.0, 30.0])
    """

    def __init__(self, args: tuple[Any, Any], *, shape: Any, **hints: Any):
        self.data, self.indices = args
        self.shape = tuple(shape)
        if len(self.shape) != 2:
            fix = "Use dense arrays, or gt.segments."
            raise ShapeError(message("BCOO", "a matrix", f"a shape {self.shape}", fix))

    @property
    def nse(self) -> int:
        """The number of stored elements."""
        return int(self.data.shape[0])

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions, 2."""
        return 2

    @property
    def size(self) -> int:
        """The number of elements of the dense matrix."""
        return self.shape[0] * self.shape[1]

    @property
    def T(self) -> BCOO:  # noqa: N802 - NumPy's name
        """The transposed matrix."""
        return BCOO((self.data, self.indices[:, ::-1]), shape=self.shape[::-1])

    def transpose(self, axes: Any = None) -> BCOO:
        """Return the transposed matrix."""
        return self if axes is not None and tuple(axes) == (0, 1) else self.T

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, **options: Any) -> BCOO:
        """Return a dense matrix with the elements that are not zero stored.

        Args:
            nse: how many places there are for elements; where values are not known, it has to be given.
        """
        dense = gt.array(mat)
        given = {} if nse is None else {"size": nse, "fill_value": 0}
        rows, columns = gt.numpy.nonzero(dense, **given)
        values = dense[rows, columns]
        if nse is not None:
            used = gt.arange(nse) < gt.numpy.count_nonzero(dense)
            values = gt.where(used, values, 0)
        return cls((values, gt.stack([rows, columns], 1)), shape=dense.shape)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, **options: Any) -> BCOO:
        """Return a matrix of SciPy's."""
        found = mat.tocoo()
        places = numpy.stack([found.row, found.col], 1).astype(index_dtype or numpy.int32)
        return cls((gt.array(found.data), gt.array(places)), shape=found.shape)

    def todense(self) -> Array:
        """Return the matrix as an array."""
        zero = gt.zeros(self.shape, self.data.dtype)
        return zero.at[self.indices[:, 0], self.indices[:, 1]].add(self.data)

    def __matmul__(self, other: Any) -> Array:
        dense = gt.array(other)
        if dense.ndim not in (1, 2) or dense.shape[0] != self.shape[1]:
            expected = f"a vector or matrix with {self.shape[1]} rows"
            raise ShapeError(message("BCOO @", expected, repr(dense.aval), "Transpose or reshape it."))
        taken = dense[self.indices[:, 1]]
        scale = self.data if dense.ndim == 1 else self.data[:, None]
        return gt.segments.segment_sum(taken * scale, self.indices[:, 0], self.shape[0])

    def __rmatmul__(self, other: Any) -> Array:
        dense = gt.array(other)
        product = self.T @ (dense if dense.ndim == 1 else dense.mT)
        return product if dense.ndim == 1 else product.mT

    def __mul__(self, other: Any) -> BCOO:
        scale = gt.array(other)
        if scale.ndim:
            scale = gt.broadcast_to(scale, self.shape)[self.indices[:, 0], self.indices[:, 1]]
        return BCOO((self.data * scale, self.indices), shape=self.shape)

    __rmul__ = __mul__

    def __neg__(self) -> BCOO:
        return BCOO((-self.data, self.indices), shape=self.shape)

    def sum(self, axis: int | None = None) -> Array:
        """Return the sum of all elements, or along an axis, as a dense array."""
        if axis is None:
            return gt.sum(self.data)
        if axis not in (0, 1, -1, -2):
            raise ArgumentError(message("BCOO.sum", "an axis of a matrix", repr(axis), "Pass 0 or 1."))
        kept = 1 - axis % 2
        return gt.segments.segment_sum(self.data, self.indices[:, kept], self.shape[kept])

    def __repr__(self) -> str:
        return f"BCOO({self.dtype}{list(self.shape)}, nse={self.nse})"


tree.register_pytree_node(
    BCOO, lambda m: ((m.data, m.indices), m.shape), lambda shape, children: BCOO(tuple(children), shape=shape)
)


def bcoo_fromdense(mat: Any, *, nse: int | None = None, **options: Any) -> BCOO:
    """`BCOO.fromdense`."""
    return BCOO.fromdense(mat, nse=nse)


def bcoo_todense(mat: BCOO) -> Array:
    """`BCOO.todense`."""
    return mat.todense()


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., NoReturn]:
    """Return a function that refuses to be called: dense functions do not take sparse matrices here."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> NoReturn:
        fix = "Use the methods of BCOO, or its todense()."
        raise ArgumentError(message("sparsify", "functions of dense arrays", "a function of sparse ones", fix))

    return call
