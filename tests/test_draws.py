"""Random draws run before the rest of a program, as programs of their own, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import run_parts

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.passes.canonical import CANONICAL
from gtrace.core.passes.draws import draws_apart, has_draws
from gtrace.core.passes.tuned import LEAST_DRAWN
from gtrace.testing import assert_close, count_compiles

pytestmark = pytest.mark.native

SHAPE = (24, 16)

KEYS = {
    "split": lambda key, k: gt.random.split(key, 3)[k % 3],
    "fold in": lambda key, k: gt.random.fold_in(key, k),
    "chain": lambda key, k: gt.random.split(gt.random.split(key)[0])[k % 2],
    "as it is": lambda key, k: key,
    "many": lambda key, k: gt.random.split(key, LEAST_DRAWN)[k],
    "of a draw": lambda key, k: gt.random.key_data(gt.random.fold_in(key, gt.random.randint(key, SHAPE, 0, 99).max())),
}
DRAWS = {
    "bernoulli": lambda key: gt.random.bernoulli(key, 0.7, SHAPE),
    "normal": lambda key: gt.random.normal(key, SHAPE),
    "uniform": lambda key: gt.random.uniform(key, SHAPE, minval=-2.0, maxval=3.0),
    "randint": lambda key: gt.random.randint(key, SHAPE, 0, 9),
    "gumbel": lambda key: gt.random.gumbel(key, SHAPE),
    "categorical": lambda key: gt.random.categorical(key, gt.ones((*SHAPE, 5))),
    "permutation": lambda key: gt.random.permutation(key, gt.arange(300.0))[: SHAPE[0] * SHAPE[1] // 2].sum(),
    "batch": lambda key: gt.vmap(lambda k: gt.random.normal(k, (SHAPE[1],)))(gt.random.split(key, SHAPE[0])),
}


@st.composite
def programs(draw):
    """A function of a key and an array that draws several times, and uses what it drew in between."""
    steps = draw(st.lists(st.tuples(st.sampled_from(sorted(KEYS)), st.sampled_from(sorted(DRAWS))), min_size=1,
                          max_size=5))  # fmt: skip
    together = draw(st.booleans())

    def run(key, x):
        drawn = []
        for k, (kind, how) in enumerate(steps):
            found = DRAWS[how](KEYS[kind](key, k))
            x = gt.tanh(gt.maximum(x, found))
            drawn.append(found * 1.0)
        return x, sum(drawn) if together else drawn

    return run


@given(programs(), st.integers(0, 2**32 - 1), st.booleans())
def test_draws_apart_are_the_same_bits(function, seed, simplified):
    key, x = gt.random.key(seed), gt.linspace(-1, 1, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    graph = gt.make_graph(function)(key, x)
    if simplified:
        graph = CANONICAL.run(graph)
    parts = draws_apart(graph, lambda node: not node.op.projection)
    captured = [torch.full(a.shape, 0.5, dtype=a.dtype) for a in graph.avals[2:]]
    tensors = [key.to_torch(), x.to_torch(), *captured]
    for got, expected in zip(run_parts(parts, graph, tensors), interpreter(graph)(tensors), strict=True):
        assert torch.equal(got, expected)


def noisy(params, x, key):
    """A network with a product that no short program has, and noise after each layer."""
    for w, own in zip(params, gt.random.split(key, len(params)), strict=True):
        x = gt.tanh(x @ w) * gt.random.bernoulli(own, 0.9, x.shape)
    return (x * x).mean()


def arguments(layers=4, width=512, batch=256):
    rng = np.random.default_rng(0)
    params = [gt.array(rng.normal(size=(width, width), scale=0.05).astype(np.float32)) for _ in range(layers)]
    return params, gt.array(rng.normal(size=(batch, width)).astype(np.float32)), gt.random.key(7)


def step(params, x, key):
    value, grads = gt.value_and_grad(noisy)(params, x, key)
    return value, gt.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def drawing(jitted):
    """Return the programs with draws."""
    return [program for program in jitted.programs() if has_draws(program.graph)]


@pytest.mark.slow
def test_equal_draws_of_a_long_program_are_one_program_for_the_c_compiler():
    params, x, key = arguments()
    params = params * 4  # long enough to be Inductor's
    jitted = gt.jit(step)
    value, _ = jitted(params, x, key)
    with gt.config(auto_compile=False):
        expected, _ = step(params, x, key)
    assert_close(value, expected, check_dtype=False)
    (draw,) = drawing(jitted)
    (keys,) = [p for p in jitted.programs() if p is not draw and any(node.op.cipher for node in p.graph.nodes)]
    for program in (draw, keys):
        assert program.native and program.tier == "compiled"
    words = [torch.tensor([k]) for k in (3, 9)]
    assert torch.equal(draw.forms.executable.run(words)[0], draw.reference(words)[0])


@pytest.mark.slow
def test_undecorated_code_has_the_same_programs():
    params, x, key = arguments()
    jitted = gt.jit(step)
    jitted(params * 4, x, key)
    (draw,) = drawing(jitted)
    before = draw.ledger.calls
    with gt.config(auto_compile=False), count_compiles() as compiles:
        step(params * 4, x, key)[0].item()
    assert draw.ledger.calls == before + 16 and not compiles.count


def test_short_programs_keep_their_draws():
    def small(x, key):
        return gt.tanh(x) * gt.random.bernoulli(key, 0.9, x.shape)

    jitted = gt.jit(small)
    jitted(gt.ones((32, 32)), gt.random.key(0))
    (program,) = jitted.programs()
    assert has_draws(program.graph) and program.short


@pytest.mark.slow
def test_without_native_code_draws_stay():
    def convolved(x, key):
        return gt.nn.conv2d(x, gt.ones((8, 3, 3, 3))) * gt.random.normal(key, (8, 8, 62, 62))

    def programs():
        jitted = gt.jit(convolved)
        jitted(gt.ones((8, 3, 64, 64)), gt.random.key(0))
        return jitted.programs()

    assert len(programs()) > 1
    with gt.config(native=False):
        assert len(programs()) == 1


def test_a_key_that_follows_from_floats_stays():
    def chosen(x, key):
        y = gt.tanh(x)
        own = gt.random.fold_in(key, (y.sum() > 0).astype(gt.int64))
        return y * gt.random.normal(own, x.shape)

    graph = gt.make_graph(chosen)(gt.ones(SHAPE), gt.random.key(0))
    assert has_draws(graph) and draws_apart(graph, lambda node: True) == [graph]


def test_draws_take_nothing_but_words_of_keys():
    params, x, key = arguments()
    graph = CANONICAL.run(gt.make_graph(step)(params * 4, x, key))
    before, *draws, rest = draws_apart(graph, lambda node: not node.op.projection)
    assert len(draws) == 16 and not has_draws(before) and not has_draws(rest)
    assert all(a.dtype is torch.int64 and a.size == 1 for part in draws for a in part.avals)


def test_a_key_that_comes_from_a_loop_stays():
    def looped(x, key):
        last, _ = gt.scan(lambda key, _: (gt.random.split(key)[0], None), key, None, length=3)
        return gt.nn.conv2d(x, gt.ones((8, 3, 3, 3))) * gt.random.normal(last, (2, 8, 30, 30))

    x, key = gt.ones((2, 3, 32, 32)), gt.random.key(3)
    with gt.config(auto_compile=False):
        expected = looped(x, key)
        for _ in range(3):
            key = gt.random.split(key)[0]
        again = gt.nn.conv2d(x, gt.ones((8, 3, 3, 3))) * gt.random.normal(key, (2, 8, 30, 30))
    np.testing.assert_array_equal(np.asarray(expected), np.asarray(again))
