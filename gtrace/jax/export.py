"""``jax.export``: functions as bytes that another process reads, with symbolic sizes.

The bytes hold the program as text, and the arrays that the function closes over. So a program is portable, holds no
native code, can be recorded in other programs, and has derivatives. `gt.export` compiles ahead of time instead.
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

import gtrace as gt
from gtrace import ir
from gtrace.errors import ExportError, GraphError
from gtrace.extend import (
    ArgumentError,
    Array,
    DType,
    DtypeError,
    Jitted,
    PRNGKeyArray,
    ShapeDtypeStruct,
    ShapeError,
    has_effects,
    lift,
    message,
    name_of,
    tree,
    whole,
)
from gtrace.jax import paths
from gtrace.jax.adapt import namespace
from gtrace.jax.avals import ShapedArray
from gtrace.jax.device_functions import default_backend
from gtrace.jax.exported_trees import decode, encode
from gtrace.jax.exported_trees import register_namedtuple_serialization as register_namedtuple_serialization
from gtrace.jax.exported_trees import register_pytree_node_serialization as register_pytree_node_serialization
from gtrace.jax.structures import PyTreeDef
from gtrace.jax.symbolic_decisions import Assumption, traced
from gtrace.jax.symbolic_programs import OpenProgram, examples, fitted, names_in, same, sized
from gtrace.jax.symbolic_shapes import SymbolicScope as SymbolicScope
from gtrace.jax.symbolic_shapes import symbolic_args_specs as symbolic_args_specs
from gtrace.jax.symbolic_shapes import symbolic_shape as symbolic_shape
from gtrace.jax.symbolic_sizes import SymbolicSize
from gtrace.jax.symbolic_sizes import is_symbolic_dim as is_symbolic_dim

minimum_supported_calling_convention_version, maximum_supported_calling_convention_version = 9, 10

_MAGIC = b"gtrace.jax.export 1\n"


@attrs.frozen
class DisabledSafetyCheck:
    """A check of JAX's that is left out. `export` takes them, and has no such checks."""

    _impl: str

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Return the check of the platform."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> DisabledSafetyCheck:
        """Return the check of a call of native code."""
        return cls(f"custom_call:{target_name}")

    def is_custom_call(self) -> str | None:
        """Return the native code that the check is about; None for another check."""
        return self._impl.partition(":")[2] or None

    def __str__(self) -> str:
        return self._impl

    __repr__ = __str__


@attrs.frozen(eq=False, repr=False)
class Exported:
    """A function as a program, which does not need the function's Python code.

    Attributes:
        fun_name: the name of the function, for errors.
        in_tree: the structure of ``(args, kwargs)``.
        in_avals, out_avals: the shapes and dtypes of arguments and results.
        platforms: the platform that it runs on.
    """

    fun_name: str
    in_tree: PyTreeDef
    in_avals: tuple[ShapedArray, ...]
    out_tree: PyTreeDef
    out_avals: tuple[ShapedArray, ...]
    platforms: tuple[str, ...]
    disabled_safety_checks: tuple[DisabledSafetyCheck, ...]
    _program: OpenProgram
    _constants: tuple[Array, ...]
    _scope: SymbolicScope
    _assumed: tuple[Assumption, ...]

    nr_devices = 1
    calling_convention_version = maximum_supported_calling_convention_version
    ordered_effects = unordered_effects = ()

    @property
    def uses_global_constants(self) -> bool:
        """Whether sizes are symbolic."""
        return bool(self._program.sizes)

    @property
    def module_kept_var_idx(self) -> tuple[int, ...]:
        """The places of the arguments that the program takes: all."""
        return tuple(range(len(self.in_avals)))

    def __repr__(self) -> str:
        return f"Exported(fun_name={self.fun_name}, ...)"

    def mlir_module(self, serialized: bool = True) -> str:
        """Raise, because programs are not in MLIR.

        Raises:
            ExportError: always.
        """
        fix = "Use str(gtrace.make_graph(f)(x)) for a program's text."
        raise ExportError(message("mlir_module", "no use of MLIR", "one", fix))

    def in_shardings_jax(self, mesh: Any) -> tuple[None, ...]:
        """Return the layouts of the arguments: none is given."""
        return (None,) * len(self.in_avals)

    def out_shardings_jax(self, mesh: Any) -> tuple[None, ...]:
        """Return the layouts of the results: none is given."""
        return (None,) * len(self.out_avals)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function. The call is recorded like any operation, and can be jitted, differentiated and batched.

        Raises:
            ArgumentError: the arguments have another structure.
            ShapeError, DtypeError: an array has another shape or dtype.
        """
        leaves, structure = paths.flatten((args, kwargs))
        if structure != self.in_tree:
            fix = "Pass what it was exported with."
            raise ArgumentError(message(self.fun_name, f"arguments of structure {self.in_tree}", str(structure), fix))
        arrays = [lift(self.fun_name, x) for x in leaves]
        values = self._sizes_of(arrays)
        run = _function(self._program.text(values))
        outputs = run(*arrays, *self._constants)
        found = outputs if isinstance(outputs, tuple) else (outputs,)
        return self.out_tree.unflatten(found)

    def _sizes_of(self, arrays: Sequence[Array]) -> dict[str, int]:
        """Return the values of the names in the sizes, by the arguments."""
        places = tree.paths(self.in_tree.unflatten(range(len(arrays))))
        names = [("args", "kwargs")[int(path[1])] + path[3:] for path in places]
        values: dict[str, int] = {}
        pairs = []
        for x, spec, name in zip(arrays, self.in_avals, names, strict=True):
            got = f"{x.aval!r} at {name}"
            if x.aval.dtype is not spec.dtype.torch:
                fix = f"Convert it with .astype({spec.dtype.name!r})."
                raise DtypeError(message(self.fun_name, f"{spec} at {name}", got, fix))
            if len(x.shape) != len(spec.shape):
                raise ShapeError(message(self.fun_name, f"{spec} at {name}", got, "Pass that shape."))
            pairs += [(n, expected, spec, got) for n, expected in zip(x.shape, spec.shape, strict=True)]
        waiting = [pair for pair in pairs if isinstance(pair[1], SymbolicSize)]
        while waiting:
            solved = {k: v for n, expected, *_ in waiting for k, v in _solved(expected, n, values).items()}
            if not solved:
                break
            values |= {name: value for name, value in solved.items() if name not in values}
            waiting = [pair for pair in waiting if not pair[1].names() <= values.keys()]
        for n, expected, spec, got in pairs:
            known = not isinstance(expected, SymbolicSize) or expected.names() <= values.keys()
            if not known or n != (expected.evaluate(values) if isinstance(expected, SymbolicSize) else expected):
                fix = f"Here {', '.join(f'{name}={value}' for name, value in values.items())}." if values else ""
                raise ShapeError(message(self.fun_name, str(spec), got, fix or "Pass that shape."))
        wrong = [x for x in self._assumed if not x.holds(values)]
        if wrong:
            fix = "Its code compares sizes, and would do something else for these. Export it for these sizes."
            raise ShapeError(message(self.fun_name, f"sizes for which {wrong[0]}", str(values), fix))
        if min(values.values(), default=1) < 1 or not self._scope.holds(values):
            fix = "Names are sizes of at least 1 that fulfil the constraints."
            raise ShapeError(message(self.fun_name, f"sizes in {self._scope!r}", str(values), fix))
        return values

    def has_vjp(self) -> bool:
        """Return whether it has derivatives: unless a function in it has rules of its user, which are no text."""
        return not any("= custom_call(" in piece for piece in self._program.pieces)

    def vjp(self) -> Exported:
        """Return the derivative: of the arguments and a cotangent for each result, one cotangent for each argument.

        Raises:
            ExportError: an argument or result is not of floats.
        """
        avals = (*self.in_avals, *self.out_avals)
        if any(a.dtype.kind not in "fc" for a in avals):
            fix = "Export jax.jit(jax.grad(f, argnums)) in its place."
            raise ExportError(message("vjp", "arguments and results of floats", ", ".join(map(str, avals)), fix))
        count = len(self.in_avals)

        def backward(*given: Any) -> Any:
            def flat(*leaves: Any) -> list[Any]:
                args, kwargs = self.in_tree.unflatten(leaves)
                return paths.leaves(self.call(*args, **kwargs))

            _, pull = gt.vjp(flat, *given[:count])
            return tuple(pull(list(given[count:])))

        backward.__name__ = f"{self.fun_name}_vjp"
        return export(gt.jit(backward))(*[ShapeDtypeStruct(a.shape, a.dtype) for a in avals])

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """Return the function as bytes that `deserialize` reads.

        Args:
            vjp_order: ignored: the function read has derivatives of all orders.

        Raises:
            ExportError: a node of a pytree is of a class without a registered name.
        """
        tensors = [whole(x, "serialize").contiguous() for x in self._constants]
        data = {
            "name": self.fun_name, "in_tree": encode(self.in_tree), "out_tree": encode(self.out_tree),
            "in_avals": [_described(a) for a in self.in_avals], "out_avals": [_described(a) for a in self.out_avals],
            "platforms": self.platforms, "constraints": self._scope.constraints,
            "assumed": [[str(x.size), x.what] for x in self._assumed],
            "checks": list(map(str, self.disabled_safety_checks)), "program": self._program.to_json(),
            "constants": [[list(t.shape), DType(t.dtype).name] for t in tensors],
        }  # fmt: skip
        text = json.dumps(data).encode()
        parts = [t.reshape(-1).view(torch.uint8).cpu().numpy().tobytes() if t.numel() else b"" for t in tensors]
        return bytearray(b"".join([_MAGIC, struct.pack("<Q", len(text)), text, *parts]))


def _solved(size: SymbolicSize, n: int, values: dict[str, int]) -> dict[str, int]:
    """Return the value of the only unknown name of a size that is linear in it."""
    unknown = size.names() - values.keys()
    if len(unknown) != 1:
        return {}
    (name,) = unknown
    factor = size.terms.get(((name, 1),), 0)
    rest = size - SymbolicSize({((name, 1),): factor}, size.scope) if factor else size
    others: set[str] = rest.names() if isinstance(rest, SymbolicSize) else set()
    if not factor or name in others:
        return {}
    value, left = divmod(n - (rest.evaluate(values) if isinstance(rest, SymbolicSize) else rest), factor)
    return {} if left else {name: value}


@functools.lru_cache(maxsize=64)
def _function(text: str) -> Callable[..., Any]:
    return gt.from_graph(ir.parse_graph(text))


def _described(a: ShapedArray) -> list[Any]:
    return [", ".join(map(str, a.shape)), a.dtype.name, a.weak_type]


def _aval_of(data: Sequence[Any], scope: SymbolicScope) -> ShapedArray:
    shape, dtype, weak = data
    return ShapedArray(symbolic_shape(shape, scope=scope), dtype, weak)


def default_export_platform() -> str:
    """Return the platform that functions are exported for: that of new arrays."""
    return {"gpu": "cuda"}.get(default_backend(), default_backend())


def export(
    fun_jit: Callable[..., Any], *, platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
) -> Callable[..., Exported]:  # fmt: skip
    """Return a function of arguments, or of their shapes, that exports a jitted function for such arguments.

    The function is traced: with symbolic sizes, for several sizes.

    Args:
        platforms: must have the platform of new arrays, and only that one.

    Raises:
        ArgumentError: `fun_jit` is not jitted.
        ExportError: other platforms. When called: the program calls Python functions, or depends on a symbolic size in
            a way that is no simple function of it.

    >>> import gtrace.jax as jax
    >>> shape = jax.ShapeDtypeStruct(symbolic_shape("b, 3"), "float32")
    >>> exported = export(jax.jit(lambda x: 2 * x.sum(1)))(shape)
    >>> deserialize(exported.serialize()).call(jax.numpy.ones((2, 3)))
    Array([6., 6.], dtype=float32)
    """
    if not isinstance(fun_jit, Jitted):
        raise ArgumentError(message("export", "a jitted function", name_of(fun_jit), "Pass jax.jit(f)."))
    own = default_export_platform()
    if platforms is not None and tuple(platforms) != (own,):
        fix = "Export it once on each platform."
        raise ExportError(message("export", f"platforms of {[own]}", str(list(platforms)), fix))

    def make(*args: Any, **kwargs: Any) -> Exported:
        return _exported(fun_jit, args, kwargs, own, tuple(disabled_checks))

    return make


def _exported(f: Jitted, args: Any, kwargs: Any, platform: str, checks: Any) -> Exported:
    statics = {k % len(args) for k in f._static_argnums if -len(args) <= k < len(args)}
    dynamic = (
        tuple([x for k, x in enumerate(args) if k not in statics]),
        {name: x for name, x in kwargs.items() if name not in f._static_argnames},
    )
    leaves, in_tree = paths.flatten(dynamic)
    if any(isinstance(x, PRNGKeyArray) for x in leaves):
        fix = "Pass jax.random.key_data(key), and wrap it in the function by jax.random.wrap_key_data."
        raise ExportError(message("export", "arrays", "random keys", fix))
    sizes = names_in(dynamic)
    scope: Any = sizes[0].scope if sizes else SymbolicScope()
    values: list[dict[str, int]] = examples(sizes) if sizes else [{}]

    def trace(each: Mapping[str, int]) -> Any:
        own, named = sized((args, kwargs), each)
        return f.trace(*own, **named)

    stages, assumed = traced(trace, values, scope) if sizes else ([trace({})], ())
    first = stages[0]
    for other in stages[1:]:
        _check_constants(first.constants, other.constants)
    if has_effects(first.graph):
        fix = "Leave out callbacks and jax.debug.print."
        raise ExportError(message("export", "a program that needs no Python", "one that calls Python functions", fix))
    texts = [str(stage.graph) for stage in stages]
    try:
        ir.parse_graph(texts[0])
    except GraphError as error:
        fix = "Leave out the operation that it names."
        raise ExportError(message("export", "a program that is all text", str(error), fix)) from error
    program = OpenProgram.of(texts, values, scope)
    found = [(stage.graph.out_avals, stage.out_structure) for stage in stages]
    same(found)
    rows = [[n for a in avals for n in a.shape] for avals, _ in found]
    shapes = iter(fitted(rows, values, scope) if sizes else rows[0])
    out_avals = [ShapedArray([next(shapes) for _ in a.shape], a.dtype, a.weak) for a in first.graph.out_avals]
    in_avals = [
        ShapedArray(spec.shape if isinstance(spec, ShapeDtypeStruct) else a.shape, a.dtype)
        for spec, a in zip(leaves, first.graph.avals, strict=False)
    ]
    structure: Any = first.out_structure
    return Exported(
        name_of(f), in_tree, tuple(in_avals), PyTreeDef(structure), tuple(out_avals), (platform,), checks, program,
        first.constants, scope, assumed,
    )  # fmt: skip


def _check_constants(first: Sequence[Array], again: Sequence[Array]) -> None:
    """Raise for outside arrays that change with the sizes, because the bytes hold one value of each."""
    for x, y in itertools.zip_longest(first, again):
        if x is None or y is None or (x is not y and not (x.aval is y.aval and gt.numpy.array_equal(x, y, True))):
            fix = "Compute them from the arguments, in the function."
            raise ExportError(message("export", "closed-over arrays that do not depend on sizes", repr(x), fix))


def deserialize(blob: bytes | bytearray) -> Exported:
    """Return the function in what `Exported.serialize` returned.

    Raises:
        ExportError: it is something else, or damaged.
    """
    content = memoryview(bytes(blob))
    try:
        if content[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it does not begin as such")
        start = len(_MAGIC) + 8
        (length,) = struct.unpack("<Q", content[len(_MAGIC) : start])
        data = json.loads(bytes(content[start : start + length]))
        at, constants = start + length, []
        for shape, dtype in data["constants"]:
            kind = DType(dtype).torch
            end = at + kind.itemsize * torch.Size(shape).numel()
            if end > len(content):
                raise ValueError("it ends too early")
            flat = torch.frombuffer(bytearray(content[at:end]), dtype=kind) if end > at else torch.empty(0, dtype=kind)
            constants.append(gt.from_torch(flat.reshape(shape)))
            at = end
        scope = SymbolicScope(data["constraints"])
        in_avals, out_avals = (tuple([_aval_of(a, scope) for a in data[name]]) for name in ("in_avals", "out_avals"))
        return Exported(
            data["name"], decode(data["in_tree"]), in_avals, decode(data["out_tree"]), out_avals,
            tuple(data["platforms"]), tuple([DisabledSafetyCheck(check) for check in data["checks"]]),
            OpenProgram.from_json(data["program"], scope), tuple(constants), scope,
            tuple([Assumption(symbolic_shape(text, scope=scope)[0], what) for text, what in data["assumed"]]),
        )  # fmt: skip
    except ExportError:
        raise
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError, struct.error) as error:
        fix = "Export the function again."
        raise ExportError(message("deserialize", "bytes of Exported.serialize", str(error), fix)) from error


__getattr__, __dir__ = namespace("jax.export")
