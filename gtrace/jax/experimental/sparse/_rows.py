"""`BCSR`: matrices in compressed rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

import gtrace as gt
from gtrace.extend import Array, ShapeError, message, tree
from gtrace.jax.experimental.sparse._axes import bcoo_broadcast_in_dim, bcoo_concatenate
from gtrace.jax.experimental.sparse._base import JAXSparse, batch_grid, refuse
from gtrace.jax.experimental.sparse._coordinates import BCOO, Info, batched_shape
from gtrace.jax.experimental.sparse._elements import (
    bcoo_eliminate_zeros,
    bcoo_extract,
    bcoo_fromdense,
    bcoo_sort_indices,
    bcoo_sum_duplicates,
    bcoo_todense,
)
from gtrace.jax.experimental.sparse._products import Numbers, bcoo_dot_general

__all__ = [
    "BCSR", "bcsr_broadcast_in_dim", "bcsr_concatenate", "bcsr_dot_general", "bcsr_extract", "bcsr_fromdense",
    "bcsr_sum_duplicates", "bcsr_todense",
]  # fmt: skip


class BCSR(JAXSparse):
    """A matrix that stores some elements, row after row. It may have batch axes before, and dense ones after.

    Args:
        args: the elements, of shape (*batch, n, *dense), their columns, of shape (*batch, n), and where the rows begin,
            of shape (*batch, rows + 1).
        shape: of the matrix.

    >>> m = BCSR.fromdense(gt.array([[0., 2.], [3., 0.]]))
    >>> m, m.indptr.tolist(), (m @ gt.array([1., 10.])).tolist()
    (BCSR(float32[2, 2], nse=2), [0, 1, 2], [20.0, 3.0])
    """

    indices: Any
    indptr: Any
    indices_sorted: bool
    unique_indices: bool

    def __init__(
        self, args: tuple[Any, Any, Any], *, shape: Sequence[int], indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> None:  # fmt: skip
        self.data, self.indices, self.indptr = map(gt.array, args)
        self.shape = tuple(int(size) for size in shape)
        self.indices_sorted, self.unique_indices = indices_sorted, unique_indices
        n = self.indices.ndim - 1
        fits = n >= 0 and self.data.ndim > n and self.indptr.ndim == n + 1 and self.data.shape[n] == self.nse
        fits = fits and len(shape) >= n + 2 and self.indptr.shape[-1] == self.shape[n] + 1
        if not (fits and self.data.shape[n + 1 :] == self.shape[n + 2 :]):
            expected = "elements, their columns, and where rows begin"
            got = f"shapes {self.data.shape}, {self.indices.shape} and {self.indptr.shape} for a matrix of {self.shape}"
            raise ShapeError(message("BCSR", expected, got, "Pass a shape that they fit."))

    @property
    def nse(self) -> int:
        """The number of stored elements, for each example of a batch."""
        return int(self.indices.shape[-1])

    @property
    def n_batch(self) -> int:
        """The number of batch axes."""
        return len(self.indices.shape) - 1

    @property
    def n_sparse(self) -> int:
        """The number of sparse axes, 2."""
        return 2

    @property
    def n_dense(self) -> int:
        """The number of dense axes."""
        return len(self.data.shape) - len(self.indices.shape)

    @classmethod
    def fromdense(
        cls, mat: Any, *, nse: int | None = None, index_dtype: Any = gt.int32, n_dense: int = 0, n_batch: int = 0
    ) -> BCSR:
        """Return a dense matrix with the elements that are not zero stored."""
        return bcsr_fromdense(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype)

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> BCSR:
        """Return a matrix in coordinates in compressed rows.

        >>> BCSR.from_bcoo(BCOO(([1., 2.], [[1, 0], [0, 1]]), shape=(2, 2))).indices.tolist()
        [1, 0]
        """
        if arr.n_sparse != 2:
            refuse("BCSR.from_bcoo", "two sparse axes", repr(arr), "Use update_layout.")
        arr = arr if arr.indices_sorted else bcoo_sort_indices(arr)
        rows = arr.indices[..., 0]
        batch = rows.shape[:-1]
        zero = gt.zeros((*batch, arr.shape[arr.n_batch] + 1), rows.dtype)
        places = (*[gt.broadcast_to(x, rows.shape) for x in batch_grid(batch)], rows + 1)
        begins = gt.numpy.cumsum(zero.at[places].add(1, mode="drop"), -1, dtype=rows.dtype)
        return cls(
            (arr.data, arr.indices[..., 1], begins), shape=arr.shape, indices_sorted=True,
            unique_indices=arr.unique_indices,
        )  # fmt: skip

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> BCSR:
        """Return a matrix of SciPy's."""
        if n_dense or n_batch:
            refuse("BCSR.from_scipy_sparse", "no batch and no dense axes", f"{n_batch} and {n_dense}", "Omit them.")
        found, kind = mat.tocsr(), index_dtype or numpy.int32
        return cls(
            (gt.array(found.data), gt.array(found.indices.astype(kind)), gt.array(found.indptr.astype(kind))),
            shape=found.shape,
        )

    def to_bcoo(self) -> BCOO:
        """Return the matrix in coordinates."""
        # an element's row is the number of rows that end at or before it; after all rows it is beyond the matrix
        ends = self.indptr[..., 1:]
        places = (*[gt.broadcast_to(x, ends.shape) for x in batch_grid(ends.shape[:-1])], ends)
        zero = gt.zeros((*ends.shape[:-1], self.nse), self.indices.dtype)
        rows = gt.numpy.cumsum(zero.at[places].add(1, mode="drop"), -1, dtype=self.indices.dtype)
        return BCOO(
            (self.data, gt.stack([rows, self.indices], -1)), shape=self.shape, indices_sorted=self.indices_sorted,
            unique_indices=self.unique_indices,
        )  # fmt: skip

    def todense(self) -> Array:
        """Return the dense matrix."""
        return bcoo_todense(self.to_bcoo())

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCSR:
        """Return the matrix with each place stored once.

        Args:
            nse: how many elements to store; it has to be given where values are not known.
            remove_zeros: store no zeros.
        """
        change = bcoo_eliminate_zeros if remove_zeros else bcoo_sum_duplicates
        return BCSR.from_bcoo(change(self.to_bcoo(), nse))

    def __matmul__(self, other: Any) -> Any:
        own: Any = self.to_bcoo()
        return own @ (other.to_bcoo() if isinstance(other, BCSR) else other)

    def __rmatmul__(self, other: Any) -> Any:
        own: Any = self.to_bcoo()
        return own.__rmatmul__(other)

    def __getitem__(self, key: Any) -> Any:
        found = self.to_bcoo()[key]
        return BCSR.from_bcoo(found) if isinstance(found, BCOO) and found.n_sparse == 2 else found


def _unflatten(info: Info, children: Any) -> BCSR:
    made = object.__new__(BCSR)
    made.data, made.indices, made.indptr = children
    made.shape, made.indices_sorted, made.unique_indices = info
    if all(isinstance(getattr(x, "shape", None), tuple) for x in children):
        n = len(made.indices.shape) - 1
        if n < 0:
            fix = "Give it a batch: fromdense(m, n_batch=1)."
            raise ShapeError(message("vmap", "a BCSR with a batch", f"one of shape {info.shape} without", fix))
        rest = len(made.data.shape) - n + 1
        made.shape = batched_shape(made.shape, len(made.shape) - rest, made.indices.shape[:n])
    return made


def _flatten(m: BCSR) -> tuple[tuple[Any, Any, Any], Info]:
    return (m.data, m.indices, m.indptr), Info(m.shape, m.indices_sorted, m.unique_indices)


tree.register_pytree_node(BCSR, _flatten, _unflatten)


def bcsr_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = gt.int32
) -> BCSR:
    """`BCSR.fromdense`."""
    return BCSR.from_bcoo(bcoo_fromdense(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype))


def bcsr_todense(mat: BCSR) -> Array:
    """`BCSR.todense`."""
    return mat.todense()


def bcsr_sum_duplicates(mat: BCSR, nse: int | None = None) -> BCSR:
    """Return the matrix with each place stored once."""
    return mat.sum_duplicates(nse, remove_zeros=False)


def bcsr_extract(indices: Any, indptr: Any, mat: Any) -> Array:
    """Return the elements of a dense matrix at the places of compressed rows.

    >>> bcsr_extract(gt.array([1, 0]), gt.array([0, 1, 2]), gt.array([[1., 2.], [3., 4.]])).tolist()
    [2.0, 3.0]
    """
    dense, places = gt.array(mat), gt.array(indices)
    blank = gt.zeros((*places.shape, *dense.shape[places.ndim + 1 :]), dense.dtype)
    found = BCSR((blank, places, indptr), shape=dense.shape).to_bcoo()
    return bcoo_extract(found, dense, assume_unique=True).data


def bcsr_dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Numbers, precision: Any = None, preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """`lax.dot_general` of matrices in compressed rows and dense arrays."""
    x, y = (m.to_bcoo() if isinstance(m, BCSR) else m for m in (lhs, rhs))
    return bcoo_dot_general(x, y, dimension_numbers=dimension_numbers, preferred_element_type=preferred_element_type)


def bcsr_broadcast_in_dim(mat: BCSR, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> BCSR:
    """`bcoo_broadcast_in_dim` of a matrix in compressed rows."""
    return BCSR.from_bcoo(bcoo_broadcast_in_dim(mat.to_bcoo(), shape=shape, broadcast_dimensions=broadcast_dimensions))


def bcsr_concatenate(operands: Sequence[BCSR], *, dimension: int) -> BCSR:
    """`bcoo_concatenate` of matrices in compressed rows."""
    return BCSR.from_bcoo(bcoo_concatenate([m.to_bcoo() for m in operands], dimension=dimension))
