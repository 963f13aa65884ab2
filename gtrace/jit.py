"""``jit``: capture a function once per kind of arguments, compile it, call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import torch

from gtrace import tree
from gtrace.config import config
from gtrace.errors import ArgumentError, message, user_location
from gtrace.ir.aval import Aval, contiguous_strides
from gtrace.ir.graph import Graph, print_graph
from gtrace.runtime.engine import engine
from gtrace.runtime.entry import Entry, Route
from gtrace.runtime.fx import lower
from gtrace.runtime.inductor import check_options
from gtrace.runtime.interpret import Program, checked
from gtrace.trace.array import Array, evaluate, layout, materialize, wrap_as
from gtrace.trace.capture import Captured, capture, replay
from gtrace.trace.convert import lift, python_scalar
from gtrace.trace.record import thread


@attrs.frozen(eq=False)
class Traced:
    """A function captured for one kind of arguments: the first stage of compiling it.

    Attributes:
        graph: the recorded program; its inputs are the dynamic leaves of the arguments, then `constants`.
        constants: Arrays from outside that the function uses.
        out_structure: the pytree structure of the result.
    """

    graph: Graph
    constants: tuple[Array, ...]
    out_structure: tree.TreeDef
    backend: str
    mode: str

    def lower(self) -> Lowered:
        """Return the canonical program."""
        strides = [contiguous_strides(a.shape) for a in self.graph.avals]
        return Lowered(self, engine.prepare(self.graph, strides, self.backend, self.mode))


@attrs.frozen(eq=False)
class Lowered:
    """The second stage: the canonical program, not compiled yet."""

    traced: Traced
    route: Route

    @property
    def graph(self) -> Graph:
        """The canonical graph."""
        entry = self.route.entry
        return Graph((), (), (), ()) if entry is None else entry.graph

    @property
    def signature(self) -> str:
        """The exact signature of the canonical graph; empty if it computes nothing."""
        return "" if self.route.entry is None else str(self.route.entry.signature)

    def as_text(self) -> str:
        """Return the canonical graph as text."""
        return print_graph(self.graph)

    def fx(self) -> torch.fx.GraphModule:
        """Return the aten-level FX module that the compiler gets."""
        strides = [contiguous_strides(a.shape) for a in self.graph.avals]
        return lower(self.graph, strides).module

    def compile(self) -> Compiled:
        """Compile now, in this thread."""
        if self.route.entry is not None:
            engine.compile(self.route.entry)
        return Compiled(self)


@attrs.frozen(eq=False)
class Compiled:
    """The last stage: callable with arguments of the kind it was traced for."""

    lowered: Lowered

    @property
    def tier(self) -> str:
        """How it runs: "compiled"; "failed" when the compiler failed, and "interpreted" when it was not asked."""
        return "compiled" if self.lowered.route.entry is None else self.lowered.route.entry.tier

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced = self.lowered.traced
        leaves = [lift("jit", leaf) for leaf in tree.leaves((args, kwargs))]
        expected = traced.graph.avals[: len(traced.graph.avals) - len(traced.constants)]
        got = tuple(leaf.aval for leaf in leaves)
        if got != expected:
            raise ArgumentError(
                message("jit", f"arguments {expected}", str(got), "Trace and compile for these arguments.")
            )
        tensors = [materialize(x, "jit").contiguous() for x in (*leaves, *traced.constants)]
        results = engine.call(self.lowered.route, tensors)
        return traced.out_structure.unflatten(
            [wrap_as(t, a) for t, a in zip(results, traced.graph.out_avals, strict=True)]
        )


@attrs.define(eq=False)
class _Call:
    """All that a call with inputs of known avals and strides needs.

    `codes` are the leaf codes of the results as long as the entry runs the program `coded`.
    """

    route: Route
    constants: list[torch.Tensor]
    out_avals: tuple[Aval, ...]
    out_structure: tree.TreeDef
    codes: list[int] = attrs.field(factory=list)
    coded: Program | None = None


class Jitted:
    """A function that runs as one compiled program; made by `jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        backend: str,
        mode: str,
    ) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self._static_argnums = static_argnums
        self._static_argnames = static_argnames
        self._backend = backend
        self._mode = mode
        self._traced: dict[Hashable, Traced] = {}
        self._calls: dict[Hashable, _Call] = {}

    def __repr__(self) -> str:
        return f"<jit {self.__name__}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # a decorated method: the instance is an argument, and must be a pytree
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._static_argnums or self._static_argnames:
            args, kwargs, static = self._split(args, kwargs)
        else:
            static = None
        leaves, structure = tree.flatten((args, kwargs) if kwargs else args)
        trace = thread.trace
        if trace.tape is not None or trace.capture is not None:
            # seen by a gradient or another capture: the operations are recorded there, not run
            leaves = self._lift(leaves, args, kwargs)
            traced = self._trace(args, kwargs, static, leaves, structure)
            return traced.out_structure.unflatten(replay(traced.graph, (*leaves, *traced.constants)))
        try:
            call = self._calls.get((structure, static, *[x._code for x in leaves]))
        except AttributeError:  # a Python scalar, or an array of another library
            call = None
        if call is None:
            leaves = self._lift(leaves, args, kwargs)
            evaluate(leaves, "jit")
            key = (structure, static, *[layout(x) for x in leaves])
            call = self._calls.get(key)
            if call is None:
                call = self._calls[key] = self._prepare(args, kwargs, static, leaves, structure)
        tensors = [x._buf for x in leaves]
        if config.current.debug_nans:
            return self._checked(args, kwargs, static, leaves, structure)
        entry = call.route.entry
        # a program on trial takes turns with the interpreter, whose results may be laid out differently
        program = entry.program if entry is not None and entry.reference is None else None
        results = engine.call(call.route, tensors + call.constants if call.constants else tensors)
        stays = entry is not None and entry.program is program
        if stays and program is call.coded:
            outputs = list(map(wrap_as, results, call.out_avals, call.codes))
        else:
            outputs = [wrap_as(t, a) for t, a in zip(results, call.out_avals, strict=True)]
            if stays:
                # as long as the same program runs, its results have the same strides
                call.codes, call.coded = [layout(x) for x in outputs], program
        return call.out_structure.unflatten(outputs)

    def _checked(self, args: Any, kwargs: Any, static: Any, leaves: Sequence[Array], structure: tree.TreeDef) -> Any:
        """Run the program as it was captured, refusing what no finite computation gives."""
        traced = self._trace(args, kwargs, static, leaves, structure)
        tensors = [materialize(x, "jit") for x in (*leaves, *traced.constants)]
        results = checked(traced.graph)(tensors)
        return traced.out_structure.unflatten(
            [wrap_as(t, a) for t, a in zip(results, traced.graph.out_avals, strict=True)]
        )

    def _prepare(self, args: Any, kwargs: Any, static: Any, leaves: list[Array], structure: tree.TreeDef) -> _Call:
        traced = self._trace(args, kwargs, static, leaves, structure)
        inputs = [materialize(x, "jit") for x in (*leaves, *traced.constants)]
        route = engine.prepare(traced.graph, [t.stride() for t in inputs], self._backend, self._mode)
        if route.entry is not None:
            engine.compile(route.entry)
        return _Call(route, inputs[len(leaves) :], traced.graph.out_avals, traced.out_structure)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Capture the function for arguments like these; returns the first stage."""
        args, kwargs, static = self._split(args, kwargs)
        leaves, structure = tree.flatten((args, kwargs) if kwargs else args)
        return self._trace(args, kwargs, static, self._lift(leaves, args, kwargs), structure)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Capture and canonicalize the function for arguments like these."""
        return self.trace(*args, **kwargs).lower()

    def entry(self, *args: Any, **kwargs: Any) -> Entry | None:
        """Return the engine's record of the program for arguments like these; None if it computes nothing."""
        return self.lower(*args, **kwargs).route.entry

    def entries(self) -> list[Entry]:
        """Return the engine's records of the programs that calls have made, in their order."""
        return [call.route.entry for call in self._calls.values() if call.route.entry is not None]

    def _lift(self, leaves: list[Any], args: Any, kwargs: Any) -> list[Array]:
        for k, leaf in enumerate(leaves):
            if type(leaf) is not Array and python_scalar(leaf) is None and not hasattr(leaf, "dtype"):
                path = tree.paths((args, kwargs) if kwargs else args)[k]
                raise ArgumentError(
                    message("jit", "arrays or numbers as arguments", f"{type(leaf).__name__} at args{path}",
                            "Name it in static_argnums or static_argnames, or close over it.")
                )  # fmt: skip
        return [lift("jit", leaf) for leaf in leaves]

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Hashable]:
        """Return the dynamic arguments, with None in place of the static ones, and the static ones."""
        static: list[tuple[int | str, Any]] = []
        given = list(args)
        for k in self._static_argnums:
            if -len(args) <= k < len(args):
                static.append((k % len(args), args[k]))
                given[k] = None
        names = [name for name in self._static_argnames if name in kwargs]
        static += [(name, kwargs[name]) for name in names]
        for where, value in static:
            try:
                hash(value)
            except TypeError:
                raise ArgumentError(
                    message(
                        "jit",
                        "hashable static arguments",
                        f"{type(value).__name__} for {where!r}",
                        "Make it a tuple, or dynamic.",
                    )
                ) from None
        return tuple(given), {**kwargs, **dict.fromkeys(names)}, tuple(static)

    def _trace(self, args: Any, kwargs: Any, static: Any, leaves: Sequence[Array], structure: tree.TreeDef) -> Traced:
        key = (structure, static, *[x.aval for x in leaves])
        found = self._traced.get(key)
        if found is not None:
            return found

        def run(inputs: Sequence[Array]) -> tuple[list[Array], tree.TreeDef]:
            rebuilt = structure.unflatten(inputs)
            positional, keywords = rebuilt if kwargs else (rebuilt, {})
            positional, keywords = list(positional), dict(keywords)
            for where, value in static or ():
                if isinstance(where, int):
                    positional[where] = value
                else:
                    keywords[where] = value
            outputs, out_structure = tree.flatten(self.__wrapped__(*positional, **keywords))
            return [_output(x) for x in outputs], out_structure

        name = f"jit({self.__name__}) called at {user_location()}"
        captured: Captured = capture(run, [x.aval for x in leaves], name)
        traced = Traced(captured.graph, captured.constants, captured.result, self._backend, self._mode)
        self._traced[key] = traced
        return traced


def _output(x: Any) -> Array:
    if type(x) is not Array and python_scalar(x) is None and not hasattr(x, "dtype"):
        raise ArgumentError(
            message(
                "jit", "arrays or numbers as results", type(x).__name__, "Return arrays in dicts, lists and tuples."
            )
        )
    return lift("jit", x)


def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    backend: str = "inductor",
    mode: str = "default",
) -> Any:
    """Return `f` as one compiled program; usable as a decorator, with or without options.

    The function is run once for each kind of arguments (pytree structure, shapes, dtypes, static values) on
    placeholders that have no value; what it records is compiled at once. Functions that record the same program share
    one compiled form, whoever made them.

    Args:
        static_argnums, static_argnames: arguments that are Python values, hashable; each value is traced anew.
        backend: any name in ``torch.compiler.list_backends()``.
        mode: "default", "reduce-overhead" or "max-autotune".

    Raises:
        ArgumentError: options that do not exist.
        ConcretizationError: (when called) the function looks at the value of a placeholder.

    >>> import gtrace as gt
    >>> @gt.jit
    ... def f(x):
    ...     return {"double": x * 2, "sum": x.sum()}
    >>> f(gt.array([1., 2.]))
    {'double': Array([2., 4.], dtype=float32), 'sum': Array(3., dtype=float32)}
    """
    check_options(backend, mode)
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if f is None:
        return lambda g: jit(g, static_argnums=numbers, static_argnames=names, backend=backend, mode=mode)
    if not callable(f):
        raise ArgumentError(message("jit", "a function", type(f).__name__, "Pass a callable."))
    if numbers or names:
        numbers, names = _both_ways(f, numbers, names)
    return Jitted(f, numbers, names, backend, mode)


def _both_ways(
    f: Callable[..., Any], numbers: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Complete static positions by their names and names by their positions, as far as the function has a signature.

    Raises:
        ArgumentError: a position or name that the function does not have.
    """
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return numbers, names
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    flexible = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for k in numbers:
        if not flexible and not -len(positional) <= k < len(positional):
            raise ArgumentError(message("jit", f"static_argnums below {len(positional)}", str(k), "Count from 0."))
    for name in names:
        if not keywords and name not in [p.name for p in parameters]:
            raise ArgumentError(message("jit", f"static_argnames among {positional}", repr(name), "Check the name."))
    all_numbers = {*numbers, *(positional.index(name) for name in names if name in positional)}
    all_names = {*names, *(positional[k] for k in numbers if -len(positional) <= k < len(positional))}
    return tuple(sorted(all_numbers)), tuple(sorted(all_names))


def eval(*trees: Any) -> Any:  # noqa: A001 - the name of the operation in the public surface
    """Compute the arrays of the given pytrees now; returns them (the one, or a tuple).

    >>> import gtrace as gt
    >>> gt.eval(gt.ones(2) + 1)
    Array([2., 2.], dtype=float32)
    """
    evaluate([leaf for leaf in tree.leaves(trees) if type(leaf) is Array], "eval")
    return trees[0] if len(trees) == 1 else trees
