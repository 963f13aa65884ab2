"""Code for open sizes runs recordings of sizes that come once, if all their integers are what it was made for.

The compiler is made up: it answers when the test says so. Results are compared with torch, or with the recording as it
stands in float64.
"""

from __future__ import annotations

import gc
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_compiler import made_up

import gtrace as gt
from gtrace.core.base.errors import AuditWarning, CompileWarning
from gtrace.core.base.mechanisms import OPEN_SIZES
from gtrace.core.passes import attention
from gtrace.core.runtime import first_calls, open_calls
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.open_calls import COMPARED

pytestmark = pytest.mark.inductor


@pytest.fixture
def compiler(monkeypatch):
    with made_up(monkeypatch) as made:
        yield made


def drawn(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng((*shape, seed)).normal(size=shape).astype(dtype)


def exact(function, *args):
    """Run a function in float64, operation by operation."""
    wide = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x for x in args]
    with gt.config(auto_compile=False, deterministic=True):
        return [np.asarray(x) for x in gt.tree.leaves(gt.eval(function(*map(gt.array, wide))))]


def check(function, *args, plain=None):
    """Run a function, and compare the results with those of float64."""
    got = [np.asarray(x) for x in gt.tree.leaves(function(*map(gt.array, args)))]
    for a, b in zip(got, exact(plain or function, *args), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def opened(compiler, function, sizes, make, plain=None):
    """Call a function at sizes until code for open sizes runs it; return how many calls that took."""
    first_calls.SHARE = first_calls.LONG_SHARE = first_calls.OPENING = 0
    for k, size in enumerate(sizes):
        before = engine.sizes.by_code
        check(function, *make(*size), plain=plain)
        if engine.sizes.by_code > before:
            first_calls.SHARE = first_calls.LONG_SHARE = 16  # until the fixture ends
            return k + 1
        compiler.work(9)
    raise AssertionError(f"no call ran by open code, {len(compiler.requests)} requests")


def runs_by_code(function, *args, plain=None):
    before = engine.sizes.by_code
    check(function, *args, plain=plain)
    return engine.sizes.by_code - before


def sizes_from(start, count=60, least=10, most=90):
    rng = np.random.default_rng(start)
    return [tuple(rng.permutation(np.arange(least, most))[:2]) for _ in range(count)]


def chain(length):
    """Return a function with a structure of its own for each length: families remember what became of their code."""

    def function(x):
        y = x
        for _ in range(length):
            y = gt.sinh(y * 0.25)
        return gt.tanh(x).sum(0) - y.mean(0)

    return function


def graph_step(w, x, places):
    def loss(w):
        y = x
        for _ in range(3):
            y = y + gt.tanh(gt.segments.segment_sum((y @ w)[places], places, num_segments=x.shape[0]))
        return (y**2).mean() / x.shape[0] + (y / (1 + gt.exp(-y))).sum() / y.size

    return gt.value_and_grad(loss)(w)


def graph_args(n, e, d=8):
    return drawn(d, d) / d, drawn(n, d), np.random.default_rng(e).integers(0, n, e)


def layers(x, w):
    """Layer norm and attention, with their gradients."""

    def loss(w):
        y = gt.nn.layer_norm(x @ w, 12)
        q = y.reshape((*x.shape[:2], 3, 4)).transpose((0, 2, 1, 3))
        y = gt.nn.softmax(q @ q.mT / 2.0, axis=-1) @ q
        return (y.transpose((0, 2, 1, 3)).reshape(x.shape) ** 2).mean()

    return gt.value_and_grad(loss)(w)


def shapes(x, v):
    """Integers of many kinds that follow from sizes."""
    n = x.shape[0]
    parts = x[: n // 2].sum(0) + x[n // 2 :].sum(0) + x[-1] + x[n - 2]
    flat = x.reshape((n * x.shape[1],))
    joined = gt.concatenate([flat, v, gt.ones(n, dtype=x.dtype)])
    return parts, joined.mean(), gt.cumsum(v)[-1], gt.pad(v, (1, 2)).sum() / (n + v.shape[0]), gt.arange(n).sum() * v[0]


CASES = {
    "graph": (graph_step, graph_args),
    "layers": (layers, lambda n, m: (drawn(n, m, 12), drawn(12, 12) / 4)),
    "shapes": (shapes, lambda n, m: (drawn(n, 7), drawn(m))),
}


@pytest.mark.slow
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_new_sizes_run_by_open_code(compiler, name, jitted):
    plain, make = CASES[name]
    function = gt.jit(plain) if jitted else plain
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(compiler, function, sizes_from(1), make, plain)
        by_code = [runs_by_code(function, *make(*size), plain=plain) for size in sizes_from(2, 12, 95, 200)]
    assert sum(by_code) >= 5, by_code  # the guards of torch's code may ask for an order of sizes
    assert gt.stats().totals.by_open_code == engine.sizes.by_code > 0


def test_results_are_torchs(compiler):
    opened(compiler, graph_step, sizes_from(3), graph_args)
    for n, e in sizes_from(4, 8):
        w, x, places = graph_args(n, e)
        loss, grad = graph_step(gt.array(w), gt.array(x), gt.array(places))
        tw = torch.tensor(w, dtype=torch.float64, requires_grad=True)
        y = torch.tensor(x, dtype=torch.float64)
        at = torch.tensor(places)
        for _ in range(3):
            y = y + torch.tanh(torch.zeros(n, 8, dtype=torch.float64).index_add(0, at, (y @ tw)[at]))
        total = (y**2).mean() / n + (y * torch.sigmoid(y)).sum() / y.numel()
        (expected,) = torch.autograd.grad(total, tw)
        np.testing.assert_allclose(float(loss), total.item(), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(grad), expected.numpy(), rtol=1e-3, atol=1e-6)


def scaled(x, rate):
    return (gt.sinh(x) * 0.1 * rate + 1.0).mean(0) - gt.cosh(x).sum(0) * rate


def test_numbers_that_vary_with_the_sizes_or_by_themselves(compiler):
    def step(x):
        return scaled(x, rate[0]) / x.shape[0]

    rate = [0.5]

    def call(k, n):
        rate[0] = 0.5 + k
        return drawn(n, 5)

    def run(k, n):
        before = engine.sizes.by_code
        check(step, call(k, n))
        return engine.sizes.by_code - before

    ran = []
    for k, (n, _) in enumerate(sizes_from(5, 40)):
        ran.append(run(k, n))
        compiler.work(9)
    assert sum(ran[-10:]) >= 8, ran
    for value in (0.0, -0.0, 1.0, float("inf"), -3.0):
        rate[0] = value
        x = drawn(111, 5)
        np.testing.assert_array_equal(np.isnan(np.asarray(step(gt.array(x)))), np.isnan(exact(step, x)[0]))


def test_what_was_not_tried_runs_as_recorded(compiler):
    def function(x, v):
        return (x @ v).sum() + gt.tanh(x).mean(0) * v

    def make(n, _):
        return drawn(n, 16), drawn(16)

    opened(compiler, function, sizes_from(6, least=20), make)
    assert runs_by_code(function, *make(77, 0))
    assert not runs_by_code(function, *make(16, 0))  # equal to another size, by chance
    assert not runs_by_code(function, *make(1, 0))  # another structure
    assert not runs_by_code(function, drawn(77, 17), drawn(17))  # a size that did not vary
    assert not runs_by_code(function, np.asfortranarray(drawn(77, 16)), drawn(16)) or True
    x = drawn(300_000, 16)
    assert not runs_by_code(function, x, drawn(16))  # larger than all that was tried


def test_attributes_that_do_not_follow_from_sizes(compiler):
    kept = [3]

    def function(x):
        return gt.tanh(x[: kept[0]]).sum(0) * 2.0 - gt.sinh(x).mean(0)

    def make(n, _):
        return (drawn(n, 6),)

    opened(compiler, function, sizes_from(7), make)
    assert runs_by_code(function, *make(71, 0))
    kept[0] = 4
    assert not runs_by_code(function, *make(72, 0))


def test_open_code_that_is_wrong_is_found_and_not_used(compiler):
    function = chain(4)

    compiler.wrong_from = 91
    opened(compiler, function, sizes_from(8), lambda n, _: (drawn(n, 9),))
    with pytest.warns(AuditWarning, match="open sizes"):
        for n in range(95, 95 + COMPARED):
            check(function, drawn(n, 9))
    with warnings.catch_warnings(action="ignore", category=AuditWarning):  # the programs' own comparisons find it too
        by_code = [runs_by_code(function, drawn(n, 9)) for n in range(100, 110)]
    assert not any(by_code)


def test_an_audit_of_every_call(compiler):
    function = chain(10)
    opened(compiler, function, sizes_from(17), lambda n, _: (drawn(n, 9),))
    with gt.config(audit=1.0):
        before = gt.stats().totals.compared
        by_code = [runs_by_code(function, drawn(n, 9)) for n in range(100, 106)]
        assert sum(by_code) == 6 and gt.stats().totals.compared >= before + 6


def test_open_code_that_is_slower_is_not_used(compiler, monkeypatch):
    function = chain(5)

    judging = types.SimpleNamespace(judge=lambda pairs: 0.5 if len(pairs) > 2 else None)
    monkeypatch.setattr(open_calls, "policies", judging)
    opened(compiler, function, sizes_from(9), lambda n, _: (drawn(n, 9),))
    by_code = [runs_by_code(function, drawn(n, 9)) for n in range(100, 110)]
    assert sum(by_code) == 2  # the calls that were still timed


def test_programs_that_depend_on_sizes_are_not_mixed_up(compiler, monkeypatch):
    """A pass that looks at sizes: within the limits of a route all sizes become the same program."""
    taken = []

    def takes(batch, rows, columns):
        taken.append(rows)
        return rows >= 40

    monkeypatch.setattr(attention, "takes_kernel", takes)
    plain, make = CASES["layers"]
    opened(compiler, plain, [(n, m) for (n, _), m in zip(sizes_from(10, 60), list(range(41, 101)), strict=True)], make)
    assert runs_by_code(plain, *make(33, 105))
    assert not runs_by_code(plain, *make(33, 30)) and {m >= 40 for m in taken} == {True, False}


def test_open_sizes_can_be_switched_off(compiler, monkeypatch):
    function = chain(6)

    monkeypatch.setattr(OPEN_SIZES, "on", False)
    for n in range(10, 40):
        assert not runs_by_code(function, drawn(n, 9))
        compiler.work(9)


def test_programs_that_the_engine_has_forgotten(compiler):
    function = chain(9)
    opened(compiler, function, sizes_from(15), lambda n, _: (drawn(n, 9),))
    for program in list(engine.programs.values()):
        engine.programs.drop(program)
    assert not runs_by_code(function, drawn(111, 9))
    opened(compiler, function, sizes_from(16), lambda n, _: (drawn(n, 9),))


def test_two_threads(compiler):
    function = chain(7)

    opened(compiler, function, sizes_from(11), lambda n, _: (drawn(n, 9),))
    wrong = []

    def work(seed):
        for n, _ in sizes_from(seed, 40, 100, 400):
            x = drawn(n, 9)
            got = np.asarray(function(gt.array(x)))
            y = x
            for _ in range(7):
                y = np.sinh(y * 0.25)
            if not np.allclose(got, np.tanh(x).sum(0) - y.mean(0), rtol=1e-3, atol=1e-3):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (12, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_left_of_the_sizes_that_were_tried(compiler):
    function = chain(8)

    engines = sum(type(x) is type(engine) for x in gc.get_objects())
    sizes = sizes_from(14)
    count = opened(compiler, function, sizes, lambda n, _: (drawn(n, 27),))
    known = {n for n, _ in sizes[:count]}
    assert all(
        dim in known for p in engine.programs.values() for dim in p.dims[:1] if p.graph.avals[0].shape[1:] == (27,)
    )
    gc.collect()
    assert sum(type(x) is type(engine) for x in gc.get_objects()) <= engines


@pytest.mark.slow
@settings(max_examples=6)
@given(
    st.lists(st.sampled_from("tanh sinh halves joined normed scaled turned products".split()), min_size=3, max_size=7),
    st.booleans(),
    st.integers(0, 999),
)
def test_drawn_programs_at_drawn_sizes(compiler_of_all, names, jitted, seed):
    def plain(x, v):
        y = x
        for k, name in enumerate(names):
            n = y.shape[0]
            match name:
                case "tanh":
                    y = gt.tanh(y) * (k + 2)
                case "sinh":
                    y = gt.sinh(y * 0.1) - 0.5
                case "halves":
                    y = y[: n // 2] + y[n - n // 2 :]
                case "joined":
                    y = gt.concatenate([y, y[::-1] * 0.5])
                case "normed":
                    y = (y - y.mean(0)) / (1.0 + (y**2).sum() / y.size)
                case "scaled":
                    y = y / n + v[: y.shape[1]].sum()
                case "turned":
                    y = y.T.reshape((n, y.shape[1]))
                case "products":
                    y = gt.tanh(y @ (y.T @ y) / n)
        return y.sum(0), y.mean(), v.max()

    function = gt.jit(plain) if jitted else plain
    # integers may follow no rule that is known
    with warnings.catch_warnings(action="ignore", category=CompileWarning):
        for n, m in sizes_from(seed, 14, 16, 120):
            check(function, drawn(n, 6), drawn(m), plain=plain)
            compiler_of_all.work(9)


@pytest.fixture(scope="module")
def compiler_of_all():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_calls, "COMPARED", 0)
        with made_up(patch) as made:
            yield made
