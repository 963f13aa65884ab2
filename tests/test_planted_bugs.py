"""Bugs planted on purpose: `gtrace.testing` must find each within 200 examples, and shrink it to a few nodes.

`--large` looks for them in larger programs, where finding and shrinking one takes longer.

Rules of derivatives are planted as operations of their own, because what is derived from a rule is kept.
"""

from __future__ import annotations

import re

import attrs
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.ir.cases import Sample
from gtrace.core.ir.graph import Graph, print_graph, subgraphs
from gtrace.core.ir.op import REGISTRY, define
from gtrace.core.ir.signature import sign
from gtrace.core.ir.simplify import cse
from gtrace.core.ops.batching import unchanged
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.trace.bind import bind
from gtrace.testing import (
    SMOOTH,
    arguments,
    as_function,
    assert_close,
    check_grads,
    check_vmap,
    graphs,
    near_twins,
    programs,
    rearrangements,
)

MOST_NODES = 4


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


@pytest.fixture
def nodes(large):
    return 12 if large else 6


def smallest(strategy, holds, examples=200):
    """Return the smallest example that hypothesis finds in 200 for which a property does not hold."""

    def broken(example):
        try:
            return not holds(example)
        except (AssertionError, gt.GtraceError):
            return True

    # the same examples in every run
    thorough = settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    return find(strategy, broken, settings=thorough)


def with_arguments(strategy):
    return strategy.flatmap(lambda graph: st.tuples(st.just(graph), arguments(graph)))


def beside(strategy, variant):
    return strategy.flatmap(lambda graph: st.tuples(st.just(graph), variant(graph)))


def same_results(rewrite):
    def holds(example):
        graph, args = example
        tensors = [x.to_torch() for x in args]
        pairs = zip(interpreter(rewrite(graph))(tensors), interpreter(graph)(tensors), strict=True)
        for got, expected in pairs:
            assert_close(gt.array(got), gt.array(expected))
        return True

    return holds


@pytest.mark.slow
def test_nothing_is_found_where_nothing_is_wrong():
    with pytest.raises(NoSuchExample):
        smallest(with_arguments(graphs(max_nodes=6, continuous=True)), same_results(lambda graph: graph))


# -- rewrites


def swapped_differences(graph: Graph) -> Graph:
    nodes = [attrs.evolve(n, ins=n.ins[::-1], instr=n.op.instr((), n.instr.ins[::-1])) if n.op.name == "sub" else n
             for n in graph.nodes]  # fmt: skip
    return attrs.evolve(graph, nodes=tuple(nodes))


@pytest.mark.slow
def test_a_rewrite_that_exchanges_the_operands_of_a_difference():
    graph, _ = smallest(with_arguments(graphs(continuous=True)), same_results(swapped_differences))
    assert [node.op.name for node in graph.nodes].count("sub") == 1 and len(graph.nodes) <= MOST_NODES


def in_bodies(rewrite):
    """A rewrite of sub-graphs alone."""

    def run(graph: Graph) -> Graph:
        nodes = []
        for node in graph.nodes:
            if node.op.name == "scan":
                (body,) = subgraphs(node.params)
                changed = type(body)(rewrite(body.graph), "rewritten")
                node = attrs.evolve(node, instr=node.op.instr((changed, *node.params[1:]), node.instr.ins))
            nodes.append(node)
        return attrs.evolve(graph, nodes=tuple(nodes))

    return run


@pytest.mark.long
def test_the_same_in_the_body_of_a_loop():
    strategy = with_arguments(graphs(ops=["sub", "sin", "add"], continuous=True, control=True))
    graph, _ = smallest(strategy, same_results(in_bodies(swapped_differences)))
    assert len(graph.nodes) <= MOST_NODES
    (body,) = [sub.graph for node in graph.nodes for sub in subgraphs(node.params)]
    assert "sub" in [node.op.name for node in body.nodes] and len(body.nodes) <= 2


def forgetful_cse(graph: Graph) -> Graph:
    """Merge operations with equal operands, whatever their attributes."""
    first = {}
    for node in graph.nodes:
        first.setdefault((node.op, node.instr.aval, node.ins), node)
    nodes = [attrs.evolve(first[n.op, n.instr.aval, n.ins], out=n.out) for n in graph.nodes]
    return cse(attrs.evolve(graph, nodes=tuple(nodes)))


@pytest.mark.long
def test_a_rewrite_that_merges_operations_of_other_attributes():
    strategy = with_arguments(graphs(12, ops=["roll", "flip", "tril", "add", "sin"], dtypes=[gt.float64]))
    graph, _ = smallest(strategy, same_results(forgetful_cse))
    one, other = [node for node in graph.nodes if node.params]
    assert one.op is other.op and one.params != other.params and len(graph.nodes) <= MOST_NODES


# -- derivatives


@pytest.fixture
def plant():
    """Declare operations for the time of a test."""
    before = set(REGISTRY)
    yield lambda *args, **fields: define(*args, **fields).name
    for name in set(REGISTRY) - before:
        del REGISTRY[name]


def derivatives_are_right(program):
    check_grads(*program, order=1)
    return True


@pytest.mark.parametrize(
    ("impl", "partials"),
    [
        pytest.param(torch.sin, (lambda x, out: -gt.cos(x),), marks=pytest.mark.long),
        pytest.param(torch.mul, (lambda x, y, out: y, lambda x, y, out: -x), marks=pytest.mark.long),
    ],
    ids=["sin", "mul"],
)
def test_a_partial_of_the_wrong_sign(plant, impl, partials):
    name = plant("planted", impl, arity=len(partials), elementwise=True, partials=partials)
    f, _ = smallest(programs(12, ops=[*SMOOTH, name], smooth=True), derivatives_are_right)
    assert name in [node.op.name for node in f.graph.nodes] and len(f.graph.nodes) <= MOST_NODES


@pytest.mark.slow
def test_a_pullback_of_the_wrong_sign(plant, nodes):
    name = plant(
        "planted",
        lambda x: x.sum(),
        vjp=lambda ct, needed, operands, out: [gt.zeros_like(operands[0]) - ct],
        samples=lambda: [Sample((np.ones(shape),)) for shape in [(3,), (2, 3)]],
        user=lambda x: bind(REGISTRY["planted"], (x,)),
    )
    f, _ = smallest(programs(nodes, ops=[*SMOOTH, name], smooth=True), derivatives_are_right)
    assert name in [node.op.name for node in f.graph.nodes] and len(f.graph.nodes) <= MOST_NODES


# -- signatures


def signed(text_of):
    """A signature of the canonical form's text."""

    def holds(pair):
        one, other = (text_of(canonicalize(graph).graph) for graph in pair)
        return one != other

    return holds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "forget"),
    [
        ("an attribute", lambda text: re.sub(r"axes=\([^)]*\)", "", text)),
        pytest.param("all attributes", lambda text: re.sub(r"\{[^{}\n]*\}", "", text), marks=pytest.mark.long),
        pytest.param("numbers", lambda text: re.sub(r"[-\d.]+:", ":", text), marks=pytest.mark.long),
        pytest.param("operands", lambda text: re.sub(r"\(%.*?\)", "()", text), marks=pytest.mark.long),
        pytest.param("operations", lambda text: re.sub(r"= \w+\(", "= (", text), marks=pytest.mark.long),
    ],
)
def test_a_signature_that_forgets(what, forget, nodes):
    few = ["sum", "max", "add", "mul", "sin", "reshape", "permute"]
    graph, _ = smallest(beside(graphs(nodes, ops=few), near_twins), signed(lambda g: forget(print_graph(g))))
    assert len(graph.nodes) <= MOST_NODES


@pytest.mark.long
def test_a_signature_that_forgets_dtypes():
    dtypes = re.compile(r"\b(f32|f64|i64)\b")
    graph, _ = smallest(beside(graphs(), near_twins), signed(lambda g: dtypes.sub("", print_graph(g))))
    assert len(graph.nodes) <= MOST_NODES


@pytest.mark.long
def test_a_signature_that_forgets_the_bodies_of_loops():
    def shallow(graph):
        return "\n".join(line for line in print_graph(graph).split("\n") if not line.startswith("     "))

    strategy = beside(graphs(ops=["sin", "cos", "add", "sub"], control=True), near_twins)
    graph, _ = smallest(strategy, signed(shallow))
    assert any(subgraphs(node.params) for node in graph.nodes) and len(graph.nodes) <= MOST_NODES


@pytest.mark.slow
def test_nothing_is_found_in_signatures_as_they_are(large):
    with pytest.raises(NoSuchExample):
        pairs = beside(graphs(control=True), near_twins)
        smallest(pairs, signed(lambda graph: sign(graph).exact), examples=200 if large else 60)


@pytest.mark.long
@pytest.mark.parametrize("what", ["names", "the order of operands"])
def test_a_canonical_form_that_keeps(what):
    def form(graph):
        if what == "names":
            return print_graph(graph)
        return print_graph(canonicalize(attrs.evolve(graph, nodes=tuple(map(sided, graph.nodes)))).graph)

    def sided(node):
        # as an operation that nobody may reorder
        return attrs.evolve(node, instr=REGISTRY["sub"].instr((), node.instr.ins)) if node.op.name == "add" else node

    strategy = beside(graphs(ops=["add", "mul", "sin"]), rearrangements)
    graph, _ = smallest(strategy, lambda pair: form(pair[0]) == form(pair[1]))
    assert len(graph.nodes) <= MOST_NODES


# -- batching


def batches_like_a_loop(example):
    graph, args, size = example
    check_vmap(as_function(graph), [gt.stack([x + k for k in range(size)]) for x in args])
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flip", pytest.param("sum", marks=pytest.mark.long)])
def test_a_batching_rule_off_by_one_axis(change_op, name, nodes, large):
    def wrong(op, size, batched, operands, **params):
        # the axes of one example, as if the batch were not in front of them
        params["axes"] = tuple(axis - 1 for axis in params["axes"])
        return right(op, size, batched, operands, **params)

    right = REGISTRY[name].rules.batch
    change_op(REGISTRY[name], "batch", wrong)
    few = None if large else [name, "add", "mul", "sin", "sum", "max", "reshape", "permute", "concat", "where"]
    floats = graphs(nodes, ops=few, dtypes=[gt.float32, gt.float64], continuous=True)
    strategy = floats.flatmap(lambda graph: st.tuples(st.just(graph), arguments(graph), st.integers(2, 3)))
    graph, _, _ = smallest(strategy, batches_like_a_loop)
    assert name in [node.op.name for node in graph.nodes] and len(graph.nodes) <= MOST_NODES


@pytest.mark.long
def test_a_batching_rule_that_forgets_the_batch(change_op):
    change_op(REGISTRY["cumsum"], "batch", unchanged)
    floats = graphs(12, dtypes=[gt.float64], continuous=True)
    strategy = floats.flatmap(lambda graph: st.tuples(st.just(graph), arguments(graph), st.just(2)))
    graph, _, _ = smallest(strategy, batches_like_a_loop)
    assert "cumsum" in [node.op.name for node in graph.nodes] and len(graph.nodes) <= MOST_NODES
