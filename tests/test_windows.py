"""Convolutions, pools, resampling and windows: gt.nn against torch, gt.lax against loops of NumPy, in float64."""

from __future__ import annotations

import functools
import inspect
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's usual name
from hypothesis import given, settings
from hypothesis import strategies as st

import gtrace as gt
from gtrace.nn import convolution
from gtrace.testing import assert_close, check_grads, check_vmap

lax, nn = gt.lax, gt.nn
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def interpret(default_settings):
    with gt.config(auto_compile=False):
        yield


def normal(*shape):
    return RNG.normal(size=shape)


SPATIAL = {1: (9,), 2: (7, 6), 3: (5, 4, 5)}


def image(axes, channels=4):
    return normal(2, channels, *SPATIAL[axes])


def kernel(axes, features, channels):
    return normal(features, channels, *(3, 2, 3)[:axes])


# -- gt.nn against torch

# function, arguments, keywords; the same for both
TABLE = [
    *[(f"conv{k}d", (image(k), kernel(k, 6, 4)), {}) for k in (1, 2, 3)],
    *[(f"conv{k}d", (image(k), kernel(k, 6, 2), normal(6)), {"stride": 2, "padding": 1, "groups": 2}) for k in (1, 2)],
    *[(f"conv{k}d", (image(k), kernel(k, 6, 4)), {"padding": "same", "dilation": 2}) for k in (1, 2)],
    ("conv2d", (image(2), kernel(2, 6, 4), None, (2, 1), (0, 2), (1, 2), 1), {}),
    ("conv2d", (image(2)[0], kernel(2, 6, 4)), {"padding": "valid"}),
    ("conv2d", (image(2), kernel(2, 8, 1)), {"groups": 4, "padding": [1, 0]}),
    *[(f"conv_transpose{k}d", (image(k), kernel(k, 4, 2), normal(2)), {"stride": 2, "padding": 1}) for k in (1, 2, 3)],
    ("conv_transpose2d", (image(2), kernel(2, 4, 3), normal(6), 3, 1, (2, 1), 2, (1, 2)), {}),
    *[(f"max_pool{k}d", (image(k), 2), {}) for k in (1, 2, 3)],
    ("max_pool2d", (image(2),), {"kernel_size": (3, 2), "stride": [2, 1], "padding": 1, "ceil_mode": True}),
    ("max_pool1d", (image(1), 3, 1), {"dilation": 2}),
    *[(f"avg_pool{k}d", (image(k), 2), {}) for k in (1, 2, 3)],
    ("avg_pool2d", (image(2), 3, 2, 1), {"count_include_pad": False}),
    ("avg_pool2d", (image(2), 3), {"divisor_override": 5, "ceil_mode": True}),
    ("lp_pool1d", (image(1), 3.0, 2), {}),
    ("lp_pool2d", (image(2), 2, (2, 3), 1), {}),
    *[(f"adaptive_{f}_pool{k}d", (image(k), 3), {}) for f in ("avg", "max") for k in (1, 2, 3)],
    ("adaptive_avg_pool2d", (image(2), (None, 4)), {}),
    *[("interpolate", (image(k),), {"scale_factor": 2, "mode": m})
      for k, m in [(1, "linear"), (2, "bilinear"), (2, "bicubic"), (2, "nearest"), (2, "area"), (3, "trilinear")]],
    ("interpolate", (image(2), (3, 10)), {"mode": "nearest-exact"}),
    ("interpolate", (image(2), [3, 10]), {"mode": "bilinear", "align_corners": True}),
    ("interpolate", (image(2), (3, 4)), {"mode": "bilinear", "antialias": True}),
    *[("grid_sample", (image(2), np.tanh(normal(2, 3, 4, 2)) * 1.3), {"mode": m, "padding_mode": p, "align_corners": a})
      for m, p, a in [("bilinear", "zeros", False), ("bilinear", "border", True), ("bicubic", "reflection", False),
                      ("nearest", "zeros", False)]],
    ("grid_sample", (image(3), np.tanh(normal(2, 2, 2, 2, 3))), {"align_corners": False}),
    ("affine_grid", (normal(2, 2, 3), (2, 3, 4, 5)), {"align_corners": True}),
    ("affine_grid", (normal(2, 3, 4), [2, 1, 2, 3, 4]), {"align_corners": False}),
    ("pixel_shuffle", (normal(2, 12, 2, 3), 2), {}),
    ("pixel_unshuffle", (normal(2, 3, 4, 6), 2), {}),
    ("unfold", (image(2), (3, 2), 2, 1, [2, 1]), {}),
    ("unfold", (image(2)[0], 2), {}),
    ("fold", (normal(2, 12, 20), (6, 6), (3, 2)), {}),
    ("fold", (normal(2, 12, 9), [5, 6], (3, 2)), {"stride": 2, "padding": (1, 0), "dilation": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "keywords"), TABLE, ids=[f"{k}-{c[0]}" for k, c in enumerate(TABLE)])
def test_values_and_gradients_are_those_of_torch(name, args, keywords):
    places = [k for k, x in enumerate(args) if isinstance(x, np.ndarray)]
    tensors = [torch.tensor(x, requires_grad=True) if k in places else x for k, x in enumerate(args)]
    want = getattr(F, name)(*tensors, **keywords)
    weights = np.cos(np.arange(want.numel())).reshape(want.shape)
    (want * torch.tensor(weights)).sum().backward()
    function = getattr(nn, name)
    got = function(*args, **keywords)
    assert got.shape == want.shape and got.dtype == gt.float64
    np.testing.assert_allclose(got, want.detach(), rtol=1e-10, atol=1e-12)

    def total(*arrays):
        given = dict(zip(places, arrays, strict=True))
        return (function(*[given.get(k, x) for k, x in enumerate(args)], **keywords) * weights).sum()

    grads = gt.grad(total, tuple(range(len(places))))(*[args[k] for k in places])
    for k, g in zip(places, grads, strict=True):
        np.testing.assert_allclose(g, tensors[k].grad, rtol=1e-9, atol=1e-11, err_msg=f"gradient {k}")


def test_every_function_is_tested():
    assert {case[0] for case in TABLE} == set(convolution.__all__) - {"conv"}  # which conv1d to conv3d call


SMOOTH = {
    "conv2d": (lambda x, w: nn.conv2d(x, w, stride=2, padding=1), (image(2, 2), kernel(2, 2, 2))),
    "conv_transpose1d": (lambda x, w: nn.conv_transpose1d(x, w, stride=2), (image(1, 2), kernel(1, 2, 3))),
    "avg_pool2d": (lambda x: nn.avg_pool2d(x, 2) ** 2, (image(2, 1),)),
    "max_pool1d": (lambda x: nn.max_pool1d(x, 2) ** 2, (image(1, 1),)),
    "interpolate": (lambda x: nn.interpolate(x, scale_factor=2, mode="bicubic") ** 2, (image(2, 1),)),
    "fold": (lambda x: nn.fold(nn.unfold(x, 2), (7, 6), 2) ** 2, (image(2, 1),)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_batches_and_jit(name):
    function, args = SMOOTH[name]
    check_grads(function, args, order=2, rtol=1e-4, atol=1e-5)
    stacked = [np.stack([x, 2 * x, -x]) for x in args]
    check_vmap(function, stacked)
    check_vmap(lambda x: function(x, *args[1:]), stacked[:1])
    grad = gt.grad(lambda *xs: function(*xs).sum())
    assert_close(gt.jit(grad, backend="eager")(*args), grad(*args))


def test_conv_by_its_weight():
    x, w = image(2), kernel(2, 6, 4)
    np.testing.assert_array_equal(nn.conv(x, w, stride=2), nn.conv2d(x, w, stride=2))
    assert nn.conv(gt.ones((1, 1, 4)), np.ones((1, 1, 3))).dtype == gt.float64  # operands promote


# -- gt.lax against loops


def spread_and_padded(x, pairs, dilations, value):
    """Return x with `value` between and around its elements, or cut where a pair is negative."""
    for axis, ((low, high), d) in enumerate(zip(pairs, dilations, strict=True)):
        n = x.shape[axis]
        wide = np.full((*x.shape[:axis], (n - 1) * d + 1 if n else 0, *x.shape[axis + 1 :]), value, dtype=x.dtype)
        wide[(slice(None),) * axis + (slice(None, None, d),)] = x
        ends = [(0, 0)] * x.ndim
        ends[axis] = max(low, 0), max(high, 0)
        wide = np.pad(wide, ends, constant_values=value)
        x = np.moveaxis(np.moveaxis(wide, axis, 0)[max(-low, 0) : wide.shape[axis] - max(-high, 0)], 0, axis)
    return x


def same_padding(sizes, windows, strides, lower):
    out = []
    for n, k, s in zip(sizes, windows, strides, strict=True):
        total = max((math.ceil(n / s) - 1) * s + k - n, 0)
        out.append((total - total // 2, total // 2) if lower else (total // 2, total - total // 2))
    return out


def pairs_of(padding, sizes, windows, strides):
    if padding == "VALID":
        return [(0, 0)] * len(sizes)
    return same_padding(sizes, windows, strides, padding == "SAME_LOWER") if isinstance(padding, str) else padding


def slow_conv(x, w, strides, padding, lhs_dilation, rhs_dilation, groups):
    """The cross-correlation of (N, C, *) with (O, C // groups, *), element by element."""
    axes = x.ndim - 2
    w = spread_and_padded(w, [(0, 0)] * w.ndim, (1, 1, *rhs_dilation), 0.0)
    sizes = [(n - 1) * d + 1 for n, d in zip(x.shape[2:], lhs_dilation, strict=True)]
    pairs = pairs_of(padding, sizes, w.shape[2:], strides)
    x = spread_and_padded(x, [(0, 0)] * 2 + list(pairs), (1, 1, *lhs_dilation), 0.0)
    counts = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], w.shape[2:], strides, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *counts))
    inner, outer = w.shape[1], w.shape[0] // groups
    for o in range(w.shape[0]):
        part = x[:, o // outer * inner : (o // outer + 1) * inner]
        for place in itertools.product(*map(range, counts)):
            window = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, strides, w.shape[2:], strict=True))
            out[(slice(None), o, *place)] = (part[(slice(None), slice(None), *window)] * w[o]).sum(
                axis=tuple(range(1, axes + 2))
            )
    return out


LAYOUTS = {1: [None, ("NWC", "WIO", "NWC"), ("NCW", "WIO", "CNW")],
           2: [None, ("NHWC", "HWIO", "NHWC"), ("NHWC", "OIHW", "NCHW"), ("CHWN", "IHWO", "HNCW")],
           3: [("NDHWC", "DHWIO", "NDHWC")]}  # fmt: skip
# axes, strides, padding, lhs_dilation, rhs_dilation, groups
CONVOLUTIONS = [
    (1, (1,), "VALID", (1,), (1,), 1),
    (1, (2,), "SAME", (1,), (2,), 2),
    (1, (2,), "SAME_LOWER", (1,), (1,), 1),
    (1, (1,), [(3, -2)], (3,), (2,), 1),
    (2, (1, 1), "SAME", (1, 1), (1, 1), 1),
    (2, (2, 3), "SAME_LOWER", (1, 1), (1, 2), 2),
    (2, (1, 2), [(2, 0), (-1, 3)], (1, 1), (1, 1), 1),
    (2, (2, 1), [(1, 1), (2, 2)], (1, 1), (2, 1), 4),
    (2, (1, 1), [(2, 1), (1, -1)], (2, 3), (1, 2), 2),
    (2, (2, 2), "SAME", (2, 1), (1, 1), 1),
    (2, (1, 1), [(1, 2), (1, 0)], (2, 3), (1, 2), 2),
    (3, (1, 1, 1), "SAME", (2, 1, 3), (1, 2, 1), 4),
    (3, (1, 2, 1), [(0, 1), (1, 1), (-1, 0)], (1, 2, 1), (1, 1, 1), 2),
]


@pytest.mark.parametrize("k", range(len(CONVOLUTIONS)))
def test_general_convolutions(k):
    axes, strides, padding, lhs_dilation, rhs_dilation, groups = CONVOLUTIONS[k]
    x, w = image(axes), kernel(axes, 8, 4 // groups)
    want = slow_conv(x, w, strides, padding, lhs_dilation, rhs_dilation, groups)
    letters = "DHW"[3 - axes :]
    for layout in LAYOUTS[axes]:
        lhs, rhs, out = layout or (f"NC{letters}", f"OI{letters}", f"NC{letters}")
        letters = "".join(c for c in rhs if c not in "OI") if layout is None else letters
        given = np.transpose(x, [f"NC{letters}".index(c) for c in lhs])
        weights = np.transpose(w, [f"OI{letters}".index(c) for c in rhs])
        got = lax.conv_general_dilated(
            given, weights, strides, padding, lhs_dilation, rhs_dilation, layout, feature_group_count=groups
        )
        expected = np.transpose(want, [f"NC{letters}".index(c) for c in out])
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_transposed_convolutions_make_no_zeros(padding):
    def transposed(x, w):
        return lax.conv_transpose(x, w, (2, 2), padding)

    x, w = gt.array(np.transpose(image(2), (0, 2, 3, 1))), gt.array(np.transpose(kernel(2, 3, 4), (2, 3, 1, 0)))
    names = [node.op.name for node in gt.make_graph(transposed)(x, w).nodes]
    assert names.count("aten") == 1 and set(names) <= {"aten", "permute", "reshape", "flip", "slice"}
    check_grads(transposed, (x, w))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_convolution_of_one_axis(data):
    size, window = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    stride, spread, gap = (data.draw(st.integers(1, 3)) for _ in range(3))
    low, high = (data.draw(st.integers(-2, 4)) for _ in range(2))
    length, reach = (size - 1) * spread + 1, (window - 1) * gap + 1
    if length + min(low, 0) + min(high, 0) < 1 or length + low + high < reach:
        return
    x, w = normal(1, 2, size), normal(3, 2, window)
    got = lax.conv_general_dilated(x, w, (stride,), [(low, high)], (spread,), (gap,))
    np.testing.assert_allclose(got, slow_conv(x, w, (stride,), [(low, high)], (spread,), (gap,), 1), atol=1e-12)


def slow_windows(x, value, computation, sizes, strides, padding, base, gaps):
    wide = [(n - 1) * d + 1 if n else 0 for n, d in zip(x.shape, base, strict=True)]
    windows = [(n - 1) * g + 1 for n, g in zip(sizes, gaps, strict=True)]
    x = spread_and_padded(x, pairs_of(padding, wide, windows, strides), base, value)
    counts = [max((n - k) // s + 1, 0) for n, k, s in zip(x.shape, windows, strides, strict=True)]
    out = np.empty(counts, dtype=x.dtype)
    for place in itertools.product(*map(range, counts)):
        window = tuple(slice(p * s, p * s + k, g) for p, s, k, g in zip(place, strides, windows, gaps, strict=True))
        out[place] = functools.reduce(computation, x[window].ravel(), value)
    return out


REDUCTIONS = {"max": (lax.max, max, -math.inf), "add": (lax.add, lambda a, b: a + b, 0.0),
              "min": (lax.min, min, math.inf), "mul": (lax.mul, lambda a, b: a * b, 1.0)}  # fmt: skip
# sizes, strides, padding, base dilation, window dilation
WINDOWS = [
    ((2, 3), (1, 1), "VALID", (1, 1), (1, 1)),
    ((2, 3), (2, 2), "SAME", (1, 1), (1, 1)),
    ((2, 2), (2, 3), "SAME_LOWER", (1, 1), (2, 1)),
    ((1, 3), (1, 2), [(0, 0), (2, 1)], (1, 1), (1, 2)),
    ((2, 2), (1, 1), [(1, -1), (-2, 2)], (2, 1), (1, 1)),
    ((9, 1), (1, 1), "VALID", (1, 1), (1, 1)),
]


def test_gradients_of_maxima_go_to_the_first_of_equal_elements():
    """As in JAX, which gave these numbers."""
    weights = np.arange(1.0, 7.0)

    def overlapping(x):
        return (lax.reduce_window(x, -math.inf, lax.max, (3,), (1,), "SAME") * weights).sum()

    def apart(x):
        maxima = lax.reduce_window(x, -math.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        return (maxima[0, :, :, 0] * weights.reshape(2, 3)).sum()

    assert gt.grad(overlapping)(gt.ones(6)).tolist() == [3, 3, 4, 5, 6, 0]
    expected = [[1, 0, 2, 0, 3], [0, 0, 0, 0, 0], [4, 0, 5, 0, 6], [0, 0, 0, 0, 0]]
    assert gt.grad(apart)(gt.zeros((1, 4, 5, 1)))[0, :, :, 0].tolist() == expected


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("k", range(len(WINDOWS)))
def test_reductions_of_windows(name, k):
    ours, theirs, value = REDUCTIONS[name]
    sizes, strides, padding, base, gaps = WINDOWS[k]
    x = normal(6, 7)
    got = lax.reduce_window(x, value, ours, sizes, strides, padding, base, gaps)
    want = slow_windows(x, value, theirs, sizes, strides, padding, base, gaps)
    assert got.shape == want.shape and got.dtype == gt.float64
    assert_close(got, want, check_dtype=False)


def test_reductions_of_integers_and_by_default():
    x = np.arange(6)
    got = lax.reduce_window(x, 0, lax.add, (2,))
    assert got.dtype == gt.int64 and got.tolist() == [1, 3, 5, 7, 9]
    assert lax.reduce_window(np.zeros((0, 3)), 0.0, lax.add, (1, 2)).shape == (0, 2)


DERIVATIVES = {
    "conv": (lambda x, w: lax.conv_general_dilated(x, w, (2, 1), [(2, -1), (0, 1)], (1, 2), (2, 1),
                                                   ("NHWC", "HWIO", "NHWC")), (normal(1, 7, 5, 2), normal(3, 2, 2, 3))),
    "max": (lambda x: lax.reduce_window(x, -math.inf, lax.max, (2, 2), (2, 1), "SAME") ** 2, (normal(4, 5),)),
    "add": (lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 1), "SAME") ** 2, (normal(4, 5),)),
    "mul": (lambda x: lax.reduce_window(x, 1.0, lax.mul, (2, 2), (1, 1), "SAME"), (normal(3, 3),)),
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_windows(name):
    function, args = DERIVATIVES[name]
    check_grads(function, args, order=2, rtol=1e-4, atol=1e-5)
    check_vmap(function, [np.stack([x, 2 * x]) for x in args])


# -- errors

X1, X2 = image(1), image(2)
NHWC = ("NHWC", "HWIO", "NHWC")
ERRORS = [
    (lambda: nn.conv(X1, normal(4, 4)), gt.ShapeError, r"\[conv\] expected a weight with one to three"),
    (lambda: nn.conv1d(X1, kernel(2, 6, 4)), gt.ShapeError, r"\[conv1d\] expected a weight with 1 spatial"),
    (lambda: nn.conv1d(X1, kernel(1, 6, 3)), gt.ArgumentError, r"\[conv1d\] .* f64\[6,3,3\]\. torch says"),
    (lambda: nn.conv2d(X2, kernel(2, 6, 4), padding="SAME"), gt.ArgumentError, r"\[conv2d\] .*torch says"),
    (lambda: nn.conv_transpose1d(X1, kernel(1, 3, 4)), gt.ArgumentError, r"\[conv_transpose1d\]"),
    (lambda: nn.max_pool2d(X2, 2, padding=2), gt.ArgumentError, r"\[max_pool2d\] .*pad"),
    (lambda: nn.avg_pool1d(X2, 9), gt.ArgumentError, r"\[avg_pool1d\]"),
    (lambda: nn.interpolate(X2, 3, mode="cubic"), gt.ArgumentError, r"\[interpolate\]"),
    (lambda: nn.interpolate(X2), gt.ArgumentError, r"\[interpolate\] .*size or scale_factor"),
    (lambda: nn.grid_sample(X2, normal(2, 3, 3)), gt.ArgumentError, r"\[grid_sample\]"),
    (lambda: nn.pixel_shuffle(X2, 3), gt.ArgumentError, r"\[pixel_shuffle\] .*upscale_factor = 3"),
    (lambda: nn.unfold(X2, 9), gt.ArgumentError, r"\[unfold\]"),
    (lambda: nn.fold(normal(1, 4, 5), 3, 2), gt.ArgumentError, r"\[fold\]"),
    (lambda: lax.conv(X1, kernel(1, 6, 4), (1, 1), "VALID"), gt.ShapeError, r"\[conv\] .*each spatial axis, got f64"),
    (lambda: lax.conv(X1, kernel(2, 6, 4), (1,), "VALID"), gt.ShapeError, r"\[conv\] .*equally many axes"),
    (lambda: lax.conv(X1, kernel(1, 6, 4), (0,), "VALID"), gt.ArgumentError, r"\[conv\] .*at least 1, got \(0, 1, 1\)"),
    (lambda: lax.conv(X1, kernel(1, 6, 4), (1,), "full"), gt.ArgumentError, r"\[conv\] expected SAME, SAME_LOWER"),
    (lambda: lax.conv(X1, kernel(1, 6, 4), (1,), [(0, 0)] * 2), gt.ShapeError, r"\[conv\] expected 1 pairs"),
    (lambda: lax.conv_general_dilated(X2, X2, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO")),
     gt.ArgumentError, r"three texts of 4 letters"),
    (lambda: lax.conv_general_dilated(X2, X2, (1, 1), "SAME", dimension_numbers=("NHWD", "HWIO", "NHWC")),
     gt.ArgumentError, r"expected the letters NCHW, got NHWD"),
    (lambda: lax.conv_general_dilated(X1, X1, (1,), "SAME", batch_group_count=3),
     gt.ArgumentError, r"batch_group_count that divides the batch .*, got 3 for"),
    (lambda: lax.reduce_window(X1, 0.0, lax.add, (2,)), gt.ShapeError, r"\[reduce_window\] expected an entry for each"),
    (lambda: lax.reduce_window(X1, 0.0, lax.add, (1, 1, 0)), gt.ArgumentError, r"\[reduce_window\] .*at least 1"),
    (lambda: lax.reduce_window(X1, 0.0, lax.add, (1, 1, 2), padding="FULL"), gt.ArgumentError, r"SAME, SAME_LOWER"),
]  # fmt: skip


@pytest.mark.parametrize("k", range(len(ERRORS)))
def test_wrong_arguments(k):
    call, kind, text = ERRORS[k]
    with pytest.raises(kind, match=text):
        call()


def test_pools_have_the_parameters_of_torch():
    names = list(inspect.signature(nn.avg_pool2d).parameters)
    assert names[1:] == ["kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"]
    assert "divisor_override" not in inspect.signature(nn.avg_pool1d).parameters
    with pytest.raises(TypeError, match="width"):
        nn.max_pool2d(X2, 3, width=2)
