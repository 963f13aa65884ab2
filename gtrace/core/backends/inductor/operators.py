"""Operators of our own in compiled code: each is known to torch by name, and its C++ is part of the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

_LIBRARY = torch.library.Library("gtrace", "FRAGMENT")

NATIVE = Path(__file__).parents[1] / "native"
"""The folder of C++ of ours."""

C_TYPES = {torch.float32: "float", torch.float64: "double"}
"""The types of elements that there is C++ for."""

# what stands between the braces of extern "C": a linkage of its own, for templates, and then the C function
_CODE = """"C++" {{
{includes}
#pragma GCC push_options
#pragma GCC optimize ("O3")
namespace gtrace_{name} {{
{source}
}}
#pragma GCC pop_options
}}
AOTITorchError aoti_torch_cpu_{name}({parameters}) {{
{body}  return AOTI_TORCH_SUCCESS;
}}"""

POINTER = """  void* {name}_data;
  if (aoti_torch_get_data_ptr({tensor}, &{name}_data)) return AOTI_TORCH_FAILURE;
"""
"""C++ that finds the memory of a ``tensor``."""


@attrs.frozen(eq=False)
class OwnOperator:
    """An operator of torch, and the C function that AOTInductor's code calls for it."""

    op: Any
    code: str


def code(name: str, source: str, parameters: str, body: str) -> str:
    """Return the C++ of an operator.

    Args:
        source: what the body calls, which it finds in the namespace ``gtrace_`` and its name.
        parameters: of the C function: handles of tensors, numbers, and pointers to handles of the results.
    """
    return _CODE.format(name=name, includes=system_headers(source), source=source, parameters=parameters, body=body)


def system_headers(text: str) -> str:
    """Return the lines that include the headers of the compiler, which cannot stand in a namespace."""
    return "\n".join(re.findall("^#include <.*>$", text, re.MULTILINE))


def define(name: str, schema: str, fake: Callable[..., Any]) -> Any:
    """Return a new operator; `fake` computes the types of its results."""
    _LIBRARY.define(f"{name}{schema}")
    torch.library.register_fake(f"gtrace::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.gtrace, name).default


def empty(out: str, dtype: torch.dtype, sizes: Sequence[int | str], strides: Sequence[int | str]) -> str:
    """Return C++ that allocates a result: `out` is a pointer to its handle, sizes are numbers or names."""
    rank, name = len(sizes), str(dtype).removeprefix("torch.")
    of_sizes, of_strides = (", ".join(map(str, numbers)) or "1" for numbers in (sizes, strides))
    return f"""  {{
    const int64_t sizes[] = {{{of_sizes}}}, strides[] = {{{of_strides}}};
    if (aoti_torch_empty_strided(
          {rank}, sizes, strides, aoti_torch_dtype_{name}(), aoti_torch_device_type_cpu(), 0, {out}))
      return AOTI_TORCH_FAILURE;
  }}
"""
