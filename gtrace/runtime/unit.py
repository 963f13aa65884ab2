"""What the compiler is given: one straight-line program, with all that its compiled form depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from gtrace.ir.graph import Graph, print_graph
from gtrace.ir.text import parse_graph
from gtrace.runtime.general import Relation
from gtrace.runtime.interpret import Program
from gtrace.runtime.toolchain import toolchain


@attrs.frozen(eq=False)
class Unit:
    """A straight-line program to compile.

    Attributes:
        graph: a canonical graph without sub-graphs.
        strides: of each input.
        backend, mode: how.
        relations: how its integers follow from the sizes of its inputs, which are open; None: nothing is.
        threads: that large loops on a CPU are divided among; those that torch has here.
    """

    graph: Graph
    strides: tuple[tuple[int, ...], ...]
    backend: str = "inductor"
    mode: str = "default"
    relations: tuple[Relation, ...] | None = None
    threads: int = attrs.field(factory=torch.get_num_threads)

    def describe(self) -> dict[str, Any]:
        """Return it in the terms of JSON."""
        relations = self.relations
        return {
            "graph": print_graph(self.graph),
            "strides": [list(s) for s in self.strides],
            "mode": self.mode,
            "relations": None if relations is None else [list(attrs.astuple(r)) for r in relations],
            "threads": self.threads,
        }

    @classmethod
    def read(cls, told: dict[str, Any]) -> Unit:
        """Return the unit that `describe` told of.

        Raises:
            GraphError: the graph is none.
        """
        relations = told["relations"]
        return cls(
            parse_graph(told["graph"]),
            tuple(tuple(s) for s in told["strides"]),
            "inductor",
            told["mode"],
            None if relations is None else tuple(read_relation(r) for r in relations),
            told["threads"],
        )

    @property
    def name(self) -> str:
        """A digest of all that its compiled form depends on: 24 hexadecimal digits."""
        return self.named(toolchain())

    def named(self, tools: dict[str, str]) -> str:
        """Return the name that it has with this toolchain."""
        told = self.describe()
        return digest(*(f"{key}: {told[key]}" for key in told), *(f"{k}: {v}" for k, v in tools.items()))


def read_relation(told: Sequence[Any]) -> Relation:
    """Return the relation that its fields, as JSON has them, tell of."""
    return Relation(tuple(told[0]), *told[1:])


@attrs.frozen(eq=False)
class Made:
    """A compiled unit.

    Attributes:
        program: the callable.
        conditions: on the open sizes, under which it is right; see `gtrace.runtime.conditions`.
    """

    program: Program
    conditions: tuple[Any, ...] = ()


Maker = Callable[[Unit], Made]
"""Something that compiles units, finds them compiled, or only notes them."""


def digest(*parts: str) -> str:
    """Return 24 hexadecimal digits of a digest of texts."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()
