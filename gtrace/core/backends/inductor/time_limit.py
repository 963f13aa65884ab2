"""A limit for the C++ compilers that Inductor starts in this process: it waits for them without one."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator

from gtrace.core.backends.native.library import output_of
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.process_groups import start_group


@contextlib.contextmanager
def compilers_limited() -> Iterator[None]:
    """Within the block, end a C++ compiler that takes this thread's Inductor longer than `compile_timeout`."""
    if not internals.LIMITED_COMPILERS.available():
        yield
        return
    original, thread = internals.RUN_COMPILER.get(), threading.get_ident()
    builder = sys.modules[internals.RUN_COMPILER.module]

    def run(cmd_line: str, cwd: str) -> None:
        if threading.get_ident() != thread:  # others may use Inductor meanwhile
            original(cmd_line, cwd)
            return
        command = shlex.split(cmd_line)
        code, output = output_of(start_group(command, folder=cwd))
        if code:
            ended = subprocess.CalledProcessError(code, command, output)
            raise internals.CPP_COMPILE_ERROR.get()(command, output) from ended

    vars(builder)[internals.RUN_COMPILER.name] = run
    try:
        yield
    finally:
        vars(builder)[internals.RUN_COMPILER.name] = original
