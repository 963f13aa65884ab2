"""Updates of parameters by Adam, as torch's fused kernel: one pass over memory in place of ten.

Updates whose results nothing else of the program reads may be deferred, see `gtrace.core.passes.deferred_updates`.
They are found in what programs compute, whoever wrote them: `gtrace.optim`, other libraries, or formulas by hand.
Only the interpreter runs them so. Compilers fuse the operations themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import Any

import attrs
import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base.errors import GraphError
from gtrace.core.base.mechanisms import ADAM_UPDATE
from gtrace.core.ir.aval import Aval, Bundle, aval, bundle, layout
from gtrace.core.ir.def_use import Values
from gtrace.core.ir.edit import toposort
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.ir.op import REGISTRY, Op
from gtrace.core.ir.rules import Rules
from gtrace.core.ir.simplify import dce
from gtrace.core.passes.deferred_updates import DeferredResult, DeferredUpdate
from gtrace.core.passes.tuned import LEAST_DEFERRED, SMALL_PARAMETER

ROUNDING = 1e-7
"""How far the two factors of a moving average of float32 may be from a sum of 1, as a part of the second one."""

LEAST_KEPT = 0.5
"""The least factor of a parameter in its update; one that is multiplied by less is added to another one."""

Product = tuple[float, tuple[int, ...], tuple[int, ...]]
"""A constant, the places of operands to multiply it by, and of those to divide it by."""

Factor = float | Product


def _evaluated(factor: Product, numbers: Sequence[float]) -> float:
    value, times, by = factor
    for k in times:
        value *= numbers[k]
    for k in by:
        value = value / numbers[k] if numbers[k] else value * math.inf
    return value


def _adam(
    *operands: Any,
    count: int,
    parameter: bool,
    first: tuple[Factor, Factor],
    second: tuple[Factor, Factor],
    eps: Factor,
    rate: Factor,
    within: Factor,
    kept: tuple[float, Factor],
    deferrable: bool,
    over: Collection[int] = (),
) -> list[Any]:
    """Return parameters after a step, or what is added to them, and both moments of each (Kingma and Ba, 2014).

    These are (a + b) p + rate m / (sqrt(within v) + eps), with m and v, the moving averages of g and of its squares,
    and a + b below 1 where weights decay (Loshchilov and Hutter, 2017).

    Args:
        operands: each g, each m, each v, each p if there is a `parameter`, the numbers that the factors name, and, if
            the update is `deferrable`, the list of deferred updates to add it to; None: it is not deferred.
        count: how many parameters there are.
        first, second: of each average the factor of the value before, and that of the new term.
        kept: a and b.
        over: the places of the operands that the results may be written over.

    Returns:
        Each p, each m, each v.
    """  # fmt: skip
    end = (3 + parameter) * count
    deferred: list[DeferredUpdate] | None = operands[-1] if deferrable else None
    numbers = [x.item() for x in operands[end : len(operands) - deferrable]]
    beta1, weight1, beta2, weight2, small, step, inner, share = [
        factor if isinstance(factor, float) else _evaluated(factor, numbers)
        for factor in (*first, *second, eps, rate, within, kept[1])
    ]
    decay = 1.0 - kept[0] - share
    gs, ms, vs, ps = (list(operands[k * count : (k + 1) * count]) for k in range(4))
    if not parameter:
        ps = [torch.zeros_like(m) for m in ms]
    averages = all(_averages(*factors, ms[0].dtype) for factors in ((beta1, weight1), (beta2, weight2)))
    fused = averages and 0.0 < inner < math.inf and math.isfinite(step) and (bool(step) or not decay)
    fused = fused and (not decay or (abs(1.0 - decay) >= LEAST_KEPT and math.isfinite(decay / step)))
    fused = fused and internals.FUSED_UPDATES.available()
    aligned = []
    for k, m in enumerate(ms):
        strides = m.stride()
        aligned.append(strides == vs[k].stride() == ps[k].stride() and _is_dense(m))
        if aligned[k] and gs[k].stride() != strides:  # the kernel goes through the memory of all, in its order
            gs[k] = torch.empty_like(m).copy_(gs[k])
    late = deferred is not None and fused and all(aligned)
    for k in () if late else range(count):
        m, v, p = ms[k], vs[k], ps[k]
        m, v = m if count + k in over else m.clone(), v if 2 * count + k in over else v.clone()
        if parameter and 3 * count + k not in over:
            p = p.clone()
        if not aligned[k]:
            gs[k], m, v, p = (x.contiguous() for x in (gs[k], m, v, p))
        ms[k], vs[k], ps[k] = m, v, p
    if fused:
        root = math.sqrt(inner)
        lr = -step / root
        arrays = ps, gs, ms, vs
        rest: tuple[Any, ...] = [], [_corrected()] * count
        keywords = {
            "lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": decay / lr if decay else 0.0, "eps": small / root,
            "amsgrad": False, "maximize": False,
        }  # fmt: skip
        if late:
            owned = () if parameter else (0,)
            update = DeferredUpdate(_kernel(bool(decay)), arrays, rest, keywords, written=(0, 2, 3), owned=owned)
            deferred.append(update)  # type: ignore[union-attr]
            return [DeferredResult(update, place, k) for place in update.written for k in range(count)]
        _kernel(bool(decay))(*arrays, *rest, **keywords)
        return [*ps, *ms, *vs]
    for k, (g, m, v) in enumerate(zip(gs, ms, vs, strict=True)):
        m.mul_(beta1).add_(g, alpha=weight1)
        v.mul_(beta2).addcmul_(g, g, value=weight2)
        ps[k] = (1.0 - decay) * ps[k] + step * m / ((inner * v).sqrt() + small)
    return [*ps, *ms, *vs]


def _averages(beta: float, weight: float, dtype: torch.dtype) -> bool:
    """Whether these are the factors of a moving average of arrays of a dtype, up to rounding."""
    rounding = ROUNDING * weight if dtype is torch.float32 else torch.finfo(dtype).eps
    return 0.0 <= beta < 1.0 and abs(1.0 - beta - weight) <= rounding


def _is_dense(x: torch.Tensor) -> bool:
    return x.is_contiguous() or layout(tuple(x.shape), x.stride()) is not None


@functools.cache
def _kernel(decays: bool) -> Any:
    """Return torch's fused update, of which one form multiplies the parameter by 1 - lr weight_decay first."""
    return (internals.FUSED_ADAMW if decays else internals.FUSED_ADAM).get()


@functools.cache
def _corrected() -> torch.Tensor:
    """Return a number of steps after which the kernel's own corrections of the moments are 1."""
    return torch.tensor(1e30)


def _types(avals: tuple[Aval, ...], count: int, **attributes: Any) -> Bundle:
    return bundle(avals[:count] * 3)


ADAM = Op(
    "adam", _adam, params=("count", "parameter", "first", "second", "eps", "rate", "within", "kept", "deferrable"),
    arity=None, fresh=True,
    rules=Rules(result=_types, nondiff="it is made of operations that have derivatives"),
)  # fmt: skip
"""It is in no registry: nothing but the interpreter meets it."""


def is_deferrable(node: Node) -> bool:
    """Whether an operation takes the list of deferred updates as its last operand."""
    return node.op is ADAM and node.attributes["deferrable"]


def overwritable(node: Node) -> range:
    """Return the places of the operands of `ADAM` that its results may be written over."""
    count, parameter = node.params[:2]
    return range(count, (3 + parameter) * count)


def has_updates(graph: Graph) -> bool:
    """Whether a program may have updates by Adam."""
    return ADAM_UPDATE.on and any(_is_root(node) for node in graph.nodes)


def _is_root(node: Node) -> bool:
    return node.op.name == "sqrt" and _fits(node.instr.aval)


def fuse_updates(graph: Graph) -> Graph:
    """Return a program for the interpreter, in which the updates by Adam are single operations."""
    roots = [node for node in graph.nodes if _is_root(node)] if ADAM_UPDATE.on else []
    if not roots:
        return graph
    search = _Search(graph)
    found = [update for update in map(search.update, roots) if update is not None]
    if not found:
        return graph
    together: dict[Any, list[_Update]] = {}
    for k, update in enumerate(found):
        a, deferrable = search.avals[update.arrays[0]], search.is_deferrable(update)
        alone = k if a.size > SMALL_PARAMETER and not deferrable else None
        together.setdefault((alone, a.dtype, deferrable, update.kind), []).append(update)
    fresh = 1 + max([*graph.inputs, *search.made])
    nodes = dict(search.made)
    for (_, _, deferrable, _), updates in together.items():
        one, count = updates[0], len(updates)
        arrays = [[update.arrays[k] for update in updates] for k in range(len(one.arrays))]
        ins = (*[value for each in arrays for value in each], *one.numbers)
        params = (
            count,
            len(one.arrays) > 3,
            one.first,
            one.second,
            one.eps,
            one.rate,
            one.within,
            one.kept,
            deferrable,
        )
        location = nodes[one.results[0]].location
        call = Node(ADAM.instr(params, tuple(search.avals[value] for value in ins)), ins, fresh, location)
        fresh += 1
        nodes[call.out] = call
        for k, update in enumerate(updates):
            for j, value in enumerate(update.results):
                instr = REGISTRY["project"].instr((j * count + k,), (call.instr.aval,))
                nodes[value] = Node(instr, (call.out,), value, nodes[value].location)
    try:
        ordered = toposort(nodes.values(), graph.inputs)
    except GraphError:  # some take results of others
        return graph
    ADAM_UPDATE.used()
    return dce(Graph(graph.inputs, graph.avals, ordered, graph.outputs))


def _fits(a: Aval) -> bool:
    return a.dtype in (torch.float32, torch.float64) and a.device.type == "cpu" and a.shape != ()


@attrs.frozen
class _Update:
    """An update; see `_adam`.

    Attributes:
        arrays: g, m, v, and p if there is one.
        numbers: values of one element that the factors name.
        results: the values that it assigns: the parameter or what is added to it, and both moments.
    """

    arrays: tuple[int, ...]
    first: tuple[Factor, Factor]
    second: tuple[Factor, Factor]
    eps: Factor
    rate: Factor
    within: Factor
    kept: tuple[float, Factor]
    numbers: tuple[int, ...]
    results: tuple[int, int, int]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What updates have in common that can be made together."""
        factors = self.first, self.second, self.eps, self.rate, self.within, self.kept
        return len(self.arrays), factors, self.numbers


Powers = list[tuple[Operand, int]]
"""Numbers that an array is multiplied by (1) and divided by (-1)."""


class _Search:
    """Looks for updates in a program."""

    def __init__(self, graph: Graph) -> None:
        self._values = Values(graph)
        self.avals, self.made = self._values.avals, self._values.made

    def update(self, root: Node) -> _Update | None:
        """Return the update with this square root in its denominator; None: there is none."""
        below = self._user(root.out)
        if below is None or below.op.name != "add":
            return None
        small = below.ins[0] if below.ins[1] == root.out else below.ins[1]
        if not self._is_number(small):
            return None
        ratio = self._user(below.out)
        if ratio is None or ratio.op.name != "div" or ratio.ins[1] != below.out or ratio.ins[0] == below.out:
            return None
        (new_v, inside), (new_m, above) = self._scaled(root.ins[0]), self._scaled(ratio.ins[0])
        second = self._second_moment(new_v)
        first = None if second is None else self._first_moment(new_m, second[0])
        if first is None or second is None:
            return None
        (g, v, *weights2), (m, *weights1) = second, first
        kind = ratio.instr.aval
        outside, p, result, kept = self._added(ratio)
        if any(self.avals[x] is not kind for x in (g, m, v, new_m, new_v, *([] if p is None else [p]))):
            return None
        powers = [[(x, 1)] for x in (*weights1, *weights2, small)] + [[*above, *outside], inside, kept[1]]
        numbers = dict.fromkeys(x for each in powers for x, _ in each if isinstance(x, int))
        if any(
            self._values.depends(x, {new_m, new_v, ratio.out}) for x in (m, v, *([] if p is None else [p]), *numbers)
        ):
            return None
        places = {x: k for k, x in enumerate(numbers)}
        beta1, weight1, beta2, weight2, eps, rate, within, rest = (_factor(each, places) for each in powers)
        if not all(
            _averages(x, y, kind.dtype)
            for x, y in ((beta1, weight1), (beta2, weight2))
            if isinstance(x, float) and isinstance(y, float)
        ):
            return None
        arrays = (g, m, v) if p is None else (g, m, v, p)
        results = result, new_m, new_v
        left = kept[0], rest if kept[1] else 0.0
        return _Update(arrays, (beta1, weight1), (beta2, weight2), eps, rate, within, left, tuple(numbers), results)

    def is_deferrable(self, update: _Update) -> bool:
        """Whether the program returns all results of an update, of some size, and nothing else in it reads them."""
        if self.avals[update.arrays[0]].size < LEAST_DEFERRED:
            return False
        made, given = set(update.results), {*update.arrays, *update.numbers}
        left, inside = list(made), set(made)
        while left:
            fresh = [x for x in self.made[left.pop()].values() if x not in given and x not in inside]
            inside.update(fresh)
            left += fresh
        return made <= self._values.outputs and not any(
            (value in made or self._values.depends(value, made))
            and ((value not in made and value in self._values.outputs) or any(user.out not in inside for user in users))
            for value in inside
            for users in [self._values.users.get(value, [])]
        )

    def _user(self, value: int) -> Node | None:
        """Return the only operation that takes a value which is no output."""
        users = self._values.users.get(value, [])
        return users[0] if len(users) == 1 and value not in self._values.outputs else None

    def _is_number(self, x: Operand) -> bool:
        return isinstance(x, Scalar) or (self.avals[x].shape == () and not self.avals[x].complex)

    def _factors(self, node: Node) -> tuple[int, Operand, int] | None:
        """Return the array, the number and its power of an array that is multiplied or divided by a number."""
        if node.op.name == "neg":
            return node.ins[0], _MINUS_ONE, 1  # type: ignore[return-value]
        if node.op.name not in ("mul", "div"):
            return None
        x, y = node.ins
        if (
            isinstance(x, int)
            and not self._is_number(x)
            and self._is_number(y)
            and not (isinstance(y, Scalar) and not y.value)
        ):
            return x, y, 1 if node.op.name == "mul" else -1
        if node.op.name == "mul" and isinstance(y, int) and not self._is_number(y) and self._is_number(x):
            return y, x, 1
        return None

    def _scaled(self, x: Operand) -> tuple[int, Powers]:
        """Return an array without the numbers that it is multiplied by, and these."""
        assert isinstance(x, int)
        powers: Powers = []
        while x in self.made:
            found = self._factors(self.made[x])
            if found is None:
                break
            x, number, power = found
            powers.append((number, power))
        return x, powers

    def _weighted(self, x: Operand) -> tuple[int, Operand] | None:
        """Return the array and the number whose product a value is."""
        found = self._factors(self.made[x]) if isinstance(x, int) and x in self.made else None
        return None if found is None or found[2] != 1 else found[:2]

    def _weighted_square(self, x: Operand) -> tuple[int, Operand] | None:
        """Return the array and the number with whose square and product a value is."""
        found = self._weighted(x)
        if found is not None:
            node = self.made.get(found[0])
            return None if node is None or not _is_square(node) else (node.ins[0], found[1])  # type: ignore[return-value]
        node = self.made.get(x) if isinstance(x, int) else None
        if node is not None and node.op.name == "mul":
            for one, other in (node.ins, node.ins[::-1]):
                inner = self._weighted(one)
                if inner is not None and inner[0] == other:
                    return inner
        return None

    def _terms(self, value: int) -> list[tuple[Operand, Operand]]:
        """Return both orders of the terms of a sum."""
        node = self.made.get(value)
        return (
            [(node.ins[0], node.ins[1]), (node.ins[1], node.ins[0])]
            if node is not None and node.op.name == "add"
            else []
        )

    def _second_moment(self, value: int) -> tuple[int, int, Operand, Operand] | None:
        """Return of a moving average of the squares of g: g, the average before, its factor and that of the squares."""
        for new, old in self._terms(value):
            square, before = self._weighted_square(new), self._weighted(old)
            if square is not None and before is not None:
                return square[0], *before, square[1]
        return None

    def _first_moment(self, value: int, g: int) -> tuple[int, Operand, Operand] | None:
        """Return of a moving average of g: the average before, its factor and that of g."""
        for new, old in self._terms(value):
            gradient, before = self._weighted(new), self._weighted(old)
            if gradient is not None and gradient[0] == g and before is not None:
                return *before, gradient[1]
        return None

    def _added(self, ratio: Node) -> tuple[Powers, int | None, int, tuple[float, Powers]]:
        """Return the numbers by which a ratio is multiplied, the parameter that it is then added to, and the result.

        A product that the program returns, or uses otherwise, is the result, without a parameter. The last is what the
        parameter is multiplied by: a number, and the factors of what is added to that.
        """
        powers: Powers = []
        value = ratio.out
        decayed: int | None = None  # the parameter in the sum so far, and its factors there
        factors: Powers = []
        found: tuple[Powers, int | None, int, tuple[float, Powers]] = (powers, None, value, (1.0, []))
        while (node := self._user(value)) is not None:
            product = self._factors(node)
            if product is not None and product[0] == value:
                powers, factors, value = [*powers, product[1:]], [*factors, product[1:]], node.out
                if decayed is None:
                    found = powers, None, value, (1.0, [])
                continue
            term = self._other_term(node, value)
            if term is None:
                break
            other, sign, other_sign = term
            if decayed is not None:
                if other == decayed and not other_sign:  # p + rate (ratio + decay p)
                    return [*powers, *sign], other, node.out, (1.0, [*factors, *sign])
                break
            p, scale = self._scaled(other)
            if not [*scale, *other_sign]:
                return [*powers, *sign], other, node.out, (1.0, [])
            decayed, factors = p, [*scale, *other_sign]
            powers, value = [*powers, *sign], node.out
            constant = _factor(factors, {}) if all(isinstance(x, Scalar) for x, _ in factors) else 1.0
            if isinstance(constant, float) and abs(constant) < LEAST_KEPT:  # a decay, of a parameter to come
                if not other_sign:
                    found = powers, other, value, (1.0, [])
            else:  # (1 - decay) p + rate ratio
                found = powers, p, value, (0.0, factors)
        return found

    def _other_term(self, node: Node, value: int) -> tuple[int, Powers, Powers] | None:
        """Return of a sum or difference the term beside `value`, the sign of `value`, and that of the term."""
        if node.op.name not in ("add", "sub") or node.ins[0] == node.ins[1]:
            return None
        first = node.ins[0] == value
        other = node.ins[1] if first else node.ins[0]
        if not isinstance(other, int) or self.avals[other] is not self.avals[value]:
            return None
        minus: Powers = [(_MINUS_ONE, 1)]
        is_sum = node.op.name == "add"
        return other, [] if is_sum or first else minus, minus if not is_sum and first else []


_MINUS_ONE = Scalar(-1.0, aval((), torch.float32, weak=True))


def _is_square(node: Node) -> bool:
    if node.op.name == "integer_pow":
        return node.params == (2,)
    return node.op.name == "square" or (node.op.name == "mul" and node.ins[0] == node.ins[1])


def _factor(powers: Powers, places: dict[int, int]) -> Factor:
    """Return a product of numbers, some of which are operands at these places."""
    constant = 1.0
    for x, power in powers:
        if isinstance(x, Scalar):
            constant = constant * x.value.real if power == 1 else constant / x.value.real
    times, by = (tuple(places[x] for x, power in powers if isinstance(x, int) and power == one) for one in (1, -1))
    return (constant, times, by) if times or by else float(constant)
