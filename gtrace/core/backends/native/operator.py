"""Native loops as operators of torch, for ahead-of-time compiled packages, which hold the code of their loops."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from pathlib import Path
from typing import Any

import attrs
import torch

from gtrace.core.backends.native.generator import ENTRY, LoopCode, generate, loop_graph, of_open_length
from gtrace.core.base.dtypes import DTYPES
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.graph import Node

_HEADER = Path(__file__).with_name("loop.h")
PRODUCTS = Path(__file__).with_name("product.h")
_THREADS = Path(__file__).with_name("threads.h")
_LAYERS = Path(__file__).with_name("layers.h")

_LIBRARY = torch.library.Library("gtrace", "FRAGMENT")

# what stands between the braces of extern "C": a linkage of its own, for templates, and then the C function
# lines are shared among the threads of the OpenMP runtime that the package is linked to, as its other kernels are
_FUNCTION = """"C++" {{
{includes}
#include <omp.h>
#pragma GCC push_options
#pragma GCC optimize ("O3", "wrapv", "signed-zeros", "no-math-errno", "no-trapping-math")
#pragma GCC optimize ("no-tree-loop-distribution")
namespace {name} {{
{source}
}}
#pragma GCC pop_options
}}
void GOMP_parallel_start(void (*)(void*), void*, unsigned) __attribute__((weak));
void GOMP_parallel_end() __attribute__((weak));
AOTITorchError aoti_torch_cpu_{name}({parameters}) {{
{results}
  AtenTensorHandle memory;
  const int64_t size = {scratch}, step = 1;
  if (aoti_torch_empty_strided(
        1, &size, &step, aoti_torch_dtype_uint8(), aoti_torch_device_type_cpu(), 0, &memory))
    return AOTI_TORCH_FAILURE;
  AtenTensorHandle const tensors[] = {{{tensors}}};
  void* pointers[{count}];
  for (int k = 0; k < {count}; ++k) aoti_torch_get_data_ptr(tensors[k], pointers + k);
  static int64_t resumes = 0;
  void* services[] = {{nullptr, nullptr, nullptr, reinterpret_cast<void*>(GOMP_parallel_start),
                      reinterpret_cast<void*>(GOMP_parallel_end), &resumes}};
  const int64_t done = {name}::{entry}(pointers, length, services, omp_get_max_threads());
  aoti_torch_delete_tensor_object(memory);
  return done == 0 ? AOTI_TORCH_SUCCESS : AOTI_TORCH_FAILURE;
}}"""

_RESULT = """  const int64_t sizes{k}[] = {{{sizes}}}, strides{k}[] = {{{strides}}};
  if (aoti_torch_empty_strided(
        {rank}, sizes{k}, strides{k}, aoti_torch_dtype_{dtype}(), aoti_torch_device_type_cpu(), 0, r{k}))
    return AOTI_TORCH_FAILURE;"""


@attrs.frozen(eq=False)
class LoopOperator:
    """A loop as an operator.

    Attributes:
        op: takes the operands, dense, and the number of steps; returns a tuple of results, or the only one.
        code: the C function that AOTInductor's code calls for it.
    """

    op: Any
    code: str


def loop_operator(node: Node) -> LoopOperator:
    """Return the operator of a loop, for any number of steps.

    Raises:
        UnsupportedLoopError: see `gtrace.core.backends.native.generator.generate`.
    """
    graph = of_open_length(loop_graph(node)[0])
    return _operator(generate(graph, math.inf), len(graph.inputs))


@functools.cache
def _operator(code: LoopCode, inputs: int) -> LoopOperator:
    name = f"loop_{hashlib.blake2b(code.text.encode(), digest_size=8).hexdigest()}"
    given = [f"a{k}" for k in range(inputs)]
    made = [f"r{k}" for k in range(len(code.outputs))]
    results = ", ".join(["Tensor"] * len(made))
    _LIBRARY.define(f"{name}({', '.join(f'Tensor {a}' for a in given)}, SymInt length) -> ({results})")

    def outputs(*args: Any) -> Any:
        *tensors, length = args
        made = [
            tensors[0].new_empty((length, *shape) if stacked else shape, dtype=DTYPES[dtype])
            for dtype, shape, stacked in code.outputs
        ]
        return tuple(made) if len(made) > 1 else made[0]

    torch.library.register_fake(f"gtrace::{name}", outputs, lib=_LIBRARY)
    header = _HEADER.read_text()
    for part in (PRODUCTS, _THREADS, _LAYERS):
        header = header.replace(f'#include "{part.name}"', part.read_text())
    text = _FUNCTION.format(
        name=name,
        entry=ENTRY,
        includes=system_headers(header),
        # in the namespace, the functions of several loops differ
        source=code.text.replace('extern "C" ', "").replace(f'#include "{_HEADER.name}"', header),
        parameters=", ".join(
            [*(f"AtenTensorHandle {a}" for a in given), "int64_t length", *(f"AtenTensorHandle* {r}" for r in made)]
        ),
        results="\n".join(_result(k, *output) for k, output in enumerate(code.outputs)),
        scratch=code.scratch,
        tensors=", ".join([*given, *(f"*{r}" for r in made), "memory"]),
        count=len(given) + len(made) + 1,
    )
    return LoopOperator(getattr(torch.ops.gtrace, name).default, text)


def system_headers(text: str) -> str:
    """Return the lines that include the headers of the compiler, which cannot stand in a namespace."""
    return "\n".join(re.findall("^#include <.*>$", text, re.MULTILINE))


def _result(k: int, dtype: str, shape: tuple[int, ...], stacked: bool) -> str:
    """Return the C++ that allocates a result."""
    sizes = ["length"] * stacked + [str(n) for n in shape]
    strides = [str(n) for n in contiguous_strides((1,) * stacked + shape)]
    name = str(DTYPES[dtype]).removeprefix("torch.")
    return _RESULT.format(
        k=k, sizes=", ".join(sizes or "1"), strides=", ".join(strides or "1"), rank=len(sizes), dtype=name
    )
