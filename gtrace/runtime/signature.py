"""Signatures: short names of canonical programs, and the keys under which their compiled forms are kept."""

from __future__ import annotations

import hashlib

import attrs

from gtrace.ir.graph import Graph, print_graph, skeleton


@attrs.frozen
class Signature:
    """Two digests of a canonical graph, 12 hexadecimal digits each.

    Attributes:
        exact: operations, dependencies, attributes, avals and scalar values.
        structural: the same with every integer and every Python scalar replaced by a hole, so that programs which
            differ only in those share it.
    """

    exact: str
    structural: str

    def __str__(self) -> str:
        return self.exact


@attrs.frozen
class CompileKey:
    """What a compiled program of this process depends on.

    Attributes:
        signature: exact digest of the canonical graph.
        strides: of each input.
        backend, mode: how it is compiled.
    """

    signature: str
    strides: tuple[tuple[int, ...], ...]
    backend: str
    mode: str


def sign(graph: Graph) -> Signature:
    """Return the signature of a canonical graph."""
    return Signature(_digest(print_graph(graph)), _digest(repr(skeleton(graph)[0])))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
