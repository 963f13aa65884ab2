"""``custom_vjp`` and ``custom_jvp``: functions with user-defined derivatives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from gtrace.core import ops
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, ClosureError, RuleError, message, user_location
from gtrace.core.ir.aval import Aval, Bundle, bundle
from gtrace.core.ir.graph import Graph, Subgraph
from gtrace.core.ir.op import Instr, Op, define
from gtrace.core.ir.rules import Rules
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.ops.batching import spread
from gtrace.core.ops.shape import constant
from gtrace.core.trace.array import Array
from gtrace.core.trace.bind import emit_all
from gtrace.core.trace.capture import capture, replay
from gtrace.core.trace.convert import lift
from gtrace.core.trace.force import is_placeholder
from gtrace.core.trace.lifted_numbers import lift_numbers
from gtrace.core.trace.promotion import of_user
from gtrace.core.trace.record import thread, thread_has
from gtrace.core.transform.arguments import is_array, lift_outputs, name_of, only_arrays
from gtrace.core.transform.batch import batch
from gtrace.core.transform.custom_values import CustomCall, cotangents_of, floating_like
from gtrace.core.transform.subgraph_rules import batched as batched_graph
from gtrace.core.transform.tape import pull_some, record
from gtrace.core.transform.vmap import without_batch

__all__ = ["custom_jvp", "custom_vjp"]

Rule = Callable[..., list[Any]]
"""(cotangents, needed, *operands, out, body=...) -> cotangents, or (tangents, *operands, out, body=...) -> tangents."""


def _run(programs: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    return programs[0](operands)


def _result(avals: Sequence[Any], body: Subgraph) -> Bundle:
    return bundle(body.graph.out_avals)


def _without_rule(*_: Any, **__: Any) -> Any:
    fix = "The text of a program holds no rules: differentiate and batch the function before it becomes text."
    raise ArgumentError(message("custom_call", "the rules of its function", "a program that was read", fix))


custom_call = define(
    "custom_call", params=("body",), arity=None, body=_run, result=_result, vjp=_without_rule, batch=_without_rule,
    inlined=lambda graph: True, elsewhere="test_rules: the body, and derivatives stated by hand",
)  # fmt: skip
"""A call of a body that has rules of its user."""


def with_rules(vjp: Rule, jvp: Rule | None, batch: Callable[..., Any] | None = None, count: int | None = None) -> Op:
    """Return the operation that calls a body and differentiates it by these rules, also for a batch of examples.

    Args:
        count: how many operands are arguments; the others are what the body closes over. None: all are arguments.
        batch: the rule for a batch, as `Rules` has it; None: the body and the rules are batched.
    """

    def batch_rule(op: Op, size: int, batched: Sequence[bool], given: Sequence[Array], body: Subgraph) -> Any:
        return _batched_call(body, vjp, jvp, size, tuple(batched), given, count)

    # `attrs.evolve` would take as long as the operations of a short body
    rules = Rules(
        result=_result, vjp=vjp, jvp=jvp, batch=batch or batch_rule, body=_run, inlined=custom_call.rules.inlined
    )
    return Op(custom_call.name, custom_call.impl, custom_call.params, None, rules=rules)


def call_with_rules(op: Op, body: Subgraph, operands: Sequence[Array]) -> list[Array]:
    """Record a call of `body` by an operation with user-defined rules.

    The instruction equals that of any call of the same body. So the rules do not enter the program's key or signature.
    They stay attached to it until the program is complete. Each call has its own instruction, so no two programs with
    rules are equal: an earlier recording of a rule never replaces a new one.
    """
    plain = custom_call.instr((body,), tuple([x.aval for x in operands]))
    return emit_all(Instr(op, plain.params, plain.ins, plain.aval, plain), operands)


def _constant_outputs(graph: Graph, count: int | None) -> tuple[bool, ...]:
    """Return which outputs follow from no argument: the rule may give examples other derivatives of them."""
    moving = set(graph.inputs[:count])
    for node in graph.nodes:
        if not moving.isdisjoint(node.values()):
            moving.add(node.out)
    return tuple([out not in moving and a.floating for out, a in zip(graph.outputs, graph.out_avals, strict=True)])


def _batched_call(
    single: Subgraph, vjp: Rule, jvp: Rule | None, size: int, flags: tuple[bool, ...], operands: Sequence[Array],
    count: int | None,
) -> list[tuple[Array, bool]]:  # fmt: skip
    """Record the call for a batch. The body is batched now, a rule, for the body of one example, when it is used."""
    sub, reached, held = batched_graph(single, size, flags, _constant_outputs(single.graph, count))

    def example(x: Array, flag: bool) -> Any:
        return without_batch(x.aval) if flag else x.aval

    def many(rule: Callable[..., list[Any]], moved: Sequence[Any], of_moved: Sequence[bool], values: Any) -> list[Any]:
        """Run a rule on cotangents or tangents, some None, and operands of each example; return flagged results."""
        places = [k for k, x in enumerate(moved) if x is not None]
        present: list[bool] = []

        def run(examples: Sequence[Array]) -> Any:
            each: list[Array | None] = [None] * len(moved)
            for k, x in zip(places, examples, strict=False):
                each[k] = x
            results = rule(each, examples[len(places) :])
            present.extend(x is not None for x in results)
            return [x for x in results if x is not None], None

        inputs, given = [*[moved[k] for k in places], *values], [*[of_moved[k] for k in places], *flags]
        captured = capture(run, [example(x, f) for x, f in zip(inputs, given, strict=True)], "a rule under vmap")
        every = (*given, *[False] * len(captured.constants))
        values = iter(batch(captured.graph, size, (*inputs, *captured.constants), every))
        return [next(values) if there else None for there in present]

    def batched_vjp(cts: Any, needed: Any, *rest: Any, body: Subgraph) -> list[Array | None]:
        grads = many(lambda each, xs: vjp(each, needed, *xs, None, body=single), cts, reached, rest[: len(flags)])
        out: list[Array | None] = []
        for g, flag in zip(grads, flags, strict=True):
            if g is None:
                out.append(None)
            else:
                x, has = g
                out.append(x if has == flag else spread(x, size) if flag else ops.sum(x, 0))
        return [*out, *[None] * len(held)]

    def batched_jvp(ts: Any, *rest: Any, body: Subgraph) -> list[Array | None]:
        assert jvp is not None
        count = len(flags)
        moved = many(lambda each, xs: jvp(each, *xs, None, body=single), ts[:count], flags, rest[:count])
        return [
            None if t is None else t[0] if t[1] == flag else spread(t[0], size)
            for t, flag in zip(moved, reached, strict=True)
        ]

    op = with_rules(batched_vjp, None if jvp is None else batched_jvp, count=count)
    results = call_with_rules(op, sub, (*operands, *held))
    return list(zip(results, reached, strict=True))


# -- the functions


def _defaults(f: Callable[..., Any]) -> list[Any]:
    """Return the defaults of a function's arguments by position; `inspect.Parameter.empty` for those that have none."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return []
    return [p.default for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


class _Custom:
    """The common parts of `custom_vjp` and `custom_jvp`."""

    _name = ""
    _states = ""
    """The call that sets the rule, for errors."""

    def __init__(
        self,
        f: Callable[..., Any],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        if not callable(f):
            raise ArgumentError(message(self._name, "a function", type(f).__name__, "Pass a callable."))
        self.__wrapped__ = f
        self.__name__ = name_of(f)
        self.__doc__ = f.__doc__
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        self._defaults = _defaults(f)
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else tuple(nondiff_argnames)
        places = {name: k for k, name in enumerate(inspect.signature(f).parameters)} if names else {}
        unknown = [name for name in names if name not in places]
        if unknown:
            got = ", ".join(places) or "none"
            fix = "Name arguments of the function."
            raise ArgumentError(message(self._name, f"an argument called {unknown[0]}", got, fix))
        self._nondiff = (*numbers, *[places[name] for name in names])

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def _call(self, *args: Any) -> Any:
        """Capture the function for these arguments, and record a call of it with the rules."""
        nondiff = {k % len(args) for k in self._nondiff if -len(args) <= k < len(args)}
        static = {k: args[k] for k in sorted(nondiff)}
        dynamic = tuple([x for k, x in enumerate(args) if k not in nondiff]) if nondiff else args
        arrays, structure = tree.flatten(dynamic)
        if not only_arrays(arrays):
            for k, leaf in enumerate(arrays):
                if not is_array(leaf):
                    got = f"{type(leaf).__name__} at args{tree.paths(dynamic)[k]}"
                    raise ArgumentError(message(self._name, "arrays or numbers", got, "Name it in nondiff_argnums."))
            arrays = [lift(self._name, x) for x in arrays]

        others = tree.leaves(static)
        traced = tuple([k for k, x in enumerate(others) if type(x) is Array and is_placeholder(x)])
        call = CustomCall(len(arrays), structure, structure, static, traced)
        arrays = [*arrays, *[others[k] for k in traced]]

        def run(inputs: Sequence[Array]) -> Any:
            rebuilt = call.arguments(inputs)
            return lift_outputs(self._name, self.__wrapped__(*_merge(call.static(inputs), rebuilt)))

        name = f"{self.__name__} called at {user_location()}"
        captured = capture(run, [x.aval for x in arrays], name, repeated=True, given=arrays)
        captured = lift_numbers(captured, self._name)
        operands = [*arrays, *captured.constants]
        closed = {k: x for k, x in enumerate(operands) if k >= len(arrays) and is_placeholder(x)}
        op = self._with_rules(attrs.evolve(call, out_structure=captured.result, closed=closed))
        return captured.result.unflatten(call_with_rules(op, subgraph(captured.graph), operands))

    def _with_rules(self, call: CustomCall) -> Op:
        """Return the operation for calls with this split of arguments."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; derivatives of the call use the rule."""
        if kwargs:
            bound = inspect.signature(self.__wrapped__).bind(*args, **kwargs)
            bound.apply_defaults()
            if bound.kwargs:
                got = ", ".join(bound.kwargs)
                raise ArgumentError(message(self._name, "arguments that have a position", got, "Make them positional."))
            args = bound.args
        elif len(args) < len(self._defaults):
            args = (*args, *[x for x in self._defaults[len(args) :] if x is not inspect.Parameter.empty])
        if not self._stated():
            raise RuleError(message(self._name, "a rule", "none", f"Call {self.__name__}.{self._states}."))
        if thread.trace.tape is None and thread.trace.capture is None:
            return self.__wrapped__(*args)
        return self._call(*args)

    def _stated(self) -> bool:
        raise NotImplementedError

    def _zero(self, a: Aval) -> Any:
        """Return what a rule gets for a tangent or cotangent that is zero."""
        return constant(0, a)

    def _for_forward(self, arguments: Sequence[Any], needed: Sequence[bool]) -> Sequence[Any]:
        """Return what the forward rule gets for the differentiated arguments; `needed` flags their leaves."""
        return arguments


class custom_vjp(_Custom):  # noqa: N801 - a decorator
    """A function with a user-defined reverse-mode rule, which `defvjp` sets.

    Args:
        f: the function, over pytrees.
        nondiff_argnums, nondiff_argnames: arguments that are not differentiated: any Python values.

    A gradient calls `fwd` with the arguments of `f`; it returns (output, residuals). Then it calls `bwd` with the
    non-differentiated arguments, the residuals and the output's cotangent. `bwd` returns a tuple with one cotangent
    for each other argument (None: zero). Forward mode transposes `bwd`.

    >>> @gt.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda residuals, ct: (gt.clip(ct, -1, 1),))
    >>> gt.grad(lambda x: 5 * clipped(x))(2.0)
    Array(1., dtype=float32)
    """

    _name, _states = "custom_vjp", "defvjp(fwd, bwd)"
    _fwd: Callable[..., Any] | None = None
    _bwd: Callable[..., Any] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the rule; see the class."""
        self._fwd, self._bwd = fwd, bwd

    def _stated(self) -> bool:
        return self._fwd is not None and self._bwd is not None

    def _with_rules(self, call: CustomCall) -> Op:
        assert self._fwd is not None and self._bwd is not None
        if call.traced:
            fix = "Pass them as arguments that are differentiated; their cotangents may be None."
            got = "placeholders of a function that is traced"
            raise ClosureError(message("custom_vjp", "Python values for nondiff_argnums", got, fix))
        fwd, bwd = of_user(self._fwd), of_user(self._bwd)

        def vjp(cts: Any, needed: Any, *rest: Any, body: Subgraph) -> list[Array | None]:
            call.refuse_constants("custom_vjp", needed)
            operands, static = rest[: call.count], call.static(rest)
            with call.standing_in(rest):
                pair = fwd(*_merge(static, self._for_forward(call.arguments(operands), needed)))
            if not isinstance(pair, tuple) or len(pair) != 2:
                got = type(pair).__name__
                raise ArgumentError(message("custom_vjp", "(output, residuals) from fwd", got, "Return a pair."))
            call.check_value("custom_vjp", pair[0], body)
            outs = body.graph.out_avals
            full = [self._zero(a) if ct is None else ct for ct, a in zip(cts, outs, strict=True)]
            with call.standing_in(rest):
                grads = bwd(*static.values(), pair[1], call.out_structure.unflatten(full))
            return [*cotangents_of(grads, call, operands), *[None] * (len(rest) - 1 - call.count)]

        return with_rules(vjp, None, count=call.count)


class custom_jvp(_Custom):  # noqa: N801 - a decorator
    """A function with a user-defined forward-mode rule, which `defjvp` sets; gradients transpose it.

    Args:
        f: the function, over pytrees.
        nondiff_argnums, nondiff_argnames: arguments that are not differentiated: any Python values.

    The rule takes the non-differentiated arguments, a tuple of the other arguments, and a tuple of their tangents. It
    returns (output, tangent of the output), and is linear in the tangents.

    >>> @gt.custom_jvp
    ... def log1pexp(x):
    ...     return gt.log(1 + gt.exp(x))
    >>> @log1pexp.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return log1pexp(x), t * (1 - 1 / (1 + gt.exp(x)))
    >>> gt.grad(log1pexp)(100.0)
    Array(1., dtype=float32)
    """

    _name, _states = "custom_jvp", "defjvp(rule)"
    _rule: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule; see the class. Returns it, so it works as a decorator."""
        self._rule = jvp
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set one rule per argument: it maps (tangent, output, *arguments) to a term of the output's tangent."""

        def rule(*everything: Any) -> Any:
            static, primals, tangents = everything[:-2], everything[-2], everything[-1]
            total = len(static) + len(primals)
            places = sorted({k % total for k in self._nondiff if -total <= k < total})
            out = self(*_merge(dict(zip(places, static, strict=True)), primals))
            parts = [f(t, out, *primals) for f, t in zip(jvps, tangents, strict=True) if f is not None]
            if not parts:
                return out, tree.map(lambda y: y * 0, out)
            return out, tree.map(lambda *ts: sum(ts[1:], start=ts[0]), *parts)

        self.defjvp(rule)

    def _stated(self) -> bool:
        return self._rule is not None

    def _with_rules(self, call: CustomCall) -> Op:
        assert self._rule is not None
        rule = of_user(self._rule)

        def jvp(ts: Any, *rest: Any, body: Subgraph) -> list[Array | None]:
            call.refuse_constants("custom_jvp", [t is not None for t in ts])
            operands, static = rest[: call.count], call.static(rest)
            full = [self._zero(x.aval) if t is None else t for t, x in zip(ts, operands, strict=False)]
            with call.standing_in(rest):
                pair = rule(*static.values(), tuple(call.arguments(operands)), tuple(call.arguments(full)))
            if not isinstance(pair, tuple) or len(pair) != 2:
                got = type(pair).__name__
                raise ArgumentError(message("custom_jvp", "(output, tangent) from the rule", got, "Return a pair."))
            outs = call.check_value("custom_jvp", pair[0], body)
            return floating_like("custom_jvp", "tangent from the rule", pair[1], call.out_structure, outs)

        def vjp(cts: Any, needed: Any, *rest: Any, body: Subgraph) -> list[Array | None]:
            if not thread.linear:
                call.refuse_constants("custom_jvp", needed)
            return transposed(jvp, cts, needed, rest[:-1], body)

        return with_rules(vjp, jvp, count=call.count)


def transposed(
    jvp: Rule, cts: Any, needed: Sequence[bool], operands: Sequence[Array], body: Subgraph
) -> list[Array | None]:
    """Return the cotangents of a call that has a rule for tangents; None where there is none."""
    chosen = [k for k, flag in enumerate(needed) if flag and operands[k].aval.floating]
    if thread.linear:
        # of a tangent there is no derivative for the rule to give: as in JAX, the call is its body
        return _pulled(list(operands), chosen, cts, lambda values: replay(body.graph, values))

    def forward(ts: list[Any]) -> list[Array | None]:
        return jvp([t if k in chosen else None for k, t in enumerate(ts)], *operands, None, body=body)

    zeros: list[Any] = [constant(0, x.aval) if k in chosen else None for k, x in enumerate(operands)]
    with thread_has(linear=True):
        return _pulled(zeros, chosen, cts, forward)


def _pulled(
    values: list[Array], chosen: Sequence[int], cts: Sequence[Array | None], function: Callable[[list[Array]], Any]
) -> list[Array | None]:
    """Return the cotangents of the chosen ones of the arguments of a function; None for the others."""

    def run(copies: list[Array]) -> Any:
        for k, x in zip(chosen, copies, strict=True):
            values[k] = x
        return function(values)

    outs, tape = record([values[k] for k in chosen], run)
    pairs = [(out, ct) for out, ct in zip(outs, cts, strict=True) if out is not None and ct is not None]
    grads: list[Array | None] = [None] * len(values)
    for k, g in zip(chosen, pull_some(tape, [out for out, _ in pairs], [ct for _, ct in pairs]), strict=True):
        grads[k] = g
    return grads


def _merge(static: Mapping[int, Any], others: Sequence[Any]) -> Sequence[Any]:
    """Return all arguments of a call, with the static ones at their positions."""
    if not static:
        return others
    moving = iter(others)
    return [static[k] if k in static else next(moving) for k in range(len(static) + len(others))]
