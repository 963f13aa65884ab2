"""Products of matrices, and of small batches of them, in compiled code.

Large ones go to the library that the interpreter calls for them. Small ones of known sizes become C++ of our own, where
torch's library takes longer: for its call, and on processors that it is slow on.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from gtrace.core.backends.inductor.operators import C_TYPES, NATIVE, system_headers
from gtrace.core.backends.inductor.tuned import LEAST_DIVIDED_PRODUCT, LEAST_PART_ROWS
from gtrace.core.backends.interpreter.matmul import is_copied, is_large, is_small, preferred
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.mechanisms import SMALL_MATMULS
from gtrace.core.ir.aval import contiguous_strides

_LIBRARY = torch.library.Library("gtrace", "FRAGMENT")
for _name, _function in (("large_product", torch.mm), ("product", torch.matmul)):
    _LIBRARY.define(f"{_name}(Tensor x, Tensor y) -> Tensor")
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")

LARGE = torch.ops.gtrace.large_product.default
"""A product by oneDNN. Inductor would fuse oneDNN's own operator with others, for weights that are constants alone."""

PRODUCT = torch.ops.gtrace.product.default
"""A product whose C++ is part of the program."""

# what stands between the braces of extern "C": a linkage of its own, for templates
_TEMPLATES = """"C++" {{
{includes}
#pragma GCC push_options
#pragma GCC optimize ("O3")
namespace gtrace_products {{
{source}
}}
#pragma GCC pop_options
}}"""

_FUNCTION = """AOTITorchError aoti_torch_cpu_{name}(AtenTensorHandle x, AtenTensorHandle y, AtenTensorHandle* out) {{
  const int64_t sizes[] = {{{sizes}}}, strides[] = {{{strides}}};
  if (aoti_torch_empty_strided(
        {rank}, sizes, strides, aoti_torch_dtype_{dtype}(), aoti_torch_device_type_cpu(), 0, out))
    return AOTI_TORCH_FAILURE;
  void *a, *b, *c;
  if (aoti_torch_get_data_ptr(x, &a) || aoti_torch_get_data_ptr(y, &b) || aoti_torch_get_data_ptr(*out, &c))
    return AOTI_TORCH_FAILURE;
  using T = {type};
{threads}  for (int64_t k = 0; k < {batch}; ++k)
    gtrace_products::product<T, {template}>(
        static_cast<T*>(a) + k * {x_step}, static_cast<T*>(b) + k * {y_step}, static_cast<T*>(c) + k * {step});
  return AOTI_TORCH_SUCCESS;
}}"""


def choose_libraries(module: torch.fx.GraphModule, own: bool) -> None:
    """Choose what computes each product of two matrices, or small batches, on a CPU; `own`: C++ of our own may."""
    own = own and SMALL_MATMULS.on
    if not internals.OWN_PRODUCTS.available():
        return
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
        x, y = node.args
        value, left = node.meta["val"], x.meta["val"]
        if value.dtype not in C_TYPES or value.device.type != "cpu":
            continue
        sizes = (*left.shape, value.shape[1])
        rows, terms, columns = map(_hint, sizes)
        with graph.inserting_before(node):
            if preferred() and value.dtype is torch.float32 and is_large(rows, terms, columns):
                if is_copied(left, columns):
                    continue
                call = graph.call_function(LARGE, (x, y))
            elif own and is_small(rows, terms, columns) and all(type(n) is int for n in sizes):
                call = graph.call_function(PRODUCT, (x, y))
            else:
                continue
        _replace(node, call)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default) if own else ():
        x, y = node.args
        value = node.meta["val"]
        sizes = (*value.shape, x.meta["val"].shape[2])
        if value.dtype in C_TYPES and value.device.type == "cpu" and all(type(n) is int for n in sizes):
            batch, rows, columns, terms = sizes
            if is_small(batch * rows, terms, columns):
                with graph.inserting_before(node):
                    _replace(node, graph.call_function(PRODUCT, (x, y)))
    module.recompile()


def _replace(node: torch.fx.Node, call: torch.fx.Node) -> None:
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)


def _hint(size: Any) -> int:
    """Return a size, or that of the example if it is open, without assuming anything of it."""
    return size if isinstance(size, int) else size.node.hint


@contextlib.contextmanager
def products_lowered(shims: dict[Any, list[str]], threads: int) -> Iterator[None]:
    """Let Inductor compute products as `choose_libraries` chose.

    Args:
        shims: the C++ of operators, to which that of products is added.
        threads: those that share a product of some size.
    """
    if not internals.OWN_PRODUCTS.available():
        yield
        return
    lowerings = internals.LOWERINGS.get()
    header = (NATIVE / "product.h").read_text()
    templates = _TEMPLATES.format(includes=system_headers(header), source=header)

    def product(x: Any, y: Any) -> Any:
        SMALL_MATMULS.used()
        call, code = _product(x, y, threads)
        known = shims.setdefault(PRODUCT, [templates])
        if code not in known:
            known.append(code)
        return call

    lowerings |= {LARGE: _linear, PRODUCT: product}
    try:
        yield
    finally:
        for op in (LARGE, PRODUCT):
            del lowerings[op]


def _linear(x: Any, y: Any) -> Any:
    kernel, frozen = internals.LINEAR_KERNEL.get(), internals.STORAGE_AND_LAYOUT.get()
    transposed = internals.LOWERINGS.get()[torch.ops.aten.permute.default](y, [1, 0])
    x, weights = kernel.realize_input(x), kernel.realize_input(transposed)
    layout = frozen(weights, freeze=True)[1]
    columns, terms = layout.size
    if tuple(layout.stride) not in ((terms, 1), (1, columns)):  # see `large_matmul`
        weights = kernel.realize_input(kernel.copy_input(weights))
    # what the kernel does besides, which is nothing: no bias, no function of the result
    return _called(kernel, [x, weights], 0, (None, "none", [-1], ""))


def _product(x: Any, y: Any, threads: int) -> tuple[Any, str]:
    """Return the call of a product in Inductor's IR, and the C++ of the function."""
    kernel, frozen = internals.LINEAR_KERNEL.get(), internals.STORAGE_AND_LAYOUT.get()
    x, y = (kernel.realize_input(v) for v in (x, y))
    layouts = [frozen(v, freeze=True)[1] for v in (x, y)]
    (*batch, rows, terms), (*_, columns) = ([int(n) for n in layout.size] for layout in layouts)
    (*x_step, x_row, x_term), (*y_step, y_term, y_column) = ([int(n) for n in layout.stride] for layout in layouts)
    # from one matrix of a batch to the next, or from one thread's rows to the next's
    steps = [(*step, 0)[0] for step in (x_step, y_step)]
    count, part, pragma = math.prod(batch), rows, ""
    if not batch and _is_divided(rows, terms, columns, threads):
        count, part, steps = threads, rows // threads, [rows // threads * x_row, 0]
        pragma = f"#pragma omp parallel for num_threads({threads})\n"
    template = ", ".join(map(str, (part, terms, columns, x_row, x_term, y_term, y_column, columns, 1)))
    dtype = x.get_dtype()
    sizes = (*batch, rows, columns)
    name = f"product_{C_TYPES[dtype]}_{template.replace(', ', '_')}" + "".join(
        f"_{n}" for n in (*batch, *x_step, *y_step)
    )
    code = _FUNCTION.format(
        name=name, rank=len(sizes), sizes=", ".join(map(str, sizes)),
        strides=", ".join(map(str, contiguous_strides(sizes))), type=C_TYPES[dtype],
        dtype=str(dtype).removeprefix("torch."), template=template, batch=count, threads=pragma,
        x_step=steps[0], y_step=steps[1], step=part * columns,
    )  # fmt: skip

    def make(**given: Any) -> Any:
        call = kernel(**given)
        call.cpp_kernel_name, call.op_overload = f"aoti_torch_cpu_{name}", PRODUCT
        call.collect_arg_kwarg_properties()
        return call

    return _called(make, [x, y], len(sizes) - 1, ()), code


def _is_divided(rows: int, terms: int, columns: int, threads: int) -> bool:
    """Return whether threads share the rows of a product."""
    return (
        threads > 1 and rows * terms * columns >= LEAST_DIVIDED_PRODUCT
        and rows % threads == 0 and rows // threads >= LEAST_PART_ROWS <= columns
    )  # fmt: skip


def _called(kernel: Any, inputs: list[Any], columns: int, constants: tuple[Any, ...]) -> Any:
    x, y = inputs
    layout = internals.FIXED_LAYOUT.get()(
        device=x.get_device(), dtype=x.get_dtype(), size=[*x.get_size()[:-1], y.get_size()[columns]]
    )
    call = kernel(layout=layout, inputs=inputs, constant_args=list(constants))
    return internals.TENSOR_BOX.get().create(internals.OUTPUT_NODE.get()(call))
