"""Matmul, einsum, and functions built from them."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from gtrace.core.backends.interpreter.matmul import (
    batched_matmul,
    has_long_sums,
    is_large,
    large_matmul,
    matmul_in_blocks,
    preferred,
)
from gtrace.core.backends.interpreter.tuned import FEW_SUMS, LONG_SUM, MOST_SEARCHED
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.base.mechanisms import BATCHED_MATMUL, LONG_SUMS
from gtrace.core.ir.aval import joint_shape
from gtrace.core.ops import reduce
from gtrace.core.ops.checks import no_booleans
from gtrace.core.ops.complex_parts import conj
from gtrace.core.ops.declare import Array, Aval, BadSample, Op, Sample, aval, bind, define
from gtrace.core.ops.elementwise import multiply
from gtrace.core.ops.gather import constant_array
from gtrace.core.ops.index import getitem
from gtrace.core.ops.operands import cast, deferring, of_operator, promote_arrays
from gtrace.core.ops.samples import uniform
from gtrace.core.ops.shape import (
    as_int,
    broadcast_to,
    expand_dims,
    matrix_transpose,
    moveaxis,
    normalize_axis,
    permute_dims,
    ravel,
    reshape,
    unbroadcast,
)
from gtrace.core.ops.sharding_rules import contraction, product
from gtrace.core.trace.fast import binary_fast
from gtrace.core.trace.replayable import replayable

__all__ = ["matmul", "dot", "vecdot", "outer", "tensordot", "einsum"]

# -- matmul


def _check_matmul(op: str, avals: tuple[Aval, ...]) -> None:
    x, y = avals
    no_booleans(op, avals)
    if not x.shape or not y.shape:
        raise ShapeError(message("matmul", "arrays with a dimension", (x, y), "Use * for scalars."))
    inner = y.shape[-2] if len(y.shape) > 1 else y.shape[0]
    if x.shape[-1] != inner:
        expected = "the last size of the first to equal the second-to-last size (or the only one) of the second"
        fix = "Transpose one of them (x.T, x.mT) or check the sizes."
        raise ShapeError(message("matmul", expected, (x, y), fix))
    if joint_shape(x.shape[:-2], y.shape[:-2]) is None:
        raise ShapeError(message("matmul", "batch sizes that broadcast", (x, y), "Sizes must be equal or 1."))


def _matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return matmul_in_blocks(x, y) if has_long_sums(x, y) else torch.matmul(x, y)


def _matmul_direct(avals: tuple[Aval, ...]) -> Callable[..., torch.Tensor] | None:
    x, y = avals
    if BATCHED_MATMUL.on and len(x.shape) > 3 and x.shape[:-2] == y.shape[:-2] and x.device.type == "cpu":
        BATCHED_MATMUL.used()
        return batched_matmul
    if has_long_sums(x, y):
        return matmul_in_blocks
    if len(y.shape) != 2 or len(x.shape) < 2:
        return None
    if (
        x.dtype is y.dtype is torch.float32
        and x.device.type == y.device.type == "cpu"
        and is_large(math.prod(x.shape[:-1]), *y.shape)
        and preferred()
    ):
        return functools.partial(large_matmul, y.shape[1])
    return torch.mm if len(x.shape) == 2 else None


def _matmul_shape(avals: tuple[Aval, ...]) -> tuple[int, ...]:
    x, y = avals[0].shape, avals[1].shape
    return (*(joint_shape(x[:-2], y[:-2]) or ()), *x[-2:-1], *(y[-1:] if len(y) > 1 else ()))


def _matmul_vjp(ct: Array, needed: Any, x: Array, y: Array, out: Array) -> tuple[Array | None, Array | None]:
    xn, yn = x.ndim, y.ndim
    if xn == 1 and yn == 1:
        return multiply(ct, y) if needed[0] else None, multiply(ct, x) if needed[1] else None
    if xn == 1 and yn == 2:
        return matmul(y, ct) if needed[0] else None, outer(x, ct) if needed[1] else None
    if xn == 2 and yn == 1:
        return outer(ct, y) if needed[0] else None, matmul(ct, x) if needed[1] else None
    if xn == 1:
        # x[k] y[..., k, n] -> [..., n]
        gx = unbroadcast(matmul(y, expand_dims(ct, -1)), _column(x)) if needed[0] else None
        gy = unbroadcast(multiply(expand_dims(x, -1), expand_dims(ct, -2)), y.aval) if needed[1] else None
        return None if gx is None else reshape(gx, x.shape), gy
    if yn == 1:
        # x[..., m, k] y[k] -> [..., m]
        gx = unbroadcast(multiply(expand_dims(ct, -1), y), x.aval) if needed[0] else None
        gy = unbroadcast(matmul(matrix_transpose(x), expand_dims(ct, -1)), _column(y)) if needed[1] else None
        return gx, None if gy is None else reshape(gy, y.shape)
    gx = unbroadcast(matmul(ct, matrix_transpose(y)), x.aval) if needed[0] else None
    if needed[1] and yn == 2 and xn > 2:
        # one matmul over all rows, instead of one per batch element and a sum
        rows = reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
        return gx, matmul(matrix_transpose(rows), reshape(ct, (rows.shape[0], ct.shape[-1])))
    gy = unbroadcast(matmul(matrix_transpose(x), ct), y.aval) if needed[1] else None
    return gx, gy


def _column(x: Array) -> Aval:
    return aval((*x.shape, 1), x.aval.dtype, x.aval.device)


def _matmul_batch(op: Op, size: int, batched: Any, operands: Any) -> Array:
    x, y = operands
    xn, yn = x.ndim - batched[0], y.ndim - batched[1]
    if not batched[1] and yn == 2:
        # the most frequent case: all examples share one matrix, even if an example is a vector
        return matmul(x, y)
    if not batched[0] and xn == 1 and yn == 2:
        return matmul(x, y)
    if not batched[0] and xn == 2 and yn == 1:
        return matmul(y, matrix_transpose(x))
    if xn == 1 and yn == 1:
        return reduce.sum(multiply(x, y), -1)
    if not batched[0] and xn == 2:
        # the transposed matmul has the shared matrix on the right, and is a single matmul
        return matrix_transpose(matmul(matrix_transpose(y), matrix_transpose(x)))
    x = expand_dims(x, -2) if xn == 1 else x
    y = expand_dims(y, -1) if yn == 1 else y
    ndim = max(xn, yn, 2)
    x, y = (
        reshape(z, (size, *(1,) * (ndim + 1 - z.ndim), *z.shape[1:])) if flag else z
        for z, flag in zip((x, y), batched, strict=True)
    )
    out = matmul(x, y)
    out = reshape(out, (*out.shape[:-2], out.shape[-1])) if xn == 1 else out
    return reshape(out, out.shape[:-1]) if yn == 1 else out


def _matmul_samples() -> list[Sample]:
    shapes = [((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
              ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((5, 1, 2, 3), (4, 3, 2)), ((0, 3), (3, 2))]  # fmt: skip
    return [Sample((uniform(-2, 2, *a), uniform(-2, 2, *b, seed=1))) for a, b in shapes]


matmul_op = define(
    "matmul", _matmul, direct=_matmul_direct, arity=2, fresh=True, shape=_matmul_shape,
    contraction=lambda avals, out: out.size * avals[0].shape[-1], check=_check_matmul, vjp=_matmul_vjp,
    multilinear=True, batch=_matmul_batch, factors=product, samples=_matmul_samples,
    errors=lambda: [BadSample((numpy.ones((2, 3)), numpy.ones((4, 5))), {}, ShapeError, r"last size of the first"),
                    BadSample((numpy.ones((2, 2, 3)), numpy.ones((3, 3, 5))), {}, ShapeError, r"batch sizes")],
    reference=numpy.matmul, user=lambda x, y: matmul(x, y),
    keeps=slice(None),
)  # fmt: skip


def _promoted_matmul(x: Any, y: Any) -> Array:
    return bind(matmul_op, promote_arrays("matmul", x, y))


_fast_matmul = binary_fast(matmul_op, _promoted_matmul)


def matmul(x: Any, y: Any) -> Array:
    """Return the matrix product over the last axis of x and the second-to-last of y; leading axes broadcast.

    One-dimensional operands are vectors, as in NumPy.

    Raises:
        ShapeError: the sizes do not agree.

    >>> gt.matmul(gt.ones((2, 3)), gt.ones(3))
    Array([3., 3.], dtype=float32)
    """
    return _fast_matmul(x, y)


of_operator[matmul] = binary_fast(matmul_op, deferring(_promoted_matmul))


@replayable
def dot(x: Any, y: Any) -> Array:
    """Return the dot product of vectors, or the matmul of matrices. In general it sums over the last axis of x and the
    second-to-last of y, as numpy.dot does.

    >>> gt.dot(gt.array([1., 2.]), gt.array([3., 4.]))
    Array(11., dtype=float32)
    """
    x, y = promote_arrays("dot", x, y)
    if not x.ndim or not y.ndim:
        return multiply(x, y)
    if x.ndim <= 2 and y.ndim <= 2:
        return matmul(x, y)
    return tensordot(x, y, ((x.ndim - 1,), (max(y.ndim - 2, 0),)))


def vecdot(x: Any, y: Any, *, axis: int = -1) -> Array:
    """Return the dot products of the conjugate of x with y over `axis`; the other axes broadcast.

    Raises:
        ShapeError: the sizes of `axis` differ.

    >>> gt.vecdot(gt.ones((2, 3)), gt.arange(3))
    Array([3., 3.], dtype=float32)
    """
    x, y = promote_arrays("vecdot", x, y)
    sizes = [z.shape[normalize_axis("vecdot", axis, z.ndim)] for z in (x, y)]
    if sizes[0] != sizes[1]:
        raise ShapeError(message("vecdot", f"one size of axis {axis}", (x.aval, y.aval), "Use sum(conj(x) * y)."))
    if axis != -1:
        x, y = (moveaxis(z, axis, -1) for z in (x, y))
    products = multiply(conj(x), y)
    return cast(reduce.sum(products, -1), products.aval.dtype)


@replayable
def outer(x: Any, y: Any) -> Array:
    """Return the matrix of products of each element of x with each element of y.

    >>> gt.outer(gt.array([1., 2.]), gt.array([3., 4.]))
    Array([[3., 4.],
           [6., 8.]], dtype=float32)
    """
    x, y = promote_arrays("outer", x, y)
    return multiply(expand_dims(ravel(x), 1), ravel(y))


@replayable
def tensordot(x: Any, y: Any, axes: Any = 2) -> Array:
    """Return the sum of products over pairs of axes.

    Args:
        axes: a count n (the last n of x with the first n of y), or (axes of x, axes of y).

    Raises:
        ShapeError: paired axes differ in size.

    >>> gt.tensordot(gt.ones((2, 3)), gt.ones((3, 4)), axes=1).shape
    (2, 4)
    """
    x, y = promote_arrays("tensordot", x, y)
    if not isinstance(axes, (tuple, list)):
        count = as_int("tensordot", "number of axes", axes)
        if not 0 <= count <= min(x.ndim, y.ndim):
            got = f"{count} for {x.aval!r} and {y.aval!r}"
            raise ShapeError(message("tensordot", "a number of axes that both have", got, "Pass fewer."))
        first, second = tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    else:
        first, second = (tuple(a) if isinstance(a, (tuple, list)) else (a,) for a in axes)
    first = tuple(normalize_axis("tensordot", a, x.ndim) for a in first)
    second = tuple(normalize_axis("tensordot", a, y.ndim) for a in second)
    sizes = [x.shape[a] for a in first], [y.shape[a] for a in second]
    if len(set(first)) != len(first) or len(set(second)) != len(second):
        raise ShapeError(message("tensordot", "each axis once", str(axes), "Remove the repeated axis."))
    if sizes[0] != sizes[1]:
        got = f"{sizes[0]} and {sizes[1]}"
        raise ShapeError(message("tensordot", "paired axes of equal sizes", got, f"x is {x.aval!r}, y is {y.aval!r}."))
    left = [k for k in range(x.ndim) if k not in first]
    right = [k for k in range(y.ndim) if k not in second]
    inner = math.prod(sizes[0])
    a = reshape(permute_dims(x, (*left, *first)), (math.prod(x.shape[k] for k in left), inner))
    b = reshape(permute_dims(y, (*second, *right)), (inner, math.prod(y.shape[k] for k in right)))
    return reshape(matmul(a, b), (*(x.shape[k] for k in left), *(y.shape[k] for k in right)))


# -- einsum


def _einsum_impl(*xs: torch.Tensor, equation: str) -> torch.Tensor:
    dtype = xs[0].dtype
    if dtype is torch.float32 and _has_long_sums(xs, equation):
        return torch.einsum(equation, *[x.to(torch.float64) for x in xs]).to(dtype)
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.int64:
        return torch.einsum(equation, *xs)
    # for axes that one operand alone has, torch sums in int64, and then multiplies only with int64
    return torch.einsum(equation, *[x.to(torch.int64) for x in xs]).to(dtype)


def _sizes(equation: str, operands: Sequence[Any]) -> dict[str, int]:
    """Return the size that each label stands for."""
    terms = equation.partition("->")[0].split(",")
    return {c: n for term, x in zip(terms, operands, strict=True) for c, n in zip(term, x.shape, strict=True)}


def _has_long_sums(xs: Sequence[torch.Tensor], equation: str) -> bool:
    """Whether there are few results, each of which is a sum of many terms that torch adds one by one."""
    sizes = _sizes(equation, xs)
    if not LONG_SUMS.on or xs[0].device.type != "cpu" or not all(type(n) is int for n in sizes.values()):
        return False
    results = math.prod(sizes[c] for c in equation.partition("->")[2])
    return 0 < results <= FEW_SUMS and math.prod(sizes.values()) // results >= LONG_SUM


def _einsum_shape(avals: tuple[Aval, ...], equation: str) -> tuple[int, ...]:
    terms, _, result = equation.partition("->")
    sizes: dict[str, int] = {}
    for term, a in zip(terms.split(","), avals, strict=True):
        if len(term) != len(a.shape) or any(sizes.setdefault(c, n) != n for c, n in zip(term, a.shape, strict=True)):
            raise ShapeError(message("einsum", f"a label for each axis, and one size for each, in {equation}", avals))
    return tuple(sizes[label] for label in result)


def _einsum_vjp(ct: Array, needed: Any, *rest: Any, equation: str) -> list[Array | None]:
    arrays = rest[:-1]
    terms, _, result = equation.partition("->")
    labels = terms.split(",")
    grads: list[Array | None] = []
    for k, x in enumerate(arrays):
        if not needed[k]:
            grads.append(None)
            continue
        others = [(labels[j], arrays[j]) for j in range(len(arrays)) if j != k]
        known = set(result).union(*[set(term) for term, _ in others])
        # labels of this operand alone were summed, so their cotangent is constant along them
        reached = "".join(label for label in labels[k] if label in known)
        source = ",".join([result, *(term for term, _ in others)])
        g = bind(_einsum, (ct, *(y for _, y in others)), (f"{source}->{reached}",))
        g = reshape(g, tuple(n if label in known else 1 for label, n in zip(labels[k], x.shape, strict=True)))
        grads.append(broadcast_to(g, x.shape))
    return grads


def _einsum_batch(op: Op, size: int, batched: Any, operands: Any, equation: str) -> Array:
    terms, _, result = equation.partition("->")
    label = next(c for c in string.ascii_letters if c not in equation)
    labels = [label * flag + term for term, flag in zip(terms.split(","), batched, strict=True)]
    return bind(op, operands, (f"{','.join(labels)}->{label}{result}",))


def _einsum_samples() -> list[Sample]:
    x, y, z = uniform(-2, 2, 2, 3), uniform(-2, 2, 3, 4, seed=1), uniform(-2, 2, 4, 2, seed=2)
    cases = [("ij,jk->ik", x, y), ("ij,jk", x, y), ("ij->", x), ("ij->ji", x), ("ij,jk,ki->", x, y, z),
             ("ij,ij->i", x, x), ("ii->i", x[:, :2]), ("ii", x[:, :2]),
             ("...j,jk->...k", x, y), ("ij,k->j", x, y[0])]  # fmt: skip
    return [Sample(case) for case in cases]


_einsum = define(
    "einsum", _einsum_impl, params=("equation",), arity=None, check=no_booleans,
    contraction=lambda avals, out, equation: math.prod(_sizes(equation, avals).values()),
    shape=_einsum_shape, vjp=_einsum_vjp, multilinear=True,
    factors=contraction, batch=_einsum_batch, samples=_einsum_samples,
    errors=lambda: [BadSample(("ij,jk->ik", numpy.ones((2, 3)), numpy.ones((4, 5))), {}, ShapeError, r"one size"),
                    BadSample(("ij->iz", numpy.ones((2, 3))), {}, ArgumentError, r"labels of the operands")],
    reference=numpy.einsum, user=lambda *args: einsum(*args),
    keeps=slice(None),
)  # fmt: skip


@replayable
def einsum(equation: str, *operands: Any) -> Array:
    """Return a sum of products in Einstein's notation, as numpy.einsum. More than two operands are multiplied pairwise.

    Without "->", the result has the labels that appear once, in alphabetical order.

    Raises:
        ArgumentError: the equation is malformed.
        ShapeError: a label has two sizes.

    >>> gt.einsum("ij,j->i", gt.ones((2, 3)), gt.ones(3))
    Array([3., 3.], dtype=float32)
    """
    if not isinstance(equation, str) or not operands:
        raise ArgumentError(
            message("einsum", "an equation and its operands", repr(equation), 'Such as "ij,jk->ik", x, y.')
        )
    arrays = promote_arrays("einsum", *operands)
    labels, result = _labels(equation.replace(" ", ""), arrays)
    for k, term in enumerate(labels):
        arrays[k], labels[k] = _diagonals(arrays[k], term)
    sizes: dict[str, int] = {}
    for term, x in zip(labels, arrays, strict=True):
        for label, n in zip(term, x.shape, strict=True):
            if sizes.setdefault(label, n) != n:
                if 1 not in (n, sizes[label]):
                    got = f"{sizes[label]} and {n} for {label!r} in {equation!r}"
                    raise ShapeError(message("einsum", "one size for each label", got, "Check the operands' shapes."))
                sizes[label] = max(n, sizes[label])
    arrays = [broadcast_to(x, tuple(sizes[label] for label in term)) for term, x in zip(labels, arrays, strict=True)]
    if len(arrays) <= 2:
        return bind(_einsum, arrays, (f"{','.join(labels)}->{result}",))
    for places in _contractions((*labels,), result, tuple([x.shape for x in arrays])):
        taken, terms = [arrays[k] for k in places], [labels[k] for k in places]
        arrays = [x for k, x in enumerate(arrays) if k not in places]
        labels = [term for k, term in enumerate(labels) if k not in places]
        needed = {*result, *"".join(labels)}
        left = "".join(label for label in dict.fromkeys("".join(terms)) if label in needed) if arrays else result
        arrays.append(bind(_einsum, taken, (f"{','.join(terms)}->{left}",)))
        labels.append(left)
    return arrays[0]


@functools.lru_cache(maxsize=1024)
def _contractions(
    labels: tuple[str, ...], result: str, shapes: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the order in which to contract several operands pairwise with the least work.

    The result of each contraction becomes the last of the remaining operands.
    """
    operands = [numpy.broadcast_to(numpy.zeros(()), shape) for shape in shapes]
    search = "optimal" if len(labels) <= MOST_SEARCHED else "greedy"
    path, _ = numpy.einsum_path(f"{','.join(labels)}->{result}", *operands, optimize=search)
    pairs: list[tuple[int, ...]] = []
    count = len(labels)
    for places in path[1:]:
        first, second, *others = sorted(places)
        pairs.append((first, second))
        count -= 1
        for k, place in enumerate(others):  # without those before, and with the result so far at the end
            pairs.append((place - 2 - k, count - 1))
            count -= 1
    return tuple(pairs)


def _labels(equation: str, arrays: Sequence[Array]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result, with ellipses expanded."""
    terms, arrow, result = equation.partition("->")
    labels = terms.split(",")
    if len(labels) != len(arrays):
        raise ArgumentError(
            message("einsum", f"{len(labels)} operands", str(len(arrays)), f"The equation is {equation!r}.")
        )
    spare = [c for c in string.ascii_letters if c not in equation]
    rest = [x.ndim - len(term.replace("...", "")) for term, x in zip(labels, arrays, strict=True)]
    width = max([n for term, n in zip(labels, rest, strict=True) if "..." in term], default=0)
    dots = "".join(spare[:width])
    for k, (term, x) in enumerate(zip(labels, arrays, strict=True)):
        if rest[k] < 0 or (rest[k] and "..." not in term):
            raise ArgumentError(
                message("einsum", f"a term for {x.ndim} axes", repr(term), f"The operand is {x.aval!r}.")
            )
        labels[k] = term.replace("...", dots[width - rest[k] :] if rest[k] else "")
    used = "".join(labels)
    if arrow:
        result = result.replace("...", dots)
    else:
        result = dots + "".join(sorted(c for c in set(used) if used.count(c) == 1 and c not in dots))
    if not all(c.isalpha() for c in used + result) or len(set(result)) != len(result) or not set(result) <= set(used):
        raise ArgumentError(
            message("einsum", "a result of labels of the operands, each once", repr(equation), 'Such as "ij,jk->ik".')
        )
    return labels, result


def _diagonals(x: Array, term: str) -> tuple[Array, str]:
    """Return x and its labels with each repeated label's axes replaced by their diagonal."""
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            first = term.index(label)
            second = term.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                got = f"{x.shape[first]} and {x.shape[second]} for {label!r}"
                raise ShapeError(message("einsum", "one size for each label", got, "A diagonal needs a square."))
            places = constant_array(numpy.arange(x.shape[first]), x.aval.device)
            x = permute_dims(x, (first, second, *(k for k in range(x.ndim) if k not in (first, second))))
            x = getitem(x, (places, places))
            term = label + "".join(c for k, c in enumerate(term) if k not in (first, second))
    return x, term
