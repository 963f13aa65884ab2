"""What all compiled code depends on besides its program: versions, the C++ compiler, the machine."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
from pathlib import Path

import torch

from gtrace.core.backends.interpreter.matmul import libraries
from gtrace.version import __version__

_PACKAGE = Path(__file__).resolve().parents[2]

_OBSERVERS = frozenset({"cli.py", "__main__.py", "hotpath.py", "commands", "observe", "__pycache__"})
"""Files that cannot change compiled code. All others count, so that a new module is never left out by mistake."""


@functools.cache
def toolchain() -> dict[str, str]:
    """Return what all compiled code depends on besides its program, by name."""
    device = "none"
    if torch.cuda.is_available():
        device = "sm_{}{}".format(*torch.cuda.get_device_capability())
    return {
        "gtrace": f"{__version__} {_source_digest()}",
        "torch": str(torch.__version__),
        "compiler": compiler(),
        "machine": f"{platform.system()} {platform.machine()}",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "products": libraries(),
        "gpu": device,
    }


def compiler_path() -> str | None:
    """Return the path of the C++ compiler; None without one."""
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")


def compiler() -> str:
    """Return the path of the C++ compiler with the size and date of the file; "none" without a compiler."""
    path = compiler_path()
    if path is None:
        return "none"
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real} {status.st_size} {int(status.st_mtime)}"


def _source_digest() -> str:
    """Return a digest of the modules that decide what operations compile to: a changed gtrace compiles anew."""
    hashed = hashlib.blake2b(digest_size=6)
    for folder, inner, files in os.walk(_PACKAGE):
        inner[:] = sorted(set(inner) - _OBSERVERS)
        for name in sorted(set(files) - _OBSERVERS):
            if name.endswith((".py", ".h")):
                with open(os.path.join(folder, name), "rb") as file:
                    hashed.update(file.read())
    return hashed.hexdigest()
