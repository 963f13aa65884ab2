"""Checks of the processor's vector instructions, remembered on the machine.

Before torch compiles anything in a process, it builds a library for each set of instructions and loads it in a process
of its own, which imports torch: seconds, for an answer that only another compiler changes. Which instructions the
processor has is looked up each time all the same.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import torch

from gtrace import torch_internals as internals
from gtrace.compile.inductor.launcher import headers_folder, put
from gtrace.compile.toolchain import compiler


@functools.cache
def remember_isa_checks() -> None:
    """Let torch's check that code for some instructions can be built and loaded be made once on a machine."""
    isa = internals.VEC_ISA.get()
    original = isa.check_build

    def check_build(self: Any, code: str) -> bool:
        known = code, self.build_arch_flags(), compiler(), torch.__version__
        note = headers_folder() / f"gtrace-isa-{hashlib.blake2b(repr(known).encode(), digest_size=12).hexdigest()}"
        if note.exists():
            return True
        works = bool(original(self, code))
        if works:
            put(note, lambda file: file.touch())
        return works

    isa.check_build = check_build
