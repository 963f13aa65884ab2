"""Shared sharding rules: which axes of the operands and the result are split alike.

A rule is called as ``rule(avals, **params)`` and returns `Factors`; None: each process computes all of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any

import numpy

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.sharding_rule import WHOLE, Factors, broadcast_term

Rule = Callable[..., Factors | None]
Shape = tuple[int, ...]


def letters(ndim: int) -> str:
    """Return a letter for each of `ndim` axes."""
    if ndim > len(ascii_letters):
        raise ValueError(f"expected at most {len(ascii_letters)} axes, got {ndim}")
    return ascii_letters[:ndim]


def _without(text: str, axes: Sequence[int]) -> str:
    return "".join(WHOLE if k in axes else letter for k, letter in enumerate(text))


def same(avals: Sequence[Aval], **_: Any) -> Factors:
    """Return the rule of an elementwise operation."""
    axes = letters(len(avals[0].shape))
    return Factors(f"{axes}->{axes}")


def along(*names: str) -> Rule:
    """Return the rule of an operation along the axes in these attributes; other axes are split."""

    def rule(avals: Sequence[Aval], **params: Any) -> Factors:
        taken: list[int] = []
        for name in names:
            axes = params[name]
            taken += axes if isinstance(axes, tuple) else (axes,)
        term = _without(letters(len(avals[0].shape)), taken)
        return Factors(f"{','.join([term] * len(avals))}->{term}")

    return rule


def reduction(reduce: str | None = None) -> Rule:
    """Return the rule of a reduction with attributes `axes`, or `axis`, and `keepdims`.

    Args:
        reduce: how the results of parts are combined; None: reduced axes are not split.
    """

    def rule(
        avals: Sequence[Aval], keepdims: bool, axes: tuple[int, ...] = (), axis: int | tuple[int, ...] | None = None
    ) -> Factors:
        shape = avals[0].shape
        if axis is not None:
            axes = axis if isinstance(axis, tuple) else (axis,)
        term = letters(len(shape))
        result = "".join(WHOLE if k in axes else c for k, c in enumerate(term) if keepdims or k not in axes)
        if reduce is None:
            return Factors(f"{_without(term, axes)}->{result}")
        if reduce == "mean":
            count = math.prod(shape[k] for k in axes)
            return Factors(f"{term}->{result}", via=("sum", 1 / count)) if count else None  # type: ignore[return-value]
        return Factors(f"{term}->{result}", reduce)

    return rule


def _result_shape(params: dict[str, Any], shapes: list[Shape], result: Shape) -> dict[str, Any]:
    return {**params, "shape": result}


def permuted(avals: Sequence[Aval], axes: tuple[int, ...]) -> Factors:
    """Return the rule of a transposition."""
    term = letters(len(axes))
    return Factors(f"{term}->{''.join(term[k] for k in axes)}")


def broadcasted(avals: Sequence[Aval], shape: Shape) -> Factors:
    """Return the rule of a broadcast: repeated axes are not split."""
    result = letters(len(shape))
    start = len(shape) - len(avals[0].shape)
    kept = [k >= start and avals[0].shape[k - start] == n for k, n in enumerate(shape)]
    term = "".join(c if keep else WHOLE for c, keep in zip(result, kept, strict=True))
    return Factors(f"{term[start:]}->{term}", local=_result_shape)


def summed_to(avals: Sequence[Aval], shape: Shape) -> Factors:
    """Return the rule of a sum over the axes that a broadcast repeated."""
    term = letters(len(avals[0].shape))
    return Factors(f"{term}->{broadcast_term(shape, avals[0].shape, term)}", local=_result_shape)


def filled(avals: Sequence[Aval], shape: Shape, device: str) -> Factors:
    """Return the rule of an array with one value: it is not split; its users take their parts."""
    return Factors(f"->{WHOLE * len(shape)}")


def regrouped(avals: Sequence[Aval], shape: Shape) -> Factors:
    """Return the rule of a reshape: the outermost of joined or divided axes is split into equal parts."""
    old = avals[0].shape
    if 0 in old:
        return Factors(f"{WHOLE * len(old)}->{WHOLE * len(shape)}")
    term, result = [WHOLE] * len(old), [WHOLE] * len(shape)
    even = ""
    spare = iter(ascii_letters)
    for first, second in _groups(old, shape):
        outer = [next((k for k in group if sizes[k] > 1), None) for group, sizes in ((first, old), (second, shape))]
        if outer[0] is None or outer[1] is None:
            continue
        letter = next(spare)
        term[outer[0]] = result[outer[1]] = letter
        if old[outer[0]] != shape[outer[1]]:
            even += letter
    return Factors(f"{''.join(term)}->{''.join(result)}", even=even, local=_result_shape)


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Return the shortest runs of old and new axes that hold the same elements."""
    found = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, second = [], []
        m = n = 1
        if i < len(old):
            first.append(i)
            m, i = old[i], i + 1
        if j < len(new):
            second.append(j)
            n, j = new[j], j + 1
        while m != n:
            if m < n:
                first.append(i)
                m, i = m * old[i], i + 1
            else:
                second.append(j)
                n, j = n * new[j], j + 1
        found.append((first, second))
    return found


def _sliced_term(shape: Shape, bounds: Sequence[tuple[int, int, int]]) -> str:
    partial = [k for k, (b, n) in enumerate(zip(bounds, shape, strict=False)) if tuple(b) != (0, n, 1)]
    return _without(letters(len(shape)), partial)


def _local_bounds(term: str) -> Callable[[dict[str, Any], list[Shape], Shape], dict[str, Any]]:
    def local(params: dict[str, Any], shapes: list[Shape], result: Shape) -> dict[str, Any]:
        bounds = tuple(b if term[k] == WHOLE else (0, result[k], 1) for k, b in enumerate(params["bounds"]))
        return {**params, "bounds": bounds, **({"shape": result} if "shape" in params else {})}

    return local


def sliced(avals: Sequence[Aval], bounds: Any) -> Factors:
    """Return the rule of a slice: sliced axes are not split."""
    term = _sliced_term(avals[0].shape, bounds)
    return Factors(f"{term}->{term}", local=_local_bounds(term))


def unsliced(avals: Sequence[Aval], shape: Shape, bounds: Any) -> Factors:
    """Return the rule of an embedding into zeros."""
    term = _sliced_term(shape, bounds)
    return Factors(f"{term}->{term}", local=_local_bounds(term))


def updated(avals: Sequence[Aval], bounds: Any) -> Factors:
    """Return the rule of a slice update."""
    term = _sliced_term(avals[0].shape, bounds)
    return Factors(f"{term},{term}->{term}", local=_local_bounds(term))


def padded(avals: Sequence[Aval], widths: Any) -> Factors:
    """Return the rule of a padding: padded axes are not split."""
    grown = [k for k, pair in enumerate(widths) if tuple(pair) != (0, 0)]
    term = _without(letters(len(avals[0].shape)), grown)
    return Factors(f"{term},->{term}")


def matrices(avals: Sequence[Aval], **_: Any) -> Factors:
    """Return the rule of an operation on matrices: their axes, the last two, are not split."""
    ndim = len(avals[0].shape)
    term = _without(letters(ndim), (ndim - 2, ndim - 1))
    return Factors(f"{term}->{term}")


def product(avals: Sequence[Aval]) -> Factors:
    """Return the rule of a matmul of matrices, vectors or batches of them."""
    x, y = (a.shape for a in avals)
    batch = numpy.broadcast_shapes(x[:-2], y[:-2])
    names = letters(len(batch) + 3)
    m, k, n = list(names[-3:])
    first = broadcast_term(x[:-2], batch, names) + (m + k if len(x) > 1 else k)
    second = broadcast_term(y[:-2], batch, names) + (k + n if len(y) > 1 else k)
    result = names[: len(batch)] + (m if len(x) > 1 else "") + (n if len(y) > 1 else "")
    return Factors(f"{first},{second}->{result}")


def contraction(avals: Sequence[Aval], equation: str) -> Factors:
    """Return the rule of a sum of products in Einstein's notation."""
    return Factors(equation)


def placed_codes(avals: Sequence[Aval], num_classes: int, axis: int, dtype: str) -> Factors:
    """Return the rule of a one-hot encoding: the class axis is not split."""
    term = letters(len(avals[0].shape))
    return Factors(f"{term}->{term[:axis]}{WHOLE}{term[axis:]}")


def searched(avals: Sequence[Aval], **_: Any) -> Factors:
    """Return the rule of a search: the sought values are split."""
    term = letters(len(avals[1].shape))
    return Factors(f"{WHOLE},{term}->{term}")


def picked(avals: Sequence[Aval], axis: int) -> Factors:
    """Return the rule of a gather along an axis: the array is not split along it, the indices are."""
    x, index = avals[0].shape, avals[1].shape
    term = letters(len(x))
    unequal = [k for k in range(len(x)) if k != axis and x[k] != index[k]]
    places = _without(term, unequal)
    return Factors(f"{_without(places, (axis,))},{places}->{places}")


def scattered(avals: Sequence[Aval], axis: int) -> Factors:
    """Return the rule of a scatter along an axis: the updates are split, and the parts' results added."""
    x, index, u = (a.shape for a in avals)
    term = letters(len(x))
    unequal = [k for k in range(len(x)) if k != axis and not x[k] == index[k] == u[k]]
    into = _without(term, (*unequal, axis))
    places = _without(term, unequal if index == u else (*unequal, axis))
    return Factors(f"{into},{places},{places}->{into}", into=0)


def _indexed_terms(x: Shape, indices: Sequence[Shape], dims: tuple[int, ...]) -> tuple[str, list[str], str]:
    """Return the letters of an array, of the arrays that index `dims`, and of the result."""
    places = numpy.broadcast_shapes(*indices)
    names = letters(len(x) + len(places))
    own, spread = _without(names[: len(x)], dims), names[len(x) :]
    terms = [broadcast_term(shape, places, spread) for shape in indices]
    rest = "".join(c for k, c in enumerate(own) if k not in dims)
    at = dims[0] if all(b == a + 1 for a, b in itertools.pairwise(dims)) else 0
    return own, terms, rest[:at] + spread + rest[at:]


def indexed(avals: Sequence[Aval], dims: tuple[int, ...]) -> Factors:
    """Return the rule of indexing by arrays: indexed axes are not split, index arrays are."""
    own, terms, result = _indexed_terms(avals[0].shape, [a.shape for a in avals[1:]], dims)
    return Factors(f"{','.join([own, *terms])}->{result}")


def indexed_put(avals: Sequence[Aval], dims: tuple[int, ...], accumulate: bool, **_: Any) -> Factors | None:
    """Return the rule of an indexed write. With `accumulate`, index arrays are split, and the parts' results added."""
    own, terms, values = _indexed_terms(avals[0].shape, [a.shape for a in avals[2:]], dims)
    u = avals[1].shape
    if len(u) != len(values):
        return None
    if not accumulate:
        kept = set(own)
        terms = [WHOLE * len(term) for term in terms]
        values = "".join(c if c in kept else WHOLE for c in values)
    return Factors(f"{','.join([own, values, *terms])}->{own}", into=0 if accumulate else None)
