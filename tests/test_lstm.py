"""Layers of torch.nn.LSTM that oneDNN runs, against torch, and in transforms against the loops that float64 gets."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.backends.interpreter.lstm import BACKWARD, FORWARD
from gtrace.testing import assert_close

OPTIONS = [{}, {"bias": False}, {"bidirectional": True, "num_layers": 2, "batch_first": True}]


def called(function, *args):
    """Return the operators of torch that a program calls, and how many loops it has."""
    nodes = gt.make_graph(function)(*args).nodes
    return [node.attributes["overload"] for node in nodes if node.op.name == "aten"], sum(
        node.op.name == "scan" for node in nodes
    )


def loss_of(apply):
    def loss(params, x):
        out, (h, c) = apply(params, x)
        return (out**2).sum() + (h * c).sum() + gt.sin(c).sum()

    return loss


@pytest.mark.slow
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.sampled_from(OPTIONS), st.data())
@settings(max_examples=25)
def test_values_and_gradients_are_those_of_torch(length, batch, width, size, options, data):
    torch.manual_seed(data.draw(st.integers(0, 99)))
    module = torch.nn.LSTM(width, size, **options)
    x = torch.randn(length, batch, width)
    if data.draw(st.booleans()):
        x = x.transpose(0, 2).contiguous().transpose(0, 2)  # oneDNN is given addresses only
    x.requires_grad_()
    out, (h, c) = module(x)
    ((out**2).sum() + (h * c).sum() + c.sin().sum()).backward()
    params, apply = gt.from_module(module)
    ours = gt.from_torch(x.detach())
    _, (grads, by_x) = gt.value_and_grad(loss_of(apply), argnums=(0, 1))(params, ours)
    for one, other in zip(gt.tree.leaves(apply(params, ours)), (out, h, c), strict=True):
        np.testing.assert_allclose(one, other.detach(), rtol=1e-5, atol=1e-6)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(grads[name], parameter.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_x, x.grad, rtol=1e-4, atol=1e-5)


def derivatives(apply, params, x, compiled):
    """Return what transforms make of a network, by name. `compiled` compiles a function."""
    loss = loss_of(apply)
    moved = gt.tree.map(lambda p: gt.sin(gt.arange(p.size, dtype=p.dtype)).reshape(p.shape), params)
    xs, models = gt.stack([x, x * 2, x - 1]), gt.tree.map(lambda p: gt.stack([p, p * 2]), params)

    def product(params, x):
        return sum((a * b).sum() for a, b in zip(gt.tree.leaves(gt.grad(loss)(params, x)),
                                                 gt.tree.leaves(moved), strict=True))  # fmt: skip

    def in_loop(params):
        return gt.scan(lambda total, x: (total + loss(params, x), None), gt.zeros((), dtype=x.dtype), xs)[0]

    return {
        "forward": gt.jvp(loss, (params, x), (moved, gt.cos(x))),
        "linearized": gt.linearize(lambda x: apply(params, x)[0], x)[1](gt.cos(x)),
        "reverse over reverse": gt.grad(product, argnums=(0, 1))(params, x),
        "forward over reverse": gt.jvp(gt.grad(loss), (params, x), (moved, gt.cos(x))),
        "batch": gt.vmap(lambda x: apply(params, x))(xs),
        "gradients of examples": gt.vmap(gt.grad(loss, argnums=(0, 1)), in_axes=(None, 0))(params, xs),
        "gradients of models": gt.vmap(gt.grad(loss), in_axes=(0, None))(models, x),
        "rows of the Jacobian": gt.jacrev(lambda x: apply(params, x)[0][0, 0])(x),
        "recomputed": gt.grad(gt.checkpoint(loss))(params, x),
        "compiled": compiled(gt.value_and_grad(loss))(params, x),
        "gradient of a loop": gt.grad(in_loop)(params),
        "gradient of a compiled loop": compiled(gt.grad(in_loop))(params),
    }


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS[1:])
def test_transforms_give_what_they_give_of_loops(options):
    torch.manual_seed(0)
    module = torch.nn.LSTM(5, 7, **options)
    x = torch.randn(4, 3, 5)
    params, apply = gt.from_module(module)
    layers = 1 if options.get("num_layers") is None else 4
    found, loops = called(lambda p: apply(p, gt.from_torch(x)), params)
    assert (found.count(FORWARD), loops) == (layers, 0)
    ours = derivatives(apply, params, gt.from_torch(x), functools.partial(gt.jit, wait=True))
    params, apply = gt.from_module(module.double())
    found, loops = called(lambda p: apply(p, gt.from_torch(x.double())), params)
    assert (found.count(FORWARD), loops) == (0, layers)
    expected = derivatives(apply, params, gt.from_torch(x.double()), lambda function: function)
    for name, one in ours.items():
        for k, (a, b) in enumerate(zip(gt.tree.leaves(one), gt.tree.leaves(expected[name]), strict=True)):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=f"{name}, leaf {k}")


@pytest.mark.slow
def test_a_gradient_runs_each_layer_once_and_is_found_compiled():
    module = torch.nn.LSTM(5, 7, num_layers=2)
    params, apply = gt.from_module(module)
    x = gt.ones((4, 3, 5))
    step = gt.jit(gt.value_and_grad(loss_of(apply)), wait=True)
    with torch.autograd.profiler.profile() as profile:
        gt.eval(step(params, x))
    names = [event.name for event in profile.function_events]
    assert (names.count("gtrace::lstm"), names.count("gtrace::lstm_backward")) == (2, 2)


def test_sequences_of_any_length_train_as_in_torch():
    torch.manual_seed(0)
    module = torch.nn.LSTM(3, 6, batch_first=True)
    params, apply = gt.from_module(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for length in (4, 2, 7, 4, 1, 9, 3, 4):
        x = torch.randn(2, length, 3)
        optimizer.zero_grad()
        theirs = module(x)[0].square().mean()
        theirs.backward()
        optimizer.step()
        ours, grads = gt.value_and_grad(lambda p, x: gt.square(apply(p, x)[0]).mean())(params, gt.from_torch(x))
        params = gt.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        assert_close(ours, theirs)


@pytest.mark.parametrize("change", [{"proj_size": 2}, {"dtype": torch.bfloat16}])
def test_other_layers_are_loops(change):
    module = torch.nn.LSTM(5, 7, **change)
    params, apply = gt.from_module(module)
    found, loops = called(lambda p: apply(p, gt.ones((4, 3, 5), dtype=change.get("dtype", torch.float32))), params)
    assert FORWARD not in found and loops == 1


def test_programs_of_several_processes_have_loops_which_are_divided(monkeypatch):
    monkeypatch.setattr("gtrace.core.partitioner.processes.count", lambda: 2)
    params, apply = gt.from_module(torch.nn.LSTM(5, 7))
    found, loops = called(gt.grad(loss_of(apply)), params, gt.ones((4, 3, 5)))
    assert not {FORWARD, BACKWARD} & set(found) and loops >= 2


@pytest.mark.slow
def test_exported_files_have_loops(tmp_path):
    torch.manual_seed(0)
    params, apply = gt.from_module(torch.nn.LSTM(3, 4, num_layers=2))
    x = gt.from_torch(torch.randn(5, 2, 3))

    def step(w, x):
        return gt.value_and_grad(loss_of(apply))({**params, "weight_hh_l0": w}, x)

    gt.export(step, params["weight_hh_l0"], x).save(tmp_path / "step.gt")
    found = gt.load(tmp_path / "step.gt")(params["weight_hh_l0"], x)
    for a, b in zip(gt.tree.leaves(found), gt.tree.leaves(step(params["weight_hh_l0"], x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
