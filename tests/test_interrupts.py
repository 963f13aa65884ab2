"""Interrupts, signal handlers and finalizers in the middle of anything leave every result right."""

from __future__ import annotations

import gc
import itertools
import random
import signal
import sys
import threading

import numpy as np
import pytest

import gtrace as gt
from gtrace.core.trace.record import thread
from gtrace.testing import assert_close

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers"),
    # an interrupt in a callback of the garbage collector, such as hypothesis has, is printed and not raised
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DELAYS = [0.00003, 0.0001, 0.0002, 0.0003, 0.0005, 0.001]


class Interrupted(KeyboardInterrupt):
    """What the test's handler raises."""


@pytest.fixture
def alarm(default_settings):
    """A function that runs another under a timer, whose handler is called once, a short random time later."""
    with gt.config(auto_compile=False):
        before = signal.getsignal(signal.SIGALRM)

        def run(function, handler, delay):
            armed = True
            signal.signal(signal.SIGALRM, lambda *_: handler() if armed else None)
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                return function()
            except Interrupted:
                return None
            finally:
                armed = False  # first: a call could be interrupted
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_IGN)

        yield run
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupt():
    raise Interrupted


def interrupted_at(place, function):
    """Interrupt a call before the instruction of Python with this number; return whether it had as many."""
    left = place

    def trace(frame, event, argument):
        nonlocal left
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def scale(x, c):
    return gt.sin(x) * c + x / (1.0 + gt.abs(x))


def chain(x, y, count):
    for k in range(count):
        x = gt.abs(x * y + 1.0) - 0.5 * k
    return x


def new_work(seed):
    """Work with arrays and numbers of its own, and what it must give."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(4,))
    x, y = gt.array(a), gt.array(b)
    got = (x * 2.0 + y) @ gt.ones((4, 2), dtype=gt.float64) - 0.25 * seed
    return np.asarray(got), (a * 2.0 + b) @ np.ones((4, 2)) - 0.25 * seed


WORK = {
    "recording": lambda x, y: chain(x, y, 60),
    "forcing": lambda x, y: [float(chain(x, y, 4).sum()) for _ in range(12)],
    "grad": lambda x, y: gt.grad(lambda v: chain(v, y, 10).sum())(x),
    "a gradient of a gradient": lambda x, y: gt.grad(lambda v: gt.grad(lambda w: chain(w, y, 3).sum())(v).sum())(x),
    "scan": lambda x, y: gt.scan(lambda c, _: (chain(c, y, 3), c.sum()), x, length=5),
    "jit": lambda x, y: gt.jit(lambda v, w: chain(v, w, 10), backend="eager")(x, y),
    "vmap": lambda x, y: gt.vmap(lambda v: chain(v, y, 10))(x),
    "while_loop": lambda x, y: gt.while_loop(lambda c: c.sum() < 50.0, lambda c: c + gt.abs(y) + 1.0, x),
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_an_interrupt_leaves_new_and_old_work_right(alarm, name, large):
    rng = random.Random(name)
    a, b = np.linspace(-1, 1, 6).reshape(2, 3), np.array([0.5, -1.0, 2.0])
    WORK[name](gt.array(a), gt.array(b))  # what it imports is imported
    interrupted = 0
    for k in range(500 if large else 60):
        x, y = gt.array(a), gt.array(b)
        kept = x * y - 3.0  # pending when the interrupt strikes
        done = alarm(lambda x=x, y=y: WORK[name](x, y), interrupt, rng.choice(DELAYS) * rng.uniform(0.2, 1.5))
        interrupted += done is None
        got, expected = new_work(k)
        assert_close(got, expected)
        assert_close(kept, a * b - 3.0)
        assert thread.trace.tape is None and thread.trace.capture is None
        assert thread.origin is None and thread.region is None
    assert interrupted >= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    [lambda x: x * 2.0, lambda x: 2.0 - x, lambda x: gt.clip(x, -1.0, 1.0), lambda x: x + -0.0],
)
def test_a_program_whose_recording_was_interrupted_is_right_with_other_numbers(default_settings, operation):
    """Interrupted before any instruction. The program is the same afterwards, with unused numbers or without."""

    def program(functions, x, c):  # a new one for each place
        for k in range(10):
            x = functions.sin(x) if place >> k & 1 else functions.abs(x)
        return (x * 2.0 + c) * 1.5 - c

    a = np.array([0.5, -1.0, 2.0])
    place, interrupted = 0, True
    with gt.config(auto_compile=False, deterministic=True):  # every program is prepared at once
        while interrupted:
            x = gt.array(a)
            gt.eval(operation(x))  # its types are known
            for k, c in enumerate(np.linspace(-2.0, 2.0, 6).tolist()):
                if k < 3:
                    interrupted = interrupted_at(place, lambda: operation(x))  # noqa: B023
                assert_close(program(gt, x, c), program(np, a, c))
            place += 1
    assert 30 <= place < 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WORK if name != "jit"])
@pytest.mark.parametrize("what", ["records", "looks", "differentiates"])
def test_a_handler_that_uses_arrays_disturbs_nothing(alarm, name, what):
    rng = random.Random(name + what)
    a, b = np.linspace(-1, 1, 6).reshape(2, 3), np.array([0.5, -1.0, 2.0])
    own = gt.eval(gt.array(b))
    seen, errors = [], []

    def handler():
        try:
            z = own * 3.0 + 1.0
            if what == "looks":
                seen.append(np.asarray(z))
            elif what == "differentiates":
                seen.append(gt.grad(lambda v: (v * v * 1.5).sum())(own))
            else:
                seen.append(z)
        except gt.ConcretizationError as error:
            errors.append(error)  # inside a captured function: it says so

    expected = [np.asarray(t) for t in gt.tree.leaves(WORK[name](gt.array(a), gt.array(b)))]
    calls = 0
    for k in range(60):
        x, y = gt.array(a), gt.array(b)
        done = alarm(lambda x=x, y=y: WORK[name](x, y), handler, rng.choice(DELAYS) * rng.uniform(0.2, 1.5))
        for leaf, value in zip(gt.tree.leaves(done), expected, strict=True):
            assert_close(leaf, value)
        got, value = new_work(k)
        assert_close(got, value)
        for z in seen:
            if what != "records" or z._trace is None or z._trace.capture is None:
                right = 3.0 * b if what == "differentiates" else b * 3.0 + 1.0
                try:
                    assert_close(z, right)
                except (gt.LeakError, gt.ConcretizationError) as error:
                    errors.append(error)
        calls += len(seen)
        seen.clear()
    assert calls + len(errors) >= 5


def test_a_finalizer_that_looks_at_values_disturbs_nothing():
    seen = []

    class Watcher:
        def __init__(self, x):
            self.x = x
            self.itself = self  # a cycle: freed by the collector, anywhere

        def __del__(self):
            seen.append(float((self.x * 2.0).sum()))

    before = gc.get_threshold()
    gc.set_threshold(7)
    try:
        for k in range(30):
            x = gt.array([1.0, 2.0, float(k)])
            for _ in range(5):
                Watcher(gt.array([0.5, 0.25]))
                x = gt.abs(x * 2.0 - 1.0) * 0.5 + 0.25
            expected = np.array([1.0, 2.0, float(k)], dtype=np.float32)
            for _ in range(5):
                expected = np.abs(expected * 2 - 1) * 0.5 + 0.25
            assert_close(x, expected)
    finally:
        gc.set_threshold(*before)
        gc.collect()
    assert len(seen) == 150 and set(seen) == {1.5}


def test_an_interrupt_leaves_no_lock_held(alarm, large):
    """New sizes and numbers take locks that all threads share."""
    sizes = itertools.count(2)

    def work(count):
        for n in itertools.islice(sizes, count):
            gt.sin(gt.array(np.zeros(n))) * (n + 0.25)

    for _ in range(600 if large else 150):
        alarm(lambda: work(1_000), interrupt, random.uniform(5e-5, 3e-4))
        other = threading.Thread(target=work, args=(2,), daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive(), "it waits for a lock"


@pytest.mark.parametrize("count", [8])
def test_threads_that_make_new_sizes_agree_with_numpy(count, large):
    """Each size is a new type, a new instruction and a new input, interned by all threads at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    failures = []
    start = threading.Barrier(count)

    def work(seed):
        rng = random.Random(seed)
        start.wait()
        for k in range(1000 if large else 150):
            n = 2 + seed + count * k if rng.random() < 0.8 else k + 2
            a = np.arange(n, dtype=np.float64)
            try:
                x = gt.array(a)
                got = np.asarray(gt.sin(x) + x)
                if got.shape != a.shape or not np.allclose(got, np.sin(a) + a):
                    failures.append((seed, k, "wrong"))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure
                failures.append((seed, k, repr(error)))

    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures


@pytest.mark.slow
def test_an_interrupt_while_a_program_runs_lets_it_run_again(alarm):
    a = np.random.default_rng(0).normal(size=(300, 300))
    x = gt.array(a)

    def train():
        w = x
        for _ in range(20):
            w = w - 0.01 * gt.tanh(w @ x)
        return w

    expected = np.asarray(train())
    interrupted = 0
    for k in range(20):
        w = train()
        if alarm(lambda w=w: gt.eval(w), interrupt, 0.0005 * (k + 1)) is None:
            interrupted += 1
        assert_close(w, expected)
    assert interrupted >= 3
