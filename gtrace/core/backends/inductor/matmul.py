"""Large products of matrices in compiled code, which go to the library that the interpreter calls for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gtrace.core.backends.interpreter.matmul import is_copied, is_large, preferred
from gtrace.core.base import torch_internals as internals

_LIBRARY = torch.library.Library("gtrace", "FRAGMENT")
_LIBRARY.define("large_product(Tensor x, Tensor y) -> Tensor")
_LIBRARY.impl("large_product", torch.mm, "CompositeExplicitAutograd")

LARGE = torch.ops.gtrace.large_product.default
"""A product by oneDNN. Inductor would fuse oneDNN's own operator with others, for weights that are constants alone."""


def choose_libraries(module: torch.fx.GraphModule) -> None:
    """Let oneDNN compute products of two large matrices on a CPU where it is preferred."""
    if not (preferred() and internals.OWN_PRODUCTS.available()):
        return
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
        x, y = node.args
        value, left = node.meta["val"], x.meta["val"]
        sizes = *left.shape, value.shape[1]
        if value.dtype is not torch.float32 or value.device.type != "cpu" or not is_large(*map(_hint, sizes)):
            continue
        if is_copied(left, _hint(value.shape[1])):
            continue
        with graph.inserting_before(node):
            call = graph.call_function(LARGE, (x, y))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)
    module.recompile()


def _hint(size: Any) -> int:
    """Return a size, or that of the example if it is open, without assuming anything of it."""
    return size if isinstance(size, int) else size.node.hint


@contextlib.contextmanager
def products_lowered() -> Iterator[None]:
    """Let Inductor compute products as `choose_libraries` chose."""
    if not internals.OWN_PRODUCTS.available():
        yield
        return
    lowerings = internals.LOWERINGS.get()
    lowerings[LARGE] = _linear
    try:
        yield
    finally:
        del lowerings[LARGE]


def _linear(x: Any, y: Any) -> Any:
    kernel, frozen = internals.LINEAR_KERNEL.get(), internals.STORAGE_AND_LAYOUT.get()
    transposed = internals.LOWERINGS.get()[torch.ops.aten.permute.default](y, [1, 0])
    x, weights = kernel.realize_input(x), kernel.realize_input(transposed)
    layout = frozen(weights, freeze=True)[1]
    columns, terms = layout.size
    if tuple(layout.stride) not in ((terms, 1), (1, columns)):  # see `large_matmul`
        weights = kernel.realize_input(kernel.copy_input(weights))
    result = internals.FIXED_LAYOUT.get()(
        device=x.get_device(), dtype=x.get_dtype(), size=[*x.get_size()[:-1], weights.get_size()[0]]
    )
    # what the kernel does besides, which is nothing: no bias, no function of the result
    call = kernel(layout=result, inputs=[x, weights], constant_args=[None, "none", [-1], ""])
    return internals.TENSOR_BOX.get().create(internals.OUTPUT_NODE.get()(call))
