"""Repeated structure: found wherever it is planted, compiled once, and right however a program is divided."""

from __future__ import annotations

import functools
import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import run_parts

import gtrace as gt
from gtrace import ir, testing
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.schedule import CallSequence, Step
from gtrace.core.ir.aval import contiguous_strides
from gtrace.core.ir.verify import verify
from gtrace.core.ir.views import views_in_parts
from gtrace.core.passes import repeats
from gtrace.core.passes.canonical import CANONICAL, canonicalize
from gtrace.core.passes.channels_last import predicted_strides
from gtrace.core.passes.repeats import cut_repeats, find_runs, updates_beside_gradients
from gtrace.core.passes.split import NEVER, components, crossing, grouped_components, slices
from gtrace.core.passes.whole_program import SIMPLIFIED
from gtrace.core.runtime import tier_controller as tiering
from gtrace.core.runtime.routes import Parts
from gtrace.testing import count_compiles

UNARY, BINARY = ("sin", "cos", "tanh", "abs", "neg"), ("add", "sub", "mul", "maximum")


@st.composite
def bodies(draw, least):
    """One repetition: operations on a state and a weight, each on the result before it, the state or the weight."""
    count = draw(st.integers(least, least + 12))
    return [(draw(st.sampled_from(UNARY + BINARY)), draw(st.integers(0, 2))) for _ in range(count)]


def repeat(builder, x, w, body):
    state = x
    for name, other in body:
        x = builder.op(name, x) if name in UNARY else builder.op(name, x, (state, w, x)[other])
    return x


@st.composite
def planted(draw):
    """A graph of a beginning, a repeated body with a weight of its own each time, and an end; and the repetitions."""
    builder = ir.Builder()
    x = builder.input((8, 4), gt.float64)
    before, body, after = draw(bodies(0)), draw(bodies(16)), draw(bodies(0))
    count = draw(st.integers(8, 12))
    x = repeat(builder, x, x, before)
    for _ in range(count):
        x = repeat(builder, x, builder.input((8, 4), gt.float64), body)
    return builder.graph(repeat(builder, x, x, after)), len(body), count


@given(planted(), st.integers(0, 2**32 - 1))
def test_planted_repetitions_are_found_and_nothing_else_changes(case, seed):
    graph, length, count = case
    with pytest.MonkeyPatch.context() as patch:
        # every part may be small here
        patch.setattr(repeats, "PART_NODES_OF_SMALL_ARRAYS", 16)
        patch.setattr(repeats, "PART_NODES", 16)
        parts = cut_repeats(graph)
    rng = np.random.default_rng(seed)
    tensors = [torch.from_numpy(rng.normal(size=a.shape)) for a in graph.avals]
    for got, expected in zip(run_parts(parts, graph, tensors), interpreter(graph)(tensors), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
    distinct = {ir.print_graph(canonicalize(part).graph): len(part.nodes) for part in parts}
    # what repeats, and at most as much again at each end of the run, where repetitions are not whole
    assert sum(distinct.values()) <= len(graph.nodes) - (count - 3) * length
    assert len(distinct) <= 4


def layers(count, width=16, activations=True):
    rng = np.random.default_rng(0)
    ws = [gt.array(rng.normal(size=(width, width)) / 4) for _ in range(count)]

    def model(ws, x):
        for w in ws:
            mean = x.mean(-1, keepdims=True)
            x = x + gt.tanh((x - mean) / gt.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) @ w) * 0.5
            if activations:
                x = gt.sin(x) * gt.cos(x) + gt.maximum(x, 0.0) * gt.exp(-gt.abs(x)) - gt.sigmoid(x)
        return (x**2).sum()

    def step(ws, x):
        value, grads = gt.value_and_grad(model)(ws, x)
        return [w - 0.01 * g for w, g in zip(ws, grads, strict=True)], value

    return step, ws, gt.array(rng.normal(size=(8, width)))


def same(got, expected):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_a_model_compiles_its_layers_once_and_a_deeper_one_finds_them():
    step, ws, x = layers(16)
    with gt.config(auto_compile=False):
        expected = step(ws, x)
        gt.eval(expected)
    jitted = gt.jit(step, backend="eager")
    with count_compiles() as first:
        same(jitted(ws, x), expected)
    programs = jitted.programs()
    whole = len(jitted.lower(ws, x).graph.nodes)
    assert sum(len(program.graph.nodes) for program in programs) < whole / 2
    assert all(program.tier == "compiled" for program in programs if len(program.graph.nodes) > 3)
    deeper, more, _ = layers(28)
    with count_compiles() as second:
        jitted = gt.jit(deeper, backend="eager")
        jitted(more, x)
    assert second.count < first.count, "the layers are there already"
    assert len(set(programs) & set(jitted.programs())) >= 2


@pytest.mark.slow
@pytest.mark.inductor
def test_parts_are_shared_by_jitted_code_and_judged_one_by_one(monkeypatch):
    monkeypatch.setattr(tiering.policies, "judge", lambda pairs: None)
    step, ws, x = layers(12, width=12, activations=False)
    with gt.config(auto_compile=False):
        expected = step(ws, x)
        gt.eval(expected)
    with gt.config(hot_threshold=2):
        gt.eval(step(ws, x))
    jitted = gt.jit(step)
    with count_compiles() as compiles:
        same(jitted(ws, x), expected)
    assert compiles.count == 0
    programs = [p for p in jitted.programs() if p.forms.trial is not None]
    assert len(programs) >= 2
    slow = programs[0].forms.trial
    monkeypatch.setattr(tiering.policies, "judge", lambda pairs: pairs and (0.5 if pairs is slow.pairs else 2.0))
    for _ in range(3):
        same(jitted(ws, x), expected)
    assert [p.tier for p in programs] == ["demoted"] + ["compiled"] * (len(programs) - 1)


def test_short_programs_are_not_divided():
    def f(x):
        for _ in range(6):
            x = gt.tanh(gt.sin(x) * 2)
        return x

    jitted = gt.jit(f)
    jitted(gt.ones(3))
    assert len(jitted.programs()) == 1


def test_loops_stay_whole_and_outputs_that_are_inputs_or_equal_are_passed_on():
    def f(x, ys):
        for _ in range(20):
            last, rows = gt.scan(lambda c, y: (gt.tanh(c * 0.5 + y), c.sum()), x, ys)
            x = last * rows.mean() + gt.sin(x) - gt.cos(last) * 0.25 + gt.sqrt(gt.abs(x) + 1.0)
        return x, ys, x * 1.0, gt.ones(3) * 2.0

    rng = np.random.default_rng(0)
    x, ys = gt.array(rng.normal(size=4)), gt.array(rng.normal(size=(6, 4)))
    with gt.config(auto_compile=False):
        expected = f(x, ys)
        gt.eval(expected)
    lowered = gt.jit(f, backend="eager").lower(x, ys)
    assert isinstance(lowered.route, Parts) and len(lowered.route.programs) < len(lowered.route.routes)
    same(gt.jit(f, backend="eager")(x, ys), expected)


@pytest.mark.slow
def test_parts_whose_outputs_are_inputs_of_theirs():
    """What an independent part takes is needed after its call, if it is a result as well."""
    for n in range(2, 6):
        x, y = gt.array(np.linspace(-1, 1, n)), gt.array(np.linspace(0, 1, n + 1))
        same_x, same_y = gt.stop_gradient(x), gt.stop_gradient(y)
        a, b = same_x, same_y
        for _ in range(10):
            a, b = gt.sin(a) + same_x, gt.cos(b) * same_y
        gt.eval(a, b, same_x, same_y)
        np.testing.assert_array_equal(np.asarray(same_x), np.linspace(-1, 1, n))
        np.testing.assert_array_equal(np.asarray(same_y), np.linspace(0, 1, n + 1))

        def whole(x, y):
            for _ in range(60):
                x = gt.sin(x) * 0.5 + gt.cos(x)
            return gt.stop_gradient(y), x, gt.stop_gradient(x)

        kept, last, again = gt.jit(whole, backend="eager")(x, y)
        np.testing.assert_array_equal(np.asarray(kept), np.linspace(0, 1, n + 1))
        np.testing.assert_array_equal(np.asarray(last), np.asarray(again))


def test_runs_and_constants_of_the_parts():
    def f(x):
        for _ in range(12):
            x = gt.where(gt.arange(512) % 2 == 0, gt.sin(x) * 2.0, gt.cos(x)) + gt.full((300, 512), 0.5)
        return x

    graph = CANONICAL.run(gt.make_graph(f)(gt.ones((300, 512))))
    (run,) = find_runs(graph, 32)
    assert run.length >= 11 * run.period
    parts = cut_repeats(graph)
    assert len({ir.print_graph(canonicalize(part).graph) for part in parts}) <= 3
    assert all(len(part.inputs) <= 1 for part in parts), "constants are made where they are used"


@pytest.mark.slow
@given(testing.graphs(max_nodes=30))
def test_moved_ends_change_no_result(graph):
    moved = updates_beside_gradients(graph)
    verify(moved)
    assert sorted(node.out for node in moved.nodes) == sorted(node.out for node in graph.nodes)
    assert canonicalize(moved).graph == canonicalize(graph).graph


@pytest.mark.parametrize("clipped", [False, True])
def test_passes_of_an_optimizer_are_one_with_the_layers(clipped):
    """The moments and the new parameters are made one tree after the other, and compiled once for all layers."""
    layers = [{"w": gt.ones((8, 8)), "v": gt.ones((8, 8)), "b": gt.ones(8)} for _ in range(8)]
    optimizer = gt.optim.adam(0.1)
    if clipped:
        optimizer = gt.optim.chain(gt.optim.clip_by_global_norm(1.0), optimizer)

    def loss(layers, x):
        for p in layers:
            x = x + gt.tanh(gt.sin(x @ p["w"]) @ p["v"] * 0.1 + p["b"])
        return (x * x).mean()

    def step(layers, state, x):
        g = gt.grad(loss)(layers, x)
        updates, state = optimizer.update(g, state, layers)
        return gt.optim.apply_updates(layers, updates), state

    args = layers, optimizer.init(layers), gt.linspace(-1, 1, 32).reshape(4, 8)
    graph = CANONICAL.run(gt.make_graph(step)(*args))
    parts = cut_repeats(graph)
    tensors = [torch.rand(a.shape).to(a.dtype) for a in graph.avals]
    distinct = {ir.print_graph(canonicalize(part).graph): len(part.nodes) for part in parts}
    # undivided, until the passes over the parameters were one
    assert len(parts) > len(distinct) == 3
    assert sum(distinct.values()) < 0.75 * len(graph.nodes)
    for got, expected in zip(run_parts(parts, graph, tensors), interpreter(graph)(tensors), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())


def test_an_operation_is_not_parted_from_its_results():
    """The run begins and ends between a maximum with places and its two results, so its first phase cannot be cut."""
    pool = functools.partial(torch.nn.functional.max_pool2d, kernel_size=3, stride=1, return_indices=True)

    def f(x):
        x, places = pool(x)
        for _ in range(32):
            x, places = pool(gt.sin(x) + places.astype(gt.float32), padding=1)
        return pool(gt.sin(x) + places.astype(gt.float32), padding=1)[1]

    graph = CANONICAL.run(gt.make_graph(f)(gt.ones((1, 1, 10, 10))))
    (run,) = find_runs(graph, 32)
    assert run.length == 33 * run.period and graph.nodes[run.start].op.projection
    parts = cut_repeats(graph)
    assert len(parts) > 2
    tensors = [torch.rand(a.shape) for a in graph.avals]
    for got, expected in zip(run_parts(parts, graph, tensors), interpreter(graph)(tensors), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())


@given(testing.graphs(max_nodes=30), st.data())
def test_views_that_parts_make_themselves_change_no_result(graph, data):
    whole = [place for place, size in enumerate(crossing(graph)) if 0 < place < len(graph.nodes) and size < NEVER]
    places = sorted(data.draw(st.sets(st.sampled_from(whole), max_size=4))) if whole else []
    parts = slices(*views_in_parts(graph, places))
    tensors = [x.to_torch() for x in data.draw(testing.arguments(graph))]
    for got, expected in zip(run_parts(parts, graph, tensors), interpreter(graph)(tensors), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())


@given(testing.graphs(max_nodes=30), st.integers(1, 8), st.integers(1, 3), st.data())
def test_independent_parts_change_no_result(graph, least, kinds, data):
    tensors = [x.to_torch() for x in data.draw(testing.arguments(graph))]
    expected = interpreter(graph)(tensors)
    apart = components(graph, least)
    by_key = grouped_components(graph, lambda part: len(part.nodes) % kinds)
    assert sum(len(part.nodes) < least for part in apart) <= 1
    assert len({key for key, _ in by_key}) == len(by_key)
    for parts in (apart, [part for _, part in by_key]):
        made = [node.out for part in parts for node in part.nodes]
        assert len(set(made)) == len(made)
        for part in parts:  # no part takes what another one computes
            assert set(part.inputs) <= set(graph.inputs)
        for got, right in zip(run_parts(parts, graph, tensors), expected, strict=True):
            np.testing.assert_array_equal(got.numpy(), right.numpy())


def encoder(depth):
    """A training step of a torch module, with layer norms, attention and an optimizer, as a graph."""
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, **options)
    params, apply = gt.from_module(torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False))
    optimizer = gt.optim.adam(0.1)

    def step(params, state, x):
        value, grads = gt.value_and_grad(lambda p: (apply(p, x, state=apply.state, train=True)[0] ** 2).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        return gt.optim.apply_updates(params, updates), state, value

    return SIMPLIFIED.run(gt.make_graph(step)(params, optimizer.init(params), gt.ones((4, 6, 16))))


def drawn(graph):
    torch.manual_seed(1)
    return [torch.rand(a.shape).to(a.dtype) for a in graph.avals]


@pytest.mark.slow
def test_torch_modules_are_divided_where_they_repeat_and_deeper_ones_have_the_same_parts():
    """Means and deviations of layer norms are read by the backward pass, long after their operation."""
    forms = []
    for depth in (4, 6):
        graph = encoder(depth)
        parts = cut_repeats(graph)
        forms.append([ir.print_graph(canonicalize(part).graph) for part in parts])
        tensors = drawn(graph)
        for got, expected in zip(run_parts(parts, graph, tensors), interpreter(graph)(tensors), strict=True):
            np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)
    assert len(forms[1]) > len(forms[0]) > len(set(forms[0]))
    assert set(forms[1]) == set(forms[0])


def test_no_part_takes_what_would_be_copied_for_it():
    """Queries, keys and values are slices of one product, and their heads are views."""
    graph = encoder(4)
    known = predicted_strides(graph, [contiguous_strides(a.shape) for a in graph.avals])
    env = dict(zip(graph.inputs, drawn(graph), strict=True))
    taken = 0
    for part in cut_repeats(graph):
        for value in set(part.inputs) - set(graph.inputs):
            taken += 1
            assert env[value].is_contiguous() or env[value].stride() == known.get(value)
        run = interpreter(ir.renumber(part))
        env.update(zip(part.outputs, run([env[v] for v in part.inputs]), strict=True))
    assert taken > 50


def test_a_program_without_repetitions_is_one_part():
    b = ir.Builder()
    x = b.input((3,), gt.float32)
    rng = np.random.default_rng(3)
    for _ in range(150):
        x = b.op(UNARY[rng.integers(len(UNARY))], x)
    assert len(cut_repeats(b.graph(x))) == 1


def test_results_are_freed_when_no_later_call_needs_them():
    alive = []

    def make(tensors):
        out = tensors[0] + 1
        alive.append(weakref.ref(out))
        gc.collect()
        counts.append(sum(ref() is not None for ref in alive))
        return [out]

    counts: list[int] = []
    steps = tuple(Step(make, (k,), ((k + 1, 0),)) for k in range(6))
    (result,) = CallSequence(steps, (0,), (6,)).run([torch.zeros(2)])
    assert result.tolist() == [6.0, 6.0]
    assert max(counts) == 2
