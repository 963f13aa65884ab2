"""The stages of ahead-of-time compilation: traced, lowered, compiled."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import torch

from gtrace.core.backends.fx import lower
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.graph import Graph, print_graph
from gtrace.core.ir.signature import sign
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.passes.user_passes import Passes, registered, rewritten
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.routes import Parts, Route, Target
from gtrace.core.trace.array import Array, wrap_as
from gtrace.core.trace.capture import NoOutputs
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import materialize, refuse_followed


@attrs.frozen(eq=False)
class Traced:
    """The first stage: a function captured for one kind of arguments.

    Attributes:
        graph: the recorded program; its inputs are the dynamic leaves of the arguments, then `constants`.
        constants: outside Arrays that the function uses.
        out_structure: the pytree structure of the result.
        used: the places, among the inputs, of random keys that are used up, with the setting `debug_key_reuse`.
    """

    graph: Graph
    constants: tuple[Array, ...]
    out_structure: tree.TreeDef | NoOutputs
    backend: str
    mode: str
    used: tuple[int, ...] = ()

    def lower(self) -> Lowered:
        """Return the canonical program."""
        strides = [contiguous_strides(a.shape) for a in self.graph.avals]
        passes = registered.passes
        return Lowered(self, engine.cut(self.graph, strides, Target(self.backend, self.mode), passes), passes)


@attrs.frozen(eq=False, slots=False)
class Lowered:
    """The second stage: the canonical program, before compilation.

    Attributes:
        route: the route to the program or to its parts.
        passes: the user's passes that rewrote it.
    """

    traced: Traced
    route: Route | Parts
    passes: Passes

    @functools.cached_property
    def graph(self) -> Graph:
        """The canonical graph."""
        if isinstance(self.route, Route):
            return Graph((), (), (), ()) if self.route.program is None else self.route.program.graph
        return canonicalize(rewritten(self.traced.graph, self.passes)).graph

    @property
    def signature(self) -> str:
        """The exact signature of the canonical graph, 32 digits; empty if there is nothing to compute."""
        if isinstance(self.route, Route):
            return "" if self.route.program is None else self.route.program.signature.exact
        return sign(self.graph).exact

    def as_text(self) -> str:
        """Return the canonical graph as text."""
        return print_graph(self.graph)

    def fx(self) -> torch.fx.GraphModule:
        """Return the aten-level FX module that the compiler gets."""
        strides = [contiguous_strides(a.shape) for a in self.graph.avals]
        return lower(self.graph, strides).module

    def compile(self, compiler_options: Any = None) -> Compiled:
        """Compile now, in this thread; `compiler_options`, which JAX takes here, change nothing."""
        for program in self.route.programs:
            engine.compile(program)
        return Compiled(self)


@attrs.frozen(eq=False)
class Compiled:
    """The last stage, callable with arguments of the traced kind. A call computes at once and has no derivative."""

    lowered: Lowered

    @property
    def tier(self) -> str:
        """The tier: "compiled", "failed" if the compiler failed, or "interpreted" if it was not asked.

        For several parts, it is the tier of the first part that is not compiled.
        """
        return next((p.tier for p in self.lowered.route.programs if p.tier != "compiled"), "compiled")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced = self.lowered.traced
        leaves = [lift("jit", leaf) for leaf in tree.leaves((args, kwargs))]
        expected = traced.graph.avals[: len(traced.graph.avals) - len(traced.constants)]
        got = tuple(leaf.aval for leaf in leaves)
        if got != expected:
            raise ArgumentError(
                message("jit", f"arguments {expected}", str(got), "Trace and compile for these arguments.")
            )
        arrays = (*leaves, *traced.constants)
        for x in arrays:
            refuse_followed(x, "jit", "Call the jitted function itself, or pass gt.stop_gradient(x).")
        tensors = [materialize(x, "jit").contiguous() for x in arrays]
        results = engine.call(self.lowered.route, tensors)
        avals = self.lowered.route.avals or traced.graph.out_avals
        return traced.out_structure.unflatten([wrap_as(t, a) for t, a in zip(results, avals, strict=True)])
