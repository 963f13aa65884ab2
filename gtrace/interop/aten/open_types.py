"""Result types of calls on tensors with open sizes.

Rules give the types of frequent calls and of all views. For other calls the sizes of a result are guessed from those
of the operands. A guess is only ever a condition: a version of a trace holds for the sizes at which each of its calls
gives what the trace has assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch

from gtrace.interop.aten.call_types import results_on_meta, type_by_rule
from gtrace.interop.aten.elementwise_types import new
from gtrace.interop.aten.open_sizes import Opened, current, is_open
from gtrace.interop.aten.overloads import fake_tensors, is_view

Tensor = torch.Tensor
Size = Any
"""An integer, open or not."""


class UnknownSizesError(Exception):
    """No rule gives the sizes of a result."""


def open_types(function: Any, args: Sequence[Any], kwargs: dict[str, Any], device: str, opened: Opened) -> Any:
    """Return the results of a call for tensors on ``meta``, some of whose sizes are open.

    Args:
        device: the type of the device on which the call will run.
        opened: gets to know of a guess.

    Raises:
        UnknownSizesError: their sizes follow in an unknown way, and nothing would notice a wrong guess.
    """
    name = str(function).removeprefix("aten.")
    rule = _VIEWS.get(name) or _COMPUTED.get(name)
    found = type_by_rule(function, args, kwargs) if rule is None else rule(*args, **kwargs)
    if found is not None:
        return found
    if is_view(function) or name.partition(".")[0] in _OF_GIVEN_SIZES:
        raise UnknownSizesError(str(function))
    of_one = len([x for x in args if isinstance(x, Tensor)]) == 1 and torch.Tag.pointwise in function.tags
    opened.guessed |= not of_one  # that has the shape of its operand
    return _guessed(function, args, kwargs, device)


_OF_GIVEN_SIZES = {
    "_unsafe_view", "full", "full_like", "new_full", "fill", "zeros", "zeros_like", "new_zeros", "empty", "empty_like",
    "new_empty", "ones", "ones_like", "new_ones", "arange", "scalar_tensor",
}  # fmt: skip
"""Operators that are recorded with the sizes that the trace states."""


def _guessed(function: Any, args: Sequence[Any], kwargs: dict[str, Any], device: str) -> Any:
    known: list[Size] = []  # open sizes of the operands

    def on_meta(value: Any) -> Any:
        if isinstance(value, Tensor):
            known.extend(n for n in value.shape if is_open(n))
            shape, strides = [current(n) for n in value.shape], [current(n) for n in value.stride()]
            return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
        if is_open(value):
            known.append(value)
        if isinstance(value, (list, tuple)):
            return [on_meta(each) for each in value]
        return current(value)

    given, named = [on_meta(x) for x in args], {key: on_meta(x) for key, x in kwargs.items()}
    try:
        found = results_on_meta(function, given, named, device)
    except NotImplementedError:
        with fake_tensors(()):
            found = function(*optree.tree_map(_fake, given, none_is_leaf=True), **named)  # type: ignore[arg-type]
    first = next((x for x in args if isinstance(x, Tensor)), None)

    def opened(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)([opened(each) for each in x])
        if not isinstance(x, Tensor):
            return x
        beside = list(first.shape) if first is not None and first.dim() == x.dim() else [None] * x.dim()
        shape = [_guessed_size(n, near, known) for n, near in zip(x.shape, beside, strict=True)]
        order = sorted(range(x.dim()), key=lambda k: (x.stride(k), x.shape[k] != 1, -k))
        strides: list[Size] = [0] * x.dim()
        step: Size = 1
        for k in order:
            if x.stride(k) != current(step) and x.shape[k] != 1:
                raise UnknownSizesError(f"{function}, whose result is not dense")
            strides[k], step = step, step * shape[k]
        return new(shape, x.dtype, strides)

    return opened(found)


def _fake(x: Any) -> Any:
    """Return a tensor without data on the CPU, for torch's fake tensors."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu") if isinstance(x, Tensor) else x


def _guessed_size(n: int, near: Size, known: Sequence[Size]) -> Size:
    if near is not None and current(near) == n:
        return near
    return next((one for one in known if current(one) == n), n)


# -- views


def _strided(x: Tensor, shape: Sequence[Size], strides: Sequence[Size], offset: Size = 0) -> Tensor:
    """Return a tensor on ``meta`` in a given memory."""
    if not is_open(offset) and current(offset) == 0:
        return new(shape, x.dtype, strides)
    whole = torch.empty_strided(shape, strides, dtype=x.dtype, device="meta")
    return whole.as_strided(shape, strides, offset)


def _resolved(x: Tensor, shape: Sequence[Size]) -> list[Size]:
    """Return a shape with the size that is given as -1."""
    sizes = list(shape)
    for k, n in enumerate(sizes):
        if not is_open(n) and n == -1:
            rest: Size = 1
            for other in sizes[:k] + sizes[k + 1 :]:
                rest = rest * other
            sizes[k] = x.numel() // rest
    return sizes


def _view(x: Tensor, size: Sequence[Size]) -> Tensor | None:
    shape = _resolved(x, size)
    total: Size = 1
    for n in shape:
        total = total * n
    if total != x.numel() or x.numel() == 0:
        return None
    if x.is_contiguous():
        return _strided(x, shape, new(shape, x.dtype).stride(), x.storage_offset())
    strides = _strides_of_view(x, shape)
    return None if strides is None else _strided(x, shape, strides, x.storage_offset())


def _strides_of_view(x: Tensor, shape: Sequence[Size]) -> list[Size] | None:
    """Return the strides of a view of another shape; None if there is none. Axes that lie side by side are joined."""
    strides: list[Size] = [0] * len(shape)
    place = len(shape) - 1
    base: Size = x.stride(-1)
    size: Size = 1
    taken: Size = 1
    for k in reversed(range(x.dim())):
        size = size * x.shape[k]
        if k and (x.shape[k - 1] == 1 or x.stride(k - 1) == size * base):
            continue
        while place >= 0 and (taken < size or shape[place] == 1):
            strides[place], taken = taken * base, taken * shape[place]
            place -= 1
        if taken != size:
            return None
        if k:
            base, size, taken = x.stride(k - 1), 1, 1
    return strides if place == -1 else None


def _expand(x: Tensor, size: Sequence[Size], *, implicit: bool = False) -> Tensor | None:
    missing = len(size) - x.dim()
    shape: list[Size] = []
    strides: list[Size] = []
    for k, n in enumerate(size):
        own = x.shape[k - missing] if k >= missing else 1
        if not is_open(n) and n == -1:
            n = own
        same = k >= missing and n == own
        if not same and own != 1:
            return None
        shape.append(own if same else n)
        strides.append(x.stride(k - missing) if same else 0)
    return _strided(x, shape, strides, x.storage_offset())


def _permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    axes = [k % x.dim() for k in dims]
    return _strided(x, [x.shape[k] for k in axes], [x.stride(k) for k in axes], x.storage_offset())


def _transpose(x: Tensor, one: int, other: int) -> Tensor:
    axes = list(range(x.dim()))
    if axes:
        axes[one], axes[other] = axes[other], axes[one]
    return _permute(x, axes)


def _unsqueeze(x: Tensor, dim: int) -> Tensor:
    dim %= x.dim() + 1
    step = x.shape[dim] * x.stride(dim) if dim < x.dim() else 1
    shape, strides = list(x.shape), list(x.stride())
    return _strided(x, [*shape[:dim], 1, *shape[dim:]], [*strides[:dim], step, *strides[dim:]], x.storage_offset())


def _squeeze(x: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
    given = range(x.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {k % x.dim() for k in given if x.shape[k] == 1} if x.dim() else set()
    kept = [k for k in range(x.dim()) if k not in gone]
    return _strided(x, [x.shape[k] for k in kept], [x.stride(k) for k in kept], x.storage_offset())


def _bound(value: Size, size: Size) -> Size:
    """Return the bound of a slice within a size, as in Python."""
    if value < 0:
        value = value + size
        if value < 0:
            return 0
    return size if value > size else value


def _slice(x: Tensor, dim: int = 0, start: Size = None, stop: Size = None, step: int = 1) -> Tensor:
    size = x.shape[dim]
    first = 0 if start is None else _bound(start, size)
    last = size if stop is None else _bound(stop, size)
    if last < first:
        last = first
    shape, strides = list(x.shape), list(x.stride())
    shape[dim] = last - first if step == 1 else (last - first + step - 1) // step
    strides[dim] = strides[dim] * step
    return _strided(x, shape, strides, x.storage_offset() + first * x.stride(dim))


def _select(x: Tensor, dim: int, index: Size) -> Tensor:
    dim %= x.dim()
    place = index + x.shape[dim] if index < 0 else index
    shape, strides = list(x.shape), list(x.stride())
    return _strided(
        x, shape[:dim] + shape[dim + 1 :], strides[:dim] + strides[dim + 1 :], x.storage_offset() + place * strides[dim]
    )


def _split_with_sizes(x: Tensor, sizes: Sequence[Size], dim: int = 0) -> list[Tensor]:
    out, start = [], 0
    for n in sizes:
        out.append(_slice(x, dim, start, start + n))
        start = start + n
    return out


def _split(x: Tensor, size: Size, dim: int = 0) -> list[Tensor] | None:
    if size == 0:
        return None
    count = int((x.shape[dim] + size - 1) // size)
    return [_slice(x, dim, k * size, (k + 1) * size) for k in range(max(count, 1))]


def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [_select(x, dim, k) for k in range(int(x.shape[dim]))]


def _same(x: Tensor) -> Tensor:
    return _strided(x, x.shape, x.stride(), x.storage_offset())


def _as_strided(x: Tensor, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size = None) -> Tensor:
    return _strided(x, size, stride, x.storage_offset() if storage_offset is None else storage_offset)


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    one, other = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = x.shape[one], x.shape[other]
    length = torch.sym_min(rows, columns - offset) if offset >= 0 else torch.sym_min(rows + offset, columns)
    length = torch.sym_max(length, 0)
    start = x.storage_offset()
    if length != 0:
        start = start + (offset * x.stride(other) if offset >= 0 else -offset * x.stride(one))
    kept = [k for k in range(x.dim()) if k not in (one, other)]
    shape, strides = [x.shape[k] for k in kept], [x.stride(k) for k in kept]
    return _strided(x, [*shape, length], [*strides, x.stride(one) + x.stride(other)], start)


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor | None:
    if not x.dim():
        return None
    shape, strides = list(x.shape), list(x.stride())
    windows = (shape[dim] - size) // step + 1
    along, strides[dim] = strides[dim], strides[dim] * step
    shape[dim] = windows
    return _strided(x, [*shape, size], [*strides, along], x.storage_offset())


_VIEWS: dict[str, Callable[..., Any]] = {
    "view.default": _view,
    "_unsafe_view.default": _view,
    "expand.default": _expand,
    "permute.default": _permute,
    "transpose.int": _transpose,
    "t.default": lambda x: _permute(x, range(x.dim())[::-1]),
    "unsqueeze.default": _unsqueeze,
    **dict.fromkeys(("squeeze.default", "squeeze.dim", "squeeze.dims"), _squeeze),
    "slice.Tensor": _slice,
    "select.int": _select,
    "split.Tensor": _split,
    "split_with_sizes.default": _split_with_sizes,
    "unbind.int": _unbind,
    **dict.fromkeys(("alias.default", "detach.default", "lift_fresh.default"), _same),
    "as_strided.default": _as_strided,
    "_reshape_alias.default": _as_strided,
    "diagonal.default": _diagonal,
    "unfold.default": _unfold,
}


# -- windows


def _windows(n: Size, size: int, stride: int, padding: int, dilation: int = 1) -> Size:
    return (n + 2 * padding - dilation * (size - 1) - 1) // stride + 1


def _each(values: Sequence[int], count: int) -> Sequence[int]:
    return list(values) * count if len(values) == 1 else values


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor | None:  # fmt: skip
    axes = x.dim() - 2
    if not x.is_contiguous() or x.dim() != weight.dim():
        return None
    sizes: list[Size] = []
    for k, n in enumerate(x.shape[2:]):
        kernel, (step, pad, spread, more) = (
            weight.shape[2 + k],
            [_each(each, axes)[k] for each in (stride, padding, dilation, output_padding)],
        )
        if transposed:
            sizes.append((n - 1) * step - 2 * pad + spread * (kernel - 1) + more + 1)
        else:
            sizes.append(_windows(n, kernel, step, pad, spread))
    return new((x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *sizes), x.dtype)


def _pool(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    found = _averages(x, kernel_size, stride, padding, ceil_mode, dilation=dilation)
    return None if found is None else (found, new(found.shape, torch.int64))


def _averages(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, *rest: Any, dilation: Sequence[int] = (1,), **kwargs: Any,
) -> Tensor | None:  # fmt: skip
    if ceil_mode or x.dim() not in (3, 4) or not x.is_contiguous():
        return None
    kernel = _each(kernel_size, 2)
    given = zip(x.shape[-2:], kernel, _each(stride or kernel, 2), _each(padding, 2), _each(dilation, 2), strict=True)
    return new((*x.shape[:-2], *[_windows(*each) for each in given]), x.dtype)


# -- sizes that are computed


def _repeated(x: Tensor, repeats: Sequence[Size]) -> Tensor | None:
    missing = len(repeats) - x.dim()
    if missing < 0:
        return None
    own = [1] * missing + list(x.shape)
    return new([n * count for n, count in zip(own, repeats, strict=True)], x.dtype)


def _half_spectrum(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor | None:
    if not x.is_contiguous() or not onesided:
        return None
    shape = list(x.shape)
    shape[dim[-1]] = shape[dim[-1]] // 2 + 1
    return new(shape, x.dtype.to_complex())


def _whole_spectrum(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: Size) -> Tensor | None:
    if not x.is_contiguous():
        return None
    shape = list(x.shape)
    shape[dim[-1]] = last_dim_size
    return new(shape, x.dtype.to_real())


_COMPUTED: dict[str, Callable[..., Any]] = {
    "repeat.default": _repeated,
    "_fft_r2c.default": _half_spectrum,
    "_fft_c2r.default": _whole_spectrum,
    "convolution.default": _convolution,
    "max_pool2d_with_indices.default": _pool,
    "avg_pool2d.default": _averages,
}
