"""Signatures: digests of canonical programs, and keys of compiled code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import attrs

from gtrace.core.ir.graph import Graph, Skeleton, print_graph, skeleton


@attrs.frozen
class Signature:
    """Two digests of a canonical graph. Each has 128 bits as 32 hexadecimal digits, so equal digests mean equal graphs.

    Attributes:
        exact: covers operations, dependencies, attributes, avals and scalar values.
        structural: leaves out the values of integers and Python scalars, so programs that differ only there share it.

    >>> from gtrace import ir
    >>> b = ir.Builder()
    >>> x = b.input((3,), gt.float32)
    >>> signature = ir.sign(ir.canonicalize(b.graph(b.op("sin", x))).graph)
    >>> len(signature.exact), str(signature) == ir.short(signature.exact)
    (32, True)
    """

    exact: str
    structural: str

    def __str__(self) -> str:
        return short(self.exact)


@attrs.frozen
class CompileKey:
    """Everything that a compiled program of this process depends on.

    Attributes:
        signature: exact digest of the canonical graph.
        strides: the strides of each input.
        backend, mode: how it is compiled.
        threads: the number of threads of its loops on a CPU, which is fixed in the code.
        donated: the indices of the inputs that it may overwrite.
    """

    signature: str
    strides: tuple[tuple[int, ...], ...]
    backend: str
    mode: str
    threads: int
    donated: tuple[int, ...] = ()


def sign(graph: Graph, bones: Skeleton | None = None) -> Signature:
    """Return the signature of a canonical graph, as `canonicalize` makes it.

    Args:
        bones: the skeleton of the graph, if known.

    >>> from gtrace import ir
    >>> graph = ir.parse_graph("graph(%0: f32[3]) {\\n  %1: f32[3] = sin(%0)\\n  return %1\\n}")
    >>> ir.sign(graph) == ir.sign(ir.canonicalize(graph).graph)
    True
    """
    return Signature(_digest(print_graph(graph)), _digest(repr(skeleton(graph)[0] if bones is None else bones)))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def short(digest: str) -> str:
    """Return the first 12 digits of a digest, for people to read.

    >>> short("0123456789abcdef0123456789abcdef")
    '0123456789ab'
    """
    return digest[:12]


def matching(beginning: str, known: Iterable[str]) -> list[str]:
    """Return the distinct digests in `known` that start with `beginning`; only `beginning` if it is one itself.

    >>> matching("ab", ["abcd", "beef", "abcd"]), matching("", ["abcd", "beef"])
    (['abcd'], ['abcd', 'beef'])
    """
    found = sorted({digest for digest in known if digest.startswith(beginning)})
    return [beginning] if beginning in found else found
