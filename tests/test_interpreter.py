"""The interpreter: the order in which it runs a program changes no result."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import bound_impl, interpreter
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.op import Op
from gtrace.core.ir.rules import Rules
from gtrace.testing import arguments, assert_close, graphs


def plainly(graph, inputs):
    """Run a graph node by node, in its own order, on new memory for every result."""
    env = {value: tensor.clone() for value, tensor in zip(graph.inputs, inputs, strict=True)}
    for node in graph.nodes:
        operands = [env[x] if isinstance(x, int) else torch.tensor(x.value, dtype=x.aval.dtype) for x in node.ins]
        out = bound_impl(node)(*operands)
        env[node.out] = [x.clone() for x in out] if isinstance(out, list) else out.clone()
    return [env[value] for value in graph.outputs]


@given(graphs(40, smooth=True) | graphs(40, continuous=True, control=True), st.data())
def test_results_and_inputs_are_what_they_are_node_by_node(graph, data):
    inputs = [x.to_torch() for x in data.draw(arguments(graph))]
    kept = [t.clone() for t in inputs]
    expected = plainly(graph, inputs)
    for got, right in zip(interpreter(graph)(inputs), expected, strict=True):
        assert got.dtype == right.dtype
        if right.is_floating_point():
            # shorter calls may round otherwise; what follows may amplify that
            scale = float(right[right.isfinite()].abs().max()) if right.isfinite().any() else 1.0
            tolerance = 1e-4 if right.dtype == torch.float32 else 1e-10
            np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=tolerance, atol=tolerance * scale)
        else:
            assert torch.equal(got, right)
    for a, b in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_what_torch_refuses_names_the_operation_and_a_bug_of_its_own_code_comes_out():
    a = gt.ones(3).aval

    def run_one(impl):
        instr = Op("strange", impl, rules=Rules(shape=lambda avals: avals[0])).instr((), (a,))
        return interpreter(Graph((0,), (a,), (Node(instr, (0,), 1),), (1,)))([torch.ones(3)])

    with pytest.raises(gt.ExecutionError, match=r"\[strange\] expected values.*must match"):
        run_one(lambda x: x + torch.ones(2))
    for bug in (lambda x: int("a"), lambda x: {}[0], lambda x: x.no_such_method(), endless):
        with pytest.raises((ValueError, KeyError, AttributeError, RecursionError)) as info:
            run_one(bug)
        assert not isinstance(info.value, gt.GtraceError)


def endless(x):
    return endless(x)


def test_an_error_in_the_body_of_a_loop_names_the_operation_among_others():
    def run(n):
        def step(state):
            k, total = state
            a = total * 2
            b = a // (3 - k)  # refused in the fourth step
            return k + 1, b + a

        return gt.while_loop(lambda s: s[0] < 9, step, (0, n))

    with gt.config(auto_compile=False), pytest.raises(gt.ExecutionError, match=r"floor_divide.*Zero.*test_interpreter"):
        gt.eval(run(gt.array(5)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [3, 20_000])  # large outputs are copied to their place in each step
def test_interpreted_scans_are_their_steps(reverse, size):
    xs = np.random.default_rng(0).normal(size=(5, size)).astype(np.float32)
    carry, ys, sums = np.ones(size, np.float32), [None] * 5, [None] * 5
    for t in reversed(range(5)) if reverse else range(5):
        carry = carry * np.float32(0.5) + xs[t]
        ys[t], sums[t] = carry, xs[t] * carry[0]

    def step(c, x):
        c = c * 0.5 + x
        return c, (c, x * c[0], x)

    with gt.config(auto_compile=False):
        end, outs = gt.scan(step, gt.ones(size), gt.array(xs), reverse=reverse)
        for got, want in zip((end, *outs), (carry, ys, sums, xs), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-5)
        swapped = gt.scan(lambda c, _: ((c[1], c[0]), None), (gt.array(1.0), gt.array(2.0)), None, 3)[0]
        assert [float(x) for x in swapped] == [2.0, 1.0]


@pytest.mark.parametrize("jitted", [False, True])
def test_what_torch_refuses_with_debug_nans_is_an_execution_error(jitted):
    a, b = gt.array([4, 6]), gt.array([2, 0])
    f = gt.jit(gt.floor_divide, backend="eager") if jitted else gt.floor_divide
    with gt.config(debug_nans=True):
        with pytest.raises(gt.ExecutionError, match=r"\[debug_nans\] expected values.*ZeroDivisionError"):
            f(a, b).tolist()
        assert f(a, gt.array([2, 3])).tolist() == [2, 2]


@pytest.mark.parametrize("repeats", [2, 3, 4, 5])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_repeats_and_their_gradients_are_numpys(repeats, axis):
    x = np.random.default_rng(0).normal(size=(16, 24, 32)).astype(np.float32)
    value, slope = gt.value_and_grad(lambda x: (gt.repeat(x, repeats, axis=axis) ** 2).sum())(gt.array(x))
    assert_close(value, (np.repeat(x, repeats, axis) ** 2).sum())
    assert_close(slope, 2 * repeats * x)
    np.testing.assert_array_equal(gt.repeat(gt.array(x), repeats, axis=axis), np.repeat(x, repeats, axis))


LAST, FIRST = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize("of_cotangent", [FIRST, LAST], ids=["first", "last"])
@pytest.mark.parametrize("of_images", [FIRST, LAST], ids=["first", "last"])
@pytest.mark.parametrize("function", [gt.relu, gt.gelu], ids=["relu", "gelu"])
def test_derivatives_of_images_of_two_layouts(of_cotangent, of_images, function):
    g, x = torch.randn(4, 16, 16, 32), torch.randn(4, 16, 16, 32)
    x[0, 0, 0, 0] = torch.nan
    graph = gt.make_graph(lambda x, g: gt.vjp(function, x)[1](g)[0])(gt.array(x), gt.array(g))
    expected = plainly(graph, [x, g])[0]
    (got,) = interpreter(graph)([x.contiguous(memory_format=of_images), g.contiguous(memory_format=of_cotangent)])
    assert_close(got, expected)
    assert got.is_contiguous(memory_format=of_images)


def test_a_call_that_fails_frees_its_values_at_once():
    made = []

    def around(node, function):
        def noted(*operands):
            if node.op.name == "cos":
                raise RuntimeError("no")
            made.append(weakref.ref(result := function(*operands)))
            return result

        return noted

    run = interpreter(gt.make_graph(lambda x: gt.cos(gt.tanh(x)))(gt.ones(3)), around)
    gc.collect()
    gc.disable()  # an error and a frame that refer to each other would live on
    try:
        with pytest.raises(gt.ExecutionError, match="no"):
            run([torch.ones(3)])
        assert [x() for x in made] == [None]
    finally:
        gc.enable()
