"""Compiling ahead of time: from a request to a file of machine code, and from that file to an executable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gtrace.core.backends import aoti
from gtrace.core.backends.executable import Executable
from gtrace.core.backends.inductor import driver
from gtrace.core.backends.native import library
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.whole_libraries import check_library


def compile_artifact(request: CompileRequest, folder: Path) -> tuple[Path, tuple[Any, ...]]:
    """Compile a request into `folder`, natively or by Inductor; return the file, and guards on open sizes."""
    if request.native:
        return library.build(request.graph, folder), ()
    return driver.compile_artifact(request, folder)


def load(path: Path, device: torch.device, origin: str) -> Executable:
    """Return an executable for a file that `compile_artifact` made; raise a CacheError if it cannot be loaded."""
    check_library(path)
    return library.load(path, origin) if path.suffix == library.SUFFIX else aoti.load(path, device, origin)
