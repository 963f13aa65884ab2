"""``gtrace doctor``: one block for a bug report, and what compiling needs, checked for real, with a fix if it fails."""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import torch
from rich.console import Console

from gtrace.commands import machine_facts
from gtrace.core.backends.aoti import load
from gtrace.core.backends.inductor.driver import compile_request
from gtrace.core.backends.interpreter.reference import reference
from gtrace.core.backends.request import CompileRequest
from gtrace.core.base.config import config
from gtrace.core.base.errors import CacheError, CompileError, UnsupportedTorchError
from gtrace.core.base.torch_internals import known, supported
from gtrace.core.base.units import bytes_text, duration_text, printable
from gtrace.core.ir.aval import aval
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.op import REGISTRY
from gtrace.core.runtime.agreement import disagreement
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.worker.client import WorkerClient
from gtrace.core.runtime.worker.lane import Outcome
from gtrace.version import __version__


@attrs.frozen
class Finding:
    """A finding and, if it is bad, advice.

    Attributes:
        good: None for a fact that is neither good nor bad.
    """

    name: str
    found: str
    fix: str = ""
    good: bool | None = True


_MARKS = {True: "[green]ok  [/]", False: "[red]FAIL[/]", None: "    "}


def doctor() -> int:
    """Print every finding; return 1 if one is bad, else 0. An exception of a section is a finding too."""
    console = Console(highlight=False, soft_wrap=True)
    bad = 0
    for section in _SECTIONS:
        for finding in _findings(section):
            console.print(f"{_MARKS[finding.good]} {finding.name:<10} ", end="")
            text = printable(finding.found).encode(console.encoding, "backslashreplace").decode(console.encoding)
            console.print(text, markup=False)
            if finding.good is False:
                console.print(printable(f"     fix: {finding.fix}"), markup=False)
                bad += 1
    return int(bad > 0)


def _findings(section: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a section finds; its warnings are said by the findings."""
    name = section.__name__.strip("_")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from section()
    except Exception as error:  # noqa: BLE001 - a broken machine is what this command is for
        yield Finding(name, f"this cannot be found out: {type(error).__name__}: {error}", "Report this.", False)


def _facts(name: str, lines: Callable[[], Iterator[str]]) -> Callable[[], Iterator[Finding]]:
    """Return a section of facts."""

    def section() -> Iterator[Finding]:
        for line in lines():
            yield Finding(name, line, good=None)

    section.__name__ = name
    return section


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
    code, about = machine_facts.first_line(path)
    yield Finding("compiler", f"{path}: {about}", fix, code == 0)


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


def _reports() -> Iterator[Finding]:
    for path in [] if artifacts.store is None else artifacts.store.reports():
        about = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        yield Finding("report", f"{path}: {about} Send it; `gtrace bisect` with it finds the mechanism.", good=None)


def _gpu() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("gpu", "none that torch can use", good=None)
        return
    for index in range(torch.cuda.device_count()):
        name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        yield Finding("gpu", f"cuda:{index}: {name}, sm_{capability[0]}{capability[1]}")
        yield _compiled_for(torch.device("cuda", index))


_FIX = "GT_DEBUG_COMPILE=2 shows the compiler's output; programs are interpreted until this works."


def _test_program(device: torch.device) -> tuple[Graph, torch.Tensor]:
    """Return a program, and an input of it."""
    vector = aval((1000,), torch.float32, device)
    graph = Graph(
        (0,), (vector,),
        (Node(REGISTRY["sin"].instr((), (vector,)), (0,), 1), Node(REGISTRY["square"].instr((), (vector,)), (1,), 2)),
        (2,),
    )  # fmt: skip
    return graph, torch.linspace(-3, 3, 1000, device=device)


def _verdict(title: str, graph: Graph, x: torch.Tensor, got: torch.Tensor, seconds: float) -> Finding:
    right = not disagreement(graph, [x], reference(graph)([x]), [got])
    result = "the right result" if right else "a wrong result"
    return Finding(title, f"a test program compiled in {duration_text(seconds)} and gave {result}", _FIX, right)


def _compiled_for(device: torch.device) -> Finding:
    """Compile and run a test program for a GPU."""
    graph, x = _test_program(device)
    start = time.perf_counter()
    try:
        (got,) = compile_request(CompileRequest(graph, ((1,),))).executable.run([x])
    except CompileError as error:
        return Finding(str(device), f"a test program failed to compile: {error}", _FIX, False)
    return _verdict(str(device), graph, x, got, time.perf_counter() - start)


def _compile() -> Iterator[Finding]:
    graph, x = _test_program(torch.device("cpu"))
    worker = WorkerClient()
    start = time.perf_counter()
    results: list[Finding] = []

    def received(outcome: Outcome) -> None:
        if outcome.path is None:
            results.append(Finding("compile", f"a test program failed to compile: {outcome.error}", _FIX, False))
            return
        try:
            (got,) = load(outcome.path, torch.device("cpu"), "worker").run([x])
        except (CacheError, UnsupportedTorchError) as error:
            results.append(Finding("compile", str(error), _FIX, False))
            return
        results.append(_verdict("compile", graph, x, got, time.perf_counter() - start))

    worker.submit(CompileRequest(graph, ((1,),)), received, config.compile_timeout)
    finished = worker.wait(config.compile_timeout + 60)
    worker.stop()
    yield results[0] if finished and results else Finding("compile", "the worker did not answer", _FIX, False)


_SECTIONS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _facts("versions", machine_facts.versions),
    _torch,
    _facts("compilers", machine_facts.compilers),
    _compiler,
    _headers,
    _facts("processor", machine_facts.processor),
    _gpu,
    _facts("cache", machine_facts.cache),
    _store,
    _reports,
    _facts("settings", machine_facts.settings),
    _facts("variables", machine_facts.variables),
    _facts("off", machine_facts.switched_off),
    _compile,
)
