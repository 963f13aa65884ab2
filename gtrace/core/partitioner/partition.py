"""Partitioning: the program of all processes becomes the program of one, with collectives between its operations.

The partitioner walks the graph once, in order. Computation follows data: an operation's sharding rule (`Factors`) says
which axes of its operands may be divided alike; where operands disagree, one of them is laid out anew. Every decision
depends on the program and its global shapes alone, so that all processes insert the same collectives in the same order.

A sum over a divided dimension leaves each process with a summand (`ShardingLayout.partial`). Linear operations work on
the summands. Before the first operation that is not linear, or before a second use, the summands are added up. If the
value is needed in parts, each process gets only its part of the sum.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gtrace.core.base.errors import GraphError, ShardingError, message
from gtrace.core.ir.aval import Aval, Bundle, aval, sharded
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Subgraph, subgraphs
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.sharding import Axes, Dims, Mesh, NamedSharding, PartitionSpec, bounds, parse_dims, parse_mesh
from gtrace.core.ir.sharding_rule import WHOLE, Factors, broadcast_term
from gtrace.core.partitioner.bodies import rule_of
from gtrace.core.partitioner.conversion import Converter
from gtrace.core.partitioner.layouts import ShardingLayout, replicated, wanted_dims
from gtrace.core.partitioner.local_program import LocalProgram
from gtrace.core.partitioner.partitioned import Partitioned


def find_meshes(graph: Graph) -> tuple[Mesh, ...]:
    """Return the meshes that a program runs on; none if nothing in it is sharded."""
    found: dict[Mesh, None] = {}
    placed = {value: a.sharding for value, a in zip(graph.inputs, graph.avals, strict=True) if a.sharding is not None}
    if placed:
        used = {*graph.outputs, *(value for node in graph.nodes for value in node.values())}
        found = {sharding.mesh: None for value, sharding in placed.items() if value in used}
    found.update(dict.fromkeys(_placements(graph)))
    if len({frozenset(mesh.ranks) for mesh in found}) < len(found):
        fix = "Lay everything that is computed together out over one mesh, with gt.device_put(x, sharding)."
        raise ShardingError(message("sharding", "arrays of one mesh, or of meshes of other processes", found, fix))
    return tuple(found)


def has_placements(graph: Graph) -> bool:
    """Whether something in a program, its loops and branches included, is laid out."""
    return next(_placements(graph), None) is not None


def named_meshes(node: Node) -> tuple[Mesh, ...]:
    """Return the meshes that an operation, or what it runs, is laid out over."""
    if node.op.placement:
        return (parse_mesh(node.attributes["mesh"]),) if node.attributes["spec"] is not None else ()
    return tuple(dict.fromkeys(mesh for sub in subgraphs(node.params) for mesh in _named(sub)))


def _placements(graph: Graph) -> Iterator[Mesh]:
    """Yield the meshes that are named in a program, its loops and branches included."""
    for node in graph.nodes:
        if node.op.placement:
            yield parse_mesh(node.attributes["mesh"])
        for sub in subgraphs(node.params) if node.op.rules.body is not None else ():
            yield from _named(sub)


def _named(sub: Subgraph) -> tuple[Mesh, ...]:
    found: tuple[Mesh, ...] = sub.memo("meshes", lambda: tuple(_placements(sub.graph)))
    return found


def partition(graph: Graph, mesh: Mesh, rank: int) -> Partitioned:
    """Return the program of the process `rank`.

    Args:
        graph: the program of all processes. Inputs without a sharding are whole, and the same, on each process.
    """
    dims = [((),) * len(a.shape) if a.sharding is None else a.sharding.dims(len(a.shape)) for a in graph.avals]
    made = Partitioner(graph, mesh, mesh.coordinates(rank), dims)
    made.divide()
    shared = _shared(graph)
    outputs, avals = [], []
    for value in graph.outputs:
        layout = made.settled(value)
        outputs.append(made.demand(value, layout))
        avals.append(made.placed_aval(value, layout.dims) if value in shared else made.types[value])
    program = made.program
    local = program.finish(outputs)
    return Partitioned(
        mesh, local, graph.avals, tuple(avals), program.transfers, tuple(dict.fromkeys(program.gathered))
    )


def _shared(graph: Graph) -> set[int]:
    """Return the values that depend on something that is laid out. Others belong to each process alone."""
    found = {value for value, a in zip(graph.inputs, graph.avals, strict=True) if a.sharding is not None}
    for node in graph.nodes:
        if named_meshes(node) or any(value in found for value in node.values()):
            found.add(node.out)
    return found


class Partitioner:
    """Divides one graph: a program, or the body of a loop or branch.

    Args:
        dims: the layouts of the inputs.
        computed: which inputs are more than rearranged inputs of the program.
        wanted: layouts that outputs should have.
    """

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        place: Mapping[str, int],
        dims: Sequence[Dims],
        computed: Sequence[bool] = (),
        wanted: Mapping[int, Dims] | None = None,
    ) -> None:
        self.graph, self.mesh, self.place = graph, mesh, place
        self.program = LocalProgram()
        self.converter = Converter(self.program, mesh, place)
        self.types: dict[int, Any] = graph.value_avals()
        self.maker = {node.out: node for node in graph.nodes}
        self.uses = graph.uses()
        self.home: dict[int, ShardingLayout] = {}  # of each value, the layout that it was computed in
        self.placed: dict[int, dict[ShardingLayout, int]] = {}  # the local values of each value, by layout
        # by bundle: the local one, and the layouts of its results
        self.bundles: dict[int, tuple[int, Sequence[ShardingLayout]]] = {}
        self.computed = {value for value, flag in zip(graph.inputs, computed, strict=False) if flag}
        for value, a, own in zip(graph.inputs, graph.avals, dims, strict=True):
            layout = ShardingLayout(self.converter.real(own))
            self._assign(value, layout, self.program.input(self._local_aval(a.plain, layout)))
        self.wanted = wanted_dims(graph, {value: self.home[value].dims for value in graph.inputs}, wanted or {})

    def divide(self) -> None:
        """Divide the operations."""
        for node in self.graph.nodes:
            self.program.location = node.location
            self._node(node)
        self.program.location = None

    def body(
        self, sub: Subgraph, layouts: Sequence[ShardingLayout], computed: Sequence[bool], wanted: Mapping[int, Dims]
    ) -> Partitioner:
        """Return the partitioner of a sub-graph of this one.

        Args:
            wanted: the layouts that outputs should have, by their places.
        """
        graph = sub.graph
        wishes = {graph.outputs[k]: dims for k, dims in wanted.items()}
        return Partitioner(graph, self.mesh, self.place, [own.dims for own in layouts], computed, wishes)

    def layouts(self) -> list[ShardingLayout]:
        """Return the layouts that the outputs have."""
        return [self.settled(value) for value in self.graph.outputs]

    def finish(self, layouts: Sequence[ShardingLayout]) -> Graph:
        """Return the local program with its outputs in these layouts."""
        found = [self.demand(value, layout) for value, layout in zip(self.graph.outputs, layouts, strict=True)]
        return self.program.finish(found)

    def placed_aval(self, value: int, dims: Dims) -> Aval:
        """Return the type of an output; what has been asked for is kept, axes of one process included."""
        a: Aval = self.types[value]
        if a.sharding is not None:
            return a
        node = self.maker.get(value)
        if node is not None and node.op.placement and node.attributes["spec"] is not None:
            dims = parse_dims(node.attributes["spec"])
        return sharded(a, NamedSharding(self.mesh, PartitionSpec(*dims)))

    def _assign(self, value: int, layout: ShardingLayout, local: int) -> None:
        self.home[value] = layout
        self.placed[value] = {layout: local}

    def _local_aval(self, a: Aval, layout: ShardingLayout) -> Aval:
        return aval(self.converter.part_shape(a.shape, layout.dims), a.dtype, a.device, a.weak)

    # -- changing layouts

    def demand(self, value: int, layout: ShardingLayout) -> int:
        """Return the local value of `value` in a layout."""
        known = self.placed[value]
        if layout not in known:
            shape = self.types[value].shape
            node = self.maker.get(value)
            if self._is_constant(node):
                assert node is not None
                params = {**node.attributes, "shape": self.converter.part_shape(shape, layout.dims)}
                known[layout] = self.program.emit(node.op, node.ins, tuple(params.values()))
            else:
                moved = None if node is None else self._from_operand(node, layout)
                home = self.home[value]
                known[layout] = self.converter.convert(known[home], shape, home, layout) if moved is None else moved
        return known[layout]

    def _from_operand(self, node: Node, layout: ShardingLayout) -> int | None:
        """Return a local value of a rearrangement, of its operand if that is there in a layout that gives this one."""
        operand = node.ins[0]
        if not isinstance(operand, int) or not node.op.free or layout.partial:
            return None
        factors = factors_of(node)
        if factors is None:
            return None
        split = list(zip(factors.result, layout.dims, strict=True))
        if any(axes and c in (WHOLE, *factors.even) for c, axes in split):
            return None
        axes_of = {c: axes for c, axes in split if c != WHOLE}
        source = ShardingLayout(tuple(axes_of.get(c, ()) for c in factors.operands[0]))
        local = self.placed[operand].get(source)
        if local is None:
            return None
        params, shape = node.attributes, self.converter.part_shape(node.instr.aval.shape, layout.dims)
        if factors.local is not None:
            params = factors.local(params, [self.program.types[local].shape], shape)
        return self.program.emit(node.op, (local,), tuple(params.values()))

    def _is_constant(self, node: Node | None) -> bool:
        return node is not None and node.op.constant and isinstance(node.ins[0], Scalar)

    def _is_zero(self, value: Operand) -> bool:
        if isinstance(value, Scalar):
            return value.value == 0
        node = self.maker.get(value)
        return self._is_constant(node) and node.ins[0].value == 0  # type: ignore[union-attr]

    def settled(self, value: int) -> ShardingLayout:
        """Return the layout of a value that is not, or no longer, partial."""
        home = self.home[value]
        if home.partial:
            layout = ShardingLayout(self._refined(home.dims, self.wanted.get(value, home.dims)))
            if self.program.location is None:
                self.program.location = self.maker[value].location
            self.demand(value, layout)
            self.home[value] = home = layout
        return home

    def _refined(self, dims: Dims, wanted: Dims) -> Dims:
        """Return the dimensions wanted, if that only divides `dims` further; else `dims`."""
        used = {name for axes in dims for name in axes}
        for have, want in zip(dims, wanted, strict=True):
            if want[: len(have)] != have or used & set(want[len(have) :]):
                return dims
        return wanted

    # -- operations

    def _node(self, node: Node) -> None:
        op = node.op
        if op.projection:
            local, results = self.bundles[node.ins[0]]  # type: ignore[index]
            self._assign(node.out, results[node.instr.index], self.program.emit(op, (local,), node.params))
            self.computed.add(node.out)
            return
        if op.placement:
            self._place(node)
            return
        layouts = [None if isinstance(x, Scalar) else self.home[x] for x in node.ins]
        rule = rule_of(op)
        asked = rule is not None and any(map(_named, subgraphs(node.params)))
        if not asked and all(layout is None or layout.whole for layout in layouts):
            self._compute_whole(node)
            return
        if rule is not None:
            self.bundles[node.out] = rule(self, node)
            return
        factors = factors_of(node)
        if factors is None:
            self.program.gathered.append((op.name, node.location))
            self._compute_whole(node)
        else:
            self._compute(node, factors)

    def _place(self, node: Node) -> None:
        (value,) = node.ins
        spec = node.attributes["spec"]
        if isinstance(value, Scalar):
            self._assign(node.out, replicated(0), self.program.emit(REGISTRY["full"], (value,), ((), "cpu")))
            return
        layout = self.home[value] if spec is None else ShardingLayout(self.converter.real(parse_dims(spec)))
        self._assign(node.out, layout, self.demand(value, layout))
        if value in self.computed:
            self.computed.add(node.out)

    def _compute_whole(self, node: Node) -> None:
        """Have each process compute all of an operation."""
        operands = [
            x if isinstance(x, Scalar) else self.demand(x, replicated(len(self.types[x].shape))) for x in node.ins
        ]
        out = self.program.emit(node.op, operands, node.params)
        a = node.instr.aval
        if isinstance(a, Bundle):
            self.bundles[node.out] = out, [replicated(len(one.shape)) for one in a.avals]
        else:
            self._assign(node.out, replicated(len(a.shape)), out)
            self._note(node)

    def _note(self, node: Node) -> None:
        """Remember whether a value is more than rearranged inputs."""
        op = node.op
        moved = op.uniform or op.free or op.placement
        if not moved or any(value in self.computed for value in node.values()):
            self.computed.add(node.out)

    def _compute(self, node: Node, factors: Factors) -> None:
        kept = self._kept(node)
        terms = factors.operands
        for x in node.ins:
            if isinstance(x, int) and self.home[x].partial and not kept:
                self.settled(x)
        if factors.into is not None and not self._is_zero(node.ins[factors.into]):
            result = set(factors.result)
            terms = tuple("".join(c if c in result else WHOLE for c in term) for term in terms)
        split = self._split(node, factors, terms, kept)
        operands: list[Operand] = []
        for x, term in zip(node.ins, terms, strict=True):
            if isinstance(x, Scalar):
                operands.append(x)
                continue
            layout = ShardingLayout(tuple(split.get(c, ()) for c in term), kept if self.home[x].partial else ())
            operands.append(self.demand(x, layout))
        reduced = {c for term in terms for c in term} - {*factors.result, WHOLE}
        partial = tuple(name for c in sorted(reduced) for name in split.get(c, ()))
        dims = tuple(split.get(c, ()) for c in factors.result)
        shape = self.converter.part_shape(node.instr.aval.shape, dims)
        params = node.attributes
        if factors.local is not None:
            params = factors.local(params, [self.program.types[x].shape for x in operands if isinstance(x, int)], shape)
        op, factor = node.op, 1.0
        if partial and factors.via is not None:
            op, factor = REGISTRY[factors.via[0]], factors.via[1]
            (x,) = operands
            count = self.program.types[x].size // math.prod(shape) if isinstance(x, int) and 0 not in shape else 0
            if count and node.instr.aval.dtype.itemsize < 4:
                # the sum of a part, and the number of all elements, may exceed float16; the mean of a part does not
                op, factor = node.op, count * factor
        out = self.program.emit(op, operands, tuple(params.values()))
        if self.program.types[out].shape != shape:
            raise GraphError(
                f"[{node.op.name}] expected a sharding rule for {node.instr.ins} that gives a local result of shape"
                f" {shape}, got {self.program.types[out].shape}. Correct {factors.equation!r}."
            )
        if partial and factors.reduce != "sum":
            out = self.converter.all_reduce(out, node.instr.aval.shape, dims, partial, factors.reduce)
            partial = ()
        if factor != 1.0:
            a = self.program.types[out]
            out = self.program.emit(REGISTRY["mul"], (out, Scalar(factor, aval((), a.dtype, a.device, True))))
        self._assign(node.out, ShardingLayout(dims, tuple(dict.fromkeys((*kept, *partial)))), out)
        self._note(node)

    def _kept(self, node: Node) -> Axes:
        """Return the axes along which operands are partial and the result may be, too."""
        given = [(k, self.home[x]) for k, x in enumerate(node.ins) if isinstance(x, int)]
        found = {frozenset(layout.partial) for _, layout in given if layout.partial}
        rules, op = node.op.rules, node.op
        floats = [node.instr.aval, *(node.instr.ins[k] for k, layout in given if layout.partial)]
        if len(found) != 1 or not all(a.floating for a in floats):
            return ()
        axes = next(layout.partial for _, layout in given if layout.partial)
        summands = [k for k, layout in given if layout.partial]
        if any(self.uses[node.ins[k]] > node.ins.count(node.ins[k]) for k in summands):  # type: ignore[index]
            return ()
        if any(set(axes) & {name for own in layout.dims for name in own} for _, layout in given):
            return ()
        if op.product or rules.multilinear:
            return axes if len(summands) == 1 else ()
        linear = range(len(node.ins)) if rules.linear is True or op.sum else rules.linear or ()
        if not set(summands) <= set(linear):
            return ()
        if all(k in summands or self._is_zero(node.ins[k]) for k in linear):
            return axes
        return ()

    def _split(self, node: Node, factors: Factors, terms: Sequence[str], kept: Axes) -> dict[str, Axes]:
        """Return the mesh axes that each letter is split over."""
        sizes: dict[str, set[int]] = collections.defaultdict(set)
        for term, a in zip((*terms, factors.result), (*node.instr.ins, node.instr.aval), strict=True):
            for c, n in zip(term, a.shape, strict=True):
                sizes[c].add(n)
        result = set(factors.result)
        candidates = []
        for k, (x, term) in enumerate(zip(node.ins, terms, strict=True)):
            if isinstance(x, Scalar):
                continue
            # of products, parameters are gathered and not what is computed; else the smaller operand, then results
            nbytes, computed = self.types[x].nbytes, x in self.computed
            rank = (not computed, -nbytes) if node.op.contraction else (-nbytes, computed)
            for c, axes in zip(term, self.home[x].dims, strict=True):
                if axes and c != WHOLE:
                    candidates.append(((c not in result, *rank, k), c, axes))
        found: dict[str, Axes] = {}
        used = set(kept)
        for _, c, axes in sorted(candidates):
            if c in found or used & set(axes):
                continue
            parts = self.mesh.parts(axes)
            if c in factors.even and any(n % parts for n in sizes[c]):
                continue
            if c not in result and factors.reduce != "sum":
                # each process must have something to take the extreme of
                if any(bounds(n, parts, parts - 1)[0] == n for n in sizes[c]):
                    continue
            found[c] = axes
            used |= set(axes)
        wanted = self.wanted.get(node.out, ()) if node.op.contraction else ()
        for c, axes in zip(factors.result, wanted, strict=False):
            # what is wanted of the result can be had for nothing, from parts of whole operands
            if (
                c not in found
                and axes
                and not used & set(axes)
                and not any(n % self.mesh.parts(axes) for n in sizes[c])
            ):
                found[c] = axes
                used |= set(axes)
        return found


def factors_of(node: Node) -> Factors | None:
    """Return the sharding rule of an operation; None if it has none."""
    if node.op.elementwise:
        return _elementwise(node.instr.ins, node.instr.aval)
    rule = node.op.rules.factors
    return None if rule is None else rule(node.instr.ins, **node.attributes)


def _elementwise(avals: Sequence[Aval], result: Aval) -> Factors:
    """Return the rule of operands that broadcast against each other."""
    letters = [chr(ord("a") + k) for k in range(len(result.shape))]
    terms = [broadcast_term(a.shape, result.shape, letters) for a in avals]
    return Factors(f"{','.join(terms)}->{''.join(letters)}")
