"""The machine that a benchmark ran on: what it is, and whether anything else ran on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch

BUSY_SHARE = 0.1
"""A machine is busy if other programs take more than this share of its cores."""

SAMPLE_SECONDS, QUICK_SAMPLE_SECONDS = 0.5, 0.05
"""For so long the machine is looked at before a run."""

LIBRARIES = ("torch", "numpy", "jax", "jaxlib", "transformers", "onnxruntime")


def describe() -> dict[str, str | int]:
    """Return the processor, its cores, the memory, the GPU if torch has one, and the system."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text(encoding="utf-8").splitlines())
        model = next((value.strip() for key, _, value in lines if key.strip() == "model name"), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {"processor": model, "cores": cores, "memory, MiB": memory // 2**20, "gpu": gpu, "system": platform.system()}


def versions() -> dict[str, str]:
    """Return the versions of Python, gtrace and the libraries that are installed."""
    found = {name: importlib.metadata.version(name) for name in LIBRARIES if installed(name)}
    return {"python": platform.python_version(), **found}


def commit() -> str:
    """Return the commit of this checkout, with "-dirty" for a changed one; "unknown" outside of a checkout."""
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def installed(name: str) -> bool:
    """Whether a library can be imported."""
    return importlib.util.find_spec(name) is not None


@attrs.frozen
class Clock:
    """Seconds at a moment: of the wall, of all cores being busy, and of this process and those it started."""

    wall: float
    busy: float
    own: float


@attrs.frozen
class Load:
    """How many cores other programs kept busy, before a run and during it; None where the system does not tell."""

    before: float | None
    during: float | None
    cores: int

    @property
    def busy(self) -> bool:
        """Whether other programs ran beside the benchmark."""
        limit = BUSY_SHARE * self.cores
        return any(value is not None and value > limit for value in (self.before, self.during))

    def __str__(self) -> str:
        if self.before is None or self.during is None:
            return "this system does not tell how busy it was"
        return (
            f"other programs kept {self.before:.2f} cores busy before, {self.during:.2f} of {self.cores} during the run"
        )


def clock() -> Clock | None:
    """Read the clocks; None on a system without /proc."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    fields = stat.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq, steal = (int(value) for value in fields[:8])
    busy = user + nice + system + irq + softirq + steal
    return Clock(time.perf_counter(), busy / ticks, own_seconds(processes(), os.getpid()) / ticks)


@attrs.frozen
class Process:
    """A line of /proc: the parent, and the clock ticks of the process and of its children that have ended."""

    parent: int
    ticks: int


def processes() -> dict[int, Process]:
    """Return the processes of this machine."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        fields = text.rpartition(")")[2].split()  # behind the name, which may contain anything
        found[int(folder.name)] = Process(int(fields[1]), sum(int(value) for value in fields[11:15]))
    return found


def own_seconds(table: Mapping[int, Process], root: int) -> int:
    """Return the clock ticks of a process and of all that it started."""
    total, family = 0, [root]
    while family:
        one = family.pop()
        if one in table:
            total += table[one].ticks
            family += [number for number, process in table.items() if process.parent == one]
    return total


def others(start: Clock | None, end: Clock | None) -> float | None:
    """Return how many cores other programs kept busy between two moments."""
    if start is None or end is None or end.wall <= start.wall:
        return None
    return max(0.0, ((end.busy - start.busy) - (end.own - start.own)) / (end.wall - start.wall))


class Watch:
    """Looks at the machine's load: for a moment now, and from now to `load()`."""

    def __init__(self, quick: bool = False) -> None:
        self.machine = describe()  # before a program limits itself to some cores
        first = clock()
        time.sleep(QUICK_SAMPLE_SECONDS if quick else SAMPLE_SECONDS)
        self._start = clock()
        self._before = others(first, self._start)

    def load(self) -> Load:
        """Return the load so far."""
        return Load(self._before, others(self._start, clock()), int(self.machine["cores"]))
