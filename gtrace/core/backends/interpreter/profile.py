"""Where an interpreted program spends its time, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from gtrace.core.backends.interpreter.interpreter import TensorFunction, interpreter
from gtrace.core.backends.interpreter.matmul import takes_library
from gtrace.core.ir.aval import Bundle
from gtrace.core.ir.graph import Graph, Node


def timed_interpreter(
    graph: Graph, report: Callable[[Node, float], None], chosen: Callable[[Node], bool] = lambda node: True
) -> TensorFunction:
    """Return an interpreter of `graph` that reports the seconds of each operation.

    On a GPU it waits for each operation.

    Args:
        report: called after each operation.
        chosen: which operations are timed.
    """

    def around(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        if not chosen(node):
            return function
        a = node.instr.aval
        wait = any(one.device.type == "cuda" for one in (a.avals if isinstance(a, Bundle) else (a,)))

        def timed(*operands: torch.Tensor) -> Any:
            start = perf_counter()
            result = function(*operands)
            if wait:
                torch.cuda.synchronize()
            report(node, perf_counter() - start)
            return result

        return timed

    return interpreter(graph, around)


def run_profiled(graph: Graph, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    """Interpret a program once, on the CPU; returns its results, and the fraction of its time that stays when compiled.

    Compiled code calls the same library for large matrix products and the like.
    """
    inside: list[float] = []
    run = timed_interpreter(graph, lambda node, seconds: inside.append(seconds), lambda node: takes_library(node.instr))
    start = perf_counter()
    results = run(tensors)
    return results, sum(inside) / (perf_counter() - start)
