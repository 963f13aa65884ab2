"""Writes through views: a write to a view gives a new value of its base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def written_through(
    call: Any, args: Sequence[Any], kwargs: dict[str, Any], place: int | None, value: torch.Tensor
) -> torch.Tensor | None:
    """Return the base of a view after `value` was written to the view; None if there is no rule.

    Args:
        call, args, kwargs: the call that makes the view; the base is the first argument.
        place: the index of the view among the results of the call; None if there is one result.
    """
    base, *rest = args
    name = call._schema.name.removeprefix("aten::")
    if name in _SAME_ELEMENTS and value.numel() == base.numel() and value.dtype is base.dtype:
        return value.reshape(base.shape)
    inverse = _INVERSES.get(name)
    return None if inverse is None else inverse(base, value, place, *rest, *kwargs.values())


_SAME_ELEMENTS = {
    "view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze", "detach", "alias", "view_as", "expand",
}  # fmt: skip
"""Views with all elements of their base in order."""


def _split(base: torch.Tensor, value: torch.Tensor, place: int | None, size: Any, dim: int = 0) -> torch.Tensor:
    assert place is not None
    start = place * size if isinstance(size, (int, torch.SymInt)) else sum(size[:place])
    return torch.slice_scatter(base, value, dim, start, start + value.shape[dim])


def _permuted(base: torch.Tensor, value: torch.Tensor, place: int | None, dims: Sequence[int]) -> torch.Tensor:
    order = [k % base.dim() for k in dims]
    return value.permute([order.index(k) for k in range(base.dim())])


def _sliced(
    base: torch.Tensor, value: torch.Tensor, place: int | None, dim: int = 0, start: Any = None, stop: Any = None,
    step: int = 1,
) -> torch.Tensor:  # fmt: skip
    return torch.slice_scatter(base, value, dim, start, stop, step)


def _unbound(base: torch.Tensor, value: torch.Tensor, place: int | None, dim: int = 0) -> torch.Tensor:
    assert place is not None
    return torch.select_scatter(base, value, dim, place)


_INVERSES: dict[str, Callable[..., torch.Tensor]] = {
    "slice": _sliced,
    "select": lambda base, value, place, dim, index: torch.select_scatter(base, value, dim, index),
    "diagonal": lambda base, value, place, offset=0, one=0, other=1: torch.diagonal_scatter(
        base, value, offset, one, other
    ),
    "transpose": lambda base, value, place, one, other: value.transpose(one, other),
    "t": lambda base, value, place: value.t(),
    "permute": _permuted,
    "split": _split,
    "split_with_sizes": _split,
    "unbind": _unbound,
    "as_strided": lambda base, value, place, size, stride, offset=None: torch.as_strided_scatter(
        base, value, size, stride, offset
    ),
}
"""By the name of a view operator: (base, value of the view, place, arguments) -> value of the base."""
