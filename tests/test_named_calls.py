"""Functions of gt.nn that are single operations: kernels where there are such, and the formula in every other place."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.passes.attention import BACKWARD, FORWARD
from gtrace.core.passes.norm_operators import BATCH, BATCH_BACKWARD, BATCH_WITH_VARIANCE, LAYER, LAYER_BACKWARD
from gtrace.core.passes.whole_program import SIMPLIFIED, spelled_out
from gtrace.sharding import Mesh, NamedSharding, P, plan
from gtrace.testing import assert_close

NORMS = {
    "layer": (lambda x, w, b: gt.nn.layer_norm(x, 6, w, b), lambda x, w, b: F.layer_norm(x, (6,), w, b), (4, 5, 6), 6),
    "layer, no bias": (lambda x, w: gt.nn.layer_norm(x, 6, w), lambda x, w: F.layer_norm(x, (6,), w), (5, 6), 6),
    "layer, bias alone": (
        lambda x, w, b: gt.nn.layer_norm(x, 6, None, b) * w,
        lambda x, w, b: (F.layer_norm(x, (6,)) + b) * w, (5, 6), 6,  # torch has no second derivative of a bias alone
    ),
    "layer, neither": (lambda x: gt.nn.layer_norm(x, 6, eps=0.1), lambda x: F.layer_norm(x, (6,), eps=0.1), (5, 6), 6),
    "layer, two axes": (
        lambda x, w, b: gt.nn.layer_norm(x, (4, 3), w, b),
        lambda x, w, b: F.layer_norm(x, (4, 3), w, b), (2, 4, 3), (4, 3),
    ),
    "layer, all axes": (lambda x, w: gt.nn.layer_norm(x, 6, w), lambda x, w: F.layer_norm(x, (6,), w), (6,), 6),
    "rms": (lambda x, w: gt.nn.rms_norm(x, 6, w, 1e-5), lambda x, w: F.rms_norm(x, (6,), w, 1e-5), (4, 5, 6), 6),
    "group": (
        lambda x, w, b: gt.nn.group_norm(x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b), (2, 6, 3, 2), 6
    ),
    "instance": (
        lambda x, w, b: gt.nn.instance_norm(x, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, w, b), (2, 6, 3, 2), 6,
    ),
    "batch": (
        lambda x, w, b: gt.nn.batch_norm_train(x, gt.zeros(6), gt.ones(6), w, b)[0],
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (5, 6, 3), 6,
    ),
    "batch, channels last": (
        lambda x, w: gt.nn.batch_norm_train(x, gt.zeros(16), gt.ones(16), w, axis=-1)[0],
        lambda x, w: F.batch_norm(x.mT, None, None, w, None, True).mT, (5, 3, 16), 16,
    ),
}  # fmt: skip

KERNELS = {
    **dict.fromkeys(["layer", "layer, no bias", "layer, neither"], (LAYER, LAYER_BACKWARD)),
    "layer, bias alone": (LAYER, LAYER_BACKWARD), "layer, two axes": (LAYER, LAYER_BACKWARD), "layer, all axes": (),
    "rms": (), "group": (LAYER, LAYER_BACKWARD), "instance": (LAYER, LAYER_BACKWARD), "batch": (BATCH, BATCH_BACKWARD),
    "batch, channels last": (BATCH, BATCH_BACKWARD),
}  # fmt: skip


def attend(q, k, v, **settings):
    return gt.nn.scaled_dot_product_attention(q, k, v, **settings)


def formula(q, k, v, shown=None, bias=0.0, is_causal=False, scale=None):
    """torch has no second derivative of its kernel."""
    k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    shown = torch.ones(scores.shape[-2:]).tril() > 0 if is_causal else shown
    if shown is not None:  # a row that sees nothing is 0
        scores = torch.where(shown, scores, torch.where(shown.any(-1, keepdim=True), -torch.inf, 0.0))
    weights = torch.softmax(scores, -1)
    return (weights if shown is None else torch.where(shown, weights, 0.0)) @ v


def positions_first(q, k, v):
    return gt.nn.dot_product_attention(q, k, v, is_causal=True)


def hidden_keys(q, k, v):
    """The first query sees nothing."""
    return attend(q, k, v, attn_mask=gt.arange(32)[None, :] < gt.arange(32)[:, None])


def attend_with_bias(q, k, v, bias):
    return gt.nn.scaled_dot_product_attention(q, k, v, bias)


HEADS, FEW, ALONE, LONG = (2, 2, 32, 4), (2, 1, 32, 4), (4, 32, 4), (2, 2, 64, 4)
KERNEL = (FORWARD, BACKWARD)
CAUSAL, SHARED = {"is_causal": True}, {"enable_gqa": True}
ATTENTION = {
    "plain": ({}, [HEADS] * 3, KERNEL),
    "causal": (CAUSAL, [HEADS] * 3, KERNEL),
    "scale": ({"scale": 0.3}, [HEADS] * 3, KERNEL),
    "without a batch": ({}, [ALONE] * 3, KERNEL),
    "two batches": (CAUSAL, [(2, 1, 2, 32, 4)] * 3, KERNEL),
    "more queries": ({}, [LONG, HEADS, HEADS], KERNEL),
    "more queries, causal": (CAUSAL, [LONG, HEADS, HEADS], KERNEL),  # the search finds it, as a mask
    "shared keys": (SHARED, [LONG, FEW, FEW], KERNEL),
    "shared keys, causal": (SHARED | CAUSAL, [HEADS, FEW, FEW], ()),
    "few scores": ({}, [(1, 2, 8, 4)] * 3, ()),
    "another depth of values": ({}, [HEADS, HEADS, (2, 2, 32, 3)], ()),
}


def attention_of(given):
    return functools.partial(attend, **given), functools.partial(
        formula, **{k: given[k] for k in given if k != "enable_gqa"}
    )


ATTENTION = {name: (*attention_of(given), *rest) for name, (given, *rest) in ATTENTION.items()} | {
    "positions first": (
        positions_first, lambda *xs: formula(*[x.transpose(1, 2) for x in xs], is_causal=True).transpose(1, 2),
        [(2, 32, 2, 4)] * 3, KERNEL,
    ),
    "a mask": (  # the search finds it
        hidden_keys, lambda *xs: formula(*xs, shown=torch.ones(32, 32).tril(-1) > 0), [HEADS] * 3, KERNEL,
    ),
    "a bias": (attend_with_bias, lambda q, k, v, b: formula(q, k, v, bias=b), [HEADS] * 3 + [(32, 32)], ()),
}  # fmt: skip

CASES = {name: (ours, right, KERNELS[name]) for name, (ours, right, *_) in NORMS.items()}
CASES |= {name: (ours, right, found) for name, (ours, right, _, found) in ATTENTION.items()}


def arrays(name, dtype=torch.float64, seed=0):
    if name in ATTENTION:
        shapes = ATTENTION[name][2]
    else:
        ours, _, shape, of_vectors = NORMS[name]
        shapes = [shape, *[of_vectors] * (ours.__code__.co_argcount - 1)]
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s if isinstance(s, tuple) else (s,), generator=generator, dtype=dtype) for s in shapes]


def loss_of(function, sin):
    return lambda *args: (sin(function(*args) * 2.0) * 3.0).sum()


def gradients(function, of_gradient=0):
    """The gradient of a function, or of what its gradient squared sums up to, by all arguments."""

    def call(*args):
        places = tuple(range(len(args)))
        found = loss_of(function, gt.sin)
        for _ in range(of_gradient):
            found = functools.partial(lambda f, *xs: sum((g * g).sum() for g in gt.grad(f, argnums=places)(*xs)), found)
        return gt.grad(found, argnums=places)(*args)

    return call


def torch_gradients(function, tensors, of_gradient=0):
    tensors = [x.double().requires_grad_() for x in tensors]
    value = loss_of(function, torch.sin)(*tensors)
    for _ in range(of_gradient):
        value = sum((g * g).sum() for g in torch.autograd.grad(value, tensors, create_graph=True))
    return torch.autograd.grad(value, tensors)


def kernels(function, *args):
    graph = SIMPLIFIED.run(gt.make_graph(function)(*args))
    return [node.params[0] for node in graph.nodes if node.op.name == "aten"]


def compiled(function):
    return gt.jit(function, wait=True, backend="eager")


def deterministic(function):
    def call(*args):
        with gt.config(deterministic=True):
            return gt.eval(function(*args))

    return call


def eager(function):
    def call(*args):
        with gt.config(eager=True):
            return gt.eval(function(*args))

    return call


FORMS = [lambda function: function, compiled, deterministic, eager]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*[(name, torch.float32) for name in CASES], *[(name, torch.float64) for name in [*NORMS, "scale"]]],
)
def test_values_and_gradients_are_those_of_torch_in_every_form(name, dtype):
    ours, reference, _ = CASES[name]
    tensors = arrays(name, dtype)
    given = [gt.from_torch(x) for x in tensors]
    value = reference(*[x.double() for x in tensors])
    grads = torch_gradients(reference, tensors)
    forms = [form for form in FORMS if form is not compiled or name in {*NORMS, "causal"}]
    for form in forms:
        assert_close(form(ours)(*given), value.to(dtype), steps=60, scale=10)
        for got, right in zip(form(gradients(ours))(*given), grads, strict=True):
            assert_close(got, right.to(dtype), steps=200, scale=40)


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_functions_and_gradients(name):
    (ours, _, found), given = CASES[name], [gt.from_torch(x) for x in arrays(name)]
    assert kernels(ours, *given) == [*found[:1]]
    assert kernels(gradients(ours), *given) == [*found]
    for place in range(len(given)):  # gradients by one argument
        assert {*kernels(gt.grad(loss_of(ours, gt.sin), argnums=place), *given)} <= {*found}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NORMS, "scale", "without a batch", "shared keys"])
def test_second_derivatives_are_those_of_torch(name):
    ours, reference, _ = CASES[name]
    tensors = arrays(name, seed=1)
    given = [gt.from_torch(x) for x in tensors]
    rights = torch_gradients(reference, tensors, of_gradient=1)
    for form in (FORMS[0], compiled) if name in NORMS else (deterministic,):
        for got, right in zip(form(gradients(ours, of_gradient=1))(*given), rights, strict=True):
            assert_close(got, right, steps=3000, scale=float(right.abs().max()) + 1)


@pytest.mark.parametrize("name", [*NORMS, "causal", "positions first"])
def test_tangents_are_those_of_torch(name):
    ours, reference, _ = CASES[name]
    tensors, tangents = arrays(name), arrays(name, seed=2)
    given, moved = ([gt.from_torch(x) for x in xs] for xs in (tensors, tangents))
    _, right = torch.autograd.functional.jvp(reference, tuple(tensors), tuple(tangents))
    assert_close(gt.jvp(ours, given, moved)[1], right, steps=200, scale=40)
    along = (tangents[0], *[torch.zeros_like(x) for x in tangents[1:]])
    _, right = torch.autograd.functional.jvp(reference, tuple(tensors), along)
    alone = gt.jvp(lambda x: ours(x, *given[1:]), given[:1], moved[:1])[1]
    assert_close(alone, right, steps=200, scale=40)


ONE, OTHER = (0, None, None), (None, 0, None)
BATCHES = [(name, axes) for name in ("layer", "layer, two axes", "group", "batch") for axes in (ONE, OTHER)]
BATCHES += [("layer", (1, None, 0)), ("layer", (0, 0, 0)), ("without a batch", (0, 1, 0)), ("without a batch", ONE)]


@pytest.mark.parametrize(("name", "batched"), BATCHES)
def test_batches_are_examples_one_by_one(name, batched):
    ours = CASES[name][0]
    dtype = torch.float32 if name in ATTENTION else torch.float64
    examples = [arrays(name, dtype, seed=k) for k in range(2)]
    given = [
        gt.from_torch(one if axis is None else torch.stack([one, other], axis))
        for axis, one, other in zip(batched, *examples, strict=True)
    ]
    each = [[gt.from_torch(examples[k if a is not None else 0][i]) for i, a in enumerate(batched)] for k in range(2)]
    for function in (lambda *xs: (ours(*xs),), gradients(ours)):
        one_by_one = [function(*xs) for xs in each]
        for got, *rights in zip(gt.vmap(function, in_axes=batched)(*given), *one_by_one, strict=True):
            assert_close(got, torch.stack([x.to_torch() for x in rights]), steps=400, scale=40)

    def total(*xs):
        return gt.sin(gt.vmap(ours, in_axes=batched)(*xs)).sum()

    def sum_of_examples(*xs):
        picked = [[x if a is None else gt.take(x, k, a) for x, a in zip(xs, batched, strict=True)] for k in range(2)]
        return sum(gt.sin(ours(*one)).sum() for one in picked)

    pairs = zip(*[gt.grad(f, argnums=(0, 1, 2))(*given) for f in (total, sum_of_examples)], strict=True)
    for got, right in pairs:
        assert_close(got, right, steps=400, scale=40)


def test_a_batch_in_front_of_rows_keeps_the_kernel():
    x, w = gt.ones((3, 4, 6)), gt.ones(6)

    def norms(x, w):
        return gt.vmap(lambda x: gt.nn.layer_norm(x, 6, w))(x)

    assert kernels(norms, x, w) == [LAYER]
    assert kernels(gt.grad(lambda x, w: gt.sin(norms(x, w)).sum(), argnums=(0, 1)), x, w) == [LAYER, LAYER_BACKWARD]
    assert kernels(gt.vmap(gt.grad(lambda x: gt.sin(gt.nn.layer_norm(x, 6)).sum())), x) == [LAYER, LAYER_BACKWARD]


def test_a_batch_in_front_of_attention_keeps_the_kernel():
    examples = [gt.from_torch(torch.stack([x, x + 1.0])) for x in arrays("causal")]
    function = gt.vmap(CASES["causal"][0])
    assert kernels(function, *examples) == [FORWARD]
    assert kernels(gradients(function), *examples) == [FORWARD, BACKWARD]
    assert kernels(gt.vmap(gradients(CASES["causal"][0])), *examples) == [FORWARD, BACKWARD]


def test_scales_that_change_are_one_program_and_have_gradients():
    q, k, v = arrays("plain")
    given = [gt.from_torch(x) for x in (q, k, v)]
    for number in (0.1, 0.2, 0.3):
        right = formula(q, k, v, scale=number)
        for scale in (number, gt.array(number, dtype="float64")):
            assert_close(attend(*given, scale=scale), right, steps=200, scale=4)
    by_scale = gt.grad(lambda s: (attend(*given, scale=s) ** 2).sum())(gt.array(0.3, dtype="float64"))
    scale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    (right,) = torch.autograd.grad(((torch.softmax(q @ k.mT * scale, -1) @ v) ** 2).sum(), scale)
    assert_close(by_scale, right, steps=1000, scale=1000)


def test_statistics_come_from_the_kernel_that_normalizes():
    def step(x, w, b, mean, var):
        def loss(x, w, b):
            out, *running = gt.nn.batch_norm_train(x, mean, var, w, b)
            return gt.sin(out).sum(), running

        return gt.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(x, w, b)

    x, w, b = arrays("batch")
    mean, var = torch.randn(6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    given = [gt.from_torch(y) for y in (x, w, b, mean, var)]
    assert kernels(step, *given) == [BATCH_WITH_VARIANCE, BATCH_BACKWARD]
    for form in FORMS:
        (_, running), _ = form(step)(*given)
        rights = [mean.clone(), var.clone()]
        F.batch_norm(x, *rights, w, b, True, 0.1)
        for got, right in zip(running, rights, strict=True):
            assert_close(got, right, steps=30, scale=3)

    # somebody differentiates the statistics too
    def by_statistics(x):
        before = gt.zeros(6, dtype="float64"), gt.ones(6, dtype="float64")
        out, mean, var = gt.nn.batch_norm_train(x, *before)
        return (out**3).sum() + (mean * var).sum()

    def of_torch(x):
        mean, var = 0.1 * x.mean((0, 2)), 0.9 + 0.1 * x.var((0, 2))
        return (F.batch_norm(x, None, None, training=True) ** 3).sum() + (mean * var).sum()

    tensor = x.clone().requires_grad_()
    (right,) = torch.autograd.grad(of_torch(tensor), tensor)
    assert_close(gt.grad(by_statistics)(given[0]), right, steps=300, scale=30)


def test_special_rows_are_those_of_the_formula():
    nan, inf = float("nan"), float("inf")
    rows = [
        [1.0, 1.0, 1.0, 1.0],
        [0.0, 0.0, 0.0, 0.0],
        [1.0, inf, 2.0, 3.0],
        [nan, 1.0, 2.0, 3.0],
        [1e30, -1e30, 0.0, 1.0],
    ]
    x = torch.tensor([*rows, [1e-30, 2e-30, 0.0, 0.0]], dtype=torch.float64)
    for eps in (1e-5, 0.0):

        def written_out(x, eps=eps):
            centred = x - x.mean(-1, keepdim=True)
            return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)

        for form in FORMS:
            got = form(lambda x, eps=eps: gt.nn.layer_norm(x, 4, eps=eps))(gt.from_torch(x))
            assert_close(got, written_out(x), steps=60, scale=4)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan"), 1e30])
@pytest.mark.parametrize("causal", [False, True])
def test_special_scores_are_those_of_the_formula(bad, causal):
    q, k, v = arrays("plain", torch.float32)
    k[0, 0, 5, 0] = v[1, 1, 3, 2] = q[1, 0, 2, 1] = bad

    def attention(q, k, v):
        return attend(q, k, v, is_causal=causal)

    given = [gt.from_torch(x) for x in (q, k, v)]
    right = deterministic(attention)(*given)
    graph = SIMPLIFIED.run(gt.make_graph(attention)(*given))
    assert any(node.op.name == "aten" for node in graph.nodes)
    assert_close(
        gt.from_torch(gt.ir.evaluate(graph, q, k, v)[0]), right, steps=200, scale=10 * max(1.0, gt.abs(right).max())
    )


@pytest.mark.parametrize("length", [4, 48])  # C++ of ours, and torch's kernel
@pytest.mark.parametrize("mask", ["", "causal", "visible", "zeros"])
def test_scores_of_minus_infinity_alone_are_those_of_torch(length, mask):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, length, 4, generator=generator).abs() for _ in range(3))
    q[:, :, 2] = -torch.inf
    masks = {"visible": torch.ones(length, length) > 0, "zeros": torch.zeros(length, length)}
    shown = masks.get(mask)

    def loss(attention, is_causal, q, k, v, shown):
        y = attention(q, k, v, shown, is_causal=is_causal)
        return (y * y).sum(), y

    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    total, y = loss(F.scaled_dot_product_attention, mask == "causal", *tensors, shown)
    right = [y, *torch.autograd.grad(total, tensors)]
    assert not y[:, :, 2].any()

    def results(q, k, v):
        of = gt.value_and_grad(
            lambda *x: loss(gt.nn.scaled_dot_product_attention, mask == "causal", *x, shown), (0, 1, 2), has_aux=True
        )
        (_, y), slopes = of(q, k, v)
        return [y, *slopes]

    for form in FORMS:
        for got, expected in zip(form(results)(*map(gt.from_torch, (q, k, v))), right, strict=True):
            assert_close(got, expected, steps=100, scale=4)


def test_rows_of_one_element_and_none():
    for shape in ((3, 1), (0, 4), (2, 0)):
        got = deterministic(lambda x: gt.nn.layer_norm(x, x.shape[-1]))(gt.ones(shape))
        assert_close(got, F.layer_norm(torch.ones(shape), shape[-1:]))


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
    st.sampled_from(["float32", "bfloat16", "float64"]),
    st.booleans(),
)
def test_dtypes_of_arrays_and_vectors(of_rows, of_vectors, has_bias):
    """The kernel takes one dtype. Where vectors are wider than the rows, they follow it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8, generator=generator).to(getattr(torch, of_rows))
    w, b = (torch.randn(8, generator=generator).to(getattr(torch, of_vectors)) for _ in range(2))
    wide = F.layer_norm(x.double(), (8,), w.double(), b.double() if has_bias else None)
    given = [gt.from_torch(y) for y in (x, w, b)]

    def norm(x, w, b):
        return gt.nn.layer_norm(x, 8, w, b if has_bias else None)

    for form in FORMS:
        got = form(norm)(*given)
        assert str(got.dtype) == of_rows
        assert_close(got, wide.to(x.dtype), steps=100 if x.dtype.itemsize > 2 else 3, scale=10)


def test_an_eps_that_is_an_array_and_one_that_changes():
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for eps in (0.1, 0.2, 0.3):
        right = F.layer_norm(x, (8,), eps=eps)
        assert_close(gt.nn.layer_norm(gt.from_torch(x), 8, eps=eps), right, steps=60, scale=4)
        assert_close(
            gt.nn.layer_norm(gt.from_torch(x), 8, eps=gt.array(eps, dtype="float64")), right, steps=60, scale=4
        )
    by_eps = gt.grad(lambda eps: (gt.nn.layer_norm(gt.from_torch(x), 8, eps=eps) ** 2).sum())(
        gt.array(0.1, dtype="float64")
    )
    eps = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    centred = x - x.mean(-1, keepdim=True)
    (right,) = torch.autograd.grad((centred**2 / ((centred**2).mean(-1, keepdim=True) + eps)).sum(), eps)
    assert_close(by_eps, right, steps=100, scale=100)


def test_bodies_of_loops_branches_and_checkpoints_have_the_formula():
    w = gt.linspace(0.5, 2.0, 6)

    def norm(x):
        return gt.sin(gt.nn.layer_norm(x * w, 6, w)) + x

    def repeated(x):
        return gt.scan(lambda c, _: (norm(c), None), x, length=3)[0].sum()

    def written_out(x):
        return norm(norm(norm(x))).sum()

    x = gt.sin(gt.arange(24.0).reshape(4, 6))
    for function in (
        repeated,
        lambda x: gt.checkpoint(written_out)(x),
        lambda x: gt.cond(True, written_out, gt.sum, x),
    ):
        assert "named_call" not in str(gt.make_graph(gt.grad(function))(x))
        assert_close(gt.grad(function)(x), gt.grad(written_out)(x), steps=300, scale=20)


def test_kernels_and_formulas_have_the_lines_of_their_calls():
    def norms(x):
        one = gt.nn.layer_norm(x, 6)
        return gt.sin(gt.nn.layer_norm(one * 2.0, 6)).sum()

    first = norms.__code__.co_firstlineno
    graph = gt.make_graph(gt.grad(norms))(gt.ones((4, 6)))
    for rewritten, name in ((SIMPLIFIED.run(graph), "aten"), (spelled_out(graph), "rsqrt")):
        lines = [node.location.partition(".py:")[2] for node in rewritten.nodes if node.op.name == name]
        wanted = {str(first + 1), str(first + 2)}
        assert wanted <= {*lines} <= wanted | {f"{line} (its backward pass)" for line in wanted}


def test_sharded_programs_communicate_as_for_the_formula():
    def by_name(x, w):
        return gt.sin(gt.nn.layer_norm(x, 8, w)).sum()

    def by_hand(x, w):
        centred = x - x.mean(-1, keepdims=True)
        return gt.sin(centred * gt.rsqrt(gt.square(centred).mean(-1, keepdims=True) + 1e-5) * w).sum()

    batch = NamedSharding(Mesh(range(4), "data"), P("data"))
    args = gt.ShapeDtypeStruct((64, 8), "float32", sharding=batch), gt.ShapeDtypeStruct((8,), "float32")
    one, other = (plan(gt.value_and_grad(f, argnums=(0, 1)), *args) for f in (by_name, by_hand))
    assert one.moved == other.moved > 0 and not one.gathered


def test_passes_of_users_see_the_formula():
    seen = []

    def look(graph):
        seen.extend(node.op.name for node in graph.nodes)
        return graph

    with gt.ir.register_pass(look):
        gt.eval(gt.nn.layer_norm(gt.ones((3, 4)), 4))
    assert "rsqrt" in seen and "named_call" not in seen


def test_two_calls_of_one_program_have_kernels_of_their_own():
    def both(x, w, b):
        one, other = gt.nn.layer_norm(x, 6, w, b, eps=1e-5), gt.nn.layer_norm(x, 6, b, w, eps=1e-2)
        return gt.sin(one * other).sum() + gt.nn.layer_norm(one, 6, eps=1e-5).max()

    def of_torch(x, w, b):
        one, other = F.layer_norm(x, (6,), w, b, 1e-5), F.layer_norm(x, (6,), b, w, 1e-2)
        return torch.sin(one * other).sum() + F.layer_norm(one, (6,), eps=1e-5).max()

    tensors = [x.requires_grad_() for x in arrays("layer")]
    rights = torch.autograd.grad(of_torch(*tensors), tensors)
    given = [gt.from_torch(x.detach()) for x in tensors]
    grads = gt.grad(both, argnums=(0, 1, 2))
    assert sorted(kernels(grads, *given)) == [LAYER] * 3 + [LAYER_BACKWARD] * 3
    for form in FORMS:
        for got, right in zip(form(grads)(*given), rights, strict=True):
            assert_close(got, right, steps=400, scale=60)


def test_errors_are_raised_at_the_call():
    with pytest.raises(gt.ShapeError, match=r"\[layer_norm\] expected a weight of shape \(4,\).*test_named_calls"):
        gt.nn.layer_norm(gt.ones((2, 4)), 4, gt.ones(3))


PROGRAM = """
import numpy as np
import gtrace as gt

x = gt.array(np.random.default_rng(0).normal(size=(64, 32)))
w = gt.array(np.linspace(0.5, 1.5, 32))

def loss(x, w):
    return gt.sin(gt.nn.layer_norm(x, 32, w) * x).sum()

grads = gt.jit(gt.grad(loss, argnums=(0, 1)), wait=True)
for _ in range(3):
    found = grads(x, w)
print(*[f"{float(gt.abs(g).sum()):.6f}" for g in found])
"""


@pytest.mark.slow
def test_another_process_computes_the_same(tmp_path):
    def run(**settings):
        env = {**os.environ, "GT_CACHE_DIR": str(tmp_path), **settings}
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout

    assert len({run(), run(), run(GT_DISABLE="named_calls", GT_DETERMINISTIC="1")}) == 1
