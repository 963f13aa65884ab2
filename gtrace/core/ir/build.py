"""A builder for handwritten graphs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import torch

from gtrace.core.base.devices import CPU, as_device
from gtrace.core.base.dtypes import COMPLEX, FLOATS
from gtrace.core.base.errors import ArgumentError, ShapeError, message
from gtrace.core.base.exact_keys import is_other_nan
from gtrace.core.ir.aval import Aval, Bundle, aval
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar, Subgraph
from gtrace.core.ir.op import REGISTRY, Op
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.ir.verify import verify

ops: Mapping[str, Op] = MappingProxyType(REGISTRY)
"""Every operation by name; read-only."""


@attrs.frozen(eq=False, repr=False)
class Value:
    """An input or a result in a `Builder`.

    Attributes:
        number: its number in the graph.
        aval: its type.
    """

    number: int
    aval: Aval
    builder: Builder

    def __repr__(self) -> str:
        return f"%{self.number}: {self.aval!r}"


class Builder:
    """A graph under construction.

    >>> from gtrace import ir
    >>> b = ir.Builder()
    >>> x = b.input((2, 3), gt.float32)
    >>> y = b.op("sum", b.op("mul", x, 2.0), axes=(1,), keepdims=False)
    >>> print(b.graph(y))
    graph(%0: f32[2,3]) {
      %1: f32[2,3] = mul(%0, 2.0:f32[]~)
      %2: f32[2] = sum(%1) {axes=(1,), keepdims=False}
      return %2
    }
    """

    def __init__(self) -> None:
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._count = 0

    def input(self, shape: Sequence[int], dtype: torch.dtype, device: Any = CPU, *, weak: bool = False) -> Value:
        """Add an input.

        Raises:
            ShapeError: a size is not an integer of at least 0.
            DtypeError: gtrace has no such dtype.
            DeviceError: there is no such device.
        """
        if isinstance(shape, int) or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in shape):
            raise ShapeError(message("Builder.input", "a tuple of sizes, such as (2, 3)", repr(shape), "Pass one."))
        value = self._value(aval(tuple(shape), dtype, as_device(device), weak))
        self._inputs.append(value)
        return value

    def op(self, name: str, *operands: Value | Scalar | bool | int | float | complex, **attributes: Any) -> Any:
        """Add an operation.

        Args:
            name: a name in `ops`.
            operands: values of this builder, and numbers. A number takes the dtype of the first value.
            attributes: all attributes of the operation, by name. A `Graph` becomes a `Subgraph`.

        Returns:
            Its result, or a tuple of results if it has several.

        Raises:
            ArgumentError: no such operation, wrong attributes, or an operand of another builder.
            ShapeError, DtypeError, DeviceError: the operands do not fit.
        """
        op = REGISTRY.get(name)
        if op is None:
            near = difflib.get_close_matches(name, REGISTRY, n=1)
            fix = f"Did you mean {near[0]!r}?" if near else "gtrace.ir.ops has them all."
            raise ArgumentError(message("Builder.op", "the name of an operation", repr(name), fix))
        if set(attributes) != set(op.params):
            got = ", ".join(attributes) or "none"
            fix = f"Pass {', '.join(f'{param}=...' for param in op.params)}." if op.params else "Pass none."
            raise ArgumentError(message(name, f"attributes {', '.join(op.params) or 'none'}", got, fix))
        if op.arity is not None and op.arity != len(operands):
            fix = "Pass as many values or numbers as it takes."
            raise ArgumentError(message(name, f"{op.arity} operands", str(len(operands)), fix))
        like = next((x.aval for x in operands if isinstance(x, Value)), None)
        ins = tuple([self._operand(name, x, like) for x in operands])
        avals = tuple([(i if isinstance(i, Scalar) else x).aval for i, x in zip(ins, operands, strict=True)])  # type: ignore[union-attr]
        params = tuple(_attribute(attributes[param]) for param in op.params)
        return self._add(op, params, ins, avals)

    def graph(self, *outputs: Value) -> Graph:
        """Return the graph with these outputs. The builder may go on afterwards.

        Raises:
            ArgumentError: an output is not a value of this builder.
        """
        for x in outputs:
            if not isinstance(x, Value) or x.builder is not self:
                raise ArgumentError(message("Builder.graph", "values of this builder", repr(x), "Return its values."))
        inputs = tuple(x.number for x in self._inputs)
        avals = tuple(x.aval for x in self._inputs)
        graph = Graph(inputs, avals, tuple(self._nodes), tuple(x.number for x in outputs))
        verify(graph)
        return graph

    def _value(self, a: Aval) -> Value:
        value = Value(self._count, a, self)
        self._count += 1
        return value

    def _add(self, op: Op, params: tuple[Any, ...], ins: tuple[Operand, ...], avals: tuple[Any, ...]) -> Any:
        instr = op.instr(params, avals)
        value = self._value(instr.aval)
        self._nodes.append(Node(instr, ins, value.number))
        if not isinstance(instr.aval, Bundle):
            return value
        project = REGISTRY["project"]
        return tuple(self._add(project, (k,), (value.number,), (instr.aval,)) for k in range(len(instr.aval.avals)))

    def _operand(self, name: str, x: Any, like: Aval | None) -> Operand:
        if isinstance(x, Value):
            if x.builder is not self:
                fix = "Use a value of this builder, or gtrace.ir.inline for another graph."
                raise ArgumentError(message(name, "values of one builder", f"{x!r} of another", fix))
            return x.number
        if isinstance(x, Scalar):
            return x
        if not isinstance(x, (bool, int, float, complex)):
            got = type(x).__name__
            raise ArgumentError(message(name, "values of the builder or numbers", got, "Make an input of it."))
        scalar = None if like is None else _scalar(x, like)
        if scalar is None:
            fix = "Pass a gtrace.ir.Scalar, which says its aval."
            raise ArgumentError(message(name, f"a number that fits {like!r}", repr(x), fix))
        return scalar


def _scalar(x: bool | int | float | complex, like: Aval) -> Scalar | None:
    """Return a number as a `Scalar` with the dtype of `like`; None if that dtype cannot hold it."""
    kind = aval((), like.dtype, like.device, weak=True)
    if is_other_nan(x):
        return None
    if like.dtype in COMPLEX:
        return Scalar(complex(x), kind)
    if isinstance(x, complex):
        return None
    if like.dtype in FLOATS:
        return Scalar(float(x), kind)
    if isinstance(x, float):
        return None
    if like.dtype is torch.bool:
        return Scalar(x, kind) if isinstance(x, bool) else None
    info = torch.iinfo(like.dtype)
    return Scalar(int(x), kind) if info.min <= x <= info.max else None


def _attribute(value: Any) -> Any:
    if isinstance(value, Graph):
        return subgraph(value)
    if isinstance(value, (tuple, list)):
        return tuple(_attribute(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, complex, str, Subgraph)):
        return value
    expected = "numbers, strings, None, graphs and tuples of these as attributes"
    raise ArgumentError(message("Builder.op", expected, type(value).__name__, "Convert it."))
