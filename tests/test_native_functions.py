"""Short programs as C++: each loop nest is a function, and those that differ in sizes and operands alone are one."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.native.generator import generate
from gtrace.core.backends.native.library import RefusedError, build, load
from gtrace.core.passes.canonical import canonicalize

pytestmark = pytest.mark.native

SHAPES = [(7,), (64,), (3, 5), (300, 1000), (1,), (2, 3, 4), (33, 1, 2)]
"""One is shared by threads, and one is a number."""


def program_of(function, tensors):
    """Return the graph of a function of Arrays, and its inputs."""
    canonical = canonicalize(gt.make_graph(function)(*map(gt.from_torch, tensors)))
    return canonical.graph, [tensors[k] for k in canonical.inputs]


def functions(graph):
    """Return how many functions the C++ of a program has for its loops, and how often they are called."""
    text = generate(graph).text
    made, calls = (re.findall(rf"^{before}loops\d+\(", text, re.MULTILINE) for before in ("static .* ", "  "))
    return len(made), len(calls)


def errors(graph, tensors, folder):
    """Return of each result how far native code is from the interpreter, as a part of 1 and the value."""
    pairs = zip(load(build(graph, folder), "process").run(tensors), interpreter(graph)(tensors), strict=True)
    found = []
    for got, want in pairs:
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        found.append(float(((got - want).abs() / (1 + want.abs())).max()))
    return found


def adam(rate, beta, state):
    """Step for all parameters, with the formulas of each in an order and with factors of its own."""
    new = []
    for k, (p, m, v, g) in enumerate(state):
        m = beta * m + (1 - beta) * g if k % 2 else g * (1 - beta) + m * beta
        v = 0.999 * v + 0.001 * g * g if k % 3 else g * (g * 0.001) + v * 0.999
        step = rate * m / (gt.sqrt(v) + 1e-8)
        new.append((p - step, m, v))
    return new


def test_updates_of_parameters_are_one_function(tmp_path):
    torch.manual_seed(0)
    tensors = [torch.rand(shape) for shape in SHAPES for _ in range(4)]

    def step(rate, beta, *arrays):
        return adam(rate, beta, [arrays[k : k + 4] for k in range(0, len(arrays), 4)])

    given = [torch.tensor(0.1), torch.tensor(0.9), *tensors]
    graph, inputs = program_of(step, given)
    made, calls = functions(graph)
    # that of the large parameter, which threads share, is one by itself, and so are copies of numbers to memory
    assert made == 3 and calls == len(SHAPES) - 1 + 3
    assert all(error <= 1e-6 for error in errors(graph, inputs, tmp_path))


def test_layers_are_compiled_once():
    def network(depth):
        def loss(x, *weights):
            for w in weights:
                x = gt.tanh(x @ w)
            return (x**2).sum()

        places = tuple(range(1, depth + 1))
        return functions(program_of(gt.grad(loss, places), [torch.ones(32, 32) for _ in range(depth + 1)])[0])

    few, many = network(4), network(12)
    assert many[0] == few[0] and many[1] >= few[1] + 8 * 3


@pytest.mark.slow
def test_long_chains(tmp_path):
    """Of more operations than Python's calls may be deep."""

    def run(x, y):
        for k in range(600):
            x, y = 0.5 * x + y * (k % 7), y - 0.25 * x if k % 3 else y * 0.5
        return x, y

    graph, inputs = program_of(run, [torch.rand(9), torch.rand(9)])
    assert len(graph.nodes) > 1500
    assert all(error <= 1e-5 for error in errors(graph, inputs, tmp_path))


def test_refusals_come_out_of_functions(tmp_path):
    def run(i, j):
        return i // j, i[:2] % j[:2]

    few = torch.tensor([7, -4, -5]), torch.tensor([2, 3, 3])
    for k, (i, j) in enumerate((few, [x.repeat(100_000) for x in few])):  # threads share the second
        folder = tmp_path / str(k)
        folder.mkdir()
        made = load(build(gt.make_graph(run)(gt.from_torch(i), gt.from_torch(j)), folder), "process")
        for got, want in zip(made.run([i, j]), (i // j, i[:2] % j[:2]), strict=True):
            assert torch.equal(got, want)
        for place in (0, len(j) - 1):
            zero = j.clone()
            zero[place] = 0
            with pytest.raises(RefusedError):
                made.run([i, zero])


SIZES = st.integers(1, 40)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(rows=SIZES, inner=SIZES, columns=SIZES, turned=st.tuples(st.booleans(), st.booleans()), many=st.integers(1, 3))
def test_products_of_several_shapes_share_their_tiles(tmp_path_factory, rows, inner, columns, turned, many):
    """Rows and columns left over of a tile, columns that are copied, and products that are added to others."""
    torch.manual_seed(rows)
    scales = [1, 7, 11]
    tensors = []
    for scale in scales[:many]:
        x, y = torch.randn(rows, inner * scale), torch.randn(inner * scale, columns * scale)
        tensors += [x.t().contiguous() if turned[0] else x, y.t().contiguous() if turned[1] else y]

    def run(*arrays):
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        return [(x.T if turned[0] else x) @ (y.T if turned[1] else y) for x, y in pairs]

    graph = gt.make_graph(run)(*map(gt.from_torch, tensors))
    found = errors(graph, tensors, tmp_path_factory.mktemp("products"))
    assert len(found) == many and all(error <= 1e-4 for error in found)
