"""Native loops as operators of torch, for ahead-of-time compiled packages, which hold the code of their loops."""

from __future__ import annotations

import functools
import hashlib
import math
from pathlib import Path
from typing import Any

import torch

from gtrace.core.backends.inductor.operators import OwnOperator, code, define, empty
from gtrace.core.backends.native.generator import ENTRY, LoopCode, generate, loop_graph, of_open_length
from gtrace.core.base.dtypes import DTYPES
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.graph import Node

_HEADER = Path(__file__).with_name("loop.h")

_SOURCE = """#pragma GCC optimize ("wrapv", "signed-zeros", "no-math-errno", "no-trapping-math")
#pragma GCC optimize ("no-tree-loop-distribution")
#include <omp.h>
"""

# lines are shared among the threads of the OpenMP runtime that the package is linked to, as its other kernels are
_CALL = """  void GOMP_parallel_start(void (*)(void*), void*, unsigned) __attribute__((weak));
  void GOMP_parallel_end() __attribute__((weak));
  AtenTensorHandle const tensors[] = {{{tensors}}};
  void* pointers[{count}];
  for (int k = 0; k < {count}; ++k) aoti_torch_get_data_ptr(tensors[k], pointers + k);
  static int64_t resumes = 0;
  void* services[] = {{nullptr, nullptr, nullptr, reinterpret_cast<void*>(GOMP_parallel_start),
                      reinterpret_cast<void*>(GOMP_parallel_end), &resumes,
                      reinterpret_cast<void*>(std::numeric_limits<int64_t>::max())}};
  const int64_t done = gtrace_{name}::{entry}(pointers, length, services, omp_get_max_threads());
  aoti_torch_delete_tensor_object(memory);
  if (done != 0) return AOTI_TORCH_FAILURE;
"""


def loop_operator(node: Node) -> OwnOperator:
    """Return the operator of a loop, for any number of steps, or raise as `generate` does.

    It takes the operands, dense, and the number of steps. It returns a tuple of results, or the only one.
    """
    graph = of_open_length(loop_graph(node)[0])
    return _operator(generate(graph, math.inf), len(graph.inputs))


@functools.cache
def _operator(loop: LoopCode, inputs: int) -> OwnOperator:
    name = f"loop_{hashlib.blake2b(loop.text.encode(), digest_size=8).hexdigest()}"
    given = [f"a{k}" for k in range(inputs)]
    made = [f"r{k}" for k in range(len(loop.outputs))]

    def outputs(*args: Any) -> Any:
        *tensors, length = args
        found = [
            tensors[0].new_empty((length, *shape) if stacked else shape, dtype=DTYPES[dtype])
            for dtype, shape, stacked in loop.outputs
        ]
        return tuple(found) if len(found) > 1 else found[0]

    operands, results = ", ".join(f"Tensor {a}" for a in given), ", ".join(["Tensor"] * len(made))
    op = define(name, f"({operands}, SymInt length) -> ({results})", outputs)
    header = _HEADER.read_text()
    for part in ("product.h", "threads.h", "layers.h"):
        header = header.replace(f'#include "{part}"', _HEADER.with_name(part).read_text())
    # in the namespace, the functions of several loops differ
    text = loop.text.replace('extern "C" ', "").replace(f'#include "{_HEADER.name}"', header)
    body = ""
    for out, (dtype, shape, stacked) in zip(made, loop.outputs, strict=True):
        sizes = ["length"] * stacked + list(shape)
        body += empty(out, DTYPES[dtype], sizes, contiguous_strides((1,) * stacked + shape))
    body += f"  AtenTensorHandle memory;\n{empty('&memory', torch.uint8, [loop.scratch], [1])}"
    tensors = [*given, *(f"*{r}" for r in made), "memory"]
    body += _CALL.format(name=name, entry=ENTRY, tensors=", ".join(tensors), count=len(tensors))
    handles = [*(f"AtenTensorHandle {a}" for a in given), "int64_t length", *(f"AtenTensorHandle* {r}" for r in made)]
    return OwnOperator(op, code(name, _SOURCE + text, ", ".join(handles), body))
