"""Methods of torch.Tensor on Arrays: those written out, those that record torch's, and those that Arrays refuse."""

from __future__ import annotations

import subprocess
import sys
import warnings

import launch
import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.errors import ArgumentError, ConcretizationError, ImmutableError, ShapeError
from gtrace.testing import assert_close

rng = np.random.default_rng(0)
X = torch.from_numpy(rng.normal(size=(2, 3, 4)))
SQUARE = torch.from_numpy(rng.normal(size=(3, 3)))

# name: (function of a tensor, tensor)
CALLS = {
    "view": (lambda x: x.view(6, -1), X),
    "view of a tuple": (lambda x: x.view((4, 6)), X),
    "view of bits": (lambda x: x.view(torch.int64), X),
    "view of smaller elements": (lambda x: x.view(dtype=torch.int32), X),
    "view_as": (lambda x: x.view_as(torch.zeros(6, 4)), X),
    "reshape_as": (lambda x: x.reshape_as(torch.zeros(6, 4)), X),
    "flatten": (lambda x: x.flatten(), X),
    "flatten from": (lambda x: x.flatten(1), X),
    "flatten between": (lambda x: x.flatten(start_dim=0, end_dim=-2), X),
    "flatten a number": (lambda x: x.sum().flatten(), X),
    "expand": (lambda x: x.expand(5, -1, 3, -1), X),
    "expand_as": (lambda x: x.expand_as(torch.zeros(5, 2, 3, 4)), X),
    "permute": (lambda x: x.permute(2, 0, -2), X),
    "permute a list": (lambda x: x.permute([1, 0, 2]), X),
    "unsqueeze": (lambda x: x.unsqueeze(-1), X),
    "unflatten": (lambda x: x.unflatten(2, (2, 2)), X),
    "t": (lambda x: x.t(), SQUARE),
    "t of a vector": (lambda x: x[0].t(), SQUARE),
    "H": (lambda x: x.H, SQUARE + 1j),
    "mH": (lambda x: x.mH, X * 1j),
    "adjoint": (lambda x: x.adjoint(), X * 1j),
    "mm": (lambda x: x.mm(x), SQUARE),
    "addmm": (lambda x: x.addmm(x, x, beta=2), SQUARE),
    "softmax": (lambda x: x.softmax(-1), X),
    "log_softmax": (lambda x: x.log_softmax(dim=0, dtype=torch.float32), X),
    "exp": (lambda x: x.exp(), X),
    "abs": (lambda x: x.abs().rsqrt(), X),
    "lerp": (lambda x: x.lerp(x + 1, 0.25), X),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 2.0), X),
    "chunk": (lambda x: x.chunk(2, dim=2)[1], X),
    "topk": (lambda x: x.topk(2, dim=1).values, X),
    "narrow": (lambda x: x.narrow(1, 1, 2), X),
    "norm": (lambda x: x.norm(dim=1), X),
    "index_select": (lambda x: x.index_select(1, torch.tensor([2, 0])), X),
    "new_full": (lambda x: x.new_full((2, 2), 3.0) * x.sum(), X),
    "clone": (lambda x: x.clone().contiguous(), X),
    "type_as": (lambda x: x.type_as(torch.zeros(1, dtype=torch.float32)), X),
    "to dtype": (lambda x: x.to(torch.float32), X),
    "to device and dtype": (lambda x: x.to("cpu", torch.float16, copy=True), X),
    "to what another has": (lambda x: x.to(torch.zeros(1)), X),
    "sum over dim": (lambda x: x.sum(dim=(0, 2), keepdim=True), X),
    "max over dim": (lambda x: x.max(dim=1).values, X),
    "var over dim": (lambda x: x.var(dim=1, unbiased=False), X),
    "std over dim": (lambda x: x.std(dim=-1), X),
    "sort along dim": (lambda x: x.sort(dim=1, descending=True).indices, X),
    "half": (lambda x: x.half(), X),
    "int": (lambda x: (x * 10).int(), X),
    "bool": (lambda x: x.bool(), X),
    "cdouble": (lambda x: x.cdouble(), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_as_torch(name):
    function, x = CALLS[name]
    got, expected = function(gt.array(x)), function(x)
    assert got.dtype == expected.dtype
    assert_close(got, expected.resolve_conj())


@pytest.mark.parametrize(
    "name", ["view", "flatten from", "expand", "unsqueeze", "softmax", "addmm", "lerp", "to dtype"]
)
def test_they_are_recorded(name):
    function, x = CALLS[name]

    def loss(x):
        return (function(x).abs() ** 2).sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    assert_close(gt.grad(loss)(gt.array(x)), leaf.grad)  # of float32


def test_what_is_known_without_values():
    x = gt.zeros((2, 3), dtype=gt.float16)
    graph = gt.make_graph(lambda x: x * (x.dim() + x.numel() + x.element_size() + x.is_floating_point()))(x)
    assert [node.op.name for node in graph.nodes] == ["mul"]
    assert (x.dim(), x.numel(), x.element_size(), x.get_device()) == (2, 6, 2, -1)
    assert x.is_cpu and not (x.is_cuda or x.requires_grad or x.is_complex()) and x.layout is torch.strided


def test_numpy_goes_first():
    x = gt.array([[3.0, 1.0], [2.0, 5.0]])
    assert x.size == 4 and isinstance(x.max(0), gt.Array) and x.repeat(2).shape == (8,)
    assert gt.zeros((2, 3, 4)).transpose(2, 0, 1).shape == (4, 2, 3)


def test_detached_values_are_constants():
    x = gt.array([1.0, 2.0])
    for detached in (lambda x: x.detach(), torch.detach, gt.lift(lambda x: x.detach())):
        assert_close(gt.grad(lambda x, d=detached: (d(x) * x).sum())(x), [1.0, 2.0], check_dtype=False)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda x: x.add_(1.0), r"x = x\.add\(\.\.\.\)"),
        (lambda x: x.relu_(), r"x = x\.relu\(\.\.\.\)"),
        (lambda x: x.zero_(), r"gt\.zeros_like"),
        (lambda x: x.requires_grad_(), r"gt\.grad"),
        (lambda x: setattr(x, "requires_grad", True), r"gt\.grad"),
        (lambda x: setattr(x, "data", x), r"gt\.stop_gradient"),
        (lambda x: x.share_memory_(), r"x\.to_torch"),
        (lambda x: x.fill_diagonal_(0), r"x\.at\[i, i\]"),
        (lambda x: x.grad, r"gt\.grad"),
        (lambda x: x.normal_(), r"gt\.random"),
        (lambda x: x.data_ptr(), r"to_torch"),
        (lambda x: x.to_sparse(), "dense"),
    ],
)
def test_what_arrays_cannot_have_is_no_attribute_and_says_what_to_use(use, says):
    with pytest.raises(ImmutableError, match=says) as caught:
        use(gt.ones(2))
    assert isinstance(caught.value, AttributeError) and "test_tensor_methods.py" in str(caught.value)


def test_hasattr_is_honest():
    x = gt.ones(2)
    for name in ("add_", "grad", "values", "indices", "data", "to_sparse", "__array_interface__",
                 "__cuda_array_interface__", "no_such_method"):  # fmt: skip
        assert not hasattr(x, name)
        assert name not in dir(x)
    for name in ("addmm", "view", "at", "mean"):
        assert hasattr(x, name) and name in dir(x)
    with pytest.raises(AttributeError):
        x.requires_grad = True


def test_wrong_calls_say_what_is_wrong():
    x = gt.ones((2, 3))
    with pytest.raises(ShapeError, match="reshape"):
        x.view(4, 2)
    with pytest.raises(ShapeError, match="flatten"):
        x.flatten(1, 0)
    with pytest.raises(ArgumentError, match="mm"):
        x.mm(x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dtyp'"):
        x.to(dtyp=gt.float32)
    with pytest.raises(ConcretizationError):
        gt.jit(lambda x: x.masked_select(x > 0))(x)


@pytest.mark.slow
def test_methods_that_are_written_out_need_no_tracer():
    code = """
import sys, gtrace as gt
x = gt.ones((2, 3))
x.view(3, 2).float().unsqueeze(0).softmax(-1).exp().expand(4, -1, -1).numpy()
print("torch._functorch._aot_autograd.functional_utils" in sys.modules)
"""
    with launch.from_scratch():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["to", "to another", "type_as", "type", "lifted", "float", "half", "int"])
def test_conversions_of_complex_numbers_drop_their_imaginary_part_with_a_warning(name):
    def twice(x):
        return x.double() * 2

    values = [1.5 - 2j, -0.25 + 1j]
    calls = {
        "to": lambda x: x.to(torch.float64),
        "to another": lambda x: x.to(torch.zeros(1, dtype=torch.int16)),
        "type_as": lambda x: x.type_as(torch.zeros(1)),
        "type": lambda x: x.type(torch.float64),
        "lifted": lambda x: (
            gt.lift(lambda x: x.double() * 2) if isinstance(x, gt.Array) else lambda x: x.double() * 2
        )(x),
    }
    call = calls.get(name, lambda x: getattr(x, name)())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = call(torch.tensor(values))
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        found = call(gt.array(values))
    assert_close(found, right)
    assert gt.array(values).bool().tolist() == [True, True]
