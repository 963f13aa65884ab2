"""Simplifications: each takes a graph and returns a simpler, equal one. None enters sub-graphs."""

from __future__ import annotations

import math
from typing import Any

import attrs
import torch

from gtrace.core.base.exact_keys import is_other_nan
from gtrace.core.ir.aval import aval
from gtrace.core.ir.edit import Replacements, rewrite, substitute
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.ir.op import REGISTRY, Instr
from gtrace.core.ir.skeleton import kind


def remove_identities(graph: Graph, keep_stops: bool = False) -> Graph:
    """Replace nodes that return their operand (``stop_gradient``, gradient markers) by the operand.

    With `keep_stops`, identities that matter to derivatives stay: ``stop_gradient``, and identities of several operands
    or with attributes.

    >>> from gtrace import ir
    >>> print(ir.remove_identities(gt.make_graph(lambda x: gt.stop_gradient(x) + 1)(gt.ones(2))))
    graph(%0: f32[2]) {
      %2: f32[2] = add(%0, 1.0:f32[]~)
      return %2
    }
    """
    if not any(node.op.identity for node in graph.nodes):
        return graph
    replacement: dict[int, Operand] = {}
    nodes = []
    for node in graph.nodes:
        stops = node.op.rules.nondiff is not None or len(node.ins) > 1 or bool(node.params)
        gone = node.op.identity and not (keep_stops and stops)
        operand = node.ins[0] if gone else None
        if isinstance(operand, int):
            replacement[node.out] = replacement.get(operand, operand)
        else:
            nodes.append(substitute(node, replacement))
    outputs = tuple(replacement.get(value, value) for value in graph.outputs)
    return Graph(graph.inputs, graph.avals, tuple(nodes), outputs)  # type: ignore[arg-type]


def dce(graph: Graph) -> Graph:
    """Drop the nodes that no output depends on. The inputs stay.

    >>> from gtrace import ir
    >>> print(ir.dce(gt.make_graph(lambda x: (gt.sin(x), gt.cos(x))[1])(gt.ones(2))))
    graph(%0: f32[2]) {
      %2: f32[2] = cos(%0)
      return %2
    }
    """
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if node.out in needed:
            kept.append(node)
            needed.update(node.values())
    if len(kept) == len(graph.nodes):
        return graph
    return Graph(graph.inputs, graph.avals, tuple(reversed(kept)), graph.outputs)


def fold(graph: Graph) -> Graph:
    """Fold constants: compute uniform arrays now, and pass them to elementwise operations as scalars.

    A uniform array is ``full`` of a scalar, or results from uniform arrays and scalars by an elementwise or
    `Op.uniform` operation. Folding runs the operation itself on 0-d tensors of the same dtype, so the results are the
    same.

    >>> from gtrace import ir
    >>> print(ir.dce(ir.fold(gt.make_graph(lambda x: x * (gt.full(2, 1.0) / 4))(gt.ones(2)))))
    graph(%0: f32[2]) {
      %3: f32[2] = mul(%0, 0.25:f32[]~)
      return %3
    }
    """
    uniform: dict[int, Scalar] = {}
    nodes = []
    for node in graph.nodes:
        op = node.op
        known = [x if isinstance(x, Scalar) else uniform.get(x) for x in node.ins]
        if (op.uniform or op.elementwise) and known and all(known):
            value = _evaluate(node, known)  # type: ignore[arg-type]
            if value is not None:
                uniform[node.out] = value
        elif op.elementwise and any(known):
            node = _with_scalars(node, known)
        nodes.append(node)
    # make every uniform array by `full`; dead code elimination removes unused ones
    full = next(op for op in REGISTRY.values() if op.constant)
    for k, node in enumerate(nodes):
        scalar = uniform.get(node.out)
        if scalar is not None and node.op is not full:
            params = (node.instr.aval.shape, str(node.instr.aval.device))
            instr = full.instr(params, (scalar.aval,))
            if instr.aval is node.instr.aval:
                nodes[k] = Node(instr, (scalar,), node.out, node.location)
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs)


def _evaluate(node: Node, operands: list[Scalar]) -> Scalar | None:
    a = node.instr.aval
    kind = aval((), a.dtype, a.device, weak=True)
    if node.op.uniform:
        return Scalar(operands[0].value, kind)
    tensors = [torch.tensor(x.value, dtype=x.aval.dtype) for x in operands]
    try:
        found = node.instr.kernel()(*tensors, **node.attributes).item()
    except (RuntimeError, ZeroDivisionError):
        return None  # integer division by zero: the error belongs to the run of the program
    return None if is_other_nan(found) else Scalar(found, kind)  # a Scalar represents only one NaN


def _with_scalars(node: Node, known: list[Scalar | None]) -> Node:
    """Return `node` with uniform operands replaced by scalars, if its result type stays the same."""
    ins = tuple(x if scalar is None else scalar for x, scalar in zip(node.ins, known, strict=True))
    avals = [a if scalar is None else scalar.aval for a, scalar in zip(node.instr.ins, known, strict=True)]
    if tuple(avals) == node.instr.ins:
        return node
    instr = node.op.instr(node.params, tuple(avals))
    return Node(instr, ins, node.out, node.location) if instr.aval is node.instr.aval else node


@attrs.frozen
class _Parts:
    """A sum of arrays that are each zero outside of a part.

    Attributes:
        axis: the axis that the parts divide.
        step: the distance between elements of a part; 1: each part is contiguous.
        places: start, stop and value of each part.
    """

    axis: int
    step: int
    places: tuple[tuple[int, int, int], ...]

    def plus(self, other: _Parts) -> _Parts | None:
        """Return the parts of the sum; None if two parts overlap."""
        if (self.axis, self.step) != (other.axis, other.step):
            return None
        places = tuple(sorted((*self.places, *other.places)))
        ends = [(stop if self.step == 1 else start + 1) for start, stop, _ in places]
        apart = all(end <= following[0] for end, following in zip(ends, places[1:], strict=False))
        return _Parts(self.axis, self.step, places) if apart else None

    def whole(self, size: int) -> bool:
        """Whether the parts cover the whole axis."""
        if self.step > 1:
            return len(self.places) == self.step
        starts, ends, _ = zip(*self.places, strict=True)
        return (0, *ends) == (*starts, size)


def _part(node: Node) -> _Parts | None:
    """Return the position of an unslice's operand; None unless one axis alone is sliced, with equal steps."""
    shape, bounds = node.attributes["shape"], node.attributes["bounds"]
    axes = [k for k, n in enumerate(shape) if bounds[k] != (0, n, 1)]
    operand = node.ins[0]
    if len(axes) != 1 or not isinstance(operand, int):
        return None
    start, stop, step = bounds[axes[0]]
    size, a = shape[axes[0]], node.instr.ins[0]
    if step != 1 and not (1 < step <= size and size % step == 0 and start < step and a.shape[axes[0]] == size // step):
        return None
    return _Parts(axes[0], step, ((start, stop, operand),)) if start < stop else None


def join_parts(graph: Graph) -> Graph:
    """Concatenate parts that are added as arrays of zeros elsewhere, as in gradients of splits.

    A part keeps the signs of its zeros. Alternating parts, as in gradients of ``x[::2]`` and ``x[1::2]``, are
    concatenated along a new axis.

    >>> from gtrace import ir
    >>> b = ir.Builder()
    >>> x, y = b.input((2,), gt.float32), b.input((1,), gt.float32)
    >>> first = b.op("unslice", x, shape=(3,), bounds=((0, 2, 1),))
    >>> last = b.op("unslice", y, shape=(3,), bounds=((2, 3, 1),))
    >>> print(ir.dce(ir.join_parts(b.graph(b.op("add", first, last)))))
    graph(%0: f32[2], %1: f32[1]) {
      %4: f32[3] = concat(%0, %1) {axis=0}
      return %4
    }
    """
    known: dict[int, _Parts] = {}

    def unslice(build: Replacements, node: Node) -> None:
        part = _part(node)
        if part is not None:
            known[node.out] = part

    def add(build: Replacements, node: Node) -> int | None:
        one, other = (known.get(x) if isinstance(x, int) else None for x in node.ins)
        parts = one and other and one.plus(other)
        if parts and parts.whole(node.instr.aval.shape[parts.axis]):
            return _joined(build, parts, node.instr.aval.shape)
        if parts and build.uses[node.out] == 1:
            known[node.out] = parts
        return None

    if not any(node.op.name == "unslice" for node in graph.nodes):
        return graph
    return rewrite(graph, {"unslice": unslice, "add": add})


def _joined(build: Replacements, parts: _Parts, shape: tuple[int, ...]) -> int:
    """Concatenate parts, along a new axis if they alternate."""
    values, axis = [value for _, _, value in parts.places], parts.axis
    if parts.step > 1:
        axis += 1
        shapes = [build.aval(value).shape for value in values]
        values = [build.shaped(x, (*s[:axis], 1, *s[axis:])) for x, s in zip(values, shapes, strict=True)]
    return build.shaped(build("concat", (axis,), *values), shape)


def merge_batches(graph: Graph) -> Graph:
    """Turn a batched matmul into one matmul, if all matmuls share a matrix or their results are summed.

    Layers with a broadcast weight contain such matmuls, and so do their gradients. Otherwise the gradient of the weight
    would be written for each batch and then summed.

    >>> from gtrace import ir
    >>> def summed(x, y):
    ...     return (x @ y).sum(0)
    >>> graph = gt.make_graph(summed)(gt.ones((5, 2, 3)), gt.ones((5, 3, 4)))
    >>> print(ir.dce(ir.merge_batches(graph)))
    graph(%0: f32[5,2,3], %1: f32[5,3,4]) {
      %4: f32[5,3,2] = permute(%0) {axes=(0, 2, 1)}
      %5: f32[15,2] = reshape(%4) {shape=(15, 2)}
      %6: f32[2,15] = permute(%5) {axes=(1, 0)}
      %7: f32[15,4] = reshape(%1) {shape=(15, 4)}
      %3: f32[2,4] = matmul(%6, %7)
      return %3
    }
    """
    if not any(node.op.name == "matmul" and len(node.instr.aval.shape) > 2 for node in graph.nodes):
        return graph
    return rewrite(
        graph, {"permute": _turned_before, "matmul": _with_shared, "sum": _sum_of_matmul, "sum_to": _sum_of_matmul}
    )


def _turned_before(build: Replacements, node: Node) -> int | None:
    """Transpose a matrix before it is repeated."""
    before = build.of(node.ins[0], "broadcast_to")
    if (
        before is None
        or len(before.instr.ins[0].shape) != 2
        or node.attributes["axes"] != _turned(len(node.attributes["axes"]))
    ):
        return None
    return build("broadcast_to", (node.instr.aval.shape,), build("permute", ((1, 0),), *before.ins))


def _turned(axes: int) -> tuple[int, ...]:
    """Return the order of axes in which the last two are exchanged."""
    return (*range(axes - 2), axes - 1, axes - 2)


def _with_shared(build: Replacements, node: Node) -> int | None:
    """Multiply by a matrix in place of its repetitions."""
    found, ins = None, node.ins
    for k in (0, 1):
        before = build.of(ins[k], "broadcast_to")
        if before is None or len(before.instr.ins[0].shape) < 2:
            continue
        if before.instr.ins[0].shape[-2:] == before.instr.aval.shape[-2:]:
            shared = (*ins[:k], *before.ins, *ins[k + 1 :])
            product = build("matmul", node.params, *shared)
            if build.aval(product) is node.instr.aval:
                found, ins = product, shared
    return found


def _sum_of_matmul(build: Replacements, node: Node) -> int | None:
    """Sum over the batch in the matmul itself."""
    before = build.of(node.ins[0], "matmul", once=True) if _sums_batches(node) else None
    if before is None or not all(isinstance(x, int) for x in before.ins):
        return None
    (x, y), (a, b) = before.ins, before.instr.ins
    if a.shape[:-2] != b.shape[:-2]:
        return None
    build.location = before.location

    def rows(x: Any) -> int:
        *batch, columns = build.aval(x).shape
        return build.shaped(x, (math.prod(batch), columns))

    columns = build.arranged(rows(build.arranged(x, _turned(len(a.shape)))), (1, 0))  # type: ignore[arg-type]
    return build("matmul", before.params, columns, rows(y))


def _sums_batches(node: Node) -> bool:
    """Whether an operation sums a batch of matrices to one matrix."""
    batches = len(node.instr.ins[0].shape) - 2
    if node.op.name == "sum":
        return batches > 0 and node.params == (tuple(range(batches)), False)
    return batches > 0 and node.attributes["shape"] == node.instr.ins[0].shape[-2:]


def move_transposes(graph: Graph) -> Graph:
    """Move transpositions from matmul results to the operands, and merge or cancel successive permutations.

    A weight that the forward pass transposes has such a gradient. Without the transposition, the gradient has the
    layout in which the update reads the weight.

    >>> from gtrace import ir
    >>> graph = gt.make_graph(lambda x, y: (x.T @ y).T)(gt.ones((4, 2)), gt.ones((4, 3)))
    >>> print(ir.dce(ir.move_transposes(graph)))
    graph(%0: f32[4,2], %1: f32[4,3]) {
      %5: f32[3,4] = permute(%1) {axes=(1, 0)}
      %4: f32[3,2] = matmul(%5, %0)
      return %4
    }
    """
    return rewrite(graph, {"permute": _permuted})


def _permuted(build: Replacements, node: Node) -> int | None:
    """Merge a permutation with one before, or move it before a matmul of matrices."""
    (x,), axes = node.ins, node.attributes["axes"]
    before = build.of(x, "permute")
    if before is not None:
        x, axes = before.ins[0], tuple([before.attributes["axes"][k] for k in axes])
    if axes == tuple(range(len(axes))):
        return x  # type: ignore[return-value]  # an array
    product = build.of(x, "matmul", once=True) if before is None else None
    if product is not None and all(isinstance(y, int) and len(build.aval(y).shape) == 2 for y in product.ins):
        build.location = product.location
        turned = []
        for y in reversed(product.ins):
            inner = build.of(y, "permute")  # by (1, 0), because identities were removed
            turned.append(build("permute", ((1, 0),), y) if inner is None else inner.ins[0])
        return build("matmul", product.params, *turned)
    return build("permute", (axes,), x)


def order_operands(graph: Graph) -> Graph:
    """Sort the operands of commutative operations by their avals, if these differ; sizes are compared last.

    >>> from gtrace import ir
    >>> print(ir.order_operands(gt.make_graph(lambda x: 2 * x)(gt.ones(2))))
    graph(%0: f32[2]) {
      %1: f32[2] = mul(%0, 2.0:f32[]~)
      return %1
    }
    """
    nodes = []
    for node in graph.nodes:
        if node.op.commutative and node.instr.ins[0] is not node.instr.ins[1]:
            first, second = node.instr.ins
            # scalars last, as people write them
            one, other = (
                (isinstance(x, Scalar), -len(a.shape), kind(a), a.shape)
                for x, a in zip(node.ins, (first, second), strict=True)
            )
            if one > other:
                instr = node.op.instr(node.params, (second, first))
                node = Node(instr, node.ins[::-1], node.out, node.location)
        nodes.append(node)
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs)


def cse(graph: Graph) -> Graph:
    """Merge nodes with equal instructions and operands; operands of commutative operations match in any order.

    >>> from gtrace import ir
    >>> print(ir.cse(gt.make_graph(lambda x: gt.sin(x) * gt.sin(x))(gt.ones(2))))
    graph(%0: f32[2]) {
      %1: f32[2] = sin(%0)
      %3: f32[2] = mul(%1, %1)
      return %3
    }
    """
    seen: dict[tuple[Instr, tuple[Operand, ...]], int] = {}
    replacement: dict[int, Operand] = {}
    nodes = []
    for node in graph.nodes:
        node = substitute(node, replacement)
        ins = tuple(sorted(node.ins, key=_operand_order)) if node.op.commutative else node.ins
        first = seen.setdefault((node.instr, ins), node.out)
        if first == node.out:
            nodes.append(node)
        else:
            replacement[node.out] = first
    if not replacement:
        return graph
    outputs = tuple(replacement.get(value, value) for value in graph.outputs)
    return Graph(graph.inputs, graph.avals, tuple(nodes), outputs)  # type: ignore[arg-type]


def _operand_order(operand: Operand) -> tuple[int, int, str]:
    return (1, 0, str(operand.key)) if isinstance(operand, Scalar) else (0, operand, "")
