"""Programs as JAX's equations: variables, literals, equations, and programs that can be read, rewritten and run.

A program of `make_jaxpr` holds gtrace's graph, which is what runs. Its equations are made when somebody reads them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace import from_graph
from gtrace.extend import ArgumentError, Array, message
from gtrace.ir import Graph
from gtrace.jax import jaxpr_text
from gtrace.jax.avals import ShapedArray


class Var:
    """A value of a program, known by its shape and dtype."""

    def __init__(self, aval: Any, *_: Any) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var(id={id(self)}):{jaxpr_text.short(self.aval)}"


class DropVar(Var):
    """A result that nothing uses."""

    def __repr__(self) -> str:
        return "_"


class Literal:
    """A number in a program.

    Attributes:
        val: a Python number, a NumPy scalar, or an Array of shape ().
        aval: its shape and dtype.
    """

    def __init__(self, val: Any, aval: Any) -> None:
        self.val, self.aval = val, aval

    def __str__(self) -> str:
        return jaxpr_text.literal(self)

    def __repr__(self) -> str:
        return f"Literal({self.val})"


Atom = Var | Literal


@attrs.frozen
class SourceInfo:
    """Where an equation comes from.

    Attributes:
        name_stack: the named scopes around it; always none.
        traceback: the user's line, or None.
    """

    name_stack: str = ""
    traceback: str | None = None


@attrs.frozen(eq=False, repr=False)
class JaxprEqn:
    """An equation: the results of a primitive."""

    invars: list[Any]
    outvars: list[Any]
    primitive: Any
    params: dict[str, Any]
    effects: Any = frozenset()
    source_info: SourceInfo = SourceInfo()
    ctx: Any = None

    def replace(self, *args: Any, **changes: Any) -> JaxprEqn:
        """Return the equation with other fields."""
        return attrs.evolve(self, **changes)

    def __repr__(self) -> str:
        return jaxpr_text.of_equation(self)


def new_jaxpr_eqn(
    invars: Sequence[Any], outvars: Sequence[Any], primitive: Any, params: dict[str, Any], effects: Any = frozenset(),
    source_info: SourceInfo | None = None, ctx: Any = None,
) -> JaxprEqn:  # fmt: skip
    """Return an equation."""
    return JaxprEqn(list(invars), list(outvars), primitive, params, effects, source_info or SourceInfo(), ctx)


class Jaxpr:
    """A program without its constants.

    Attributes:
        invars, constvars, outvars: the arguments, constants and results.
        eqns: the equations.
        graph: the program as gtrace has it, or None: its inputs are the arguments, and then the constants.
    """

    graph: Graph | None = None

    def __init__(
        self, constvars: Sequence[Var], invars: Sequence[Var], outvars: Sequence[Any], eqns: Sequence[JaxprEqn],
        effects: Any = frozenset(), debug_info: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        self._parts = list(constvars), list(invars), list(outvars), list(eqns)
        self.effects, self.debug_info = effects, debug_info

    constvars: Any = property(lambda self: self._parts[0])
    invars: Any = property(lambda self: self._parts[1])
    outvars: Any = property(lambda self: self._parts[2])
    eqns: Any = property(lambda self: self._parts[3])

    @property
    def in_avals(self) -> list[Any]:
        """The shapes and dtypes of the arguments."""
        return [v.aval for v in self.invars]

    @property
    def out_avals(self) -> list[Any]:
        """The shapes and dtypes of the results."""
        return [v.aval for v in self.outvars]

    def run(self, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Run the equations."""
        env: dict[Any, Any] = dict(zip([*self.constvars, *self.invars], [*consts, *args], strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else env[atom]

        for eqn in self.eqns:
            functions, params = eqn.primitive.get_bind_params(eqn.params)
            out = eqn.primitive.bind(*functions, *map(read, eqn.invars), **params)
            env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out], strict=True))
        return [read(v) for v in self.outvars]

    def replace(self, **changes: Any) -> Jaxpr:
        """Return the program with other fields."""
        names = ("constvars", "invars", "outvars", "eqns", "effects", "debug_info")
        return Jaxpr(**{name: changes.get(name, getattr(self, name)) for name in names})

    def __str__(self) -> str:
        return jaxpr_text.of_program(self)

    __repr__ = __str__

    def pretty_print(self, **options: Any) -> str:
        """Return the text of the program."""
        return str(self)


class RecordedJaxpr(Jaxpr):
    """A program of which gtrace has the graph.

    Attributes:
        held: the constants that are numbers in the equations, by the place of the input of the graph.
    """

    graph: Graph

    def __init__(self, graph: Graph, count: int, held: dict[int, Array], convert: Callable[[], Any]) -> None:
        self.graph, self.held, self.effects, self.debug_info = graph, held, frozenset(), None
        self._count, self._convert = count, convert

    @functools.cached_property
    def _parts(self) -> Any:  # type: ignore[override]
        return self._convert()

    def _avals(self, avals: Sequence[Any]) -> list[Any]:
        return [ShapedArray(a.shape, a.dtype, a.weak) for a in avals]

    @property
    def in_avals(self) -> list[Any]:
        return self._avals(self.graph.avals[: self._count])

    @property
    def out_avals(self) -> list[Any]:
        return self._avals(self.graph.out_avals)

    def run(self, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        given, wanted = len(consts), len(self.graph.avals) - self._count - len(self.held)
        if len(args) != self._count or given != wanted:
            expected = f"{self._count} arguments and {wanted} constants"
            raise ArgumentError(message("eval_jaxpr", expected, f"{len(args)} and {given}", "Pass flat arguments."))
        rest = iter(consts)
        all_consts = [self.held[k] if k in self.held else next(rest) for k in range(self._count, len(self.graph.avals))]
        found = from_graph(self.graph)(*args, *all_consts)
        return list(found) if isinstance(found, tuple) else [found]


@attrs.frozen(eq=False, repr=False)
class ClosedJaxpr:
    """A program with its constants."""

    jaxpr: Jaxpr
    consts: Sequence[Any] = ()

    @property
    def literals(self) -> Sequence[Any]:
        """The constants."""
        return self.consts

    @property
    def in_avals(self) -> list[Any]:
        """The shapes and dtypes of the arguments."""
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[Any]:
        """The shapes and dtypes of the results."""
        return self.jaxpr.out_avals

    @property
    def graph(self) -> Graph | None:
        """The program as gtrace has it."""
        return self.jaxpr.graph

    @property
    def effects(self) -> Any:
        """None."""
        return self.jaxpr.effects

    @property
    def eqns(self) -> Any:
        """The equations."""
        return self.jaxpr.eqns

    def map_jaxpr(self, f: Callable[[Jaxpr], Jaxpr]) -> ClosedJaxpr:
        """Return another program with the same constants."""
        return ClosedJaxpr(f(self.jaxpr), self.consts)

    def replace(self, *, jaxpr: Any = None, consts: Any = None) -> ClosedJaxpr:
        """Return the program with another body, or with other constants."""
        return ClosedJaxpr(jaxpr or self.jaxpr, self.consts if consts is None else consts)

    def run(self, *args: Any) -> list[Any]:
        """Run the program."""
        return self.jaxpr.run(self.consts, args)

    def __str__(self) -> str:
        return str(self.jaxpr)

    __repr__ = __str__

    def pretty_print(self, **options: Any) -> str:
        """Return the text of the program."""
        return str(self)


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], *args: Any, **options: Any) -> list[Any]:
    """Run a program.

    Raises:
        ArgumentError: other arguments than it has.
    """
    if jaxpr.graph is None and (len(args) != len(jaxpr.invars) or len(consts) != len(jaxpr.constvars)):
        expected = f"{len(jaxpr.invars)} arguments and {len(jaxpr.constvars)} constants"
        raise ArgumentError(message("eval_jaxpr", expected, f"{len(args)} and {len(consts)}", "Pass flat arguments."))
    return jaxpr.run(consts, args)


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
    """Return a program as a function of flat arguments."""
    return lambda *args: eval_jaxpr(closed_jaxpr.jaxpr, closed_jaxpr.consts, *args)


def inner_programs(params: dict[str, Any]) -> list[Any]:
    """Return the programs among the parameters of an equation."""
    groups = [value if isinstance(value, (tuple, list)) else (value,) for value in params.values()]
    return [x for x in itertools.chain(*groups) if isinstance(x, (Jaxpr, ClosedJaxpr))]


def subjaxprs(jaxpr: Jaxpr) -> list[Jaxpr]:
    """Return the programs within the equations of a program."""
    inner = itertools.chain(*[inner_programs(eqn.params) for eqn in jaxpr.eqns])
    return [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in inner]
