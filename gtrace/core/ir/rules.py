"""The rules of an operation: its type, its derivatives, its batching, and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.sharding_rule import Factors


@attrs.frozen(eq=False, kw_only=True)
class Rules:
    """How an operation is typed, differentiated, batched and run.

    Attributes:
        shape: (avals, **params) -> shape or aval of the result, for common operations. Inference then gets the dtype
            from operands of one element. It needs no meta tensors, which import torch's tracer: startup is faster.
        result: (avals, **params) -> type of the result, for operations with sub-graphs.
        check: (name of the operation, avals, **params) -> None, raising the error a user should see instead of torch's.
        partials: for an elementwise op, d out / d operand as functions of (operands..., out). Each returns an Array, or
            the numbers 1 and -1.
        vjp: (cotangent, needed, operands, out, **params) -> one cotangent or None per operand; `needed` flags the
            operands whose cotangent is used. A linear op's transpose has this form too. For an operation with
            several results, `cotangent` is a list, with None for results without a cotangent.
        nondiff: why the derivative is zero everywhere or does not exist; instead of a rule.
        linear: the operands in which the operation is jointly linear; True: all of them. The jvp follows from it.
        multilinear: whether it is linear in each operand by itself, like a product. The jvp follows from it.
        jvp: (tangents, operands, out, **params) -> tangent of the result; a tangent is None for an operand that has
            none. Without `linear`, `multilinear` and `jvp`, the jvp is the vjp transposed.
        batch: (size, batched, operands, **params) -> result, with the batch as axis 0 of the operands that `batched`
            flags and of the result. An elementwise operation needs none.
        direct: (avals, **params) -> `Op.impl` specialized to these avals and attributes, as a function of the operands;
            or None. The interpreter calls it in place of `Op.impl`.
        in_place: torch function that computes the same and overwrites the first operand with the result.
        body: (programs, tensors..., **params) -> tensors: how an operation with sub-graphs runs, given each sub-graph
            as a function of lists of tensors. It has a `result` and no `Op.impl`.
        compiled: (programs, **params) -> function of tensors: how it runs in a compiled program; None: as `body` does.
        bodies: (**params) -> the sub-graphs to compile into `programs`; None: the operation's own.
        narrow: (used results, **params) -> (params, results kept): the operation without its unused results.
        span: (avals, spans of the operands, **params) -> (least, greatest) integer of the result, or None where it is
            not known. A span is such a pair or None. Indices that are known to be in range are not checked.
        named: (size, batched, operands, **params) -> (result, whether it is batched): how an operation over a named
            axis is batched by the vmap that has the name, its first attribute.
        factors: (avals, **params) -> how it is divided among processes, or None: each computes all of it. An
            elementwise operation needs none.
        inlined: (graph) -> whether the operation does nothing but run its body, which then takes its place.
    """

    shape: Callable[..., tuple[int, ...] | Aval] | None = None
    result: Callable[..., Aval | Bundle] | None = None
    check: Callable[..., None] | None = None
    partials: tuple[Callable[..., Any], ...] | None = None
    vjp: Callable[..., Sequence[Any]] | None = None
    nondiff: str | None = None
    linear: tuple[int, ...] | bool = False
    multilinear: bool = False
    jvp: Callable[..., Any] | None = None
    batch: Callable[..., Any] | None = None
    direct: Callable[..., Callable[..., Any] | None] | None = None
    in_place: Callable[..., Any] | None = None
    body: Callable[..., Any] | None = None
    compiled: Callable[..., Callable[..., Any]] | None = None
    bodies: Callable[..., tuple[Any, ...]] | None = None
    narrow: Callable[..., tuple[tuple[Any, ...], Sequence[int]]] | None = None
    span: Callable[..., tuple[int, int] | None] | None = None
    named: Callable[..., tuple[Any, bool]] | None = None
    factors: Callable[..., Factors | None] | None = None
    inlined: Callable[[Any], bool] | None = None
