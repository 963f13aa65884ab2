"""The aten calls of a traced function, as plain data.

The tensors and the graph with which torch was traced refer to one another through C++, where Python's collector does
not see them. So a trace that has ended keeps none of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.bounded_tables import PER_OPERATION, SMALL
from gtrace.core.base.errors import ArgumentError, message
from gtrace.interop.aten.custom_functions import CustomCall


class OtherSizesError(Exception):
    """A call gives other sizes than the trace has assumed."""


@attrs.frozen(eq=False)
class Type:
    """The type of a traced tensor. Sizes may be `Open`.

    Attributes:
        memory: its strides and its offset in memory, if a later call describes that memory; else None.
    """

    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    memory: tuple[tuple[Any, ...], Any] | None


@attrs.frozen(eq=False)
class Step:
    """One step of a trace.

    Attributes:
        kind: "input", "constant", "item" (of several results) or "call".
        target: the operator of a call, the name of a constant, or the index of an item.
        args: with steps in place of tensors, and `Open` in place of open numbers.
        results: the type of the result, or those of several.
        name: the overload of a call.
        random: whether it draws from torch's global state.
    """

    kind: str
    target: Any
    args: Any = ()
    kwargs: Mapping[str, Any] = {}
    results: Any = None
    name: str = ""
    random: bool = False


@attrs.frozen(eq=False)
class TracedCall:
    """The aten calls of a function.

    Attributes:
        steps: the inputs, constants and calls, in order.
        outputs: steps, and None for results that are missing.
        constants: the tensors of constants, by name.
        custom: its calls of custom functions, by their names.
    """

    steps: Sequence[Step]
    outputs: Sequence[Any]
    constants: Mapping[str, torch.Tensor]
    custom: Mapping[str, CustomCall] = attrs.field(factory=dict)

    @property
    def weight(self) -> int:
        """Its approximate bytes, with the program that computes its open numbers."""
        return SMALL + 4 * PER_OPERATION * len(self.steps)

    @classmethod
    def of(
        cls,
        graph: torch.fx.Graph,
        constant: Callable[[str], torch.Tensor],
        detached: bool = True,
        number: Callable[[Any], Any] = lambda value: value,
    ) -> TracedCall:
        """Return the calls of torch's graph, whose nodes have their types in ``meta["val"]``.

        Args:
            detached: whether detached values stay so.
            number: what becomes of a number among sizes and arguments.
        """
        described = {node.args[0] for node in graph.nodes if str(node.target) in BY_MEMORY}
        steps: dict[torch.fx.Node, Step] = {}
        constants: dict[str, torch.Tensor] = {}
        outputs: Any = ()

        def read(value: Any) -> Any:
            if isinstance(value, torch.fx.Node):
                return steps[value]
            if isinstance(value, (list, tuple)):
                return [read(each) for each in value]
            return number(value)

        def types(results: Any, node: torch.fx.Node) -> Any:
            if not isinstance(results, torch.Tensor):
                return [types(each, node) for each in results] if isinstance(results, (list, tuple)) else results
            memory = None
            if node in described:
                memory = tuple(map(number, results.stride())), number(results.storage_offset())
            return Type(tuple(map(number, results.shape)), results.dtype, results.device, memory)

        for node in graph.nodes:
            args: Any = read(node.args)
            if node.op == "output":
                (outputs,) = args
            elif node.target is torch.ops.aten.detach.default and not detached:
                steps[node] = args[0]
            elif node.op == "placeholder":
                steps[node] = Step("input", None)
            elif node.op == "get_attr":
                name = str(node.target)
                constants[name] = constant(name)
                steps[node] = Step("constant", name, results=types(constants[name], node))
            elif node.target is operator.getitem:
                steps[node] = Step("item", args[1], args[:1], results=types(node.meta.get("val"), node))
            elif not isinstance(node.target, internals.OVERLOAD.get()):
                raise ArgumentError(
                    message("torch", "a function made of operators of torch", f"a call of {node.target}",
                            "Take it apart.")
                )  # fmt: skip
            elif node.target._schema.returns:  # else it is a check of values, such as whether a matrix was singular
                kwargs = {key: read(value) for key, value in node.kwargs.items()}
                random = torch.Tag.nondeterministic_seeded in node.target.tags
                results = types(node.meta.get("val"), node)
                steps[node] = Step("call", node.target, args, kwargs, results, str(node.target), random)
        return cls(list(dict.fromkeys(steps.values())), outputs, constants)


BY_MEMORY = {"aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"}
"""Overloads whose constants describe the memory of their first operand."""
