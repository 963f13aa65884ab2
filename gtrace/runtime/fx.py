"""Lowering: canonical graph to torch.fx.GraphModule of aten calls.

Each node's torch function is run on fake tensors while torch records the aten calls it makes, decomposed into what the
compiler takes. Which torch function an operation calls is therefore stated once, in its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gtrace.ir.graph import Graph, Operand
from gtrace.runtime.interpret import bound_impl


def lower(
    graph: Graph,
    strides: Sequence[tuple[int, ...]],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> tuple[torch.fx.GraphModule, list[FakeTensor], FakeTensorMode]:
    """Trace `graph` into aten calls.

    Args:
        graph: a canonical graph.
        strides: of each input.
        decompositions: aten overloads to expand while tracing.

    Returns:
        The module, taking the inputs one by one and returning a list; fake inputs for a compiler to look at; and the
        mode that owns them.
    """
    mode = FakeTensorMode()
    with torch.no_grad(), mode:
        fakes = [
            torch.empty_strided(a.shape, stride, dtype=a.dtype, device=a.device)
            for a, stride in zip(graph.avals, strides, strict=True)
        ]

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            env: dict[int, torch.Tensor] = dict(zip(graph.inputs, tensors, strict=True))

            def read(operand: Operand) -> torch.Tensor:
                if isinstance(operand, int):
                    return env[operand]
                return torch.full((), operand.value, dtype=operand.aval.dtype, device=operand.aval.device)

            for node in graph.nodes:
                env[node.out] = bound_impl(node)(*(read(x) for x in node.ins))
            return [env[value] for value in graph.outputs]

        module = make_fx(run, decomposition_table=dict(decompositions or {}))(*fakes)
    return module, fakes, mode  # type: ignore[return-value]
