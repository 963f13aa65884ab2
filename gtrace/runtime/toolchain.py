"""What every compiled program depends on, apart from itself: versions, the C++ compiler, the machine."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
from pathlib import Path

import torch

from gtrace.version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]

_SOURCES = ("ops", "control", "random", "ir/op.py", "runtime/fx.py", "runtime/inductor.py", "runtime/pieces.py")
"""Where it is decided what an operation compiles to."""


@functools.cache
def toolchain() -> dict[str, str]:
    """Return what every compiled program depends on, apart from itself."""
    device = "none"
    if torch.cuda.is_available():
        device = "sm_{}{}".format(*torch.cuda.get_device_capability())
    return {
        "gtrace": f"{__version__} {_source_digest()}",
        "torch": str(torch.__version__),
        "compiler": compiler(),
        "machine": f"{platform.system()} {platform.machine()}",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "gpu": device,
    }


def compiler() -> str:
    """Return which C++ compiler there is: its path, and the size and date of the file; "none" without one."""
    path = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    if path is None:
        return "none"
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real} {status.st_size} {int(status.st_mtime)}"


def _source_digest() -> str:
    """Return a digest of the code that decides what operations compile to: a changed gtrace compiles anew."""
    hashed = hashlib.blake2b(digest_size=6)
    for source in _SOURCES:
        path = _PACKAGE / source
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            hashed.update(file.read_bytes())
    return hashed.hexdigest()
