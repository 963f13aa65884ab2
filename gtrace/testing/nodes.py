"""A graph under construction, and how the next node is drawn from what an elementwise operation declares."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs
import numpy
import torch

from gtrace.core.base.errors import GtraceError
from gtrace.core.ir.aval import Aval, Bundle, aval
from gtrace.core.ir.graph import Node, Operand, Scalar
from gtrace.core.ir.op import REGISTRY, Op, Params
from gtrace.testing.require import st

FLOAT_SCALARS = [2.0, 0.5, -1.0, 3.0, 0.0, -0.0]
INT_SCALARS = [2, 3, 1]
SCALAR_SHARE = 4
"""One in so many second operands is a Python scalar."""


@attrs.define
class Unfinished:
    """A graph under construction.

    Attributes:
        avals: of the values that may be operands, inputs first.
        ops: names of the operations to choose from.
        dtypes: the dtypes to cast to.
        continuous: leave out operations whose results jump.
        control: names of the control-flow operations to choose from.
        depth: how many sub-graphs it stands in.
    """

    avals: dict[int, Aval]
    ops: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    continuous: bool
    control: tuple[str, ...]
    depth: int = 0
    nodes: list[Node] = attrs.field(factory=list)
    inputs: int = attrs.field(init=False)
    used: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.inputs = self.used = len(self.avals)

    def add(self, name: str, ins: Sequence[Operand], params: Params = ()) -> int:
        """Append a node; return its value."""
        kinds = tuple(self.kind(x) for x in ins)
        node = Node(REGISTRY[name].instr(params, kinds), tuple(ins), self.used)
        self.nodes.append(node)
        self.used += 1
        if not isinstance(node.instr.aval, Bundle):
            self.avals[node.out] = node.instr.aval
        return node.out

    def add_all(self, name: str, ins: Sequence[Operand], params: Params) -> list[int]:
        """Append a node with several results, and their projections; return their values."""
        kinds = tuple(self.kind(x) for x in ins)
        whole = Node(REGISTRY[name].instr(params, kinds), tuple(ins), self.used)
        self.nodes.append(whole)
        self.used += 1
        for k, a in enumerate(whole.instr.aval.avals):
            instr = REGISTRY["project"].instr((k,), (whole.instr.aval,))
            self.nodes.append(Node(instr, (whole.out,), self.used))
            self.avals[self.used] = a
            self.used += 1
        return [node.out for node in self.nodes[-len(whole.instr.aval.avals) :]]

    def kind(self, x: Operand) -> Aval:
        return self.avals[x] if isinstance(x, int) else x.aval

    def values(self) -> list[int]:
        """Return all values: the inputs, then the results, the latest first.

        In this order a value mostly keeps its place when an earlier node is left out, so that graphs shrink.
        """
        known = list(self.avals)
        return known[: self.inputs] + known[self.inputs :][::-1]

    def where(self, condition: Callable[[Aval], bool]) -> list[int]:
        """Return the values whose aval meets a condition, in the order of `values`."""
        return [value for value in self.values() if condition(self.avals[value])]


# -- elementwise operations, from what they declare


def takes(op: Op, graph: Unfinished, a: Aval) -> bool:
    return _result_dtype(op, a.dtype) is not None


@functools.cache
def _result_dtype(op: Op, dtype: torch.dtype) -> torch.dtype | None:
    """Return the dtype that an elementwise operation makes of operands of one dtype; None: it does not take them."""
    try:
        out = op.instr((), (aval((), dtype),) * (op.arity or 1)).aval.dtype
    except GtraceError:
        return None
    # users' integers are cast before the operations that make floats of them; booleans before arithmetic
    keeps = out is dtype and dtype is not torch.bool
    return out if op.rules.nondiff is not None or keeps else None


def elementwise(op: Op, draw: st.DrawFn, graph: Unfinished, x: int) -> int:
    ins: list[Operand] = [x]
    shape = graph.avals[x].shape
    while len(ins) < (op.arity or 1):
        ins.append(partner(draw, graph, x, shape, scalars=len(ins) == 1))
        shape = numpy.broadcast_shapes(shape, graph.kind(ins[-1]).shape)
    if len(ins) == 2 and draw(st.booleans()):
        ins.reverse()
    return graph.add(op.name, ins)


def partner(draw: st.DrawFn, graph: Unfinished, x: int, shape: tuple[int, ...], scalars: bool = True) -> Operand:
    """Draw an operand of the dtype of `x` that broadcasts with `shape`."""
    a = graph.avals[x]
    if scalars and a.dtype is not torch.bool and draw(st.integers(0, SCALAR_SHARE - 1)) == SCALAR_SHARE - 1:
        return scalar(draw, a.dtype)
    return draw(st.sampled_from(graph.where(lambda b: b.dtype is a.dtype and broadcast(shape, b.shape))))


def scalar(draw: st.DrawFn, dtype: torch.dtype) -> Scalar:
    """Draw a Python number as an operand."""
    numbers = FLOAT_SCALARS if dtype.is_floating_point else INT_SCALARS
    return Scalar(draw(st.sampled_from(numbers)), aval((), dtype, weak=True))


def broadcast(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))
