"""Effects of a torch function that tracing notices: ``no_grad``, ``detach``, reads of values.

A function that reads values can be traced with values. Its numbers and indices are then constants. Results whose sizes
depend on values get their sizes for these indices.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, DtypeError, message
from gtrace.interop.aten.default_dtype import with_default_dtype
from gtrace.interop.aten.overloads import is_view


def observing_mode(values: bool, followed: bool, default: torch.dtype) -> Any:
    """Return a torch mode that detaches values computed under ``torch.no_grad``, and values that the function detaches.

    Args:
        values: whether the tensors have values that the function may read.
        followed: whether a gradient may follow one of the tensors.
        default: torch's default dtype for the function.
    """
    return _mode()(values, followed, default)


@contextlib.contextmanager
def users_detaches(observing: Any) -> Iterator[None]:
    """Tell a mode or tracer which calls of ``aten.detach`` are the function's own, by ``x.detach()`` or ``x.data``.

    A tensor without axes in an f-string is its value. An assignment to ``x.data`` raises, because it replaces memory
    that other tensors may share. The tensor itself may be assigned, as by ``module.to(dtype)`` for parameters that have
    this dtype.

    torch's autograd detaches the results that it saves for its backward pass. A derivative of that pass, as in a
    function that calls ``torch.autograd.grad``, follows them. One thread at a time may be in this context.
    """
    owner = threading.get_ident()

    def told(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != owner:
                return original(*args, **kwargs)
            before, observing.detaching = observing.detaching, True
            try:
                return original(*args, **kwargs)
            finally:
                observing.detaching = before

        return call

    data = torch.Tensor.data

    def assign(x: torch.Tensor, value: torch.Tensor) -> None:
        if value is x:
            return
        if threading.get_ident() == owner and type(x) not in (torch.Tensor, torch.nn.Parameter):
            fix = "Write x.data.copy_(value)."
            raise ArgumentError(message("data", "a function that writes to tensors", "an assignment to x.data", fix))
        data.__set__(x, value)  # type: ignore[attr-defined]

    as_text = torch.Tensor.__format__

    def formatted(x: torch.Tensor, spec: str) -> str:
        """Format the number, as torch does for its own class alone."""
        if threading.get_ident() == owner and type(x) not in (torch.Tensor, torch.nn.Parameter) and x.dim() == 0:
            return format(x.item(), spec)
        return str(as_text(x, spec))

    changed: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "__format__", formatted),
        (torch.Tensor, "detach", told(torch.Tensor.detach)),
        (torch.Tensor, "data", property(told(data.__get__), assign)),  # type: ignore[attr-defined]
        (torch, "detach", told(torch.detach)),
    ]
    own = [(holder, name, vars(holder).get(name)) for holder, name, _ in changed]
    for holder, name, value in changed:
        setattr(holder, name, value)
    try:
        yield
    finally:
        for holder, name, value in own:
            if value is None:  # inherited
                delattr(holder, name)
            else:
                setattr(holder, name, value)


def observable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a torch function in a form that shows its effects: detaching its argument, or reading values."""
    return _OBSERVABLE.get(function, function)


def _detach(x: torch.Tensor) -> torch.Tensor:
    return x.detach()


def _tensor_split(*args: Any, **named: Any) -> Any:
    """Read the split indices from a tensor; torch reads its memory."""
    read: list[Any] = [x.tolist() if k == 1 and isinstance(x, torch.Tensor) else x for k, x in enumerate(args)]
    places = named.pop("tensor_indices_or_sections", None)
    if places is not None:
        found = places.tolist()
        named["sections" if isinstance(found, int) else "indices"] = found
    return torch.tensor_split(*read, **named)


_OBSERVABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.detach: _detach,
    torch.detach: _detach,
    torch.Tensor.tensor_split: _tensor_split,
    torch.tensor_split: _tensor_split,
}


@functools.cache
def _mode() -> Any:
    class Mode(internals.DISPATCH_MODE.get()):  # type: ignore[misc]
        def __init__(self, values: bool, followed: bool, default: torch.dtype) -> None:
            super().__init__()
            self.values, self.followed, self.default = values, followed, default
            self.detaching = False
            self.inputs: set[int] = set()
            self.bases: dict[int, tuple[Any, Any]] = {}  # by the id of a detached view: the view, and its base
            self.unfollowed = False

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function is torch.ops.aten.detach.default and not self.detaching and torch.is_grad_enabled():
                function = torch.ops.aten.alias.default
            if self.default is not torch.float32:
                args, kwargs = with_default_dtype(function, args, kwargs, self.default)
            if self.values:
                found = _with_values(function, args, kwargs, self._followed())
            else:
                found = function(*args, **kwargs)
            return found if torch.is_grad_enabled() else _detached(found)

        def _followed(self) -> bool:
            return self.followed and torch.is_grad_enabled() and not self.unfollowed

    return Mode


def call_observed(
    observing: Any, call: Callable[..., Any], function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Make a call of the traced function as torch's autograd would follow it.

    Values computed under ``torch.no_grad`` are detached. A write that autograd does not follow, under ``no_grad`` or
    through a detached view, keeps the earlier gradient.

    Args:
        observing: the mode that learns of detached tensors.
        call: makes a call that may write to tensors, given (operator, arguments).
    """
    base = args[0] if args and is_view(function) else None
    own = observing.detaching and function is torch.ops.aten.detach.default
    targets = _written(function, args, kwargs)
    followed = torch.is_grad_enabled() and not any(id(x) in observing.bases for x in targets)
    found = (
        call(function, *args, **kwargs) if followed else _unfollowed(observing, call, function, args, kwargs, targets)
    )
    if base is not None and (own or not torch.is_grad_enabled() or id(base) in observing.bases):
        root = observing.bases.get(id(base), (base, base))[1]
        observing.bases |= {id(x): (x, root) for x in (found if isinstance(found, (tuple, list)) else [found])}
    return found


def _written(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the tensors with a gradient that a call writes to."""
    named = [*zip(function._schema.arguments, args, strict=False)]
    named += [(a, kwargs[a.name]) for a in function._schema.arguments if a.name in kwargs]
    return [x for a, x in named if a.alias_info is not None and a.alias_info.is_write and _differentiable(x)]


def _unfollowed(
    observing: Any, call: Callable[..., Any], function: Any, args: Sequence[Any], kwargs: dict[str, Any],
    targets: Sequence[Any],
) -> Any:  # fmt: skip
    """Make a call that autograd does not follow. Only the call itself is without a gradient: views of the written
    tensor are recomputed, and follow their bases.
    """
    aten = torch.ops.aten
    roots = {id(x): x for x in (observing.bases.get(id(x), (x, x))[1] for x in targets)}
    # written inputs are buffers, which torch does not differentiate
    bases = [x for x in roots.values() if id(x) not in observing.inputs]

    def detached(x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(map(detached, x))
        return call(aten.detach.default, x) if _differentiable(x) else x

    before = observing.detaching, observing.unfollowed
    observing.detaching = observing.unfollowed = True
    try:
        with torch.enable_grad():
            olds = [call(aten.clone.default, x) for x in bases]
            found = call(function, *args, **kwargs)
            for x, old in zip(bases, olds, strict=True):
                known = detached(old)
                zero, finite = call(aten.zeros_like.default, known), call(aten.isfinite.default, known)
                change = call(aten.where.self, finite, call(aten.sub.Tensor, known, old), zero)  # 0, with the gradient
                call(aten.copy_.default, x, call(aten.sub.Tensor, detached(x), change))
            return found if function._schema.is_mutable else detached(found)
    finally:
        observing.detaching, observing.unfollowed = before


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _detached(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return torch.ops.aten.detach.default(found) if found.is_floating_point() or found.is_complex() else found
    return type(found)(map(_detached, found)) if type(found) in (tuple, list) else found


def _with_values(function: Any, args: Sequence[Any], kwargs: dict[str, Any], followed: bool) -> Any:
    """Call an operator. If its result depends on values, return constants, or call another operator.

    Raises:
        DtypeError: a gradient follows its floating result, whose size depends on values, and torch has no derivative.
    """
    replaced = _REPLACED.get(function)
    if replaced is not None:
        return replaced(*args, **kwargs)
    reads = torch.Tag.data_dependent_output in function.tags
    if not reads and not of_unknown_size(function):
        return function(*args, **kwargs)
    found = _value(function, *args, **kwargs)
    results = found if isinstance(found, (tuple, list)) else [found]
    if followed and any(isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()) for x in results):
        raise DtypeError(
            message(str(function), "a function that has a derivative", "one whose result's size depends on values",
                    "Call it under torch.no_grad(), or on what gt.stop_gradient returns.")
        )  # fmt: skip
    return found


def of_unknown_size(function: Any) -> bool:
    """Whether result sizes depend on values of tensors. torch claims so for one operator that takes numbers."""
    return torch.Tag.dynamic_output_shape in function.tags and function is not torch.ops.aten._ctc_loss.default


def _value(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return a function's result for values, without tracing it; its tensors are constants."""
    functional = internals.FUNCTIONAL_TENSOR.get()

    def plain(x: Any) -> Any:
        if isinstance(x, functional):
            return x.from_functional()
        # the elements that `tolist` reads
        return internals.FROM_FUNCTIONAL.get()(x) if isinstance(x, torch.Tensor) and is_wrapped(x) else x

    is_wrapped = internals.IS_FUNCTIONAL.get()

    with internals.NO_DISPATCH_MODES.get()():
        found = function(*tree.map(plain, args), **tree.map(plain, kwargs))
    return tree.map(lambda x: torch.ops.aten.lift_fresh_copy.default(x) if isinstance(x, torch.Tensor) else x, found)


def _as_places(indices: Sequence[Any]) -> list[Any]:
    """Return the indices of an indexing operator, with masks replaced by the indices where they hold."""
    out: list[Any] = []
    for index in indices:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            out += _value(_places, index)
        else:
            out.append(index)
    return out


def _index(x: torch.Tensor, indices: Sequence[Any]) -> torch.Tensor:
    return torch.ops.aten.index.Tensor(x, _as_places(indices))


def _index_put(x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    return torch.ops.aten.index_put.default(x, _as_places(indices), values, accumulate)


def _places(mask: torch.Tensor) -> list[torch.Tensor]:
    return [place.clone() for place in torch.nonzero(mask).unbind(1)]


def _index_put_(
    x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    return torch.ops.aten.index_put_.default(x, _as_places(indices), values, accumulate)


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(x.shape, mask.shape) or (1,)
    return torch.ops.aten.index.Tensor(x.expand(shape), _value(lambda m: _places(m.expand(shape)), mask))


def _repeat_interleave(x: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    found: torch.Tensor = _value(torch.ops.aten.repeat_interleave.Tensor, x, output_size=output_size)
    return found


def _lstsq(
    a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the solution by the pseudo-inverse, which torch differentiates, and its residuals."""
    values = _value(torch.ops.aten.linalg_lstsq.default, a, b, rcond, driver=driver)
    columns = b.dim() == a.dim() or b.shape != a.shape[:-1]
    right = b if columns else b.unsqueeze(-1)
    solution = torch.linalg.pinv(a, rtol=rcond) @ right
    residuals = values[1]
    if residuals.numel():
        gap = a @ solution - right
        residuals = (gap * gap.conj()).real.sum(-2) if gap.is_complex() else (gap * gap).sum(-2)
    return solution if columns else solution.squeeze(-1), residuals, *values[2:]


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *rest: Any, **named: Any) -> tuple[torch.Tensor, ...]:
    """Call the form that takes lengths as numbers, which determine the sizes of the results."""
    lengths = [_value(lambda z: z.reshape(-1).tolist(), z) for z in rest[:2]]
    found: tuple[torch.Tensor, ...] = torch.ops.aten._ctc_loss.default(log_probs, targets, *lengths, *rest[2:], **named)
    return found


_REPLACED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.index.Tensor: _index,
    torch.ops.aten.index_put.default: _index_put,
    torch.ops.aten.index_put_.default: _index_put_,
    torch.ops.aten.masked_select.default: _masked_select,
    torch.ops.aten.repeat_interleave.Tensor: _repeat_interleave,
    torch.ops.aten.linalg_lstsq.default: _lstsq,
    torch.ops.aten._ctc_loss.Tensor: _ctc_loss,
}
"""By overload: a replacement for known values."""
