"""Arithmetic with sparse arrays, and indexing: what the operators and methods of `BCOO` do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

import gtrace as gt
from gtrace.extend import Array, ShapeError, message
from gtrace.jax.experimental.sparse import _axes as axes
from gtrace.jax.experimental.sparse import _elements as elements
from gtrace.jax.experimental.sparse._base import is_sparse, refuse
from gtrace.jax.experimental.sparse._coordinates import BCOO, like
from gtrace.jax.experimental.sparse._products import bcoo_dot_general, bcoo_multiply_dense, bcoo_multiply_sparse


def once(m: BCOO) -> BCOO:
    """Return the array with each place stored once."""
    return m if m.unique_indices else elements.bcoo_sum_duplicates(m, m.nse)


def of_elements(function: Callable[[Any], Any], m: BCOO, linear: bool = False) -> BCOO:
    """Return a function of each element that keeps zeros.

    Args:
        linear: it is additive, so that elements at one place may stay apart.
    """
    m = m if linear else once(m)
    return like(m, function(m.data))


def add(x: Any, y: Any) -> Any:
    """Return a sum: sparse of two sparse arrays, dense of a sparse and a dense one."""
    if not isinstance(x, BCOO):
        x, y = y, x
    if not isinstance(y, BCOO):
        dense = gt.array(y)
        if dense.shape != x.shape:
            refuse("add", f"a dense array of shape {x.shape}", repr(dense.aval), "Use todense(), or broadcast it.")
        return x.todense() + dense
    if x.shape != y.shape:
        raise ShapeError(message("sparse.add", "arrays of one shape", f"{x!r} and {y!r}", "Reshape one."))
    if x.indices is y.indices:
        return like(x, x.data + y.data)
    if (x.n_batch, x.n_dense) != (y.n_batch, y.n_dense):
        refuse("add", "as many batch and dense axes", f"{x!r} and {y!r}", "Use update_layout.")
    n = x.n_batch
    parts = []
    for a, b in ((x.data, y.data), (x.indices, y.indices)):
        sizes = tuple(map(max, a.shape[:n], b.shape[:n]))
        parts.append(gt.numpy.concatenate([gt.broadcast_to(z, (*sizes, *z.shape[n:])) for z in (a, b)], n))
    return BCOO((parts[0], parts[1]), shape=x.shape)


def negative(m: BCOO) -> BCOO:
    """Return the negated array."""
    return like(m, -m.data)


def subtract(x: Any, y: Any) -> Any:
    """Return a difference: sparse of two sparse arrays, dense of a sparse and a dense one."""
    return add(x, negative(y) if isinstance(y, BCOO) else -gt.array(y))


def multiply(x: Any, y: Any) -> BCOO:
    """Return the products of elements. A dense array may broadcast to the sparse one."""
    if not isinstance(x, BCOO):
        x, y = y, x
    if not isinstance(y, BCOO):
        own = x.data * y if isinstance(y, (bool, int, float, complex)) else bcoo_multiply_dense(x, y)
        return like(x, own)
    if x.indices is y.indices and x.unique_indices:
        return like(x, x.data * y.data)
    return bcoo_multiply_sparse(x, y)


def divide(x: Any, y: Any) -> BCOO:
    """Return a sparse array divided by a dense one, which may broadcast to it."""
    if isinstance(y, BCOO):
        refuse("divide", "a dense divisor", repr(y))
    if isinstance(y, (bool, int, float, complex)):
        return like(x, x.data / y)
    return like(x, bcoo_multiply_dense(x, 1 / gt.array(y)))


def power(x: BCOO, y: Any) -> BCOO:
    """Return a sparse array to the power of a positive integer."""
    if not isinstance(y, int) or y < 1:
        refuse("power", "a positive integer", repr(y))
    return of_elements(lambda data: data**y, x)


def matmul(x: Any, y: Any) -> Any:
    """Return the matrix product, as `jnp.matmul` does: sparse of two sparse arrays, else dense."""
    x, y = (z if is_sparse(z) else gt.array(z) for z in (x, y))
    if not x.ndim or not y.ndim:
        raise ShapeError(message("sparse.matmul", "arrays with axes", f"{x!r} and {y!r}", "Use *."))
    last, first = x.ndim - 1, max(y.ndim - 2, 0)
    batch: tuple[int, ...] = ()
    if x.ndim > 2 and y.ndim > 2:
        batch = tuple(range(x.ndim - 2))
        if x.shape[:-2] != y.shape[:-2]:
            refuse("matmul", "equal sizes of the batch", f"shapes {x.shape} and {y.shape}", "Broadcast the dense one.")
    if x.shape[last] != y.shape[first]:
        expected = f"a vector or matrix with {x.shape[last]} rows"
        raise ShapeError(message("sparse.matmul", expected, f"shape {y.shape}", "Transpose or reshape it."))
    out = bcoo_dot_general(x, y, dimension_numbers=(((last,), (first,)), (batch, batch)))
    if x.ndim == 2 and y.ndim > 2:  # the rows come before the last axis
        n = out.ndim
        order = [*range(1, n - 1), 0, n - 1]
        return axes.bcoo_transpose(out, permutation=order) if isinstance(out, BCOO) else out.transpose(order)
    return out


def total(m: BCOO, axis: int | Sequence[int] | None = None) -> Any:
    """Return the sum of all elements, a number; or along some axes, a sparse array."""
    every = tuple(range(m.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    found = axes.bcoo_reduce_sum(m, axes=every)
    return found if found.ndim else gt.sum(found.data)


def reshape(m: BCOO, *shape: Any) -> BCOO:
    """Return the array in another shape, of which one size may be -1."""
    sizes = [operator.index(s) for s in (shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)]
    if -1 in sizes:
        known = 1
        for size in sizes:
            known *= size if size != -1 else 1
        sizes[sizes.index(-1)] = m.size // max(known, 1)
    return axes.bcoo_reshape(m, new_sizes=sizes)


def astype(m: BCOO, dtype: Any) -> BCOO:
    """Return the array with elements of another dtype."""
    return of_elements(lambda data: data.astype(dtype), m)


def take(m: BCOO, key: Any) -> BCOO:
    """Return a part of the array by numbers, slices, None and an ellipsis; numbers need not be known.

    Raises:
        ArgumentError: other indices, which would gather.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    given = sum(k is not None and k is not Ellipsis for k in keys)
    if Ellipsis not in [k for k in keys if k is None or k is Ellipsis]:
        keys.append(Ellipsis)
    full: list[Any] = []
    for k in keys:
        full += [slice(None)] * (m.ndim - given) if k is Ellipsis else [k]
    starts: list[Any] = []
    limits, steps, gone, dynamic = [], [], [], {}
    for k in full:
        if k is None:
            continue
        axis = len(starts)
        size = m.shape[axis] if axis < m.ndim else 0
        if isinstance(k, slice):
            begin, end, step = k.indices(size)
            if step < 0:
                refuse("getitem", "slices that go forward", repr(k), "Use bcoo_rev.")
            starts.append(begin)
            limits.append(max(end, begin))
            steps.append(step)
            continue
        number = _number(k)
        if axis >= m.ndim or (isinstance(number, int) and not -size <= number < size):
            raise IndexError(f"index {k} is out of bounds for {m!r}")
        gone.append(axis)
        if not isinstance(number, int):
            dynamic[axis] = number
            starts.append(0)
            limits.append(size)
        else:
            starts.append(number % size)
            limits.append(number % size + 1)
        steps.append(1)
    out = axes.bcoo_slice(m, start_indices=starts, limit_indices=limits, strides=steps)
    if dynamic:
        sizes = [1 if axis in dynamic else size for axis, size in enumerate(out.shape)]
        out = axes.bcoo_dynamic_slice(out, [dynamic.get(axis, 0) for axis in range(m.ndim)], sizes)
    out = axes.bcoo_squeeze(out, dimensions=gone)
    kept = [k for k in full if k is None or isinstance(k, slice)]
    if None in [k for k in kept if k is None]:
        left = iter(out.shape)
        shape = [1 if k is None else next(left) for k in kept]
        places = [axis for axis, k in enumerate(kept) if k is not None]
        out = axes.bcoo_broadcast_in_dim(out, shape=shape, broadcast_dimensions=places)
    return out


def _number(k: Any) -> int | Array:
    if isinstance(k, Array):
        if k.ndim or k.aval.dtype.is_floating_point or k.aval.dtype.is_complex or k.aval.dtype is torch.bool:
            refuse("getitem", "numbers, slices, None and an ellipsis", repr(k.aval), "Use todense().")
        return k
    try:
        return operator.index(k)
    except TypeError:
        refuse("getitem", "numbers, slices, None and an ellipsis", repr(k))


def _transpose(m: BCOO, axes_: Sequence[int] | None = None) -> BCOO:
    order = range(m.ndim)[::-1] if axes_ is None else [a % m.ndim for a in axes_]
    return axes.bcoo_transpose(m, permutation=tuple(order))


def _sum_duplicates(m: BCOO, nse: int | None = None, remove_zeros: bool = True) -> BCOO:
    change = elements.bcoo_eliminate_zeros if remove_zeros else elements.bcoo_sum_duplicates
    return change(m, nse)


def _swapped(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: f(y, x)


METHODS: dict[str, Callable[..., Any]] = {
    "transpose": lambda self, axes=None: _transpose(self, axes), "todense": elements.bcoo_todense,
    "update_layout": axes.bcoo_update_layout, "sum_duplicates": _sum_duplicates,
    "sort_indices": elements.bcoo_sort_indices, "sum": total, "reshape": reshape, "astype": astype,
    "__getitem__": take, "__add__": add, "__radd__": add, "__sub__": subtract, "__rsub__": _swapped(subtract),
    "__mul__": multiply, "__rmul__": multiply, "__truediv__": divide, "__rtruediv__": _swapped(divide),
    "__matmul__": matmul, "__rmatmul__": _swapped(matmul), "__pow__": power, "__neg__": negative,
    "__pos__": lambda self: self, "__abs__": lambda self: of_elements(abs, self),
}  # fmt: skip
"""The methods of `BCOO` that are functions of this package."""

for _name, _method in METHODS.items():
    setattr(BCOO, _name, _method)
BCOO.fromdense = staticmethod(elements.bcoo_fromdense)
