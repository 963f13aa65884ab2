"""Passes and pipelines: named graph rewrites that run in order, with a check after each."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from gtrace.core.base import mechanisms
from gtrace.core.base.config import config
from gtrace.core.base.errors import GraphError
from gtrace.core.base.mechanisms import Mechanism
from gtrace.core.ir.equality import keeps_values
from gtrace.core.ir.graph import Graph
from gtrace.core.ir.simplify import (
    cse,
    dce,
    fold,
    join_parts,
    merge_batches,
    move_transposes,
    order_operands,
    remove_identities,
)
from gtrace.core.ir.verify import broken_rule


@attrs.frozen
class Pass:
    """A named rewrite. Two passes are equal if their names and functions are.

    Attributes:
        name: its name in error messages.
        run: takes a graph and returns one that computes the same from the same inputs. It must depend on the graph
            alone.
        mechanism: its switch; None: it always runs.
        compared: whether each value that it computes anew is evaluated both ways. If one differs, the graph stays.

    >>> from gtrace import ir
    >>> b = ir.Builder()
    >>> x = b.input((3,), gt.float32)
    >>> dead, y = b.op("sin", x), b.op("cos", x)
    >>> print(ir.Pass("dead_code", ir.dce).run(b.graph(y)))
    graph(%0: f32[3]) {
      %2: f32[3] = cos(%0)
      return %2
    }
    """

    name: str
    run: Callable[[Graph], Graph] = attrs.field(eq=id, repr=False)
    mechanism: Mechanism | None = attrs.field(default=None, eq=False, repr=False)
    compared: bool = attrs.field(default=False, eq=False, repr=False)

    def apply(self, graph: Graph) -> Graph:
        """Return the rewritten graph, or `graph` itself if the pass is switched off."""
        mechanism = self.mechanism
        if mechanism is None:
            return self.run(graph)
        if not mechanism.on:
            return graph
        after = self.run(graph)
        if self.compared and not keeps_values(graph, after):
            return graph
        if mechanism.wanted and (after.nodes, after.outputs) != (graph.nodes, graph.outputs):
            mechanism.used()
        return after


@attrs.frozen
class Pipeline:
    """Passes that run one after the other. With ``GT_VERIFY_PASSES=1`` the verifier runs after each.

    Attributes:
        name: its name in error messages.
        passes: in running order; a pipeline may contain pipelines.
        when: a predicate that selects the graphs to run on; None: all.

    >>> from gtrace import ir
    >>> print(ir.SUBGRAPH)
    subgraph: without_named_calls, remove_identities, dce, fold, join_parts, dce, cse, dce, renumber
    """

    name: str
    passes: tuple[Pass | Pipeline, ...]
    when: Callable[[Graph], bool] | None = attrs.field(default=None, eq=id, repr=False)

    def run(self, graph: Graph) -> Graph:
        """Return `graph` after all passes.

        Raises:
            GraphError: with ``GT_VERIFY_PASSES=1``: a pass broke a rule; the message names the pass and the rule.
        """
        if self.when is not None and not self.when(graph):
            return graph
        verifying, checked = config.current.verify_passes, None
        for step in self.passes:
            after = step.apply(graph) if isinstance(step, Pass) else step.run(graph)
            if verifying and isinstance(step, Pass) and not (after is graph is checked):
                check_pass(f"{self.name}: {step.name}", graph, after)
                checked = after
            graph = after
        return graph

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(step.name for step in self.passes)}"


def check_pass(name: str, before: Graph, after: Graph, fix: str = "Fix the pass.") -> None:
    """Check the result of the pass `name`: SSA rules hold, and the types of inputs and outputs stay.

    Raises:
        GraphError: the first broken rule.
    """
    rule = broken_rule(after)
    if rule is None:
        for what, old, new in (("inputs", before.avals, after.avals), ("outputs", before.out_avals, after.out_avals)):
            # a result has a sharding only if it is an input
            if [a.plain for a in old] != [a.plain for a in new]:
                rule = f"expected {what} {list(old)}, as before the pass, got {list(new)}"
                break
    if rule is not None:
        raise GraphError(f"[{name}] expected a pass that keeps the rules of a graph, got a broken one: {rule}. {fix}")


REMOVE_IDENTITIES = Pass("remove_identities", remove_identities)
DCE = Pass("dce", dce)
FOLD = Pass("fold", fold, mechanisms.FOLD)
JOIN_PARTS = Pass("join_parts", join_parts, mechanisms.JOIN_PARTS)
MERGE_BATCHES = Pass("merge_batches", merge_batches, mechanisms.MERGE_BATCHES, compared=True)
MOVE_TRANSPOSES = Pass("move_transposes", move_transposes, mechanisms.MOVE_TRANSPOSES)
ORDER_OPERANDS = Pass("order_operands", order_operands, mechanisms.ORDER_OPERANDS)
CSE = Pass("cse", cse, mechanisms.CSE)
