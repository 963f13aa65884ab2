"""Large products in compiled code, by the library that the interpreter calls for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gtrace import torch_internals as internals
from gtrace.interp.products import is_copied, is_large, preferred


def choose_libraries(module: torch.fx.GraphModule) -> None:
    """Replace the large products of float32 matrices by calls of oneDNN, where this processor prefers it."""
    if not preferred():
        return
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
        x, y = node.args
        value = node.meta["val"]
        if value.dtype is not torch.float32 or value.device.type != "cpu":
            continue
        (rows, terms), columns = map(_hint, x.meta["val"].shape), _hint(value.shape[1])
        if is_large(rows, terms, columns) and not is_copied(x.meta["val"], columns):
            with graph.inserting_before(node):
                transposed = graph.call_function(torch.ops.aten.permute.default, (y, [1, 0]))
                transposed.meta["val"] = y.meta["val"].t()
                call = graph.call_function(internals.LINEAR.get(), (x, transposed, None, "none", [], ""))
            call.meta = dict(node.meta)
            node.replace_all_uses_with(call)
            graph.erase_node(node)
    module.recompile()


def _hint(size: Any) -> int:
    """Return a size, or that of the example if it is open, without assuming anything of it."""
    return size if isinstance(size, int) else size.node.hint


@contextlib.contextmanager
def products_of_any_matrices() -> Iterator[None]:
    """Let Inductor take the product of any two matrices to oneDNN.

    Its own lowering is for weights that are constants, and copies a matrix that is not contiguous.
    """
    lowerings, op = internals.LOWERINGS.get(), internals.LINEAR.get()
    original = lowerings[op]
    lowerings[op] = _lowering
    try:
        yield
    finally:
        lowerings[op] = original


def _lowering(x: Any, transposed: Any, *unused: Any) -> Any:
    kernel = internals.LINEAR_KERNEL.get()
    x, transposed = kernel.realize_input(x), kernel.realize_input(transposed)
    layout = internals.FIXED_LAYOUT.get()(
        device=x.get_device(), dtype=x.get_dtype(), size=[*x.get_size()[:-1], transposed.get_size()[0]]
    )
    # what the kernel does besides, which is nothing: no bias, no function of the result
    call = kernel(layout=layout, inputs=[x, transposed], constant_args=[None, "none", [-1], ""])
    return internals.TENSOR_BOX.get().create(internals.OUTPUT_NODE.get()(call))
