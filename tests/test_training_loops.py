"""Training loops of interpreted steps: old values stay as they were, and no interrupt loses any."""

from __future__ import annotations

import gc
import linecache
import os
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt

RNG = np.random.default_rng(0)
SIZES = {"a": (70, 60), "b": (60,), "c": (60, 70), "d": (300, 300)}
WEIGHTS = {name: RNG.normal(size=size).astype(np.float32) for name, size in SIZES.items()}
X = RNG.normal(size=(6, 70)).astype(np.float32)


class Interrupted(KeyboardInterrupt):
    """What the tests raise."""


def interrupt():
    raise Interrupted


@pytest.fixture(autouse=True)
def interpreting():
    with gt.config(auto_compile=False):
        yield


def loss(weights):
    hidden = gt.tanh(gt.array(X) @ weights["a"] + weights["b"]) @ weights["c"]
    return gt.square(hidden).mean() + gt.square(weights["d"]).mean()


def start(optimizer):
    weights = {name: gt.array(x) for name, x in WEIGHTS.items()}
    return weights, optimizer.init(weights)


def step(optimizer, weights, state):
    value, grads = gt.value_and_grad(loss)(weights)
    updates, state = optimizer.update(grads, state, weights)
    return value, gt.optim.apply_updates(weights, updates), state


def trained(optimizer, steps):
    """Return the weights after some steps, and their moments, each step with copies of what it takes."""
    weights, state = start(optimizer)
    for _ in range(steps):
        weights, state = gt.tree.map(lambda x: gt.array(np.array(x)), (weights, state))
        value, weights, state = step(optimizer, weights, state)
        float(value)
    return gt.tree.map(np.array, (weights, state))


def same(got, expected, rounded=False):
    for x, y in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-5 if rounded else 0, atol=1e-7 if rounded else 0)


def run(optimizer, steps, between=lambda k, weights, state: None):
    weights, state = start(optimizer)
    for k in range(steps):
        value, weights, state = step(optimizer, weights, state)
        float(value)
        between(k, weights, state)
    return weights, state


ADAM = gt.optim.adam(0.01, eps=1e-3)
"""With such an eps the rounding of a small gradient does not decide about a step."""


KEPT = {
    "array": lambda x: x,
    "numpy": np.asarray,
    "view": lambda x: np.asarray(x).T,
    "torch": lambda x: x.to_torch(copy=False),
    "torch view": lambda x: x.to_torch(copy=False)[:1],
    "dlpack": lambda x: torch.from_dlpack(x),
    "pending": lambda x: x + 1,
    "reshaped": lambda x: x.reshape(-1),
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_somebody_keeps_of_old_ones_stays_as_it_was(kind):
    kept = []

    def keep(k, weights, state):
        if k in (1, 3):
            for x in gt.tree.leaves((weights, state[0].mu, state[0].nu)):
                kept.append((KEPT[kind](x), KEPT[kind](gt.array(np.array(x)))))

    got = run(ADAM, 6, keep)
    for x, y in kept:
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    same(got, trained(ADAM, 6))


def test_memory_that_came_from_outside_is_not_written_over():
    arrays = {name: x.copy() for name, x in WEIGHTS.items()}
    tensors = {name: torch.from_numpy(x.copy()).clone() for name, x in WEIGHTS.items()}
    parameter = torch.nn.Parameter(tensors["a"])
    for weights in (
        {name: gt.asarray(x) for name, x in arrays.items()},
        {name: gt.from_torch(x) for name, x in tensors.items()},
        {**{name: gt.from_torch(x) for name, x in tensors.items()}, "a": gt.from_torch(parameter.data)},
    ):
        state = ADAM.init(weights)
        for _ in range(3):
            value, weights, state = step(ADAM, weights, state)
            float(value)
    same(arrays, WEIGHTS)
    same(tensors, WEIGHTS)


def test_shared_and_inference_tensors_are_not_written_over():
    with torch.inference_mode():
        tensors = {name: torch.from_numpy(x.copy()).clone() for name, x in WEIGHTS.items()}
    tensors["d"] = torch.from_numpy(WEIGHTS["d"].copy()).share_memory_()
    other = weakref.proxy(tensors["d"].untyped_storage())
    weights = {name: gt.from_torch(x) for name, x in tensors.items()}
    expected = tensors["d"].clone()
    alias = tensors["d"].numpy()
    del tensors, other
    state = ADAM.init(weights)
    for _ in range(3):
        value, weights, state = step(ADAM, weights, state)
        float(value)
    np.testing.assert_array_equal(alias, expected)
    same((weights, state), trained(ADAM, 3))


def averaged(optimizer, weights, state, average):
    value, weights, state = step(optimizer, weights, state)
    return value, weights, state, gt.tree.map(lambda a, w: 0.9 * a + 0.1 * w, average, weights)


def test_programs_that_read_the_new_parameters():
    weights, state = start(ADAM)
    average = gt.tree.map(gt.zeros_like, weights)
    for _ in range(4):
        value, weights, state, average = averaged(ADAM, weights, state, average)
        float(value)
    same((weights, state), trained(ADAM, 4))
    expected, (other, moments) = {name: np.zeros_like(x) for name, x in WEIGHTS.items()}, start(ADAM)
    for _ in range(4):
        value, other, moments = step(ADAM, other, moments)
        gt.eval(value, other, moments)
        expected = {name: 0.9 * x + 0.1 * np.array(other[name]) for name, x in expected.items()}
    for name, x in expected.items():
        np.testing.assert_allclose(np.asarray(average[name]), x, rtol=2e-6, atol=1e-7)


def test_one_array_as_two_parameters():
    def tied(weights):
        return gt.square(gt.array(X) @ weights["a"] @ weights["b"].T).mean()

    def train(copied):
        first = gt.array(WEIGHTS["a"])
        weights = {"a": first, "b": gt.array(WEIGHTS["a"]) if copied else first}
        state = ADAM.init(weights)
        for _ in range(3):
            value, grads = gt.value_and_grad(tied)(weights)
            updates, state = ADAM.update(grads, state, weights)
            weights = gt.optim.apply_updates(weights, updates)
            float(value)
        return gt.tree.map(np.array, weights)

    same(train(copied=False), train(copied=True))


def test_a_step_that_fails_changes_nothing():
    weights, state = run(ADAM, 3)
    before = gt.tree.map(lambda x: np.array(x), (weights, state))
    zero = gt.array([0])
    value, grads = gt.value_and_grad(lambda w: loss(w) + (gt.array([1]) // zero).sum() * w["b"].sum())(weights)
    updates, new = ADAM.update(grads, state, weights)
    old, weights, state = (weights, state), gt.optim.apply_updates(weights, updates), new
    with pytest.raises(gt.ExecutionError):
        float(value)
    same(old, before)


def at_line(function, when, names, handler):
    """Run a function, and call another at the n-th event in some files; returns whether it raised."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if not frame.f_code.co_filename.endswith(names):
            return trace if event == "call" else None
        # where a block begins or ends, tracing raises where no signal is handled, and a lock would not be released
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if line.startswith(("with ", "try:", "return")):
            return trace
        count += 1
        if count == when:
            handler()
        return trace

    sys.settrace(trace)
    try:
        function()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "stride"),
    [(("force.py",), 1), (("array.py", "engine.py", "interpreter.py"), 7)],
)
def test_an_interrupt_at_any_line_of_a_step_loses_nothing(names, stride):
    expected = trained(ADAM, 3)
    when = 1
    while True:
        weights, state = run(ADAM, 2)
        value, weights, state = step(ADAM, weights, state)
        stopped = at_line(lambda: float(value), when, names, interrupt)  # noqa: B023 # at once
        # what is looked at by itself is another program, which rounds otherwise
        same((weights, state), expected, rounded=True)
        if not stopped:
            break
        when += stride
    assert when > 20


@pytest.mark.parametrize("look", [True, False])
def test_code_that_runs_in_the_middle_of_the_end_of_a_step(look):
    """As signal handlers and finalizers do: it looks at a result, or trains something else."""
    expected = trained(ADAM, 3)
    names = ("force.py", "array.py")

    def handler(weights, seen):
        sys.settrace(None)
        if look:
            seen.append(np.array(weights["c"]))
        else:
            run(ADAM, 2)

    for when in range(1, 60, 2):
        weights, state = run(ADAM, 2)
        value, weights, state = step(ADAM, weights, state)
        seen = []
        at_line(lambda: float(value), when, names, lambda: handler(weights, seen))  # noqa: B023 # at once
        same((weights, state), expected, rounded=True)
        for x in seen:
            np.testing.assert_allclose(x, expected[0]["c"], rtol=1e-5, atol=1e-7)


def test_another_thread_looks_at_a_step_that_runs():
    expected = trained(ADAM, 3)

    def look(arrays, ready, found):
        ready.wait()
        with gt.config(auto_compile=False):
            found.append(gt.tree.map(np.array, arrays))

    for _ in range(20):
        weights, state = run(ADAM, 2)
        value, weights, state = step(ADAM, weights, state)
        found, ready = [], threading.Barrier(2)
        thread = threading.Thread(target=look, args=((weights, state), ready, found))
        thread.start()
        ready.wait()
        with gt.config(auto_compile=False):  # long programs are fused from their first call on
            float(value)
        thread.join()
        # what is looked at by itself is another program, which rounds otherwise
        same(found[0], expected, rounded=True)
        same((weights, state), expected, rounded=True)


def test_threads_that_train_at_once():
    expected = trained(ADAM, 8)
    found = {}

    def work(k):
        with gt.config(auto_compile=False):
            found[k] = gt.tree.map(np.array, run(ADAM, 8))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got in found.values():
        same(got, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_goes_on():
    expected = trained(ADAM, 4)
    weights, state = run(ADAM, 2)
    value, weights, state = step(ADAM, weights, state)
    child = os.fork()
    if not child:
        code = 1
        try:
            float(value)
            value, weights, state = step(ADAM, weights, state)
            same((weights, state), expected, rounded=True)  # one thread adds in another order
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    float(value)
    value, weights, state = step(ADAM, weights, state)
    same((weights, state), expected)


def test_steps_leave_no_cycles():
    weights, state = run(ADAM, 3)
    gc.collect()
    gc.disable()
    try:
        value, weights, state = step(ADAM, weights, state)
        held = weakref.ref(value)
        float(value)
        del value
        assert held() is None
        weights, state = run(ADAM, 2)
    finally:
        gc.enable()


def test_parameters_of_a_step_that_was_not_looked_at():
    weights, state = start(ADAM)
    value, weights, state = step(ADAM, weights, state)
    kept = weights["a"]
    value, weights, state = step(ADAM, weights, state)
    float(value)  # both steps are one program
    np.testing.assert_array_equal(np.asarray(kept), trained(ADAM, 1)[0]["a"])
    same((weights, state), trained(ADAM, 2))


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_any_loop_gives_what_it_gives_with_copies(data):
    """Random loops: what is kept, looked at, and when."""
    steps = data.draw(st.integers(2, 6))
    names = st.tuples(st.sampled_from(sorted(KEPT)), st.sampled_from(sorted(WEIGHTS)), st.integers(0, 2))
    plans = [data.draw(st.lists(names, max_size=2)) for _ in range(steps)]
    often = data.draw(st.integers(1, 3))
    kept = []
    with gt.config(auto_compile=False):
        weights, state = start(ADAM)
        for k in range(steps):
            value, weights, state = step(ADAM, weights, state)
            if k % often == 0:
                float(value)
            for kind, name, which in plans[k]:
                array = (weights, state[0].mu, state[0].nu)[which][name]
                kept.append((KEPT[kind](array), k + 1, kind, name, which))
        same((weights, state), trained(ADAM, steps))
        for got, count, kind, name, which in kept:
            weights, state = trained(ADAM, count)
            expected = KEPT[kind](gt.array((weights, state[0].mu, state[0].nu)[which][name]))
            np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
