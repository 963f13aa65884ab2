"""``gtrace doctor``: what compiling needs, checked for real, with a fix for whatever fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import torch
from rich.console import Console

from gtrace.core.backends.aoti import load
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.interpreter.matmul import libraries
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.toolchain import missing_for_packages
from gtrace.core.base.config import config
from gtrace.core.base.errors import CacheError, UnsupportedTorchError
from gtrace.core.base.torch_internals import known, supported
from gtrace.core.base.units import bytes_text, duration_text
from gtrace.core.ir.aval import aval
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.op import REGISTRY
from gtrace.core.runtime.audit import disagreement
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.worker.client import WorkerClient
from gtrace.core.runtime.worker.lane import Outcome
from gtrace.version import __version__


@attrs.frozen
class Finding:
    """One check: what was found and, if that is not good, what to do."""

    name: str
    found: str
    fix: str = ""
    good: bool = True


def doctor() -> int:
    """Print every finding; returns 1 if one is bad, else 0."""
    console = Console(highlight=False, soft_wrap=True)
    bad = 0
    for check in (_torch, _compiler, _headers, _store, _processor, _gpu, _compile):
        for finding in check():
            mark = "[green]ok  [/]" if finding.good else "[red]FAIL[/]"
            console.print(f"{mark} {finding.name:<10} ", end="")
            console.print(finding.found, markup=False)
            if not finding.good:
                console.print(f"     fix: {finding.fix}", markup=False)
                bad += 1
    return int(bad > 0)


def _torch() -> Iterator[Finding]:
    found = f"torch {torch.__version__} (supported: {supported()}), gtrace {__version__}"
    yield Finding("torch", found, f"Install one of torch {supported()}.", known(torch.__version__))


def _compiler() -> Iterator[Finding]:
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name)
    fix = "Install g++ (Debian: apt install g++), or set CXX to the path of a C++ compiler."
    if path is None:
        yield Finding("compiler", f"there is no {name}", fix, False)
        return
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    first = (done.stdout or done.stderr).strip().splitlines()
    yield Finding("compiler", f"{path}: {first[0] if first else 'it says nothing'}", fix, done.returncode == 0)


def _headers() -> Iterator[Finding]:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    fix = "Install Python's header files (Debian: apt install python3-dev). Ahead-of-time compiling does without."
    yield Finding("headers", str(header) if header.exists() else f"no {header}", fix, header.exists())


def _store() -> Iterator[Finding]:
    store = artifacts.store
    if store is None:
        why = "GT_BACKGROUND is 0" if not config.background else "GT_CACHE_SIZE is 0"
        yield Finding("store", f"none: {why}. Every run compiles anew.")
        return
    try:
        count, used = store.check()
    except (OSError, CacheError) as error:
        fix = "Set GT_CACHE_DIR to a folder of yours that nobody else can write (chmod 700)."
        yield Finding("store", str(error), fix, False)
        return
    yield Finding("store", f"{store.folder}: {count} artifacts, {bytes_text(used)} of {bytes_text(store.limit)}")


def _processor() -> Iterator[Finding]:
    found = f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}, large products by {libraries()}"
    yield Finding("processor", found)


def _gpu() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("gpu", "none that torch can use")
        return
    for index in range(torch.cuda.device_count()):
        name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        yield Finding("gpu", f"cuda:{index}: {name}, sm_{capability[0]}{capability[1]}")
    lacking = missing_for_packages()
    found = f"programs for the GPU compile in their process: this machine lacks {lacking}"
    fix = "Install CUDA's toolkit, or set CUDA_HOME. Compiled programs are then kept for later processes."
    yield Finding("toolkit", found if lacking else "found", fix, not lacking)


def _compile() -> Iterator[Finding]:
    vector = aval((1000,), torch.float32)
    graph = Graph(
        (0,), (vector,),
        (Node(REGISTRY["sin"].instr((), (vector,)), (0,), 1), Node(REGISTRY["square"].instr((), (vector,)), (1,), 2)),
        (2,),
    )  # fmt: skip
    x = torch.linspace(-3, 3, 1000)
    worker = WorkerClient()
    start = time.perf_counter()
    results: list[Finding] = []
    fix = "GT_DEBUG_COMPILE=2 shows the compiler's output; programs are interpreted until this works."

    def received(outcome: Outcome) -> None:
        if outcome.path is None:
            results.append(Finding("compile", f"a test program failed to compile: {outcome.error}", fix, False))
            return
        try:
            (got,) = load(outcome.path, torch.device("cpu"), "worker").run([x])
        except (CacheError, UnsupportedTorchError) as error:
            results.append(Finding("compile", str(error), fix, False))
            return
        right = not disagreement(interpreter(graph)([x]), [got])
        text = f"a test program compiled in {duration_text(time.perf_counter() - start)} and gave "
        results.append(Finding("compile", text + ("the right result" if right else "a wrong result"), fix, right))

    worker.submit(CompileRequest(graph, ((1,),)), received, config.compile_timeout)
    finished = worker.wait(config.compile_timeout + 60)
    worker.stop()
    yield results[0] if finished and results else Finding("compile", "the worker did not answer", fix, False)
