"""``jax.vjp``, whose second result is a pytree: its leaves are the arrays that it needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

import gtrace as gt
from gtrace.extend import Array, Aval, capture, lift_outputs, like, replay, tree
from gtrace.ir import Graph


@attrs.frozen
class _Like:
    """An array of which only the type is known."""

    aval: Aval


@attrs.frozen
class _Program:
    """A pullback as a program of the cotangents and the arrays that it needs.

    Attributes:
        graph: the program.
        outputs: the types of the function's outputs.
        structure: the structure of these.
        result: the structure of what the pullback returns.
    """

    graph: Graph
    outputs: tuple[Aval, ...]
    structure: tree.TreeDef
    result: tree.TreeDef

    def call(self, cotangents: Any, needed: Sequence[Array]) -> Any:
        """Return the cotangents of the arguments."""
        patterns: Any = [_Like(a) for a in self.outputs]
        given = like("vjp", "cotangent", cotangents, self.structure, patterns)
        return self.result.unflatten(replay(self.graph, [*given, *needed]))


Parts = tuple[tuple[Any, ...], _Program]
"""The arrays that a pullback needs, and the program that takes them."""


@attrs.frozen(eq=False, repr=False)
class Pullback:
    """The function from cotangents of a function's output to cotangents of its arguments. It is a pytree.

    Attributes:
        function: the function itself.
        parts: returns its leaves, and the program that takes them.
    """

    function: Callable[[Any], Any]
    parts: Callable[[], Parts]

    def __call__(self, cotangents: Any) -> Any:
        """Return a tuple with the cotangent of each argument."""
        return self.function(cotangents)


def _captured(function: Callable[[Any], Any], value: Any) -> Parts:
    outputs, structure = lift_outputs("vjp", value)
    avals = tuple([x.aval for x in outputs])

    def run(cotangents: Sequence[Array]) -> Any:
        return lift_outputs("vjp", function(structure.unflatten(cotangents)))

    captured = capture(run, avals, "the pullback of jax.vjp", repeated=True)
    return captured.constants, _Program(captured.graph, avals, structure, captured.result)


def _rebuilt(program: _Program, needed: tuple[Any, ...]) -> Pullback:
    return Pullback(lambda cotangents: program.call(cotangents, needed), lambda: (needed, program))


gt.tree.register_pytree_node(Pullback, lambda pull: pull.parts(), _rebuilt)


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """``gt.vjp``; the function that it returns is a pytree.

    >>> import gtrace.jax as jax
    >>> pull = jax.jit(lambda x: jax.vjp(jax.numpy.sin, x)[1])(0.0)
    >>> pull(2.0)
    (Array(2., dtype=float32),)
    """
    value, pull, *aux = gt.vjp(fun, *primals, has_aux=has_aux)
    return (value, Pullback(pull, functools.partial(_captured, pull, value)), *aux)


__all__ = ["Pullback", "vjp"]
