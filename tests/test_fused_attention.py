"""Attention that is written out becomes torch's kernel, however it is written; what only looks like it does not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gtrace as gt
import gtrace.numpy as gnp
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.ir.verify import broken_rule
from gtrace.core.passes.attention import BACKWARD, FORWARD, fuse_attention
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.passes.tuned import LEAST_SCORES

BATCH, HEADS, LENGTH, DEPTH = 2, 2, 48, 4
assert BATCH * LENGTH**2 >= LEAST_SCORES  # of a single head, too

RNG = np.random.default_rng(0)


def causal():
    places = gt.arange(LENGTH)
    return places[:, None] >= places[None, :]


def split(*arrays):
    return [gt.permute_dims(x, (0, 2, 1, 3)) for x in arrays]


def plain(q, k, v):
    q, k, v = split(q, k, v)
    return gt.permute_dims(gt.softmax(q @ gt.permute_dims(k, (0, 1, 3, 2)) * 0.3) @ v, (0, 2, 1, 3))


def added_mask(q, k, v):
    q, k, v = split(q, k, v)
    scores = q @ gt.permute_dims(k, (0, 1, 3, 2)) / math.sqrt(DEPTH)
    return gt.permute_dims(gt.softmax(scores + gt.where(causal(), 0.0, -1e9)) @ v, (0, 2, 1, 3))


def subtracted_mask(q, k, v):
    """A scale that is an array of one element, and a product with the mask."""
    q, k, v = split(q, k, v)
    scores = (q @ gt.permute_dims(k, (0, 1, 3, 2))) / gnp.sqrt(DEPTH)
    hidden = 1e9 * (1 - gnp.tril(gnp.ones((LENGTH, LENGTH))))
    return gt.permute_dims(gt.softmax(scores - hidden) @ v, (0, 2, 1, 3))


def einsums(q, k, v):
    """As in flax: queries are scaled, and scores replaced."""
    scores = gnp.einsum("bqhd,bkhd->bhqk", q / math.sqrt(DEPTH), k)
    scores = gnp.where(causal(), scores, gnp.finfo(scores.dtype).min)
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)


def vmapped(q, k, v):
    """As in equinox: one head of one example, batched."""

    def head(q, k, v):
        scores = gt.where(causal(), q @ k.T * DEPTH**-0.5, -math.inf)
        return gt.softmax(scores) @ v

    return gt.vmap(gt.vmap(head, in_axes=1, out_axes=1))(q, k, v)


def single_head(q, k, v):
    q, k, v = (gnp.reshape(x, (BATCH, LENGTH, HEADS * DEPTH)) for x in (q, k, v))
    scores = gnp.einsum("btd,bsd->bts", q, k) / (HEADS * DEPTH) ** 0.5
    result = gt.softmax(scores + gt.where(causal(), 0.0, -math.inf)) @ v
    return gnp.reshape(result, (BATCH, LENGTH, HEADS, DEPTH))


def slopes(q, k, v):
    """Attention with linear biases: all of a mask is small numbers (Press et al., 2021)."""
    places = gt.arange(LENGTH)
    scores = gnp.einsum("bqhd,bkhd->bhqk", q, k) - 0.1 * gt.abs(places[:, None] - places[None, :])
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)


def by_columns(q, k, v):
    """Scores of keys by queries, transposed, and a window to both sides."""
    places = gt.arange(LENGTH)
    near = gt.abs(places[:, None] - places[None, :]) < 5
    scores = gt.permute_dims(gnp.einsum("bkhd,bqhd->bhkq", k, q), (0, 1, 3, 2))
    return gnp.einsum("bkhd,bhqk->bqhd", v, gt.softmax(gt.where(~near, -1e30, scores * 0.5)))


FORMS = [plain, added_mask, subtracted_mask, einsums, vmapped, single_head, slopes, by_columns]
CAUSAL = [added_mask, subtracted_mask, einsums, vmapped, single_head]


def graph_of(function, *shapes, dtype=gt.float32):
    shapes = shapes or ((BATCH, LENGTH, HEADS, DEPTH),) * 3
    return CANONICAL.run(gt.make_graph(function)(*[gt.zeros(shape, dtype=dtype) for shape in shapes]))


def with_gradient(attention):
    cotangent = np.random.default_rng(1).normal(size=(BATCH, LENGTH, HEADS, DEPTH))

    def function(*arrays):
        weights = gt.array(cotangent, dtype=arrays[0].dtype)
        return gt.value_and_grad(lambda *x: (attention(*x) * weights).sum(), argnums=tuple(range(len(arrays))))(*arrays)

    return function


def kernels(graph):
    return [node.params[0] for node in graph.nodes if node.op.name == "aten"]


def same(graph, other):
    """Whether two graphs give the same for random inputs."""
    inputs = [torch.randn(a.shape, dtype=a.dtype) if a.shape else torch.tensor(DEPTH) for a in graph.avals]
    pairs = zip(interpreter(graph)(inputs), interpreter(other)(inputs), strict=True)
    return all(x.dtype is y.dtype and torch.allclose(x, y, rtol=2e-4, atol=2e-5) for x, y in pairs)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_forms_become_the_kernel(form):
    graph = graph_of(form)
    fused = fuse_attention(graph)
    assert kernels(fused) == [FORWARD] and not any(node.op.name == "softmax" for node in fused.nodes)
    assert broken_rule(fused) is None
    assert same(graph, fused)


@pytest.mark.parametrize("dtype", [gt.float32, gt.float64], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_gradients_become_the_kernel(form, dtype):
    graph = graph_of(with_gradient(form), dtype=dtype)
    fused = fuse_attention(graph)
    assert kernels(fused) == [FORWARD, BACKWARD]
    assert not {node.op.name for node in fused.nodes} & {"softmax", "einsum"}
    assert broken_rule(fused) is None
    assert same(graph, fused)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_triangles_are_known(form):
    call = next(node for node in fuse_attention(graph_of(form)).nodes if node.op.name == "aten")
    assert call.params[1][4] is (form in CAUSAL)
    assert (call.params[1][5] == "x") is (form in (slopes, by_columns))


def test_other_lengths_and_gradients_by_some():
    def cross(q, k, v, x):
        scores = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
        return (gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v) * x).sum()

    shapes = [
        (BATCH, 3 * LENGTH, HEADS, DEPTH),
        *[(BATCH, LENGTH, HEADS, DEPTH)] * 2,
        (BATCH, 3 * LENGTH, HEADS, DEPTH),
    ]
    for argnums in [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]:
        graph = graph_of(gt.value_and_grad(cross, argnums=argnums), *shapes)
        fused = fuse_attention(graph)
        assert kernels(fused) == [FORWARD, BACKWARD]
        assert same(graph, fused)


def test_masks_that_are_inputs_hide_by_infinity():
    def masked(q, k, v, padding):
        scores = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
        scores = gt.where(padding[:, None, None, :] > 0, scores, -math.inf)
        return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)

    shapes = [(BATCH, LENGTH, HEADS, DEPTH)] * 3 + [(BATCH, LENGTH)]
    graph = graph_of(with_gradient(lambda q, k, v, padding: masked(q, k, v, gt.stop_gradient(padding))), *shapes)
    fused = fuse_attention(graph)
    assert kernels(fused) == [FORWARD, BACKWARD]
    assert same(graph, fused)


class Examples:
    """0 for the first example, 1 for the second, made within each program."""

    def __getitem__(self, index):
        return gt.arange(BATCH).astype("float32")[index]


EXAMPLES = Examples()


def hidden_rows(q, k, v):
    """A row of numbers alone has equal weights."""
    scores = gt.where(gt.arange(LENGTH)[:, None] > 0, gnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)


def hidden_together(q, k, v):
    """Each mask leaves something of every row, both together do not."""
    scores = gnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = gt.where(gt.arange(LENGTH) < 5, gt.where(gt.arange(LENGTH) > 5, scores, -1e9), -1e9)
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)


def added_to_a_row(q, k, v):
    """The first query sees nothing: what is added to all of its scores changes no weights."""
    scores = gnp.einsum("bqhd,bkhd->bhqk", q, k)
    hidden = gnp.tril(gnp.ones((LENGTH, LENGTH), dtype=bool), -1)
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores + gt.where(hidden, 0.0, -1e9)), v)


def hidden_by_input(q, k, v):
    """Whether rows are hidden as a whole is not known; here one example is."""
    padding = gt.stop_gradient(v)[:, :, 0, 0] > EXAMPLES[:, None] * 1e9
    scores = gt.where(padding[:, None, None, :], gnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)


def lengths_of_each(q, k, v):
    """As encoders do: a bias by the lengths of sequences, of which one has none, and another one known."""
    length = gt.stop_gradient(v[:, :1, 0, 0] * 0) + 30.0 * (1 - EXAMPLES[:, None])
    bias = gt.where(gt.arange(LENGTH) < length, 0.0, -1e9)[:, None, None, :]
    near = -0.1 * gt.abs(gt.arange(LENGTH)[:, None] - gt.arange(LENGTH)).astype("float32")
    scores = gnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5 + bias + near
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)


def half_hidden(q, k, v):
    """-1e4 leaves some digits of the scores, which tell weights where nothing else is seen."""
    hidden = gt.stop_gradient(v)[:, None, :, 0, 0] > EXAMPLES[:, None, None] * 1e9
    scores = gnp.einsum("bqhd,bkhd->bhqk", q, k) + gt.where(hidden, 0.0, -1e4)[..., None, :]
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)


def of_each_head(q, k, v):
    """A slope for each head, as with linear biases, and what is added to whole rows."""
    slopes = gt.stop_gradient(v[0, 0, :, 0]) * 0 + 0.25
    bias = -slopes[:, None, None] * gt.arange(LENGTH) + 2.0 * gt.arange(LENGTH)[:, None]
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(gnp.einsum("bqhd,bkhd->bhqk", q, k) + bias), v)


def batch_alone(q, k, v):
    """Without an axis for heads."""
    keys = gt.stop_gradient(v)[:, :, 0, 0] > EXAMPLES[:, None] * 1e9
    q, k, v = q[:, :, 0], k[:, :, 0], v[:, :, 0]
    scores = gt.where(keys[:, None, :], q @ k.swapaxes(-1, -2), -1e9)
    return (gt.softmax(scores) @ v)[:, :, None] * gt.ones((1, 1, HEADS, 1))


LEVELLED = [
    hidden_rows, hidden_together, added_to_a_row, hidden_by_input, lengths_of_each, half_hidden, of_each_head,
    batch_alone,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [gt.float32, gt.float64], ids=str)
@pytest.mark.parametrize("form", LEVELLED, ids=lambda f: f.__name__)
def test_rows_of_which_all_may_be_hidden(form, dtype):
    if dtype == gt.float32 and form in (added_to_a_row, lengths_of_each, half_hidden):
        return  # written out, the scores have few digits left, or none, beside what is added
    for function, names in ((form, [FORWARD]), (with_gradient(form), [FORWARD, BACKWARD])):
        graph = graph_of(function, dtype=dtype)
        fused = fuse_attention(graph)
        assert kernels(fused) == names
        assert same(graph, fused)


def test_masks_that_are_added_are_inputs():
    def masked(q, k, v, mask):
        scores = gnp.einsum("bqhd,bkhd->bhqk", q, k) + mask
        return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)

    shapes = [(BATCH, LENGTH, HEADS, DEPTH)] * 3 + [(LENGTH, LENGTH)]
    graph = graph_of(with_gradient(lambda q, k, v, mask: masked(q, k, v, gt.stop_gradient(mask * 100))), *shapes)
    fused = fuse_attention(graph)
    assert kernels(fused) == [FORWARD, BACKWARD]
    assert same(graph, fused)


def test_masks_of_nn_hide_whole_rows():
    """Their results are 0, as the kernel has them."""

    def masked(q, k, v):
        shown = gt.stop_gradient(v)[:, None, :, :1, 0] > EXAMPLES[:, None, None, None] * 1e9
        mask = gt.logical_and(shown, gt.arange(LENGTH) != 3)
        return gt.nn.dot_product_attention(q, k, v, mask=mask)

    for function, names in ((masked, [FORWARD]), (with_gradient(masked), [FORWARD, BACKWARD])):
        graph = graph_of(function)
        fused = fuse_attention(graph)
        assert kernels(fused) == names and same(graph, fused)
        inputs = [torch.randn(a.shape) for a in graph.avals]
        inputs[0][:, 5], inputs[1] = -torch.inf, inputs[1].abs()
        for got, right in zip(interpreter(fused)(inputs), interpreter(graph)(inputs), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4, equal_nan=True)


def dropped(q, k, v):
    scores = gnp.einsum("bqhd,bkhd->bhqk", q, k)
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores) * (scores > 0), v)


def returned(q, k, v):
    weights = gt.softmax(gnp.einsum("bqhd,bkhd->bhqk", q, k))
    return gnp.einsum("bhqk,bkhd->bqhd", weights, v) + weights.sum()


def twice(q, k, v):
    weights = gt.softmax(gnp.einsum("bqhd,bkhd->bhqk", q, k))
    return gnp.einsum("bhqk,bkhd->bqhd", weights, v) + gnp.einsum("bhqk,bkhd->bqhd", weights, v * v)


def other_heads(q, k, v):
    """The heads of the values are others than those of the weights."""
    weights = gt.softmax(gnp.einsum("bqhd,bkhd->bhqk", q, k))
    return gnp.einsum("bhqk,bkgd->bqgd", weights, v)


def several_depths(q, k, v):
    weights = gt.softmax(gnp.einsum("bqhd,bkhd->bhqk", q, k))
    return gnp.einsum("bhqk,bkhde->bqhde", weights, gnp.reshape(v, (*v.shape[:3], 2, DEPTH // 2))).reshape(q.shape)


def over_queries(q, k, v):
    weights = gt.softmax(gnp.einsum("bqhd,bkhd->bhqk", q, k), axis=2)
    return gnp.einsum("bhqk,bkhd->bqhd", weights, v)


def small_numbers(q, k, v):
    """Scores of -10 are scores."""
    scores = gt.where(causal(), gnp.einsum("bqhd,bkhd->bhqk", q, k), -10.0)
    return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)


OTHERS = [
    dropped, returned, twice, other_heads, several_depths, over_queries, small_numbers,
]  # fmt: skip


@pytest.mark.parametrize("form", OTHERS, ids=lambda f: f.__name__)
def test_other_things_stay(form):
    for function in (form, with_gradient(form)):
        graph = graph_of(function)
        assert fuse_attention(graph) is graph


def test_learned_biases_stay():
    """The gradient of what is added to the scores is that of the scores."""

    def biased(q, k, v, bias):
        scores = gnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
        return gnp.einsum("bhqk,bkhd->bqhd", gt.softmax(scores), v)

    graph = graph_of(with_gradient(biased), *[(BATCH, LENGTH, HEADS, DEPTH)] * 3, (HEADS, LENGTH, LENGTH))
    assert fuse_attention(graph) is graph


def test_second_derivatives_stay():
    """A penalty on the gradient beside the value: the weights and their derivative have further uses."""

    def penalized(q, k, v):
        value, slope = gt.value_and_grad(lambda q: (plain(q, k, v) ** 2).sum())(q)
        return value + (slope**2).sum()

    graph = graph_of(gt.value_and_grad(penalized, argnums=(0, 1, 2)))
    assert any(node.op.name == "softmax" for node in graph.nodes)
    assert fuse_attention(graph) is graph


@pytest.mark.parametrize("layers", [4, 60])
def test_sums_of_any_length_are_looked_at_once(layers):
    """A softmax of residual layers, each of which is a product; both sides of each sum may be the scores."""

    def residual(x, *weights):
        h = x @ weights[0]
        for w in weights[1:]:
            h = h + gt.tanh(h @ w)
        return gt.softmax(h)

    graph = graph_of(residual, (4, 64, 64), *[(64, 64)] * layers)
    assert fuse_attention(graph) is graph


def test_small_programs_stay():
    graph = graph_of(plain, *[(1, 4, 2, 4)] * 3)
    assert fuse_attention(graph) is graph


def test_products_of_each_others_results_stay():
    """The values are what would be their gradient: the two kernels would need each other's results."""

    def odd(q, k, g):
        weights = gt.softmax(gnp.einsum("bqhd,bkhd->bhqk", q, k))
        v = gnp.einsum("bhqk,bqhd->bkhd", weights, g)
        return gnp.einsum("bhqk,bkhd->bqhd", weights, v)

    graph = graph_of(odd)
    assert fuse_attention(graph) is graph


ORDERS = ["".join(order) for order in itertools.permutations("bhqd")]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(ORDERS), st.sampled_from(ORDERS), st.sampled_from(ORDERS), st.sampled_from(ORDERS),
    st.sampled_from(["bhqk", "hbqk", "bhkq", "qkbh"]), st.sampled_from([1.0, 0.25, 1.7]), st.booleans(),
)  # fmt: skip
def test_any_order_of_axes(of_q, of_k, of_v, of_out, of_scores, scale, masked):
    sizes = {"b": BATCH, "h": HEADS, "q": LENGTH, "k": LENGTH, "d": DEPTH}
    of_k, of_v = of_k.replace("q", "k"), of_v.replace("q", "k")

    def attention(q, k, v):
        scores = gnp.einsum(f"{of_q},{of_k}->{of_scores}", q, k)
        order = tuple(of_scores.index(c) for c in "bhqk")
        scores = gt.permute_dims(scores, order) * scale
        if masked:
            scores = gt.where(causal(), scores, -math.inf)
        return gnp.einsum(f"bhqk,{of_v}->{of_out}", gt.softmax(scores), v)

    def loss(q, k, v, x):
        return (attention(q, k, v) * x).sum()

    shapes = [tuple(sizes[c] for c in labels) for labels in (of_q, of_k, of_v, of_out)]
    graph = graph_of(gt.value_and_grad(loss, argnums=(0, 1, 2)), *shapes)
    fused = fuse_attention(graph)
    assert kernels(fused) == [FORWARD, BACKWARD]
    assert same(graph, fused)


@pytest.mark.parametrize("mode", ["undecorated", "jit"])
def test_programs_run_with_it(mode):
    """A training loop, with arrays of other strides, against torch in double precision."""
    arrays = [RNG.normal(size=(BATCH, LENGTH, HEADS, DEPTH)).astype(np.float32) for _ in range(3)]
    target = RNG.normal(size=arrays[0].shape).astype(np.float32)

    def step(state):
        grads = gt.grad(lambda state: ((added_mask(*state) - target) ** 2).mean())(state)
        return [x - 3.0 * g for x, g in zip(state, grads, strict=True)]

    run = gt.jit(step) if mode == "jit" else step
    state = [gt.array(np.asfortranarray(x)) for x in arrays]
    for _ in range(6):
        state = run(state)
        gt.eval(state)
    expected = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    for _ in range(6):
        q, k, v = (x.transpose(1, 2) for x in expected)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        loss = ((out - torch.tensor(target)) ** 2).mean()
        grads = torch.autograd.grad(loss, expected)
        expected = [(x - 3.0 * g).detach().requires_grad_() for x, g in zip(expected, grads, strict=True)]
    for x, y in zip(state, expected, strict=True):
        np.testing.assert_allclose(np.asarray(x), y.detach().numpy(), rtol=1e-3, atol=1e-4)


NUMBERS = [-math.inf, -1e9, -3e38, math.nan, -10.0, math.inf]
STEPS = st.one_of(
    st.tuples(st.just("input"), st.sampled_from(NUMBERS)),
    st.tuples(st.just("triangle"), st.sampled_from(NUMBERS)),
    st.tuples(st.just("strict triangle"), st.sampled_from(NUMBERS)),
    st.tuples(st.just("added"), st.sampled_from([0.0, -math.inf, math.nan, math.inf, -1e9])),
    st.tuples(st.just("number"), st.sampled_from([1.5, -1e9, -math.inf])),
)


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=2),
    scale=st.sampled_from([0.5, 1.0, -0.5, 0.0, math.inf, "array"]),
    number=st.sampled_from([0.5, -0.5, 0.0, math.nan]),
    dtype=st.sampled_from([gt.float32, gt.float64]),
    further=st.sampled_from(["none", "weights", "scores", "value"]),
    differentiated=st.booleans(),
    hidden=st.booleans(),
)
@example([("input", -math.inf)], 0.5, 0.5, gt.float32, "none", True, True)
@example([("input", -math.inf), ("input", -math.inf)], 0.5, 0.5, gt.float64, "none", True, True)
@example([("input", -math.inf), ("triangle", -math.inf)], 0.5, 0.5, gt.float64, "none", True, True)
@example([("added", -math.inf), ("input", -math.inf)], 0.5, 0.5, gt.float64, "none", True, True)
def test_near_misses_give_what_they_give_written_out(steps, scale, number, dtype, further, differentiated, hidden):
    """Signs and sizes of scales, numbers that hide scores or do not, rows that are hidden as a whole, further uses."""

    def attention(q, k, v, shown, bias, by):
        scores = gnp.einsum("bhqd,bhkd->bhqk", q, k) * (by if scale == "array" else scale)
        for kind, value in steps:
            if kind == "input":
                scores = gt.where(shown > 0, scores, value)
            elif kind == "added":
                scores = scores + gt.where(bias > 1.5, value, bias)
            elif kind == "number":
                scores = scores + value
            else:
                triangle = gt.tril(gt.ones((32, 32)), -1 if kind == "strict triangle" else 0)
                scores = gt.where(triangle > 0, scores, value)
        weights = gt.softmax(scores)
        out = weights @ v
        extra = {"none": 0.0, "weights": weights[..., 0].sum(), "scores": gt.tanh(scores).sum(), "value": v.sum()}
        return (out * gt.sin(v)).sum() + extra[further], out

    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=(2, 2, 32, 4)) for _ in range(3)]
    shown, bias = rng.normal(size=(2, 1, 1, 32)) + 0.5, rng.normal(size=(2, 1, 32, 32))
    if hidden:
        shown[0], bias[0, 0, 3] = -1.0, 2.0  # all of an example, and all of a row
    arrays = [gt.array(x, dtype=dtype) for x in (*arrays, shown, bias, number)]
    function = gt.grad(attention, argnums=(0, 1, 2), has_aux=True) if differentiated else attention
    graph = CANONICAL.run(gt.make_graph(function)(*arrays))
    inputs = [torch.tensor(np.asarray(x)) for x in arrays]
    expected = interpreter(graph)(inputs)
    tolerance = 2e-4 if dtype == gt.float32 else 1e-8
    # in float32, what is left of scores beside -1e9 differs
    coarse = dtype == gt.float32 and any(kind in ("added", "number") and value == -1e9 for kind, value in steps)
    for came, right in zip(interpreter(fuse_attention(graph))(inputs), expected, strict=True):
        if coarse:
            assert torch.equal(came.isnan(), right.isnan())
        else:
            torch.testing.assert_close(came, right, rtol=tolerance, atol=tolerance, equal_nan=True)
