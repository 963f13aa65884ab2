"""Short programs are compiled by the C++ compiler alone; what it cannot compile, and what is longer, by Inductor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import attrs
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

import gtrace as gt
import gtrace.testing as testing
from gtrace.core.backends.native import library
from gtrace.core.backends.native.generator import generate
from gtrace.core.backends.native.values import UnsupportedLoopError
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.worker.client import worker
from gtrace.testing import assert_close

pytestmark = pytest.mark.native


def compiled(function, *args):
    """Return the results of a jitted function, and the program that was compiled for it."""
    jitted = gt.jit(function)
    with gt.config(compile=True):
        out = gt.eval(jitted(*args))
    (program,) = jitted.programs()
    assert program.tier == "compiled"
    return out, program


def train(params, x, y):
    def loss(params):
        h = gt.tanh(x @ params["w1"] + params["b1"])
        return gt.nn.cross_entropy(h @ params["w2"], y)

    value, grads = gt.value_and_grad(loss)(params)
    return value, gt.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def arguments(batch=16):
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 12), "b1": (12,), "w2": (12, 3)}
    params = {name: gt.array(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    return params, gt.array(rng.normal(size=(batch, 8)).astype(np.float32)), gt.array(rng.integers(0, 3, batch))


def test_a_training_step_is_one_native_function():
    args = arguments()
    (value, params), program = compiled(train, *args)
    assert program.native and len(program.schedule.requests) == 1
    with gt.config(auto_compile=False):
        expected, wanted = train(*args)
    assert_close(value, expected, check_dtype=False)
    for name, p in params.items():
        np.testing.assert_allclose(np.asarray(p), np.asarray(wanted[name]), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_with_the_setting_off_it_is_inductors():
    with gt.config(native=False):
        _, program = compiled(lambda x: gt.tanh(x) * gt.exp(-x) + 0.125, gt.ones((7, 9)))
    assert not program.native


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: gt.nn.conv2d(x, gt.ones((2, 3, 3, 3))) * 2 + 1,  # the library's
        lambda x: gt.special.digamma(gt.abs(x) + 1.5) * 2 + x,
    ],
)
def test_operations_without_native_code_leave_it_to_inductor(function):
    x = gt.array(np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32))
    out, program = compiled(function, x)
    assert not program.native
    with gt.config(auto_compile=False):
        np.testing.assert_allclose(np.asarray(out), np.asarray(function(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_large_programs_are_inductors():
    x = gt.ones((1 << 12, 1 << 10))
    _, program = compiled(lambda x: sum(gt.sin(x * k) for k in range(1, 9)).sum(), x)
    assert not program.native


@pytest.mark.slow
def test_what_the_generator_cannot_write_is_inductors(monkeypatch):
    def refuse(graph):
        raise UnsupportedLoopError("no code for this")

    monkeypatch.setattr(library, "generate", refuse)
    x = gt.array(np.linspace(-1, 1, 35, dtype=np.float32))
    out, program = compiled(lambda x: gt.tanh(x * 3) - gt.exp(x) + gt.sin(x), x)
    assert not program.native and not program.forms.reason
    host = np.linspace(-1, 1, 35, dtype=np.float32)
    np.testing.assert_allclose(np.asarray(out), np.tanh(host * 3) - np.exp(host) + np.sin(host), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_each_of_few_sizes_is_compiled_by_itself_and_more_by_one_program():
    step = gt.jit(lambda x, w: gt.tanh(x @ w).sum(0) * 2 - gt.sin(x).sum())
    w = gt.ones((5, 4))
    with gt.config(compile=True):
        for rows in (6, 7, 9, 11, 13, 6):
            x = gt.ones((rows, 5)) * 0.1
            assert_close(step(x, w), np.full(4, rows * np.tanh(0.5) * 2 - rows * 5 * np.sin(0.1)), check_dtype=False)
    made = step.programs()
    assert [p.forms.symbolic is None for p in made] == [True, True, False, False, False]
    assert all(p.tier == "compiled" for p in made)


def test_integers_that_torch_refuses_raise_its_error():
    divide = gt.jit(lambda x, y: (x // y) * 2 + x - y)
    with gt.config(compile=True):
        assert divide(gt.array([7, 8]), gt.array([2, 3])).tolist() == [11, 9]
        with pytest.raises(gt.ExecutionError, match="ZeroDivision"):
            gt.eval(divide(gt.array([7, 8]), gt.array([2, 0])))


@pytest.mark.slow
def test_inputs_of_any_strides():
    host = np.random.default_rng(1).normal(size=(6, 10)).astype(np.float32)
    function = gt.jit(lambda x: gt.tanh(x).sum(0) * x + x.T.max(0)[:, None])
    views = [host.T, host[::2, 1::3], host[:, ::-1], np.asfortranarray(host)]
    with gt.config(compile=True):
        for view in views:
            tensor = torch.from_numpy(view.copy()) if view.strides[-1] < 0 else torch.as_tensor(view)
            x = gt.from_dlpack(tensor)
            expected = np.tanh(view).sum(0) * view + view.max(1)[:, None]
            np.testing.assert_allclose(np.asarray(function(x)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=10, phases=[Phase.explicit, Phase.generate])
@given(testing.programs(max_nodes=16))
def test_random_programs(made):
    program, inputs = made
    with gt.config(auto_compile=False):
        expected = gt.eval(program(*inputs))
    jitted = gt.jit(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gt.CompileWarning)  # of Inductor, on what it compiles of them
        testing.assert_close(jitted(*inputs), expected, "compiled")
    assert {p.tier for p in jitted.programs() if p.native} <= {"compiled"}


SCRIPT = """
    import json, sys, time
    import gtrace as gt
    from gtrace.core.runtime.engine import engine
    from gtrace.core.runtime.worker.client import worker

    x = gt.array([[0.1 * k - j for k in range(12)] for j in range(10)])

    @gt.jit
    def step(w):
        return w - 0.01 * gt.grad(lambda w: (gt.tanh(x @ w) ** 2).mean())(w)
    w = gt.ones((12, 4))
    for k in range(int(sys.argv[1])):
        w = step(w)
        float(w.sum())
        if any(p.tier == "compiled" for p in engine.programs.values()):
            break
    worker.wait(60)
    (p,) = [p for p in engine.programs.values() if p.ops > 5]
    print(json.dumps([p.tier, p.forms.origin, worker.pid, "torch._inductor" in sys.modules, float(w.sum())]))
"""


@pytest.mark.slow
def test_a_second_process_has_it_and_nobody_starts_a_worker_or_inductor(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")} | {"GT_COMPILE_AFTER": "0"}
    env |= {"GT_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), "3"],
            env=env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert [f[0] for f in found] == ["compiled", "compiled"]
    assert [f[1] for f in found] == ["worker", "cache"]  # the lane of the C++ compiler, beside the program
    assert [f[2] for f in found] == [None, None]


@pytest.mark.slow
def test_explain_says_what_compiled_it():
    with gt.config(compile=True):
        step = gt.jit(train)
        gt.eval(step(*arguments(17)))
    assert "native" in str(gt.explain(step))


@pytest.mark.slow
def test_what_is_slower_than_interpreting_it_is_left_to_inductor(tmp_path, monkeypatch):
    def slow(path, origin):
        executable = load(path, origin)

        def run(tensors):
            time.sleep(0.003)
            return executable.run(tensors)

        return attrs.evolve(executable, run=run)

    load = library.load
    monkeypatch.setattr(library, "load", slow)
    x = gt.eval(gt.linspace(0, 1, 77))

    def program():
        (found,) = [p for p in engine.programs.values() if p.dims == (77,) and p.ops > 5]
        return found

    with gt.config(background=True, cache_dir=str(tmp_path), hot_threshold=2):
        for _ in range(200):
            expected = float((gt.sin(x) * 2 + gt.cos(x) - gt.exp(-x) * 0.125).sum())
            if program().tier == "compiled" and not program().native:
                break
            worker.wait(60)
        assert not program().native and program().tier == "compiled" and not program().forms.reason
    host = np.linspace(0, 1, 77)
    wanted = (np.sin(host) * 2 + np.cos(host) - np.exp(-host) * 0.125).sum()
    assert_close(np.float32(expected), wanted, check_dtype=False)


def test_memory_of_intermediate_results_is_used_again():
    def layers(x, w):
        for _ in range(20):
            x = gt.softmax(x @ w, -1)
        return x.sum()

    x, w = gt.ones((64, 64)), gt.ones((64, 64))
    graph = canonicalize(gt.make_graph(layers)(x, w)).graph
    assert generate(graph).scratch <= 4 * x.nbytes


@pytest.mark.slow
def test_other_threads_run_meanwhile():
    x = gt.eval(gt.linspace(0, 1, 1 << 20))
    _, program = compiled(lambda x: (gt.sin(x) * gt.cos(x) + gt.exp(gt.tanh(x)) * gt.atan(x)).sum(), x)
    assert program.native
    run, tensors = program.forms.executable.run, [x.to_torch()]
    began, over, seen = threading.Event(), threading.Event(), []

    def calls():
        began.set()
        for _ in range(20):
            run(tensors)
        over.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)  # the lock is given away by those who wait for something, and never taken from them
    thread = threading.Thread(target=calls)
    try:
        thread.start()
        began.wait()
        while not over.is_set():
            seen.append(time.perf_counter())
            time.sleep(0)
    finally:
        sys.setswitchinterval(before)
        thread.join()
    assert len(seen) > 1000  # a few a call, if it kept the lock
