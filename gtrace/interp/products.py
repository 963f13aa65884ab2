"""Large products of float32 matrices, by the faster of the two libraries that torch has for them.

torch calls MKL for such products, and oneDNN for convolutions. MKL uses its best code on Intel's processors alone: on
an AMD processor with AVX-512, oneDNN takes half its time. The choice depends on the processor and on the sizes, never
on a measurement, so that a program gives the same bits in every process.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

from gtrace import torch_internals as internals

LEAST_WORK = 1 << 21
"""Multiplications from which on oneDNN is faster: it takes 10 us to find its code for the sizes."""

LEAST_SIZE = 4
"""Rows, columns and terms of a sum from which on it is faster: MKL has code of its own for vectors."""

LEAST_COLUMNS = 256
"""Columns of the result from which on it is faster although the first matrix is transposed, which it copies."""


@functools.cache
def preferred() -> bool:
    """Whether this processor computes products faster by oneDNN than by torch's `mm`."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        and _vendor() not in ("GenuineIntel", "")
    )


def _vendor() -> str:
    """Return the maker of the processor, as it calls itself; empty if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().rpartition(" ")[2]  # "AMD64 Family 25 Model 33 Stepping 2, AuthenticAMD"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def is_large(rows: int, terms: int, columns: int) -> bool:
    """Whether a product of matrices of these sizes has enough work for oneDNN."""
    return min(rows, terms, columns) >= LEAST_SIZE and rows * terms * columns >= LEAST_WORK


def is_copied(x: torch.Tensor, columns: int) -> bool:
    """Whether oneDNN would copy x, for a result of so few columns that this takes longer than it saves."""
    return columns < LEAST_COLUMNS and x.stride(-1) != 1


def large_matmul(columns: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the product of x[..., m, k] and y[k, columns], large matrices of float32 on a CPU."""
    if is_copied(x, columns):
        return torch.matmul(x, y)
    return _linear()(x, y.T, None, "none", [], "")


_linear = functools.cache(internals.LINEAR.get)
