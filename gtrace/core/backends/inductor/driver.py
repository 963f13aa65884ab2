"""GraphModule to callable, by Inductor or another of torch's compilers.

Inductor is called directly on the flat graph: no Dynamo, no guards, no AOTAutograd, because the graph already holds the
forward and the backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from gtrace.core.backends.executable import Compiled, Executable
from gtrace.core.backends.fx import Lowered, lower
from gtrace.core.backends.inductor.accuracy import decompositions
from gtrace.core.backends.inductor.exactness import compute_as_torch, in_single_precision, sum_in_double_precision
from gtrace.core.backends.inductor.failures import compiler_errors
from gtrace.core.backends.inductor.folders import has_headers, private_folders
from gtrace.core.backends.inductor.instructions import vector_instructions_known
from gtrace.core.backends.inductor.launcher import built_by_launcher
from gtrace.core.backends.inductor.loop_bodies import without_common_subexpressions
from gtrace.core.backends.inductor.matmul import choose_libraries, products_lowered
from gtrace.core.backends.inductor.mended import mended
from gtrace.core.backends.inductor.pointwise import register_pointwise
from gtrace.core.backends.inductor.pooling import pooling
from gtrace.core.backends.inductor.row_kernels import choose_rows
from gtrace.core.backends.inductor.strides import strides_ensured
from gtrace.core.backends.inductor.time_limit import compilers_limited
from gtrace.core.backends.inductor.tuned import COLD_SECONDS, IMPORT_SECONDS, LEAST_CHUNK, LEAST_DIVIDED_KERNEL
from gtrace.core.backends.interpreter import batch_norms
from gtrace.core.backends.request import CompileRequest
from gtrace.core.backends.toolchain import require_compiler, toolchain
from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import CompileError
from gtrace.core.base.mechanisms import SHORT_FLOATS


def startup_seconds() -> float:
    """Return the extra seconds that the first compile of this process is expected to take."""
    return IMPORT_SECONDS if has_headers() else IMPORT_SECONDS + COLD_SECONDS


def compile_request(request: CompileRequest) -> Compiled:
    """Compile a request with Inductor, in this process; what fails raises as `compiler_errors` says."""
    with compiler_errors():
        with private_folders():
            lowered, compiled = _compile(request, None)
        # with "reduce-overhead" Inductor replays CUDA graphs, whose outputs the next call overwrites
        volatile = request.mode == "reduce-overhead" and request.device.type == "cuda"
        call = compiled

        def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            nonlocal call
            # Inductor empties the list it is given, to free inputs early
            outputs = call(list(tensors))
            # the first call finishes Inductor's own bookkeeping; the ones after it go straight to the generated code
            call = compiled.current_callable or compiled
            return outputs

        return Compiled(Executable(run, "process", request.device, overwrites=volatile), lowered.guards())


def compile_by(
    function: Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]], request: CompileRequest
) -> Compiled:
    """Compile by a function of an undecomposed graph and example inputs, as `torch.compile` takes them."""
    with compiler_errors():
        lowered = lower(request.graph, request.strides)
        with private_folders():
            compiled = function(lowered.module, lowered.fakes)
        return Compiled(Executable(lambda tensors: list(compiled(*tensors)), "process", request.device))


def compile_with(backend: str, request: CompileRequest) -> Compiled:
    """Compile a request with another of torch's backends."""
    return compile_by(lambda *given: internals.LOOKUP_BACKEND.get()(backend)(*given), request)


def compile_artifact(request: CompileRequest, folder: Path) -> tuple[Path, tuple[Any, ...]]:
    """Compile a request for the CPU ahead of time into `folder`; return the shared library, and guards."""
    with compiler_errors():
        with private_folders(), built_by_launcher(folder):
            lowered, compiled = _compile(request, folder)
        path = Path(next(f for f in compiled.filename if isinstance(f, str) and f.endswith(".so")))
        return path, lowered.guards()


def compile_package(
    request: CompileRequest, path: Path, folder: Path, constants: Sequence[torch.Tensor]
) -> tuple[Any, ...]:
    """Compile a request ahead of time into a package at `path`, for C++ and Python; return the guards.

    Args:
        folder: where the compiler puts its files.
        constants: the values of the last inputs, which become part of the package.
    """
    with compiler_errors(), private_folders():
        lowered, compiled = _compile(request, folder, constants, own=True)
        internals.PACKAGE.get()(str(path), compiled.filename)
        return lowered.guards()


@functools.cache
def _keyed_by_toolchain() -> Any:
    """Return a pass that changes nothing. By it the keys of Inductor's cache depend on gtrace and its mechanisms."""

    class Key(internals.CUSTOM_PASS.get()):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            pass

        def uuid(self) -> str:
            return repr(sorted(toolchain().items()))

    return Key()


def _compile(
    request: CompileRequest, folder: Path | None, constants: Sequence[torch.Tensor] = (), own: bool = False
) -> tuple[Lowered, Any]:
    """Lower a request and compile it with Inductor, ahead of time if a folder for the result is given.

    Args:
        own: whether outputs are copied that share memory with an input or with each other.
    """
    require_compiler(request.device)
    compile_fx = internals.COMPILE_FX.get()
    if request.relations is not None and not internals.OPEN_SIZES.available():
        raise CompileError(internals.OPEN_SIZES.without)
    register_pointwise()
    table = decompositions(internals.DECOMPOSITIONS.get()()) | batch_norms.DECOMPOSITIONS
    shims: dict[Any, list[str]] = {}
    if folder is not None:
        table = pooling(table, shims)
    if request.device.type == "cpu":
        table = in_single_precision(table)
    here = folder is None and request.device.type == "cuda"
    lowered = lower(request.graph, request.strides, table, request.relations, request.donated, shape_env=here)
    if request.device.type == "cpu":
        compute_as_torch(lowered.module, lowered.mode)
    choose_libraries(lowered.module)
    shims |= {op: [code] for op, code in lowered.operators.items()}
    if folder is not None:
        choose_rows(lowered.module, lowered.mode, shims)
    sum_in_double_precision(lowered.module, lowered.mode)
    if constants:
        lowered.freeze(constants)
    if own:
        lowered.own_outputs()
    lowered.keep_layouts()
    # the engine passes only inputs of the right sizes and strides, so the code need not assert them on every call
    patches: dict[str, Any] = {"compile_threads": 1, "size_asserts": False, "alignment_asserts": False}
    patches["emulate_precision_casts"] = SHORT_FLOATS.on  # roundings to 16 bits are not left out
    patches["cpp.threads"] = request.threads
    patches["cpp.min_chunk_size"] = max(LEAST_DIVIDED_KERNEL // request.threads, LEAST_CHUNK)
    patches["cpp.vec_isa_ok"] = vector_instructions_known()
    if request.mode != "default":
        patches.update(internals.MODE_OPTIONS.get()(request.mode))
    if here:
        patches["post_grad_custom_pre_pass"] = _keyed_by_toolchain()
    options: dict[str, Any] = {}
    if folder is not None:
        patches |= {"aot_inductor.output_path": str(folder), "aot_inductor.package": True, "triton.cudagraphs": False}
        patches["aot_inductor.custom_ops_to_c_shims"] = shims
        options = {"aot_mode": True, "cpp_wrapper": True}
        if request.device.type != "cpu":
            # torch 2.11 sets neither here: it would compile twice, and run the program on made up inputs
            patches |= {"triton.store_cubin": True, "triton.autotune_at_compile_time": True}
    with (
        internals.PATCH_CONFIG.get()(patches),
        internals.SET_AOT_COMPILATION.get()(folder is not None),
        internals.TRACING.get()(internals.TRACING_CONTEXT.get()(lowered.mode)),
        internals.SET_FAKE_MODE.get()(lowered.mode),
        without_common_subexpressions(),
        mended(),
        compilers_limited(),
        products_lowered(),
        strides_ensured(),
    ):
        return lowered, compile_fx(lowered.module, lowered.fakes, **options)
