"""What computes products of matrices: large ones of float32 the faster of the two libraries that torch has for them.

torch calls MKL for such products, and oneDNN for convolutions. MKL uses its best code on Intel's processors alone. On
an AMD processor with AVX-512, oneDNN takes half of MKL's time, or 0.9 of it if vectors of 512 bits are computed by
halves. On one with AVX2, it takes as long or longer. The choice depends on the processor and on the sizes, never on a
measurement, so that a program gives the same bits in every process.
"""

from __future__ import annotations

import functools
import math
import platform
from pathlib import Path

import torch

from gtrace.core.backends.interpreter.tuned import (
    FEW_SUMS,
    LEAST_CALL,
    LEAST_COLUMNS,
    LEAST_SIZE,
    LEAST_WORK,
    LONG_SUM,
    SUM_BLOCK,
)
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.mechanisms import LONG_SUMS, MATMUL_LIBRARY
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.op import Instr

LINEAR_ALGEBRA = ("aten.linalg_", "aten._linalg_", "aten.cholesky", "aten.triangular_solve", "aten._fft_")
"""What the names of torch's operators begin with that call LAPACK or a library of Fourier transforms."""

LIBRARY = ("aten.convolution", "aten._scaled_dot_product", "gtrace.lstm", *LINEAR_ALGEBRA)
"""The same of all that compiled programs call as they are, beside products."""


@functools.cache
def preferred() -> bool:
    """Whether this processor computes products faster by oneDNN than by torch's `mm`."""
    return (
        MATMUL_LIBRARY.on
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _vendor() not in ("GenuineIntel", "")
        and internals.PRODUCTS_BY_ONEDNN.available()
    )


@functools.cache
def copies_pay() -> bool:
    """Whether oneDNN, where it is preferred, saves more than the copy of a transposed first matrix takes.

    It does not on AMD's processors of family 25 (Zen 4), which compute vectors of 512 bits by halves.
    """
    return _processor("cpu family") != "25"


def libraries() -> str:
    """Return in words what computes large products."""
    if not preferred():
        return "torch"
    return "oneDNN" if copies_pay() else "oneDNN, of transposed matrices by torch"


def _vendor() -> str:
    """Return the maker of the processor, as it calls itself; empty if unknown."""
    # elsewhere than on Linux "AMD64 Family 25 Model 33 Stepping 2, AuthenticAMD"
    return _processor("vendor_id") or platform.processor().rpartition(" ")[2]


@functools.cache
def _processor(key: str) -> str:
    """Return what Linux says of the first processor; empty if it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() == key), "")


def is_large(rows: int, terms: int, columns: int) -> bool:
    """Whether a product of matrices of these sizes has enough work for oneDNN."""
    return min(rows, terms, columns) >= LEAST_SIZE and rows * terms * columns >= LEAST_WORK


def takes_library(instr: Instr) -> bool:
    """Whether an operation takes as long in compiled programs, because they call the library that is called for it."""
    if instr.op.name == "aten":
        return str(instr.attributes["overload"]).startswith(LIBRARY)
    if not instr.op.contraction:
        return False
    x, y = instr.ins if instr.op.name == "matmul" else (None, None)
    if x is None or y is None or len(x.shape) < 2 or len(y.shape) != 2 or x.dtype not in (torch.float32, torch.float64):
        return True
    # native programs have C++ of their own for small ones
    return not 0 < math.prod((*x.shape[:-1], *y.shape)) < (LEAST_WORK if preferred() else LEAST_CALL)


def is_copied(x: torch.Tensor, columns: int) -> bool:
    """Whether oneDNN would copy x, for a result of so few columns that this takes longer than it saves."""
    return x.stride(-1) != 1 and not (columns >= LEAST_COLUMNS and copies_pay())


def large_matmul(columns: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the product of x[..., m, k] and y[k, columns], large matrices of float32 on a CPU."""
    if is_copied(x, columns):
        return torch.matmul(x, y)
    MATMUL_LIBRARY.used()
    transposed = y.T
    if not (y.is_contiguous() or transposed.is_contiguous()):
        # for a part of a larger matrix oneDNN has no fast code on its right side, and takes 1,000 times as long
        transposed = y.contiguous().T
    return _linear()(x, transposed, None, "none", [], "")


def has_long_sums(x: torch.Tensor | Aval, y: torch.Tensor | Aval) -> bool:
    """Whether a product has few sums of many terms, in which torch's library would lose digits."""
    if not (x.dtype is y.dtype is torch.float32) or x.device.type != "cpu" or not len(x.shape) <= 2 >= len(y.shape):
        return False
    if not all(type(n) is int for n in (*x.shape, *y.shape)):  # an open size
        return False
    return LONG_SUMS.on and y.shape[0] >= LONG_SUM and math.prod(x.shape[:-1]) * math.prod(y.shape[1:]) <= FEW_SUMS


def matmul_in_blocks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the product of vectors, or of matrices with few rows and columns, as a sum of products of their parts.

    The terms of a product are otherwise added one by one: 0.1 * 0.1 added 3,000,000 times is 2 % off in float32.
    """
    LONG_SUMS.used()
    a, b = x if x.ndim == 2 else x.unsqueeze(0), y if y.ndim == 2 else y.unsqueeze(1)
    whole = a.shape[1] // SUM_BLOCK * SUM_BLOCK
    parts = torch.bmm(
        a[:, :whole].unflatten(1, (-1, SUM_BLOCK)).transpose(0, 1), b[:whole].unflatten(0, (-1, SUM_BLOCK))
    ).sum(0)  # fmt: skip
    if whole < a.shape[1]:
        parts = parts + torch.mm(a[:, whole:], b[whole:])
    return parts.reshape((*x.shape[:-1], *y.shape[1:]))


def batched_matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the products of matrices with equal batch axes, of which there are several.

    Where the axes do not lie one within the other, as of heads of attention, torch copies the matrices. Those that are
    transposed are copied as they lie in memory here, which takes half as long.
    """
    batch = x.shape[:-2]
    count = math.prod(batch)
    return torch.bmm(_stacked(x, count), _stacked(y, count)).view(*batch, x.shape[-2], y.shape[-1])


def _stacked(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return matrices with a single batch axis."""
    if x.stride(-1) != 1 and x.stride(-2) == 1:
        return x.mT.reshape(count, x.shape[-1], x.shape[-2]).mT
    return x.reshape(count, *x.shape[-2:])


_linear = functools.cache(internals.LINEAR.get)
