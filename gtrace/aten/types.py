"""The types of the calls that programs make most, with the strides that torch's CPU kernels give their results.

torch has them for its device ``meta``, mostly in Python modules that import much else: the first call takes most of a
second. A rule here takes tensors on ``meta`` in the place of operands, and gives such tensors. It returns None where it
does not plainly apply, and torch has to say: other dtypes, unusual strides, operands that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.aten.overloads import template
from gtrace.aten.rules import TYPES
from gtrace.ir.aval import FLOATS, Aval, Bundle, aval

Tensor = torch.Tensor
Rule = Callable[..., Any]


def call_type(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the results of a call as tensors on ``meta``, given such tensors; None where torch has to say."""
    name = str(function).removeprefix("aten.")
    rule = WRITTEN.get(name) or WRITTEN.get(name.partition(".")[0])
    if rule is not None:
        return rule(*args, **kwargs)
    written = TYPES.get(str(function))
    if written is None:
        return None
    operands, constants = template(function, args, kwargs, lambda x: isinstance(x, Tensor))
    if not all(x.is_contiguous() for x in operands):
        return None
    found = written([aval(tuple(x.shape), x.dtype, x.device) for x in operands], constants)
    if isinstance(found, Bundle):
        results = iter([_of_aval(a) for a in found.avals])
        wanted = args[-1] if "backward" in name and isinstance(args[-1], (list, tuple)) else [True] * len(found.avals)
        return tuple([next(results) if want else None for want in wanted])
    return None if found is None else _of_aval(found)


def _of_aval(a: Aval) -> Tensor:
    return _new(a.shape, a.dtype)


def _new(shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape of an elementwise call; None if the shapes do not fit."""
    out = [1] * max(map(len, shapes))
    for shape in shapes:
        for k in range(1, len(shape) + 1):
            if shape[-k] != 1:
                if out[-k] not in (1, shape[-k]):
                    return None
                out[-k] = shape[-k]
    return tuple(out)


def _elementwise(dtype: torch.dtype, *operands: Tensor) -> Tensor | None:
    """Return the result of an elementwise call."""
    shape = _broadcast(*[x.shape for x in operands])
    if shape is None or 0 in shape:
        return None
    return _new(shape, dtype, _iterated(shape, [x for x in operands if x.dim()]))


def _iterated(shape: tuple[int, ...], operands: Sequence[Tensor]) -> list[int]:
    """Return the strides of a result of torch's iterator: axes in the order of the operands', the first ones first."""
    strides = []
    for x in operands:
        missing = len(shape) - x.dim()
        own = [0 if n == 1 and shape[missing + k] != 1 else x.stride(k) for k, n in enumerate(x.shape)]
        strides.append([0] * missing + own)

    def order(one: int, other: int) -> int:
        """Return -1 if the axis `one` is inside of `other`, 1 if it is outside, 0 if they do not say."""
        for stride in strides:
            a, b = stride[one], stride[other]
            if a and b and a != b:
                return -1 if a < b else 1
            if a and b and shape[one] > shape[other]:
                return 1
        return 0

    axes = list(range(len(shape)))[::-1]  # from the innermost
    for k in range(1, len(axes)):
        place = k
        for before in range(k - 1, -1, -1):
            found = order(axes[before], axes[place])
            if found > 0:
                axes[before], axes[place] = axes[place], axes[before]
                place = before
            elif found < 0:
                break
    out, size = [0] * len(shape), 1
    for axis in axes:
        out[axis], size = size, size * shape[axis]
    return out


def _order(x: Tensor) -> list[int] | None:
    """Return the strides of a dense copy of a tensor that keeps the order of its axes."""
    return None if 0 in x.shape else _iterated(tuple(x.shape), [x])


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [x for x in values if isinstance(x, Tensor)]


def _same_floats(operands: Sequence[Tensor]) -> bool:
    return bool(operands) and operands[0].dtype in FLOATS and all(x.dtype is operands[0].dtype for x in operands)


def _of_floats(*args: Any, **kwargs: Any) -> Tensor | None:
    """An elementwise function of floats, and of real numbers."""
    operands = _tensors((*args, *kwargs.values()))
    if not _same_floats(operands) or any(isinstance(x, complex) for x in args):
        return None
    return _elementwise(operands[0].dtype, *operands)


def _of_operand_first(ct: Tensor, x: Tensor, *rest: Any) -> Tensor | None:
    """A cotangent, where the iterator takes the operand before it."""
    return _of_floats(x, ct)


def _of_numbers(*args: Any, **kwargs: Any) -> Tensor | None:
    """An elementwise function of numbers whose result has the promoted dtype."""
    x, y = args[:2]
    if any(isinstance(one, complex) for one in args):
        return None
    dtype = torch.result_type(x, y)
    return _elementwise(dtype, *_tensors(args)) if dtype is not torch.bool else None


def _quotient(x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor | None:
    found = _of_numbers(x, y)
    return found if found is not None and found.dtype in FLOATS else None


def _of_truth(*args: Any) -> Tensor | None:
    return _elementwise(torch.bool, *_tensors(args))


def _chosen(condition: Tensor, x: Any, y: Any) -> Tensor | None:
    return _elementwise(torch.result_type(x, y), *_tensors((condition, x, y)))


def _like_first(x: Tensor, *rest: Any, **kwargs: Any) -> Tensor | None:
    """A result with the type of the first operand, which it is a changed copy of."""
    order = _order(x)
    return None if order is None else _new(x.shape, x.dtype, order)


def _dense_copy(x: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    return _new(x.shape, x.dtype)


def _masked(x: Tensor, mask: Tensor, value: Any) -> Tensor | None:
    return _new(x.shape, x.dtype) if _broadcast(x.shape, mask.shape) == tuple(x.shape) else None


def _made_like(
    x: Tensor, *values: Any, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None, non_blocking: Any = None,
) -> Tensor | None:  # fmt: skip
    if layout not in (None, torch.strided):
        return None
    if memory_format is torch.contiguous_format:
        return _new(x.shape, dtype or x.dtype)
    order = _order(x)
    if memory_format not in (None, torch.preserve_format) or order is None:
        return None
    return _new(x.shape, dtype or x.dtype, order)


def _made_new(
    x: Tensor, shape: Sequence[int], *values: Any, dtype: torch.dtype | None = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    return _new(shape, dtype or x.dtype)


def _made(
    shape: Sequence[int], *values: Any, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None,
) -> Tensor | None:  # fmt: skip
    plain = layout in (None, torch.strided) and memory_format in (None, torch.contiguous_format)
    return _new(shape, dtype or torch.get_default_dtype()) if plain else None


def _full(shape: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor | None:
    return None if dtype is None else _made(shape, dtype=dtype, **rest)


def _range(*bounds: Any, dtype: torch.dtype | None = None, **rest: Any) -> Tensor | None:
    if not all(type(n) is int for n in bounds):
        return None
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    return _new((len(range(start, stop, step)),), dtype or torch.int64) if step else None


def _product(*operands: Tensor, **kwargs: Any) -> Tensor | None:
    """The product of matrices, vectors or batches of matrices."""
    x, y = operands
    if not _same_floats(operands):
        return None
    batch = x.shape[:-2] if x.dim() == 3 else ()
    if x.shape[-1] != y.shape[-2 if y.dim() > 1 else 0] or (y.dim() == 3 and y.shape[0] != x.shape[0]):
        return None
    rows = x.shape[-2:-1] if x.dim() > 1 else ()
    return _new((*batch, *rows, *(y.shape[-1:] if y.dim() > 1 else ())), x.dtype)


def _added_product(bias: Tensor, *operands: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor | None:
    found = _product(*operands)
    if found is None or bias.dtype is not found.dtype or _broadcast(bias.shape, found.shape) != tuple(found.shape):
        return None
    return found


def _axes(x: Tensor, dim: Any) -> set[int] | None:
    dims = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    if any(not -x.dim() <= k < x.dim() for k in dims):
        return None
    return {k % x.dim() for k in dims}


def _reduced(x: Tensor, dim: Any, keepdim: bool, dtype: torch.dtype) -> Tensor | None:
    axes = _axes(x, dim)
    if axes is None or 0 in x.shape:
        return None
    shape = [1 if k in axes else n for k, n in enumerate(x.shape) if keepdim or k not in axes]
    return _new(shape, dtype)


def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor | None:
    return _reduced(x, dim, keepdim, dtype or x.dtype) if x.dtype in FLOATS or dtype in FLOATS else None


def _largest(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor | None:
    return _reduced(x, list(dim) if not isinstance(dim, int) else dim, keepdim, x.dtype)


def _variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor | None:
    return _reduced(x, dim, keepdim, x.dtype) if x.dtype in FLOATS else None


def _along(x: Tensor, dim: int, *rest: Any, **kwargs: Any) -> Tensor | None:
    """A function along an axis of floats."""
    fits = x.dtype in FLOATS and _axes(x, dim) is not None and not any(rest)
    return _new(x.shape, x.dtype) if fits and not any(value is not None for value in kwargs.values()) else None


def _along_backward(ct: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor | None:
    return _new(out.shape, dtype) if ct.shape == out.shape and ct.dtype is out.dtype is dtype else None


def _layer_norm(
    x: Tensor, sizes: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...] | None:
    if not _same_floats(_tensors((x, weight, bias))) or x.dtype not in _WIDE:
        return None
    outer = x.dim() - len(sizes)
    if tuple(x.shape[outer:]) != tuple(sizes) or any(
        tuple(one.shape) != tuple(sizes) for one in _tensors((weight, bias))
    ):
        return None
    shape = (*x.shape[:outer], *(1,) * len(sizes))
    return _new(x.shape, x.dtype), _new(shape, x.dtype), _new(shape, x.dtype)


def _layer_norm_backward(
    ct: Tensor, x: Tensor, sizes: Sequence[int], mean: Tensor, scale: Tensor, weight: Tensor | None,
    bias: Tensor | None, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    if not _same_floats(_tensors((ct, x, mean, scale, weight, bias))):
        return None
    shapes = x.shape, tuple(sizes), tuple(sizes)
    return tuple([_new(shape, x.dtype) if want else None for shape, want in zip(shapes, wanted, strict=True)])


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, size: int, groups: int,
    eps: float,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    if not x.is_contiguous() or not _same_floats(_tensors((x, weight, bias))) or x.dtype not in _WIDE:
        return None
    return _new(x.shape, x.dtype), _new((batch, groups), x.dtype), _new((batch, groups), x.dtype)


def _group_norm_backward(
    ct: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, batch: int, channels: int, size: int,
    groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    if not x.is_contiguous() or not _same_floats(_tensors((ct, x, mean, scale, weight))):
        return None
    shapes = x.shape, (channels,), (channels,)
    return tuple([_new(shape, x.dtype) if want else None for shape, want in zip(shapes, wanted, strict=True)])


_MEAN_OR_SUM = 1, 2
"""How torch counts the reductions of losses; 0 is none."""


def _loss(x: Tensor, *rest: Any) -> Tensor | None:
    """An elementwise loss; its reduction is the integer among its arguments, by default the mean."""
    reduction = next((r for r in rest if type(r) is int), 1)
    found = _of_floats(x, *[r for r in rest if isinstance(r, Tensor)])
    return found if found is None or reduction not in _MEAN_OR_SUM else _new((), x.dtype)


def _loss_backward(ct: Tensor, x: Tensor, target: Tensor, *rest: Any) -> Tensor | None:
    return _new(x.shape, x.dtype) if x.shape == target.shape and ct.dtype is x.dtype else None


def _nll(x: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int) -> tuple[Tensor, Tensor] | None:
    fits = x.dtype in FLOATS and target.dtype is torch.int64 and x.dim() in (2, 4)
    if not fits or (x.shape[0], *x.shape[2:]) != tuple(target.shape):
        return None
    return _new(() if reduction in _MEAN_OR_SUM else target.shape, x.dtype), _new((), x.dtype)


def _nll_backward(ct: Tensor, x: Tensor, *rest: Any) -> Tensor | None:
    return _new(x.shape, x.dtype) if x.dtype in FLOATS and x.is_contiguous() else None


def _embedding(weight: Tensor, indices: Tensor, *rest: Any) -> Tensor | None:
    return _new((*indices.shape, weight.shape[1]), weight.dtype) if weight.dim() == 2 and _integers(indices) else None


def _embedding_backward(ct: Tensor, indices: Tensor, count: int, *rest: Any) -> Tensor:
    return _new((count, ct.shape[-1]), ct.dtype)


def _integers(x: Tensor) -> bool:
    return x.dtype in (torch.int64, torch.int32)


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    given = [k for k, index in enumerate(indices) if index is not None]
    found = [index for index in indices if index is not None]
    if not found or not all(_integers(index) and index.is_contiguous() for index in found):
        return None
    if given != list(range(given[0], given[-1] + 1)) or not x.is_contiguous() or given[0]:
        return None
    shape = _broadcast(*[index.shape for index in found])
    return None if shape is None else _new((*shape, *x.shape[given[-1] + 1 :]), x.dtype)


def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor | None:
    if not x.dim() or index.dim() != 1 or not _integers(index) or _axes(x, dim) is None:
        return None
    dim %= x.dim()
    return _new((*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]), x.dtype)


def _gathered(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor | None:
    fits = x.dim() == index.dim() and index.dtype is torch.int64 and _axes(x, dim) is not None
    within = fits and all(
        a <= b for k, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)) if k != dim % x.dim()
    )
    return _new(index.shape, x.dtype) if within else None


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = parts[0]
    if not first.dim() or _axes(first, dim) is None:
        return None
    dim %= first.dim()
    for x in parts:
        if x.dtype is not first.dtype or x.dim() != first.dim() or not (x.dim() < 4 or x.is_contiguous()):
            return None
        if any(a != b for k, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)) if k != dim):
            return None
    return _new((*first.shape[:dim], sum(x.shape[dim] for x in parts), *first.shape[dim + 1 :]), first.dtype)


def _stacked(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = parts[0]
    if any(
        x.dtype is not first.dtype or x.shape != first.shape or not (x.dim() < 3 or x.is_contiguous()) for x in parts
    ):
        return None
    if not -first.dim() - 1 <= dim <= first.dim():
        return None
    dim %= first.dim() + 1
    return _new((*first.shape[:dim], len(parts), *first.shape[dim:]), first.dtype)


def _padded(x: Tensor, pads: Sequence[int], value: Any = 0) -> Tensor | None:
    if not x.is_contiguous() or len(pads) % 2 or len(pads) > 2 * x.dim():
        return None
    shape = list(x.shape)
    for k in range(len(pads) // 2):
        shape[-1 - k] += pads[2 * k] + pads[2 * k + 1]
    return _new(shape, x.dtype) if min(shape) > 0 else None


def _attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    order = _order(q)
    if not _same_floats((q, k, v)) or order is None or q.dim() != 4:
        return None
    batch, heads, length, _ = q.shape
    wide = q.dtype if q.dtype in _WIDE else torch.float32
    return _new(q.shape, q.dtype, order), _new((batch, length, heads), wide).transpose(1, 2)


def _attention_backward(ct: Tensor, *operands: Any, **kwargs: Any) -> tuple[Tensor, ...] | None:
    if not _same_floats((ct, *operands[:3])) or ct.dim() != 4:
        return None
    return tuple([
        _new((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype).transpose(1, 2) for x in operands[:3]
    ])  # fmt: skip


_WIDE = torch.float32, torch.float64

WRITTEN: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "sigmoid", "tanh", "gelu", "silu", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "sin",
            "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "erf", "erfc", "reciprocal", "hardtanh", "hardswish",
            "hardsigmoid", "elu", "leaky_relu", "softplus", "mish", "threshold", "relu", "neg", "abs", "floor", "ceil",
            "round.default", "trunc", "sign", "clamp.default", "clamp_min.default", "clamp_max.default",
            "pow.Tensor_Scalar", "pow.Tensor_Tensor", "atan2", "maximum", "minimum", "lerp.Scalar", "lerp.Tensor",
            "addcmul", "addcdiv", "sigmoid_backward", "tanh_backward", "gelu_backward", "silu_backward",
            "hardtanh_backward", "elu_backward", "softplus_backward",
            "hardswish_backward", "hardsigmoid_backward", "mish_backward", "remainder", "fmod",
        ),
        _of_floats,
    ),
    **dict.fromkeys(("threshold_backward", "leaky_relu_backward"), _of_operand_first),
    **dict.fromkeys(("add", "sub", "mul"), _of_numbers),
    "div": _quotient,
    **dict.fromkeys(
        ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan"),
        _of_truth,
    ),
    "where.self": _chosen,
    "masked_fill": _masked,
    **dict.fromkeys(("fill.Scalar", "index_put.default"), _like_first),
    **dict.fromkeys(("index_add.default", "scatter.src", "scatter.value", "scatter_add", "index_copy"), _dense_copy),
    **dict.fromkeys(
        ("clone", "_to_copy", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
        _made_like,
    ),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), _made_new),
    **dict.fromkeys(("zeros.default", "ones.default", "empty.memory_format", "rand.default", "randn.default"), _made),
    "full.default": _full,
    **dict.fromkeys(("arange.default", "arange.start", "arange.start_step"), _range),
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _added_product),
    **dict.fromkeys(("sum", "mean"), _sum),
    **dict.fromkeys(("amax", "amin"), _largest),
    "var.correction": _variance,
    "std.correction": _variance,
    **dict.fromkeys(("_softmax.default", "_log_softmax.default", "cumsum.default", "cumprod.default"), _along),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _along_backward),
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    **dict.fromkeys(
        (
            "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
        ),
        _loss,
    ),
    "mse_loss_backward": _loss_backward,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _nll),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_backward),
    "embedding.default": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "index.Tensor": _indexed,
    "index_select": _index_select,
    "gather": _gathered,
    "cat.default": _joined,
    "stack": _stacked,
    "constant_pad_nd": _padded,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}  # fmt: skip
"""By overload, or by operator for all of its overloads."""
