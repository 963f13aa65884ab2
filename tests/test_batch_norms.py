"""Batch norms of torch are torch's kernels: values, derivatives, batches, layouts, and what is compiled of them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import gtrace as gt
from gtrace import ir
from gtrace.core.backends.fx import lower
from gtrace.core.backends.interpreter import batch_norms
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.interpreter.matmul import takes_library
from gtrace.core.passes.channels_last import predicted_strides
from gtrace.core.runtime.engine import engine

MODULES = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
SHAPES = [(6, 4), (5, 4, 3), (3, 4, 5, 2), (2, 4, 2, 3, 2)]


def norm_of(shape, **kwargs):
    """A norm with weights and statistics that are not those of the beginning."""
    torch.manual_seed(0)
    module = MODULES[len(shape)](shape[1], **kwargs)
    for p in module.parameters():
        p.data.normal_()
    if module.running_mean is not None:
        module.running_mean.normal_()
        module.running_var.uniform_(0.5, 2)
    return module


def close(got, expected, rtol=1e-8, atol=1e-9):
    np.testing.assert_allclose(np.asarray(got), expected.detach().numpy(), rtol=rtol, atol=atol)


def overloads(function, *args):
    return [n.attributes["overload"] for n in gt.make_graph(function)(*args).nodes if "overload" in n.op.params]


def test_the_running_variance_of_one_value_is_nan_as_in_torch():
    overload = torch.ops.aten._native_batch_norm_legit_functional.default
    arguments = torch.ones(1, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5
    for got, right in zip(batch_norms.DECOMPOSITIONS[overload](*arguments), overload(*arguments), strict=True):
        torch.testing.assert_close(got, right, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("track", "train"), [(True, True), (True, False), (False, True)])
def test_derivatives_of_derivatives_and_batches_of_them_are_those_of_torch(shape, affine, track, train):
    module = norm_of(shape, affine=affine, track_running_stats=track, dtype=torch.float64).train(train)
    x, w = torch.randn(2, *shape, dtype=torch.float64)
    _, apply = gt.from_module(module)

    def loss(x, *p):
        out, _ = apply(dict(zip(("weight", "bias"), p, strict=False)), x, state=apply.state, train=train)
        return (out**3).sum()

    values = [x.requires_grad_(), *module.parameters()]
    args = [gt.array(one.detach()) for one in values]
    every = tuple(range(len(args)))
    gradient = gt.grad(loss, every)
    second = gt.grad(lambda *args: sum(gt.sin(one).sum() for one in gradient(*args)), every)
    assert overloads(gradient, *args).count("aten.native_batch_norm_backward.default") == 1
    theirs = copy.deepcopy(module)
    values[1:] = theirs.parameters()
    expected = torch.autograd.grad((theirs(x) ** 3).sum(), values, create_graph=True)
    expected_second = torch.autograd.grad(sum(torch.sin(one).sum() for one in expected), values, retain_graph=True)
    for got, one in zip((*gradient(*args), *second(*args)), (*expected, *expected_second), strict=True):
        close(got, one)

    def hessian_product(w):
        return gt.jvp(lambda x: gt.grad(loss)(x, *args[1:]), (args[0],), (w,))[1]

    product = torch.autograd.grad((expected[0] * w).sum(), x)[0]
    batch = gt.vmap(hessian_product)(gt.stack([gt.array(w), gt.array(w) * 2]))
    close(batch[0], product)
    close(batch[1], 2 * product)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_jacobians_in_both_directions_and_rematerialization(train, affine):
    module = norm_of((3, 2, 2), affine=affine, dtype=torch.float64).train(train)
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    params, apply = gt.from_module(module)

    def ours(x, params):
        return gt.sin(apply(params, x, state=apply.state, train=train)[0])

    expected = torch.func.jacrev(lambda x: torch.sin(functional(x)))

    def functional(x):
        mean, var = module.running_mean.clone(), module.running_var.clone()
        return F.batch_norm(x, mean, var, module.weight, module.bias, train)

    for jacobian in (gt.jacrev, gt.jacfwd):
        close(jacobian(ours)(gt.array(x), params), expected(x))
    remade = gt.grad(lambda x, p: (gt.checkpoint(ours)(x, p) ** 2).sum(), (0, 1))
    plain = gt.grad(lambda x, p: (ours(x, p) ** 2).sum(), (0, 1))
    for got, one in zip(*(gt.tree.leaves(f(gt.array(x), params)) for f in (remade, plain)), strict=True):
        close(got, one.to_torch())


def test_tangents_by_weights_and_a_batch_of_them():
    module = norm_of((4, 3, 2, 2), dtype=torch.float64)
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    params, apply = gt.from_module(module)
    moves = {name: gt.array(torch.randn(5, 3, dtype=torch.float64)) for name in params}
    for train in (True, False):
        for names in (("weight", "bias"), ("weight",), ("bias",)):

            def function(p, train=train):
                return apply({**params, **p}, gt.array(x), state=apply.state, train=train)[0]

            given = {name: params[name] for name in names}
            found = gt.vmap(lambda t, f=function, p=given: gt.jvp(f, (p,), (t,))[1])({n: moves[n] for n in names})
            normal = function({"weight": gt.ones(3, gt.float64), "bias": gt.zeros(3, gt.float64)})
            expected = 0.0
            for name in names:
                by_channel = moves[name].reshape((5, 1, 3, 1, 1))
                expected = expected + (by_channel * normal if name == "weight" else gt.broadcast_to(
                    by_channel, (5, *x.shape)))  # fmt: skip
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_a_batch_has_statistics_and_weights_of_its_own():
    function = gt.lift(lambda x, m, v, w, b: train_step(x, m, v, w, b))
    generator = torch.Generator().manual_seed(0)
    x, m, w, b = (torch.randn(3, *s, generator=generator, dtype=torch.float64) for s in ((5, 4, 2), (4,), (4,), (4,)))
    v = m.square()
    found = gt.vmap(function)(*map(gt.array, (x, m, v, w, b)))
    for k in range(3):
        for got, expected in zip(found, train_step(x[k], m[k], v[k], w[k], b[k]), strict=True):
            close(got[k], expected)
    only_weights = gt.vmap(function, in_axes=(None, None, None, 0, None))(*map(gt.array, (x[0], m[0], v[0], w, b[0])))
    close(only_weights[0][2], train_step(x[0], m[0], v[0], w[2], b[0])[0])


def train_step(x, mean, var, weight, bias):
    mean, var = mean.clone(), var.clone()
    return F.batch_norm(x, mean, var, weight, bias, training=True, momentum=0.3), mean, var


def test_running_statistics_have_no_derivative():
    x, ones = gt.array(torch.randn(5, 4)), gt.ones(4)
    running = gt.lift(lambda x, m, v: train_step(x, m, v, None, None)[1:])
    evaluated = gt.lift(lambda x, m, v: F.batch_norm(x, m, v))
    for function, argument in ((lambda *a: sum(map(gt.sum, running(*a))), 0), (lambda *a: evaluated(*a).sum(), 1)):
        assert not np.asarray(gt.grad(function, argument)(x, gt.zeros(4), ones)).any()


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_values_are_those_of_torch_to_the_last_bit(scale, dtype):
    x = (torch.randn(16, 4, 7) * scale + 3 * scale).to(dtype)
    mean, var, weight = torch.zeros(4, dtype=dtype), torch.ones(4, dtype=dtype), torch.rand(4).to(dtype)
    with gt.config(auto_compile=False):
        found = gt.lift(train_step)(*map(gt.array, (x, mean, var, weight, weight)))
        for got, expected in zip(found, train_step(x, mean, var, weight, weight), strict=True):
            assert torch.equal(got.to_torch(), expected)


@pytest.mark.parametrize("own", [torch.float32, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_with_statistics_of_32(dtype, own):
    module = norm_of((3, 4, 5, 6)).to(own or dtype)
    x = torch.randn(3, 4, 5, 6).to(dtype)
    params, apply = gt.from_module(module)

    def loss(params, x):
        out, state = apply(params, x, state=apply.state, train=True)
        return (gt.astype(out, gt.float32) ** 3).sum(), (out, state)

    with gt.config(auto_compile=False):
        (_, (out, state)), (of_params, of_x) = gt.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
            params, gt.array(x)
        )
        given = x.clone().requires_grad_()
        expected = module(given)
        (expected.float() ** 3).sum().backward()
        assert torch.equal(out.to_torch(), expected) and torch.equal(of_x.to_torch(), given.grad)
        for name, p in module.named_parameters():
            assert of_params[name].to_torch().dtype is p.grad.dtype and torch.equal(of_params[name].to_torch(), p.grad)
        for name, buffer in module.named_buffers():
            assert torch.equal(state[name].to_torch(), buffer)


def test_a_cumulative_average():
    module = norm_of((6, 4), momentum=None)
    params, apply = gt.from_module(module)
    state = apply.state
    for seed in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        with pytest.warns(gt.RetracingWarning) if seed == 1 else np.errstate():
            out, state = apply(params, gt.array(x), state=state, train=True)
        close(out, module(x), 1e-6, 1e-6)
        for name, buffer in module.named_buffers():
            close(state[name], buffer, 1e-6, 1e-6)


def test_what_does_not_fit():
    params, apply = gt.from_module(nn.BatchNorm1d(4))
    with pytest.raises(gt.ArgumentError, match="more than 1 value per channel"):
        apply(params, gt.ones((1, 4)), state=apply.state, train=True)
    with pytest.raises(gt.DtypeError, match="floats of one dtype"):
        apply(params, gt.ones((3, 4), gt.float64))


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.one, self.other = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.other(self.second(torch.relu(self.one(self.first(x))))))


def residual():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Block(16), nn.MaxPool2d(2), Block(16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 10),
    )  # fmt: skip


def training_step(apply):
    def loss(params, state, x, y):
        logits, state = apply(params, x, state=state, train=True)
        return gt.nn.cross_entropy(logits, y), state

    return gt.value_and_grad(loss, has_aux=True)


def test_a_resnet_trains_as_in_torch():
    module = residual().double()
    params, apply = gt.from_module(module)
    xs, ys = torch.randn(5, 6, 3, 16, 16, dtype=torch.float64), torch.randint(0, 10, (5, 6))
    optimizer, state = torch.optim.SGD(module.parameters(), 0.05), apply.state
    for x, y in zip(xs, ys, strict=True):
        (value, state), grads = training_step(apply)(params, state, gt.array(x), gt.array(y))
        params = gt.tree_map(lambda p, g: p - 0.05 * g, params, grads)
        optimizer.zero_grad()
        expected = F.cross_entropy(module(x), y)
        expected.backward()
        optimizer.step()
        close(value, expected)
    found = {**params, **state}
    for name, one in module.state_dict().items():
        close(found[name], one, 1e-7, 1e-8)


@pytest.mark.slow
def test_compiled_it_is_part_of_the_loops_around_it():
    """Also for sizes that vary: the third size has no code of its own."""
    before = engine.tiering.compiles
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.BatchNorm1d(8, affine=False)).double()
    params, apply = gt.from_module(module)

    def loss(params, x):
        out, state = apply(params, x, state=apply.state, train=True)
        return (gt.sin(out) ** 3).sum(), state

    step = gt.value_and_grad(loss, has_aux=True)
    for size in (6, 7, 9):
        x = gt.array(torch.randn(size, 5, dtype=torch.float64))
        graph = gt.make_graph(step)(params, x)
        assert not any(takes_library(n.instr) for n in graph.nodes if n.op.name == "aten")
        strides = [[1] if len(a.shape) == 1 else [a.shape[1], 1] if a.shape else [] for a in graph.avals]
        module = lower(graph, [tuple(s) for s in strides], batch_norms.DECOMPOSITIONS).module
        assert not [n for n in module.graph.nodes if "batch_norm" in str(n.target)]
        compiled = gt.jit(step)(params, x)
        with gt.config(auto_compile=False):
            plain = gt.eval(step(params, x))
        for got, expected in zip(gt.tree.leaves(compiled), gt.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)
    assert engine.tiering.compiles - before == 2


def test_images_keep_their_layout_through_norms():
    module = residual()
    params, apply = gt.from_module(module)
    x, y = gt.array(torch.randn(8, 3, 32, 32)), gt.array(torch.randint(0, 10, (8,)))
    graph = gt.make_graph(training_step(apply))(params, apply.state, x, y)
    kinds = graph.value_avals()
    images = tuple(n.out for n in graph.nodes if len(getattr(kinds[n.out], "shape", ())) == 4)
    whole = ir.Graph(graph.inputs, graph.avals, graph.nodes, images)
    tensors = [one.to_torch() for one in gt.tree.leaves((params, apply.state, x, y))]
    given = [t.contiguous() for t in tensors]
    found = dict(zip(images, interpreter(whole)(given), strict=True))
    predicted = predicted_strides(graph, [t.stride() for t in given])
    real = {value: t.stride() for value, t in found.items() if t.is_contiguous(memory_format=torch.channels_last)}
    norms = {n.out for n in graph.nodes if n.op.name == "aten" and "batch_norm" in n.attributes["overload"]}
    ends = [n.out for n in graph.nodes if n.op.projection and n.ins[0] in norms and n.out in found]
    assert len(ends) >= 10
    for value in ends:
        assert predicted[value] == real[value]
