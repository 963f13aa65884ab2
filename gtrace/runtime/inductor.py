"""GraphModule to callable. The only file that knows torch's compilers.

Inductor is called directly on the flat graph: no Dynamo, no guards, no AOTAutograd, because the graph already holds the
forward and the backward pass. Other backends of ``torch.compiler.list_backends()`` get the same graph undecomposed.
"""

from __future__ import annotations

import contextlib
import difflib
import getpass
import importlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gtrace.errors import ArgumentError, CompileError
from gtrace.runtime.fx import Lowered, lower
from gtrace.runtime.unit import Made, Unit

MODES = ("default", "reduce-overhead", "max-autotune")


COLD_SECONDS = 9.0
"""What the first compile on a machine takes longer: Inductor precompiles C++ headers into its cache."""


def startup_seconds() -> float:
    """Return what the first compile of the process is expected to take beside what later ones do."""
    default = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", default)
    try:
        with os.scandir(folder) as entries:
            warm = any(entry.is_dir() for entry in entries)
    except OSError:
        warm = False
    return 0.0 if warm else COLD_SECONDS


def check_options(backend: str, mode: str) -> None:
    """Check the compile options a user gave.

    Raises:
        ArgumentError: an unknown mode or backend.
    """
    if mode not in MODES:
        raise ArgumentError(f"[jit] expected mode to be one of {', '.join(MODES)}, got {mode!r}. Pass one of them.")
    if backend != "inductor":
        known = torch.compiler.list_backends(exclude_tags=())
        if backend not in known:
            near = difflib.get_close_matches(str(backend), known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"This torch has {', '.join(known)}."
            raise ArgumentError(f"[jit] expected a backend of torch.compiler.list_backends(), got {backend!r}. {hint}")


def compile_unit(unit: Unit) -> Made:
    """Compile a unit in this process.

    Raises:
        CompileError: the compiler failed; the cause is chained.
    """
    with _compiler_errors():
        return _inductor(unit) if unit.backend == "inductor" else _other(unit)


def compile_artifact(unit: Unit, folder: Path) -> tuple[Path, tuple[Any, ...]]:
    """Compile a unit ahead of time, into `folder`.

    Returns:
        The shared library, for a CPU, or the package, for a GPU; and the conditions on the open sizes.

    Raises:
        CompileError: the compiler failed; the cause is chained.
    """
    with _compiler_errors():
        package = importlib.import_module("torch._inductor.package")
        lowered, compiled = _compile(unit, folder)
        files = compiled.filename
        if unit.graph.avals and any(a.device.type == "cuda" for a in unit.graph.avals):
            # the kernels lie in files of their own, which the package brings along
            path = Path(package.package_aoti(str(folder / "artifact.pt2"), files))
        else:
            path = Path(next(f for f in files if isinstance(f, str) and f.endswith(".so")))
        return path, lowered.conditions()


def compile_package(unit: Unit, path: Path, folder: Path, constants: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Compile a unit ahead of time and write the package, for C++ as for Python, to `path`.

    Args:
        folder: for the compiler's files.
        constants: the values of the last inputs, which become part of the package.

    Returns:
        The conditions on the open sizes.

    Raises:
        CompileError: the compiler failed; the cause is chained.
    """
    with _compiler_errors():
        package = importlib.import_module("torch._inductor.package")
        lowered, compiled = _compile(unit, folder, constants, own=True)
        package.package_aoti(str(path), compiled.filename)
        return lowered.conditions()


@contextlib.contextmanager
def _compiler_errors() -> Iterator[None]:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # torch's own deprecations are not the user's, and under -W error they would fail every compile
            for category in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", category)
            yield
    except Exception as error:  # compilers raise whatever they like; all of it means "this program is not compiled"
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise CompileError(f"{type(error).__name__}: {reason}") from error


def _inductor(unit: Unit) -> Made:
    lowered, compiled = _compile(unit, None)
    # "reduce-overhead" replays CUDA graphs, whose outputs the next call overwrites: gtrace's arrays are immutable
    volatile = unit.mode == "reduce-overhead" and any(a.device.type == "cuda" for a in unit.graph.avals)

    call = compiled

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal call
        # Inductor empties the list it is given, to free inputs early
        outputs = call(list(tensors))
        # the first call finishes Inductor's own bookkeeping; the ones after it go straight to the generated code
        call = compiled.current_callable or compiled
        return [t.clone() for t in outputs] if volatile else outputs

    return Made(run, lowered.conditions())


def _compile(
    unit: Unit, folder: Path | None, constants: Sequence[torch.Tensor] = (), own: bool = False
) -> tuple[Lowered, Any]:
    """Lower a unit and give it to Inductor; ahead of time if there is a folder for the result."""
    # Inductor takes seconds to import, so it is imported when there is something to compile
    inductor = importlib.import_module("torch._inductor")
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    decomposition = importlib.import_module("torch._inductor.decomposition")
    virtualized = importlib.import_module("torch._inductor.virtualized")
    guards = importlib.import_module("torch._guards")

    _lower_pointwise()
    table = _decompositions(decomposition.select_decomp_table())
    lowered = lower(unit.graph, unit.strides, table, unit.relations)
    if constants:
        lowered.freeze(constants)
    if own:
        lowered.own_outputs()
    # the engine runs a program only with inputs of its sizes and strides: the code need not assert them on every call
    patches: dict[str, Any] = {"compile_threads": 1, "size_asserts": False, "alignment_asserts": False}
    patches["cpp.threads"] = unit.threads
    if unit.mode != "default":
        patches.update(inductor.list_mode_options(unit.mode))
    options: dict[str, Any] = {}
    if folder is not None:
        patches |= {"aot_inductor.output_path": str(folder), "aot_inductor.package": True, "triton.cudagraphs": False}
        options = {"aot_mode": True, "cpp_wrapper": True}
    with (
        inductor.config.patch(patches),
        virtualized.V.set_aot_compilation(folder is not None),
        guards.tracing(guards.TracingContext(lowered.mode)),
        virtualized.V.set_fake_mode(lowered.mode),
        _sums_of_any_length() if unit.relations is not None else contextlib.nullcontext(),
    ):
        return lowered, compile_fx.compile_fx_inner(lowered.module, lowered.fakes, **options)


@contextlib.contextmanager
def _sums_of_any_length() -> Iterator[None]:
    """Let sums of open length accumulate in blocks, as Inductor does on CPUs with those that it knows to be long.

    It would otherwise assume of each that it is as short, or as long, as the one it is shown.
    """
    kernel = importlib.import_module("torch._inductor.codegen.cpp").CppKernel
    original = kernel.need_use_acc_helper

    def in_blocks(self: Any, reduction_type: str, dtype: torch.dtype, use_scalar: bool) -> bool:
        if reduction_type == "sum" and dtype == torch.float:
            ranges = self.call_ranges[self.reduction_depth :]
            if any(getattr(n, "free_symbols", None) for n in ranges):
                return True
        return original(self, reduction_type, dtype, use_scalar)

    kernel.need_use_acc_helper = in_blocks
    try:
        yield
    finally:
        kernel.need_use_acc_helper = original


def _other(unit: Unit) -> Made:
    dynamo = importlib.import_module("torch._dynamo")
    lowered = lower(unit.graph, unit.strides)
    compiled = dynamo.lookup_backend(unit.backend)(lowered.module, lowered.fakes)

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return list(compiled(*tensors))

    return Made(run)


# -- accuracy
#
# Inductor's vector code for CPUs gives up accuracy that these functions exist for, or fails at infinities. Written out
# in terms of what it does well, they agree with torch. Elsewhere its own lowerings are right.


def _decompositions(own: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return Inductor's own decompositions with ours before them."""
    return {**own, **{op: _on_cpu(function, own.get(op)) for op, function in _ACCURATE.items()}}


def _on_cpu(function: Callable[..., torch.Tensor], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def decomposition(*args: torch.Tensor) -> Any:
        if all(x.device.type == "cpu" and x.is_floating_point() for x in args):
            return function(*args)
        return otherwise(*args) if otherwise is not None else NotImplemented

    return decomposition


def _expm1(x: torch.Tensor) -> torch.Tensor:
    # Inductor: exp(x) - 1, of which nothing is left for small x
    return torch.tanh(x * 0.5) * (torch.exp(x) + 1)


def _atanh(x: torch.Tensor) -> torch.Tensor:
    # Inductor: a logarithm of something that rounds to 1 for small x
    return (torch.log1p(x) - torch.log1p(-x)) * 0.5


def _acosh(x: torch.Tensor) -> torch.Tensor:
    # Inductor: a square that overflows for large x
    return torch.log1p((x - 1) + torch.sqrt(x - 1) * torch.sqrt(x + 1))


def _remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Inductor: x - floor(x / y) * y, which is NaN where y is infinite
    rest = torch.fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # Inductor: floor(x / y), which is 0 where y is infinite and the signs differ, and wrong where x / y rounds up to
    # an integer. This is how torch does it (c10::div_floor_floating).
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    floor = torch.floor(quotient)
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    floor = torch.where(quotient == 0, torch.copysign(torch.zeros_like(floor), x / y), floor)
    return torch.where(y == 0, x / y, floor)


_ACCURATE: dict[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten.expm1.default: _expm1,
    torch.ops.aten.atanh.default: _atanh,
    torch.ops.aten.acosh.default: _acosh,
    torch.ops.aten.remainder.Tensor: _remainder,
    torch.ops.aten.floor_divide.default: _floor_divide,
}


# -- long chains
#
# Inductor computes a value anew for each use of it, a few levels deep. A cipher uses each value twice or thrice, level
# after level: written out in aten calls, a single one takes it seconds. Such a chain is a torch operation of its own,
# which is lowered in one piece.

POINTWISE: dict[Any, Callable[..., Any]] = {}
"""For a torch operation on integers: the same as a function of one element of each tensor, and its int attributes."""


class _Element:
    """One element of an integer tensor in Inductor's language, for Python's operators."""

    def __init__(self, value: Any, dtype: torch.dtype) -> None:
        self.value = value
        self.dtype = dtype


def _operator(name: str) -> Callable[[_Element, Any], _Element]:
    def apply(self: _Element, other: Any) -> _Element:
        ops = importlib.import_module("torch._inductor.virtualized").ops
        y = other.value if isinstance(other, _Element) else ops.constant(other, self.dtype)
        return _Element(getattr(ops, name)(self.value, y), self.dtype)

    return apply


for _method, _name in {
    "add": "add", "sub": "sub", "mul": "mul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}.items():  # fmt: skip
    setattr(_Element, f"__{_method}__", _operator(_name))


def _lower_pointwise() -> None:
    """Tell Inductor of the operations in `POINTWISE` that it does not know yet."""
    lowering = importlib.import_module("torch._inductor.lowering")
    for op, function in POINTWISE.items():
        if op not in lowering.lowerings:
            register = lowering.register_lowering(op, broadcast=True, type_promotion_kind=None)
            register(_one_piece(lowering.make_pointwise, function))


def _one_piece(make_pointwise: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def lowered(*args: Any) -> Any:
        tensors = [x for x in args if not isinstance(x, int)]
        attributes = args[len(tensors) :]
        dtype = tensors[0].get_dtype()

        def inner(*values: Any) -> Any:
            return function(*[_Element(v, dtype) for v in values], *attributes).value

        return make_pointwise(inner)(*tensors)

    return lowered
