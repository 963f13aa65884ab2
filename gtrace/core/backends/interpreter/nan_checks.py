"""An interpreter for ``debug_nans``: it stops at the first operation that makes a NaN or an infinity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gtrace.core.backends.interpreter.interpreter import TensorFunction, bound_body, bound_impl
from gtrace.core.base.errors import NonFiniteError
from gtrace.core.ir.graph import Graph, Node, subgraphs


def checked(graph: Graph) -> TensorFunction:
    """Return an interpreter of `graph` that raises where a NaN or an infinity first appears.

    Raises (when run):
        NonFiniteError: an operation gave an infinity from finite operands, or a NaN from operands without one.
    """

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        env: dict[int, Any] = dict(zip(graph.inputs, tensors, strict=True))
        for node in graph.nodes:
            if node.op.rules.body is None:
                function = bound_impl(node)
            else:
                function = bound_body(node, [checked(sub.graph) for sub in subgraphs(node.params)])
            operands = [env[x] if isinstance(x, int) else torch.tensor(x.value, dtype=x.aval.dtype) for x in node.ins]
            try:
                env[node.out] = out = function(*operands)
            except NonFiniteError as error:
                raise error.called_by(node.op.name, node.location) from None
            if isinstance(out, torch.Tensor) and _is_inexact(out):
                _refuse_non_finite(node, out, [x for x in operands if isinstance(x, torch.Tensor)])
        return [env[value] for value in graph.outputs]

    return run


def _is_inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _refuse_non_finite(node: Node, out: torch.Tensor, operands: Sequence[torch.Tensor]) -> None:
    bad = ~torch.isfinite(out)
    if not bad.any():
        return
    floats = [x for x in operands if _is_inexact(x)]
    nan = bool(torch.isnan(out).any())
    explained = any(torch.isnan(x).any() for x in floats) if nan else any(not torch.isfinite(x).all() for x in floats)
    if explained:
        return
    what = "NaN" if nan else "an infinity"
    count = int(torch.isnan(out).sum()) if nan else int(bad.sum())
    raise NonFiniteError(
        f"[{node.op.name}] expected finite values, got {what} in {count} of {out.numel()} elements of"
        f" {node.instr.aval!r}, from operands {', '.join(map(repr, node.instr.ins))} without any. Guard the operands,"
        f" or turn GT_DEBUG_NANS off. (at {node.location or 'an unknown line'})"
    )
