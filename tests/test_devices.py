"""Programs for a GPU, recorded where there is none: what is made beside an array is made on its device."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

import gtrace as gt
import gtrace.numpy as gnp
from gtrace.core.backends import backend
from gtrace.core.backends.inductor.failures import is_transient
from gtrace.core.backends.interpreter.interpreter import CallPlan
from gtrace.core.base import devices
from gtrace.core.ops import create
from gtrace.core.trace import convert

X = ((8, 4), "float32")
V = ((4,), "float32")
S = ((), "float32")


class WithGPU:
    """torch, but that it sees a GPU."""

    cuda = types.SimpleNamespace(is_available=lambda: True, current_device=lambda: 0)

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(devices, "torch", WithGPU())

    def record(function, *types, numbers=()):
        given = [gt.ShapeDtypeStruct(shape, dtype, "cuda:0") for shape, dtype in types]
        return gt.make_graph(function)(*given, *numbers)

    return record


def adam(p, g):
    optimizer = gt.optim.chain(gt.optim.clip_by_global_norm(1.0), gt.optim.adam(1e-3))
    return gt.optim.apply_updates(p, optimizer.update(g, optimizer.init(p), p)[0])


PROGRAMS = {
    "an array of no dimension": (lambda x: x + gt.array(2.0), [X]),
    "zeros of no dimension": (lambda x: x + gt.zeros(()), [X]),
    "two of them": (lambda s: s * gt.array(2.0), [S]),
    "NumPy": (lambda x: x + np.ones(4, np.float32), [X]),
    "NumPy first": (lambda x: np.ones(4, np.float32) * x, [X]),
    "where": (lambda x: gt.where(x > 0, x, gt.array(1.0)), [X]),
    "a gradient of it": (lambda x: gt.grad(lambda a: (x * a).sum())(gt.array(2.0)) * x, [X]),
    "a list of places": (lambda x: x[[0, 2]], [X]),
    "places of NumPy": (lambda x: x[np.array([0, 2])], [X]),
    "places in an array": (lambda x: x[gt.array([0, 2])], [X]),
    "an update of NumPy": (lambda x: x.at[gt.array([0, 2])].add(np.ones((2, 4), np.float32)), [X]),
    "take": (lambda x: gt.take(x, gt.array([1, 0]), 0), [X]),
    "roll by an array": (lambda x: gt.roll(x, gt.array(1), 0), [X]),
    "to the CPU and back": (lambda x: x.to("cpu").to("cuda:0"), [X]),
    "adam": (adam, [X, X]),
    "global norm": (lambda x: gt.optim.global_norm([x]), [X]),
    "median": (gnp.median, [V]),
    "percentile": (lambda x: gnp.percentile(x, 30), [V]),
    "digitize": (lambda x: gnp.digitize(x, np.array([0.0, 1.0], np.float32)), [V]),
    "interp": (lambda x: gnp.interp(x, [0.0, 1.0], [1.0, 2.0]), [V]),
    "polyval": (lambda x: gnp.polyval([1.0, 2.0], x), [V]),
    "average": (lambda x: gnp.average(x, weights=[1.0, 2.0, 3.0, 4.0]), [V]),
    "isin": (lambda x: gnp.isin(x, [1.0]), [V]),
    "piecewise": (lambda x: gnp.piecewise(x, [x < 0], [-1.0, 1.0]), [V]),
    "scan from a number": (lambda x: gt.scan(lambda c, v: (c + v, c), 0.0, x)[0], [V]),
    "put": (lambda x: gnp.put(x, np.array([0]), 1.0), [V]),
    "fill_diagonal": (lambda x: gnp.fill_diagonal(x, 1.0), [X]),
    "packbits": (lambda x: gnp.packbits(x > 0), [V]),
    "unpackbits": (lambda x: gnp.unpackbits(x), [((3,), "uint8")]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_made_beside_an_array_is_made_on_its_device(recorded, name):
    function, types_ = PROGRAMS[name]
    assert {str(a.device) for a in recorded(function, *types_).out_avals} == {"cuda:0"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: x * a, lambda x, a: x**a, lambda x, a: gt.clip(x, a, 2.0), lambda x, a: x.at[0].set(a),
        lambda x, a: gt.jit(lambda x, a: gt.tanh(x) / a)(x, a),
    ],
)  # fmt: skip
def test_a_number_as_argument_follows_the_arrays(recorded, function):
    assert {str(a.device) for a in recorded(function, X, numbers=(0.5,)).out_avals} == {"cuda:0"}


def test_a_gradient_is_where_its_argument_is(recorded):
    graph = recorded(lambda x: gt.grad(lambda a: (x * a).sum())(gt.array(2.0)), X)
    assert [str(a.device) for a in graph.out_avals] == ["cpu"]


def test_arrays_of_some_size_stay_where_they_are(recorded):
    with pytest.raises(gt.DeviceError, match=r"\[add\] expected operands on one device"):
        recorded(lambda x: x + gt.ones(4, device="cpu"), X)


MADE = {
    "a full array of a number": (lambda x: x + gt.jit(lambda x, a: gt.full(x.shape, a))(x, 0.5), [X]),
    "a full array": (lambda x: x + gt.full(x.shape, 0.5), [X]),
    "a count": (lambda x: x * gt.arange(4), [X]),
    "floats": (lambda x: x * gt.arange(4.0), [X]),
    "an identity": (lambda x: x @ gt.eye(4), [X]),
    "steps": (lambda x: x + gt.linspace(0, 1, 4), [X]),
    "tables": (lambda x: gnp.interp(x, gnp.arange(3.0), gnp.arange(3.0)), [V]),
    "a key": (lambda x: gt.nn.dropout(x, 0.5, gt.random.key(0)), [X]),
    "a key of alpha dropout": (lambda x: gt.nn.alpha_dropout(x, 0.5, gt.random.key(0)), [X]),
    "a key that was split": (lambda x: gt.random.normal(gt.random.split(gt.random.key(0))[1], (8, 4)) + x, [X]),
    "a key of choices": (lambda x: gt.random.permutation(gt.random.key(0), x), [X]),
    "a key of logits": (lambda x: gt.random.categorical(gt.random.key(0), x), [X]),
    "the state of a loop": (lambda x: gt.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 2.0), (0, x)), [V]),
    "the state of a scan": (lambda x: gt.scan(lambda s, v: ((s[0] + 1, s[1] + v), v), (0, x[0]), x), [X]),
    "within a body": (lambda x: gt.fori_loop(0, 3, lambda i, c: c + gt.ones(4), x), [X]),
    "within a branch": (lambda x: gt.cond(x.sum() > 0, lambda x: x + gt.ones(4), lambda x: x - gt.zeros(4), x), [X]),
    "within a gradient": (lambda x: gt.grad(lambda x: (x * gt.ones(4)).sum())(x), [X]),
    "within a map": (lambda x: gt.vmap(lambda r: r + gt.ones(4) * gt.lax.axis_index("i"), axis_name="i")(x), [X]),
    "within a jitted function": (lambda x: x + gt.jit(lambda: gt.ones(4))(), [X]),
}


@pytest.mark.parametrize("name", MADE)
def test_what_a_traced_function_makes_is_on_the_gpu_of_its_arguments(recorded, name):
    function, types_ = MADE[name]
    assert {str(a.device) for a in recorded(function, *types_).out_avals} == {"cuda:0"}
    host = [gt.ShapeDtypeStruct(shape, dtype, "cpu") for shape, dtype in types_]
    assert {str(a.device) for a in gt.make_graph(function)(*host).out_avals} == {"cpu"}


def test_a_traced_function_of_two_devices_makes_arrays_where_the_setting_says(recorded):
    given = [gt.ShapeDtypeStruct((2,), "float32", name) for name in ("cpu", "cuda:0")]
    assert str(gt.make_graph(lambda x, y: (x, y, gt.ones(2)))(*given).out_avals[2].device) == "cpu"


def test_a_key_that_is_copied_to_a_gpu_is_used_up(recorded):
    key = gt.random.key(0)
    with gt.config(debug_key_reuse=True), pytest.raises(gt.KeyReuseError, match="used by dropout"):
        recorded(lambda x: gt.nn.dropout(x, 0.5, key) + gt.nn.dropout(x, 0.5, key), X)


def test_a_jitted_function_moves_an_array_when_it_runs():
    assert gt.jit(lambda x: x.to("cpu") * 2)(gt.ones(3)).tolist() == [2, 2, 2]


def test_numbers_of_kernels_that_need_it_are_on_the_device(recorded, monkeypatch):
    graph = recorded(lambda x: (gt.nextafter(x, 1.0), x * 3.0), X)
    made = []
    monkeypatch.setattr(torch, "tensor", lambda value, dtype, device: made.append((value, str(device))))
    monkeypatch.setattr(torch, "full", lambda shape, value, dtype, device: made.append((value, str(device))))
    CallPlan.of(graph)
    assert sorted(made) == [(1.0, "cuda:0"), (3.0, "cpu")]


CREATED = {
    "zeros": lambda: gt.zeros(3), "full": lambda: gt.full((2,), 1.5), "arange": lambda: gt.arange(4),
    "linspace": lambda: gt.linspace(0, 1, 3), "eye": lambda: gt.eye(2),
    "zeros like a type": lambda: gt.zeros_like(gt.ShapeDtypeStruct((2,), "float32")),
    "an index of an axis": lambda: gt.vmap(lambda x: gt.lax.axis_index("i") + 0 * x, axis_name="i")(gt.zeros(2)),
    "a sum over a loop": lambda: gt.fori_loop(0, 3, lambda i, c: c + i, gt.zeros(())),
    "a sum of both": lambda: gt.ones(3) * 2.5 + gt.arange(3) ** 2,
    "an index": lambda: gt.arange(5)[gt.arange(2)],
}  # fmt: skip


@pytest.mark.parametrize("name", CREATED)
def test_the_setting_device_says_where_arrays_are_made(recorded, name):
    with gt.config(device="cuda:0"):
        assert {str(a.device) for a in recorded(CREATED[name]).out_avals} == {"cuda:0"}
    assert {str(a.device) for a in recorded(CREATED[name]).out_avals} == {"cpu"}
    with gt.config(device="cuda:0"):
        assert recorded(lambda: gt.zeros(2, device="cpu")).out_avals[0].device == devices.CPU


class _OfHost:
    """torch, but that it makes tensors on the CPU, and notes where they should be."""

    def __init__(self, noted):
        self.noted = noted

    def __getattr__(self, name):
        return getattr(torch, name)

    def tensor(self, values, dtype, device="cpu"):
        self.noted.append(str(device))
        return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gt.array([1.0, 2.0]), lambda: gt.array(2.0), lambda: gt.sin(2.0), lambda: gt.random.key(0),
        lambda: gt.array(np.ones(2)), lambda: gt.asarray(np.ones(2)), lambda: gt.sum(np.ones(2)), lambda: gt.randn(2),
    ],
)  # fmt: skip
def test_host_data_goes_to_the_device_of_the_setting(recorded, monkeypatch, make):
    noted = []
    monkeypatch.setattr(convert, "torch", _OfHost(noted))
    for name in ("_moved", "sent"):
        monkeypatch.setattr(convert, name, lambda x, device: (noted.append(str(device)), x)[1])
    monkeypatch.setattr(convert, "to_tensor", lambda x, dtype, device: (noted.append(str(device)), torch.ones(2))[1])
    monkeypatch.setattr(create, "to_tensor", convert.to_tensor)
    with gt.config(device="cuda:0"):
        make()
    assert "cuda:0" in noted
    noted.clear()
    make()
    assert set(noted) <= {"cpu"}


def test_a_number_of_a_gpu_follows_arrays_of_the_cpu(recorded):
    import gtrace.jax.numpy as jnp

    x = gt.ShapeDtypeStruct((3,), "float32", "cpu")
    for function in (lambda x, s: x * s, lambda x, s: s - x, lambda x, s: gt.where(x > 0, x, s)):
        with gt.config(device="cuda:0"):
            graph = gt.make_graph(lambda x, f=function: f(x, jnp.full((), 2.0)))(x)  # it is weak
            assert [str(a.device) for a in graph.out_avals] == ["cpu"]
            with pytest.raises(gt.DeviceError, match="expected operands on one device"):
                gt.make_graph(lambda x, f=function: f(x, gt.ones(3)))(x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_setting_is_refused():
    before = gt.config.current
    with pytest.raises(gt.DeviceError, match=r"\[device\] expected a device of this machine, got 'cuda'.*Use cpu"):
        gt.config.update(device="cuda")
    assert gt.config.current is before
    run = subprocess.run(
        [sys.executable, "-c", "import gtrace"], env=os.environ | {"GT_DEVICE": "cuda"}, capture_output=True, text=True
    )
    assert run.returncode == 1 and "DeviceError: [device] expected a device of this machine" in run.stderr


def test_a_jitted_function_is_traced_for_each_device(recorded):
    made = []
    traced = gt.jit(lambda x: (made.append(gt.config.device), gt.zeros(2) + x)[1])
    for name in ("cpu", "cuda:0", "cpu"):
        with gt.config(device=name):
            gt.make_graph(traced)(gt.ShapeDtypeStruct((), "float32", name))
    assert made == ["cpu", "cuda:0"]


def test_jax_names_the_default_device(recorded):
    import gtrace.jax as jax

    with gt.config(), jax.default_device(jax.devices("cpu")[0]):
        assert jax.default_backend() == "cpu" and jax.config.jax_default_device.platform == "cpu"
    with jax.default_device("gpu"):
        assert (jax.default_backend(), gt.config.device) == ("gpu", "cuda")
        assert str(recorded(lambda: jax.numpy.ones(2)).out_avals[0].device) == "cuda:0"


def test_programs_for_a_gpu_compile_in_their_process():
    ahead_of_time = backend.find_backend("inductor").ahead_of_time
    assert ahead_of_time(torch.device("cpu"))
    assert not ahead_of_time(torch.device("cuda:0"))


@pytest.mark.parametrize(
    "text", ["CUDA_HOME environment variable is not set", "ld: cannot find -lcuda", "cuda.h: No such file or directory"]
)
def test_no_toolkit_is_no_verdict_on_a_program(text):
    assert is_transient(OSError(text))
