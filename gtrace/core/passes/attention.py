"""Attention that is written out, and its gradient, as torch's fused kernel for CPUs.

Written out, attention (Vaswani et al., 2017) is two products with a softmax between, and keeps the scores of all pairs
of places for its gradient. The kernel computes them block by block, twice, and keeps none: it takes a third of the time
for a thousand places and more, about as long for fewer, and memory for the queries alone.

What is looked for is what products compute, not how they are written. The labels of axes are "b0" and "b1" for batch
and heads, "l" for queries, "s" for keys, and "d" for what products sum over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from gtrace.core.base.errors import GraphError
from gtrace.core.ir.aval import Aval
from gtrace.core.ir.def_use import Values
from gtrace.core.ir.edit import Replacements, toposort
from gtrace.core.ir.equality import computes
from gtrace.core.ir.graph import Graph, Node, Scalar
from gtrace.core.ir.simplify import dce, move_transposes
from gtrace.core.passes.contractions import Labels, Term, peeled, product_of
from gtrace.core.passes.masks import Added, Hidden, Mask, Masks, built_mask, hides_alone, number_of
from gtrace.core.passes.tuned import LEAST_KEYS, LEAST_SCORES

FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"

MOST_STEPS = 8
"""Operations between the product and the softmax, at most: sums have two sides, each of which may be the scores."""

PRECISION = 1e-6
"""How far equal scales may be apart, as a part of them: one may be the rounded reciprocal of the other."""

Powers = tuple[tuple[int, int], ...]
"""Values of one element by which something is multiplied (1) or divided (-1)."""


def fuse_attention(graph: Graph) -> Graph:
    """Return a graph whose attention, and its gradient, are single operations.

    >>> def attention(q, k, v):
    ...     return gt.softmax(q @ gt.permute_dims(k, (0, 1, 3, 2)) * 0.25) @ v
    >>> x = gt.ones((2, 2, 64, 16))
    >>> print(fuse_attention(gt.make_graph(attention)(x, x, x)))
    graph(%0: f32[2,2,64,16], %1: f32[2,2,64,16], %2: f32[2,2,64,16]) {
      %8: (f32[2,2,64,16], f32[2,2,64]) = aten(%0, %1, %2) {overload='aten._scaled_dot_product_flash_attention_for_cpu.default', args=('x', 'x', 'x', 0.0, False, None, 0.25)}
      %9: f32[2,2,64,16] = project(%8) {index=0}
      return %9
    }
    """  # noqa: E501
    if not has_attention(graph):
        return graph
    refused: set[int] = set()
    while True:
        values = Values(graph)
        masks = Masks(values)
        found = [
            attention
            for node in graph.nodes
            if _is_weights(node) and node.out not in refused
            for attention in [_Attention(values, masks, node)]
            if attention.search()
        ]
        if not found:
            return graph
        try:
            after = _replaced(values, masks, found)
        except GraphError:  # products of each other's results, which are no attention
            return graph
        made = {node.out: node for node in after.nodes}
        bad = [attention.weights for attention in found if attention.weights in made or not attention.is_kept(made)]
        if not bad:
            return dce(move_transposes(after))
        refused.update(bad)  # something else needs the weights, or the kernel computes something else


def has_attention(graph: Graph) -> bool:
    """Whether there may be attention."""
    return any(map(_is_weights, graph.nodes))


def _is_weights(node: Node) -> bool:
    a = node.instr.aval
    if node.op.name != "softmax" or not isinstance(a, Aval) or node.params[0] != len(a.shape) - 1:
        return False
    if a.dtype not in (torch.float32, torch.float64) or a.device.type != "cpu" or a.sharding is not None or a.weak:
        return False
    return len(a.shape) in (3, 4) and takes_kernel(math.prod(a.shape[:-2]), *a.shape[-2:])


def takes_kernel(heads: int, queries: int, keys: int) -> bool:
    """Whether the kernel is worth its call for so many heads in all."""
    return heads * queries * keys >= LEAST_SCORES and (heads > 1 or keys >= LEAST_KEYS)


def _replaced(values: Values, masks: Masks, found: Sequence[_Attention]) -> Graph:
    graph = values.graph
    build = Replacements(graph)
    for attention in found:
        attention.rewrite(build, masks)
    ordered = toposort(build.nodes.values(), graph.inputs)
    return dce(Graph(graph.inputs, graph.avals, ordered, graph.outputs))


class _Attention:
    """The search for what is around the softmax of scores.

    Attributes:
        weights: the softmax.
        labels: of its axes.
        query, key, value, cotangent: the arrays that products take.
        result: what is computed, and its axes; `gradients` are those by the query, key and value.
        mask: what is done to the scores, in order.
        slopes: how many derivatives by masked scores are 0 where the mask hides these.
        levelled: whether the mask may hide a row as a whole, or add to all of it, so that it has to be levelled.
        scale, powers: what they are multiplied by before.
    """

    def __init__(self, values: Values, masks: Masks, node: Node) -> None:
        self._values, self._masks = values, masks
        self._node = node
        self.weights = node.out
        self.labels: Labels = (*("b0", "b1")[: len(node.instr.aval.shape) - 2], "l", "s")
        self.query: Term | None = None
        self.key: Term | None = None
        self.value: Term | None = None
        self.cotangent: Term | None = None
        self.result: Term | None = None
        self.gradients: dict[str, Term] = {}
        self.mask: Mask = ()
        self.slopes = 0
        self.levelled = False
        self.scale, self.powers = 1.0, ()  # type: float, Powers

    @property
    def _batch(self) -> set[str]:
        return {*self.labels[:-2]}

    def is_kept(self, made: Mapping[int, Node]) -> bool:
        """Whether a program of these operations computes what this attention replaces."""
        assert self.result is not None
        replaced = [term.value for term in (self.result, *self.gradients.values()) if term.value in made]
        added = [step.value for step in self.mask if isinstance(step, Added)]
        assert self.query is not None and self.key is not None
        # where these make scores larger than 1e9, this hides none; scores beyond 1e4 cost digits of the gradient
        ordinary = [value for value, _ in self.powers]
        if self.gradients:
            ordinary += [self.query.value, self.key.value]
        return computes(self._values, made, replaced, (self.weights,), infinite=added, ordinary=ordinary)

    def search(self) -> bool:
        """Find the attention, and its gradient; returns whether there is one."""
        return self._scores() and self._results() and self._gradients()

    def _scores(self) -> bool:
        """Find queries, keys, scale and mask."""
        scores = self._node.ins[0]
        assert isinstance(scores, int)
        found = self._origin(scores, MOST_STEPS)
        if found is None:
            return False
        product, self.mask, self.scale, self.powers = found
        if not 0.0 < self.scale < math.inf:  # the kernel hides scores before it multiplies them
            return False
        if not self._masks.is_exact(self.mask):
            return False
        self.levelled = not (self._masks.keeps_scores(self.mask) and self._masks.is_level(self.mask))
        terms = self._terms(product)
        if terms is None or terms[2] != "d":
            return False
        for term in terms[:2]:
            if {*term.labels} == self._batch | {"l", "d"}:
                self.query = term
            elif {*term.labels} == self._batch | {"s", "d"}:
                self.key = term
        return self.query is not None and self.key is not None

    def _terms(self, term: Term) -> tuple[Term, Term, str] | None:
        """Return the factors of a product whose axes are known, and the axis that is summed over."""
        product = product_of(self._values, self._values.made.get(term.value))
        if product is None or len(product.result) != len(term.labels):
            return None
        named = product.named(dict(zip(product.result, term.labels, strict=True)))
        return None if named is None else (*named.terms, named.summed)

    def _scaled(self, node: Node) -> tuple[int, float, Powers] | None:
        """Return the array, the number and the values of one element that an array is multiplied or divided by."""
        if node.op.name not in ("mul", "div") or len(node.ins) != 2:
            return None
        for k, (x, y) in enumerate((node.ins, node.ins[::-1])):
            if not isinstance(x, int) or self._values.avals[x] is not node.instr.aval or (k and node.op.name == "div"):
                continue
            power = 1 if node.op.name == "mul" else -1
            if isinstance(y, Scalar):
                number = y.value.real
                return (x, number**power, ()) if number and math.isfinite(number) else None
            a = self._values.avals[y]
            if isinstance(a, Aval) and a.shape == () and a.dtype is node.instr.aval.dtype:
                of = self._values.made.get(y)
                if of is not None and of.op.name == "reciprocal":
                    y, power = of.ins[0], -power
                return (x, 1.0, ((y, power),)) if isinstance(y, int) else None
        return None

    def _origin(self, scores: int, steps: int, masked: bool = True) -> tuple[Term, Mask, float, Powers] | None:
        """Return the product that scores are made of, what masks them, and by what it is multiplied before that.

        Args:
            steps: how many operations may be between.
            masked: whether masks may.
        """
        term = peeled(self._values, scores, self.labels)
        if product_of(self._values, self._values.made.get(term.value)) is not None:
            return term, (), 1.0, ()
        node = self._values.made.get(scores)
        if node is None or not steps:
            return None
        scaled = self._scaled(node)
        if scaled is not None:
            found = self._origin(scaled[0], steps - 1, masked=False)
            return found and (*found[:2], found[2] * scaled[1], (*found[3], *scaled[2]))
        for before, mask in self._masked(node) if masked else ():
            found = self._origin(before, steps - 1)
            if found is not None:
                return found[0], (*found[1], mask), *found[2:]
        return None

    def _masked(self, node: Node) -> Iterator[tuple[int, Hidden | Added]]:
        """Yield what may be the scores before a mask, and the mask."""
        a = node.instr.aval
        if node.op.name == "where":
            condition, x, y = node.ins
            for scores, other, inverted in ((x, y, False), (y, x, True)):
                if isinstance(scores, int) and self._values.avals[scores] is a and isinstance(other, Scalar):
                    if isinstance(condition, int) and self._values.avals[condition].shape:
                        yield scores, Hidden(condition, inverted, float(other.value.real))
        elif node.op.name in ("add", "sub"):
            x, y = node.ins
            for scores, mask in ((x, y), (y, x)) if node.op.name == "add" else ((x, y),):
                if not (isinstance(scores, int) and isinstance(mask, int) and self._values.avals[scores] is a):
                    continue
                b = self._values.avals[mask]
                if isinstance(b, Aval) and b.dtype is a.dtype and b.shape and not b.weak:
                    yield scores, Added(mask, node.op.name == "sub")

    def _uses(self, value: int) -> Iterator[Node]:
        """Yield the operations that take a value, permuted or not."""
        for node in self._values.users.get(value, []):
            if node.op.name == "permute":
                yield from self._uses(node.out)
            else:
                yield node

    def _with(self, node: Node, value: int, labels: Labels) -> tuple[Term, Term, str] | None:
        """Return of a product with a value the other factor, the result, and the axis that is summed over."""
        product = product_of(self._values, node)
        if product is None:
            return None
        for term, other in (product.terms, product.terms[::-1]):
            if term.value == value and other.value != value:
                named = product.named(dict(zip(term.labels, labels, strict=True)))
                if named is None:
                    return None
                other = next(t for t in named.terms if t.value == other.value)
                return other, Term(node.out, named.result), named.summed
        return None

    def _results(self) -> bool:
        """Find the values and the result, and if there is a gradient by the values, that and the cotangent."""
        for node in dict.fromkeys(self._uses(self.weights)):
            found = self._with(node, self.weights, self.labels)
            if found is None:
                continue
            other, result, summed = found
            labels = {*other.labels}
            if summed == "s" and labels == self._batch | {"s", "d"} and self.result is None:
                self.value, self.result = other, result
            elif summed == "l" and labels == self._batch | {"l", "d"} and "value" not in self.gradients:
                self.cotangent, self.gradients["value"] = other, result
            else:
                return False
        if self.value is None or self.query is None or self.result is None:
            return False
        return self._size(self.value) == self._size(self.query) > 0

    def _size(self, term: Term) -> int:
        size: int = self._values.avals[term.value].shape[term.labels.index("d")]
        return size

    def _gradients(self) -> bool:
        """Find the gradients by queries and keys, if there is one by the values; returns whether all fits."""
        slope = self._slope()
        if slope is None:  # the weights may have other uses, which show when they are not gone in the end
            return not self.gradients
        of, by = slope
        terms = self._terms(peeled(self._values, by, self.labels))
        if terms is None or terms[2] != "d":
            return False
        one, other, _ = terms
        cotangent, value = (one, other) if "l" in one.labels else (other, one)
        if value != self.value or self.cotangent not in (None, cotangent):
            return False
        if {*cotangent.labels} != self._batch | {"l", "d"}:
            return False
        self.cotangent = cotangent
        scale, powers = 1.0, ()  # type: float, Powers
        while True:
            users = self._values.users.get(of, [])
            if len(users) != 1 or of in self._values.outputs:
                break
            scaled = self._scaled(users[0])
            if scaled is not None and scaled[0] == of:
                scale, powers = scale * scaled[1], (*powers, *scaled[2])
            elif self._is_masked_slope(users[0], of):
                self.slopes += 1
            else:
                break
            of = users[0].out
        if self.slopes and self.levelled and any(isinstance(x, Hidden) and x.score == -math.inf for x in self.mask):
            # the weights of rows that are hidden as a whole are NaN; only if all is hidden by the same, slopes are 0
            if not hides_alone(self.mask) or self.slopes != len(self.mask):
                return False
        if abs(scale - self.scale) > PRECISION * abs(self.scale) or sorted(powers) != sorted(self.powers):
            return False
        for node in dict.fromkeys(self._uses(of)):
            found = self._with(node, of, self.labels)
            if found is None:
                return False
            other, result, summed = found
            if summed == "s" and other == self.key and "query" not in self.gradients:
                self.gradients["query"] = result
            elif summed == "l" and other == self.query and "key" not in self.gradients:
                self.gradients["key"] = result
            else:
                return False
        return bool(self.gradients)

    def _slope(self) -> tuple[int, int] | None:
        """Return the derivative by the scores, w - y sum(w) with w = ct y, and the cotangent ct of the weights."""
        y, made, users = self.weights, self._values.made, self._values.users
        axes = ((len(self.labels) - 1,), True)
        for weighted in users.get(y, []):
            if weighted.op.name != "mul":
                continue
            ct = weighted.ins[0] if weighted.ins[1] == y else weighted.ins[1]
            for node in users.get(weighted.out, []):
                if node.op.name != "sub" or node.ins[0] != weighted.out or not isinstance(node.ins[1], int):
                    continue
                share = made[node.ins[1]]
                if share.op.name != "mul" or y not in share.ins or not isinstance(ct, int):
                    continue
                total = made.get(next((x for x in share.values() if x != y), -1))
                if total is not None and total.op.name == "sum" and total.ins[0] == weighted.out:
                    if total.params == axes:
                        return node.out, ct
        return None

    def _is_masked_slope(self, node: Node, of: int) -> bool:
        """Whether this is a derivative by scores that is 0 where the mask hides them."""
        if node.op.name != "where":
            return False
        condition, x, y = node.ins
        hidden = [(step.condition, step.inverted) for step in self.mask if isinstance(step, Hidden)]
        zero, inverted = (y, False) if x == of else (x, True)
        return isinstance(zero, Scalar) and zero.value == 0 and (condition, inverted) in hidden

    # -- the operations

    def rewrite(self, build: Replacements, masks: Masks) -> None:
        """Put the kernels, and what they need, in place of the products."""
        assert self.query is not None and self.key is not None and self.value is not None and self.result is not None
        build.location = self._values.made[self.result.value].location
        query, key, value = (
            self._taken(build, term, axis) for term, axis in ((self.query, "l"), (self.key, "s"), (self.value, "s"))
        )
        for number, power in self.powers:
            query = build("mul" if power > 0 else "div", (), query, number)
        *_, queries, keys = self._node.instr.aval.shape
        causal = masks.is_causal(self.mask, queries, keys)
        scores, mask = self._node.instr.aval, None
        if self.mask and not causal:
            mask = built_mask(build, self.mask, scores, self.levelled)
        alone = None if mask is None else mask.alone
        if alone is not None:
            query = build("where", (), alone, number_of(0.0, scores), query)
        extra = () if mask is None else (mask.added,)
        rest = 0.0, causal, None if mask is None else "x", self.scale
        call = build("aten", (FORWARD, ("x", "x", "x", *rest)), query, key, value, *extra)
        self._given(build, call, 0, self.result, "l")
        if not self.gradients:
            return
        assert self.cotangent is not None
        build.location = self._values.made[next(iter(self.gradients.values())).value].location
        cotangent = self._taken(build, self.cotangent, "l")
        out, sums = (build("project", (k,), call) for k in (0, 1))
        hidden = None
        if self.slopes and mask is not None and mask.gone is not None:
            assert mask.without is not None
            cotangent, out, sums, hidden = self._without_rows(build, mask.gone, cotangent, out, sums)
            extra = (mask.without,)
        call = build(
            "aten", (BACKWARD, ("x",) * 6 + rest), cotangent, query, key, value, out, sums, *extra
        )  # fmt: skip
        for k, (name, axis) in enumerate((("query", "l"), ("key", "s"), ("value", "s"))):
            if name in self.gradients:
                powers = self.powers if name == "query" else ()
                where = {"query": alone, "value": hidden}.get(name)
                missing = 0.0 if name == "query" else math.nan
                self._given(build, call, k, self.gradients[name], axis, powers, where, missing)

    def _without_rows(self, build: Replacements, gone: int, *values: int) -> tuple[int, int, int, int]:
        """Return cotangent, results and sums for the kernel's gradient, without rows that are hidden as a whole.

        The weights of such a row are NaN. So are the gradients by all values beside it. Those by the query and the keys
        are 0, because each of its scores was replaced. The last result says where gradients by values are NaN.
        """
        found = []
        for x in values:
            a, where = build.aval(x), gone
            if len(a.shape) == 3:
                where = build("reshape", (build.aval(gone).shape[:3],), gone)
            found.append(build("where", (), where, number_of(0.0, a), x))
        cotangent, out, sums = found
        return cotangent, out, sums, build("any", ((2,), True), gone)

    def _taken(self, build: Replacements, term: Term, axis: str) -> int:
        """Return an array as the kernels take it: batch, heads, length and depth."""
        order = (*self.labels[:-2], axis, "d")
        x = build.arranged(term.value, tuple(map(term.labels.index, order)))
        if len(order) == 4:
            return x
        batch, length, depth = build.aval(x).shape
        return build("reshape", ((batch, 1, length, depth),), x)

    def _given(
        self, build: Replacements, call: int, place: int, term: Term, axis: str, powers: Powers = (),
        where: int | None = None, number: float = 0.0,
    ) -> None:  # fmt: skip
        """Put a result of a kernel in the place of a product; `where` something holds, a number is there."""
        x = build("project", (place,), call)
        if where is not None:
            x = build("where", (), where, number_of(number, build.aval(x)), x)
        for number, power in powers:
            x = build("mul" if power > 0 else "div", (), x, number)
        order = (*self.labels[:-2], axis, "d")
        if len(order) == 3:
            batch, _, length, depth = build.aval(x).shape
            x = build("reshape", ((batch, length, depth),), x)
        build.arranged(x, tuple(map(order.index, term.labels)), out=term.value)
