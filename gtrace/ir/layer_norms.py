"""Layer norms that are written out, and their gradients, as torch's operators.

Written out, a layer norm (Ba, Kiros and Hinton, 2016) is some nine passes over its operand, and its gradient fifteen.
There are many ways to write it, and derivatives follow the way. So they are found by what they compute: what a program
computes of an array, its mean along the last axis, vectors along that axis and one cotangent, row by row, is evaluated
on three rows of random numbers, in double precision, and compared with torch's operators. Only sums, products,
quotients and powers are followed, and powers that are no integers only of the variance plus a number, which is
positive: such formulas have no cases, so those that agree at random points agree everywhere.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from gtrace.ir.aval import Aval
from gtrace.ir.edit import toposort
from gtrace.ir.graph import Graph, Node, Scalar
from gtrace.ir.op import REGISTRY
from gtrace.ir.rows import COLUMN, FULL, Rows, Values, equal
from gtrace.ir.simplify import dce

FORWARD, BACKWARD = "aten.native_layer_norm.default", "aten.native_layer_norm_backward.default"


def fuse_layer_norms(graph: Graph) -> Graph:
    """Return a graph whose layer norms over the last axis, and their gradients, are single operations.

    >>> import gtrace as gt
    >>> def norm(x, scale, shift):
    ...     centred = x - x.mean(-1, keepdims=True)
    ...     return centred / gt.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift
    >>> print(fuse_layer_norms(gt.make_graph(norm)(gt.ones((2, 8)), gt.ones(8), gt.ones(8))))
    graph(%0: f32[2,8], %1: f32[8], %2: f32[8]) {
      %12: (f32[2,8], f32[2,1], f32[2,1]) = aten(%0, %1, %2) {overload='aten.native_layer_norm.default', args=('x', (8,), 'x', 'x', 1e-05)}
      %11: f32[2,8] = project(%12) {index=0}
      return %11
    }
    """  # noqa: E501
    if not has_roots(graph):
        return graph
    known: dict[Any, Any] = {}
    refused: set[int] = set()
    left_over: set[int] | None = None  # candidates; None: all
    while left_over is None or left_over:
        values = Values(graph)
        norms: list[_Norm] = []
        claimed: set[int] = set()
        wanted, left_over = left_over, set()
        for x in _candidates(values):
            if x in refused or not (wanted is None or x in wanted):
                continue
            norm = _Norm(values, x, known)
            if not norm.search():
                continue
            if claimed.isdisjoint(norm.claims):
                norms.append(norm)
                claimed.update(norm.claims)
            else:  # both are added to one sum: one after the other
                left_over.add(x)
        after = _replaced(values, norms)
        left = {node.out for node in after.nodes}
        bad = [norm.x for norm in norms if not left.isdisjoint(norm.inside)]
        if bad:  # something else needs what is between
            refused.update(bad)
            left_over.update(norm.x for norm in norms if norm.x not in bad)
        elif norms:
            graph = after
    return graph


def has_roots(graph: Graph) -> bool:
    """Whether there are powers that are no integers, as of variances."""
    return any(map(_is_root, graph.nodes))


def _is_root(node: Node) -> bool:
    return node.op.name in ("sqrt", "rsqrt", "pow")


def _is_normed(a: Any) -> bool:
    return (
        isinstance(a, Aval) and a.dtype in (torch.float32, torch.float64) and len(a.shape) > 1 and a.shape[-1] > 1
        and a.size > 0 and a.sharding is None
    )  # fmt: skip


def _candidates(values: Values) -> list[int]:
    """Return the arrays that are centred along their last axis."""
    found: dict[int, None] = {}
    for node in values.graph.nodes:
        if node.op.name in ("mean", "sum") and isinstance(node.ins[0], int):
            a = values.avals[node.ins[0]]
            if _is_normed(a) and node.params[0] == (len(a.shape) - 1,):
                found.setdefault(node.ins[0])
    return [x for x in found if any(user.op.name == "sub" for user in values.users[x])]


def _replaced(values: Values, norms: Iterable[_Norm]) -> Graph:
    """Return the graph with layer norms as operations, in the order of what they replace."""
    fresh = 1 + max([*values.graph.inputs, *values.made])
    nodes = dict(values.made)
    before: dict[int, list[Node]] = {}
    for norm in norms:
        for made in norm.nodes(fresh):
            known = {node.out: node for node in made if node.out in values.made}
            if known:
                nodes.update(known)
                first = min(values.place[value] for value in known)
                before.setdefault(first, []).extend(node for node in made if node.out not in known)
            fresh = max([fresh, *[node.out + 1 for node in made]])
    ordered = [
        node
        for value, place in values.place.items()
        for node in (*before.get(place, ()), nodes[value])
    ]  # fmt: skip
    inputs = values.graph.inputs
    return dce(Graph(inputs, values.graph.avals, toposort(ordered, inputs), values.graph.outputs))


class _Norm:
    """The search for a layer norm of one array.

    Args:
        known: what was found of equal formulas, as of the layers of a model.

    Attributes:
        rows: what is computed of the array row by row.
        results: the values that the operators compute: the place in the results of the forward or backward operator.
        weight, bias, cotangent, eps: the other operands.
        total: a sum of the gradient of the array, in several terms, with others: these.
    """

    def __init__(self, values: Values, x: int, known: dict[Any, Any]) -> None:
        self.values, self.x, self._known = values, x, known
        self.rows = Rows(values, x)
        self.results: dict[int, tuple[str, int]] = {}
        self.weight: int | None = None
        self.bias: int | None = None
        self.eps = 0.0
        self.total: tuple[int, tuple[int, ...]] | None = None

    @property
    def cotangent(self) -> int | None:
        """That of the norm; None: there is no gradient."""
        return self.rows.cotangent

    @property
    def inside(self) -> set[int]:
        """The arrays between operand and results, which nothing may need any more."""
        arrays = {value for value, kind in self.rows.kinds.items() if kind == FULL}
        return arrays - self.rows.plain - set(self.results)

    @property
    def claims(self) -> set[int]:
        """The values that it replaces."""
        return {*self.results} | ({self.total[0]} if self.total is not None else set())

    def search(self) -> bool:
        """Find the norm, and its gradient; returns whether there is one that can be replaced."""
        if not self._forward():
            return False
        forward, candidates = dict(self.results), list(dict.fromkeys(self._cotangents()))
        for whole in (True, False):  # with the gradient of the array, or of the vectors alone
            for cotangent in candidates:
                self.results, self.rows = dict(forward), Rows(self.values, self.x, cotangent)
                if self._backward(whole):
                    return True
        return not candidates

    def _forward(self) -> bool:
        """Find the results of the norm, and its scale and shift."""
        formula, values = self.rows.formula()
        if formula not in self._known:
            place: dict[int | None, int] = {value: k for k, value in enumerate(values)}
            found = self._norm_of()
            self._known[formula] = found and (found[0], *[[place.get(v) for v in part] for part in found[1:]])
        known = self._known[formula]
        if known is None:
            return False
        self.eps, vectors, same = known
        self.weight, self.bias = (None if k is None else values[k] for k in vectors)
        self.results.update((values[k], (FORWARD, 0)) for k in same)
        return True

    def _norm_of(self) -> tuple[float, list[int | None], list[int]] | None:
        """Return what is added to the variance, the scale and the shift, and the values that are the norm."""
        env = self.rows.evaluate()
        found = self._epsilons(env)
        eps = found.pop() if len(found) == 1 else None
        if eps is None:
            return None
        plain = torch.native_layer_norm(env[self.x], self.rows.shape[-1:], None, None, eps)[0]
        full = {v: env[v] for v, kind in self.rows.kinds.items() if kind == FULL}
        columns = self.rows.columns
        pairs = [(w, b) for w in columns for b in columns if w != b]
        for weight, bias in [*pairs, *[(w, None) for w in columns], (None, None)]:
            expected = plain if weight is None else plain * env[weight]
            if bias is not None:
                expected = expected + env[bias]
            same = [v for v, y in full.items() if equal(y, expected)]
            if same:
                return eps, [weight, bias], same
        return None

    def _epsilons(self, env: Mapping[int, torch.Tensor]) -> set[float | None]:
        """Return the numbers that are added to the variance where roots are taken; None: of something else."""
        variance = env[self.x].var(-1, correction=0, keepdim=True)

        def added(base: Any) -> float | None:
            if not isinstance(base, int):
                return None
            node = self.values.made.get(base)
            numbers = (
                [x for x in node.ins if isinstance(x, Scalar)] if node is not None and node.op.name == "add" else []
            )
            eps = float(numbers[0].value.real) if numbers else 0.0
            return eps if eps >= 0 and base in self.rows.kinds and equal(env[base], variance + eps) else None

        return {added(node.ins[0]) for node in map(self.values.made.__getitem__, self.rows.kinds) if _is_root(node)}

    def _cotangents(self) -> Iterator[int]:
        """Yield arrays that are multiplied by something of the norm, without its scale."""
        for value in list(self.rows.kinds):
            for node in self.values.users.get(value, []):
                if node.op.name != "mul" or node.out in self.rows.kinds:
                    continue
                for operand in node.values():
                    if operand in self.rows.kinds or operand == self.x or self.rows.kind(operand) != FULL:
                        continue
                    product = self.values.made.get(operand)
                    if product is not None and product.op.name == "mul" and self.weight in product.ins:
                        yield from (v for v in product.values() if v != self.weight)
                    yield operand

    def _backward(self, whole: bool) -> bool:
        """Find the results of the gradient; returns whether there is one, or, of a `whole` one, that of the array."""
        formula, values = self.rows.formula()
        place = {value: k for k, value in enumerate(values)}
        key = formula, self.eps, *[None if v is None else place[v] for v in (self.weight, self.bias)]
        if key not in self._known:
            found = self._gradient_of()
            self._known[key] = found and (
                {place[v]: k for v, k in found[0].items()}, {place[v]: y for v, y in found[1].items() if v in place},
                found[2],
            )  # fmt: skip
        known = self._known[key]
        if known is None:
            return False
        places, env, expected = known
        self.results.update((values[k], (BACKWARD, n)) for k, n in places.items() if values[k] not in self.results)
        if not whole:
            return (BACKWARD, 1) in self.results.values()
        return (BACKWARD, 0) in self.results.values() or self._find_total(
            {values[k]: y for k, y in env.items()}, expected
        )

    def _gradient_of(self) -> tuple[dict[int, int], dict[int, torch.Tensor], torch.Tensor] | None:
        """Return the values that are gradients, and of which operand; everything on the rows; the gradient there."""
        assert self.cotangent is not None
        env = self.rows.evaluate()
        if self._epsilons(env) != {self.eps}:
            return None
        x, n = env[self.x], self.rows.shape[-1:]
        weight, bias = (None if v is None else env[v] for v in (self.weight, self.bias))
        _, mean, rstd = torch.native_layer_norm(x, n, weight, bias, self.eps)
        found = torch.ops.aten.native_layer_norm_backward(
            env[self.cotangent], x, n, mean, rstd, weight, bias, [True, weight is not None, bias is not None]
        )
        kinds = (FULL, COLUMN, COLUMN)
        return {
            value: place
            for place, expected in enumerate(found)
            if expected is not None
            for value, kind in self.rows.kinds.items()
            if kind == kinds[place] and equal(env[value], expected)
        }, env, found[0]  # fmt: skip

    def _find_total(self, env: Mapping[int, torch.Tensor], expected: torch.Tensor) -> bool:
        """Find a sum to which the gradient of the array is added in several terms; returns whether there is one."""
        values = self.values
        tops: dict[int, None] = {}
        for value in [v for v, kind in self.rows.kinds.items() if kind == FULL]:
            for top in values.users.get(value, []):
                if top.op.name == "add" and top.out not in self.rows.kinds:
                    while (above := values.added_up(top.out)) is not None:
                        top = above
                    tops.setdefault(top.out)
        for out in tops:
            left, terms = [out], []
            while left:
                value = left.pop()
                node = values.made.get(value)
                if value == out or (node is not None and node.op.name == "add" and value not in self.rows.kinds
                                    and values.added_up(value) is not None):  # fmt: skip
                    left += reversed([*values.made[value].values()])
                else:
                    terms.append(value)
            inside = [v for v in terms if self.rows.kinds.get(v) == FULL]
            a = values.avals[out]
            if any(values.avals[v] is not a for v in terms) or len(terms) == len(inside):
                continue
            if equal(functools.reduce(torch.add, [env[v] for v in inside]), expected):
                self.total = out, tuple(v for v in terms if v not in inside)
                return True
        return False

    # -- the operations

    def nodes(self, fresh: int) -> tuple[list[Node], list[Node]]:
        """Return the operators, forward and backward, each with what has its results, numbered from `fresh`."""
        made = self.values.made
        kinds: dict[int, Any] = {}  # of new values
        location = next((made[value].location for value in self.results), None)
        numbers = itertools.count(fresh)

        def node(name: str, params: tuple[Any, ...], ins: tuple[int, ...], out: int | None = None) -> Node:
            found = Node(
                REGISTRY[name].instr(params, tuple(kinds.get(v) or self.values.avals[v] for v in ins)), ins,
                next(numbers) if out is None else out, location if out is None else made[out].location,
            )  # fmt: skip
            kinds[found.out] = found.instr.aval
            return found

        vectors = tuple(v for v in (self.weight, self.bias) if v is not None)
        named = tuple("x" if v is not None else None for v in (self.weight, self.bias))
        n = self.rows.shape[-1:]
        norm = node("aten", (FORWARD, ("x", n, *named, self.eps)), (self.x, *vectors))
        forward = [norm]
        if self.cotangent is not None:  # beside the norm: parts of a program exchange arrays
            forward += [node("project", (1,), (norm.out,)), node("project", (2,), (norm.out,))]
        forward += [
            node("project", (0,), (norm.out,), value) for value, (kind, _) in self.results.items() if kind == FORWARD
        ]
        if self.cotangent is None:
            return forward, []
        wanted = {place for kind, place in self.results.values() if kind == BACKWARD}
        mask = self.total is not None or 0 in wanted, 1 in wanted, 2 in wanted
        gradient = node(
            "aten", (BACKWARD, ("x", "x", n, "x", "x", *named, mask)),
            (self.cotangent, self.x, forward[1].out, forward[2].out, *vectors),
        )  # fmt: skip
        backward = [gradient]
        for value, (kind, place) in self.results.items():
            if kind == BACKWARD:  # the operator leaves out what it does not compute
                backward.append(node("project", (sum(mask[:place]),), (gradient.out,), value))
        if self.total is not None:
            out, (last, *others) = self.total
            for other in others:
                backward.append(node("add", (), (last, other)))
                last = backward[-1].out
            backward.append(node("project", (0,), (gradient.out,)))
            backward.append(node("add", (), (last, backward[-1].out), out))
        return forward, backward
