"""Divisions of rows by one number each, as products with its reciprocal.

A division takes as long as a dozen products. Results differ from the quotient by 1 unit in the last place. It applies
where the reciprocal can neither overflow nor lose digits: to square roots, and to the sums of a softmax.
"""

from __future__ import annotations

from typing import Any

import torch

from gtrace.core.backends.inductor.tuned import LEAST_DIVIDED_ROW
from gtrace.core.base.mechanisms import RECIPROCALS

_aten = torch.ops.aten


def multiply_by_reciprocals(module: torch.fx.GraphModule) -> None:
    """Replace divisions of rows by square roots and by the sums of a softmax."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_aten.div.Tensor) if RECIPROCALS.on else ():
        x, divisor = node.args
        value = node.meta["val"]
        if not isinstance(divisor, torch.fx.Node) or value.device.type != "cpu" or not value.is_floating_point():
            continue
        if not isinstance(divisor.meta["val"], torch.Tensor):  # an open size
            continue
        sizes = (*value.shape, *divisor.meta["val"].shape)
        if not all(type(n) is int for n in sizes) or divisor.meta["val"].numel() * LEAST_DIVIDED_ROW > value.numel():
            continue
        if divisor.meta["val"].dtype not in (torch.float32, torch.float64) or not _has_reciprocal(divisor):
            continue
        RECIPROCALS.used()
        with graph.inserting_before(node):
            reciprocal = graph.call_function(_aten.reciprocal.default, (divisor,))
            product = graph.call_function(_aten.mul.Tensor, (x, reciprocal))
        reciprocal.meta, product.meta = dict(divisor.meta), dict(node.meta)
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    module.recompile()


def _has_reciprocal(divisor: Any) -> bool:
    """Whether a value has a normal reciprocal, unless it is 0, infinite or NaN: quotients are then as products."""
    while divisor.target in (_aten.unsqueeze.default, _aten.view.default, _aten.expand.default):
        divisor = divisor.args[0]
    if divisor.target is _aten.sqrt.default:
        return True
    exponentials = divisor.args[0] if divisor.target is _aten.sum.dim_IntList else None
    if exponentials is None or exponentials.target is not _aten.exp.default:
        return False
    shifted = exponentials.args[0]
    # the largest term is 1
    return (
        shifted.target is _aten.sub.Tensor and shifted.args[1].target is _aten.amax.default
        and shifted.args[1].args[:2] == (shifted.args[0], divisor.args[1])
    )  # fmt: skip
