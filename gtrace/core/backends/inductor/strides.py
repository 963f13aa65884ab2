"""The strides of what torch's kernels return to compiled code.

Inductor takes them from fake tensors. Where these are wrong, as for the gradient of a replicated padding, generated
code reads the result in another order than it has. torch.compile checks each such result and raises. Here the result
is laid out anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gtrace.core.base import torch_internals as internals

_PYTHON = (
    "if {differs}: {name} = torch.empty_strided({sizes}, {strides}, dtype={name}.dtype, device={name}.device)"
    ".copy_({name})"
)
_CPP = (
    "{{ int64_t* found; AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides({name}, &found)); if ({differs}) {{"
    " const int64_t sizes[] = {sizes}, strides[] = {strides}; int32_t dtype, type, index; AtenTensorHandle copy;"
    " AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype({name}, &dtype));"
    " AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type({name}, &type));"
    " AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index({name}, &index));"
    " AOTI_TORCH_ERROR_CODE_CHECK("
    "aoti_torch_empty_strided({rank}, sizes, strides, dtype, type, index, &copy));"
    " AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy, {name}, 0));"
    " {name} = RAIIAtenTensorHandle(copy); }} }}"
)


@contextlib.contextmanager
def strides_ensured() -> Iterator[None]:
    """Let generated code lay out anew what a kernel of torch returns in other strides than Inductor expects."""
    kernel = internals.EXTERN_KERNEL.get()
    original = kernel.codegen_size_asserts

    def ensured(self: Any, wrapper: Any) -> None:
        line = _line(self, wrapper)
        if line is not None:
            wrapper.writeline(line)

    kernel.codegen_size_asserts = ensured
    try:
        yield
    finally:
        kernel.codegen_size_asserts = original


def _line(result: Any, wrapper: Any) -> str | None:
    """Return what follows the call that makes a result; None where any strides will do."""
    size, stride = list(result.get_size()), list(result.get_stride())
    axes = [k for k, n in enumerate(size) if n != 1]
    if not axes or 0 in size:
        return None
    cpp = internals.VIRTUALIZED.get().graph.cpp_wrapper
    expected = wrapper.codegen_shape_tuple(stride)
    name = result.get_name()
    written = [wrapper.codegen_shape_tuple([stride[k]])[1:-1].rstrip(", ") for k in axes]
    found = "found[{}]" if cpp else f"{name}.stride({{}})"
    differs = (" || " if cpp else " or ").join(
        f"{found.format(k)} != {text}" for k, text in zip(axes, written, strict=True)
    )
    return (_CPP if cpp else _PYTHON).format(
        name=name, differs=differs, sizes=wrapper.codegen_shape_tuple(size), strides=expected, rank=len(size)
    )  # fmt: skip
