"""Programs under JAX's names of their parts: gtrace's graphs, which can be run again and not be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.core.base.errors import ArgumentError, message
from gtrace.core.ir.graph import Graph
from gtrace.core.trace.array import Array
from gtrace.core.transform.eval_shape import ShapeDtypeStruct, capture_like, from_graph
from gtrace.jax.adapt import HINTS


class ShapedArray(ShapeDtypeStruct):
    """The shape and the dtype of an array, with JAX's further arguments, which say nothing here.

    >>> ShapedArray((2,), "float32", weak_type=True)
    ShapeDtypeStruct(shape=(2,), dtype=float32)
    """

    def __init__(self, shape: Any, dtype: Any, weak_type: bool = False, **options: Any) -> None:
        super().__init__(shape, dtype)


@attrs.frozen(eq=False)
class Var:
    """A value of a program, known by its shape and dtype."""

    aval: ShapedArray


def _variables(avals: Sequence[Any]) -> list[Var]:
    return [Var(ShapedArray(a.shape, a.dtype)) for a in avals]


@attrs.frozen(eq=False, repr=False)
class Jaxpr:
    """A program without its constants.

    Attributes:
        graph: its inputs are the arguments, and then the constants.
        invars, constvars, outvars: the arguments, constants and results.
    """

    graph: Graph
    invars: list[Var]
    constvars: list[Var]
    outvars: list[Var]
    effects: frozenset[Any] = frozenset()

    @property
    def eqns(self) -> Any:
        """Refuse: programs are not JAX's equations.

        Raises:
            ArgumentError: always.
        """
        fix = "Use gt.make_graph, and the nodes of the graph."
        raise ArgumentError(message("Jaxpr.eqns", "no use of JAX's equations", "one", fix))

    def __repr__(self) -> str:
        return str(self.graph)


@attrs.frozen(eq=False, repr=False)
class ClosedJaxpr:
    """A program with its constants."""

    jaxpr: Jaxpr
    consts: Sequence[Array]

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The shapes and dtypes of the arguments."""
        return [v.aval for v in self.jaxpr.invars]

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The shapes and dtypes of the results."""
        return [v.aval for v in self.jaxpr.outvars]

    @property
    def graph(self) -> Graph:
        """The program as gtrace has it: its inputs are the arguments, and then the constants."""
        return self.jaxpr.graph

    @property
    def effects(self) -> frozenset[Any]:
        """None."""
        return self.jaxpr.effects

    @property
    def eqns(self) -> Any:
        """As of `Jaxpr`."""
        return self.jaxpr.eqns

    def __repr__(self) -> str:
        return repr(self.jaxpr)


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], *args: Any, **options: Any) -> list[Array]:
    """Run a program.

    Raises:
        ArgumentError: other arguments than it has.
    """
    if len(args) != len(jaxpr.invars) or len(consts) != len(jaxpr.constvars):
        expected = f"{len(jaxpr.invars)} arguments and {len(jaxpr.constvars)} constants"
        raise ArgumentError(message("eval_jaxpr", expected, f"{len(args)} and {len(consts)}", "Pass flat arguments."))
    found = from_graph(jaxpr.graph)(*args, *consts)
    return list(found) if isinstance(found, tuple) else [found]


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr) -> Callable[..., list[Array]]:
    """Return a program as a function of flat arguments."""
    return lambda *args: eval_jaxpr(closed_jaxpr.jaxpr, closed_jaxpr.consts, *args)


def make_jaxpr(
    fun: Callable[..., Any], static_argnums: int | tuple[int, ...] | None = (), *, return_shape: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    """Return a function that records `fun` for arguments like the given ones, and returns a `ClosedJaxpr`.

    It can be run again, and prints as gtrace's IR and not as a jaxpr.

    Args:
        return_shape: also return the result, with a `ShapeDtypeStruct` for each array.

    >>> import gtrace.jax as jax
    >>> closed = jax.make_jaxpr(lambda x: jax.numpy.sin(x) * 2)(1.0)
    >>> jax.core.eval_jaxpr(closed.jaxpr, closed.consts, 0.0)
    [Array(0., dtype=float32)]
    """
    unknown = sorted(name for name in options if name not in HINTS and options[name])
    if unknown:
        fix = "Use gt.make_graph."
        raise ArgumentError(message("make_jaxpr", "static_argnums and return_shape", ", ".join(unknown), fix))
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums or ())

    def recorded(*args: Any, **kwargs: Any) -> Any:
        static = {k % len(args): args[k % len(args)] for k in numbers}

        def dynamic(*rest: Any, **named: Any) -> Any:
            given = iter(rest)
            return fun(*[static[k] if k in static else next(given) for k in range(len(args))], **named)

        rest = tuple([x for k, x in enumerate(args) if k not in static])
        captured = capture_like("make_jaxpr", dynamic, rest, kwargs)
        graph, count = captured.graph, len(captured.graph.inputs) - len(captured.constants)
        inputs, outputs = _variables(graph.avals), _variables(graph.out_avals)
        closed = ClosedJaxpr(Jaxpr(graph, inputs[:count], inputs[count:], outputs), captured.constants)
        if not return_shape:
            return closed
        return closed, captured.result.unflatten([ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in outputs])

    return recorded
