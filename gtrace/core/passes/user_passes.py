"""The user's passes: rewrites that every recorded program goes through before it is canonicalized."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import attrs

from gtrace.core.base.errors import ArgumentError, GraphError, message
from gtrace.core.base.locks import new_lock
from gtrace.core.ir.graph import Graph, Subgraph
from gtrace.core.ir.pipeline import Pass, check_pass
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.passes.subgraph_calls import has_calls, map_subgraphs
from gtrace.core.passes.whole_program import spelled_out

Passes = tuple[Pass, ...]
"""Registered passes, in order. Immutable, so that it can be part of a key."""


class Registered:
    """The passes that are registered.

    Attributes:
        passes: the current ones. They are part of a program's key: with other passes it is another program.
    """

    def __init__(self) -> None:
        self.passes: Passes = ()
        self._lock = new_lock()

    def add(self, new: Pass) -> None:
        """Add a pass after the others.

        Raises:
            ArgumentError: another one has its name.
        """
        with self._lock:
            if any(one.name == new.name for one in self.passes):
                fix = f"Choose another name, or call gtrace.ir.unregister_pass({new.name!r}) first."
                raise ArgumentError(message("register_pass", "a new name", f"{new.name!r} a second time", fix))
            self.passes = (*self.passes, new)

    def remove(self, name: str) -> None:
        """Remove a pass.

        Raises:
            ArgumentError: no pass has this name.
        """
        with self._lock:
            if all(one.name != name for one in self.passes):
                known = ", ".join(one.name for one in self.passes) or "none"
                fix = f"Registered: {known}."
                raise ArgumentError(message("unregister_pass", "the name of a registered pass", repr(name), fix))
            self.passes = tuple(one for one in self.passes if one.name != name)


registered = Registered()
"""The passes of this process."""


@attrs.frozen
class Registration:
    """What `register_pass` returns. As a context manager it unregisters the pass at the end of the block."""

    registered_pass: Pass

    def __enter__(self) -> Pass:
        return self.registered_pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        registered.remove(self.registered_pass.name)


def register_pass(rewrite: Pass | Callable[[Graph], Graph], name: str | None = None) -> Registration:
    """Run a rewrite on every program that is recorded from now on, before its canonical form is taken.

    It sees each program as it was recorded, and each sub-graph (the body of a loop, a branch) by itself, innermost
    first. It must return a graph that computes the same, with inputs and outputs of the same number and types. It must
    depend on nothing but the graph, because its result is cached. The verifier runs after it. Passes run in the order
    of registration, for all threads. Programs recorded before are recorded again; results of `gt.jit(f).lower` stay as
    they are.

    Args:
        rewrite: a `Pass`, or a function from graph to graph.
        name: its name in error messages; by default the function's name.

    Returns:
        A context manager that unregisters the pass at the end of its block; `unregister_pass` does the same.

    Raises:
        ArgumentError: no function, no name, or the name of another pass.
        GraphError: (when a program is recorded) the pass raised, or broke a rule.

    >>> from gtrace import ir
    >>> def square_by_product(graph):
    ...     nodes = []
    ...     for node in graph.nodes:
    ...         if node.op.name == "square":
    ...             product = ir.ops["mul"].instr((), node.instr.ins * 2)
    ...             node = ir.Node(product, node.ins * 2, node.out, node.location)
    ...         nodes.append(node)
    ...     return ir.Graph(graph.inputs, graph.avals, tuple(nodes), graph.outputs)
    >>> with ir.register_pass(square_by_product):
    ...     print(gt.jit(gt.square).lower(gt.ones(2)).as_text())
    graph(%0: f32[2]) {
      %1: f32[2] = mul(%0, %0)
      return %1
    }
    """
    if isinstance(rewrite, Pass):
        if name is not None:
            rewrite = Pass(name, rewrite.run)
    else:
        if not callable(rewrite):
            got = type(rewrite).__name__
            raise ArgumentError(message("register_pass", "a Pass or a function", got, "Pass a function of a graph."))
        name = getattr(rewrite, "__name__", "") if name is None else name
        rewrite = Pass(name, rewrite)
    if not isinstance(rewrite.name, str) or rewrite.name in ("", "<lambda>"):
        raise ArgumentError(message("register_pass", "a name", repr(rewrite.name), "Pass name=..., for errors."))
    registered.add(rewrite)
    return Registration(rewrite)


def unregister_pass(name: str | Pass) -> None:
    """Undo `register_pass`.

    Raises:
        ArgumentError: no such pass is registered.

    >>> from gtrace import ir
    >>> _ = ir.register_pass(ir.cse)
    >>> ir.unregister_pass("cse")
    """
    registered.remove(name.name if isinstance(name, Pass) else name)


def rewritten(graph: Graph, passes: Passes) -> Graph:
    """Apply the user's passes to a program and its sub-graphs.

    Raises:
        GraphError: a pass raised, or broke a rule; the message names it.
    """
    if passes:
        graph = spelled_out(graph)  # a name no longer says what a rewritten body computes
    for user_pass in passes:
        graph = _apply(user_pass, graph)
    return graph


def _apply(user_pass: Pass, graph: Graph) -> Graph:
    def inside(sub: Subgraph) -> Subgraph:
        return sub.memo(("user pass", user_pass), lambda: subgraph(_apply(user_pass, sub.graph)))

    if has_calls(graph):
        nodes = tuple(map_subgraphs(node, inside) for node in graph.nodes)
        graph = Graph(graph.inputs, graph.avals, nodes, graph.outputs)
    fix = f"Correct the pass, or remove it with gtrace.ir.unregister_pass({user_pass.name!r})."
    try:
        after = user_pass.run(graph)
    except Exception as error:
        raise GraphError(
            f"[pass {user_pass.name}] expected a pass that returns a graph, got {type(error).__name__}: {error}. {fix}"
        ) from error
    check_pass(f"pass {user_pass.name}", graph, after, fix)
    return after
