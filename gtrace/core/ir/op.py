"""The operation record and the registry.

`define` declares an operation once: its torch function and traits (`Declaration`), its type, derivatives and batching
(`Rules`), and its test samples (`Cases`). The type of a result is inferred once per (operation, params, avals).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import attrs
import torch

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval, aval, broadcast, layout
from gtrace.core.ir.cases import Cases
from gtrace.core.ir.declaration import Declaration, Params
from gtrace.core.ir.infer import BY_VALUE, infer
from gtrace.core.ir.interning import InternTable
from gtrace.core.ir.rules import Rules
from gtrace.core.ir.skeleton import OPEN, kind, mask
from gtrace.core.ir.wide_unsigned import kernel


@attrs.frozen(eq=False, repr=False)
class Op(Declaration):
    """A primitive operation. Make one with `define`.

    Attributes:
        table: a cache of instructions by (params, *avals). With `numbers`, the key has the exact key of the params.
            Instructions without attributes are keyed by avals alone.
        types: (dtype, device, weakness) of results, by the attributes without larger integers, which may be sizes, and
            the `Aval.kind` of operands.
    """

    table: BoundedTable[Any, Instr] = attrs.field(init=False)
    types: BoundedTable[Any, tuple[torch.dtype, torch.device, bool]] = attrs.field(
        factory=lambda: BoundedTable(MAX_TABLE, TYPE), init=False
    )

    @table.default
    def _made_table(self) -> BoundedTable[Any, Instr]:
        # most operations have no sub-graphs, so one weight holds for all entries
        return BoundedTable(MAX_TABLE, INSTR if self.rules.body is None else lambda instr: instr.weight)

    def __repr__(self) -> str:
        return f"Op({self.name})"

    def instr(self, params: Params, avals: tuple[Aval, ...]) -> Instr:
        """Return the interned instruction for these attributes and operand avals; the first call infers its type.

        Operands with a sharding get the same instruction as operands without one.
        """
        key = ((exact_key(params) if self.numbers else params), *avals) if params else avals
        found = self.table.get(key)
        if found is None:
            if 0 in [a.kind for a in avals if a.__class__ is Aval]:  # one has a sharding
                plain = tuple([a.plain if a.__class__ is Aval else a for a in avals])
                found = self.instr(params, plain)
            else:
                make = functools.partial(self._new, params, avals)
                found = _instrs.intern((self, key), make)
            self.table.remember(key, found)
        return found

    def _new(self, params: Params, avals: tuple[Aval, ...]) -> Instr:
        return Instr(self, params, avals, self._type(params, avals))

    def met(self, avals: tuple[Aval, ...]) -> Instr | None:
        """Return the instruction without attributes for these avals, if it has one for others of their kinds."""
        return self.instr((), avals) if ("", *[a.kind for a in avals]) in self.types else None

    def _type(self, params: Params, avals: tuple[Aval, ...]) -> Any:
        """Return the type of the result. What does not depend on sizes is inferred once for all sizes."""
        rules = self.rules
        if rules.result is not None or self.identity or not (self.elementwise or rules.shape is not None):
            return infer(self, params, avals)
        attributes = exact_key(params) if self.numbers else _without_sizes(params)
        key = (attributes or "", *[a.kind for a in avals])
        known = self.types.get(key)
        if known is None:
            made: Any = infer(self, params, avals)
            if 0 not in key and not any(a.dtype in BY_VALUE for a in avals):
                self.types.remember(key, (made.dtype, made.device, made.weak))
            return made
        if rules.shape is None:  # it is elementwise, and its check looks at dtypes
            return aval(broadcast(self.name, avals), *known)
        named = dict(zip(self.params, params, strict=True)) if params else {}
        if rules.check is not None:
            rules.check(self.name, avals, **named)
        found = rules.shape(avals, **named)
        return infer(self, params, avals) if isinstance(found, Aval) else aval(tuple(found), *known)


@attrs.frozen(eq=False, repr=False)
class Instr:
    """An operation with fixed attributes and avals: one step of a recorded program.

    Attributes:
        plain: the same instruction without the user's derivative rule, if it has one. Pending programs and their keys
            use the plain one.
        digest: an int that is the same in every process, for canonical ordering.
        form: such an int that does not depend on sizes.
        structure: what it shares with instructions of other sizes, in this process.
        call: torch's function of it with its attributes, once the interpreter has made it.
    """

    op: Op
    params: Params
    ins: tuple[Aval, ...]
    aval: Any  # an Aval, or the Bundle of an operation with several results
    plain: Instr | None = None
    _digest: int = attrs.field(init=False, default=0)
    _form: int = attrs.field(init=False, default=0)
    _structure: EntryStructure | None = attrs.field(init=False, default=None)
    call: Callable[..., Any] | None = attrs.field(init=False, default=None)

    # a cached property would make attrs add a `__getattr__`, which slows each attribute read by 35 ns

    @property
    def digest(self) -> int:
        if not self._digest:
            text = f"{self.op.name}{self.params!r}{self.ins!r}{self.aval!r}"
            object.__setattr__(self, "_digest", stable_hash(text))
        return self._digest

    @property
    def weight(self) -> int:
        """Its approximate bytes."""
        weight = INSTR
        for value in self.params:  # a sub-graph, or a tuple of sub-graphs
            for one in value if value.__class__ is tuple else (value,):
                weight += getattr(one, "weight", 0)
        return weight

    @property
    def form(self) -> int:
        if not self._form:
            # the index of a result is not a size: without it, the order of equal results would depend on sizes
            params = self.params if self.op.projection else mask(self.params, [])
            text = f"{self.op.name}{params!r}{[kind(a) for a in self.ins]}{kind(self.aval)}"
            object.__setattr__(self, "_form", stable_hash(text))
        return self._form

    @property
    def structure(self) -> EntryStructure:
        found = self._structure
        if found is None:
            # what a deferred sub-graph holds follows from the types and the other attributes
            given = tuple([value for value in self.params if not getattr(value, "deferred", False)])
            params = mask(given, []) if given else ()
            key = self.op, params, tuple([open_kind(a) for a in self.ins]), open_kind(self.aval)
            found = _structures.intern(key, lambda: EntryStructure(key))
            object.__setattr__(self, "_structure", found)
        return found

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(zip(self.op.params, self.params, strict=True))

    @property
    def index(self) -> int:
        """Which result of its operand it is, of a `projection`."""
        found: int = self.params[0]
        return found

    def kernel(self) -> Callable[..., Any]:
        """Return its torch function of (tensors..., **attributes)."""
        return kernel(self.op, self.params, self.ins, self.aval)

    def __repr__(self) -> str:
        return f"Instr({self.op.name}: {self.ins} -> {self.aval})"


@attrs.frozen(eq=False)
class Leaf:
    """An input of a pending program: its aval and the strides of its buffer. Interned; see `leaf`.

    Attributes:
        structure: what it shares with inputs of other sizes whose axes lie in the same order.
    """

    aval: Aval
    strides: tuple[int, ...]
    structure: EntryStructure = attrs.field(init=False)

    @structure.default
    def _made_structure(self) -> EntryStructure:
        a = self.aval
        key = open_kind(a), layout(a.shape, self.strides) if a.kind else (a, self.strides)
        return _structures.intern(key, lambda: EntryStructure(key))


@attrs.frozen(eq=False)
class EntryStructure:
    """An instruction or an input with its sizes left open: all that differ in sizes only share one. Interned.

    Attributes:
        key: operation, attributes and types of an instruction, or type and order of the axes of an input.
    """

    key: Any


LEAST_OPEN = 9
"""Integers below may be axes, which torch checks, and belong to what is known of an operation."""


def _without_sizes(params: Any) -> Any:
    if params.__class__ is int:
        return params if -LEAST_OPEN < params < LEAST_OPEN else OPEN
    return tuple([_without_sizes(value) for value in params]) if params.__class__ is tuple else params


def open_kind(a: Any) -> Any:
    """Return the type of a value without its sizes, as a key in this process."""
    if a.__class__ is Aval:
        return a.kind or a.plain.kind
    return tuple([open_kind(each) for each in a.avals])


REGISTRY: dict[str, Op] = {}
"""Every operation by name."""

MAX_TABLE = 8192
"""The number of instructions of one operation that are kept for fast lookups, used or not."""

TYPE = 200
"""Bytes of a type of results: two small tuples, and its part of the table."""

INSTR = 700
"""Measured bytes of an instruction without sub-graphs: its type, keys and hashes."""

_instrs: InternTable[Instr] = InternTable(keep=0)  # the tables of operations keep the recent ones
_leaves: InternTable[Leaf] = InternTable()
_structures: InternTable[EntryStructure] = InternTable()


def leaf(a: Aval, strides: tuple[int, ...]) -> Leaf:
    """Return the interned `Leaf` for an input of aval `a` whose buffer has `strides`."""
    return _leaves.intern((a, strides), lambda: Leaf(a, strides))


def stable_hash(text: str) -> int:
    """Return a 60-bit hash of `text` that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 4


def no_impl(*_: Any, **__: Any) -> Any:
    """Replaces the torch function of an operation that has a `body`."""
    raise TypeError("an operation with sub-graphs runs through its body")


_RULES = frozenset(field.name for field in attrs.fields(Rules))
_CASES = frozenset(field.name for field in attrs.fields(Cases))


def define(name: str, impl: Callable[..., Any] = no_impl, **fields: Any) -> Op:
    """Declare an operation and add it to the registry. The fields are those of `Op`, `Rules` and `Cases`.

    Raises:
        ValueError: the name is taken, or not exactly one of `partials`, `vjp` and `nondiff` is stated.
        TypeError: there is no such field.
    """
    if name in REGISTRY:
        raise ValueError(f"operation {name!r} is already defined")
    rules = Rules(**{key: value for key, value in fields.items() if key in _RULES})
    cases = Cases(**{key: value for key, value in fields.items() if key in _CASES})
    traits = {key: value for key, value in fields.items() if key not in _RULES | _CASES}
    op = Op(name, impl, rules=rules, cases=cases, **traits)
    if sum(rule is not None for rule in (rules.partials, rules.vjp, rules.nondiff)) != 1:
        raise ValueError(f"operation {name!r} needs exactly one of partials, vjp and nondiff")
    REGISTRY[name] = op
    return op
