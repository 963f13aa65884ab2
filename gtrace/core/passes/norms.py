"""Handwritten layer, batch and group norms, and their gradients, as torch's operators.

Written out, a norm (Ioffe and Szegedy, 2015; Ba, Kiros and Hinton, 2016) is some nine passes over its operand, and its
gradient fifteen. There are many ways to write it, and derivatives follow the way. So they are found by what they
compute: what a program computes of an array, its means along the last axis or along all but one, vectors and one
cotangent, row by row, is evaluated on three rows of random numbers, in double precision, and compared with the formulas
of the norm. Only sums, products, quotients and powers are followed, and powers that are no integers only of the
variance plus a number, which is positive: such formulas have no cases, so those that agree at random points agree
everywhere. Variances may be compared with 0, below which only rounding brings them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from gtrace.core.ir.def_use import Values
from gtrace.core.ir.edit import Replacements
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.passes.driver import Match, fuse
from gtrace.core.passes.norm_operators import BACKWARD, FORWARD, MEAN, SQUARES, VARIANCE, Operands, normed, operators
from gtrace.core.passes.rowwise import FLAT, FULL, ROW, Rows, equal


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
    known: dict[Any, Any] = {}
    return fuse(graph, lambda values: [(place, _Norm(values, *place, known).search) for place in _places(values)])


def has_roots(graph: Graph) -> bool:
    """Whether there are powers that are no integers, as of variances."""
    return any(map(_is_root, graph.nodes))


def _is_root(node: Node) -> bool:
    return node.op.name in ("sqrt", "rsqrt", "pow")


def _places(values: Values) -> list[tuple[int, tuple[int, ...]]]:
    """Return the arrays that may be centred along some axes, and these axes."""
    found: dict[tuple[int, tuple[int, ...]], None] = {}
    for node in values.graph.nodes:
        if node.op.name in ("mean", "sum") and isinstance(node.ins[0], int):
            if normed(values.avals[node.ins[0]], node.params[0]) is not None:
                found.setdefault((node.ins[0], node.params[0]))
    return [(x, axes) for x, axes in found if any(user.op.name == "sub" for user in values.users[x])]


class _Norm:
    """The search for a norm of one array.

    Args:
        axes: of its rows.
        known: what was found of equal formulas, as of the layers of a model.

    Attributes:
        rows: what is computed of the array row by row.
        results: the values that the operators compute: which operator, and what of its results.
        weight, bias, cotangent, eps: the other operands.
        total: a sum of the gradient of the array, in several terms, with others: these.
    """

    def __init__(self, values: Values, x: int, axes: tuple[int, ...], known: dict[Any, Any]) -> None:
        self.values, self.x, self.axes, self._known = values, x, axes, known
        self.results: dict[int, tuple[str, Any]] = {}
        self.weight: int | None = None
        self.bias: int | None = None
        self.eps = 0.0
        self.total: tuple[int, tuple[Operand, ...]] | None = None
        found = operators(axes, values.avals[x].shape)
        assert found is not None
        self._operators = found
        self._statistics: dict[int, str] = {}

    @property
    def cotangent(self) -> int | None:
        """That of the norm; None: there is no gradient."""
        return self.rows.cotangent

    def search(self) -> Match | None:
        """Find the norm, and its gradient; None: there is none that can be replaced."""
        self.rows = Rows(self.values, self.x, self.axes)
        if not (self._forward() and self._gradient() and self._add_statistics()):
            return None
        arrays = {value for value, kind in self.rows.kinds.items() if kind == FULL}
        replaced = [*self.results, *(() if self.total is None else self.total[:1])]
        between = arrays - self.rows.plain - set(self.results)
        return Match(replaced, between, self.rewrite, {"allowed": self.rows.compared})

    def _gradient(self) -> bool:
        """Find the gradient; returns whether there is none, or one that can be replaced."""
        forward, candidates = dict(self.results), list(dict.fromkeys(self._cotangents()))
        for whole in (True, False):  # with the gradient of the array, or of the vectors alone
            for cotangent in candidates:
                self.results, self.rows = dict(forward), Rows(self.values, self.x, self.axes, cotangent)
                if self._backward(whole):
                    return True
        return not candidates

    def _forward(self) -> bool:
        """Find the results of the norm, and its scale and shift."""
        formula, values = self.rows.formula()
        if formula not in self._known:
            place: dict[int | None, int] = {value: k for k, value in enumerate(values)}
            found = self._norm_of()
            self._known[formula] = found and (
                found[0], *[[place.get(v) for v in part] for part in found[1:3]],
                [(place[v], what) for v, what in found[3].items()],
            )  # fmt: skip
        known = self._known[formula]
        if known is None:
            return False
        self.eps, vectors, same, statistics = known
        self.weight, self.bias = (None if k is None else values[k] for k in vectors)
        self.results.update((values[k], (FORWARD, 0)) for k in same)
        self._statistics = {values[k]: what for k, what in statistics}
        return True

    def _norm_of(self) -> tuple[float, list[int | None], list[int], dict[int, str]] | None:
        """Return what is added to the variance, scale and shift, the values that are the norm, and its statistics."""
        env = self.rows.evaluate()
        found = self._epsilons(env)
        eps = found.pop() if len(found) == 1 else None
        if eps is None:
            return None
        plain = self._plain(env, eps)
        kinds = self.rows.kinds
        full = {v: env[v] for v, kind in kinds.items() if kind == FULL}
        vectors = self.rows.vectors if self._operators.has_vectors else []
        pairs = [(w, b) for w in vectors for b in vectors if w != b]
        for weight, bias in [*pairs, *[(w, None) for w in vectors], (None, None)]:
            expected = plain if weight is None else plain * env[weight]
            if bias is not None:
                expected = expected + env[bias]
            same = [v for v, y in full.items() if equal(y, expected)]
            if same:
                break
        else:
            return None
        x, length = env[self.x], self.rows.length
        variance = _variance(x)
        known = {MEAN: x.mean(-1, keepdim=True), VARIANCE: variance, SQUARES: variance * length}
        statistics = {
            v: what
            for v, kind in kinds.items() if kind in (ROW, FLAT)
            for what, expected in known.items() if equal(env[v], expected)
        }  # fmt: skip
        return eps, [weight, bias], same, statistics

    def _plain(self, env: Mapping[int, torch.Tensor], eps: float) -> torch.Tensor:
        """Return the rows with a mean of 0 and a variance of 1."""
        return torch.native_layer_norm(env[self.x], (self.rows.sample,), None, None, eps)[0]

    def _add_statistics(self) -> bool:
        """Have the operator compute what else is needed of the rows; returns whether it can be before the vectors."""
        if not self._operators.has_variance:
            return True
        kinds, values = self.rows.kinds, self.values
        left = [
            value
            for value in kinds
            if value in values.outputs or any(user.out not in kinds for user in values.users.get(value, []))
        ]
        seen, needed = set(left), []
        while left:
            value = left.pop()
            if value in self._statistics:
                needed.append(value)
            elif kinds[value] in (ROW, FLAT) and value not in self.results:
                fresh = [x for x in values.made[value].values() if x in kinds and x not in seen]
                seen.update(fresh)
                left += fresh
        self.results.update((value, (FORWARD, self._statistics[value])) for value in needed)
        return not needed or not any(values.depends(v, needed) for v in (self.weight, self.bias) if v is not None)

    def _epsilons(self, env: Mapping[int, torch.Tensor]) -> set[float | None]:
        """Return the numbers that are added to the variance where roots are taken; None: of something else."""
        variance = _variance(env[self.x])
        if not all(equal(env[value], variance) for value in self.rows.cases):
            return {None}

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
        x, ct, sizes = env[self.x], env[self.cotangent], (self.rows.sample,)
        _, mean, rstd = torch.native_layer_norm(x, sizes, None, None, self.eps)
        inner = ct if self.weight is None else ct * env[self.weight]
        whole = torch.ops.aten.native_layer_norm_backward(inner, x, sizes, mean, rstd, None, None, [True, False, False])
        found = {0: whole[0]}
        if self.weight is not None:
            found[1] = self.rows.summed(ct * self._plain(env, self.eps))
        if self.bias is not None:
            found[2] = self.rows.summed(ct)
        return {
            value: place
            for place, expected in found.items()
            for value, kind in self.rows.kinds.items()
            if (kind == FULL) == (not place) and equal(env[value], expected)
        }, env, found[0]  # fmt: skip

    def _find_total(self, env: Mapping[int, torch.Tensor], expected: torch.Tensor) -> bool:
        """Find a sum to which the gradient of the array is added in several terms; returns whether there is one."""
        values = self.values
        tops: dict[int, None] = {}
        for value in [v for v, kind in self.rows.kinds.items() if kind == FULL]:
            for top in values.users.get(value, []):
                if top.op.name == "add" and top.out not in self.rows.kinds:
                    while (above := _added_up(values, top.out)) is not None:
                        top = above
                    tops.setdefault(top.out)
        for out in tops:
            terms = self._terms(out)
            if terms is None:
                continue
            inside = [v for v in terms if isinstance(v, int) and self.rows.kinds.get(v) == FULL]
            if len(terms) == len(inside):
                continue
            if equal(functools.reduce(torch.add, [env[v] for v in inside]), expected):
                self.total = out, tuple(v for v in terms if v not in inside)
                return True
        return False

    def _terms(self, out: int) -> list[Operand] | None:
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
            if value == out or (node is not None and node.op.name == "add" and value not in self.rows.kinds
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
        kept = self._operators.forward(build, given, of[FORWARD], self.cotangent is not None)
        if self.cotangent is None:
            return
        build.location = self._location(of[BACKWARD] or ([] if self.total is None else self.total[:1]))
        gradient = self._operators.backward(build, given, self.cotangent, kept, of[BACKWARD], self.total is not None)
        if self.total is not None:
            assert gradient is not None
            out, others = self.total
            last = gradient
            for other in others[1:]:
                last = build("add", (), last, other)
            build("add", (), last, others[0], out=out)

    def _location(self, results: Iterable[int]) -> str | None:
        """Return the user's line of the first of these values."""
        return next((self.values.made[value].location for value in results), None)


def _variance(x: torch.Tensor) -> torch.Tensor:
    return x.var(-1, correction=0, keepdim=True)


def _added_up(values: Values, value: int) -> Node | None:
    """Return the sum that is the only use of a value."""
    users = values.users.get(value, [])
    return users[0] if len(users) == 1 and users[0].op.name == "add" and value not in values.outputs else None
