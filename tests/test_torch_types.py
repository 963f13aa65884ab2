"""The types of torch's calls that are written out, against what its CPU kernels return: shape, dtype and strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gtrace.core.ir.aval import Aval, aval
from gtrace.core.ir.op import REGISTRY
from gtrace.interop.aten.call_types import WRITTEN, call_type
from gtrace.interop.aten.open_sizes import Opened, current
from gtrace.interop.aten.open_types import _COMPUTED, _VIEWS, UnknownSizesError, open_types

aten = torch.ops.aten


def on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [on_meta(each) for each in value] if isinstance(value, (list, tuple)) else value


def layouts(*shape: int) -> Iterator[Tensor]:
    """Tensors of a shape: dense, with axes in other orders, a part of a larger one, broadcast."""
    count = math.prod(shape)
    x = torch.linspace(0.1, 0.9, count)
    yield x.reshape(shape)
    if len(shape) > 1:
        yield x.reshape(shape[::-1]).permute(*range(len(shape))[::-1])
        yield x.reshape(shape[1:] + shape[:1]).movedim(-1, 0)
        yield torch.rand(*shape[:-1], 2 * shape[-1])[..., 1::2]
        yield torch.rand(shape[0] + 1, *shape[1:])[1:]
        yield torch.rand(*shape[:-1], 1).expand(shape)


UNARY = (
    "sigmoid tanh gelu silu exp expm1 log log1p log2 log10 sqrt rsqrt sin cos tan asin acos atan sinh cosh erf erfc "
    "reciprocal hardtanh hardswish hardsigmoid elu leaky_relu softplus mish relu neg abs floor ceil round trunc sign"
).split()
GRADIENTS: dict[str, tuple[Any, ...]] = {
    "sigmoid_backward": (), "tanh_backward": (), "gelu_backward": (), "silu_backward": (), "mish_backward": (),
    "hardswish_backward": (), "hardsigmoid_backward": (), "hardtanh_backward": (-1, 1), "softplus_backward": (1, 20),
    "leaky_relu_backward": (0.1, False), "threshold_backward": (0.0,),
}  # fmt: skip
"""What follows the cotangent and the operand, by operator."""

BINARY = (
    "add sub mul div maximum minimum atan2 remainder fmod lerp eq ne lt le gt ge logical_and logical_or logical_xor"
).split()


def batch_norms(x: Tensor) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for dtype, own in itertools.product((torch.float32, torch.bfloat16), repeat=2):
        if dtype is torch.float32 and own is not dtype:
            continue
        x = x.to(dtype)
        w = torch.ones(4, dtype=own)
        training, plain = aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats
        yield training, (x, w, None, w, w, True, 0.1, 1e-5), {}
        yield aten._native_batch_norm_legit_no_training.default, (x, w, w, w, w, 0.1, 1e-5), {}
        for weight in (w, None):
            yield plain, (x, weight, None, True, 0.1, 1e-5), {}
            _, mean, scale = plain(x, weight, None, True, 0.1, 1e-5)
            backward = aten.native_batch_norm_backward.default
            ct = torch.rand(x.shape).to(dtype)
            yield backward, (ct, x, weight, None, None, mean, scale, True, 1e-5, [True, False, False]), {}
        yield backward, (x, x, w, w, w, None, None, False, 1e-5, [True, True, True]), {}


def cases() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    for x in layouts(2, 3, 4):
        for name in UNARY:
            yield getattr(aten, name).default, (x,), {}
        yield aten.clamp.default, (x, 0.2, 0.5), {}
        yield aten.clamp_min.default, (x, 0.2), {}
        yield aten.clamp_max.default, (x, 0.2), {}
        yield aten.isnan.default, (x,), {}
        yield aten.logical_not.default, (x,), {}
        yield aten.pow.Tensor_Scalar, (x, 3), {}
        yield aten.threshold.default, (x, 0.1, 0.0), {}
        for y in (*layouts(2, 3, 4), *layouts(3, 4), torch.rand(3, 1), torch.rand(()), torch.rand(2, 1, 4)):
            for name in BINARY:
                overload = getattr(getattr(aten, name), "Scalar" if name == "lerp" else "Tensor", None)
                call = overload or getattr(aten, name).default
                yield call, (x, y, 0.5) if name == "lerp" else (x, y), {}
            yield aten.where.self, (x > 0.5, x, y), {}
            yield aten.masked_fill.Scalar, (x, y > 0.5, 0.0), {}
            yield aten.addcmul.default, (x, y, x), {}
            yield aten.addcdiv.default, (x, y, x), {}
        for name, rest in GRADIENTS.items():
            for y in layouts(2, 3, 4):
                yield getattr(aten, name).default, (y, x, *rest), {}
        yield aten.elu_backward.default, (torch.rand(2, 3, 4), 1, 1, 1, False, x), {}
        for dim in ([1], [0, 2], None):
            for keep in (False, True):
                yield aten.sum.dim_IntList, (x, dim, keep), {}
                yield aten.mean.dim, (x, dim, keep), {}
                yield aten.var.correction, (x, dim), {"keepdim": keep}
                yield aten.std.correction, (x, dim), {"keepdim": keep}
                yield aten.amax.default, (x, dim or [], keep), {}
                yield aten.amin.default, (x, dim or [], keep), {}
        yield aten.sum.default, (x,), {}
        yield aten.mean.default, (x,), {}
        for dim in (0, -1):
            yield aten._softmax.default, (x, dim, False), {}
            yield aten._log_softmax.default, (x, dim, False), {}
            yield aten.cumsum.default, (x, dim), {}
            yield aten.cumprod.default, (x, dim), {}
            for name in ("_softmax_backward_data", "_log_softmax_backward_data"):
                yield getattr(aten, name).default, (x, torch.rand(2, 3, 4), dim, torch.float32), {}
        for name in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "clone"):
            yield getattr(aten, name).default, (x,), {}
            yield getattr(aten, name).default, (x,), {"memory_format": torch.contiguous_format}
        yield aten.full_like.default, (x, 2.0), {}
        yield aten._to_copy.default, (x,), {"dtype": torch.float64}
        yield aten.bernoulli.p, (x, 0.5), {}
        yield aten.native_dropout.default, (x, 0.5, True), {}
        yield aten._safe_softmax.default, (x, -1), {}
        yield aten._adaptive_avg_pool2d.default, (x, [1, 2]), {}
        yield aten._adaptive_avg_pool2d_backward.default, (torch.rand(2, 1, 2), x), {}
        for name in ("tril", "triu"):
            yield getattr(aten, name).default, (x, 1), {}
        yield aten.flip.default, (x, [0, 2]), {}
        yield aten.roll.default, (x, [1], [2]), {}
        for name in ("argmax", "argmin"):
            yield getattr(aten, name).default, (x, 1), {}
            yield getattr(aten, name).default, (x, None, True), {}
        for name in ("new_zeros", "new_ones", "new_empty"):
            yield getattr(aten, name).default, (x, [2, 5]), {}
        yield aten.new_full.default, (x, [2, 5], 3), {}
        yield aten.fill.Scalar, (x, 1.0), {}
        yield aten.native_layer_norm.default, (x, [4], torch.ones(4), None, 1e-5), {}
        _, mean, scale = aten.native_layer_norm.default(x, [4], torch.ones(4), torch.ones(4), 1e-5)
        backward = x.contiguous(), x, [4], mean, scale, torch.ones(4), torch.ones(4), [True, True, False]
        yield aten.native_layer_norm_backward.default, backward, {}
        yield aten.cat.default, ([x, torch.rand(2, 3, 4)], 1), {}
        yield aten.stack.default, ([x, torch.rand(2, 3, 4)], 1), {}
        yield aten.constant_pad_nd.default, (x, [1, 0, 2, 3]), {}
        yield aten.index_select.default, (x, 1, torch.tensor([2, 0])), {}
        yield aten.gather.default, (x, 2, torch.zeros(2, 3, 2, dtype=torch.int64)), {}
        yield aten.scatter_add.default, (x, 2, torch.zeros(2, 3, 2, dtype=torch.int64), torch.rand(2, 3, 2)), {}
        for source in (torch.rand(2, 3, 2), 1.0):
            call = aten.scatter.src if isinstance(source, Tensor) else aten.scatter.value
            yield call, (x, 2, torch.zeros(2, 3, 2, dtype=torch.int64), source), {}
        yield aten.index_copy.default, (x, 1, torch.tensor([2, 0]), torch.rand(2, 2, 4)), {}
        yield aten.index_add.default, (x, 1, torch.tensor([2, 0]), torch.rand(2, 2, 4)), {}
        yield aten.index.Tensor, (x, [torch.tensor([1, 0, 1])]), {}
        yield aten.index.Tensor, (x, [torch.tensor([[1], [0]]), torch.tensor([2, 0])]), {}
        yield aten.index_put.default, (x, [torch.tensor([1])], torch.tensor(2.0)), {}
        yield aten.binary_cross_entropy.default, (x, torch.rand(2, 3, 4)), {}
        for loss in ("mse_loss", "smooth_l1_loss", "huber_loss"):
            for reduction in (0, 1, 2):
                yield getattr(aten, loss).default, (x, torch.rand(2, 3, 4), reduction), {}
        yield aten.binary_cross_entropy_with_logits.default, (x, torch.rand(2, 3, 4)), {}
        yield aten.mse_loss_backward.default, (torch.rand(()), x, torch.rand(2, 3, 4), 1), {}
        for loss in ("smooth_l1_loss_backward", "huber_loss_backward"):
            yield getattr(aten, loss).default, (torch.rand(()), x, torch.rand(2, 3, 4), 1, 1.0), {}
        yield aten.index.Tensor, (x, [None, torch.tensor([0, 2]), torch.tensor([[1], [3]])]), {}
        yield aten.bmm.default, (x, torch.rand(2, 4, 5)), {}
        yield aten.baddbmm.default, (torch.rand(5), x, torch.rand(2, 4, 5)), {}
    for x in layouts(3, 4):
        yield aten.mm.default, (x, torch.rand(4, 5)), {}
        yield aten.addmm.default, (torch.rand(5), x, torch.rand(4, 5)), {}
        yield aten.mv.default, (x, torch.rand(4)), {}
        yield aten.addmv.default, (torch.rand(3), x, torch.rand(4)), {}
        for reduction in (0, 1, 2):
            yield aten.nll_loss_forward.default, (x, torch.tensor([1, 0, 3]), None, reduction, -100), {}
        yield aten.nll_loss_backward.default, (
            torch.rand(()), x, torch.tensor([1, 0, 3]), None, 1, -100, torch.tensor(3.0)
        ), {}  # fmt: skip
        yield aten.embedding.default, (x, torch.tensor([[0, 2], [1, 1]])), {}
    for x in layouts(6, 2, 5):
        labels = torch.tensor([[1, 2, 3], [4, 1, 1]])
        lengths, counts = [6, 5], [2, 3]
        yield aten._ctc_loss.default, (x, labels, lengths, counts, 0, False), {}
        found = aten._ctc_loss.default(x, labels, lengths, counts, 0, False)
        yield aten._ctc_loss_backward.default, (torch.rand(2), x, labels, lengths, counts, *found, 0, False), {}
    yield aten.embedding_dense_backward.default, (torch.rand(2, 2, 4), torch.tensor([[0, 2], [1, 1]]), 3, -1, False), {}
    yield aten.dot.default, (torch.rand(4), torch.rand(4)), {}
    for x in layouts(2, 4, 3, 5):
        yield aten.nll_loss2d_forward.default, (x, torch.ones(2, 3, 5, dtype=torch.int64), None, 1, -100), {}
        yield aten.nll_loss2d_backward.default, (
            torch.rand(()), x, torch.ones(2, 3, 5, dtype=torch.int64), None, 1, -100, torch.tensor(30.0)
        ), {}  # fmt: skip
        yield aten.native_group_norm.default, (x, torch.ones(4), torch.ones(4), 2, 4, 15, 2, 1e-5), {}
        _, mean, scale = aten.native_group_norm.default(x.contiguous(), None, None, 2, 4, 15, 2, 1e-5)
        backward = x, x.contiguous(), mean, scale, torch.ones(4), 2, 4, 15, 2, [True, True, True]
        yield aten.native_group_norm_backward.default, backward, {}
        yield from batch_norms(x)
        yield aten.convolution.default, (x, torch.rand(6, 4, 2, 2), None, [1, 2], [1, 1], [1, 1], False, [0, 0], 1), {}
        yield aten.max_pool2d_with_indices.default, (x, [2, 2], [1, 1], [0, 0], [1, 1], False), {}
        for y in (torch.rand(2, 4, 6, 5), torch.rand(2, 6, 4, 5).transpose(1, 2)):
            attention = aten._scaled_dot_product_flash_attention_for_cpu
            if x.stride(-1) == 1:
                yield attention.default, (x, y, y), {}
                out, logsumexp = attention.default(x, y, y)
                backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
                yield backward, (torch.rand(out.shape), x, y, y, out, logsumexp, 0.0, False), {}
    for x in (*layouts(6, 4), *layouts(2, 4, 3), torch.rand(2, 4, 2, 3, 2).to(memory_format=torch.channels_last_3d)):
        yield from batch_norms(x)
    for shape in ([2, 3], []):
        for name in ("zeros", "ones", "rand", "randn"):
            yield getattr(aten, name).default, (shape,), {}
        yield aten.empty.memory_format, (shape,), {}
        yield aten.full.default, (shape, 2.0), {"dtype": torch.float32}
        yield aten.full.default, (shape, 2), {}
    yield aten.scalar_tensor.default, (2.5,), {"dtype": torch.float64}
    yield aten.scalar_tensor.default, (2,), {}
    yield aten.arange.default, (5,), {}
    yield aten.arange.start_step, (5, -2, -3), {"dtype": torch.float32}
    for function in (aten.tril_indices.default, aten.triu_indices.default):
        for sizes in ((9, 9, -1), (3, 5), (5, 3, 2), (4, 4, -9), (4, 4, 9), (0, 3)):
            yield function, sizes, {}
        yield function, (3, 4, 1), {"dtype": torch.int32}
    mixed = torch.tensor([1, 2, 3]), torch.rand(3), torch.tensor([True, False, True]), torch.rand(3).bfloat16()
    for a in mixed:
        for b in (*mixed, 2, 1.5, True):
            for call in (aten.add, aten.mul, aten.div, aten.eq):
                yield call.Tensor if isinstance(b, Tensor) else call.Scalar, (a, b), {}
        yield aten.sum.default, (a,), {}
        yield aten.neg.default, (a,), {}


CASES = list(cases())


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


@pytest.mark.parametrize("name", sorted({str(call) for call, _, _ in CASES}))
def test_a_written_type_is_that_of_the_kernel(name: str) -> None:
    known = 0
    for call, args, kwargs in CASES:
        if str(call) != name:
            continue
        found = call_type(call, on_meta(args), kwargs)
        if found is None:
            continue
        known += 1
        try:
            results = listed(call(*args, **kwargs))
        except RuntimeError as error:
            raise AssertionError(f"{name} has a type for {args}, which torch refuses") from error
        for x, y in zip(listed(found), results, strict=True):
            if x is None:  # what was not wanted
                continue
            sizes = [n != 1 for n in y.shape]  # the stride of an axis of one element means nothing
            strides = [[s for s, keep in zip(z.stride(), sizes, strict=True) if keep] for z in (x, y)]
            assert (x.shape, x.dtype) == (y.shape, y.dtype), (args, x, y)
            assert not y.numel() or strides[0] == strides[1], (name, [on_meta(a) for a in args], x.stride(), y.stride())
    assert known, f"no case of {name} has a written type"


def of_open_sizes() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Calls on tensors with open sizes: those with written types, and those that have rules for open sizes alone."""
    yield from CASES
    images = torch.rand(2, 4, 9, 7)
    for x in (*layouts(4, 3, 6), images):
        for size in ((-1, 6), (2, 2, 3, 6) if x.numel() == 72 else (2, 2, 2, 63), (x.numel(),)):
            yield aten.view.default, (x, size), {}
        yield aten.expand.default, (x, (2, *([-1] * x.dim()))), {}
        yield aten.permute.default, (x, range(x.dim())[::-1]), {}
        yield aten.transpose.int, (x, 0, -1), {}
        yield aten.t.default, (x.select(-1, 0)[..., 0] if x.dim() == 4 else x.select(-1, 0),), {}
        yield aten.unsqueeze.default, (x, 1), {}
        yield aten.squeeze.default, (x[:1],), {}
        yield aten.squeeze.dims, (x[:1], [0, 1]), {}
        for bounds in ((1, 3), (-2, 9**9), (None, -1), (2, 1), (0, 4, 2)):
            yield aten.slice.Tensor, (x, 1, *bounds), {}
        yield aten.select.int, (x, 1, -1), {}
        yield aten.split.Tensor, (x, 2, 1), {}
        yield aten.split_with_sizes.default, (x, [1, x.shape[0] - 1]), {}
        yield aten.unbind.int, (x, 1), {}
        yield aten.alias.default, (x,), {}
        yield aten.as_strided.default, (x, (2, 2), (1, 3), 1), {}
        for offset in (-1, 0, 2):
            yield aten.diagonal.default, (x, offset, 0, 2), {}
        yield aten.unfold.default, (x, 1, 2, 1), {}
        yield aten.repeat.default, (x, (2, *([1] * x.dim()))), {}
    weight, back = torch.rand(6, 2, 3, 2), torch.rand(4, 3, 3, 2)
    yield aten.convolution.default, (images, weight, None, [2, 1], [1, 0], [1, 2], False, [0, 0], 2), {}
    yield aten.convolution.default, (images, back, None, [2], [1], [1], True, [1], 2), {}
    yield aten.max_pool2d_with_indices.default, (images, [3, 2], [2, 1], [1, 0], [1, 2]), {}
    yield aten.avg_pool2d.default, (images, [2], [], [0]), {}
    yield aten._fft_r2c.default, (images, [1, 2], 0, True), {}
    yield aten._fft_c2r.default, (torch.fft.rfft(images), [1, 3], 0, 7), {}


@pytest.mark.slow
def test_types_of_open_sizes_are_those_of_the_kernels() -> None:
    tried = set()
    for call, args, kwargs in of_open_sizes():
        sizes = Opened()

        def opened(value: Any) -> Any:
            if isinstance(value, Tensor):
                shape, strides = (tuple(map(sizes.open, ns)) for ns in (value.shape, value.stride()))  # noqa: B023
                found = torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
                return found.as_strided(shape, strides, sizes.open(value.storage_offset()))  # noqa: B023
            return [opened(each) for each in value] if isinstance(value, (list, tuple)) else value

        def at_present(x: Tensor) -> Tensor:
            shape, strides = (tuple(map(current, ns)) for ns in (x.shape, x.stride()))
            return torch.empty_strided(shape, strides, dtype=x.dtype, device="meta")

        try:
            results = listed(call(*args, **kwargs))
            found = open_types(call, opened(args), kwargs, "cpu", sizes)
        except (RuntimeError, UnknownSizesError):  # the kernel refuses these operands, or no rule is sure
            continue
        tried.add(str(call).removeprefix("aten."))
        for x, y in zip(listed(found), results, strict=True):
            if x is None:
                continue
            x = at_present(x)
            kept = [n != 1 for n in y.shape]
            strides = [[s for s, keep in zip(z.stride(), kept, strict=True) if keep] for z in (x, y)]
            assert (x.shape, x.dtype) == (y.shape, y.dtype), (call, args, x, y)
            spectrum = "_fft" in str(call)  # its memory is described as dense in every trace
            assert spectrum or not y.numel() or strides[0] == strides[1], (call, [on_meta(a) for a in args], strides)
    assert {*_VIEWS, *_COMPUTED} - tried == {"_unsafe_view.default", "detach.default", "lift_fresh.default",
                                             "squeeze.dim", "_reshape_alias.default"}  # fmt: skip


def test_every_written_type_is_tried() -> None:
    tried = {part for call, _, _ in CASES for part in (str(call)[5:], str(call)[5:].partition(".")[0])}
    untried = {name for name in WRITTEN if name not in tried and name.partition(".")[0] not in tried}
    assert not untried


REFUSED = [
    (aten.add.Tensor, (torch.rand(2, 3), torch.rand(4))),
    (aten.mm.default, (torch.rand(2, 3), torch.rand(4, 2))),
    (aten.mm.default, (torch.rand(2, 3), torch.rand(3, 2).double())),
    (aten.sum.dim_IntList, (torch.rand(2), [3])),
    (aten.cat.default, ([torch.rand(2, 3), torch.rand(2, 4)],)),
    (aten.embedding.default, (torch.rand(2, 3), torch.rand(2))),
    (aten.native_layer_norm.default, (torch.rand(2, 3), [4], None, None, 1e-5)),
    (aten.nll_loss_forward.default, (torch.rand(2, 3), torch.tensor([1, 2, 0]), None, 1, -100)),
    (aten._native_batch_norm_legit.no_stats, (torch.rand(2, 3), torch.ones(4), None, True, 0.1, 1e-5)),
]


@pytest.mark.parametrize(("call", "args"), REFUSED)
def test_what_does_not_fit_is_left_to_torch(call: Any, args: tuple[Any, ...]) -> None:
    assert call_type(call, on_meta(args), {}) is None


def test_results_are_on_the_device_of_the_operands() -> None:
    on_gpu = aval((2, 3), torch.float32, torch.device("cuda", 0))
    for args, device in (
        (("x", "dtype:float64", None, None, False), on_gpu.device),
        (("x", None, None, "device:cpu"), torch.device("cpu")),
    ):
        found = REGISTRY["aten"].instr(("aten.zeros_like.default", args), (on_gpu,)).aval
        assert isinstance(found, Aval) and found.shape == (2, 3) and found.device == device
