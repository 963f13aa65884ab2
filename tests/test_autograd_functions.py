"""`torch.autograd.Function` in functions of torch: derivatives by its own backward pass, beside torch's."""

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.errors import ArgumentError
from gtrace.testing import assert_close

Function = torch.autograd.Function


class Exponential(Function):
    """Its backward pass uses its result."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, ct):
        return ct * ctx.saved_tensors[0]


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, ct):
        return ct * Cosine.apply(*ctx.saved_tensors)


class Cosine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, ct):
        return -ct * Sine.apply(*ctx.saved_tensors)


class Clipped(Function):
    """The straight-through estimator, with a result of integers."""

    @staticmethod
    def forward(ctx, x, k):
        return x.clamp(-k, k), x.sign().long()

    @staticmethod
    def backward(ctx, ct, _):
        return ct, None


class Scaled(Function):
    """It states its context apart, has a default, keeps an attribute, and a result without a derivative."""

    @staticmethod
    def forward(x, k=2.0):
        return x * k, x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]
        ctx.save_for_backward(inputs[0])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, ct, _):
        (x,) = ctx.saved_tensors
        return ct * ctx.k * x, None


class Batched(Scaled):
    generate_vmap_rule = True


class Pair(Function):
    """Two arguments and two results, one more that is no tensor; one argument may need no cotangent."""

    @staticmethod
    def forward(ctx, x, y, n):
        ctx.save_for_backward(x, y, n)
        return x * y * n.float(), x + y, "text"

    @staticmethod
    def backward(ctx, ct, other, _):
        x, y, n = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, True, False)
        return ct * y * n.float() + other, (ct * x * n.float() + other).sum() * torch.ones_like(y), None


class Shifted(Function):
    """A cotangent of a larger shape and another dtype than its argument."""

    @staticmethod
    def forward(ctx, x, shift):
        return x + shift

    @staticmethod
    def backward(ctx, ct):
        return ct.double(), ct.double()


class Square(Function):
    """A complex function, by the other name of the backward pass."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def vjp(ctx, ct):
        return 2 * ct * ctx.saved_tensors[0].conj()


def shared(x):
    clipped, sign = Clipped.apply(x, 0.5)
    return clipped * sign.float()


def scaled(x):
    one, other = Scaled.apply(x)
    return one * other


def paired(x):
    product, total, text = Pair.apply(x, x.cos(), torch.arange(3))
    assert text == "text"
    return product * product + total


CASES = {
    "a result that is used again": Exponential.apply,
    "functions that call one another": Sine.apply,
    "several calls": lambda x: Sine.apply(Exponential.apply(x) * Sine.apply(x)),
    "a straight-through estimator": shared,
    "a context apart": scaled,
    "a keyword": lambda x: Scaled.apply(x, 5.0)[0],
    "several arguments and results": paired,
    "a cotangent that is summed": lambda x: Shifted.apply(x, x.sum()) * x,
    "complex numbers": lambda x: torch.view_as_real(Square.apply(torch.complex(x, 2 * x))).sum(-1),
    "inside torch.vmap": lambda x: torch.vmap(lambda x: Batched.apply(x)[0])(x),
    "inside a checkpoint": lambda x: torch.utils.checkpoint.checkpoint(Sine.apply, x, use_reentrant=False),
    "values that are read": lambda x: Sine.apply(x) * (2 if x.sum() > -100 else 1),
}


X, WEIGHTS = torch.tensor([0.3, -0.7, 1.2]), torch.tensor([1.0, 2.0, 3.0])


def loss_of(function):
    lifted, weights = gt.lift(function), gt.array(WEIGHTS)
    return lambda x: (lifted(x) * weights).sum()


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_derivatives_are_those_of_the_backward_pass(function):
    x = X.clone().requires_grad_()
    expected = (function(x) * WEIGHTS).sum()
    (slope,) = torch.autograd.grad(expected, x, create_graph=True)
    curvature = torch.autograd.grad(slope.sum(), x)[0] if slope.requires_grad else torch.zeros(3)
    loss, given = loss_of(function), gt.array(X)
    value, grad = gt.value_and_grad(loss)(given)
    assert_close(value, expected.detach())
    assert_close(grad, slope.detach())
    assert_close(gt.grad(lambda x: gt.grad(loss)(x).sum())(given), curvature)
    if function is not CASES["values that are read"]:
        assert_close(gt.vmap(gt.grad(loss))(gt.stack([given, given]))[1], slope.detach())


@pytest.mark.parametrize("name", ["a result that is used again", "functions that call one another", "a context apart"])
def test_compiled_and_forward_derivatives_are_the_same(name):
    loss, x = loss_of(CASES[name]), gt.array(X)
    assert_close(gt.jit(gt.grad(loss))(x), gt.grad(loss)(x))
    assert_close(gt.jvp(loss, (x,), (gt.array(WEIGHTS),))[1], (gt.grad(loss)(x) * WEIGHTS).sum())


def test_a_module_with_a_function_trains_in_a_loop():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.act = torch.nn.Linear(3, 3), Exponential.apply

        def forward(self, x):
            return self.act(self.layer(x))

    torch.manual_seed(0)
    module, x = Model(), torch.randn(2, 3)
    params, apply = gt.from_module(module)
    loss = lambda params: apply(params, x).sum()  # noqa: E731
    module(x).sum().backward()
    expected = {key: p.grad for key, p in module.named_parameters()}
    assert_close(gt.grad(loss)(params), expected)
    twice = gt.grad(lambda p: gt.scan(lambda c, _: (c + loss(p), None), gt.array(0.0), None, length=2)[0])(params)
    assert_close(twice, {key: 2 * g for key, g in expected.items()})


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, ct):
        return 3 * ct * ctx.saved_tensors[0] ** 2


class Forward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * x


class Writing(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(2))
        return x

    @staticmethod
    def backward(ctx, ct):
        return 2 * ct


class Missing(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, ct):
        return ct


REFUSED = {
    "no backward pass": (Forward.apply, r"\[Forward\] expected a function that has a backward pass, got none"),
    "a write": (lambda x: Writing.apply(x.clone()), r"\[Writing\] .*got one that writes to its arguments"),
    "too few cotangents": (lambda x: Missing.apply(x, x), r"\[Missing.backward\] expected 2 cotangents, got 1"),
    "a reentrant checkpoint": (
        lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True),
        r"\[CheckpointFunction\] expected checkpoints with use_reentrant=False",
    ),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(("function", "text"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_derivative_has_values_and_raises(function, text):
    loss, x = loss_of(function), gt.array(X)
    assert_close(loss(x), (function(X) * WEIGHTS).sum())
    for derivative in (gt.grad(loss), lambda x: gt.vmap(gt.grad(loss))(x[None]), lambda x: gt.jvp(loss, (x,), (x,))):
        with pytest.raises(ArgumentError, match=text):
            derivative(x)
    frozen = gt.grad(lambda x: (gt.stop_gradient(gt.lift(function)(x)) * x).sum())(x)
    assert_close(frozen, function(X))


def test_a_function_that_is_once_differentiable_has_one_gradient():
    loss, x = loss_of(Once.apply), gt.array(X)
    assert_close(gt.grad(loss)(x), 3 * X**2 * WEIGHTS)
    text = r"\[Once\] expected one gradient of a function that is once_differentiable, got another derivative"
    for derivative in (gt.hessian(loss), gt.grad(lambda x: gt.grad(loss)(x).sum())):
        with pytest.raises(ArgumentError, match=text):
            derivative(x)


def test_functions_are_torchs_again_after_a_trace():
    gt.lift(Exponential.apply)(gt.array(X))
    x = X.clone().requires_grad_()
    y = Exponential.apply(x)
    assert y.grad_fn is not None and type(y.grad_fn).__name__ == "ExponentialBackward"
    np.testing.assert_array_equal(torch.autograd.grad(y.sum(), x)[0], X.exp())
