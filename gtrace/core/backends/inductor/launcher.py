"""Shared libraries of compiled programs for the CPU, built in one short run of the C++ compiler.

Inductor's ahead-of-time code has two parts. A function calls kernels and torch's C interface. A model owns the
function, with weights, specifications, locks and a pool of instances. The model is the same for every program, and
gtrace's programs own nothing. Yet the compiler spends most of its time on it: 6 of 8 seconds for a small network's
step. So only the function is taken, behind the few entry points by which torch's runner loads and runs a library.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import filelock
import torch

from gtrace.core.backends.inductor.failures import NO_INTERFACE
from gtrace.core.backends.inductor.folders import headers_folder
from gtrace.core.backends.native.library import output_of
from gtrace.core.backends.toolchain import compiler
from gtrace.core.backends.whole_libraries import check_library
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import CacheError
from gtrace.core.base.mechanisms import SHORT_BUILD
from gtrace.core.base.process_groups import start_group

_DECLARATIONS = re.compile(r'^\}\s*// extern "C"\n(.*?)^namespace torch::aot_inductor \{', re.DOTALL | re.MULTILINE)
_FUNCTION = re.compile(
    r"^void AOTInductorModel::run_impl\(.*?^\} // AOTInductorModel::run_impl$", re.DOTALL | re.MULTILINE
)
_CHECKS = re.compile(r"^ *(__check_inputs_outputs\(.*|\[\[maybe_unused\]\] auto& kernels = .*)\n", re.MULTILINE)
_OWNED = re.compile(r"\b(constants_|kernels|aoti_torch_proxy_executor_call_function|\w*_info_)\b")

HEADER = Path(__file__).with_name("program.h")
"""What every program includes; it is precompiled once on a machine."""

_NOTES = 2
"""Of the notes about precompiled headers: the path, then the size."""

_LOCK = "gtrace-lock"
"""Of those who precompile, in the folder of headers."""

_UNUSED = (
    "ContainerCreateWithExternalConstants", "ContainerDidCallLoadConstants", "ContainerExtractConstantsMap",
    "ContainerFreeInactiveConstantBuffer", "ContainerGetCallSpec",
    "ContainerGetConstantDtype", "ContainerGetConstantName", "ContainerGetConstantOriginalFQN",
    "ContainerGetConstantsBlobSize", "ContainerRunConstantFolding", "ContainerRunSingleThreaded",
    "ContainerSetUseStreamAffinity", "ContainerSwapConstantBuffer", "ContainerUpdateConstantBuffer",
    "ContainerUpdateConstantBufferFromCpu",
    "ContainerUpdateInactiveConstantBuffer", "ContainerUpdateUserManagedConstantBuffer", "UpdateConstantsFromBlob",
)  # fmt: skip
"""Entry points about weights, which torch's runner looks up and never calls for a program without weights."""

# optimizing the calls takes twice as long as everything else in a large program, and gains nothing
_SOURCE = """{kernels}
#pragma GCC push_options
#pragma GCC optimize ("O1")
{launcher}
#pragma GCC pop_options
"""

_PROGRAM = """
namespace torch::aot_inductor {
using DeviceStreamType = void*;
struct AOTInductorModel {
  int32_t device_idx_ = -1;
  void run_impl(AtenTensorHandle*, AtenTensorHandle*, DeviceStreamType, AOTIProxyExecutorHandle);
};
"""

_ENTRIES = """
}

static torch::aot_inductor::AOTInductorModel program;
static thread_local std::string last_error;

extern "C" {
int32_t AOTInductorModelContainerCreateWithDevice(void** container, size_t, const char*, const char*) {
  *container = &program;
  return 0;
}
int32_t AOTInductorModelContainerDelete(void*) { return 0; }
int32_t AOTInductorModelContainerGetNumOutputs(void*, size_t* count) {
  *count = %d;
  return 0;
}
int32_t AOTInductorModelContainerGetNumConstants(void*, size_t* count) {
  *count = 0;
  return 0;
}
int32_t AOTInductorGetLastError(const char** text) {
  *text = last_error.c_str();
  return 0;
}
int32_t AOTInductorModelContainerRun(
    void*, AtenTensorHandle* inputs, size_t, AtenTensorHandle* outputs, size_t, void*, AOTIProxyExecutorHandle) {
  const bool grad = aoti_torch_grad_mode_is_enabled();
  aoti_torch_grad_mode_set_enabled(false);
  int32_t failed = 0;
  try {
    program.run_impl(inputs, outputs, nullptr, nullptr);
  } catch (const std::exception& error) {
    last_error = error.what();
    failed = 1;
  }
  aoti_torch_grad_mode_set_enabled(grad);
  return failed;
}
%s
}
"""


def launcher(wrapper: str, outputs: int, operators: Iterable[str]) -> str | None:
    """Return the C++ of a program without its model; None if it needs that.

    Args:
        wrapper: the C++ that Inductor generated beside the kernels.
        outputs: how many tensors it returns.
        operators: the C functions of operators that it calls.
    """
    declarations, function = _DECLARATIONS.search(wrapper), _FUNCTION.search(wrapper)
    if declarations is None or function is None:
        return None
    body = _CHECKS.sub("", function.group())
    if _OWNED.search(body):
        return None
    unused = "\n".join(f"int32_t AOTInductorModel{name}() {{ return 1; }}" for name in _UNUSED)
    own = "\n".join(f"extern {code}" for code in operators)
    called = f'extern "C" {{\n{own}\n}}\n' if own else ""
    return "".join((declarations.group(1), called, _PROGRAM, body, _ENTRIES % (outputs, unused)))


def _precompiled_header(command: str, options: dict[str, Any]) -> str:
    """Return the path of what every program includes, precompiled for a compiler's command.

    torch finds it by its preprocessed text, which takes a second. So the path is noted under all that the text follows
    from, as far as a version, a size and a date tell.
    """
    header = HEADER.read_text()
    includes = re.findall("^#include <(torch/.*)>$", header, re.MULTILINE)
    stats = [os.stat(Path(torch.__file__).parent / "include" / name) for name in includes]
    folder = headers_folder()
    known = _NOTES, command, compiler(), torch.__version__, header, [(s.st_size, s.st_mtime_ns) for s in stats]
    note = folder / f"gtrace-{hashlib.blake2b(repr(known).encode(), digest_size=12).hexdigest()}"
    path = _noted(note)
    if path is not None:
        return path
    with filelock.FileLock(folder / _LOCK):  # others may precompile it too
        path = _noted(note)
        if path is not None:
            return path
        before = set(folder.glob("*.gch"))
        precompile = internals.PRECOMPILE_HEADER.get()
        precompile.cache_clear()
        path = precompile(str(HEADER), command, **options)
        if Path(path + ".gch") in before:  # without a note: a compiler that was killed may have written half of it
            Path(path + ".gch").unlink()
            precompile.cache_clear()
            path = precompile(str(HEADER), command, **options)
        size = os.stat(path + ".gch").st_size
        _put(note, lambda file: file.write_text(f"{path}\n{size}"))
    return path


def _noted(note: Path) -> str | None:
    """Return the path of a header whose precompiled form is as it was noted; None without one."""
    with contextlib.suppress(OSError, ValueError):
        path, _, size = note.read_text().partition("\n")
        if os.stat(path + ".gch").st_size == int(size):
            return path
        note.unlink()
    return None


def _stand_in(cpp: str) -> Path:
    """Return an empty library with the name of torch's.

    When a program is loaded, torch is there. Linking it against torch's own library, only for that name, would take the
    linker as long as the compiler takes for a small program.
    """
    library = headers_folder() / "libtorch_cpu.so"
    try:
        check_library(library)
    except CacheError:  # there is none, or the disk was full
        empty = [cpp, "-shared", "-x", "c++", os.devnull, f"-Wl,-soname,{library.name}", "-o"]
        _put(library, lambda file: _checked([*empty, str(file)]))
    return library


def _checked(command: list[str]) -> None:
    code, output = output_of(start_group(command))
    if code:
        raise subprocess.CalledProcessError(code, command, output)


def _put(path: Path, write: Callable[[Path], Any]) -> None:
    """Make a file in one step, so that no other process finds half of it."""
    own = path.with_name(f"{path.name}.{secrets.token_hex(8)}")  # machines and containers may share the folder
    try:
        write(own)
        own.replace(path)
    finally:
        own.unlink(missing_ok=True)


def build(kernels: str, launcher: str, folder: Path) -> Path:
    """Compile a program and its kernels; returns the shared library."""
    options = {"vec_isa": internals.PICK_VEC_ISA.get()(), "device_type": "cpu", "aot_mode": True}
    builder = internals.CPP_BUILDER.get()
    with internals.PATCH_CONFIG.get()({"aot_inductor.link_libtorch": False}):
        option = internals.CPP_OPTIONS.get()(**options)
        command = builder(name="o", sources="i", BuildOption=option).get_command_line()
        flags = ["-Wl,--no-as-needed", str(_stand_in(option.get_compiler()))]
        option = internals.CPP_OPTIONS.get()(**options, extra_flags=flags)
    option.precompiled_header = _precompiled_header(command, options)
    source = folder / "program.cpp"
    source.write_text(_SOURCE.format(kernels=kernels, launcher=launcher))
    builder(name="program", sources=str(source), BuildOption=option, output_dir=str(folder)).build()
    return folder / "program.so"


@contextlib.contextmanager
def built_by_launcher(folder: Path) -> Iterator[None]:
    """Within the block, let Inductor build programs for the CPU as `launcher` describes where that can be done."""
    compiler, short = internals.AOT_COMPILER.get(), SHORT_BUILD.on and internals.SHORT_BUILDS.available()
    original = compiler.compile
    thread = threading.get_ident()  # others may use Inductor meanwhile

    def compile_(
        graph: Any, wrapper: str, kernels: str, fallbacks: str | None, *, device_type: str, additional_files: list[Any]
    ) -> Any:
        if fallbacks and device_type == "cpu" and threading.get_ident() == thread:
            # torch calls such an operator by its description in a file beside the library, which is not kept
            found = sorted(set(re.findall(r'"target": "(\w+)::(\w+)(\.\w+)?"', fallbacks)))
            names = [f"{library}.{name}{overload or '.default'}" for library, name, overload in found]
            raise NotImplementedError(f"{NO_INTERFACE} {', '.join(names) or 'one of its operators'}")
        text = None
        ours = short and threading.get_ident() == thread and device_type == "cpu"
        if ours and not graph.constants and not fallbacks and not additional_files:
            operators = itertools.chain.from_iterable(internals.INDUCTOR_AOT.get().custom_ops_to_c_shims.values())
            text = launcher(wrapper, len(graph.graph_outputs), operators)
        if text is not None:
            SHORT_BUILD.used()
            # another torch may declare in its model what the function needs
            with contextlib.suppress(internals.CPP_COMPILE_ERROR.get()):
                return [str(build(kernels, text, folder))]
        return original(graph, wrapper, kernels, fallbacks, device_type=device_type, additional_files=additional_files)

    compiler.compile = compile_
    try:
        yield
    finally:
        compiler.compile = original
