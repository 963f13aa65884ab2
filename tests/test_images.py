"""Convolutions and pooling of images: the layout that they compute in, and gradients of maxima in compiled code."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace import ir
from gtrace.core.backends import schedule
from gtrace.core.backends.inductor import pooling
from gtrace.core.backends.inductor.operators import NATIVE
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.backends.native.library import FLAGS
from gtrace.core.backends.toolchain import compiler_path
from gtrace.core.passes import channels_last
from gtrace.core.passes.channels_last import predicted_strides
from gtrace.testing import assert_close

WINDOWS = [(2, 2), (3, 3), (1, 4), (2, 1)]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def network(lib, conv, pool, p, x):
    h = lib.relu(conv(x, p["first"]) + p["bias"][:, None, None])
    h = pool(lib.relu(conv(h, p["second"])))
    return (h.mean((2, 3)) * p["out"]).sum()


def case(size=20):
    p = {"first": normal(16, 3, 3, 3), "bias": normal(16, seed=1), "second": normal(16, 16, 3, 3, seed=2) / 8,
         "out": normal(4, 16, seed=3)}  # fmt: skip
    return p, normal(4, 3, size, size, seed=4)


def ours(p, x):
    return network(
        gt.nn, lambda x, w: gt.nn.conv2d(x, w, padding=1), lambda h: gt.nn.max_pool2d(h, 2), p, x
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(20, marks=pytest.mark.long), 21])
def test_a_network_of_images_and_its_gradient(size, monkeypatch):
    """Interpreted and compiled, with sizes that windows divide and that they do not, equal to torch."""
    used = []
    make = pooling.max_pool_gradient
    monkeypatch.setattr(pooling, "max_pool_gradient", lambda *args: used.append(args) or make(*args))
    p, x = case(size)
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in p.items()}
    f = torch.nn.functional
    value = network(
        torch, lambda x, w: f.conv2d(x, w, padding=1), lambda h: f.max_pool2d(h, 2), tensors, torch.tensor(x)
    )  # fmt: skip
    value.backward()
    step = gt.value_and_grad(ours)
    arrays = gt.tree_map(gt.array, p)
    for run in (step, gt.jit(step)):
        got, grads = run(arrays, gt.array(x))
        assert_close(got, value, check_dtype=False)
        for k, t in tensors.items():
            np.testing.assert_allclose(np.asarray(grads[k]), t.grad.numpy(), rtol=2e-4, atol=2e-5)
    assert used == [(torch.float32, (2, 2))]


def test_the_channels_are_last_between_convolutions_of_large_images():
    kinds = []

    def around(node, function):
        def call(*tensors):
            result = function(*tensors)
            if node.op.name == "aten" and node.attributes["overload"] == "aten.convolution.default":
                kinds.append([t.is_contiguous(memory_format=torch.channels_last) for t in (tensors[0], result)])
            return result

        return call

    for size, expected in ((40, [[False, True], [True, True]]), (6, [[False, False], [False, False]])):
        kinds.clear()
        p, x = case(size)
        graph = gt.make_graph(lambda p, x: ours(p, x))(gt.tree_map(gt.array, p), gt.array(x))
        interpreter(graph, around)([*(torch.tensor(v) for _, v in sorted(p.items())), torch.tensor(x)])
        assert kinds == expected


@pytest.mark.slow
def test_parameters_keep_their_layout_so_that_steps_are_one_program():
    p, x = case(40)
    p = gt.tree_map(lambda a: gt.eval(gt.array(a)), p)
    x = gt.eval(gt.array(x))
    signatures = []
    with gt.config(background=False, auto_compile=False):
        for _ in range(3):
            known = {s.signature for s in gt.stats()}
            p = gt.eval(gt.tree_map(lambda a, g: a - 0.1 * g, p, gt.grad(ours)(p, x)))
            signatures.append({s.signature for s in gt.stats()} - known)
    assert signatures[2] == set()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooling")
    arguments = "const {T}* x, const {T}* g, {T}* out, int64_t n, int64_t h, int64_t w, int64_t c"
    functions = "".join(
        f"void f_{own}_{a}_{b}({arguments.format(T=own)})"
        f" {{ max_pool_gradient<{own}, {a}, {b}>(x, g, out, n, h, w, c); }}\n"
        for own in ("float", "double")
        for a, b in WINDOWS
    )
    (folder / "p.cpp").write_text(f'#include "pooling.h"\nextern "C" {{\n{functions}}}\n')
    flags = [*FLAGS, "-O1", "-fopenmp", f"-I{NATIVE}"]
    subprocess.run([compiler_path(), *flags, "-o", folder / "p.so", folder / "p.cpp"], check=True)
    return ctypes.CDLL(str(folder / "p.so"))


@pytest.mark.skipif(compiler_path() is None, reason="needs a C++ compiler")
@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(0, 9), st.integers(0, 9), st.integers(1, 20), st.sampled_from(WINDOWS),
       st.sampled_from(["float", "double"]), st.integers(0, 99))  # fmt: skip
def test_the_gradient_of_maxima_of_any_sizes(library, count, height, width, channels, window, own, seed):
    """Equal to torch's, with equal elements, infinities and NaN in a window."""
    a, b = window
    height, width = height + a, width + b
    dtype = torch.float32 if own == "float" else torch.float64
    rng = np.random.default_rng(seed)
    values = rng.choice([-np.inf, -1.0, 0.0, 0.0, 1.0, np.inf, np.nan], (count, channels, height, width))
    x = torch.tensor(values, dtype=dtype).contiguous(memory_format=torch.channels_last)
    g = torch.tensor(rng.normal(size=(count, channels, height // a, width // b)), dtype=dtype)
    g = g.contiguous(memory_format=torch.channels_last)
    _, places = torch.nn.functional.max_pool2d(x, window, return_indices=True)
    expected = torch.ops.aten.max_pool2d_with_indices_backward(
        g, x, window, window, (0, 0), (1, 1), False, places
    )  # fmt: skip
    out = torch.full_like(x, np.nan)
    sizes = [ctypes.c_int64(n) for n in (count, height, width, channels)]
    getattr(library, f"f_{own}_{a}_{b}")(*[ctypes.c_void_p(t.data_ptr()) for t in (x, g, out)], *sizes)
    assert torch.equal(out, expected)


def blocks(lib, conv, p, x):
    """Residual blocks that normalize each channel; equal ones are programs of their own."""
    x = conv(x, p[0])
    for k in range(1, len(p), 2):
        h = conv(x, p[k])
        m = h.mean((0, 2, 3), keepdims=True)
        h = lib.relu((h - m) / lib.sqrt(((h - m) ** 2).mean((0, 2, 3), keepdims=True) + 1e-5))
        x = lib.relu(x + conv(h, p[k + 1]))
    return (x * x).mean()


class Torch:
    relu, sqrt = torch.relu, torch.sqrt


class Ours:
    relu, sqrt = staticmethod(gt.nn.relu), gt.sqrt


def test_images_keep_their_channels_last_between_the_parts_of_a_program(monkeypatch):
    weights = [normal(8, 8, 3, 3, seed=k) / 8 for k in range(9)]
    x = normal(4, 8, 24, 24, seed=9)
    tensors = [torch.tensor(w, requires_grad=True) for w in weights]
    conv = torch.nn.functional.conv2d
    value = blocks(Torch, lambda x, w: conv(x, w, padding=1), tensors, torch.tensor(x))
    value.backward()

    copied = []
    order = schedule.in_order
    monkeypatch.setattr(schedule, "in_order", lambda *args: copied.append(args) or order(*args))
    given = [gt.array(w) for w in weights]
    with gt.config(auto_compile=False):
        found, gradients = gt.value_and_grad(
            lambda p, x: blocks(Ours, lambda x, w: gt.nn.conv2d(x, w, padding=1), p, x)
        )(given, gt.array(x))
        gt.eval((found, gradients))
    assert_close(found, value)
    for got, expected in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(np.asarray(got), expected.grad.numpy(), rtol=1e-3, atol=1e-5)
    assert not copied, "the strides of results are those that were expected"


def test_the_strides_of_images_are_predicted():
    norm = gt.lift(lambda x: torch.nn.functional.batch_norm(x, None, None, training=True))

    def network(x, w, v, u):
        h = gt.nn.relu(norm(gt.nn.conv2d(x, w, padding=1)))
        y = gt.nn.max_pool2d(h + 1.0, 2) * 2.0
        return gt.nn.avg_pool2d(gt.nn.conv2d(y, v), 3), y.transpose((0, 2, 3, 1)) + 0.5, (x * u).sum(1, keepdims=True)

    args = [gt.array(normal(*s)) for s in ((4, 8, 24, 24), (8, 8, 3, 3), (16, 8, 3, 3), (8, 24, 24))]
    graph = gt.make_graph(network)(*args)
    kinds = graph.value_avals()
    images = tuple(node.out for node in graph.nodes if len(getattr(kinds[node.out], "shape", ())) == 4)
    whole = ir.Graph(graph.inputs, graph.avals, graph.nodes, images)
    tensors = [x.to_torch() for x in args]
    found = dict(zip(images, interpreter(whole)(tensors), strict=True))
    predicted = predicted_strides(graph, [t.stride() for t in tensors])
    assert predicted == {value: t.stride() for value, t in found.items() if not t.is_contiguous()}
    assert len(predicted) >= 6


CONVOLUTIONS = st.fixed_dictionaries(
    {
        "stride": st.sampled_from([1, 2]),
        "padding": st.sampled_from([0, 1]),
        "dilation": st.sampled_from([1, 2]),
        "groups": st.sampled_from([1, 2, 4]),
    }
)


@st.composite
def networks(draw):
    """A function of torch from images or series, with four channels, and weights; and the shapes of its arguments."""
    axes = draw(st.sampled_from([1, 2]))
    f = torch.nn.functional
    steps = {
        "batch norm": lambda x: f.batch_norm(x, None, None, training=True),
        "group norm": lambda x: f.group_norm(x, 2),
        "largest": lambda x: getattr(f, f"max_pool{axes}d")(x, 2, 1),
        "mean": lambda x: getattr(f, f"avg_pool{axes}d")(x, 2, 1),
        "pad": lambda x: f.pad(x, (1, 0)),
        "relu": torch.relu,
        "concat": lambda x: torch.cat([x, x * 0.5], dim=2),
        "add": lambda x: x * 0.5 + torch.sin(x),
        "other layout": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    }
    drawn, weights = [], []
    for _ in range(draw(st.integers(1, 2))):
        transposed, options = draw(st.booleans()), draw(CONVOLUTIONS)
        weights.append((4, 4 // options["groups"], *(3,) * axes))
        drawn.append((getattr(f, f"conv_transpose{axes}d" if transposed else f"conv{axes}d"), options))
        drawn.extend(draw(st.lists(st.sampled_from(sorted(steps)), max_size=2)))

    def network(x, *ws):
        left = iter(ws)
        for step in drawn:
            x = steps[step](x) if isinstance(step, str) else step[0](x, next(left), **step[1])
        return x

    return network, [(2, 4, *(20,) * axes), *weights]


@pytest.mark.slow
@settings(max_examples=10)
@given(networks(), st.integers(0, 99))
def test_networks_of_any_steps_have_the_values_and_gradients_of_torch(case, seed):
    """Small images are laid out as large ones are."""
    network, shapes = case
    tensors = [torch.from_numpy(normal(*shape, seed=seed + k)) for k, shape in enumerate(shapes)]
    wide = [x.double().requires_grad_() for x in tensors]
    expected = network(*wide)
    cotangent = torch.sin(torch.arange(expected.numel()).double()).reshape(expected.shape)
    slopes = torch.autograd.grad(expected, wide, cotangent)
    tensors.append(cotangent.float())

    def step(*xs):
        y, pullback = gt.vjp(gt.lift(network), *xs[:-1])
        return y, *pullback(xs[-1])

    with pytest.MonkeyPatch.context() as patch, gt.config(auto_compile=False):
        patch.setattr(channels_last, "LEAST_IMAGE", 1)
        got = gt.eval(step(*map(gt.from_torch, tensors)))
    for y, right in zip(got, (expected.detach(), *slopes), strict=True):
        np.testing.assert_allclose(np.asarray(y), right.numpy(), rtol=0, atol=1e-6 + 1e-4 * float(right.abs().max()))


@pytest.mark.parametrize(
    "shape", [(12, 4, 3), (3, 4, 3), (2, 2, 3), (18, 8, 3), (1, 4, 3), (5, 7, 3), (6, 1, 3), (24, 4, 1)]
)
def test_the_nearest_elements_of_images_of_any_size(shape):
    """Whole multiples and parts are repeats and slices; results, and where gradients go, are those of the places."""
    x = np.random.default_rng(0).normal(size=(6, 4, 3))
    ct = np.random.default_rng(1).normal(size=shape)
    places = [np.floor((np.arange(n) + 0.5) * m / n).astype(int) for n, m in zip(shape, x.shape, strict=True)]
    np.testing.assert_array_equal(gt.image.resize(gt.array(x), shape, "nearest"), x[np.ix_(*places)])
    slope = gt.grad(lambda x: (gt.image.resize(x, shape, "nearest") * ct).sum())(gt.array(x))
    expected = np.zeros_like(x)
    np.add.at(expected, np.ix_(*places), ct)
    assert_close(slope, expected)


@pytest.mark.parametrize("method", gt.image.ResizeMethod)
@pytest.mark.parametrize("antialias", [True, False])
def test_an_axis_without_elements_becomes_one_of_zeros(method, antialias):
    resized = gt.image.resize(gt.zeros((2, 0)), (3, 4), method, antialias)
    assert resized.shape == (3, 4) and not resized.any()
    assert gt.image.resize(gt.zeros((0, 2)), (0, 4), method, antialias).shape == (0, 4)
    if method is not gt.image.ResizeMethod.NEAREST:
        given = gt.zeros((0,)), (3,), (0,), gt.ones(1), gt.zeros(1)
        assert gt.image.scale_and_translate(*given, method, antialias).tolist() == [0, 0, 0]


def test_images_of_one_channel_have_their_channels_last_too():
    """Their own strides do not tell; without it, what follows would be pooled and differentiated row by row."""
    x, w = torch.randn(16, 1, 40, 40), torch.randn(8, 1, 3, 3)

    def pooled(x, w):
        def one(x):  # an example, as models of single examples are written
            h = gt.lax.conv_general_dilated(x[None], w, (1, 1), "SAME")[0]
            return gt.lax.reduce_window(gt.relu(h), -np.inf, gt.lax.max, (1, 2, 2), (1, 2, 2), "VALID")

        return gt.vmap(one)(x)

    with gt.config(auto_compile=False):
        convolved = gt.eval(gt.nn.conv(gt.from_torch(x), gt.from_torch(w), padding=1))
        assert convolved.to_torch().stride() == (12800, 1, 320, 8)
        got = gt.eval(pooled(gt.from_torch(x), gt.from_torch(w)))
        slopes = gt.grad(lambda *a: (pooled(*a) ** 2).sum(), argnums=(0, 1))(gt.from_torch(x), gt.from_torch(w))
    x, w = x.requires_grad_(), w.requires_grad_()
    expected = torch.nn.functional.max_pool2d(torch.relu(torch.nn.functional.conv2d(x, w, padding=1)), 2)
    torch.testing.assert_close(got.to_torch(), expected.detach(), rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(slopes, torch.autograd.grad((expected**2).sum(), (x, w)), strict=True):
        torch.testing.assert_close(mine.to_torch(), theirs, rtol=1e-3, atol=1e-3)
