"""``gt.to_torch_function``: our programs as nodes of torch's autograd, against torch."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch

import gtrace as gt
from gtrace.testing import assert_close

ours = functools.partial(gt.to_torch_function, backend="eager")


def attention(params, x, *, heads):
    q, k, v = (gt.matmul(x, params[name]).reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3) for name in "qkv")
    scores = gt.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, axis=-1)
    out = (scores @ v).swapaxes(-2, -3).reshape(*x.shape)
    return {"out": out, "top": gt.argmax(scores, axis=-1)}


def attention_torch(params, x, *, heads):
    q, k, v = ((x @ params[name]).unflatten(-1, (heads, -1)).transpose(-2, -3) for name in "qkv")
    scores = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
    out = (scores @ v).transpose(-2, -3).flatten(-2)
    return {"out": out, "top": scores.argmax(-1)}


def made(dtype=torch.float64):
    torch.manual_seed(0)
    params = {name: torch.randn(8, 8, dtype=dtype, requires_grad=True) for name in "qkv"}
    return params, torch.randn(2, 5, 8, dtype=dtype, requires_grad=True)


def test_values_and_gradients_are_those_of_torch():
    params, x = made()
    results = []
    for function in (ours(attention), attention_torch):
        out = function(params, x, heads=2)
        grads = torch.autograd.grad((out["out"] ** 2).sum(), [x, *params.values()])
        results.append((out, grads))
    (out, grads), (expected, theirs) = results
    assert_close(out, expected)
    assert_close(grads, theirs)
    assert not out["top"].requires_grad and out["top"].dtype is torch.int64
    assert repr(ours(attention)) == "<torch function attention>"


FUNCTIONS = {
    "elementwise": lambda x, y: gt.sin(x) * y + gt.exp(-x),
    "product": lambda x, y: (gt.tanh(x @ y.T), x.sum(0)),
    "loop": lambda x, y: gt.scan(lambda c, row: (gt.sin(c + row), c * row), x[0], y)[0],
    "identity": lambda x, y: (x, y * 1, y),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_both_orders(name):
    torch.manual_seed(0)
    function = ours(FUNCTIONS[name])
    x, y = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(function, (x, y))
    assert torch.autograd.gradgradcheck(function, (x, y))


def test_complex_numbers_have_torch_s_convention():
    function = ours(lambda z: gt.real(z * z * (1 + 2j)) + gt.abs(z))
    z = torch.tensor([1 + 2j, -0.5 + 1j], dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(function, (z,))
    assert torch.autograd.gradgradcheck(function, (z,))


def test_third_derivatives_and_torch_func():
    function = ours(lambda x: gt.sin(x).sum())
    x = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    value = function(x)
    for expected in (x.cos(), -x.sin(), -x.cos()):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        assert_close(value, expected)
    assert_close(torch.func.grad(function)(x.detach()), x.detach().cos())
    with pytest.raises(gt.ArgumentError, match=r"got torch\.vmap\. Use gt\.vmap inside"):
        torch.func.vmap(ours(lambda x, y: (x * y).sum()), (None, 0))(x, x.detach()[None])


def test_a_layer_of_a_torch_model_learns_as_torch_s_own_does():
    losses = []
    gtrace = ours(lambda x, w, b: gt.gelu(x @ w + b))
    for layer in (gtrace, lambda x, w, b: torch.nn.functional.gelu(x @ w + b)):
        torch.manual_seed(0)
        w, b = torch.nn.Parameter(torch.randn(4, 16) / 2), torch.nn.Parameter(torch.zeros(16))
        head = torch.nn.Linear(16, 1)
        optimizer = torch.optim.Adam([w, b, *head.parameters()], lr=1e-2)
        x = torch.randn(64, 4)
        for _ in range(30):
            optimizer.zero_grad()
            loss = ((head(layer(x, w, b)) - x.prod(1, keepdim=True)) ** 2).mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    assert_close(losses[0], losses[1], steps=800)  # of thirty updates


def test_results_have_memory_of_their_own():
    held = gt.eval(gt.ones(3))
    function = ours(lambda x: (x, x.reshape(3, 1), held, x * 2))
    x = torch.zeros(3)
    for result in function(x):
        result.fill_(7)
    assert x.tolist() == [0, 0, 0] and held.tolist() == [1, 1, 1]
    y = torch.zeros(3, requires_grad=True)
    function(y)[0].add_(1).sum().backward()
    assert y.grad.tolist() == [1, 1, 1]


def test_inputs_are_not_copied(monkeypatch):
    function = ours(lambda x: x * 2)
    x = torch.ones(4)
    function(x)
    seen = []
    ((plan, _),) = function._plans.values()
    run = plan.run.jitted
    object.__setattr__(plan.run, "jitted", lambda *arrays: seen.extend(arrays) or run(*arrays))
    function(x)
    assert seen[0].to_torch(copy=False).data_ptr() == x.data_ptr()


def test_writing_to_an_input_before_the_backward_pass_is_an_error():
    function = ours(lambda x: gt.sin(x))
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    out = function(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_modes_of_torch_around_a_call():
    function = ours(lambda x, w: x @ w)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    plain = function(x, w)
    with torch.no_grad():
        assert not function(x, w).requires_grad
    with torch.inference_mode():
        assert function(x, w).is_inference() or not function(x, w).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = function(x, w)
        assert out.dtype is torch.float32
        out.sum().backward()
    torch.testing.assert_close(out, plain, rtol=0, atol=0)
    assert_close(x.grad, w.sum(1).expand(4, 4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's tracer looks at it
def test_inside_torch_compile():
    function = ours(lambda x: gt.sin(x) * 2)
    x = torch.randn(5, requires_grad=True)
    compiled = torch.compile(lambda x: function(x + 1).cos() + 1, backend="eager")
    out = compiled(x)
    out.sum().backward()
    y = x.detach().requires_grad_()
    expected = ((y + 1).sin() * 2).cos() + 1
    expected.sum().backward()
    assert_close(out, expected)
    assert_close(x.grad, y.grad)


def test_other_arguments():
    function = ours(lambda x, power, options: {"y": x**power, "n": options["scale"] * x.sum()})
    x = torch.tensor([2.0], requires_grad=True)
    for power in (2, 3, 2):
        out = function(x, power, {"scale": 0.5, "mode": None})
        assert out["y"].item() == 2.0**power and out["n"].item() == 1
    assert function(x, 2, {"scale": gt.array(3.0)})["n"].item() == 6
    with pytest.raises(gt.ArgumentError, match="hashable"):
        function(x, bytearray(2), {"scale": 1})
    with pytest.raises(gt.ArgumentError, match="a function, got int"):
        ours(3)
    with pytest.raises(gt.ConcretizationError):
        ours(lambda x: x if x.sum() > 0 else -x)(x)
    with pytest.raises(gt.DeviceError, match="meta"):
        ours(gt.sin)(torch.empty(2, device="meta"))


def bent(x):
    return gt.tanh(x)


def test_functions_can_be_copied_within_what_holds_them():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.activation = torch.nn.Linear(2, 2), gt.to_torch_function(bent)

        def forward(self, x):
            return self.activation(self.linear(x))

    net, x = Net(), torch.ones(1, 2)
    right = net(x)
    for same in (copy.deepcopy(net), copy.copy(net)):
        torch.testing.assert_close(same(x), right)
    again = pickle.loads(pickle.dumps(net.activation))
    torch.testing.assert_close(again(x), torch.tanh(x))
    params, apply = gt.from_module(torch.nn.Linear(2, 1))
    for same in (copy.deepcopy(apply), pickle.loads(pickle.dumps(apply))):
        assert float(same(params, gt.ones(2))[0]) == float(apply(params, gt.ones(2))[0])
