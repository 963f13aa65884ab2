"""Named functions: a call is one recorded operation, for which a device may have a kernel.

The operation has a name, settings, and a body: the program of the function. So nothing has to be found again in a
program. Its derivative is a named call too, such as ``layer_norm_gradient``. `core/passes/named_calls` puts a kernel in
place of a call that it knows, and the body in place of any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gtrace.core.base.bounded_tables import SMALL
from gtrace.core.base.config import config
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.base.mechanisms import NAMED_CALLS
from gtrace.core.ir.aval import Aval, Bundle, bundle
from gtrace.core.ir.graph import DeferredSubgraph, Graph, Node, Subgraph
from gtrace.core.ir.interning import InternTable
from gtrace.core.ir.named_kernels import GRADIENT
from gtrace.core.ir.op import Op, define
from gtrace.core.ir.subgraph import select
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import bind_all
from gtrace.core.trace.capture import replay
from gtrace.core.trace.record import thread
from gtrace.core.transform.batch import batch
from gtrace.core.transform.subgraph_rules import batched as batched_graph
from gtrace.core.transform.subgraph_rules import captured_subgraph, floating, pullback, pushforward


def _never(batched: tuple[bool, ...], settings: Any) -> bool:
    return False


Avals = Sequence[Aval]

Kernel = Callable[[Avals, Any], Callable[..., Any] | None]
"""(types of operands, settings) -> torch's function of the operands that gives the results; None: there is none."""


def _unknown(avals: Avals, settings: Any) -> Any:
    return None


def _one(settings: Any) -> int:
    return 1


@attrs.frozen(eq=False)
class NamedFunction:
    """A function of Arrays whose calls are single operations.

    Attributes:
        name: of the operation.
        results: (types of operands, settings) -> types of results. If these are known, the body of a call is captured
            only once somebody reads it. The function must then be one of its operands and the settings, for operands of
            other sizes too. None: not known.
        kernel, gradient_kernel: what runs a call, and one of the derivative, before its program was prepared. The
            settings of the derivative end with flags of the wanted cotangents.
        takes_batch: (flags of batched operands, settings) -> whether a batch in front leaves the function the same.
        gradient_takes_batch: the same for the derivative, whose settings end with flags of the wanted cotangents.
        operations: settings -> how many operations of torch a call makes, or one of the derivative.
    """

    name: str
    takes_batch: Callable[..., bool] = _never
    gradient_takes_batch: Callable[..., bool] = _never
    results: Callable[[Avals, Any], tuple[Aval, ...] | None] = _unknown
    kernel: Kernel = _unknown
    gradient_kernel: Kernel = _unknown
    operations: Callable[[Any], int] = _one

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
        body = self._body(function, settings, tuple([x.aval.plain for x in operands]))
        return bind_all(named_call, operands, (self.name, settings, body))

    def _body(self, function: Callable[..., Any], settings: Any, avals: tuple[Aval, ...]) -> Subgraph:
        types = self.results(avals, settings)
        if types is None:
            return captured_subgraph(function, avals)

        def made() -> DeferredSubgraph:
            retyped = functools.partial(self._body, function, settings)
            count = self.operations(settings)
            return DeferredSubgraph(types, lambda: captured_subgraph(function, avals), retyped, count)

        return _bodies.intern(exact_key((self.name, settings, avals)), made)


_functions: dict[str, NamedFunction] = {}
"""By name."""

_bodies: InternTable[Subgraph] = InternTable(weigh=SMALL)


def _run(programs: Sequence[Callable[..., Any]], *operands: Any, name: str, settings: Any) -> Any:
    return programs[0](operands)


def _result(avals: Sequence[Any], name: str, settings: Any, body: Subgraph) -> Bundle:
    return bundle(body.out_avals)


def _direct(avals: Avals, name: str, settings: Any, body: Subgraph) -> Callable[..., Any] | None:
    function, derived = _functions.get(name), _functions.get(name.removesuffix(GRADIENT))
    made = None
    if NAMED_CALLS.on and function is not None:
        made = function.kernel(avals, settings)
    elif NAMED_CALLS.on and derived is not None:
        made = derived.gradient_kernel(avals, settings)
    if made is not None:
        NAMED_CALLS.used()
    return made


def _derived(
    avals: Avals, needed: Sequence[bool], given: Sequence[bool], name: str, settings: Any, body: Subgraph
) -> tuple[Any, ...] | None:
    """Return the attributes of the call that is the derivative, whose types are those of the operands."""
    wanted = tuple(needed)
    if not body.deferred or name not in _functions or not given[0] or any(given[1:]) or any(a.weak for a in avals):
        return None
    types = tuple([a for a, flag in zip(avals, wanted, strict=True) if flag])

    def make() -> Subgraph:
        joint, held = pullback(body, wanted, tuple(given))
        assert not held, "a named function has no rules of the user"
        return select(joint, range(len(given), len(joint.graph.outputs)))

    def retyped(operands: tuple[Aval, ...]) -> Subgraph:
        assert isinstance(body, DeferredSubgraph) and body.retyped is not None, "it is not deferred otherwise"
        own = operands[:-1]  # without the cotangent
        found = _derived(own, needed, given, name, settings, body.retyped(own))
        assert found is not None, "sizes change nothing of what was asked"
        made: Subgraph = found[2]
        return made

    given_settings = (*settings, wanted)
    key = name + GRADIENT, given_settings, (*avals, body.out_avals[0])
    again = retyped if getattr(body, "retyped", None) is not None else None
    count = _functions[name].operations(given_settings)
    made = _bodies.intern(exact_key(key), lambda: DeferredSubgraph(types, make, again, count))
    return name + GRADIENT, given_settings, made


def _vjp(cts: Any, needed: Any, *rest: Any, name: str, settings: Any, body: Subgraph) -> list[Array | None]:
    wanted, given = tuple(needed), tuple(ct is not None for ct in cts)
    derived = _derived([x.aval for x in rest[:-1]], wanted, given, name, settings, body)
    if derived is not None:
        grads = iter(bind_all(named_call, [*rest[:-1], cts[0]], derived))
        return [next(grads) if flag else None for flag in wanted]
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
    direct=_direct, derived=_derived,
    batch=_batch, inlined=lambda graph: True, lowered=True, elsewhere="test_named_calls: the same formulas by hand",
)  # fmt: skip
