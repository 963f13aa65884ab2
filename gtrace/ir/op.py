"""The operation record and the one registry.

An operation is declared once, with `define`: how torch computes it, how it differentiates, and the samples that every
test walks. Its shape and dtype rule is torch itself, run on meta tensors, unless the operation states one, and cached
per (operation, params, avals).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.errors import DeviceError, DtypeError, ShapeError, message
from gtrace.ir.aval import Aval, Bundle, aval
from gtrace.ir.sizes import kind, mask

Params = tuple[Any, ...]
"""Attributes of a node in the order of ``Op.params``: ints, floats, bools, strings, None, tuples of these, and
sub-graphs."""


@attrs.frozen
class Sample:
    """One example call for the registry walk: NumPy arrays or Python scalars, and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class BadSample:
    """A call that must raise `error` with `match` (a regular expression) in its message."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    error: type[Exception]
    match: str


@attrs.define(eq=False, repr=False, slots=True)
class Op:
    """A primitive operation. Make one with `define`.

    Attributes:
        name: unique, as printed in the IR.
        impl: torch function of (tensors..., **params); must not mutate, and is what meta inference, the FX tracing
            and, where there is no `direct`, the interpreter call.
        direct: (avals, **params) -> torch function of the operands, or None: `impl` for operands of these avals, with
            what follows from them and the attributes settled beforehand. The interpreter calls it where it is stated.
        params: names of the attributes, in their canonical order.
        arity: number of array operands; None: any number.
        elementwise: shapes broadcast, and `partials` are per-element derivatives.
        commutative: the two operands may be exchanged.
        identity: the result is the operand, unchanged; the canonicalizer removes it.
        uniform: of an operand whose elements are all equal, the result has the same; the canonicalizer folds it.
        partials: for an elementwise op, d out / d operand as functions of (operands..., out). Each returns an Array, or
            the numbers 1 and -1.
        vjp: (cotangent, needed, operands, out, **params) -> one cotangent or None per operand; `needed` flags the
            operands whose cotangent is used. A linear op's transpose is stated in this form too. Of an operation with
            several results, `cotangent` is a list, with None for results that have none.
        linear: the operands in which the operation is jointly linear, or True: in all of them. Its jvp follows.
        multilinear: it is linear in each operand by itself, as a product is. Its jvp follows.
        jvp: (tangents, operands, out, **params) -> tangent of the result; a tangent is None for an operand that has
            none. Where neither of the three is stated, the jvp is the vjp transposed.
        batch: (size, batched, operands, **params) -> result, with the batch as axis 0 of the operands that `batched`
            flags and of the result. An elementwise operation needs none.
        body: (programs, tensors..., **params) -> tensors: how an operation with sub-graphs runs, given each sub-graph
            as a function of lists of tensors. It has a `result` and no `impl`.
        result: (avals, **params) -> type of the result, for operations with sub-graphs.
        compiled: (compile, **params) -> function of tensors: how it runs compiled, where `compile` makes a function of
            lists of tensors from a sub-graph; where it is not stated, each sub-graph is compiled for `body`.
        narrow: (wanted results, **params) -> (params, results kept): the operation without results nobody wants.
        inlined: whether, in a given graph, the operation stands for nothing but its body.
        nondiff: why the derivative is zero everywhere or does not exist; instead of a rule.
        shape: (avals, **params) -> shape of the result, for operations that programs meet early: the dtype then comes
            from operands of one element, and torch's tracer, which its meta tensors import, is not needed. Or its aval.
        check: (avals, **params) -> None, raising the error a user should see instead of torch's.
        samples, errors: the registry walk's material, as functions so that nothing is built at import.
        user: the user-facing function that `samples` call (positional arrays, keyword arguments).
        reference: NumPy function with the same arguments, or None when torch's own parity says it all.
        dtypes: the dtype of the result by the attributes and (dtype, dimensions) of each operand.
        table: the inference cache, (params, *avals) or for parameterless elementwise ops (*avals) -> Instr.
    """

    name: str
    impl: Callable[..., Any]
    direct: Callable[..., Callable[..., Any] | None] | None = None
    params: tuple[str, ...] = ()
    arity: int | None = 1
    elementwise: bool = False
    commutative: bool = False
    identity: bool = False
    uniform: bool = False
    partials: tuple[Callable[..., Any], ...] | None = None
    vjp: Callable[..., Sequence[Any]] | None = None
    linear: tuple[int, ...] | bool = False
    multilinear: bool = False
    jvp: Callable[..., Any] | None = None
    batch: Callable[..., Any] | None = None
    body: Callable[..., Any] | None = None
    result: Callable[..., Aval | Bundle] | None = None
    compiled: Callable[..., Callable[..., Any]] | None = None
    narrow: Callable[..., tuple[Params, Sequence[int]]] | None = None
    inlined: Callable[[Any], bool] | None = None
    nondiff: str | None = None
    shape: Callable[..., tuple[int, ...] | Aval] | None = None
    check: Callable[..., None] | None = None
    samples: Callable[[], list[Sample]] | None = None
    errors: Callable[[], list[BadSample]] | None = None
    user: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None
    dtypes: dict[Any, torch.dtype] = attrs.field(factory=dict, init=False)
    table: dict[Any, Instr] = attrs.field(factory=dict, init=False)

    def __repr__(self) -> str:
        return f"Op({self.name})"

    @property
    def differentiable(self) -> bool:
        return self.nondiff is None

    def instr(self, params: Params, avals: tuple[Aval, ...]) -> Instr:
        """Return the interned instruction for these attributes and operand avals, inferring it the first time."""
        key = (params, *avals)
        found = self.table.get(key)
        if found is None:
            found = Instr.make(self, params, avals, infer(self, params, avals))
            self.table[key] = found
            if not params:
                self.table[avals] = found
        return found


@attrs.frozen(eq=False, repr=False)
class Instr:
    """An operation with its attributes and avals fixed: what one step of a recorded program is.

    Attributes:
        code: a small int, unique in the process; pending graphs are lists of these.
        digest: an int that is the same in every process, for canonical ordering.
        form: the same with every size left open.
    """

    op: Op
    params: Params
    ins: tuple[Aval, ...]
    aval: Any  # an Aval, or the Bundle of an operation with several results
    code: int

    @functools.cached_property
    def digest(self) -> int:
        return stable_hash(f"{self.op.name}{self.params!r}{self.ins!r}{self.aval!r}")

    @functools.cached_property
    def form(self) -> int:
        return stable_hash(f"{self.op.name}{mask(self.params, [])!r}{[kind(a) for a in self.ins]}{kind(self.aval)}")

    @classmethod
    def make(cls, op: Op, params: Params, ins: tuple[Aval, ...], out: Aval | Bundle) -> Instr:
        instr = cls(op, params, ins, out, len(CODES))
        CODES.append(instr)
        return instr

    def __repr__(self) -> str:
        return f"Instr({self.op.name}: {self.ins} -> {self.aval})"


@attrs.frozen(eq=False)
class Leaf:
    """What a pending graph's list says of an input: its aval and the strides of its buffer."""

    aval: Aval
    strides: tuple[int, ...]
    code: int


@attrs.frozen(eq=False)
class Literal:
    """What a pending graph's list says of a Python scalar operand: the aval it was given; the value is kept apart."""

    aval: Aval
    code: int


REGISTRY: dict[str, Op] = {}
"""Every operation by name."""

CODES: list[Instr | Leaf | Literal] = []
"""What each code of a pending graph stands for."""

_leaves: dict[tuple[Aval, tuple[int, ...]], int] = {}
_literals: dict[tuple[Aval, bool], int] = {}


def leaf_code(a: Aval, strides: tuple[int, ...]) -> int:
    """Return the code for an input of aval `a` whose buffer has `strides`."""
    code = _leaves.get((a, strides))
    if code is None:
        code = len(CODES)
        CODES.append(Leaf(a, strides, code))
        _leaves[a, strides] = code
    return code


def literal_code(a: Aval, negative_zero: bool) -> int:
    """Return the code for a scalar operand of aval `a`; -0.0 has its own, because it compares equal to 0.0."""
    code = _literals.get((a, negative_zero))
    if code is None:
        code = len(CODES)
        CODES.append(Literal(a, code))
        _literals[a, negative_zero] = code
    return code


def stable_hash(text: str) -> int:
    """Return a 60-bit hash of `text` that does not change between processes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 4


def no_impl(*_: Any, **__: Any) -> Any:
    """Stand for the torch function of an operation that has a `body` instead."""
    raise TypeError("an operation with sub-graphs runs through its body")


def define(name: str, impl: Callable[..., Any] = no_impl, **fields: Any) -> Op:
    """Declare an operation and add it to the registry. The fields are those of `Op`.

    Raises:
        ValueError: the name is taken, or the declaration states no derivative and no reason why there is none.
    """
    if name in REGISTRY:
        raise ValueError(f"operation {name!r} is already defined")
    op = Op(name, impl, **fields)
    rules = sum(rule is not None for rule in (op.partials, op.vjp, op.nondiff))
    if rules != 1:
        raise ValueError(f"operation {name!r} needs exactly one of partials, vjp and nondiff")
    REGISTRY[name] = op
    return op


def infer(op: Op, params: Params, avals: tuple[Aval, ...]) -> Aval | Bundle:
    """Return the type of the result, by running torch on meta tensors, or as `Op.result` says.

    Raises:
        DeviceError: operands on different devices.
        ShapeError: torch refuses the shapes; op.check may raise something more precise first.
    """
    named = dict(zip(op.params, params, strict=True))
    devices = {a.device for a in avals if a.__class__ is Aval and (a.shape or not a.weak)}
    if len(devices) > 1:
        raise DeviceError(
            message(op.name, "operands on one device", " and ".join(map(str, avals)), "Move one with .to(device).")
        )
    if op.check is not None:
        op.check(avals, **named)
    if op.result is not None:
        return op.result(avals, **named)
    known = None if op.shape is None else op.shape(avals, **named)
    if isinstance(known, Aval):
        return known
    if "device" in named:
        device = torch.device(named["device"])
        named["device"] = "meta"
    else:
        device = next(iter(devices)) if devices else avals[0].device
    # the dtype of operands of one element is that of all with as many dimensions
    single = (op.elementwise or known is not None) and device.type == "cpu"
    kinds = params, *[(a.dtype, len(a.shape)) for a in avals]
    dtype = op.dtypes.get(kinds) if single else None
    if dtype is None and single and op.differentiable and (op.elementwise or not params):
        # what has a derivative is floating, and torch keeps the floating dtype that all operands have
        common = {a.dtype for a in avals}
        dtype = common.pop() if common in ({torch.float32}, {torch.float64}) else None
    try:
        if single and known is None:
            shapes = {a.shape for a in avals}
            known = avals[0].shape if len(shapes) == 1 else numpy.broadcast_shapes(*shapes)
        if dtype is None:
            if single:
                tensors = [torch.ones((1,) * len(a.shape), dtype=a.dtype) for a in avals]
            else:
                tensors = [torch.empty(a.shape, dtype=a.dtype, device="meta") for a in avals]
            out = op.impl(*tensors, **named)
            dtype = out.dtype
            if single:
                op.dtypes[kinds] = dtype
            elif known is None:
                known = tuple(out.shape)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        kind = DtypeError if "not implemented for" in reason or "dtype" in reason.lower() else ShapeError
        got = ", ".join(map(str, avals)) + (f" with {named}" if named else "")
        raise kind(message(op.name, "operands that fit", got, f"torch says: {reason}")) from error
    assert known is not None
    return aval(tuple(known), dtype, device, op.elementwise and bool(avals) and all(a.weak for a in avals))
