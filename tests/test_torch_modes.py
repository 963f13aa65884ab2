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
from gtrace.core.backends import backend as backends
from gtrace.core.runtime.engine import engine
from gtrace.testing import assert_close


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


@pytest.mark.slow
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


@pytest.mark.slow
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
        assert_close(value, (np.tanh(np.asarray(x)) * 3 + np.exp(np.asarray(x))).sum(), check_dtype=False)
        (program,) = [p for p in engine.programs.values() if "tanh" in str(p.graph) and "f32[77]" in str(p.graph)]
        assert (program.tier, program.ledger.interpreted_calls) == ("interpreted", 6)
    finally:
        go_on.set()
        thread.join(60)
    assert_close(results[0], np.sin(np.asarray(x)) * 2 + np.cos(np.asarray(x)))


def test_running_out_of_memory_is_said_to_be_that():
    x = gt.eval(gt.ones((1 << 20,)))
    with gt.config(auto_compile=False):
        huge = x[:, None] * x[None, :]  # 4 TiB
        with pytest.raises(gt.OutOfMemoryError, match=r"\[mul\] expected memory .* got none") as caught:
            gt.eval(huge)
        assert isinstance(caught.value, MemoryError)
        assert float((x * 2)[3]) == 2.0, "other results are not lost"


@pytest.mark.slow
def test_what_is_recorded_is_forgotten_again():
    """New shapes and new programs for ever: tables, and with them memory, stay bounded."""
    script = """
        import gc, resource, sys
        import gtrace as gt
        from gtrace.core.ir.aval import _interned as avals
        from gtrace.core.ir.op import _instrs as instrs

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


DEFAULT_DTYPE_CALLS = {
    "zeros": lambda x, i: torch.zeros(3),
    "full": lambda x, i: torch.full((2,), 0.1),
    "full of complex numbers": lambda x, i: torch.full((2,), 0.1j),
    "tensor": lambda x, i: torch.tensor([0.1, 2]),
    "tensor of arrays": lambda x, i: torch.tensor([0.1, np.float32(2)]),
    "as_tensor": lambda x, i: torch.as_tensor(0.1),
    "tensor of integers": lambda x, i: torch.tensor([1, 2]),
    "tensor of a NumPy array": lambda x, i: torch.tensor(np.ones(2, np.float32)),
    "arange": lambda x, i: torch.arange(0, 1, 0.3),
    "arange of integers": lambda x, i: torch.arange(3),
    "linspace": lambda x, i: torch.linspace(0, 1, 4),
    "window": lambda x, i: torch.hann_window(5),
    "stated dtype": lambda x, i: torch.ones(3, dtype=torch.float32) * 0.1,
    "like": lambda x, i: torch.zeros_like(x) + x.new_ones(3),
    "integers divided": lambda x, i: i / 3,
    "integers by a number": lambda x, i: i * 0.1,
    "integers converted": lambda x, i: i.float() / 3,
    "integers compared": lambda x, i: i + 16777216 > 16777216.5,
    "root of integers": lambda x, i: i.sqrt(),
    "logsumexp of integers": lambda x, i: torch.logsumexp(i, 0),
    "where of numbers": lambda x, i: torch.where(i > 1, 0.1, 1),
    "where of integers": lambda x, i: torch.where(i > 1, i, 0.1),
    "where of a tensor": lambda x, i: torch.where(i > 1, x, 0.1),
    "method where": lambda x, i: i.where(i > 1, 0.1),
    "fft of integers": lambda x, i: torch.fft.fft(i),
    "result_type": lambda x, i: torch.ones(2, dtype=torch.result_type(i, 0.1)),
    "get_default_dtype": lambda x, i: torch.ones(2, dtype=torch.get_default_dtype()),
    "layer": lambda x, i: torch.nn.functional.linear(torch.ones(3), torch.ones(2, 3) / 3),
    "mean": lambda x, i: (torch.ones(3) * x).mean(),
    "in place": lambda x, i: torch.zeros(3).add_(i, alpha=0.1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float64) for name in DEFAULT_DTYPE_CALLS),
        *((name, torch.bfloat16) for name in DEFAULT_DTYPE_CALLS if "fft" not in name),  # torch has none
    ],
)
def test_a_lifted_function_follows_the_default_dtype_of_torch_at_its_call(name, dtype):
    function = DEFAULT_DTYPE_CALLS[name]
    f = gt.lift(function)
    x, i = gt.array([1.0, 2.0, 4.0], dtype=gt.float32), gt.array([0, 1, 2])
    before = f(x, i).to_torch()
    try:
        torch.set_default_dtype(dtype)
        got = f(x, i).to_torch()
        direct = gt.jit(f, backend="eager")(x, i).to_torch()
        expected = function(x.to_torch(), i.to_torch())
    finally:
        torch.set_default_dtype(torch.float32)
    for found, wanted in ((got, expected), (direct, expected), (f(x, i).to_torch(), before)):
        assert found.dtype is wanted.dtype
        assert_close(found, wanted)


class _WithConstants(torch.nn.Module):
    def __init__(self, copies):
        super().__init__()
        self.copies = copies
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        noise = torch.zeros(3)
        if self.copies:  # torch's own tracer follows this, and not gtrace's
            noise = torch.as_strided(noise, (3,), (1,))
            noise.diagonal_scatter(noise, 0) if noise.dim() > 1 else noise.index_add_(0, torch.arange(3), torch.ones(3))
        return x * self.weight + noise + torch.tensor(0.1)


@pytest.mark.parametrize("copies", [False, True])
def test_a_module_follows_the_default_dtype_of_torch_also_under_jit(copies):
    params, apply = gt.from_module(_WithConstants(copies))
    step = gt.jit(apply, backend="eager")
    x = gt.ones(3)
    first = step(params, x)
    try:
        torch.set_default_dtype(torch.float64)
        inside = step(params, x), apply(params, x), gt.grad(lambda p: apply(p, x).sum())(params)["weight"]
        expected = _WithConstants(copies)(torch.ones(3, dtype=torch.float32)).dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert expected is torch.float64
    assert [v.dtype for v in inside] == [gt.float64, gt.float64, gt.float32]
    assert first.dtype == gt.float32 == step(params, x).dtype


def test_a_module_that_looks_at_values_follows_the_default_dtype_of_torch():
    class Routed(torch.nn.Module):
        def forward(self, x):
            return torch.zeros(3) + torch.tensor(0.1) if float(x.sum()) > 0 else x

    params, apply = gt.from_module(Routed())
    try:
        torch.set_default_dtype(torch.float64)
        found = apply(params, gt.ones(3, dtype=gt.float32))
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == gt.float64 and found.tolist() == [0.1] * 3


def test_functions_of_torch_on_arrays_follow_its_default_dtype_and_those_of_gtrace_do_not():
    i = gt.array([1, 2])
    try:
        torch.set_default_dtype(torch.float64)
        found = torch.true_divide(i, 3), i / 3, gt.linalg.inv(gt.array([[2, 0], [0, 2]])), gt.zeros(2)
    finally:
        torch.set_default_dtype(torch.float32)
    assert [x.dtype for x in found] == [gt.float64, gt.float32, gt.float32, gt.float32]
