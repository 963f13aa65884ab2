"""Result types of elementwise calls, constructors, matmuls and reductions; see `call_types`.

A rule takes operands on ``meta`` and returns tensors on ``meta``, with the strides of torch's CPU kernels. It returns
None if it does not clearly apply: for other dtypes, or operands that do not fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gtrace.core.base.dtypes import FLOATS
from gtrace.interop.aten.open_sizes import current, is_open

Tensor = torch.Tensor
Rule = Callable[..., Any]


def new(shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape of an elementwise result; None if the shapes do not fit."""
    out = [1] * max(map(len, shapes))
    for shape in shapes:
        for k in range(1, len(shape) + 1):
            if shape[-k] != 1:
                if out[-k] not in (1, shape[-k]):
                    return None
                out[-k] = shape[-k]
    return tuple(out)


def elementwise(dtype: torch.dtype, *operands: Tensor) -> Tensor | None:
    """Return the result of an elementwise call."""
    shape = broadcast(*[x.shape for x in operands])
    if shape is None or 0 in shape:
        return None
    return new(shape, dtype, _iterated(shape, [x for x in operands if x.dim()]))


def _iterated(shape: tuple[int, ...], operands: Sequence[Tensor]) -> list[int]:
    """Return the strides of a result of torch's iterator: it orders axes as the first operands do."""
    strides = []
    for x in operands:
        missing = len(shape) - x.dim()
        own = [0 if n == 1 and shape[missing + k] != 1 else x.stride(k) for k, n in enumerate(x.shape)]
        strides.append([0] * missing + own)

    def order(one: int, other: int) -> int:
        """Return -1 if the axis `one` is inside `other`, 1 if it is outside, 0 if the operands do not tell."""
        for stride in strides:
            a, b = stride[one], stride[other]
            if a and b and a != b:
                return -1 if a < b else 1
            if a and b and shape[one] > shape[other]:
                return 1
        return 0

    axes = list(range(len(shape)))[::-1]  # innermost first
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


def dense_order(x: Tensor) -> list[int] | None:
    """Return the strides of a dense copy of a tensor with the same order of axes."""
    return None if 0 in x.shape else _iterated(tuple(x.shape), [x])


def tensors(values: Sequence[Any]) -> list[Tensor]:
    return [x for x in values if isinstance(x, Tensor)]


def same_floats(operands: Sequence[Tensor]) -> bool:
    return bool(operands) and operands[0].dtype in FLOATS and all(x.dtype is operands[0].dtype for x in operands)


def of_floats(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return the type of an elementwise function of real floats."""
    operands = tensors((*args, *kwargs.values()))
    if not same_floats(operands) or any(isinstance(x, complex) for x in args):
        return None
    return elementwise(operands[0].dtype, *operands)


def _of_operand_first(ct: Tensor, x: Tensor, *rest: Any) -> Tensor | None:
    """Return the type of a cotangent, if the iterator takes the operand before it."""
    return of_floats(x, ct)


def _of_numbers(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return the type of an elementwise function whose result has the promoted dtype."""
    x, y = args[:2]
    if any(isinstance(one, complex) for one in args):
        return None
    dtype = torch.result_type(current(x), current(y))
    return elementwise(dtype, *tensors(args)) if dtype is not torch.bool else None


def _quotient(x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor | None:
    found = _of_numbers(x, y)
    return found if found is not None and found.dtype in FLOATS else None


def _of_truth(*args: Any) -> Tensor | None:
    return elementwise(torch.bool, *tensors(args))


def _chosen(condition: Tensor, x: Any, y: Any) -> Tensor | None:
    return elementwise(torch.result_type(current(x), current(y)), *tensors((condition, x, y)))


def like_first(x: Tensor, *rest: Any, **kwargs: Any) -> Tensor | None:
    """Return the type of the first operand, for a modified copy of it."""
    order = dense_order(x)
    return None if order is None else new(x.shape, x.dtype, order)


def _dense_copy(x: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    return new(x.shape, x.dtype)


def _masked(x: Tensor, mask: Tensor, value: Any) -> Tensor | None:
    return new(x.shape, x.dtype) if broadcast(x.shape, mask.shape) == tuple(x.shape) else None


def _made_like(
    x: Tensor, *values: Any, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None, non_blocking: Any = None,
) -> Tensor | None:  # fmt: skip
    if layout not in (None, torch.strided):
        return None
    if memory_format is torch.contiguous_format:
        return new(x.shape, dtype or x.dtype)
    order = dense_order(x)
    if memory_format not in (None, torch.preserve_format) or order is None:
        return None
    return new(x.shape, dtype or x.dtype, order)


def _made_new(
    x: Tensor, shape: Sequence[int], *values: Any, dtype: torch.dtype | None = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None,
) -> Tensor:  # fmt: skip
    return new(shape, dtype or x.dtype)


def _made(
    shape: Sequence[int], *values: Any, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None,
) -> Tensor | None:  # fmt: skip
    plain = layout in (None, torch.strided) and memory_format in (None, torch.contiguous_format)
    return new(shape, dtype or torch.get_default_dtype()) if plain else None


def _full(shape: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor | None:
    if dtype is None and type(current(value)) in _DTYPES:
        dtype = _DTYPES[type(current(value))] or torch.get_default_dtype()
    return None if dtype is None else _made(shape, dtype=dtype, **rest)


_DTYPES = {bool: torch.bool, int: torch.int64, float: None}
"""The dtype of an array that is full of a number; None: torch's default."""


def _scalar(value: Any, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor | None:
    return _made((), dtype=dtype, **rest)


def _range(*bounds: Any, dtype: torch.dtype | None = None, **rest: Any) -> Tensor | None:
    if not all(isinstance(n, (int, torch.SymInt)) and not isinstance(n, bool) for n in bounds):
        return None
    if any(map(is_open, bounds)):
        start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        length = stop - start if step > 0 else start - stop
        step = step if step > 0 else -step
        return new(((length + step - 1) // step,) if length > 0 else (0,), dtype or torch.int64) if step else None
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    return new((len(range(start, stop, step)),), dtype or torch.int64) if step else None


def _lower_indices(
    rows: int, columns: int, offset: int = 0, *, dtype: Any = None, upper: bool = False, **rest: Any
) -> Tensor | None:
    """Return the type of the indices on and below a diagonal of a matrix, or on and above it."""
    if rows < 0 or columns < 0:
        return None
    diagonal = offset if upper else offset + 1
    below = sum(min(max(row + diagonal, 0), columns) for row in range(rows))
    kind = dtype if isinstance(dtype, torch.dtype) else torch.int64  # the schema has a number for it
    return new((2, rows * columns - below if upper else below), kind)


def _product(*operands: Tensor, **kwargs: Any) -> Tensor | None:
    """Return the type of a matmul of matrices, vectors or batches of matrices."""
    x, y = operands
    if not same_floats(operands):
        return None
    batch = x.shape[:-2] if x.dim() == 3 else ()
    if x.shape[-1] != y.shape[-2 if y.dim() > 1 else 0] or (y.dim() == 3 and y.shape[0] != x.shape[0]):
        return None
    rows = x.shape[-2:-1] if x.dim() > 1 else ()
    return new((*batch, *rows, *(y.shape[-1:] if y.dim() > 1 else ())), x.dtype)


def _added_product(bias: Tensor, *operands: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor | None:
    found = _product(*operands)
    if found is None or bias.dtype is not found.dtype or broadcast(bias.shape, found.shape) != tuple(found.shape):
        return None
    return found


def axes_of(x: Tensor, dim: Any) -> set[int] | None:
    dims = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    if any(not -x.dim() <= k < x.dim() for k in dims):
        return None
    return {k % x.dim() for k in dims}


def _reduced(x: Tensor, dim: Any, keepdim: bool, dtype: torch.dtype) -> Tensor | None:
    axes = axes_of(x, dim)
    if axes is None or 0 in x.shape:
        return None
    shape = [1 if k in axes else n for k, n in enumerate(x.shape) if keepdim or k not in axes]
    return new(shape, dtype)


def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor | None:
    return _reduced(x, dim, keepdim, dtype or x.dtype) if x.dtype in FLOATS or dtype in FLOATS else None


def _largest(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor | None:
    return _reduced(x, list(dim) if not isinstance(dim, int) else dim, keepdim, x.dtype)


def _variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor | None:
    return _reduced(x, dim, keepdim, x.dtype) if x.dtype in FLOATS else None


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "sigmoid", "tanh", "gelu", "silu", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "sin",
            "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "erf", "erfc", "reciprocal", "hardtanh", "hardswish",
            "hardsigmoid", "elu", "leaky_relu", "softplus", "mish", "threshold", "relu", "neg", "abs", "floor", "ceil",
            "round.default", "trunc", "sign", "clamp.default", "clamp_min.default", "clamp_max.default",
            "pow.Tensor_Scalar", "pow.Tensor_Tensor", "atan2", "maximum", "minimum", "lerp.Scalar",
            "lerp.Tensor", "addcmul", "addcdiv", "sigmoid_backward", "tanh_backward", "gelu_backward", "silu_backward",
            "hardtanh_backward", "elu_backward", "softplus_backward",
            "hardswish_backward", "hardsigmoid_backward", "mish_backward", "remainder", "fmod",
        ),
        of_floats,
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
    **dict.fromkeys(("fill.Scalar", "fill.Tensor", "index_put.default"), like_first),
    **dict.fromkeys(
        ("index_add.default", "scatter.src", "scatter.value", "scatter_add", "index_copy", "bernoulli.p"), _dense_copy
    ),
    **dict.fromkeys(
        ("clone", "_to_copy", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
        _made_like,
    ),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), _made_new),
    **dict.fromkeys(("zeros.default", "ones.default", "empty.memory_format", "rand.default", "randn.default"), _made),
    "full.default": _full,
    "scalar_tensor.default": _scalar,
    **dict.fromkeys(("arange.default", "arange.start", "arange.start_step"), _range),
    "tril_indices.default": _lower_indices,
    "triu_indices.default": functools.partial(_lower_indices, upper=True),
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _added_product),
    **dict.fromkeys(("sum", "mean"), _sum),
    **dict.fromkeys(("amax", "amin"), _largest),
    "var.correction": _variance,
    "std.correction": _variance,
}  # fmt: skip
"""By overload, or by operator for all its overloads."""
