"""Which vector instructions Inductor may use."""

from __future__ import annotations

import functools
import os
import subprocess

from gtrace.core.backends.toolchain import compiler_path
from gtrace.core.base import torch_internals as internals


@functools.cache
def vector_instructions_known() -> bool | None:
    """Return what Inductor need not find out: True if the C++ compiler knows the instructions that this processor has.

    Inductor finds that out by compiling a program with torch's headers, for each set of instructions that torch has
    code for, and by loading it in a process of its own: 11 seconds of processor time on a machine that has not compiled
    before, and 1.4 in each process after that. torch's own kernels use the processor's instructions without such a
    trial, so what is left to ask is whether the compiler takes their flags.
    """
    if not internals.VECTOR_INSTRUCTIONS.available():
        return None
    given = internals.INDUCTOR_CPP.get().vec_isa_ok
    if given is not None:
        return bool(given)
    names, path = internals.X86_ISAS.get()(), compiler_path()
    flags = [isa.build_arch_flags() for isa in internals.VEC_ISAS.get() if set(str(isa).split()) <= set(names)]
    if not flags or path is None:
        return None
    command = [path, *" ".join(flags).split(), "-fsyntax-only", "-x", "c++", os.devnull]
    return True if subprocess.run(command, capture_output=True).returncode == 0 else None
