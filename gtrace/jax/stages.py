"""The names of ``jax.stages``: a jitted function as it is traced, lowered and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from gtrace.distributed.estimate import work
from gtrace.extend import Captured, Compiled, Jitted, Lowered, ShapeDtypeStruct, Traced, subgraphs
from gtrace.ir import Graph
from gtrace.jax.equations import program_of
from gtrace.observe.memory import predict

__all__ = ["ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced"]

CompilerOptions = Mapping[str, Any]
"""Options of the compiler, which are ignored."""


@attrs.frozen
class ArgInfo:
    """An argument of a function that is lowered.

    Attributes:
        donated: whether it is given away.
    """

    _aval: Any
    donated: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the argument."""
        return tuple(self._aval.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the argument."""
        return self._aval.dtype


def eval_shape(self: Jitted, *args: Any, **kwargs: Any) -> Any:
    """Return what the function would return, with a `ShapeDtypeStruct` for each array."""
    traced = self.trace(*args, **kwargs)
    avals = traced.graph.out_avals
    return traced.out_structure.unflatten([ShapeDtypeStruct(a.shape, a.dtype, a.device) for a in avals])  # type: ignore[misc]


def clear_cache(self: Jitted) -> None:
    """Forget what the function has traced."""
    self._last = None
    for table in (self._traced, self._calls, self._known):
        table.clear()


def cache_size(self: Jitted) -> int:
    """Return the number of kinds of arguments that the function was called with."""
    return len(self._calls)


_TRANSCENDENTAL = frozenset(
    "exp expm1 exp2 log log1p log2 log10 sqrt rsqrt cbrt pow sin cos tan asin acos atan atan2 sinh cosh tanh asinh"
    " acosh atanh sigmoid erf erfc erfinv gammaln digamma logaddexp softplus silu gelu".split()
)


def _counts(graph: Graph) -> tuple[float, float]:
    """Return the arithmetic operations and the calls of transcendental functions of a program."""
    flops = transcendental = 0.0
    for node in graph.nodes:
        op, inner = node.op, [_counts(sub.graph) for sub in subgraphs(node.params)]
        if inner:
            times = float(node.attributes.get("length", 1))
            found = [max(inner)] if op.branch else inner
            flops += times * sum(a for a, _ in found)
            transcendental += times * sum(b for _, b in found)
        elif op.contraction is not None:
            flops += 2.0 * op.contraction(node.instr.ins, node.instr.aval, **node.attributes)
        elif op.elementwise and op.name in _TRANSCENDENTAL:
            transcendental += node.instr.aval.size
        elif op.elementwise and node.instr.aval.floating:
            flops += node.instr.aval.size
        elif op.name in ("sum", "mean", "max", "min", "prod"):
            flops += node.instr.ins[0].size
    return flops, transcendental


def cost_analysis(self: Lowered | Compiled) -> dict[str, float]:
    """Return estimates: arithmetic operations, calls of transcendental functions, and bytes read and written."""
    graph = _lowered(self).traced.graph
    flops, transcendental = _counts(graph)
    return {"flops": flops, "transcendentals": transcendental, "bytes accessed": work(graph).nbytes}


@attrs.frozen
class MemoryStats:
    """The predicted memory of a compiled function, in bytes; code is not counted."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    alias_size_in_bytes: int = 0
    generated_code_size_in_bytes: int = 0
    host_argument_size_in_bytes: int = 0
    host_output_size_in_bytes: int = 0
    host_temp_size_in_bytes: int = 0
    host_alias_size_in_bytes: int = 0
    host_generated_code_size_in_bytes: int = 0


def memory_analysis(self: Compiled) -> MemoryStats:
    """Return the predicted memory of the function when interpreted; see ``gt.peak_memory``."""
    found = predict(self.lowered.route, self.lowered.traced.graph.avals)
    return MemoryStats(found.inputs, found.outputs, max(found.peak - found.inputs - found.outputs, 0))


def _lowered(stage: Lowered | Compiled) -> Lowered:
    return stage.lowered if isinstance(stage, Compiled) else stage


def _traced(stage: Traced | Lowered | Compiled) -> Traced:
    return stage if isinstance(stage, Traced) else _lowered(stage).traced


def out_info(self: Traced | Lowered | Compiled) -> Any:
    """Return the result with a `ShapeDtypeStruct` for each array."""
    traced = _traced(self)
    leaves: list[Any] = [ShapeDtypeStruct(a.shape, a.dtype, a.device) for a in traced.graph.out_avals]
    return traced.out_structure.unflatten(leaves)


def jaxpr_of(self: Traced) -> Any:
    """Return the program in JAX's equations."""
    return program_of(Captured(self.graph, self.constants, None))


METHODS: dict[str, Any] = {"clear_cache": clear_cache, "eval_shape": eval_shape, "_cache_size": cache_size}
"""Methods that jitted functions get when ``gtrace.jax`` is imported."""

_OF_ALL: dict[str, Any] = {
    "out_info": property(out_info),
    "out_tree": property(lambda self: _traced(self).out_structure),
}

STAGES: dict[type, dict[str, Any]] = {
    Traced: {**_OF_ALL, "jaxpr": property(jaxpr_of)},
    Lowered: {**_OF_ALL, "cost_analysis": cost_analysis},
    Compiled: {
        **_OF_ALL, "cost_analysis": cost_analysis, "memory_analysis": memory_analysis,
        "as_text": lambda self: self.lowered.as_text(), "runtime_executable": lambda self: self,
    },
}  # fmt: skip
"""What the stages of a jitted function get likewise."""
