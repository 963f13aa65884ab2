"""Results depend on the program and its inputs: not on torch's modes around the call, nor on who compiles beside it."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gtrace as gt
from gtrace.compile import backend as backends
from gtrace.engine.engine import engine


class Negating(TorchFunctionMode):
    """Changes what torch's functions return."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return -out if isinstance(out, torch.Tensor) and out.is_floating_point() else out


class Zeroing(TorchDispatchMode):
    """Changes what aten's operations return."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 0 if isinstance(out, torch.Tensor) and out.is_floating_point() else out


@contextlib.contextmanager
def setting(change, restore):
    change()
    try:
        yield
    finally:
        restore()


MODES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "default dtype": lambda: setting(
        lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)
    ),
    "default device": lambda: setting(
        lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)
    ),
    "a device context": lambda: torch.device("meta"),
    "deterministic algorithms": lambda: setting(
        lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)
    ),
    "a function mode": Negating,
    "a dispatch mode": Zeroing,
    "fake tensors": FakeTensorMode,
}  # fmt: skip

_sizes = itertools.count(1040)


def work(size, jit):
    """Every way into torch, for types that were not met before; what must come out as NumPy arrays."""
    x = gt.array(np.linspace(-1, 1, size * 3).reshape(size, 3), dtype=gt.float32)
    w = gt.array(np.eye(3, size), dtype=gt.float32)
    n = gt.arange(size) / 4

    def f(x):
        y = gt.tanh(x @ w) * 0.5 + n
        carry, ys = gt.scan(lambda c, v: (c * 0.9 + v, c.sum()), y[0] * 0.0, y)
        return (carry * 2.0).sum() + ys.mean() + gt.one_hot(gt.array([0, 1]), 3).sum()

    f = gt.jit(f, backend=jit) if jit else f
    value, gradient = gt.value_and_grad(f)(x)
    return {
        "value": float(value),
        "gradient": np.asarray(gradient),
        "dtypes": [str(value.dtype), str(gradient.dtype), str(n.dtype), str((n * 2).dtype)],
        "uniform": np.asarray(gt.random.uniform(gt.random.key(3), (size,))),
        "list": (gt.array([1, 2, 3]) * 2).tolist(),
        "repr": repr(gt.full((2,), 1.5) + 1),
        "kept": x * 3.0 + 1.0,
        "number": float(gt.add(1.5, 2)),
    }


@pytest.mark.parametrize("jit", ["", "eager"])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_around_the_call_changes_nothing(mode, jit):
    size = next(_sizes)
    with gt.config(auto_compile=False):
        with MODES[mode]():
            got = work(size, jit)
        assert torch.get_default_dtype() is torch.float32 and torch.ones(2).device.type == "cpu"
        kept = got.pop("kept")
        tensor = kept.to_torch(copy=False)
        assert not tensor.is_inference() and type(tensor) is torch.Tensor and tensor.dtype == torch.float32
        # what was computed inside the mode is the same program outside
        expected = work(size, jit)
        np.testing.assert_array_equal(np.asarray(kept), np.asarray(expected.pop("kept")))
        for name, value in expected.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("mode", ["autocast", "default dtype", "deterministic algorithms", "inference mode"])
def test_a_program_compiled_inside_a_mode_is_the_one_compiled_outside(mode):
    size = next(_sizes)
    x = gt.array(np.linspace(-1, 1, size * 4).reshape(size, 4), dtype=gt.float32)
    w = gt.array(np.linspace(0, 1, 12).reshape(4, 3), dtype=gt.float32)
    f = gt.jit(lambda x, w: gt.tanh(x @ w) * 1.5 + (x @ w).at[0].add(1.0))
    with MODES[mode]():
        inside = np.asarray(f(x, w))
    assert [program.tier for program in f.programs()] == ["compiled"]
    a, b = np.asarray(x), np.asarray(w)
    expected = np.tanh(a @ b) * 1.5 + a @ b + (np.arange(size) == 0)[:, None]
    np.testing.assert_allclose(inside, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(f(x, w)), inside)


def test_the_modes_are_those_of_the_caller_again_after_the_call():
    x = gt.eval(gt.ones(5))
    with torch.autocast("cpu"), torch.device("meta"), Negating() as mode:
        float((x * 2).sum())
        assert torch.is_autocast_enabled("cpu")
        assert torch.overrides._get_current_function_mode_stack()[-1] is mode
        assert torch.ones(1).device.type == "meta"
    with pytest.raises(gt.ExecutionError), torch.autocast("cpu"):
        try:
            gt.eval(gt.take(gt.arange(5), gt.array([7]) + gt.array([0]), mode="raise"))
        finally:
            assert torch.is_autocast_enabled("cpu")


def test_a_hot_program_does_not_wait_while_another_thread_compiles(monkeypatch):
    compiling, go_on = threading.Event(), threading.Event()
    original = backends.compile_with

    def slow(name, request):
        compiling.set()
        assert go_on.wait(60)
        return original(name, request)

    monkeypatch.setattr(backends, "compile_with", slow)
    x = gt.eval(gt.linspace(0, 1, 77))
    f = gt.jit(lambda x: gt.sin(x) * 2 + gt.cos(x), backend="eager")
    results = []
    thread = threading.Thread(target=lambda: results.append(np.asarray(f(x))))
    thread.start()
    try:
        assert compiling.wait(60)
        # a program that is hot, and is to be compiled in this process: interpreted for now
        with gt.config(hot_threshold=2, background=False):
            for _ in range(6):
                value = float((gt.tanh(x) * 3 + gt.exp(x)).sum())
        assert value == pytest.approx(float((np.tanh(np.asarray(x)) * 3 + np.exp(np.asarray(x))).sum()), rel=1e-5)
        (program,) = [p for p in engine.programs.values() if "tanh" in str(p.graph) and "f32[77]" in str(p.graph)]
        assert (program.tier, program.interpreted_calls) == ("interpreted", 6)
    finally:
        go_on.set()
        thread.join(60)
    np.testing.assert_allclose(results[0], np.sin(np.asarray(x)) * 2 + np.cos(np.asarray(x)), rtol=1e-6)


def test_running_out_of_memory_is_said_to_be_that():
    x = gt.eval(gt.ones((1 << 20,)))
    with gt.config(auto_compile=False):
        huge = x[:, None] * x[None, :]  # 4 TiB
        with pytest.raises(gt.OutOfMemoryError, match=r"\[mul\] expected memory .* got none") as caught:
            gt.eval(huge)
        assert isinstance(caught.value, MemoryError)
        assert float((x * 2)[3]) == 2.0, "other results are not lost"


def test_what_is_recorded_is_forgotten_again():
    """New shapes and new programs for ever: tables, and with them memory, stay bounded."""
    script = """
        import gc, resource, sys
        import gtrace as gt
        from gtrace.ir.aval import _interned as avals
        from gtrace.ir.op import _instrs as instrs

        gt.config.update(auto_compile=False)
        x = gt.eval(gt.ones(4))

        def programs(start, count):
            for n in range(start, start + count):
                float((gt.full((n,), 1.0) * 2.0 + 1.0)[0])

        def size():
            gc.collect()
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize() / 2**20

        programs(1, 9_000)
        before = size()
        programs(9_001, 3_000)
        print(size() - before, len(avals), len(instrs))
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in script.splitlines())], capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    grown, avals, instrs = done.stdout.split()
    assert float(grown) < 25, "MiB for 3,000 new shapes; the last 8,192 programs are remembered"
    assert int(avals) < 60_000 and int(instrs) < 60_000
