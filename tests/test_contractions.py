"""Products in Einstein's notation that are products of two matrices become such; alternating parts are joined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.ir.verify import broken_rule
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.passes.contractions import multiply_matrices
from gtrace.core.passes.whole_program import SIMPLIFIED

SIZES = dict(zip("abcdef", (2, 3, 4, 5, 1, 3), strict=True))


def graph_of(function, *shapes):
    return CANONICAL.run(gt.make_graph(function)(*[gt.zeros(shape) for shape in shapes]))


def names(graph):
    return [node.op.name for node in graph.nodes]


def same(graph, other):
    """Whether two graphs give the same for random inputs, the second one a valid graph."""
    assert broken_rule(other) is None
    inputs = [torch.randn(a.shape, dtype=torch.float64) for a in graph.avals]
    pairs = zip(interpreter(graph)(inputs), interpreter(other)(inputs), strict=True)
    return all(x.shape == y.shape and torch.allclose(x, y, rtol=1e-7, atol=1e-7) for x, y in pairs)


@pytest.mark.parametrize(
    "equation", ["btd,dhk->bthk", "bthk,hkd->btd", "bthk,btd->dhk", "bqo,bqhd->hdo", "td,kd->kt", "dhk,btd->bthk"]
)
def test_products_of_matrices(equation):
    sizes = dict(zip("btdhkqo", (2, 3, 4, 5, 6, 3, 7), strict=True))
    shapes = [tuple(sizes[c] for c in term) for term in equation.partition("->")[0].split(",")]
    graph = graph_of(lambda x, y: gt.einsum(equation, x, y), *shapes)
    after = multiply_matrices(graph)
    assert names(after).count("matmul") == 1 and "einsum" not in names(after)
    assert same(graph, after)


@pytest.mark.parametrize("equation", ["bij,bjk->bik", "ij,ij->i", "i,j->ij", "btd,dhk->bhtk", "ij,jk->"])
def test_other_products_stay(equation):
    shapes = [(3,) * len(term) for term in equation.partition("->")[0].split(",")]
    graph = graph_of(lambda x, y: gt.einsum(equation, x, y), *shapes)
    assert multiply_matrices(graph) is graph or names(multiply_matrices(graph)) == names(graph)


@given(st.permutations("abcdef"), st.integers(1, 3), st.integers(1, 3), st.data())
def test_any_equation_gives_what_it_gave(letters, rows, summed, data):
    left, inner, right = letters[:rows], letters[rows : rows + summed], letters[rows + summed :] or letters[:0]
    first, second = (
        "".join(data.draw(st.permutations(each))) for each in ([*left, *inner], [*inner, *right])
    )  # fmt: skip
    kept = data.draw(st.permutations([*left, *right]))
    equation = f"{first},{second}->{''.join(kept)}"
    shapes = [tuple(SIZES[c] for c in term) for term in (first, second)]
    graph = graph_of(lambda x, y: gt.einsum(equation, x, y), *shapes)
    after = multiply_matrices(graph)
    apart = any(set(kept[: len(one)]) == set(one) for one in (left, right))
    assert ("matmul" in names(after)) is (bool(right) and apart)
    assert same(graph, after)


def test_layers_in_this_notation_share_their_products():
    """Forward and backward; the gradient has no product of its own form."""

    def layer(x, w, v):
        h = gt.tanh(gt.einsum("btd,dhk->bthk", x, w))
        return (gt.einsum("bthk,hko->bto", h, v) ** 2).sum()

    shapes = (2, 3, 4), (4, 5, 6), (5, 6, 4)
    graph = gt.make_graph(gt.value_and_grad(layer, argnums=(0, 1, 2)))(*[gt.zeros(shape) for shape in shapes])
    after = SIMPLIFIED.run(graph)
    assert names(after).count("matmul") == 6 and "einsum" not in names(after)
    assert same(graph, after)


# -- alternating parts


def rotated(x):
    """A rotary embedding: pairs of neighbours are rotated."""
    a, b = x[..., ::2], x[..., 1::2]
    return gt.stack([0.6 * a - 0.8 * b, 0.8 * a + 0.6 * b], axis=-1).reshape(x.shape)


def test_alternating_parts_are_put_side_by_side():
    graph = gt.make_graph(gt.grad(lambda x: (rotated(x) ** 3).sum()))(gt.zeros((2, 3, 8)))
    after = CANONICAL.run(graph)
    assert "unslice" not in names(after)
    assert same(graph, after)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 2), st.data())
def test_sums_of_parts_are_what_they_were(step, times, extra, data):
    """Also where parts are missing, come twice, or do not fill the axis."""
    size = step * times + extra
    starts = data.draw(st.lists(st.integers(0, step - 1), min_size=1, max_size=4))

    def function(x):
        return sum((x[start::step] ** (k + 2)).sum() for k, start in enumerate(starts))

    graph = gt.make_graph(gt.grad(function))(gt.zeros((size, 2)))
    after = CANONICAL.run(graph)
    whole = sorted(starts) == list(range(step)) and size % step == 0
    assert ("unslice" in names(after)) is not whole
    assert same(graph, after)


def test_where_of_numbers_has_them_as_numbers():
    graph = gt.make_graph(lambda mask: gt.where(mask, 0.0, -1e9))(gt.array([True, False]))
    assert not any(a.dtype is not torch.bool for a in graph.avals)
    assert gt.where(gt.array([True, False]), 1, 2.5).dtype == np.float32
    assert gt.where(gt.array([True, False]), 1, 2).dtype == np.int64
