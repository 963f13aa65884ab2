"""Loops compiled as a whole: random bodies against the interpreter, any length, interrupts, errors, the store."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.executable import Compiled
from gtrace.core.backends.executable import interpreted as whole
from gtrace.core.backends.native import generator, library
from gtrace.core.backends.scheduler import Scheduler
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.runtime import observed_calls
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.policy import CostModel
from gtrace.core.runtime.worker.client import worker
from gtrace.testing import arguments, as_function, assert_close, count_compiles, graphs

pytestmark = pytest.mark.native


@pytest.fixture
def builds(monkeypatch):
    """The loops that the C++ compiler was run for."""
    found, original = [], library.build
    monkeypatch.setattr(library, "build", lambda graph, folder: found.append(graph) or original(graph, folder))
    return found


def interpreted(f, *args):
    with gt.config(auto_compile=False):
        return gt.eval(f(*args))


def natively(f, *args):
    """Run a function with its loops compiled as a whole, and the rest interpreted: Inductor would take long."""
    traced = gt.jit(f).trace(*args)
    form = canonicalize(traced.graph)
    given = [x.to_torch() for x in (*gt.tree.leaves(list(args)), *traced.constants)]
    tensors = [given[k] for k in form.inputs]
    schedule = Scheduler("inductor", "default", 1).schedule(form.graph, [t.stride() for t in tensors])
    with tempfile.TemporaryDirectory() as folder:
        results = {}
        for k, request in enumerate(schedule.requests):
            executable = whole(request.graph, request.strides)
            if request.native:
                own = Path(folder) / str(k)
                own.mkdir()
                executable = library.load(library.build(request.graph, own), "process")
            results[request] = Compiled(executable)
        outs = schedule.build(results)(tensors)
    return [outs[k] if k >= 0 else given[-1 - k] for k in form.outputs]


def close(got, expected, rtol=1e-9, atol=1e-11):
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


# -- values


@pytest.mark.slow
@settings(max_examples=10)
@given(graphs(8, smooth=True, control=True), st.integers(0, 50), st.booleans(), st.sampled_from([0, 64]), st.data())
def test_random_bodies_with_their_derivatives(graph, length, reverse, many, data):
    """Any program as a body, with loops and branches in it: some inputs are carried, some are read step by step."""
    body, inputs = as_function(graph), len(graph.inputs)
    carried = data.draw(st.lists(st.booleans(), min_size=inputs, max_size=inputs))
    values = data.draw(arguments(graph))
    init = [x for x, flag in zip(values, carried, strict=True) if flag]
    xs = [gt.stack([x * (0.5 + t / 50) for t in range(length)]) if length else gt.zeros((0, *x.shape), dtype=x.dtype)
          for x, flag in zip(values, carried, strict=True) if not flag]  # fmt: skip

    def run(init, xs):
        def step(carry, x):
            own, given = iter(carry), iter(x)
            outs = body(*[next(own if flag else given) for flag in carried])
            mixed = sum((gt.tanh(y).mean() for y in outs), start=gt.array(0.0, dtype=gt.float64))
            # steps that bring states together: otherwise differences of rounding would grow from step to step
            return [gt.sin(0.5 * c + 0.05 * mixed) for c in carry], outs

        return gt.scan(step, init, xs, length, reverse)

    def loss(init, xs):
        # not a sine: that of 1e9 has a derivative of which rounding leaves six digits
        return sum((gt.tanh(y).sum() for y in gt.tree.leaves(run(init, xs))), start=gt.array(0.0))

    def everything(init, xs):
        return run(init, xs), gt.grad(loss, (0, 1))(init, xs), gt.jvp(loss, (init, xs), (init, xs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "MANY_NESTS", many)
        close(natively(everything, init, xs), interpreted(everything, init, xs), 1e-6, 1e-8)


@pytest.mark.parametrize("many", [0, 1 << 30])
def test_nests_of_a_long_body_are_functions_and_compute_the_same(many, monkeypatch, builds):
    def run(x, y, rows):
        def step(carry, row):
            x, y, count = carry
            total = gt.sum(gt.exp(-x * x) * row, 1, keepdims=True)
            x = gt.where(count > 2, x + 0.1 * total, gt.sort(x, 1))
            x = x.at[count % 3].set(row * gt.mean(y))
            y = gt.cond(count > 3, lambda y: y @ y * 0.1, lambda y: y.T + total[0, 0], y)
            return (x, y, count + 1), (x[0] * 2.0, gt.max(y))

        return gt.scan(step, (x, y, gt.array(0)), rows)

    monkeypatch.setattr(generator, "MANY_NESTS", many)
    keys = gt.random.split(gt.random.key(0), 3)
    args = [gt.random.normal(key, shape) for key, shape in zip(keys, [(3, 5), (4, 4), (6, 5)], strict=True)]
    close(natively(run, *args), interpreted(run, *args), 1e-4, 1e-5)
    (loop,) = (graph for graph in builds if any(node.op.loop for node in graph.nodes))
    assert ("void loops0(" in generator.generate(loop).text) == (many == 0)


@pytest.mark.slow
@settings(max_examples=8)
@given(graphs(10, continuous=True, control=True), st.data())
def test_random_programs_of_all_dtypes_as_a_body(graph, data):
    values = data.draw(arguments(graph))
    body = as_function(graph)

    def run(*values):
        def step(count, _):
            return count + 1, body(*[x + gt.astype(count, x.dtype) if x.dtype.is_floating_point else x for x in values])

        return gt.scan(step, gt.array(0), None, 2)

    close(natively(run, *values), interpreted(run, *values), 2e-4, 1e-4)


def test_one_build_serves_every_length(builds):
    def run(x, xs):
        return gt.scan(lambda c, y: (gt.sin(c) + y * 2.0, c * y), x, xs)

    f = gt.jit(run)
    for length in (1, 2, 7, 50, 1000):
        xs = gt.linspace(0.0, 1.0, length)
        close(f(gt.array(0.5), xs), interpreted(run, gt.array(0.5), xs), 1e-4, 1e-5)
    count = gt.jit(lambda n: gt.fori_loop(0, n, lambda i, total: total + i, gt.array(0)))
    assert [int(count(gt.array(n))) for n in (0, 1, 10, 1000)] == [0, 0, 45, 499500]
    assert len(builds) == 2


def test_carries_that_change_places_repeat_or_stay():
    def run(a, b, c, d):
        def step(carry, x):
            a, b, c, d = carry
            return (b, a, c, a), (d, c + x, a[0], gt.sum(b))

        return gt.scan(step, (a, b, c, d), gt.arange(5, dtype=gt.float32))

    args = gt.array([1.0, 2.0]), gt.array([3.0, 4.0]), gt.array(5.0), gt.array([6.0, 7.0])
    close(natively(run, *args), interpreted(run, *args))
    swap = gt.jit(lambda a, b: gt.while_loop(lambda s: s[2] < 5, lambda s: (s[1], s[0], s[2] + 1), (a, b, 0)))
    assert [float(x) for x in swap(gt.array(1.0), gt.array(2.0))] == [2.0, 1.0, 5.0]


@pytest.mark.slow
def test_parts_of_results_and_results_in_parts():
    """Slices of elementwise results, which are computed part by part, and concatenations, which are written so."""

    def step(carry, x):
        a, b = carry  # (4, 6) and (6,)
        s = a + x * b
        whole = gt.tanh(s) * 2.0  # it and a part of it are needed
        t = gt.exp(-s * s) + b  # all of it is needed, in parts of unequal size
        left, right = t[:, :2], t[:, 2:]
        u = gt.sin(a - b)  # parts with elements in common, and every second one
        shared = u[:3, 1:] * u[1:, :5]
        pair = left * 3.0
        new = gt.concatenate([pair, gt.full((4, 1), 0.5), right[:, :1] + whole[:, 4:5], pair * left], axis=1)
        twice = gt.concatenate([pair, pair, left], axis=1)
        return (new, b + u[0] + twice[1]), (new, twice, shared, whole, u[::2].sum(), pair, whole[1:2])

    def run(a, b, xs):
        return gt.scan(step, (a, b), xs)

    rng = np.random.default_rng(0)
    args = [gt.array(rng.normal(size=shape)) for shape in ((4, 6), (6,), (3, 4, 6))]
    close(natively(run, *args), gt.tree.leaves(interpreted(run, *args)))

    def loss(a, b, xs):
        (a, b), ys = run(a, b, xs)
        return sum(gt.sum(y * y) for y in (a, b, *ys))

    gradient = gt.grad(loss, (0, 1, 2))
    close(natively(gradient, *args), interpreted(gradient, *args))


@pytest.mark.slow
def test_loops_and_branches_within_loops_and_batches():
    def collatz(n):
        def step(state):
            n, count = state
            n = gt.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n)
            return n, count + 1

        return gt.while_loop(lambda s: s[0] != 1, step, (n, 0))[1]

    def run(n):
        return gt.scan(lambda total, k: (total + collatz(n + k), collatz(k)), 0, gt.arange(1, 20))

    assert int(gt.jit(collatz)(gt.array(27))) == 111
    close(gt.jit(run)(gt.array(7)), interpreted(run, gt.array(7)))
    starts = gt.arange(1, 30)
    close(gt.jit(gt.vmap(collatz))(starts), interpreted(gt.vmap(collatz), starts))


@pytest.mark.slow
def test_gradients_of_checkpointed_bodies(builds):
    """What a body that is inlined returns is in memory, also where nothing else reads it."""
    xs = gt.reshape(gt.linspace(0, 1, 15), (5, 3))

    def run(x):
        def step(carry, row):
            return gt.checkpoint(lambda c: gt.tanh(c * row) + c)(carry), carry[0]

        return gt.scan(step, x, xs)[0].sum()

    for f in (gt.grad(run), gt.hessian(run)):
        x = gt.array([1.0, 2.0, 3.0])
        close(natively(f, x), [interpreted(f, x)], rtol=1e-5)
    assert builds


def test_draws_within_a_loop_are_those_of_the_interpreter():
    def walk(key):
        def step(state, _):
            key, x = state
            key, own = gt.random.split(key)
            x = x + gt.random.normal(own, (3,)) * gt.random.uniform(own)
            return (key, x), gt.random.randint(own, (), 0, 10)

        return gt.scan(step, (key, gt.zeros(3)), None, 20)

    key, x, ys = natively(walk, gt.random.key(3))
    (expected_key, expected), draws = interpreted(walk, gt.random.key(3))
    close((key, x, ys), (expected_key, expected, draws), 1e-5, 1e-5)


def test_indexing_in_a_loop():
    def run(x, order):
        def step(x, k):
            row = x[k] * 2.0
            x = x.at[(k + 1) % 6].add(row)
            return x.at[k, 1].set(0.5), (gt.lax.dynamic_slice(x, (k, 0), (2, 3)), x[gt.stack([k, -1 - k])], x[::-1, 1:])

        return gt.scan(step, x, order)

    args = gt.array(np.random.default_rng(0).normal(size=(6, 3))), gt.array([3, 0, 5, 2])
    close(natively(run, *args), interpreted(run, *args))


def test_carries_of_which_elements_are_replaced():
    """What may be done in place, and what may not: values read after the update, shifted copies, swapped carries."""

    def run(x, y, z, order):
        def step(carry, k):
            x, y, z = carry
            seen = x[k]
            x = x.at[k].add(seen * 0.5 + 1.0)
            y_new = y.at[1:].set(y[:-1])
            z_new = z.at[k % 3].set(gt.sum(z))
            return (x, y_new, z_new), (x[0], y[1], z * 2.0, y_new)

        return gt.scan(step, (x, y, z), order)

    args = gt.arange(5.0), gt.arange(4.0), gt.arange(3.0), gt.array([3, 0, 4, 3, 1])
    close(natively(run, *args), interpreted(run, *args))
    ranks = gt.jit(lambda n: gt.fori_loop(0, 2000, lambda i, c: c.at[i].set(c[i - 1] + n), gt.zeros(2000)))
    np.testing.assert_array_equal(np.asarray(ranks(gt.array(1.0))), np.arange(2000) + 1.0)


@pytest.mark.slow
def test_operations_before_a_loop_are_part_of_its_function(builds):
    def run(a, x, xs):
        transposed, start = gt.tanh(a).T * 0.5, gt.eye(3) + x[:, None] * x

        def step(c, y):
            c = transposed @ (c * y) + x
            return c, gt.sum(c, 0)

        return gt.scan(step, (start @ a), xs)

    a, x = gt.array(np.random.default_rng(0).normal(size=(3, 3))), gt.array([0.5, -1.0, 2.0])
    for length in (4, 3):
        xs = gt.array(np.random.default_rng(length).normal(size=length))
        close(natively(run, a, x, xs), interpreted(run, a, x, xs))
        # arrays with an axis as long as the loop stay outside
        assert len(builds) == (1 if length == 4 else 3), "that of four steps, and two for three"


def test_what_depends_on_the_number_of_steps_is_outside_of_a_loop_for_any_number(builds):
    def run(xs):
        return gt.scan(lambda c, y: (gt.sin(c + y), None), xs[0] * 2.0 + gt.sum(xs), xs)[0]

    for length in (2, 5, 7):
        xs = gt.linspace(0.0, 1.0, length)
        close(gt.jit(run)(xs), interpreted(run, xs), 1e-5)
    assert sum(any(node.op.name == "scan" for node in graph.nodes) for graph in builds) == 1


def test_sorting_in_a_loop():
    def run(x, k):
        def step(c, _):
            return c + 1, [op(v, axis, descending=down) for op in (gt.sort, gt.argsort) for v in (x - c * x[0], k + c)
                           for axis, down in ((0, False), (1, True), (1, False))]  # fmt: skip

        return gt.scan(step, 0, None, 2)[1]

    random = np.random.default_rng(0)
    x = random.normal(size=(37, 300)).round(1)
    x[random.random(x.shape) < 0.05] = np.nan
    args = gt.array(x), gt.array(random.integers(-3, 3, (37, 300)))
    for got, want in zip(natively(run, *args), interpreted(run, *args), strict=True):
        np.testing.assert_array_equal(got.numpy(), np.asarray(want))


@pytest.mark.slow
def test_a_body_that_is_not_supported_runs_all_the_same(builds):
    def run(x):
        return gt.scan(lambda c, _: (gt.special.i1(gt.sin(c)), None), x, None, 5)[0]

    x = gt.array([0.3, -1.0, 2.0])
    close(gt.jit(run)(x), interpreted(run, x), 1e-5)
    assert not builds


# -- what happens around a loop


@pytest.fixture(scope="module")
def endless():
    return lambda x: gt.while_loop(lambda s: s[0] >= 0, lambda s: ((s[0] + 1) % 7, s[1] * 0.5), (0, x))[1]


def test_an_endless_loop_ends_by_a_signal_and_loses_nothing(endless):
    f, x = gt.jit(endless), gt.array(3.0)
    f.lower(x).compile()
    raised = []

    def handler(*_):
        raised.append(time.perf_counter())
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, handler)
    try:
        y = x * 2.0
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        begun = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            f(y)
        assert raised[0] - begun < 2.0, "the handler runs during the loop"
    finally:
        signal.signal(signal.SIGALRM, old)
    assert float(y) == 6.0 and float(x) == 3.0
    counted = gt.jit(lambda x: gt.while_loop(lambda s: s < 100.0, lambda s: s + 1.0, x))
    assert float(counted(y)) == 100.0


def test_other_threads_run_during_a_long_loop(endless):
    f, x, ticks = gt.jit(endless), gt.array(3.0), []
    f.lower(x).compile()

    def tick():
        while len(ticks) < 5:
            ticks.append(time.perf_counter())
            time.sleep(0.01)
        signal.raise_signal(signal.SIGALRM)

    def handler(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, handler)
    other = threading.Thread(target=tick)
    try:
        with pytest.raises(KeyboardInterrupt):
            other.start()
            f(x)
    finally:
        other.join()
        signal.signal(signal.SIGALRM, old)
    assert len(ticks) == 5


def test_two_threads_run_one_loop_at_a_time_each():
    f = gt.jit(lambda x: gt.scan(lambda c, _: (gt.sin(c) * 1.1 + gt.sum(c) * 0.01, None), x, None, 300)[0])
    starts = [gt.array(np.full(5, k / 10)) for k in range(4)]
    expected = [np.asarray(f(x)) for x in starts]
    wrong = []

    def run(k):
        for _ in range(50):
            if not np.array_equal(np.asarray(f(starts[k])), expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_values_that_torch_refuses_raise_the_error_of_the_interpreter():
    def run(x):
        return gt.fori_loop(0, 5, lambda i, c: c // (3 - i) + 1, x)

    x = gt.array(100)
    with pytest.raises(gt.ExecutionError, match=r"floor_divide.*Zero.*test_native_loops"):
        gt.eval(gt.jit(run)(x))
    assert int(x) == 100


def test_debug_nans_names_the_step():
    def run(x, loop):
        return loop(lambda c, t: (gt.log(c), None), x, gt.arange(9))[0]

    with gt.config(debug_nans=True), pytest.raises(gt.NonFiniteError, match=r"\[log\].*In step 2 of scan"):
        gt.eval(gt.jit(lambda x: run(x, gt.scan))(gt.array(2.0)))
    with gt.config(debug_nans=True), pytest.raises(gt.NonFiniteError, match=r"\[div\].*In step 3 of while_loop"):
        gt.eval(gt.while_loop(lambda s: s < 10, lambda s: s + 1.0 + 0.0 / (s - 3.0), gt.array(0.0)))


def test_a_later_process_finds_the_loop_on_disk(tmp_path):
    def run(x):
        return gt.scan(lambda c, _: (gt.cos(c) * 0.75 + 0.125, c), x, None, 12)

    with gt.config(background=True, cache_dir=str(tmp_path), jit_wait=60.0):
        with count_compiles() as compiles:
            first = gt.jit(run)(gt.array(1.5))
        assert (compiles.count, compiles.loads) == (1, 0)
        engine.programs.clear()
        engine.forms.clear()
        engine.recordings.clear()
        engine.tiering._made.clear()
        with count_compiles() as compiles:
            close(gt.jit(run)(gt.array(1.5)), first)
        assert (compiles.count, compiles.loads) == (0, 1)


@pytest.mark.parametrize("tier", ["compiled", "demoted"])
def test_a_slower_loop_is_demoted_like_any_program(monkeypatch, tier):
    """Undecorated loops are compiled when they are hot, and are on trial against the interpreter."""
    before = {s.signature for s in gt.stats()}
    steps = 300 if tier == "compiled" else 310  # another program
    seconds = {True: 0.01, False: 0.001 if tier == "compiled" else 0.1}
    monkeypatch.setattr(observed_calls, "clock", lambda form, wait: lambda: seconds[form.interprets])

    def run(x):
        return gt.while_loop(lambda s: s[0] < steps, lambda s: (s[0] + 1, s[1] * 0.5 + 1.0), (0, x))[1]

    with gt.config(hot_threshold=2):
        for _ in range(60):
            assert_close(run(gt.array(3.0)), 2.0, check_dtype=False)
    (stats,) = [s for s in gt.stats() if s.signature not in before and "while_loop" in s.ops and s.compiled_calls]
    assert stats.tier == tier


def test_strided_inputs_are_read_right():
    x = gt.from_torch(torch.arange(24.0).reshape(4, 6).T)

    def run(x):
        return gt.scan(lambda c, row: (c + row * 2.0, row[0]), gt.zeros(4), x)

    close(gt.jit(run)(x), interpreted(run, x))


SIZES = [(4, 4, 4), (1, 300, 70), (37, 9, 130), (70, 300, 1), (13, 40, 21), (16, 600, 10), (300, 33, 17), (3, 100, 5)]
TURNED = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [gt.float32, gt.float64, gt.int32], ids=str)
def test_products_of_any_size_and_layout(dtype, builds):
    def run(matrices):
        def step(carry, _):
            products = [
                ((x + carry).T if turn_x else x + carry) @ ((y + carry).T if turn_y else y + carry)
                for (x, y), (turn_x, turn_y) in zip(matrices, TURNED * len(SIZES), strict=True)
            ]
            # the next step needs all of them, so that none moves out of the loop
            return gt.clip(sum(p[0, 0] for p in products), -2, 2), products

        return gt.scan(step, gt.ones((), dtype=dtype), None, length=2)[1]

    def whole_numbers(*shape):
        return gt.array(np.random.default_rng(shape).integers(-9, 9, shape)).astype(dtype)

    matrices = [
        (whole_numbers(*(k, i) if turn_x else (i, k)), whole_numbers(*(j, k) if turn_y else (k, j)))
        for i, k, j in SIZES
        for turn_x, turn_y in TURNED
    ]
    # their sums are exact in any order
    for got, want in zip(natively(run, matrices), interpreted(run, matrices), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert len(builds) == 1


# -- beside other parts of a program


def encoded(w, xs):
    """Return a loop over rows, and a large elementwise part beside it, which is for Inductor."""

    def step(carry, x):
        carry = gt.tanh(carry * 0.5 + x)
        return carry, carry.sum()

    last, sums = gt.scan(step, gt.zeros(4), xs)
    large = gt.sin(w) * gt.exp(-w) + gt.cos(w) * 0.25 + gt.tanh(w) * gt.sqrt(gt.abs(w) + 1.0)
    return last, sums, (large * last[0]).sum()


@pytest.mark.inductor
def test_a_loop_does_not_wait_for_what_inductor_compiles(tmp_path, monkeypatch):
    monkeypatch.setattr(CostModel, "predict", lambda self, ops: 1e6)
    begin = type(engine.tiering)._begin
    monkeypatch.setattr(
        type(engine.tiering), "_begin", lambda self, program, at: begin(self, program, at) if program.native else None
    )
    w, xs = gt.eval(gt.linspace(0, 1, 300_000), gt.ones((50, 4)))
    expected = [np.asarray(one) for one in encoded(w, xs)]
    with gt.config(background=True, cache_dir=str(tmp_path), jit_wait=300.0):
        f = gt.jit(encoded)
        results = f(w, xs)
        tiers = [(p.tier, any(node.op.name == "scan" for node in p.graph.nodes)) for p in f.programs()]
        assert sorted(tiers) == [("compiled", True), ("interpreted", False)]
    for one, other in zip(results, expected, strict=True):
        assert_close(one, other, check_dtype=False)


def test_loops_that_get_hot_need_no_worker(tmp_path):
    xs = gt.eval(gt.ones((40, 3)))

    def run():
        return gt.scan(lambda c, x: (gt.sin(c) * 0.25 + x, c.max()), gt.zeros(3), xs)

    with gt.config(background=True, cache_dir=str(tmp_path), hot_threshold=3):
        known = set(engine.programs)
        worker.end()
        expected = [np.asarray(one) for one in run()]
        for _ in range(3):
            gt.eval(run())
        assert worker.wait(300)
        results = [np.asarray(one) for one in run()]
        (program,) = (engine.programs[key] for key in set(engine.programs) - known)
        assert (program.tier, program.forms.origin, worker.pid) == ("compiled", "worker", None)
    for one, other in zip(results, expected, strict=True):
        assert_close(one, other, check_dtype=False)
