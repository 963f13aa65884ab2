"""Every operation that native loops have, against the interpreter: the registry's samples in several dtypes, and with
NaN, infinities and signed zeros."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.native.block import EMITTERS
from gtrace.core.backends.native.generator import generate, loop_graph, of_open_length
from gtrace.core.backends.native.library import build, load
from gtrace.core.backends.native.values import UnsupportedLoopError
from gtrace.core.ir.graph import Graph, Node
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.simplify import dce
from gtrace.core.ir.subgraph import subgraph
from gtrace.core.passes.whole_program import SIMPLIFIED
from gtrace.errors import GtraceError
from gtrace.testing import assert_close

pytestmark = pytest.mark.native

EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 100.0, -100.0, np.inf, -np.inf, np.nan)
PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
WITH_EDGES = (torch.float32, torch.bfloat16, torch.int32, torch.int8)
PLACES = {"index", "index_put", "gather", "scatter_add", "one_hot"}
"""Operations whose integer operands are places, and stay as they are."""

UNORDERED = {"einsum": "infinities of both signs add up in another order", "gelu": "torch gives gelu(inf) = nan"}
BODIES = {"scan", "while_loop", "switch", "checkpoint", "rematerialize", "custom_call", "named_call", "project"}
CPP = {name for name, op in REGISTRY.items() if op.rules.cpp}
CLAIMED = sorted((CPP | {*EMITTERS}) - BODIES - {"aten"})  # of torch's operators norms, which have a test below
BATCHES = 32
"""Each is one program: 50 cases take g++ a second, and 200 of them ten."""


def as_scan(graph: Graph) -> Graph:
    """One step of a scan whose constants are the inputs of a graph, and whose outputs are its outputs."""
    body, count = subgraph(graph), len(graph.inputs)
    instr = REGISTRY["scan"].instr((body, 1, False, count, 0), graph.avals)
    return of_open_length(loop_graph(Node(instr, tuple(range(count)), count))[0])


def converted(x: torch.Tensor, dtype: torch.dtype, edges: bool, shift: int) -> torch.Tensor:
    if not edges:
        return x.to(dtype)
    values = [v for v in EDGES if dtype.is_floating_point or np.isfinite(v)]
    return torch.from_numpy(np.resize(np.roll(values, shift), x.shape)).to(dtype)


def variants(name, sample, first):
    """Yield (graph, inputs, expected) of one sample, in the dtypes that the operation takes."""
    leaves, structure = gt.tree.flatten((list(sample.args), dict(sample.kwargs)))
    places = [k for k, x in enumerate(leaves) if isinstance(x, np.ndarray) and x.size]
    kinds = [(d, False) for d in (PLAIN if first else PLAIN[1:2])]
    if first and name not in PLACES and name not in UNORDERED:
        kinds += [(d, True) for d in WITH_EDGES]

    def run(*arrays):
        filled = list(leaves)
        for k, x in zip(places, arrays, strict=True):
            filled[k] = x
        args, kwargs = structure.unflatten(filled)
        return REGISTRY[name].cases.user(*args, **kwargs)

    for dtype, edges in kinds if places else ():
        tensors = []
        for k in places:
            x = torch.from_numpy(np.ascontiguousarray(leaves[k]))
            keep = x.is_complex() or (not x.is_floating_point() and (name in PLACES or dtype.is_floating_point))
            tensors.append(x if keep else converted(x, dtype, edges, 5 * k))
        try:
            graph = dce(gt.make_graph(run)(*[gt.from_torch(x) for x in tensors]))
            if len(graph.inputs) != len(tensors):
                continue  # it makes arrays of its own
            expected = interpreter(graph)(tensors)
        except (GtraceError, RuntimeError, TypeError):
            continue  # the operation does not take this dtype
        agrees = all(y.dtype is a.dtype for y, a in zip(expected, graph.out_avals, strict=True))
        if agrees and any(node.op.name == name for node in graph.nodes):
            yield graph, tensors, expected


@functools.cache
def cases():
    """Return every case that the generator accepts, by the name of its operation."""
    found = {name: [] for name in CLAIMED}
    for name in CLAIMED:
        for k, sample in enumerate(REGISTRY[name].cases.samples()):
            for case in variants(name, sample, k == 0):
                try:
                    generate(as_scan(case[0]))
                except UnsupportedLoopError:
                    continue
                found[name].append(case)
    return found


def joined(graphs):
    """Return one graph that computes all of them."""
    inputs, avals, nodes, outputs = [], [], [], []
    fresh = 0
    for graph in graphs:
        names = {value: fresh + k for k, value in enumerate(graph.inputs)}
        fresh += len(graph.inputs)
        inputs += [names[value] for value in graph.inputs]
        avals += graph.avals
        for node in graph.nodes:
            ins = tuple(names[x] if isinstance(x, int) else x for x in node.ins)
            names[node.out] = fresh
            nodes.append(Node(node.instr, ins, fresh))
            fresh += 1
        outputs += [names[value] for value in graph.outputs]
    return Graph(tuple(inputs), tuple(avals), tuple(nodes), tuple(outputs))


@pytest.mark.slow
def test_every_operation_that_is_claimed_has_a_case():
    assert not [name for name, found in cases().items() if not found and name not in {"arange", "full"}]


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_operations_agree_with_the_interpreter(batch, tmp_path):
    mine = [(name, *case) for name in CLAIMED[batch::BATCHES] for case in cases()[name]]
    graph = as_scan(joined([graph for _, graph, _, _ in mine]))
    run = load(build(graph, tmp_path), "process").run
    results = iter(run([*[x for _, _, inputs, _ in mine for x in inputs], torch.tensor(1)]))
    for name, graph, inputs, expected in mine:
        for y in expected:
            out = next(results)[0]
            what = f"{name}\n{graph}\n{inputs}\nexpected {y}\ngot {out}"
            assert out.dtype is y.dtype and out.shape == y.shape, what
            if not y.dtype.is_floating_point:
                assert torch.equal(out, y), what
                continue
            eps = torch.finfo(y.dtype).eps
            assert torch.allclose(out, y, rtol=16 * eps, atol=4 * eps, equal_nan=True), what
            zero = (y == 0) & (out == 0)
            assert torch.equal(out[zero].signbit(), y[zero].signbit()), what


NORMS = {
    "all": lambda norm, x, w, b: gt.value_and_grad(lambda *a: norm(*a), (0, 1, 2))(x, w, b),
    "the array's": lambda norm, x, w, b: gt.grad(lambda x: norm(x, w, b))(x),
    "the vectors'": lambda norm, x, w, b: gt.grad(lambda w, b: norm(x, w, b), (0, 1))(w, b),
    "no vectors": lambda norm, x, w, b: gt.value_and_grad(lambda x: norm(x, None, None))(x),
    "no bias": lambda norm, x, w, b: gt.value_and_grad(lambda x, w: norm(x, w, None), (0, 1))(x, w),
    "forward": lambda norm, x, w, b: norm(x, w, b),
}


def layer_norms(shape, dtype):
    """Return a graph for each of `NORMS`, and the inputs of each."""
    torch.manual_seed(0)
    x, c = torch.randn(shape, dtype=dtype) * 3 + 1, torch.randn(shape, dtype=dtype)
    w, b = torch.randn(shape[-1], dtype=dtype), torch.randn(shape[-1], dtype=dtype)
    graphs, tensors = [], [x, w, b, c]
    for function in NORMS.values():

        def run(x, w, b, c, function=function):
            def norm(x, w, b):
                middle = x.mean(-1, keepdims=True)
                y = (x - middle) / gt.sqrt(((x - middle) ** 2).mean(-1, keepdims=True) + 1e-5)
                y = y if w is None else y * w
                return ((y if b is None else y + b) * c).sum()

            return function(norm, x, w, b)

        graphs.append(SIMPLIFIED.run(gt.make_graph(run)(*map(gt.from_torch, tensors))))
    assert sum(node.op.name == "aten" for graph in graphs for node in graph.nodes) >= 6
    return graphs, tensors


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shapes", [[(7, 5), (4, 3, 16)], [(3, 130), (40, 64)]], ids=str)
def test_layer_norms_agree_with_the_interpreter(shapes, dtype, tmp_path):
    """Those that are written out, as programs have them: torch's operator and its gradient, or of some the formulas."""
    made = {shape: layer_norms(shape, dtype) for shape in shapes}
    cases = [(shape, name, graph, xs) for shape, (graphs, xs) in made.items()
             for name, graph in zip(NORMS, graphs, strict=True)]  # fmt: skip
    library = build(joined([graph for *_, graph, _ in cases]), tmp_path)
    found = iter(load(library, "process").run([x for *_, xs in cases for x in xs]))
    for shape, name, graph, xs in cases:
        for want in interpreter(graph)(xs):
            scale = float(want.abs().max()) + 1e-30
            assert (next(found) - want).abs().max() <= 64 * torch.finfo(dtype).eps * scale, (shape, name)


def test_places_outside_are_left_out(tmp_path):
    x, u = torch.randn(5, 3), torch.randn(4, 3)
    places = torch.tensor([1, -5, 7, 1])

    def run(x, u, places):
        return x.at[places].add(u), x.at[places].set(u)

    graph = dce(gt.make_graph(run)(*map(gt.from_torch, (x, u, places))))
    assert [node.attributes["loose"] for node in graph.nodes if node.op.name == "index_put"] == [(True,), (True,)]
    added, put = load(build(graph, tmp_path), "process").run([x, u, places])
    expected = x.clone()
    expected[1] += u[0] + u[3]
    expected[0] += u[1]
    assert_close(added, expected)
    last = x.clone()
    last[1], last[0] = u[3], u[1]
    assert torch.equal(put, last)


SIZES = [((2, 64, 64, 32), 2), ((3, 70, 70, 24), 3), ((2, 64, 80, 16), 1), ((1, 65, 65, 33), 3)]


def attention_with_gradients(sizes, heads, causal, dtype):
    """Return a graph and its inputs."""
    batch, long, many, wide = sizes
    torch.manual_seed(0)
    q, c = (torch.randn(batch, long, wide, dtype=dtype) for _ in range(2))
    k, v = (torch.randn(batch, many, wide, dtype=dtype) for _ in range(2))

    def attention(q, k, v):
        q, k, v = (x.reshape(*x.shape[:2], heads, wide // heads).transpose(0, 2, 1, 3) for x in (q, k, v))
        scores = gt.einsum("bhid,bhjd->bhij", q, k) * 0.3
        if causal:
            scores = gt.where(gt.tril(gt.ones((long, long), dtype=bool)), scores, -float("inf"))
        return (gt.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(batch, long, wide)

    def run(q, k, v, c):
        out, pullback = gt.vjp(attention, q, k, v)
        return out, pullback(c)

    return SIMPLIFIED.run(gt.make_graph(run)(*map(gt.from_torch, [q, k, v, c]))), [q, k, v, c]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_attention_agrees_with_the_interpreter(dtype, tmp_path):
    """That is written out by axes in any order, as it is in programs: torch's operator and its gradient."""
    # a causal mask is of queries and keys at the same places
    drawn = [(*case, causal) for case in SIZES for causal in (False, True) if not causal or case[0][1] == case[0][2]]
    cases = [attention_with_gradients(*case, dtype) for case in drawn]
    library = build(joined([graph for graph, _ in cases]), tmp_path)
    found = iter(load(library, "process").run([x for _, tensors in cases for x in tensors]))
    for case, (graph, tensors) in zip(drawn, cases, strict=True):
        if dtype is torch.float32:
            assert sum(node.op.name == "aten" for node in graph.nodes) == 2, case
        for k, want in enumerate(interpreter(graph)(tensors)):
            error = float((next(found) - want).abs().max())
            assert error <= 256 * torch.finfo(dtype).eps * float(want.abs().max()), (case, f"output {k}")


@pytest.mark.parametrize("settings", [{"attn_mask": True}, {"long": 200}, {"dtype": torch.bfloat16}], ids=str)
def test_other_attention_is_torchs(settings, tmp_path):
    long, dtype = settings.pop("long", 64), settings.pop("dtype", torch.float32)
    q = torch.randn(1, 2, long, 16, dtype=dtype)
    mask = torch.randn(long, long) if settings.pop("attn_mask", False) else None
    call = gt.lift(torch.nn.functional.scaled_dot_product_attention)
    graph = gt.make_graph(lambda q: call(q, q, q, attn_mask=mask, **settings))(gt.from_torch(q))
    with pytest.raises(UnsupportedLoopError):
        build(SIMPLIFIED.run(graph), tmp_path)
