"""Derivatives with respect to the stored elements of sparse arrays, and arrays that are made."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gtrace as gt
from gtrace.extend import tree
from gtrace.jax import random
from gtrace.jax.experimental.sparse._base import counts, is_sparse, refuse
from gtrace.jax.experimental.sparse._coordinates import BCOO
from gtrace.jax.experimental.sparse._elements import unravelled
from gtrace.jax.experimental.sparse._rows import BCSR

__all__ = ["empty", "eye", "grad", "jacfwd", "jacobian", "jacrev", "random_bcoo", "value_and_grad"]

Function = Callable[..., Any]


def _split(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return the numbers of an argument, with the stored elements of sparse arrays, and what makes it of others."""
    leaves, structure = tree.flatten(x, is_leaf=is_sparse)

    def made(data: Sequence[Any]) -> Any:
        return structure.unflatten([_like(leaf, d) for leaf, d in zip(leaves, data, strict=True)])

    return [leaf.data if is_sparse(leaf) else leaf for leaf in leaves], made


def _like(leaf: Any, data: Any) -> Any:
    """Return a sparse array with other elements; axes that are new in front are a batch."""
    if not is_sparse(leaf) or data is None:
        return data
    extra = data.shape[: data.ndim - leaf.data.ndim]
    rest = (leaf.indices,) if isinstance(leaf, BCOO) else (leaf.indices, leaf.indptr)
    parts = [gt.broadcast_to(x, (*extra, *x.shape)) for x in rest]
    known = {"indices_sorted": leaf.indices_sorted, "unique_indices": leaf.unique_indices}
    kind: Any = type(leaf)
    return kind((data, *parts), shape=(*extra, *leaf.shape), **known)


def _lifted(transform: Function, fun: Function, argnums: Any, has_aux: bool, options: dict[str, Any]) -> Function:
    """Return a function that splits the arguments, and gives the transformed one the numbers alone.

    It returns the transform's result, and what makes derivatives of numbers those of the arguments.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def call(*args: Any, **kwargs: Any) -> Any:
        places = [k % len(args) for k in numbers]
        split = {k: _split(args[k]) for k in places}

        def inner(*given: Any) -> Any:
            own = {k: split[k][1](data) for k, data in zip(places, given, strict=True)}
            return fun(*[own.get(k, x) for k, x in enumerate(args)], **kwargs)

        every = tuple(range(len(places)))
        out = transform(inner, every, has_aux=has_aux, **options)(*[split[k][0] for k in places])

        def made(found: Sequence[Any]) -> Any:
            whole = tuple([split[k][1](data) for k, data in zip(places, found, strict=True)])
            return whole[0] if isinstance(argnums, int) else whole

        return out, made

    return functools.wraps(fun)(call)


def value_and_grad(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """`jax.value_and_grad`, where the gradient of a sparse array is that of its stored elements, a sparse array.

    >>> x = BCOO.fromdense(gt.arange(6.0))
    >>> value_and_grad(lambda x, y: x @ y)(x, gt.ones(6))
    (Array(15., dtype=float32), BCOO(float32[6], nse=5))
    """
    lifted = _lifted(gt.value_and_grad, fun, argnums, has_aux, kwargs)

    def call(*args: Any, **named: Any) -> Any:
        (value, found), made = lifted(*args, **named)
        return value, made(found)

    return functools.wraps(fun)(call)


def _derivative(transform: Function, fun: Function, argnums: Any, has_aux: bool, options: dict[str, Any]) -> Function:
    lifted = _lifted(transform, fun, argnums, has_aux, options)

    def call(*args: Any, **named: Any) -> Any:
        found, made = lifted(*args, **named)
        return (made(found[0]), found[1]) if has_aux else made(found)

    return functools.wraps(fun)(call)


def grad(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """`jax.grad`, where the gradient of a sparse array is that of its stored elements, a sparse array."""
    return _derivative(gt.grad, fun, argnums, has_aux, kwargs)


def jacfwd(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """`jax.jacfwd` of a function whose result is one dense array, in the stored elements of sparse ones."""
    return _derivative(gt.jacfwd, fun, argnums, has_aux, kwargs)


def jacrev(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Function:
    """`jax.jacrev` of a function whose result is one dense array, in the stored elements of sparse ones."""
    return _derivative(gt.jacrev, fun, argnums, has_aux, kwargs)


jacobian = jacrev


def empty(
    shape: Sequence[int], dtype: Any = None, index_dtype: Any = gt.int32, sparse_format: str = "bcoo", *,
    n_batch: int = 0, n_dense: int = 0, nse: int = 0,
) -> Any:  # fmt: skip
    """Return an array of zeros, with places for `nse` elements.

    >>> empty((2, 3))
    BCOO(float32[2, 3], nse=0)
    """
    sizes = tuple(shape)
    n_sparse = counts("empty", len(sizes), n_batch, n_dense)
    batch, inner = sizes[:n_batch], sizes[n_batch : n_batch + n_sparse]
    data = gt.zeros((*batch, nse, *sizes[n_batch + n_sparse :]), gt.float32 if dtype is None else dtype)
    cols = [gt.full((*batch, nse), size, index_dtype) for size in inner]
    indices = gt.stack(cols, -1) if cols else gt.zeros((*batch, nse, 0), index_dtype)
    made = BCOO((data, indices), shape=sizes, indices_sorted=True, unique_indices=True)
    return _in_format("empty", made, sparse_format)


def _in_format(name: str, m: BCOO, sparse_format: str) -> Any:
    if sparse_format not in ("bcoo", "bcsr"):
        refuse(name, 'the format "bcoo" or "bcsr"', repr(sparse_format), "Pass one of them.")
    return m if sparse_format == "bcoo" else BCSR.from_bcoo(m)


def eye(
    N: int, M: int | None = None, k: int = 0, dtype: Any = None, index_dtype: Any = gt.int32,  # noqa: N803
    sparse_format: str = "bcoo", *, n_batch: int = 0, n_dense: int = 0,
) -> Any:  # fmt: skip
    """Return ones on a diagonal.

    >>> eye(3), eye(3).todense().tolist()[1]
    (BCOO(float32[3, 3], nse=3), [0.0, 1.0, 0.0])
    """
    columns = N if M is None else M
    count = max(min(N + min(k, 0), columns - max(k, 0)), 0)
    place = gt.arange(count, dtype=index_dtype)
    indices = gt.stack([place - min(k, 0), place + max(k, 0)], -1)
    data = gt.ones(count, gt.float32 if dtype is None else dtype)
    made = BCOO((data, indices), shape=(N, columns), indices_sorted=True, unique_indices=True)
    made = made.update_layout(n_batch=n_batch, n_dense=n_dense, on_inefficient=None)
    return _in_format("eye", made, sparse_format)


def random_bcoo(
    key: Any, shape: Sequence[int], *, dtype: Any = gt.float32, indices_dtype: Any = None, nse: float = 0.2,
    n_batch: int = 0, n_dense: int = 0, unique_indices: bool = True, sorted_indices: bool = False,
    generator: Function = random.uniform, **kwds: Any,
) -> BCOO:  # fmt: skip
    """Return a random array.

    Args:
        nse: how many elements are stored, or which fraction of the sparse axes.
        generator: a function from a key, a shape and a dtype to numbers.

    >>> random_bcoo(random.key(0), (4, 5), nse=3)
    BCOO(float32[4, 5], nse=3)
    """
    sizes = tuple(shape)
    n_sparse = counts("random_bcoo", len(sizes), n_batch, n_dense)
    batch, inner = sizes[:n_batch], sizes[n_batch : n_batch + n_sparse]
    total = math.prod(inner)
    count = math.ceil(nse * total) if 0 < nse < 1 else int(nse)
    if not 0 <= nse < total:
        refuse("random_bcoo", f"nse from 0 to {total}", repr(nse), "Pass a smaller number.")
    kind = gt.int32 if indices_dtype is None else indices_dtype
    keys = random.split(key, math.prod(batch) + 1)
    data = generator(keys[0], shape=(*batch, count, *sizes[n_batch + n_sparse :]), dtype=dtype, **kwds)

    def places(own: Any) -> Any:
        flat = random.choice(own, total, shape=(count,), replace=not unique_indices).astype(kind)
        cols = unravelled(flat, inner)
        return gt.stack(cols, -1) if cols else gt.zeros((count, 0), kind)

    indices = gt.vmap(places)(keys[1:]).reshape((*batch, count, n_sparse))
    made = BCOO((data, indices), shape=sizes)
    return made.sort_indices() if sorted_indices else made
