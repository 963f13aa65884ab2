"""The rules of an operation: its type, derivatives, batching and execution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.cpp import Cpp
from gtrace.core.ir.sharding_rule import Factors


def _as_tuple(given: Cpp | tuple[Cpp, ...]) -> tuple[Cpp, ...]:
    return (given,) if isinstance(given, Cpp) else given


@attrs.frozen(eq=False, kw_only=True)
class Rules:
    """Functions that type, differentiate, batch and run an operation.

    Attributes:
        shape: (avals, **params) -> shape or aval of the result, for common operations. Inference then gets the dtype
            from operands of one element. Startup is faster, because meta tensors would import torch's tracer.
        result: (avals, **params) -> type of the result, for operations with sub-graphs.
        check: (name of the operation, avals, **params) -> None, or raises the user's error in place of torch's.
        partials: for an elementwise op, d out / d operand as functions of (operands..., out). Each returns an Array, or
            the numbers 1 and -1.
        vjp: (cotangent, needed, *operands, out, **params) -> one cotangent or None per operand; `needed` flags the
            operands whose cotangent is used. The transpose of a linear op has this form too. For an operation with
            several results, `cotangent` is a list, with None for results without a cotangent.
        derived: (avals, needed, given, **params) -> attributes of the call of the same operation that `vjp` records, of
            the operands and the given cotangents; None: it records something else. Walks for other sizes need it.
        nondiff: in place of a rule, why the derivative is zero everywhere or does not exist.
        linear: the operands in which the operation is jointly linear; True: all of them. The jvp follows from it.
        multilinear: whether it is linear in each operand separately, like a product. The jvp follows from it.
        jvp: (tangents, *operands, out, **params) -> tangent of the result; the tangent of an operand may be None.
            Without `linear`, `multilinear` and `jvp`, the jvp is the transposed vjp.
        batch: (op, size, batched, operands, **params) -> result. The batch is axis 0 of the result and of the operands
            that `batched` flags. For several results: a list of (result, whether it is batched). An elementwise
            operation needs no such rule.
        direct: (avals, **params) -> `Op.impl` specialized to these avals and attributes, as a function of the operands;
            or None. The interpreter calls it in place of `Op.impl`.
        cpp: the expressions of an elementwise operation in C++, one for each set of kinds of dtype; empty: it has none.
        body: (programs, tensors..., **params) -> tensors: runs an operation with sub-graphs. Each program is a
            sub-graph as a function of lists of tensors. Such an operation has a `result` and no `Op.impl`.
        narrow: (used results, **params) -> (params, kept results): the operation without its unused results.
        span: (avals, spans of the operands, **params) -> (least, greatest) integer of the result, or None if unknown.
            The span of an operand is such a pair or None. Indices known to be in range are not checked.
        named: (size, batched, operands, **params) -> (result, whether it is batched): for an operation over a named
            axis, which is its first attribute. The vmap with that name calls it.
        factors: (avals, **params) -> how to divide it among processes. None: each process computes all of it. An
            elementwise operation needs no such rule.
        reached: (flags of operands, **params) -> flags of the results that may have a derivative by them. None: all.
        inlined: (graph) -> whether the operation only runs its body, which then replaces it.
    """

    shape: Callable[..., tuple[int, ...] | Aval] | None = None
    result: Callable[..., Aval | Bundle] | None = None
    check: Callable[..., None] | None = None
    partials: tuple[Callable[..., Any], ...] | None = None
    vjp: Callable[..., Sequence[Any]] | None = None
    derived: Callable[..., tuple[Any, ...] | None] | None = None
    nondiff: str | None = None
    linear: tuple[int, ...] | bool = False
    multilinear: bool = False
    jvp: Callable[..., Any] | None = None
    batch: Callable[..., Any] | None = None
    direct: Callable[..., Callable[..., Any] | None] | None = None
    cpp: tuple[Cpp, ...] = attrs.field(default=(), converter=_as_tuple)
    body: Callable[..., Any] | None = None
    narrow: Callable[..., tuple[tuple[Any, ...], Sequence[int]]] | None = None
    span: Callable[..., tuple[int, int] | None] | None = None
    named: Callable[..., tuple[Any, bool]] | None = None
    factors: Callable[..., Factors | None] | None = None
    reached: Callable[..., tuple[bool, ...]] | None = None
    inlined: Callable[[Any], bool] | None = None
