"""Programs for a GPU, recorded where there is none: what is made beside an array is made on its device."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

import gtrace as gt
import gtrace.numpy as gnp
from gtrace.core.backends import backend, toolchain
from gtrace.core.backends.inductor.failures import is_transient
from gtrace.core.backends.interpreter.interpreter import CallPlan
from gtrace.core.base import devices

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
        recorded(lambda x: x + gt.ones(4), X)


def test_a_jitted_function_moves_an_array_when_it_runs():
    assert gt.jit(lambda x: x.to("cpu") * 2)(gt.ones(3)).tolist() == [2, 2, 2]


def test_numbers_of_kernels_that_need_it_are_on_the_device(recorded, monkeypatch):
    graph = recorded(lambda x: (gt.nextafter(x, 1.0), x * 3.0), X)
    made = []
    monkeypatch.setattr(torch, "tensor", lambda value, dtype, device: made.append((value, str(device))))
    CallPlan.of(graph)
    assert sorted(made) == [(1.0, "cuda:0"), (3.0, "cpu")]


def test_without_a_toolkit_programs_for_a_gpu_compile_in_their_process(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(backend, "missing_for_packages", toolchain.missing_for_packages.__wrapped__)
    backend._lacking.cache_clear()
    inductor = backend.find_backend("inductor")
    try:
        with pytest.warns(gt.CompileWarning, match="lacks CUDA's toolkit") as caught:
            kept = [inductor.ahead_of_time("default", torch.device("cuda:0")) for _ in range(2)]
    finally:
        backend._lacking.cache_clear()
    assert kept == [False, False] and len(caught) == 1
    assert inductor.ahead_of_time("default", torch.device("cpu"))


@pytest.mark.parametrize(
    "text", ["CUDA_HOME environment variable is not set", "ld: cannot find -lcuda", "cuda.h: No such file or directory"]
)
def test_no_toolkit_is_no_verdict_on_a_program(text):
    assert is_transient(OSError(text))
