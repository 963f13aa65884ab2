"""Which vector instructions Inductor may use."""

from __future__ import annotations

import functools
import os

from gtrace.core.backends.toolchain import compiler_path
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.config import config
from gtrace.core.base.process_groups import finish, start_group


@functools.cache
def vector_instructions_known() -> bool | None:
    """Return whether the C++ compiler knows the instructions that this processor has; None: Inductor must find out.

    Inductor compiles a trial program with torch's headers for each set of instructions, and loads it in a process of
    its own. That takes 11 seconds of processor time on a machine that has not compiled before, and 1.4 in each later
    process. torch's own kernels use the processor's instructions without such a trial. So the compiler is only asked
    whether it takes the flags.
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
    ended = finish(start_group(command), config.current.compile_timeout)
    return True if ended is not None and ended[0] == 0 else None
