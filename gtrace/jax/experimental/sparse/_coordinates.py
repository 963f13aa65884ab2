"""`BCOO`: arrays by the places of their elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy

import gtrace as gt
from gtrace.extend import Array, ShapeError, message, tree
from gtrace.jax.experimental.sparse._base import JAXSparse, broadcast_sizes

__all__ = ["BCOO"]


class Info(NamedTuple):
    """What a sparse array is beside its arrays."""

    shape: tuple[int, ...]
    indices_sorted: bool
    unique_indices: bool


class BCOO(JAXSparse):
    """An array that stores some elements. The others are zero, and several elements at one place are added.

    The first axes may be a batch, and the last ones dense: then each stored element is an array.

    Args:
        args: the elements, of shape (*batch, n, *dense), and their places, integers of shape (*batch, n, axes).
            Axes of the batch may have size 1 there. A place beyond the array means that the element does not count.
        shape: of the array: those of the batch, of the sparse and of the dense axes.
        indices_sorted: the places are in lexicographic order.
        unique_indices: no place occurs twice.

    >>> import gtrace.jax.numpy as jnp
    >>> m = BCOO.fromdense(jnp.array([[0., 2.], [0., 3.]]))
    >>> m, (m @ jnp.array([1., 10.])).tolist()
    (BCOO(float32[2, 2], nse=2), [20.0, 30.0])
    """

    indices: Any
    indices_sorted: bool
    unique_indices: bool

    def __init__(
        self, args: tuple[Any, Any], *, shape: Sequence[int], indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> None:  # fmt: skip
        self.data, self.indices = map(gt.array, args)
        self.shape = tuple(int(size) for size in shape)
        self.indices_sorted, self.unique_indices = indices_sorted, unique_indices
        self._check()

    def _check(self) -> None:
        data, indices, shape = self.data.shape, self.indices.shape, self.shape
        n, sparse = len(indices) - 2, indices[-1] if indices else 0
        fits = n >= 0 and len(data) > n and n + sparse <= len(shape) and data[n] == indices[n]
        fits = fits and data[n + 1 :] == shape[n + sparse :]
        for own in (data, indices):
            fits = fits and all(a in (1, b) for a, b in zip(own[: max(n, 0)], shape, strict=False))
        if not fits:
            expected = "elements of shape (*batch, n, *dense) and places of shape (*batch, n, axes)"
            got = f"shapes {data} and {indices} for an array of shape {shape}"
            raise ShapeError(message("BCOO", expected, got, "Pass a shape that they fit."))

    @property
    def nse(self) -> int:
        """The number of stored elements, for each example of a batch."""
        return int(self.indices.shape[-2])

    @property
    def n_batch(self) -> int:
        """The number of batch axes."""
        return len(self.indices.shape) - 2

    @property
    def n_sparse(self) -> int:
        """The number of sparse axes."""
        return int(self.indices.shape[-1])

    @property
    def n_dense(self) -> int:
        """The number of dense axes."""
        return len(self.data.shape) - 1 - self.n_batch

    @property
    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The sizes of the batch, of the sparse and of the dense axes."""
        n, k = self.n_batch, self.n_batch + self.n_sparse
        return self.shape[:n], self.shape[n:k], self.shape[k:]

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(self.shape[0]))

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None, n_dense: int = 0, n_batch: int = 0) -> BCOO:
        """Return a matrix of SciPy's."""
        found = mat.tocoo()
        places = numpy.stack([found.row, found.col], 1).astype(index_dtype or numpy.int32)
        made = cls((gt.array(found.data), gt.array(places)), shape=found.shape)
        return made.update_layout(n_batch=n_batch, n_dense=n_dense)

    # methods that `_methods` gives it
    fromdense: Any
    todense: Any
    transpose: Any
    update_layout: Any
    sum_duplicates: Any
    sort_indices: Any
    sum: Any
    reshape: Any
    astype: Any
    __getitem__: Any


def like(mat: BCOO, data: Array, indices: Array | None = None, shape: Sequence[int] | None = None) -> BCOO:
    """Return an array with other elements at the same places, or with other places in the same order.

    Args:
        indices, shape: by default those of `mat`.
    """
    own = mat.indices if indices is None else indices
    return BCOO(
        (data, own), shape=mat.shape if shape is None else shape, indices_sorted=mat.indices_sorted,
        unique_indices=mat.unique_indices,
    )  # fmt: skip


def _flatten(m: BCOO) -> tuple[tuple[Any, Any], Info]:
    return (m.data, m.indices), Info(m.shape, m.indices_sorted, m.unique_indices)


def batched_shape(shape: tuple[int, ...], before: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a sparse array whose batch was mapped over, or grew by an axis in front.

    Args:
        shape: before, with `before` batch axes.
        sizes: of the batch axes of its arrays; 1 where they broadcast.
    """
    known = shape[:before][max(before - len(sizes), 0) :]
    known = (*[1] * (len(sizes) - len(known)), *known)
    return (*[b if a == 1 else a for a, b in zip(sizes, known, strict=True)], *shape[before:])


def _unflatten(info: Info, children: Any) -> BCOO:
    made = object.__new__(BCOO)
    made.data, made.indices = children
    made.shape, made.indices_sorted, made.unique_indices = info
    if all(isinstance(getattr(x, "shape", None), tuple) for x in children):  # else they are no arrays, but axes, say
        data, indices = (x.shape for x in children)
        n = len(indices) - 2
        if n < 0:
            fix = "Give it a batch: update_layout(n_batch=1)."
            raise ShapeError(message("vmap", "a BCOO with a batch", f"one of shape {info.shape} without", fix))
        rest = indices[-1] + len(data) - 1 - n
        sizes = broadcast_sizes(data[:n], indices[:n])
        made.shape = batched_shape(made.shape, len(made.shape) - rest, sizes)
    return made


tree.register_pytree_node(BCOO, _flatten, _unflatten)
