"""Compile requests: a straight-line program or a loop, with everything that its compiled code depends on."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import attrs
import torch

from gtrace.core.backends.symbolic import Relation
from gtrace.core.backends.toolchain import toolchain
from gtrace.core.base import json_fields
from gtrace.core.ir.aliasing import Pairs
from gtrace.core.ir.aval import place_of
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.ir.text import parse_graph


@attrs.frozen(eq=False)
class CompileRequest:
    """A straight-line program, or a loop, to compile.

    Attributes:
        graph: a canonical graph without sub-graphs; or one loop, for any length of it, which
            `gtrace.core.backends.native.generator.of_open_length` made.
        strides: of each input.
        backend, mode: how it is compiled.
        relations: how its integers follow from the open sizes of its inputs; None: no size is open.
        threads: the number of threads that run a large loop on a CPU; by default torch's.
        native: whether it is compiled by the C++ compiler alone, as `gtrace.core.backends.native` does.
        donated: the outputs that are written over inputs; the compiled code does not return them.
    """

    graph: Graph
    strides: tuple[tuple[int, ...], ...]
    backend: str = "inductor"
    mode: str = "default"
    relations: tuple[Relation, ...] | None = None
    threads: int = attrs.field(factory=torch.get_num_threads)
    native: bool = False
    donated: Pairs = ()

    def to_json(self) -> dict[str, Any]:
        """Return it in the terms of JSON."""
        return json_fields.to_json(self, {Graph: print_graph})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CompileRequest:
        """Return the request that `to_json` wrote."""
        return _read(data)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return place_of(self.graph.avals)

    @functools.cached_property
    def name(self) -> str:
        """A digest of all that the compiled code depends on: 24 hexadecimal digits."""
        return self.named(toolchain())

    def named(self, tools: Mapping[str, str]) -> str:
        """Return the name of the request under this toolchain."""
        data = self.to_json()
        return digest(*(f"{key}: {value}" for key, value in data.items()), *(f"{k}: {v}" for k, v in tools.items()))


_read = json_fields.reader(CompileRequest, {Graph: parse_graph})


def digest(*parts: str) -> str:
    """Return 24 hexadecimal digits of a digest of texts."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()
