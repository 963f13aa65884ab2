"""Graphs made by hand, evaluated plainly, and run as functions; the text of every operation."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace import ir
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.testing import arguments, assert_close, graphs

# -- building


def test_a_graph_is_built_with_numbers_attributes_and_several_results():
    b = ir.Builder()
    x, k = b.input((2, 3), gt.float32), b.input([2], gt.int64)
    y = b.op("sum", b.op("mul", x, 2), axes=[1], keepdims=False)
    z = b.op("add", y, ir.Scalar(0.5, ir.aval((), gt.float32, weak=True)))
    outer = b.graph(b.op("lt", k, 3), z)
    assert str(outer) == "\n".join([
        "graph(%0: f32[2,3], %1: i64[2]) {",
        "  %2: f32[2,3] = mul(%0, 2.0:f32[]~)",
        "  %3: f32[2] = sum(%2) {axes=(1,), keepdims=False}",
        "  %4: f32[2] = add(%3, 0.5:f32[]~)",
        "  %5: bool[2] = lt(%1, 3:i64[]~)",
        "  return %5, %4",
        "}",
    ])  # fmt: skip
    step = ir.Builder()
    carry = step.input((3,), gt.float32)
    body = step.graph(step.op("sin", carry))
    b = ir.Builder()
    (end,) = b.op("scan", b.input((3,), gt.float32), body=body, length=4, reverse=False, consts=0, carry=1)
    (got,) = ir.evaluate(b.graph(end), gt.ones(3))
    assert torch.equal(got, torch.ones(3).sin().sin().sin().sin())


def test_what_is_built_wrongly_is_refused():
    b = ir.Builder()
    x, k = b.input((2, 3), gt.float32), b.input((2,), gt.int64)
    foreign = ir.Builder().input((2, 3), gt.float32)
    cases = [
        (lambda: b.op("summ", x), gt.ArgumentError, "Did you mean 'sum'"),
        (lambda: b.op("sum", x, axes=(1,)), gt.ArgumentError, r"attributes axes, keepdims, got axes.*axes=\.\.\."),
        (lambda: b.op("sin", x, axis=1), gt.ArgumentError, "attributes none, got axis. Pass none"),
        (lambda: b.op("sum", x, axes={1}, keepdims=False), gt.ArgumentError, "as attributes, got set"),
        (lambda: b.op("sin", x, x), gt.ArgumentError, "1 operands, got 2"),
        (lambda: b.op("add", x, foreign), gt.ArgumentError, "values of one builder"),
        (lambda: b.op("add", x, np.ones(3)), gt.ArgumentError, "values of the builder or numbers, got ndarray"),
        (lambda: b.op("add", k, 0.5), gt.ArgumentError, "a number that fits i64"),
        (lambda: b.op("add", 1, 2), gt.ArgumentError, "ir.Scalar, which says its aval"),
        (lambda: b.op("matmul", x, x), gt.ShapeError, "matmul"),
        (lambda: b.input(3, gt.float32), gt.ShapeError, "a tuple of sizes"),
        (lambda: b.input((-1,), gt.float32), gt.ShapeError, "a tuple of sizes"),
        (lambda: b.input((1,), torch.complex32), gt.DtypeError, "complex32"),
        (lambda: b.input((1,), gt.float32, "tpu"), gt.DeviceError, "tpu"),
        (lambda: b.graph(foreign), gt.ArgumentError, "values of this builder"),
        (lambda: b.graph(0), gt.ArgumentError, "values of this builder"),
    ]
    for make, error, match in cases:
        with pytest.raises(error, match=match):
            make()
    assert b.graph().nodes == ()
    with pytest.raises(TypeError):
        ir.ops["mine"] = ir.ops["sin"]


# -- evaluating, and graphs as functions


@given(st.data())
def test_evaluation_agrees_with_the_interpreter_and_with_the_graph_as_a_function(data):
    graph = data.draw(graphs(12, continuous=True))
    given_tensors = [x.to_torch() for x in data.draw(arguments(graph))]
    expected = interpreter(graph)(given_tensors)
    arrays = [gt.from_torch(t) for t in given_tensors]
    results = gt.from_graph(graph)(*arrays)
    results = gt.eval(results if isinstance(results, tuple) else (results,))
    for got in (ir.evaluate(graph, *given_tensors), ir.evaluate(graph, *arrays), [y.to_torch() for y in results]):
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_evaluation_takes_arrays_of_every_kind_and_checks_them():
    graph = gt.make_graph(lambda x, n: x * 2 + n)(gt.ones(3), 1.0)
    expected = torch.tensor([5.0, 5.0, 5.0])
    ones = np.ones(3, np.float32)
    ones.flags.writeable = False
    for x in (torch.ones(3), gt.ones(3), ones):
        assert torch.equal(ir.evaluate(graph, x, 3.0)[0], expected)
    with pytest.raises(gt.ArgumentError, match=r"f32\[3\] as input 0, got float64\[3\] on cpu"):
        ir.evaluate(graph, np.ones(3), 3.0)
    with pytest.raises(gt.ArgumentError, match="1 for 2"):
        ir.evaluate(graph, ones)
    divide = gt.make_graph(lambda x: x // 0)(gt.ones(3, dtype=gt.int64))
    with pytest.raises(gt.ExecutionError, match=r"floor_divide.*torch refused"):
        ir.evaluate(divide, gt.ones(3, dtype=gt.int64))


def test_a_graph_as_a_function_is_differentiated_batched_and_jitted():
    f = lambda x: gt.fori_loop(0, 3, lambda i, c: gt.sin(c) * x, x)  # noqa: E731
    again = gt.from_graph(gt.make_graph(f)(gt.ones(3)))
    x = gt.array([0.5, 1.0, 1.5])
    for transformed in (
        lambda g: g,
        lambda g: gt.jit(g, backend="eager"),
        lambda g: gt.grad(lambda x: g(x).sum()),
        lambda g: lambda x: gt.jvp(g, (x,), (x,))[1],
        lambda g: lambda x: gt.vmap(g)(gt.stack([x, x + 1])),
    ):
        assert_close(transformed(again)(x), transformed(f)(x))
    with pytest.raises(gt.ArgumentError, match=r"\[from_graph\] expected arguments f32\[3\], got f32\[4\]"):
        again(gt.ones(4))
    with pytest.raises(gt.ArgumentError, match="got none"):
        again()
    graph = gt.make_graph(gt.sin)(x)
    with pytest.raises(gt.GraphError, match="an assigned output"):
        gt.from_graph(ir.Graph(graph.inputs, graph.avals, (), graph.outputs))
    assert gt.from_graph(gt.make_graph(lambda: ())())() == ()
    assert [float(y) for y in gt.from_graph(gt.make_graph(lambda n: (n, n * 2))(1.0))(3.0)] == [3.0, 6.0]


# -- the text


def to_gt(value):
    if isinstance(value, (list, tuple)):
        return type(value)(to_gt(v) for v in value)
    return gt.array(value) if isinstance(value, np.ndarray) else value


def programs(op):
    for sample in op.cases.samples():
        args = [to_gt(value) for value in sample.args]
        traced = gt.jit(lambda args=args, sample=sample: op.cases.user(*args, **sample.kwargs)).trace()
        yield traced.graph, [x.to_torch() for x in traced.constants]


@pytest.mark.parametrize(
    "name", [op.name for op in ir.ops.values() if op.cases.samples is not None and op.cases.user is not None]
)
def test_the_text_of_every_operation_parses_back_and_its_evaluation_is_what_runs(name):
    for graph, constants in programs(ir.ops[name]):
        ir.verify(graph)
        assert ir.parse_graph(str(graph)) == graph
        canonical = ir.canonicalize(graph).graph
        ir.verify(canonical)
        assert ir.parse_graph(str(canonical)) == canonical
        if name != "empty":
            for a, b in zip(ir.evaluate(graph, *constants), interpreter(graph)(constants), strict=True):
                assert_close(a, b)


def test_text_with_loops_branches_and_numbers_parses_back():
    x = gt.array([1.0, 2.0, 3.0])
    functions = [
        lambda x: gt.scan(lambda c, y: (c * y, c + y), x.sum(), x),
        lambda x: gt.while_loop(lambda c: c.sum() < 9, lambda c: gt.cond(c[0] > 1, gt.exp, lambda d: d * 2, c), x),
        lambda x: gt.switch(1, [gt.sin, gt.cos, lambda d: d * float("inf")], x),
        lambda x: gt.checkpoint(lambda y: gt.sin(y) * -0.0)(x),
        gt.grad(lambda x: gt.fori_loop(0, 3, lambda i, c: c * x, x).sum()),
        lambda x: (x * float("nan"), x > -float("inf")),
    ]
    for function in functions:
        traced = gt.jit(function).trace(x)
        ir.verify(traced.graph)
        assert ir.parse_graph(str(traced.graph)) == traced.graph
        results = ir.evaluate(traced.graph, x, *traced.constants)
        for a, b in zip(results, gt.tree.leaves(function(x)), strict=True):
            assert_close(a, b.to_torch())


TEXTS = [
    str(gt.make_graph(lambda x: (x * 2 + float("inf")).sum(axis=1))(gt.ones((2, 3)))),
    str(gt.make_graph(lambda x: gt.fori_loop(0, 3, lambda i, c: c * x, gt.array(1.0)))(gt.array(2.0))),
    str(gt.make_graph(lambda x: gt.cond(x.sum() > 0, lambda y: y * 2, gt.sin, x))(gt.ones(3))),
    str(gt.make_graph(lambda x: gt.einsum("ij->ji", x).astype(gt.float64))(gt.ones((2, 3)))),
]


@given(st.sampled_from(TEXTS), st.integers(0, 10**9))
def test_a_damaged_text_is_refused_or_is_another_graph(text, seed):
    r = random.Random(seed)
    for _ in range(r.randint(1, 3)):
        k = r.randrange(len(text))
        new = r.choice("%0123456789abf()[]{},:=~ -.'\"\n@")
        text = text[:k] + r.choice([new, "", new + text[k]]) + text[k + 1 :]
        if r.random() < 0.3:
            lines = text.split("\n")
            lines.insert(r.randrange(len(lines)), r.choice(lines))
            text = "\n".join(lines)
    try:
        graph = ir.parse_graph(text)
    except gt.GraphError as error:
        assert str(error).startswith("[parse_graph] line ")
        return
    ir.verify(graph)
    assert ir.parse_graph(str(graph)) == graph


GOOD = """graph(%0: f32[3], %1: f32[3]) {
  %2: f32[3] = add(%0, 2.0:f32[]~)
  %3: f32[3] = reshape(%2) {shape=(3,)}
  return %3
}"""


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("%1: f32[3])", "%0: f32[3])", "line 1: expected single assignment, got a second one of %0"),
        (", %1: f32[3])", " %1: f32[3])", "line 1: expected an input such as"),
        ("%3: f32[3] =", "%2: f32[3] =", "line 3: expected single assignment, got a second one of %2"),
        ("return %3", "return %7", "line 4: expected an assigned value, got %7"),
        ("return %3", "return %3 %2", "line 4: expected a value such as %0"),
        ("add(%0,", "add(%x,", "line 2: expected a value such as %0, got '%x'"),
        ("2.0:f32[]~", "2.0:f32[3]", "line 2: expected a scalar such as"),
        ("2.0:f32[]~", "'a':f32[]~", "line 2: expected a scalar such as"),
        ("f32[]~", "f32[]@moon~", "line 2: expected a device such as cuda:0"),
        ("{shape=(3,)}", "{shape=(3,), shape=(3,)}", "line 3: expected attributes such as"),
        ("{shape=(3,)}", "{shape=[3]}", "line 3: expected attributes such as"),
        ("{shape=(3,)}", "{shape=(4,)}", "line 3: expected operands and attributes that fit reshape"),
        ("{shape=(3,)}", "{shape='a'}", "line 3: expected operands and attributes that fit reshape"),
        ("}", "}\n\nmore", "line 7: expected the end"),
    ],
)
def test_text_that_breaks_a_rule(old, new, match):
    assert str(ir.parse_graph(GOOD)) == GOOD
    with pytest.raises(gt.GraphError, match=match.replace("(", r"\(")):
        ir.parse_graph(new.join(GOOD.rsplit(old, 1)))
