"""Programs give the same whatever the layouts of their arguments in memory: compared with torch in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.core.runtime.engine import engine
from gtrace.testing import assert_close

ATTENDING = F.scaled_dot_product_attention


def series(x, w, v):
    """Large ones are images of one row: convolutions of all channels and of each, padding and joining."""
    h = torch.tanh(F.conv1d(x, w, padding=2, dilation=2))
    return torch.cat([F.conv1d(F.pad(h, (3, 0)), v, groups=8), x], 1)


# name: (function of tensors, the shapes of these; n is a size that varies)
FUNCTIONS = {
    "attention": (lambda q, k, v: ATTENDING(q, k, v, is_causal=True), ("n", 2, 5, 4), ("n", 2, 5, 4), ("n", 2, 5, 4)),
    "attention of groups": (lambda q, k, v: ATTENDING(q, k, v, enable_gqa=True), (2, 4, "n", 4), (2, 2, "n", 4),
                            (2, 2, "n", 4)),
    "attention with a mask": (lambda q, k, v, m: ATTENDING(q, k, v, attn_mask=m), (2, 2, "n", 4), (2, 2, 3, 4),
                              (2, 2, 3, 4), ("n", 3)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ("n", 4, 3, 5), (4,), (4,)),
    "instance norm": (lambda x: F.instance_norm(x), ("n", 4, 3, 5)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), ("n", 1, 6), (6,), (6,)),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ("n", 4, 3), (4,), (4,)),
    "batch norm of images": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ("n", 4, 3, 5), (4,),
                             (4,)),
    "batch norm, evaluated": (lambda x, w, b: F.batch_norm(x, x.new_zeros(4), x.new_full((4,), 2.0), w, b),
                              ("n", 4, 3, 5), (4,), (4,)),
    "convolution in groups": (lambda x, w: F.conv2d(x, w, padding=(2, 1), groups=2, dilation=(2, 1), stride=(1, 2)),
                              (2, 4, "n", 8), (6, 2, 3, 1)),
    "convolution of one channel": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), ("n", 1, 6, 8), (5, 1, 3, 3)),
    "transposed convolution": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), ("n", 4, 5, 6),
                               (4, 3, 3, 2)),
    "series": (series, ("n", 8, 400), (8, 8, 3), (8, 1, 4)),
    "batch norm of series": (lambda x, w, b: F.batch_norm(F.conv1d(x, w), None, None, b, training=True),
                             ("n", 8, 400), (9, 8, 3), (9,)),
    "pooling": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1)), (2, 3, "n", 9)),
    "padding": (lambda x: (F.pad(x, (1, 2, 0, 1), mode="replicate"), F.interpolate(x, scale_factor=2)), (1, 3, "n", 5)),
    "bag": (lambda w: F.embedding_bag(torch.tensor([0, 2, 1, 3]), w, torch.tensor([0, 3])), ("n", 4)),
    "distances": (lambda x: F.pdist(x), ("n", 4)),
    "products": (lambda x, y: (torch.einsum("na,bn->ab", x, y), x @ y, (y.T + x).reshape(-1)), ("n", 4), (4, "n")),
    "reshape": (lambda x: (x.permute(2, 0, 1).reshape(4, -1) * 2, x.reshape(-1, 8) + 1), ("n", 6, 4)),
    "cumulative": (lambda x: (x.cumsum(0), x.flip(0).cumsum(1), x.softmax(0)), ("n", 7)),
}  # fmt: skip

LAYOUTS = ["dense", "permuted", "steps", "expanded", "offset", "odd"]


def laid_out(x: torch.Tensor, layout: str, axis: int) -> torch.Tensor:
    """Return a tensor of the shape of `x`, laid out as it says; of its values but for "expanded"."""
    axis %= x.dim()
    if layout == "permuted":
        return x.transpose(0, axis).contiguous().transpose(0, axis)
    if layout == "steps":
        return x.repeat_interleave(2, axis)[(slice(None),) * axis + (slice(None, None, 2),)]
    if layout == "expanded":
        return x.narrow(axis, 0, 1).clone().expand(x.shape)
    if layout == "offset":
        return torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape)
    if layout == "odd":
        return x.as_strided(x.shape, [77 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)])
    return x


UNEQUAL = ("layer norm", "group norm", "instance norm", "batch norm", "batch norm of images", "batch norm of series",
           "distances")  # fmt: skip
"""Functions that amplify rounding where all numbers of their first operand are equal."""


@st.composite
def calls(draw, names=tuple(FUNCTIONS)):
    """Draw the name of a function, a layout and an axis for each of its arguments, and sizes."""
    name = draw(st.sampled_from(names))
    layouts = [draw(st.tuples(st.sampled_from(LAYOUTS), st.integers(0, 4))) for _ in FUNCTIONS[name][1:]]
    assume(name not in UNEQUAL or layouts[0][0] != "expanded")
    return name, layouts, draw(st.lists(st.sampled_from([4, 5, 6, 7, 8, 11, 16]), min_size=3, max_size=3, unique=True))


def arguments(name, layouts, n):
    generator = torch.Generator().manual_seed(n)
    shapes = [[n if size == "n" else size for size in shape] for shape in FUNCTIONS[name][1:]]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return [laid_out(x, *layout) for x, layout in zip(drawn, layouts, strict=True)]


def results_of(function, args):
    found = function(*args)
    return list(found) if isinstance(found, tuple) else [found]


def weights(size):
    return torch.cos(torch.arange(size))


def expected(name, args):
    """Return the results of torch in float64, and the gradients of their sum with weights."""
    exact = [x.double().clone().requires_grad_() for x in args]
    results = results_of(FUNCTIONS[name][0], exact)
    total = sum((r * weights(r.numel()).reshape(r.shape)).sum() for r in results)
    return [r.detach() for r in results], torch.autograd.grad(total, exact)


def program(name):
    function = gt.lift(FUNCTIONS[name][0])

    def run(*args):
        def loss(*args):
            results = results_of(function, args)
            given = [gt.array(weights(r.size)).reshape(r.shape) for r in results]
            return sum((r * w).sum() for r, w in zip(results, given, strict=True))

        return results_of(function, args), gt.grad(loss, argnums=tuple(range(len(args))))(*args)

    return run


def check(run, name, layouts, n):
    args = arguments(name, layouts, n)
    got = gt.tree.leaves(gt.eval(run(*map(gt.from_torch, args))))
    for k, (x, y) in enumerate(zip(got, gt.tree.leaves(expected(name, args)), strict=True)):
        scale = max(float(y.abs().max()), 0.02)
        message = f"result {k} of {name} for n = {n}"
        torch.testing.assert_close(x.to_torch().double(), y, rtol=0, atol=1e-4 * scale, msg=message)


@settings(max_examples=6)
@given(calls())
@example(("attention", [("permuted", 3), ("dense", 0), ("dense", 0)], [6]))
@example(("attention with a mask", [("dense", 0), ("dense", 0), ("dense", 0), ("expanded", 1)], [6]))
@example(("group norm", [("dense", 0), ("expanded", 0), ("steps", 0)], [6]))
@example(("series", [("dense", 0), ("dense", 0), ("dense", 0)], [7]))
@example(("series", [("permuted", 1), ("permuted", 2), ("dense", 0)], [8]))
@example(("batch norm of series", [("dense", 0), ("dense", 0), ("dense", 0)], [8]))
@example(("bag", [("permuted", 1)], [6]))
@example(("distances", [("permuted", 1)], [6]))
def test_interpreted(call):
    name, layouts, sizes = call
    with gt.config(auto_compile=False):
        check(program(name), name, layouts, sizes[0])


@pytest.mark.long
@given(calls())
def test_interpreted_at_length(call):
    name, layouts, sizes = call
    with gt.config(auto_compile=False):
        check(program(name), name, layouts, sizes[0])


@pytest.mark.long
@settings(max_examples=100)
@given(calls())
def test_compiled_for_each_size_and_for_open_ones(call):
    name, layouts, sizes = call
    run = gt.jit(program(name))
    for n in (*sizes, 1 if name in ("reshape", "cumulative", "layer norm") else 4):
        check(run, name, layouts, n)


@pytest.mark.slow
def test_compiled_code_around_kernels_of_torch():
    # the gradient of a replicated padding has its channels last, where torch's fake tensors have them first
    x = torch.randn(1, 2, 4, 3).permute(0, 3, 1, 2)
    cotangent, other = torch.randn(1, 3, 3, 7), torch.randn(x.shape)
    # quotients that round up to an integer
    a, b = torch.tensor([1.0, -0.5, 6.0, -0.0, 5.5]), torch.tensor([0.1, torch.inf, 0.1, 2.0, -torch.inf])

    def run(x, cotangent, other, a, b):
        padding = torch.ops.aten.replication_pad2d_backward(cotangent, x, (1, 2, 0, 1))
        quotients = torch.div(a, b, rounding_mode="floor"), torch.remainder(a, 0.1), torch.remainder(a, b)
        return padding + other * 2, *quotients

    args = x, cotangent, other, a, b
    for got, want in zip(gt.jit(gt.lift(run))(*map(gt.from_torch, args)), run(*args), strict=True):
        assert got.to_torch().tolist() == want.tolist()


def test_a_profile_leaves_the_state_of_a_loop_in_its_strides():
    """What measures a call computes by other means; in other strides, the next step would be another program."""

    def step(w, m, x):
        g = gt.grad(lambda w: (gt.tanh(x @ w.T) ** 2).sum())(w)
        m = 0.9 * m + g
        return m / (-9 - abs(m)) + w, m

    with gt.config(auto_compile=False):
        w, m, x = gt.eval((gt.ones((6, 4)) * 0.5, gt.ones((4, 6)).T * 0.1, gt.ones((5, 4))))
        for _ in range(3):
            w, m = gt.eval(step(w, m, x))
        expected = [one.to_torch().stride() for one in (w, m)]
        programs = len(engine.programs)
        with gt.profile():
            w, m = gt.eval(step(w, m, x))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            w, m = gt.eval(step(w, m, x))
        assert [one.to_torch().stride() for one in (w, m)] == expected
        w, m = gt.eval(step(w, m, x))
    assert len(engine.programs) == programs


@pytest.mark.slow
def test_series_stay_in_the_layout_of_their_convolutions():
    """So that each convolution of a network takes them as they are; compiled or not, results are torch's."""
    x, w, v = torch.randn(8, 16, 300), torch.randn(16, 16, 3), torch.randn(16, 1, 4)
    expected = torch.relu(F.conv1d(x, w))
    expected = F.conv1d(F.pad(torch.cat([expected, expected * 2], 2), (3, 0)), v, groups=16)
    last = lambda x: x.stride() == (x.shape[1] * x.shape[2], 1, x.shape[1])  # noqa: E731
    with gt.config(auto_compile=False):
        first = gt.eval(gt.lift(F.conv1d)(gt.from_torch(x), gt.from_torch(w)))
        joined = gt.eval(gt.concat([gt.relu(first), gt.relu(first) * 2], axis=2))
        padded = gt.eval(gt.pad(joined, ((0, 0), (0, 0), (3, 0))))
        second = gt.eval(gt.lift(F.conv1d)(padded, gt.from_torch(v), groups=16))
    assert all(last(one.to_torch()) for one in (first, joined, padded, second))
    torch.testing.assert_close(second.to_torch(), expected, rtol=1e-4, atol=1e-4)

    def whole(x, w, v):
        h = gt.relu(gt.lift(F.conv1d)(x, w))
        return gt.lift(F.conv1d)(gt.pad(gt.concat([h, h * 2], axis=2), ((0, 0), (0, 0), (3, 0))), v, groups=16)

    got = gt.jit(whole)(*map(gt.from_torch, (x, w, v)))
    torch.testing.assert_close(got.to_torch(), expected, rtol=1e-4, atol=1e-4)


def test_strides_of_axes_of_size_1_make_no_other_program():
    """A kernel of one place, height, width, inputs and outputs, comes back from convolutions with one or the other."""
    kernel = torch.randn(5, 3)
    forms = [kernel.t().as_strided((1, 1, 3, 5), strides) for strides in [(3, 3, 1, 3), (15, 15, 1, 3), (7, 1, 1, 3)]]
    with gt.config(auto_compile=False):
        counts = []
        for form in forms:
            x = gt.from_torch(form)
            got = gt.eval(gt.tanh(x) * 2.5)
            assert_close(got.to_torch(), torch.tanh(form) * 2.5)
            counts.append((len(engine.recordings), len(engine.programs)))
    assert len(set(counts)) == 1


def test_moments_that_begin_with_zeros_lie_as_their_parameters():
    """Gradients of kernels lie in another order. Moments that took it on would be copied in each step."""

    def loss(w, x):
        y = gt.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return (y**2).sum()

    x, w = torch.randn(2, 5, 5, 3), torch.randn(3, 3, 3, 4)
    for run in (gt.eval, gt.jit(lambda state: state)):
        with gt.config(auto_compile=False):
            weights = gt.from_torch(w)
            m, v = gt.zeros_like(weights), gt.zeros_like(weights)
            for _ in range(2):
                g = gt.grad(loss)(weights, gt.from_torch(x))
                m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
                weights, m, v = run((weights - 1e-3 * m / (gt.sqrt(v) + 1e-8), m, v))
                assert {one.to_torch().stride() for one in (weights, m, v)} == {w.stride()}
    assert g.to_torch().stride() != w.stride()
