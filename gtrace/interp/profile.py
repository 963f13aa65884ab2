"""Where an interpreted program spends its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from gtrace.interp.interpreter import interpreter
from gtrace.interp.products import takes_library
from gtrace.ir.graph import Graph, Node


def run_profiled(graph: Graph, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    """Interpret a program once, on the CPU; returns its results, and the fraction of its time that stays when compiled.

    Compiled code calls the same library for large matrix products and the like.
    """
    inside = 0.0

    def around(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
        if not takes_library(node.instr):
            return function

        def timed(*operands: torch.Tensor) -> Any:
            nonlocal inside
            start = perf_counter()
            result = function(*operands)
            inside += perf_counter() - start
            return result

        return timed

    run = interpreter(graph, around)
    start = perf_counter()
    results = run(tensors)
    return results, inside / (perf_counter() - start)
