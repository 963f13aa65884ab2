"""The facts that ``gtrace doctor`` prints: versions, compilers, folders, settings, disabled features.

Each function yields lines. Only environment variables of gtrace, torch and its libraries are shown. Values are hidden
if the name suggests a secret.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch

from gtrace.core.backends.interpreter.matmul import libraries
from gtrace.core.backends.toolchain import instruction_set, require_compiler
from gtrace.core.base import torch_internals
from gtrace.core.base.config import Config, config
from gtrace.core.base.devices import CPU
from gtrace.core.base.errors import UnableError
from gtrace.core.base.private_folders import cache_folder
from gtrace.core.base.process_groups import finish, start_group
from gtrace.core.base.units import bytes_text
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.cache.folder import MARKER, own_files, read_marker, refusal
from gtrace.core.runtime.worker.client import find_python
from gtrace.version import __version__

LIBRARIES = ("torch", "numpy", "optree", "attrs", "pyyaml", "safetensors", "filelock", "platformdirs", "rich")

COMPILERS = ("g++", "clang++", "gcc", "nvcc")

ASK_SECONDS = 20.0
"""How long a compiler may take to tell its version."""

_SHOWN = re.compile(r"GT_|TORCH|OMP_|MKL_|KMP_|CUDA_VISIBLE_DEVICES$")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.IGNORECASE)


def versions() -> Iterator[str]:
    """Yield the versions of gtrace, Python, the system and the libraries."""
    yield f"gtrace {__version__} in {Path(__file__).resolve().parents[1]}"
    build = "free-threaded" if not getattr(sys, "_is_gil_enabled", lambda: True)() else platform.python_implementation()
    yield f"Python {platform.python_version()} ({build}) at {sys.executable or 'no path'}"
    libc = " ".join(platform.libc_ver())
    yield f"{platform.platform()}, {platform.machine()}" + (f", {libc}" if libc.strip() else "")
    yield ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "is missing"


def compilers() -> Iterator[str]:
    """Yield the path and version of each compiler that there is, and the names of the others."""
    named = os.environ.get("CXX")
    missing = []
    for name in dict.fromkeys(([named] if named else []) + list(COMPILERS)):
        path = shutil.which(name)
        if path is None:
            missing.append(name)
        else:
            yield f"{path}: {first_line(path)[1]}"
    if missing:
        yield f"missing: {', '.join(missing)}"


def first_line(compiler: str) -> tuple[int | None, str]:
    """Return the exit code of a compiler's ``--version``, and its line that tells the version, or why there is none."""
    try:
        ended = finish(start_group([compiler, "--version"]), ASK_SECONDS)
    except OSError as error:
        return None, f"it cannot be asked: {error}"
    if ended is None:
        return None, f"it cannot be asked: no answer in {ASK_SECONDS} s"
    lines = ended[1].strip().splitlines()
    return ended[0], next((line for line in lines if "release" in line), lines[0]) if lines else "it says nothing"


def processor() -> Iterator[str]:
    """Yield what the processor is, its instruction sets, and who uses how many threads."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield f"{os.cpu_count()} cores, {usable} of them usable; {torch.backends.cpu.get_cpu_capability()}"
    yield f"torch's threads: {torch.get_num_threads()}, between operations {torch.get_num_interop_threads()}"
    yield f"large products by {libraries()}"
    yield f"instruction sets: {instruction_set()}"


def cache() -> Iterator[str]:
    """Yield the folder of compiled programs with its owner, mode, size and marker, and the user's cache folder."""
    store = artifacts.store
    if store is None:
        yield "no store"
    else:
        yield f"store {_folder(store.folder)}"
        if store.folder.is_dir():
            files = own_files(store.folder)
            size = bytes_text(sum(os.lstat(file.path).st_size for file in files))
            marker = read_marker(store.folder)
            said = f"none ({MARKER})" if marker is None else f"format {marker.format}, of gtrace {marker.gtrace}"
            yield f"{len(files)} files of gtrace, {size}; marker: {said}"
            yield f"refused: {refusal(store.folder) or 'no'}"
    yield f"user's cache {_folder(cache_folder())}"


def _folder(path: Path) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return f"{path}: {stat.filemode(status.st_mode)}, owner {_owner(path, status.st_uid)}, {_user()}"


def _owner(path: Path, number: int) -> str:
    try:
        return f"{path.owner()} ({number})"
    except (KeyError, NotImplementedError, ModuleNotFoundError):  # no entry in passwd, or a system without owners
        return str(number)


def _user() -> str:
    return f"this process is of {os.geteuid()}" if hasattr(os, "geteuid") else "this system has no user numbers"


def settings() -> Iterator[str]:
    """Yield the settings that differ from their defaults."""
    changed = [
        f"{field.name}={getattr(config.current, field.name)!r}"
        for field in attrs.fields(Config)
        if getattr(config.current, field.name) != field.default
    ]
    yield ", ".join(changed) or "all as by default"


def variables() -> Iterator[str]:
    """Yield the environment variables of gtrace, torch and its libraries."""
    own = {field.metadata["variable"] for field in attrs.fields(Config)}
    shown = sorted(name for name in os.environ if _SHOWN.match(name))
    for name in shown:
        if name.startswith("GT_") and name not in own:
            yield f"{name} (no setting of gtrace)"
        else:
            yield f"{name}={'(hidden)' if _SECRET.search(name.removeprefix('GT_DEBUG_')) else os.environ[name]}"
    if not shown:
        yield "none"


def switched_off() -> Iterator[str]:
    """Yield the features that are off in this process, and why."""
    count = 0
    for name, feature in vars(torch_internals).items():
        if isinstance(feature, torch_internals.Feature) and not feature.available():
            count += 1
            yield f"{name.lower().replace('_', ' ')}, as torch lacks a private name: {feature.without}"
    reasons = [_why_uncompiled()]
    if not artifacts.store:
        reasons.append("programs are not kept: GT_CACHE_SIZE or GT_BACKGROUND is 0")
    if not torch_internals.known(torch.__version__):
        reasons.append(f"torch {torch.__version__} was not tried: expected {torch_internals.supported()}")
    if find_python() is None:
        reasons.append("the compile worker: there is no Python to start it with")
    for reason in filter(None, reasons):
        count += 1
        yield reason
    if not count:
        yield "nothing"


def _why_uncompiled() -> str:
    try:
        require_compiler(CPU)
    except UnableError as error:
        return f"compiling for the CPU: {error}"
    return ""
