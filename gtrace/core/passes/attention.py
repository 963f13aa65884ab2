"""Attention that is written out, and its gradient, as torch's fused kernel for CPUs.

Written out, attention (Vaswani et al., 2017) is two products with a softmax between them. It keeps the scores of all
pairs of places for its gradient. The kernel computes the scores twice, block by block, and keeps none, so it needs
memory for the queries alone. From a thousand places on it takes a third of the time; for fewer, about as long.

The search looks at what products compute, not at how they are written. The labels of axes are "b0" and "b1" for batch
and heads, "l" for queries, "s" for keys, and "d" for what products sum over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from gtrace.core.ir.aval import Aval
from gtrace.core.ir.def_use import Values
from gtrace.core.ir.edit import Replacements
from gtrace.core.ir.graph import Graph, Node, Operand, Scalar
from gtrace.core.ir.simplify import dce, move_transposes
from gtrace.core.passes.contractions import Labels, Term, peeled, product_of
from gtrace.core.passes.driver import Match, Searches, fuse
from gtrace.core.passes.masks import Added, Hidden, Mask, Masks, built_mask, hides_alone, number_of
from gtrace.core.passes.tuned import LEAST_KEYS, LEAST_SCORES

FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"

MOST_STEPS = 8
"""Operations between the product and the softmax, at most: sums have two sides, each of which may be the scores."""

_ROLES = {
    (True, "s"): ("value", "result"),
    (True, "l"): ("cotangent", "value"),
    (False, "s"): ("key", "query"),
    (False, "l"): ("query", "key"),
}
"""By whether a factor of a product is the weights, and by what it sums over: its other factor, and what it computes."""

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
    after = fuse(graph, _searches)
    return graph if after is graph else dce(move_transposes(after))


def _searches(values: Values) -> Searches:
    masks = Masks(values)
    return [(node.out, _Attention(values, masks, node).search) for node in values.graph.nodes if _is_weights(node)]


def has_attention(graph: Graph) -> bool:
    """Whether there may be attention."""
    return any(map(_is_weights, graph.nodes))


def _is_weights(node: Node) -> bool:
    a = node.instr.aval
    if node.op.name != "softmax" or not isinstance(a, Aval) or node.attributes["axis"] != len(a.shape) - 1:
        return False
    if a.dtype not in (torch.float32, torch.float64) or a.device.type != "cpu" or a.sharding is not None or a.weak:
        return False
    return len(a.shape) in (3, 4) and takes_kernel(math.prod(a.shape[:-2]), *a.shape[-2:])


def takes_kernel(heads: int, queries: int, keys: int) -> bool:
    """Whether the kernel is worth its call for so many heads in all."""
    return heads * queries * keys >= LEAST_SCORES and (heads > 1 or keys >= LEAST_KEYS)


class _Attention:
    """The search for what is around the softmax of scores.

    Attributes:
        weights: the softmax; or, where rows of minus infinity alone have no weights, what says so.
        labels: of its axes.
        factors: the query, key, value and cotangent, which products take.
        result: what is computed, and its axes; `gradients` are those by the query, key and value.
        mask: what is done to the scores, in order.
        levelled: whether the mask may hide a row as a whole, or add to all of it, so that it has to be levelled.
        scale, powers: what they are multiplied by before.
    """

    def __init__(self, values: Values, masks: Masks, node: Node) -> None:
        self._values, self._masks = values, masks
        self._node = node
        self.weights = node.out
        self._guard: int | None = None
        self._allowed = [node.out]
        self.labels: Labels = (*("b0", "b1")[: len(node.instr.aval.shape) - 2], "l", "s")
        self.factors: dict[str, Term] = {}
        self.gradients: dict[str, Term] = {}

    def search(self) -> Match | None:
        """Find the attention, and its gradient."""
        if not (self._scores() and self._products()):
            return None
        # where these make scores larger than 1e9, this hides none; scores beyond 1e4 cost digits of the gradient
        ordinary = [value for value, _ in self.powers]
        if self.gradients:
            ordinary += [self.factors[name].value for name in ("query", "key")]
        added = [step.value for step in self.mask if isinstance(step, Added)]
        apart = {"allowed": self._allowed, "infinite": added, "ordinary": ordinary}
        replaced = [term.value for term in (self.result, *self.gradients.values())]
        return Match(replaced, [self.weights, self._node.out], self.rewrite, apart)

    def _scores(self) -> bool:
        """Find queries, keys, scale and mask."""
        found = self._origin(self._guarded(), MOST_STEPS)
        if found is None:
            return False
        product, self.mask, self.scale, self.powers = found
        # the kernel hides scores before it multiplies them
        if not (0.0 < self.scale < math.inf and self._masks.is_exact(self.mask)):
            return False
        kept = self._masks.keeps_scores(self.mask) or (self._guard is not None and hides_alone(self.mask))
        self.levelled = not (kept and self._masks.is_level(self.mask))
        terms = self._terms(product)
        for term in () if terms is None or terms[2] != "d" else terms[:2]:
            for name, axis in (("query", "l"), ("key", "s")):
                if self._has_axis(term, axis):
                    self.factors[name] = term
        return len(self.factors) == 2

    def _guarded(self) -> int:
        """Return the scores, as they are before rows of minus infinity alone become zeros and lose their weights.

        The kernel gives such rows no weights either.
        """
        given: int = self._node.ins[0]  # type: ignore[assignment]  # an array
        zeros = self._values.made.get(given)
        for use in self._values.users.get(self.weights, ()):
            if zeros is None or (zeros.op.name, use.op.name) != ("where", "where") or use.ins[1] != self.weights:
                continue
            condition, scores, _ = zeros.ins
            some = self._made(condition, "any")
            finite = None if some is None else self._made(some.ins[0], "ne")
            if finite is None or finite.ins[0] != scores or use.ins[0] != condition:
                continue
            numbers = [x.value if isinstance(x, Scalar) else None for x in (finite.ins[1], zeros.ins[2], use.ins[2])]
            if numbers == [-math.inf, 0.0, 0.0] and isinstance(condition, int) and isinstance(scores, int):
                self.weights, self._guard = use.out, condition
                self._allowed += [condition, finite.out]
                return scores
        return given

    def _made(self, value: Operand, name: str) -> Node | None:
        """Return the operation that makes a value, if it has this name."""
        node = self._values.made.get(value)  # type: ignore[arg-type]  # numbers have no key
        return node if node is not None and node.op.name == name else None

    def _has_axis(self, term: Term, axis: str) -> bool:
        """Whether an array has an axis of queries or keys beside those of batch, heads and depth."""
        return {*term.labels} == {*self.labels[:-2], axis, "d"}

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
        """Return the product that makes scores, their mask, and the factor between product and mask.

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

    def _with(self, node: Node, value: int) -> tuple[Term, Term, str] | None:
        """Return of a product with scores the other factor, the result, and the axis that is summed over."""
        product = product_of(self._values, node)
        if product is None or value not in [term.value for term in product.terms]:
            return None
        k = [term.value for term in product.terms].index(value)
        named = product.named(dict(zip(product.terms[k].labels, self.labels, strict=True)))
        return None if named is None else (named.terms[1 - k], Term(node.out, named.result), named.summed)

    def _products(self) -> bool:
        """Find the products with the weights, and with the slopes that follow from them; returns whether all fit.

        Only the evaluation of the whole tells whether the slopes are the derivative by the scores.
        """
        values, scores = self._values, list(dict.fromkeys([self.weights, self._node.out]))
        found: dict[str, Term] = {}
        for value in scores:  # which grow
            for node in values.users.get(value, ()):
                of = peeled(values, value, self.labels).value
                if product_of(values, node) is None:
                    if (node.op.name == "permute" or node.instr.aval is values.avals[of]) and node.out not in scores:
                        scores.append(node.out)
                    continue
                product = self._with(node, of)
                if product is None or (of == self.weights, product[2]) not in _ROLES:
                    return False
                other, result, summed = product
                factor, name = _ROLES[of == self.weights, summed]
                if not self._has_axis(other, summed) or found.setdefault(name, result) != result:
                    return False
                if self.factors.setdefault(factor, other) != other:
                    return False
        if "result" not in found or not self._depth("value") == self._depth("query") > 0:
            return False
        self.result = found.pop("result")
        self.gradients = found
        for value in scores[1:]:
            for x in values.made[value].values():
                chosen = self._made(x, "where")
                x = chosen.ins[1] if chosen is not None and chosen.ins[0] == self._guard else x  # type: ignore[assignment]
                *terms, summed = self._terms(peeled(values, x, self.labels)) or ("",)
                if summed == "d" and self.factors["value"] in terms:
                    self.factors.setdefault("cotangent", terms[1 - terms.index(self.factors["value"])])
        return not found or ("cotangent" in self.factors and not {"query", "key"}.isdisjoint(found))

    def _depth(self, factor: str) -> int:
        term = self.factors[factor]
        size: int = self._values.avals[term.value].shape[term.labels.index("d")]
        return size

    # -- the operations

    def rewrite(self, build: Replacements) -> None:
        """Put the kernels, and what they need, in place of the products."""
        build.location = self._values.made[self.result.value].location
        query, key, value = (
            self._taken(build, name, axis) for name, axis in (("query", "l"), ("key", "s"), ("value", "s"))
        )
        for number, power in self.powers:
            query = build("mul" if power > 0 else "div", (), query, number)
        *_, queries, keys = self._node.instr.aval.shape
        causal = self._masks.is_causal(self.mask, queries, keys)
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
        build.location = self._values.made[next(iter(self.gradients.values())).value].location
        cotangent = self._taken(build, "cotangent", "l")
        out, sums = (build("project", (k,), call) for k in (0, 1))
        hidden = None
        if mask is not None and mask.gone is not None:
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

    def _taken(self, build: Replacements, name: str, axis: str) -> int:
        """Return an array as the kernels take it: batch, heads, length and depth."""
        term = self.factors[name]
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
