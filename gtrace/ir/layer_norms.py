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
import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from gtrace.ir.aval import Aval
from gtrace.ir.edit import toposort
from gtrace.ir.graph import Graph, Node, Scalar
from gtrace.ir.op import REGISTRY
from gtrace.ir.simplify import dce

FORWARD, BACKWARD = "aten.native_layer_norm.default", "aten.native_layer_norm_backward.default"
SPREADS, MEANS = (0.1, 1.0, 1e-20), (1.0, 0.0, 0.0)
"""Of the rows. On the last one, any number that is added to what a norm divides by shows."""

TOLERANCE = 1e-9
"""How far equal values may be apart, as a part of the largest in their row."""

FULL, ROW, FLAT, COLUMN = "full", "row", "flat", "column"
"""What a value is beside an array [..., n]: of its shape, [..., 1], [...], or [n]."""


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
    refused: set[int] = set()
    while has_roots(graph):
        values = _Values(graph)
        norms: list[_Norm] = []
        claimed: set[int] = set()
        for x in values.candidates():
            norm = _Norm(values, x)
            # those that share sums of cotangents are found one after the other
            if x not in refused and norm.search() and claimed.isdisjoint(norm.claims):
                norms.append(norm)
                claimed.update(norm.claims)
        if not norms:
            break
        after = values.replaced(norms)
        left = {node.out for node in after.nodes}
        bad = [norm.x for norm in norms if not left.isdisjoint(norm.inside)]
        if not bad:
            graph = after
        else:  # something else needs what is between
            refused.update(bad)
    return graph


def has_roots(graph: Graph) -> bool:
    """Whether there are powers that are no integers, as of variances."""
    return any(map(_is_root, graph.nodes))


def _is_root(node: Node) -> bool:
    return node.op.name in ("sqrt", "rsqrt", "pow")


class _Values:
    """A graph, with what is often asked of it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.avals = graph.value_avals()
        self.made = {node.out: node for node in graph.nodes}
        self.place = {node.out: k for k, node in enumerate(graph.nodes)}
        self.outputs = frozenset(graph.outputs)
        self.users: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in dict.fromkeys(node.values()):
                self.users.setdefault(value, []).append(node)

    def candidates(self) -> list[int]:
        """Return the arrays that are centred along their last axis."""
        found: dict[int, None] = {}
        for node in self.graph.nodes:
            if node.op.name in ("mean", "sum") and isinstance(node.ins[0], int):
                a = self.avals[node.ins[0]]
                if _is_normed(a) and node.params[0] == (len(a.shape) - 1,):
                    found.setdefault(node.ins[0])
        return [x for x in found if any(user.op.name == "sub" for user in self.users[x])]

    def added_up(self, value: int) -> Node | None:
        """Return the sum that is the only use of a value."""
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 and users[0].op.name == "add" and value not in self.outputs else None

    def replaced(self, norms: Iterable[_Norm]) -> Graph:
        """Return the graph with layer norms as operations, in the order of what they replace."""
        fresh = 1 + max([*self.graph.inputs, *self.made])
        nodes = dict(self.made)
        before: dict[int, list[Node]] = {}
        for norm in norms:
            for made in norm.nodes(fresh):
                known = {node.out: node for node in made if node.out in self.made}
                if known:
                    nodes.update(known)
                    first = min(self.place[value] for value in known)
                    before.setdefault(first, []).extend(node for node in made if node.out not in known)
                fresh = max([fresh, *[node.out + 1 for node in made]])
        ordered = [
            node
            for value, place in self.place.items()
            for node in (*before.get(place, ()), nodes[value])
        ]  # fmt: skip
        inputs = self.graph.inputs
        return dce(Graph(inputs, self.graph.avals, toposort(ordered, inputs), self.graph.outputs))


def _is_normed(a: Any) -> bool:
    return (
        isinstance(a, Aval) and a.dtype in (torch.float32, torch.float64) and len(a.shape) > 1 and a.shape[-1] > 1
        and a.size > 0 and a.sharding is None
    )  # fmt: skip


class _Norm:
    """The search for a layer norm of one array.

    Attributes:
        kinds: what is computed of the array row by row, and of which kind it is.
        plain: the arrays among these that are computed without what is the same for a row.
        results: the values that the operators compute: the place in the results of the forward or backward operator.
        weight, bias, cotangent, eps: the other operands.
        total: a sum of the gradient of the array, in several terms, with others: these.
    """

    def __init__(self, values: _Values, x: int) -> None:
        self.values, self.x = values, x
        self.shape: tuple[int, ...] = values.avals[x].shape
        self.kinds: dict[int, str] = {}
        self.plain: set[int] = set()
        self.results: dict[int, tuple[str, int]] = {}
        self.weight: int | None = None
        self.bias: int | None = None
        self.cotangent: int | None = None
        self.eps = 0.0
        self.total: tuple[int, tuple[int, ...]] | None = None

    @property
    def inside(self) -> set[int]:
        """The arrays between operand and results, which nothing may need any more."""
        arrays = {value for value, kind in self.kinds.items() if kind == FULL}
        return arrays - self.plain - set(self.results)

    @property
    def claims(self) -> set[int]:
        """The values that it replaces."""
        return {*self.results} | ({self.total[0]} if self.total is not None else set())

    def search(self) -> bool:
        """Find the norm, and its gradient; returns whether there is one that can be replaced."""
        columns = self._grow(None)
        if not self._forward(columns):
            return False
        forward, candidates = dict(self.results), list(dict.fromkeys(self._cotangents()))
        for whole in (True, False):  # with the gradient of the array, or of the vectors alone
            for cotangent in candidates:
                self.results, self.cotangent = dict(forward), cotangent
                self._grow(cotangent)
                if self._backward(whole):
                    return True
        return not candidates

    # -- what is computed row by row

    def _kind(self, value: int) -> str | None:
        """Return the kind of a value that is given: the array, a vector, a cotangent."""
        shape = getattr(self.values.avals[value], "shape", None)
        if shape == self.shape:
            return FULL
        return COLUMN if shape == self.shape[-1:] else None

    def _grow(self, cotangent: int | None) -> list[int]:
        """Find what is computed row by row of the array, a cotangent and vectors; returns the vectors."""
        values = self.values
        kinds = self.kinds = {}
        self.plain = set()
        given = {self.x: FULL} | ({} if cotangent is None else {cotangent: FULL})
        columns: dict[int, None] = {}
        pending: list[int] = []  # a heap of places, some of which come twice
        for value in given:
            self._follow(value, pending)
        done = -1
        while pending:
            place = heapq.heappop(pending)
            if place == done:
                continue
            done = place
            node = values.graph.nodes[place]
            operands = []
            for operand in node.ins:
                if isinstance(operand, int):
                    kind = kinds.get(operand) or given.get(operand)
                    operands.append(kind or (COLUMN if self._kind(operand) == COLUMN else None))
            out = self._kind_of(node, operands)
            if out is None:
                continue
            kinds[node.out] = out
            if (
                out == FULL
                and ROW not in operands
                and all(kinds.get(v) != FULL or v in self.plain for v in node.values())
            ):
                self.plain.add(node.out)
            if out != COLUMN:  # vectors are results
                self._follow(node.out, pending)
            columns.update((v, None) for v in node.values() if v not in kinds and v not in given)
        return list(columns)

    def _follow(self, value: int, pending: list[int]) -> None:
        for user in self.values.users.get(value, []):
            heapq.heappush(pending, self.values.place[user.out])

    def _kind_of(self, node: Node, operands: list[str | None]) -> str | None:
        """Return the kind of a result; None: it is not computed row by row from what is known."""
        if not operands or None in operands:
            return None
        a, name = node.instr.aval, node.op.name
        if not isinstance(a, Aval) or a.dtype is not self.values.avals[self.x].dtype:
            return None
        if name in ("mean", "sum") and operands == [FULL]:
            axes, keepdims = node.params
            return None if axes != (len(self.shape) - 1,) else ROW if keepdims else FLAT
        if name == "sum_to" and operands == [FULL]:
            return ROW if a.shape == (*self.shape[:-1], 1) else COLUMN if a.shape == self.shape[-1:] else None
        if name in ("broadcast_to", "reshape") and operands in ([ROW], [FLAT]):
            if a.shape == (*self.shape[:-1], 1):
                return ROW
            if name == "reshape" and a.shape == self.shape[:-1]:
                return FLAT
            return FULL if name == "broadcast_to" and operands == [ROW] and a.shape == self.shape else None
        if not node.op.algebraic:
            return None
        if FLAT in operands:
            return FLAT if set(operands) == {FLAT} else None
        if a.shape == self.shape:
            return FULL
        return ROW if set(operands) == {ROW} else None

    # -- what it is

    def _random(self, value: int, *sizes: int) -> torch.Tensor:
        """Return random numbers that stand for a value: others for each."""
        generator = torch.Generator().manual_seed(value)
        return torch.randn((*sizes, self.shape[-1]), generator=generator, dtype=torch.float64)

    def _evaluate(self, cotangent: int | None) -> dict[int, torch.Tensor]:
        """Return the values of everything on the rows."""
        spreads, means = (torch.tensor(x, dtype=torch.float64)[:, None] for x in (SPREADS, MEANS))
        env = {self.x: self._random(self.x, len(SPREADS)) * spreads + means}
        if cotangent is not None:
            env[cotangent] = self._random(cotangent, len(SPREADS))
        for value, kind in self.kinds.items():
            node = self.values.made[value]
            operands = [
                torch.tensor(v.value, dtype=torch.float64)
                if isinstance(v, Scalar)
                else env[v]
                if v in env
                else env.setdefault(v, self._random(v))
                for v in node.ins
            ]  # fmt: skip
            name = node.op.name
            if name in ("mean", "sum"):
                env[value] = getattr(operands[0], name)(-1, keepdim=True)
            elif name == "sum_to":
                env[value] = operands[0].sum(-1, keepdim=True) if kind == ROW else operands[0].sum(0)
            elif name in ("broadcast_to", "reshape"):
                env[value] = operands[0]
            else:
                env[value] = node.op.impl(*operands, **node.attributes)
        return env

    def _forward(self, columns: list[int]) -> bool:
        """Find the results of the norm, and its scale and shift."""
        env = self._evaluate(None)
        found = self._epsilons(env)
        if len(found) != 1 or None in found:
            return False
        (self.eps,) = found  # type: ignore[assignment]
        plain = torch.native_layer_norm(env[self.x], self.shape[-1:], None, None, self.eps)[0]
        full = {v: env[v] for v, kind in self.kinds.items() if kind == FULL}
        pairs = [(w, b) for w in columns for b in columns if w != b]
        for weight, bias in [*pairs, *[(w, None) for w in columns], (None, None)]:
            expected = plain if weight is None else plain * env[weight]
            if bias is not None:
                expected = expected + env[bias]
            same = [v for v, y in full.items() if _equal(y, expected)]
            if same:
                self.weight, self.bias = weight, bias
                self.results.update((v, (FORWARD, 0)) for v in same)
                return True
        return False

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
            return eps if eps >= 0 and base in self.kinds and _equal(env[base], variance + eps) else None

        return {added(node.ins[0]) for node in map(self.values.made.__getitem__, self.kinds) if _is_root(node)}

    def _cotangents(self) -> Iterator[int]:
        """Yield arrays that are multiplied by something of the norm, without its scale."""
        for value in list(self.kinds):
            for node in self.values.users.get(value, []):
                if node.op.name != "mul" or node.out in self.kinds:
                    continue
                for operand in node.values():
                    if operand in self.kinds or operand == self.x or self._kind(operand) != FULL:
                        continue
                    product = self.values.made.get(operand)
                    if product is not None and product.op.name == "mul" and self.weight in product.ins:
                        yield from (v for v in product.values() if v != self.weight)
                    yield operand

    def _backward(self, whole: bool) -> bool:
        """Find the results of the gradient; returns whether there is one, or, of a `whole` one, that of the array."""
        env = self._evaluate(self.cotangent)
        if self._epsilons(env) != {self.eps} or self.cotangent is None:
            return False
        x, n = env[self.x], self.shape[-1:]
        weight, bias = (None if v is None else env.get(v, self._random(v)) for v in (self.weight, self.bias))
        _, mean, rstd = torch.native_layer_norm(x, n, weight, bias, self.eps)
        found = torch.ops.aten.native_layer_norm_backward(
            env[self.cotangent], x, n, mean, rstd, weight, bias, [True, weight is not None, bias is not None]
        )
        for place, kind in enumerate((FULL, COLUMN, COLUMN)):
            if place and (None, self.weight, self.bias)[place] is None:
                continue
            for value in [v for v, k in self.kinds.items() if k == kind]:
                if value not in self.results and _equal(env[value], found[place]):
                    self.results[value] = BACKWARD, place
        if whole:
            return (BACKWARD, 0) in self.results.values() or self._find_total(env, found[0])
        return (BACKWARD, 1) in self.results.values()

    def _find_total(self, env: Mapping[int, torch.Tensor], expected: torch.Tensor) -> bool:
        """Find a sum to which the gradient of the array is added in several terms; returns whether there is one."""
        values = self.values
        tops: dict[int, None] = {}
        for value in [v for v, kind in self.kinds.items() if kind == FULL]:
            for top in values.users.get(value, []):
                if top.op.name == "add" and top.out not in self.kinds:
                    while (above := values.added_up(top.out)) is not None:
                        top = above
                    tops.setdefault(top.out)
        for out in tops:
            left, terms = [out], []
            while left:
                value = left.pop()
                node = values.made.get(value)
                if value == out or (node is not None and node.op.name == "add" and value not in self.kinds
                                    and values.added_up(value) is not None):  # fmt: skip
                    left += reversed([*values.made[value].values()])
                else:
                    terms.append(value)
            inside = [v for v in terms if self.kinds.get(v) == FULL]
            a = values.avals[out]
            if any(values.avals[v] is not a for v in terms) or len(terms) == len(inside):
                continue
            if _equal(functools.reduce(torch.add, [env[v] for v in inside]), expected):
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
        n = self.shape[-1:]
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


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bool(((x - y).abs() <= TOLERANCE * y.abs().amax(-1, keepdim=True)).all())
