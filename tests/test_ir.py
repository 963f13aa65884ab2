"""The IR: rewrites by golden text, the parser's and the verifier's refusals."""

from __future__ import annotations

import textwrap

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace import ir
from gtrace.core.ir.aval import aval
from gtrace.core.ir.graph import Graph, Node, print_graph
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.text import parse_graph
from gtrace.core.ir.verify import verify
from gtrace.testing import graphs


def graph(text: str) -> Graph:
    return parse_graph(textwrap.dedent(text).strip())


REWRITES = {
    "dead code goes, inputs stay": (
        ir.dce,
        """
        graph(%0: f32[3], %1: f32[3]) {
          %2: f32[3] = sin(%0)
          %3: f32[3] = cos(%1)
          %4: f32[3] = neg(%2)
          return %4
        }
        """,
        """
        graph(%0: f32[3], %1: f32[3]) {
          %2: f32[3] = sin(%0)
          %4: f32[3] = neg(%2)
          return %4
        }
        """,
    ),
    "equal nodes merge, in either order of commutative operands": (
        ir.cse,
        """
        graph(%0: f32[3], %1: f32[3]) {
          %2: f32[3] = add(%0, %1)
          %3: f32[3] = add(%1, %0)
          %4: f32[3] = sub(%0, %1)
          %5: f32[3] = sub(%1, %0)
          %6: f32[3] = mul(%2, %3)
          return %6, %4, %5, %3
        }
        """,
        """
        graph(%0: f32[3], %1: f32[3]) {
          %2: f32[3] = add(%0, %1)
          %4: f32[3] = sub(%0, %1)
          %5: f32[3] = sub(%1, %0)
          %6: f32[3] = mul(%2, %2)
          return %6, %4, %5, %2
        }
        """,
    ),
    "identities go, in chains and as outputs": (
        ir.remove_identities,
        """
        graph(%0: f32[3]) {
          %1: f32[3] = stop_gradient(%0)
          %2: f32[3] = identity(%1)
          %3: f32[3] = neg(%2)
          return %3, %2
        }
        """,
        """
        graph(%0: f32[3]) {
          %3: f32[3] = neg(%0)
          return %3, %0
        }
        """,
    ),
    "what scalars decide is computed, and uniform arrays become scalars": (
        lambda g: ir.dce(ir.fold(g)),
        """
        graph(%0: f32[2,3]) {
          %1: f32[] = full(1.0:f32[]~) {shape=(), device='cpu'}
          %2: f32[] = div(%1, 4.0:f32[]~)
          %3: f32[1,1] = reshape(%2) {shape=(1, 1)}
          %4: f32[2,3] = broadcast_to(%3) {shape=(2, 3)}
          %5: f32[2,3] = mul(%0, %4)
          %6: f32[2,3] = neg(%4)
          return %5, %6
        }
        """,
        """
        graph(%0: f32[2,3]) {
          %5: f32[2,3] = mul(%0, 0.25:f32[]~)
          %6: f32[2,3] = full(-0.25:f32[]~) {shape=(2, 3), device='cpu'}
          return %5, %6
        }
        """,
    ),
    "a uniform array that makes the result larger stays": (
        lambda g: ir.dce(ir.fold(g)),
        """
        graph(%0: f32[3]) {
          %1: f32[2,3] = full(2.0:f32[]~) {shape=(2, 3), device='cpu'}
          %2: f32[2,3] = mul(%0, %1)
          return %2
        }
        """,
        None,
    ),
    "integers divided by zero are left to the run": (
        ir.fold,
        """
        graph() {
          %0: i64[] = full(0:i64[]~) {shape=(), device='cpu'}
          %1: i64[] = floor_divide(%0, %0)
          return %1
        }
        """,
        None,
    ),
    "commutative operands of unequal avals get an order": (
        ir.order_operands,
        """
        graph(%0: f32[3], %1: f32[]) {
          %2: f32[3] = add(2.0:f32[]~, %0)
          %3: f32[3] = mul(%1, %2)
          %4: f32[3] = mul(%2, %1)
          %5: f32[3] = sub(%1, %2)
          return %3, %4, %5
        }
        """,
        """
        graph(%0: f32[3], %1: f32[]) {
          %2: f32[3] = add(%0, 2.0:f32[]~)
          %3: f32[3] = mul(%2, %1)
          %4: f32[3] = mul(%2, %1)
          %5: f32[3] = sub(%1, %2)
          return %3, %4, %5
        }
        """,
    ),
    "parts of a sum side by side are joined": (
        lambda g: ir.dce(ir.join_parts(g)),
        """
        graph(%0: f32[2,1], %1: f32[2,2], %2: f32[2,1]) {
          %3: f32[2,4] = unslice(%1) {shape=(2, 4), bounds=((0, 2, 1), (1, 3, 1))}
          %4: f32[2,4] = unslice(%0) {shape=(2, 4), bounds=((0, 2, 1), (3, 4, 1))}
          %5: f32[2,4] = add(%3, %4)
          %6: f32[2,4] = unslice(%2) {shape=(2, 4), bounds=((0, 2, 1), (0, 1, 1))}
          %7: f32[2,4] = add(%6, %5)
          return %7, %6
        }
        """,
        """
        graph(%0: f32[2,1], %1: f32[2,2], %2: f32[2,1]) {
          %6: f32[2,4] = unslice(%2) {shape=(2, 4), bounds=((0, 2, 1), (0, 1, 1))}
          %7: f32[2,4] = concat(%2, %1, %0) {axis=1}
          return %7, %6
        }
        """,
    ),
    "a matrix that a batch of products shares is not repeated, transposed or not": (
        lambda g: ir.dce(ir.merge_batches(g)),
        """
        graph(%0: f32[5,2,3], %1: f32[3,4], %2: f32[5,2,4]) {
          %3: f32[5,3,4] = broadcast_to(%1) {shape=(5, 3, 4)}
          %4: f32[5,2,4] = matmul(%0, %3)
          %5: f32[5,4,3] = permute(%3) {axes=(0, 2, 1)}
          %6: f32[5,2,3] = matmul(%2, %5)
          %7: f32[5,4,2] = permute(%2) {axes=(0, 2, 1)}
          %8: f32[5,3,2] = matmul(%3, %7)
          return %4, %6, %8
        }
        """,
        """
        graph(%0: f32[5,2,3], %1: f32[3,4], %2: f32[5,2,4]) {
          %4: f32[5,2,4] = matmul(%0, %1)
          %9: f32[4,3] = permute(%1) {axes=(1, 0)}
          %6: f32[5,2,3] = matmul(%2, %9)
          %7: f32[5,4,2] = permute(%2) {axes=(0, 2, 1)}
          %8: f32[5,3,2] = matmul(%1, %7)
          return %4, %6, %8
        }
        """,
    ),
    "a batch of products that are summed is one product": (
        lambda g: ir.dce(ir.merge_batches(g)),
        """
        graph(%0: f32[5,6,2,3], %1: f32[5,6,3,4]) {
          %2: f32[5,6,2,4] = matmul(%0, %1)
          %3: f32[2,4] = sum_to(%2) {shape=(2, 4)}
          return %3
        }
        """,
        """
        graph(%0: f32[5,6,2,3], %1: f32[5,6,3,4]) {
          %4: f32[5,6,3,2] = permute(%0) {axes=(0, 1, 3, 2)}
          %5: f32[90,2] = reshape(%4) {shape=(90, 2)}
          %6: f32[2,90] = permute(%5) {axes=(1, 0)}
          %7: f32[90,4] = reshape(%1) {shape=(90, 4)}
          %3: f32[2,4] = matmul(%6, %7)
          return %3
        }
        """,
    ),
    "a batch stays that is needed, summed in part or along other axes, or repeats only rows": (
        ir.merge_batches,
        """
        graph(%0: f32[2,2,3], %1: f32[2,3,4], %2: f32[1,4], %3: f32[1,3,4]) {
          %4: f32[2,2,4] = matmul(%0, %1)
          %5: f32[2,4] = sum_to(%4) {shape=(2, 4)}
          %6: f32[2,2,4] = matmul(%0, %1)
          %7: f32[2,4] = sum(%6) {axes=(1,), keepdims=False}
          %8: f32[2,2,4] = matmul(%0, %1)
          %9: f32[1,2,4] = sum(%8) {axes=(0,), keepdims=True}
          %10: f32[2,3,4] = broadcast_to(%2) {shape=(2, 3, 4)}
          %11: f32[2,2,4] = matmul(%0, %10)
          %12: f32[2,2,4] = matmul(%0, %3)
          %13: f32[2,4] = sum_to(%12) {shape=(2, 4)}
          return %4, %5, %7, %9, %11, %13
        }
        """,
        None,
    ),
    "a product that is transposed is that of the transposed operands, and permutations in a row are one": (
        lambda g: ir.dce(ir.move_transposes(g)),
        """
        graph(%0: f32[5,2], %1: f32[5,3], %2: f32[2,3,4]) {
          %3: f32[2,5] = permute(%0) {axes=(1, 0)}
          %4: f32[2,3] = matmul(%3, %1)
          %5: f32[3,2] = permute(%4) {axes=(1, 0)}
          %6: f32[5,2] = permute(%3) {axes=(1, 0)}
          %7: f32[3,4,2] = permute(%2) {axes=(1, 2, 0)}
          %8: f32[4,2,3] = permute(%7) {axes=(1, 2, 0)}
          %9: f32[2,5] = permute(%0) {axes=(1, 0)}
          %11: f32[5,3] = permute(%1) {axes=(0, 1)}
          %12: f32[2,3] = matmul(%3, %11)
          %13: f32[3,2] = permute(%12) {axes=(1, 0)}
          return %5, %6, %8, %9, %13
        }
        """,
        """
        graph(%0: f32[5,2], %1: f32[5,3], %2: f32[2,3,4]) {
          %3: f32[2,5] = permute(%0) {axes=(1, 0)}
          %14: f32[3,5] = permute(%1) {axes=(1, 0)}
          %5: f32[3,2] = matmul(%14, %0)
          %8: f32[4,2,3] = permute(%2) {axes=(2, 0, 1)}
          return %5, %0, %8, %3, %5
        }
        """,
    ),
    "a product stays that is used as it is, or has more axes": (
        ir.move_transposes,
        """
        graph(%0: f32[2,5], %1: f32[5,3], %2: f32[4,2,5]) {
          %3: f32[2,3] = matmul(%0, %1)
          %4: f32[3,2] = permute(%3) {axes=(1, 0)}
          %5: f32[4,2,3] = matmul(%2, %1)
          %6: f32[4,3,2] = permute(%5) {axes=(0, 2, 1)}
          return %3, %4, %6
        }
        """,
        None,
    ),
    "parts that overlap, leave elements out, have gaps or are not of one axis stay": (
        ir.join_parts,
        """
        graph(%0: f32[2], %1: f32[3], %2: f32[2,2], %3: f32[1,1]) {
          %4: f32[4] = unslice(%0) {shape=(4,), bounds=((0, 2, 1),)}
          %5: f32[4] = unslice(%1) {shape=(4,), bounds=((1, 4, 1),)}
          %6: f32[4] = add(%4, %5)
          %7: f32[5] = unslice(%0) {shape=(5,), bounds=((0, 2, 1),)}
          %8: f32[5] = unslice(%0) {shape=(5,), bounds=((2, 4, 1),)}
          %9: f32[5] = add(%7, %8)
          %10: f32[6] = unslice(%0) {shape=(6,), bounds=((0, 6, 3),)}
          %11: f32[6] = unslice(%0) {shape=(6,), bounds=((1, 6, 3),)}
          %12: f32[6] = add(%10, %11)
          %13: f32[2,3] = unslice(%2) {shape=(2, 3), bounds=((0, 2, 1), (0, 2, 1))}
          %14: f32[2,3] = unslice(%3) {shape=(2, 3), bounds=((0, 1, 1), (2, 3, 1))}
          %15: f32[2,3] = add(%13, %14)
          return %6, %9, %12, %15
        }
        """,
        None,
    ),
}


@pytest.mark.parametrize(("function", "before", "after"), REWRITES.values(), ids=list(REWRITES))
def test_rewrites(function, before, after):
    got = function(graph(before))
    verify(got)
    assert print_graph(got) == print_graph(graph(before if after is None else after))


@pytest.mark.slow
@given(graphs(control=True))
def test_rewrites_keep_graphs_valid(g):
    for step in ir.CANONICAL.passes:
        verify(step.run(g))


@given(st.integers(0, 2), st.booleans(), st.booleans(), st.booleans(), st.data())
def test_products_that_share_a_matrix_or_are_summed_keep_their_values(batches, left, transposed, summed, data):
    sizes = tuple(data.draw(st.integers(1, 3)) for _ in range(batches))
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    x, y = gt.random.normal(gt.random.key(0), (*sizes, m, k)), gt.random.normal(gt.random.key(1), (*sizes, k, n))
    matrix = gt.random.normal(
        gt.random.key(2), ((k, m) if left else (n, k)) if transposed else (m, k) if left else (k, n)
    )

    def f(x, y, matrix):
        repeated = gt.broadcast_to(matrix, (*sizes, *matrix.shape))
        repeated = repeated.mT if transposed else repeated
        out = repeated @ y if left else x @ repeated
        return gt.sum(out, tuple(range(batches))) if summed else out

    args = x, y, matrix
    numbers = [np.asarray(one, np.float64) for one in args]
    repeated = np.broadcast_to(numbers[2], (*sizes, *matrix.shape))
    repeated = repeated.swapaxes(-1, -2) if transposed else repeated
    expected = repeated @ numbers[1] if left else numbers[0] @ repeated
    expected = expected.sum(tuple(range(batches))) if summed else expected
    np.testing.assert_allclose(f(*args), expected, rtol=1e-5, atol=1e-5)
    rewritten = ir.canonicalize(gt.make_graph(f)(*args)).graph
    assert not any(node.op.name == "broadcast_to" for node in rewritten.nodes)


def test_toposort_and_inline():
    g = graph("""
        graph(%0: f32[3]) {
          %1: f32[3] = sin(%0)
          %2: f32[3] = add(%1, %0)
          return %2
        }
    """)
    assert ir.toposort(g.nodes[::-1], g.inputs) == g.nodes
    nodes, outputs = ir.inline(g, (7,), 20)
    verify(Graph((7,), g.avals, nodes, outputs))
    assert [n.out for n in nodes] == [20, 21] and outputs == (21,)
    with pytest.raises(gt.GraphError, match="nothing assigns"):
        ir.toposort(g.nodes[1:], g.inputs)
    loop = [attrs.evolve(g.nodes[0], ins=(2,)), g.nodes[1]]
    with pytest.raises(gt.GraphError, match="cycle"):
        ir.toposort(loop, g.inputs)


GOOD = "graph(%0: f32[3]) {\n  %1: f32[3] = sin(%0)\n  return %1\n}"


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("sin", "sine", "line 2: expected a known operation, got 'sine'"),
        ("(%0)", "(%5)", "line 2: expected an assigned value, got %5"),
        ("%1: f32[3]", "%1: f32[4]", r"line 2: expected f32\[3\] by inference, got f32\[4\]"),
        ("%1: f32[3]", "%1: g32[3]", "line 2"),
        ("sin(%0)", "sin(%0) {axis=1}", r"expected attributes \(\), got \('axis',\)"),
        ("\n}", "\n]", "closing brace"),
        ("return", "yield", "line 3"),
        ("graph(", "grap(", "line 1"),
        (GOOD, "graph() {", "line 2: expected a closing brace"),
    ],
)
def test_text_that_is_no_graph(old, new, match):
    assert print_graph(parse_graph(GOOD)) == GOOD
    with pytest.raises(gt.GraphError, match=match):
        parse_graph(GOOD.replace(old, new))


def test_text_of_special_numbers_and_locations():
    function = gt.make_graph(lambda x: (x * float("inf") + float("nan"), x * -0.0, x > -float("inf")))
    g = function(gt.ones(2))
    assert parse_graph(print_graph(g)) == g
    text = print_graph(g, locations=True)
    assert "test_ir.py:" in text and parse_graph(text) == g
    assert str(g) == print_graph(g)


def test_the_verifier_refuses_what_breaks_a_rule():
    a = aval((3,), torch.float32)
    sine, cosine = (Node(REGISTRY[name].instr((), (a,)), (0,), 1) for name in ("sin", "cos"))
    cases = {
        "single assignment": Graph((0,), (a,), (sine, cosine), (1,)),
        "assigned operand": Graph((0,), (a,), (attrs.evolve(sine, ins=(9,)),), (1,)),
        "assigned output": Graph((0,), (a,), (sine,), (5,)),
        "expected operands": Graph((0,), (aval((4,), torch.float32),), (sine,), (1,)),
        "each input once": Graph((0, 0), (a, a), (sine,), (1,)),
        "one aval per input": Graph((0,), (), (sine,), (1,)),
        "by inference": Graph(
            (0,), (a,), (attrs.evolve(sine, instr=attrs.evolve(sine.instr, aval=aval((4,), torch.float32))),), (1,)
        ),
        "registered operation": Graph(
            (0,), (a,), (attrs.evolve(sine, instr=attrs.evolve(sine.instr, op=attrs.evolve(sine.op, name="x"))),), (1,)
        ),
    }
    for match, broken in cases.items():
        with pytest.raises(gt.GraphError, match=match):
            verify(broken)


def test_types_take_the_dtypes_of_gtrace():
    for shape in ((2, 3), (4, 5, 6, 7)):  # the second one is met for the first time
        assert ir.aval(shape, gt.float32) is ir.aval(shape, torch.float32)
        assert ir.aval(shape, gt.int16).dtype is torch.int16
