"""Threads in native loops: the same bits for any number of them, errors, interrupts, and loops of several threads."""

from __future__ import annotations

import ctypes
import signal
import threading

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.native import library
from gtrace.core.backends.native.generator import generate, loop_graph, of_open_length
from gtrace.core.base.torch_internals import openmp_functions
from gtrace.core.ir.graph import Node
from gtrace.core.ir.op import REGISTRY
from gtrace.core.ir.subgraph import subgraph

pytestmark = pytest.mark.native

START = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)


@pytest.fixture
def threads():
    """Sets the number of threads."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def started(monkeypatch):
    """The numbers of threads that loops have started."""
    found = []
    start, end = openmp_functions()
    original = START(ctypes.cast(start, ctypes.c_void_p).value)

    def counted(work, team, count):
        found.append(count)
        original(work, team, count)

    wrapped = START(counted)
    monkeypatch.setattr(library, "openmp_functions", lambda: (wrapped, end))
    library._services.cache_clear()
    library._resumes.value = 0
    yield found
    library._services.cache_clear()


def built(body, folder, *args):
    """Return a function that runs a loop of two steps of `body`, and the C++ of the loop."""
    graph = gt.make_graph(body)(*args)
    count = len(graph.inputs)
    instr = REGISTRY["scan"].instr((subgraph(graph), 1, False, count, 0), graph.avals)
    opened = of_open_length(loop_graph(Node(instr, tuple(range(count)), count))[0])
    loaded = library.load(library.build(opened, folder), "process").run
    given = [*[x.to_torch() for x in args], torch.tensor(2)]
    return (lambda: loaded(given)), generate(opened).text


def lines(x, y, z, places):
    """Lines of every kind that threads share, none of whose sizes is a multiple of a vector's."""
    a = gt.tanh(x) + gt.exp(-x)
    b = gt.sin(z[:, None, :]) * gt.cos(z[None, :30, :])
    products = [a @ y, a[:101] @ x[:101, :].T, y.T @ x.T, x @ y[:, 0], y[:, 0] @ x.T, gt.transpose(y) @ y]
    sums = [gt.sum(a, 0), gt.sum(a, 1), gt.mean(b, (0, 2)), gt.max(b, 1)]
    rows = [gt.nn.softmax(a, 1), gt.cumsum(a, 0), gt.logsumexp(a, 0), gt.argmax(a, 1), a[places], gt.sort(a, 1)]
    return a, b, products, sums, rows


@pytest.mark.slow
def test_bits_are_those_of_one_thread(tmp_path, threads, started):
    random = np.random.default_rng(0)
    sizes = (211, 231), (231, 97), (33, 201)
    arrays = [gt.array(random.normal(size=size).astype(np.float32)) for size in sizes]
    places = gt.array(random.integers(0, 211, 307))
    run, text = built(lines, tmp_path, *arrays, places)
    assert text.count("team.run(") > 10 and text.count("shared_product<") >= 4
    threads(1)
    expected = run()
    assert not started
    for count in (2, 3, 8):
        threads(count)
        library._resumes.value = 0
        for _ in range(3):
            for got, want in zip(run(), expected, strict=True):
                assert got.equal(want)
        assert started and set(started) == {count}
        started.clear()
    with gt.config(auto_compile=False):
        reference = gt.tree.leaves(gt.eval(lines(*arrays, places)))
    for got, want in zip(expected, reference, strict=True):
        assert got[0].equal(got[1])
        np.testing.assert_allclose(got[0].numpy(), np.asarray(want), rtol=2e-4, atol=2e-4)


def test_a_machine_that_is_busy_gives_a_loop_no_threads(tmp_path, threads, started):
    run, _ = built(lambda x: gt.tanh(x), tmp_path, gt.ones((64, 512)))
    threads(2)
    run()
    assert len(started) == 1
    library._resumes.value = 2**62
    run()
    assert len(started) == 1


def test_short_lines_start_no_threads(tmp_path, threads, started):
    run, text = built(lambda x: gt.tanh(x), tmp_path, gt.ones(64))
    threads(2)
    run()
    assert not started and "team.run" not in text


def test_what_torch_refuses_stops_a_loop_of_threads(threads, started):
    def run(x):
        return gt.fori_loop(0, 5, lambda i, c: c // (x - i) + 1, x)

    threads(2)
    x = np.full(100_000, 100)
    x[-1] = 3
    with pytest.raises(gt.ExecutionError, match=r"floor_divide.*Zero.*test_native_threads"):
        gt.eval(gt.jit(run)(gt.array(x)))
    assert started


def test_a_signal_ends_a_loop_of_threads_which_then_runs_again(threads, started):
    f = gt.jit(lambda x, n: gt.while_loop(lambda s: s[0] != n, lambda s: (s[0] + 1, gt.sin(s[1])), (0, x))[1])
    threads(2)
    x = gt.ones((128, 1024))
    once = np.asarray(f(x, gt.array(1)))

    def handler(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(3):
            library._resumes.value = 0
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                f(x, gt.array(-1))
    finally:
        signal.signal(signal.SIGALRM, old)
    assert len(started) >= 3, started
    np.testing.assert_array_equal(np.asarray(f(x, gt.array(1))), once)


def test_loops_of_several_threads_of_python(tmp_path, threads, started):
    run, _ = built(lambda x: gt.tanh(x), tmp_path, gt.ones((64, 512)))
    threads(2)
    expected, wrong = run(), []

    def repeat():
        torch.set_num_threads(2)
        for _ in range(10):
            library._resumes.value = 0
            wrong.extend(1 for got, want in zip(run(), expected, strict=True) if not got.equal(want))

    others = [threading.Thread(target=repeat) for _ in range(3)]
    for one in others:
        one.start()
    for one in others:
        one.join()
    assert not wrong and started
