"""Derivatives that torch has kernels for: of tanh, sigmoid, silu and softmax, as one call in place of three to six.

Programs have them as products and sums, which are differentiated further and which compilers fuse. Only the interpreter
runs them so. Two limits, which the derivative of silu has, are one call as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gtrace.core.base.mechanisms import KERNEL_GRADIENTS
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.ir.op import Op
from gtrace.core.ir.rules import Rules
from gtrace.core.ir.simplify import dce

_MADE = "it is made of operations that have derivatives"


def _elementwise(kernel: Any) -> Op:
    """Return the operation of a kernel of torch that takes a cotangent and an array of its type."""

    def call(g: torch.Tensor, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        found: torch.Tensor = kernel.default(g, x) if out is None else kernel.grad_input(g, x, grad_input=out)
        return found

    return Op(
        kernel.__name__, call, arity=2, elementwise=True, fresh=True,
        rules=Rules(result=lambda avals: avals[0], nondiff=_MADE, in_place=lambda g, x: call(g, x, out=g)),
    )  # fmt: skip


_TANH = _elementwise(torch.ops.aten.tanh_backward)
_SIGMOID = _elementwise(torch.ops.aten.sigmoid_backward)
_SILU = _elementwise(torch.ops.aten.silu_backward)
_SOFTMAX = Op(
    "softmax_backward", lambda g, out, axis: torch.ops.aten._softmax_backward_data(g, out, axis, out.dtype),
    params=("axis",), arity=2, fresh=True, rules=Rules(result=lambda avals, axis: avals[0], nondiff=_MADE),
)  # fmt: skip
_CLAMP = Op(
    "clamp", torch.clamp, params=("min", "max"), arity=1, fresh=True,
    rules=Rules(result=lambda avals, **limits: avals[0], nondiff=_MADE),
)  # fmt: skip


def fuse_derivatives(graph: Graph) -> Graph:
    """Return a program for the interpreter, in which these derivatives are single operations."""
    if not KERNEL_GRADIENTS.on or not any(node.op.name in ("sub", "minimum") for node in graph.nodes):
        return graph
    search = _Search(graph)
    nodes = [search.fused(node) or node for node in graph.nodes]
    if all(one is other for one, other in zip(nodes, graph.nodes, strict=True)):
        return graph
    KERNEL_GRADIENTS.used()
    return dce(Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs))


class _Search:
    """Looks for derivatives in a program."""

    def __init__(self, graph: Graph) -> None:
        self._made = {node.out: node for node in graph.nodes}
        self._avals = graph.value_avals()

    def fused(self, node: Node) -> Node | None:
        """Return the operation that computes what a node does from a cotangent; None: there is none."""
        a = node.instr.aval
        if not isinstance(a, Aval) or not a.floating or a.complex or not a.shape:
            return None
        if node.op.name == "sub":
            softmax = self._softmax(node)
            return None if softmax is None else self._call(node, _SOFTMAX, *softmax)
        if node.op.name == "minimum":
            return self._clamp(node)
        if node.op.name != "mul":
            return None
        for x, ct in _both(node):
            found = self._tanh(x, ct) or self._sigmoid(x, ct) or self._silu(x, ct)
            if found is not None:
                return self._call(node, *found)
        return None

    def _call(self, node: Node, op: Op, ct: Operand, of: Operand, params: tuple[Any, ...] = ()) -> Node | None:
        a = node.instr.aval
        if not (isinstance(ct, int) and isinstance(of, int)) or not (self._avals[ct] is self._avals[of] is a):
            return None
        return Node(op.instr(params, (a, a)), (ct, of), node.out, node.location)

    def _clamp(self, node: Node) -> Node | None:
        """Return the limitation of an array to what lies between two numbers, neither of which is 0, with its sign."""
        above, high = self._node(node.ins[0], "maximum"), node.ins[1]
        if above is None or not isinstance(high, Scalar):
            return None
        x, low = above.ins
        if not isinstance(low, Scalar) or not low.value < high.value or 0 in (low.value, high.value):  # type: ignore[operator]  # real
            return None
        if self._avals[x] is not node.instr.aval:  # type: ignore[index]  # a value
            return None
        params = float(low.value), float(high.value)  # type: ignore[arg-type]  # real
        return Node(_CLAMP.instr(params, (node.instr.aval,)), (x,), node.out, node.location)

    def _node(self, x: Operand, name: str) -> Node | None:
        """Return the operation that makes a value, if it has this name."""
        node = self._made.get(x) if isinstance(x, int) else None
        return node if node is not None and node.op.name == name else None

    def _from_one(self, x: Operand) -> Operand | None:
        """Return y of 1 - y."""
        node = self._node(x, "sub")
        return node.ins[1] if node is not None and _is_one(node.ins[0]) else None

    def _tanh(self, x: Operand, ct: Operand) -> tuple[Op, Operand, Operand] | None:
        """(1 - y^2) ct, where y is the result."""
        y = self._from_one(x)
        square = None if y is None else self._node(y, "square")
        return None if square is None else (_TANH, ct, square.ins[0])

    def _sigmoid(self, x: Operand, ct: Operand) -> tuple[Op, Operand, Operand] | None:
        """y (1 - y) ct, where y is the result."""
        product = self._node(x, "mul")
        for rest, y in () if product is None else _both(product):
            if self._from_one(rest) == y:
                return _SIGMOID, ct, y
        return None

    def _silu(self, x: Operand, ct: Operand) -> tuple[Op, Operand, Operand] | None:
        """s (1 + x (1 - s)) ct, multiplied in any order, where s is the sigmoid of x."""
        for one, other in ((x, ct), (ct, x)):
            product = self._node(one, "mul")
            for s, rest in () if product is None else _both(product):
                for slope, cotangent in ((rest, other), (other, rest)):
                    argument = self._silu_argument(s, slope)
                    if argument is not None:
                        return _SILU, cotangent, argument
        return None

    def _silu_argument(self, s: Operand, slope: Operand) -> Operand | None:
        """Return x if s is its sigmoid and the slope 1 + x (1 - s)."""
        sigmoid, total = self._node(s, "sigmoid"), self._node(slope, "add")
        for scaled, one in () if sigmoid is None or total is None else _both(total):
            product = self._node(scaled, "mul") if _is_one(one) else None
            for rest, x in () if product is None else _both(product):
                if x == sigmoid.ins[0] and self._from_one(rest) == s:  # type: ignore[union-attr]
                    return x
        return None

    def _softmax(self, node: Node) -> tuple[Operand, Operand, tuple[int]] | None:
        """w - y sum(w) with w = ct y, where y is the result."""
        weighted, scaled = self._node(node.ins[0], "mul"), self._node(node.ins[1], "mul")
        for y, total in () if weighted is None or scaled is None else _both(scaled):
            summed = self._node(total, "sum")
            if summed is None or summed.ins[0] != node.ins[0] or not summed.params[1] or len(summed.params[0]) != 1:
                continue
            for ct, out in _both(weighted):  # type: ignore[arg-type]
                if out == y:
                    return ct, y, (summed.params[0][0],)
        return None


def _both(node: Node) -> Iterator[tuple[Operand, Operand]]:
    """Yield both orders of two operands."""
    one, other = node.ins
    yield one, other
    yield other, one


def _is_one(x: Operand) -> bool:
    return isinstance(x, Scalar) and x.value == 1
