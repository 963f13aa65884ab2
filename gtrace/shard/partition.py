"""Partitioning: the program of all processes becomes the program of one, with collectives between its operations.

The partitioner walks the graph once, in order. Computation follows data: an operation's sharding rule (`Factors`) says
which axes of its operands may be divided alike; where operands disagree, one of them is laid out anew. Every decision
depends on the program and its global shapes alone, so that all processes insert the same collectives in the same order.

A sum over a dimension that is divided leaves each process with a summand (`Layout.partial`). It stays like that through
operations that are linear, up to the first that is not, or up to the second use. Then it is added up; where the value
is wanted in parts, each process gets only its part of the sum.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from gtrace.errors import GraphError, ShardingError, message
from gtrace.ir.aval import Aval, Bundle, aval, sharded
from gtrace.ir.factors import WHOLE, Factors
from gtrace.ir.graph import Graph, Node, Operand, Scalar
from gtrace.ir.op import REGISTRY, Op
from gtrace.ir.sharding import Axes, Dims, Mesh, NamedSharding, PartitionSpec, bounds, parse_dims, parse_mesh
from gtrace.shard.layouts import Layout, replicated, wanted_dims
from gtrace.shard.partitioned import Partitioned, Transfer


def find_mesh(graph: Graph) -> Mesh | None:
    """Return the mesh that a program runs on; None if nothing in it is sharded.

    Raises:
        ShardingError: there is more than one.
    """
    found: dict[Mesh, None] = {}
    placed = {value: a.sharding for value, a in zip(graph.inputs, graph.avals, strict=True) if a.sharding is not None}
    if placed:
        used = {*graph.outputs, *(value for node in graph.nodes for value in node.values())}
        found = {sharding.mesh: None for value, sharding in placed.items() if value in used}
    for node in graph.nodes:
        if node.op.placement:
            found[parse_mesh(node.attributes["mesh"])] = None
    if len(found) > 1:
        got = " and ".join(map(repr, found))
        fix = "Lay everything that is computed together out over one mesh, with gt.device_put(x, sharding)."
        raise ShardingError(message("sharding", "arrays of one mesh", got, fix))
    return next(iter(found), None)


def partition(graph: Graph, mesh: Mesh, rank: int) -> Partitioned:
    """Return the program of the process `rank`.

    Args:
        graph: the program of all processes. Inputs without a sharding are whole, and the same, on each process.
    """
    return _Partitioner(graph, mesh, rank).run()


class _Partitioner:
    def __init__(self, graph: Graph, mesh: Mesh, rank: int) -> None:
        self.graph, self.mesh = graph, mesh
        self.name = str(mesh)
        self.place = mesh.coordinates(rank)
        self.types: dict[int, Any] = graph.value_avals()
        self.maker = {node.out: node for node in graph.nodes}
        self.uses = collections.Counter(graph.outputs)
        for node in graph.nodes:
            self.uses.update(node.values())
        self.nodes: list[Node] = []
        self.local: dict[int, Any] = {}  # types of the values of the local program
        self.fresh = 0
        self.home: dict[int, Layout] = {}  # of each value, the layout that it was computed in
        self.placed: dict[int, dict[Layout, int]] = {}  # the local values of each value, by layout
        self.computed: set[int] = set()  # values that are more than rearranged inputs
        self.latest: int | None = None  # the result of the last collective
        self.location: str | None = None
        self.transfers: list[Transfer] = []
        self.gathered: list[tuple[str, str | None]] = []
        self.wanted: dict[int, Dims] = {}

    def run(self) -> Partitioned:
        graph = self.graph
        inputs = []
        for value, a in zip(graph.inputs, graph.avals, strict=True):
            dims = ((),) * len(a.shape) if a.sharding is None else a.sharding.dims(len(a.shape))
            layout = Layout(self._real(dims))
            inputs.append(self._value(self._local_aval(a.plain, layout)))
            self._assign(value, layout, inputs[-1])
        self.wanted = wanted_dims(graph, {value: self.home[value].dims for value in graph.inputs})
        for node in graph.nodes:
            self.location = node.location
            self._node(node)
        self.location = None
        outputs, avals = [], []
        for value in graph.outputs:
            layout = self._settled(value)
            outputs.append(self.placed[value][layout])
            avals.append(self._placed_aval(value, layout.dims))
        types = tuple(self.local[value] for value in inputs)
        local = Graph(tuple(inputs), types, tuple(self.nodes), tuple(outputs))
        return Partitioned(self.mesh, local, tuple(avals), tuple(self.transfers), tuple(dict.fromkeys(self.gathered)))

    def _placed_aval(self, value: int, dims: Dims) -> Aval:
        """Return the type of an output; what has been asked for is kept, axes of one process included."""
        a: Aval = self.types[value]
        if a.sharding is not None:
            return a
        node = self.maker.get(value)
        if node is not None and node.op.placement and node.attributes["spec"] is not None:
            dims = parse_dims(node.attributes["spec"])
        return sharded(a, NamedSharding(self.mesh, PartitionSpec(*dims)))

    # -- the local program

    def _value(self, a: Any) -> int:
        self.local[self.fresh] = a
        self.fresh += 1
        return self.fresh - 1

    def _emit(self, op: Op, operands: Sequence[Operand], params: tuple[Any, ...] = ()) -> int:
        avals = tuple([x.aval if isinstance(x, Scalar) else self.local[x] for x in operands])
        instr = op.instr(params, avals)
        out = self._value(instr.aval)
        self.nodes.append(Node(instr, tuple(operands), out, self.location))
        return out

    def _assign(self, value: int, layout: Layout, local: int) -> None:
        self.home[value] = layout
        self.placed[value] = {layout: local}

    def _real(self, dims: Dims) -> Dims:
        """Return layout `dims` without axes of one process."""
        return tuple(tuple(name for name in axes if self.mesh.parts((name,)) > 1) for axes in dims)

    def _local_shape(self, shape: tuple[int, ...], dims: Dims) -> tuple[int, ...]:
        found = []
        for n, axes in zip(shape, dims, strict=True):
            start, stop = bounds(n, self.mesh.parts(axes), self.mesh.part(axes, self.place))
            found.append(stop - start)
        return tuple(found)

    def _local_aval(self, a: Aval, layout: Layout) -> Aval:
        return aval(self._local_shape(a.shape, layout.dims), a.dtype, a.device, a.weak)

    # -- changing layouts

    def _demand(self, value: int, layout: Layout) -> int:
        """Return the local value of `value` in a layout."""
        known = self.placed[value]
        if layout not in known:
            shape = self.types[value].shape
            node = self.maker.get(value)
            if self._is_constant(node):
                assert node is not None
                params = {**node.attributes, "shape": self._local_shape(shape, layout.dims)}
                known[layout] = self._emit(node.op, node.ins, tuple(params.values()))
            else:
                moved = None if node is None else self._from_operand(node, layout)
                home = self.home[value]
                known[layout] = self._convert(known[home], shape, home, layout) if moved is None else moved
        return known[layout]

    def _from_operand(self, node: Node, layout: Layout) -> int | None:
        """Return a local value of a rearrangement, of its operand if that is there in a layout that gives this one."""
        operand = node.ins[0]
        if not isinstance(operand, int) or not node.op.free or layout.partial:
            return None
        factors = self._factors(node)
        if factors is None:
            return None
        split = list(zip(factors.result, layout.dims, strict=True))
        if any(axes and c in (WHOLE, *factors.even) for c, axes in split):
            return None
        axes_of = {c: axes for c, axes in split if c != WHOLE}
        source = Layout(tuple(axes_of.get(c, ()) for c in factors.operands[0]))
        local = self.placed[operand].get(source)
        if local is None:
            return None
        params, shape = node.attributes, self._local_shape(node.instr.aval.shape, layout.dims)
        if factors.local is not None:
            params = factors.local(params, [self.local[local].shape], shape)
        return self._emit(node.op, (local,), tuple(params.values()))

    def _is_constant(self, node: Node | None) -> bool:
        return node is not None and node.op.constant and isinstance(node.ins[0], Scalar)

    def _is_zero(self, value: Operand) -> bool:
        if isinstance(value, Scalar):
            return value.value == 0
        node = self.maker.get(value)
        return self._is_constant(node) and node.ins[0].value == 0  # type: ignore[union-attr]

    def _settled(self, value: int) -> Layout:
        """Return the layout of a value that is not, or no longer, partial."""
        home = self.home[value]
        if home.partial:
            layout = Layout(self._refined(home.dims, self.wanted.get(value, home.dims)))
            self._demand(value, layout)
            self.home[value] = home = layout
        return home

    def _refined(self, dims: Dims, wanted: Dims) -> Dims:
        """Return the dimensions wanted, if that only divides `dims` further; else `dims`."""
        used = {name for axes in dims for name in axes}
        for have, want in zip(dims, wanted, strict=True):
            if want[: len(have)] != have or used & set(want[len(have) :]):
                return dims
        return wanted

    def _convert(self, local: int, shape: tuple[int, ...], source: Layout, target: Layout) -> int:
        """Return a local value in another layout."""
        dims, partial = list(source.dims), [name for name in source.partial if name not in target.partial]
        parts = self.mesh.parts
        if partial:
            for d, want in enumerate(target.dims):
                more = want[len(dims[d]) :]
                if (
                    more
                    and want[: len(dims[d])] == dims[d]
                    and set(more) <= set(partial)
                    and not shape[d] % parts(want)
                ):
                    local = self._collective("reduce_scatter_parts", local, more, d)
                    dims[d] = want
                    partial = [name for name in partial if name not in more]
            if partial:
                local = self._collective("all_reduce_parts", local, tuple(partial), "sum")
        local = self._slices(local, shape, dims, target.dims)
        local = self._exchanges(local, shape, dims, target.dims)
        for d, (have, want) in enumerate(zip(dims, target.dims, strict=True)):
            kept = 0
            while kept < min(len(have), len(want)) and have[kept] == want[kept]:
                kept += 1
            if kept < len(have):
                if shape[d] % parts(have):
                    kept = 0  # parts of unequal sizes are joined all at once
                size = shape[d] // parts(have[:kept])
                local = self._collective("all_gather_parts", local, have[kept:], d, size)
                dims[d] = have[:kept]
        return self._slices(local, shape, dims, target.dims)

    def _slices(self, local: int, shape: tuple[int, ...], dims: list[Axes], target: Dims) -> int:
        """Take parts of dimensions that are to be divided more, along axes that are free."""
        for d, want in enumerate(target):
            more = want[len(dims[d]) :]
            busy = {name for axes in dims for name in axes}
            if not more or want[: len(dims[d])] != dims[d] or set(more) & busy:
                continue
            if dims[d] and shape[d] % self.mesh.parts(want):
                continue  # it has to be whole first
            size = self._local_shape((shape[d],), (want,))[0]
            whole = self._emit(REGISTRY["slice_part"], (local,), (self.name, more, d, size))
            local = self._emit(REGISTRY["project"], (whole,), (0,))
            dims[d] = want
        return local

    def _exchanges(self, local: int, shape: tuple[int, ...], dims: list[Axes], target: Dims) -> int:
        """Move axes from one dimension to another one."""
        for d, want in enumerate(target):
            more = want[len(dims[d]) :]
            if not more or want[: len(dims[d])] != dims[d] or shape[d] % self.mesh.parts(want):
                continue
            for k, have in enumerate(dims):
                rest = have[: len(have) - len(more)]
                if k != d and have[len(rest) :] == more and rest == target[k] and not shape[k] % self.mesh.parts(have):
                    local = self._collective("all_to_all_parts", local, more, d, k)
                    dims[d], dims[k] = want, rest
                    break
        return local

    def _collective(self, name: str, local: int, axes: Axes, *params: Any) -> int:
        """Add a collective, which comes after all others before it."""
        operands = (local,) if self.latest is None else (local, self.latest)
        self.transfers.append(Transfer(name, axes, self.mesh.parts(axes), self.local[local].nbytes, self.location))
        whole = self._emit(REGISTRY[name], operands, (self.name, axes, *params))
        self.latest = self._emit(REGISTRY["project"], (whole,), (0,))
        return self.latest

    # -- operations

    def _node(self, node: Node) -> None:
        op = node.op
        if op.projection:
            (bundle,) = node.values()
            whole = replicated(len(node.instr.aval.shape))
            self._assign(node.out, whole, self._emit(op, (self.placed[bundle][Layout(())],), node.params))
            self.computed.add(node.out)
            return
        if op.placement:
            self._place(node)
            return
        layouts = [None if isinstance(x, Scalar) else self.home[x] for x in node.ins]
        if all(layout is None or layout.whole for layout in layouts):
            self._compute_whole(node)
            return
        factors = self._factors(node)
        if factors is None:
            self.gathered.append((op.name, node.location))
            self._compute_whole(node)
        else:
            self._compute(node, factors)

    def _factors(self, node: Node) -> Factors | None:
        if node.op.elementwise:
            return _elementwise(node.instr.ins, node.instr.aval)
        rule = node.op.rules.factors
        return None if rule is None else rule(node.instr.ins, **node.attributes)

    def _place(self, node: Node) -> None:
        (value,) = node.ins
        spec = node.attributes["spec"]
        if isinstance(value, Scalar):
            self._assign(node.out, replicated(0), self._emit(REGISTRY["full"], (value,), ((), "cpu")))
            return
        layout = self.home[value] if spec is None else Layout(self._real(parse_dims(spec)))
        self._assign(node.out, layout, self._demand(value, layout))
        if value in self.computed:
            self.computed.add(node.out)

    def _compute_whole(self, node: Node) -> None:
        """Have each process compute all of an operation."""
        operands = [
            x if isinstance(x, Scalar) else self._demand(x, replicated(len(self.types[x].shape))) for x in node.ins
        ]
        out = self._emit(node.op, operands, node.params)
        a = node.instr.aval
        self._assign(node.out, Layout(()) if isinstance(a, Bundle) else replicated(len(a.shape)), out)
        self._note(node, Factors("->"))

    def _note(self, node: Node, factors: Factors) -> None:
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
                self._settled(x)
        if factors.into is not None and not self._is_zero(node.ins[factors.into]):
            result = set(factors.result)
            terms = tuple("".join(c if c in result else WHOLE for c in term) for term in terms)
        split = self._split(node, factors, terms, kept)
        operands: list[Operand] = []
        for x, term in zip(node.ins, terms, strict=True):
            if isinstance(x, Scalar):
                operands.append(x)
                continue
            layout = Layout(tuple(split.get(c, ()) for c in term), kept if self.home[x].partial else ())
            operands.append(self._demand(x, layout))
        reduced = {c for term in terms for c in term} - {*factors.result, WHOLE}
        partial = tuple(name for c in sorted(reduced) for name in split.get(c, ()))
        dims = tuple(split.get(c, ()) for c in factors.result)
        shape = self._local_shape(node.instr.aval.shape, dims)
        params = node.attributes
        if factors.local is not None:
            params = factors.local(params, [self.local[x].shape for x in operands if isinstance(x, int)], shape)
        op, factor = node.op, 1.0
        if partial and factors.via is not None:
            op, factor = REGISTRY[factors.via[0]], factors.via[1]
        out = self._emit(op, operands, tuple(params.values()))
        if self.local[out].shape != shape:
            raise GraphError(
                f"[{node.op.name}] expected a sharding rule for {node.instr.ins} that gives a local result of shape"
                f" {shape}, got {self.local[out].shape}. Correct {factors.equation!r}."
            )
        if partial and factors.reduce != "sum":
            out = self._collective("all_reduce_parts", out, partial, factors.reduce)
            partial = ()
        if factor != 1.0:
            a = self.local[out]
            out = self._emit(REGISTRY["mul"], (out, Scalar(factor, aval((), a.dtype, a.device, True))))
        self._assign(node.out, Layout(dims, tuple(dict.fromkeys((*kept, *partial)))), out)
        self._note(node, factors)

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
        linear = range(len(node.ins)) if rules.linear is True or op.scales else rules.linear or ()
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


def _elementwise(avals: Sequence[Aval], result: Aval) -> Factors:
    """Return the rule of operands that broadcast against each other."""
    letters = [chr(ord("a") + k) for k in range(len(result.shape))]
    terms = []
    for a in avals:
        start = len(letters) - len(a.shape)
        terms.append(
            "".join(letters[start + k] if n == result.shape[start + k] else WHOLE for k, n in enumerate(a.shape))
        )
    return Factors(f"{','.join(terms)}->{''.join(letters)}")
