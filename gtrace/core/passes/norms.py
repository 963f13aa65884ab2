"""Handwritten layer, batch and group norms, and their gradients, as torch's operators.

Written out, a norm (Ioffe and Szegedy, 2015; Ba, Kiros and Hinton, 2016) is some nine passes over its operand, and its
gradient fifteen. There are many ways to write it, and derivatives follow the way. So they are found by what they
compute: what a program computes of an array, vectors and one cotangent, row by row, is evaluated for random operands
and compared with the formulas of the norm. The driver decides by an evaluation of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gtrace.core.ir.def_use import Values
from gtrace.core.ir.edit import Replacements
from gtrace.core.ir.equality import is_close
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.passes.driver import Match, fuse
from gtrace.core.passes.norm_operators import BACKWARD, FORWARD, MEAN, SQUARES, VARIANCE, Norm, Operands, normed
from gtrace.core.passes.rowwise import Rows


def fuse_norms(graph: Graph) -> Graph:
    """Return a graph whose norms over the last axis, or over all axes but one, and their gradients, are operators.

    >>> def norm(x, scale, shift):
    ...     centred = x - x.mean(-1, keepdims=True)
    ...     return centred / gt.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift
    >>> print(fuse_norms(gt.make_graph(norm)(gt.ones((2, 8)), gt.ones(8), gt.ones(8))))
    graph(%0: f32[2,8], %1: f32[8], %2: f32[8]) {
      %12: (f32[2,8], f32[2,1], f32[2,1]) = aten(%0, %1, %2) {overload='aten.native_layer_norm.default', args=('x', (8,), 'x', 'x', 1e-05)}
      %11: f32[2,8] = project(%12) {index=0}
      return %11
    }
    """  # noqa: E501
    if not has_roots(graph):
        return graph
    return fuse(graph, lambda values: [(place, _Norm(values, *place, norm).search) for place, norm in _places(values)])


def has_roots(graph: Graph) -> bool:
    """Whether there are powers that are no integers, as of variances."""
    return any(map(_is_root, graph.nodes))


def _is_root(node: Node) -> bool:
    return node.op.name in ("sqrt", "rsqrt", "pow")


def _places(values: Values) -> list[tuple[tuple[int, tuple[int, ...]], Norm]]:
    """Return the arrays that may be centred along some axes, these axes, and the operators for such norms."""
    found: dict[tuple[int, tuple[int, ...]], Norm] = {}
    for node in values.graph.nodes:
        if node.op.name in ("mean", "sum") and isinstance(node.ins[0], int):
            place = node.ins[0], node.attributes["axes"]
            norm = normed(values.avals[place[0]], place[1])
            if norm is not None and any(user.op.name == "sub" for user in values.users[place[0]]):
                found[place] = norm
    return list(found.items())


class _Norm:
    """The search for a norm of one array.

    Args:
        axes: of its rows.

    Attributes:
        rows: what is computed of the array row by row.
        results: the values that the operators compute: which operator, and what of its results.
        weight, bias, eps: the other operands.
        total: a sum of the gradient of the array, in several terms, with others; these terms, and the others.
    """

    def __init__(self, values: Values, x: int, axes: tuple[int, ...], norm: Norm) -> None:
        self.values, self.x, self.axes, self._operators = values, x, axes, norm
        self.results: dict[int, tuple[str, Any]] = {}
        self.weight: int | None = None
        self.bias: int | None = None
        self.eps = 0.0
        self.total: tuple[int, list[int], list[Operand]] | None = None
        self._statistics: dict[int, str] = {}

    def search(self) -> Match | None:
        """Find the norm, and its gradient; None: there is none that can be replaced."""
        self.rows = Rows(self.values, self.x, self.axes)
        if not (self._forward() and self._gradient() and self._add_statistics()):
            return None
        sums, terms = ([], []) if self.total is None else ([self.total[0]], self.total[1])
        between = self.rows.needed([*self.results, *terms]) - self.rows.plain - self.results.keys()
        return Match([*self.results, *sums], between, self.rewrite, {"allowed": self.rows.compared})

    def _gradient(self) -> bool:
        """Find the gradient; returns whether there is none, or one that can be replaced."""
        found = [Rows(self.values, self.x, self.axes, cotangent) for cotangent in dict.fromkeys(self._cotangents())]
        for whole in (True, False):  # with the gradient of the array, or of the vectors alone
            for rows in found:
                if self._backward(rows, whole):
                    self.rows = rows
                    return True
        return not found

    def _forward(self) -> bool:
        """Find the results of the norm, its scale and shift, and what is added to the variance."""
        env = self.rows.env
        if env is None:
            return False
        x, axis = env[self.x], self._operators.vector
        mean, variance = _mean(x, self.axes), x.var(self.axes, correction=0, keepdim=True)
        known = {MEAN: mean, VARIANCE: variance, SQUARES: variance * (x.numel() // variance.numel())}
        self._statistics = {
            v: what for v in self.rows.nodes for what, y in known.items() if is_close(y.flatten(), env[v].flatten())
        }
        if any(self._statistics.get(value) != VARIANCE for value in self.rows.cases):
            return False
        size = self.values.avals[self.x].shape[axis] if axis is not None else 0
        vectors = [v for v in self.rows.vectors if self.values.avals[v].size == size]
        pairs = [(w, b) for w in vectors for b in vectors if w != b]
        for eps in self._epsilons():
            plain = (x - mean) / torch.sqrt(variance + eps)
            for weight, bias in [*pairs, *[(w, None) for w in vectors], (None, None)]:
                expected = plain if weight is None else plain * self._beside(x, env[weight])
                if bias is not None:
                    expected = expected + self._beside(x, env[bias])
                same = [v for v in self.rows.full if is_close(expected, env[v])]
                if same:
                    self.eps, self.weight, self.bias = eps, weight, bias
                    self.results = dict.fromkeys(same, (FORWARD, 0))
                    return True
        return False

    def _beside(self, x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        """Return a vector in a shape that lies along its axis of an array."""
        shape = [1] * x.dim()
        shape[self._operators.vector or 0] = -1
        return vector.reshape(shape)

    def _add_statistics(self) -> bool:
        """Have the operator compute what else is needed of the rows; returns whether it can be before the vectors."""
        if not self._operators.has_variance:
            return True
        nodes, values = self.rows.nodes, self.values
        left = [
            value
            for value in nodes
            if value in values.outputs or any(user.out not in nodes for user in values.users.get(value, []))
        ]
        seen, needed = set(left), []
        while left:
            value = left.pop()
            if value in self._statistics:
                needed.append(value)
            elif value not in self.rows.full and value not in self.results:
                fresh = [x for x in values.made[value].values() if x in nodes and x not in seen]
                seen.update(fresh)
                left += fresh
        self.results.update((value, (FORWARD, self._statistics[value])) for value in needed)
        return not needed or not any(values.depends(v, needed) for v in (self.weight, self.bias) if v is not None)

    def _epsilons(self) -> dict[float, None]:
        """Return the numbers that are added where roots are taken."""
        found: dict[float, None] = {}
        for node in filter(_is_root, self.rows.nodes.values()):
            base = self.values.made.get(node.ins[0])  # type: ignore[arg-type]  # numbers have no key
            numbers = [x.value.real for x in base.ins if isinstance(x, Scalar)] if base and base.op.sum else []
            found.update((float(eps), None) for eps in numbers or [0.0] if eps >= 0)
        return found

    def _cotangents(self) -> Iterator[int]:
        """Yield arrays that are multiplied by something of the norm, without its scale."""
        for value in list(self.rows.nodes):
            for node in self.values.users.get(value, []):
                if not node.op.product or node.out in self.rows.nodes:
                    continue
                for operand in node.values():
                    if operand in self.rows.nodes or operand == self.x or not self.rows.is_full(operand):
                        continue
                    product = self.values.made.get(operand)
                    if product is not None and product.op.product and self.weight in product.ins:
                        yield from (v for v in product.values() if v != self.weight)
                    yield operand

    def _backward(self, rows: Rows, whole: bool) -> bool:
        """Find the results of the gradient; returns whether there is one, or, of a `whole` one, that of the array."""
        env = rows.env
        if env is None:
            return False
        assert rows.cotangent is not None
        x, ct, mean = env[self.x], env[rows.cotangent], functools.partial(_mean, axes=self.axes)
        scale = torch.rsqrt(mean(torch.square(x - mean(x))) + self.eps)
        plain = (x - mean(x)) * scale
        inner = ct if self.weight is None else ct * self._beside(x, env[self.weight])
        slope = (inner - mean(inner) - plain * mean(inner * plain)) * scale
        others = [k for k in range(x.dim()) if k != self._operators.vector]
        sums = {1: (ct * plain).sum(others), 2: ct.sum(others)}
        found = {v: 0 for v in rows.full if is_close(slope, env[v])}
        for place, vector in ((1, self.weight), (2, self.bias)):
            if vector is not None:
                found |= {v: place for v in rows.nodes.keys() - rows.full if is_close(sums[place], env[v].flatten())}
        there = (0 if whole else 1) in found.values()
        if whole and not there:
            self.total = self._total(rows, slope)
        if not there and self.total is None:
            return False
        self.results = {v: (BACKWARD, place) for v, place in found.items()} | self.results
        return True

    def _total(self, rows: Rows, slope: torch.Tensor) -> tuple[int, list[int], list[Operand]] | None:
        """Return a sum to which the gradient of the array is added in several terms, these, and the other terms."""
        values, env = self.values, rows.env
        assert env is not None
        tops: dict[int, None] = {}
        for value in rows.full:
            for top in values.users.get(value, []):
                if top.op.name == "add" and top.out not in rows.nodes:
                    while (above := _added_up(values, top.out)) is not None:
                        top = above
                    tops.setdefault(top.out)
        for out in tops:
            terms = self._terms(rows, out) or []
            inside = [v for v in terms if isinstance(v, int) and v in rows.full]
            if 0 < len(inside) < len(terms) and is_close(slope, functools.reduce(torch.add, [env[v] for v in inside])):
                return out, inside, [v for v in terms if v not in inside]
        return None

    def _terms(self, rows: Rows, out: int) -> list[Operand] | None:
        """Return the arrays and numbers that a sum adds up; None: some are of another type."""
        values, a = self.values, self.values.avals[out]
        left: list[Operand] = [out]
        terms: list[Operand] = []
        while left:
            value = left.pop()
            if isinstance(value, Scalar):
                terms.append(value)
                continue
            if values.avals[value] is not a:
                return None
            node = values.made.get(value)
            if value == out or (node is not None and node.op.name == "add" and value not in rows.nodes
                                and _added_up(values, value) is not None):  # fmt: skip
                left += reversed(values.made[value].ins)
            else:
                terms.append(value)
        return terms

    # -- the operations

    def rewrite(self, build: Replacements) -> None:
        """Put the operators in place, forward and, if there is a gradient, backward."""
        given = Operands(self.x, self.weight, self.bias, self.eps)
        of = {
            which: {value: what for value, (kind, what) in self.results.items() if kind == which}
            for which in (FORWARD, BACKWARD)
        }
        build.location = self._location(of[FORWARD])
        kept = self._operators.forward(build, given, of[FORWARD], self.rows.cotangent is not None)
        if self.rows.cotangent is None:
            return
        build.location = self._location(of[BACKWARD] or ([] if self.total is None else self.total[:1]))
        gradient = self._operators.backward(
            build, given, self.rows.cotangent, kept, of[BACKWARD], self.total is not None
        )
        if self.total is not None:
            assert gradient is not None
            out, _, others = self.total
            last = gradient
            for other in others[1:]:
                last = build("add", (), last, other)
            build("add", (), last, others[0], out=out)

    def _location(self, results: Iterable[int]) -> str | None:
        """Return the user's line of the first of these values."""
        return next((self.values.made[value].location for value in results), None)


def _mean(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    return x.mean(axes, keepdim=True)


def _added_up(values: Values, value: int) -> Node | None:
    """Return the sum that is the only use of a value."""
    users = values.users.get(value, [])
    return users[0] if len(users) == 1 and users[0].op.name == "add" and value not in values.outputs else None
