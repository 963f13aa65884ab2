"""What all sparse arrays have: the base class, errors, and the grids of places that the functions compute with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, Self

import numpy

import gtrace as gt
from gtrace.extend import ArgumentError, Array, ShapeError, message

__all__ = ["JAXSparse", "SparseEfficiencyError", "SparseEfficiencyWarning"]


class SparseEfficiencyError(ValueError):
    """A layout would store many zeros."""


class SparseEfficiencyWarning(UserWarning):
    """A layout stores many zeros."""


def refuse(name: str, expected: str, got: str, fix: str = "Use todense().") -> NoReturn:
    """Raise, because there is no sparse result.

    Raises:
        ArgumentError: always.
    """
    raise ArgumentError(message(f"sparse.{name}", expected, got, fix))


class JAXSparse:
    """The base class of sparse arrays.

    Attributes:
        shape: of the dense array that it stands for.
        data: the stored elements.
        nse: the number of stored elements, for each example of a batch.
        n_batch, n_dense: the number of batch axes, and of dense ones.
    """

    shape: tuple[int, ...]
    data: Any
    nse: Any
    n_batch: Any
    n_dense: Any
    __hash__ = None  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """The number of elements of the dense array."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def T(self) -> Self:  # noqa: N802 - NumPy's name
        """The array with its axes reversed."""
        return self.transpose()

    def transpose(self, axes: Sequence[int] | None = None) -> Self:
        """Return the array with its axes in another order."""
        refuse("transpose", "a class that can be transposed", type(self).__name__, "Use BCOO.")

    def todense(self) -> Array:
        """Return the dense array."""
        raise NotImplementedError

    def block_until_ready(self) -> Self:
        """Wait until the values are computed."""
        self.data.block_until_ready()
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        more = "".join(f", {name}={n}" for name in ("n_batch", "n_dense") if (n := getattr(self, name)))
        return f"{type(self).__name__}({self.dtype}{list(self.shape)}, nse={self.nse}{more})"

    def _refuse_order(self, other: Any) -> NoReturn:
        refuse("comparison", "dense arrays", f"one of class {type(self).__name__}")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse_order


def is_sparse(x: Any) -> bool:
    """Whether something is a sparse array."""
    return isinstance(x, JAXSparse)


def counts(name: str, ndim: int, n_batch: int, n_dense: int) -> int:
    """Return the number of sparse dimensions.

    Raises:
        ShapeError: there are not that many dimensions.
    """
    if n_batch < 0 or n_dense < 0 or n_batch + n_dense > ndim:
        got = f"n_batch={n_batch} and n_dense={n_dense}"
        raise ShapeError(message(f"sparse.{name}", f"at most {ndim} dimensions in all", got, "Pass smaller numbers."))
    return ndim - n_batch - n_dense


def along(sizes: Sequence[int], axis: int, after: int) -> Array:
    """Return the places along one of several axes, with axes of size 1 for the others and for `after` more."""
    shape = [size if k == axis else 1 for k, size in enumerate(sizes)] + [1] * after
    return gt.arange(sizes[axis], dtype=gt.int32).reshape(shape)


def batch_grid(sizes: Sequence[int], after: int = 1) -> list[Array]:
    """Return, for each batch axis, the places along it, which broadcast against arrays of `after` more axes."""
    return [along(sizes, k, after) for k in range(len(sizes))]


def broadcast_sizes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which several broadcast."""
    return numpy.broadcast_shapes(*map(tuple, shapes))


def inside(indices: Array, sizes: Sequence[int]) -> Array:
    """Whether each stored element lies within the array: the others only fill up."""
    if not len(sizes):
        return gt.ones(indices.shape[:-1], gt.bool)
    return gt.numpy.all(indices < gt.array(numpy.array(sizes, numpy.int32)), -1)


def fill_of(sizes: Sequence[int], indices: Array) -> Array:
    """Return the place beyond an array that stands for no element, of the dtype of `indices`."""
    return gt.array(numpy.array(sizes, numpy.int32)).astype(indices.dtype)


def widened(x: Array, count: int) -> Array:
    """Return an array with axes of size 1 at its end."""
    return x.reshape((*x.shape, *[1] * count))


def columns(indices: Array) -> list[Array]:
    """Return the places along each sparse axis."""
    return [indices[..., k] for k in range(indices.shape[-1])]


def repeated(x: Array, batch: Sequence[int], n_batch: int) -> Array:
    """Return an array with its batch axes at their full sizes."""
    return gt.broadcast_to(x, (*batch, *x.shape[n_batch:]))
