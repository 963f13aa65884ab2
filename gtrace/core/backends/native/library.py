"""Shared libraries of loops and short programs: built by the C++ compiler alone, and called by pointer."""

from __future__ import annotations

import array
import ctypes
import functools
import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from gtrace.core.backends.executable import Executable
from gtrace.core.backends.inductor.failures import compiler_errors
from gtrace.core.backends.native.generator import DESCRIPTION, ENTRY, generate
from gtrace.core.backends.runs import UNCUT
from gtrace.core.backends.runs import run as current
from gtrace.core.backends.toolchain import compiler_path, require_compiler
from gtrace.core.base.config import config
from gtrace.core.base.devices import CPU
from gtrace.core.base.dtypes import DTYPES
from gtrace.core.base.errors import CacheError, TransientCompileError
from gtrace.core.base.process_groups import Guard, finish, start_group
from gtrace.core.base.torch_internals import openmp_functions
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.graph import Graph

SUFFIX = ".loop"
"""Of the files."""

FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-w",
    "-fno-tree-loop-distribution",  # takes a minute for bodies of many operations of float16
    "-fwrapv",  # integers wrap around, as torch's do
    "-fno-math-errno", "-fno-trapping-math",  # these change no result, and let loops with functions vectorize
    "-ffp-contract=off",  # each operation is rounded, as in the interpreter
)  # fmt: skip

DONE, INTERRUPTED, REFUSED = range(3)


class RefusedError(RuntimeError):
    """A loop met values that torch refuses, such as an integer divided by zero. The interpreter says which."""


def has_vector_math() -> bool:
    """Whether the C library has its functions for vectors, in libmvec."""
    name, version = platform.libc_ver()
    numbers = [int(n) for n in version.split(".") if n.isdigit()]
    return name == "glibc" and numbers >= [2, 35] and platform.machine() == "x86_64"


def prepare(graph: Graph, folder: Path) -> tuple[list[str], Path]:
    """Write the source of a loop, or of straight-line operations beside loops, into `folder`.

    Returns:
        The command that compiles it, and the shared library that it makes.
    """
    require_compiler(CPU)
    compiler = compiler_path()
    assert compiler is not None
    source, path = folder / "loop.cpp", folder / f"program{SUFFIX}"
    text = generate(graph).text
    with compiler_errors():
        source.write_text(text)
    include = f"-I{Path(__file__).parent}"
    define, link = (["-DVECTOR_MATH"], ["-lmvec"]) if has_vector_math() else ([], [])
    return [compiler, *FLAGS, *define, include, "-o", str(path), str(source), *link], path


def start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start the compiler, in `folder`, where its own files go too.

    Its search paths may name the working directory, and others may be able to write to that of the program.
    """
    return start_group(command, {**os.environ, "TMPDIR": str(folder)}, folder=folder)


def late(timeout: float) -> str:
    """Return why a compile failed that was ended after some seconds."""
    return f"the compiler took more than {timeout} s (GT_COMPILE_TIMEOUT)"


def check(command: Sequence[str], code: int, output: str) -> None:
    """Raise the error of a compiler that ended with this code."""
    with compiler_errors():
        if code < 0:
            raise subprocess.CalledProcessError(code, command[0])
        if code:
            ended = subprocess.CalledProcessError(code, command[0], output)
            raise RuntimeError(f"{command[0]} failed on a native loop: {output.strip()}") from ended


def output_of(process: subprocess.Popen[bytes], folder: Path | None = None) -> tuple[int, str]:
    """Wait for a compiler; return its exit code and what it says.

    Args:
        folder: removed if this process ends before the compiler.

    Raises:
        TransientCompileError: it takes longer than `compile_timeout`.
    """
    timeout = config.current.compile_timeout
    guard = Guard(process, folder)
    try:
        ended = finish(process, timeout)
    finally:
        guard.dismiss()
    if ended is None:
        raise TransientCompileError(late(timeout))
    return ended


def build(graph: Graph, folder: Path) -> Path:
    """Compile a loop, or straight-line operations beside loops, into `folder`; returns the shared library."""
    command, path = prepare(graph, folder)
    with compiler_errors():
        process = start(command, folder)
    check(command, *output_of(process, folder))
    return path


FENCE, POST = 4096, 0xA5
"""Bytes before and after the memory of a result while somebody asks, and what they hold."""


def fenced(shape: Sequence[int], strides: Sequence[int], *, dtype: torch.dtype) -> torch.Tensor:
    """Return memory as `torch.empty_strided` does, for dense strides, between two fences."""
    size = math.prod(shape) * dtype.itemsize
    whole = torch.full((2 * FENCE + size,), POST, dtype=torch.uint8)
    return whole[FENCE : FENCE + size].view(dtype).as_strided(shape, strides)


def is_broken(inside: torch.Tensor) -> bool:
    """Whether one of the fences around memory was written to."""
    size = inside.numel() * inside.element_size()
    whole = torch.empty(0, dtype=torch.uint8).set_(inside.untyped_storage())
    return bool((whole[:FENCE] != POST).any() or (whole[FENCE + size :] != POST).any())


_resumes = ctypes.c_int64()
"""When loops use threads again; see `threads.h`."""


@functools.lru_cache(maxsize=16)
def _services(most: int) -> ctypes.Array[ctypes.c_void_p]:
    """Return what loops call: to let Python handle signals, and to start and end threads. The last is `most_steps`."""
    functions = [
        ctypes.pythonapi.PyEval_SaveThread,
        ctypes.pythonapi.PyEval_RestoreThread,
        ctypes.pythonapi.PyErr_CheckSignals,
        *openmp_functions(),
    ]
    pointers = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    return (ctypes.c_void_p * 7)(*pointers, ctypes.addressof(_resumes), most)


def load(path: Path, origin: str) -> Executable:
    """Return an executable: it takes the operands and, of a loop, then the number of steps, as an integer tensor.

    Raises:
        CacheError: the file cannot be loaded.
        UnsupportedTorchError: torch has no threads that it could use.
    """
    services = _services(UNCUT)
    try:
        # a loop is a function of Python's own: it begins with the interpreter's lock, and an exception that it leaves
        # is raised. Other programs let other threads run, as torch's operations do.
        library: ctypes.CDLL = ctypes.PyDLL(str(path))
        description = json.loads(ctypes.c_char_p.in_dll(library, DESCRIPTION).value or b"")
        if not description["loop"]:
            library = ctypes.CDLL(str(path))
        function = getattr(library, ENTRY)
    except (OSError, AttributeError, ValueError, KeyError) as error:
        raise CacheError(f"cannot load {path}: {error}") from error
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    function.restype = ctypes.c_int64
    outputs = [
        (DTYPES[dtype], tuple(shape), contiguous_strides((1, *shape) if stacked else shape), stacked)
        for dtype, shape, stacked in description["outputs"]
    ]
    scratch, loop = description["scratch"], description["loop"]

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        operands = tensors[:-1] if loop else tensors
        length = int(tensors[-1]) if loop else 0
        given = [t if t.is_contiguous() else t.contiguous() for t in operands]
        empty = torch.empty_strided if current.strayed is None else fenced  # `torch.empty` takes longer
        results = [
            empty((length, *shape) if stacked else shape, strides, dtype=dtype)
            for dtype, shape, strides, stacked in outputs
        ]
        memory = empty((scratch,), (1,), dtype=torch.uint8)
        pointers = array.array("Q", [t.data_ptr() for t in (*given, *results, memory)])
        most = current.most_steps
        called = services if most == UNCUT else _services(most)
        if function(pointers.buffer_info()[0], length, called, torch.get_num_threads()) == REFUSED:
            raise RefusedError("a native loop met values that torch refuses")
        if empty is fenced:
            current.strayed = current.strayed or any(map(is_broken, (*results, memory)))
            return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) for x in results]
        return results

    return Executable(run, origin, CPU, memory=path.stat().st_size)
