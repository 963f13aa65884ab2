"""Calls of ``torch.autograd.Function`` in a traced function: their values, and their backward pass for later.

torch runs the forward pass without gradients. So a call is traced as an operator that returns the results unchanged. It
names the call, whose backward pass is traced when a gradient needs it; see `gtrace.interop.autograd_functions`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gtrace.core.base import torch_internals as internals
from gtrace.core.base import tree
from gtrace.core.base.errors import ArgumentError, message

_library = torch.library.Library("gtrace", "FRAGMENT")
_library.define("custom_function(Tensor[] outputs, Tensor[] inputs, Tensor[] kept, str call) -> Tensor[]")
_library.impl(
    "custom_function", lambda outputs, inputs, kept, call: [x.clone() for x in outputs], "CompositeExplicitAutograd"
)

CUSTOM = "gtrace.custom_function.default"
"""The operator that stands for a call: (results, differentiated arguments, what it kept, name) -> results."""

Place = tuple[str, int]
"""A tensor that a backward pass uses: a number among the "inputs", the "outputs" or the "kept" tensors of its call."""

Type = tuple[torch.Size, torch.dtype, torch.device]


class _Context(torch.autograd.function.FunctionCtx):
    """What a forward pass hands to its backward pass."""

    to_save: tuple[torch.Tensor, ...] = ()
    dirty_tensors: tuple[torch.Tensor, ...] = ()
    non_differentiable: tuple[torch.Tensor, ...] = ()

    @property
    def saved_tensors(self) -> tuple[torch.Tensor, ...]:
        return self.to_save


class CustomCall:
    """A call of a custom function.

    Attributes:
        name: the name of the function.
        refusal: what it expects and gets instead, and a fix, if it has no derivative.
        places: the tensors that its backward pass uses.
        once: whether its backward pass has no derivative itself.
    """

    def __init__(self, cls: Any) -> None:
        self.name: str = cls.__name__
        self.refusal: tuple[str, str, str] | None = None
        self.kept: list[torch.Tensor] = []
        self.places: list[Place] = []
        own = cls.backward is not torch.autograd.Function.backward
        self._backward = cls.backward if own else cls.vjp
        self.once = _once(self._backward)
        if self._backward is torch.autograd.Function.vjp:
            self.refusal = "a function that has a backward pass", "none", "Define backward for it."

    def keep(self, context: _Context, args: Sequence[Any], outs: Sequence[Any], marked: Sequence[int]) -> None:
        """Keep what the backward pass needs, with places instead of tensors; `kept` has the other tensors."""
        inputs = [k for k, x in enumerate(args) if _differentiable(x)]
        by_id: dict[int, Place] = {id(args[k]): ("inputs", n) for n, k in enumerate(inputs)}
        by_id |= {id(outs[k]): ("outputs", n) for n, k in enumerate(marked)}
        kept = {key: x for key, x in vars(context).items() if key not in ("dirty_tensors", "non_differentiable")}
        leaves, self._structure = tree.flatten(kept)
        self._leaves: list[Any] = []
        for x in leaves:
            if isinstance(x, torch.Tensor):
                place = by_id.setdefault(id(x), ("kept", len(self.kept)))
                if place == ("kept", len(self.kept)):
                    self.kept.append(x)
                self.places.append(place)
            self._leaves.append(_TENSOR if isinstance(x, torch.Tensor) else x)
        self._count, self._marked = len(args), marked
        self._inputs = {k: _type(args[k]) for k in inputs}
        self._outs = [_type(x) if isinstance(x, torch.Tensor) else None for x in outs]

    def backward(self, used: Sequence[torch.Tensor], cts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the cotangents of the differentiated arguments.

        Args:
            used: the tensors at `places`.
            cts: the cotangents of the results that have one.

        Raises:
            ArgumentError: the backward pass does not return one cotangent for each argument.
        """
        rest, given = iter(used), dict(zip(self._marked, cts, strict=True))
        state: Any = self._structure.unflatten([next(rest) if x is _TENSOR else x for x in self._leaves])
        context = _Context()
        vars(context).update(state)
        found = self._backward(
            context, *[given[k] if k in given else None if t is None else _zeros(t) for k, t in enumerate(self._outs)]
        )
        grads = found if isinstance(found, tuple) else (found,)
        if len(grads) < self._count or any(g is not None for g in grads[self._count :]):
            fix = "Return None for arguments that have none."
            raise ArgumentError(message(f"{self.name}.backward", f"{self._count} cotangents", f"{len(grads)}", fix))
        return [_zeros(t) if grads[k] is None else _of_type(grads[k], t) for k, t in self._inputs.items()]


_TENSOR = object()
"""Marks a tensor among the leaves of a context."""


def _type(x: torch.Tensor) -> Type:
    return x.shape, x.dtype, x.device


def _zeros(t: Type) -> torch.Tensor:
    return torch.zeros(t[0], dtype=t[1], device=t[2])


def _of_type(g: torch.Tensor, t: Type) -> torch.Tensor:
    """Return a cotangent in the type of its argument, as torch's autograd converts it."""
    if g.is_complex() and not t[1].is_complex:
        g = g.real
    return (g if g.shape == t[0] else g.sum_to_size(t[0])).to(t[1])


@contextlib.contextmanager
def custom_calls() -> Iterator[dict[str, CustomCall]]:
    """Trace calls of custom functions that this thread makes as `CUSTOM`. One thread at a time may be in this context.

    Returns:
        The calls by their names in the trace.
    """
    owner = threading.get_ident()
    calls: dict[str, CustomCall] = {}

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        ours = threading.get_ident() == owner and torch.is_grad_enabled() and any(map(_differentiable, args))
        if not ours or kwargs or internals.TRANSFORM.get()() is not None:
            return super(_BASE, cls).apply(*args, **kwargs)
        return _called(calls, cls, args)

    # functions are often called by a bound method that was made earlier, which finds this one
    setattr(_BASE, "apply", classmethod(apply))  # noqa: B010 - a class method, which a class does not state
    try:
        yield calls
    finally:
        delattr(_BASE, "apply")


_BASE: Any = torch.autograd.Function.__mro__[1]
"""The class whose `apply` torch's functions call after they have bound their arguments."""


def _called(calls: dict[str, CustomCall], cls: Any, args: tuple[Any, ...]) -> Any:
    """Run the forward pass of a custom function as torch's autograd does, and trace the call."""
    context = _Context()
    context.needs_input_grad = tuple(map(_differentiable, args))  # type: ignore[attr-defined]
    with torch.no_grad():
        if cls.setup_context is torch.autograd.Function.setup_context:
            found = cls.forward(context, *args)
        else:
            found = cls.forward(*args)
            cls.setup_context(context, args, found)
    call = CustomCall(cls)
    if context.dirty_tensors:
        call.refusal = "a function that returns new tensors", "one that writes to its arguments", "Write to a clone."
    elif cls.__module__ == "torch.utils.checkpoint":
        call.refusal = "checkpoints with use_reentrant=False", "use_reentrant=True", "Pass use_reentrant=False."
    several = isinstance(found, tuple)
    outs = list(found) if several else [found]
    constant = set(map(id, context.non_differentiable))
    marked = [k for k, x in enumerate(outs) if _differentiable(x) and id(x) not in constant]
    if call.refusal is None:
        call.keep(context, args, outs, marked)
    kept, call.kept = call.kept, []
    name = f"{call.name} {len(calls)}"
    calls[name] = call
    inputs = [x for x in args if _differentiable(x)]
    results = torch.ops.gtrace.custom_function.default([outs[k] for k in marked], inputs, kept, name) if marked else []
    outs = [x.detach() if _differentiable(x) else x for x in outs]
    for k, x in zip(marked, results, strict=True):
        outs[k] = x
    return tuple(outs) if several else outs[0]


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


_ONCE = torch.autograd.function.once_differentiable(lambda ctx: None).__code__


def _once(function: Any) -> bool:
    """Whether torch's decorator says that a backward pass has no derivative."""
    while function is not None:
        if getattr(function, "__code__", None) is _ONCE:
            return True
        function = getattr(function, "__wrapped__", None)
    return False
