"""Canonical form and signatures: what must not matter does not, what must matter does."""

from __future__ import annotations

import itertools

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, random_graph, rearranged, tensors

import gtrace as gt
from gtrace.ir.aval import contiguous_strides
from gtrace.ir.graph import Graph, Node, Scalar, print_graph
from gtrace.ir.op import REGISTRY
from gtrace.ir.text import parse_graph
from gtrace.ir.verify import verify
from gtrace.runtime.canonical import canonicalize
from gtrace.runtime.inductor import compile_unit
from gtrace.runtime.interpret import interpreter
from gtrace.runtime.signature import sign
from gtrace.runtime.unit import Unit


def signature(graph: Graph) -> str:
    return sign(canonicalize(graph).graph).exact


def recorded(function, *args) -> str:
    """The signature of a function as recorded."""
    return signature(gt.make_graph(function)(*args))


x, y, z = (gt.array([1.0, 2.0, 3.0]) + k for k in range(3))
m = gt.ones((3, 3))

SAME = [
    ("renaming", lambda b, c: b + c, lambda u, v: u + v),
    ("commutative operands", lambda b, c: b * c, lambda b, c: c * b),
    ("a scalar on either side", lambda b, c: 2.0 * b, lambda b, c: b * 2.0),
    ("dead code", lambda b, c: b - c, lambda b, c: (b.sum(), b - c)[1]),
    ("computed twice", lambda b, c: (s := gt.sin(b)) * s + c, lambda b, c: gt.sin(b) * gt.sin(b) + c),
    ("stop_gradient", lambda b, c: b * c, lambda b, c: gt.stop_gradient(b) * c),
    ("constants folded", lambda b, c: b * 0.25, lambda b, c: b * (gt.ones(3) / 4)),
    ("broadcast operands", lambda b, c: b.sum() + c, lambda b, c: c + b.sum()),
]
DIFFERENT = [
    ("another dependency", lambda b, c, d: (b + c) * d, lambda b, c, d: (b + c, b * c)[1]),
    ("operand order", lambda b, c, d: (a := gt.sin(b), a - b)[1], lambda b, c, d: (a := gt.sin(b), b - a)[1]),
    ("an attribute", lambda b, c, d: m.sum(axis=0) + b, lambda b, c, d: m.sum(axis=1) + b),
    ("a scalar", lambda b, c, d: b * 2.0, lambda b, c, d: b * 3.0),
    ("zero's sign", lambda b, c, d: b * 0.0, lambda b, c, d: b * -0.0),
    ("a dtype", lambda b, c, d: b.astype(gt.float64), lambda b, c, d: b.astype(gt.float16)),
    ("sharing", lambda b, c, d: (b + c) * (b + c), lambda b, c, d: (b + c) * (b + d)),
]


@pytest.mark.parametrize(("what", "one", "other"), SAME, ids=[case[0] for case in SAME])
def test_what_does_not_matter(what, one, other):
    assert recorded(one, x, y) == recorded(other, x, y)


@pytest.mark.parametrize(("what", "one", "other"), DIFFERENT, ids=[case[0] for case in DIFFERENT])
def test_what_matters(what, one, other):
    assert recorded(one, x, y, z) != recorded(other, x, y, z)


def test_independent_work_may_interleave():
    def one(b, c):
        p = gt.sin(b)
        q = gt.cos(c)
        return p * 2.0, q * 3.0

    def other(b, c):
        q = gt.cos(c)
        q = q * 3.0
        p = gt.sin(b)
        return p * 2.0, q

    assert recorded(one, x, y) == recorded(other, x, y)


def test_sizes_and_scalars_are_holes_of_the_structural_signature():
    def structural(function, *args):
        return sign(canonicalize(gt.make_graph(function)(*args)).graph).structural

    assert structural(lambda v: v * 2.0, x) == structural(lambda v: v * 3.5, gt.ones(7))
    assert structural(lambda v: v * 2.0, x) != structural(lambda v: v + 2.0, x)
    assert structural(lambda v: v * 2.0, x) != structural(lambda v: v * 2.0, m)


# random graphs


@given(graphs())
def test_text_round_trip(graph):
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert parsed == graph
    assert print_graph(parsed) == text
    canonical = canonicalize(graph).graph
    assert parse_graph(print_graph(canonical)) == canonical


@given(graphs())
def test_graphs_and_their_canonical_forms_verify(graph):
    verify(graph)
    verify(canonicalize(graph).graph)


@given(graphs(max_nodes=20), st.integers(0, 10**9))
def test_a_rearranged_program_has_the_same_canonical_form(graph, seed):
    other = rearranged(graph, seed)
    verify(other)
    assert print_graph(canonicalize(other).graph) == print_graph(canonicalize(graph).graph)


@given(graphs())
def test_canonical_form_is_idempotent(graph):
    once = canonicalize(graph).graph
    assert canonicalize(once).graph == once


@given(graphs(max_nodes=20), st.integers(0, 10**9))
def test_canonical_form_computes_the_same(graph, seed):
    given_tensors = tensors(graph.avals, seed)
    expected = interpreter(graph)(given_tensors)
    form = canonicalize(graph)
    got = interpreter(form.graph)([given_tensors[k] for k in form.inputs]) if form.graph.nodes else []
    for place, tensor in zip(form.outputs, expected, strict=True):
        torch.testing.assert_close(
            got[place] if place >= 0 else given_tensors[-1 - place], tensor, equal_nan=True, rtol=1e-5, atol=1e-6
        )


def isomorphic(a: Graph, b: Graph) -> bool:
    """Whether two graphs are one program, by trying every assignment of inputs; both are canonical, so this only has
    to look through what canonical form leaves open. Independent of how signatures are made."""
    if sorted(map(repr, a.avals)) != sorted(map(repr, b.avals)) or len(a.nodes) != len(b.nodes):
        return False
    for order in itertools.permutations(b.inputs):
        if any(p is not q for p, q in zip(a.avals, (b.avals[k] for k in order), strict=True)):
            continue
        terms: dict[object, int] = {}
        if terms_of(a, a.inputs, terms) == terms_of(b, order, terms):
            return True
    return False


def terms_of(graph: Graph, inputs, terms: dict[object, int]) -> list[int]:
    """The outputs as numbers of hash-consed terms over numbered inputs."""
    number = {value: terms.setdefault(("input", k), len(terms)) for k, value in enumerate(inputs)}
    for node in graph.nodes:
        ins = [(number[o], "") if isinstance(o, int) else (-1, repr(o)) for o in node.ins]
        if node.op.commutative:
            ins.sort()
        number[node.out] = terms.setdefault((node.instr, tuple(ins)), len(terms))
    return sorted(number[value] for value in graph.outputs)


def twins(graph: Graph):
    """Graphs that differ from `graph` in one place."""
    table = graph.value_avals()
    for k, node in enumerate(graph.nodes):
        before = [*graph.inputs, *(n.out for n in graph.nodes[:k])]
        for slot, operand in enumerate(node.ins):
            if isinstance(operand, int):
                for other in before:
                    if other != operand and table[other] is table[operand]:
                        yield k, attrs.evolve(node, ins=(*node.ins[:slot], other, *node.ins[slot + 1 :]))
            else:
                changed = Scalar(operand.value + 1, operand.aval)
                yield k, attrs.evolve(node, ins=(*node.ins[:slot], changed, *node.ins[slot + 1 :]))
        if len(node.ins) == 2 and not node.op.commutative and node.instr.ins[0] is node.instr.ins[1]:
            yield k, attrs.evolve(node, ins=node.ins[::-1])
        if node.op.name in ("sum", "max"):
            sibling = REGISTRY["max" if node.op.name == "sum" else "sum"].instr(node.params, node.instr.ins)
            if sibling.aval is node.instr.aval:
                yield k, attrs.evolve(node, instr=sibling)


@given(graphs(max_nodes=8))
def test_near_twins_share_a_signature_only_if_they_are_one_program(graph):
    own = canonicalize(graph).graph
    for k, node in itertools.islice(twins(graph), 40):
        twin = Graph(graph.inputs, graph.avals, (*graph.nodes[:k], node, *graph.nodes[k + 1 :]), graph.outputs)
        other = canonicalize(twin).graph
        assert (sign(other).exact == sign(own).exact) == isomorphic(own, other), print_graph(twin)


def test_interpreted_equals_inductor_on_random_graphs(large):
    for seed in range(200 if large else 3):
        form = canonicalize(random_graph(seed, 40, 4)).graph
        inputs = tensors(form.avals, seed)
        compiled = compile_unit(Unit(form, tuple(contiguous_strides(a.shape) for a in form.avals))).program
        for a, b in zip(compiled(inputs), interpreter(form)(inputs), strict=True):
            assert a.dtype is b.dtype and a.shape == b.shape
            torch.testing.assert_close(
                a, b, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda text, g=form: f"{text}\n{g}"
            )


def test_long_chains_need_no_recursion():
    sine = REGISTRY["sin"]
    a = x.aval
    nodes = tuple(Node(sine.instr((), (a,)), (k,), k + 1) for k in range(50_000))
    graph = Graph((0,), (a,), nodes, (50_000,))
    form = canonicalize(graph).graph
    assert form == graph
    verify(form)
    assert len(print_graph(form).split("\n")) == 50_003
    assert len(sign(form).exact) == 12
