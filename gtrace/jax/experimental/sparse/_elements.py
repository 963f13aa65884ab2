"""From dense arrays to stored elements and back; the same place stored twice; the order of places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gtrace as gt
from gtrace import lax
from gtrace.extend import Array
from gtrace.jax.experimental.sparse._base import (
    batch_grid,
    broadcast_sizes,
    columns,
    counts,
    fill_of,
    inside,
    repeated,
    widened,
)
from gtrace.jax.experimental.sparse._coordinates import BCOO, like

__all__ = [
    "bcoo_eliminate_zeros", "bcoo_extract", "bcoo_fromdense", "bcoo_sort_indices", "bcoo_sum_duplicates",
    "bcoo_todense",
]  # fmt: skip


def bcoo_todense(mat: BCOO) -> Array:
    """Return the dense array.

    >>> bcoo_todense(BCOO(([1., 2.], [[0], [0]]), shape=(2,))).tolist()
    [3.0, 0.0]
    """
    batch, _, _ = mat.parts
    zero = gt.zeros(mat.shape, mat.data.dtype)
    places = (*batch_grid(batch), *columns(mat.indices))
    stored = broadcast_sizes(*[x.shape for x in places], (mat.nse,))
    data = gt.broadcast_to(mat.data, (*stored, *mat.data.shape[mat.n_batch + 1 :]))
    if not places:
        return gt.sum(data, 0)
    return zero.at[tuple([gt.broadcast_to(x, stored) for x in places])].add(data, mode="drop")


def taken(arr: Array, indices: Array) -> Array:
    """Return the elements of a dense array at places; zeros for places beyond it."""
    n = indices.ndim - 2
    places = (*batch_grid(arr.shape[:n]), *columns(indices))
    stored = (*arr.shape[:n], indices.shape[-2])
    if not places:
        return gt.broadcast_to(arr, (*stored, *arr.shape))
    found = arr.at[tuple([gt.broadcast_to(x, stored) for x in places])].get(mode="fill", fill_value=0)
    return gt.where(widened(inside(indices, arr.shape[n : n + indices.shape[-1]]), found.ndim - n - 1), found, 0)


def bcoo_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = gt.int32
) -> BCOO:
    """Return a dense array with the elements that are not zero stored.

    Args:
        nse: how many places there are for elements; where values are not known, it has to be given.
        n_batch, n_dense: how many of the first axes are a batch, and how many of the last ones are dense.

    >>> bcoo_fromdense(gt.eye(2), n_batch=1)
    BCOO(float32[2, 2], nse=1, n_batch=1)
    """
    dense = gt.array(mat)
    n_sparse = counts("bcoo_fromdense", dense.ndim, n_batch, n_dense)
    batch, sizes = dense.shape[:n_batch], dense.shape[n_batch : n_batch + n_sparse]
    used = gt.numpy.any(dense != 0, tuple(range(n_batch + n_sparse, dense.ndim))) if n_dense else dense != 0
    flat = used.reshape((*batch, -1)) if dense.size else gt.zeros((*batch, 0), gt.bool)
    count = gt.sum(flat, -1, dtype=gt.int32)
    if nse is None:
        nse = int(gt.numpy.max(count)) if count.size else 0

    def first(row: Array) -> Array:
        found: Array = gt.numpy.nonzero(row, size=nse, fill_value=flat.shape[-1])[0]
        return found

    for _ in range(n_batch):
        first = gt.vmap(first)
    place = first(flat) if flat.size else gt.zeros((*batch, nse), gt.int32)
    real = gt.arange(nse) < count[..., None]
    found = [gt.where(real, x, size) for x, size in zip(unravelled(place, sizes), sizes, strict=True)]
    indices = gt.stack(found, -1) if found else gt.zeros((*batch, nse, 0), gt.int32)
    indices = indices.astype(index_dtype)
    data = gt.where(widened(real, n_dense), taken(dense, indices), 0)
    return BCOO((data, indices), shape=dense.shape, indices_sorted=True, unique_indices=True)


def unravelled(place: Array, sizes: Sequence[int]) -> list[Array]:
    """Return the places along axes of these sizes, of places in the flat array."""
    found = []
    for size in reversed(sizes):
        found.append(place % max(size, 1))
        place = place // max(size, 1)
    return found[::-1]


def _ordered(indices: Array, sizes: Sequence[int]) -> tuple[Array, Array, Array]:
    """Return places in lexicographic order, those beyond the array last; which come from where; and which are new."""
    fill = fill_of(sizes, indices)
    clean = gt.where(inside(indices, sizes)[..., None], indices, fill)
    origin = gt.broadcast_to(gt.arange(indices.shape[-2], dtype=gt.int32), indices.shape[:-1])
    *found, order = lax.sort((*columns(clean), origin), indices.ndim - 2, num_keys=len(sizes))
    ordered = gt.stack(found, -1)
    differs = gt.numpy.any(ordered[..., 1:, :] != ordered[..., :-1, :], -1)
    return ordered, order, gt.numpy.concatenate([gt.ones((*differs.shape[:-1], 1), gt.bool), differs], -1)


def _reordered(data: Array, order: Array, n_batch: int) -> Array:
    """Return stored elements in another order."""
    batch = broadcast_sizes(data.shape[:n_batch], order.shape[:n_batch])
    full = gt.broadcast_to(order, (*batch, order.shape[-1]))
    return repeated(data, batch, n_batch)[(*batch_grid(batch), full)]


def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """Return the array with its places in lexicographic order.

    >>> bcoo_sort_indices(BCOO(([1., 2.], [[3], [0]]), shape=(4,))).data.tolist()
    [2.0, 1.0]
    """
    if not mat.n_sparse or not mat.nse:
        return mat
    origin = gt.broadcast_to(gt.arange(mat.nse, dtype=gt.int32), mat.indices.shape[:-1])
    *found, order = lax.sort((*columns(mat.indices), origin), mat.n_batch, num_keys=mat.n_sparse)
    data = _reordered(mat.data, order, mat.n_batch)
    return BCOO((data, gt.stack(found, -1)), shape=mat.shape, indices_sorted=True, unique_indices=mat.unique_indices)


def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None) -> BCOO:
    """Return the array with each place stored once, and the places in lexicographic order.

    Args:
        nse: how many elements to store: more are filled up, and those that do not fit are dropped. It has to be given
            where values are not known.

    >>> m = BCOO(([1., 2., 3.], [[1], [0], [1]]), shape=(2,))
    >>> bcoo_sum_duplicates(m).data.tolist()
    [2.0, 4.0]
    """
    batch, sizes, dense = mat.parts
    n = mat.n_batch
    if not sizes:
        data = gt.sum(mat.data, n, keepdims=True)
        most = 1 if nse is None else nse
        data = gt.numpy.concatenate([data, gt.zeros((*data.shape[:n], most, *dense), data.dtype)], n)
        data = data[(*[slice(None)] * n, slice(most))]
        indices = gt.zeros((*mat.indices.shape[:n], most, 0), mat.indices.dtype)
        return BCOO((data, indices), shape=mat.shape, indices_sorted=True, unique_indices=True)
    if not mat.nse:
        return padded(mat, nse or 0)
    ordered, order, new = _ordered(mat.indices, sizes)
    group = gt.numpy.cumsum(new, -1, dtype=gt.int32) - 1
    if nse is None:
        used = gt.sum(gt.logical_and(new, inside(ordered, sizes)), -1)
        nse = int(gt.numpy.max(used)) if used.size else 0
    own = mat.indices.shape[:n]
    fill = fill_of(sizes, ordered)
    indices = gt.broadcast_to(fill, (*own, nse, len(sizes)))
    indices = indices.at[(*batch_grid(own), group)].set(ordered, mode="drop")
    data = _reordered(mat.data, order, n)
    batch = data.shape[:n]
    target = (*batch_grid(batch), gt.broadcast_to(group, (*batch, mat.nse)))
    summed = gt.zeros((*batch, nse, *dense), data.dtype).at[target].add(data, mode="drop")
    return BCOO((summed, indices), shape=mat.shape, indices_sorted=True, unique_indices=True)


def padded(mat: BCOO, nse: int) -> BCOO:
    """Return the array with places for more elements; those are beyond it."""
    n, extra = mat.n_batch, nse - mat.nse
    if extra <= 0:
        return mat
    zero = gt.zeros((*mat.data.shape[:n], extra, *mat.data.shape[n + 1 :]), mat.data.dtype)
    fill = fill_of(mat.parts[1], mat.indices)
    fill = gt.broadcast_to(fill, (*mat.indices.shape[:n], extra, mat.n_sparse))
    data = gt.numpy.concatenate([mat.data, zero], n)
    return like(mat, data, gt.numpy.concatenate([mat.indices, fill], n))


def bcoo_eliminate_zeros(mat: BCOO, nse: int | None = None) -> BCOO:
    """Return the array with each place stored once, and no zeros stored.

    >>> bcoo_eliminate_zeros(BCOO(([0., 2.], [[1], [0]]), shape=(2,)))
    BCOO(float32[2], nse=1)
    """
    n = mat.n_batch
    zero = gt.numpy.all(mat.data == 0, tuple(range(n + 1, mat.data.ndim))) if mat.n_dense else mat.data == 0
    shared = tuple(k for k, size in enumerate(mat.indices.shape[:n]) if size == 1)
    if shared:  # the places of several examples go only if all of them have zeros there
        zero = gt.numpy.all(zero, shared, keepdims=True)
    fill = fill_of(mat.parts[1], mat.indices)
    indices = gt.where(zero[..., None], fill, mat.indices)
    return bcoo_sum_duplicates(BCOO((mat.data, indices), shape=mat.shape), nse)


def bcoo_extract(sparr: BCOO, arr: Any, *, assume_unique: bool | None = None) -> BCOO:
    """Return the elements of a dense array at the places of a sparse one.

    Args:
        assume_unique: no place occurs twice; by default what the array says. Else an element counts once.

    >>> m = BCOO(([1., 2.], [[1], [1]]), shape=(2,))
    >>> bcoo_extract(m, gt.array([5., 7.])).todense().tolist()
    [0.0, 7.0]
    """
    data = taken(gt.array(arr), sparr.indices)
    unique = sparr.unique_indices if assume_unique is None else assume_unique
    if not unique and sparr.nse:
        n = sparr.n_batch
        if sparr.n_sparse:
            _, order, new = _ordered(sparr.indices, sparr.parts[1])
            once = gt.zeros(new.shape, gt.bool).at[(*batch_grid(new.shape[:n]), order)].set(new)
        else:
            once = gt.broadcast_to(gt.arange(sparr.nse) == 0, sparr.indices.shape[:-1])
        data = gt.where(widened(once, data.ndim - n - 1), data, 0)
    return like(sparr, data)
