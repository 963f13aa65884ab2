"""The axes of sparse arrays: their order, kinds, sizes and sums, and parts of arrays."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import gtrace as gt
from gtrace import lax
from gtrace.extend import Array, ShapeError, message
from gtrace.jax.experimental.sparse._base import (
    SparseEfficiencyError,
    SparseEfficiencyWarning,
    batch_grid,
    broadcast_sizes,
    columns,
    counts,
    fill_of,
    inside,
    refuse,
    repeated,
    widened,
)
from gtrace.jax.experimental.sparse._coordinates import BCOO, like
from gtrace.jax.experimental.sparse._elements import bcoo_sum_duplicates, padded, unravelled

__all__ = [
    "bcoo_broadcast_in_dim", "bcoo_concatenate", "bcoo_dynamic_slice", "bcoo_reduce_sum", "bcoo_reshape", "bcoo_rev",
    "bcoo_slice", "bcoo_squeeze", "bcoo_transpose", "bcoo_update_layout",
]  # fmt: skip


def _kinds(name: str, mat: BCOO, order: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return an order of axes as one of each kind.

    Raises:
        ArgumentError: it mixes the kinds.
    """
    n, k = mat.n_batch, mat.n_batch + mat.n_sparse
    order = [operator.index(x) for x in order]
    groups = order[:n], order[n:k], order[k:]
    if [sorted(g) for g in groups] != [list(range(n)), list(range(n, k)), list(range(k, mat.ndim))]:
        expected = "an order of axes within the batch, the sparse and the dense ones"
        refuse(name, expected, f"{tuple(order)} for {mat!r}", "Use update_layout.")
    return groups[0], [x - n for x in groups[1]], [x - k for x in groups[2]]


def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """Return the array with its axes in another order, which may not mix batch, sparse and dense axes.

    >>> bcoo_transpose(BCOO(([1.], [[0, 2]]), shape=(2, 3)), permutation=(1, 0)).indices.tolist()
    [[2, 0]]
    """
    batch, sparse, dense = _kinds("bcoo_transpose", mat, permutation)
    n = mat.n_batch
    data = mat.data.transpose([*batch, n, *[n + 1 + k for k in dense]])
    indices = mat.indices.transpose([*batch, n, n + 1])
    same = sparse == sorted(sparse)
    if not same:
        indices = gt.stack([indices[..., k] for k in sparse], -1)
    return BCOO(
        (data, indices), shape=[mat.shape[k] for k in permutation], indices_sorted=mat.indices_sorted and same,
        unique_indices=mat.unique_indices,
    )  # fmt: skip


def bcoo_squeeze(arr: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """Return the array without some axes of size 1.

    >>> bcoo_squeeze(BCOO(([1.], [[0, 2]]), shape=(1, 3)), dimensions=(0,))
    BCOO(float32[3], nse=1)
    """
    gone = sorted({k % arr.ndim for k in dimensions})
    if any(arr.shape[k] != 1 for k in gone):
        raise ShapeError(message("sparse.bcoo_squeeze", "axes of size 1", f"{gone} of shape {arr.shape}", "Omit them."))
    n, k = arr.n_batch, arr.n_batch + arr.n_sparse
    batch = tuple([d for d in gone if d < n])
    kept = [d for d in range(arr.n_sparse) if d + n not in gone]
    data = arr.data
    if len(kept) < arr.n_sparse:  # what is beyond an axis that goes would count
        data = gt.where(widened(inside(arr.indices, arr.parts[1]), arr.n_dense), data, 0)
    data = lax.squeeze(data, (*batch, *[d - arr.n_sparse + 1 for d in gone if d >= k]))
    indices = lax.squeeze(_picked(arr.indices, kept), batch)
    return like(arr, data, indices, [size for d, size in enumerate(arr.shape) if d not in gone])


def _picked(indices: Array, kept: Sequence[int]) -> Array:
    """Return some columns of places."""
    if not kept:
        return gt.zeros((*indices.shape[:-1], 0), indices.dtype)
    return gt.stack([indices[..., k] for k in kept], -1)


def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """Return the sum along axes. Places that become equal stay stored apart.

    >>> bcoo_reduce_sum(BCOO(([1., 2.], [[0, 1], [1, 1]]), shape=(2, 2)), axes=(0,)).todense().tolist()
    [0.0, 3.0]
    """
    gone = sorted({k % mat.ndim for k in axes})
    n, k = mat.n_batch, mat.n_batch + mat.n_sparse
    data, indices = mat.data, mat.indices
    dense = tuple(d - mat.n_sparse + 1 for d in gone if d >= k)
    data = gt.sum(data, dense) if dense else data
    real = inside(indices, mat.parts[1])
    data = gt.where(widened(real, data.ndim - n - 1), data, 0)  # what is beyond an axis that goes would count
    indices = _picked(indices, [d for d in range(mat.n_sparse) if d + n not in gone])
    batch = [d for d in gone if d < n]
    if batch:
        rest = [d for d in range(n) if d not in batch]
        data, indices = (_folded(x, mat.shape, n, rest, batch) for x in (data, indices))
    return BCOO((data, indices), shape=[size for d, size in enumerate(mat.shape) if d not in gone])


def _folded(x: Array, shape: Sequence[int], n: int, rest: Sequence[int], batch: Sequence[int]) -> Array:
    """Return an array with some batch axes moved into the one of stored elements."""
    sizes = [shape[d] if d in batch else x.shape[d] for d in range(n)]
    full = gt.broadcast_to(x, (*sizes, *x.shape[n:])).transpose([*rest, *batch, *range(n, x.ndim)])
    total = math.prod([shape[d] for d in batch]) * x.shape[n]
    return full.reshape((*[sizes[d] for d in rest], total, *x.shape[n + 1 :]))


def bcoo_broadcast_in_dim(mat: BCOO, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> BCOO:
    """Return the array with further axes: batch axes before its sparse ones, dense axes after its dense ones.

    Among sparse axes, new ones have size 1.

    >>> m = BCOO(([1.], [[2]]), shape=(3,))
    >>> bcoo_broadcast_in_dim(m, shape=(2, 3), broadcast_dimensions=(1,))
    BCOO(float32[2, 3], nse=1, n_batch=1)
    """
    n, k = mat.n_batch, mat.n_batch + mat.n_sparse
    to = [operator.index(d) for d in broadcast_dimensions]
    batch, sparse, dense = to[:n], to[n:k], to[k:]
    if len(to) != mat.ndim or to != sorted(to):
        refuse("bcoo_broadcast_in_dim", f"{mat.ndim} axes in their order", f"{tuple(to)}", "Use bcoo_transpose.")
    n_batch = min(to[n:], default=len(shape))
    n_dense = len(shape) - min(dense) if dense else 0
    n_sparse = len(shape) - n_batch - n_dense
    sizes = tuple(shape[n_batch : n_batch + n_sparse])
    if math.prod(mat.parts[1]) != math.prod(sizes):
        refuse("bcoo_broadcast_in_dim", "new sparse axes of size 1", f"shape {tuple(shape)} from {mat!r}")
    data = lax.broadcast_in_dim(
        mat.data, (*shape[:n_batch], mat.nse, *shape[n_batch + n_sparse :]),
        (*batch, n_batch, *[d + 1 - n_sparse for d in dense]),
    )  # fmt: skip
    indices = lax.broadcast_in_dim(
        mat.indices, (*shape[:n_batch], mat.nse, mat.n_sparse), (*batch, n_batch, n_batch + 1)
    )
    if n_sparse != mat.n_sparse:
        own = dict(zip([d - n_batch for d in sparse], columns(indices), strict=True))
        zero = gt.zeros(indices.shape[:-1], indices.dtype)
        if not own:
            indices = gt.zeros((*indices.shape[:-1], n_sparse), indices.dtype)
        else:
            indices = gt.stack([own.get(d, zero) for d in range(n_sparse)], -1)
    return BCOO((data, indices), shape=shape)


def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Return arrays one after another, along a batch axis or a sparse one.

    >>> m = BCOO(([1.], [[0]]), shape=(2,))
    >>> bcoo_concatenate([m, m], dimension=0).todense().tolist()
    [1.0, 0.0, 1.0, 0.0]
    """
    mats = list(operands)
    if not all(isinstance(m, BCOO) for m in mats):
        refuse("bcoo_concatenate", "arrays of class BCOO", "a dense one", "Use todense() or BCOO.fromdense.")
    batches = {m.n_batch for m in mats}
    if batches == {0, 1}:  # as m[None] has a batch
        few = [m.n_batch for m in mats if m.shape[0] != 1]
        mats = [bcoo_update_layout(m, n_batch=few[0] if few else 1) for m in mats]
    first = mats[0]
    kinds = {(m.n_batch, m.n_sparse, m.n_dense) for m in mats}
    rests = {(*m.shape[:dimension], *m.shape[dimension + 1 :]) for m in mats}
    if len(kinds) != 1 or len(rests) != 1:
        refuse("bcoo_concatenate", "arrays that differ in one axis only", ", ".join(map(repr, mats)))
    n = first.n_batch
    if dimension >= n + first.n_sparse:
        refuse("bcoo_concatenate", "a batch axis or a sparse one", f"the dense axis {dimension}")
    shape = list(first.shape)
    shape[dimension] = sum(m.shape[dimension] for m in mats)
    data, places = [], []
    if dimension < n:
        most = max(m.nse for m in mats)
        for m in (padded(m, most) for m in mats):
            data.append(repeated(m.data, m.shape[:n], n))
            places.append(repeated(m.indices, m.shape[:n], n))
        axis = dimension
    else:
        start, axis = 0, n
        for m in mats:
            k = dimension - n
            moved = gt.where(inside(m.indices, m.parts[1]), m.indices[..., k] + start, shape[dimension])
            cols = [moved if d == k else x for d, x in enumerate(columns(m.indices))]
            data.append(repeated(m.data, m.shape[:n], n))
            places.append(repeated(gt.stack(cols, -1), m.shape[:n], n))
            start += m.shape[dimension]
    return BCOO((gt.numpy.concatenate(data, axis), gt.numpy.concatenate(places, axis)), shape=shape)


def bcoo_reshape(
    mat: BCOO, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, sharding: Any = None
) -> BCOO:
    """Return the array in another shape, which may not mix batch, sparse and dense axes.

    Args:
        dimensions: an order of the axes to read the array in.

    >>> bcoo_reshape(BCOO(([1.], [[1, 2]]), shape=(2, 3)), new_sizes=(6,)).indices.tolist()
    [[5]]
    """
    if dimensions is not None:
        mat = bcoo_transpose(mat, permutation=dimensions)
    n = mat.n_batch
    batch, sizes, _ = mat.parts
    new = [operator.index(s) for s in new_sizes]
    running = [math.prod(new[:k]) for k in range(len(new) + 1)]
    if running[-1] != mat.size:
        raise ShapeError(message("sparse.bcoo_reshape", f"{mat.size} elements", f"{tuple(new)}", "Pass another shape."))
    wanted = math.prod(batch), math.prod(batch) * math.prod(sizes)
    # axes of size 1 go to the earlier kind
    cuts = [max([k for k, total in enumerate(running) if total == w], default=-1) for w in wanted]
    if -1 in cuts:
        refuse("bcoo_reshape", "a shape that keeps batch, sparse and dense axes apart", f"{tuple(new)} of {mat!r}")
    new_batch, new_sparse, new_dense = new[: cuts[0]], new[cuts[0] : cuts[1]], new[cuts[1] :]
    data = repeated(mat.data, batch, n).reshape((*new_batch, mat.nse, *new_dense))
    indices = repeated(mat.indices, batch, n).reshape((*new_batch, mat.nse, mat.n_sparse))
    if not new_sparse or not sizes:
        data = gt.where(widened(inside(indices, sizes), len(new_dense)), data, 0)
        return BCOO((data, gt.zeros((*indices.shape[:-1], len(new_sparse)), indices.dtype)), shape=new)
    if math.prod(sizes) > gt.iinfo(indices.dtype).max:
        got = f"{sizes} with places of {indices.dtype}"
        refuse(
            "bcoo_reshape", "sparse axes whose places have numbers", got, "Store places as int64, with jax_enable_x64."
        )
    flat = gt.zeros(indices.shape[:-1], indices.dtype)
    for size, column in zip(sizes, columns(indices), strict=True):
        flat = flat * size + column
    found = gt.stack(unravelled(flat, new_sparse), -1).astype(indices.dtype)
    indices = gt.where(inside(indices, sizes)[..., None], found, fill_of(new_sparse, indices))
    return BCOO((data, indices), shape=new)


def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """Return the array with some axes reversed.

    >>> bcoo_rev(BCOO(([1.], [[0]]), shape=(3,)), (0,)).todense().tolist()
    [0.0, 0.0, 1.0]
    """
    n, k = operand.n_batch, operand.n_batch + operand.n_sparse
    batch = [d for d in dimensions if d < n]
    dense = [d - operand.n_sparse + 1 for d in dimensions if d >= k]
    data, indices = lax.rev(operand.data, (*batch, *dense)), lax.rev(operand.indices, batch)
    sizes = operand.parts[1]
    real = inside(indices, sizes)
    cols = [
        gt.where(real, size - 1 - x, size) if d + n in dimensions else x
        for d, (x, size) in enumerate(zip(columns(indices), sizes, strict=True))
    ]
    return BCOO((data, gt.stack(cols, -1) if cols else indices), shape=operand.shape)


def _cut(mat: BCOO, data: Array, indices: Array, keep: Array, moved: list[Array], shape: Sequence[int]) -> BCOO:
    """Return a part of an array: the elements that it keeps, at their new places."""
    n = mat.n_batch
    sizes = tuple(shape[n : n + mat.n_sparse])
    places = gt.where(keep[..., None], gt.stack(moved, -1), fill_of(sizes, indices)).astype(indices.dtype)
    data = gt.where(widened(keep, data.ndim - n - 1), data, 0)
    made = BCOO((data, places), shape=shape)
    return bcoo_sum_duplicates(made, math.prod(sizes)) if mat.nse > math.prod(sizes) else made


def bcoo_slice(
    mat: BCOO, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> BCOO:
    """Return a part of the array.

    >>> m = BCOO(([1., 2.], [[0], [3]]), shape=(4,))
    >>> bcoo_slice(m, start_indices=(1,), limit_indices=(4,), strides=(2,)).todense().tolist()
    [0.0, 2.0]
    """
    steps = [1] * mat.ndim if strides is None else [operator.index(s) for s in strides]
    cuts = list(zip(map(operator.index, start_indices), map(operator.index, limit_indices), steps, strict=True))
    fits = len(cuts) == mat.ndim and all(0 <= a <= b and c > 0 for a, b, c in cuts)
    if not fits or any(b > size for (_, b, _), size in zip(cuts, mat.shape, strict=True)):
        got = f"{tuple(start_indices)} to {tuple(limit_indices)}"
        refuse("bcoo_slice", f"places within {mat.shape}", got, "Pass other places.")
    n, k = mat.n_batch, mat.n_batch + mat.n_sparse
    slices = [slice(*cut) for cut in cuts]

    def part(x: Array, last: Sequence[Any]) -> Array:
        ranges = [slice(None) if size == 1 else cut for size, cut in zip(x.shape[:n], slices, strict=False)]
        return x[(*ranges, *last)]

    data, indices = part(mat.data, (slice(None), *slices[k:])), part(mat.indices, ())
    shape = [len(range(*cut)) for cut in cuts]
    if not mat.n_sparse:
        return BCOO((data, indices), shape=shape)
    keep, moved = inside(indices, mat.parts[1]), []
    for column, (start, limit, step) in zip(columns(indices), cuts[n:k], strict=True):
        keep = keep & (column >= start) & (column < limit) & ((column - start) % step == 0)
        moved.append((column - start) // step)
    return _cut(mat, data, indices, keep, moved, shape)


def bcoo_dynamic_slice(mat: BCOO, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> BCOO:
    """Return a part of the array from places that need not be known.

    >>> m = BCOO(([1., 2.], [[0], [3]]), shape=(4,))
    >>> bcoo_dynamic_slice(m, (gt.array(2),), (2,)).todense().tolist()
    [0.0, 2.0]
    """
    sizes = [operator.index(s) for s in slice_sizes]
    if len(sizes) != mat.ndim or not all(0 <= s <= full for s, full in zip(sizes, mat.shape, strict=True)):
        refuse("bcoo_dynamic_slice", f"sizes within {mat.shape}", f"{tuple(sizes)}", "Pass smaller sizes.")
    n, k = mat.n_batch, mat.n_batch + mat.n_sparse
    starts = [
        gt.clip(gt.where(a < 0, a + full, a), 0, full - size).astype(gt.int32)
        for a, size, full in zip(map(gt.array, start_indices), sizes, mat.shape, strict=True)
    ]
    zero = gt.array(0, gt.int32)

    def part(x: Array, last: Sequence[Any], lengths: Sequence[int]) -> Array:
        alone = [size == 1 for size in x.shape[:n]]
        first = [zero if one else s for one, s in zip(alone, starts, strict=False)]
        counts = [1 if one else s for one, s in zip(alone, sizes, strict=False)]
        return lax.dynamic_slice(x, (*first, *last), (*counts, *lengths))

    data = part(mat.data, (zero, *starts[k:]), (mat.nse, *sizes[k:]))
    indices = part(mat.indices, (zero, zero), (mat.nse, mat.n_sparse))
    if not mat.n_sparse:
        return BCOO((data, indices), shape=sizes)
    keep, moved = inside(indices, mat.parts[1]), []
    for column, start, size in zip(columns(indices), starts[n:k], sizes[n:k], strict=True):
        keep = keep & (column >= start) & (column < start + size)
        moved.append(column - start)
    return _cut(mat, data, indices, keep, moved, sizes)


def bcoo_update_layout(
    mat: BCOO, *, n_batch: int | None = None, n_dense: int | None = None, on_inefficient: str | None = "error"
) -> BCOO:
    """Return the array with other numbers of batch and dense axes.

    Args:
        n_batch, n_dense: by default those that it has.
        on_inefficient: what happens if many zeros would be stored: "error", "warn", or nothing.

    Raises:
        SparseEfficiencyError: many zeros would be stored.

    >>> bcoo_update_layout(BCOO.fromdense(gt.eye(2)), n_batch=1, on_inefficient=None)
    BCOO(float32[2, 2], nse=2, n_batch=1)
    """
    n_batch = mat.n_batch if n_batch is None else operator.index(n_batch)
    n_dense = mat.n_dense if n_dense is None else operator.index(n_dense)
    counts("bcoo_update_layout", mat.ndim, n_batch, n_dense)
    if on_inefficient not in ("error", "warn", None):
        refuse("bcoo_update_layout", '"error", "warn" or None', repr(on_inefficient), "Pass one of them.")
    more = [*mat.shape[mat.n_batch : n_batch], *mat.shape[mat.ndim - n_dense : mat.ndim - mat.n_dense]]
    if any(size > 1 for size in more) and on_inefficient is not None:
        what = f"{mat!r} with n_batch={n_batch} and n_dense={n_dense} stores many zeros."
        if on_inefficient == "error":
            raise SparseEfficiencyError(f"{what} Pass on_inefficient=None to do it.")
        warnings.warn(what, SparseEfficiencyWarning, stacklevel=2)
    if n_dense < mat.n_dense:
        mat = _less_dense(mat, mat.n_dense - n_dense)
    if n_batch < mat.n_batch:
        mat = bcoo_fold(mat, n_batch)
    if n_dense > mat.n_dense:
        mat = _more_dense(mat, n_dense - mat.n_dense)
    return _more_batch(mat, n_batch) if n_batch > mat.n_batch else mat


def _less_dense(mat: BCOO, count: int) -> BCOO:
    """Store each number of some dense axes by itself."""
    n, sizes = mat.n_batch, mat.parts[2][:count]
    total = math.prod(sizes)
    grids = unravelled(gt.arange(total, dtype=gt.int32), sizes)
    lead = mat.indices.shape[:n]
    cols = [gt.broadcast_to(x[..., None], (*lead, mat.nse, total)) for x in columns(mat.indices)]
    cols += [gt.broadcast_to(x, (*lead, mat.nse, total)) for x in grids]
    indices = gt.stack(cols, -1).astype(mat.indices.dtype).reshape((*lead, mat.nse * total, len(cols)))
    data = mat.data.reshape((*mat.data.shape[:n], mat.nse * total, *mat.data.shape[n + 1 + count :]))
    return BCOO((data, indices), shape=mat.shape)


def bcoo_fold(mat: BCOO, n_batch: int) -> BCOO:
    """Return the array with the last of its batch axes as sparse ones."""
    n, sizes = mat.n_batch, mat.shape[n_batch : mat.n_batch]
    own = (*mat.indices.shape[:n_batch], *sizes)
    indices = gt.broadcast_to(mat.indices, (*own, *mat.indices.shape[n:]))
    data = gt.broadcast_to(mat.data, (*mat.data.shape[:n_batch], *sizes, *mat.data.shape[n:]))
    more = [gt.broadcast_to(x, indices.shape[:-1]) for x in batch_grid(own)[n_batch:]]
    indices = gt.stack([*[x.astype(indices.dtype) for x in more], *columns(indices)], -1)
    total = math.prod(sizes) * mat.nse
    indices = indices.reshape((*own[:n_batch], total, indices.shape[-1]))
    data = data.reshape((*data.shape[:n_batch], total, *data.shape[n + 1 :]))
    return BCOO((data, indices), shape=mat.shape)


def _more_dense(mat: BCOO, count: int) -> BCOO:
    """Store whole arrays along the last of the sparse axes."""
    n, kept = mat.n_batch, mat.n_sparse - count
    batch = broadcast_sizes(mat.data.shape[:n], mat.indices.shape[:n])
    stored = (*batch, mat.nse)
    sizes = mat.parts[1][kept:]
    cols = [gt.broadcast_to(x, stored) for x in columns(mat.indices)[kept:]]
    zero = gt.zeros((*stored, *sizes, *mat.parts[2]), mat.data.dtype)
    data = zero.at[(*batch_grid(stored, 0), *cols)].add(repeated(mat.data, batch, n), mode="drop")
    return BCOO((data, _picked(mat.indices, range(kept))), shape=mat.shape)


def _more_batch(mat: BCOO, n_batch: int) -> BCOO:
    """Store each example along the first of the sparse axes by itself."""
    n, count = mat.n_batch, n_batch - mat.n_batch
    batch = broadcast_sizes(mat.data.shape[:n], mat.indices.shape[:n])
    stored, sizes = (*batch, mat.nse), mat.shape[n:n_batch]
    cols = [gt.broadcast_to(x, stored) for x in columns(mat.indices)[:count]]
    grid = batch_grid(stored, 0)
    zero = gt.zeros((*batch, *sizes, mat.nse, *mat.parts[2]), mat.data.dtype)
    data = zero.at[(*grid[:n], *cols, grid[n])].set(repeated(mat.data, batch, n), mode="drop")
    rest = _picked(mat.indices, range(count, mat.n_sparse))
    lead = mat.indices.shape[:n]
    rest = rest.reshape((*lead, *[1] * count, *rest.shape[n:]))
    return BCOO((data, gt.broadcast_to(rest, (*lead, *sizes, *rest.shape[-2:]))), shape=mat.shape)
