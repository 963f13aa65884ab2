"""The operation record and the registry.

`define` declares an operation once: its torch function and traits (`Declaration`), its type, derivatives and batching
(`Rules`), and its test samples (`Cases`). The type of a result is inferred once per (operation, params, avals).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import attrs

from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.cases import Cases
from gtrace.core.ir.declaration import Declaration, Params
from gtrace.core.ir.infer import infer
from gtrace.core.ir.interning import InternTable
from gtrace.core.ir.rules import Rules
from gtrace.core.ir.skeleton import kind, mask
from gtrace.core.ir.wide_unsigned import kernel


@attrs.frozen(eq=False, repr=False)
class Op(Declaration):
    """A primitive operation. Make one with `define`.

    Attributes:
        table: a cache of instructions by (params, *avals). With `numbers`, the key has the exact key of the params.
            Instructions without attributes are also keyed by avals alone.
    """

    table: BoundedTable[Any, Instr] = attrs.field(init=False)

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
        exact = exact_key(params) if self.numbers else params
        key = (exact, *avals)
        found = self.table.get(key)
        if found is None:
            plain = tuple([a.plain if a.__class__ is Aval else a for a in avals])
            found = _instrs.intern(
                (self, (exact, *plain)), lambda: Instr(self, params, plain, infer(self, params, plain))
            )
            self.table.remember(key, found)
            if not params:
                self.table.remember(avals, found)
        return found


@attrs.frozen(eq=False, repr=False)
class Instr:
    """An operation with fixed attributes and avals: one step of a recorded program.

    Attributes:
        plain: the same instruction without the user's derivative rule, if it has one. Pending programs and their keys
            use the plain one.
        digest: an int that is the same in every process, for canonical ordering.
        form: such an int that does not depend on sizes.
    """

    op: Op
    params: Params
    ins: tuple[Aval, ...]
    aval: Any  # an Aval, or the Bundle of an operation with several results
    plain: Instr | None = None
    _digest: int = attrs.field(init=False, default=0)
    _form: int = attrs.field(init=False, default=0)

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

    def kernel(self) -> Callable[..., Any]:
        """Return its torch function of (tensors..., **attributes)."""
        return kernel(self.op, self.params, self.ins, self.aval)

    def __repr__(self) -> str:
        return f"Instr({self.op.name}: {self.ins} -> {self.aval})"


@attrs.frozen(eq=False)
class Leaf:
    """An input of a pending program: its aval and the strides of its buffer. Interned; see `leaf`."""

    aval: Aval
    strides: tuple[int, ...]


REGISTRY: dict[str, Op] = {}
"""Every operation by name."""

MAX_TABLE = 8192
"""The number of instructions of one operation that are kept for fast lookups, used or not."""

INSTR = 700
"""Measured bytes of an instruction without sub-graphs: its type, keys and hashes."""

_instrs: InternTable[Instr] = InternTable(weigh=lambda instr: instr.weight)
_leaves: InternTable[Leaf] = InternTable()


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
