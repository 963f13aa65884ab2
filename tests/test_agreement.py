"""Agreement of a program's forms with its reference: rounding never raises an alarm, and anything else does."""

from __future__ import annotations

import threading
import time
import warnings

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.executable import interpreted
from gtrace.core.backends.interpreter.noise import with_noise
from gtrace.core.backends.interpreter.reference import in_float64, reference
from gtrace.core.backends.native import library
from gtrace.core.runtime import agreement, comparisons, programs
from gtrace.core.runtime import engine as engine_module
from gtrace.core.runtime.agreement import disagreement
from gtrace.testing import arguments, graphs


@pytest.fixture(autouse=True)
def without_a_store():
    """What one test has found out, another one does not know."""
    gt.config.update(cache_size=0)


def drawn(*shape, seed=0, spread=1.0):
    """Normal numbers whose rows have magnitudes of their own."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** (spread * torch.randn(shape[0], *[1] * (len(shape) - 1), generator=generator))
    return torch.randn(shape, generator=generator) * scale


def adam(decay):
    def step(p, g, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p * (1 - decay) - 1e-3 * (m / 0.1) / (gt.sqrt(v / 0.001) + 1e-8), m, v

    return step


def compared(function, form, *tensors):
    """What is found wrong with a function that runs in place of another one."""
    arrays = [gt.from_torch(x) for x in tensors]
    graph, other = gt.make_graph(function)(*arrays), gt.make_graph(form)(*arrays)
    return disagreement(graph, tensors, reference(graph)(tensors), reference(other)(tensors))


X, Y = drawn(48, 40), drawn(40, 48, seed=1)
ZEROS = torch.zeros(48, 40)
STATE = (X, drawn(48, 40, seed=2, spread=3.0), ZEROS, ZEROS)

WRONG = {
    "a decay of 1e-5 that every element lost": (adam(1e-5), adam(0.0), STATE),
    "a bias correction": (adam(0.0), lambda p, g, m, v: adam(0.0)(p, g * 1.00001, m, v), STATE),
    "a row that is another one's": (
        lambda x, y: x @ y, lambda x, y: gt.concat([(x @ y)[:7], (x @ y)[8:9], (x @ y)[8:]]), (X, Y),
    ),
    "an element of a mask": (
        lambda x: x > 0.1, lambda x: (x > 0.1) ^ (gt.arange(40) + 40 * gt.arange(48)[:, None] == 3), (X,),
    ),
    "an index": (lambda x: gt.argmax(x, axis=1), lambda x: gt.argmin(x, axis=1), (X,)),
    "a term of a sum": (lambda x: x.sum(0), lambda x: x[1:].sum(0), (X,)),
    "a term of a mean in float64": (lambda x: x.mean(0), lambda x: x.mean(0) + 1e-9, (X.double(),)),
    "a NaN": (lambda x: gt.log(x), lambda x: gt.log(gt.abs(x)), (X,)),
    "a factor in bfloat16": (lambda x: x * 1.5 + 1, lambda x: x * 1.55 + 1, (X.bfloat16(),)),
    "a small element beside large ones": (
        lambda x: x * x, lambda x: gt.where(gt.abs(x) < 1e-2, x * x * 1.001, x * x), (X,),
    ),
    "a small element of few": (
        lambda x: gt.exp(x), lambda x: gt.where(x < -9, 2 * gt.exp(x), gt.exp(x)),
        (torch.tensor([0.3, -20.0, 0.7, 1.1]),),
    ),
    "large elements beside infinite ones": (
        lambda x: 1 / x, lambda x: gt.where((x > 0) & (x < 0.2), 1.001 / x, 1 / x),
        (torch.cat([torch.linspace(0.1, 4, 200), torch.zeros(2)]),),
    ),
    "a row's largest element": (lambda x: x.max(1), lambda x: x.max(1) + 1e-9, (X.double(),)),
    "a count": (lambda x: (x > 0).astype(gt.float32).sum(1) > 20, lambda x: (x > 0).sum(1) >= 20, (X,)),
    "a rounding to bfloat16": (
        lambda x: x - x.astype(gt.bfloat16).astype(gt.float32), lambda x: x * 0, (X,),
    ),
    "a rounding to float16 of what is rounded": (
        lambda x: (x * 0.3).astype(gt.float16).astype(gt.float32), lambda x: x * 0.3, (X,),
    ),
    "a rounding to float32": (lambda x: x.astype(gt.float32).astype(gt.float64), lambda x: x, (X.double() / 3,)),
    "a number that torch rounds to bfloat16": (
        gt.lift(lambda x: torch.fmod(x, 1.7)), gt.lift(lambda x: torch.fmod(x.float(), 1.7).bfloat16()),
        (torch.tensor([1.703125, -1.703125]).bfloat16(),),
    ),
    "a conjugate": (lambda x: x * 2, lambda x: gt.conj(x) * 2, (torch.complex(X, X.flip(0)),)),
    "a loop's last step": (
        lambda x: gt.fori_loop(0, 5, lambda i, c: gt.sin(c) * 1.1, x),
        lambda x: gt.fori_loop(0, 4, lambda i, c: gt.sin(c) * 1.1, x), (X,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_form_that_computes_something_else_disagrees(name):
    function, form, tensors = WRONG[name]
    assert compared(function, form, *tensors).startswith("result ")
    assert not compared(function, function, *tensors)


TIES = torch.tensor([[0.1, 0.2, 0.3], [0.6, 0.5, 0.4]]).repeat(40, 1)
HALF = torch.linspace(-2, 2, 1001)

ROUNDED = {
    "sums that cancel": (lambda x: (x - x.mean(0)).sum(0), lambda x: x.sum(0) - x.shape[0] * x.mean(0), (X,)),
    "a sum in another order": (lambda x: x.sum(), lambda x: x.T.sum(0).sum(), (drawn(300, 300),)),
    "products in another order": (lambda x, y: (x @ y) @ x, lambda x, y: x @ (y @ x), (X, Y)),
    "arg-max of near ties": (
        lambda x: gt.argmax(x.sum(1, keepdims=True) - x * 0, axis=1),
        lambda x: gt.argmax((x[:, ::-1]).sum(1, keepdims=True) + x * 1e-9, axis=1), (TIES,),
    ),
    "rows chosen by near ties": (
        lambda x: x[gt.argmax((x * 0.1).sum(1) * 10)], lambda x: x[gt.argmax(x[:, ::-1].sum(1))], (TIES,),
    ),
    "comparisons of rounded values": (lambda x: x * 0.1 * 3 > x * 0.3, lambda x: x * 0.3 > x * 0.3, (X,)),
    "roundings to integers": (lambda x: gt.floor(x * 0.1 * 10), lambda x: gt.floor(x), (HALF.round(decimals=1),)),
    "softmax of huge scores": (
        lambda x: gt.nn.softmax(x * 1e4, axis=-1),
        lambda x: gt.exp(x * 1e4 - gt.max(x * 1e4, axis=-1, keepdims=True) - gt.log(
            gt.exp(x * 1e4 - gt.max(x * 1e4, axis=-1, keepdims=True)).sum(-1, keepdims=True))), (X,),
    ),
    "bfloat16 kept in float32": (
        lambda x: gt.sin(x * 1.3) * x + 0.7,
        lambda x: (gt.sin(x.astype(gt.float32) * 1.3) * x.astype(gt.float32) + 0.7).astype(gt.bfloat16),
        (X.bfloat16(),),
    ),
    "what is rounded to bfloat16 in the end": (
        lambda x, y: ((x @ y) @ x).astype(gt.bfloat16).astype(gt.float32) * 2,
        lambda x, y: (x @ (y @ x)).astype(gt.bfloat16).astype(gt.float32) * 2, (X, Y),
    ),
    "float16 that overflows midway": (
        lambda x: (x * 300) * 0.01, lambda x: (x.astype(gt.float32) * 3).astype(gt.float16), (HALF.half() * 200,),
    ),
    "a variance of equal numbers": (
        lambda x: (x - x.mean(-1, keepdims=True)) / gt.sqrt(x.var(-1, keepdims=True) + 1e-12),
        lambda x: x * 0, (torch.full((4, 7), 0.1),),
    ),
    "a deviation of equal numbers whose mean is exact by chance": (
        lambda x: x.std(1), lambda x: x.std(1) + 2.0**-25, (torch.full((4, 200), 0.1),),
    ),
    "equal numbers minus their mean, which is exact by chance": (
        lambda x: (x - x.mean(-1, keepdims=True)) / gt.sqrt(x.var(-1, keepdims=True) + 1e-12),
        lambda x: x * 0 + 0.1, (torch.full((4, 200), 0.3),),
    ),
    "a norm of columns of whole numbers, multiplied first": (
        lambda x: (x - x.mean(0)) * gt.rsqrt(x.var(0) + 1e-5),
        lambda x: x * gt.rsqrt(x.var(0) + 1e-5) - x.mean(0) * gt.rsqrt(x.var(0) + 1e-5),
        (torch.full((6, 40), 3.0) * torch.arange(40) + torch.tensor([[1.0], [-1.0]]).repeat(3, 1) * (X[:1] > 0),),
    ),
    "what is too small for all its digits": (
        lambda x: x * 1e-200 * 1e-116 * 1e4, lambda x: x * 1e-200 * 1e-112, (HALF.double() + 3,),
    ),
    "a root of what rounding makes negative": (
        lambda x: gt.sqrt((x * x).mean(0) - x.mean(0) ** 2), lambda x: x.std(0), (torch.full((7, 3), 0.1),),
    ),
    "a recurrence that amplifies": (
        lambda x: gt.fori_loop(0, 40, lambda i, c: 3.9 * c * (1 - c), x),
        lambda x: gt.fori_loop(0, 40, lambda i, c: 3.9 * (c - c * c), x), (torch.rand(50),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_a_form_that_rounds_otherwise_agrees(name):
    function, form, tensors = ROUNDED[name]
    assert not compared(function, form, *tensors)


@settings(max_examples=40)
@given(graphs(max_nodes=8), st.data())
def test_results_that_were_rounded_otherwise_agree(graph, data):
    tensors = [x.to_torch() for x in data.draw(arguments(graph))]
    expected = reference(graph)(tensors)
    exact = [x.to(y.dtype) for x, y in zip(in_float64(graph)(tensors), expected, strict=True)]
    for got in (exact, with_noise(graph, 1000)(tensors), with_noise(graph, 1001)(tensors)):
        assert not disagreement(graph, tensors, expected, got)


class Lying:
    """Simplifies programs, and loses all but the first operation of those that end in an addition."""

    def __init__(self, simplified):
        self.simplified = simplified

    def run(self, graph):
        if [node.op.name for node in graph.nodes] == ["mul", "add"]:
            first = graph.nodes[0]
            graph = attrs.evolve(graph, nodes=(first,), outputs=(first.out,))
        return self.simplified.run(graph)


@pytest.mark.parametrize("jitted", [False, True])
def test_a_wrong_rewriting_is_not_used_for_the_recording_and_changes_no_other_one(jitted, monkeypatch):
    gt.eval(gt.ones(2) * 2)  # nothing of other tests is pending
    monkeypatch.setattr(engine_module, "SIMPLIFIED", Lying(engine_module.SIMPLIFIED))
    x = torch.arange(5.0)
    wrong, right = lambda x: x * 2.25 + 1, lambda x: x * 2.25  # these become one program
    if jitted:
        wrong, right = gt.jit(wrong), gt.jit(right)
    with pytest.warns(gt.AuditWarning, match="was rewritten into a wrong one") as caught:
        for _ in range(3):
            assert torch.equal(wrong(gt.from_torch(x)).to_torch(), x * 2.25 + 1)
            assert torch.equal(right(gt.from_torch(x)).to_torch(), x * 2.25)
    assert len(caught) == 1


def test_two_threads_that_find_one_fault_warn_once(monkeypatch):
    both = threading.Barrier(2, timeout=20)

    def lying(*args):
        made = interpreted(*args)

        def run(tensors):
            both.wait()
            return [x + 1 for x in made.run(tensors)]

        return attrs.evolve(made, run=run)

    monkeypatch.setattr(programs, "interpreted", lying)
    x, got = torch.arange(7.0), []

    def call():
        got.append((gt.sin(gt.from_torch(x)) * 3.5).to_torch())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert [torch.equal(y, torch.sin(x) * 3.5) for y in got] == [True, True]
    assert [w.category for w in caught] == [gt.AuditWarning]


def test_a_reference_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(comparisons, "PATIENCE", 0.0)
    monkeypatch.setattr(comparisons, "LOOP_TIMES", 0.0)
    x, before = torch.rand(9), gt.stats().totals

    def loop(x):
        return gt.fori_loop(0, 50, lambda i, c: gt.tanh(c * 1.375 + i), x)

    for _ in range(3):
        gt.eval(loop(gt.from_torch(x)))
    after = gt.stats().totals
    assert (after.compared - before.compared, after.not_compared - before.not_compared) == (0, 1)
    with gt.config(audit=1.0):
        gt.eval(loop(gt.from_torch(x)))
    assert gt.stats().totals.compared > after.compared


def test_results_are_looked_at_block_by_block(monkeypatch):
    monkeypatch.setattr(agreement, "BLOCK", 16)
    assert not compared(lambda x, y: (x @ y).T, lambda x, y: y.T @ x.T, X, Y)
    assert compared(lambda x: x * 2, lambda x: gt.concat([x[:-1] * 2, x[-1:] * 2.0001]), X)


@pytest.mark.slow
@pytest.mark.native
def test_the_time_that_a_reference_may_take_is_ten_calls_without_their_compile(monkeypatch):
    took = []
    build, compared = library.build, comparisons.Comparisons._compared

    def slow_build(graph, folder):
        time.sleep(3)
        return build(graph, folder)

    def noted(self, name, graph, reference, inputs, results, seconds, *rest):
        took.append(seconds)
        return compared(self, name, graph, reference, inputs, results, seconds, *rest)

    monkeypatch.setattr(library, "build", slow_build)
    monkeypatch.setattr(comparisons.Comparisons, "_compared", noted)
    with gt.config(compile=True):
        x = gt.linspace(0.5, 1, 11)
        y = gt.fori_loop(0, 9, lambda i, c: gt.sin(c) * 1.0625 + i, x)
        gt.eval(gt.einsum("ij,jk->ik", y[:, None], y[None]))
    assert took and 0 < max(took) < 2
