"""Named functions: a call is one recorded operation, for which a device may have a kernel.

The operation has a name, settings, and a body: the program of the function. So nothing has to be found again in a
program. Its derivative is a named call too, such as ``layer_norm_gradient``. `core/passes/named_calls` puts a kernel in
place of a call that it knows, and the body in place of any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.core.base.config import config
from gtrace.core.ir.aval import Bundle, bundle
from gtrace.core.ir.graph import Graph, Node, Subgraph
from gtrace.core.ir.op import Op, define
from gtrace.core.ir.subgraph import select
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind_all
from gtrace.core.trace.capture import replay
from gtrace.core.trace.record import thread
from gtrace.core.transform.batch import batch
from gtrace.core.transform.subgraph_rules import batched as batched_graph
from gtrace.core.transform.subgraph_rules import captured_subgraph, floating, pullback, pushforward

GRADIENT = "_gradient"
"""What follows the name of a function in that of its derivative."""


def _never(batched: tuple[bool, ...], settings: Any) -> bool:
    return False


@attrs.frozen(eq=False)
class NamedFunction:
    """A function of Arrays whose calls are single operations.

    Attributes:
        name: of the operation.
        takes_batch: (flags of batched operands, settings) -> whether a batch in front leaves the function the same.
        gradient_takes_batch: the same for the derivative, whose settings end with flags of the wanted cotangents.
    """

    name: str
    takes_batch: Callable[..., bool] = _never
    gradient_takes_batch: Callable[..., bool] = _never

    def __attrs_post_init__(self) -> None:
        _functions[self.name] = self

    def __call__(
        self, function: Callable[[Sequence[Array]], Sequence[Array]], operands: Sequence[Array], *settings: Any
    ) -> Sequence[Array]:
        """Record a call, and return its results. In eager mode and for a layout, operations are recorded one by one.

        Args:
            function: gives the results from the operands alone.
            settings: what a kernel must know: numbers, flags.
        """
        if thread.layout is not None or (thread.trace.capture is None and config.current.eager):
            return function(operands)
        body = captured_subgraph(function, [x.aval.plain for x in operands])
        return bind_all(named_call, operands, (self.name, settings, body))


_functions: dict[str, NamedFunction] = {}
"""By name."""


def _run(programs: Sequence[Callable[..., Any]], *operands: Any, name: str, settings: Any) -> Any:
    return programs[0](operands)


def _result(avals: Sequence[Any], name: str, settings: Any, body: Subgraph) -> Bundle:
    return bundle(body.graph.out_avals)


def _vjp(cts: Any, needed: Any, *rest: Any, name: str, settings: Any, body: Subgraph) -> list[Array | None]:
    wanted, given = tuple(needed), tuple(ct is not None for ct in cts)
    joint, held = pullback(body, wanted, given)
    backward = select(joint, range(len(cts), len(joint.graph.outputs)))
    operands = [*rest[:-1], *[ct for ct in cts if ct is not None], *held]
    # kernels for derivatives take the cotangent of the first result
    if name in _functions and given[0] and not any(given[1:]) and not held:
        grads = iter(bind_all(named_call, operands, (name + GRADIENT, (*settings, wanted), backward)))
    else:
        grads = iter(replay(_without_lines(backward), operands))
    return [next(grads) if flag else None for flag in wanted]


def _jvp(ts: Any, *rest: Any, name: str, settings: Any, body: Subgraph) -> list[Array | None]:
    wanted = floating(body.graph.out_avals)
    pushed, held = pushforward(body, tuple(t is not None for t in ts), wanted)
    tangents = select(pushed, range(len(wanted), len(pushed.graph.outputs)))
    moved = iter(replay(_without_lines(tangents), [*rest[:-1], *[t for t in ts if t is not None], *held]))
    return [next(moved) if flag else None for flag in wanted]


def _batch(
    op: Op, size: int, batched: Sequence[bool], operands: Sequence[Array], name: str, settings: Any, body: Subgraph
) -> list[tuple[Array, bool]]:
    if not _takes_batch(name, tuple(batched), settings):
        return batch(_without_lines(body), size, operands, batched)
    sub, reached, held = batched_graph(body, size, tuple(batched), (False,) * len(body.graph.outputs))
    return list(zip(bind_all(op, (*operands, *held), (name, settings, sub)), reached, strict=True))


def _takes_batch(name: str, batched: tuple[bool, ...], settings: Any) -> bool:
    function, derived = _functions.get(name), _functions.get(name.removesuffix(GRADIENT))
    if function is not None:
        return function.takes_batch(batched, settings)
    return derived is not None and derived.gradient_takes_batch(batched, settings)


def _without_lines(sub: Subgraph) -> Graph:
    """Return the program of a sub-graph, whose operations get the line of the call that records them."""

    def make() -> Graph:
        nodes = tuple(Node(node.instr, node.ins, node.out) for node in sub.graph.nodes)
        return Graph(sub.graph.inputs, sub.graph.avals, nodes, sub.graph.outputs)

    found: Graph = sub.memo("without lines", make)
    return found


named_call = define(
    "named_call", params=("name", "settings", "body"), arity=None, body=_run, result=_result, vjp=_vjp, jvp=_jvp,
    batch=_batch, inlined=lambda graph: True, lowered=True, elsewhere="test_named_calls: the same formulas by hand",
)  # fmt: skip
