"""torch's own functions on Arrays, ``gt.lift``, and rules that are derived from torch."""

from __future__ import annotations

import collections
import dataclasses
import functools
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

import gtrace as gt
from gtrace import ir
from gtrace.errors import ArgumentError, ConcretizationError, DtypeError, ExecutionError
from gtrace.testing import assert_close

rng = np.random.default_rng(0)
LIBRARY = torch.library.Library("gtrace_tests", "DEF")


def normal(*shape):
    return torch.from_numpy(rng.normal(size=shape))


WITH_ZEROS = torch.tensor([[1.5, -0.5, 2.0, 0.25], [0.5, 0.0, -2.0, 3.0], [0.0, 1.25, 0.0, -1.5]], dtype=torch.float64)


def positive_definite(n):
    x = normal(n, n)
    return x @ x.T + n * torch.eye(n, dtype=torch.float64)


# name: (function of tensors, arguments; gradients are taken by all of them)
FUNCTIONS = {
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), normal(2, 3, 9), normal(4, 3, 3)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, dilation=2), normal(2, 2, 7, 7), normal(3, 2, 2, 2), normal(3)),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), normal(1, 2, 3, 3), normal(2, 3, 2, 2)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), normal(2, 2, 6, 6)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, stride=2), normal(2, 2, 7, 7)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 2), normal(1, 2, 5, 7)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w), normal(3, 4), normal(4)),
    "group_norm": (lambda x: F.group_norm(x, 2), normal(2, 4, 3)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), normal(5, 3), normal(3)),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), normal(1, 2, 4, 8),
                  normal(1, 2, 4, 8)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), normal(1, 1, 3, 4)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), normal(1, 2, 4, 4),
                    normal(1, 3, 3, 2)),
    "unfold": (lambda x: F.unfold(x, 2), normal(1, 2, 4, 4)),
    "svd": (lambda x: torch.linalg.svd(x, full_matrices=False).S, normal(4, 3)),
    "eigh": (lambda x: torch.linalg.eigh(x @ x.mT).eigenvalues, normal(3, 3)),
    "qr": (lambda x: torch.linalg.qr(x).R, normal(4, 3)),
    "solve": (torch.linalg.solve, positive_definite(3), normal(3, 2)),
    "slogdet": (lambda x: torch.linalg.slogdet(x).logabsdet, positive_definite(3)),
    "matrix_exp": (torch.matrix_exp, normal(3, 3)),
    "cumprod": (lambda x: torch.cumprod(x, 1), normal(3, 4)),
    "cumprod with zeros": (lambda x: torch.cumprod(x, -1), WITH_ZEROS),
    "cumprod in float32": (lambda x: torch.cumprod(x, 1, dtype=torch.float32), WITH_ZEROS),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 0), normal(5)),
    "lgamma": (lambda x: torch.lgamma(x.abs() + 0.5), normal(6)),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), normal(3, 4)),
    "kthvalue": (lambda x: torch.kthvalue(x, 2, dim=1).values, normal(3, 5)),
    "where_and_views": (lambda x: torch.where(x > 0, x, x * 2).view(2, 6).t().unsqueeze(0)[:, 1:, ::1], normal(3, 4)),
    "in_place_inside": (lambda x: torch.zeros(3, 4, dtype=x.dtype).add_(x).mul_(x).index_fill_(
        0, torch.tensor([1]), 0.5), normal(3, 4)),
}  # fmt: skip


def total(function, *xs):
    y = function(*xs)
    return (y * y).sum() / 3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_are_those_of_torch(name):
    function, *tensors = FUNCTIONS[name]
    lifted, places = gt.lift(function), tuple(range(len(tensors)))
    arrays = [gt.array(x) for x in tensors]
    np.testing.assert_allclose(lifted(*arrays), function(*tensors), rtol=1e-10, atol=1e-12)
    leaves = [x.clone().requires_grad_() for x in tensors]
    with sdpa_kernel(SDPBackend.MATH):  # torch's other kernels have no second derivative
        expected = total(function, *leaves)
    first = torch.autograd.grad(expected, leaves, create_graph=True)
    ours = gt.grad(lambda *xs: total(lifted, *xs), argnums=places)
    for a, b in zip(ours(*arrays), first, strict=True):
        np.testing.assert_allclose(a, b.detach(), rtol=1e-7, atol=1e-9)
    squares = gt.grad(lambda *xs: sum((g * g).sum() for g in ours(*xs)), argnums=places)
    try:
        second = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)
    except RuntimeError as error:  # of grid_sample before torch 2.12
        assert "is not implemented" in str(error)
        with pytest.raises(gt.DtypeError, match="that torch cannot differentiate"):
            squares(*arrays)
        return
    for a, b in zip(squares(*arrays), second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["conv2d", "svd", "layer_norm", "max_pool2d", "attention", "solve"])
def test_tangents_and_batches(name):
    function, *tensors = FUNCTIONS[name]
    lifted = gt.lift(function)
    arrays = [gt.array(x) for x in tensors]
    moved = [x * 0.5 + 0.25 for x in arrays]
    _, tangent = gt.jvp(lambda *xs: total(lifted, *xs), tuple(arrays), tuple(moved))
    grads = gt.grad(lambda *xs: total(lifted, *xs), argnums=tuple(range(len(arrays))))
    along = sum((g * t).sum() for g, t in zip(grads(*arrays), moved, strict=True))
    assert_close(tangent, along)
    stacks = [gt.stack([x, x + 0.1]) for x in arrays]
    for k, row in enumerate(zip(*stacks, strict=True)):
        np.testing.assert_allclose(gt.vmap(lifted)(*stacks)[k], lifted(*row), rtol=1e-9, atol=1e-11)
        for a, b in zip(gt.vmap(grads)(*stacks), grads(*row), strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-8, atol=1e-10)


CELLS = torch.tensor([[[0, 3], [9, 14]]])
# torch's own forward derivatives of most of these are wrong
TANGENTS = {
    "cholesky": lambda x: torch.linalg.cholesky(x + 6 * torch.eye(3)),
    "cholesky_inverse": lambda x: torch.cholesky_inverse((x + 3 * torch.eye(3)).tril()),
    "max_unpool2d": lambda x: F.max_unpool2d(x[None, :2, :2], CELLS, 2, output_size=(4, 4)) ** 2,
    "pinv": torch.linalg.pinv,
}


@pytest.mark.parametrize("name", TANGENTS)
def test_tangents_agree_with_gradients(name):
    f = gt.lift(lambda x: TANGENTS[name](x).sin().sum())
    x, moved = gt.array(normal(3, 3)), gt.array(normal(3, 3))
    first = gt.grad(f)
    assert_close(gt.jvp(f, (x,), (moved,))[1], (first(x) * moved).sum())
    along = gt.grad(lambda x: (first(x) * moved).sum())
    assert_close(gt.jvp(first, (x,), (moved,))[1], along(x), scale=float(gt.abs(along(x)).max()))


def test_torch_functions_record_arrays():
    x = gt.array(normal(2, 3, 8))
    w = normal(4, 3, 3)
    assert_close(F.conv1d(x, gt.array(w)), F.conv1d(x.to_torch(), w))
    assert_close(F.conv1d(x, w), F.conv1d(x.to_torch(), w))  # a tensor is a constant
    values, places = torch.sort(x, dim=-1)
    assert isinstance(values, gt.Array) and places.dtype == torch.int64
    assert_close(torch.add(torch.ones(8), x), x + 1)
    graph = gt.make_graph(lambda x: F.conv1d(x, w).relu() if hasattr(x, "relu") else gt.relu(F.conv1d(x, w)))(x)
    assert [node.op.name for node in graph.nodes] == ["aten", "relu"]


NO_KERNEL = {
    "celu": (F.celu, ["int8", "uint16", "complex64"]),
    "hardswish": (F.hardswish, ["int64", "bool", "complex128"]),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), ["uint32", "complex64"]),
    "cholesky": (torch.linalg.cholesky, ["float16", "bfloat16"]),
    "kthvalue": (lambda x: torch.kthvalue(x, 2).values, ["uint64", "complex64"]),
    "heaviside": (lambda x: torch.heaviside(x, x), ["complex64"]),
}


@pytest.mark.parametrize("name", NO_KERNEL)
def test_a_dtype_without_a_kernel_is_refused_while_recording(name):
    function, refused = NO_KERNEL[name]
    gt.eval(function(gt.eye(4)))
    for dtype in refused:
        with pytest.raises(gt.DtypeError, match=f"aten.*{name[:7]}"):
            function(gt.eye(4).astype(dtype))


def test_what_torch_has_of_ours_becomes_ours():
    graph = gt.make_graph(gt.lift(lambda x, y: torch.softmax(torch.tanh(x @ y) + 2.0, -1).sum(0)))(
        gt.ones((2, 3)), gt.ones((3, 4))
    )
    assert [node.op.name for node in graph.nodes] == ["matmul", "tanh", "add", "softmax", "sum"]


def test_a_constant_tensor_is_copied():
    w = torch.ones(3)
    y = torch.mul(gt.ones(3), w)
    w.fill_(5)
    assert y.tolist() == [1, 1, 1]


def test_text_of_a_program_is_read_again():
    graph = gt.make_graph(
        lambda x, w: (
            torch.linalg.svd(F.conv1d(x, w, padding=1)[0], full_matrices=False).S.sum()
            + F.hardtanh(x, -float("inf"), 1.0).sum()
        )
    )(gt.array(normal(1, 2, 5)), gt.array(normal(3, 2, 3)))
    text = ir.print_graph(graph)
    again = ir.parse_graph(text)
    ir.verify(again)
    assert ir.print_graph(again) == text
    assert ir.sign(ir.canonicalize(again).graph) == ir.sign(ir.canonicalize(graph).graph)


@pytest.mark.slow
def test_compiled_programs():
    def step(x, w):
        return gt.value_and_grad(lambda w: (F.conv2d(F.silu(x), w, padding=1) ** 2).mean())(w)

    x, w = gt.array(normal(2, 3, 8, 8)), gt.array(normal(4, 3, 3, 3))
    expected = step(x, w)
    compiled = gt.jit(step)
    for a, b in zip(compiled(x, w), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    assert [p.tier for p in compiled.programs()] == ["compiled"]


def test_programs_with_operators_that_inductor_cannot_call_are_interpreted():
    x = gt.array(positive_definite(3))
    compiled = gt.jit(lambda x: torch.linalg.eigh(x).eigenvalues * 2, wait=True)
    found = compiled(x)  # nothing is to be mended: there is no warning, which would be an error here
    assert [p.tier for p in compiled.programs()] == ["failed"]
    assert_close(found, torch.linalg.eigvalsh(x.to_torch()) * 2)


def test_operators_that_torch_does_not_batch_are_batched_one_by_one():
    x, update = gt.array(normal(2, 6)), gt.array(normal(2, 3))

    def spread(x, update):
        return torch.as_strided_scatter(x, update, (3,), (2,), 0)

    rows = [spread(a, b) for a, b in zip(x, update, strict=True)]
    assert_close(gt.vmap(spread)(x, update), gt.stack(rows))
    # places are counted from the beginning of the array, not of the memory that it is a part of
    assert_close(torch.as_strided(x[1], (2,), (1,), 0), x[1, :2])


def test_a_bag_of_embeddings_has_a_gradient():
    table, places = normal(5, 3), torch.tensor([[0, 2], [2, 4]])
    leaf = table.clone().requires_grad_()
    (F.embedding_bag(places, leaf, mode="sum") ** 2).sum().backward()
    got = gt.grad(lambda table: (F.embedding_bag(places, table, mode="sum") ** 2).sum())(gt.array(table))
    assert_close(got, leaf.grad)


@pytest.mark.slow
def test_a_signature_is_the_same_in_another_process():
    code = """
import torch, gtrace as gt
f = gt.jit(lambda x: torch.linalg.svdvals(torch.cumprod(x, 0)).sum())
print(f.lower(gt.ones((3, 3))).signature)
"""
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(runs) == 1 and len(runs.pop().strip()) == 32


def test_a_function_that_looks_at_values():
    x = gt.array([[1.0, 0.0], [2.0, 3.0]])
    assert torch.nonzero(x).tolist() == [[0, 0], [1, 0], [1, 1]]
    assert gt.lift(lambda x: x.item() + 1)(gt.array(2.0)) == 3.0
    with pytest.raises(ConcretizationError, match=r"needs no values, got one that looks at them while tracing jit"):
        gt.jit(lambda x: torch.nonzero(x))(x)
    with pytest.raises(ConcretizationError, match=r"while tracing jit"):
        gt.jit(gt.grad(lambda x: torch.masked_select(x, x > 0).sum()))(x)


LOOKING = {
    "masked_select": (lambda x: torch.masked_select(x, x > 0), normal(4, 3)),
    "mask in place": (lambda x: x.clone().index_put((x > 0,), torch.tensor(2.0, dtype=x.dtype)) * x, normal(5)),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b).solution, normal(5, 3), normal(5, 2)),
    "residuals": (lambda a, b: torch.linalg.lstsq(a, b, driver="gels").residuals, normal(5, 3), normal(5, 2)),
    "gaussian_nll_loss": (lambda m, v: F.gaussian_nll_loss(m, torch.ones_like(m), v.square()), normal(4), normal(4)),
    "cov": (lambda x: torch.cov(x, aweights=torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)), normal(2, 3)),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x, torch.tensor([2, 0, 1]), 0), normal(3)),
    "branch": (lambda x: x * 2 if x.sum() > 0 else x * 3, normal(3)),
}


@pytest.mark.parametrize("name", LOOKING)
def test_gradients_of_functions_that_look_at_values(name):
    function, *tensors = LOOKING[name]
    lifted = gt.lift(function)
    grad = gt.grad(lambda *xs: total(lifted, *xs), argnums=tuple(range(len(tensors))))
    for sign in (1, -1):  # other values lead to other calls
        leaves = [(sign * x).requires_grad_() for x in tensors]
        want = torch.autograd.grad(total(function, *leaves), leaves)
        for a, b in zip(grad(*[gt.array(sign * x) for x in tensors]), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_what_has_no_gradient_at_known_values_says_so():
    x = gt.array([3.0, 1.0])
    with pytest.raises(DtypeError, match=r"whose result's size depends on values. Call it under torch.no_grad\(\)"):
        gt.grad(lambda x: torch.unique(x).sum())(x)
    # as the message says
    np.testing.assert_array_equal(gt.grad(lambda x: x.sum() + torch.unique(gt.stop_gradient(x)).sum())(x), [1.0, 1.0])

    @gt.lift
    def constant(x):
        with torch.no_grad():
            return torch.unique(x)

    np.testing.assert_array_equal(gt.grad(lambda x: x.sum() * constant(x).sum())(x), [4.0, 4.0])


def test_no_grad_within_a_function_is_seen():
    @gt.lift
    def scaled(x):
        with torch.no_grad():
            scale = x.abs().max()
            whole = torch.ones(3, dtype=torch.int64) * 2
        return x / scale * whole

    x = gt.array([1.0, -2.0, 4.0])
    assert_close(gt.grad(lambda x: scaled(x).sum())(x), [0.5, 0.5, 0.5])
    assert_close(gt.jvp(scaled, (x,), (gt.ones(3),))[1], [0.5, 0.5, 0.5])


REFUSED = {
    "in place": (lambda x: torch.Tensor.add_(torch.ones(2, 2), x), r"\[torch.add_\] .*in-place function. Use"),
    "inplace=True": (lambda x: F.relu(x, inplace=True), r"leaves its arguments as they are, got one that writes"),
    "out=": (lambda x: torch.add(x, x, out=torch.ones(2, 2)), r"the keyword out"),
    "dropout": (lambda x: F.dropout(x, 0.5), r"torch's global state. Draw with gt.random"),
    "rand_like": (torch.rand_like, r"torch's global state. Draw with gt.random"),
    "shapes": (lambda x: torch.matmul(x, gt.ones(3)), r"arguments that fit, got f32\[2,2\], f32\[3\]. torch says"),
    "unknown": (lambda x: gt.lift(lambda x, y: x)(x, [object()]), r"expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED)[:-1])
def test_refusals_say_what_to_do(name):
    function, match = REFUSED[name]
    with pytest.raises(ArgumentError, match=match):
        function(gt.ones((2, 2)))


def test_a_function_without_derivative():
    with pytest.raises(DtypeError, match=r"a function that has a derivative.*gt.custom_vjp"):
        gt.grad(lambda x: torch.special.zeta(x, torch.ones(3)).sum())(gt.array([1.5, 2.0, 3.0]))


def test_lift_keeps_trees_and_static_arguments():
    @gt.lift
    def f(params, x, *, power=1, mode=None):
        return {"y": (params["w"] @ x) ** power, "mode": mode}

    params = {"w": gt.array([[1.0, 2.0], [3.0, 4.0]])}
    out = f(params, gt.array([1.0, 1.0]), power=2, mode="a")
    assert out["y"].tolist() == [9, 49] and out["mode"] == "a"
    assert f(params, gt.array([1.0, 1.0]))["y"].tolist() == [3, 7]


def test_ambient_modes_change_nothing():
    x = gt.array(normal(2, 3, 8)).astype(gt.float32)
    w = gt.array(normal(4, 3, 3)).astype(gt.float32)
    expected = F.conv1d(x, w).numpy()
    f = gt.lift(lambda x: F.conv1d(x, torch.ones(4, 3, 3)))
    with torch.autocast("cpu"), torch.no_grad():
        assert F.conv1d(x, w).dtype == torch.float32
        np.testing.assert_array_equal(F.conv1d(x, w), expected)
        assert f(x).dtype == torch.float32
    with torch.device("meta"):
        np.testing.assert_array_equal(F.conv1d(x, w), expected)


def test_functional_call_works_within_a_lifted_function():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    params, apply = gt.from_module(module)
    x = gt.array(normal(5, 3)).astype(gt.float32)
    with pytest.raises(TypeError, match=r"not an instance of torch\.Tensor"):  # as docs/coming-from-pytorch.md says
        torch.func.functional_call(module, params, (x,))
    call = gt.lift(lambda params, x: torch.func.functional_call(module, params, (x,)).square().sum())
    found, expected = gt.grad(call)(params, x), gt.grad(lambda p: (apply(p, x) ** 2).sum())(params)
    for name in params:
        assert_close(found[name], expected[name])
    with pytest.raises(ValueError, match="must be Tensor"):
        torch.func.grad(lambda x: (x * x).sum())(x)


BLOCKS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("way", ["module", "lifted", "torch function", "vmap", "jit"])
def test_gradients_do_not_follow_functions_of_torch_within_no_grad(way, block):
    block = BLOCKS[block]
    params, apply = gt.from_module(torch.nn.Linear(3, 1, bias=False))
    x = gt.array(normal(5, 3)).astype(gt.float32)
    call = {
        "module": lambda p: apply(p, x).sum(),
        "lifted": gt.lift(lambda p: (torch.ones(5, 3) @ p["weight"].T).sum()),
        "torch function": lambda p: torch.sum(torch.tanh(p["weight"])),
        "vmap": lambda p: gt.vmap(lambda row: apply(p, row))(x).sum(),
        "jit": lambda p: apply(p, x).sum(),
    }[way]

    def loss(p):
        with block():
            target = call(p)
        return (call(p) - 2 * target) ** 2

    def stopped(p):
        return (call(p) - 2 * gt.stop_gradient(call(p))) ** 2

    gradient = gt.grad(gt.jit(loss, backend="eager") if way == "jit" else loss)
    expected = gt.grad(stopped)(params)["weight"]
    assert abs(expected).sum() > 0
    assert_close(gradient(params)["weight"], expected)
    with block():  # around the gradient it says nothing
        assert_close(gradient(params)["weight"], expected)
        jitted = gt.jit(lambda p: call(p) * 1.5, backend="eager")
        value = float(jitted(params))
    assert_close(np.float32(value), 1.5 * call(params))
    assert_close(gt.grad(jitted)(params)["weight"], gt.grad(lambda p: call(p) * 1.5)(params)["weight"])


def test_gradients_follow_functions_of_gtrace_within_no_grad():
    def f(x):
        with torch.no_grad():
            return gt.linalg.inv(x)[0, 0] + gt.sin(x)[0, 0]  # as docs/coming-from-pytorch.md says

    assert_close(gt.grad(f)(gt.eye(2))[0, 0], np.cos(1.0) - 1, check_dtype=False)


def test_threads_trace_at_the_same_time():
    found, errors = [], []

    def work(k):
        try:
            x = gt.array(np.linspace(0, 1, 12 + k).reshape(1, 1, -1))
            w = gt.ones((1, 1, 3), dtype=gt.float64)
            found.append(np.asarray(gt.grad(lambda x: F.conv1d(x, w).sum())(x))[0, 0, 5])
        except Exception as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and found == [3.0] * 6


def test_define_op():
    def softclip(x, y, *, power):
        return torch.tanh(x**power) * y

    derived = gt.define_op("softclip", softclip)
    stated = gt.define_op(
        "softclip", softclip,
        vjp=lambda ct, operands, out, power: (
            ct * operands[1] * (1 - gt.tanh(operands[0] ** power) ** 2) * power * operands[0] ** (power - 1),
            ct * gt.tanh(operands[0] ** power),
        ),
    )  # fmt: skip
    forward = gt.define_op(
        "softclip", softclip,
        jvp=lambda ts, operands, out, power: (
            ts[0] * operands[1] * (1 - gt.tanh(operands[0] ** power) ** 2) * power * operands[0] ** (power - 1)
            + ts[1] * gt.tanh(operands[0] ** power)
        ),
    )  # fmt: skip
    x, y = gt.array(normal(4)), gt.array(normal(4))
    expected = gt.grad(lambda x, y: derived(x, y, power=3).sum(), argnums=(0, 1))(x, y)
    for op in (stated, forward):
        assert op.__name__ == "softclip"
        assert_close(op(x, y, power=3), derived(x, y, power=3))
        grads = gt.grad(lambda x, y, op=op: op(x, y, power=3).sum(), argnums=(0, 1))(x, y)
        for a, b in zip(grads, expected, strict=True):
            assert_close(a, b)
        rows = gt.vmap(lambda x, op=op: gt.grad(lambda z: op(z, y, power=2).sum())(x))(gt.stack([x, y]))
        assert_close(rows[1], gt.grad(lambda z, op=op: op(z, y, power=2).sum())(y))
    with pytest.raises(ArgumentError, match="a vjp or a jvp, got both"):
        gt.define_op("f", softclip, vjp=softclip, jvp=softclip)
    with pytest.raises(ArgumentError, match="a callable as function"):
        gt.define_op("f", None)


def test_an_operator_of_another_library_keeps_its_name():
    LIBRARY.define("scaled(Tensor x, float factor) -> Tensor")
    LIBRARY.impl("scaled", lambda x, factor: x * factor, "CPU")
    LIBRARY.impl("scaled", lambda x, factor: torch.empty_like(x), "Meta")
    f = gt.lift(lambda x: torch.ops.gtrace_tests.scaled(x, 2.0) + 1)
    graph = gt.make_graph(f)(gt.ones(3))
    assert graph.nodes[0].attributes["overload"] == "gtrace_tests.scaled.default"
    assert f(gt.ones(3)).tolist() == [3, 3, 3]
    with pytest.raises(DtypeError, match="a function that has a derivative"):
        gt.grad(lambda x: f(x).sum())(gt.ones(3))


def test_integers_are_divided_without_trying_a_division_by_zero():
    rows, columns = torch.unravel_index(gt.array([1, 5]), (2, 3))
    assert rows.tolist() == [0, 1] and columns.tolist() == [1, 2]


def test_batches_of_results_that_have_other_shapes_on_other_devices():
    table, places = normal(4, 3), torch.tensor([0, 2, 3, 1])
    sums = gt.vmap(lambda w: F.embedding_bag(places, w, torch.tensor([0, 1]), mode="sum"))
    want = F.embedding_bag(places, table, torch.tensor([0, 1]), mode="sum")
    assert_close(sums(gt.array(torch.stack([table, -table]))), torch.stack([want, -want]))


def test_dtypes_of_gtrace_are_arguments_of_torch():
    x = gt.array([1.0, 2.0])
    assert F.softmax(x, 0, dtype=gt.float64).dtype == gt.float64
    assert_close(gt.lift(torch.masked.sum)(x, mask=x > 1), 2.0)


S = torch.as_strided
# functions of a (6, 4) matrix that read or write memory by strides
BY_STRIDES = {
    "slice": lambda x: S((x * 1)[1:], (3, 2), (4, 1)),
    "transposed": lambda x: S((x * 1).T, (3, 2), (1, 4)),
    "windows": lambda x: S((x * 1).T, (4, 5, 2), (1, 4, 4)),
    "copy": lambda x: torch.as_strided_copy((x * 1).T[1:], (3, 2), (1, 4)),
    "expanded": lambda x: S((x * 1).expand(2, 6, 4), (3, 2), (4, 1)),
    "write": lambda x: _written(x, lambda y: S(y, (4,), (5,)).fill_(7.0)),
    "write_transposed": lambda x: _written(x, lambda y: S(y.T, (4,), (5,)).fill_(7.0)),
    "write_slice": lambda x: _written(x, lambda y: S(y[1:], (3,), (5,)).mul_(7.0)),
}


def _written(x, write):
    y = x * 1
    write(y)
    return y


@pytest.mark.parametrize("name", BY_STRIDES)
def test_memory_is_read_by_the_strides_that_torch_has(name):
    function, x = BY_STRIDES[name], torch.arange(24.0).reshape(6, 4).requires_grad_()
    right = function(x)
    weights = torch.arange(1.0, right.numel() + 1).reshape(right.shape)
    (grad,) = torch.autograd.grad((right * weights).sum(), x)
    ours = gt.lift(function)
    assert torch.equal(ours(gt.array(x)).to_torch(), right.detach())
    assert torch.equal(gt.vmap(ours)(gt.array(x)[None])[0].to_torch(), right.detach())
    assert torch.equal(gt.grad(lambda a: (ours(a) * gt.array(weights)).sum())(gt.array(x)).to_torch(), grad)


@pytest.mark.parametrize("name", ["transposed", "windows"])
def test_memory_is_read_by_strides_where_values_are_read_too(name):
    function, x = BY_STRIDES[name], torch.arange(24.0).reshape(6, 4).requires_grad_()
    right = (function(x) ** 2).sum()
    reading = gt.lift(lambda x: function(x) if x.sum() > 0 else x)
    value, grad = gt.value_and_grad(lambda x: (reading(x) ** 2).sum())(gt.array(x))
    assert_close(value, right.detach())
    assert_close(grad, torch.autograd.grad(right, x)[0])


def test_elements_that_are_joined_may_be_broadcast():
    weights = gt.array([1.0, 2.0, 3.0])
    parts = gt.lift(lambda x: torch.view_as_real(torch.complex(x, 2 * x)).sum(-1))
    assert_close(gt.grad(lambda x: (parts(x) * weights).sum())(gt.ones(3)), 3 * weights)
    wide = gt.lift(lambda x: x.view(torch.int64))(gt.broadcast_to(gt.ones((3, 1)), (3, 2)))
    assert torch.equal(wide.to_torch(), torch.ones(3, 2).view(torch.int64))


def test_memory_that_no_dense_array_has_is_refused():
    with pytest.raises(ArgumentError, match=r"as_strided\] expected a view of a dense tensor"):
        gt.lift(lambda x: S(torch.complex(x, x).real, (2,), (2,)))(gt.ones(4))


# what writes to y = 2 * x, where torch follows no gradient
UNFOLLOWED = {
    "clamp": torch.no_grad()(lambda y, x: y.clamp_(max=1.0)),
    "view": torch.no_grad()(lambda y, x: y[1].mul_(3.0)),
    "item": torch.no_grad()(lambda y, x: y.__setitem__(0, 5.0)),
    "transposed": torch.no_grad()(lambda y, x: y.T.add_(x.T)),
    "several": torch.no_grad()(lambda y, x: [y.mul_(2.0), y[0].zero_(), y.add_(1)]),
    "sized": torch.no_grad()(lambda y, x: y.mul_(x[x > 1.5].sum())),
    "data": lambda y, x: y.data.clamp_(max=1.0),
    "view of data": lambda y, x: y.data[0].mul_(3.0),
    "detached": lambda y, x: y.detach().mul_(3.0),
}


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("name", UNFOLLOWED)
def test_writes_that_autograd_does_not_follow_keep_the_gradient(name, looks):
    def loss(x):
        if looks and x.sum() < -50:
            return x.sum()
        y = x * 2
        row = y[0]
        UNFOLLOWED[name](y, x)
        return (y**2).sum() + (row**3).sum()

    x = torch.tensor([[1.0, 2.0], [3.0, -4.0]], requires_grad=True)
    right = loss(x)
    value, grad = gt.value_and_grad(gt.lift(loss))(gt.array(x))
    assert float(value) == pytest.approx(right.item())
    torch.testing.assert_close(grad.to_torch(), torch.autograd.grad(right, x)[0])


@dataclasses.dataclass
class Output:
    y: object
    count: int = 3
    later: object = dataclasses.field(default=None, init=False)


@dataclasses.dataclass(slots=True)
class Slots:
    y: object


@dataclasses.dataclass
class Items(collections.OrderedDict):
    y: object = None

    def __post_init__(self):
        self["y"] = self.y


class Named(dict):
    y = property(lambda self: self["y"])


class Holder:
    """An object with arrays in its attributes, such as a cache."""

    def __init__(self, y):
        self.parts = [Named(y=y), None]
        self.width = y.shape[0]

    y = property(lambda self: self.parts[0].y)


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("make", [Output, Slots, Items, Holder, lambda y: Named(y=y)])
def test_results_of_users_classes_have_values(make, looks):
    function = gt.lift(lambda x: make(x * 2) if not looks or x.sum() > 0 else None)
    x = gt.array([1.0, 2.0])
    assert function(x).y.tolist() == [2.0, 4.0]
    assert gt.tree.map(lambda leaf: leaf, function(x)).y.tolist() == [2.0, 4.0]
    if not looks:
        assert gt.jit(lambda x: function(x).y + 1)(x).tolist() == [3.0, 5.0]
    assert gt.lift(lambda given: given.y * 3)(function(x)).tolist() == [6.0, 12.0]


class Ring:
    def __init__(self, y):
        self.y, self.next = y, self


@pytest.mark.parametrize("make", [Ring, lambda y: {y}, lambda y: lambda: y, lambda y: iter([y]), lambda y: y.add])
def test_results_that_hide_arrays_are_refused(make):
    with pytest.raises(ArgumentError, match="expected a function that returns arrays"):
        gt.lift(lambda x: make(x * 2))(gt.ones(2))


def test_functions_may_keep_tables_of_constants():
    tables = {}

    @functools.cache
    def angles(n):
        return torch.outer(torch.arange(n).float(), torch.ones(n)).cos()

    def masked(x):
        n = x.shape[1]
        if n not in tables:
            tables[n] = torch.tril(torch.ones(n, n))
        return x @ (tables[n] + angles(n))

    for n in (3, 40):
        for batch in (1, 2):
            right = torch.ones(batch, n) @ (torch.tril(torch.ones(n, n)) + angles.__wrapped__(n))
            torch.testing.assert_close(gt.lift(masked)(gt.ones((batch, n))).to_torch(), right)
    assert tables[3].sum() == 6  # outside too
    kept = []
    gt.lift(lambda x: kept.append(x * 2) or x)(gt.ones(2))
    with pytest.raises(ExecutionError, match="keeps no tensors made from its arguments"):
        gt.lift(lambda x: x + kept[0])(gt.ones((1, 2)))


def test_numbers_of_torch_and_its_conventions():
    x = torch.tensor([np.nan, -2.0, -0.0, 0.0, np.inf])
    assert torch.equal(torch.sign(gt.array(x)).to_torch(), torch.sign(x))
    near = torch.tensor([0.99, 0.999, 0.9999, 1.0])
    torch.testing.assert_close(torch.erfinv(gt.array(near)).to_torch(), torch.erfinv(near), rtol=3e-7, atol=0)
    assert float(gt.grad(gt.grad(gt.lift(lambda x: F.hardsigmoid(x) ** 2)))(0.5)) == pytest.approx(1 / 18)
    half = gt.lift(lambda x: x.view(torch.div(x.shape[0], 2, rounding_mode="trunc"), 2).sum(0))
    assert half(gt.arange(6.0)).tolist() == [6.0, 9.0]


CONSTANTS = st.sampled_from([0, 1, 2, 3, 0.0, -0.0, 1.0, 2.0, 3.0, True, False, 1 + 0j, 2j])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(
        [
            lambda x, c: torch.pow(c, x),
            lambda x, c: torch.full_like(x, c, dtype=None),
            lambda x, c: torch.mul(x, c),
            lambda x, c: torch.add(x, c),
            lambda x, c: torch.copysign(x, c),
            lambda x, c: torch.atan2(x * 0, torch.full_like(x, c)),
            lambda x, c: torch.nn.functional.pad(x, (1, 1), value=c),
            lambda x, c: torch.where(x > 1, x, c),
        ]
    ),
    st.lists(CONSTANTS, min_size=2, max_size=3),
    st.sampled_from([torch.int64, torch.float32]),
)
def test_constants_that_compare_equal_are_others(function, constants, dtype):
    """2 and 2.0, 1 and True, 0.0 and -0.0, one after the other."""
    x = torch.tensor([0, 1, 2], dtype=dtype)
    for c in constants:
        try:
            right = function(x, c)
        except (RuntimeError, TypeError):
            continue
        came = function(gt.array(x), c).to_torch()
        assert came.dtype is right.dtype and torch.equal(came.isnan(), right.isnan())
        assert str(came) == str(right)


BESIDE = {
    "add": lambda x, c: x + c, "sub": lambda x, c: c - x, "mul": lambda x, c: x * c, "div": lambda x, c: x / c,
    "reciprocal": lambda x, c: c / x, "remainder": lambda x, c: x % c, "fmod": lambda x, c: torch.fmod(x, c),
    "floor_divide": lambda x, c: x // c, "floor": lambda x, c: torch.div(x, c, rounding_mode="floor"),
    "trunc": lambda x, c: torch.div(x, c, rounding_mode="trunc"), "less": lambda x, c: x < c,
    "where": lambda x, c: torch.where(x > 0, x, c), "alpha": lambda x, c: torch.add(x, x, alpha=c),
    "in place": lambda x, c: x.clone().mul_(c).div_(c), "of one element": lambda x, c: x * torch.full((), c),
    "lerp": lambda x, c: torch.lerp(x, x.flip(0), c), "leaky_relu": lambda x, c: F.leaky_relu(x, c),
    "whole number": lambda x, c: x * round(c * 1e3), "module": lambda x, c: torch.nn.Softplus(beta=c)(x) * c,
}  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*BESIDE]), st.sampled_from([torch.bfloat16, torch.float16]), st.floats(0.01, 30))
def test_numbers_beside_16_bits_are_rounded_where_torch_rounds_them(name, dtype, number):
    x = torch.linspace(-3, 3, 64).to(dtype)
    right, came = BESIDE[name](x, number), gt.lift(BESIDE[name])(gt.array(x), number).to_torch()
    assert came.dtype == right.dtype
    torch.testing.assert_close(came, right, rtol=0, atol=0, equal_nan=True)


OF_INTEGERS = {
    "add": lambda x, c: x + c, "rsub": lambda x, c: c - x, "mul": lambda x, c: x * c, "eq": lambda x, c: x == c,
    "ne": lambda x, c: x != c, "lt": lambda x, c: x < c, "le": lambda x, c: x <= c, "gt": lambda x, c: x > c,
    "ge": lambda x, c: x >= c, "remainder": lambda x, c: x % (c or 1), "floor_divide": lambda x, c: x // (c or 1),
    "full_like": torch.full_like, "new_full": lambda x, c: x.new_full((2,), c), "and": lambda x, c: x & c,
    "where": lambda x, c: torch.where(x > 2, x, c), "masked_fill": lambda x, c: x.masked_fill(x > 2, c),
}  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([*OF_INTEGERS]),
    st.sampled_from([torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool]),
    st.sampled_from([-1, 2, 100, 200, 300, -200, 40000, 2**40 + 3]),
)
def test_numbers_beside_integers_lose_the_bits_that_they_lose_in_torch(name, dtype, number):
    x, function = torch.tensor([0, 1, 2, 3, 44, 127]).to(dtype), OF_INTEGERS[name]
    try:
        right = function(x, number)
    except (RuntimeError, ZeroDivisionError):  # torch refuses some numbers, others lose their first bits
        with pytest.raises(gt.errors.GtraceError):
            gt.eval(gt.lift(function)(gt.array(x), number))
        return
    came = gt.lift(function)(gt.array(x), number)
    assert came.dtype == right.dtype
    assert torch.equal(came.to_torch(), right)


def test_numbers_that_a_float_does_not_hold_fill_nothing():
    with pytest.raises(gt.errors.GtraceError):
        gt.eval(torch.full_like(gt.ones(2, dtype=gt.float16), 1e6))
    assert torch.full_like(gt.ones(2), np.inf).tolist() == [np.inf] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [F.silu, F.mish, F.gelu, F.hardswish, F.softplus, F.elu, F.logsigmoid])
def test_gradients_of_activations_are_rounded_once(function, dtype):
    x = torch.linspace(-8, 8, 200).to(dtype).requires_grad_()
    function(x).sum().backward()
    came = gt.grad(lambda x: gt.lift(function)(x).sum())(gt.array(x.detach())).to_torch()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(came, x.grad, rtol=eps, atol=float(torch.finfo(torch.float16).tiny))


def test_products_of_nothing_leave_the_bias():
    bias, x, y = -torch.zeros(2, 3), torch.ones(2, 0), torch.ones(0, 3)
    assert torch.addmm(gt.array(bias), gt.array(x), gt.array(y)).to_torch().signbit().all()


@pytest.mark.parametrize(
    "function",
    [
        lambda p: torch.exp(p * 1j).real.sum(),
        lambda p: ((3 - 1j) * p / (1 + 1j)).real.sum(),
        lambda p: (1j / (p + 2j)).imag.sum(),
        lambda p: ((p + 0j) ** (1 + 1j)).real.sum(),
    ],
)
def test_gradients_through_complex_numbers(function):
    x = torch.tensor([0.3, 1.0], requires_grad=True)
    function(x).backward()
    came = gt.grad(gt.lift(function))(gt.array(x.detach()))
    np.testing.assert_allclose(np.asarray(came), x.grad.numpy(), rtol=1e-5)


def test_a_function_that_is_traced_for_each_number_is_warned_of_once():
    x = gt.array([1.0, -2.0, 3.0])

    def clamped():
        for k in range(14):
            assert_close(
                torch.clamp(x, max=float(gt.array(k / 8))), np.minimum([1.0, -2.0, 3.0], k / 8), check_dtype=False
            )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clamped()
        clamped()
    (warning,) = [w for w in caught if w.category is gt.RetracingWarning]
    assert warning.filename == __file__
    assert "[torch.clamp] was traced 9 times" in str(warning.message) and "now 1.0." in str(warning.message)


def test_what_repeats_or_chooses_is_not_warned_of():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(20):
            torch.clamp(gt.ones(k), max=2.0)
            torch.sum(gt.ones(4), 0, keepdim=bool(k % 2))
    assert not caught


UNDERIVABLE = sorted(name for name in dir(torch.special) if "bessel" in name or "airy" in name)


@pytest.mark.parametrize("name", UNDERIVABLE)
def test_a_derivative_that_torch_takes_for_zero_raises(name):
    function, x = getattr(torch.special, name), gt.array([0.5, 1.5])
    assert_close(function(x), function(x.to_torch()).numpy())
    for derivative in (
        lambda: gt.grad(lambda x: function(x).sum())(x),
        lambda: gt.jvp(function, (x,), (gt.ones(2),)),
        lambda: gt.vmap(gt.grad(function))(x),
        lambda: gt.jit(gt.grad(lambda x: function(x).sum()))(x),
    ):
        with pytest.raises(gt.DtypeError, match=r"its derivative is not zero, and torch has none"):
            derivative()
    assert gt.grad(lambda x: function(gt.stop_gradient(x)).sum() + x.sum())(x).tolist() == [1.0, 1.0]


def test_other_special_functions_have_their_derivatives():
    x = gt.array([0.25, 0.5], dtype=gt.float64)
    for name in ("expit", "entr", "erfcx", "i0e", "i1", "log_ndtr", "ndtri", "digamma", "sinc"):
        function = getattr(torch.special, name)
        near = (np.asarray(function(x + 1e-6)) - np.asarray(function(x - 1e-6))) / 2e-6
        np.testing.assert_allclose(gt.grad(lambda q: function(q).sum())(x), near, rtol=1e-6)  # noqa: B023
        np.testing.assert_allclose(gt.jvp(function, (x,), (gt.ones_like(x),))[1], near, rtol=1e-6)
    assert gt.grad(lambda q: torch.special.round(q * 3).sum())(x).tolist() == [0.0, 0.0]
