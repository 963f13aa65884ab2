"""Evaluates a graph node by node: the reference semantics that every other execution must match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from gtrace.core.base.errors import ArgumentError, ExecutionError, message, refused
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.ir.graph import Graph, Node, is_subgraphs, subgraphs


def evaluate(graph: Graph, *inputs: Any) -> list[torch.Tensor]:
    """Return the outputs of `graph` for these inputs, as torch tensors.

    Each operation runs by its torch function, and its result is checked against its aval. Nothing is fused, compiled,
    reused or rewritten.

    Args:
        inputs: a torch tensor, a gt.Array, a NumPy array or a number for each input of the graph.

    Raises:
        ArgumentError: inputs have other types than those of the graph.
        ExecutionError: torch rejected values, or a result contradicts its aval.

    >>> from gtrace import ir
    >>> graph = gt.make_graph(lambda x: (x * 2).sum())(gt.ones(3))
    >>> ir.evaluate(graph, gt.array([1., 2., 3.]))
    [tensor(12.)]
    """
    if len(inputs) != len(graph.inputs):
        got = f"{len(inputs)} for {len(graph.inputs)}"
        raise ArgumentError(message("evaluate", "a value for each input of the graph", got, "Pass them in order."))
    return _run(graph, [_tensor(k, x, a) for k, (x, a) in enumerate(zip(inputs, graph.avals, strict=True))])


def _run(graph: Graph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    env: dict[int, Any] = dict(zip(graph.inputs, tensors, strict=True))
    for node in graph.nodes:
        operands = [env[x] if isinstance(x, int) else torch.tensor(x.value, dtype=x.aval.dtype) for x in node.ins]
        try:
            env[node.out] = out = _function(node)(*operands)
        except (RuntimeError, IndexError, ValueError) as error:
            if isinstance(error, ExecutionError):
                raise
            kinds = ", ".join(map(str, node.instr.ins))
            raise ExecutionError(refused(node.op.name, kinds, error, f"It is %{node.out}.")) from error
        expected = node.instr.aval
        pairs = zip(out, expected.avals, strict=True) if isinstance(expected, Bundle) else [(out, expected)]
        for tensor, a in pairs:
            if not _has_type(tensor, a):
                raise ExecutionError(
                    f"[{node.op.name}] expected {a!r} at %{node.out}, got {_described(tensor)}. The shape and dtype"
                    " rules of the operation disagree with its torch function."
                )
    return [env[value] for value in graph.outputs]


def _function(node: Node) -> Callable[..., Any]:
    attributes = {k: v for k, v in node.attributes.items() if not is_subgraphs(v)}
    body = node.op.rules.body
    if body is None:
        function = node.instr.kernel()
        return lambda *operands: function(*operands, **attributes)
    programs = [lambda tensors, graph=sub.graph: _run(graph, tensors) for sub in subgraphs(node.params)]
    return lambda *operands: body(programs, *operands, **attributes)


def _tensor(k: int, x: Any, a: Aval) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        tensor = x.detach()
    elif hasattr(x, "__dlpack__") and not isinstance(x, (numpy.ndarray, numpy.generic)):
        tensor = torch.from_dlpack(x)
    elif isinstance(x, (bool, int, float, complex)):
        tensor = torch.tensor(x, dtype=a.dtype, device=a.device)
    else:
        tensor = torch.as_tensor(numpy.array(x), device=a.device)
    if not _has_type(tensor, a):
        raise ArgumentError(message("evaluate", f"{a!r} as input {k}", _described(tensor), "Convert it first."))
    return tensor


def _has_type(tensor: torch.Tensor, a: Aval) -> bool:
    return tuple(tensor.shape) == a.shape and tensor.dtype is a.dtype and tensor.device == a.device


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
