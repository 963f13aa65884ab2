"""Products with sparse arrays: contractions, and products of elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import gtrace as gt
from gtrace import lax
from gtrace.extend import Array, ShapeError, message
from gtrace.jax.experimental.sparse._axes import bcoo_fold, bcoo_transpose
from gtrace.jax.experimental.sparse._base import batch_grid, broadcast_sizes, columns, inside, refuse, repeated, widened
from gtrace.jax.experimental.sparse._coordinates import BCOO
from gtrace.jax.experimental.sparse._elements import bcoo_sum_duplicates, taken

__all__ = ["bcoo_dot_general", "bcoo_dot_general_sampled", "bcoo_multiply_dense", "bcoo_multiply_sparse"]

Numbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def bcoo_dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Numbers, precision: Any = None, preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """`lax.dot_general` of sparse arrays and dense ones: of two sparse ones it is sparse, else dense.

    >>> m = BCOO(([1., 2.], [[0, 1], [1, 0]]), shape=(2, 2))
    >>> bcoo_dot_general(m, gt.array([3., 4.]), dimension_numbers=(([1], [0]), ([], []))).tolist()
    [4.0, 6.0]
    """
    (a, b), (p, q) = (tuple(tuple(map(operator.index, x)) for x in pair) for pair in dimension_numbers)
    sizes = [x.shape if isinstance(x, BCOO) else gt.array(x).shape for x in (lhs, rhs)]
    if [sizes[0][k] for k in (*a, *p)] != [sizes[1][k] for k in (*b, *q)]:
        expected = "equal sizes of the contracted axes and of the batch"
        got = f"shapes {sizes[0]} and {sizes[1]} with dimension_numbers {dimension_numbers}"
        raise ShapeError(message("sparse.bcoo_dot_general", expected, got, "Transpose or reshape one."))
    out: Any
    if isinstance(lhs, BCOO) and isinstance(rhs, BCOO):
        out = _of_sparse(lhs, rhs, a, b, p, q)
    elif isinstance(lhs, BCOO):
        out = _with_dense(lhs, gt.array(rhs), a, b, p, q)
    elif isinstance(rhs, BCOO):
        found = _with_dense(rhs, gt.array(lhs), b, a, q, p)  # its free axes come first
        n, free = len(p), gt.array(lhs).ndim - len(a) - len(p)
        last = range(found.ndim - free, found.ndim)
        out = found.transpose([*range(n), *last, *range(n, found.ndim - free)])
    else:
        return lax.dot_general(lhs, rhs, dimension_numbers, preferred_element_type=preferred_element_type)
    return out if preferred_element_type is None else out.astype(preferred_element_type)


def _rest(ndim: int, *taken: Sequence[int]) -> list[int]:
    """Return the axes that are in none of several lists."""
    return [k for k in range(ndim) if not any(k in own for own in taken)]


def _with_dense(m: BCOO, x: Array, a: Any, b: Any, p: Any, q: Any) -> Array:
    """Contract the axes `a` of a sparse array with those of a dense one, `b`; `p` and `q` are the batch.

    Each stored element is multiplied by the part of the dense array at its place, and added where it belongs.
    """
    n, k = m.n_batch, m.n_batch + m.n_sparse
    if any(d >= k for d in (*a, *p)):
        refuse("bcoo_dot_general", "contractions along batch axes and sparse ones", f"{m!r} along {(*p, *a)}")
    batch = m.shape[:n]
    stored = (*batch, m.nse)
    cols = [gt.broadcast_to(c, stored) for c in (*batch_grid(batch), *columns(m.indices))]
    kept, free = [d for d in _rest(m.ndim, a, p) if d < k], _rest(x.ndim, b, q)
    table = x.transpose([*q, *b, *free])
    sources = tuple(cols[d] for d in (*p, *a))
    rows = table.at[sources].get(mode="fill", fill_value=0) if sources else table
    real = inside(m.indices, m.parts[1])
    data = gt.where(widened(real, m.n_dense), m.data, 0)
    data = widened(repeated(data, batch, n), len(free))
    if m.n_dense and sources:
        rows = rows.reshape((*stored, *[1] * m.n_dense, *[x.shape[d] for d in free]))
    product = data * rows
    targets = tuple(cols[d] for d in (*p, *kept))
    if not targets:
        return gt.sum(product, tuple(range(n + 1)), dtype=product.dtype)
    sizes = [m.shape[d] for d in (*p, *kept)]
    zero = gt.zeros((*sizes, *product.shape[n + 1 :]), product.dtype)
    return zero.at[targets].add(product, mode="drop")


def _of_sparse(x: BCOO, y: BCOO, a: Any, b: Any, p: Any, q: Any) -> BCOO:
    """Contract two sparse arrays: each pair of stored elements whose contracted places agree gives one."""
    if x.n_dense or y.n_dense:
        refuse("bcoo_dot_general", "sparse arrays without dense axes", f"{x!r} and {y!r}", "Use update_layout.")
    if any(d < m.n_batch for m, own in ((x, a), (y, b)) for d in own):
        refuse("bcoo_dot_general", "contractions along sparse axes", f"{x!r} and {y!r}", "Use update_layout.")
    if any(d >= m.n_batch for m, own in ((x, p), (y, q)) for d in own):
        refuse("bcoo_dot_general", "a batch of batch axes", f"{x!r} and {y!r}", "Use update_layout.")
    left, right = _rest(x.n_batch, p), _rest(y.n_batch, q)
    x = bcoo_transpose(x, permutation=[*p, *left, *range(x.n_batch, x.ndim)])
    y = bcoo_transpose(y, permutation=[*q, *right, *range(y.n_batch, y.ndim)])
    fixed = (y.shape[y.n_batch :], [d - x.n_batch for d in a], [d - y.n_batch for d in b])
    own = x.shape[x.n_batch :]

    def pairs(dx: Array, ix: Array, dy: Array, iy: Array) -> tuple[Array, Array]:
        made = _pairs(BCOO((dx, ix), shape=own), BCOO((dy, iy), shape=fixed[0]), fixed[1], fixed[2])
        return made.data, made.indices

    call: Callable[..., Any] = pairs
    for count, axes in ((len(right), (None, None, 0, 0)), (len(left), (0, 0, None, None)), (len(p), (0, 0, 0, 0))):
        for _ in range(count):
            call = gt.vmap(call, in_axes=axes)
    parts = [repeated(z, m.shape[: m.n_batch], m.n_batch) for m in (x, y) for z in (m.data, m.indices)]
    data, indices = call(*parts)
    batch = [*x.shape[: x.n_batch], *y.shape[len(p) : y.n_batch]]
    inner = [own[d] for d in _rest(len(own), fixed[1])], [fixed[0][d] for d in _rest(len(fixed[0]), fixed[2])]
    made = BCOO((data, indices), shape=[*batch, *inner[0], *inner[1]], indices_sorted=True, unique_indices=True)
    # the result has the free axes of the first array before those of the second one
    lead, r = len(p) + len(left), len(right)
    if r and inner[0]:
        made = bcoo_fold(made, lead)
        end = lead + r + len(inner[0])
        order = [*range(lead), *range(lead + r, end), *range(lead, lead + r), *range(end, made.ndim)]
        made = bcoo_transpose(made, permutation=order)
    return made


def _pairs(x: BCOO, y: BCOO, a: Sequence[int], b: Sequence[int]) -> BCOO:
    """Contract sparse axes of two arrays without a batch."""
    xs, ys = columns(x.indices), columns(y.indices)
    same = gt.logical_and(inside(x.indices, x.shape)[:, None], inside(y.indices, y.shape))
    for d, e in zip(a, b, strict=True):
        same = gt.logical_and(same, xs[d][:, None] == ys[e])
    data = gt.where(same, x.data[:, None] * y.data, 0).reshape(-1)
    kept = [(xs[d][:, None], x.shape[d]) for d in _rest(x.ndim, a)] + [(ys[d], y.shape[d]) for d in _rest(y.ndim, b)]
    shape = [size for _, size in kept]
    cols = [gt.where(same, c, size).reshape(-1).astype(x.indices.dtype) for c, size in kept]
    indices = gt.stack(cols, -1) if cols else gt.zeros((x.nse * y.nse, 0), x.indices.dtype)
    return bcoo_sum_duplicates(BCOO((data, indices), shape=shape), min(x.nse * y.nse, max(math.prod(shape), 1)))


def bcoo_dot_general_sampled(A: Any, B: Any, indices: Any, *, dimension_numbers: Numbers) -> Array:  # noqa: N803
    """Return the elements of `lax.dot_general` of dense arrays at places, integers of shape (*batch, n, axes).

    >>> places = gt.array([[1, 0]])
    >>> a = gt.array([[1., 2.], [3., 4.]])
    >>> bcoo_dot_general_sampled(a, a, places, dimension_numbers=(([1], [0]), ([], []))).tolist()
    [15.0]
    """
    return taken(lax.dot_general(gt.array(A), gt.array(B), dimension_numbers), gt.array(indices))


def bcoo_multiply_dense(sp_mat: BCOO, v: Any) -> Array:
    """Return the stored elements times the elements of a dense array, which may broadcast, at their places.

    >>> bcoo_multiply_dense(BCOO(([2., 3.], [[0], [2]]), shape=(3,)), gt.array([1., 10., 100.])).tolist()
    [2.0, 300.0]
    """
    dense = gt.array(v)
    if not dense.ndim:
        return sp_mat.data * dense
    if dense.ndim > sp_mat.ndim or broadcast_sizes(dense.shape, sp_mat.shape) != sp_mat.shape:
        expected = f"a dense array that broadcasts to {sp_mat.shape}"
        raise ShapeError(message("sparse.bcoo_multiply_dense", expected, repr(dense.aval), "Reshape it."))
    dense = dense.reshape((*[1] * (sp_mat.ndim - dense.ndim), *dense.shape))
    n, k = sp_mat.n_batch, sp_mat.n_batch + sp_mat.n_sparse
    wide = [d for d in range(n, k) if dense.shape[d] != 1]
    narrow = dense.reshape((*dense.shape[:n], *[dense.shape[d] for d in wide], *dense.shape[k:]))
    if not wide:
        factors = narrow.reshape((*dense.shape[:n], 1, *dense.shape[k:]))
    else:
        picked = gt.stack([sp_mat.indices[..., d - n] for d in wide], -1)
        factors = taken(narrow if dense.shape[:n] == sp_mat.shape[:n] else _batched(narrow, sp_mat), picked)
    return sp_mat.data * factors


def _batched(x: Array, m: BCOO) -> Array:
    return repeated(x, m.shape[: m.n_batch], m.n_batch)


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """Return the products of the elements of two sparse arrays of as many axes, whose sizes may broadcast.

    >>> m = BCOO(([2., 3.], [[0], [2]]), shape=(3,))
    >>> bcoo_multiply_sparse(m, m).todense().tolist()
    [4.0, 0.0, 9.0]
    """
    if lhs.ndim != rhs.ndim:
        got = f"shapes {lhs.shape} and {rhs.shape}"
        raise ShapeError(message("sparse.bcoo_multiply_sparse", "as many axes", got, "Reshape one."))
    if lhs.n_dense != rhs.n_dense:
        refuse("bcoo_multiply_sparse", "as many dense axes", f"{lhs!r} and {rhs!r}", "Use update_layout.")
    n = min(lhs.n_batch, rhs.n_batch)
    lhs, rhs = (m if m.n_batch == n else bcoo_fold(m, n) for m in (lhs, rhs))
    shape = broadcast_sizes(lhs.shape, rhs.shape)
    dense = lhs.n_dense

    def pairs(dx: Array, ix: Array, dy: Array, iy: Array) -> tuple[Array, Array]:
        sizes = [m.shape[n : m.ndim - dense] for m in (lhs, rhs)]
        same = gt.logical_and(inside(ix, sizes[0])[:, None], inside(iy, sizes[1]))
        cols, fills = [], shape[n : len(shape) - dense]
        for x, y, s, t in zip(columns(ix), columns(iy), *sizes, strict=True):
            if s != 1 and t != 1:
                same = gt.logical_and(same, x[:, None] == y)
            cols.append(gt.broadcast_to(y if s == 1 else x[:, None], same.shape))
        # the pairs that count come first, in the order of their places
        order = gt.numpy.argsort(gt.logical_not(same).reshape(-1), stable=True)
        real = same.reshape(-1)[order]
        left, right = order // max(same.shape[1], 1), order % max(same.shape[1], 1)
        data = gt.where(widened(real, dense), dx[left] * dy[right], 0)
        found = [gt.where(real, c.reshape(-1)[order], fill) for c, fill in zip(cols, fills, strict=True)]
        places = gt.stack(found, -1) if found else gt.zeros((real.shape[0], 0), ix.dtype)
        return data, places.astype(ix.dtype)

    call: Callable[..., Any] = pairs
    for _ in range(n):
        call = gt.vmap(call)
    parts = [repeated(z, shape[:n], n) for m in (lhs, rhs) for z in (m.data, m.indices)]
    return BCOO(call(*parts), shape=shape)
