"""The declaration of an operation: its implementation, traits, rules and test cases.

Passes read traits, never names. `gtrace.core.ir.op` adds the table of an operation's instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.cases import Cases
from gtrace.core.ir.rules import Rules

MAX_DTYPES = 2048
"""The number of result dtypes that are cached for one operation."""

Params = tuple[Any, ...]
"""Attributes of a node in the order of ``Op.params``: ints, floats, bools, strings, None, sub-graphs, and tuples."""


@attrs.frozen(eq=False, repr=False)
class Declaration:
    """The facts that an operation declares. `gtrace.core.ir.op.define` makes one as part of an `Op`.

    Attributes:
        name: unique, as printed in the IR.
        impl: torch function of (tensors..., **params), which must not mutate its operands. Type inference and the
            lowering to FX call it, and the interpreter if there is no `Rules.direct`.
        params: names of the attributes, in canonical order.
        arity: number of array operands; None: any number.
        elementwise: shapes broadcast, and `Rules.partials` are per-element derivatives.
        algebraic: it is elementwise and consists of sums, products, quotients and powers, without cases. Formulas of
            such operations that agree at random points agree everywhere.
        commutative: the two operands may be exchanged.
        identity: the result is the first operand, unchanged; the canonicalizer removes it.
        uniform: if all elements of the operand are equal, so are those of the result; the canonicalizer folds it.
        free: the result costs nothing to recompute, and its operands are no larger: derivatives keep those instead.
        moves: the elements of its result are those of its operands, at other indices or in another dtype.
        keeps: the operands that decide whether the result is weak: it is weak if all of them are. None: all operands
            of an elementwise operation; results of other operations are strong.
        fresh: whether the result has memory of its own, or a function of (operands' avals, result's aval) that says so.
        product: it is x * y, element by element.
        sum: it is x + y or x - y, element by element.
        constant: it fills an array with its operand, a number; the canonicalizer makes constants with it.
        exponential: it computes exp(x - y) of its operand, with a y of about the largest x along `axis`.
        contraction: for a sum of products, as of matrices, which is expensive to recompute: a function of (operands'
            avals, result's aval, **attributes) that returns how many products it adds up.
        view: torch's result is a view of the operand, where strides allow that; or a function of (**attributes) that
            says so. Each element of the operand is in it at most once.
        indices: int64 operands after the first are indices of the first.
        host_numbers: torch's kernel takes a 0-d tensor on the CPU beside tensors on a GPU.
        loop: it runs a sub-graph repeatedly, `length` times if it has that attribute.
        branch: it runs one of its programs.
        cipher: it makes random bits of a key and counters, element by element, in some hundred steps.
        complex: its operand or its result is complex, whatever the other dtypes are.
        placement: it says how its operand, which it returns, is laid out over processes.
        collective: for an operation that communicates: a function of the number of processes. It returns the least
            that each process sends, as a multiple of the operand.
        effect: it calls Python, or depends on such a call. It is interpreted, and stays in its step of a loop.
        interpreted: the interpreter alone runs it, such as a library's kernel, which no compiler knows.
        unsigned: how uint64 is computed where torch cannot: None, `gtrace.core.ir.wide_unsigned.ORDER` or a function
            of the bits.
        numbers: its attributes hold the user's numbers, which are compared by type and sign too, not by ``==`` alone.
        projection: it selects one result, by its index, of an operation with several.
        lowered: it runs its body, for which there may be a kernel. Rewrites of whole programs put one or the other in
            its place. Sub-graphs have the body.
        aten: the operator of torch that has its values and its gradients, at special points too; empty: there is none.
        jax: the primitive of JAX's that computes the same, without parameters; empty: there is none.
        rules: its type, derivatives and batching, and how it runs.
        cases: its test cases.
        dtypes: a cache of result dtypes by the attributes and the (dtype, dimensions) of each operand.
    """

    name: str
    impl: Callable[..., Any]
    params: tuple[str, ...] = ()
    arity: int | None = 1
    elementwise: bool = False
    algebraic: bool = False
    commutative: bool = False
    identity: bool = False
    uniform: bool = False
    free: bool = False
    moves: bool = False
    keeps: slice | None = None
    fresh: bool | Callable[[tuple[Aval, ...], Aval], bool] = False
    product: bool = False
    sum: bool = False
    constant: bool = False
    exponential: bool = False
    contraction: Callable[..., int] | None = None
    view: bool | Callable[..., bool] = False
    indices: bool = False
    host_numbers: bool = False
    loop: bool = False
    branch: bool = False
    cipher: bool = False
    complex: bool = False
    placement: bool = False
    collective: Callable[[int], float] | None = None
    effect: bool = False
    interpreted: bool = False
    numbers: bool = False
    projection: bool = False
    lowered: bool = False
    unsigned: str | Callable[..., Any] | None = None
    aten: str = ""
    jax: str = ""
    rules: Rules = attrs.field(factory=Rules)
    cases: Cases = attrs.field(factory=Cases)
    dtypes: BoundedTable[Any, torch.dtype] = attrs.field(factory=lambda: BoundedTable(MAX_DTYPES), init=False)
