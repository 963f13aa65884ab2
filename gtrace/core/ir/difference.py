"""Describes the differences between two programs: why the second had to be compiled too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gtrace.core.ir.graph import Graph, Scalar, is_subgraphs

Strides = Sequence[tuple[int, ...]]


def differences(old: Graph, new: Graph, old_strides: Strides = (), new_strides: Strides = ()) -> Iterator[str]:
    """Iterate over the fields in which two canonical graphs differ, inputs first.

    Yields:
        Texts such as "input 0 dim 0 was 64, now 128" or "operation 3 (sum) attribute axes was (0,), now (1,)".

    >>> from gtrace import ir
    >>> small, large = (gt.make_graph(gt.sin)(gt.ones(n)) for n in (64, 128))
    >>> ir.difference(small, large)
    'input 0 dim 0 was 64, now 128'
    >>> next(ir.differences(small, large))
    'input 0 dim 0 was 64, now 128'
    """
    if len(old.avals) != len(new.avals):
        yield f"inputs were {len(old.avals)}, now {len(new.avals)}"
    for k, (a, b) in enumerate(zip(old.avals, new.avals, strict=False)):
        if a.dtype != b.dtype:
            yield f"input {k} dtype was {a!r}, now {b!r}"
        if a.device != b.device:
            yield f"input {k} device was {a.device}, now {b.device}"
        if len(a.shape) != len(b.shape):
            yield f"input {k} was {a!r}, now {b!r}"
        else:
            for dim, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
                if m != n:
                    yield f"input {k} dim {dim} was {m}, now {n}"
        if a.sharding != b.sharding:
            yield f"input {k} sharding was {a.sharding}, now {b.sharding}"
        if a.weak != b.weak:
            yield f"input {k} was {a!r}, now {b!r}"
    for k, (x, y) in enumerate(zip(_scalars(old), _scalars(new), strict=False)):
        if x != y:
            yield f"scalar {k} was {x!r}, now {y!r}"
    if len(old.nodes) != len(new.nodes):
        yield f"operations were {len(old.nodes)}, now {len(new.nodes)}"
    for k, (p, q) in enumerate(zip(old.nodes, new.nodes, strict=False)):
        if p.op is not q.op:
            yield f"operation {k} was {p.op.name}, now {q.op.name}"
            continue
        for name, m, n in zip(p.op.params, p.params, q.params, strict=True):
            if m == n:
                continue
            if is_subgraphs(m) and is_subgraphs(n):
                bodies = [x if isinstance(x, tuple) else (x,) for x in (m, n)]
                for one, other in zip(*bodies, strict=False):
                    for inner in differences(one.graph, other.graph):
                        yield f"operation {k} ({p.op.name}) {name}: {inner}"
            else:
                yield f"operation {k} ({p.op.name}) attribute {name} was {m!r}, now {n!r}"
        if _shape_of(p.ins) != _shape_of(q.ins):
            yield f"operation {k} ({p.op.name}) has other operands"
    if old.outputs != new.outputs:
        yield f"outputs were {len(old.outputs)}, now {len(new.outputs)}, or others"
    for k, (s, t) in enumerate(zip(old_strides, new_strides, strict=False)):
        if s != t:
            yield f"input {k} strides were {s}, now {t}"


def difference(old: Graph, new: Graph, old_strides: Strides = (), new_strides: Strides = ()) -> str:
    """Return the first field in which two canonical graphs differ; empty if they agree.

    >>> from gtrace import ir
    >>> graph = gt.make_graph(gt.sin)(gt.ones(64))
    >>> ir.difference(graph, graph)
    ''
    """
    return next(differences(old, new, old_strides, new_strides), "")


def _shape_of(ins: Sequence[int | Scalar]) -> tuple[int | None, ...]:
    return tuple(None if isinstance(x, Scalar) else x for x in ins)


def _scalars(graph: Graph) -> list[Scalar]:
    return [x for node in graph.nodes for x in node.ins if isinstance(x, Scalar)]
