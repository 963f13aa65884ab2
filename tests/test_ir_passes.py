"""Passes: pipelines and their verification, and passes that users register."""

from __future__ import annotations

import threading

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import run_parts

import gtrace as gt
from gtrace import ir
from gtrace.testing import arguments, assert_close, graphs


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def rewriting(name, make):
    """A pass that replaces the nodes of one operation."""

    def run(graph):
        nodes = tuple(make(node) if node.op.name == name else node for node in graph.nodes)
        return ir.Graph(graph.inputs, graph.avals, nodes, graph.outputs)

    return run


def with_op(name, swap=lambda ins: ins):
    return lambda node: ir.Node(ir.ops[name].instr((), swap(node.instr.ins)), swap(node.ins), node.out)


def doubled(node):
    _, other = node.ins
    if not isinstance(other, ir.Scalar) or other.value != 2:
        return node
    return with_op("add", lambda ins: (ins[0], ins[0]))(node)


sum_for_double = ir.Pass("sum_for_double", rewriting("mul", doubled))
cos_for_sin = ir.Pass("cos_for_sin", rewriting("sin", with_op("cos")))
x = gt.array([1.0, 2.0, 3.0])


# pipelines


def test_a_pipeline_runs_its_passes_in_order_and_says_which_they_are():
    graph = gt.make_graph(lambda x: (gt.cos(x), gt.sin(x) + gt.sin(x))[1])(x)
    pipeline = ir.Pipeline("mine", (cos_for_sin, ir.Pass("cse", ir.cse), ir.Pass("dce", ir.dce)))
    assert str(pipeline) == "mine: cos_for_sin, cse, dce"
    assert [node.op.name for node in pipeline.run(graph).nodes] == ["cos", "add"]
    assert str(ir.CANONICAL).startswith("canonical: without_rules, inline_calls, remove_identities, dce, fold")


def test_verification_names_the_pass_that_breaks_a_rule_here_or_in_a_sub_graph():
    def lose(graph):
        return ir.Graph(graph.inputs, graph.avals, graph.nodes[1:], graph.outputs)

    def lose_inside(graph):
        (loop,) = (node for node in graph.nodes if node.op.name == "while_loop")
        attributes = {k: ir.Subgraph(lose(v.graph), v.text) if k == "body" else v for k, v in loop.attributes.items()}
        instr = attrs.evolve(loop.instr, params=tuple(attributes.values()))
        nodes = tuple(attrs.evolve(node, instr=instr) if node is loop else node for node in graph.nodes)
        return ir.Graph(graph.inputs, graph.avals, nodes, graph.outputs)

    straight = gt.make_graph(lambda x: gt.sin(gt.cos(x)))(x)
    loop = gt.make_graph(lambda x: gt.while_loop(lambda c: c.sum() < 9, lambda c: gt.exp(c * 2), x))(x)
    for run, graph, rule in ((lose, straight, "assigned operand"), (lose_inside, loop, "in a sub-graph of")):
        pipeline = ir.Pipeline("mine", (ir.Pass("dce", ir.dce), ir.Pass("lose", run)))
        with gt.config(verify_passes=False):
            assert pipeline.run(graph) != graph
        with pytest.raises(gt.GraphError, match=rf"\[mine: lose\].*{rule}"):
            pipeline.run(graph)


def test_verification_compares_the_types_of_inputs_and_outputs():
    graph = gt.make_graph(lambda x: (gt.sin(x), x.sum()))(x)
    fewer = ir.Pass("fewer", lambda g: ir.Graph(g.inputs, g.avals, g.nodes, g.outputs[:1]))
    with pytest.raises(
        gt.GraphError, match=r"\[mine: fewer\].*expected outputs \[f32\[3\], f32\[\]\].*got \[f32\[3\]\]"
    ):
        ir.Pipeline("mine", (fewer,)).run(graph)


# passes of users


def test_a_registered_pass_changes_what_is_lowered_and_what_runs():
    f = gt.jit(lambda x: (x * 2).sum())
    before = f.lower(x).as_text()
    with ir.register_pass(sum_for_double):
        assert "add(%0, %0)" in f.lower(x).as_text() and "mul" not in f.lower(x).as_text()
        seen = {p.signature for p in gt.stats()}
        assert float((gt.array([1.0, 2.0, 4.5, 6.25]) * 2).sum()) == 27.5
        (new,) = [p for p in gt.stats() if p.signature not in seen]
        assert new.ops == ("add", "sum")
    assert f.lower(x).as_text() == before


def undecorated(x):
    return gt.eval(gt.sin(x) * 3)


def in_parts(x):
    parts = []
    for k in range(2):
        y = gt.sin(x + k)
        for n in range(10):
            y = y + n
        parts.append(y)
    return gt.eval(parts)


@pytest.mark.parametrize(
    "run",
    [
        undecorated,
        gt.jit(lambda x: gt.sin(x) * 5, backend="eager"),
        lambda x: float((gt.sin(x) * 7).sum()),
        in_parts,
        gt.grad(gt.jit(lambda x: gt.tanh(gt.sin(x)).sum(), backend="eager")),
        gt.jit(lambda x: gt.fori_loop(0, 4, lambda i, c: gt.sin(c) + i, x), backend="eager"),
        lambda x: gt.eval(gt.while_loop(lambda c: c.sum() < 9, lambda c: c + 1 + gt.sin(c), x)),
        lambda x: gt.eval(gt.cond(x.sum() > 0, lambda c: gt.while_loop(lambda d: d.sum() < 9,
                                                                       lambda d: d + 2 + gt.sin(d), c), gt.cos, x)),
    ],
    ids=["undecorated", "jit", "float", "parts", "grad", "fori_loop", "while_loop", "nested"],
)  # fmt: skip
def test_programs_recorded_before_and_after_are_not_mixed_up(run):
    plain = np.asarray(run(x))
    with ir.register_pass(cos_for_sin):
        rewritten = np.asarray(run(x))
        np.testing.assert_array_equal(np.asarray(run(x)), rewritten)
    assert not np.allclose(rewritten, plain)
    np.testing.assert_array_equal(np.asarray(run(x)), plain)
    with ir.register_pass(cos_for_sin.run, name="another"):
        np.testing.assert_array_equal(np.asarray(run(x)), rewritten)
    np.testing.assert_array_equal(np.asarray(run(x)), plain)


def test_numbers_that_have_become_inputs_are_recorded_anew_too():
    def run(rate):
        return float((gt.sin(x) * rate).sum())

    plain = [run(rate) for rate in (0.5, 0.25, 0.125)]
    with ir.register_pass(cos_for_sin):
        cosines = float(np.cos([1.0, 2.0, 3.0]).sum())
        np.testing.assert_allclose(
            [run(r) for r in (0.5, 0.25, 0.125)], [cosines * r for r in (0.5, 0.25, 0.125)], 1e-5
        )
    assert [run(rate) for rate in (0.5, 0.25, 0.125)] == plain


def test_passes_run_in_the_order_of_registration_and_in_every_thread():
    sin_for_tanh = ir.Pass("sin_for_tanh", rewriting("tanh", with_op("sin")))
    f = gt.jit(lambda x: gt.tanh(x))
    results = []
    with ir.register_pass(sin_for_tanh), ir.register_pass(cos_for_sin):
        worker = threading.Thread(target=lambda: results.append(f.lower(x).as_text()))
        worker.start()
        worker.join()
        assert "cos(" in results[0]
    with ir.register_pass(cos_for_sin), ir.register_pass(sin_for_tanh):
        assert "sin(" in f.lower(x).as_text()


def test_a_pass_that_raises_is_named_and_the_value_is_there_without_it():
    def careless(graph):
        raise KeyError("sin")

    y = gt.sin(x) * 11
    with ir.register_pass(careless):
        for look in (lambda: gt.eval(y), lambda: gt.eval(y), lambda: gt.jit(gt.sin).lower(x)):
            with pytest.raises(
                gt.GraphError, match=r"\[pass careless\].*KeyError: 'sin'.*unregister_pass\('careless'\)"
            ):
                look()
    assert_close(y, np.sin([1, 2, 3]) * 11, check_dtype=False)


BROKEN = {
    "nothing returned": (lambda g: None, "expected a Graph, got NoneType"),
    "an operand lost": (lambda g: attrs.evolve(g, nodes=g.nodes[1:]), "expected an assigned operand"),
    "an output lost": (lambda g: attrs.evolve(g, outputs=()), r"expected outputs \[f32\[3\]\].*got \[\]"),
    "an input lost": (lambda g: ir.Graph((), (), (), g.outputs), "expected an assigned output"),
    "an input more": (
        lambda g: attrs.evolve(g, inputs=(*g.inputs, 99), avals=(*g.avals, g.avals[0])),
        r"expected inputs \[f32\[3\]\]",
    ),
    "another output": (lambda g: attrs.evolve(g, outputs=(g.nodes[-1].out,)), r"got \[bool\[3\]\]"),
    "a list": (lambda g: attrs.evolve(g, nodes=list(g.nodes)), "expected a tuple of nodes, got list"),
    "no value": (
        lambda g: attrs.evolve(g, nodes=(attrs.evolve(g.nodes[0], ins=(None,)), *g.nodes[1:])),
        "expected operands that are values or Scalars",
    ),
}


@pytest.mark.parametrize(("run", "rule"), BROKEN.values(), ids=list(BROKEN))
def test_a_pass_that_breaks_a_rule_is_named(run, rule):
    f = gt.jit(lambda x: (y := gt.sin(gt.cos(x)), y > 0)[0])
    with gt.config(verify_passes=False), ir.register_pass(run, name="mine"):
        with pytest.raises(gt.GraphError, match=rf"\[pass mine\].*{rule}"):
            f.lower(x)


def test_what_cannot_be_registered():
    with pytest.raises(gt.ArgumentError, match="a Pass or a function"):
        ir.register_pass("dce")
    with pytest.raises(gt.ArgumentError, match="a name"):
        ir.register_pass(lambda graph: graph)
    with ir.register_pass(ir.dce):
        with pytest.raises(gt.ArgumentError, match="a new name, got 'dce' a second time"):
            ir.register_pass(cos_for_sin, name="dce")
        with pytest.raises(gt.ArgumentError, match="Registered: dce"):
            ir.unregister_pass("cse")
    with pytest.raises(gt.ArgumentError, match="Registered: none"):
        ir.unregister_pass("dce")


def test_a_pass_leaves_the_recorded_graph_and_derivatives_alone():
    with ir.register_pass(cos_for_sin):
        assert [node.op.name for node in gt.make_graph(gt.sin)(x).nodes] == ["sin"]
        # the derivative is that of what was written: cos, of which nothing is rewritten
        assert_close(gt.grad(lambda x: gt.sin(x).sum())(x), np.cos([1, 2, 3]), check_dtype=False)


@given(st.data())
def test_rewrites_that_change_nothing_change_nothing(data):
    graph = data.draw(graphs(12, continuous=True))
    inputs = data.draw(arguments(graph))
    expected = ir.evaluate(graph, *inputs)
    passes = [*dict.fromkeys(step.run for step in ir.CANONICAL.passes if isinstance(step, ir.Pass)), ir.renumber]
    registrations = [ir.register_pass(one) for one in passes]
    try:
        results = gt.from_graph(graph)(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        got = [np.asarray(y) for y in gt.eval(list(results))]
    finally:
        for registration in registrations:
            ir.unregister_pass(registration.registered_pass)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)


@given(graphs(20, control=True), st.booleans(), st.data())
def test_a_program_in_two_halves_computes_the_same(graph, again, data):
    """The first half takes the inputs that are known, and the second one the others and what the first one returns."""
    known = [value for value in graph.inputs if data.draw(st.booleans())]
    early, late = ir.partial_eval(graph, known, again)
    tensors = [x.to_torch() for x in data.draw(arguments(graph))]
    assert list(early.inputs) == known
    assert late.inputs == (*[value for value in graph.inputs if value not in known], *early.outputs)
    for got, expected in zip(run_parts([early, late], graph, tensors), ir.evaluate(graph, *tensors), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
