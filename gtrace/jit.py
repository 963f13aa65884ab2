"""``jit``: capture a function once per kind of arguments, compile it, call it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import numpy
import torch

from gtrace import tree
from gtrace.compile.backend import check_mode, find_backend
from gtrace.compile.executable import Executable
from gtrace.compile.partition import MIN_OPS
from gtrace.config import config
from gtrace.engine.engine import engine
from gtrace.engine.program import Parts, Program, Route
from gtrace.engine.sharded import Placed
from gtrace.errors import ArgumentError, message, user_location
from gtrace.exact import exact_key
from gtrace.ir.aval import Aval
from gtrace.ir.op import Leaf
from gtrace.ir.user_passes import registered
from gtrace.stages import Lowered, Traced
from gtrace.trace.array import Array, evaluate, layout, materialize, run_checked, wrap_as
from gtrace.trace.bind import check_thread
from gtrace.trace.capture import Captured, NoOutputs, capture, replay
from gtrace.trace.convert import lift, python_scalar, with_own_memory
from gtrace.trace.promotion import default_dtype, wide
from gtrace.trace.record import thread

__all__ = ["jit", "eval"]


@attrs.define(eq=False)
class _Call:
    """A prepared call, for inputs of given avals and strides.

    Attributes:
        route: to the program, or to those that it is divided into.
        constants: the tensors that it takes after the inputs.
        kinds: the `Leaf` of each result, as long as `laid_out` runs the program.
    """

    route: Route | Parts
    constants: list[torch.Tensor]
    out_avals: tuple[Aval, ...]
    out_structure: tree.TreeDef | NoOutputs
    kinds: list[Leaf] = attrs.field(factory=list)
    laid_out: Executable | None = None


@attrs.define(eq=False)
class _Arguments:
    """The arguments of one call, taken apart.

    Attributes:
        args, kwargs: with None in the place of static ones.
        static: the static ones, by position or name.
        static_key: their key, by value and type; None if there are none.
        leaves, structure: of the rest.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    static: list[tuple[int | str, Any]]
    static_key: Hashable
    leaves: list[Any]
    structure: tree.TreeDef

    @property
    def dynamic(self) -> Any:
        """The pytree whose leaves these are."""
        return (self.args, self.kwargs) if self.kwargs else self.args


_SHARED = (torch.Tensor, numpy.ndarray)
"""Arguments whose memory a call reads, and their owner may write to afterwards."""

MAX_CALLS = 1024
"""Kinds of arguments that a jitted function remembers; beyond it the older half is forgotten and captured anew."""


class Jitted:
    """A function that runs as one compiled program; made by `jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        backend: str,
        mode: str,
        wait: float | None,
    ) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self._static_argnums = static_argnums
        self._static_argnames = static_argnames
        self._backend = backend
        self._mode = mode
        self._wait = wait
        self._traced: dict[Hashable, Traced] = {}
        self._calls: dict[Hashable, _Call] = {}
        self._number_keys = False  # whether it was called with dicts whose keys are not all strings

    def __repr__(self) -> str:
        return f"<jit {self.__name__}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # a decorated method: the instance is an argument, and must be a pytree
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._take_apart(args, kwargs)
        trace = thread.trace
        if trace.tape is not None or trace.capture is not None:
            # seen by a gradient or another capture: the operations are recorded there, not run
            arrays = self._lift(given)
            traced = self._trace(given, arrays)
            return traced.out_structure.unflatten(replay(traced.graph, (*arrays, *traced.constants)))
        leaves: list[Any] = given.leaves
        outside: list[torch.Tensor] = []
        try:
            call = self._calls.get((self._key(given), *[x._leaf for x in leaves]))
        except AttributeError:  # a Python scalar, or an array of another library
            call = None
        if call is None:
            # what runs now need not copy the tensors and NumPy arrays that it is given
            leaves = self._lift(given, share=True)
            pairs = zip(leaves, given.leaves, strict=True)
            outside = [materialize(x, "jit") for x, leaf in pairs if isinstance(leaf, _SHARED)]
            for x in leaves:
                if x._buf is None:
                    check_thread(x)
            evaluate(leaves, "jit")
            kinds = [layout(x) for x in leaves]
            call = self._calls.get((self._key(given), *kinds))
            if call is None:
                call = self._prepare(given, leaves)
                _remember(self._calls, (self._key(given), *kinds), call)
        for x in leaves:
            if x._number < -1:
                check_thread(x)
        tensors = [x._buf for x in leaves]
        if config.current.debug_nans:
            return self._checked(given, leaves, outside)
        program = call.route.program if isinstance(call.route, Route) else None
        # a program on trial takes turns with the interpreter, whose results may be laid out differently
        executable = program.executable if program is not None and program.reference is None else None
        results = engine.call(call.route, tensors + call.constants if call.constants else tensors)
        if outside:
            results = with_own_memory(results, outside)
        stays = program is not None and program.executable is executable
        if stays and executable is call.laid_out:
            outputs = list(map(wrap_as, results, call.out_avals, call.kinds))
        else:
            outputs = [wrap_as(t, a) for t, a in zip(results, call.out_avals, strict=True)]
            if stays:
                # as long as the same program runs, its results have the same strides
                call.kinds, call.laid_out = [layout(x) for x in outputs], executable
        return call.out_structure.unflatten(outputs)

    def _checked(self, given: _Arguments, leaves: Sequence[Array], outside: Sequence[torch.Tensor]) -> Any:
        """Run the program as it was captured, refusing what no finite computation gives."""
        traced = self._trace(given, leaves)
        tensors = [materialize(x, "jit") for x in (*leaves, *traced.constants)]
        results = run_checked(traced.graph, tensors)
        avals = results.avals if isinstance(results, Placed) else traced.graph.out_avals
        results = with_own_memory(results, outside)
        return traced.out_structure.unflatten([wrap_as(t, a) for t, a in zip(results, avals, strict=True)])

    def _prepare(self, given: _Arguments, leaves: list[Array]) -> _Call:
        """Capture and compile the function for arguments like these."""
        traced = self._trace(given, leaves)
        inputs = [materialize(x, "jit") for x in (*leaves, *traced.constants)]
        strides = [t.stride() for t in inputs]
        route = engine.divide(traced.graph, strides, self._backend, self._mode)
        worth = route.programs
        if isinstance(route, Parts):
            # of two operations, nothing can be fused that the parts beside them could not have had
            worth = tuple(program for program in worth if program.ops >= MIN_OPS)
        engine.compile_all(worth, config.current.jit_wait if self._wait is None else self._wait)
        return _Call(route, inputs[len(leaves) :], route.avals or traced.graph.out_avals, traced.out_structure)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Capture the function for arguments like these; returns the first stage."""
        given = self._take_apart(args, kwargs)
        return self._trace(given, self._lift(given))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Capture and canonicalize the function for arguments like these."""
        return self.trace(*args, **kwargs).lower()

    def programs(self) -> list[Program]:
        """Return the engine's records of the programs that calls have made, in their order."""
        return list(dict.fromkeys(program for call in self._calls.values() for program in call.route.programs))

    def _take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        static: list[tuple[int | str, Any]] = []
        static_key = None
        if self._static_argnums or self._static_argnames:
            args, kwargs, static = self._split(args, kwargs)
            static_key = _static_key(static)
        leaves, structure = tree.flatten((args, kwargs) if kwargs else args)
        return _Arguments(args, kwargs, static, static_key, leaves, structure)

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[tuple[int | str, Any]]]:
        """Return the arguments with None in place of the static ones, and the static ones."""
        static: list[tuple[int | str, Any]] = []
        rest = list(args)
        for k in self._static_argnums:
            if -len(args) <= k < len(args):
                static.append((k % len(args), args[k]))
                rest[k] = None
        names = [name for name in self._static_argnames if name in kwargs]
        static += [(name, kwargs[name]) for name in names]
        return tuple(rest), {**kwargs, **dict.fromkeys(names)}, static

    def _lift(self, given: _Arguments, share: bool = False) -> list[Array]:
        """Return the leaves as Arrays.

        Args:
            share: as for `lift`.

        Raises:
            ArgumentError: a leaf that is no array and no number; with its key path.
        """
        for k, leaf in enumerate(given.leaves):
            if type(leaf) is not Array and python_scalar(leaf) is None and not hasattr(leaf, "dtype"):
                path = tree.paths(given.dynamic)[k]
                raise ArgumentError(
                    message("jit", "arrays or numbers as arguments", f"{type(leaf).__name__} at args{path}",
                            "Name it in static_argnums or static_argnames, or close over it.")
                )  # fmt: skip
        return [lift("jit", leaf, share) for leaf in given.leaves]

    def _key(self, given: _Arguments) -> Hashable:
        """Return the key of these arguments, apart from their leaves."""
        # the third distinguishes f(x, k=y) from f((x,), {"k": y})
        rules = wide(), default_dtype(float)
        key = given.structure, given.static_key, bool(given.kwargs), registered.passes, thread.axes, rules
        if self._number_keys:
            # structures compare the keys of dicts by ==, so that 1 is True
            numbers = tree.number_keys(given.structure)
            if numbers:
                return *key, numbers
        return key

    def _trace(self, given: _Arguments, leaves: Sequence[Array]) -> Traced:
        """Capture the function for arguments like these, the first time."""
        avals = [x.aval for x in leaves]
        found = self._traced.get((self._key(given), *avals))
        if found is not None:
            return found
        if not self._number_keys and tree.number_keys(given.structure):
            self._number_keys = True

        def run(inputs: Sequence[Array]) -> tuple[list[Array], tree.TreeDef]:
            rebuilt = given.structure.unflatten(inputs)
            positional, keywords = rebuilt if given.kwargs else (rebuilt, {})
            positional, keywords = list(positional), dict(keywords)
            for where, value in given.static:
                if isinstance(where, int):
                    positional[where] = value
                else:
                    keywords[where] = value
            outputs, out_structure = tree.flatten(self.__wrapped__(*positional, **keywords))
            return [_output(x) for x in outputs], out_structure

        name = f"jit({self.__name__}) called at {user_location()}"
        captured: Captured = capture(run, avals, name, tokens="if any")
        structure = NoOutputs(captured.result) if captured.token else captured.result
        traced = Traced(captured.graph, captured.constants, structure, self._backend, self._mode)
        _remember(self._traced, (self._key(given), *avals), traced)
        return traced


def _static_key(static: Sequence[tuple[int | str, Any]]) -> Hashable:
    """Return the key of static arguments.

    Raises:
        ArgumentError: one of them is unhashable.
    """
    key = []
    for where, value in static:
        own = exact_key(value)
        try:
            hash(own)
        except TypeError:
            got = f"{type(value).__name__} for {where!r}"
            fix = "Make it a tuple, or dynamic."
            raise ArgumentError(message("jit", "hashable static arguments", got, fix)) from None
        key.append((where, own))
    return tuple(key)


def _remember(table: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    """Add to a table that holds at most `MAX_CALLS`."""
    if len(table) >= MAX_CALLS:
        for old in list(table)[: MAX_CALLS // 2]:
            table.pop(old, None)
    table[key] = value


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
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    backend: str = "inductor",
    mode: str = "default",
    wait: float | bool | None = None,
) -> Any:
    """Return `f` as a compiled function; usable as a decorator, with or without options.

    The function is run once for each kind of arguments (pytree structure, shapes, dtypes, static values) on
    placeholders that have no value; what it records is compiled. A long program is divided where structure repeats,
    such as the layers of a model. Functions that record the same program share one compiled form, whoever made them.

    Args:
        static_argnums, static_argnames: arguments that are Python values, hashable; each value is traced anew, and
            so is each type: 1, 1.0 and True are three.
        donate_argnums, donate_argnames: accepted as in JAX, and ignored: an Array that nobody refers to any more gives
            its memory back by itself, and one that somebody does stays usable.
        backend: any name in ``torch.compiler.list_backends()``.
        mode: "default", "reduce-overhead" or "max-autotune".
        wait: seconds that the first call of each kind waits for the compiler, at most; what is not compiled then is
            interpreted until it is. True: as long as it takes, False: not at all, None: ``GT_JIT_WAIT``. Without a
            worker (``GT_BACKGROUND=0``) it always waits.

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
    del donate_argnums, donate_argnames
    check_mode(mode)
    find_backend(backend)
    seconds = None if wait is None else _wait_seconds(wait)
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    if f is None:
        return lambda g: jit(g, static_argnums=numbers, static_argnames=names, backend=backend, mode=mode, wait=wait)
    if not callable(f):
        raise ArgumentError(message("jit", "a function", type(f).__name__, "Pass a callable."))
    if numbers or names:
        numbers, names = _both_ways(f, numbers, names)
    return Jitted(f, numbers, names, backend, mode, seconds)


def _wait_seconds(wait: object) -> float:
    """Return the seconds that `wait` of `jit` stands for.

    Raises:
        ArgumentError: it is no number of seconds and no bool.
    """
    if isinstance(wait, bool):
        return math.inf if wait else 0.0
    if isinstance(wait, (int, float)) and wait >= 0:
        return float(wait)
    raise ArgumentError(message("jit", "seconds, True or False as wait", repr(wait), "Pass wait=2.5, for example."))


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
