"""Simplifications: each takes a graph and returns a simpler, equal one. None enters sub-graphs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import attrs
import torch

from gtrace.core.base.exact_keys import is_other_nan
from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.edit import NewNodes, substitute
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.ir.op import REGISTRY, Instr
from gtrace.core.ir.skeleton import kind


def remove_identities(graph: Graph, keep_stops: bool = False) -> Graph:
    """Replace nodes that return their operand (``stop_gradient``, gradient markers) by the operand.

    With `keep_stops`, identities that change derivatives stay: ``stop_gradient``, and identities of several operands.

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
        stops = node.op.rules.nondiff is not None or len(node.ins) > 1
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
        places: start, stop, value and aval of each part.
    """

    axis: int
    step: int
    places: tuple[tuple[int, int, int, Aval], ...]

    def plus(self, other: _Parts) -> _Parts | None:
        """Return the parts of the sum; None if two parts overlap."""
        if (self.axis, self.step) != (other.axis, other.step):
            return None
        places = tuple(sorted((*self.places, *other.places), key=lambda place: place[:2]))
        if self.step == 1:
            apart = all(one[1] <= following[0] for one, following in pairwise(places))
        else:
            apart = all(one[0] < following[0] for one, following in pairwise(places))
        return _Parts(self.axis, self.step, places) if apart else None

    def whole(self, size: int) -> bool:
        """Whether the parts cover the whole axis."""
        if self.step > 1:
            return len(self.places) == self.step
        ends = [0, *(end for _, end, _, _ in self.places)]
        return ends == [*(start for start, _, _, _ in self.places), size]


def _part(node: Node) -> _Parts | None:
    """Return the position of an unslice's operand; None unless one axis alone is sliced, with equal steps."""
    shape, bounds = node.params
    axes = [k for k, n in enumerate(shape) if bounds[k] != (0, n, 1)]
    operand = node.ins[0]
    if len(axes) != 1 or not isinstance(operand, int):
        return None
    start, stop, step = bounds[axes[0]]
    size, a = shape[axes[0]], node.instr.ins[0]
    if step != 1 and not (1 < step <= size and size % step == 0 and start < step and a.shape[axes[0]] == size // step):
        return None
    return _Parts(axes[0], step, ((start, stop, operand, a),)) if start < stop else None


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
    users = graph.uses()
    new = NewNodes(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op.name == "unslice":
            part = _part(node)
            if part is not None:
                known[node.out] = part
        elif node.op.name == "add" and known:
            one, other = (known.get(x) if isinstance(x, int) else None for x in node.ins)
            parts = one and other and one.plus(other)
            if parts:
                if parts.whole(node.instr.aval.shape[parts.axis]):
                    joined = _joined(parts, node, new)
                    if joined is not None:
                        *before, node = joined
                        nodes += before
                elif users[node.out] == 1:
                    known[node.out] = parts
        nodes.append(node)
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs) if known else graph


def _joined(parts: _Parts, node: Node, new: NewNodes) -> list[Node] | None:
    """Return the operations that concatenate parts, the last one in place of `node`; None if the type differs."""
    at, axis, made = node.location, parts.axis, []
    values, kinds = [value for _, _, value, _ in parts.places], [a for _, _, _, a in parts.places]
    if parts.step > 1:
        axis += 1  # a new axis
        for value, a in zip(values, kinds, strict=True):
            made.append(new("reshape", ((*a.shape[:axis], 1, *a.shape[axis:]),), (value,), (a,), at))
        values, kinds = [one.out for one in made], [one.instr.aval for one in made]
    made.append(new("concat", (axis,), values, kinds, at))
    if parts.step > 1:
        made.append(new("reshape", (node.instr.aval.shape,), (made[-1].out,), (made[-1].instr.aval,), at))
    last = made.pop()
    return [*made, Node(last.instr, last.ins, node.out, at)] if last.instr.aval is node.instr.aval else None


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
    users = graph.uses()
    new = NewNodes(graph)
    made: dict[int, Node] = {}
    nodes: list[Node] = []

    def record(name: str, params: tuple[Any, ...], x: int, a: Aval, location: str | None) -> tuple[int, Aval]:
        nodes.append(new(name, params, (x,), (a,), location))
        return nodes[-1].out, nodes[-1].instr.aval

    for node in graph.nodes:
        if node.op.name == "permute":
            before = made.get(node.ins[0])  # type: ignore[arg-type]  # an array
            matrix = before.instr.ins[0] if before is not None and before.op.name == "broadcast_to" else None
            axes = (*range(len(node.params[0]) - 2), len(node.params[0]) - 1, len(node.params[0]) - 2)
            if before is not None and matrix is not None and len(matrix.shape) == 2 and node.params[0] == axes:
                w, a = record("permute", ((1, 0),), before.ins[0], matrix, node.location)  # type: ignore[arg-type]
                node = Node(before.op.instr((node.instr.aval.shape,), (a,)), (w,), node.out, node.location)
        elif node.op.name == "matmul":
            for place in (0, 1):
                node = _with_shared(node, place, made)
        before = made.get(node.ins[0]) if _sums_batches(node) else None  # type: ignore[arg-type]  # an array
        if before is not None and before.op.name == "matmul" and users[before.out] == 1:
            (x, y), (a, b) = before.ins, before.instr.ins
            n, at = len(a.shape), before.location
            if isinstance(x, int) and isinstance(y, int) and n > 2 and a.shape[:-2] == b.shape[:-2]:
                x, a = record("permute", ((*range(n - 2), n - 1, n - 2),), x, a, at)
                x, a = record("reshape", ((math.prod(a.shape[:-1]), a.shape[-1]),), x, a, at)
                x, a = record("permute", ((1, 0),), x, a, at)
                y, b = record("reshape", ((math.prod(b.shape[:-1]), b.shape[-1]),), y, b, at)
                instr = before.op.instr(before.params, (a, b))
                if instr.aval is node.instr.aval:
                    node = Node(instr, (x, y), node.out, at)
        made[node.out] = node
        nodes.append(node)
    return Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs)


def _with_shared(node: Node, place: int, made: dict[int, Node]) -> Node:
    """Return a matmul on the matrix that one operand repeats, or the matmul itself if none is repeated."""
    before = made.get(node.ins[place])  # type: ignore[arg-type]  # numbers have no key
    if before is None or before.op.name != "broadcast_to":
        return node
    matrix, repeated = before.instr.ins[0], before.instr.aval
    if len(matrix.shape) < 2 or matrix.shape[-2:] != repeated.shape[-2:]:
        return node
    ins, kinds = list(node.ins), list(node.instr.ins)
    ins[place], kinds[place] = before.ins[0], matrix
    instr = node.op.instr(node.params, tuple(kinds))
    return Node(instr, tuple(ins), node.out, node.location) if instr.aval is node.instr.aval else node


def _sums_batches(node: Node) -> bool:
    """Whether an operation sums a batch of matrices to one matrix."""
    if node.op.name not in ("sum", "sum_to"):
        return False
    batches = len(node.instr.ins[0].shape) - 2
    if node.op.name == "sum":
        return batches > 0 and node.params == (tuple(range(batches)), False)
    return batches > 0 and node.params[0] == node.instr.ins[0].shape[-2:]


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
    if not any(node.op.name == "permute" for node in graph.nodes):
        return graph
    users = graph.uses()
    new = NewNodes(graph)
    made: dict[int, Node] = {}
    replacement: dict[int, Operand] = {}
    transposed: dict[int, int] = {}
    nodes: list[Node] = []

    def transpose(x: int, a: Aval, location: str | None) -> int:
        """Return the transpose of a matrix, which is recorded once."""
        before = made.get(x)
        if before is not None and before.op.name == "permute":  # by (1, 0), because identities were removed
            return before.ins[0]  # type: ignore[return-value]  # an array
        if x not in transposed:
            nodes.append(new("permute", ((1, 0),), (x,), (a,), location))
            transposed[x] = nodes[-1].out
            made[transposed[x]] = nodes[-1]
        return transposed[x]

    for node in graph.nodes:
        node = substitute(node, replacement)
        before = made.get(node.ins[0]) if node.op.name == "permute" else None  # type: ignore[arg-type]
        if before is not None and before.op.name == "permute":
            axes = tuple(before.params[0][k] for k in node.params[0])
            node = Node(node.op.instr((axes,), before.instr.ins), before.ins, node.out, node.location)
            before = None
        if node.op.name == "permute" and node.params[0] == tuple(range(len(node.params[0]))):
            replacement[node.out] = node.ins[0]
            continue
        if before is not None and before.op.name == "matmul" and users[before.out] == 1:
            (x, y), (a, b) = before.ins, before.instr.ins
            if len(a.shape) == len(b.shape) == 2 and isinstance(x, int) and isinstance(y, int):
                kinds = tuple(aval(one.shape[::-1], one.dtype, one.device, one.weak) for one in (b, a))
                instr = before.op.instr(before.params, kinds)
                if instr.aval is node.instr.aval:
                    ins = transpose(y, b, before.location), transpose(x, a, before.location)
                    node = Node(instr, ins, node.out, before.location)
        if node.op.name == "permute" and node.params[0] == (1, 0):
            first = transposed.setdefault(node.ins[0], node.out)  # type: ignore[arg-type]
            if first != node.out:
                replacement[node.out] = first
                continue
        made[node.out] = node
        nodes.append(node)
    outputs = tuple(replacement.get(value, value) for value in graph.outputs)
    return Graph(graph.inputs, graph.avals, tuple(nodes), outputs)  # type: ignore[arg-type]


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
