"""Canonical form and signatures: what must not matter does not, what must matter does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.artifact import compile_artifact, load
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.request import CompileRequest
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.graph import Graph, Node, print_graph, skeleton
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.signature import sign
from gtrace.core.ir.text import parse_graph
from gtrace.core.ir.verify import verify
from gtrace.core.passes.canonical import canonicalize
from gtrace.testing import arguments, graphs, isomorphic, near_twins, rearrangements


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


ANY = graphs(control=True)
LONG = graphs(20, control=True)


@given(ANY)
def test_text_round_trip(graph):
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert parsed == graph
    assert print_graph(parsed) == text
    canonical = canonicalize(graph).graph
    assert parse_graph(print_graph(canonical)) == canonical


@given(ANY)
def test_graphs_and_their_canonical_forms_verify(graph):
    verify(graph)
    verify(canonicalize(graph).graph)


@pytest.mark.slow
@given(LONG, st.data())
def test_a_rearranged_program_has_the_same_canonical_form(graph, data):
    other = data.draw(rearrangements(graph))
    verify(other)
    assert isomorphic(graph, other)
    assert print_graph(canonicalize(other).graph) == print_graph(canonicalize(graph).graph)


@given(ANY)
def test_canonical_form_is_idempotent(graph):
    once = canonicalize(graph).graph
    assert canonicalize(once).graph == once


@pytest.mark.slow
@given(graphs(20, continuous=True, control=True), st.data())
def test_canonical_form_computes_the_same(graph, data):
    given_tensors = [x.to_torch() for x in data.draw(arguments(graph))]
    expected = interpreter(graph)(given_tensors)
    form = canonicalize(graph)
    got = interpreter(form.graph)([given_tensors[k] for k in form.inputs]) if form.graph.nodes else []
    for place, tensor in zip(form.outputs, expected, strict=True):
        torch.testing.assert_close(
            got[place] if place >= 0 else given_tensors[-1 - place], tensor, equal_nan=True, rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
@given(ANY, st.data())
def test_near_twins_have_another_signature(graph, data):
    twin = data.draw(near_twins(graph))
    verify(twin)
    assert sign(canonicalize(twin).graph).exact != sign(canonicalize(graph).graph).exact


@given(graphs(3, ops=["add", "sub", "sin", "sum"], dtypes=[gt.float32]), st.data())
def test_two_programs_share_a_signature_only_if_they_are_one(graph, data):
    """Small programs of few operations: often one program by chance."""
    other = data.draw(graphs(3, ops=["add", "sub", "sin", "sum"], dtypes=[gt.float32]))
    assert (signature(graph) == signature(other)) == isomorphic(graph, other)


@pytest.mark.slow
def test_interpreted_equals_inductor_on_random_graphs(large, tmp_path_factory):
    """In one test a few programs, because each takes seconds to compile."""

    @settings(max_examples=200 if large else 3, derandomize=True, database=None, phases=[Phase.generate])
    @given(
        graphs(40 if large else 10, max_inputs=4, smooth=True).flatmap(lambda g: st.tuples(st.just(g), arguments(g)))
    )
    def run(example):
        graph, args = example
        form = canonicalize(graph)
        inputs = [args[k].to_torch() for k in form.inputs]
        strides = tuple(contiguous_strides(a.shape) for a in form.graph.avals)
        path, _ = compile_artifact(CompileRequest(form.graph, strides), tmp_path_factory.mktemp("code"))
        compiled = load(path, torch.device("cpu"), "process").run
        for a, b in zip(compiled(inputs), interpreter(form.graph)(inputs), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            torch.testing.assert_close(
                a, b, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda text: f"{text}\n{form.graph}"
            )

    run()


@pytest.mark.slow
@given(st.permutations(range(100)), st.permutations(range(100)))
@settings(max_examples=5)
def test_many_equal_updates_have_one_form_in_any_order(one, other):
    """Which of them comes first does not matter, but each parameter stays with its own momentum."""

    def update(*arrays):
        p, m, g = arrays[:100], arrays[100:200], arrays[200:]
        m = [0.9 * m[k] + g[k] for k in range(100)]
        p = [p[k] - 0.1 * m[k] for k in range(100)]
        return p, m

    def rearranged(*arrays):
        p, m = update(*arrays)
        return [p[k] for k in one], [m[k] for k in other]

    def crossed(*arrays):
        p, m, g = arrays[:100], arrays[100:200], arrays[200:]
        return update(*p, *m, g[0] + m[1], *g[1:])

    arrays = [gt.ones(3)] * 300
    expected = recorded(update, *arrays)
    assert recorded(rearranged, *arrays) == expected
    assert recorded(crossed, *arrays) != expected


@pytest.mark.slow
def test_long_chains_need_no_recursion():
    sine = REGISTRY["sin"]
    a = x.aval
    nodes = tuple(Node(sine.instr((), (a,)), (k,), k + 1) for k in range(50_000))
    graph = Graph((0,), (a,), nodes, (50_000,))
    form = canonicalize(graph).graph
    assert form == graph
    verify(form)
    assert len(print_graph(form).split("\n")) == 50_003
    assert len(sign(form).exact) == 32 and len(str(sign(form))) == 12


@pytest.mark.parametrize("n", [*range(10, 40), 64, 100, 1000, 20011])
def test_the_order_of_what_differs_in_sizes_only_does_not_depend_on_them(n):
    def rotated(x, table):
        half = x.shape[0] // 2
        low, high = gt.tanh(x[:half]), gt.tanh(x[half : 2 * half])
        return low * table[1:3].sum() + high * table[4:6].sum(), (high - low)[:3] + (low - high)[2:5]

    found = [canonicalize(gt.make_graph(rotated)(gt.ones((size, 5)), gt.ones(7))).graph for size in (44, n)]
    assert skeleton(found[0])[0] == skeleton(found[1])[0]
