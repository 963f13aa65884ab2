"""``jit``: captures a function once per kind of arguments, compiles it, and calls it."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace.core.backends.backend import check_mode, find_backend
from gtrace.core.backends.executable import Executable
from gtrace.core.base import tree
from gtrace.core.base.bounded_tables import PER_OPERATION, BoundedTable
from gtrace.core.base.config import Config, config
from gtrace.core.base.devices import number_tensor
from gtrace.core.base.errors import ArgumentError, message, user_location
from gtrace.core.base.mechanisms import DONATION
from gtrace.core.base.torch_modes import callers_default_dtype
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.aval import layout as dense_layout
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.op import Leaf
from gtrace.core.passes.user_passes import Passes, registered
from gtrace.core.runtime.captured_calls import captured_route
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.forms import Forms
from gtrace.core.runtime.nan_runs import run_checked
from gtrace.core.runtime.program import Program
from gtrace.core.runtime.routes import Parts, Route, Target
from gtrace.core.runtime.sharded import Placed
from gtrace.core.trace.argument_kinds import gather, gather_named, noted_kinds, tensors_of
from gtrace.core.trace.array import Array, wrap, wrap_as
from gtrace.core.trace.bind import check_thread, joint_device
from gtrace.core.trace.capture import Captured, NoOutputs, capture, note_call, replay
from gtrace.core.trace.convert import lift, python_scalar, with_own_memory
from gtrace.core.trace.donation import give_away
from gtrace.core.trace.force import evaluate, is_followed, layout, materialize, value_of
from gtrace.core.trace.key_uses import consume_all
from gtrace.core.trace.record import followers, thread
from gtrace.core.trace.size_reads import is_read
from gtrace.core.transform.arguments import name_of, without_empty
from gtrace.core.transform.eval_shape import ShapeDtypeStruct, aval_of
from gtrace.core.transform.jit_arguments import Arguments, output_of
from gtrace.core.transform.jit_options import both_ways, key_of_static, wait_seconds
from gtrace.core.transform.jit_stages import Lowered, Traced
from gtrace.core.transform.open_jits import OpenFunctions

__all__ = ["jit", "eval"]


@attrs.define(eq=False)
class _Call:
    """A prepared call, for inputs of given avals and strides.

    Attributes:
        route: to the program, or to those that it is divided into.
        constants: the tensors that it takes after the inputs.
        single: whether the function returns one array, and not a pytree of arrays.
        donated: the places of the inputs that are given away.
        written: the places of the inputs that may be written over.
        kinds: the `Leaf` of each result, as long as `laid_out` runs the program.
        forms: of the only program that runs; None if there are several or none.
    """

    route: Route | Parts
    constants: list[torch.Tensor]
    out_avals: tuple[Aval, ...]
    out_structure: tree.TreeDef | NoOutputs
    single: bool
    donated: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    kinds: list[Leaf] = attrs.field(factory=list)
    laid_out: Executable | None = None
    forms: Forms | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        program = self.route.program if isinstance(self.route, Route) else None
        self.forms = None if program is None else program.forms


@attrs.frozen(eq=False)
class _Known:
    """The prepared call of some arguments, valid while the settings and the user's passes are the same objects."""

    kinds: list[Any]
    call: _Call
    settings: Config
    passes: Passes
    default: torch.dtype


_SHARED = (torch.Tensor, numpy.ndarray)
"""Arguments whose memory a call reads, and whose owner may write to it later."""

MAX_CALLS = 16384
"""The number of argument kinds that a jitted function caches."""

CALL = 1500
"""Bytes of one kind in each table, without its operations."""


class Jitted:
    """A function that runs as one compiled program; `jit` makes it."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        donate_argnums: tuple[int, ...],
        donate_argnames: tuple[str, ...],
        backend: str,
        mode: str,
        wait: float | None,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__wrapped__ = function
        self.__name__: str = name_of(function)
        self._static_argnums = static_argnums
        self._static_argnames = static_argnames
        self._donate_argnums = donate_argnums
        self._donate_argnames = donate_argnames
        self._backend = backend
        self._mode = mode
        self._wait = wait
        self._traced: BoundedTable[Hashable, Traced] = BoundedTable(
            MAX_CALLS, lambda traced: CALL + PER_OPERATION * len(traced.graph.nodes)
        )
        self._calls: BoundedTable[Hashable, _Call] = BoundedTable(MAX_CALLS, CALL, lambda call: call.route.stale)
        self._known: BoundedTable[Hashable, _Known] = BoundedTable(
            MAX_CALLS, CALL, lambda known: known.call.route.stale
        )
        self._open = OpenFunctions()
        self._last: _Known | None = None
        self._number_keys = False  # whether a dict with other keys than strings was passed

    def __repr__(self) -> str:
        return f"<jit {self.__name__}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # a decorated method: its instance is an argument, and must be a pytree
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = thread.trace
        if trace.tape is not None or trace.capture is not None:
            given = self._take_apart(args, kwargs)
            return self._replayed(given) if trace.calls is None else self._noted(given)
        if self._last is not None and not followers:
            kinds: list[Any] = []
            tensors: list[torch.Tensor] = []
            if gather(args, kinds, tensors) and (not kwargs or gather_named(kwargs, kinds, tensors)):
                known = self._last
                if known.kinds != kinds:  # no key to hash if the call resembles the one before
                    known = self._known.get(tuple(kinds), known)
                same = known.passes is registered.passes and known.default is callers_default_dtype()
                if known.kinds == kinds and same:
                    if known.settings is (config.process if config.blocks() is None else config.current):
                        self._last = known
                        return _run(known.call, tensors, ())
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function with new arguments, or with other arguments than arrays in dicts, lists and tuples."""
        given = self._take_apart(args, kwargs)
        leaves: Sequence[Any] = given.leaves
        outside: Sequence[torch.Tensor] = ()
        settings, key = config.current, self._key(given)
        noted = noted_kinds(leaves)
        call = None if noted is None else self._calls.get((*key, *noted))
        if call is None:
            leaves = _on_one_gpu(given.leaves, self._lift(given, share=True))
            pairs = zip(leaves, given.leaves, strict=True)
            outside = [materialize(x, "jit") for x, leaf in pairs if isinstance(leaf, _SHARED)]
            for x in leaves:
                if value_of(x) is None:
                    check_thread(x)
            evaluate(leaves, "jit")
            kinds = [layout(x) for x in leaves]
            call = self._calls.get((*key, *kinds))
            if call is None:
                opens = not (self._donate_argnums or self._donate_argnames or settings.debug_nans)
                tensors = tensors_of(leaves) if opens else []  # nobody else may hold what is given away
                opened = self._open.run(key, leaves, tensors) if opens else None
                if opened is not None:
                    results, avals, structure = opened
                    return structure.unflatten(list(map(wrap_as, with_own_memory(results, outside), avals)))
                call = self._prepare(given, leaves)
                self._calls.remember((*key, *kinds), call)
                if opens:
                    traced = self._trace(given, [x.aval for x in leaves], lines=False)
                    self._open.learn(key, leaves, tensors, traced, functools.partial(self._capture, given))
        for x in leaves:
            if is_followed(x):
                check_thread(x)
        if settings.debug_key_reuse:
            traced = self._trace(given, [x.aval for x in leaves])
            consume_all(self.__name__, traced.used, (*leaves, *traced.constants))
        if settings.debug_nans:
            results = self._checked(given, leaves, outside)
            if call.donated:
                give_away(leaves, call.donated, (), self._called())
            return results
        if call.donated:
            return _run(call, give_away(leaves, call.donated, call.written, self._called()), outside)
        varies = self._static_argnums or self._static_argnames or thread.axes or thread.in_rule
        if not (varies or settings.debug_key_reuse):
            shape: list[Any] = []
            if gather(args, shape, []) and (not kwargs or gather_named(kwargs, shape, [])):
                self._last = _Known(shape, call, settings, registered.passes, callers_default_dtype())
                self._known.remember(tuple(shape), self._last)
        return _run(call, tensors_of(leaves), outside)

    def _called(self) -> str:
        """Return the name of the running call in errors."""
        return f"jit({self.__name__}) called at {user_location()}"

    def _replayed(self, given: Arguments) -> Any:
        """Record the operations of the function for a surrounding gradient or capture."""
        arrays = self._lift(given)
        traced = self._trace(given, [x.aval for x in arrays])
        inputs = (*arrays, *traced.constants)
        consume_all(self.__name__, traced.used, inputs)
        return traced.out_structure.unflatten(replay(traced.graph, inputs))

    def _noted(self, given: Arguments) -> Any:
        """Run the function itself, and note which operations of the trace are its own."""
        arrays, start = self._lift(given), len(thread.trace.flat)
        outputs, structure = self._run(given, arrays)
        note_call(self.__name__, start, arrays, outputs)
        return structure.unflatten(outputs)

    def _checked(self, given: Arguments, leaves: Sequence[Array], outside: Sequence[torch.Tensor]) -> Any:
        """Run the captured program; raise if an operation on finite operands gives NaN or infinity."""
        traced = self._trace(given, [x.aval for x in leaves])
        tensors = [materialize(x, "jit") for x in (*leaves, *traced.constants)]
        results = run_checked(traced.graph, tensors)
        avals = results.avals if isinstance(results, Placed) else traced.graph.out_avals
        results = with_own_memory(results, outside)
        return traced.out_structure.unflatten([wrap_as(t, a) for t, a in zip(results, avals, strict=True)])

    def _prepare(self, given: Arguments, leaves: list[Array]) -> _Call:
        """Capture and compile the function for these kinds of arguments."""
        traced = self._trace(given, [x.aval for x in leaves], self._open.is_new(self._key(given), leaves))
        arrays = (*leaves, *traced.constants)
        evaluate(arrays, "jit")
        strides = [layout(x).strides for x in arrays]
        inputs = [materialize(x, "jit") for x in arrays]
        donated = self._donated(given, traced.graph)
        if donated:
            DONATION.used()
        # a donated array becomes unusable, whether or not it is overwritten
        own = donated if DONATION.on else ()
        written = tuple(k for k in own if dense_layout(inputs[k].shape, inputs[k].stride()) is not None)
        wait = config.current.jit_wait if self._wait is None else self._wait
        target = Target(self._backend, self._mode)
        route = captured_route(engine, traced.graph, strides, target, written, wait)
        structure = traced.out_structure
        single = not isinstance(structure, NoOutputs) and structure.is_leaf()
        results = route.avals or traced.graph.out_avals
        return _Call(route, inputs[len(leaves) :], results, structure, single, donated, written)

    def _donated(self, given: Arguments, graph: Graph) -> tuple[int, ...]:
        """Return the indices of the donated leaves: of each type, at most as many as results of that type."""
        numbers = {k % len(given.args) for k in self._donate_argnums if -len(given.args) <= k < len(given.args)}
        named = [*enumerate(given.args), *sorted(given.kwargs.items())]
        counts = [tree.structure(value).num_leaves for _, value in named]
        starts = [0, *itertools.accumulate(counts)]
        free = collections.Counter((a.shape, a.dtype, a.device) for a in graph.out_avals)
        places = []
        for (name, _), start, count in zip(named, starts, counts, strict=False):
            if name in numbers or name in self._donate_argnames:
                for place in range(start, start + count):
                    a = graph.avals[place]
                    kind = a.shape, a.dtype, a.device
                    if free[kind]:
                        free[kind] -= 1
                        places.append(place)
        return tuple(places)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Capture the function for example arguments or `ShapeDtypeStruct`; return the first stage."""
        given = self._take_apart(args, kwargs)
        described = {k: aval_of("jit", x) for k, x in enumerate(given.leaves) if isinstance(x, ShapeDtypeStruct)}
        for k in described:
            given.leaves[k] = 0  # a number in its place, so that the others are checked
        return self._trace(given, [described.get(k, x.aval) for k, x in enumerate(self._lift(given))])

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Capture and canonicalize the function for example arguments or `ShapeDtypeStruct`.

        >>> x = gt.ShapeDtypeStruct((2,), "float32")
        >>> gt.jit(lambda x: x * 2).lower(x).compile()(gt.ones(2))
        Array([2., 2.], dtype=float32)
        """
        return self.trace(*args, **kwargs).lower()

    def programs(self) -> list[Program]:
        """Return the engine's records of the programs of earlier calls, in order."""
        return list(dict.fromkeys(program for call in self._calls.values() for program in call.route.programs))

    def _take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        static: list[tuple[int | str, Any]] = []
        static_key = None
        if self._static_argnums or self._static_argnames:
            args, kwargs, static = self._split(args, kwargs)
            static_key = key_of_static(static)
        leaves, structure = without_empty(*tree.flatten((args, kwargs) if kwargs else args))
        return Arguments(args, kwargs, static, static_key, leaves, structure)

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[tuple[int | str, Any]]]:
        """Return the arguments with None in place of static ones, and the static ones."""
        static: list[tuple[int | str, Any]] = []
        rest = list(args)
        for k in self._static_argnums:
            if -len(args) <= k < len(args):
                static.append((k % len(args), args[k]))
                rest[k] = None
        names = [name for name in self._static_argnames if name in kwargs]
        static += [(name, kwargs[name]) for name in names]
        return tuple(rest), {**kwargs, **dict.fromkeys(names)}, static

    def _lift(self, given: Arguments, share: bool = False) -> list[Array]:
        """Return the leaves as Arrays (`share` as in `lift`); raise an ArgumentError for others, with the path."""
        for k, leaf in enumerate(given.leaves):
            if type(leaf) is not Array and python_scalar(leaf) is None and not hasattr(leaf, "dtype"):
                path = tree.paths(given.dynamic)[k]
                raise ArgumentError(
                    message("jit", "arrays or numbers as arguments", f"{type(leaf).__name__} at args{path}",
                            "Name it in static_argnums or static_argnames, or close over it.")
                )  # fmt: skip
        return [lift("jit", leaf, share) for leaf in given.leaves]

    def _key(self, given: Arguments) -> tuple[Hashable, ...]:
        """Return the key of these arguments without their leaves."""
        # the third entry separates f(x, k=y) from f((x,), {"k": y})
        settings = config.current
        places = settings.device, thread.trace.place
        kinds = settings.x64, settings.jax_results, settings.check_static_indices, settings.threefry_partitionable
        rules = thread.in_rule, settings.debug_key_reuse, kinds, places, callers_default_dtype()
        key = given.structure, given.static_key, bool(given.kwargs), registered.passes, thread.axes, rules
        if self._number_keys:
            # structures compare keys of dicts by ==, where 1 is True
            numbers = tree.number_keys(given.structure)
            if numbers:
                return *key, numbers
        return key

    def _run(self, given: Arguments, inputs: Sequence[Array]) -> tuple[list[Array], tree.TreeDef]:
        """Call the function on these leaves; return those of the result, and its structure."""
        rebuilt = given.structure.unflatten(inputs)
        positional, keywords = rebuilt if given.kwargs else (rebuilt, {})
        positional, keywords = list(positional), dict(keywords)
        for where, value in given.static:
            if isinstance(where, int):
                positional[where] = value
            else:
                keywords[where] = value
        with torch.enable_grad():  # the graph also serves calls inside torch.no_grad()
            outputs, structure = without_empty(*tree.flatten(self.__wrapped__(*positional, **keywords)))
        return [output_of(x) for x in outputs], structure

    def _capture(self, given: Arguments, avals: Sequence[Aval], lines: bool = False) -> Captured:
        return capture(lambda xs: self._run(given, xs), avals, self._called(), tokens="if any", runs=True, lines=lines)

    def _trace(self, given: Arguments, avals: Sequence[Aval], lines: bool = True) -> Traced:
        found, kept = self._traced.get((self._key(given), *avals)), not is_read()
        if kept and found is not None and (not lines or found.graph.has_lines or not found.graph.nodes):
            return found
        if not self._number_keys and tree.number_keys(given.structure):
            self._number_keys = True

        captured = self._capture(given, avals, lines)
        structure = NoOutputs(captured.result) if captured.token else captured.result
        traced = Traced(captured.graph, captured.constants, structure, self._backend, self._mode, captured.used)
        if kept:
            self._traced.remember((self._key(given), *avals), traced)
        return traced


def _on_one_gpu(leaves: Sequence[Any], lifted: list[Array]) -> list[Array]:
    """Return the leaves as Arrays, with numbers on the GPU of the others, which makes them without a wait."""
    device = joint_device([x.aval for x in lifted])
    if device is None:
        return lifted
    numbers = [None if type(leaf) is Array else python_scalar(leaf) for leaf in leaves]
    return [
        x if n is None else wrap(number_tensor(n, x.aval.dtype, device), weak=x.aval.weak)
        for n, x in zip(numbers, lifted, strict=True)
    ]


def _run(call: _Call, tensors: list[torch.Tensor], outside: Sequence[torch.Tensor]) -> Any:
    """Run a prepared call; return the function's result, which shares no memory with the tensors `outside`."""
    forms = call.forms
    # a program on trial takes turns with the interpreter, whose results may be laid out differently
    executable = forms.executable if forms is not None and forms.trial is None else None
    if call.constants:
        tensors += call.constants
    results = engine.call(call.route, tensors)
    if outside:
        results = with_own_memory(results, outside)
    stays = executable is not None and forms.executable is executable  # type: ignore[union-attr]
    if stays and executable is call.laid_out:
        if call.single:
            return wrap_as(results[0], call.out_avals[0], call.kinds[0])
        outputs = list(map(wrap_as, results, call.out_avals, call.kinds))
    else:
        outputs = [wrap_as(t, a) for t, a in zip(results, call.out_avals, strict=True)]
        if stays:
            # while the same program runs, its results have the same strides
            call.kinds, call.laid_out = [layout(x) for x in outputs], executable
    return call.out_structure.unflatten(outputs)


def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    backend: str = "inductor",
    mode: str = "default",
    wait: float | bool | None = None,
) -> Any:
    """Return `f` as a compiled function; usable as a decorator, with or without options.

    The function runs once on placeholders for each kind of arguments (pytree structure, shapes, dtypes, static values).
    The recorded program is compiled. A long program is cut where its structure repeats, such as at the layers of a
    model. Functions that record the same program share its compiled code.

    Args:
        static_argnums, static_argnames: arguments that are hashable Python values. Each value is traced separately, and
            each type: 1, 1.0 and True differ.
        donate_argnums, donate_argnames: arguments whose arrays are donated, at most as many of each shape and dtype as
            there are such results. Elementwise results overwrite their memory. A donated Array becomes unusable, even
            if the call fails or is interrupted. Shared memory, such as that of a NumPy array or another Array, is
            copied first. Calls that a gradient, `vmap` or a capture records donate nothing.
        backend: any name in ``torch.compiler.list_backends()``.
        mode: "default", "reduce-overhead" or "max-autotune".
        wait: seconds that the first call of each kind waits for the compiler. Calls of other sizes wait for what is
            left of them. After that, uncompiled programs are interpreted until their code is ready. True: no limit,
            False: no wait, None: ``GT_JIT_WAIT``. Without a worker (``GT_BACKGROUND=0``) it always waits.

    Raises:
        ArgumentError: an option does not exist, or an argument is both static and donated.
        DonatedError: (at its use) an Array was donated.
        ConcretizationError: (when called) the function reads the value of a placeholder.

    >>> @gt.jit
    ... def f(x):
    ...     return {"double": x * 2, "sum": x.sum()}
    >>> f(gt.array([1., 2.]))
    {'double': Array([2., 4.], dtype=float32), 'sum': Array(3., dtype=float32)}
    """
    check_mode(mode)
    find_backend(backend)
    seconds = None if wait is None else wait_seconds(wait)
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    places = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    donors = (donate_argnames,) if isinstance(donate_argnames, str) else tuple(donate_argnames)
    if f is None:
        return lambda g: jit(
            g, static_argnums=numbers, static_argnames=names, donate_argnums=places, donate_argnames=donors,
            backend=backend, mode=mode, wait=wait,
        )  # fmt: skip
    if not callable(f):
        raise ArgumentError(message("jit", "a function", type(f).__name__, "Pass a callable."))
    if numbers or names:
        numbers, names = both_ways(f, "static", numbers, names)
    if places or donors:
        places, donors = both_ways(f, "donate", places, donors)
        both = [*set(numbers) & set(places), *set(names) & set(donors)]
        if both:
            fix = "Take it out of one of the two."
            raise ArgumentError(message("jit", "arguments that are static or given away", f"{both[0]!r} as both", fix))
    return Jitted(f, numbers, names, places, donors, backend, mode, seconds)


def eval(*trees: Any) -> Any:  # noqa: A001 - the name of the operation in the public surface
    """Compute the arrays of the given pytrees now; return the pytree, or a tuple of several.

    >>> gt.eval(gt.ones(2) + 1)
    Array([2., 2.], dtype=float32)
    """
    if len(trees) == 1 and trees[0].__class__ is Array:
        if value_of(trees[0]) is None:
            materialize(trees[0], "eval")
    else:
        evaluate([leaf for leaf in tree.leaves(trees) if type(leaf) is Array], "eval")
    return trees[0] if len(trees) == 1 else trees
