"""The private names of torch that gtrace uses, each looked up at its first use.

Private names move between releases. A `Feature` is optional: it is off if one of its names is missing, after one
warning. Any other missing name is an `UnsupportedTorchError`. Nothing is compiled then; everything is interpreted, and
no program is marked as failed. Importing gtrace needs no private name.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch

from gtrace.core.base.errors import UnsupportedTorchError, UnsupportedTorchWarning, user_location, warn_at

SUPPORTED = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
"""Releases of torch that were tested. Later ones are accepted too; see `Feature`."""


def supported() -> str:
    """Return the supported releases in words.

    >>> supported()
    '2.11 to 2.15'
    """
    return " to ".join(".".join(map(str, release)) for release in (SUPPORTED[0], SUPPORTED[-1]))


def known(version: str) -> bool:
    """Whether a version of torch belongs to a tested release.

    >>> known("2.13.0+cpu"), known("2.99.0")
    (True, False)
    """
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2]) in SUPPORTED


def unsupported(problem: str) -> UnsupportedTorchError:
    """Return the error for a torch that differs from the tested releases."""
    return UnsupportedTorchError(
        f"gtrace does not know this torch: {torch.__version__} {problem}; tried were {supported()}"
    )


@attrs.frozen
class Internal:
    """A private name.

    Attributes:
        module: its module.
        name: its name in the module, with dots for attributes.
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def get(self) -> Any:
        """Return the object.

        Raises:
            UnsupportedTorchError: this torch lacks the name.
        """
        try:
            return functools.reduce(getattr, self.name.split("."), import_whole(self.module))
        except AttributeError as error:
            raise unsupported(f"has no {self}") from error
        except ModuleNotFoundError as error:
            if not f"{self.module}.".startswith(f"{error.name}."):
                raise  # torch needs another package that is not installed
            raise unsupported(f"has no {self}") from error


def import_whole(module: str) -> types.ModuleType:
    """Import a module. Ctrl-C takes effect afterwards: a half-imported module of torch, or sympy, stays broken."""
    with contextlib.nullcontext() if module in sys.modules else uninterrupted():
        return importlib.import_module(module)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """In the block, delay Ctrl-C to its end."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    caught: list[tuple[int, types.FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *args: caught.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            before(*caught[0])


# -- tracing to aten operations

MAKE_FX = Internal("torch.fx.experimental.proxy_tensor", "make_fx")
PYTHON_DISPATCHER = Internal("torch._dispatch.python", "enable_python_dispatcher")
FAKE_TENSOR_MODE = Internal("torch._subclasses.fake_tensor", "FakeTensorMode")
OVERLOAD = Internal("torch._ops", "OpOverload")
DISPATCH_MODE = Internal("torch.utils._python_dispatch", "TorchDispatchMode")
FUNCTIONAL_MODE = Internal("torch._subclasses.functional_tensor", "FunctionalTensorMode")
FUNCTIONAL_TENSOR = Internal("torch._subclasses.functional_tensor", "FunctionalTensor")
FROM_FUNCTIONAL = Internal("torch", "_from_functional_tensor")
IS_FUNCTIONAL = Internal("torch", "_is_functional_tensor")
FUNCTIONALIZED = Internal("torch._subclasses.functional_tensor", "dispatch_functionalize")
COMPILING = Internal("torch", "compiler._is_compiling_flag")
IS_CAUSAL = Internal("torch.nn.modules.transformer", "_detect_is_causal_mask")
WRITTEN = Internal("torch._functorch._aot_autograd.functional_utils", "has_data_mutation")
DATA_DEPENDENT = Internal("torch._subclasses.fake_tensor", "DataDependentOutputException")
DYNAMIC_SHAPE = Internal("torch._subclasses.fake_tensor", "DynamicOutputShapeException")
# their public counterparts raise after `torch.backends.disable_global_flags`
SET_CUDNN_ENABLED = Internal("torch", "_C._set_cudnn_enabled")
SET_MKLDNN_ENABLED = Internal("torch", "_C._set_mkldnn_enabled")
SET_FALLBACK_WARNING = Internal("torch", "_C._functorch._set_vmap_fallback_warning_enabled")
# sympy symbols: importing them and their dependencies takes a second
SHAPE_ENV = Internal("torch.fx.experimental.symbolic_shapes", "ShapeEnv")
SYMBOLIC_CONTEXT = Internal("torch.fx.experimental.symbolic_shapes", "StatelessSymbolicContext")
DYNAMIC = Internal("torch.fx.experimental.symbolic_shapes", "DimDynamic.DYNAMIC")

LAYER_FUNCTIONS = Internal("torch", "_C._nn")

TRANSFORM = Internal("torch", "_C._functorch.peek_interpreter_stack")

RECURRENT_FUNCTIONS = Internal("torch.nn.utils.rnn", "_VF")

MAKE_WRAPPER = Internal("torch", "Tensor._make_wrapper_subclass")
WITHOUT_FUNCTIONS = Internal("torch", "_C._disabled_torch_function_impl")
HAS_KERNEL = Internal("torch", "_C._dispatch_has_kernel_for_dispatch_key")
RUN_BACKWARD = Internal("torch.autograd.graph", "_engine_run_backward")

COND = Internal("torch._higher_order_ops.cond", "cond_op")

# -- compiling; these take seconds to import

COMPILE_FX = Internal("torch._inductor.compile_fx", "compile_fx_inner")
PATCH_CONFIG = Internal("torch._inductor.config", "patch")
CUSTOM_PASS = Internal("torch._inductor.custom_graph_pass", "CustomGraphPass")
MODE_OPTIONS = Internal("torch._inductor", "list_mode_options")
DECOMPOSITIONS = Internal("torch._inductor.decomposition", "select_decomp_table")
SET_AOT_COMPILATION = Internal("torch._inductor.virtualized", "V.set_aot_compilation")
SET_FAKE_MODE = Internal("torch._inductor.virtualized", "V.set_fake_mode")
LOOP_BODY_BLOCK = Internal("torch._inductor.loop_body", "LoopBodyBlock")
TRACING_CONTEXT = Internal("torch._guards", "TracingContext")
TRACING = Internal("torch._guards", "tracing")
PACKAGE = Internal("torch._inductor.package", "package_aoti")
AOT_COMPILER = Internal("torch._inductor.codecache", "AotCodeCompiler")
PRECOMPILE_HEADER = Internal("torch._inductor.codecache", "_precompile_header")
HEADER_FOLDER = Internal("torch._inductor.codecache", "_HEADER_DIR")
HEADER_LOCKS = Internal("torch._inductor.codecache", "_HEADER_LOCK_DIR")
CPP_COMPILE_ERROR = Internal("torch._inductor.exc", "CppCompileError")
CPP_BUILDER = Internal("torch._inductor.cpp_builder", "CppBuilder")
RUN_COMPILER = Internal("torch._inductor.cpp_builder", "_run_compile_cmd")
CPP_OPTIONS = Internal("torch._inductor.cpp_builder", "CppTorchDeviceOptions")
PICK_VEC_ISA = Internal("torch._inductor.cpu_vec_isa", "pick_vec_isa")
VEC_ISAS = Internal("torch._inductor.cpu_vec_isa", "supported_vec_isa_list")
X86_ISAS = Internal("torch._inductor.cpu_vec_isa", "x86_isa_checker")
INDUCTOR_CPP = Internal("torch._inductor.config", "cpp")
INDUCTOR_AOT = Internal("torch._inductor.config", "aot_inductor")
COMPILE_EVENTS = Internal("torch._dynamo.utils", "get_chromium_event_logger")
LOOKUP_BACKEND = Internal("torch._dynamo", "lookup_backend")

# -- changing how Inductor lowers

OPS = Internal("torch._inductor.virtualized", "ops")
LOWERINGS = Internal("torch._inductor.lowering", "lowerings")
REGISTER_LOWERING = Internal("torch._inductor.lowering", "register_lowering")
MAKE_POINTWISE = Internal("torch._inductor.lowering", "make_pointwise")

# corrections of Inductor's wrong numbers: without them nothing is compiled
WRONG_LOWERINGS = Internal("torch._inductor.lowering", "lowerings")
FALLBACK = Internal("torch._inductor.lowering", "fallback_handler")
WRONG_KERNEL = Internal("torch._inductor.codegen.cpp", "CppKernel")
CACHE_DTYPE = Internal("torch._inductor.codegen.cpp", "CppKernel.cache_dtype_convert")
TILING_SELECT = Internal("torch._inductor.codegen.cpp", "TilingSelect")
SELECT_TILING = Internal("torch._inductor.codegen.cpp", "TilingSelect.select_tiling")
WRONG_REDUCTION = Internal("torch._inductor.ir", "Reduction")

LINEAR_KERNEL = Internal("torch._inductor.mkldnn_ir", "LinearUnary")
OUTPUT_NODE = Internal("torch._inductor.mkldnn_ir", "_create_output_node")
EXTERN_KERNEL = Internal("torch._inductor.ir", "ExternKernel")
VIRTUALIZED = Internal("torch._inductor.virtualized", "V")
FIXED_LAYOUT = Internal("torch._inductor.ir", "FixedLayout")
STORAGE_AND_LAYOUT = Internal("torch._inductor.ir", "as_storage_and_layout")
TENSOR_BOX = Internal("torch._inductor.ir", "TensorBox")

# -- matmuls by oneDNN

LINEAR = Internal("torch", "ops.mkldnn._linear_pointwise.default")

# -- updates of parameters


# -- running compiled code

PACKAGE_LOADER = Internal("torch._C._aoti", "AOTIModelPackageLoader")
CPU_RUNNER = Internal("torch._C._aoti", "AOTIModelContainerRunnerCpu")

# -- the modes that surround a call; see `gtrace.core.base.torch_modes`

FUNCTION_MODES = Internal("torch", "_C._len_torch_function_stack")
DISPATCH_MODES = Internal("torch", "_C._len_torch_dispatch_stack")
AUTOCAST = Internal("torch", "_C._is_any_autocast_enabled")
TENSOR_USERS = Internal("torch", "Tensor._use_count")
STORAGE_USERS = Internal("torch", "_C._storage_Use_Count")
POP_FUNCTION_MODE = Internal("torch.overrides", "_pop_mode")
PUSH_FUNCTION_MODE = Internal("torch.overrides", "_push_mode")
NO_DISPATCH_MODES = Internal("torch.utils._python_dispatch", "_disable_current_modes")


def dispatch_mode(dispatch: Callable[..., Any]) -> type:
    """Return a mode class whose ``__torch_dispatch__`` is `dispatch`.

    A method inside the class statement would be wrapped, and its first call would import ``torch.compile``.
    """
    mode = type("Mode", (DISPATCH_MODE.get(),), {})
    setattr(mode, "__torch_dispatch__", dispatch)  # noqa: B010
    return mode


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Make ``torch.compiler.is_compiling()`` true, as while torch traces: modules then do not branch on values."""
    if not MODULES_TOLD.available():
        yield
        return
    before = COMPILING.get()
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextlib.contextmanager
def masks_unread() -> Iterator[None]:
    """Stop torch's transformers in this thread from testing whether a mask is causal. It only selects their kernels.

    One thread at a time may be in this context.
    """
    if not MASKS_UNREAD.available():
        yield
        return
    original, owner, holder = IS_CAUSAL.get(), threading.get_ident(), sys.modules[IS_CAUSAL.module]

    def told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> Any:
        return is_causal is True if threading.get_ident() == owner else original(mask, is_causal, size)

    vars(holder)[IS_CAUSAL.name] = told
    try:
        yield
    finally:
        vars(holder)[IS_CAUSAL.name] = original


DISPATCH_KEY = Internal("torch", "_C.DispatchKey")


def has_python_meta(function: Any) -> bool:
    """Whether torch is known to implement an operator for the device ``meta`` in Python."""
    return TYPES_BY_TRIAL.available() and DISPATCH_KEY.get().Meta in getattr(function, "py_kernels", ())


PROFILER_ENABLED = Internal("torch.autograd.profiler", "_is_profiler_enabled")


def profiler_enabled(state: object = torch.autograd.profiler) -> bool:
    """Whether `torch.profiler.profile` or `emit_nvtx` is on. Every run asks this."""
    return getattr(state, "_is_profiler_enabled", False)


def dynamo_imported() -> bool:
    """Whether torch.compile may have been used. Its tracer takes a second to import."""
    return "torch._dynamo" in sys.modules


# -- optional features


@attrs.frozen
class Feature:
    """An optional feature and the private names that it needs.

    Attributes:
        names: names of constants of this module.
        without: a sentence that says what happens if one of them is missing.
    """

    names: tuple[str, ...]
    without: str

    def available(self) -> bool:
        """Whether this torch has all the names. The first time that one is missing, a warning says so."""
        return _available(self, tuple(globals()[name] for name in self.names))


@functools.cache
def _available(feature: Feature, needed: tuple[Internal, ...]) -> bool:
    try:
        for internal in needed:
            internal.get()
    except UnsupportedTorchError as error:
        warn_at(f"{error}. {feature.without}", user_location(), UnsupportedTorchWarning)
        return False
    return True


VECTOR_INSTRUCTIONS = Feature(
    ("INDUCTOR_CPP", "VEC_ISAS", "X86_ISAS"), "Inductor tries vector instructions by itself, which takes seconds."
)
SHORTER_BODIES = Feature(("LOOP_BODY_BLOCK",), "Inductor writes common subexpressions several times.")
OWN_PRODUCTS = Feature(
    ("LOWERINGS", "LINEAR_KERNEL", "STORAGE_AND_LAYOUT", "FIXED_LAYOUT", "TENSOR_BOX", "OUTPUT_NODE"),
    "Inductor computes products of matrices in its own way.",
)
CIPHERS = Feature(
    ("OPS", "LOWERINGS", "REGISTER_LOWERING", "MAKE_POINTWISE"), "Inductor calls operations on bits one by one."
)
SHORT_BUILDS = Feature(
    ("INDUCTOR_AOT", "CPP_COMPILE_ERROR", "CPP_BUILDER", "CPP_OPTIONS", "PICK_VEC_ISA", "PRECOMPILE_HEADER"),
    "The C++ compiler takes longer for a program.",
)
LIMITED_COMPILERS = Feature(
    ("RUN_COMPILER", "CPP_COMPILE_ERROR"), "A C++ compiler that hangs in the program's own process is waited for."
)
OPEN_SIZES = Feature(("SHAPE_ENV", "SYMBOLIC_CONTEXT", "DYNAMIC"), "Each size is compiled by itself.")
PRODUCTS_BY_ONEDNN = Feature(("LINEAR",), "torch's library computes all products of matrices.")
FORGOTTEN_EVENTS = Feature(("COMPILE_EVENTS",), "torch may warn of overlapping events after an interrupted compile.")
MODULES_TOLD = Feature(("COMPILING",), "Modules of torch may branch on values, which traced functions cannot.")
MASKS_UNREAD = Feature(("IS_CAUSAL",), "Transformers of torch read masks, which traced functions cannot.")
TYPES_BY_TRIAL = Feature(("DISPATCH_KEY",), "The first call of an operator of torch takes longer.")
PACKED_SEQUENCES = Feature(("RECURRENT_FUNCTIONS",), "Packed sequences cannot be traced.")
BATCHED_IN_SILENCE = Feature(
    ("SET_FALLBACK_WARNING",), "torch may warn of functions that it batches one example after the other."
)
FUNCTION_MODES_OFF = Feature(
    ("POP_FUNCTION_MODE", "PUSH_FUNCTION_MODE"), "Function modes of torch may change what gtrace computes."
)
DISPATCH_MODES_OFF = Feature(("NO_DISPATCH_MODES",), "Dispatch modes of torch may change what gtrace computes.")

INTERNALS: tuple[Internal, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Internal))
"""Every private name of torch that gtrace uses."""


@functools.cache
def openmp_functions() -> tuple[Any, Any]:
    """Return the functions of torch's OpenMP runtime that start and end threads, as compilers call them.

    They are those of GNU's runtime, which other runtimes have too. Two runtimes in one process would not share threads.

    Raises:
        UnsupportedTorchError: torch has no known runtime.
    """
    library = ctypes.CDLL(None)
    try:
        return library.GOMP_parallel_start, library.GOMP_parallel_end
    except AttributeError as error:
        raise unsupported("has no OpenMP runtime with GOMP_parallel_start") from error


@functools.cache
def thread_setter() -> Callable[[int], object] | None:
    """Return the function that sets torch's thread count for the calling thread alone; None if torch has none.

    `torch.set_num_threads` also affects every thread that starts later.
    """
    if not torch.backends.openmp.is_available() or os.name != "posix":
        return None
    return getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
