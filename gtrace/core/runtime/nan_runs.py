"""Runs of whole programs under `debug_nans`: each operation is checked, on one process or on several."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gtrace.core.backends.interpreter.nan_checks import checked
from gtrace.core.backends.interpreter.run_errors import REFUSALS, refuse
from gtrace.core.ir.graph import Graph
from gtrace.core.partitioner.partition import find_meshes
from gtrace.core.runtime.sharded import Placed, localize, results


def run_checked(graph: Graph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a program as it was recorded, refusing what no finite computation gives.

    Raises:
        NonFiniteError: an operation made a NaN or an infinity.
        ExecutionError: torch refused an operation because of the values.
    """
    try:
        if not find_meshes(graph):
            return checked(graph)(tensors)
        made = localize(graph)
        return Placed(results(made, checked(made.graph)(tensors)), made.avals)
    except REFUSALS as error:
        refuse("debug_nans", error)
