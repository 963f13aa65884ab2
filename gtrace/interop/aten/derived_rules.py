"""Rules of operators that torch has: its derivatives and batched forms, traced and recorded.

A rule is traced for a call and the types of its operands, and then for open sizes. The trace becomes a graph of
ordinary operations, which is replayed at each use of the rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.bounded_tables import BoundedTable
from gtrace.core.base.errors import DtypeError, message
from gtrace.core.base.exact_keys import exact_key
from gtrace.core.ir.aval import Aval, Bundle
from gtrace.core.trace.array import Array
from gtrace.interop.aten.derive import (
    Derived,
    TensorFunction,
    made_of_torch,
    read_derived,
    recorded,
    strong,
    trace_rule,
)
from gtrace.interop.aten.derived_on_disk import derivations
from gtrace.interop.aten.open_sizes import Opened
from gtrace.interop.aten.overloads import caller, find_overload, new_caller, of_torch
from gtrace.interop.aten.traced_calls import OtherSizesError, TracedCall
from gtrace.interop.aten.versions import Kind, kinds

MAX_RULES = 4096
"""The number of cached derived rules."""


@attrs.frozen(eq=False)
class OperatorCall:
    """A call of an operator, whose rules torch has.

    Attributes:
        overload: its name.
        args: its constants, as text.
        instead: an equal function with derivatives in torch, if it replaces the operator.
    """

    overload: str
    args: tuple[Any, ...]
    instead: TensorFunction | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies the call."""
        return self.overload, self.args

    def function(self) -> TensorFunction:
        """Return a function of the operands that returns a tensor or a list of tensors."""
        return caller(self.overload, self.args, self.instead)

    def pattern(self) -> tuple[Any, ...]:
        """Return the call with `int` in place of the sizes among its constants."""
        return self.overload, *map(self._mapped, range(len(self.args)), [lambda n: int] * len(self.args))

    def sizes(self) -> list[int]:
        """Return the sizes among its constants."""
        found: list[int] = []
        for k in range(len(self.args)):
            self._mapped(k, found.append)
        return found

    def opened(self, sizes: Iterator[Any]) -> TensorFunction:
        """Return the function for other sizes, which may be open."""
        args = tuple([self._mapped(k, lambda n: next(sizes)) for k in range(len(self.args))])
        return new_caller(self.overload, args, self.instead)

    def _mapped(self, place: int, f: Callable[[int], Any]) -> Any:
        """Return a constant with ``f(n)`` in place of its sizes."""
        declared = find_overload(self.overload)._schema.arguments[place]
        entry = self.args[place]
        if "SymInt" not in str(declared.real_type):
            return entry
        if isinstance(entry, tuple):
            return tuple([f(n) if type(n) is int else n for n in entry])
        return f(entry) if type(entry) is int else entry


Make = Callable[[TensorFunction], TensorFunction]
"""(function of a call) -> the function of a rule."""


def remembered(rule: tuple[Any, ...], call: OperatorCall, make: Make, avals: Sequence[Aval]) -> Derived:
    """Return a derived function. It is traced unless this or an earlier process knows it for these or for open sizes.

    Args:
        rule: the kind of rule, and everything else besides the call that it depends on.
    """
    name, *rest = rule
    types = list(map(strong, avals))
    key = ((name, call.key, *rest), *types)
    exact = exact_key(key)
    found = _rules.get(exact)
    if found is None:
        found = _derived(rule, call, make, types, key)
        _rules.remember(exact, found)
    return found


def _derived(rule: tuple[Any, ...], call: OperatorCall, make: Make, avals: list[Aval], key: Hashable) -> Derived:
    pattern = exact_key((rule, call.pattern(), *[(a.dtype, a.ndim, a.device) for a in avals]))
    numbers = call.sizes() + [n for a in avals for n in a.shape]
    kind = _kinds.get(pattern)
    if kind is not None:
        bound: Derived | None = kind.bound(numbers, lambda traced, values: _bound(traced, avals, values))
        if bound is not None:
            return bound
    found = derivations.find(key, read_derived)
    if found is None:
        found = recorded(trace_rule(make(call.function()), avals), avals)
        if not found.constants and of_torch(call.overload) and made_of_torch(found.graph):
            derivations.keep(key, str(found.graph))
    if kind is None:
        _kinds.remember(pattern, Kind(numbers))
    else:
        kind.extend(
            numbers,
            lambda places: _opened(call, make, avals, numbers, places),
            lambda traced, values: found.equals(_bound(traced, avals, values)),
        )
    return found


def _bound(traced: TracedCall, avals: list[Aval], numbers: list[Any]) -> Derived | None:
    """Return a rule with these open numbers; None if the trace does not hold for them."""
    with contextlib.suppress(OtherSizesError):
        return recorded(traced, avals, None, numbers)
    return None


def _opened(call: OperatorCall, make: Make, avals: list[Aval], numbers: list[int], places: Collection[int]) -> Any:
    """Trace a rule with open numbers at some places."""
    opened = Opened()
    rest = iter([opened.open(n) if k in places else n for k, n in enumerate(numbers)])
    function = call.opened(rest)
    opened.shapes += [[next(rest) for _ in a.shape] for a in avals]
    return opened, trace_rule(make(function), avals, opened)


_kinds: BoundedTable[Hashable, Kind[TracedCall]] = kinds()

_rules: BoundedTable[Hashable, Derived] = BoundedTable(MAX_RULES, lambda found: found.weight)


def _listed(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


# -- rules


def vjp(call: OperatorCall, ct: Any, needed: Sequence[bool], operands: Sequence[Array]) -> list[Array | None]:
    """Return the cotangents of a call's operands, with None for those that are not needed.

    Args:
        ct: the cotangent of the result; for several results a list, with None for results without one.

    Raises:
        DtypeError: torch has no derivative of the call.
    """
    several = isinstance(ct, list)
    given = [k for k, c in enumerate(ct) if c is not None] if several else [0]
    cts = [ct[k] for k in given] if several else [ct]
    chosen = [k for k, need in enumerate(needed) if need]

    def make(function: TensorFunction) -> TensorFunction:
        def pullback(*tensors: torch.Tensor) -> list[torch.Tensor]:
            inputs = list(tensors[len(cts) :])
            for k in chosen:
                inputs[k] = inputs[k].detach().requires_grad_()
            active = [inputs[k] for k in chosen]
            results = _listed(function(*inputs))
            pairs = [(results[k], _conjugate(ct)) for k, ct in zip(given, tensors[: len(cts)], strict=True)]
            pairs = [(result, ct) for result, ct in pairs if result.requires_grad]
            if not pairs:
                if _is_special(call):
                    raise NotImplementedError("its derivative is not zero, and torch has none; gt.special may")
                return [torch.zeros_like(x) for x in active]
            outs, grads = zip(*pairs, strict=True)
            # neither torch.func.vjp nor torch.autograd.grad: they import torch.compile, or symbols for sizes
            found = internals.RUN_BACKWARD.get()(
                outs, grads, True, True, tuple(active), allow_unreachable=True, accumulate_grad=False
            )
            return [torch.zeros_like(x) if g is None else _conjugate(g) for x, g in zip(active, found, strict=True)]

        return pullback

    try:
        rule = remembered(("vjp", tuple(chosen), tuple(given)), call, make, [x.aval for x in (*cts, *operands)])
    except (RuntimeError, NotImplementedError, UserWarning) as error:
        raise _underivable(call.overload, error) from error
    grads = rule([*cts, *operands])
    out: list[Array | None] = [None] * len(operands)
    for k, g in zip(chosen, grads, strict=True):
        out[k] = g
    return out


def _is_special(call: OperatorCall) -> bool:
    """Whether a call is of ``torch.special``, where a function that torch takes for constant is one without a rule.

    These are the Bessel and Airy functions, and the orthogonal polynomials. torch's gradient of them is silently 0.
    """
    return call.overload.startswith("aten.special_")


def _conjugate(x: torch.Tensor) -> torch.Tensor:
    # torch's cotangents of complex values are the conjugates of gtrace's, which follow JAX
    return torch.conj_physical(x) if x.is_complex() else x


def _underivable(overload: str, error: Exception) -> DtypeError:
    reason = str(error).strip().split("\n")[0]
    return DtypeError(
        message(overload, "a function that has a derivative", f"one that torch cannot differentiate: {reason}",
                "State a derivative with gt.custom_vjp, or stop the gradient with gt.stop_gradient.")
    )  # fmt: skip


def jvp(
    call: OperatorCall,
    tangents: Sequence[Array | None],
    operands: Sequence[Array],
    result: Aval | Bundle,
) -> Any:
    """Return the tangent of the result, or a list of tangents for several results.

    NotImplemented if torch has no forward derivative; the transposed vjp then replaces it.
    """
    if _is_special(call):
        return NotImplemented
    chosen = [k for k, t in enumerate(tangents) if t is not None]
    moved = [t for t in tangents if t is not None]
    several = isinstance(result, Bundle)
    floating = [k for k, a in enumerate(result.avals) if a.floating] if several else [0]  # type: ignore[union-attr]

    def make(function: TensorFunction) -> TensorFunction:
        def pushforward(*tensors: torch.Tensor) -> list[torch.Tensor]:
            inputs = list(tensors[len(chosen) :])

            def part(*active: torch.Tensor) -> tuple[torch.Tensor, ...]:
                for k, x in zip(chosen, active, strict=True):
                    inputs[k] = x
                results = _listed(function(*inputs))
                return tuple(results[k] for k in floating)

            primals = tuple(inputs[k] for k in chosen)
            return list(torch.func.jvp(part, primals, tuple(tensors[: len(chosen)]))[1])

        return pushforward

    try:
        rule = remembered(("jvp", tuple(chosen)), call, make, [x.aval for x in (*moved, *operands)])
    except (RuntimeError, NotImplementedError, UserWarning):
        return NotImplemented
    found = rule([*moved, *operands])
    if not several:
        return found[0]
    all_tangents: list[Array | None] = [None] * len(result.avals)  # type: ignore[union-attr]
    for k, t in zip(floating, found, strict=True):
        all_tangents[k] = t
    return all_tangents


def batch(call: OperatorCall, batched: Sequence[bool], operands: Sequence[Array], example: Aval | Bundle) -> Any:
    """Return the result for a batch on axis 0, or a list of (result, True) for several results.

    Args:
        example: the type of one example's results.
    """
    dims = tuple(0 if flag else None for flag in batched)

    def make(function: TensorFunction) -> TensorFunction:
        return lambda *tensors: _listed(torch.func.vmap(function, dims)(*tensors))

    def make_one_by_one(function: TensorFunction) -> TensorFunction:
        def each(*tensors: torch.Tensor) -> list[torch.Tensor]:
            size = next(len(t) for t, flag in zip(tensors, batched, strict=True) if flag)
            rows = [
                [t[k].clone() if flag else t for t, flag in zip(tensors, batched, strict=True)] for k in range(size)
            ]
            return [torch.stack(parts) for parts in zip(*[_listed(function(*row)) for row in rows], strict=True)]

        return each

    kind, avals = ("batch", tuple(batched)), [x.aval for x in operands]
    rows = example.avals if isinstance(example, Bundle) else (example,)
    try:
        rule = remembered(kind, call, make, avals)
    except RuntimeError:  # torch batches some operators by a loop, and rejects a few
        rule = remembered(("one by one", *kind), call, make_one_by_one, avals)
    found = rule(operands)
    if [x.aval.shape[1:] for x in found] != [a.shape for a in rows]:  # torch's rule for cdist's gradient adds an axis
        found = remembered(("one by one", *kind), call, make_one_by_one, avals)(operands)
    return [(x, True) for x in found] if isinstance(example, Bundle) else found[0]
