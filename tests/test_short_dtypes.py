"""float16 and bfloat16 beside counts: float16 ends at 65,504, and bfloat16 numbers no more than 256 elements.

Values, derivatives and batches of short operands are compared with those of the same numbers in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gtrace as gt
import gtrace.numpy as gnp
from gtrace.core.ir.op import REGISTRY
from gtrace.errors import GtraceError
from gtrace.testing.samples import arrays_in, map_arrays

SHORT = [torch.float16, torch.bfloat16]
SHAPES = [(70_000,), (9_000, 8), (1,)]
MASK = 3  # every third element is left out


def kept(x):
    return (gt.arange(x.size) % MASK != 0).reshape(x.shape) if x.size > 1 else gt.ones(x.shape, dtype=gt.bool)


def with_nan(x):
    return gt.where(kept(x), x, float("nan"))


def image(x):
    side = int(x.size**0.5)
    return x.reshape(-1)[: side * side].reshape(1, 1, side, side)


def column(x):
    return x.reshape(-1, 1)


REDUCTIONS = {
    "mean": gt.mean,
    "mean over axis 0": lambda x: gt.mean(x, axis=0),
    "mean of kept": lambda x: gt.mean(x, where=kept(x)),
    "mean of squares": lambda x: (x * x).mean(),
    "sum": lambda x: gt.sum(x / 64),
    "var": lambda x: gt.var(x),
    "var of kept": lambda x: gt.var(x, where=kept(x)),
    "std": lambda x: gt.std(x + 0.5 * gt.sin(x)),
    "std, corrected": lambda x: gt.std(x, correction=0.5),
    "max": gt.max,
    "min over axis 0": lambda x: gt.min(x, axis=0),
    "max of ties": lambda x: gt.max(x * 0 + gt.mean(x)),
    "min of ties": lambda x: gt.min(gt.maximum(x, 0.5)),
    "at max": lambda x: gt.zeros(2, dtype=x.dtype).at[gt.zeros(x.size, dtype=gt.int64)].max(gt.minimum(x.ravel(), 0.5)),
    "segment max": lambda x: gt.segments.segment_max(gt.minimum(x.ravel(), 0.5), gt.zeros(x.size, dtype=gt.int64), 1),
    "logsumexp": gt.logsumexp,
    "logsumexp of kept": lambda x: gt.logsumexp(x, where=kept(x)),
    "logmeanexp": gt.nn.logmeanexp,
    "logmeanexp of kept": lambda x: gt.nn.logmeanexp(x, where=kept(x)),
    "softmax": lambda x: gt.softmax(x.ravel() * 8) * 64,
    "log_softmax": lambda x: gt.nn.log_softmax(x.ravel()),
    "standardize": lambda x: gt.nn.standardize(x * 2, None, epsilon=0.1),
    "average": gnp.average,
    "average, weighted": lambda x: gnp.average(x, weights=gt.abs(x) + 0.5),
    "cov": lambda x: gnp.cov(x, rowvar=x.ndim == 1) if x.size > 1 else x,
    "nanmean": lambda x: gnp.nanmean(with_nan(x)),
    "nanvar": lambda x: gnp.nanvar(with_nan(x)),
    "median": gnp.median,
    "quantile": lambda x: gnp.quantile(x, 0.3),
    "linspace": lambda x: gt.linspace(x.ravel()[0], x.ravel()[-1], 70_000),
    "vector_norm": gt.linalg.vector_norm,
    "vector_norm 1": lambda x: gt.linalg.vector_norm(x / 64, ord=1),
    "vector_norm 3": lambda x: gt.linalg.vector_norm(x, ord=3),
    "pmean": lambda x: gt.vmap(lambda q: q - gt.lax.pmean(q, "i"), axis_name="i")(x.ravel()),
    "pmean of one": lambda x: gt.vmap(lambda q: gt.lax.pmean(x.ravel()[0], "i") * q, axis_name="i")(x.ravel()),
    "pmax": lambda x: gt.vmap(lambda q: gt.lax.pmax(q, "i"), axis_name="i")(gt.minimum(x.ravel(), 0.5)) / 512,
    "avg_pool2d": lambda x: gt.nn.avg_pool2d(image(x), image(x).shape[-1]),
    "adaptive_avg_pool2d": lambda x: gt.nn.adaptive_avg_pool2d(image(x), 1),
    "avg_pool1d": lambda x: gt.nn.avg_pool1d(x.reshape(1, 1, -1), x.size),
    "adaptive_avg_pool1d": lambda x: gt.nn.adaptive_avg_pool1d(x.reshape(1, 1, -1), 1),
    "lp_pool1d": lambda x: gt.nn.lp_pool1d(x.reshape(1, 1, -1) + 1.5, 2, x.size),
    "layer_norm": lambda x: gt.nn.layer_norm(x.ravel(), (x.size,), eps=0.1),
    "group_norm": lambda x: gt.nn.group_norm(x.reshape(1, 1, -1), 1, eps=0.1),
    "batch statistics": lambda x: gt.nn.batch_norm(column(x), x.mean().reshape(1), x.var().reshape(1), eps=0.1) / 64,
    "mse_loss": lambda x: gt.nn.mse_loss(x, gt.zeros_like(x)),
    "kl_div": lambda x: gt.nn.kl_div(column(x), gt.full((x.size, 1), 0.5, x.dtype), reduction="batchmean"),
    "smoothed cross_entropy": lambda x: gt.nn.cross_entropy(x.reshape(1, -1), gt.array([0]), label_smoothing=0.5),
    "smoothed probabilities": lambda x: gt.nn.cross_entropy(
        x.reshape(1, -1), gt.one_hot(gt.array([0]), x.size, dtype=x.dtype), label_smoothing=0.5
    ),
    "logsumexp of zeros": lambda x: gt.logsumexp(x * 0.0),
    "logsumexp of kept zeros": lambda x: gt.logsumexp(x * 0.0, where=kept(x)),
    "nll_loss": lambda x: gt.nn.nll_loss(column(x), gt.zeros(x.size, dtype=gt.int64)),
    "torch mean": lambda x: torch.mean(x),
    "torch mean of squares": lambda x: torch.mean(torch.mul(x, x)),
    "torch std": lambda x: torch.std(x) if x.size > 1 else x,
    "torch amax": lambda x: torch.amax(gt.minimum(x, 0.5)),
    "torch mse_loss": lambda x: torch.nn.functional.mse_loss(x, x * 0),
    "torch adaptive": lambda x: torch.nn.functional.adaptive_avg_pool1d(x.reshape(1, 1, -1), 1),
}  # fmt: skip
_NOT_CURVED = ("pool", "norm", "torch", "at max", "segment", "log_softmax")
CURVED = {name for name in REDUCTIONS if not any(k in name for k in _NOT_CURVED)}
"""Functions whose second derivatives are compared. Those of log_softmax are made of its rounded result."""


NOT_WALKED = {
    # their attributes belong to their samples' sizes
    "correlate", "log_softmax_grad", "slice", "slice_update", "sum_to", "unslice", "with_sharding",
    "cumprod", "prod",  # products of many elements have no bounds
}  # fmt: skip
WALKED = [
    name
    for name, op in sorted(REGISTRY.items())
    if op.cases.samples is not None and op.rules.nondiff is None and op.arity and name not in NOT_WALKED
]


def data(shape, dtype, seed=0, low=-1.0):
    """Return numbers in [low, 1] that the dtype holds, in the dtype and in float64."""
    x = torch.tensor(np.random.default_rng(seed).uniform(low, 1, shape)).to(dtype)
    return gt.array(x), gt.array(x.double())


def assert_near(got, expected, dtype, what, steps=16):
    """Compare at the scale of the largest element; near the smallest number of float16, 6e-8, digits are lost."""
    for a, b in zip(gt.tree.leaves(got), gt.tree.leaves(expected), strict=True):
        assert a.aval.dtype in (dtype, torch.float32), f"{what}: {a.dtype}"
        a, b = (np.asarray(y.astype(gt.float64)) for y in (a, b))
        scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        np.testing.assert_allclose(a, b, rtol=0, atol=steps * torch.finfo(dtype).eps * scale + 2e-7, err_msg=what)


def check(function, what, dtype, arrays, curved, steps=16):
    """Compare value, gradient, tangent, second derivative and batch with those in float64.

    Args:
        arrays: what the function takes, in the short dtype.
        curved: also compare second derivatives.
        steps: how many roundings the derivative may lose, at the scale of the largest element.
    """
    # along the operands, so that no sum cancels
    tangents = [x * 0.25 + 0.75 for x in arrays]
    lanes = [gt.stack([x, gt.flip(x) * 0.5]) for x in arrays]
    ct = data(function(*arrays).shape, dtype, 3, 0.5)[0]
    found = []
    for wide in (False, True):
        xs, vs, both = ([gt.astype(x, gt.float64) if wide else x for x in part] for part in (arrays, tangents, lanes))
        out = function(*xs)
        w = ct.astype(out.dtype)
        slopes = lambda *q, w=w: gt.vjp(function, *q)[1](w)  # noqa: E731
        parts = {"value": out, "gradient": slopes(*xs), "tangent": gt.jvp(function, tuple(xs), tuple(vs))[1]}
        if curved:
            parts["second derivative"] = gt.jvp(slopes, tuple(xs), tuple(vs))[1]
        parts["batch"] = gt.vmap(function)(*both)
        parts["gradients of a batch"] = gt.vmap(slopes)(*both)
        found.append(parts)
    for part, got in found[0].items():
        assert_near(got, found[1][part], dtype, f"{what}: {part}", steps)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, dtype):
    with gt.config(auto_compile=False):
        for shape in SHAPES:
            what = f"{name} of {shape} in {dtype}"
            check(REDUCTIONS[name], what, dtype, [data(shape, dtype)[0]], name in CURVED)


def calls_of(op, dtype, shape):
    """Iterate over calls of an operation with its samples' attributes, and its floats enlarged to a shape."""
    for sample in op.cases.samples():
        arrays = list(arrays_in(list(sample.args)))
        if not arrays or any(x.dtype.kind != "f" or not x.size for x in arrays):
            continue
        enlarged = [np.resize(x, shape) for x in arrays]
        floats = [gt.array(torch.tensor(x).to(dtype)) for x in enlarged]

        def call(*values, sample=sample):
            rest = iter(values)
            return op.cases.user(*map_arrays(lambda _: next(rest), list(sample.args)), **sample.kwargs)

        try:
            out = call(*floats)
        except GtraceError:  # an axis or a shape that the enlarged operand lacks
            continue
        if isinstance(out, gt.Array) and out.aval.dtype is dtype:
            yield sample, call, floats


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", WALKED)
def test_each_operation(name, dtype):
    op = REGISTRY[name]
    with gt.config(auto_compile=False):
        # elements of an elementwise operation do not meet
        for shape in SHAPES[-1:] if op.elementwise else SHAPES:
            for sample, call, floats in calls_of(op, dtype, shape):
                what = f"{name} of {shape} in {dtype} with {sample.kwargs}"
                # the formula of an elementwise derivative may cancel, and its only element is its scale
                check(call, what, dtype, floats, False, steps=64 if op.elementwise else 16)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_norms_of_updates(dtype):
    grads = {"many": gt.full(70_000, 1.5, dtype), "large": gt.full(2, 300.0, dtype)}
    wide = gt.tree.map(lambda x: x.astype(gt.float64), grads)
    assert_near(gt.optim.global_norm(grads), gt.optim.global_norm(wide), dtype, "global_norm")
    for name in ("clip_by_global_norm", "clip_by_block_rms", "scale_by_param_block_rms"):
        opt = getattr(gt.optim, name)(1.0)
        got, right = (opt.update(x, opt.init(x), gt.tree.map(lambda p: p * 0.5, x))[0] for x in (grads, wide))
        assert_near(got, right, dtype, name)
    opt = gt.optim.scale_by_muon()
    for matrix in (gt.zeros((3, 2), dtype=dtype), gt.full((300, 300), 2.0, dtype)):
        assert np.isfinite(np.asarray(opt.update(matrix, opt.init(matrix))[0].astype(gt.float32))).all()


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_histograms_and_frequencies(dtype):
    x = gt.full(70_000, 0.5, dtype)
    for density in (gnp.histogram(x, 2, (0.0, 1.0), density=True)[0], gnp.histogramdd(x[:, None], 2, density=True)[0]):
        assert density.aval.dtype is dtype and float(density.astype(gt.float32).max()) == 2.0
    for function in (gt.fft.fftfreq, gt.fft.rfftfreq):
        assert_near(function(70_000, dtype=dtype), function(70_000, dtype=gt.float64), dtype, function.__name__, 1)
