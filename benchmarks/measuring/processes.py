"""Runs in processes of their own, with caches of compiled code in a folder that is given."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import gtrace
from measuring.results import BenchmarkError


def environment() -> dict[str, str]:
    """Return the variables for a process that is timed: Python keeps bytecode, as for what is installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def child(file: str, arguments: Sequence[object], folder: str | Path, **variables: str) -> Any:
    """Run ``file --child ARGUMENTS`` in its own process; return its last line of JSON.

    Args:
        folder: where gtrace, Inductor and JAX keep what they compile.
        variables: further ones of the environment.

    Raises:
        BenchmarkError: it failed.
    """
    return _run([file, "--child", *map(str, arguments)], folder, variables)


def children(file: str, arguments: Sequence[object], folder: str | Path, count: int) -> Any:
    """Do as `child` does, in so many processes that work together, of which one prints."""
    launcher = ["-m", "gtrace", "run", "--quiet", "--workers", str(count)]
    return _run([*launcher, file, "--child", *map(str, arguments)], folder, {})


def start(file: str, arguments: Sequence[object], folder: str | Path, **variables: str) -> subprocess.Popen[str]:
    """Start a process as `child` does, which reads and prints lines as long as its parent asks."""
    command = [sys.executable, "-W", "ignore", file, "--child", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=_variables(folder) | variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )  # fmt: skip


def whole(command: Sequence[str], folder: str | Path) -> tuple[float, float, str]:
    """Run a command; return its seconds, the processor's seconds of it and its children, and what it printed.

    Args:
        folder: where gtrace, Inductor and JAX keep what they compile.

    Raises:
        BenchmarkError: it failed.
    """
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=_variables(folder), capture_output=True, text=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} failed:\n{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def _run(arguments: Sequence[str], folder: str | Path, variables: Mapping[str, str]) -> Any:
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, env=_variables(folder) | dict(variables), capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _variables(folder: str | Path) -> dict[str, str]:
    root = str(Path(gtrace.__file__).resolve().parent.parent)
    caches = {
        "GT_CACHE_DIR": f"{folder}/gtrace", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "GT_COMPILE_AFTER": "0",  # a compile that outlives one process would slow the next one down
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
    }  # fmt: skip
    return environment() | caches


def age() -> float:
    """Return the seconds since this process began, to a hundredth; they include what it has imported."""
    began = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


def held(name: str = "VmRSS") -> int:
    """Return the bytes of memory that this process holds, or held at most (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def processor_beside() -> float:
    """Return the processor's seconds of the processes that this one and theirs began: those that ended, and others."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
            parents[int(path.parent.name)] = int(fields[1])
    family = {os.getpid()}
    while found := {one for one, parent in parents.items() if parent in family} - family:
        family |= found
    alive = sum(ticks[one] for one in family - {os.getpid()})
    return ended.ru_utime + ended.ru_stime + alive / os.sysconf("SC_CLK_TCK")


class PeakMemory:
    """The most memory that this process held since a moment, beyond what it held then: of the GPU, if torch has one."""

    def __init__(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self._start = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak becomes what is held now
            self._start = held("VmHWM")

    def bytes(self) -> int:
        """Return the bytes so far."""
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else held("VmHWM")
        return peak - self._start
