"""What operations declare of themselves, and passes rely on, is true of their samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import bound_impl, direct_impl
from gtrace.core.ir.op import REGISTRY, Op


def having(trait):
    found = [op for op in REGISTRY.values() if trait(op)]
    return pytest.mark.parametrize("op", found, ids=lambda op: op.name)


def runs(op: Op):
    """Yield each call of `op` by its samples: the node, the operands, the result."""
    for sample in op.cases.samples():

        def call(*arrays, sample=sample):
            rest = iter(arrays)
            args = [next(rest) if isinstance(a, np.ndarray) else a for a in sample.args]
            return op.cases.user(*args, **sample.kwargs)

        arrays = [gt.array(a) for a in sample.args if isinstance(a, np.ndarray)]
        graph = gt.make_graph(call)(*arrays)
        env = dict(zip(graph.inputs, [x.to_torch() for x in arrays], strict=True))
        for node in graph.nodes:
            operands = [env[x] if isinstance(x, int) else torch.tensor(x.value, dtype=x.aval.dtype) for x in node.ins]
            env[node.out] = bound_impl(node)(*operands)
            if node.op is op:
                yield node, operands, env[node.out]


def memory(tensor):
    return tensor.untyped_storage().data_ptr()


@having(lambda op: op.fresh)
def test_fresh_results_share_no_memory_with_operands(op):
    shared = own = 0
    for node, operands, out in runs(op):
        fresh = op.fresh if isinstance(op.fresh, bool) else op.fresh(node.instr.ins, node.instr.aval)
        for result in (out, direct_impl(node)(*operands)):
            if out.numel():
                own += fresh
                shared += fresh and memory(result) in {memory(x) for x in operands}
    assert own and not shared


def test_a_sum_to_the_shape_it_has_is_not_fresh():
    op, a = REGISTRY["sum_to"], gt.ones((2, 3)).aval
    assert not op.fresh((a,), op.instr(((2, 3),), (a,)).aval) and op.fresh((a,), op.instr(((3,),), (a,)).aval)


@having(lambda op: op.exponential)
def test_exponential_operations_take_something_from_their_operand(op):
    for node, (x,), out in runs(op):
        assert torch.allclose(bound_impl(node)(x.double() + 3.0), out.double(), rtol=1e-5)
        assert node.op.params == ("axis",) and out.min() >= 0.0


@having(lambda op: op.free)
def test_operands_of_free_operations_are_no_larger(op):
    for node, operands, out in runs(op):
        assert not out.numel() or all(x.nbytes <= node.instr.aval.nbytes for x in operands)


@having(lambda op: op.sum)
def test_a_sum_is_linear_in_both_operands(op):
    for _, (x, y), out in runs(op):
        assert torch.equal(op.impl(x, torch.zeros_like(y)) + op.impl(torch.zeros_like(x), y), out)


@having(lambda op: op.product)
def test_product_multiplies(op):
    for _, (x, y), out in runs(op):
        np.testing.assert_array_equal(out.numpy(), x.numpy() * y.numpy())


@having(lambda op: op.constant)
def test_constant_fills(op):
    assert len([op for op in REGISTRY.values() if op.constant]) == 1, "the canonicalizer makes constants with it"
    for _, (value,), out in runs(op):
        np.testing.assert_array_equal(out.numpy(), np.full(out.shape, value.item()))


@having(lambda op: op.projection)
def test_projection_takes_one_result(op):
    assert op.impl(["first", "second"], 1) == "second"


@having(lambda op: op.lowered)
def test_calls_with_a_name_run_their_body(op):
    graph = gt.make_graph(lambda x: gt.nn.layer_norm(x, 2))(gt.array([[1.0, 3.0]]))
    (node,) = [node for node in graph.nodes if node.op is op]
    (body,) = gt.ir.evaluate(node.attributes["body"].graph, gt.array([[1.0, 3.0]]))
    np.testing.assert_array_equal(gt.ir.evaluate(graph, gt.array([[1.0, 3.0]]))[0], body)


@having(lambda op: op.contraction)
def test_contractions_are_sums_of_products(op):
    if op.name == "correlate":
        np.testing.assert_array_equal(op.cases.user(gt.ones(5), gt.ones(3), pad=1), [2.0, 3.0, 3.0, 3.0, 2.0])
        return
    x, y = gt.ones((2, 3)), gt.ones((3, 4))
    args = ("ij,jk->ik", x, y) if op.params else (x, y)
    np.testing.assert_array_equal(op.cases.user(*args), np.full((2, 4), 3.0))


COUNTED = {
    "matmul": [((), (2, 3), (3, 4)), ((), (5, 2, 3), (3, 4)), ((), (5, 1, 2, 3), (4, 3, 2)), ((), (0, 3), (3, 2))],
    "einsum": [((e,), *shapes) for e, *shapes in [
        ("ij,jk->ik", (2, 3), (3, 4)), ("ij->", (2, 3)), ("ij,jk,ki->", (2, 3), (3, 4), (4, 2)),
    ]],
    "correlate": [((0,), (2, 7), (2, 3))],
}  # fmt: skip


@having(lambda op: op.contraction)
def test_contractions_count_their_products(op):
    """Of ones, the results add up to the number of products."""
    for params, *shapes in COUNTED[op.name]:
        instr = op.instr(params, tuple(gt.ones(shape).aval for shape in shapes))
        named = dict(zip(op.params, params, strict=True))
        total = op.impl(*map(torch.ones, shapes), **named).sum()
        assert op.contraction(instr.ins, instr.aval, **named) == total


@having(lambda op: op.view)
def test_views_share_the_memory_of_their_operand(op):
    count = 0
    for node, (x, *_), out in runs(op):
        view = op.view if isinstance(op.view, bool) else op.view(**node.attributes)
        if view and out.numel():
            count += 1
            assert memory(out) == memory(x) and out.numel() <= x.numel()
    assert count or op.name == "aten"


@having(lambda op: op.loop or op.branch)
def test_loops_and_branches_have_programs(op):
    assert op.rules.body is not None and op.loop != op.branch


def departure(node, lines):
    """Return how far an operation is from a polynomial on lines (start, direction) of its operands; None: a pole."""
    places = np.cos(np.pi * (2 * np.arange(24) + 1) / 48)  # Chebyshev's: interpolation converges

    def at(s):
        return bound_impl(node)(*[x + s * d for x, d in lines]).flatten().numpy()

    values = np.stack([at(s) for s in (*places, 0.0, 0.123)])
    if not values.size or not np.isfinite(values).all():
        return None
    fits = [np.polynomial.chebyshev.Chebyshev.fit(places, column[:24], 23, domain=[-1, 1]) for column in values.T]
    return max(abs(fit(s) - y) for fit, column in zip(fits, values.T, strict=True) for s, y in [(0.123, column[-1])])


@having(lambda op: op.algebraic)
def test_algebraic_operations_have_no_cases(op):
    near = through = 0
    for node, operands, _ in runs(op):
        if all(x.is_floating_point() for x in operands):
            sizes = [x.double().abs() + 1 for x in operands]
            found = departure(node, [(x, 0.3 * x * (-1) ** k) for k, x in enumerate(sizes)])
            near += found is not None and found < 1e-9
            assert found is None or found < 1e-9
            found = departure(node, [(0 * x, x * (-1) ** k) for k, x in enumerate(sizes)])  # through zero
            through += found is not None
            assert found is None or found < 1e-9
    assert op.elementwise and near
    assert through or op.name in ("div", "reciprocal", "sqrt", "rsqrt", "pow")


@pytest.mark.parametrize("name", ["abs", "maximum", "relu", "sign"])
def test_operations_with_cases_are_not_algebraic(name):
    op = REGISTRY[name]
    found = [
        departure(node, [(0 * x.double(), (x.double().abs() + 1) * (-1) ** k) for k, x in enumerate(operands)])
        for node, operands, _ in runs(op)
        if all(x.is_floating_point() for x in operands)
    ]
    assert not op.algebraic and max(x for x in found if x is not None) > 1e-3
